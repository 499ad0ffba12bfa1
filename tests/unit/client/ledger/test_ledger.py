"""The ledger: chained, signed, atomic, and never below what was truly spent."""

import json
import sqlite3
import threading

import pytest
from tests.support.ledgers import DIGESTS, ROWS

from penstock.base.errors import (
    BudgetExceeded,
    LedgerCorrupt,
    LedgerError,
    LedgerLocked,
    LedgerUnwritable,
)
from penstock.privacy.events import Gaussian, Unbounded
from penstock.wire.signatures import generate_key, public_hex
from penstock_client.ledger.chain import fold_records
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database, hold_exclusively
from penstock_client.ledger.state import Charge

KEY = generate_key()
PUBLIC = public_hex(KEY)


def charge(name: str, sigma: float = 3.0, signer: str = "alice", **more) -> Charge:
    values = {
        "lineage": "main",
        "version": 1,
        "study_id": "s",
        "mechanism": "maf",
        "events": (Gaussian(sigma),),
        "delta": 1e-5,
    }
    return Charge(id=name, signer=signer, **{**DIGESTS, **values, **more})


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(Database.create(tmp_path / "gate.db"), KEY)
    made.open_for("here")
    made.add_lineage("main", 5.0, 1e-5, unit=ROWS)
    made.add_version("main", 100, "f")
    return made


def test_a_life(ledger):
    ledger.reserve(charge("a"), signer_epsilon=5.0)
    ledger.commit("a")
    ledger.reserve(charge("b"), signer_epsilon=5.0)
    ledger.burn("b", "failed")
    state = ledger.verify(PUBLIC)
    assert state.seq == 8
    assert {c.id: c.status for c in state.charges.values()} == {"a": "committed", "b": "burnt"}
    assert len(state.lineages["main"].events()) == 2


def test_a_burnt_charge_stays_charged(ledger):
    ledger.reserve(charge("a"), signer_epsilon=5.0)
    before = ledger.state().lineages["main"]
    ledger.burn("a", "failed")
    after = ledger.state().lineages["main"]
    assert after.filter.spent(after.events()) == before.filter.spent(before.events()) > 0


def test_an_id_is_charged_once(ledger):
    ledger.reserve(charge("a"), signer_epsilon=5.0)
    with pytest.raises(LedgerError, match="before"):
        ledger.reserve(charge("a"), signer_epsilon=5.0)


def test_overspending_is_refused_and_writes_nothing(ledger):
    ledger.reserve(charge("a", sigma=1.2), signer_epsilon=5.0)
    seq = ledger.state().seq
    with pytest.raises(BudgetExceeded, match="ask for"):
        ledger.reserve(charge("b", sigma=1.2), signer_epsilon=5.0)
    assert ledger.state().seq == seq


def test_a_signer_has_an_allowance_of_their_own(ledger):
    ledger.reserve(charge("a", sigma=5.0), signer_epsilon=1.0)
    with pytest.raises(BudgetExceeded, match="allowance"):
        ledger.reserve(charge("b", sigma=5.0), signer_epsilon=1.0)
    ledger.reserve(charge("c", sigma=5.0, signer="bob"), signer_epsilon=1.0)


def test_the_unbounded_ends_the_formal_budget(ledger):
    ledger.reserve(charge("a", events=(Unbounded(),)), signer_epsilon=1.0)
    with pytest.raises(BudgetExceeded, match="ended"):
        ledger.reserve(charge("b", sigma=100.0), signer_epsilon=5.0)


def test_new_rows_reset_nothing(ledger):
    ledger.reserve(charge("a"), signer_epsilon=5.0)
    spent = ledger.state().lineages["main"].events()
    assert ledger.add_version("main", 100, "g") == 2
    assert ledger.state().lineages["main"].events() == spent


@pytest.mark.parametrize("settle", ["commit", "burn"])
def test_a_charge_is_settled_once(ledger, settle):
    ledger.reserve(charge("a"), signer_epsilon=5.0)
    ledger.commit("a")
    with pytest.raises(LedgerCorrupt):
        ledger.commit("a") if settle == "commit" else ledger.burn("a", "x")
    assert ledger.verify(PUBLIC).charges["a"].status == "committed"


