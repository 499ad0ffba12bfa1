"""The study of demos asks what the demo asks, of the rows that it simulates."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from tests.studies import demos
from tests.studies.demos import answer, draw_rows, list_rows, pose_demo
from typer.testing import CliRunner

from penstock.mechanisms import Structured
from penstock_server.cli.cohorts import app
from penstock_server.simulate import cvd
from penstock_server.simulate.cohort_files import frame
from penstock_server.simulate.scenarios import SCENARIOS


def test_a_demo_is_that_of_the_command() -> None:
    study, scenario = pose_demo(), SCENARIOS[Structured.name]()
    assert study.sites == tuple(cohort.name for cohort in cvd.DEMO_SITES)
    assert study.estimands == scenario.estimands
    assert study.schema == scenario.schema
    assert study.mechanism == replace(scenario.mechanism, planted=0)
    assert study.privacy.epsilon == 3.0


def test_its_rows_are_those_that_are_simulated(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["cvd", "--out", str(tmp_path), "--seed", "5", "--site", "chs-f"]
    )
    assert done.exit_code == 0, done.output
    with (tmp_path / "chs-f" / "data.csv").open() as file:
        written = list(csv.DictReader(file))
    rows = draw_rows("chs-f", 5)
    for name, values in rows.items():
        assert [float(row[name]) for row in written] == pytest.approx(values, abs=1e-9), name


@pytest.mark.thorough
def test_a_small_demo_has_all_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few persons at each site, in frames with places that nobody takes."""
    few = replace(pose_demo(), mechanism=Structured(copies=2, refits=4, planted=0))
    cut = {name: {c: v[:400] for c, v in draw_rows(name, 1).items()} for name in few.sites}
    monkeypatch.setattr(demos, "draw_rows", lambda site, seed: cut[site])
    found = answer(few, 1)
    assert found["delivered"] == 4
    assert found["private/half"] > found["real/half"] > 0.03
    assert found["private/holds"] in (0.0, 1.0)
    assert answer(few, 1) == found
    rows = {row.what: row for row in list_rows([found, found | {"private/holds": 0.0}])}
    holds = rows["the pooled interval holds the truth"]
    assert holds.ours == pytest.approx(found["private/holds"] / 2)
    assert holds.target == 0.93
    assert frame(400) == 500
