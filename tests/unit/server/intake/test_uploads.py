"""Uploads are hostile until proven: one genuine upload, and every way to depart from it."""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support import made

from penstock.base.errors import UploadRejected
from penstock.inference.floor import variance_floor
from penstock.mechanisms import Maf
from penstock.privacy.accounting import accountant
from penstock.privacy.events import RELATION, Gaussian, Unbounded, to_dict
from penstock.privacy.measurements import LatentNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Column, Schema, to_arrow
from penstock.study.study import Study
from penstock.wire import gate_pb2
from penstock.wire.canonical import canonical
from penstock.wire.manifest import MANIFEST, Manifest, sign_manifest
from penstock.wire.signatures import generate_key, public_hex, sign
from penstock_server.intake import uploads
from penstock_server.intake.ipc_guard import check_stream
from penstock_server.intake.uploads import check_manifest, read_upload, size_limit
from penstock_server.store.sites import Site
from penstock_server.transport.packets import add_piece, count_received

KEY, OTHER_KEY = generate_key(), generate_key()
PERSONS, COPIES, REFITS, DELTA = 40, 3, 2, 1e-5
STUDY_ID = "5" * 64
HEAD, OTHER_HEAD = "a" * 64, "b" * 64

SCHEMA = Schema(
    columns=(
        Column("age", "continuous", lower=18, upper=100, decimals=0),
        Column("chol", "continuous", lower=0, upper=20, decimals=1, nullable=True),
        Column("visits", "integer", lower=0, upper=30),
        Column("sex", "binary"),
        Column("smoking", "categorical", levels=("never", "former", "=now")),
        Column("time", "duration", upper=10, decimals=2, event="died"),
        Column("died", "event"),
    )
)
STUDY = Study(
    name="trial",
    title="A trial",
    federation="main",
    sites=("a", "b"),
    schema=SCHEMA,
    estimands=(),
    privacy=PrivacyRequest(3.0, DELTA),
    mechanism=Maf(copies=COPIES, refits=REFITS),
    quorum=1,
    deadline_hours=1.0,
    not_before="2020-01-01T00:00:00Z",
    expires="2099-01-01T00:00:00Z",
)
SITE = Site("a", "main", public_hex(KEY), PERSONS, {})
EVENTS = (Gaussian(6.0), Gaussian(20.0, 12))

_pld = {r: accountant.epsilon_pld(EVENTS, DELTA, relation=r) for r in ("zero-out", "replace-one")}


@pytest.fixture(autouse=True)
def fast_pld(monkeypatch):
    """The genuine events' PLD costs a second; other events are accounted for in earnest."""

    def cached(events, delta, *, relation="zero-out"):
        known = events == EVENTS and delta == DELTA
        return _pld[relation] if known else accountant.epsilon_pld(events, delta, relation=relation)

    monkeypatch.setattr(uploads, "epsilon_pld", cached)


def make_table(persons=PERSONS, schema=SCHEMA):
    """Copies and refits, as a site's worker writes them."""
    rng = np.random.default_rng(7)
    tables = []
    for index in (1, 2, 3, -1, -2):
        coded = {}
        for c in schema.columns:
            low, high = c.bounds if not c.levels else (0, len(c.levels))
            x = rng.uniform(low, high, persons)
            coded[c.name] = np.floor(x) if c.levels else x
            if c.nullable:
                coded[c.name][:: 5 + abs(index)] = np.nan
        label = pa.array(np.full(persons, index, dtype=np.int32))
        tables.append(to_arrow(coded, schema).add_column(0, "_copy", label))
    return pa.concat_tables(tables).combine_chunks()


TABLE = make_table()


def stream(table, chunk=65_536, **options):
    sink = pa.BufferOutputStream()
    writing = pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_stream(sink, table.schema, options=writing) as writer:
        writer.write_table(table, max_chunksize=chunk)
    return sink.getvalue().to_pybytes()


