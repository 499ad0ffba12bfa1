"""The special bounds against mpmath where they are formulas, and against worlds that they bound.

Batches of fixed size, shuffling, and noisy descent. Every formula is computed a second time in
mpmath from its definition (sums of exponentials, sums over all outcomes), with as many digits as
cancellation takes; a bound may lie above that by its stated rounding, never below. Beside that,
pairs of neighbouring worlds that can happen are integrated exactly: none may cost more than its
bound, and where a bound is attained, the test says so. More than 300 configurations, fixed seeds.
"""

from __future__ import annotations

import math
from itertools import pairwise

import dp_accounting as dpa
import mpmath as mp
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy.special import logsumexp
from scipy.stats import binom

from penstock.audit.releases import shuffled_injection
from penstock.base.errors import InvalidEvent
from penstock.privacy.accounting import gaussian, sampling, shuffling
from penstock.privacy.events import NoisyDescent, ShuffledGaussian


def rngs(seed: int, count: int) -> list[np.random.Generator]:
    return [np.random.default_rng((seed, i)) for i in range(count)]


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(math.log(low), math.log(high))))


# -- batches of fixed size: Rényi ------------------------------------------------------------------


def moment(j: int, a: mp.mpf, b: mp.mpf, c: mp.mpf) -> mp.mpf:
    """E_R[((P-Q)/R)^j] of unit Gaussians; a = |P-R|², b = |Q-R|², c = <P-R, Q-R>."""
    return mp.fsum(
        mp.binomial(j, k)
        * (-1) ** (j - k)
        * mp.exp((k * (k - 1) * a + (j - k) * (j - k - 1) * b) / 2 + k * (j - k) * c)
        for k in range(j + 1)
    )


def worst_moment(j: int, d2: mp.mpf) -> mp.mpf:
    """The larger of the equilateral triangle and Q = R; between even neighbours for an odd j."""
    if j % 2:
        return mp.sqrt(worst_moment(j - 1, d2) * worst_moment(j + 1, d2))
    return max(moment(j, d2, d2, d2 / 2), moment(j, d2, mp.mpf(0), mp.mpf(0)))


def renyi_oracle(batch: int, population: int, sigma: float, order: int) -> mp.mpf:
    with mp.workdps(150):
        d2, rate = 1 / mp.mpf(sigma) ** 2, mp.mpf(batch) / population
        total = mp.mpf(1)
        for j in range(2, order + 1):
            thm9 = 2 * mp.exp(j * (j - 1) * d2 / 2)
            if j == 2:
                thm9 = min(thm9, 4 * mp.expm1(d2))
            total += mp.binomial(order, j) * rate**j * min(thm9, worst_moment(j, d2))
        return min(mp.log(total) / (order - 1), order * d2 / 2)


@pytest.mark.parametrize("rng", rngs(1, 60))
def test_renyi_of_a_fixed_size_batch_against_mpmath(rng):
    population = int(log_uniform(rng, 2, 1e5))
    batch = int(rng.integers(1, population))
    sigma, order = log_uniform(rng, 0.2, 30), int(rng.integers(2, 17))
    exact = renyi_oracle(batch, population, sigma, order)
    ours = sampling.renyi_fixed_size(batch, population, sigma, float(order))
    assert exact * (1 - mp.mpf("1e-14")) <= ours <= exact * (1 + mp.mpf("2e-9"))


@pytest.mark.parametrize("rng", rngs(2, 40))
def test_no_triangle_has_a_larger_moment_than_the_two_that_are_taken(rng):
    """The claim that the module's head proves; |P-R|, |Q-R| and |P-Q| are all within D."""
    j, d2 = 2 * int(rng.integers(1, 9)), mp.mpf(log_uniform(rng, 1e-3, 20))
    with mp.workdps(120):
        worst = worst_moment(j, d2)
        for _ in range(20):
            a, b = (d2 * mp.mpf(x) for x in rng.uniform(0, 1, 2) ** rng.choice([0.1, 1, 4]))
            most = mp.sqrt(a * b)
            least = max((a + b - d2) / 2, -most)
            if least <= most:
                at = mp.mpf(rng.choice([0.0, rng.uniform()]))
                assert moment(j, a, b, least + at * (most - least)) <= worst


