"""A restored ledger: found out by what it has shown, stopped, and never a way to spend twice."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.ledgers import DIGESTS, ROWS

from penstock.base.errors import BudgetExceeded, LedgerCorrupt, LedgerError, LedgerLocked
from penstock.privacy.accounting.renyi import renyi_total
from penstock.privacy.events import DistributedGaussian, Gaussian, Unbounded, to_dict
from penstock.wire.canonical import canonical
from penstock.wire.manifest import MANIFEST
from penstock.wire.messages import JobState
from penstock.wire.signatures import generate_key, private_to_pem, public_hex, sign
from penstock_client.gate.jobs import Job, Jobs
from penstock_client.gate.recovery import (
    Watch,
    find_contradiction,
    read_proof,
    recover_from,
    recover_worst_case,
)
from penstock_client.ledger.budget import measure_left, measure_spent, summarize_budget
from penstock_client.ledger.chain import fold_records
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database, hold_exclusively
from penstock_client.ledger.state import Charge, State
from penstock_client.site.site_paths import SitePaths

KEY, OTHER = generate_key(), generate_key()
PUBLIC = public_hex(KEY)
TOTAL, DELTA = 5.0, 1e-5


NOW = "2026-01-01T00:00:00Z"


def manifest(seq: object, head: object, key=KEY) -> bytes:
    """What a gate signs: all that counts here is the position."""
    body = {"ledger_seq": seq, "ledger_head": head, "gate_key": public_hex(key)}
    return canonical({"manifest": body, "signature": sign(key, MANIFEST, canonical(body))})


@dataclass
class Site:
    """A ledger in its directory, what it released, and what the outside saw of it."""

    paths: SitePaths
    truth: dict[str, list[Gaussian]] = field(default_factory=dict)
    shown: list[tuple[int, bytes]] = field(default_factory=list)
    copies: list[Path] = field(default_factory=list)
    count: int = 0

    @classmethod
    def make(cls, root: Path) -> Site:
        paths = SitePaths(root)
        paths.make()
        paths.gate_key.write_bytes(private_to_pem(KEY))
        paths.gate_key.chmod(0o600)
        Database.create(paths.database).close()
        site = cls(paths)
        with site.ledger() as ledger:
            ledger.open_for("here")
            ledger.add_lineage("main", TOTAL, DELTA, unit=ROWS)
            ledger.add_version("main", 100, "f")
        return site

    def ledger(self):
        return _Open(self.paths)

    def state(self) -> State:
        with self.ledger() as ledger:
            return ledger.verify(PUBLIC)

    def stopped(self) -> bool:
        with self.ledger() as ledger:
            return Watch(self.paths, ledger, PUBLIC).stopped

    def show(self, data: bytes | None = None) -> bool:
        """A coordinator's Describe with the newest manifest; whether the gate stops."""
        newest = max(self.shown, default=(0, b""))[1] if data is None else data
        with self.ledger() as ledger:
            watch = Watch(self.paths, ledger, PUBLIC)
            watch.look(newest)
            return watch.stopped

    def release(self, sigma: float, lineage: str = "main", *, keep: bool = True) -> None:
        """Reserve, run, and commit or burn: as the gate does, which refuses while stopped."""
        if self.stopped():
            return
        self.count += 1
        name = f"r{self.count}"
        events = (Gaussian(sigma),)
        charge = Charge(name, lineage, 1, "s", "alice", "maf", events, DELTA, **DIGESTS)
        with self.ledger() as ledger:
            try:
                state = ledger.reserve(charge, signer_epsilon=TOTAL)
            except (BudgetExceeded, LedgerError):
                return
            if keep:
                ledger.commit(name)
                self.truth.setdefault(lineage, []).extend(events)
                self.shown.append((state.seq, manifest(state.seq, state.head)))
            else:
                ledger.burn(name, "failed")

    def backup(self) -> Path:
        copy = self.paths.root / f"backup-{len(self.copies)}.db"
        shutil.copy(self.paths.database, copy)
        self.copies.append(copy)
        return copy

    def export(self) -> Path:
        copy = self.paths.root / f"export-{len(self.copies)}.json"
        with self.ledger() as ledger:
            copy.write_text(json.dumps(ledger.export(PUBLIC)))
        self.copies.append(copy)
        return copy

    def restore(self, copy: Path) -> None:
        shutil.copy(copy, self.paths.database)


