"""Discrete noise is exact: by enumeration of every outcome, by algebra, and by statistics.

The proofs go bottom up. Uniform whole numbers: all bytes are tried. Coins, given those: all ways
they may fall are followed until what is left has next to no probability. The samplers, given coins:
the same, and for any size of parameter the exponents of proposal and acceptance add up as
fractions. The statistical tests then look at the whole: chi-square tests that alarm by chance with
probability 1e-7 a case, and that must catch planted faults.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from penstock.base.errors import InvalidEvent
from penstock.privacy.noise import discrete
from penstock.privacy.noise.discrete import (
    add_discrete_gaussian,
    discrete_gaussian,
    discrete_laplace,
    grid_exponent,
    grid_sd,
    rounding_sensitivity,
)
from penstock.privacy.noise.sources import Integers, SecureNoise, SeededNoise

FALSE_ALARM = 1e-7
Z = 5.6
BAD = [0.0, -1.0, math.nan, math.inf]


# Proofs ---------------------------------------------------------------------------------------


class Exhausted(Exception):
    """A script of bytes has come to its end."""


class Script(SeededNoise):
    """A source whose only bytes are given."""

    def __init__(self, content: bytes) -> None:
        super().__init__(0)
        self._left = [content]

    def random_bytes(self, count: int) -> bytes:
        if not self._left:
            raise Exhausted
        return self._left.pop()


@pytest.mark.parametrize("bound", [1, 2, 3, 5, 6, 7, 128, 200, 255, 256, 1000])
def test_uniform_whole_numbers_are_exactly_uniform(
    bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Integers, "BLOCK", 1)
    size = ((bound - 1).bit_length() + 7) // 8
    seen: Counter[int] = Counter()
    for content in range(256**size):
        with contextlib.suppress(Exhausted):  # rejected, to be drawn afresh
            seen[Integers(Script(content.to_bytes(size, "little"))).below(bound)] += 1
    assert set(seen) == set(range(bound))
    assert len(set(seen.values())) == 1
    assert seen.total() * 2 > 256**size


@pytest.mark.parametrize("bound", [0, -3])
def test_nothing_lies_below_zero(bound: int) -> None:
    with pytest.raises(InvalidEvent):
        Integers(SecureNoise()).below(bound)


def test_blocks_neither_repeat_nor_skip_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Integers, "BLOCK", 8)
    integers = Integers(SeededNoise(4))
    found = [integers.below(256) for _ in range(80)]
    source = SeededNoise(4)
    assert bytes(found) == b"".join(source.random_bytes(8) for _ in range(10))


class Branch(Exception):
    """A sampler asks for what its path does not say: one of these, with these probabilities."""

    def __init__(self, chances: Sequence[Fraction]) -> None:
        super().__init__()
        self.chances = chances


class Path:
    """Uniform whole numbers, and coins, that fall as a path says."""

    def __init__(self, path: tuple[int, ...]) -> None:
        self._path, self._at = path, 0

    def choose(self, chances: Callable[[], Sequence[Fraction]]) -> int:
        if self._at == len(self._path):
            raise Branch(chances())
        self._at += 1
        return self._path[self._at - 1]

    def below(self, bound: int) -> int:
        return self.choose(lambda: [Fraction(1, bound)] * bound)


def enumerated(
    sampler: Callable[[tuple[int, ...]], Hashable], least: float
) -> tuple[dict[Hashable, float], float]:
    """Every outcome's probability over all paths of at least ``least``, and that of the rest."""
    found: dict[Hashable, float] = {}
    rest = 0.0
    todo = [((), 1.0)]
    while todo:
        path, chance = todo.pop()
        if chance < least:
            rest += chance
            continue
        try:
            outcome = sampler(path)
        except Branch as branch:
            todo += [((*path, i), chance * float(c)) for i, c in enumerate(branch.chances)]
        else:
            found[outcome] = found.get(outcome, 0.0) + chance
    return found, rest


def agrees(found: dict[Hashable, float], rest: float, truth: dict[Hashable, float]) -> bool:
    """Whether each probability lies between what was found and that with all the rest on top."""
    return all(-1e-12 <= p - found.get(x, 0.0) <= rest + 1e-12 for x, p in truth.items())


@pytest.mark.parametrize(("p", "q"), [(0, 1), (1, 1), (1, 2), (2, 3), (3, 7), (3, 2), (5, 2)])
def test_coins_fall_as_often_as_they_should(p: int, q: int) -> None:
    found, rest = enumerated(lambda path: discrete._coin(p, q, Path(path)), 1e-6)  # type: ignore[arg-type]
    assert rest < 2e-3
    assert agrees(found, rest, {True: math.exp(-p / q), False: -math.expm1(-p / q)})
    # ... and this would show a coin of another probability.
    assert not agrees(found, rest, {True: math.exp(-p / q - 0.01)})
    assert not agrees({True: found.get(False, 0.0)}, rest, {True: math.exp(-p / q)})