@pytest.mark.parametrize("sigma", [1 / 16, 0.3, 1.0, 3.0, 30.0, 1e4])
def test_high_moments_of_the_quadrature_against_sums_of_exponentials(sigma):
    found = sampling._log_worst_moments(sigma, 256)
    last = len(found) + 1
    with mp.workdps(600):
        for j in (2, 33, 100, min(last, 256 if sigma < 100 else 2)):
            if j <= last:
                exact = mp.log(worst_moment(j, 1 / mp.mpf(sigma) ** 2))
                assert abs(found[j - 2] - exact) < 1e-11


def worlds(
    rate: float, sigma: float, order: float, corner: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray, float]:
    """log densities of both worlds on a grid: R at 0, P at distance D, Q at ``corner``·D."""
    step, reach, d = 0.1, 11 + order / sigma, 1 / sigma
    x, y = np.meshgrid(np.arange(-reach, reach + d, step), np.arange(-11, 11 + d, step))

    def log_normal(u: float, v: float) -> np.ndarray:
        return -((x - u) ** 2 + (y - v) ** 2) / 2 - math.log(2 * math.pi)

    apart, near = math.log1p(-rate) + log_normal(0, 0), math.log(rate)
    one = np.logaddexp(apart, near + log_normal(d, 0))
    other = np.logaddexp(apart, near + log_normal(corner[0] * d, corner[1] * d))
    return one, other, step * step


CORNERS = {
    "equilateral": (0.5, math.sqrt(0.75)),
    "the null record": (0.0, 0.0),
    "narrow": (0.9, 0.3),
    "right": (math.sqrt(0.5), math.sqrt(0.5)),
}


@pytest.mark.parametrize("corner", CORNERS.values(), ids=CORNERS)
@pytest.mark.parametrize("rng", rngs(3, 8))
def test_no_two_worlds_diverge_by_more_than_the_bound(rng, corner):
    """Integrated, both ways; the bound is also not far off where the noise is not small."""
    population, sigma = 1000, log_uniform(rng, 0.8, 8)
    batch, order = int(log_uniform(rng, 1, 900)), float(rng.uniform(1.1, 10))
    one, other, cell = worlds(batch / population, sigma, order, corner)
    bound = sampling.renyi_fixed_size(batch, population, sigma, order)
    for p, q in ((one, other), (other, one)):
        truth = (logsumexp(order * p + (1 - order) * q) + math.log(cell)) / (order - 1)
        assert truth <= bound * (1 + 1e-9)


@pytest.mark.parametrize("order", [2.0, 4.0, 8.0, 16.0])
def test_the_renyi_bound_is_nearly_attained(order):
    """20 % at most at σ = 4 and rate .1, where Thm 9 of the paper is 4 to 16 times too high."""
    one, other, cell = worlds(0.1, 4.0, order, CORNERS["the null record"])
    truth = (logsumexp(order * one + (1 - order) * other) + math.log(cell)) / (order - 1)
    assert sampling.renyi_fixed_size(10, 100, 4.0, order) <= 1.2 * truth


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0, 10.0])
def test_never_above_dp_accounting_and_equal_where_noise_is_small(sigma):
    """dp-accounting takes Thm 27 of the same paper; its replace-one doubles nothing here."""
    orders = [2.0, 3.0, 7.0, 20.0, 20.5]
    theirs = RdpAccountant(orders, dpa.NeighboringRelation.REPLACE_ONE)
    theirs.compose(dpa.SampledWithoutReplacementDpEvent(2000, 50, dpa.GaussianDpEvent(sigma)))
    for order, rho in zip(orders, theirs._rdp, strict=True):
        ours = sampling.renyi_fixed_size(50, 2000, sigma, order)
        assert ours <= rho * (1 + 2e-9)
        if sigma < 1 and order >= 7:
            assert ours == pytest.approx(rho, rel=1e-4)


