"""Noisy histograms: their sensitivity, their noise, and the maps to normal scores and back."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtri
from tests.support.early import before_noise, distance, has_unit_variance, scaled_variance, wild
from tests.support.measured import noisy_histograms

from penstock.base.errors import InvalidEvent
from penstock.mechanisms.tables import margins
from penstock.mechanisms.tables.margins import (
    BINS,
    Counts,
    Margins,
    measure_histograms,
    outcome_counts,
    time_cells,
)
from penstock.privacy import sensitivity
from penstock.privacy.noise.sources import SeededNoise
from penstock.schema import Column, Schema
from penstock.schema.encoding import Encoding, Outcome

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
QUIET = SeededNoise(0)
TAIL = 4.0
"""Scores end a little beyond: 3e-5 of the rows on either side share one score."""


def box(d: int) -> tuple[Array, Array]:
    return np.full(d, -4.0), np.full(d, 4.0)


def counted(x: Array, outcomes: margins.Outcomes = ()) -> Counts:
    """Counts of rows (n, d) without noise."""
    there = np.ones((len(x), 1), dtype=bool)
    return noisy_histograms(x[:, None], there, *box(x.shape[1]), None, QUIET, outcomes)


def leveled(count: int) -> Encoding:
    """One ordered column of so many levels, and a number."""
    o = Column("o", "ordered", levels=tuple(str(i) for i in range(count)))
    return Encoding(Schema((o, Column("x", "continuous", -1.0, 1.0, 2))))


# What one person moves ------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize(
    ("d", "outcomes"),
    [(1, ()), (4, ()), (4, (Outcome(2, 0, 3),)), (7, (Outcome(0, 1, 2), Outcome(5, 4, 6)))],
)
def test_the_sensitivity_is_exactly_what_is_charged(
    d: int, outcomes: tuple[Outcome, ...], k: int
) -> None:
    low, high = box(d)
    worst = 0.0

    @settings(max_examples=60, deadline=None, database=None)
    @given(rows=hnp.arrays(np.float64, (2, k, d), elements=wild | st.floats(-5, 5)))
    def moves_no_more(rows: Array) -> None:
        nonlocal worst
        there = np.ones((2, k), dtype=bool)
        gone = np.array([[True] * k, [False] * k])
        null = np.where(gone[..., None], rows, 0.0)
        with before_noise() as seen:
            noisy_histograms(rows, there, low, high, 1.0, QUIET, outcomes)
            noisy_histograms(null, gone, low, high, 1.0, QUIET, outcomes)
        moved = distance(*seen)
        assert moved <= k**2 * (d + 1)
        event = measure_histograms(1.0, d, k, len(outcomes))
        # Of an end three cells; the charge, which knows of no levels, names no fewer.
        m = len(outcomes)
        times = time_cells(2 * k, sensitivity.histogram(d + 1, k))
        cells = BINS * (d - 2 * m) + m * (2 * times + 1 + 3) + 1
        assert len(seen[0][0]) == cells <= event.size
        assert event.size == BINS * (d + m) + m + 1
        worst = max(worst, math.sqrt(moved))

    moves_no_more()
    # Attained: the rows of a person may all be alike.
    rows = np.full((2, k, d), 1.0)
    with before_noise() as seen:
        noisy_histograms(rows, np.ones((2, k), dtype=bool), low, high, 1.0, QUIET, outcomes)
        noisy_histograms(rows, np.arange(2 * k).reshape(2, k) < k, low, high, 1.0, QUIET, outcomes)
    assert math.sqrt(distance(*seen)) == pytest.approx(sensitivity.histogram(d + 1, k), rel=1e-11)
    assert measure_histograms(1.0, d, k).sensitivity == sensitivity.histogram(d + 1, k)
    assert worst <= sensitivity.histogram(d + 1, k)


def test_a_duration_is_counted_by_its_event_and_its_end() -> None:
    rng = np.random.default_rng(3)
    x = rng.uniform(-4, 4, (400, 4))
    counts = counted(x, (Outcome(2, 0, 3),))
    assert counts.split.shape == (1, 2, BINS)
    happened, ended = x[:, 0] > 0, (x[:, 0] <= 0) & (x[:, 3] > 0)
    for half, who in enumerate((~happened & ~ended, happened)):
        wanted = np.histogram(x[who, 2], BINS, (-4.0, 4.0))[0]
        np.testing.assert_array_equal(counts.split[0, half], wanted)
    np.testing.assert_array_equal(counts.bins[:2], counted(x).bins[:2])
    np.testing.assert_array_equal(counts.bins[2], counts.split[0].sum(axis=0))
    three = [(~happened & ~ended).sum(), ended.sum(), happened.sum()]
    np.testing.assert_array_equal(counts.bins[3, :4], [*three, 0])
    assert counts.ended == ended.sum()
    assert counts.rows == pytest.approx(400, rel=1e-12)  # sums by precision, rounded


def test_times_have_fewer_cells_where_noise_is_larger() -> None:
    """Cells are public: of n and of the noise. In the middle of a curve each adds its own noise."""
    assert [time_cells(n, 10.0) for n in (1, 450, 1600, 6300, 10**6)] == [8, 8, 32, 64, 64]
    assert time_cells(700, 0.0) == BINS

    def noise_of_a_curve(cells: int) -> float:
        curve = np.linspace(0, 700, cells + 1)
        counts = np.diff(curve) + np.random.default_rng(1).normal(0, 12.0, (500, cells))
        risen = counts.cumsum(axis=1)
        return float((risen[:, cells // 2 - 1] / risen[:, -1]).std())

    assert noise_of_a_curve(time_cells(700, 12.0)) < 0.6 * noise_of_a_curve(BINS)


def test_the_states_of_an_outcome_are_counted_by_all_that_tells_of_them() -> None:
    rng, wanted, sd = np.random.default_rng(2), np.array([150.0, 100.0, 450.0]), 10.0
    outcome, levels = Outcome(0, 1, 2), {1: np.array([-1.0, 1.0])}
    found = []
    for _ in range(800):
        bins = np.zeros((3, BINS))
        bins[2, :3] = wanted + rng.normal(0, sd, 3)
        bins[1, :2] = np.array([250, 450]) + rng.normal(0, sd, 2)
        ended = (bins[2, 1] + 100 + rng.normal(0, sd)) / 2
        counts = Counts(bins, np.zeros((1, 2, 8)), np.array([ended]), 700.0, sd)
        found.append(outcome_counts(counts, 0, outcome, levels))
    assert np.sum(found, axis=1) == pytest.approx(700.0)
    np.testing.assert_allclose(np.mean(found, axis=0), wanted, atol=1.5)
    # One count of the events alone has sd 10.
    assert np.std(found, axis=0)[2] < 6.5
    exact = Counts(bins * 0, np.zeros((1, 2, 8)), np.array([0.0]), 700.0, 0.0)
    assert (outcome_counts(exact, 0, outcome, levels) > 0).all()


def test_levels_are_counted_one_by_one() -> None:
    encoding = leveled(5)
    codes = np.array([0, 1, 1, 4, 4, 4, 3])
    x, _ = encoding.encode({"o": codes, "x": np.zeros(7)}, np.random.default_rng(0))
    there = np.ones((7, 1), dtype=bool)
    with before_noise() as seen:
        noisy_histograms(
            x[:, None], there, encoding.low, encoding.high, 1.0, QUIET, (), encoding.levels
        )
    [(whole, unit)] = seen
    assert (whole[:5], whole[-1]) == ([1, 2, 0, 1, 3], 7)
    assert unit == 1
    assert len(whole) == 5 + BINS + 1
    # ... of which the charge, which knows of no levels, names no fewer.
    assert len(whole) <= measure_histograms(1.0, 2, 1).size


# The noise ------------------------------------------------------------------------------------


def test_noise_hides_the_same_whole_numbers_whatever_the_sigma() -> None:
    # A vanishing noise shows what is released.
    rng = np.random.default_rng(0)
    rows, there = rng.normal(0, 2, (300, 2, 3)), np.ones((300, 2), dtype=bool)
    exact, noisy = (
        noisy_histograms(rows, there, *box(3), sigma, SeededNoise(0), (Outcome(0, 1, 2),))
        for sigma in (None, 1e-9)
    )
    assert 0 < np.abs(noisy.bins - exact.bins).max() < 1e-7
    assert 0 < np.abs(noisy.split - exact.split).max() < 1e-7
    assert 0 < np.abs(noisy.ended - exact.ended).max() < 1e-7


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_noise_is_refused(sigma: float) -> None:
    rows, there = np.zeros((4, 1, 2)), np.ones((4, 1), dtype=bool)
    with pytest.raises(InvalidEvent):
        noisy_histograms(rows, there, *box(2), sigma, SeededNoise(0))


@pytest.mark.parametrize(("factor", "right"), [(1.0, True), (0.5, False), (2.0, False)])
def test_the_noise_has_the_claimed_variance(factor: float, right: bool) -> None:
    # The other factors are planted faults.
    d, k, sigma = 20, 2, 1.7
    rows, there = np.zeros((5, k, d)), np.zeros((5, k), dtype=bool)
    with scaled_variance(factor):
        outcomes = (Outcome(4, 5, 6),)
        counts = noisy_histograms(rows, there, *box(d), sigma, SeededNoise(2), outcomes)
    each = np.concatenate([np.delete(counts.bins, [4, 6], axis=0).ravel(), counts.split.ravel()])
    assert counts.sd == sigma * sensitivity.histogram(d + 1, k)
    assert has_unit_variance(each / (sigma * k * np.sqrt(d + 1))) is right


# Normal scores --------------------------------------------------------------------------------


def skewed(n: int) -> Array:
    """(n, 2) in the box: a gap and a pile; a long tail."""
    rng = np.random.default_rng(5)
    two = np.where(rng.random(n) < 0.3, rng.normal(2.5, 0.3, n), rng.normal(-2, 0.5, n))
    x: Array = np.column_stack([two, rng.gamma(1.5, 0.8, n) - 4]).clip(-4, 4 - 1e-9)
    return x


def test_scores_lead_back_to_the_values() -> None:
    x = skewed(5000)
    maps = Margins(counted(x), *box(2))
    scores = maps.to_scores(x)
    inside = np.abs(scores) < TAIL
    assert inside.mean() > 0.999
    np.testing.assert_allclose(maps.to_values(scores)[inside], x[inside], atol=1e-6)


def test_scores_of_a_sample_are_standard_normal() -> None:
    x = skewed(5000)
    scores = Margins(counted(x), *box(2)).to_scores(x)
    for score in scores.T:
        # F is right at the edges of the bins, and linear in between.
        assert stats.kstest(score, "norm").statistic < 0.01
        assert abs(score.std() - 1) < 0.02
        assert abs(stats.kurtosis(score)) < 0.2


@settings(max_examples=60, deadline=None)
@given(
    bins=hnp.arrays(np.float64, (4, BINS), elements=st.floats(-50, 50) | st.just(0.0)),
    halves=hnp.arrays(np.float64, (1, 2, BINS), elements=st.floats(-50, 50) | st.just(0.0)),
    ended=st.floats(-50, 500),
    sd=st.floats(0.0, 30.0),
    where=hnp.arrays(np.float64, (20, 4), elements=st.floats(-4, 4)),
)
def test_whatever_the_counts_the_maps_are_monotone_and_finite(
    bins: Array, halves: Array, ended: float, sd: float, where: Array
) -> None:
    bins[0] = 1.0  # events and censored times alike
    counts = Counts(bins, halves, np.array([ended]), 100.0, sd)
    maps = Margins(counts, *box(4), (Outcome(1, 0, 3),))
    x = np.sort(where, axis=0)
    x[:, 0] = np.where(where[0, 0] > 0, 1.0, -1.0)  # one event for all, clearly
    x[:, 3] = np.where(where[0, 3] > 0, 1.0, -1.0)  # and one end
    s = maps.to_scores(x)
    assert np.isfinite(s).all()
    assert (np.diff(s, axis=0) >= 0).all()
    assert (np.diff(maps.to_values(x), axis=0) >= 0).all()
    assert (np.diff(maps.whole, axis=1) > 0).all()
    # Bins that hold nothing keep a little: what differs stays apart, and comes back.
    inside = np.abs(s) < TAIL
    # An end that nobody reached has no score of its own, and what hangs on it does not count.
    inside &= inside[:, [3]]
    np.testing.assert_allclose(maps.to_values(s)[inside], x[inside], atol=1e-6)


def test_wild_scores_have_values_in_the_box() -> None:
    outcomes, x = (Outcome(0, 1, 2),), skewed(500)
    x = np.column_stack([x, x[:, 0]])
    maps = Margins(counted(x, outcomes), *box(3), outcomes)
    wild_scores = [-np.inf, -1e300, -9.0, 9.0, 1e300, np.inf, 1e-320]
    values = maps.to_values(np.array(list(itertools.product(wild_scores, repeat=3))))
    assert np.isfinite(values).all()
    assert (np.abs(values) <= 4).all()
    assert np.isfinite(maps.log_slope(values)).all()
    assert np.isnan(maps.to_values(np.full((1, 3), np.nan))).all()


def test_a_models_own_scores_have_the_same_values() -> None:
    """Each is looked up under its own F alone, which saves time and changes no bit."""
    rng, outcomes, x = np.random.default_rng(3), (Outcome(0, 1, 2),), skewed(2000)
    end = np.where(rng.random(2000) < 0.5, 1.0, -1.0) + level_noise_of(rng, 2000)
    maps = Margins(counted(np.column_stack([x, end]), outcomes), *box(3), outcomes)
    scores = rng.normal(0, 1.5, (3000, 3))
    scores[:3] = np.nan, -np.inf, np.inf
    np.testing.assert_array_equal(maps.to_values(scores, own=True), maps.to_values(scores))


@pytest.mark.parametrize("swapped", [False, True])
def test_time_and_event_keep_their_joint_distribution(swapped: bool) -> None:
    """Whatever the scores' dependence; here none. Halves taken for each other would show."""
    rng, n, outcomes = np.random.default_rng(9), 4000, (Outcome(0, 1, 2),)
    event = np.where(rng.random(n) < 0.3, 1.0, -1.0) + rng.uniform(-0.9, 0.9, n)
    end = np.where((event < 0) & (rng.random(n) < 0.6), 1.0, -1.0)
    time = np.where(event > 0, rng.normal(-2, 0.7, n), rng.normal(1.5, 1.0, n)).clip(-4, 4)
    noise = level_noise_of(rng, n)
    counts = counted(np.column_stack([time, event, end + noise]), outcomes)
    if swapped:
        counts = replace(counts, split=counts.split[:, ::-1])
    maps = Margins(counts, *box(3), outcomes)
    even = ndtri((np.arange(120) + 0.5) / 120)
    grid = np.stack(np.meshgrid(even, even, even), axis=-1).reshape(-1, 3)
    made = maps.to_values(grid)

    def joint(t: Array, e: Array, f: Array) -> Array:
        state = np.where(e > 0, 2, f > 0)
        early = np.where(state == 1, 0.0, t)  # no time is to be read there
        found: Array = np.histogram2d(early, state, [BINS, 3], [(-4, 4), (-0.5, 2.5)])[0] / len(t)
        return found

    wanted, found = joint(time, event, end), joint(*made.T)
    # Quantiles are 1/120 apart, of the events, of the rest, and of each one's times.
    assert bool(np.abs(found - wanted).max() < 1 / 120) is not swapped


