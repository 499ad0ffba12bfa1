"""Who may do and read what at the coordinator, and that it leaves a trace: over the API itself."""

from __future__ import annotations

import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.test_api import (
    ANALYST,
    STRANGER,
    STUDY,
    allow,
    join,
    running_api,
    signed,
)
from typer.testing import CliRunner

import penstock
from penstock.base.errors import CoordinatorError, NotAllowed
from penstock.base.times import stamp_now
from penstock.cli.main import app as commands
from penstock.study.toml import write_study
from penstock.wire.signatures import fingerprint, generate_key, private_to_pem, public_hex
from penstock.wire.signed import sign_cancel, sign_study
from penstock_server.access.access_chain import Visitor, verify_chain
from penstock_server.access.tokens import Role, Tokens
from penstock_server.api.directory import Directory
from penstock_server.install.configuration import read_settings
from penstock_server.install.enrolment import enrol_site
from penstock_server.install.founding import make_coordinator, open_coordinator
from penstock_server.operate import server_doctor
from penstock_server.store.migration import SCHEMA_VERSION, upgrade_format

BOB, EVE = generate_key(), generate_key()
OLD_STORE = Path(__file__).parents[1] / "golden" / "data" / "coordinator-2.sql"


@pytest.fixture(scope="module")
def hub():
    """A coordinator with its usual limits, and two analysts: ada, whose key is ANALYST, and bob."""
    with running_api() as made:
        made.bob = made.token("bob", Role.ANALYST)
        made.tokens.add_key("bob", public_hex(BOB), stamp_now())
        yield made


def records(hub, *kinds):
    found = verify_chain(hub.coordinator.access.rows())
    return [r for r in found if r["kind"] in kinds]


def penstock_command(*args, code=0, stdin=""):
    result = CliRunner().invoke(commands, [str(a) for a in args], input=stdin)
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


# -- wrong tokens ------------------------------------------------------------------------------


TRIES = 250


def test_many_wrong_tokens_are_noticed(hub):
    """A thousand were tried once, and nobody saw them."""
    with hub.client() as client:
        answers = []
        for number in range(TRIES):
            headers = {"Authorization": f"Bearer pst_{number:043d}"}
            answers.append(client.get("/api/v1/me", headers=headers))
    assert {a.status_code for a in answers[:20]} == {401}
    limited = [a for a in answers if a.status_code == 429]
    assert len(limited) > TRIES - 50
    assert all(int(a.headers["retry-after"]) >= 1 for a in limited)
    assert {a.json()["code"] for a in answers} == {"not-allowed"}
    with hub.remote() as ada:  # from the same address, while it is told to wait
        assert ada.me()["name"] == "ada"
    with hub.remote(f"pst_{'x' * 43}") as mistaken:
        with pytest.raises(NotAllowed, match="too many that are none came from this address"):
            mistaken.me()
    hub.stop()
    hub.start()
    told = records(hub, "wrong-tokens")
    assert sum(r["count"] for r in told) == TRIES + 1
    assert len(told) <= 3  # a minute's tries are one record
    assert {a["address"] for r in told for a in r["addresses"]} == {"127.0.0.1"}
    row = next(r for r in server_doctor.check_coordinator(hub.root) if r.check == "tokens")
    assert (row.state, row.found) == ("warn", f"{TRIES + 1} wrong tokens in the last 7 days")
    listed = penstock_command("server", "token", "list", "-d", hub.root)
    assert f"wrong tokens in the last 7 days: {TRIES + 1}" in listed
    assert "wrong tokens, from 1 addresses" in hub.log.read_text()
    assert "pst_" not in hub.log.read_text()


def test_a_revoked_token_that_is_tried_again_names_its_account(hub):
    token = hub.token("gone", Role.ANALYST)
    hub.tokens.revoke("gone", stamp_now())
    with hub.client(token) as client:
        answer = client.get("/api/v1/me")
    assert answer.status_code in (401, 429)  # as for a token that never was
    assert "gone" not in answer.text
    hub.stop()
    hub.start()
    assert records(hub, "wrong-tokens")[-1]["ended"] == [{"account": "gone", "count": 1}]