@pytest.mark.parametrize("sigma", [0.05, 0.7, 4.0, 1e6])
def test_renyi_grows_with_the_order_and_stays_below_the_unsampled(sigma):
    orders = [1.0001, 1.5, 2, 2.25, 3, 5.5, 17, 64.5, 300, 1024, 9999.5, 1e5]
    found = [sampling.renyi_fixed_size(3, 70, sigma, order) for order in orders]
    assert all(low <= high * (1 + 2e-9) for low, high in pairwise(found))
    for order, rho in zip(orders, found, strict=True):
        assert 0 < rho <= order / (2 * sigma**2) * (1 + 1e-14)


def test_below_two_the_bound_is_that_at_two_and_between_it_is_linear_in_the_moments():
    def moments(order: float) -> float:
        return (order - 1) * sampling.renyi_fixed_size(5, 100, 2.0, order)

    assert sampling.renyi_fixed_size(5, 100, 2.0, 1.3) == pytest.approx(moments(2.0))
    assert moments(6.75) == pytest.approx(0.25 * moments(6.0) + 0.75 * moments(7.0))


# -- batches of fixed size: the privacy profile ----------------------------------------------------


def gaussian_delta(mu: mp.mpf, epsilon: mp.mpf) -> mp.mpf:
    return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("rng", rngs(4, 60))
def test_profile_of_a_fixed_size_batch_against_mpmath(rng):
    population = int(log_uniform(rng, 2, 1e6))
    batch, sigma = int(rng.integers(1, population)), log_uniform(rng, 0.05, 200)
    wanted = [0.0, *(log_uniform(rng, 1e-6, 5 / sigma) for _ in range(3))]
    ours = sampling.profile_fixed_size(batch, population, sigma, wanted)
    with mp.workdps(400):
        rate, mu = mp.mpf(batch) / population, 1 / mp.mpf(sigma)
        for epsilon, delta in zip(wanted, ours, strict=True):
            exact = rate * gaussian_delta(mu, mp.log1p(mp.expm1(mp.mpf(epsilon)) / rate))
            if exact > mp.mpf("1e-290"):
                assert exact <= delta <= exact * (1 + mp.mpf("1e-8")) + mp.mpf("1e-16")


@pytest.mark.parametrize(
    ("batch", "sigma", "epsilon"), [(1, 0.7, 0.3), (30, 1.0, 1.0), (70, 3, 0.1)]
)
def test_the_profile_is_attained_against_the_null_record(batch, sigma, epsilon):
    """A mixture against a Gaussian, by quadrature: no smaller δ would be true."""
    rate, z = batch / 100, np.linspace(-12, 12 + 1 / sigma, 400_001)
    null = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    mixture = (1 - rate) * null + rate * null * np.exp(z / sigma - 0.5 / sigma**2)
    truth = np.maximum(mixture - math.exp(epsilon) * null, 0).sum() * (z[1] - z[0])
    bound = sampling.profile_fixed_size(batch, 100, sigma, epsilon)
    assert bound == pytest.approx(truth, rel=1e-5)


@pytest.mark.parametrize("corner", CORNERS.values(), ids=CORNERS)
@pytest.mark.parametrize(("rate", "sigma"), [(0.02, 0.8), (0.3, 1.5), (0.8, 3.0)])
def test_no_two_worlds_have_a_larger_delta_than_the_profile(rate, sigma, corner):
    one, other, cell = worlds(rate, sigma, 1.0, corner)
    epsilons = np.array([0.0, 0.05, 0.3, 1.0])
    bounds = sampling.profile_fixed_size(round(1000 * rate), 1000, sigma, epsilons)
    for epsilon, bound in zip(epsilons, bounds, strict=True):
        for p, q in ((one, other), (other, one)):
            truth = np.maximum(np.exp(p) - math.exp(epsilon) * np.exp(q), 0).sum() * cell
            assert truth <= bound * (1 + 1e-2) + 1e-12  # the rule of rectangles at a kink


def test_the_profile_at_its_ends():
    found = sampling.profile_fixed_size(10, 100, 1e-4, [0.0, 1.0, 1e4, math.inf])
    assert found[:3] == pytest.approx([0.1] * 3)
    assert found[3] == 0
    assert np.all(sampling.profile_fixed_size(10, 100, 2.0, [800.0, 1e6, math.inf]) == 0)
    assert sampling.profile_fixed_size(10, 100, 2.0, [[1.0], [2.0]]).shape == (2, 1)