def level_noise_of(rng: np.random.Generator, n: int) -> Array:
    """Noise of two levels, as the encoding has it."""
    yes = Encoding(Schema((Column("b", "binary"),))).encode({"b": np.ones(n)}, rng)[0]
    noise: Array = yes[:, 0] - 1
    return noise


@pytest.mark.parametrize("count", [2, 5, 16])
def test_levels_keep_their_shares_and_decode_to_themselves(count: int) -> None:
    encoding, rng = leveled(count), np.random.default_rng(4)
    codes = rng.choice(count, 5000, p=rng.dirichlet(np.full(count, 0.5)))
    x, there = encoding.encode({"o": codes, "x": np.zeros(5000)}, rng)
    given = (encoding.low, encoding.high)
    counts = noisy_histograms(x[:, None], there[:, None], *given, None, QUIET, (), encoding.levels)
    maps = Margins(counts, *given, (), encoding.levels)
    assert (np.diff(maps.whole, axis=1) > 0).all()
    np.testing.assert_array_equal(encoding.decode(maps.to_values(maps.to_scores(x)))["o"], codes)
    even = np.column_stack([ndtri((np.arange(5000) + 0.5) / 5000), np.zeros(5000)])
    made = encoding.decode(maps.to_values(even))["o"].astype(np.int64)
    wanted, found = (np.bincount(c, minlength=count) / 5000 for c in (codes, made))
    # A bin that reaches from one level to the next spreads the edge of one on the other.
    np.testing.assert_allclose(found, wanted, atol=2e-3)


