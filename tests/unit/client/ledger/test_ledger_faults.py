"""A ledger under kills, torn pages, odd clocks and several writers: spent is never below true.

The longer runs are in `make soak`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.support.ledgers import DIGESTS, ROWS

from penstock.base.errors import BudgetExceeded, LedgerError, LedgerLocked
from penstock.privacy.events import Gaussian
from penstock.wire.signatures import generate_key, public_hex
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database, hold_exclusively
from penstock_client.ledger.state import Charge, State

KEY = generate_key()
PUBLIC = public_hex(KEY)


def charge(name: str, sigma: float = 40.0) -> Charge:
    return Charge(name, "main", 1, "s", "ada", "maf", (Gaussian(sigma),), 1e-5, **DIGESTS)


def begin(path: Path, **more) -> Ledger:
    ledger = Ledger(Database.create(path), KEY, **more)
    ledger.open_for("here")
    ledger.add_lineage("main", 5.0, 1e-5, unit=ROWS)
    ledger.add_version("main", 100, "f")
    return ledger


# -- kills -------------------------------------------------------------------------------------


def kills(folder: Path, seed: int, count: int, *mode: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "tests.support.kills",
        str(folder),
        str(seed),
        str(count),
        *mode,
    ]
    path = os.pathsep.join(p for p in sys.path if p)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    root = Path(__file__).parents[4]
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=280
    )


def survived(folder: Path, seed: int, count: int) -> dict:
    done = kills(folder, seed, count)
    assert done.returncode == 0, done.stderr
    seen: dict = json.loads(done.stdout)
    assert sum(seen["stages"]) == count
    return seen


def test_fifty_random_kills_lose_nothing(tmp_path):
    seen = survived(tmp_path, 1, 50)
    assert seen["hot"] > 0  # some of them in the middle of a transaction
    assert seen["charges"] > 0


def test_rows_that_are_read_before_the_reservation_would_be_found_out(tmp_path):
    """The planted twin: without the order of the steps, a kill makes spent < true."""
    done = kills(tmp_path, 1, 50, "careless")
    assert done.returncode == 1
    assert "rows were read without a charge" in done.stderr


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 26))
def test_twelve_hundred_random_kills_lose_nothing(tmp_path, seed):
    seen = survived(tmp_path, seed, 50)
    assert seen["hot"] > 0


# -- torn pages --------------------------------------------------------------------------------


def sound(path: Path, committed: State) -> str | None:
    """What a ledger says when it is opened; it never forgets what was committed before."""
    try:
        database = Database(path)
    except LedgerError as error:
        return str(error)
    try:
        state = Ledger(database, KEY).verify(PUBLIC)
    except LedgerError as error:
        return str(error)
    finally:
        database.close()
    assert state.seq >= committed.seq
    for name, each in committed.charges.items():
        assert state.charges[name].events == each.events
    return None


@pytest.fixture(scope="module")
def torn(tmp_path_factory):
    """A ledger's file with 60 charges, the same file ten charges earlier, and its state."""
    folder = tmp_path_factory.mktemp("torn")
    ledger = begin(folder / "gate.db")
    for i in range(60):
        if i == 50:
            shutil.copy(folder / "gate.db", folder / "old.db")
        ledger.reserve(charge(f"r{i}"), signer_epsilon=5.0)
        ledger.commit(f"r{i}")
    state = ledger.verify(PUBLIC)
    ledger.database.close()
    return (folder / "gate.db").read_bytes(), (folder / "old.db").read_bytes(), state


def tear(data: bytes, old: bytes, rng: random.Random) -> bytes:
    """One sector or page overwritten: with zeros, garbage, or what stood there before."""
    size = rng.choice((512, 4096))
    at = rng.randrange(len(data) // size) * size
    kind = rng.choice(("zeros", "garbage", "old"))
    here = {"zeros": bytes(size), "garbage": rng.randbytes(size), "old": old[at : at + size]}[kind]
    return data[:at] + here.ljust(size, b"\x00") + data[at + size :]


def tears(torn, folder: Path, seed: int, count: int) -> list[str | None]:
    data, old, state = torn
    rng, ends = random.Random(seed), []
    path = folder / "gate.db"
    for _ in range(count):
        damaged = tear(data, old, rng)
        path.write_bytes(damaged)
        ends.append(sound(path, state))
        assert path.read_bytes() == damaged  # nothing was overwritten
    return ends


def test_a_torn_page_is_refused_or_costs_nothing(torn, tmp_path):
    ends = tears(torn, tmp_path, 1, 150)
    assert sum(end is not None for end in ends) > 50  # it is damage, and it is found


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 12))
def test_two_thousand_torn_pages(torn, tmp_path, seed):
    tears(torn, tmp_path, seed, 200)


