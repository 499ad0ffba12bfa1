"""Bearer tokens: what is stored, what opens, and the commands that make them."""

from __future__ import annotations

import hashlib
import json
import sqlite3

import pytest
from typer.testing import CliRunner

from penstock.base.errors import CoordinatorError, InvalidInput
from penstock_server.access.access_chain import AccessLog
from penstock_server.access.tokens import TOKEN, Role, Token, Tokens
from penstock_server.cli.tokens import token_app
from penstock_server.install.founding import make_coordinator
from penstock_server.store.database import sqlite_url
from penstock_server.store.store import Store

EARLY, NOON, LATE = (f"2026-11-21T{hour}:00:00.000000Z" for hour in ("08", "12", "18"))


@pytest.fixture
def store(tmp_path):
    made = Store.create(sqlite_url(tmp_path))
    yield made
    made.close()


@pytest.fixture
def tokens(store, tmp_path):
    return Tokens(store, AccessLog(store, tmp_path / "access.key", lambda: NOON))


def test_a_token_opens_until_it_expires(tokens):
    secret = tokens.add("ada", Role.ANALYST, EARLY, NOON)
    assert TOKEN.fullmatch(secret)
    assert tokens.find(secret, EARLY) == Token("ada", Role.ANALYST, EARLY, NOON)
    assert tokens.find(secret, NOON) is None


def test_a_revoked_token_opens_nothing(tokens):
    secret = tokens.add("ada", Role.ADMIN, EARLY, LATE)
    tokens.revoke("ada", NOON)
    assert tokens.find(secret, NOON) is None
    assert [t.revoked for t in tokens.list()] == [NOON]
    with pytest.raises(CoordinatorError, match="no such token"):
        tokens.revoke("ada", NOON)


def test_only_the_very_token_opens(tokens):
    secret = tokens.add("ada", Role.ADMIN, EARLY, LATE)
    other = tokens.add("bob", Role.ANALYST, EARLY, LATE)
    assert secret != other
    assert tokens.find(other, NOON).name == "bob"
    for wrong in ("", secret[:-1], secret + "x", secret.swapcase(), "ada"):
        assert tokens.find(wrong, NOON) is None
    assert tokens.find(hashlib.sha256(secret.encode()).hexdigest(), NOON) is None


def test_the_store_holds_no_token(tokens, tmp_path):
    secret = tokens.add("ada", Role.ADMIN, EARLY, LATE)
    with sqlite3.connect(tmp_path / "coordinator.db") as database:
        dump = "\n".join(database.iterdump())
    assert hashlib.sha256(secret.encode()).hexdigest() in dump
    assert secret not in dump
    assert secret.removeprefix("pst_") not in dump
    assert secret not in repr(tokens.list())


def test_a_name_stands_for_one_good_token_at_a_time(tokens):
    first = tokens.add("ada", Role.ANALYST, EARLY, LATE)
    with pytest.raises(CoordinatorError, match="token revoke ada"):
        tokens.add("ada", Role.ADMIN, NOON, LATE)
    tokens.revoke("ada", NOON)
    second = tokens.add("ada", Role.ADMIN, NOON, LATE)
    assert tokens.find(first, NOON) is None
    assert tokens.find(second, NOON).role is Role.ADMIN
    assert len(tokens.list()) == 2


@pytest.mark.parametrize("name", ["", "a b", "-x", "../x", "a" * 65, "x\n"])
def test_a_name_is_a_name(tokens, name):
    with pytest.raises(InvalidInput, match="is not well formed"):
        tokens.add(name, Role.ANALYST, EARLY, LATE)
    assert tokens.list() == []


def test_a_store_from_before_there_were_tokens_gets_the_table(store, tmp_path):
    with sqlite3.connect(tmp_path / "coordinator.db") as database:
        database.execute("DROP TABLE token")
    access = AccessLog(store, tmp_path / "access.key", lambda: NOON)
    secret = Tokens(store, access).add("ada", Role.ANALYST, EARLY, LATE)
    assert Tokens(store, access).find(secret, NOON).name == "ada"


# -- by command --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("c", numbered=False) / "c"
    make_coordinator(made)
    return made


def run(folder, *args, code=0):
    result = CliRunner().invoke(token_app, [*args, "-d", str(folder)])
    assert result.exit_code == code, result.output
    return result.output


def test_a_token_is_shown_once(folder):
    said = run(folder, "add", "ada", "--days", "30")
    secret = next(line for line in said.splitlines() if TOKEN.fullmatch(line))
    listed = run(folder, "list") + run(folder, "list", "--json")
    assert "ada" in listed
    assert "good" in listed
    assert secret not in listed
    assert "opens nothing" in run(folder, "revoke", "ada")
    assert "revoked" in run(folder, "list")


def test_an_admins_token_as_json(folder):
    made = json.loads(run(folder, "add", "root", "--role", "admin", "--json"))
    assert made["role"] == "admin"
    assert TOKEN.fullmatch(made["token"])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("add", "x", "--days", "0"), "from 1 to 3650"),
        (("add", "x", "--days", "4000"), "from 1 to 3650"),
        (("add", "x", "--role", "king"), "king"),
        (("add", "a b"), "is not well formed"),
    ],
)
def test_mistakes_are_said(folder, args, words):
    assert words in run(folder, *args, code=2)


def test_revoking_nobody(folder):
    assert "token list" in run(folder, "revoke", "nobody", code=9)
