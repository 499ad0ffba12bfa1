"""The auditor's script: it says what Penstock says, and finds whatever was done to a ledger."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import math
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.support.ledgers import DIGESTS, ROWS

from penstock.privacy.accounting.accountant import epsilon_pld
from penstock.privacy.events import (
    RELATION,
    Approximate,
    DiscreteGaussian,
    DistributedGaussian,
    FixedSizeGaussian,
    Gaussian,
    Laplace,
    NoisyDescent,
    OnStratum,
    PoissonGaussian,
    Pure,
    ShuffledGaussian,
    Unbounded,
    to_dict,
)
from penstock.wire.canonical import canonical
from penstock.wire.signatures import fingerprint, generate_key, public_hex, sign
from penstock_client.ledger.budget import summarize_budget
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.records import RECORD
from penstock_client.ledger.sqlite_file import Database
from penstock_client.ledger.state import Charge

SCRIPT = Path(__file__).parents[2] / "deploy" / "verify_ledger.py"
KEY, OTHER = generate_key(), generate_key()
PUBLIC = public_hex(KEY)

_spec = importlib.util.spec_from_file_location("verify_ledger", SCRIPT)
script = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(script)

EVERY_KIND = (
    Gaussian(9.0, 2, "margins"),
    DiscreteGaussian(11.0, 3, "counts", 2.0, 40.0, 7),
    PoissonGaussian(0.02, 1.5, 40),
    FixedSizeGaussian(20, 4000, 3.0, 25),
    Laplace(8.0, 2),
    NoisyDescent(30.0, 0.95, 200),
    NoisyDescent(30.0, 1.0, 5),
    ShuffledGaussian(3000, 4.0, 1e-12, 2e-7, 2),
    DistributedGaussian(12.0, 5, 1, 1),
    Pure(0.1, 3),
    Approximate(0.1, 1e-7, 2),
)


def charge(name: str, *events: Any, lineage: str = "main") -> Charge:
    return Charge(name, lineage, 1, f"study of {name}", "ann", "maf", events, 1e-5, **DIGESTS)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory) -> Ledger:
    """A life with every kind of event, every kind of record, strata, and a grid of orders."""
    ticks = count()
    clock = lambda: f"2026-01-01T00:00:{next(ticks):02d}.000000Z"  # noqa: E731
    folder = tmp_path_factory.mktemp("ledger")
    made = Ledger(Database.create(folder / "gate.db"), KEY, clock)
    made.open_for("here")
    made.add_lineage(
        "main", 9.0, 1e-5, approximate_delta=2e-6, strata=("north", "south"), unit=ROWS
    )
    made.add_version("main", 4000, "f")
    made.add_lineage("grid", 6.0, 1e-6, orders=(6.0, 9.5, 20.0), unit=ROWS, disjoint=True)
    made.add_version("grid", 4000, "f")
    for place, event in enumerate(EVERY_KIND):
        made.reserve(charge(f"r{place}", event), signer_epsilon=9.0)
        made.commit(f"r{place}") if place % 3 else made.burn(f"r{place}", "failed")
    for stratum, sigma in (("north", 4.0), ("south", 3.0), ("south", 20.0)):
        event = OnStratum(stratum, Gaussian(sigma))
        made.reserve(charge(f"{stratum} {sigma}", event), signer_epsilon=9.0)
    for sigma in (4.0, 7.0, 50.0):
        made.reserve(charge(f"g{sigma}", Gaussian(sigma), lineage="grid"), signer_epsilon=6.0)
    made.add_version("main", 4100, "g", new_frame=True, reason="a new ward")
    return made


@pytest.fixture
def export(ledger) -> dict[str, Any]:
    return ledger.export(PUBLIC)


def run(document: Any, folder: Path, *options: str, code: int) -> str:
    """The script as an auditor runs it: away from the project, and isolated from its paths."""
    file = folder / "export.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    command = [sys.executable, "-I", str(SCRIPT), str(file), *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


# -- what it stands on -------------------------------------------------------------------------


def test_it_imports_nothing_of_ours_and_no_cryptography():
    names = set()
    for node in ast.walk(ast.parse(SCRIPT.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    assert names - set(sys.stdlib_module_names) == {"numpy", "scipy", "dp_accounting"}


VECTORS = [  # RFC 8032, section 7.1: TEST 1, 2, 3
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]


@pytest.mark.parametrize(("public", "message", "signature"), VECTORS)
def test_ed25519_as_in_rfc_8032(public, message, signature):
    key, said, good = map(bytes.fromhex, (public, message, signature))
    assert script.signed(key, said, good)
    assert not script.signed(key, said + b"x", good)
    for at in (0, 31, 32, 63):
        bad = bytearray(good)
        bad[at] ^= 1
        assert not script.signed(key, said, bytes(bad))
    # The same point with another scalar: s + the group's order.
    again = int.from_bytes(good[32:], "little") + script.Q
    assert not script.signed(key, said, good[:32] + again.to_bytes(32, "little"))
    assert not script.signed(key, said, good[:-1])


def test_ed25519_as_in_cryptography():
    for number in range(20):
        key, message = generate_key(), bytes([number]) * number
        public = key.public_key().public_bytes_raw()
        assert script.signed(public, message, key.sign(message))
        assert not script.signed(public, message, OTHER.sign(message))


@pytest.mark.parametrize(
    "public",
    [
        (script.P + 1).to_bytes(32, "little"),  # y not reduced
        ((1 << 255) | 1).to_bytes(32, "little"),  # x = 0 with a sign
        (2).to_bytes(32, "little"),  # no point at all
        b"",
    ],
)
def test_what_is_no_key_signs_nothing(public):
    assert not script.signed(public, b"", bytes(64))


# -- a whole ledger ----------------------------------------------------------------------------


def test_a_whole_ledger_is_ok_and_costs_what_penstock_says(ledger, export, tmp_path):
    report = json.loads(run(export, tmp_path, "--json", "--holds", ledger.state().head, code=0))
    assert report["ok"]
    assert report["problems"] == []
    assert report["head"] == ledger.state().head
    assert report["fingerprint"] == fingerprint(PUBLIC)
    rows = {row["lineage"]: row for row in summarize_budget(ledger.state())}
    assert [one["lineage"] for one in report["lineages"]] == ["main", "grid"]
    for one in report["lineages"]:
        ours = rows[one["lineage"]]
        assert one["spent_epsilon"] == pytest.approx(ours["spent_epsilon"], rel=1e-6)
        statuses = [c["status"] for c in ours["charges"]]
        for status in ("reserved", "committed", "burnt"):
            assert one[status] == statuses.count(status)
    main, grid = report["lineages"]
    assert main["spent_epsilon"] <= 9.0
    assert main["pld_epsilon"] is None  # no such distribution of a sample of fixed size
    tight = epsilon_pld(ledger.state().lineages["grid"].events(), 1e-6)
    assert grid["pld_epsilon"] == pytest.approx(tight, rel=1e-3)
    assert tight < grid["spent_epsilon"]


@pytest.mark.parametrize("event", EVERY_KIND, ids=lambda e: e.kind)
@pytest.mark.parametrize("order", [1.5, 2.0, 3.375, 12.0])
def test_every_kind_of_event_has_the_divergence_that_penstock_charges(event, order):
    from penstock.privacy.accounting.renyi import renyi

    stratum, found = script.read_event(to_dict(event))
    assert stratum is None
    assert script.renyi(found, order) == pytest.approx(renyi(event, order), rel=1e-6)


def test_it_speaks_to_people(export, tmp_path):
    said = run(export, tmp_path, code=0)
    assert said.endswith("OK\n")
    assert fingerprint(PUBLIC) in said
    assert "data set main: total ε 9 at δ 1e-05" in said


def test_the_gates_key_is_compared(export, tmp_path):
    for key in (PUBLIC, fingerprint(PUBLIC)):
        assert script.verify(export, key)["ok"]
    said = run(export, tmp_path, "--gate-key", fingerprint(public_hex(OTHER)), code=1)
    assert "signed by another gate" in said


# -- what may be done to one -------------------------------------------------------------------


def problems(document: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    """What is found; something must be."""
    report = script.verify(document, **options)
    assert not report["ok"]
    return report["problems"]


def edited(body: str, name: str) -> str:
    """A record's text with one field changed and the rest as it was."""
    record = json.loads(body)
    value = record[name]
    record[name] = value + 1 if isinstance(value, int | float) else [value]
    return canonical(record).decode()


