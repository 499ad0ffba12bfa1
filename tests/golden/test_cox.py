"""Cox's model by sums of columns, against statsmodels' PHReg, which agrees with R's survival; its
robust covariance against R's survival itself (tests/golden/data/robust_cox.R), which lifelines 0.30
is not near to, and against what score residuals are by definition."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from statsmodels.duration.hazard_regression import PHReg

from penstock.questions.fits import partial_likelihood
from penstock.questions.fits.newton import KnownMaxima, Maximum
from penstock.questions.fits.partial_likelihood import find_sandwich, fit_cox

DATA = Path(__file__).parent / "data"
ROBUST: dict[str, Any] = json.loads((DATA / "robust_cox.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("distinct", [3.0, 20.0, 1000.0])
@pytest.mark.parametrize("columns", [1, 4])
def test_it_is_phreg_with_few_ties_and_with_many(columns: int, distinct: float) -> None:
    rng = np.random.default_rng([columns, int(distinct)])
    x = rng.normal(size=(300, columns))
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    time = np.ceil(rng.exponential(size=300) * np.exp(-0.5 * x[:, 0]) * distinct)
    event = (rng.random(300) < 0.4).astype(np.float64)
    found = fit_cox(time, event, x)
    peer = PHReg(time, x, status=event, ties="efron").fit(maxiter=50, disp=0)
    np.testing.assert_allclose(found.coefficients, peer.params, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.covariance, peer.cov_params(), rtol=1e-9)
    assert 0 <= found.to_gain < 1e-15


def test_a_regression_is_one_whichever_of_its_coefficients_is_asked() -> None:
    """To the last digit, and fitted once."""
    rng = np.random.default_rng(3)
    x, time = rng.normal(size=(200, 4)), np.ceil(rng.exponential(size=200) * 30)
    event, strata = (rng.random(200) < 0.6).astype(np.float64), rng.integers(0, 2, 200) * 1.0
    known = KnownMaxima()
    plain = fit_cox(time, event, x, None, known)
    for order in ([3, 2, 1, 0], [1, 3, 0, 2]):
        turned = fit_cox(time, event, x[:, order])
        np.testing.assert_array_equal(turned.coefficients, plain.coefficients[order])
        np.testing.assert_array_equal(turned.covariance, plain.covariance[np.ix_(order, order)])
        with patch.object(partial_likelihood, "maximise", side_effect=AssertionError):
            again = fit_cox(time, event, x[:, order], None, known)
        np.testing.assert_array_equal(again.coefficients, turned.coefficients)
    # Nothing else is taken for it.
    for other in ((time, 1 - event, x, None), (time, event, x, strata), (time, event, x[:, 1:])):
        found = fit_cox(*other, known=known)
        np.testing.assert_array_equal(found.coefficients, fit_cox(*other).coefficients)


def test_what_was_fitted_last_is_known() -> None:
    known, made = KnownMaxima(2), []

    def find(number: int) -> None:
        def make() -> Maximum:
            made.append(number)
            return Maximum(np.array([1.0]), np.eye(1), 0.0)

        known.find([np.array([float(number)])], make)

    for number in (1, 2, 1, 3, 1, 2):
        find(number)
    assert made == [1, 2, 3, 2]


def test_rows_that_drop_out_before_any_event_change_nothing() -> None:
    rng = np.random.default_rng(2)
    x, time = rng.normal(size=(80, 2)), rng.exponential(size=80) + 1
    event = np.ones(80)
    plain = fit_cox(time, event, x)
    more = fit_cox(
        np.append(time, [0.1, 0.2]), np.append(event, [0.0, 0.0]), np.vstack([x, [[5, 5], [-3, 1]]])
    )
    np.testing.assert_allclose(more.coefficients, plain.coefficients, atol=1e-12)


def test_far_out_no_number_is_lost_to_the_latest_events() -> None:
    """Late events have the smallest risk sets, and sums over them must not swallow early ones."""
    x = np.linspace(-3, 3, 200)[:, None]
    time = np.exp(-4 * x[:, 0] + np.random.default_rng(4).normal(size=200))
    found = fit_cox(time, np.ones(200), x)
    peer = PHReg(time, x, ties="efron").fit(maxiter=100, disp=0)
    np.testing.assert_allclose(found.coefficients, peer.params, rtol=1e-9)
    np.testing.assert_allclose(found.covariance, peer.cov_params(), rtol=1e-8)


@pytest.mark.parametrize("name", ["plain", "strata", "tied", "tied_strata"])
def test_robust_errors_are_those_of_r(name: str) -> None:
    """R stops at 1e-14 of the log likelihood: 1e-9 is what is left of variances."""
    with (DATA / "lung.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    time, status, age, sex = (
        np.array([float(row[column]) for row in rows])
        for column in ("time", "status", "age", "sex")
    )
    time = np.ceil(time / 30) if "tied" in name else time
    strata = np.arange(len(rows)) % 3.0 if "strata" in name else None
    design = np.stack([age - age.mean(), sex], axis=1)
    found = fit_cox(time, status - 1, design, strata)
    gold = ROBUST[name]
    assert found.coefficients == pytest.approx(list(gold["coef"].values()), rel=1e-9)
    assert found.covariance == pytest.approx(np.array(gold["model"]), rel=1e-9)
    robust = find_sandwich(time, status - 1, design, strata, found)
    assert robust == pytest.approx(np.array(gold["robust"]), rel=1e-9)


@pytest.mark.parametrize("distinct", [2.0, 1000.0])
def test_a_score_residual_is_what_a_rows_weight_does_to_the_score(distinct: float) -> None:
    """Efron's likelihood with weights, event by event, and its derivatives by differences."""
    rng = np.random.default_rng(int(distinct))
    n = 40
    x = rng.normal(size=(n, 2))
    time = np.ceil(rng.exponential(size=n) * distinct)
    event = (rng.random(n) < 0.7).astype(np.float64)
    found = fit_cox(time, event, x)
    risks = np.exp(x @ found.coefficients)

    def find_score(weights: np.ndarray) -> np.ndarray:
        total = np.zeros(2)
        for at in np.unique(time[event == 1]):
            tied, there = (time == at) & (event == 1), time >= at
            weighed = weights * risks
            d = int(tied.sum())
            total += (weights[tied, None] * x[tied]).sum(axis=0)
            for place in range(d):
                own = weighed * (there - place / d * tied)
                total -= weights[tied].mean() * (own @ x) / own.sum()
        return total

    each = []
    for row in range(n):
        step = np.zeros(n)
        step[row] = 1e-5
        each.append((find_score(1 + step) - find_score(1 - step)) / 2e-5)
    moved = np.stack(each) @ found.covariance
    robust = find_sandwich(time, event, x, None, found)
    assert robust == pytest.approx(moved.T @ moved, rel=1e-6)
