"""The simulated clinics of patients who die or are lost have the stated truth.

Seeds are fixed; over seeds each of some forty comparisons fails with probability 2e-8 (|z| > 5.6).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from lifelines import CoxPHFitter
from typer.testing import CliRunner

from penstock.base.errors import PenstockError
from penstock.cli.main import app
from penstock_server.simulate import patients
from penstock_server.simulate.scenarios import SCENARIOS

Z, SIZE = 5.6, 40_000
PATIENTS = pd.DataFrame(patients.simulate(SIZE, 150.0, np.random.default_rng(5)))
KNOWN = patients.truths()


def at(year: int) -> pd.DataFrame:
    return PATIENTS[PATIENTS["year"] == year].set_index("patient_id")


def test_every_question_of_the_demo_has_a_truth() -> None:
    scenario = SCENARIOS["trajectory"]()
    assert set(KNOWN) == {e.name for e in scenario.estimands}
    assert {e.model for e in scenario.estimands} >= {"mixed", "change", "quantile", "share", "cox"}
    assert all(np.isfinite(list(KNOWN.values())))


def test_a_change_is_the_stated_one_wherever_pressure_begins() -> None:
    change = (at(4)["sbp"] - at(0)["sbp"]).dropna()
    error = change.std() / len(change) ** 0.5
    assert abs(change.mean() - KNOWN["change"]) < Z * error
    assert abs(KNOWN["change"] / 2 - change.mean()) > 10 * error  # the twin


def test_treatment_and_severity_have_the_stated_hazards() -> None:
    first = at(0).assign(
        treated=lambda x: (x["treated"] == "yes") * 1.0, years=lambda x: x["years"].clip(0.005)
    )
    fitted = CoxPHFitter().fit(first[["years", "died", "treated"]], "years", "died")
    assert abs(fitted.params_["treated"] - KNOWN["treatment"]) < Z * fitted.standard_errors_.iloc[0]
    assert np.log(patients.RATIO) < KNOWN["treatment"] < 0 or KNOWN["treatment"] < 0
    # Measured once, severity has less of an effect than where it is known all along, and has one.
    assert 0.2 < KNOWN["landmark"] < 0.8


def test_nobody_is_seen_after_the_end_and_all_are_seen_first() -> None:
    assert (PATIENTS["year"] <= PATIENTS["years"]).all()
    assert (PATIENTS.groupby("patient_id")["year"].min() == 0).all()
    assert 0.1 < at(0)["died"].mean() < 0.5
    assert len(at(4)) < 0.7 * SIZE


def test_the_command_writes_what_the_demo_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patients, "MANY", 2000)
    done = CliRunner().invoke(
        app, ["simulate", "patients", "--out", str(tmp_path), "--site", "clinic-west"]
    )
    assert done.exit_code == 0, done.output
    table = pd.read_csv(tmp_path / "clinic-west" / "data.csv")
    assert list(table)[1:] == list(patients.schema().names)
    assert table["patient_id"].nunique() == 2400
    assert set(table["severity"]) == set(patients.LEVELS)
    truth = json.loads((tmp_path / "truth.json").read_text())["estimands"]
    assert set(truth) == set(KNOWN)
    wrong = CliRunner().invoke(app, ["simulate", "patients", "--out", "x", "--site", "nowhere"])
    assert wrong.exit_code != 0 or isinstance(wrong.exception, PenstockError)