def test_every_field_of_every_record_is_covered(export):
    tried = 0
    for place in (0, 1, 2, 3, 5, 6, 7, 8):
        for name in json.loads(export["records"][place]["body"]):
            records = [dict(r) for r in export["records"][: place + 1]]
            records[place]["body"] = edited(records[place]["body"], name)
            first = problems({**export, "records": records})[0]
            assert first["record"] == place + 1, (place, name)
            assert "its text was changed" in first["what"]
            tried += 1
    assert tried > 60


@pytest.mark.parametrize("name", ["hash", "signature", "body"])
def test_the_rest_of_an_entry_is_covered_too(export, name):
    records = [dict(r) for r in export["records"]]
    text = records[4][name]
    records[4][name] = ("0" if text[0] != "0" else "1") + text[1:]
    assert problems({**export, "records": records})[0]["record"] == 5


def test_a_record_that_was_hashed_anew_is_not_signed(export):
    records = [dict(r) for r in export["records"]]
    body = records[6]["body"].replace('"margins"', '"nothing"')
    assert body != records[6]["body"]
    hash_ = hashlib.sha256(body.encode()).hexdigest()
    records[6] |= {"body": body, "hash": hash_}
    (first, *_) = problems({**export, "records": records})
    assert first == {"record": 7, "what": "its signature is not the gate's"}
    records[6]["signature"] = sign(OTHER, RECORD, hash_.encode())
    assert problems({**export, "records": records})[0] == first
    records[6]["signature"] = sign(KEY, "study", hash_.encode())  # of another purpose
    assert problems({**export, "records": records})[0] == first