@pytest.mark.parametrize("lost", [1, 3, 10])
def test_a_page_whose_last_write_was_lost_is_found(tmp_path, lost):
    """The table's last page, as it was, is a valid and shorter chain: the index gives it away.

    Where a disk loses *every* page of the last transactions there is nothing left to find: that
    file is an older ledger, whole, and is found as a restored backup is (test_recovery.py).
    """
    path = tmp_path / "gate.db"
    ledger = begin(path)
    for i in range(40 + lost):
        if i == 40:
            old = path.read_bytes()
        ledger.reserve(charge(f"r{i}"), signer_epsilon=5.0)
    state, data = ledger.state(), path.read_bytes()
    ledger.database.close()
    found = 0
    for at in range(0, len(data), 4096):
        here = old[at : at + 4096].ljust(4096, b"\x00")
        path.write_bytes(data[:at] + here + data[at + 4096 :])
        said = sound(path, state)
        # The first page has but numbers of the file in it.
        assert said is not None or at == 0 or here == data[at : at + 4096]
        found += said is not None
    assert found >= 2
    path.write_bytes(old)
    database = Database(path)
    assert Ledger(database, KEY).verify(PUBLIC).seq == state.seq - lost
    database.close()


@pytest.fixture(scope="module")
def hot(tmp_path_factory):
    """A ledger's file and its journal as a power loss in mid-transaction leaves them."""
    folder = tmp_path_factory.mktemp("hot")
    ledger = begin(folder / "gate.db")
    for i in range(30):
        ledger.reserve(charge(f"r{i}"), signer_epsilon=5.0)
    state, before = ledger.state(), (folder / "gate.db").read_bytes()
    # A cache this small writes pages of a transaction out before it ends.
    ledger.database.query("PRAGMA cache_size=2")
    with ledger.database.transaction():
        for i in range(30):
            ledger.commit(f"r{i}")
        files = [(folder / f"gate.db{end}").read_bytes() for end in ("", "-journal")]
    ledger.database.close()
    assert files[0][: len(before)] != before  # pages were written in place
    return (*files, state)


def test_a_power_loss_in_a_transaction_undoes_it(hot, tmp_path):
    data, journal, state = hot
    (tmp_path / "gate.db").write_bytes(data)
    (tmp_path / "gate.db-journal").write_bytes(journal)
    with pytest.raises(LedgerError, match="start the gate"):
        Database(tmp_path / "gate.db", read_only=True)
    database = Database(tmp_path / "gate.db")
    assert Ledger(database, KEY).verify(PUBLIC) == state
    database.close()


def tear_journals(hot, folder: Path, seed: int, count: int) -> list[str | None]:
    data, journal, state = hot
    rng, ends = random.Random(seed), []
    for _ in range(count):
        (folder / "gate.db").write_bytes(data)
        (folder / "gate.db-journal").write_bytes(tear(journal, data, rng))
        ends.append(sound(folder / "gate.db", state))
    return ends


def test_a_torn_journal_is_refused_or_costs_nothing(hot, tmp_path):
    assert any(end is not None for end in tear_journals(hot, tmp_path, 1, 100))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 12))
def test_two_thousand_torn_journals(hot, tmp_path, seed):
    tear_journals(hot, tmp_path, seed, 200)


def test_the_one_file_is_a_backup_whenever_nothing_is_being_written(tmp_path):
    ledger = begin(tmp_path / "gate.db")
    assert ledger.database.query("PRAGMA journal_mode") == [("truncate",)]
    assert ledger.database.query("PRAGMA synchronous") == [(2,)]  # FULL
    for i in range(3):
        state = ledger.reserve(charge(f"r{i}"), signer_epsilon=5.0)
        shutil.copy(tmp_path / "gate.db", tmp_path / "copy.db")
        database = Database(tmp_path / "copy.db", read_only=True)
        assert Ledger(database, None).verify(PUBLIC) == state
        database.close()