def make_manifest(data, **changes):
    values = {
        "wire": "1.0",
        "study_id": STUDY_ID,
        "site": "a",
        "request_id": "7" * 64,
        "release": 1,
        "lineage": "main",
        "version": 1,
        "persons": PERSONS,
        "rows": PERSONS,
        "copies": COPIES,
        "refits": REFITS,
        "guarantee": "formal",
        "mechanism": "maf",
        "events": tuple(to_dict(e) for e in EVENTS),
        "relation": RELATION,
        "delta": DELTA,
        "epsilon_autodp": accountant.epsilon(EVENTS, DELTA),
        "epsilon_pld": _pld["zero-out"],
        "epsilon_replace_one": _pld["replace-one"],
        "injection_epsilon": None,
        "table_sha256": hashlib.sha256(data).hexdigest(),
        "table_bytes": len(data),
        "ledger_seq": 5,
        "ledger_head": HEAD,
        "released_at": "2026-11-21T08:00:00Z",
        "insecure_seed": False,
        "software": {"penstock": "0"},
        "gate_key": public_hex(KEY),
    }
    return Manifest(**{**values, **changes})


DATA = stream(TABLE)
GENUINE = make_manifest(DATA)


def signed(text=None, key=KEY, **changes):
    """Manifest bytes with any fields at all, under a valid signature; ``text`` edits the JSON."""
    body = {**GENUINE.to_dict(), **changes}
    body = {k: v for k, v in body.items() if v is not ...}
    raw = canonical(body)
    if text is None:
        return canonical({"manifest": body, "signature": sign(key, MANIFEST, raw)})
    old, new = text
    assert old in raw
    raw = raw.replace(old, new)
    return b'{"manifest":' + raw + b',"signature":"' + sign(key, MANIFEST, raw).encode() + b'"}'


def check(data, *, study=STUDY, seen=None, floor=0, simulation=False):
    return check_manifest(
        data,
        study,
        STUDY_ID,
        SITE,
        ledger_seen=seen or {},
        ledger_floor=floor,
        simulation=simulation,
    )


def read(path, data, *, schema=SCHEMA, **changes):
    path = path / "table.arrow"
    path.write_bytes(data)
    return read_upload("a", make_manifest(data, **changes), path, replace(STUDY, schema=schema))


# -- the genuine upload ------------------------------------------------------------------------


def test_a_genuine_upload_passes(tmp_path):
    manifest = check(sign_manifest(GENUINE, KEY))
    upload = read(tmp_path, DATA)
    assert manifest == GENUINE
    assert len(upload.parts) == COPIES + REFITS
    for position, name in ((1, "tables/copy-2"), (4, "refits/2")):
        part = TABLE.slice(position * PERSONS, PERSONS).drop_columns(["_copy"])
        assert upload.part(name).equals(part)


@pytest.mark.parametrize("rows", [1, PERSONS - 1, PERSONS])
def test_a_noisy_count_of_rows_passes_within_the_frame(rows):
    """Gates before the frame was declared released as many rows as it has places."""
    assert check(signed(rows=rows)).rows == rows


@pytest.mark.parametrize("chunk", [1, 7, 41])
def test_a_stream_of_several_batches_passes(tmp_path, chunk):
    found = read(tmp_path, stream(TABLE, chunk)).parts
    plain = TABLE.drop_columns(["_copy"])
    assert pa.concat_tables(found.values()).equals(plain)


def test_the_sites_own_metadata_goes_no_further(tmp_path):
    noted = TABLE.replace_schema_metadata({"pandas": "{}"})
    parts = read(tmp_path, stream(noted)).parts.values()
    assert {part.schema.metadata for part in parts} == {None}


@pytest.mark.parametrize("label", ["x" * 64, "ж" * 64])
def test_the_size_limit_lets_the_longest_labels_through(label):
    column = Column("c", "categorical", levels=("a" + label[1:], label))
    schema = Schema(columns=tuple(replace(column, name=f"c{i}") for i in range(3)))
    persons = 20_000
    study = replace(STUDY, schema=schema)
    coded = {name: np.ones(persons) for name in schema.names}
    one = to_arrow(coded, schema).add_column(0, "_copy", pa.array(np.ones(persons, np.int32)))
    size = len(stream(pa.concat_tables([one] * (COPIES + REFITS))))
    assert size < size_limit(study, persons) < 3 * size


# -- the manifest ------------------------------------------------------------------------------


def test_another_key_is_rejected():
    theirs = replace(GENUINE, gate_key=public_hex(OTHER_KEY))
    with pytest.raises(UploadRejected, match="signature"):
        check(sign_manifest(theirs, OTHER_KEY))


