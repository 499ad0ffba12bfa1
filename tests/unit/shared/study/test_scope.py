"""A study of one release of all sites: what it says, what it must say, and what it leaves alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.base.errors import InvalidInput
from penstock.cli.study import app
from penstock.mechanisms import Maf, Scoring
from penstock.mechanisms.joint.plan import JointPlan
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.study.charges import plan_study
from penstock.study.scope import EACH, GLOBAL, LEAST_WIRE, Scope
from penstock.study.study import Study
from penstock.study.toml import parse_study
from penstock.study.toml.templates import write_study
from penstock.wire.canonical import canonical

SITES = ("north", "east", "south", "west")
SCHEMA = Schema((Column("y", "binary"), Column("a", "continuous", lower=0, upper=9)))
WHOLE = Scope(
    GLOBAL,
    1,
    1,
    tuple((name, 400 + 10 * i) for i, name in enumerate(SITES)),
    tuple((name, f"{i + 1:064x}") for i, name in enumerate(SITES)),
)


def make(scope: Scope = WHOLE, **changes: Any) -> Study:
    said: dict[str, Any] = {
        "name": "trial",
        "title": "A trial",
        "federation": "main",
        "sites": SITES,
        "schema": SCHEMA,
        "estimands": (Estimand("odds", "logistic", "y", "a"),),
        "privacy": PrivacyRequest(2.0, 1e-5),
        "mechanism": Scoring(),
        "quorum": 1,
        "deadline_hours": 1.0,
        "not_before": "2020-01-01T00:00:00Z",
        "expires": "2027-01-01T00:00:00Z",
        "wire": LEAST_WIRE,
    }
    return Study(**{**said, "aggregation": scope, **changes})


def test_a_study_of_each_site_has_the_bytes_that_it_always_had() -> None:
    study = make(EACH, wire="1.2")
    assert b"aggregation" not in canonical(study.to_dict())
    assert Study.from_dict(study.to_dict()) == study
    assert study.consortium is None


def test_what_is_signed_says_who_takes_part_and_round_trips() -> None:
    study = make()
    said = json.loads(canonical(study.to_dict()))
    assert said["aggregation"]["persons"] == dict(WHOLE.persons)
    assert Study.from_dict(said) == study
    assert parse_study(write_study(study)) == study
    assert study.consortium is not None
    assert study.consortium.persons == (400, 410, 420, 430)  # in the study's order, not by name
    planned = plan_study(study, 400)
    assert isinstance(planned, JointPlan)
    assert planned.consortium == study.consortium


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"persons": WHOLE.persons[1:]}, "aggregation.persons.east: is missing"),
        ({"persons": (*WHOLE.persons, ("far", 3))}, "aggregation.persons.far: is no site"),
        ({"keys": WHOLE.keys[:-1]}, "aggregation.keys.west: is missing"),
        ({"keys": (*WHOLE.keys[:-1], ("west", WHOLE.keys[0][1]))}, "aggregation.keys"),
        ({"dropouts": 2}, "at least 8 sites"),
    ],
)
def test_what_does_not_suit_the_sites_is_refused(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidInput, match=where):
        make(replace(WHOLE, **changes))


def test_an_older_version_or_another_mechanism_is_refused_with_its_line() -> None:
    with pytest.raises(InvalidInput, match=r"wire: is too old"):
        make(wire="1.2")
    text = write_study(make())
    with pytest.raises(InvalidInput, match=r"line \d+: mechanism.name: is not made of sums"):
        parse_study(write_study(make(mechanism=Maf())))
    with pytest.raises(InvalidInput, match=r"line \d+: aggregation.persons.north"):
        parse_study(text.replace("north = 400", "north = 0"))
    with pytest.raises(InvalidInput, match="nothing else has a meaning"):
        replace(EACH, dropouts=1)


def test_one_drop_out_and_one_colluder_where_enough_sites_are_asked() -> None:
    text = write_study(make())
    short = "\n".join(t for t in text.split("\n") if not t.startswith(("dropouts", "colluders")))
    assert parse_study(short).aggregation == WHOLE
    names = ("north", "east", "south")
    few = Scope.from_dict({"scope": GLOBAL}, names)
    assert (few.dropouts, few.colluders) == (0, 1)


def test_a_draft_is_made_of_the_sites_join_files(tmp_path: Path) -> None:
    joins = []
    for name, persons in WHOLE.persons:
        path = tmp_path / f"{name}.json"
        facts = {"site": name, "persons": persons, "gate_key": dict(WHOLE.keys)[name]}
        path.write_text(json.dumps({**facts, "dictionary": SCHEMA.to_dict()}))
        joins.append(path)
    out = tmp_path / "study.toml"
    named = [part for name in SITES for part in ("--site", name)]
    named += [part for path in joins for part in ("--global", str(path))]
    asked = ["new", str(joins[0]), "--name", "all", "--out", str(out), "--mechanism", "scoring"]
    done = CliRunner().invoke(app, [*asked, *named])
    assert done.exit_code == 0, done.output
    drafted = parse_study(out.read_text())
    assert drafted.aggregation == WHOLE
    assert drafted.wire == LEAST_WIRE
