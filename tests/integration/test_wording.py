"""What commands said, or left unsaid, when they were first used in earnest."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.test_cli import DICTIONARY, penstock, replace, site, spoilt

from penstock.base.errors import PenstockError
from penstock.cli.exits import EXITS
from penstock.schema import HOW_SUGGESTED, Column, Schema
from penstock.study.toml import parse_study, write_dictionary
from penstock.wire.messages import explain
from penstock_client.site.policy import read_policy
from penstock_client.site.site_paths import SitePaths

DOCS = Path(__file__).parents[2] / "docs"

ESTIMAND = """
[[estimands]]
name = "effect"
model = "ols"
outcome = "score"
term = "sbp"
"""


@pytest.fixture
def home() -> Iterator[Path]:
    # Not pytest's own folder: Unix socket paths end at 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="pk-"))
    yield root
    shutil.rmtree(root)


def draft(home: Path, *more: object, dictionary: str = DICTIONARY, code: int = 0) -> Path:
    (home / "dictionary.toml").write_text(dictionary)
    out = home / "s.toml"
    given = ("--name", "s1", "--site", "a", "--out", out)
    penstock("study", "new", home / "dictionary.toml", *given, *more, code=code)
    return out


# -- studies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["check", "submit"])
def test_a_study_without_estimands_passed(home, command):
    study, key = draft(home), home / "ann.key"
    penstock("key", "new", key)
    more = ("--key", key, "-c", home / "co") if command == "submit" else ()
    said = penstock("study", command, study, *more, code=2)
    assert "the report would answer nothing. Add [[estimands]]; or give --no-estimands" in said.err
    # Whoever wants the tables alone says so, and gets past it.
    penstock("study", "check", "--no-estimands", study)
    study.write_text(study.read_text() + ESTIMAND)
    penstock("study", "check", study)


def test_a_bad_file_checked_as_json_printed_none(home):
    study = draft(home)
    study.write_text(study.read_text() + ESTIMAND)
    replace(study, "epsilon = 1", "epsilon = -1")
    replace(study, 'outcome = "score"', 'outcome = "scor"')
    said = penstock("study", "check", "--json", study, code=2)
    error = json.loads(said.out)["error"]
    assert (error["code"], error["exit_code"], error["what"]) == ("invalid-input", 2, str(study))
    where = {p["where"]: p["line"] for p in error["problems"]}
    lines = study.read_text().splitlines()
    assert lines[where["privacy.epsilon"] - 1].startswith("epsilon = -1")
    assert "estimands[1].outcome" in where
    assert said.err.startswith("error:")  # people read it there, as before
    missing = penstock("study", "check", "--json", home / "no.toml", code=2)
    assert "No such file" in json.loads(missing.out)["error"]["problems"][0]["message"]


def test_a_file_that_is_no_sites_own_is_told_from_one(home):
    study = draft(home)
    said = penstock(
        "study", "check", "--no-estimands", study, "--join", home / "dictionary.toml", code=2
    )
    assert "dictionary.toml: 1 problem" in said.err
    assert "Give a site's join.json" in said.err


NODES = '[columns.nodes]\nkind = "integer"\nlower = 0\nupper = 60\n'
ADVICE = 'nodes: consider scale = "log", spike = 0 (a count from 0 to 60)'


def test_a_draft_and_a_script_were_told_nothing_of_how_a_column_is_best_modelled(home):
    study = draft(home, dictionary=DICTIONARY + "\n" + NODES)
    text = study.read_text()
    assert f"{NODES}# {ADVICE}\n" in text
    assert text.count("consider") == 1
    assert text.count(HOW_SUGGESTED) == 1
    study.write_text(text + ESTIMAND)
    said = penstock("study", "check", study).err
    assert ADVICE in said
    assert HOW_SUGGESTED in said
    (found,) = json.loads(penstock("study", "check", "--json", study).out)["suggestions"]
    why = "a count from 0 to 60"
    assert found == {"column": "nodes", "keys": {"scale": "log", "spike": 0}, "why": why}
    # Whoever follows it, or says no, hears no more of it.
    for answer in ('scale = "log"\nspike = 0\n', 'scale = "linear"\n'):
        study.write_text(text.replace(f"# {ADVICE}\n", answer) + ESTIMAND)
        assert json.loads(penstock("study", "check", "--json", study).out)["suggestions"] == []
    study.unlink()
    assert HOW_SUGGESTED not in draft(home).read_text()


VISITS = Schema(
    (
        Column("age", "integer", lower=18, upper=100),
        Column("visit", "integer", lower=0, upper=5),
        Column("sbp", "continuous", lower=70, upper=250),
    )
)


def test_age_was_taken_for_the_time_of_a_visit_in_silence(home):
    aged = Schema((VISITS["age"], VISITS["sbp"]))
    given = ("--name", "s1", "--site", "a", "--out", home / "s.toml", "--mechanism", "trajectory")
    (home / "dictionary.toml").write_text(write_dictionary(aged))
    said = penstock("study", "new", home / "dictionary.toml", *given, code=2)
    assert "no column says by its name when a row was taken. Give --time, one of age" in said.err
    assert not (home / "s.toml").exists()
    # A column that is called like a time is taken, and that is said.
    (home / "dictionary.toml").write_text(write_dictionary(VISITS))
    said = penstock("study", "new", home / "dictionary.toml", *given)
    assert "time = visit: taken by its name; --time names another column" in said.out
    assert parse_study((home / "s.toml").read_text()).mechanism.time == "visit"


def test_two_columns_called_like_a_time_are_asked_about(home):
    columns = (*VISITS.columns, Column("month", "integer", lower=0, upper=24))
    given = ("--name", "s1", "--site", "a", "--out", home / "s.toml", "--mechanism", "trajectory")
    (home / "dictionary.toml").write_text(write_dictionary(Schema(columns)))
    said = penstock("study", "new", home / "dictionary.toml", *given, code=2)
    assert "visit or month?" in said.err


def test_the_deadline_was_shorter_than_a_stewards_week(home):
    study = parse_study(draft(home).read_text())
    assert study.deadline_hours == 14 * 24
    shutil.rmtree(home / "s.toml", ignore_errors=True)
    (home / "s.toml").unlink()
    study = parse_study(draft(home, "--deadline-days", "40").read_text())
    assert study.deadline_hours == 40 * 24
    assert study.expires[:10] > study.not_before[:10]
    (home / "s.toml").unlink()
    draft(home, "--deadline-days", "nan", code=2)
    draft(home, "--deadline-days", "0", code=2)


# -- sites -------------------------------------------------------------------------------------


def test_missing_values_alone_never_let_a_check_pass(home):
    """Twice exit 2, and "clamp and map as said", where there was nothing to clamp or to map."""
    folder = site(home, spoilt("age", "", ""))
    said = penstock("site", "check", "-d", folder)
    assert "age: missing values in a column that is not nullable" in said.err
    assert "certified as version 1 of main" in said.out
    assert "certified as version 1 of main" in penstock("site", "check", "-d", folder).out
    (found,) = json.loads(penstock("site", "check", "--json", "-d", folder).out)["findings"]
    assert found["note"]


def test_what_is_clamped_beside_missing_values_is_still_accepted_first(home):
    folder = site(home, spoilt("age", "", "140"))
    assert "add --accept" in penstock("site", "check", "-d", folder, code=2).err


def test_the_first_policy_did_not_say_that_it_allows_one_mechanism_of_six(home):
    folder = site(home)
    text = (folder / "policy.toml").read_text()
    assert "one of six" in text
    assert "To allow more, add their names" in text
    assert read_policy(SitePaths(folder).policy).mechanisms == ("structured",)
    meaning, remedy = explain("mechanism")
    assert "does not allow this mechanism" in meaning
    assert "ask its steward to add this one to `mechanisms` in policy.toml" in remedy


def test_a_doctor_passed_a_directory_that_is_not_there(home):
    penstock("site", "node-key", home / "net")
    given = ("--dir", home / "nosuch", "--network", home / "net", "--json")
    rows_ = json.loads(penstock("site", "doctor", *given, code=10).out)
    (row,) = [r for r in rows_ if r["check"] == "site"]
    assert row["state"] == "fail"
    assert f"there is no directory {home / 'nosuch'}" in row["found"]
    assert row["remedy"]


# -- the coordinator ---------------------------------------------------------------------------


def test_one_variable_was_an_analysts_address_and_a_servers_directory(home, monkeypatch):
    """PENSTOCK_COORDINATOR is what an analyst asks; PENSTOCK_SERVER is where a server lies."""
    monkeypatch.chdir(home)
    plain = ("server", "init", "--name", "localhost")
    penstock(*plain, env={"PENSTOCK_SERVER": str(home / "a")})
    assert (home / "a" / "coordinator.json").exists()
    # An analyst's address on the same machine is none of the server's business.
    penstock(*plain, env={"PENSTOCK_COORDINATOR": "https://elsewhere:8443"})
    assert (home / "coordinator" / "coordinator.json").exists()
    assert not (home / "https:").exists()
    both = {"PENSTOCK_SERVER": str(home / "a"), "PENSTOCK_COORDINATOR": "https://elsewhere:8443"}
    assert json.loads(penstock("server", "sites", "--json", env=both).out) == []


def test_a_directory_of_the_old_name_is_still_taken(home, monkeypatch):
    monkeypatch.chdir(home)
    old = {"PENSTOCK_COORDINATOR": str(home / "old")}
    said = penstock("server", "init", "--name", "localhost", env=old)
    assert (home / "old" / "coordinator.json").exists()
    assert "call it PENSTOCK_SERVER here" in said.err
    # A bare name may be a login's; an option goes before any variable.
    penstock("server", "sites", env={"PENSTOCK_COORDINATOR": "old"})
    penstock("server", "init", "--name", "localhost", "-d", "new", env=old)
    assert (home / "new" / "coordinator.json").exists()
    penstock("server", "init", "--name", "x", env={"PENSTOCK_COORDINATOR": "hospital"})
    assert (home / "coordinator" / "coordinator.json").exists()


# -- commands ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("stduy", "No such command 'stduy'. Did you mean 'study'?"),
        ("study chek", "No such command 'chek'. Did you mean 'check'?"),
        ("site aprove", "Did you mean 'approve'?"),
        ("site ledger shw", "Did you mean 'show'?"),
        ("server tken", "Did you mean 'token'?"),
        ("status", "It is within a group: `penstock study status`."),
        ("zzzz", "No such command 'zzzz'."),
    ],
)
def test_unknown_commands_suggested_nothing(line, words):
    said = penstock(*line.split(), code=2)
    text = re.sub(r"[│\s]+", " ", said.err)
    assert words in text
    assert text.count("Did you mean") == words.count("Did you mean")  # and once


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("study check --json", "Missing argument 'PATH'"),
        ("study check s.toml --jsn --json", "No such option"),
        ("study chek --json s.toml", "No such command 'chek'"),
        ("stduy check --json", "No such command 'stduy'"),
        ("site ledger show --json extra", "Got unexpected extra argument"),
        ("site ledger what-if --epsilon much --json", "'much' is not a valid float"),
    ],
)
def test_a_mistyped_command_printed_no_json(line, words):
    """A script that asked for JSON got an empty document for its own mistake, and for no other."""
    said = penstock(*line.split(), code=2)
    error = json.loads(said.out)["error"]
    assert (error["code"], error["exit_code"]) == ("invalid-input", 2)
    (problem,) = error["problems"]
    assert words in problem["message"]
    assert "Usage:" in said.err
    assert penstock(*[w for w in line.split() if w != "--json"], code=2).out == ""


def kinds(base: type[PenstockError]) -> Iterator[type[PenstockError]]:
    yield base
    for kind in base.__subclasses__():
        yield from kinds(kind)


def test_exit_codes_were_nowhere_to_be_read():
    assert {k.exit_code for k in kinds(PenstockError)} | {0, 130} == set(EXITS)
    text = (DOCS / "commands.md").read_text()
    table = {
        int(code): meaning for code, meaning in re.findall(r"(?m)^\| (\d+) \| (.*?) \|$", text)
    }
    assert table == EXITS
    shown = re.sub(r"\s+", " ", penstock("--help").out)
    for code, meaning in EXITS.items():
        assert f" {code} {meaning}" in shown


EXPECTED = {  # what scripts rely on: a code that is given out never changes
    "PenstockError": 1, "InvalidInput": 2, "PrivacyError": 3, "Refused": 4, "SignatureError": 5,
    "UploadRejected": 6, "LedgerError": 7, "GateUnavailable": 8, "CoordinatorError": 9,
    "JobFailed": 10, "Unreachable": 11, "NotAllowed": 12,
}  # fmt: skip


@pytest.mark.parametrize(("name", "code"), EXPECTED.items())
def test_exit_codes_stay_what_they_are(name, code):
    (kind,) = [k for k in kinds(PenstockError) if k.__name__ == name]
    assert kind.exit_code == code


def test_every_variable_of_the_environment_is_documented():
    root = DOCS.parent
    used = set()
    for part in ("shared", "client", "server"):
        for file in (root / part).rglob("*.py"):
            used |= set(re.findall(r"PENSTOCK_[A-Z_]+[A-Z]", file.read_text(encoding="utf-8")))
    text = (DOCS / "commands.md").read_text()
    documented = set(re.findall(r"(?m)^\| `(PENSTOCK_[A-Z_]+)` \|", text))
    assert used - {"PENSTOCK_ORIGIN"} == documented  # that one is a macro of the kernel's
