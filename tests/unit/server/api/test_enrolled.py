"""The enrolled sites as an analyst is told of them, and a draft that is made of what is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.study import app
from penstock.schema import Column, Schema
from penstock.study.scope import choose_tolerance
from penstock.study.toml import parse_study
from penstock.wire.signatures import fingerprint, generate_key, public_hex
from penstock_server.api.directory import Directory
from penstock_server.install.enrolment import enrol_site
from penstock_server.install.founding import make_coordinator, open_coordinator

SCHEMA = Schema((Column("y", "binary"), Column("a", "continuous", lower=0, upper=9)))
NAMES = ("north", "east", "south", "west")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A coordinator's directory with four sites of one federation, and one of another."""
    root = tmp_path / "co"
    make_coordinator(root)
    coordinator = open_coordinator(root)
    for number, name in enumerate((*NAMES, "far")):
        join = {
            "site": name,
            "federation": "main" if name in NAMES else "other",
            "gate_key": public_hex(generate_key()),
            "persons": 300 + number,
            "dictionary": SCHEMA.to_dict(),
            "node_key": "ecdsa-sha2-nistp384 AAAA",
        }
        enrol_site(coordinator, join)
        (tmp_path / f"{name}.json").write_text(json.dumps(join))
    return tmp_path


def draft(place: Path, *more: str, code: int = 0) -> str:
    asked = ["new", str(place / "north.json"), "--name", "all", "--global", "-c", str(place / "co")]
    done = CliRunner().invoke(app, [*asked, "--out", str(place / "study.toml"), *more])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


def test_a_draft_takes_frames_and_keys_from_the_coordinators_directory(place: Path) -> None:
    told = {row["site"]: row for row in Directory(str(place / "co")).sites()}
    assert set(told) == {*NAMES, "far"}
    for row in told.values():
        assert row["gate_fingerprint"] == fingerprint(row["gate_key"])
    said = draft(place)
    study = parse_study((place / "study.toml").read_text())
    assert set(study.sites) == set(NAMES)
    scope = study.aggregation
    assert dict(scope.persons) == {name: told[name]["persons"] for name in NAMES}
    assert dict(scope.keys) == {name: told[name]["gate_key"] for name in NAMES}
    assert (scope.dropouts, scope.colluders) == choose_tolerance(4)
    assert all(told[name]["gate_fingerprint"] in said for name in NAMES)


def test_only_sites_of_the_federation_that_are_enrolled_can_be_named(place: Path) -> None:
    assert "nothing is known of it, got far" in draft(place, "--site", "far", code=2)
    assert "one of main, other" in draft(place, "--federation", "none", code=2)
    # One site alone cannot hide in a sum.
    assert "too few sites" in draft(place, "--federation", "other", code=2)
    assert not (place / "study.toml").exists()