def ideal_coin(p: int, q: int, path: Path) -> bool:
    heads = Fraction(math.exp(-p / q))
    return path.choose(lambda: [heads, 1 - heads]) == 0


def laplace_pmf(scale: float, most: int) -> dict[Hashable, float]:
    e = math.exp(-1 / scale)
    return {x: (1 - e) / (1 + e) * math.exp(-abs(x) / scale) for x in range(-most, most + 1)}


def gaussian_pmf(variance: float, most: int) -> dict[Hashable, float]:
    """N_Z(0, σ²) on -most … most; normalised by mpmath."""
    with mp.workdps(30):
        v = mp.mpf(variance)
        total = mp.jtheta(3, 0, mp.exp(-1 / (2 * v)))
        return {x: float(mp.exp(-(x**2) / (2 * v)) / total) for x in range(-most, most + 1)}


AGAIN = "again"


class Round(Path):
    """Ends where a sampler that began with ``below(first)`` begins anew."""

    def __init__(self, path: tuple[int, ...], first: int) -> None:
        super().__init__(path)
        self._first = first

    def below(self, bound: int) -> int:
        if self._at > 0 and bound == self._first:
            raise Exhausted
        return super().below(bound)


def by_rounds(sampler: Callable[[Round], int], first: int) -> dict[Hashable, float]:
    """A rejection sampler's distribution: that of one round, given that it ends there."""

    def once(path: tuple[int, ...]) -> Hashable:
        try:
            return sampler(Round(path, first))
        except Exhausted:
            return AGAIN

    found, rest = enumerated(once, 1e-10)
    assert rest < 1e-8
    again = found.pop(AGAIN)
    return {x: p / (1 - again) for x, p in found.items()}


def close(found: dict[Hashable, float], truth: dict[Hashable, float]) -> bool:
    return all(abs(found.get(x, 0.0) - p) < 1e-7 for x, p in truth.items())


@pytest.mark.parametrize(("t", "s"), [(1, 1), (3, 1), (3, 2), (5, 3), (4, 9)])
def test_discrete_laplace_is_exact_given_exact_coins(
    t: int, s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discrete, "_coin", ideal_coin)
    found = by_rounds(lambda r: discrete._laplace(t, s, r), t)  # type: ignore[arg-type]
    assert close(found, laplace_pmf(t / s, 30))
    assert not close(found, laplace_pmf(1.0001 * t / s, 30))


@pytest.mark.parametrize(("a", "b", "t"), [(1, 4, 1), (4, 5, 1), (5, 1, 3), (17, 3, 3), (29, 2, 4)])
def test_the_discrete_gaussian_is_exact_given_exact_coins(
    a: int, b: int, t: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A round ends where its Laplace draw begins anew: there the Gaussian does so too.
    monkeypatch.setattr(discrete, "_coin", ideal_coin)
    found = by_rounds(lambda r: discrete._gaussian(a, b, r), t)  # type: ignore[arg-type]
    assert close(found, gaussian_pmf(a / b, 30))
    assert not close(found, gaussian_pmf(1.0001 * a / b, 30))


positive = st.integers(1, 10**6) | st.integers(1, 2**120)


@settings(max_examples=200, deadline=None)
@given(a=positive, b=positive, y=st.integers(-(2**64), 2**64))
def test_gaussian_rejection_is_exact_as_an_identity_of_fractions(a: int, b: int, y: int) -> None:
    # Proposal exp(-|y|/t) times acceptance exp(-p/q) must be exp(-y²/2σ²) up to one constant.
    seen: list[Fraction] = []

    def proposal(t: int, s: int, _: object) -> int:
        assert s == 1
        assert (t - 1) ** 2 * b <= a < t**2 * b  # t = ⌊σ⌋ + 1
        seen.append(Fraction(t))
        return y

    def accept(p: int, q: int, _: object) -> bool:
        seen.append(Fraction(p, q))
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discrete, "_laplace", proposal)
        patch.setattr(discrete, "_coin", accept)
        assert discrete._gaussian(a, b, None) == y  # type: ignore[arg-type]
    [t, exponent] = seen
    variance = Fraction(a, b)
    assert abs(y) / t + exponent == y**2 / (2 * variance) + variance / (2 * t**2)