def test_no_token_at_all_is_no_wrong_one(hub):
    before = sum(r["count"] for r in records(hub, "wrong-tokens"))
    with hub.client() as client:
        assert {client.get("/api/v1/me").status_code for _ in range(50)} == {401}
    hub.stop()
    hub.start()
    assert sum(r["count"] for r in records(hub, "wrong-tokens")) == before


# -- whose key signs ---------------------------------------------------------------------------


def test_study_signed_with_a_strangers_key_is_refused(hub):
    study = replace(STUDY, name="strange")
    for key in (STRANGER, BOB):  # nobody's, and another account's: the answer tells them not apart
        with hub.remote() as ada, pytest.raises(NotAllowed) as error:
            ada.submit(sign_study(study, key).to_bytes())
        assert error.value.exit_code == 12
        assert error.value.value == fingerprint(public_hex(key))
        assert "penstock server token key add ada" in error.value.remedy
        assert "another account" not in str(error.value)
    assert "strange" not in {r.name for r in hub.store.studies.all()}
    with hub.remote() as ada:
        study_id = ada.submit(sign_study(study, ANALYST).to_bytes())
    (record,) = [r for r in records(hub, "submit") if r["study"] == study_id]
    assert (record["by"], record["origin"], record["name"]) == ("ada", "127.0.0.1", "strange")
    assert record["signer"] == public_hex(ANALYST)


def test_an_account_without_a_key_hands_nothing_in(hub):
    with hub.remote(hub.token("carol", Role.ANALYST)) as carol:
        assert carol.me()["keys"] == []
        with pytest.raises(NotAllowed, match="carol: no key yet"):
            carol.submit(sign_study(replace(STUDY, name="carols"), EVE).to_bytes())


def test_a_key_that_was_taken_away_signs_nothing_more(hub):
    eve = hub.token("eve", Role.ANALYST)
    hub.tokens.add_key("eve", public_hex(EVE), stamp_now())
    study = sign_study(replace(STUDY, name="eves"), EVE)
    with hub.remote(eve) as remote:
        remote.submit(study.to_bytes())
        hub.tokens.remove_key("eve", public_hex(EVE))
        with pytest.raises(NotAllowed, match="not bound to your account"):
            remote.submit(study.to_bytes())
        with pytest.raises(NotAllowed, match="not bound to your account"):
            remote.cancel(sign_cancel(study.study_id, EVE).to_bytes())
        assert remote.status("eves")["state"] == "open"
        hub.tokens.add_key("eve", public_hex(EVE), stamp_now())
        remote.cancel(sign_cancel(study.study_id, EVE).to_bytes())
    assert [r["by"] for r in records(hub, "cancel") if r["study"] == study.study_id] == ["eve"]


def test_not_even_an_admin_signs_for_others(hub):
    with hub.remote(hub.admin) as admin, pytest.raises(NotAllowed, match="root: no key yet"):
        admin.submit(signed("by-root").to_bytes())


# -- who reads ---------------------------------------------------------------------------------


def test_any_analyst_read_every_study(hub):
    study_id = hub.finished("private")
    parts = ("", "/files", "/files/report.json", "/files/pooled.csv", "/uploads/a")
    wish = sign_cancel(study_id, BOB).to_bytes()
    with hub.client(hub.bob) as bob:
        for name in (study_id, study_id[:12], "private"):
            for part in parts:
                answer = bob.get(f"/api/v1/studies/{name}{part}")
                nothing = bob.get(f"/api/v1/studies/nothing{part}")
                assert answer.status_code == nothing.status_code == 404
                assert answer.json() == {**nothing.json(), "value": name}
            assert bob.post(f"/api/v1/studies/{name}/cancel", content=wish).status_code == 404
        assert study_id not in bob.get("/api/v1/studies").text
    for token in (hub.analyst, hub.admin):
        with hub.client(token) as client:
            for part in parts:
                assert client.get(f"/api/v1/studies/private{part}").status_code == 200
            assert study_id in client.get("/api/v1/studies").text
    assert "bob" not in {r["by"] for r in records(hub, "read")}