@pytest.mark.parametrize("bad", [-1e-9, math.nan])
def test_a_profile_of_no_epsilon_is_refused(bad):
    with pytest.raises(InvalidEvent):
        sampling.profile_fixed_size(10, 100, 1.0, [1.0, bad])


@pytest.mark.parametrize(
    ("batch", "population", "sigma", "order"),
    [
        (0, 10, 1.0, 2.0),
        (10, 10, 1.0, 2.0),
        (2.5, 10, 1.0, 2.0),
        (5, 10, 0.0, 2.0),
        (5, 10, math.nan, 2.0),
        (5, 10, math.inf, 2.0),
        (5, 10, 1.0, 1.0),
        (5, 10, 1.0, math.nan),
        (5, 10, 1.0, math.inf),
    ],
)
def test_what_is_no_sampled_release_is_refused(batch, population, sigma, order):
    with pytest.raises(InvalidEvent):
        sampling.renyi_fixed_size(batch, population, sigma, order)


# -- shuffling -------------------------------------------------------------------------------------


def clones_delta(epsilon0: float, persons: int, epsilon: mp.mpf) -> mp.mpf:
    """δ of the clones, from its definition: all outcomes of C and of A + Δ."""
    stay, told = mp.exp(-mp.mpf(epsilon0)), 1 / (1 + mp.exp(-mp.mpf(epsilon0)))
    factor, total = mp.exp(epsilon), mp.mpf(0)
    for c in range(persons):
        of_c = mp.binomial(persons - 1, c) * stay**c * (1 - stay) ** (persons - 1 - c)
        half = mp.mpf(2) ** -c
        for a in range(c + 2):
            before = mp.binomial(c, a - 1) * half if a >= 1 else mp.mpf(0)
            same = mp.binomial(c, a) * half if a <= c else mp.mpf(0)
            p, q = told * before + (1 - told) * same, (1 - told) * before + told * same
            total += of_c * max(p - factor * q, mp.mpf(0))
    return total


@pytest.mark.parametrize("rng", rngs(5, 40))
def test_shuffled_epsilon_is_the_smallest_that_the_theorem_allows(rng):
    """Both sides: at the ε returned δ holds, and a relative 1e-5 below it does not."""
    persons, epsilon0 = int(rng.integers(1, 45)), log_uniform(rng, 0.05, 6)
    delta = log_uniform(rng, 1e-9, 0.1)
    local = delta / (100 * persons) if rng.uniform() < 0.5 else 0.0
    found = shuffling.epsilon(epsilon0, local, persons, delta)

    def total(epsilon: float) -> mp.mpf:
        spent = (mp.exp(epsilon) + 1) * (1 + mp.exp(-mp.mpf(epsilon0)) / 2) * persons * local
        return clones_delta(epsilon0, persons, mp.mpf(epsilon)) + spent

    with mp.workdps(50):
        assert found <= epsilon0
        assert found == epsilon0 or total(found) <= delta
        if found > 0 and total(epsilon0) <= delta:
            assert total(found * (1 - 1e-5)) > delta


@pytest.mark.parametrize("trials", [7, 1000, 10**5, 10**8])
@pytest.mark.parametrize("rate", [0.5, 0.875, 2**-10])
@pytest.mark.parametrize("sds", [0.5, 3, 8])
def test_binomial_tails_err_by_less_than_is_charged(trials, rate, sds):
    """P(Bin ≥ k) above the mean, by its series; P(Bin < k) is that of the complements."""
    k = min(math.ceil(trials * rate + sds * math.sqrt(trials * rate * (1 - rate))) + 1, trials)
    with mp.workdps(40):
        p, n = mp.mpf(rate), mp.mpf(trials)
        log_first = mp.loggamma(n + 1) - mp.loggamma(k + 1) - mp.loggamma(n - k + 1)
        term, total, at = mp.mpf(1), mp.mpf(0), k
        while term > mp.mpf("1e-22"):
            total += term
            term *= (n - at) / (at + 1) * p / (1 - p)
            at += 1
        exact = mp.exp(log_first + k * mp.log(p) + (n - k) * mp.log1p(-p)) * total
        allowed = exact * shuffling._beta_error(trials) / 2
        assert abs(shuffling._at_least(np.array([float(k)]), trials, rate)[0] - exact) <= allowed
        below = shuffling._fewer_than(np.array([float(trials - k + 1)]), trials, 1 - rate)[0]
        assert abs(below - exact) <= allowed