def test_threads_never_overspend(ledger):
    admitted = []

    def ask(name):
        try:
            ledger.reserve(charge(name, sigma=1.5), signer_epsilon=5.0)
            admitted.append(name)
        except BudgetExceeded:
            pass

    threads = [threading.Thread(target=ask, args=(f"r{i}",)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    lineage = ledger.verify(PUBLIC).lineages["main"]
    assert 1 <= len(admitted) < 8
    assert lineage.filter.spent(lineage.events()) <= 5.0


def test_time_never_runs_backwards(tmp_path):
    days = iter(["02", "01", "03"])
    ledger = Ledger(
        Database.create(tmp_path / "gate.db"), KEY, clock=lambda: f"2026-01-{next(days)}T00:00:00Z"
    )
    ledger.open_for("here")
    ledger.add_lineage("main", 5.0, 1e-5, unit=ROWS)
    ledger.add_version("main", 10, "f")
    written = [json.loads(body)["time"] for _, body, _, _ in ledger.records()]
    assert [time[8:10] for time in written] == ["02", "02", "02", "03"]


# -- damage ------------------------------------------------------------------------------------


def edit(ledger, sql, *values):
    """Change the file behind the ledger's back, past its triggers."""
    ledger.database.close()
    connection = sqlite3.connect(ledger.database.path)
    connection.execute("DROP TRIGGER record_no_update")
    connection.execute("DROP TRIGGER record_no_delete")
    connection.execute(sql, values)
    connection.commit()
    connection.close()
    return Ledger(Database(ledger.database.path), KEY)


def test_an_edited_record_is_found(ledger):
    ledger.reserve(charge("a", sigma=3.0), signer_epsilon=5.0)
    edited = edit(ledger, "UPDATE record SET body = replace(body, '3.0', '9.0') WHERE seq = 5")
    with pytest.raises(LedgerCorrupt, match="record 5"):
        edited.state()


def test_a_removed_record_is_found(ledger):
    ledger.reserve(charge("a"), signer_epsilon=5.0)
    with pytest.raises(LedgerCorrupt, match="record 3"):
        edit(ledger, "DELETE FROM record WHERE seq = 3").state()


def test_a_rehashed_record_is_found_by_its_signature(ledger):
    import hashlib

    (_, body, _, _) = ledger.records()[-1]
    forged = body.replace('"persons":100', '"persons":999')
    hash_ = hashlib.sha256(forged.encode()).hexdigest()
    edited = edit(ledger, "UPDATE record SET body = ?, hash = ? WHERE seq = 4", forged, hash_)
    edited.state()  # the chain alone cannot see it at its end
    with pytest.raises(LedgerCorrupt, match="signature"):
        edited.verify(PUBLIC)


def test_records_cannot_be_changed_in_place(ledger):
    with pytest.raises(LedgerError), ledger.database.transaction() as connection:
        connection.execute("UPDATE record SET body = 'x' WHERE seq = 1")


@pytest.mark.parametrize("place", [b"SQLite format", b"CREATE TABLE", b'"kind":"lineage"'])
def test_a_damaged_file_is_refused_and_left_alone(ledger, place):
    path = ledger.database.path
    ledger.database.close()
    data = bytearray(path.read_bytes())
    offset = data.index(place)
    data[offset : offset + 10] = b"\xff" * 10
    path.write_bytes(data)
    with pytest.raises(LedgerError):
        Ledger(Database(path), KEY).verify(PUBLIC)
    assert path.read_bytes() == data


def test_a_missing_ledger_says_what_to_do(tmp_path):
    with pytest.raises(LedgerError, match="site init"):
        Database(tmp_path / "none.db")


def test_an_existing_ledger_is_never_overwritten(ledger):
    before = ledger.database.path.read_bytes()
    with pytest.raises(LedgerError, match="never overwritten"):
        Database.create(ledger.database.path)
    assert ledger.database.path.read_bytes() == before


def test_the_lock_names_its_holder(tmp_path):
    import os

    with hold_exclusively(tmp_path / "lock"):
        with pytest.raises(LedgerLocked, match=str(os.getpid())):
            with hold_exclusively(tmp_path / "lock"):
                pass


def test_a_full_disk_refuses_the_charge_and_loses_nothing(ledger):
    before = ledger.state()
    with ledger.database.transaction() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")

    def fill():
        for i in range(200):
            ledger.reserve(charge(f"r{i}", sigma=200.0), signer_epsilon=5.0)

    with pytest.raises(LedgerUnwritable):
        fill()
    after = ledger.verify(PUBLIC)
    assert after.seq == before.seq + len(after.charges)
    assert all(c.status == "reserved" for c in after.charges.values())


def test_fold_of_an_export_is_the_state(ledger):
    ledger.reserve(charge("a"), signer_epsilon=5.0)
    export = json.loads(json.dumps(ledger.export(PUBLIC)))
    rows = [(i + 1, r["body"], r["hash"]) for i, r in enumerate(export["records"])]
    assert fold_records(rows) == ledger.state()