def test_a_study_names_who_else_reads_it(hub, tmp_path):
    study = signed("shared", readers=("bob",))
    with hub.remote() as ada:
        ada.submit(study.to_bytes())
    with hub.remote(hub.bob) as bob:
        found = bob.status("shared")
        assert (found["owner"], found["readers"]) == ("ada", ["bob"])
        assert "shared" in {s["name"] for s in bob.studies()}
        with pytest.raises(NotAllowed, match="not bound to your account"):
            bob.cancel(sign_cancel(study.study_id, ANALYST).to_bytes())
        with pytest.raises(CoordinatorError, match="only a study's own signer"):
            bob.cancel(sign_cancel(study.study_id, BOB).to_bytes())
    with hub.remote(hub.token("dora", Role.ANALYST)) as dora:
        with pytest.raises(CoordinatorError, match="no such study"):
            dora.status("shared")


def test_readers_have_accounts(hub):
    with hub.remote() as ada, pytest.raises(CoordinatorError) as error:
        ada.submit(signed("typo", readers=("bob", "bobb")).to_bytes())
    assert error.value.value == "bobb"
    assert "typo" not in {r.name for r in hub.store.studies.all()}


def test_others_studies_stand_in_nobodys_way(hub):
    """A name is looked up among what one may read: not even 'several of that name' tells."""
    ours = signed("namesake")
    theirs = sign_study(replace(STUDY, name="namesake"), BOB)
    for token, study in ((hub.analyst, ours), (hub.bob, theirs)):
        with hub.remote(token) as remote:
            remote.submit(study.to_bytes())
            assert remote.status("namesake")["study"] == study.study_id
    with hub.remote(hub.admin) as admin:
        with pytest.raises(CoordinatorError, match="several studies of that name"):
            admin.status("namesake")


# -- reads leave a trace -----------------------------------------------------------------------


def test_reading_results_leaves_a_trace(hub, tmp_path):
    study_id = hub.finished("traced")
    with hub.remote() as ada:
        ada.pull("traced", tmp_path / "once", copies="one")
        ada.pull("traced", tmp_path / "again", copies="one")  # one read, within ten minutes
        ada.pull("traced", tmp_path / "all", copies="all")
    with hub.client(hub.admin) as root:
        root.get("/api/v1/studies/traced/uploads/a")
        root.get("/api/v1/studies/traced/files/report.json", headers={"Range": "bytes=0-9"})
    Directory(str(hub.root)).pull("traced", tmp_path / "here", copies="one")
    found = [r for r in records(hub, "read") if r["study"] == study_id]
    by = {who: {(r["what"], r["copies"]) for r in found if r["by"] == who} for who in ("ada", "")}
    names = {f.name for f in (tmp_path / "once").iterdir()}
    assert {"report.html", "report.json", "dictionary.json", "pooled.csv"} <= names
    assert by["ada"] == {(name, copies) for name in names for copies in ("one", "all")}
    assert by[""] == {("*", "one")}
    assert [r["what"] for r in found if r["by"] == "root"] == ["uploads/a", "report.json"]
    assert len(found) == 2 * len(names) + 3
    assert {r["origin"] for r in found if r["by"]} == {"127.0.0.1"}


