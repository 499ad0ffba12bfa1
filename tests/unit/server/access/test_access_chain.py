"""The coordinator's access log: a chain that one can check, and that everybody writes to."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import multiprocessing
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.base.errors import CoordinatorError
from penstock.cli.main import app
from penstock.wire.canonical import canonical
from penstock.wire.signatures import generate_key, private_to_pem, sign
from penstock_server.access.access_chain import (
    FORMAT,
    AccessLog,
    Visitor,
    name_local_visitor,
    verify_chain,
)
from penstock_server.install.founding import make_coordinator
from penstock_server.store.database import sqlite_url
from penstock_server.store.store import Store

ADA = Visitor("ada", "192.0.2.1")
SITE = {"federation": "main", "persons": 10}
SCRIPT = Path(__file__).parents[4] / "deploy" / "verify_ledger.py"


class Clock:
    def __init__(self):
        self.second = 0

    def __call__(self):
        self.second += 1
        return f"2026-11-21T00:00:{self.second:02d}.000000Z"


@pytest.fixture
def store(tmp_path):
    made = Store.create(sqlite_url(tmp_path))
    yield made
    made.close()


@pytest.fixture
def chain(store, tmp_path):
    return AccessLog(store, tmp_path / "access.key", Clock())


@pytest.fixture
def written(chain):
    for what in ("report.json", "pooled.csv"):
        chain.write("read", study="5" * 64, what=what, copies="one", **ADA.fields)
    return chain


def test_a_chain_opens_goes_on_and_verifies(written, tmp_path):
    records = verify_chain(written.rows())
    assert [(r["seq"], r["kind"]) for r in records] == [(1, "open"), (2, "read"), (3, "read")]
    assert records[1]["by"] == "ada"
    assert records[1]["origin"] == "192.0.2.1"
    assert [r["prev"] for r in records[1:]] == [h for _, h, _ in written.rows()[:2]]
    assert stat.S_IMODE((tmp_path / "access.key").stat().st_mode) == 0o600
    assert not list(tmp_path.glob(".access.key*"))


def test_an_empty_chain_is_whole(chain):
    assert verify_chain(chain.rows()) == []
    assert chain.export()["records"] == []
    chain.check_key()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE access SET body = replace(body, 'pooled', 'papers') WHERE seq = 3", "text was"),
        ("DELETE FROM access WHERE seq = 2", "record 2: it does not follow"),
        ("DELETE FROM access WHERE seq = 1", "record 1: it does not follow"),
        ("UPDATE access SET signature = (SELECT signature FROM access WHERE seq = 2)", "signature"),
        ("UPDATE access SET body = 'x', hash = '' WHERE seq = 2", "record 2: it cannot be read"),
    ],
)
def test_what_was_changed_is_found(written, tmp_path, change, said):
    with sqlite3.connect(tmp_path / "coordinator.db") as database:
        database.execute(change)
    with pytest.raises(CoordinatorError, match=said):
        verify_chain(written.rows())


def test_a_record_by_another_key_is_found(written):
    body, _, _ = written.rows()[2]
    record = {**json.loads(body), "by": "eve"}
    hash_ = hashlib.sha256(canonical(record)).hexdigest()
    forged = (
        canonical(record).decode(),
        hash_,
        sign(generate_key(), "access-record", hash_.encode()),
    )
    with pytest.raises(CoordinatorError, match="record 3: its signature is not"):
        verify_chain([*written.rows()[:2], forged])


def test_its_time_never_runs_backwards(written, store, tmp_path):
    early = AccessLog(store, tmp_path / "access.key", lambda: "2020-01-01T00:00:00.000000Z")
    early.write("cancel", study="5" * 64, **ADA.fields)
    records = verify_chain(early.rows())
    assert records[3]["time"] == records[2]["time"]


def test_a_record_is_written_with_its_change_or_not_at_all(chain, store):
    def fail(c):
        chain.append(c, "cancel", study="5" * 64, **ADA.fields)
        raise CoordinatorError("the change")

    with pytest.raises(CoordinatorError, match="the change"):
        store.sites.add({"site": "a", "gate_key": ""} | SITE, "", fail)
    assert chain.rows() == []
    chain.write("cancel", study="5" * 64, **ADA.fields)
    assert len(verify_chain(chain.rows())) == 2


def write_many(folder, name):
    store = Store(sqlite_url(folder))
    chain = AccessLog(store, folder / "access.key", lambda: "2026-11-21T00:00:00.000000Z")
    for number in range(20):
        chain.write("cancel", study=f"{name}{number}", **ADA.fields)
    store.close()


def test_processes_write_one_chain(chain, tmp_path):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_many, args=(tmp_path, n)) for n in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    records = verify_chain(chain.rows())
    assert len(records) == 61
    assert len({r["study"] for r in records[1:]}) == 60


def test_without_its_key_nothing_is_written(written, tmp_path):
    key = tmp_path / "access.key"
    for trouble, words in ((key.unlink, "is gone"), (lambda: other(key), "another key")):
        trouble()
        with pytest.raises(CoordinatorError, match=words) as error:
            written.write("cancel", study="5" * 64, **ADA.fields)
        assert "--new-key" in error.value.remedy
        with pytest.raises(CoordinatorError, match=words):
            written.check_key()
    assert len(verify_chain(written.rows())) == 3


def other(path):
    path.write_bytes(private_to_pem(generate_key()))


def test_a_lost_key_is_replaced_in_the_open(written, tmp_path):
    with pytest.raises(CoordinatorError, match="there is a key"):
        written.renew_key()
    before = (tmp_path / "access.key").rename(tmp_path / "old.key")
    public = written.renew_key()
    written.write("cancel", study="5" * 64, **ADA.fields)
    records = verify_chain(written.rows())
    assert [r["kind"] for r in records[2:]] == ["read", "key", "cancel"]
    assert records[3]["key"] == public
    before.rename(tmp_path / "access.key")
    with pytest.raises(CoordinatorError, match="another key"):
        written.write("cancel", study="5" * 64, **ADA.fields)


def test_an_auditor_verifies_the_export_without_penstock(written):
    """The export has the ledger's shape: the auditor's script checks its hashes and signatures."""
    spec = importlib.util.spec_from_file_location("verify_ledger", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    document = json.loads(json.dumps(written.export()))
    assert document["format"] == FORMAT == "penstock-access-1"
    key, head = bytes.fromhex(document["coordinator_key"]), script.GENESIS
    for seq, entry in enumerate(document["records"], start=1):
        record = script.read_body(entry["body"])  # refuses what is not canonical
        assert (record["seq"], record["prev"]) == (seq, head)
        head = script.hashlib.sha256(entry["body"].encode()).hexdigest()
        assert head == entry["hash"]
        message = b"penstock:13:access-record:" + head.encode()
        assert script.signed(key, message, bytes.fromhex(entry["signature"]))
    assert json.loads(document["records"][0]["body"])["key"] == document["coordinator_key"]


def test_whoever_is_here_is_named_by_the_system_and_not_by_the_environment():
    code = (
        "from penstock_server.access.access_chain import name_local_visitor\n"
        "print(name_local_visitor().origin)"
    )
    made = {"LOGNAME": "mallory", "USER": "mallory", "PYTHONPATH": ":".join(sys.path)}
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=made
    )
    assert said.stdout.strip() == name_local_visitor().origin
    assert "mallory" not in said.stdout


# -- by command --------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "c"
    make_coordinator(made)
    return made


def run(folder, *args, code=0):
    result = CliRunner().invoke(app, ["server", *map(str, args), "-d", str(folder)])
    assert result.exit_code == code, result.output
    return result.output


def test_the_log_is_shown_verified_and_exported(folder, tmp_path):
    assert "nothing yet" in run(folder, "access")
    run(folder, "token", "add", "ada")
    run(folder, "token", "revoke", "ada")
    shown = run(folder, "access")
    assert "token-add" in shown
    assert "admin" in shown
    assert "3 records, chain and signatures whole" in shown
    assert "token-add" not in run(folder, "access", "--last", "1")
    told = json.loads(run(folder, "access", "--json"))
    assert [r["kind"] for r in told["records"]] == ["open", "token-add", "token-revoke"]
    out = tmp_path / "access.json"
    run(folder, "access", "--export", out)
    assert json.loads(out.read_text())["records"][-1]["hash"] == told["head"]
    run(folder, "access", "--export", out, code=1)  # never overwritten
    with sqlite3.connect(folder / "coordinator.db") as database:
        database.execute("UPDATE access SET body = replace(body, 'ada', 'eve') WHERE seq = 2")
    assert "record 2: its text was changed" in run(folder, "access", code=9)


def test_a_lost_key_is_replaced_by_command(folder):
    run(folder, "token", "add", "ada")
    (folder / "access.key").unlink()
    assert "--new-key" in run(folder, "token", "revoke", "ada", code=9)
    assert "from now on" in run(folder, "access", "--new-key")
    run(folder, "token", "revoke", "ada")
    kinds = [r["kind"] for r in json.loads(run(folder, "access", "--json"))["records"]]
    assert kinds == ["open", "token-add", "key", "token-revoke"]