class _Open:
    def __init__(self, paths: SitePaths) -> None:
        self._database = Database(paths.database)

    def __enter__(self) -> Ledger:
        return Ledger(self._database, KEY)

    def __exit__(self, *_: object) -> None:
        self._database.close()


@pytest.fixture
def site(tmp_path):
    return Site.make(tmp_path / "a")


@pytest.fixture
def behind(site):
    """Restored to before its last two releases; export-1.json holds what was lost."""
    site.release(5.0)
    old = site.backup()
    site.release(6.0)
    site.release(7.0)
    site.export()
    site.restore(old)
    return site


# -- what proves a rollback, and what does not -------------------------------------------------


def test_a_whole_ledger_is_never_accused(site):
    for _ in range(3):
        site.release(6.0)
        site.release(6.0, keep=False)
    assert len(site.shown) == 3
    assert not any(site.show(m) for _, m in site.shown)
    assert not site.paths.evidence.exists()


def test_a_ledger_that_is_older_than_what_it_showed_stops_for_good(behind):
    assert behind.show()
    assert behind.paths.evidence.stat().st_mode & 0o777 == 0o600
    assert behind.stopped()  # another process, with no coordinator in sight
    before = behind.state()
    behind.release(9.0)
    assert behind.state() == before


def test_a_ledger_that_went_on_after_the_restore_is_seen_too(behind):
    for _ in range(3):
        behind.release(9.0)
    assert behind.state().seq > max(behind.shown[:3])[0]
    assert behind.show(behind.shown[2][1])


def lies(behind):
    seq, head = behind.state().seq + 5, "ab" * 32
    ours = json.loads(manifest(seq, head))
    return {
        "another gate's": manifest(seq, head, OTHER),
        "a signature of another text": canonical(
            {**ours, "manifest": {**ours["manifest"], "ledger_seq": seq + 1}}
        ),
        "no signature": canonical({"manifest": ours["manifest"]}),
        "empty": b"",
        "junk": b"\xff\xfe{",
        "deep": b'{"a":' * 5000,
        "a list": b"[1]",
        "a manifest that is a number": b'{"manifest":1,"signature":"00"}',
        "text for a position": manifest("7", head),
        "true for a position": manifest(True, head),
        "a position beyond all": manifest(2**60, head),
        "a hash that is none": manifest(seq, "zz"),
        "a number for a hash": manifest(seq, 7),
        "too long": b" " * 300_000,
    }


@pytest.mark.parametrize("lie", lies(Site.make(Path(tempfile.mkdtemp()) / "a")))
def test_a_lie_stops_nobody_and_raises_nothing(site, lie):
    site.release(6.0)
    assert not site.show(lies(site)[lie])
    assert not site.paths.evidence.exists()


def test_a_manifest_of_another_version_of_penstock_proves_as_much():
    body = {"ledger_seq": 9, "ledger_head": "ab" * 32, "gate_key": PUBLIC, "new": [1]}
    data = canonical({"manifest": body, "signature": sign(KEY, MANIFEST, canonical(body))})
    proof = read_proof(data, PUBLIC)
    assert proof is not None
    assert (proof.seq, proof.head) == (9, "ab" * 32)


def test_a_kept_release_is_proof_without_a_coordinator(behind):
    folder = behind.paths.releases / ("0" * 64)
    folder.mkdir()
    (folder / "manifest.json").write_bytes(behind.shown[-1][1])
    assert behind.stopped()
    recover_from(behind.paths, behind.copies[-1])
    assert not behind.stopped()


def test_damaged_evidence_keeps_the_gate_stopped_until_it_is_shown_again(behind):
    behind.show()
    behind.paths.evidence.write_text("{}")
    assert behind.stopped()
    for recover in (
        lambda: recover_worst_case(behind.paths),
        lambda: recover_from(behind.paths, behind.copies[-1]),
    ):
        with pytest.raises(LedgerError, match="damaged"):
            recover()
    assert behind.show()
    recover_from(behind.paths, behind.copies[-1])