def test_records_that_were_dropped_moved_or_doubled(export, tmp_path):
    records = export["records"]
    for changed, place in (
        (records[:6] + records[7:], 7),
        (records[1:], 1),
        ([*records[:6], records[7], records[6], *records[8:]], 7),
        (records[:7] + records[6:], 8),
    ):
        assert problems({**export, "records": changed})[0]["record"] == place
    said = run({**export, "records": records[:6] + records[7:]}, tmp_path, code=1)
    assert "WRONG: record 7: it does not follow the record before it" in said
    assert said.endswith("NOT OK\n")


def test_what_was_cut_off_at_the_end_is_found_by_a_known_hash(export):
    short = {**export, "records": export["records"][:-2]}
    assert script.verify(short)["ok"]  # a ledger that ended there would look the same
    (found,) = problems(short, holds=[export["records"][-1]["hash"]])
    assert "cut off" in found["what"]


@pytest.mark.parametrize(
    "document",
    [
        "[]",
        "{}",
        "NaN",
        '{"format": "penstock-ledger-2"}',
        '{"format": "penstock-ledger-1", "gate_key": "00", "records": []}',
    ],
)
def test_what_is_no_ledger(document, tmp_path):
    assert run(document, tmp_path, code=1).endswith("NOT OK\n")


def test_a_call_that_makes_no_sense(tmp_path):
    run("no JSON", tmp_path, code=2)
    run("{}", tmp_path, "--nonsense", code=2)