def shares(bins: Array, sd: float) -> Array:
    """What the map of one column makes of its counts: each bin's share."""
    counts = Counts(bins[None], np.zeros((0, 2, BINS)), np.zeros(0), 1.0, sd)
    maps = Margins(counts, *box(1))
    even = (np.arange(20_000) + 0.5) / 20_000
    values = maps.to_values(ndtri(even)[:, None])[:, 0]
    return np.histogram(values, BINS, (-4.0, 4.0))[0] / len(values)


def test_a_bin_is_kept_where_it_stands_out_or_joins_one_that_does() -> None:
    bins = np.zeros(BINS)
    bins[20:24] = [4.1, 100, 80, 60]  # certain
    bins[24:27] = [0.6, 0.6, 0.6]  # each joins the one before
    bins[18:20] = [2.0, -1.0]  # a gap: does not
    bins[28] = 3.4  # neither, behind a bin of 0
    bins[50] = 3.4  # alone
    bins[60] = 4.1  # alone and certain
    kept = np.isin(np.arange(BINS), [*range(20, 27), 60])
    expected = np.where(kept, bins, 0.0) / bins[kept].sum()
    np.testing.assert_allclose(shares(bins, 1.0), expected, atol=2e-4)
    # Twice the noise, and fewer stand out; without noise all that was counted does.
    assert shares(bins, 2.0)[60] == 0
    there = np.where(bins > 0, bins, 0.0)
    np.testing.assert_allclose(shares(there, 0.0), there / there.sum(), atol=2e-4)