def test_a_key_that_is_not_the_sites_cannot_be_named():
    with pytest.raises(UploadRejected, match="key"):
        check(signed(gate_key=public_hex(OTHER_KEY)))


def test_a_tampered_manifest_is_rejected():
    genuine = sign_manifest(GENUINE, KEY)
    with pytest.raises(UploadRejected, match="signature"):
        check(genuine.replace(b'"release":1', b'"release":2'))


WRONG = [
    ("study_id", "6" * 64, "study"),
    ("site", "b", "site"),
    ("release", 2, "release"),
    ("guarantee", "empirical", "guarantee"),
    ("mechanism", "other", "mechanism"),
    ("copies", COPIES + 1, "copies"),
    ("refits", REFITS - 1, "refits"),
    ("delta", 1e-6, "δ"),
    ("relation", "replace-one", "relation"),
    ("persons", PERSONS - 1, "public n"),
    ("rows", PERSONS + 1, "rows"),
    ("rows", 0, "rows"),
    ("rows", -PERSONS, "rows"),
    ("rows", 10**30, "rows"),
    ("wire", "2.0", "wire"),
    ("wire", "²", "wire"),
    ("wire", "1" * 9000, "wire"),
    ("released_at", "<b>now</b>", "time"),
    ("ledger_head", "a" * 63, "ledger position"),
    ("ledger_seq", 0, "ledger position"),
    ("ledger_seq", -1, "ledger position"),
    ("ledger_seq", 10**30, "ledger position"),
    ("epsilon_autodp", 0.5, "not what its events cost"),
    ("epsilon_autodp", None, "not what its events cost"),
    ("epsilon_pld", 0.5, "not what its events cost"),
    ("epsilon_pld", -1.0, "not what its events cost"),
    ("epsilon_pld", None, "not what its events cost"),
    ("epsilon_replace_one", 0.5, "not what its events cost"),
    ("insecure_seed", True, "test seed"),
    # Types: a bool is no whole number, a whole number is no text.
    ("release", True, "field release"),
    ("copies", 3.0, "field copies"),
    ("delta", True, "field delta"),
    ("ledger_seq", True, "field ledger_seq"),
    ("insecure_seed", 0, "field insecure_seed"),
    ("site", None, "field site"),
    ("software", [], "field software"),
    ("events", {}, "field events"),
    ("release", ..., "fields"),
    ("extra", 1, "fields"),
    ("lineage", "x" * 300_000, "manifest"),
    # Events that cannot be accounted for.
    ("events", [], "events"),
    ("events", [1], "cannot be read"),
    ("events", ["gaussian"], "cannot be read"),
    ("events", [{"kind": "laplace"}], "events"),
    ("events", [{"kind": "gaussian", "noise_multiplier": -1.0}], "events"),
    ("events", [{"kind": "gaussian", "noise_multiplier": 5.0, "count": True}], "events"),
    ("events", [{"kind": "gaussian", "noise_multiplier": 10**400}], "events"),
    ("events", [{"kind": "gaussian", "noise_multiplier": 5.0, "count": 10**400}], "events"),
    ("events", [{"kind": "gaussian", "noise_multiplier": 5.0, "odd": 1}], "events"),
    ("events", [{"kind": "gaussian", "noise_multiplier": 900.0}] * 65, "1 to 64"),
    (
        "events",
        [{"kind": "poisson-gaussian", "rate": 0.1, "noise_multiplier": 900.0}] * 17,
        "at most 16",
    ),
]


@pytest.mark.parametrize(("field", "value", "said"), WRONG)
def test_a_field_that_is_not_as_asked_is_rejected(field, value, said):
    with pytest.raises(UploadRejected, match=said) as caught:
        check(signed(**{field: value}))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"lineage":"main"', b'"lineage":"\\ud800"'),
        (b'"version":1', b'"version":1e400'),
        (b'"version":1', b'"version":NaN'),
        (b'"version":1', b'"version":1,"version":1'),
        (b'"version":1', b'"version":' + b"[" * 990 + b"]" * 990),
        (b'"version":1', b'"version":' + b"[" * 9000 + b"]" * 9000),
        (b'"version":1', b'"version":' + b"9" * 9000),
    ],
)
def test_json_that_has_no_canonical_bytes_is_rejected(old, new):
    with pytest.raises(UploadRejected):
        check(signed(text=(old, new)))


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b"null", DATA])
def test_what_is_no_manifest_is_rejected(data):
    with pytest.raises(UploadRejected):
        check(data)


