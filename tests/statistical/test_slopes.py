"""The slope of planted effects, and what is made of it, on numbers whose slope is known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import stdtrit

from penstock.inference.slopes import Mark, Slope, find_slope, pool_slopes
from penstock.mechanisms.planted import choose_sizes

RUNS = 12
SIZES = choose_sizes(RUNS, 1)[0]
DELTA, SAMPLING = 2.5, 1.0


def simulate(
    slope: float, noise: float, rng: np.random.Generator, passed: float = 1.0, offset: float = 0.0
) -> Slope:
    """Estimates in standard errors; ``passed``: how much of a table's own sampling comes back."""
    own = SAMPLING * rng.standard_normal(RUNS)
    effect = 3.0 + DELTA * SIZES
    recovered = offset + slope * effect + passed * own + noise * rng.standard_normal(RUNS)
    return find_slope(SIZES, effect + own, recovered)


def many(count: int, *given: float, **more: float) -> list[Slope]:
    rng = np.random.default_rng(5)
    return [simulate(*given, rng, **more) for _ in range(count)]


@pytest.mark.parametrize("passed", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0])
def test_a_slope_is_that_of_the_effect_whatever_comes_back_of_sampling(
    slope: float, passed: float
) -> None:
    found = many(2000, slope, 1.2, passed=passed, offset=0.4)
    slopes = np.array([s.slope for s in found])
    errors = np.array([s.slope_error for s in found])
    assert abs(slopes.mean() - slope) < 4 * slopes.std() / math.sqrt(len(slopes)) + 0.004
    # The standard error is what it says: z² is about 1, heavier by Student's t.
    assert 0.85 < np.sqrt((errors**2).mean()) / slopes.std() < 1.15
    covered = np.abs(slopes - slope) < stdtrit(RUNS / 2 - 1, 0.975) * errors
    assert 0.93 < covered.mean() < 0.97
    if passed == slope:
        offsets = np.array([s.offset for s in found])
        assert abs(offsets.mean() - 0.4) < 0.05


def test_a_regression_on_the_estimates_would_be_off() -> None:
    """What the sizes are needed for: sampling that does not come back makes a held effect less."""
    rng = np.random.default_rng(6)
    plain = []
    for _ in range(500):
        own, effect = rng.standard_normal(RUNS), 1.0 * SIZES
        plain.append(np.polyfit(effect + own, effect + rng.standard_normal(RUNS), 1)[0])
    assert np.mean(plain) < 0.8


@pytest.mark.parametrize("noise", [0.5, 1.2, 3.0, 10.0])
@pytest.mark.parametrize("slope", [0.9, 1.0])
def test_a_held_effect_is_called_lost_in_a_tenth_at_most(slope: float, noise: float) -> None:
    marks = [s.mark for s in many(1500, slope, noise)]
    assert np.mean([m is Mark.UNSUPPORTED for m in marks]) <= 0.115
    if slope == 1 and noise <= 0.5:
        assert np.mean([m is Mark.HELD for m in marks]) >= 0.9


@pytest.mark.parametrize("noise", [0.3, 1.0])
@pytest.mark.parametrize("slope", [-0.3, 0.0, 0.3, 0.49])
def test_a_lost_effect_is_called_so_in_nine_of_ten(slope: float, noise: float) -> None:
    marks = [s.mark for s in many(1500, slope, noise)]
    assert np.mean([m is Mark.UNSUPPORTED for m in marks]) >= 0.89
    assert Mark.HELD not in marks or np.mean([m is Mark.HELD for m in marks]) < 0.005


def test_what_comes_back_by_three_quarters_is_attenuated() -> None:
    marks = [s.mark for s in many(1000, 0.75, 0.1, passed=0.75)]
    assert np.mean([m is Mark.ATTENUATED for m in marks]) > 0.9


def test_runs_that_cannot_tell_say_so() -> None:
    marks = [s.mark for s in many(500, 0.7, 10.0)]
    assert np.mean([m is Mark.UNRESOLVED for m in marks]) > 0.6


@pytest.mark.parametrize("gone", [7, 12])
def test_too_few_estimates_tell_nothing(gone: int) -> None:
    recovered = 1.0 * SIZES
    recovered[:gone] = math.nan
    found = find_slope(SIZES, SIZES, recovered)
    assert (found.known, found.mark) == (False, Mark.UNRESOLVED)
    assert found.runs == 2 * ((RUNS - gone) // 2)


def test_what_a_pair_shares_is_no_error() -> None:
    """Noise that both runs of a pair have, ten times as large as an effect, costs nothing."""
    rng, found = np.random.default_rng(9), []
    for _ in range(300):
        shared = 30.0 * np.repeat(rng.standard_normal(RUNS // 2), 2)
        own = 0.3 * rng.standard_normal((2, RUNS))
        found.append(find_slope(SIZES, SIZES + own[0], 0.8 * SIZES + shared + own[1]))
    slopes = np.array([s.slope for s in found])
    assert abs(slopes.mean() - 0.8) < 0.02
    assert slopes.std() < 0.12
    assert 0.85 < np.mean([s.slope_error for s in found]) / slopes.std() < 1.15
    # The offset has it, and says so.
    offsets = np.array([s.offset for s in found])
    assert 0.85 < np.mean([s.offset_error for s in found]) / offsets.std() < 1.15


def test_an_effect_of_a_coarse_column_is_lost_whatever_came_back() -> None:
    coarse = replace(find_slope(SIZES, SIZES, SIZES), coarse=("titre",))
    fine = replace(coarse, coarse=())
    assert (coarse.mark, fine.mark) == (Mark.UNSUPPORTED, Mark.HELD)
    assert pool_slopes([coarse, fine], [0.6, 0.4]).mark is Mark.UNSUPPORTED
    assert pool_slopes([coarse, fine], [0.3, 0.7]).mark is Mark.HELD


@pytest.mark.parametrize("hostile", [0.0, 1e300, -1e300, math.inf, math.nan])
def test_hostile_estimates_tell_nothing_and_raise_nothing(hostile: float) -> None:
    for planted, recovered in ((SIZES, SIZES * hostile), (SIZES * hostile, SIZES)):
        found = find_slope(SIZES, planted, recovered)
        assert found.mark in Mark
        assert found.known == (math.isfinite(found.slope) and math.isfinite(found.slope_error))


def test_pooled_slopes_weigh_sites_as_their_estimates_do() -> None:
    one = Slope(1.0, 0.1, 0.0, 0.1, 10.0, 12)
    other = Slope(0.2, 0.3, 0.4, 0.1, 10.0, 12)
    unknown = Slope(math.nan, math.nan, math.nan, math.nan, math.nan, 3)
    found = pool_slopes([one, other, unknown], [0.75, 0.25, 0.9])
    assert found.slope == pytest.approx(0.8)
    assert found.slope_error == pytest.approx(0.075 * math.sqrt(2))
    assert found.offset == pytest.approx(0.1)
    assert (found.df, found.runs) == (pytest.approx(20.0), 24)
    assert not pool_slopes([unknown], [1.0]).known


def test_many_sites_tell_what_one_cannot() -> None:
    """Of each site alone nothing is known; of twelve, that a half is lost."""
    rng, right, alone = np.random.default_rng(8), 0, []
    for _ in range(100):
        sites = [simulate(0.3, 4.0, rng) for _ in range(12)]
        alone += [s.mark for s in sites]
        right += pool_slopes(sites, [1.0] * 12).mark is Mark.UNSUPPORTED
    assert right >= 90
    assert np.mean([m is Mark.UNSUPPORTED for m in alone]) < 0.8
