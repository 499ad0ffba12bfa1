"""What a gate makes of its worker's table: checked by the public shape, its rows counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support import made
from tests.support.carried_out import shape_of
from tests.support.made import PERSONS, SCHEMA

from penstock.base.errors import JobFailed
from penstock.mechanisms import Maf
from penstock.mechanisms.parts import Part
from penstock.mechanisms.released import name_copy, name_refit
from penstock.study.study import Study
from penstock_client.work.release_file import count_rows, write_release

ROWS = PERSONS * SCHEMA.max_rows_per_person
MAF = made.study(Maf(copies=2, refits=1))


def check(table: pa.Table, folder: Path, study: Study = MAF) -> dict[str, int]:
    path = folder / "table.arrow"
    path.write_bytes(made.stream(table))
    return count_rows(path, shape_of(study, PERSONS))


def sizes(copies: int, second: int, refit: int) -> dict[str, int]:
    return {name_copy(1): copies, name_copy(2): second, name_refit(1): refit}


@pytest.mark.parametrize("rows", [1, 33, ROWS])
def test_copies_have_as_many_rows_as_were_counted(rows: int, tmp_path: Path) -> None:
    each = sizes(rows, rows, 7)
    assert check(made.table(MAF, rows_of=each), tmp_path) == each


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
def test_other_sizes_than_a_release_can_have_fail(rows: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(JobFailed):
        check(made.table(MAF, rows_of=rows), tmp_path)


def test_missing_values_where_there_can_be_none_fail(tmp_path: Path) -> None:
    table = made.table(MAF, rows_of=sizes(5, 5, 5))
    holes = [None, *table["sbp"].to_pylist()[1:]]
    place = table.column_names.index("sbp")
    holed = table.set_column(place, "sbp", pa.array(holes, table["sbp"].type))
    with pytest.raises(JobFailed):
        check(holed, tmp_path)
    with pytest.raises(JobFailed):
        check(table.drop_columns(["sbp"]), tmp_path)
    with pytest.raises(JobFailed):
        check(table.slice(0, 0), tmp_path)


def test_a_copy_that_nobody_asked_for_fails(tmp_path: Path) -> None:
    third = made.table(made.study(Maf(copies=3, refits=1)))
    with pytest.raises(JobFailed):
        check(third, tmp_path)


MADE = made.parts(MAF)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([], "missing"),
        (MADE[:-1], "missing"),
        ([*MADE, MADE[-1]], None),
        ([*MADE, MADE[0]], "not the one"),
        (MADE[::-1], "not the one"),
        ([MADE[0], *MADE[2:]], "not the one"),
        ([*MADE, replace(MADE[0], name="more")], "not the one"),
    ],
)
def test_parts_are_made_in_their_order(parts: list[Part], said: str | None, tmp_path: Path) -> None:
    """Piece by piece, where a name comes again at once."""
    path, shape = tmp_path / "release", shape_of(MAF, PERSONS)
    if said is None:
        write_release(path, shape, parts)
    else:
        with pytest.raises(JobFailed, match=said):
            write_release(path, shape, parts)
