"""The maf mechanism as a whole: what it may depend on, what it emits, and that it learns."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy import stats

from penstock.encoding import Encoding
from penstock.errors import BudgetExceeded, InvalidEvent, InvalidInput
from penstock.models import margins
from penstock.models.mechanism import run
from penstock.models.plan import Plan, plan, plan_columns, tune
from penstock.privacy import sensitivity
from penstock.privacy.accountant import epsilon
from penstock.privacy.events import DiscreteGaussian, Gaussian, PoissonGaussian, Unbounded
from penstock.privacy.noise import NoiseSource, SecureNoise, SeededNoise
from penstock.schema import Column, Schema
from penstock.study import Mechanism, PrivacyRequest

Array = NDArray[np.float64]
DELTA = 1e-5
SHORT = Mechanism(copies=2, steps=5, flows=2, hidden=(8,), refits=0)
FORMAL = PrivacyRequest(3.0, DELTA)


class Box:
    """An encoding that leaves values alone, on a box of ±4."""

    def __init__(self, d: int) -> None:
        self.low, self.high = np.full(d, -4.0), np.full(d, 4.0)

    def encode(
        self, coded: Mapping[str, Array], rng: np.random.Generator
    ) -> tuple[Array, NDArray[np.bool_]]:
        return coded["x"], np.ones(len(coded["x"]), dtype=bool)

    def decode(self, rows: Array) -> dict[str, Array]:
        return {"x": rows}


def correlated(n: int, k: int = 1, seed: int = 0) -> Array:
    """(n, k, 2): means .5 and -1, sds .6 and .9, correlation .7."""
    root = np.linalg.cholesky([[0.36, 0.378], [0.378, 0.81]])
    z = np.random.default_rng(seed).standard_normal((n, k, 2))
    x: Array = np.array([0.5, -1.0]) + z @ root.T
    return x


def correlation(pairs: Array) -> float:
    a, b = pairs.T
    return float(((a - a.mean()) * (b - b.mean())).mean() / (a.std() * b.std()))


def run_plan(plan: Plan, rows: Array, present: NDArray[np.bool_], seed: int = 1) -> list[Array]:
    return run(plan, Box(plan.arch.d), rows, present, SeededNoise(seed)).copies


# The plan ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", ["full", "poisson"])
@pytest.mark.parametrize(("d", "rows", "persons"), [(1, 1, 100), (6, 1, 3000), (20, 3, 800)])
@pytest.mark.parametrize("target", [0.5, 3.0])
def test_plan_spends_at_most_what_was_asked(
    target: float, d: int, rows: int, persons: int, sampling: str
) -> None:
    rate = 0.1 if sampling == "poisson" else 1.0
    wanted = dataclasses.replace(SHORT, sampling=sampling, rate=rate, steps=40)
    p = plan_columns(wanted, d, rows, persons, PrivacyRequest(target, DELTA))
    assert epsilon(p.events, DELTA) == p.epsilon
    assert 0.98 * target < p.epsilon <= target


def test_plan_charges_every_stage_at_the_noise_it_will_use() -> None:
    p = plan_columns(SHORT, 6, 1, 3000, FORMAL)
    stages = p.stages
    assert stages.margins is not None
    assert stages.moments is not None
    one, two, flow = p.events
    assert isinstance(one, DiscreteGaussian)
    assert isinstance(two, DiscreteGaussian)
    assert (one.noise_multiplier, one.count, one.label) == (stages.margins, 1, "margins")
    assert (two.noise_multiplier, two.count, two.label) == (stages.moments, 1, "moments")
    assert (one.sensitivity, one.size) == (pytest.approx(math.sqrt(7), rel=1e-11), 32 * 6 + 1)
    assert (two.sensitivity, two.size) == (pytest.approx(stages.radius**2, rel=1e-11), 28)
    assert min(one.grid_sd, two.grid_sd) >= 2**40
    sigma, clip = stages.training.noise_multiplier or 0.0, stages.training.clip
    assert flow == Gaussian(sigma, SHORT.steps, "flow, DP-SGD", clip)


def test_plan_with_poisson_sampling_charges_subsampled_steps() -> None:
    wanted = dataclasses.replace(SHORT, sampling="poisson", rate=0.2)
    event = plan_columns(wanted, 6, 1, 3000, FORMAL).events[2]
    assert isinstance(event, PoissonGaussian)
    assert (event.rate, event.count) == (0.2, SHORT.steps)


def test_plan_charges_the_injection_within_the_same_epsilon() -> None:
    wanted = dataclasses.replace(SHORT, w=0.001, latent_clip=2.0)
    p = plan_columns(wanted, 3, 2, 1000, FORMAL)
    last = p.events[-1]
    assert isinstance(last, Gaussian)
    assert last.count == 2 * 2
    assert p.epsilon <= FORMAL.epsilon
    without = plan_columns(SHORT, 3, 2, 1000, FORMAL)
    assert (p.stages.moments or 0.0) > (without.stages.moments or np.inf)


@pytest.mark.parametrize("guarantee", ["formal", "public-flow"])
def test_an_injection_beyond_epsilon_is_refused_with_what_would_do(guarantee: str) -> None:
    wanted = dataclasses.replace(SHORT, w=0.9)
    request = PrivacyRequest(3.0, DELTA, guarantee)
    with pytest.raises(BudgetExceeded) as caught:
        plan_columns(wanted, 3, 1, 1000, request)
    largest = float(str(caught.value.remedy).split("w below ")[1].split(",")[0])
    plan_columns(dataclasses.replace(wanted, w=largest * 0.999), 3, 1, 1000, request)
    with pytest.raises(BudgetExceeded):
        plan_columns(dataclasses.replace(wanted, w=largest * 1.01), 3, 1, 1000, request)


def test_public_flow_charges_the_injection_alone() -> None:
    wanted = dataclasses.replace(SHORT, w=0.01)
    p = plan_columns(wanted, 3, 1, 1000, PrivacyRequest(3.0, DELTA, "public-flow"))
    assert len(p.events) == 1
    assert p.stages.margins is p.stages.moments is p.stages.training.noise_multiplier is None


def test_public_flow_without_injection_is_refused() -> None:
    with pytest.raises(InvalidInput, match="public"):
        plan_columns(SHORT, 3, 1, 1000, PrivacyRequest(3.0, DELTA, "public-flow"))


def test_empirical_is_charged_as_unbounded() -> None:
    p = plan_columns(SHORT, 3, 1, 1000, PrivacyRequest(3.0, DELTA, "empirical"))
    assert [type(event) for event in p.events] == [Unbounded]
    assert p.epsilon == np.inf


@pytest.mark.parametrize("sizes", [(0, 1, 100), (3, 0, 100), (3, 1, 0)])
def test_empty_tables_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidInput):
        plan_columns(SHORT, *sizes, FORMAL)


@pytest.mark.parametrize("d", [1, 6, 20])
@pytest.mark.parametrize("signal", [1e-6, 1.0, 700.0, 2000.0, 5000.0, 1e9])
def test_budget_shares_add_up(signal: float, d: int) -> None:
    tuning = tune(signal, 1000, d)
    parts = (tuning.margins, tuning.moments, tuning.flow)
    assert sum(parts) == pytest.approx(1.0)
    assert min(parts) >= 0.1


# What leaves ----------------------------------------------------------------------------------


def hostile(name: str, n: int, k: int, d: int) -> tuple[Array, NDArray[np.bool_]]:
    rows, present = np.zeros((n, k, d)), np.ones((n, k), dtype=bool)
    if name == "null":
        present[:] = False
    elif name == "extreme":
        rows[:] = np.where(np.arange(n)[:, None, None] % 2, 1e308, -np.inf)
    elif name == "nan":
        rows[:] = np.nan
    return rows, present


@pytest.mark.parametrize("name", ["equal", "null", "extreme", "nan"])
@pytest.mark.parametrize("guarantee", ["formal", "empirical"])
@pytest.mark.parametrize(("n", "k", "d"), [(100, 1, 1), (7, 3, 2), (100, 1, 20), (1, 1, 3)])
def test_every_table_gets_exactly_n_k_finite_rows(
    n: int, k: int, d: int, guarantee: str, name: str
) -> None:
    p = plan_columns(SHORT, d, k, n, PrivacyRequest(1.0, DELTA, guarantee))
    copies = run_plan(p, *hostile(name, n, k, d))
    assert len(copies) == 2
    for copy in copies:
        assert copy.shape == (n * k, d)
        assert np.isfinite(copy).all()
        assert (np.abs(copy) <= 4).all()


def test_rows_leave_in_a_random_order() -> None:
    # w near 1 makes each released row nearly its own; their order must not be the rows'.
    wanted = dataclasses.replace(SHORT, w=0.9999, latent_clip=10.0, copies=2)
    p = plan_columns(wanted, 2, 1, 400, PrivacyRequest(1.0, DELTA, "empirical"))
    rows = correlated(400)
    first, second = run_plan(p, rows, np.ones((400, 1), dtype=bool))
    by_position = np.abs(first - rows[:, 0]).max(axis=1) < 0.2
    nearest = np.abs(first[None] - rows).max(axis=2).min(axis=1) < 0.2
    assert nearest.mean() > 0.9
    assert by_position.mean() < 0.3
    assert not np.array_equal(first, second)


def test_public_flow_fits_on_public_rows_alone() -> None:
    wanted = dataclasses.replace(SHORT, w=0.001)
    p = plan_columns(wanted, 2, 1, 50, PrivacyRequest(3.0, DELTA, "public-flow"))
    there = np.ones((50, 1), dtype=bool)
    public = (correlated(500), np.ones((500, 1), dtype=bool))
    far = np.full((50, 1, 2), 3.9)
    a = run(p, Box(2), far, ~there, SeededNoise(1), public=public).copies
    b = run(p, Box(2), -far, ~there, SeededNoise(1), public=public).copies
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    with pytest.raises(InvalidInput):
        run(p, Box(2), far, there, SeededNoise(1))


@pytest.mark.parametrize("shape", [(99, 1, 2), (100, 2, 2), (100, 1, 3)])
def test_shapes_other_than_planned_are_refused(shape: tuple[int, int, int]) -> None:
    p = plan_columns(SHORT, 2, 1, 100, FORMAL)
    with pytest.raises(InvalidInput):
        run(p, Box(2), np.zeros(shape), np.ones(shape[:2], dtype=bool), SecureNoise())


def test_absent_rows_are_never_looked_at() -> None:
    p = plan_columns(dataclasses.replace(SHORT, w=0.0001), 2, 3, 40, FORMAL)
    present = np.random.default_rng(0).random((40, 3)) < 0.5
    rows = correlated(40, 3)
    a = run_plan(p, rows, present)
    b = run_plan(p, np.where(present[..., None], rows, 3.5), present)
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


# The early stages -----------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("d", [1, 4])
def test_histograms_and_moments_have_the_sensitivity_that_is_charged(d: int, k: int) -> None:
    quiet = SeededNoise(0)
    low, high = np.full(d, -4.0), np.full(d, 4.0)
    nobody, somebody = np.zeros((2, k), dtype=bool), np.array([[False] * k, [True] * k])
    worst_counts, worst_moments = 0.0, 0.0
    for size in (0.1, 1.0, 1e9):
        rows = np.full((2, k, d), size)
        with_, without = (
            margins.noisy_histograms(rows, there, low, high, None, quiet).bins
            for there in (somebody, nobody)
        )
        # The number of rows, clipped from below to 1, is one more count of the same release.
        moved = np.sqrt(((with_ - without) ** 2).sum() + k**2)
        worst_counts = max(worst_counts, float(moved))
        moments = [margins.noisy_moments(rows, t, 2.0, None, quiet) for t in (somebody, nobody)]
        worst_moments = max(worst_moments, float(np.linalg.norm(moments[0] - moments[1])))
    assert worst_counts == pytest.approx(sensitivity.histogram(d + 1, k))
    assert worst_moments == pytest.approx(sensitivity.second_moments(2.0, k))
    assert worst_moments <= sensitivity.second_moments(2.0, k)


hostile_scores = st.floats(width=64, allow_nan=True, allow_infinity=True) | st.sampled_from(
    [1e308, -1e308, math.inf, -math.inf, math.nan, 0.0, 1e-320]
)


@settings(max_examples=150, deadline=None)
@given(
    scores=hnp.arrays(np.float64, (2, 3, 4), elements=hostile_scores | st.floats(-9, 9)),
    radius=st.floats(1.0, 9.0),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_persons_moments_are_bounded_in_whole_numbers(scores: Array, radius: float) -> None:
    there = np.ones((2, 3), dtype=bool)
    without = there.copy()
    without[1] = False
    (a, unit), (b, _) = (margins.whole_moments(scores, t, radius) for t in (there, without))
    bound = 3 * Fraction(radius) ** 2
    moved = sum(int(x) ** 2 for x in (a - b).ravel()) * Fraction(unit) ** 2
    assert moved <= bound**2
    assert moved * (1 - 1e-12) <= sensitivity.second_moments(radius, 3) ** 2


def test_clipped_rows_come_as_close_to_their_bound_as_whole_numbers_can() -> None:
    # ... so that the bound is the sensitivity, and not a generous multiple of it.
    scores, there = np.full((1, 1, 8), 1e6), np.ones((1, 1), dtype=bool)
    total, unit = margins.whole_moments(scores, there, 3.7)
    norm = float(np.linalg.norm(total.astype(np.float64))) * unit
    assert norm == pytest.approx(3.7**2, rel=1e-5)
    assert norm <= 3.7**2


def test_moments_are_summed_without_rounding_over_many_blocks() -> None:
    n = 40_000
    scores = np.full((n, 1, 1), 5.0)
    one, unit = margins.whole_moments(scores[:1], np.ones((1, 1), dtype=bool), 2.0)
    total, _ = margins.whole_moments(scores, np.ones((n, 1), dtype=bool), 2.0)
    assert (total == n * one).all()
    assert all(isinstance(x, int) for x in total.ravel())
    assert max(one.ravel()) * unit == pytest.approx(4 * 25 / 26, rel=1e-6)


def test_whole_moments_are_the_moments() -> None:
    scores = np.random.default_rng(0).standard_normal((500, 2, 3))
    there = np.random.default_rng(1).random((500, 2)) < 0.7
    total, unit = margins.whole_moments(scores, there, 2.5)
    floats = margins.noisy_moments(scores, there, 2.5, None, SeededNoise(0))
    np.testing.assert_allclose(total.astype(np.float64) * unit, floats, rtol=1e-5, atol=1e-3)


def test_early_noise_hides_the_same_whole_numbers_whatever_the_sigma() -> None:
    # A vanishing noise shows what is released: the grid follows the noise, the sums stay whole.
    rows, there = correlated(300, 2), np.ones((300, 2), dtype=bool)
    low, high = np.full(2, -4.0), np.full(2, 4.0)
    exact = margins.noisy_histograms(rows, there, low, high, None, SeededNoise(0)).bins
    noisy = margins.noisy_histograms(rows, there, low, high, 1e-9, SeededNoise(0)).bins
    assert 0 < np.abs(noisy - exact).max() < 1e-7
    total, unit = margins.whole_moments(rows, there, 2.0)
    moments = margins.noisy_moments(rows, there, 2.0, 1e-9, SeededNoise(0))
    assert 0 < np.abs(moments - total.astype(np.float64) * unit).max() < 1e-6


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
def test_early_stages_refuse_what_is_no_noise(sigma: float) -> None:
    rows, there = correlated(4), np.ones((4, 1), dtype=bool)
    low, high = np.full(2, -4.0), np.full(2, 4.0)
    with pytest.raises(InvalidEvent):
        margins.noisy_histograms(rows, there, low, high, sigma, SeededNoise(0))
    with pytest.raises(InvalidEvent):
        margins.noisy_moments(rows, there, 2.0, sigma, SeededNoise(0))
    with pytest.raises(InvalidEvent):
        margins.noisy_moments(rows, there, math.inf, 1.0, SeededNoise(0))


@pytest.mark.parametrize(("factor", "right"), [(1.0, True), (0.5, False), (2.0, False)])
@pytest.mark.parametrize("stage", ["histograms", "moments"])
def test_early_noise_has_the_claimed_sd(
    stage: str, factor: float, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two-sided chi-square test, false alarm 1e-9 a case; the other factors are planted faults.
    add = margins.add_discrete_gaussian  # type: ignore[attr-defined]

    def wrong(value: Array, variance: Fraction, noise: NoiseSource, *, unit: float) -> Array:
        released: Array = add(value, Fraction(factor) ** 2 * variance, noise, unit=unit)
        return released

    monkeypatch.setattr(margins, "add_discrete_gaussian", wrong)
    d, k, sigma = 20, 2, 1.7
    rows, there = np.zeros((5, k, d)), np.zeros((5, k), dtype=bool)
    low, high = np.full(d, -4.0), np.full(d, 4.0)
    if stage == "histograms":
        released = margins.noisy_histograms(rows, there, low, high, sigma, SeededNoise(2)).bins
        standard = released / (sigma * k * np.sqrt(d + 1))
    else:
        released = margins.noisy_moments(rows, there, 3.0, sigma, SeededNoise(2))
        assert np.array_equal(released, released.T)
        upper = released[np.triu_indices(d + 1, 1)] * np.sqrt(2)
        standard = np.concatenate([np.diag(released), upper]) / (sigma * k * 9.0)
    low_, high_ = stats.chi2.ppf([5e-10, 1 - 5e-10], standard.size)
    assert bool(low_ < (standard**2).sum() < high_) is right


def test_match_undoes_what_clipping_does_to_moments() -> None:
    x = correlated(50_000)[:, 0]
    there = np.ones((50_000, 1), dtype=bool)
    moments = margins.noisy_moments(x[:, None], there, 1.6, None, SeededNoise(0))
    sample = np.random.default_rng(3).standard_normal((50_000, 2))
    matched = margins.match_moments(moments, 50_000, 1.6, sample).apply(sample)
    naive = margins.gaussian(moments, 50_000).apply(sample)
    wanted = np.cov(x.T)
    assert np.abs(np.cov(naive.T) - wanted).max() > 0.1
    assert np.abs(np.cov(matched.T) - wanted).max() < 0.03
    assert np.abs(matched.mean(axis=0) - x.mean(axis=0)).max() < 0.03


# That it learns -------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("sampling", ["full", "poisson"])
def test_means_and_correlations_are_recovered_at_a_large_epsilon(sampling: str, k: int) -> None:
    n = 3000 // k
    rate = 0.3 if sampling == "poisson" else 1.0
    wanted = Mechanism(
        copies=5, steps=40, sampling=sampling, rate=rate, flows=2, hidden=(8,), refits=0
    )
    p = plan_columns(wanted, 2, k, n, PrivacyRequest(50.0, DELTA))
    x = correlated(n, k)
    synthetic = np.concatenate(run_plan(p, x, np.ones((n, k), dtype=bool)))
    real = x.reshape(-1, 2)
    # Sampling error of 15,000 rows is .008 sd; noise and the model's error get as much again.
    assert np.abs(synthetic.mean(axis=0) - real.mean(axis=0)).max() < 0.05
    assert np.abs(synthetic.std(axis=0) / real.std(axis=0) - 1).max() < 0.05
    assert abs(correlation(synthetic) - correlation(real)) < 0.03


def test_the_flow_learns_what_a_gaussian_cannot() -> None:
    # y = x² + noise: no correlation, all dependence.
    rng = np.random.default_rng(4)
    x = rng.standard_normal(4000)
    y = 0.7 * (x**2 - 1) + 0.3 * rng.standard_normal(4000)
    rows = np.column_stack([x, y]).clip(-4, 4)[:, None]
    p = plan_columns(Mechanism(copies=3, refits=0), 2, 1, 4000, PrivacyRequest(10.0, DELTA))
    copies = np.concatenate(run_plan(p, rows, np.ones((4000, 1), dtype=bool)))
    assert correlation(np.column_stack([copies[:, 0] ** 2, copies[:, 1]])) > 0.5


def test_thresholds_do_not_bias_the_event_rate_or_its_association() -> None:
    schema = Schema((Column("x", "continuous", -5.0, 5.0, 3), Column("e", "binary")))
    encoding = Encoding(schema)
    rng = np.random.default_rng(8)
    x = rng.standard_normal(6000)
    e = (rng.random(6000) < 1 / (1 + np.exp(2 - x))).astype(np.float64)
    rows, there = encoding.encode({"x": x, "e": e}, rng)
    p = plan(Mechanism(copies=5, steps=60, refits=0), schema, 6000, PrivacyRequest(20.0, DELTA))
    copies = run(p, encoding, rows[:, None], there[:, None], SeededNoise(2)).copies
    coded = encoding.decode(np.concatenate(copies))
    assert abs(coded["e"].mean() - e.mean()) < 0.02
    real = correlation(np.column_stack([x, e]))
    made = correlation(np.column_stack([coded["x"], coded["e"]]))
    assert abs(real - made) < 0.03


def test_plan_reads_the_schema_alone() -> None:
    schema = Schema((Column("x", "continuous", -5.0, 5.0, 3), Column("e", "binary")))
    assert plan(SHORT, schema, 500, FORMAL) == plan_columns(SHORT, 2, 1, 500, FORMAL)


def test_plan_needs_no_torch() -> None:
    # The gate prices studies and must not hold a tensor library.
    code = "import sys, penstock.models.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("seed", range(12))
def test_moments_that_are_pure_noise_still_leave_an_invertible_finite_map(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sample = rng.standard_normal((4096, 4))
    noise = 1e3 * rng.standard_normal((5, 5))

    def thresholds(y: Array) -> Array:
        return np.where(y > 0.0, 1.0, -1.0) * np.array([1.0, 0.0, 1e-9, 50.0])

    match = margins.match_moments(noise + noise.T, 50.0, 4.0, sample, thresholds)
    assert np.isfinite(match.matrix).all()
    assert np.isfinite(match.shift).all()
    back = match.invert(match.apply(sample))
    np.testing.assert_allclose(back, sample, atol=1e-6)


def test_an_injection_at_a_small_n_and_almost_no_budget_for_the_flow_always_runs() -> None:
    wanted = dataclasses.replace(SHORT, copies=1, w=0.05, latent_clip=2.0)
    p = plan_columns(wanted, 4, 1, 200, PrivacyRequest(2.0, 1e-5))
    rows = np.random.default_rng(0).uniform(-1, 1, (200, 1, 4))
    for seed in range(15):
        [copy] = run_plan(p, rows, np.ones((200, 1), dtype=bool), seed=seed)
        assert np.isfinite(copy).all()
