"""What a gate makes of its worker's file: checked by the public shape, its rows counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support import made
from tests.support.carried_out import shape_of
from tests.support.made import PERSONS, SCHEMA, TRAJECTORY

from penstock.base.errors import JobFailed
from penstock.mechanisms import Maf
from penstock.mechanisms.parts import Part
from penstock.mechanisms.released import name_copy, name_refit
from penstock.study.study import Study
from penstock.wire.manifest import ManifestPart
from penstock.wire.messages import LABELLED_VERSION, WIRE_VERSION
from penstock.wire.release_file import measure_release, write_release

ROWS = PERSONS * SCHEMA.max_rows_per_person
MAF = made.study(Maf(copies=2, refits=1))
MADE = made.parts(MAF)
FORMS = (LABELLED_VERSION, WIRE_VERSION)
either = pytest.mark.parametrize("wire", FORMS)

Measured = tuple[int, tuple[ManifestPart, ...]]


def check(data: bytes, wire: str, folder: Path, study: Study = MAF) -> Measured:
    path = folder / "table.arrow"
    path.write_bytes(data)
    return measure_release(path, shape_of(study, PERSONS), wire)


def written(wire: str, rows: Mapping[str, int], study: Study = MAF) -> bytes:
    """A file with parts of these sizes."""
    if wire == LABELLED_VERSION:
        return made.stream(made.table(study, rows_of=rows))
    return b"".join(made.streams(study, made.parts(study, rows_of=rows)).values())


def sizes(copies: int, second: int, refit: int) -> dict[str, int]:
    return {name_copy(1): copies, name_copy(2): second, name_refit(1): refit}


@either
@pytest.mark.parametrize("rows", [1, 33, ROWS])
def test_copies_have_as_many_rows_as_were_counted(wire: str, rows: int, tmp_path: Path) -> None:
    each = sizes(rows, rows, 7)
    data = written(wire, each)
    found, parts = check(data, wire, tmp_path)
    assert found == rows
    if wire == WIRE_VERSION:
        assert {part.name: part.rows for part in parts} == each
        assert sum(part.bytes for part in parts) == len(data)
    else:
        assert parts == ()


@either
@pytest.mark.parametrize(
    "rows",
    [
        sizes(33, 34, ROWS),
        sizes(ROWS + 1, ROWS + 1, ROWS),
        sizes(ROWS, ROWS, ROWS + 1),
        sizes(ROWS, ROWS, 0),
        sizes(0, 0, ROWS),
        sizes(ROWS, 0, ROWS),
    ],
)
def test_other_sizes_than_a_release_can_have_fail(
    wire: str, rows: dict[str, int], tmp_path: Path
) -> None:
    with pytest.raises(JobFailed):
        check(written(wire, rows), wire, tmp_path)


def test_missing_values_where_there_can_be_none_fail(tmp_path: Path) -> None:
    table = made.table(MAF, rows_of=sizes(5, 5, 5))
    for wrong in (holed(table), table.drop_columns(["sbp"]), table.slice(0, 0)):
        with pytest.raises(JobFailed):
            check(made.stream(wrong), LABELLED_VERSION, tmp_path)
    streams = made.streams(MAF, made.parts(MAF, rows_of=sizes(5, 5, 5)))
    table = pa.ipc.open_stream(streams[name_refit(1)]).read_all()
    for wrong in (holed(table), table.drop_columns(["sbp"]), table.slice(0, 0)):
        changed = streams | {name_refit(1): made.stream(wrong)}
        with pytest.raises(JobFailed):
            check(b"".join(changed.values()), WIRE_VERSION, tmp_path)
    assert check(b"".join(streams.values()), WIRE_VERSION, tmp_path)[0] == 5


def holed(table: pa.Table) -> pa.Table:
    holes = [None, *table["sbp"].to_pylist()[1:]]
    place = table.column_names.index("sbp")
    return table.set_column(place, "sbp", pa.array(holes, table["sbp"].type))


@either
def test_a_copy_that_nobody_asked_for_fails(wire: str, tmp_path: Path) -> None:
    third = written(wire, {}, made.study(Maf(copies=3, refits=1)))
    with pytest.raises(JobFailed):
        check(third, wire, tmp_path)


@pytest.mark.parametrize("cut", [0, 1, 8, 100, -1, -9])
def test_a_file_of_parts_that_ends_too_soon_or_goes_on_fails(cut: int, tmp_path: Path) -> None:
    data = written(WIRE_VERSION, {})
    for wrong in (data[:cut], data + b"\x00"):
        with pytest.raises(JobFailed):
            check(wrong, WIRE_VERSION, tmp_path)


@either
@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([], "missing"),
        (MADE[:-1], "missing"),
        ([*MADE, MADE[0]], "not the one"),
        (MADE[::-1], "not the one"),
        ([MADE[0], *MADE[2:]], "not the one"),
        ([*MADE, replace(MADE[0], name="more")], "not the one"),
    ],
)
def test_parts_are_made_in_their_order(
    wire: str, parts: list[Part], said: str, tmp_path: Path
) -> None:
    with pytest.raises(JobFailed, match=said):
        write_release(tmp_path / "release", shape_of(MAF, PERSONS), parts, wire)


@either
def test_a_part_may_be_made_piece_by_piece(wire: str, tmp_path: Path) -> None:
    study = made.study(TRAJECTORY)
    shape, whole = shape_of(study, PERSONS), made.parts(study)
    each = shape.part("paths").each
    pieces = [
        Part(part.name, {name: values[at : at + each] for name, values in part.columns.items()})
        for part in whole
        for at in range(0, part.rows, each)
    ]
    read = []
    for name, parts in (("whole", whole), ("pieces", pieces)):
        path = tmp_path / name
        write_release(path, shape, parts, wire)
        found, told = measure_release(path, shape, wire)
        assert found == shape.first.rows
        data = path.read_bytes()
        if wire == LABELLED_VERSION:
            read.append(made.read(study, pa.ipc.open_stream(data).read_all(), tmp_path).parts)
        else:
            assert [part.rows for part in told] == [part.rows for part in shape.parts]
            read.append(made.read_parts(study, {"all": data}, tmp_path, told=told).parts)
    assert all(read[0][name].equals(read[1][name]) for name in shape.names)
