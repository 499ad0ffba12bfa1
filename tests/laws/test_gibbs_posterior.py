"""The posteriors' promises: gradients, one person's reach, convexity and smoothness."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.measured import noisy_sum

from penstock.base.errors import InvalidEvent
from penstock.mechanisms.gibbs import sums
from penstock.mechanisms.gibbs.curvature import symmetric, triangle
from penstock.mechanisms.gibbs.families import (
    LEAST_SHAPE,
    LINEAR_LOSS,
    LOGISTIC_LOSS,
    POISSON_LOSS,
    WEIBULL_LOSS,
)
from penstock.mechanisms.gibbs.posterior import Piecewise, Regression, weights
from penstock.mechanisms.gibbs.preparation import place
from penstock.privacy.noise.sources import SeededNoise

Array = NDArray[np.float64]
Posterior = Regression | Piecewise
LOSSES = {
    "linear": LINEAR_LOSS,
    "logistic": LOGISTIC_LOSS,
    "poisson": POISSON_LOSS,
    "weibull": WEIBULL_LOSS,
}
FAMILIES = (*LOSSES, "piecewise")
BOUNDED = (*FAMILIES, "stopped")
"""Those of which one row's gradient is bounded; stopped ones are convex no more."""
BOUND = 1.7


def made(
    family: str, persons: int = 40, rows: int = 1, seed: int = 0, wild: float = 1.0
) -> Posterior:
    """A posterior on random rows; ``wild`` stretches the covariates beyond their bound."""
    rng = np.random.default_rng(seed)
    n, q = persons * rows, 3
    x = rng.normal(size=(n, q)) * wild
    weight = weights(x, BOUND)
    if family in ("piecewise", "stopped"):
        hazard = rng.dirichlet(np.ones(4), n) * rng.random((n, 1)) * 1.1
        died = np.eye(4)[rng.integers(0, 4, n)] * (rng.random((n, 1)) < 0.5)
        start = np.zeros(4 + q)
        return Piecewise(
            *(hazard, died, x, weight, 1.1, 2.5, 1 + BOUND**2, persons, rows, start, 0.02),
            stopped=family == "stopped",
        )
    one, late = np.ones((n, 1)), rng.uniform(-2, 1, (n, 1))
    design = np.hstack([one, late, x] if family == "weibull" else [one, x])
    y = {
        "linear": rng.normal(size=n) * 2,
        "poisson": rng.integers(0, 9, n).astype(np.float64),
    }.get(family, (rng.random(n) < 0.4).astype(np.float64))
    start = np.zeros(design.shape[1])
    if family == "weibull":
        start[1] = 1.0
    fixed = 5.0 if family == "weibull" else 1.0
    limit = {"linear": 1.5, "poisson": 3.0, "weibull": 1.4}.get(family, 1.0)
    loss, squared = LOSSES[family], fixed + BOUND**2
    return Regression(loss, design, y, weight, squared, limit, persons, rows, start, 0.02, 8.0, 0.0)


