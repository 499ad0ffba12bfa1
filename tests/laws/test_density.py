"""The law of a fitted model's density: a change of variables, all the way from rows to latents."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from tests.support.engines import perturbed
from tests.support.measured import noisy_histograms

from penstock.mechanisms.flow.architecture import Architecture
from penstock.mechanisms.tables.fitting import Model
from penstock.mechanisms.tables.margins import BINS, Margins
from penstock.mechanisms.tables.moments import Affine
from penstock.privacy.noise.sources import SeededNoise
from penstock.schema import Column, Schema
from penstock.schema.encoding import Encoding

Array = NDArray[np.float64]

STEP = 1e-6
"""Of the differences; a bin is at least 0.03 wide, and F is smooth within."""

SCHEMA = Schema(
    (
        Column("x", "continuous", -4, 4),
        Column("t", "duration", upper=10, event="e"),
        Column("e", "event"),
        Column("stage", "ordered", levels=("a", "b", "c")),
    )
)


def model_of(encoding: Encoding, x: Array, halves: bool) -> Model:
    """Margins as counted of these rows, and a map and a flow, in double precision, of any kind."""
    d, low, high, levels = encoding.d, encoding.low, encoding.high, encoding.levels
    outcomes = encoding.outcomes if halves else ()
    there = np.ones((len(x), 1), dtype=bool)
    counts = noisy_histograms(x[:, None], there, low, high, None, SeededNoise(0), outcomes, levels)
    rng = np.random.default_rng(5)
    affine = Affine(1.5 * np.eye(d) + 0.3 * rng.standard_normal((d, d)), rng.standard_normal(d) / 4)
    flow = perturbed(Architecture(d, flows=2, hidden=(8,)), size=0.1)
    return Model(low, high, Margins(counts, low, high, outcomes, levels), affine, flow, len(x))


def jacobians(model: Model, x: Array) -> Array:
    """(n, d, d), ∂z/∂x by central differences."""
    steps = STEP * np.eye(x.shape[1])
    columns = [(model.to_latent(x + h) - model.to_latent(x - h)) / (2 * STEP) for h in steps]
    return np.stack(columns, axis=-1)


@pytest.mark.parametrize("halves", [False, True])
def test_the_density_is_the_change_of_variables(halves: bool) -> None:
    rng = np.random.default_rng(2)
    e = (rng.random(2000) < 0.4) * 1.0
    t = np.where(e > 0, rng.gamma(2.0, 0.8, 2000), rng.normal(9, 1, 2000)).clip(0, 10)
    table = {"x": rng.standard_t(4, 2000).clip(-4, 4), "t": t, "e": e}
    encoding = Encoding(SCHEMA)
    rows, _ = encoding.encode({**table, "stage": rng.integers(0, 3, 2000)}, rng)
    model = model_of(encoding, rows, halves)
    # At the centres of bins, since F has kinks at their edges; away from where scores have ended.
    width = (encoding.high - encoding.low) / BINS
    x = encoding.low + width * (np.floor((rows - encoding.low) / width) + 0.5)
    x = x[(np.abs(model.margins.to_scores(x)) < 3).all(axis=1)][:200]
    assert len(x) == 200
    # The other event's curve is another, if there are two.
    [(time, event, end)] = encoding.outcomes
    assert 0 < (x[:, end] > 0).mean() < 1
    other = x * np.where(np.arange(encoding.d) == event, -1.0, 1.0)
    moved = model.margins.to_scores(other)[:, time] != model.margins.to_scores(x)[:, time]
    assert moved.mean() > 0.9 if halves else not moved.any()

    wanted = stats.norm.logpdf(model.to_latent(x)).sum(axis=1)
    wanted += np.linalg.slogdet(jacobians(model, x))[1]
    np.testing.assert_allclose(model.log_density(x), wanted, rtol=0, atol=1e-5)