def claims(*events):
    """A manifest that claims exactly what these events cost."""
    costs = {
        "epsilon_autodp": accountant.epsilon(events, DELTA),
        "epsilon_pld": accountant.epsilon_pld(events, DELTA),
        "epsilon_replace_one": accountant.epsilon_pld(events, DELTA, relation="replace-one"),
    }
    costs = {k: None if v == math.inf else v for k, v in costs.items()}
    return {"events": [to_dict(e) for e in events], **costs}


def test_more_noise_than_was_asked_passes():
    assert check(signed(**claims(Gaussian(9.0)))).epsilon_autodp < 1


def test_a_chain_of_many_steps_passes():
    steps = [Gaussian(30.0 + i) for i in range(20)]
    assert check(signed(**claims(*steps))).epsilon_autodp < 3


def test_an_epsilon_above_what_was_asked_is_rejected():
    with pytest.raises(UploadRejected, match="not what was asked"):
        check(signed(**claims(Gaussian(1.0))))


def test_an_unbounded_release_passes_for_the_empirical_class_only():
    data = signed(guarantee="empirical", **claims(Unbounded("flow")))
    asked = replace(STUDY, privacy=PrivacyRequest(math.inf, DELTA, "empirical"))
    assert check(data, study=asked).epsilon_autodp is None
    with pytest.raises(UploadRejected, match="guarantee"):
        check(data)
    with pytest.raises(UploadRejected, match="not what was asked"):
        check(signed(**claims(Unbounded("flow"))))
    with pytest.raises(UploadRejected, match="not what was asked"):
        check(signed(guarantee="empirical"), study=asked)


# -- what nobody had looked at -----------------------------------------------------------------


@pytest.mark.parametrize(
    "software",
    [
        {f"p{i}": "1" for i in range(33)},
        {"penstock": "1" * 65},
        {"penstock": "0.1\x1b[2J"},
        {"penstock": 1},
        {"penstock": {"a": ["nested"]}},
        {"<script>": "1"},
        {"p" * 65: "1"},
        {"": "1"},
        {"penstock": ""},
    ],
)
def test_software_field_unbounded(software):
    with pytest.raises(UploadRejected, match="manifest's software"):
        check(signed(software=software))


def test_versions_of_software_pass():
    software = {"python": "3.13.0rc1", "torch": "2.13.0+cpu", "dp-accounting": "unknown"}
    assert check(signed(software=software)).software == software


@pytest.mark.parametrize("lineage", ["", "x" * 64, "a b", "../x", "Main", "a\nb"])
def test_lineage_field_unbounded(lineage):
    with pytest.raises(UploadRejected, match="lineage is no name"):
        check(signed(lineage=lineage))


@pytest.mark.parametrize("version", [0, -1, 1_000_001, pytest.param(10**400, id="huge")])
def test_version_field_unbounded(version):
    with pytest.raises(UploadRejected, match="version of the data"):
        check(signed(version=version))


@pytest.mark.parametrize("label", ["x" * 101, "\x1b[2J", 5, None, ["flow"], {"a": 1}])
def test_labels_of_events_unbounded(label):
    events = [{**to_dict(EVENTS[0]), "label": label}, to_dict(EVENTS[1])]
    with pytest.raises(UploadRejected, match="labels: 100 characters"):
        check(signed(events=events))


INJECTED = replace(STUDY, mechanism=Maf(copies=COPIES, refits=REFITS, w=0.2, latent_clip=0.5))
NOISE = LatentNoise(0.2, 0.5, copies=COPIES).event
PARTS = (Gaussian(9.0), NOISE)