# -- what a dishonest gate could sign ----------------------------------------------------------


class Book:
    """Records written with the gate's own key and without the ledger's checks."""

    def __init__(self, *, epsilon: float = 2.0, order: float = 8.0, **more: Any) -> None:
        self.seq, self.head, self.records = 0, "0" * 64, []
        self.write("open", site="here", id="x", gate_key=PUBLIC)
        self.write("lineage", lineage="main", epsilon=epsilon, delta=1e-5, order=order, **more)
        self.write("version", lineage="main", version=1, persons=100, fingerprint="f")

    def write(self, kind: str, **fields: Any) -> Book:
        self.seq = fields.pop("seq", self.seq + 1)
        fields = {"time": f"2026-01-01T00:00:{len(self.records):02d}Z", **fields}
        record = {**fields, "kind": kind, "seq": self.seq, "prev": self.head}
        # Not canonical(): a dishonest gate may write NaN.
        text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        self.head = hashlib.sha256(text.encode()).hexdigest()
        signature = sign(KEY, RECORD, self.head.encode())
        self.records.append({"body": text, "hash": self.head, "signature": signature})
        return self

    def reserve(self, name: str, *events: dict[str, Any], **changes: Any) -> Book:
        fields = {
            "charge": name,
            "lineage": "main",
            "version": 1,
            "study_id": "s",
            "signer": "ann",
            "mechanism": "maf",
            "events": list(events),
            "delta": 1e-5,
            "relation": RELATION,
        }
        return self.write("reserve", **(fields | changes))

    @property
    def export(self) -> dict[str, Any]:
        return {
            "format": "penstock-ledger-1",
            "relation": RELATION,
            "gate_key": PUBLIC,
            "records": self.records,
        }


G5 = to_dict(Gaussian(5.0))


def test_the_books_of_these_tests_are_whole():
    report = script.verify(Book().reserve("a", G5).write("commit", charge="a").export)
    assert report["ok"], report


def test_an_overspent_ledger_is_found_at_the_record_that_overspent(tmp_path):
    book = Book()
    for place in range(5):
        book.reserve(f"r{place}", G5)
    # Each costs 8/50 at order 8, beside a tail that is paid once.
    tail = math.log1p(-1 / 8) - (math.log(1e-5) + math.log(8)) / 7
    assert int((2.0 - tail) / (8 / 50)) == 4
    found = json.loads(run(book.export, tmp_path, "--json", code=1))
    assert [p["record"] for p in found["problems"]] == [8]
    assert "takes ε to" in found["problems"][0]["what"]
    assert found["lineages"][0]["spent_epsilon"] == pytest.approx(5 * 8 / 50 + tail, rel=1e-9)


@pytest.mark.parametrize("sigma", [1e-200, 1e-9, 0.01])
def test_a_cost_beyond_all_bounds_is_found_too(sigma, tmp_path):
    book = Book().reserve("a", {**G5, "noise_multiplier": sigma}).reserve("b", G5)
    found = json.loads(run(book.export, tmp_path, "--json", code=1))
    assert [p["record"] for p in found["problems"]] == [4, 5]


def test_a_body_that_is_nested_too_deep():
    book = Book()
    text = "[" * 100_000
    hash_ = hashlib.sha256(text.encode()).hexdigest()
    signature = sign(KEY, RECORD, hash_.encode())
    book.records.append({"body": text, "hash": hash_, "signature": signature})
    assert problems(book.export)[0]["record"] == 4


def test_strata_do_not_hide_overspending():
    book = Book(strata=["north", "south"])
    for place in range(8):
        stratum = ("north", "south")[place % 2]
        book.reserve(f"r{place}", to_dict(OnStratum(stratum, Gaussian(5.0))))
    assert script.verify(book.export)["ok"]
    book.reserve("all", G5)
    assert [p["record"] for p in problems(book.export)] == [12]


