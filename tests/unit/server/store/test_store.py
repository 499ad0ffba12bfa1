"""The coordinator's store: one contract, over SQLite and over PostgreSQL."""

from __future__ import annotations

import os
import sqlite3
import threading
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from penstock.base.errors import CoordinatorError
from penstock.wire.messages import SiteState, StudyState
from penstock_server.store.clock import Clock
from penstock_server.store.database import sqlite_url
from penstock_server.store.leases import Leases
from penstock_server.store.mailbox import Message, Received, Reply
from penstock_server.store.migration import SCHEMA_VERSION, UPGRADED
from penstock_server.store.register import StudyRow
from penstock_server.store.sql_tables import account_key_table, metadata, settings_table
from penstock_server.store.store import Store

POSTGRES = "PENSTOCK_TEST_POSTGRES"
T0, T1, T2 = (f"2026-11-21T00:00:0{i}.000000Z" for i in range(3))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return sqlite_url(tmp_path)
    found = os.environ.get(POSTGRES)
    if not found:
        pytest.skip(f"{POSTGRES} holds no URL of an empty database")
    engine = sa.create_engine(found)
    metadata.drop_all(engine)
    engine.dispose()
    return found


@pytest.fixture
def store(url):
    made = Store.create(url)
    for name in ("a", "b"):
        made.sites.add(join(name), T0)
    yield made
    made.close()


def join(name, **changes):
    return {
        "site": name,
        "federation": "main",
        "gate_key": "0" * 64,
        "persons": 10,
        **changes,
    }


def leases(store, seconds=0):
    """At a time after those of the rows, ``seconds`` later."""
    moment = datetime(2026, 11, 22, tzinfo=UTC) + timedelta(seconds=seconds)
    return Leases(store, Clock(lambda: moment))


def row(study_id="s1", **changes):
    values = {
        "id": study_id,
        "name": "trial",
        "data": b"\x00\xff signed",
        "state": StudyState.OPEN,
        "created": T0,
        "deadline": T2,
        "finished": "",
        "note": "",
    }
    return StudyRow(**{**values, **changes})