@pytest.mark.parametrize(("persons", "epsilon0"), [(20_000, 0.5), (200_000, 2.0), (10**6, 5.0)])
def test_buckets_of_clones_cost_nearly_nothing(persons, epsilon0):
    """One term for every number of clones, by another library's binomials."""
    delta, rate = 1e-6, math.exp(-epsilon0)
    found = shuffling.epsilon(epsilon0, 0.0, persons, delta)
    sd = math.sqrt(persons * rate)
    c = np.arange(max(int(persons * rate - 9 * sd), 0), int(persons * rate + 9 * sd))
    p = 1 / (1 + math.exp(-epsilon0))

    def total(epsilon: float) -> float:
        up = math.exp(epsilon)
        alpha, beta = p - up * (1 - p), up * p - (1 - p)
        k = np.floor((c + 1) * beta / (alpha + beta)) + 1
        each = alpha * binom.sf(k - 2, c, 0.5) - beta * binom.sf(k - 1, c, 0.5)
        return float(binom.pmf(c, persons - 1, rate) @ each)

    assert total(found) <= delta
    assert total(found * 0.998) > delta


@pytest.mark.parametrize("persons", [10**3, 10**4, 10**6, 10**8])
@pytest.mark.parametrize("epsilon0", [0.1, 1.0, 1.5, 4.0])
@pytest.mark.parametrize("delta", [1e-4, 1e-8])
def test_never_above_the_closed_form(persons, epsilon0, delta):
    """Thm 3.1, where its condition holds."""
    found = shuffling.epsilon(epsilon0, 0.0, persons, delta)
    assert 0 <= found <= epsilon0
    if epsilon0 <= math.log(persons / (16 * math.log(2 / delta))):
        up = math.exp(epsilon0)
        root = 8 * math.sqrt(up * math.log(4 / delta) / persons)
        assert found <= math.log1p(math.expm1(epsilon0) / (up + 1) * (root + 8 * up / persons))


def randomized_response_delta(epsilon0: float, persons: int, epsilon: float) -> float:
    """δ of shuffled randomized response: only the number of ones is seen; the worst others."""
    told, worst = 1 / (1 + math.exp(-epsilon0)), 0.0
    for ones in range(persons):
        others = np.array([1.0])
        for i in range(persons - 1):
            chance = told if i < ones else 1 - told
            others = np.convolve(others, [1 - chance, chance])
        p, q = np.convolve(others, [1 - told, told]), np.convolve(others, [told, 1 - told])
        for one, other in ((p, q), (q, p)):
            worst = max(worst, float(np.maximum(one - math.exp(epsilon) * other, 0).sum()))
    return worst


@pytest.mark.parametrize("persons", [1, 2, 3, 6, 40, 200])
@pytest.mark.parametrize("epsilon0", [0.2, 1.0, 2.5])
@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_shuffled_randomized_response_stays_below(persons, epsilon0, delta):
    """A mechanism that can happen, to the last outcome; ε is at most 3 times what is needed."""
    found = shuffling.epsilon(epsilon0, 0.0, persons, delta)
    assert randomized_response_delta(epsilon0, persons, found) <= delta
    assert found < 1e-3 or randomized_response_delta(epsilon0, persons, found / 3) > delta


