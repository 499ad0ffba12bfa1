"""A start by counts, of persons with one row each: spreads are not inflated, and levels stay."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from tests.studies.panels import SIMULATED_COLUMNS
from tests.support.carried_out import release

from penstock.mechanisms import Trajectory
from penstock.mechanisms.plans import plan
from penstock.mechanisms.released import PATHS
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Coded, Column, Schema
from penstock.schema.encoding import Encoding

N, TIMES, RUNS = 1000, 5, 6
COLUMNS = (
    *SIMULATED_COLUMNS[:5],
    Column("stage", "ordered", levels=("I", "II", "III", "IV")),
)
SCHEMA = Schema((Column("visit", "integer", 0, TIMES - 1), *COLUMNS), "id", 1)


def simulate(seed: int) -> Coded:
    """Different persons at each of five times: six columns that go together, and move."""
    rng = np.random.default_rng(seed)
    together = np.eye(6)
    for a, b, r in ((0, 1, 0.3), (0, 3, 0.4), (1, 2, 0.25), (2, 3, -0.3), (3, 4, 0.4), (4, 5, 0.5)):
        together[a, b] = together[b, a] = r
    t = rng.integers(0, TIMES, N) * 1.0
    z = rng.standard_normal((N, 6)) @ np.linalg.cholesky(together).T
    z += np.outer(t / TIMES, [0.3, 0.3, -0.4, 0.5, 0.3, 0.3])
    found = {
        "visit": t,
        "pulse": 74 + 11 * z[:, 0],
        "sbp": 135 + 19 * z[:, 1],
        "ldl": 3.4 + 0.9 * z[:, 2],
        "bnp": np.exp(5.0 + 0.9 * z[:, 3]),
        "oedema": (z[:, 4] > 0.7) * 1.0,
        "stage": np.digitize(z[:, 5], [-0.5, 0.5, 1.2]) * 1.0,
    }
    return {name: SCHEMA[name].snap(values) for name, values in found.items()}


@cache
def compare(start: str, runs: int) -> tuple[np.ndarray, np.ndarray]:
    """(runs, T, d) spreads over the real ones, and errors of means in real spreads."""
    how = Trajectory("visit", start=start, copies=3, refits=0, particles=30, paths=4, path_times=3)
    made, encoding = plan(how, SCHEMA, N, PrivacyRequest(2.0, 1e-5)), Encoding(SCHEMA)
    ratios, shifts = np.empty((runs, TIMES, 6)), np.empty((runs, TIMES, 6))
    for run in range(runs):
        real = simulate(run)
        rows, present = encoding.encode(real, np.random.default_rng(run))
        parts = list(
            release(how, made, encoding, rows[:, None], present[:, None], SeededNoise(run))
        )
        tables = [p.columns for p in parts if p.name.startswith("tables/")]
        drawn = {n: np.concatenate([np.asarray(t[n], float) for t in tables]) for n in real}
        for column in COLUMNS:
            assert np.array_equal(column.snap(drawn[column.name]), drawn[column.name])
        for t in range(TIMES):
            for j, column in enumerate(COLUMNS):
                a, b = (x[column.name][x["visit"] == t] for x in (real, drawn))
                if column.scale == "log":
                    a, b = np.log(a), np.log(b)
                ratios[run, t, j] = b.std() / a.std()
                shifts[run, t, j] = (b.mean() - a.mean()) / a.std()
    return ratios, shifts


def test_spreads_are_not_inflated() -> None:
    """At n = 1 000, five times, six columns and ε = 2: by .025 in 16 runs, of which each is off by
    .024."""
    ratios, shifts = compare("counts", RUNS)
    assert abs(ratios.mean() - 1) < 0.07
    assert np.abs(ratios.mean(axis=(0, 1)) - 1).max() < 0.15
    assert np.abs(shifts).mean() < 0.12


def test_spreads_of_moments_are_not_inflated_either_but_less_sure() -> None:
    """Of noisy moments within the bounds' box. Before, by .39: noise that made eigenvalues negative
    was cut off, narrow columns were drawn to the mean of wide ones, and particles drifted apart."""
    ratios = compare("gaussian", RUNS)[0]
    assert abs(ratios.mean() - 1) < 0.2
    sure = np.abs(compare("counts", RUNS)[0] - 1).mean()
    assert np.abs(ratios - 1).mean() > 1.5 * sure


def test_parts_are_those_of_every_trajectory_and_paths_hold_what_does_not_vary() -> None:
    sex = Column("male", "binary", varies=False)
    schema = Schema((*SCHEMA.columns, sex), "id", 1)
    how = Trajectory("visit", start="counts", copies=1, refits=1, particles=20, paths=9)
    made, encoding = plan(how, schema, N, PrivacyRequest(2.0, 1e-5)), Encoding(schema)
    real = simulate(0) | {"male": np.arange(N) % 2.0}
    rows, present = encoding.encode(real, np.random.default_rng(0))
    parts = {
        part.name: part
        for part in release(how, made, encoding, rows[:, None], present[:, None], SeededNoise(0))
    }
    assert list(parts) == ["tables/copy-1", "particles", PATHS, "refits/1"]
    assert parts["particles"].rows == 20 * TIMES
    male = np.asarray(parts[PATHS].columns["male"]).reshape(9, how.path_times)
    assert (male == male[:, :1]).all()
    assert parts["tables/copy-1"].rows == pytest.approx(N, rel=0.1)


@pytest.mark.parametrize(
    ("settings", "rows", "words"),
    [
        ({}, 2, "one row each"),
        ({"subsample": 3}, 1, "no meaning"),
        ({"end": "years"}, 1, "is not a column"),
    ],
)
def test_what_cannot_be_counted_is_refused(
    settings: dict[str, object], rows: int, words: str
) -> None:
    how = Trajectory("visit", start="counts", **settings)  # type: ignore[arg-type]
    found = how.problems(Schema(SCHEMA.columns, "id", rows), ())
    assert any(words in problem.message for problem in found), found