# -- recovery from another copy ----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["export", "database"])
def test_the_lost_records_come_back_as_they_were(site, kind):
    site.release(5.0)
    old = site.backup()
    site.release(6.0)
    site.release(7.0, keep=False)
    whole = site.state()
    copy = site.export() if kind == "export" else site.backup()
    site.restore(old)
    site.show()
    made = recover_from(site.paths, copy)
    assert site.state() == whole
    assert (made.seq, made.records, made.burnt, made.exhausted) == (whole.seq, 4, 0, ())
    assert not site.stopped()
    assert not site.show()


def test_a_reservation_that_was_open_is_burnt(behind):
    old = behind.copies[0]
    behind.restore(behind.backup())
    with behind.ledger() as ledger:
        behind.count += 1
        charge = Charge("open", "main", 1, "s", "a", "maf", (Gaussian(9.0),), DELTA, **DIGESTS)
        ledger.reserve(charge, signer_epsilon=TOTAL)
    copy = behind.export()
    behind.restore(old)
    made = recover_from(behind.paths, copy)
    assert made.burnt == 1
    assert behind.state().charges["open"].status == "burnt"


def copies_that_do_not_do(behind):
    forged = json.loads(behind.copies[-1].read_text())
    forged["records"][-1]["signature"] = sign(OTHER, "ledger-record", b"x")
    other = {**json.loads(behind.copies[-1].read_text()), "gate_key": public_hex(OTHER)}
    short = json.loads(behind.copies[-1].read_text())
    short["records"] = short["records"][:-2]
    same = {**short, "records": short["records"][: behind.state().seq]}
    cut = {**short, "records": short["records"][:3] + short["records"][4:]}
    return {
        "forged": (json.dumps(forged), "signature"),
        "another gate's": (json.dumps(other), "another gate"),
        "too short for what was shown": (json.dumps(short), "before the newest"),
        "nothing new": (json.dumps(same), "no record that this ledger does not"),
        "a record missing": (json.dumps(cut), "does not follow|missing"),
        "no ledger": ("age,sbp\n61,142\n", "not a ledger"),
        "another format": ('{"format": "x"}', "not a ledger"),
    }


CASES = ["forged", "another gate's", "too short for what was shown", "nothing new"]
CASES += ["a record missing", "no ledger", "another format"]


@pytest.mark.parametrize("case", CASES)
def test_a_copy_that_does_not_do_changes_nothing(behind, tmp_path, case):
    behind.show()
    text, words = copies_that_do_not_do(behind)[case]
    (tmp_path / "copy.json").write_text(text)
    before, database = behind.state(), behind.paths.database.read_bytes()
    with pytest.raises(LedgerError, match=words):
        recover_from(behind.paths, tmp_path / "copy.json")
    assert behind.state() == before
    assert behind.paths.database.read_bytes() == database
    assert behind.stopped()


def test_a_ledger_that_parted_cannot_take_the_others_records(behind):
    behind.release(9.0)
    behind.show(behind.shown[2][1])
    with pytest.raises(LedgerError, match="part at record"):
        recover_from(behind.paths, behind.copies[-1])


def test_a_running_gate_is_not_recovered(behind):
    behind.show()
    with hold_exclusively(behind.paths.lock):
        for recover in (
            lambda: recover_worst_case(behind.paths),
            lambda: recover_from(behind.paths, behind.copies[-1]),
        ):
            with pytest.raises(LedgerLocked):
                recover()


# -- the worst case ----------------------------------------------------------------------------


def test_the_worst_case_charges_all_that_was_left(behind):
    behind.show()
    seen = max(behind.shown)[0]
    made = recover_worst_case(behind.paths)
    state = behind.state()
    assert made.seq == state.seq == state.recovered == seen + 1
    assert made.exhausted == ("main",)
    lineage = state.lineages["main"]
    assert (measure_left(lineage), measure_spent(lineage)) == (0.0, TOTAL)
    assert summarize_budget(state)[0]["left_epsilon"] == 0.0
    assert not behind.stopped()
    for events in ((Gaussian(1000.0),), (Unbounded(),)):
        charge = Charge("x", "main", 1, "s", "a", "maf", events, DELTA, **DIGESTS)
        with behind.ledger() as ledger, pytest.raises(BudgetExceeded, match="were lost"):
            ledger.reserve(charge, signer_epsilon=TOTAL)


