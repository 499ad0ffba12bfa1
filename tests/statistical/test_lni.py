"""The studies of latent noise injection compute what they say: known answers at toy size."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from tests.studies import lni_correlation, lni_mia
from tests.studies.lni import (
    Fitted,
    GaussianMap,
    auc,
    direct,
    direct_ratio_auc,
    distance_auc,
    fit_flow,
    flow_sample,
    lni,
    over_runs,
    ratio_auc,
)

from penstock.mechanisms.flow.architecture import Architecture
from penstock.mechanisms.flow.training import Training
from penstock.privacy.accounting.gaussian import delta as gaussian_delta

Z = 5.6
"""|z| above this happens by chance once in 4e7 (two-sided, 2e-8)."""


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return 3 + 2 * lni_correlation.simulate(600, np.random.default_rng(1))


@pytest.fixture(scope="module")
def model(rows: np.ndarray) -> Fitted:
    training = Training(60, math.inf, None, learning_rate=0.02, batch=100)
    return fit_flow(rows, 0, Architecture(5, 2, (8,)), training)


def test_all_weight_on_the_rows_gives_them_back(model: Fitted, rows: np.ndarray) -> None:
    rng = np.random.default_rng(0)
    assert np.abs(lni(model, rows, 1.0, rng) - rows).max() < 1e-3
    assert np.abs(lni(GaussianMap.of(rows), rows, 1.0, rng) - rows).max() < 1e-9
    assert np.array_equal(direct(rows, 1.0, rng), rows)


def test_no_weight_gives_rows_that_know_nothing_of_their_origin(
    model: Fitted, rows: np.ndarray
) -> None:
    made = lni(model, rows, 0.0, np.random.default_rng(0))
    for column in range(5):
        r = np.corrcoef(made[:, column], rows[:, column])[0, 1]
        assert abs(math.atanh(r)) * math.sqrt(len(rows) - 3) < Z


def test_training_is_repeatable_and_learns_the_correlation(model: Fitted, rows: np.ndarray) -> None:
    again = fit_flow(
        rows,
        0,
        Architecture(5, 2, (8,)),
        Training(60, math.inf, None, learning_rate=0.02, batch=100),
    )
    assert np.array_equal(again.flow.get_flat(), model.flow.get_flat())
    sampled = flow_sample(model, 4000, np.random.default_rng(0))
    assert abs(lni_correlation.correlation(sampled) - 0.9) < 0.05
    assert np.allclose(sampled.mean(axis=0), rows.mean(axis=0), atol=0.5)


def test_density_is_in_the_rows_own_units(model: Fitted, rows: np.ndarray) -> None:
    scored = model.flow.log_prob((rows - model.centre) / model.scale)
    assert np.allclose(model.log_density(rows), scored - np.log(model.scale).sum())
    exact = multivariate_normal(rows.mean(axis=0), np.cov(rows, rowvar=False, ddof=0))
    assert np.allclose(GaussianMap.of(rows).log_density(rows), exact.logpdf(rows))


@pytest.mark.parametrize("w", [0.25, 0.75])
def test_direct_noise_shrinks_correlations_by_w(w: float) -> None:
    rng = np.random.default_rng(2)
    x = lni_correlation.simulate(40_000, rng)
    made = direct(x, w, rng)
    r = np.corrcoef(made[:, 0], made[:, 1])[0, 1]
    assert abs(math.atanh(r) - math.atanh(0.9 * w)) * math.sqrt(len(x) - 3) < Z
    assert np.allclose(made.std(axis=0), x.std(axis=0), rtol=0.05)


def test_area_under_the_curve() -> None:
    assert auc(np.array([2.0, 3.0]), np.array([0.0, 1.0])) == 1.0
    assert auc(np.array([1.0, 1.0]), np.array([1.0])) == 0.5
    assert auc(np.array([0.0, 2.0]), np.array([1.0])) == 0.5


def test_attacks_are_blind_without_members_and_see_them_where_rows_leave(
    model: Fitted, rows: np.ndarray
) -> None:
    rng = np.random.default_rng(3)
    half, other = rows[:300], rows[300:]
    others = flow_sample(model, 300, rng)
    # The variance of an AUC between equals: (m + n + 1)/(12 m n).
    blind = Z * math.sqrt(601 / (12 * 300 * 300))
    assert abs(distance_auc(others, half, other) - 0.5) < blind
    assert abs(ratio_auc(model, others, half, other, 0.5) - 0.5) < blind
    assert distance_auc(half, half, other) == 1.0
    near = lni(model, half, 0.99, rng)
    assert ratio_auc(model, near, half, other, 0.99) > 0.9
    scale = half.std(axis=0, ddof=1)
    assert direct_ratio_auc(direct(half, 0.999, rng), half, other, 0.999, scale) > 0.9


def test_slope_finds_a_power_law() -> None:
    sizes = (100, 200, 400, 800)
    errors = np.array([[n**-0.7, -(n**-0.7)] for n in sizes])
    ours, se = lni_correlation.slope(sizes, errors)
    assert ours == pytest.approx(0.7)
    assert se == pytest.approx(0, abs=1e-12)
    assert 0 < lni_correlation.sampling_slope(lni_correlation.SIZES) < 0.5


def test_the_moving_weight_has_the_rate_of_theorem_1() -> None:
    far, near = (1 - lni_correlation.moving_weight(n) for n in (2500, 2500 * 32))
    assert far == pytest.approx(0.25)
    assert near == pytest.approx(0.25 / 4)  # 32^(-2/5) = 1/4


def test_correlation_study_runs_at_toy_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBS", "1")
    monkeypatch.setattr(lni_correlation, "ARCH", Architecture(5, 1, (4,)))
    short = Training(5, math.inf, None, learning_rate=0.02, batch=50)
    monkeypatch.setattr(lni_correlation, "training", lambda n: short)
    monkeypatch.setattr(lni_correlation, "SAMPLED", 200)
    monkeypatch.setattr(lni_correlation, "PAPER_MAD", {200: (1,) * 11})
    monkeypatch.setattr(lni_correlation, "PAPER_BIAS", {200: (0,) * 11})
    done = lni_correlation.sweep(sizes=(100, 200), runs=3)
    assert done.flow.shape == done.gaussian.shape == (2, 3, 12)
    # At w = 1 all methods are the observed estimate.
    for column in (lni_correlation.LNI.stop - 1, lni_correlation.DIRECT.stop - 1):
        assert np.allclose(done.flow[:, :, column], done.observed, atol=1e-5)
    rows = lni_correlation.rates(done) + lni_correlation.cells(done, 200)
    assert all(math.isfinite(row.ours) for row in rows)
    assert lni_correlation.table(done).count("\n") == 4
    lni_correlation.draw(done, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_runs_come_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS", "1")
    assert over_runs(abs, [-3, 2, -1], "test") == [3, 2, 1]


def test_attack_study_runs_at_toy_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = Training(5, math.inf, None, learning_rate=0.02, batch=50)
    monkeypatch.setattr(lni_mia, "ARCH", Architecture(5, 1, (4,)))
    monkeypatch.setattr(lni_mia, "training", lambda n: short)
    monkeypatch.setattr(lni_mia, "N", 120)
    monkeypatch.setattr(lni_mia, "WEIGHTS", (0.0, 0.5, 0.75, 1.0))
    monkeypatch.setattr(lni_mia, "SHOWN", (0.5, 1.0))
    found = np.array([lni_mia.one(seed) for seed in range(2)])
    assert found.shape == (2, 3, len(lni_mia.WEIGHTS), len(lni_mia.MEASURES))
    # Rows that leave as they are: found for certain, and nobody is nearer than they.
    assert (found[:, :, -1, 0] == 1).all()
    assert (found[:, lni_mia.DIRECT, -1, 2] == 0).all()
    measured = lni_mia.reach(n=120)
    assert len(lni_mia.attack_rows(found)) == 2 * found.shape[2] * found.shape[3]
    lni_mia.draw(found, lni_mia.curves(), measured, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_stretch_of_a_linear_map_is_its_largest_singular_value(rows: np.ndarray) -> None:
    gaussian = GaussianMap.of(rows)
    whitening = np.linalg.inv(gaussian.factor)
    largest = np.linalg.norm(whitening, ord=2)
    assert lni_mia.stretch(gaussian, rows[:50]) == pytest.approx(largest, rel=1e-6)


def test_theorem_2_overstates_what_two_rows_so_far_apart_have() -> None:
    for w in lni_mia.BUDGETS:
        claimed = lni_mia.theorem_2(w, 1.0)
        exact = lni_mia.between(w, 1.0)
        assert exact < claimed
        assert gaussian_delta(math.sqrt(w / (1 - w)), exact) == pytest.approx(1e-5, rel=1e-3)
        # The charge is for the move from the null record, R; any two rows are 2R apart.
        assert lni_mia.between(w, 3.0) <= lni_mia.owed(w) <= 1.1 * lni_mia.between(w, 3.0)
        assert lni_mia.owed(w) < lni_mia.between(w, 6.0)
    assert lni_mia.theorem_2(0.5, 1.0) == pytest.approx(0.5 + math.sqrt(2 * math.log(1e5)))