def test_more_off_the_top_of_delta_than_was_set_aside():
    event = to_dict(Approximate(0.01, 1e-6))
    book = Book(approximate_delta=1.5e-6).reserve("a", event)
    assert script.verify(book.export)["ok"]
    (found,) = problems(book.reserve("b", event).export)
    assert found["record"] == 5
    assert "off δ" in found["what"]


WRONG = (math.nan, math.inf, -math.inf, 0, -1.0, True, "3", None, [3.0], 10**400)


@pytest.mark.parametrize("value", WRONG, ids=str)
@pytest.mark.parametrize("field", ["noise_multiplier", "sensitivity", "count"])
def test_no_number_that_is_none_is_taken_for_no_cost(field, value):
    (first, *_) = problems(Book().reserve("a", {**G5, field: value}).export)
    assert first["record"] == 4


@pytest.mark.parametrize("event", [*EVERY_KIND, Unbounded()], ids=lambda e: e.kind)
def test_every_number_of_every_event_is_looked_at(event):
    record = to_dict(event)
    for field in record:
        bad = {**record, field: math.nan}
        text = json.dumps(bad)
        assert "NaN" in text
        with pytest.raises(script.Wrong):
            script.read_event(json.loads(text))
        with pytest.raises(script.Wrong):
            script.read_event({k: v for k, v in record.items() if k != field})
    with pytest.raises(script.Wrong):
        script.read_event({**record, "more": 1})