@pytest.mark.parametrize(("persons", "sigma", "delta"), [(1000, 2.0, 1e-3), (3000, 1.5, 1e-3)])
def test_shuffled_gaussian_rows_stay_below(persons, sigma, delta):
    """All others at one pole, the person at it or at the other: worlds that can happen.

    δ = E_P(1 - e^ε Q/P)₊ by simulation; 6 standard errors, false alarm 1e-9. At a sixtieth of the ε
    the same simulation says that δ is exceeded: so it can tell, and so much do the clones give
    away for rows with Gaussian noise.
    """
    event = ShuffledGaussian(persons, sigma, delta / (100 * persons), delta)
    found = shuffling.shuffled(event)
    assert found < shuffling.local_epsilon(sigma, delta)  # there is something to test
    z = np.random.default_rng(17).standard_normal((3000, persons))
    z[:, 0] += 1 / sigma
    ratio = np.exp(z / sigma - 0.5 / sigma**2).mean(axis=1)

    def simulated(epsilon: float) -> tuple[float, float]:
        each = np.maximum(1 - math.exp(epsilon) / ratio, 0)
        return float(each.mean()), 6 * float(each.std()) / math.sqrt(len(each))

    estimate, error = simulated(found)
    assert estimate - error <= delta
    estimate, error = simulated(found / 60)
    assert estimate - error > delta


@pytest.mark.parametrize("radius", [2.0, 3.0])
def test_the_weight_that_the_privacy_contract_states(radius):
    """n = 8000, ε = 3, δ = 1e-5: w = .020 at R = 3 (and .044 at R = 2, the same 2R√(w/(1-w)))."""
    stated = {2.0: 0.0442, 3.0: 0.0201}[radius]
    for w, fits in ((stated, True), (stated * 1.01, False)):
        event = shuffled_injection(w, radius, 8000, 1e-5)
        assert (shuffling.shuffled(event) <= 3) is fits


@pytest.mark.parametrize("rng", rngs(6, 40))
def test_local_epsilon_against_mpmath(rng):
    sigma, delta = log_uniform(rng, 0.1, 50), log_uniform(rng, 1e-15, 0.1)
    found = mp.mpf(shuffling.local_epsilon(sigma, delta))
    with mp.workdps(50):
        mu = 1 / mp.mpf(sigma)
        assert gaussian_delta(mu, found) <= delta
        if found > 0:
            assert gaussian_delta(mu, found * (1 - mp.mpf("1e-8"))) > delta


def test_more_persons_never_cost_more_and_nothing_costs_more_than_no_shuffling():
    for epsilon0 in (0.3, 2.0, 5.0):
        found = [
            shuffling.epsilon(epsilon0, 0.0, n, 1e-6) for n in (1, 2, 10, 10**3, 10**6, 10**10)
        ]
        assert all(more <= fewer * (1 + 2e-6) for fewer, more in pairwise(found))
        assert found[0] == pytest.approx(epsilon0, rel=1e-4)
    assert shuffling.epsilon(5.0, 0.0, 10**10, 1e-6) < 2e-3
    assert shuffling.epsilon(0.0, 0.0, 10, 1e-6) == 0
    assert shuffling.epsilon(500.0, 0.0, 10**10, 1e-6) == 500
    assert shuffling.epsilon(math.inf, 0.0, 10, 1e-6) == math.inf


def test_where_the_rows_delta_costs_too_much_no_amplification_is_claimed():
    """n·δ₀ above δ: ε₀ itself, which needs δ₀ ≤ δ; and above that nothing is known."""
    assert shuffling.epsilon(1.0, 1e-6, 10**5, 1e-6) == 1.0
    assert shuffling.epsilon(1.0, 1e-13, 10**5, 1e-6) < 0.1
    with pytest.raises(InvalidEvent, match="δ₀"):
        shuffling.epsilon(1.0, 2e-6, 10**5, 1e-6)


def test_at_little_noise_a_table_costs_no_more_than_its_rows():
    event = ShuffledGaussian(100, 0.2, 1e-9, 1e-5)
    assert shuffling.shuffled(event) == shuffling.local_epsilon(0.2, 1e-5)
    assert shuffling.shuffled(event) < shuffling.local_epsilon(0.2, 1e-9)


@pytest.mark.parametrize(
    "bad",
    [
        (math.nan, 0.0, 10, 1e-5),
        (-1.0, 0.0, 10, 1e-5),
        (1.0, math.nan, 10, 1e-5),
        (1.0, -1e-9, 10, 1e-5),
        (1.0, 0.0, 0, 1e-5),
        (1.0, 0.0, 10.0, 1e-5),
        (1.0, 0.0, True, 1e-5),
        (1.0, 0.0, 10, 0.0),
        (1.0, 0.0, 10, 1.0),
        (1.0, 0.0, 10, math.nan),
    ],
)
def test_what_is_no_shuffled_table_is_refused(bad):
    with pytest.raises(InvalidEvent):
        shuffling.epsilon(*bad)


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
def test_rows_without_noise_are_refused(sigma):
    with pytest.raises(InvalidEvent):
        shuffling.local_epsilon(sigma, 1e-6)


