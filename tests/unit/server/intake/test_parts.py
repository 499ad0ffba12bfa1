"""Uploads of named parts, hostile until proven: what their manifest says, and what they are."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support import made
from tests.support.carried_out import shape_of
from tests.support.made import KEY, PERSONS, SCHEMA, TRAJECTORY

from penstock.base.errors import UploadRejected
from penstock.mechanisms.plans import plan
from penstock.mechanisms.released import name_copy, name_refit
from penstock.privacy.accounting.accountant import epsilon, epsilon_pld
from penstock.privacy.events import to_dict
from penstock.wire.canonical import canonical
from penstock.wire.manifest import MANIFEST, Manifest, ManifestPart, read_manifest, sign_manifest
from penstock.wire.signatures import public_hex, sign
from penstock_server.intake.uploads import check_manifest, read_upload, size_limit
from penstock_server.store.sites import Site

ROWS = PERSONS * SCHEMA.max_rows_per_person
STUDY = made.study(TRAJECTORY)
SHAPE = shape_of(STUDY, PERSONS)
PARTS = made.parts(STUDY)
STREAMS = made.streams(STUDY, PARTS)
TOLD = made.list_parts(STREAMS)
DATA = b"".join(STREAMS.values())
SITE = Site("north", "net", public_hex(KEY), PERSONS, {})
FEWER = {name_copy(1): 50, name_copy(2): 50, name_refit(1): 57}


def genuine() -> Manifest:
    events = plan(TRAJECTORY, SCHEMA, PERSONS, STUDY.privacy).events
    delta = STUDY.privacy.delta
    return replace(
        made.manifest(STUDY, DATA, parts=TOLD),
        events=tuple(to_dict(e) for e in events),
        epsilon_autodp=epsilon(events, delta),
        epsilon_pld=epsilon_pld(events, delta),
        epsilon_replace_one=epsilon_pld(events, delta, relation="replace-one"),
    )


GENUINE = genuine()


def check(manifest: Manifest) -> Manifest:
    return check_manifest(
        sign_manifest(manifest, KEY),
        STUDY,
        manifest.study_id,
        SITE,
        ledger_seen={},
        simulation=False,
    )


# -- genuine ones --------------------------------------------------------------------------------


def test_genuine_parts_pass(tmp_path: Path) -> None:
    assert check(GENUINE) == GENUINE
    upload = made.read_parts(STUDY, STREAMS, tmp_path)
    assert tuple(upload.parts) == SHAPE.names
    for part in PARTS:
        assert upload.part(part.name).equals(SHAPE.part(part.name).table(part.columns))


@pytest.mark.parametrize("name", made.MECHANISMS)
def test_parts_hold_what_a_labelled_table_held(name: str, tmp_path: Path) -> None:
    study = made.study(made.MECHANISMS[name])
    old = made.read(study, made.table(study), tmp_path, site="north")
    new = made.read_parts(study, made.streams(study, made.parts(study)), tmp_path, site="south")
    assert tuple(old.parts) == tuple(new.parts)
    for part in old.parts:
        assert old.part(part).equals(made.forget_later(new.part(part)))


def test_parts_of_a_frame_that_is_not_full_pass(tmp_path: Path) -> None:
    streams = made.streams(STUDY, made.parts(STUDY, rows_of=FEWER))
    upload = made.read_parts(STUDY, streams, tmp_path)
    assert {name: len(upload.part(name)) for name in FEWER} == FEWER
    told = made.list_parts(streams)
    data = b"".join(streams.values())
    assert check(replace(GENUINE, parts=told, rows=50, table_bytes=len(data))).rows == 50


@pytest.mark.parametrize("chunk", [1, 7])
def test_parts_of_several_batches_pass(tmp_path: Path, chunk: int) -> None:
    again = {name: rewritten(data, chunk=chunk) for name, data in STREAMS.items()}
    upload = made.read_parts(STUDY, again, tmp_path)
    for part in PARTS:
        assert upload.part(part.name).equals(SHAPE.part(part.name).table(part.columns))


@pytest.mark.parametrize("name", made.MECHANISMS)
def test_the_size_limit_holds_genuine_parts(name: str) -> None:
    study = made.study(made.MECHANISMS[name])
    streams = made.streams(study, made.parts(study, persons=2000), 2000)
    size = sum(map(len, streams.values()))
    assert size < size_limit(study, 2000) < 3 * size + 2_000_000
    for part in shape_of(study, 2000).parts:
        assert len(streams[part.name]) < part.bytes()


def test_the_least_parts_are_within_their_bounds() -> None:
    """Where headers are all that there is."""
    for name in made.MECHANISMS:
        study = made.study(made.MECHANISMS[name])
        streams = made.streams(study, made.parts(study, persons=1), 1)
        for part in shape_of(study, 1).parts:
            assert len(streams[part.name]) < part.bytes()


# -- what a manifest says ------------------------------------------------------------------------


def told(place: int, **changed: Any) -> tuple[ManifestPart, ...]:
    """The genuine list with one of them changed."""
    return (*TOLD[:place], replace(TOLD[place], **changed), *TOLD[place + 1 :])


def moved(place: int, by: int) -> tuple[ManifestPart, ...]:
    """A boundary between two parts that lies elsewhere."""
    first, then = TOLD[place], TOLD[place + 1]
    return (
        *TOLD[:place],
        replace(first, bytes=first.bytes + by),
        replace(then, bytes=then.bytes - by),
        *TOLD[place + 2 :],
    )


LISTS: dict[str, tuple[tuple[ManifestPart, ...], str]] = {
    "none": ((), "parts are not what was asked"),
    "a part missing": (TOLD[:-1], r"parts are not what was asked \(got no more; refits/1"),
    "a part in the middle missing": (TOLD[:2] + TOLD[3:], "parts are not what was asked"),
    "a part twice": ((*TOLD, TOLD[-1]), "parts are not what was asked"),
    "another part twice": ((TOLD[0], *TOLD[:-1]), "parts are not what was asked"),
    "a part that nobody asked for": (
        (*TOLD, ManifestPart("rows", 1, 8)),
        r"parts are not what was asked \(got 'rows'; no more",
    ),
    "another order": (TOLD[::-1], "parts are not what was asked"),
    "a copy more": (told(4, name="tables/copy-3"), "parts are not what was asked"),
    "a name with a path": (told(0, name="../tables/copy-1"), "parts are not what was asked"),
    "a name with a line": (told(0, name="tables/copy-1\n"), "parts are not what was asked"),
    "no name": (told(0, name=""), "parts are not what was asked"),
    "a long name": (told(0, name="x" * 100_000), "parts are not what was asked"),
    "a copy without rows": (told(0, rows=0), "rows of tables/copy-1"),
    "a copy of another size": (told(1, rows=ROWS - 1), "copies have not all the same rows"),
    "a copy larger than the frame": (told(0, rows=ROWS + 1), "rows of tables/copy-1"),
    "a refit without rows": (told(4, rows=0), "rows of refits/1"),
    "a refit larger than the frame": (told(4, rows=ROWS + 1), "rows of refits/1"),
    "a particle missing": (told(2, rows=TOLD[2].rows - 1), "rows of particles"),
    "a path's row more": (told(3, rows=TOLD[3].rows + 1), "rows of paths"),
    "rows beyond counting": (told(3, rows=2**53), "rows of paths"),
    "no bytes": (told(2, bytes=0), "bytes of particles"),
    "bytes beyond the bound": (told(2, bytes=SHAPE.parts[2].bytes() + 1), "bytes of particles"),
    "bytes beyond counting": (told(2, bytes=2**53), "bytes of particles"),
    "a gap": (told(2, bytes=TOLD[2].bytes - 8), "not the whole table"),
    "an overlap": (told(2, bytes=TOLD[2].bytes + 8), "not the whole table"),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_parts_that_is_not_the_shapes_is_rejected(name: str) -> None:
    parts, said = LISTS[name]
    with pytest.raises(UploadRejected, match=said):
        check(replace(GENUINE, parts=parts))


@pytest.mark.parametrize("rows", [ROWS - 1, 1])
def test_other_rows_than_the_first_parts_are_rejected(rows: int) -> None:
    with pytest.raises(UploadRejected, match="not those of its first part"):
        check(replace(GENUINE, rows=rows))


def signed(change: Callable[[dict[str, Any]], Any]) -> bytes:
    """A manifest of any form, under a valid signature."""
    body = GENUINE.to_dict()
    body["parts"] = [dict(part) for part in body["parts"]]
    change(body)
    return canonical({"manifest": body, "signature": sign(KEY, MANIFEST, canonical(body))})


FORMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "an older version with parts": lambda m: m.update(wire="1.1"),
    "no version with parts": lambda m: m.update(wire="x"),
    "no parts": lambda m: m.pop("parts"),
    "parts as an object": lambda m: m.update(parts={}),
    "parts as text": lambda m: m.update(parts="tables"),
    "a part as text": lambda m: m["parts"].append("tables"),
    "a part as nothing": lambda m: m["parts"].append(None),
    "an unknown key": lambda m: m["parts"][0].update(offset=0),
    "no rows": lambda m: m["parts"][0].pop("rows"),
    "rows as text": lambda m: m["parts"][0].update(rows="1"),
    "rows as truth": lambda m: m["parts"][0].update(rows=True),
    "rows with a fraction": lambda m: m["parts"][0].update(rows=1.5),
    "rows below none": lambda m: m["parts"][0].update(rows=-1),
    "bytes below none": lambda m: m["parts"][0].update(bytes=-1),
    "bytes beyond every number": lambda m: m["parts"][0].update(bytes=10**400),
    "a name that is a number": lambda m: m["parts"][0].update(name=1),
}


@pytest.mark.parametrize("name", FORMS)
def test_parts_of_another_form_are_rejected(name: str) -> None:
    with pytest.raises(UploadRejected, match=r"part|fields"):
        read_manifest(signed(FORMS[name]), public_hex(KEY))
    assert read_manifest(signed(lambda m: None), public_hex(KEY)) == GENUINE


def test_an_older_manifest_lists_no_parts() -> None:
    old = replace(GENUINE, wire="1.1", parts=())
    assert "parts" not in old.to_dict()
    assert read_manifest(sign_manifest(old, KEY), public_hex(KEY)) == old


# -- what parts are ------------------------------------------------------------------------------


def table_of(name: str) -> pa.Table:
    return pa.ipc.open_stream(STREAMS[name]).read_all()


def rewritten(data: bytes | pa.Table, chunk: int = 65_536, **options: Any) -> bytes:
    table = pa.ipc.open_stream(data).read_all() if isinstance(data, bytes) else data
    sink = pa.BufferOutputStream()
    writing = pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_stream(sink, table.schema, options=writing) as writer:
        writer.write_table(table, max_chunksize=chunk)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def labelled(name: str, number: int) -> bytes:
    table = table_of(name)
    label = pa.array(np.full(len(table), number, dtype=np.int32))
    return rewritten(table.add_column(0, "_copy", label))


def relabelled(name: str, rows: int) -> bytes:
    """A stream whose one batch says that it has so many rows."""
    data, table = STREAMS[name], table_of(name)
    was = struct.pack("<q", len(table))
    head = data.index(was, len(table.schema.serialize()))
    return data[:head] + struct.pack("<q", rows) + data[head + 8 :]


END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
P = "particles"
POINTS = table_of(P)
NOTHING = pa.table({n: pa.nulls(len(POINTS)) for n in POINTS.column_names})

CONTENTS: dict[str, tuple[dict[str, bytes], str]] = {
    "nothing": ({P: b"\x00" * 8}, "not an Arrow stream"),
    "junk": ({P: b"junk" * 9}, "not an Arrow stream"),
    "no end": ({P: STREAMS[P][:-8]}, "no end"),
    "two ends": ({P: STREAMS[P] + END}, "goes on after its end"),
    "a byte behind the end": ({P: STREAMS[P] + b"\x00"}, "goes on after its end"),
    "two streams": ({P: STREAMS[P] * 2}, "goes on after its end"),
    "a stream without batches": ({P: rewritten(POINTS.slice(0, 0))}, "not the manifest's rows"),
    "a row less": ({P: rewritten(POINTS.slice(1))}, "not the manifest's rows"),
    "a row more": (
        {P: rewritten(pa.concat_tables([POINTS, POINTS.slice(0, 1)]))},
        "not the manifest's rows",
    ),
    "a batch that says more": ({P: relabelled(P, 10**12)}, "not the manifest's rows"),
    "a batch that says less": ({P: relabelled(P, 1)}, "not the manifest's rows"),
    "a batch of less than none": ({P: relabelled(P, -1)}, "less than no rows"),
    "a label before the columns": ({P: labelled(P, 0)}, "particles: .*columns"),
    "a copy under a label": (
        {"tables/copy-1": labelled("tables/copy-1", 1)},
        "tables/copy-1: .*columns",
    ),
    "a path's number": (
        {"paths": rewritten(table_of("paths").append_column("_path", [list(range(45))]))},
        "paths: .*columns",
    ),
    "columns in another order": (
        {P: rewritten(POINTS.select(POINTS.column_names[::-1]))},
        "particles: .*columns",
    ),
    "a column less": ({P: rewritten(POINTS.drop_columns(["sbp"]))}, "particles: .*columns"),
    "columns of nothing": ({P: rewritten(NOTHING)}, "another type"),
    "an answer": (
        {P: rewritten(pa.table({"term": list(range(len(POINTS)))}))},
        "particles: .*columns",
    ),
    "compressed": ({P: rewritten(POINTS, compression="zstd")}, "compressed"),
    "a dictionary": (
        {P: rewritten(POINTS.set_column(4, "ward", POINTS["ward"].dictionary_encode()))},
        "dictionary",
    ),
    "an infinite value": (
        {P: rewritten(POINTS.set_column(1, "sbp", [[float("inf")] * len(POINTS)]))},
        "sbp leaves its bounds",
    ),
    "particles for paths": ({P: STREAMS["paths"]}, "not the manifest's rows"),
    "particles at other times": (
        {P: rewritten(POINTS.take(list(range(len(POINTS)))[::-1]))},
        "not at the study's times",
    ),
    "paths that begin at their end": (
        {"paths": rewritten(table_of("paths").take(list(range(45))[::-1]))},
        "not at the study's times",
    ),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_parts_that_are_not_what_they_should_be_are_rejected(tmp_path: Path, name: str) -> None:
    """Each is what its manifest says in all but this."""
    changed, said = CONTENTS[name]
    streams = STREAMS | changed
    manifest = tuple(replace(part, bytes=len(streams[part.name])) for part in TOLD)
    with pytest.raises(UploadRejected, match=said):
        made.read_parts(STUDY, streams, tmp_path, told=manifest)


@pytest.mark.parametrize("place", range(len(TOLD) - 1))
@pytest.mark.parametrize("by", [-64, -8, -1, 1, 8, 64])
def test_a_boundary_elsewhere_is_rejected(tmp_path: Path, place: int, by: int) -> None:
    """No byte of one part is read as another's."""
    with pytest.raises(UploadRejected):
        made.read_parts(STUDY, STREAMS, tmp_path, told=moved(place, by))