@pytest.mark.parametrize("claimed", [None, 0.0, 1e-9, 0.999, 1.001, 1e300])
def test_injection_epsilon_believed(claimed):
    """What the injection is said to cost is what its events cost."""
    true = accountant.epsilon((NOISE,), DELTA)
    given = claimed if claimed in (None, 0.0, 1e-9, 1e300) else claimed * true
    with pytest.raises(UploadRejected, match="injection's claimed ε is not what it costs"):
        check(signed(injection_epsilon=given, **claims(*PARTS)), study=INJECTED)
    with pytest.raises(UploadRejected, match="injection's claimed ε"):
        check(signed(injection_epsilon=true))  # of a study that asked for none


def test_an_injection_that_was_asked_for_passes():
    true = accountant.epsilon((NOISE,), DELTA)
    data = signed(injection_epsilon=true, **claims(*PARTS))
    assert check(data, study=INJECTED).injection_epsilon == true


def test_an_injection_is_there_if_and_only_if_it_was_asked_for():
    true = accountant.epsilon((NOISE,), DELTA)
    with pytest.raises(UploadRejected, match="one was asked for"):
        check(signed(), study=INJECTED)
    with pytest.raises(UploadRejected, match="none was asked for"):
        check(signed(injection_epsilon=true, **claims(*PARTS)))


@pytest.mark.parametrize(
    "field",
    ["epsilon_autodp", "epsilon_pld", "epsilon_replace_one", "injection_epsilon"],
)
def test_a_number_beyond_every_float_stopped_the_coordinator(field):
    """Comparing it with a float raised an error that the pump did not know, again and again."""
    with pytest.raises(UploadRejected, match=f"{field} is out of range"):
        check(signed(**{field: 10**400}))


def test_a_test_seed_is_accepted_in_a_simulation():
    assert check(signed(insecure_seed=True), simulation=True).insecure_seed


@pytest.mark.parametrize("seen", [{5: HEAD}, {4: OTHER_HEAD, 6: OTHER_HEAD}])
def test_a_ledger_that_went_on_passes(seen):
    assert check(signed(), seen=seen, floor=4).ledger_seq == 5


def test_a_forked_ledger_is_rejected():
    with pytest.raises(UploadRejected, match="forked"):
        check(signed(), seen={5: OTHER_HEAD})


@pytest.mark.parametrize("floor", [5, 9])
def test_a_ledger_that_went_back_is_rejected(floor):
    with pytest.raises(UploadRejected, match="went back"):
        check(signed(), floor=floor)


# -- the table's bytes -------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{"table_sha256": "0" * 64}, {"table_bytes": len(DATA) + 1}])
def test_another_table_than_the_manifests_is_rejected(tmp_path, changes):
    with pytest.raises(UploadRejected, match="not the one its manifest names"):
        read(tmp_path, DATA, **changes)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_batches_are_rejected(tmp_path, compression):
    with pytest.raises(UploadRejected, match="compressed"):
        read(tmp_path, stream(TABLE, compression=compression))


def test_a_bomb_is_rejected_before_it_unfolds(tmp_path):
    zeros = pa.table({n: pa.array(np.zeros(2_000_000)) for n in TABLE.column_names})
    bomb = stream(zeros, chunk=10_000_000, compression="zstd")
    assert zeros.nbytes > 1000 * len(bomb)
    with pytest.raises(UploadRejected, match="compressed"):
        read(tmp_path, bomb)


def test_a_billion_rows_without_a_buffer_are_rejected(tmp_path):
    nothing = pa.nulls(10**9)
    data = stream(pa.table({n: nothing for n in TABLE.column_names}), chunk=10**9)
    assert len(data) < 10_000
    with pytest.raises(UploadRejected, match="another type"):
        read(tmp_path, data)


def test_a_dictionary_encoded_column_is_rejected(tmp_path):
    position = TABLE.column_names.index("smoking")
    coded = TABLE.set_column(position, "smoking", TABLE["smoking"].dictionary_encode())
    with pytest.raises(UploadRejected, match="dictionary"):
        read(tmp_path, stream(coded))