def test_the_worst_case_burns_what_was_open(site):
    """A part in sums of many sites outlives its process: restored, it would answer rounds again."""
    part = DistributedGaussian(9.0, 4, dropouts=1, colluders=1)
    own = {**DIGESTS, "alone_epsilon": "1.0"}
    charge = Charge("sum", "main", 1, "s", "alice", "scoring", (part,), DELTA, **own)
    with site.ledger() as ledger:
        ledger.reserve(charge, signer_epsilon=TOTAL)
        job = Job("sum", "s", b"", "main", 1, JobState.RUNNING, "", NOW, NOW)
        Jobs(ledger.database).add(job)
    old = site.backup()
    site.release(6.0)
    site.restore(old)
    assert site.show()
    assert recover_worst_case(site.paths).burnt == 1
    assert site.state().charges["sum"].status == "burnt"
    with site.ledger() as ledger:
        found = Jobs(ledger.database).get("sum")
    assert found is not None
    assert (found.state, found.code) == (JobState.FAILED, "interrupted")


def test_what_was_shown_before_a_recovery_accuses_nobody_after_it(behind):
    behind.release(9.0)
    behind.show(behind.shown[2][1])
    recover_worst_case(behind.paths)
    assert not any(behind.show(m) for _, m in behind.shown)


def test_a_recovered_ledger_that_is_restored_again_is_seen_again(behind):
    old = behind.copies[0]
    behind.show()
    recover_worst_case(behind.paths)
    with behind.ledger() as ledger:
        ledger.add_lineage("second", TOTAL, DELTA, new_data=True, unit=ROWS)
        ledger.add_version("second", 50, "g")
    after = behind.backup()
    behind.release(8.0, "second")
    assert len(behind.shown) == 4
    behind.restore(after)
    assert behind.show()
    recover_worst_case(behind.paths)
    assert behind.state().lineages["second"].exhausted
    behind.restore(old)
    assert behind.show()


def test_a_new_data_set_after_a_loss_must_be_declared_new(behind):
    behind.show()
    recover_worst_case(behind.paths)
    with behind.ledger() as ledger:
        with pytest.raises(LedgerError, match="--new-data"):
            ledger.add_lineage("main-2", TOTAL, DELTA, unit=ROWS, disjoint=True)
        state = ledger.add_lineage("main-2", TOTAL, DELTA, new_data=True, unit=ROWS)
        assert measure_left(state.lineages["main-2"]) > 0
        assert measure_left(state.lineages["main"]) == 0


def test_the_fold_refuses_what_the_ledger_would_not_write(behind):
    behind.show()
    recover_worst_case(behind.paths)
    with behind.ledger() as ledger:
        with pytest.raises(LedgerCorrupt):
            ledger.append("lineage", lineage="x", epsilon=1.0, delta=DELTA, order=8.0)
        events = [to_dict(Gaussian(9.0))]
        with pytest.raises(LedgerCorrupt, match="ValueError"):
            ledger.append(
                "reserve",
                charge="x",
                lineage="main",
                version=1,
                study_id="s",
                signer="a",
                mechanism="maf",
                events=events,
                delta=DELTA,
            )


@pytest.mark.parametrize("seen", [0, -1, True, "9", None, 2**53 + 1, 1.5])
def test_a_recovery_that_names_no_position_is_refused(site, seen):
    with site.ledger() as ledger, pytest.raises(LedgerCorrupt, match="no lost position"):
        ledger.append("recover", seen_seq=seen, seen_head="ab" * 32)