def test_a_file_that_goes_on_or_ends_too_soon_is_rejected(tmp_path: Path) -> None:
    """As at results, when the manifest was checked long ago; however much it says there is."""
    last, said = STREAMS["refits/1"], "not the whole table"
    with pytest.raises(UploadRejected, match=said):
        made.read_parts(STUDY, STREAMS | {"more": b"\x00"}, tmp_path, told=TOLD)
    with pytest.raises(UploadRejected, match=said):
        made.read_parts(STUDY, STREAMS | {"refits/1": last[:-1]}, tmp_path, told=TOLD)
    with pytest.raises(UploadRejected, match=said):
        made.read_parts(STUDY, STREAMS, tmp_path, told=told(0, bytes=2**53))
    with pytest.raises(UploadRejected, match="parts are not what was asked"):
        made.read_parts(STUDY, STREAMS, tmp_path, told=TOLD[:-1])


def test_copies_of_two_sizes_are_rejected(tmp_path: Path) -> None:
    streams = made.streams(STUDY, made.parts(STUDY, rows_of=FEWER | {name_copy(2): 51}))
    with pytest.raises(UploadRejected, match="not the rows that were asked for"):
        made.read_parts(STUDY, streams, tmp_path)


def test_the_manifests_version_alone_says_how_a_file_is_read(tmp_path: Path) -> None:
    """Neither form passes as the other."""
    old = made.stream(made.table(STUDY))
    maf = made.study(made.MECHANISMS["maf"])
    first = {name_copy(1): old}
    with pytest.raises(UploadRejected):
        made.read_parts(STUDY, first, tmp_path, told=(ManifestPart(name_copy(1), ROWS, len(old)),))
    path = tmp_path / "north.arrow"
    for study in (STUDY, maf):
        data = b"".join(made.streams(study, made.parts(study)).values())
        path.write_bytes(data)
        with pytest.raises(UploadRejected, match="goes on after its end"):
            read_upload("north", made.manifest(study, data), path, study)


def test_a_sites_own_metadata_goes_no_further(tmp_path: Path) -> None:
    noted = {
        name: rewritten(table_of(name).replace_schema_metadata({"pandas": "{}"}))
        for name in STREAMS
    }
    upload = made.read_parts(STUDY, noted, tmp_path)
    assert {part.schema.metadata for part in upload.parts.values()} == {None}


@settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    at=st.integers(0, len(DATA) - 1),
    put=st.one_of(
        st.binary(min_size=1, max_size=8),
        st.sampled_from([-1, 0, 1, 2**31 - 1, -(2**31)]).map(
            lambda v: v.to_bytes(4, "little", signed=True)
        ),
    ),
)
def test_whatever_a_gate_signs_is_read_whole_or_rejected(
    tmp_path: Path, at: int, put: bytes
) -> None:
    changed = (DATA[:at] + put + DATA[at + len(put) :])[: len(DATA)]
    try:
        upload = made.read_parts(STUDY, {"all": changed}, tmp_path, told=TOLD)
    except UploadRejected:
        return
    assert {name: len(part) for name, part in upload.parts.items()} == {
        part.name: part.rows for part in TOLD
    }
    assert all(upload.part(p.name).schema.equals(p.arrow()) for p in SHAPE.parts)
