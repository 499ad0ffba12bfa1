"""The simulated clinics have the stated truth: their mean paths, spread, dependence and slope.

False alarms: seeds are fixed, so a run is deterministic; over seeds each of some 250 comparisons
fails with probability 2e-8 (|z| > 5.6). The planted twins lie beyond that by 10 and more.
"""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from penstock.base.errors import InvalidInput
from penstock.cli.main import app
from penstock_server.simulate import visits

Z = 5.6
SIZE = 60_000

each = pytest.mark.parametrize("clinic", visits.CLINICS, ids=lambda c: c.name)


def draw(clinic: visits.Clinic, most: int = 1, n: int = SIZE) -> dict[str, np.ndarray]:
    return visits.simulate(clinic, np.random.default_rng([7, most]), n=n, most=most)


def fitted(table: dict[str, np.ndarray]) -> tuple[float, float]:
    """Least squares slope of sbp on visit, and its standard error, rows clustered by patient."""
    visit, sbp = table["visit"] - table["visit"].mean(), table["sbp"] - table["sbp"].mean()
    spread = float(visit @ visit)
    slope = float(visit @ sbp) / spread
    score = visit * (sbp - slope * visit)
    _, person = np.unique(table["patient_id"], return_inverse=True)
    return slope, float(np.linalg.norm(np.bincount(person, score))) / spread


@each
@pytest.mark.parametrize("most", [1, 3])
def test_the_slope_is_the_stated_one_at_every_clinic(clinic: visits.Clinic, most: int) -> None:
    slope, error = fitted(draw(clinic, most))
    assert abs(slope - visits.slope()) < Z * error
    # Planted twins: the slope at the beginning, and that of the responders alone.
    first = visits.CHANGE[0] * visits.progress([1])[0]
    alone = visits.slope() * clinic.changes[1, 0] / visits.CHANGE[0]
    assert all(abs(slope - other) > 10 * error for other in (first, alone))


@each
def test_each_visit_has_the_stated_mean_and_spread(clinic: visits.Clinic) -> None:
    table = draw(clinic)
    paths = visits.means(clinic, np.arange(visits.VISITS))
    share = np.array([1 - clinic.responders, clinic.responders])
    mean = np.einsum("g,gtc->tc", share, paths)
    apart = paths[1] - paths[0]
    between = share.prod() * np.einsum("tc,td->tcd", apart, apart)
    for t in range(visits.VISITS):
        own = table["visit"] == t
        seen = np.column_stack([table[name][own] for name in visits.COLUMNS])
        covariance = clinic.covariance + between[t] + np.eye(2) / 12  # rounded to whole numbers
        sd = np.sqrt(np.diag(covariance))
        assert (abs(seen.mean(axis=0) - mean[t]) < Z * sd / np.sqrt(len(seen))).all()
        off = np.cov(seen.T) - covariance
        # No mixture of two of one covariance has more kurtosis than a Gaussian by much.
        scale = np.sqrt(np.outer(sd**2, sd**2) + covariance**2) * np.sqrt(1.2 / len(seen))
        assert (abs(off) < Z * scale).all()


def test_what_is_known_of_a_visit_decays_at_the_stated_rate() -> None:
    """Of one kind of patient: corr(x(s), x(t)) = e^{-κ|t-s|}."""
    clinic = visits.CLINICS[0]
    wander = visits._wander(clinic, np.random.default_rng(3), 40_000)
    for gap in (1, 4, 8):
        found = np.corrcoef(wander[:, 0, 0], wander[:, gap, 0])[0, 1]
        assert abs(found - np.exp(-visits.RATE * gap)) < Z / 200
    spread = wander.var(axis=0) / np.diag(clinic.covariance)
    assert (abs(spread - 1) < Z * np.sqrt(2 / 40_000)).all()


