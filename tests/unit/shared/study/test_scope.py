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
from penstock.mechanisms.joint.consortium import LOCAL
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
from penstock.wire.signatures import fingerprint

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


def write_joins(folder: Path) -> list[Path]:
    joins = []
    for name, persons in WHOLE.persons:
        path = folder / f"{name}.json"
        facts = {"site": name, "persons": persons, "gate_key": dict(WHOLE.keys)[name]}
        path.write_text(json.dumps({**facts, "federation": "main", "dictionary": SCHEMA.to_dict()}))
        joins.append(path)
    return joins


def run(*args: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(arg) for arg in args])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


def draft(folder: Path, *more: object, code: int = 0, mechanism: str = "scoring") -> str:
    joins = write_joins(folder)
    given = [part for path in joins for part in ("--join", path)]
    named = ("--name", "all", "--out", folder / "study.toml", "--mechanism", mechanism)
    return run("new", joins[0], *named, "--global", *given, *more, code=code)


def test_a_draft_is_made_of_the_sites_join_files(tmp_path: Path) -> None:
    named = [part for name in SITES for part in ("--site", name)]
    said = draft(tmp_path, *named)
    assert "site peers add" in said
    assert fingerprint(dict(WHOLE.keys)["west"]) in said
    drafted = parse_study((tmp_path / "study.toml").read_text())
    assert drafted.aggregation == WHOLE
    assert drafted.wire == LEAST_WIRE
    assert drafted.quorum == 3  # all but the one that may drop out
    said = run("check", tmp_path / "study.toml", "--join", tmp_path / "north.json")
    planned = plan_study(drafted, 1)
    assert isinstance(planned, JointPlan)
    assert f"{planned.rounds} sums one after the other" in said
    assert f"if all other sites collude: ε = {planned.epsilon_alone:.3g}" in said
    assert "1.41 times the noise of one place" in said
    assert "(formal (distributed))" in said


def test_a_draft_of_local_noise_asks_no_steward_to_pin_anybody(tmp_path: Path) -> None:
    said = draft(tmp_path, "--noise", "local")
    assert "need not pin" in said
    drafted = parse_study((tmp_path / "study.toml").read_text())
    assert drafted.aggregation == replace(WHOLE, colluders=0, noise=LOCAL)
    assert drafted.sites == tuple(sorted(SITES))  # all that were given
    said = run("check", tmp_path / "study.toml")
    assert "whatever they do" in said
    assert "2 times the noise of one place" in said
    assert "(formal)" in said


def test_what_does_not_go_is_said_before_a_file_is_written(tmp_path: Path) -> None:
    said = draft(tmp_path, mechanism="maf", code=2)
    assert "not made of sums" in said
    assert "nothing is known of it" in draft(tmp_path, "--site", "far", code=2)
    assert "another federation" in draft(tmp_path, "--federation", "other", code=2)
    assert "--site: is missing" in run("new", tmp_path / "north.json", "--name", "x", code=2)
    text = run("new", tmp_path / "north.json", "--name", "x", "--noise", "local", code=2)
    assert "of one release of all sites" in text
    assert not (tmp_path / "study.toml").exists()


def test_what_sites_say_of_themselves_now_is_compared(tmp_path: Path) -> None:
    draft(tmp_path)
    path = tmp_path / "east.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "persons": 411, "gate_key": "f" * 64}))
    said = run("check", tmp_path / "study.toml", "--join", path, code=2)
    assert "aggregation.persons.east: is not what the site declared, got 410; 411" in said
    assert "aggregation.keys.east: is not the key of the site's gate" in said


def test_a_column_that_is_called_site_is_named_with_its_line() -> None:
    """Of the joined table it would be there twice."""
    schema = Schema((*SCHEMA.columns, Column("site", "binary")))
    with pytest.raises(InvalidInput, match=r"line \d+: columns.site: is what says of which site"):
        parse_study(write_study(make(schema=schema)))


def test_more_sites_than_a_column_has_levels_are_refused() -> None:
    names = tuple(f"s{number:03d}" for number in range(101))
    persons = tuple((name, 50) for name in names)
    keys = tuple((name, f"{i + 1:064x}") for i, name in enumerate(names))
    with pytest.raises(InvalidInput, match="101 sites; at most 100 sites"):
        make(Scope(GLOBAL, 1, 1, persons, keys), sites=names)


def test_problems_across_fields_are_said_beside_those_of_fields() -> None:
    text = write_study(make()).replace("dropouts = 1", "dropouts = 2")
    text = text.replace("north = 400", "north = 0").replace("west = 430\n", "")
    with pytest.raises(InvalidInput) as error:
        parse_study(text)
    said = str(error.value)
    assert "aggregation.persons.north: is out of range" in said
    assert "aggregation.persons.west: is missing" in said
    assert "at least 8 sites. Ask more sites; or say dropouts = 1, colluders = 1" in said


def test_local_noise_is_signed_as_such_and_shared_noise_as_it_always_was() -> None:
    assert set(make().to_dict()["aggregation"]) == {
        "scope",
        "dropouts",
        "colluders",
        "persons",
        "keys",
    }
    local = make(replace(WHOLE, colluders=0, noise=LOCAL))
    assert local.to_dict()["aggregation"]["noise"] == "local"
    assert Study.from_dict(json.loads(canonical(local.to_dict()))) == local
    assert parse_study(write_study(local)) == local
    planned = plan_study(local, 1)
    assert isinstance(planned, JointPlan)
    assert planned.epsilon_alone == planned.epsilon
    assert planned.consortium.swell == pytest.approx(2.0, rel=1e-11)
    # As many as masks allow for may drop out: four sites one, seven two.
    with pytest.raises(InvalidInput, match="at least 7 sites"):
        make(replace(WHOLE, dropouts=2, colluders=0, noise=LOCAL))
    few = Scope.from_dict({"scope": GLOBAL, "noise": LOCAL}, SITES[:3])
    assert (few.dropouts, few.colluders) == (1, 0)
    with pytest.raises(InvalidInput, match="nothing else has a meaning"):
        replace(EACH, noise=LOCAL)
    with pytest.raises(InvalidInput, match="noise: is unknown"):
        replace(WHOLE, noise="own")
