"""What a known mean adds to a column's noisy counts."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.mechanisms.copula.densities import Known
from penstock.mechanisms.copula.grids import make_grid, middle_of, place_of
from penstock.mechanisms.structured.outcomes.support import Support
from penstock.schema import Column

ROWS, SD = 2000, 15.0
VISITS = Column("visits", "integer", lower=0, upper=100)


def read_visits(rng: np.random.Generator, error: float | None) -> tuple[Support, float, float]:
    """Of noisy counts: the support, the mean of its parts, and that of the rows."""
    grid = make_grid(VISITS)
    values = np.minimum(rng.negative_binomial(0.6, 0.1, ROWS), 100).astype(float)
    counts = np.bincount(place_of(grid, values), minlength=grid.count)
    noisy = counts + np.rint(SD * rng.standard_normal(grid.count))
    mean = float(values.mean())
    points = np.nan_to_num(middle_of(grid))
    known = [] if error is None else [Known(points, mean, error)]
    found = Support.read(grid, noisy, SD, None, known)
    return found, float(found.shares @ found.values), mean


@pytest.mark.parametrize("seed", range(4))
def test_a_known_mean_holds_how_a_tail_falls_off(seed: int) -> None:
    found, mean, real = read_visits(np.random.default_rng(seed), 0.05)
    assert mean == pytest.approx(real, rel=0.03)
    assert (np.diff(found.cuts) > 0).all()
    # What scores may move of the tail is little, and does not grow with how far out it is.
    assert found.loose[0] < 0.5
    spread = np.sqrt(found.shares @ (found.values - mean) ** 2)
    assert 0 < found.hidden.max() <= spread * (1 + 1e-9)


def test_a_mean_that_is_hardly_known_leaves_the_tail_to_the_scores() -> None:
    [tight, loose] = [
        read_visits(np.random.default_rng(0), error)[0].loose[0] for error in (0.05, 1.0)
    ]
    assert tight < loose <= 1
    alone, _, _ = read_visits(np.random.default_rng(0), None)
    assert (alone.loose == 1).all()
    assert alone.hidden.max() > read_visits(np.random.default_rng(0), 0.05)[0].hidden.max()
