"""How much hangs on few persons, and the residuals by which that is told."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from lifelines import CoxPHFitter

from penstock.questions.fits.partial_likelihood import find_residuals, fit_cox
from penstock.questions.outliers import MOST_BESIDE, join_doubts, share_few


def test_the_few_are_one_in_two_hundred() -> None:
    values = np.append(np.full(3980, 1.0), np.full(20, -14.0))
    assert share_few(values) == pytest.approx(20 * 196 / (3980 + 20 * 196))
    assert share_few(np.ones(1000)) == pytest.approx(1 / 200)
    # Of a weight of 2 there are two.
    weights = np.append(np.full(3980, 2.0), np.full(20, 1.0))
    twice = share_few(values, weights=weights)
    assert twice == pytest.approx((20 * 196 + 19.9) / (7960 + 20 * 196), rel=1e-9)


def test_where_events_are_rare_fewer_are_few() -> None:
    values = np.append(np.zeros(980), np.ones(20))
    assert share_few(values) == pytest.approx(0.25)
    assert share_few(values, telling=0.02) == pytest.approx(0.25 * 0.12)
    assert share_few(values, telling=0.5) == share_few(values)


def test_nothing_hangs_on_nobody() -> None:
    assert share_few(np.zeros(10)) == 0


def test_a_column_beside_makes_an_answer_doubtful_and_no_more() -> None:
    assert join_doubts(0.1, []) == 0.1
    assert join_doubts(0.1, [0.05, 0.4]) == 0.4
    assert join_doubts(0.1, [0.9]) == MOST_BESIDE
    assert join_doubts(0.7, [0.9]) == 0.7


def cohort(decimals: int, seed: int = 1, n: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    design = rng.standard_normal((n, 2))
    time = rng.exponential(np.exp(-design @ [0.7, -0.4]))
    event = (rng.random(n) < 0.6) * 1.0
    return np.round(time, decimals) + 10.0**-decimals, event, design


def test_martingale_residuals_are_those_of_lifelines() -> None:
    time, event, design = cohort(12)
    fitted = fit_cox(time, event, design)
    residual, met = find_residuals(time, event, design, None, fitted.coefficients)
    frame = pd.DataFrame({"t": time, "d": event, "a": design[:, 0], "b": design[:, 1]})
    fitter = CoxPHFitter().fit(frame, "t", "d", fit_options={"precision": 1e-12})
    theirs = fitter.compute_residuals(frame, "martingale")["martingale"].sort_index().to_numpy()
    assert residual == pytest.approx(theirs, abs=1e-8)
    assert residual == pytest.approx(event - met, abs=1e-14)


@pytest.mark.parametrize("strata", [None, np.arange(300) % 3])
def test_with_ties_and_strata_they_add_up_to_nothing(strata: np.ndarray | None) -> None:
    time, event, design = cohort(1)
    assert len(np.unique(time[event == 1])) < 100
    fitted = fit_cox(time, event, design, strata)
    residual, met = find_residuals(time, event, design, strata, fitted.coefficients)
    assert residual @ design == pytest.approx(0, abs=1e-8)
    for number in (0,) if strata is None else range(3):
        own = residual if strata is None else residual[strata == number]
        assert own.sum() == pytest.approx(0, abs=1e-9)
    assert (met >= 0).all()
    other, _ = find_residuals(time, event, design, strata, fitted.coefficients + 0.1)
    assert np.abs(other @ design).max() > 1


def test_a_stratum_without_events_tells_nothing() -> None:
    time, event, design = cohort(1)
    strata = np.arange(300) % 2
    event[strata == 1] = 0
    residual, met = find_residuals(time, event, design, strata, np.zeros(2))
    assert not residual[strata == 1].any()
    assert not met[strata == 1].any()