def test_only_a_recovery_may_leave_positions_out(behind):
    behind.show()
    recover_worst_case(behind.paths)
    with behind.ledger() as ledger:
        ledger.add_lineage("second", TOTAL, DELTA, new_data=True, unit=ROWS)
        records = [(seq, body, hash_) for seq, body, hash_, _ in ledger.records()]
    assert fold_records(records) == behind.state()
    for i in range(len(records)):
        if i + 1 < len(records):
            with pytest.raises(LedgerCorrupt):
                fold_records(records[:i] + records[i + 1 :])
    recover = next(r for r in records if json.loads(r[1])["kind"] == "recover")
    later = json.loads(recover[1]) | {"seq": recover[0] + 1}
    body = canonical(later).decode()
    forged = (recover[0] + 1, body, hashlib.sha256(body.encode()).hexdigest())
    with pytest.raises(LedgerCorrupt, match="does not follow"):
        fold_records([*records[: records.index(recover)], forged])


def test_a_sound_ledger_has_nothing_to_recover(site):
    site.release(6.0)
    before = site.state()
    with pytest.raises(LedgerError, match="nothing"):
        recover_worst_case(site.paths)
    with pytest.raises(LedgerError, match="no record that this ledger does not"):
        recover_from(site.paths, site.export())
    assert site.state() == before


def test_evidence_that_was_answered_for_is_gone_after_a_kill_in_between(behind):
    behind.show()
    kept = behind.paths.evidence.read_bytes()
    recover_worst_case(behind.paths)
    behind.paths.evidence.write_bytes(kept)  # killed before it was removed
    assert not behind.stopped()
    assert not behind.paths.evidence.exists()


# -- any sequence of operations ----------------------------------------------------------------

# Two of the larger releases fill a lineage: few steps suffice to spend too much.
SIGMAS = (1.4, 1.6, 2.0, 3.0)
KINDS = ("release", "release", "release", "backup", "restore", "restore", "worst", "from")
OPERATIONS = st.tuples(
    st.sampled_from((*KINDS, "fail", "export", "show", "begin")), st.integers(0, 3)
)


def perform(site: Site, name: str, number: int) -> None:
    databases = [c for c in site.copies if c.suffix == ".db"]
    if name in ("release", "fail"):
        names = list(site.state().lineages)
        site.release(SIGMAS[number], names[number % len(names)], keep=name == "release")
    elif name == "backup":
        site.backup()
    elif name == "export":
        site.export()
    elif name == "restore" and databases:
        site.restore(databases[number % len(databases)])
        site.show()  # what a coordinator does first
    elif name == "show":
        site.show()
    elif name == "begin" and not site.stopped():
        # Rows of their own: a name that was never used, also not in records that were lost.
        site.count += 1
        with site.ledger() as ledger:
            ledger.add_lineage(f"rows-{site.count}", TOTAL, DELTA, new_data=True, unit=ROWS)
    elif name in ("worst", "from"):
        try:
            if name == "worst":
                recover_worst_case(site.paths)
            elif site.copies:
                recover_from(site.paths, site.copies[-1 - number % len(site.copies)])
        except LedgerError:
            pass


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(OPERATIONS, min_size=6, max_size=20))
def test_what_was_truly_released_never_exceeds_a_filter(operations):
    root = Path(tempfile.mkdtemp(prefix="pk-"))
    try:
        site = Site.make(root / "a")
        site.backup()
        limit = site.state().lineages["main"].filter
        for name, number in operations:
            perform(site, name, number)
            site.state()  # verifies
            for events in site.truth.values():
                assert renyi_total(events, limit.order) <= limit.rho_max * (1 + 1e-12)
    finally:
        shutil.rmtree(root)


def test_a_gate_that_does_not_ask_would_be_caught_by_the_test_above(site, monkeypatch):
    """The planted twin: without the watch, a restore buys a second budget."""
    monkeypatch.setattr(Site, "stopped", lambda _: False)
    limit = site.state().lineages["main"].filter
    start = site.backup()
    site.release(1.2)
    site.restore(start)
    site.release(1.2)
    assert renyi_total(site.truth["main"], limit.order) > limit.rho_max


def test_find_says_which_position(behind):
    behind.show()
    with behind.ledger() as ledger:
        proof = find_contradiction(behind.paths, ledger, PUBLIC)
    assert proof is not None
    assert proof.seq == max(behind.shown)[0]