def test_what_stands_out_together_is_kept_smoothed() -> None:
    # Twenty bins, none of which stands out by itself.
    bins = np.zeros(BINS)
    bins[20:40] = 1.5
    found = shares(bins, 1.0)
    assert found[20:40].sum() > 0.9
    assert found[:10].sum() + found[50:].sum() < 0.01


def test_rows_too_few_to_show_a_shape_have_the_normal_one() -> None:
    bins, at = np.zeros(BINS), np.arange(BINS)
    bins[[20, 21, 22, 34]] = [10.0, 12.0, 10.0, 8.0]
    found = shares(bins, 1.0)
    mean = bins @ at / bins.sum()
    assert found @ at == pytest.approx(mean, abs=0.1)
    assert found @ (at - mean) ** 2 == pytest.approx(bins @ (at - mean) ** 2 / bins.sum(), rel=0.05)
    assert np.argmax(found) == round(mean)
    # Ten times the rows show that there are two groups.
    assert shares(10 * bins, 1.0)[24:32].sum() < 1e-3


def test_where_nothing_stands_out_of_the_noise_a_column_is_uniform() -> None:
    noise = np.random.default_rng(2).normal(0, 10.0, BINS).clip(-34.9, 34.9)
    np.testing.assert_allclose(shares(noise, 10.0), 1 / BINS, atol=2e-4)
    np.testing.assert_allclose(shares(np.zeros(BINS), 0.0), 1 / BINS, atol=2e-4)