class TestContract:
    """What every backend must do."""

    def test_a_store_is_made_once_and_never_overwritten(self, store, url):
        with pytest.raises(CoordinatorError, match="exists already"):
            Store.create(url)
        Store(url).check()

    def test_a_store_of_another_version_is_refused(self, store):
        store.values.set("schema", 99)
        with pytest.raises(CoordinatorError, match="another format"):
            store.check()

    @pytest.mark.parametrize("found", UPGRADED)
    def test_a_store_of_a_format_before_is_brought_up_to_date(self, store, url, found):
        store.studies.add(row(data=b'{"signer":"key"}', signer="key"), ["a"])
        with store.begin() as c:
            c.exec_driver_sql("DROP TABLE pooling")
            if found == 2:
                for table in ("study_reader", "account_key", "access"):
                    c.exec_driver_sql(f"DROP TABLE {table}")
                for column in ("owner", "signer"):
                    c.exec_driver_sql(f"ALTER TABLE study DROP COLUMN {column}")
        store.values.set("schema", found)
        with pytest.raises(CoordinatorError, match="the format of the version before"):
            Store(url).check(upgrade=False)
        assert store.values.get("schema") == found
        for _ in range(2):
            Store(url).check()
        assert store.values.get("schema") == SCHEMA_VERSION
        assert [(r.owner, r.signer) for r in store.studies.all()] == [("", "key")]
        assert store.studies.add(row("s2", owner="ada"), ["a"], readers=["bob"])
        with store.begin() as c:
            leases(store).open(c, "s1", T1, 1)
        assert store.studies.find("s1").state is StudyState.POOLING

    def test_a_study_whose_results_are_made_has_not_ended(self, store):
        store.studies.add(row(owner="ada"), ["a"])
        with store.begin() as c:
            leases(store).open(c, "s1", T1, 1)
        with store.reading() as c:
            assert store.studies.count_open(c, "ada") == 1
        assert store.studies.ending(T2) == []
        assert store.mailbox.due(T2) == []  # nobody is asked any more

    def test_one_of_many_builders_gets_a_study(self, store, url):
        """Each asks at once, from a connection of its own."""
        store.studies.add(row(), ["a"])
        with store.begin() as c:
            leases(store).open(c, "s1", T1, 1)
        others = [Store(url) for _ in range(8)]
        gate, found = threading.Barrier(len(others)), []

        def ask(other):
            gate.wait()
            found.append(leases(other).claim())

        threads = [threading.Thread(target=ask, args=(other,)) for other in others]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [lease is not None for lease in found].count(True) == 1
        (held,) = [lease for lease in found if lease is not None]
        assert leases(store).holders() == {held.holder}
        for other in others:
            other.close()

    def test_who_crashed_less_and_waits_longer_is_taken_first(self, store):
        for name, since in (("s1", T0), ("s2", T1), ("s3", T0)):
            store.studies.add(row(name), ["a"])
            with store.begin() as c:
                leases(store).open(c, name, since, 1)
        first = leases(store).claim()
        leases(store).crash(first, "why")
        found = [leases(store, seconds=600).claim().study_id for _ in range(3)]
        assert (first.study_id, found) == ("s1", ["s3", "s2", "s1"])

    def test_an_account_reads_its_own_and_what_names_it(self, store):
        store.studies.add(row("s1", owner="ada", signer="k1"), ["a"], readers=["bob", "carol"])
        store.studies.add(row("s2", owner="bob", signer="k2"), ["a"])
        store.studies.add(row("s3", signer="k1"), ["a"])
        with store.begin() as c:
            values = {"key": "k1", "account": "ada", "added": T0}
            c.execute(account_key_table.insert().values(**values))
        readers = ("ada", "bob", "carol", "dora")
        found = {name: [r.id for r in store.studies.readable_by(name)] for name in readers}
        assert found == {"ada": ["s1", "s3"], "bob": ["s1", "s2"], "carol": ["s1"], "dora": []}
        assert [r.id for r in store.studies.readable_by("bob", "s2")] == ["s2"]
        assert store.studies.readable_by("bob", "s3") == []

    def test_open_studies_are_counted_by_account(self, store):
        for number in range(3):
            store.studies.add(row(f"s{number}", owner="ada" if number else "bob"), ["a"])
        with store.begin() as c:
            store.studies.end(c, "s2", StudyState.CANCELLED, T1)
        with store.reading() as c:
            assert [store.studies.count_open(c, name) for name in ("ada", "bob", None)] == [1, 1, 2]

    def test_what_is_done_within_a_change_is_done_with_it_or_not_at_all(self, store):
        def refuse(c):
            store.studies.end(c, "s1", StudyState.CANCELLED, T1)
            raise CoordinatorError("no")

        store.studies.add(row(), ["a"])
        with pytest.raises(CoordinatorError, match="no"):
            store.studies.add(row("s2"), ["a"], within=refuse)
        with pytest.raises(CoordinatorError, match="no"):
            store.sites.add(join("c"), T0, refuse)
        assert store.studies.all() == [row()]
        assert "c" not in store.sites.all()

    def test_writers_that_lock_come_one_after_the_other(self, store, url):
        """Each reads what the one before has written: a chain, or a count, has no gap."""
        store.values.set("count", 0)

        def work():
            mine = Store(url)
            for _ in range(20):
                with mine.begin() as c:
                    mine.values.lock(c)
                    one = settings_table.c.name == "count"
                    found = int(c.execute(sa.select(settings_table.c.value).where(one)).scalar())
                    c.execute(settings_table.update().where(one).values(value=str(found + 1)))
            mine.close()

        workers = [threading.Thread(target=work) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert store.values.get("count") == 60

    def test_an_empty_database_is_no_store(self, url):
        with pytest.raises(CoordinatorError, match="no coordinator here"):
            Store(url).check()

    @pytest.mark.parametrize("value", [None, True, 0, "é\x00", {"a": [1.5]}])
    def test_settings_come_back(self, store, value):
        store.values.set("x", 1)
        store.values.set("x", value)
        assert store.values.get("x") == value

    def test_a_setting_that_was_never_set_is_none(self, store):
        assert store.values.get("nothing") is None

    def test_a_site_may_come_again_with_another_n(self, store):
        store.sites.add(join("a", persons=12), T1)
        assert store.sites.all()["a"].persons == 12
        assert list(store.sites.all()) == ["a", "b"]

    def test_a_site_may_not_come_again_with_another_key(self, store):
        with pytest.raises(CoordinatorError, match="another key"):
            store.sites.add(join("a", gate_key="1" * 64), T1)
        assert store.sites.all()["a"].gate_key == "0" * 64

    def test_a_study_comes_with_its_invitations(self, store):
        assert store.studies.add(row(), ["a", "b"])
        assert store.studies.in_state(StudyState.OPEN) == [row()]
        assert [(p.site, p.state) for p in store.studies.parts("s1")] == [
            ("a", SiteState.INVITED),
            ("b", SiteState.INVITED),
        ]
        sent = [(m.study_id, m.site, m.verb, m.body) for m in store.mailbox.due(T0)]
        assert sent == [("s1", "a", "submit", row().data), ("s1", "b", "submit", row().data)]

    def test_a_study_is_added_once(self, store):
        store.studies.add(row(), ["a"])
        assert not store.studies.add(row(name="other"), ["a", "b"])
        assert store.studies.all() == [row()]
        assert len(store.mailbox.due(T2)) == 1

    def test_a_study_of_an_unknown_site_leaves_nothing(self, store):
        with pytest.raises(CoordinatorError):
            store.studies.add(row(), ["a", "nobody"])
        assert store.studies.all() == []
        assert store.mailbox.due(T2) == []

    def test_a_transaction_that_fails_leaves_nothing(self, store):
        store.studies.add(row(), ["a"])

        def fails():
            with store.begin() as c:
                store.mailbox.send(c, "s1", "a", "poll", b"", T0)
                store.studies.end(c, "s1", StudyState.FAILED, T1)
                raise RuntimeError

        with pytest.raises(RuntimeError):
            fails()
        assert len(store.mailbox.due(T2)) == 1
        assert store.studies.find("s1").state is StudyState.OPEN

    def test_messages_wait_until_they_are_due(self, store):
        store.studies.add(row(), ["a"])
        (message,) = store.mailbox.due(T0)
        store.mailbox.postpone(message, T1)
        assert store.mailbox.due(T0) == []
        (again,) = store.mailbox.due(T1)
        assert (again.id, again.attempts) == (message.id, 1)

    def test_a_reply_takes_its_messages_place_in_full(self, store):
        store.studies.add(row(), ["a"])
        (message,) = store.mailbox.due(T0)
        reply = Reply(False, "c\x00", "d\ud800é", "r", "running", 2**40, 3, 1.5, b"\x00\xff")
        store.mailbox.receive([(message, reply)])
        assert store.mailbox.due(T2) == []
        assert store.mailbox.inbox() == [Received(message.id, "s1", "a", "submit", reply)]

    def test_a_second_reply_is_dropped(self, store):
        store.studies.add(row(), ["a"])
        (message,) = store.mailbox.due(T0)
        store.mailbox.receive([(message, Reply(True, state="running"))])
        store.mailbox.receive([(message, Reply(True, state="failed"))])
        assert [r.reply.state for r in store.mailbox.inbox()] == ["running"]
        with store.begin() as c:
            store.mailbox.discard(c, message.id)
        store.mailbox.receive([(message, Reply(True, state="failed"))])
        assert store.mailbox.inbox() == []

    def test_a_reply_to_a_message_that_was_withdrawn_is_dropped(self, store):
        store.studies.add(row(), ["a"])
        (message,) = store.mailbox.due(T0)
        with store.begin() as c:
            store.studies.end(c, "s1", StudyState.CANCELLED, T1)
        store.mailbox.receive([(message, Reply(True, state="running"))])
        assert store.mailbox.inbox() == []

    def test_an_id_is_never_used_twice(self, store):
        ids = []
        for _ in range(3):
            with store.begin() as c:
                store.mailbox.send(c, "s1", "a", "poll", b"r", T0)
            (message,) = store.mailbox.due(T0)
            ids.append(message.id)
            store.mailbox.receive([(message, Reply(True))])
            with store.begin() as c:
                store.mailbox.discard(c, message.id)
        assert ids == sorted(set(ids))

    def test_messages_and_replies_come_in_order(self, store):
        with store.begin() as c:
            for i in range(5):
                store.mailbox.send(c, "s1", "a", "poll", str(i).encode(), T1 if i % 2 else T0)
        assert [m.body for m in store.mailbox.due(T1)] == [b"0", b"1", b"2", b"3", b"4"]
        for message in reversed(store.mailbox.due(T1)):
            store.mailbox.receive([(message, Reply(True))])
        assert (found := [r.id for r in store.mailbox.inbox()]) == sorted(found)

    def test_the_end_withdraws_all_but_cancellations(self, store):
        store.studies.add(row(), ["a"])
        store.studies.add(row("s2"), ["a"])
        with store.begin() as c:
            store.mailbox.send(c, "s1", "a", "cancel", b"x", T0)
            store.studies.end(c, "s1", StudyState.FAILED, T1, "why")
        assert [(m.study_id, m.verb) for m in store.mailbox.due(T2)] == [
            ("s2", "submit"),
            ("s1", "cancel"),
        ]
        ended = store.studies.find("s1")
        assert (ended.state, ended.finished, ended.note) == (StudyState.FAILED, T1, "why")
        assert [s.id for s in store.studies.in_state(StudyState.OPEN)] == ["s2"]

    def test_a_part_keeps_what_it_is_told(self, store):
        store.studies.add(row(), ["a", "b"])
        with store.begin() as c:
            store.studies.update_part(c, "s1", "a", state="delivered", step=3, manifest=b"\x00m")
        a, b = store.studies.parts("s1")
        assert (a.state, a.step, a.manifest) == (SiteState.DELIVERED, 3, b"\x00m")
        assert (b.state, b.manifest) == (SiteState.INVITED, None)

    def test_a_ledgers_positions_are_kept(self, store):
        with store.begin() as c:
            store.sites.note_position(c, "a", 2**53, "x" * 64)
            store.sites.note_position(c, "a", 2**53, "x" * 64)
            store.sites.note_position(c, "b", 1, "y" * 64)
        assert store.sites.ledger_heads("a") == {2**53: "x" * 64}

    def test_a_study_remembers_the_ledgers_position_at_its_start(self, store):
        store.studies.add(row(), ["a", "b"])
        with store.begin() as c:
            store.sites.note_position(c, "a", 7, "x" * 64)
            store.sites.note_position(c, "a", 5, "x" * 64)
        store.studies.add(row("s2"), ["a", "b"])
        assert [p.ledger_floor for p in store.studies.parts("s1")] == [0, 0]
        assert [p.ledger_floor for p in store.studies.parts("s2")] == [7, 0]

    def test_a_locked_study_waits_for_its_transaction(self, store, url):
        """Read, decide, write: nobody comes between."""
        store.studies.add(row(), ["a"])
        other, seen, locked = Store(url), [], threading.Event()

        def cancel():
            locked.wait(30)
            with other.begin() as c:
                seen.append(other.studies.lock(c, "s1"))

        thread = threading.Thread(target=cancel)
        thread.start()
        with store.begin() as c:
            assert store.studies.lock(c, "s1") is StudyState.OPEN
            locked.set()
            thread.join(0.3)
            assert seen == []
            store.studies.end(c, "s1", StudyState.FINISHED, T1)
        thread.join(30)
        other.close()
        assert seen == [StudyState.FINISHED]

    def test_the_lock_of_no_study_is_none(self, store):
        with store.begin() as c:
            assert store.studies.lock(c, "nothing") is None

    def test_readers_do_not_wait_for_a_writer(self, store):
        store.studies.add(row(), ["a"])
        with store.begin() as c:
            store.studies.end(c, "s1", StudyState.FINISHED, T1)
            assert store.studies.find("s1").state is StudyState.OPEN

    def test_what_was_written_is_there_after_opening_again(self, store, url):
        store.studies.add(row(), ["a"])
        store.close()
        again = Store(url)
        assert again.studies.all() == [row()]
        assert again.mailbox.due(T0) == [Message(1, "s1", "a", "submit", row().data)]
        again.close()


@pytest.mark.parametrize(
    "url",
    ["nonsense", "nosuch://u:secret@h/d", "sqlite:////no/such/folder/x.db"],
)
def test_a_url_that_does_not_work_is_said_without_secrets(url):
    with pytest.raises(CoordinatorError) as caught:
        Store.create(url)
    assert "secret" not in str(caught.value)


def test_a_password_is_not_shown(monkeypatch, tmp_path):
    store = Store.create(sqlite_url(tmp_path))
    named = store.database.engine.url.set(username="u", password="secret", host="h")
    monkeypatch.setattr(store.database.engine, "url", named)
    monkeypatch.setattr("penstock_server.store.store.Store", lambda url: store)
    with pytest.raises(CoordinatorError, match="exists already") as caught:
        Store.create("any")
    assert "secret" not in str(caught.value)


def test_a_database_that_is_damaged_is_a_typed_error(tmp_path):
    Store.create(sqlite_url(tmp_path)).close()
    (tmp_path / "coordinator.db").write_bytes(b"not a database, but long enough to look at " * 50)
    with pytest.raises(CoordinatorError, match="cannot be used"):
        Store(sqlite_url(tmp_path)).check()


def test_sqlite_is_durable(tmp_path):
    store = Store.create(sqlite_url(tmp_path))
    with store.begin() as c:
        assert c.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert c.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    store.close()
    with sqlite3.connect(tmp_path / "coordinator.db") as plain:
        assert plain.execute("PRAGMA journal_mode").fetchone() == ("wal",)