@pytest.mark.parametrize("kept", [0, 3, 8, 100, len(DATA) // 2, len(DATA) - 9])
def test_a_truncated_stream_is_rejected(tmp_path, kept):
    with pytest.raises(UploadRejected):
        read(tmp_path, DATA[:kept])


@pytest.mark.parametrize(
    "junk",
    [b"junk", b"\x00" * 64, b"\xff" * 64, b"PAR1" + DATA, DATA + b"\x00", DATA + DATA, DATA[8:]],
)
def test_junk_is_rejected(tmp_path, junk):
    with pytest.raises(UploadRejected):
        read(tmp_path, junk)


def test_a_header_that_points_before_itself_is_rejected(tmp_path):
    # Python would count a negative place from the end.
    header = struct.pack("<Ii", 4, 8) + bytes(12) + b"\xff\x00\x00\x00"
    path = tmp_path / "stream"
    path.write_bytes(struct.pack("<Ii", 0xFFFFFFFF, len(header)) + header)
    with pytest.raises(UploadRejected, match="not an Arrow stream"):
        check_stream(path)


def test_an_arrow_file_is_not_a_stream(tmp_path):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    with pytest.raises(UploadRejected, match="not an Arrow stream"):
        read(tmp_path, sink.getvalue().to_pybytes())


@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(at=st.integers(0, len(DATA) - 1), mask=st.integers(1, 255))
def test_a_flipped_byte_never_passes(tmp_path, at, mask):
    flipped = bytearray(DATA)
    flipped[at] ^= mask
    path = tmp_path / "flipped.arrow"
    path.write_bytes(flipped)
    with pytest.raises(UploadRejected, match="not the one its manifest names"):
        read_upload("a", GENUINE, path, STUDY)


@settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    at=st.integers(0, 1200),
    put=st.one_of(
        st.binary(min_size=1, max_size=8),
        st.sampled_from([-1, 0, 1, 2**31 - 1, -(2**31)]).map(
            lambda v: v.to_bytes(4, "little", signed=True)
        ),
    ),
)
def test_whatever_a_gate_signs_is_read_whole_or_rejected(tmp_path, at, put):
    """Here the gate signs the changed bytes, so that they reach the parser."""
    changed = DATA[:at] + put + DATA[at + len(put) :]
    try:
        upload = read(tmp_path, changed)
    except UploadRejected:
        return
    plain = TABLE.drop_columns(["_copy"]).schema
    assert all(part.schema.equals(plain) for part in upload.parts.values())
    assert {len(part) for part in upload.parts.values()} == {PERSONS}


@settings(
    max_examples=500,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    data=st.one_of(
        st.binary(max_size=200),
        st.binary(max_size=100).map(lambda b: b"\xff\xff\xff\xff" + b),
        st.tuples(st.integers(0, len(DATA)), st.binary(max_size=30)).map(
            lambda cut: DATA[: cut[0]] + cut[1] + DATA[cut[0] + len(cut[1]) :]
        ),
    )
)
def test_the_guard_rejects_or_passes_and_never_fails(tmp_path, data):
    path = tmp_path / "guarded.arrow"
    path.write_bytes(data)
    try:
        check_stream(path)
    except UploadRejected:
        return
    # What passes holds whole messages only.
    assert data == b"" or data[:4] == b"\xff\xff\xff\xff"


# -- the table's content -----------------------------------------------------------------------


def with_column(name, values, kind=None):
    """The genuine table with the first values of a column replaced."""
    column = TABLE[name].to_pylist()
    column[: len(values)] = values
    position = TABLE.column_names.index(name)
    return TABLE.set_column(position, name, pa.array(column, kind or TABLE[name].type))


CONTENT = [
    (with_column("age", [math.nan]), "column age holds NaN"),
    (with_column("chol", [math.nan]), "column chol holds NaN"),
    (with_column("age", [math.inf]), "column age leaves"),
    (with_column("chol", [-math.inf]), "column chol leaves"),
    (with_column("age", [101.0]), "column age leaves"),
    (with_column("age", [17.0]), "column age leaves"),
    (with_column("age", [50.5]), "column age leaves"),
    (with_column("chol", [1.23]), "column chol leaves"),
    (with_column("visits", [31]), "column visits leaves"),
    (with_column("visits", [-1]), "column visits leaves"),
    (with_column("visits", [2**62]), "column visits leaves"),
    (with_column("time", [-0.01]), "column time leaves"),
    (with_column("smoking", ["sometimes"]), "column smoking holds an unknown level"),
    (with_column("sex", [2]), "column sex holds an unknown level"),
    (with_column("died", [-1]), "column died holds an unknown level"),
    (with_column("age", [None]), "column age holds missing"),
    (with_column("visits", [None]), "column visits holds missing"),
    (with_column("smoking", [None]), "column smoking holds missing"),
    (with_column("_copy", [2]), "labels"),
    (with_column("_copy", [0]), "labels"),
    (with_column("_copy", [-1]), "labels"),
    (with_column("_copy", [-REFITS - 1]), "labels"),
    (with_column("_copy", [-(2**31)]), "labels"),
    (TABLE.slice(0, COPIES * PERSONS), "labels"),
    (with_column("_copy", [COPIES + 1]), "labels"),
    (with_column("_copy", [2**31 - 1]), "labels"),
    (with_column("_copy", [None]), "labels"),
    (TABLE.slice(1), "labels"),
    (TABLE.slice(0, 0), "labels"),
    (pa.concat_tables([TABLE, TABLE]), "labels"),
    (TABLE.drop_columns(["age"]), "columns"),
    (TABLE.drop_columns(["_copy"]), "columns"),
    (TABLE.append_column("name", TABLE["age"]), "columns"),
    (TABLE.append_column("age", TABLE["age"]), "columns"),
    (TABLE.select(TABLE.column_names[::-1]), "columns"),
    (TABLE.rename_columns(["_copy", "AGE", *TABLE.column_names[2:]]), "columns"),
    (with_column("age", [], pa.float32()), "column age has another type"),
    (with_column("visits", [], pa.float64()), "column visits has another type"),
    (with_column("sex", [], pa.int8()), "column sex has another type"),
    (with_column("smoking", [], pa.large_string()), "column smoking has another type"),
    (with_column("_copy", [], pa.int64()), "column _copy has another type"),
]


@pytest.mark.parametrize(("table", "said"), CONTENT, ids=range(len(CONTENT)))
def test_content_out_of_the_schema_is_rejected(tmp_path, table, said):
    with pytest.raises(UploadRejected, match=said):
        read(tmp_path, stream(table))


def test_missing_values_pass_where_they_are_modelled(tmp_path):
    upload = read(tmp_path, stream(with_column("chol", [None] * 9)))
    assert upload.part("tables/copy-1")["chol"].null_count >= 9


def test_text_that_is_not_utf8_is_rejected(tmp_path):
    assert DATA.count(b"never") > 0
    with pytest.raises(UploadRejected):
        read(tmp_path, DATA.replace(b"never", b"\xff\xfe\xfd\xfc\xfb"))


# -- its pieces, joined in a file ---------------------------------------------------------------


def piece(table, offset, size, manifest=b"m"):
    return gate_pb2.Piece(manifest=manifest, size=size, offset=offset, table=table)


def test_pieces_are_joined(tmp_path):
    path = tmp_path / "new" / "a.arrow"
    assert not add_piece(path, piece(b"ab", 0, 3), 3)
    assert count_received(path) == 2
    assert not path.exists()
    assert add_piece(path, piece(b"c", 2, 3), 3)
    assert path.read_bytes() == b"abc"
    assert count_received(path) == 0


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_a_piece_from_elsewhere_is_dropped(tmp_path, offset):
    path = tmp_path / "a.arrow"
    add_piece(path, piece(b"ab", 0, 4), 4)
    assert not add_piece(path, piece(b"xy", offset, 4), 4)
    assert add_piece(path, piece(b"cd", 2, 4), 4)
    assert path.read_bytes() == b"abcd"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (piece(b"abcd", 0, 4), "larger"),
        (piece(b"", 0, 2**63), "larger"),
        (piece(b"abc", 0, 2), "do not fit"),
        (piece(b"", 0, 2), "do not fit"),
        (piece(b"a", 0, 1, manifest=b""), "no manifest"),
    ],
)
def test_bad_pieces_are_refused(tmp_path, given, said):
    with pytest.raises(UploadRejected, match=said):
        add_piece(tmp_path / "a.arrow", given, 3)
    assert not (tmp_path / "a.arrow").exists()