BROKEN = {
    "an unknown kind of record": lambda b: b.write("forgive", charge="a"),
    "an unknown kind of event": lambda b: b.reserve("b", {**G5, "kind": "free"}),
    "a field that is not known": lambda b: b.reserve("b", {**G5, "discount": 2}),
    "strata in strata": lambda b: b.reserve(
        "b", {"kind": "on-stratum", "stratum": "n", "event": to_dict(OnStratum("n", Gaussian(5.0)))}
    ),
    "a stratum not declared": lambda b: b.reserve("b", to_dict(OnStratum("n", Gaussian(5.0)))),
    "no events": lambda b: b.reserve("b"),
    "one request twice": lambda b: b.reserve("a", G5),
    "another relation": lambda b: b.reserve("b", G5, relation="add or remove"),
    "a version that is not there": lambda b: b.reserve("b", G5, version=2),
    "another data set": lambda b: b.reserve("b", G5, lineage="other"),
    "a commit of nothing": lambda b: b.write("commit", charge="b"),
    "a burn after a commit": lambda b: b.write("burn", charge="a", reason="x"),
    "a second commit": lambda b: b.write("commit", charge="a"),
    "a data set begun again": lambda b: b.write(
        "lineage", lineage="main", epsilon=9.0, delta=1e-5, order=8.0
    ),
    "an order of 1": lambda b: b.write("lineage", lineage="m", epsilon=9.0, delta=1e-5, order=1),
    "an order of NaN": lambda b: b.write(
        "lineage", lineage="m", epsilon=9.0, delta=1e-5, order=math.nan
    ),
    "an endless ε": lambda b: b.write(
        "lineage", lineage="m", epsilon=math.inf, delta=1e-5, order=8.0
    ),
    "all of δ set aside": lambda b: b.write(
        "lineage", lineage="m", epsilon=9.0, delta=1e-5, order=8.0, approximate_delta=1e-5
    ),
    "a version out of order": lambda b: b.write(
        "version", lineage="main", version=3, persons=9, fingerprint="f"
    ),
    "opened again": lambda b: b.write("open", site="here", id="x", gate_key=PUBLIC),
    "a time that runs backwards": lambda b: b.reserve("b", G5, time="2025-01-01T00:00:00Z"),
    "a gap": lambda b: b.reserve("b", G5, seq=9),
    "a recovery of nothing": lambda b: b.write("recover", seen_seq=True, seen_head="0" * 64),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_makes_no_sense_is_found(what):
    book = Book().reserve("a", G5).write("commit", charge="a")
    assert script.verify(book.export)["ok"]
    assert problems(BROKEN[what](book).export)[0]["record"] == 6


def test_nothing_follows_the_end_of_the_formal_budget():
    book = Book().reserve("a", G5).reserve("b", to_dict(Unbounded()))
    report = script.verify(book.export)
    assert report["ok"]
    assert report["lineages"][0]["spent_epsilon"] is None
    (found,) = problems(book.reserve("c", G5).export)
    assert found["record"] == 6
    assert "formal budget had ended" in found["what"]


def test_a_recovery_charges_everything_and_goes_on():
    book = Book().reserve("a", G5)
    book.write("recover", seq=31, seen_seq=30, seen_head="a" * 64, lineages=["main"])
    report = script.verify(book.export)
    assert report["ok"]
    assert report["seq"] == 31
    assert report["lineages"][0]["spent_epsilon"] == 2.0
    new = {"lineage": "new", "epsilon": 2.0, "delta": 1e-5, "order": 8.0}
    (found, *_) = problems(Book.write(book, "lineage", **new).export)
    assert found["record"] == 32
    book.records.pop()
    book.head, book.seq = book.records[-1]["hash"], 31
    assert script.verify(book.write("lineage", **new, new_data=True).export)["ok"]
    assert problems(book.reserve("b", G5).export)[0]["record"] == 33


# -- the second format -------------------------------------------------------------------------

SALT = "0" * 32
UNIT = {"person": "id", "rows": 3}


def risen() -> Book:
    book = Book().reserve("old", G5).write("format", format=2)
    return book.write("unit", lineage="main", unit=UNIT).reserve("a", G5, **DIGESTS)


BROKEN_SINCE = {
    "a data set that is not disjoint": lambda b: b.write(
        "lineage", lineage="two", epsilon=2.0, delta=1e-5, order=8.0, unit=UNIT
    ),
    "a data set without a unit": lambda b: b.write(
        "lineage", lineage="two", epsilon=2.0, delta=1e-5, order=8.0, disjoint=True
    ),
    "another unit": lambda b: b.write("unit", lineage="main", unit={"person": "id", "rows": 4}),
    "a frame that followed the rows": lambda b: b.write(
        "version", lineage="main", version=2, persons=101, fingerprint="g"
    ),
    "no digest of the study": lambda b: b.reserve("b", G5, **{**DIGESTS, "study_digest": ""}),
    "no digest of the plan": lambda b: b.reserve("b", G5, **{**DIGESTS, "plan_digest": "x"}),
    "no decisions": lambda b: b.reserve("b", G5),
    "no salt": lambda b: b.write("commit", charge="a"),
    "the format again": lambda b: b.write("format", format=2),
    "a format to come": lambda b: b.write("format", format=3),
}


@pytest.mark.parametrize("what", BROKEN_SINCE)
def test_what_the_second_format_asks_for_is_missed(what):
    book = risen()
    assert script.verify(book.export)["ok"], script.verify(book.export)
    place = len(book.records) + 1
    assert problems(BROKEN_SINCE[what](book).export)[0]["record"] == place


def test_what_the_second_format_asks_for_is_enough():
    book = risen().write("commit", charge="a", salt=SALT)
    new = {"epsilon": 2.0, "delta": 1e-5, "order": 8.0, "unit": UNIT, "disjoint": True}
    book.write("lineage", lineage="two", **new)
    book.write("version", lineage="main", version=2, persons=777, fingerprint="g", new_frame=True)
    report = script.verify(book.reserve("b", G5, version=2, **DIGESTS).export)
    assert report["ok"], report
    assert report["lineages"][0]["persons"][-1] == 777
    assert report["lineages"][1]["together_with"] == []
    assert "persons by 'id', at most 3 rows each" in script.show(report)
    assert problems(book.reserve("c", G5, version=1, **DIGESTS).export)