@pytest.mark.parametrize("variance", [0.01, 0.1, 0.25, 1.0, 3.7, 100.0])
def test_the_variance_is_never_above_the_parameter(variance: float) -> None:
    pmf = gaussian_pmf(variance, 200)
    assert sum(p * int(x) ** 2 for x, p in pmf.items()) <= variance * (1 + 1e-12)  # type: ignore[call-overload]


# Statistics -----------------------------------------------------------------------------------

MANY = 60_000


def chi_square(draws: Sequence[int], pmf: dict[Hashable, float]) -> float:
    """p-value against a pmf on the whole numbers; outcomes expected less than 20 times pooled."""
    n = len(draws)
    counts = Counter(draws)
    likely = [x for x, p in pmf.items() if n * p >= 20]
    expected = [n * pmf[x] for x in likely]
    seen: list[float] = [counts[x] for x in likely]
    if n - math.fsum(expected) > 1e-6:
        expected.append(n - math.fsum(expected))
        seen.append(n - sum(seen))
    statistic = sum((s - e) ** 2 / e for s, e in zip(seen, expected, strict=True))
    return float(stats.chi2.sf(statistic, len(seen) - 1))


@pytest.mark.parametrize("variance", [Fraction(1, 3), Fraction(7, 3), Fraction(16), Fraction(50)])
def test_draws_have_the_exact_distribution(variance: Fraction) -> None:
    draws = discrete_gaussian(variance, MANY, SecureNoise())
    assert chi_square(draws, gaussian_pmf(float(variance), 100)) > FALSE_ALARM


def test_laplace_draws_have_the_exact_distribution() -> None:
    draws = discrete_laplace(Fraction(7, 2), MANY, SecureNoise())
    assert chi_square(draws, laplace_pmf(3.5, 100)) > FALSE_ALARM


@pytest.mark.parametrize("fault", ["too much", "too little", "shifted", "no tail", "none"])
def test_the_chi_square_test_catches_planted_faults(fault: str) -> None:
    factor = {"too much": Fraction("1.05"), "too little": 1 / Fraction("1.05")}.get(fault, 1)
    draws = discrete_gaussian(16 * Fraction(factor) ** 2, MANY, SeededNoise(11))
    if fault == "shifted":
        draws = [x + 1 for x in draws]
    elif fault == "no tail":
        draws = [x if abs(x) <= 12 else 0 for x in draws]
    alarm = bool(chi_square(draws, gaussian_pmf(16.0, 100)) <= FALSE_ALARM)
    assert alarm is (fault != "none")


def binned(draws: Sequence[int], sd: float) -> Sequence[int]:
    """Which of 40 equally likely parts of N(0, sd²) each draw is in."""
    edges = stats.norm.ppf(np.linspace(0, 1, 41)[1:-1])
    places: list[int] = np.searchsorted(edges, np.array(draws, dtype=np.float64) / sd).tolist()
    return places


@pytest.mark.parametrize("factor", [1.0, 1.05, 1 / 1.05])
def test_draws_of_forty_bits_have_the_distribution_too(factor: float) -> None:
    # At this σ the discrete Gaussian's quantiles are the continuous one's to 1e-12.
    sd = 2.0**40 * 1.37
    draws = discrete_gaussian(Fraction(sd * factor) ** 2, 30_000, SeededNoise(12))
    alarm = bool(chi_square(binned(draws, sd), dict.fromkeys(range(40), 1 / 40)) <= FALSE_ALARM)
    assert alarm is (factor != 1.0)
    assert len(set(draws)) == len(draws)
    assert abs(sum(x & 1 for x in draws) - 15_000) < Z * math.sqrt(7500)


def test_draws_are_independent() -> None:
    draws = np.array(discrete_gaussian(9, 40_000, SecureNoise()), dtype=np.float64) / 3
    for lag in (1, 2, 7):
        assert abs((draws[lag:] * draws[:-lag]).sum()) < Z * math.sqrt(40_000)
        squares = (draws**2 - 1) / math.sqrt(2)
        assert abs((squares[lag:] * squares[:-lag]).sum()) < Z * math.sqrt(40_000)


def test_a_seed_repeats_and_the_secure_source_does_not() -> None:
    assert discrete_gaussian(50, 20, SeededNoise(3)) == discrete_gaussian(50, 20, SeededNoise(3))
    assert discrete_gaussian(50, 20, SeededNoise(3)) != discrete_gaussian(50, 20, SeededNoise(4))
    huge = Fraction(2) ** 80
    assert discrete_gaussian(huge, 4, SecureNoise()) != discrete_gaussian(huge, 4, SecureNoise())


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("sampler", [discrete_gaussian, discrete_laplace])
def test_bad_parameters_are_refused(
    sampler: Callable[[float, int, SecureNoise], list[int]], bad: float
) -> None:
    with pytest.raises(InvalidEvent, match="finite positive"):
        sampler(bad, 1, SecureNoise())


