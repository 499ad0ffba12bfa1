"""Cox's model by sums of columns, against statsmodels' PHReg, which agrees with R's survival."""

from __future__ import annotations

import numpy as np
import pytest
from statsmodels.duration.hazard_regression import PHReg

from penstock.questions.fits.partial_likelihood import fit_cox


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