def test_what_cannot_be_recorded_is_not_shown(hub, tmp_path):
    hub.finished("unseen")
    key = hub.root / "access.key"
    away = key.rename(tmp_path / "access.key")
    try:
        with hub.client(hub.analyst) as ada:
            for part in ("files/report.json", "uploads/a"):
                answer = ada.get(f"/api/v1/studies/unseen/{part}")
                assert answer.status_code == 503
                assert "cannot be recorded" in answer.json()["message"]
                assert str(hub.root) not in answer.text
            assert ada.get("/api/v1/studies/unseen").status_code == 200  # no result
        with hub.remote() as remote, pytest.raises(CoordinatorError, match="key is gone"):
            remote.submit(signed("unrecorded").to_bytes())
        with hub.client(hub.analyst) as ada:
            data = signed("unrecorded").to_bytes()
            assert ada.post("/api/v1/studies", content=data).status_code == 503
        assert "unrecorded" not in {r.name for r in hub.store.studies.all()}
        row = next(r for r in server_doctor.check_coordinator(hub.root) if r.check == "access")
        assert (row.state, "key is gone" in row.found) == ("fail", True)
    finally:
        shutil.move(away, key)
    with hub.client(hub.analyst) as ada:
        assert ada.get("/api/v1/studies/unseen/files/report.json").status_code == 200


# -- quotas ------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path):
    make_coordinator(tmp_path / "c")
    allow(tmp_path / "c", open_studies_each=2, open_studies=3)
    coordinator = open_coordinator(tmp_path / "c")
    for name in ("a", "b"):
        enrol_site(coordinator, join(name))
    yield coordinator
    coordinator.store.close()


def test_open_studies_are_limited(small):
    ada, bob = Visitor("ada", "192.0.2.1"), Visitor("bob", "192.0.2.2")
    ids = [small.submit(signed(f"s{i}"), ada) for i in range(2)]
    before = len(small.store.mailbox.due("9")), len(small.access.rows())
    with pytest.raises(CoordinatorError, match=r"of this account are open \(got 2; at most 2\)"):
        small.submit(signed("s2"), ada)
    assert small.submit(signed("s1"), ada) == ids[1]  # the same again is none more
    small.submit(sign_study(replace(STUDY, name="t"), BOB), bob)
    for by in (bob, None):
        with pytest.raises(CoordinatorError, match="too many studies are open at this coordinator"):
            small.submit(sign_study(replace(STUDY, name="u"), BOB), by)
    assert len(small.store.studies.all()) == 3
    assert len(small.store.mailbox.due("9")) == before[0] + 2
    assert len(small.access.rows()) == before[1] + 1
    small.cancel(sign_cancel(ids[0], ANALYST), ada)
    small.submit(signed("s2"), ada)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "20"])
def test_a_limit_is_a_whole_number_above_0(tmp_path, limit):
    make_coordinator(tmp_path / "c")
    allow(tmp_path / "c", open_studies=limit)
    with pytest.raises(CoordinatorError, match=r"coordinator\.json cannot be read"):
        read_settings(tmp_path / "c")


# -- a store of the version before -------------------------------------------------------------


@pytest.fixture
def old(tmp_path):
    """A coordinator's directory whose store version 0.1.0 wrote."""
    root = tmp_path / "c"
    make_coordinator(root)
    for file in root.glob("coordinator.db*"):
        file.unlink()
    with sqlite3.connect(root / "coordinator.db") as database:
        database.executescript(OLD_STORE.read_text())
    return root


def test_a_coordinator_of_the_version_before_opens_and_goes_on(old):
    found = next(r for r in server_doctor.check_coordinator(old) if r.check == "store")
    assert found.state == "fail"  # a doctor changes nothing
    assert "brings it up to date" in found.remedy
    coordinator = open_coordinator(old)
    store, (row,) = coordinator.store, coordinator.store.studies.all()
    assert store.values.get("schema") == SCHEMA_VERSION
    key = "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"
    assert (row.owner, row.signer, row.name) == ("", key, "trial")
    assert coordinator.status("trial")["study"] == row.id
    tokens = Tokens(store, coordinator.access)
    assert tokens.find(f"pst_{'A' * 43}", stamp_now()).name == "ada"
    # A study without an owner is an admin's to read, until its signer's key is bound.
    assert store.studies.readable_by("ada") == []
    row_of = {r.check: r for r in server_doctor.check_coordinator(old)}
    assert row_of["accounts"].state == "warn"
    assert "ada" in row_of["accounts"].found
    tokens.add_key("ada", key, stamp_now())
    assert [r.id for r in store.studies.readable_by("ada")] == [row.id]
    assert store.studies.readable_by("bob") == []
    assert coordinator.submit(row.signed) == row.id
    store.close()
    open_coordinator(old).store.close()