# -- noisy descent ---------------------------------------------------------------------------------


def descent_mu(sigma: float, contraction: float, steps: int) -> float:
    found = gaussian.mu((NoisyDescent(sigma, contraction, steps),))
    assert found is not None
    return found


@pytest.mark.parametrize("rng", rngs(7, 60))
def test_noisy_descent_is_attained_by_a_quadratic_and_never_exceeded(rng):
    """x ← c_t·x - η(b_t + N(0, s²)): the last iterate is Gaussian, its μ exact.

    With every b_t the same and every c_t = c it is what is charged, to 14 digits. Smaller c_t,
    c_t of either sign, b_t within the sensitivity, and several coordinates with one b_t of that
    norm between them, all stay below.
    """
    sigma, steps = log_uniform(rng, 0.1, 100), int(log_uniform(rng, 1, 300))
    contraction = float(rng.choice([1.0, 1 - log_uniform(rng, 1e-9, 0.99)]))
    claimed = descent_mu(sigma, contraction, steps)
    with mp.workdps(50):
        c = mp.mpf(contraction)
        weights = [c**t for t in range(steps)]
        exact = mp.fsum(weights) / mp.sqrt(mp.fsum(w * w for w in weights)) / mp.mpf(sigma)
        assert exact * (1 - mp.mpf("1e-15")) <= claimed <= exact * (1 + mp.mpf("1e-12"))
    for _ in range(10):
        shrink = contraction * rng.uniform(rng.choice([-1.0, 0.9, 0.999]), 1, (steps, 3))
        # How much of what enters at step t is left at the end, per coordinate.
        left = np.vstack([np.cumprod(shrink[:0:-1], axis=0)[::-1], np.ones(3)])
        aligned = np.abs(rng.standard_normal((steps, 3))) ** rng.choice([0.1, 1, 10]) * np.sign(
            left
        )
        length = np.linalg.norm(aligned, axis=1, keepdims=True)
        shift = np.divide(aligned, length, where=length > 0, out=np.zeros_like(aligned))
        squared = (left * shift).sum(axis=0) ** 2 / (left**2).sum(axis=0)
        assert math.sqrt(squared.sum()) / sigma <= claimed * (1 + 1e-12)


@pytest.mark.parametrize(("contraction", "sigma"), [(0.6, 1.0), (0.9, 2.0), (1.0, 1.5)])
def test_noisy_descent_holds_where_the_map_is_not_linear(contraction, sigma):
    """Three steps of two kinked maps that differ by at most the sensitivity, by quadrature.

    Both contract by c ≥ .1, and flip what is negative; the person's gradient falls with |x|. No δ
    at any ε, either way, may exceed that of the charged μ; the grid errs by less than 1e-6.
    """
    x = np.linspace(-16, 16, 1601)
    width = x[1] - x[0]

    def last(with_person: bool) -> np.ndarray:
        move = contraction * np.abs(x)
        if with_person:
            move = move + np.maximum(1 - np.abs(x) / 10, 0)
        spread = np.exp(-((x[:, None] - move[None, :]) ** 2) / (2 * sigma**2))
        spread /= math.sqrt(2 * math.pi) * sigma
        density = np.exp(-((x - move[len(x) // 2]) ** 2) / (2 * sigma**2))
        density /= density.sum() * width
        for _ in range(2):
            density = spread @ density * width
        return density

    one, other = last(True), last(False)
    mu = descent_mu(sigma, contraction, 3)
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0):
        for p, q in ((one, other), (other, one)):
            truth = float(np.maximum(p - math.exp(epsilon) * q, 0).sum()) * width
            assert truth <= gaussian.delta(mu, epsilon) + 1e-6
    assert float(np.abs(one - other).sum()) * width / 2 > 0.5 * gaussian.delta(mu, 0.0)