def thetas(posterior: Posterior, count: int, seed: int = 1) -> list[Array]:
    """θ of all sizes: from next to the start to far beyond any estimate."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.uniform(-2, 2, count)
    return [posterior.start + s * rng.normal(size=posterior.dimension) for s in sizes]


def of_data(posterior: Posterior, theta: Array) -> Array:
    """The gradient without the ridge, times n."""
    bare = posterior.gradient(theta) - posterior.ridge * (theta - posterior.start)
    return posterior.persons * bare


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_the_loss(family: str) -> None:
    posterior = made(family)
    if isinstance(posterior, Regression) and family == "weibull":
        posterior = replace(posterior, events=11.0)
    rng = np.random.default_rng(3)
    for size in (0.1, 0.5, 2.0):
        theta = posterior.start + size * rng.normal(size=posterior.dimension)
        steps = 1e-6 * np.eye(posterior.dimension)
        slopes = [(posterior.loss(theta + s) - posterior.loss(theta - s)) / 2e-6 for s in steps]
        assert posterior.gradient(theta) == pytest.approx(np.array(slopes), abs=2e-7)


@pytest.mark.parametrize("family", BOUNDED)
def test_rows_own_gradients_add_up_to_the_whole(family: str) -> None:
    """Each at most 1 in units of the reach, and the same whichever rows stand beside it."""
    posterior = made(family, persons=41, wild=3.0)
    if isinstance(posterior, Regression) and family == "weibull":
        posterior = replace(posterior, events=11.0)
    for theta in thetas(posterior, 20):
        rows = posterior.row_gradients(theta, slice(0, 41))
        assert np.linalg.norm(rows, axis=1).max() <= 1 + 1e-12
        whole = posterior.reach / 41 * rows.sum(axis=0) + posterior.prior_gradient(theta)
        assert whole == pytest.approx(posterior.gradient(theta), rel=1e-9, abs=1e-9)
        parts = [posterior.row_gradients(theta, slice(i, i + 7)) for i in range(0, 41, 7)]
        np.testing.assert_array_equal(np.concatenate(parts), rows)


@pytest.mark.parametrize("family", BOUNDED)
@pytest.mark.parametrize("wild", [0.3, 3.0, 1e6])
def test_no_row_moves_the_gradient_beyond_its_reach(family: str, wild: float) -> None:
    for seed in range(60):
        posterior = made(family, persons=1, seed=seed, wild=wild)
        for theta in thetas(posterior, 20, seed):
            assert np.linalg.norm(of_data(posterior, theta)) <= posterior.reach * (1 + 1e-9)


def adversary(family: str) -> tuple[Posterior, Array]:
    """One row and a θ at which its gradient is as long as it can be."""
    posterior = made(family, persons=1)
    x = np.array([[BOUND, 0.0, 0.0]])
    if isinstance(posterior, Piecewise):
        hazard, died = np.zeros((1, 4)), np.zeros((1, 4))
        hazard[0, 0] = posterior.most
        far = posterior.start + 30.0
        return replace(posterior, hazard=hazard, died=died, covariates=x, weight=np.ones(1)), far
    one = np.ones((1, 1))
    late = [np.full((1, 1), -2.0)] if family == "weibull" else []
    y, far = np.zeros(1), posterior.start * 0
    far[0] = 35.0
    if family == "weibull":
        y, far[0] = np.zeros(1), 35.0
    if family == "linear":
        far[0] = 1e3
    row = np.hstack([one, *late, x])
    return replace(posterior, design=row, outcome=y, weight=np.ones(1)), far


@pytest.mark.parametrize("family", BOUNDED)
def test_the_reach_is_attained(family: str) -> None:
    posterior, theta = adversary(family)
    assert np.linalg.norm(of_data(posterior, theta)) == pytest.approx(posterior.reach, rel=1e-6)


@pytest.mark.parametrize("family", BOUNDED)
@pytest.mark.parametrize("rows", [1, 3])
def test_zeroing_a_person_out_moves_the_mean_gradient_by_less_than_is_charged(
    family: str, rows: int
) -> None:
    whole = made(family, persons=30, rows=rows, wild=2.0)
    kept = whole.weight.copy()
    kept[:rows] = 0.0
    without = replace(whole, weight=kept)
    for theta in thetas(whole, 100):
        moved = np.linalg.norm(whole.gradient(theta) - without.gradient(theta))
        assert moved <= rows * whole.reach / 30 * (1 + 1e-9)


def test_a_stopped_score_has_mean_zero_at_the_truth_and_one_that_is_cut_off_has_not() -> None:
    """Slopes that take a third of the persons' hazards beyond the bound; 4.4 is 1e-5."""
    rng, n, slope = np.random.default_rng(5), 40_000, 1.4
    x = np.column_stack([rng.integers(0, 2, n), rng.integers(0, 2, n)]).astype(np.float64)
    cumulative = rng.exponential(size=n) / np.exp(slope * x.sum(axis=1))
    lived = np.clip(cumulative[:, None] - np.array([0.0, 0.25]), 0.0, 0.25)
    died = (lived > 0) & (lived < 0.25)
    of = (lived, died.astype(np.float64), x, weights(x, BOUND), 0.5, 2.0, 1 + BOUND**2, n, 1)
    truth = np.array([0.0, 0.0, slope, slope])
    for stopped in (True, False):
        posterior = Piecewise(*of, truth, 1e-6, stopped=stopped)
        per_row = [
            replace(posterior, hazard=lived[p], died=of[1][p], covariates=x[p], weight=of[3][p])
            for p in np.array_split(np.arange(n), 200)
        ]
        parts = np.array([each.gradient(truth) for each in per_row]) * n
        z = parts.mean(axis=0) / (parts.std(axis=0, ddof=1) / math.sqrt(len(parts)))
        assert (np.abs(z).max() < 4.4) == stopped


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("wild", [0.5, 5.0])
@pytest.mark.parametrize("empty", [False, True])
def test_every_neighbour_is_convex_and_smooth(family: str, wild: float, empty: bool) -> None:
    posterior = made(family, rows=2, wild=wild)
    if empty:
        posterior = replace(posterior, weight=posterior.weight * 0)
    high = posterior.rows * posterior.bend + posterior.ridge
    points = thetas(posterior, 60)
    for a, b in pairwise(points):
        turned = posterior.gradient(a) - posterior.gradient(b)
        along, far = float(turned @ (a - b)), float((a - b) @ (a - b))
        assert along >= posterior.ridge * far * (1 - 1e-9)
        assert float(turned @ turned) <= high * along * (1 + 1e-9)  # co-coercive: convex, smooth


