"""What a steward and an analyst are told: decisions, the unit, δ, and the other relation's ε."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from tests.support.ledgers import DIGESTS
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.privacy.accounting.accountant import epsilon_pld
from penstock.privacy.events import Gaussian
from penstock.privacy.request import advised_delta
from penstock.study.toml import write_study
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database
from penstock_client.ledger.state import Charge


def told(*words: object, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def test_the_lifetimes_replace_one_epsilon_was_not_shown(world):
    site = world.site("a")
    database = Database(site.paths.database)
    ledger = Ledger(database, site.paths.key())
    asked = ("s", "ann", "maf", (Gaussian(9.0), Gaussian(7.0)), 1e-5)
    ledger.reserve(Charge("r", "main", 1, *asked, **DIGESTS), signer_epsilon=9.0)
    database.close()
    (row,) = json.loads(told("site", "ledger", "show", "--json", "-d", site.paths.root)[0])
    expected = epsilon_pld(asked[3], 1e-5, relation="replace-one")
    assert row["spent_epsilon_replace_one"] == pytest.approx(expected)
    assert row["unit"] == {"person": None, "rows": 1}
    shown, _ = told("site", "ledger", "show", "--detail", "-d", site.paths.root)
    assert "if a person is exchanged for another" in shown
    assert f"{expected:.3g}" in shown
    assert "each row, as a person" in shown


def test_an_export_holds_the_decisions_where_it_is_asked_to(world, tmp_path):
    site = world.site("a")
    at = ("-d", site.paths.root)
    told("site", "ledger", "export", tmp_path / "plain.json", *at)
    told("site", "ledger", "export", tmp_path / "all.json", "--decisions", *at)
    assert "decisions" not in json.loads((tmp_path / "plain.json").read_text())
    document = json.loads((tmp_path / "all.json").read_text())
    assert json.loads(document["decisions"][0]["body"])["kind"] == "open"
    shown, _ = told("site", "ledger", "verify", tmp_path / "all.json")
    assert "decisions, chain and signatures whole" in shown
    document["decisions"][1]["signature"] = document["decisions"][0]["signature"]
    (tmp_path / "forged.json").write_text(json.dumps(document))
    _, error = told("site", "ledger", "verify", tmp_path / "forged.json", code=7)
    assert "decision 2" in error


def test_a_check_warns_of_a_total_delta_above_a_tenth_of_one_in_n(world):
    site = world.site("a")
    at = ("-d", site.paths.root)
    assert "total_delta" not in told("site", "check", "--accept", *at)[1]
    policy = site.paths.policy
    policy.write_text(policy.read_text().replace("total_delta = 1e-5", "total_delta = 0.001"))
    assert "at most 0.0005 for 200 persons" in told("site", "check", "--accept", *at)[1]


def test_a_study_check_warns_of_delta_where_the_persons_are_known(world, tmp_path):
    site = world.site("a")
    file = tmp_path / "study.toml"
    study = world.study()
    file.write_text(write_study(replace(study, privacy=replace(study.privacy, delta=0.002))))
    assert "δ" not in told("study", "check", file)[1]
    warned = told("study", "check", file, "--join", site.paths.join)[1]
    assert "a site refuses it by default: ask for at most 1e-05" in warned
    file.write_text(write_study(study))
    assert "refuses" not in told("study", "check", file, "--join", site.paths.join)[1]


def test_a_new_study_asks_for_a_delta_that_suits_n(world, tmp_path):
    site = world.site("a")
    join = json.loads(site.paths.join.read_text())
    large = tmp_path / "large.json"
    large.write_text(json.dumps({**join, "persons": 400_000}))
    out = tmp_path / "study.toml"
    told("study", "new", large, "--name", "x", "--site", "a", "--out", out)
    assert "delta = 2.5e-07" in out.read_text()
    assert advised_delta(400_000) == pytest.approx(2.5e-7)
    assert advised_delta(10) == 1e-5


def test_a_refusal_over_the_stewards_socket_names_who_refused_and_why(world):
    site = world.site("a", approval="by-hand")
    site.start()
    job = site.submit(world.signed())
    before = site.ledger().seq
    words = ("site", "reject", job.request_id[:12], "--reason", "not ours", "-d", site.paths.root)
    result = CliRunner().invoke(app, [str(w) for w in words], env={"SUDO_USER": "ann"})
    assert result.exit_code == 0, result.output
    (*_, one) = json.loads(told("site", "ledger", "decisions", "--json", "-d", site.paths.root)[0])
    assert (one["kind"], one["reason"]) == ("reject", "not ours")
    assert one["request"] == job.request_id
    assert one["by"]["uid"] == os.getuid()
    assert one["by"]["claimed"]["SUDO_USER"] == "ann"
    assert site.ledger().seq == before