# The release ----------------------------------------------------------------------------------


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise left out, to see what is done to the value."""
    monkeypatch.setattr(discrete, "discrete_gaussian", lambda _variance, size, _noise: [0] * size)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("value", [0, 1, -7, 2**52 + 1, -(2**60)])
@pytest.mark.parametrize("unit", [1.0, 2.0**-42, 2.0**60])
def test_whole_numbers_of_units_are_never_rounded(value: int, unit: float) -> None:
    [released] = add_discrete_gaussian(np.array([value]), 1e30, SecureNoise(), unit=unit)
    assert released == value * unit


@pytest.mark.usefixtures("silent")
@settings(max_examples=200, deadline=None)
@given(
    a=st.floats(-1e9, 1e9),
    b=st.floats(-1e9, 1e9),
    variance=st.floats(1e-12, 1e12),
)
def test_rounding_adds_at_most_the_sensitivity_it_claims(
    a: float, b: float, variance: float
) -> None:
    released = add_discrete_gaussian([a, b], variance, SecureNoise())
    grid = Fraction(2) ** grid_exponent(variance)
    # float64 may not hold a multiple of a fine grid beside a large value; half an ulp on top.
    for value, got in zip((a, b), released.tolist(), strict=True):
        assert abs(Fraction(got) - Fraction(value)) <= grid / 2 + Fraction(math.ulp(value)) / 2
    claimed = rounding_sensitivity(variance, 1)
    assert abs(Fraction(released[0]) - Fraction(released[1])) <= (
        abs(Fraction(a) - Fraction(b)) + Fraction(claimed) + Fraction(math.ulp(max(a, b, key=abs)))
    )
    assert rounding_sensitivity(variance, 9) == 3 * claimed


@given(variance=st.fractions(Fraction(1, 10**12), 10**12) | st.floats(1e-300, 1e300))
def test_the_grid_is_far_below_the_noise_and_follows_it_alone(variance: Fraction | float) -> None:
    exact = Fraction(variance)
    sd_squared = exact / Fraction(4) ** grid_exponent(variance)
    assert Fraction(4) ** 40 <= sd_squared < Fraction(4) ** 41
    assert 2**40 <= grid_sd(variance) < 2**41
    assert grid_sd(variance) ** 2 <= sd_squared


def test_released_numbers_lie_on_the_grid() -> None:
    values = np.linspace(-3, 3, 200).reshape(10, 20) * math.pi
    released = add_discrete_gaussian(values, 2.0, SecureNoise())
    assert released.shape == (10, 20)
    grid = 2.0 ** grid_exponent(2.0)
    assert np.array_equal(np.rint(released / grid) * grid, released)
    assert add_discrete_gaussian(1.5, 2.0, SecureNoise()).shape == ()


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("factor", [1.0, 1.05, 1 / 1.05])
def test_released_noise_has_the_variance_asked_for(whole: bool, factor: float) -> None:
    values: NDArray[np.generic] = np.full(20_000, 12_345)
    sd = 7.3
    variance = Fraction(sd * factor) ** 2
    if whole:
        released = add_discrete_gaussian(values, variance, SeededNoise(5), unit=1.0)
    else:
        released = add_discrete_gaussian(values + 0.123, variance, SeededNoise(5)) - 0.123
    residual = (released - 12_345) / sd
    alarm = bool(abs((residual**2).mean() - 1) > Z * math.sqrt(2 / len(residual)))
    assert alarm is (factor != 1.0)
    assert abs(residual.mean()) < Z / math.sqrt(len(residual)) * factor


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_values_are_not_released(value: float) -> None:
    with pytest.raises(InvalidEvent, match="non-finite"):
        add_discrete_gaussian([0.0, value], 1.0, SecureNoise())


@pytest.mark.parametrize("unit", [0.0, -1.0, 3.0, 0.1, math.nan, math.inf])
def test_units_are_powers_of_two(unit: float) -> None:
    with pytest.raises(InvalidEvent, match="power of two"):
        add_discrete_gaussian([1, 2], 1.0, SecureNoise(), unit=unit)


def test_with_a_unit_values_are_whole() -> None:
    with pytest.raises(InvalidEvent, match="whole"):
        add_discrete_gaussian([1.0, 2.0], 1.0, SecureNoise(), unit=1.0)


@pytest.mark.parametrize("bad", BAD)
def test_bad_variances_are_refused(bad: float) -> None:
    with pytest.raises(InvalidEvent):
        add_discrete_gaussian([1.0], bad, SecureNoise())