# -- floors of variances -----------------------------------------------------------------------

MODELS = Schema(
    columns=(
        Column("x", "continuous", lower=-2, upper=6, decimals=3),
        Column("grade", "ordered", levels=("1", "2", "3", "4")),
        Column("arm", "categorical", levels=("no", "low", "high")),
        Column("y", "continuous", lower=-50, upper=50, decimals=3),
        Column("ill", "binary"),
        Column("time", "duration", upper=10, event="died"),
        Column("died", "event"),
        Column("count", "integer", lower=0, upper=6),
    )
)
OUTCOME = {"ols": "y", "logistic": "ill", "cox": "time", "poisson": "count"}


def coded(n, rng, *, extreme):
    """A table without any effect; ``extreme`` puts half of the rows on each bound."""
    side = np.arange(n) % 2
    return {
        "x": 8.0 * side - 2 if extreme else np.round(rng.uniform(-2, 6, n), 3),
        "grade": 3.0 * side if extreme else rng.integers(0, 4, n).astype(float),
        "arm": 2.0 * side if extreme else rng.integers(0, 3, n).astype(float),
        "y": np.round(rng.normal(0, 1, n), 3),
        "ill": (np.arange(n) // 2 % 2).astype(float),
        "time": np.round(rng.uniform(0, 10, n), 1),
        "died": np.ones(n),
        "count": np.full(n, 6.0) if extreme else rng.integers(0, 7, n).astype(float),
    }


@pytest.mark.parametrize("model", OUTCOME)
@pytest.mark.parametrize("extreme", [True, False])
@pytest.mark.parametrize(
    ("term", "per", "level"), [("x", 1.0, None), ("x", 2.5, None), ("grade", 1.0, None),
                               ("arm", 1.0, "high")]
)  # fmt: skip
def test_no_table_goes_below_the_floor(model, extreme, term, per, level):
    estimand = Estimand("e", model, OUTCOME[model], term, per=per, level=level)
    table = coded(400, np.random.default_rng(3), extreme=extreme)
    found = estimate(table, MODELS, estimand)
    assert found.problem is None
    floor = variance_floor(MODELS, estimand, 400)
    assert found.variance >= floor * (1 - 1e-9)
    if extreme and model in ("logistic", "poisson"):
        assert found.variance == pytest.approx(floor, rel=1e-6)  # the bound is attained
    if extreme and model == "cox":
        assert found.variance < 1.1 * floor


def test_an_outcome_without_a_grid_has_no_floor():
    schema = Schema(columns=(*MODELS.columns[:3], replace(MODELS["y"], decimals=None)))
    assert variance_floor(schema, Estimand("e", "ols", "y", "x"), 400) == 0
    assert variance_floor(schema, Estimand("e", "mean", "y"), 400) == 0


@pytest.mark.parametrize("outcome", ["ill", "count"])
def test_a_mean_of_whole_numbers_attains_its_floor(outcome):
    """One row that differs: no table that is not constant has less variance."""
    estimand = Estimand("e", "mean", outcome)
    table = coded(400, np.random.default_rng(3), extreme=False)
    table[outcome] = np.eye(1, 400)[0]
    floor = variance_floor(MODELS, estimand, 400)
    assert estimate(table, MODELS, estimand).variance == pytest.approx(floor, rel=1e-12)


def test_a_mean_on_a_grid_carries_its_rounding():
    estimand = Estimand("e", "mean", "y")
    assert variance_floor(MODELS, estimand, 400) == pytest.approx(0.001**2 / 12 / 400)


@pytest.mark.parametrize("shift", [0, 1])
def test_a_made_up_table_buys_no_weight(shift):
    """An outcome on a plane through the grid but for one row, at more than MIN_RESIDUAL."""
    schema = Schema(columns=(Column("x", "integer", lower=0, upper=100), MODELS["y"]))
    estimand = Estimand("e", "ols", "y", "x")
    x = np.arange(200) % 101
    y = 0.001 * x
    y[shift] += 0.001
    table = to_arrow({"x": x, "y": y}, schema)
    manifest = make_manifest(b"", persons=200, rows=200, copies=1, refits=0)
    study = replace(STUDY, schema=schema, estimands=(estimand,), mechanism=Maf(1, refits=0))
    upload = uploads.Upload("a", manifest, {"tables/copy-1": table})
    naive = estimate({"x": x.astype(float), "y": y}, schema, estimand).variance
    floor = variance_floor(schema, estimand, 200)
    assert naive < floor
    assert made.estimates(upload, study)["e"].within == pytest.approx(floor, rel=1e-12, abs=0)