def test_a_half_in_which_nothing_stands_out_is_taken_for_the_whole() -> None:
    # Fewer events than can be seen: their times are then those of everybody.
    bins = np.zeros((3, BINS))
    bins[0, 10:30] = bins[1, 20:] = 100.0
    halves = np.stack([bins[0], np.zeros(BINS)])[None]
    counts = Counts(bins, halves, np.zeros(1), 1.0, 1.0)
    maps = Margins(counts, *box(3), (Outcome(0, 1, 2),))
    even = ndtri((np.arange(500) + 0.5) / 500)
    early = np.full(500, -3.0)
    times = [
        maps.to_values(np.column_stack([even, np.full(500, e), early]))[:, 0] for e in (-3.0, 3.0)
    ]
    np.testing.assert_allclose(times[0], times[1], atol=1e-3)


def test_the_number_of_rows_is_known_from_every_columns_counts() -> None:
    """300 rows in a frame of 2000: noise of sd/√(1 + 1/2 + 1/2) on two columns of two levels.

    A mean square of 300 repeats has a relative sd of √(2/300) = .08; six of them are .49. The bare
    count's would be twice as large.
    """
    rng, levels = np.random.default_rng(5), {0: np.array([-1.0, 1.0]), 1: np.array([-1.0, 1.0])}
    rows = rng.choice([-1.0, 1.0], (2000, 1, 2))
    there = np.arange(2000)[:, None] < 300
    box = np.full(2, 2.0)
    found = [
        noisy_histograms(rows, there, -box, box, 5.0, SeededNoise(i), (), levels)
        for i in range(300)
    ]
    off = np.array([counts.rows for counts in found]) - 300
    assert np.mean(off**2) == pytest.approx(found[0].sd ** 2 / 2, rel=0.49)
    assert abs(off.mean()) < 6 * found[0].sd / math.sqrt(2 * 300)


@pytest.mark.parametrize(("persons", "present"), [(50, 0), (50, 50), (1, 1)])
def test_a_count_that_noise_hides_stays_within_the_frame(persons: int, present: int) -> None:
    there = np.arange(persons)[:, None] < present
    for seed in range(20):
        counts = noisy_histograms(
            np.zeros((persons, 1, 1)), there, -np.ones(1), np.ones(1), 30.0, SeededNoise(seed)
        )
        least = min(counts.sd / math.sqrt(1 + 1 / BINS), persons)
        assert least - 1e-9 <= counts.rows <= persons