def test_two_processes_may_open_an_old_store_at_once(old):
    first, second = (open_coordinator(old) for _ in range(2))
    for coordinator in (first, second):
        upgrade_format(coordinator.store.database)
        assert len(coordinator.store.studies.all()) == 1
        coordinator.store.close()


# -- by command --------------------------------------------------------------------------------


def test_keys_are_bound_and_taken_away_by_command(tmp_path):
    root, key, public = tmp_path / "c", tmp_path / "ada.key", tmp_path / "ada.pub"
    make_coordinator(root)
    penstock_command("key", "new", key)
    at = ("-d", root)
    said = penstock_command("server", "token", "add", "ada", *at)
    assert "penstock server token key add ada" in said
    shown = fingerprint(public.read_text().strip())
    assert shown in penstock_command("server", "token", "key", "add", "ada", public, *at)
    penstock_command("server", "token", "key", "add", "ada", public, *at)  # changes nothing
    listed = json.loads(penstock_command("server", "token", "list", "--json", *at))
    assert listed[0]["keys"] == [shown]
    said = penstock_command("server", "token", "add", "bob", "--key", public, *at, code=9)
    assert "bound to another account (got ada)" in said
    assert len(json.loads(penstock_command("server", "token", "list", "--json", *at))) == 1
    said = penstock_command("server", "token", "key", "add", "ada", key, *at, code=5)
    assert "this is a private key" in said
    penstock_command("server", "token", "key", "add", "nobody", public, *at, code=9)
    penstock_command("server", "token", "key", "remove", "ada", public, *at)
    penstock_command("server", "token", "key", "remove", "ada", public, *at, code=9)
    made = penstock_command("server", "token", "add", "bob", "--key", public, "--json", *at)
    assert json.loads(made)["keys"] == [shown]
    told = json.loads(penstock_command("server", "access", "--json", *at))["records"]
    kinds = ["open", "token-add", "key-add", "key-remove", "token-add", "key-add"]
    assert [r["kind"] for r in told] == kinds
    assert all("user " in r["origin"] for r in told[1:])


def test_an_account_keeps_its_keys_and_studies_when_its_token_is_renewed(hub):
    first = hub.token("frida", Role.ANALYST)
    key = generate_key()
    hub.tokens.add_key("frida", public_hex(key), stamp_now())
    study = sign_study(replace(STUDY, name="fridas"), key)
    with hub.remote(first) as remote:
        remote.submit(study.to_bytes())
    hub.tokens.revoke("frida", stamp_now())
    with hub.remote(hub.token("frida", Role.ANALYST)) as remote:
        assert remote.status("fridas")["study"] == study.study_id
        remote.cancel(sign_cancel(study.study_id, key).to_bytes())


def test_the_command_says_what_to_do_about_a_strangers_key(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CONFIG", str(tmp_path / "config"))
    for name in ("PENSTOCK_COORDINATOR", "PENSTOCK_TOKEN", "PENSTOCK_CA"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "ca.crt").write_text(hub.ca)
    penstock_command("login", hub.url, "--ca", tmp_path / "ca.crt", stdin=hub.bob + "\n")
    key = tmp_path / "eve.key"
    key.write_bytes(private_to_pem(STRANGER))
    key.chmod(0o600)
    (tmp_path / "s.toml").write_text(write_study(replace(STUDY, name="commanded")))
    said = penstock_command(
        "study", "submit", tmp_path / "s.toml", "-k", key, "--no-estimands", code=12
    )
    assert "signed with a key that is not bound to your account" in said
    assert "send the .pub file of this one" in said
    assert "token key add bob KEY.pub" in said
    with penstock.Client() as client, pytest.raises(NotAllowed):
        client.submit(replace(STUDY, name="commanded"), STRANGER, no_estimands=True)
