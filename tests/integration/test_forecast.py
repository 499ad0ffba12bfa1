"""`study plan` and `site preview --forecast`: the same for any rows, and for none at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import ESTIMAND, FAST, World, rows_csv
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.mechanisms.structured.settings import Structured
from penstock.study.planning import Planning
from penstock.study.toml import write_study

PLANNING = Planning.from_dict(
    {"columns": {"sbp": {"mean": 125, "sd": 18}, "score": {"sd": 6}}, "effects": {"effect": 2.0}}
)
MECHANISM = FAST


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def previews(world: World) -> tuple[World, list[str]]:
    """What two stewards are shown, whose rows have nothing in common but their dictionary."""
    rows = rows_csv(150, seed=1), "age,sbp,sex,score\n" + "100,250,1,50.000\n" * 60
    sites = [
        world.site(name, csv=csv, persons=300, approval="by-hand")
        for name, csv in zip("ab", rows, strict=True)
    ]
    signed = world.signed(mechanism=MECHANISM, planning=PLANNING)
    shown = []
    for site in sites:
        site.start()
        request = site.submit(signed).request_id
        command = ["site", "preview", request, "--forecast", "--runs", "4", "--dir"]
        shown.append(run(*command, str(site.paths.root), "--json"))
        if site is sites[0]:
            text = run(*command, str(site.paths.root))
            assert "never from rows" in text
            for kept in site.paths.snapshots.glob("*.arrow"):
                kept.write_bytes(b"")
            (world.root / "a.csv").unlink()
            shown.append(run(*command, str(site.paths.root), "--json"))
    return world, shown


@pytest.mark.thorough
def test_a_preview_is_the_same_whatever_the_rows_are(
    previews: tuple[World, list[str]], tmp_path: Path
) -> None:
    world, shown = previews
    made, without_rows, of_others = (json.loads(text)["forecast"] for text in shown)
    assert made == without_rows
    here = made["estimands"][ESTIMAND.name]
    assert here["effect"] == 2.0
    assert here["sites"]["a"]["persons"] == 300
    assert here["sites"]["a"]["privacy"] > 0
    assert here["sites"]["a"] == of_others["estimands"][ESTIMAND.name]["sites"]["b"]
    # An analyst, who has the sizes alone, is told the same.
    path = tmp_path / "study.toml"
    path.write_text(write_study(world.study(mechanism=MECHANISM, planning=PLANNING)))
    sizes = ["--persons", "a=300", "--runs", "4"]
    told = json.loads(run("study", "plan", str(path), *sizes, "--json"))
    assert told == made
    text = run("study", "plan", str(path), *sizes)
    assert "not in it, for lack of their number of persons: b" in text
    assert ESTIMAND.name in text


def test_a_size_that_is_not_well_formed_is_refused(world: World, tmp_path: Path) -> None:
    world.site("a", n=60)
    path = tmp_path / "study.toml"
    path.write_text(write_study(world.study(mechanism=Structured())))
    done = CliRunner().invoke(app, ["study", "plan", str(path), "--persons", "a:300"])
    assert done.exit_code == 2
    assert "SITE=NUMBER" in done.output
    done = CliRunner().invoke(app, ["study", "plan", str(path)])
    assert done.exit_code == 2
    assert "no site's size is known" in done.output
