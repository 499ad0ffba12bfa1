"""The Fréchet distance, the generator and the accounting of `make reproduce NAME=swf-digits`."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.linalg import sqrtm
from scipy.special import log_ndtr
from tests.studies import swf_digits
from tests.studies import swf_digits_images as images
from tests.studies.swf_digits_figure import ACROSS, DOWN, SHOWN, tiled
from tests.studies.swf_digits_generator import Generated
from tests.studies.swf_digits_methods import (
    Moments,
    Presampled,
    Resampled,
    Sketched,
)

from penstock.privacy.accounting.accountant import epsilon_pld
from penstock.privacy.events import FixedSizeGaussian, Gaussian
from penstock.privacy.noise.sources import SeededNoise


def _sample(mean: np.ndarray, covariance: np.ndarray, n: int = 40, seed: int = 0) -> np.ndarray:
    """Rows whose own mean and covariance (n - 1) are exactly these."""
    x = np.random.default_rng(seed).standard_normal((n, len(mean)))
    x -= x.mean(axis=0)
    white = np.linalg.solve(np.linalg.cholesky(np.cov(x, rowvar=False)), x.T).T
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    return white @ root + mean


def test_frechet_of_commuting_gaussians() -> None:
    a = _sample(np.array([1.0, -2.0, 0.5]), np.diag([4.0, 1.0, 0.25]))
    b = _sample(np.array([0.0, -2.0, 2.5]), np.diag([1.0, 9.0, 0.25]), n=70, seed=1)
    assert images.frechet(a, b) == pytest.approx(1 + 4 + (2 - 1) ** 2 + (3 - 1) ** 2, rel=1e-9)


def test_frechet_of_gaussians_that_do_not_commute() -> None:
    c = np.array([[2.0, 0.9], [0.9, 1.0]])
    e = np.array([[0.5, -0.3], [-0.3, 3.0]])
    expected = 25 + np.trace(c + e - 2 * np.real(sqrtm(c @ e)))
    a, b = _sample(np.array([3.0, 0.0]), c), _sample(np.array([0.0, 4.0]), e, seed=2)
    assert images.frechet(a, b) == pytest.approx(expected, rel=1e-9)
    assert images.frechet(b, a) == pytest.approx(expected, rel=1e-9)


def test_frechet_of_singular_covariances() -> None:
    a = _sample(np.zeros(2), np.diag([1.0, 0.0]))
    b = _sample(np.zeros(2), np.diag([0.0, 4.0]), seed=3)
    assert images.frechet(a, b) == pytest.approx(5.0, rel=1e-6)
    assert images.frechet(a, a) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("broken", [np.zeros((1, 2)), np.zeros((5, 3)), np.full((5, 2), np.nan)])
def test_frechet_refuses(broken: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"shape|finite"):
        images.frechet(np.eye(2), broken)


def test_rows_are_on_the_sphere() -> None:
    x = np.random.default_rng(0).standard_normal((500, 8)) * 1e3
    x[0] = 0.0
    norms = np.linalg.norm(images.on_sphere(x), axis=1)
    assert norms.max() <= 1.0
    assert norms.min() > 1 - 1e-9


def test_tiles_keep_every_image() -> None:
    made = np.arange(SHOWN)[:, None] + np.zeros(64)
    whole = tiled(made)
    assert whole.shape == (9 * DOWN - 1, 9 * ACROSS - 1)
    assert np.array_equal(whole[::9, ::9].ravel(), np.arange(SHOWN))


def test_what_a_generator_costs() -> None:
    generator = Generated(steps=10, batch=30, bases=2, rate=1e-3)
    (sampled,) = generator.events(100, 2, 1.5)
    assert isinstance(sampled, FixedSizeGaussian)
    assert (sampled.batch, sampled.population, sampled.count) == (30, 100, 10)
    # All rows at every step: μ = √steps over the noise multiplier on the diameter.
    whole = generator.events(30, 2, 1.5)
    assert epsilon_pld(whole, 1e-5, relation="replace-one") == pytest.approx(
        epsilon_pld((Gaussian(1.5 / math.sqrt(10)),), 1e-5), rel=1e-9
    )


@pytest.mark.thorough
def test_a_generator_learns_and_noise_hinders_it() -> None:
    rng = np.random.default_rng(5)
    corners = np.array([[0.7, 0.0], [-0.7, 0.0], [0.0, 0.7]])
    rows = corners[rng.integers(3, size=300)] + 0.03 * rng.standard_normal((300, 2))

    def apart(sigma: float | None, steps: int) -> float:
        generator = Generated(steps, batch=300, bases=4, rate=3e-3)
        made = generator.run(rows, sigma, 1000, SeededNoise(6))
        return images.sliced_w2(made, rows, np.random.default_rng(9))

    learnt = apart(None, 80)
    assert learnt < 0.15
    assert learnt < 0.5 * apart(None, 1)
    assert learnt < 0.5 * apart(5.0, 80)


def test_sliced_distance_of_a_shift() -> None:
    """Of rows moved by v: ‖v‖/√d over whole bases, exactly."""
    x = np.random.default_rng(0).standard_normal((400, 5))
    moved = x + np.array([0.3, 0.0, -0.4, 0.0, 0.0])
    found = images.sliced_w2(moved, x, np.random.default_rng(1))
    assert found == pytest.approx(0.5 / math.sqrt(5), rel=1e-9)


class _Counting(SeededNoise):
    """Keeps the shapes of the noise that was drawn."""

    def __init__(self) -> None:
        super().__init__(3)
        self.drawn: list[tuple[int, ...]] = []

    def normal(self, shape: int | tuple[int, ...]) -> np.ndarray:
        self.drawn.append(shape if isinstance(shape, tuple) else (shape,))
        return super().normal(shape)


def _rows(n: int = 400) -> np.ndarray:
    """On two arcs of a circle, so that no Gaussian is like them."""
    rng = np.random.default_rng(11)
    angle = rng.choice([0.3, 2.4], size=n) + 0.2 * rng.standard_normal(n)
    return images.on_sphere(np.column_stack([np.cos(angle), np.sin(angle)]))


def test_reused_noise_is_drawn_once_and_other_noise_at_every_step() -> None:
    once, anew = _Counting(), _Counting()
    Presampled(steps=7, bases=3, at_once=2, step=0.5, last=0.1).run(_rows(), 1.0, 50, once)
    assert once.drawn == [(400, 6)]
    Resampled(steps=7, batch=60, bases=3, step=0.5, last=0.1).run(_rows(), 1.0, 50, anew)
    assert anew.drawn == [(60, 6)] * 7


@pytest.mark.thorough
def test_every_method_is_calibrated_under_replace_one() -> None:
    epsilon = 5.0
    for name, method in swf_digits.methods(epsilon).items():
        sigma = swf_digits.multiplier(name, epsilon, 673)
        assert sigma is not None
        cost = epsilon_pld(method.events(673, 8, sigma), swf_digits.DELTA, relation="replace-one")
        assert 0.99 * epsilon <= cost <= epsilon, name


@pytest.mark.thorough
def test_flows_reach_their_rows_and_noise_hinders_them() -> None:
    rows = _rows()

    def apart(method: swf_digits.Method, sigma: float | None) -> float:
        made = method.run(rows, sigma, 1000, SeededNoise(4))
        return images.sliced_w2(made, rows, np.random.default_rng(5))

    bare = apart(Moments(), None)
    flows = (
        Resampled(steps=60, batch=200, bases=4, step=0.5, last=0.05),
        Presampled(steps=60, bases=8, at_once=4, step=0.5, last=0.05),
        Sketched(),
    )
    for flow in flows:
        reached = apart(flow, None)
        assert reached < 0.5 * bare, flow
        assert reached < 0.5 * apart(flow, 20.0), flow


def test_what_the_published_code_costs() -> None:
    """δ is that of the Gaussian curve at μ = √epochs/σ and √1500/σ (Dong, Roth & Su 2022)."""
    sigmas = [math.sqrt(2 * math.log(2.5e5)) / stated for stated in (10, 5)]
    mus = [math.sqrt(35) / 0.67, math.sqrt(20) / 0.8, *(math.sqrt(1500) / s for s in sigmas)]
    for row, mu in zip(swf_digits.published(), mus, strict=True):
        assert row.ours is not None
        assert row.paper is not None
        assert row.ours > 7 * row.paper
        above, below = (log_ndtr(sign * mu / 2 - row.ours / mu) for sign in (1, -1))
        assert math.exp(above) - math.exp(row.ours + below) == pytest.approx(1e-5, rel=1e-3)