# -- several writers ---------------------------------------------------------------------------


def test_two_processes_at_once_are_one_too_many(tmp_path):
    program = (
        "import sys; from pathlib import Path\n"
        "from penstock_client.ledger.sqlite_file import hold_exclusively\n"
        "with hold_exclusively(Path(sys.argv[1])):\n    pass"
    )
    path = os.pathsep.join(p for p in sys.path if p)
    with hold_exclusively(tmp_path / "lock"):
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "lock")],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 1
    assert LedgerLocked.__name__ in done.stderr
    assert f"pid {os.getpid()}" in done.stderr


def test_two_connections_that_get_past_the_lock_still_never_overspend(tmp_path):
    """The lock is the rule; the transaction and the fold hold without it, too."""
    one = begin(tmp_path / "gate.db")
    two = Ledger(Database(tmp_path / "gate.db"), KEY)
    admitted, refused = [], []

    def ask(ledger: Ledger, name: str) -> None:
        for i in range(6):
            try:
                ledger.reserve(charge(f"{name}{i}", 3.0), signer_epsilon=5.0)
                admitted.append(f"{name}{i}")
            except BudgetExceeded:
                refused.append(f"{name}{i}")

    threads = [
        threading.Thread(target=ask, args=(ledger, name))
        for ledger, name in ((one, "a"), (one, "b"), (two, "c"), (two, "d"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.state().charges) == sorted(two.state().charges) == sorted(admitted)
    assert one.verify(PUBLIC) == two.verify(PUBLIC) == one.state()
    assert refused
    lineage = one.state().lineages["main"]
    assert lineage.filter.spent(lineage.events()) <= 5.0


def test_a_transaction_that_was_undone_is_forgotten(tmp_path):
    ledger = begin(tmp_path / "gate.db")
    before = ledger.state()

    def interrupted() -> None:
        with ledger.database.transaction():
            ledger.reserve(charge("a"), signer_epsilon=5.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert ledger.state() == before
    ledger.reserve(charge("b"), signer_epsilon=5.0)  # the same position, another record
    assert list(ledger.state().charges) == ["b"]
    assert ledger.verify(PUBLIC) == ledger.state()


def test_a_decision_reads_no_record_twice(tmp_path, monkeypatch):
    ledger = begin(tmp_path / "gate.db")
    for i in range(5):
        ledger.reserve(charge(f"r{i}"), signer_epsilon=5.0)
    read: list[int] = []
    tail = Ledger._tail

    def counted(self: Ledger, seq: int) -> list[tuple[int, str, str]]:
        rows = tail(self, seq)
        read.append(len(rows))
        return rows

    monkeypatch.setattr(Ledger, "_tail", counted)
    ledger.reserve(charge("a"), signer_epsilon=5.0)
    ledger.commit("a")
    assert max(read) == 1  # the last record, to see that it is still the last
    again = Ledger(ledger.database, KEY)
    assert again.state() == ledger.state()
    assert max(read) == 11


def test_a_file_that_is_put_back_under_a_running_ledger_is_seen(tmp_path):
    ledger = begin(tmp_path / "gate.db")
    old = (tmp_path / "gate.db").read_bytes()
    ledger.reserve(charge("a"), signer_epsilon=5.0)
    (tmp_path / "gate.db").write_bytes(old)
    assert list(ledger.state().charges) == []
    assert ledger.verify(PUBLIC) == ledger.state()


# -- clocks ------------------------------------------------------------------------------------


def test_a_clock_that_is_set_back_or_jumps_never_turns_the_ledgers_time(tmp_path):
    rng = random.Random(3)
    hours = [rng.randint(0, 5000) for _ in range(43)]
    clock = iter(f"20{26 + h // 1000}-01-{1 + h % 28:02d}T00:00:00.000000Z" for h in hours)
    ledger = begin(tmp_path / "gate.db", clock=lambda: next(clock))
    for i in range(20):
        ledger.reserve(charge(f"r{i}"), signer_epsilon=5.0)
        ledger.commit(f"r{i}")
    times = [json.loads(body)["time"] for _, body, _, _ in ledger.records()]
    assert times == sorted(times)
    assert ledger.verify(PUBLIC).time == max(times)