@each
def test_one_cloud_becomes_two(clinic: visits.Clinic) -> None:
    """Along the line between the two means, in units of a kind's own sd."""
    start, *_, end = np.diff(visits.means(clinic, np.arange(visits.VISITS)), axis=0)[0]
    assert (start == 0).all()
    apart = float(np.sqrt(end @ np.linalg.solve(clinic.covariance, end)))
    assert apart > 3


def test_visits_come_at_random_and_within_the_bound() -> None:
    one, three = draw(visits.CLINICS[1]), draw(visits.CLINICS[1], most=3)
    assert len(one["visit"]) == len(set(one["patient_id"])) == SIZE
    counts = np.bincount(one["visit"].astype(int), minlength=visits.VISITS)
    assert (abs(counts / SIZE - 1 / 9) < Z * np.sqrt(8 / 81 / SIZE)).all()
    _, each_has = np.unique(three["patient_id"], return_counts=True)
    assert set(each_has) == {1, 2, 3}
    assert abs((each_has == 1).mean() - 1 / 3) < Z * np.sqrt(2 / 9 / SIZE)
    pairs = set(zip(three["patient_id"], three["visit"], strict=True))
    assert len(pairs) == len(three["visit"])


@each
def test_no_value_is_cut_off(clinic: visits.Clinic) -> None:
    """Bounds that cut values would move the truth."""
    table = draw(clinic)
    for column in visits.schema().columns[1:]:
        low, high = column.bounds
        assert low < table[column.name].min()
        assert table[column.name].max() < high
        assert (table[column.name] == np.rint(table[column.name])).all()


def test_a_seed_repeats_a_draw() -> None:
    first, second = draw(visits.CLINICS[2], n=50), draw(visits.CLINICS[2], n=50)
    assert all((first[name] == second[name]).all() for name in first)


@pytest.mark.parametrize("wrong", [{"n": 0}, {"most": 0}, {"most": 10}, {"n": np.nan}])
def test_impossible_draws_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        visits.simulate(visits.CLINICS[0], np.random.default_rng(0), **wrong)


@pytest.mark.parametrize(
    "wrong", [{"n": 0}, {"responders": 0.0}, {"correlation": 1.0}, {"sd": (0.0, 1.0)}]
)
def test_impossible_clinics_are_refused(wrong: dict[str, object]) -> None:
    values = {"name": "c", "n": 9, "start": (150, 150), "sd": (9, 9), "correlation": 0}
    with pytest.raises(InvalidInput):
        visits.Clinic(**{"responders": 0.5, **values, **wrong})


# -- the command -------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["simulate", "visits", *arguments])
    return result.exit_code, result.output


def test_the_command_writes_rows_a_dictionary_and_the_truth(tmp_path: Path) -> None:
    code, output = run("--out", str(tmp_path), "--site", "clinic-west", "--most", "2")
    assert code == 0, output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["clinic-west", "truth.json"]
    folder = tmp_path / "clinic-west"
    with (folder / "data.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len({r["patient_id"] for r in rows}) == 2400
    assert list(rows[0]) == ["patient_id", "visit", "sbp", "ldl"]
    assert all("." not in r["sbp"] for r in rows)
    dictionary = tomllib.loads((folder / "dictionary.toml").read_text())
    assert dictionary["max_rows_per_person"] == 2
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert truth["estimand"] == visits.estimand().name
    assert truth["coefficient"] == visits.slope()
    assert len(truth["means"]["clinic-west"]["responding"]["ldl"]) == visits.VISITS


def test_a_coordinator_takes_this_truth(tmp_path: Path) -> None:
    visits.write_truth(tmp_path)
    where = ["-d", str(tmp_path / "hub"), "--name", "localhost", "--truth"]
    done = CliRunner().invoke(app, ["server", "init", *where, str(tmp_path / "truth.json")])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("arguments", [["--site", "north"], ["--most", "0"], ["--most", "10"]])
def test_the_command_refuses_what_is_out_of_range(tmp_path: Path, arguments: list[str]) -> None:
    code, _ = run("--out", str(tmp_path / "data"), *arguments)
    assert code == InvalidInput.exit_code
    assert not (tmp_path / "data").exists()