def test_a_shape_keeps_its_own_term_convex_and_smooth() -> None:
    posterior = made("weibull")
    assert isinstance(posterior, Regression)
    with_events = replace(posterior, events=20.0)
    shapes = np.linspace(-1, 3, 200)
    slopes = []
    for shape in shapes:
        theta = posterior.start.copy()
        theta[1] = shape
        slopes.append((with_events.gradient(theta) - posterior.gradient(theta))[1])
    rise = np.diff(slopes) / np.diff(shapes)
    assert rise.min() >= -1e-12
    assert rise.max() <= 20 / 40 / LEAST_SHAPE**2


@pytest.mark.parametrize("family", FAMILIES)
def test_information_is_the_hessian_and_bounded(family: str) -> None:
    posterior = made(family, persons=60)
    theta = posterior.start + 0.05
    cap = 20.0
    found = posterior.information(theta, cap, slice(0, 60)).sum(axis=0)
    matrix = symmetric(found, posterior.dimension) * cap * posterior.squared / 60
    steps = 1e-6 * np.eye(posterior.dimension)
    columns = [
        (posterior.gradient(theta + s) - posterior.gradient(theta - s)) / 2e-6 for s in steps
    ]
    ridge = posterior.ridge * np.eye(posterior.dimension)
    assert matrix + ridge == pytest.approx(np.array(columns), abs=2e-6)
    for far in thetas(made(family, wild=1e5), 30):
        rows = made(family, wild=1e5).information(far, 0.4, slice(0, 40))
        assert np.linalg.norm(rows, axis=1).max() <= 1 + 1e-10


@pytest.mark.parametrize("family", BOUNDED)
def test_tensors_give_the_same_gradient(family: str) -> None:
    torch = pytest.importorskip("torch")
    posterior = made(family)
    names = ("hazard", "died", "covariates", "weight")
    names = names if isinstance(posterior, Piecewise) else ("design", "outcome", "weight")
    moved = {n: torch.asarray(getattr(posterior, n), dtype=torch.float64) for n in names}
    for theta in thetas(posterior, 10):
        there = replace(posterior, **moved).gradient(theta)
        assert there == pytest.approx(posterior.gradient(theta), rel=1e-12, abs=1e-12)
        bent = replace(posterior, **moved).information(theta, 0.7, slice(0, 9))
        assert bent == pytest.approx(posterior.information(theta, 0.7, slice(0, 9)), abs=1e-12)
    assert place(posterior.weight, "cpu") is posterior.weight


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_posterior_needs_positive_numbers(bad: float) -> None:
    linear, pieces = made("linear"), made("piecewise")
    for name in ("ridge", "squared", "limit"):
        with pytest.raises(InvalidEvent):
            replace(linear, **{name: bad})
    for name in ("ridge", "most", "relative"):
        with pytest.raises(InvalidEvent):
            replace(pieces, **{name: bad})


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(InvalidEvent):
        replace(made("linear"), family="probit")  # type: ignore[arg-type]


# Noisy sums -----------------------------------------------------------------------------------


def test_sums_move_by_their_reach_at_most_and_are_exact() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 6))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    quiet = noisy_sum(500, 6, lambda part: rows[part], 1e-6, 1, SeededNoise(0))
    assert quiet == pytest.approx(rows.sum(axis=0), abs=2e-5)
    whole = np.rint(rows / sums.UNIT) * sums.UNIT
    assert np.linalg.norm(whole, axis=1).max() <= sums.reach(6, 1)


def test_what_is_too_long_or_not_a_number_is_left_out() -> None:
    rows = np.full((3, 2), 0.1)
    rows[1] = np.nan
    rows[2] = 5.0
    total = noisy_sum(3, 2, lambda part: rows[part], 1e-6, 1, SeededNoise(0))
    assert total == pytest.approx([0.1, 0.1], abs=2e-5)


def test_a_symmetric_matrix_comes_back() -> None:
    rng = np.random.default_rng(1)
    matrix = rng.normal(size=(4, 4))
    matrix = matrix + matrix.T
    first, second, factor = triangle(4)
    vector = matrix[first, second] * factor
    assert symmetric(vector, 4) == pytest.approx(matrix)
    assert np.linalg.norm(vector) == pytest.approx(np.linalg.norm(matrix))
