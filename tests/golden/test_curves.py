"""Curves against mpmath and dp-accounting, over hundreds of random configurations.

Seeds are fixed. mpmath works with 40 digits; integrals of Gaussians are trapezoidal sums, whose
error falls like exp(-2π²/h²) for step h (Trefethen & Weideman 2014, SIAM Review 56, §5) and is
below 1e-40 here; the cruder ``mpmath.quad`` checks the sums.
"""

import math
import random

import mpmath
import numpy as np
import pytest

from penstock.privacy.accounting import accountant, curves, gaussian, pld, renyi, sampling
from penstock.privacy.events import (
    DiscreteGaussian,
    FixedSizeGaussian,
    Gaussian,
    Laplace,
    NoisyDescent,
    PoissonGaussian,
    Pure,
)

ORDERS = (1.0625, 1.5, 2.0, 2.7, 3.0, 6.5, 8.0, 17.0, 33.0, 64.0, 256.0)


def between(rng, low, high):
    """Uniform in the logarithm."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


# -- Gaussian ------------------------------------------------------------------------------------


def gaussian_delta(mu, epsilon):
    """Balle & Wang 2018, Thm 8."""
    mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
    return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(
        -mu / 2 - epsilon / mu
    )


def test_gaussian_delta_and_epsilon_on_600_configurations():
    rng = random.Random(1)
    with mpmath.workdps(60):
        for _ in range(600):
            mu, delta = between(rng, 1e-4, 50), between(rng, 1e-12, 0.5)
            found = gaussian.epsilon(mu, delta)
            # On the safe side, and by less than 1e-10 of ε or of μ.
            assert gaussian_delta(mu, found) <= delta
            below = found - 1e-10 * max(found, mu)
            assert below < 0 or gaussian_delta(mu, below) > delta
            at = max(mu * (rng.uniform(-6, 7) + mu / 2), 0.0)
            exact = gaussian_delta(mu, at)
            assert abs(gaussian.delta(mu, at) - exact) <= 1e-10 * exact


def test_gaussian_delta_by_quadrature():
    """Of the definition: the integral of what p exceeds e^ε q by."""
    with mpmath.workdps(20):
        for mu, epsilon in [(0.3, 0.1), (1.0, 0.0), (1.0, 2.0), (4.0, 9.0), (0.05, 0.2)]:
            start = mpmath.mpf(epsilon) / mu + mpmath.mpf(mu) / 2
            pieces = [start, start + 1, start + 4, start + 16]
            found = mpmath.quad(
                lambda x, mu=mu, e=epsilon: mpmath.npdf(x - mu) - mpmath.exp(e) * mpmath.npdf(x),
                pieces,
            )
            assert gaussian.delta(mu, epsilon) == pytest.approx(float(found), rel=1e-10)


def test_noisy_descent_on_300_configurations():
    rng = random.Random(2)
    with mpmath.workdps(60):
        for _ in range(300):
            c = 1 - between(rng, 1e-15, 0.999)
            steps, sigma = round(between(rng, 1, 1e7)), between(rng, 0.1, 100)
            power = mpmath.mpf(c) ** steps
            exact = (1 - power) / (1 + power) * (1 + mpmath.mpf(c)) / (1 - mpmath.mpf(c))
            found = gaussian.mu_squared(NoisyDescent(sigma, c, steps)) * sigma**2
            assert exact * (1 - 1e-15) <= found <= exact * (1 + 1e-11)


def test_the_closed_form_of_a_composition_is_of_the_root_of_squares():
    events = [Gaussian(3.0, 4), Gaussian(2.0), NoisyDescent(5.0, 0.5, 9)]
    squared = 4 / 9 + 1 / 4 + (1 - 0.5**9) / (1 + 0.5**9) * 3 / 25
    assert gaussian.mu(events) == pytest.approx(math.sqrt(squared), rel=1e-12)
    assert gaussian.mu([*events, Laplace(1.0)]) is None
    assert gaussian.mu([]) == 0.0


# -- Rényi ---------------------------------------------------------------------------------------


def poisson_integral(q, sigma, order):
    """(α-1)ρ_α: log of ∫ N(0)·((1-q) + q·N(1)/N(0))^α, in standard deviations."""
    q, sigma, order = mpmath.mpf(q), mpmath.mpf(sigma), mpmath.mpf(order)
    step, edge = mpmath.mpf(1) / 8, 13
    first, last = math.floor(-edge / step), math.ceil((float(order / sigma) + edge) / step)
    ratio, offset = mpmath.exp(step / sigma), 1 / (2 * sigma**2)
    told = mpmath.exp(first * step / sigma - offset)
    total = []
    for k in range(first, last + 1):
        x = k * step
        total.append(mpmath.exp(-x * x / 2 + order * mpmath.log1p(q * (told - 1))))
        told *= ratio
    return mpmath.log(mpmath.fsum(total) * step / mpmath.sqrt(2 * mpmath.pi))


def random_poisson(rng):
    return between(rng, 1e-3, 0.9), between(rng, 0.5, 20)


def test_poisson_at_whole_orders_is_the_integral():
    rng = random.Random(3)
    with mpmath.workdps(40):
        for _ in range(120):
            q, sigma = random_poisson(rng)
            order = rng.choice([2, 3, 5, 8, 13, 21, 34])
            exact = poisson_integral(q, sigma, order) / (order - 1)
            found = renyi.renyi(PoissonGaussian(q, sigma), float(order))
            assert exact <= found <= exact * (1 + 1e-9)


def test_poisson_between_whole_orders_is_above_the_integral():
    rng = random.Random(4)
    with mpmath.workdps(40):
        for _ in range(60):
            q, sigma = random_poisson(rng)
            order = rng.uniform(1.01, 20)
            exact = poisson_integral(q, sigma, order) / (mpmath.mpf(order) - 1)
            assert renyi.renyi(PoissonGaussian(q, sigma), order) >= exact


def test_the_other_direction_of_poisson_is_cheaper():
    """D(N(0) ‖ mixture) never exceeds D(mixture ‖ N(0)) (Mironov, Talwar & Zhang 2019, Cor. 7)."""
    with mpmath.workdps(20):
        for q, sigma, order in [(0.1, 1.0, 4), (0.5, 0.7, 3), (0.01, 2.0, 16)]:

            def integrand(x, q=q, sigma=sigma, order=order):
                mixed = 1 - q + q * mpmath.exp((2 * x - 1) / (2 * mpmath.mpf(sigma) ** 2))
                return mpmath.npdf(x, 0, sigma) * mixed ** (1 - order)

            other = mpmath.log(mpmath.quad(integrand, [-30, -5, 0, 5, 30])) / (order - 1)
            assert other <= renyi.renyi(PoissonGaussian(q, sigma), float(order))


def test_the_trapezoidal_sum_is_the_integral():
    with mpmath.workdps(25):
        for q, sigma, order in [(0.1, 1.0, 4), (0.7, 0.6, 2.5), (0.01, 3.0, 20)]:

            def integrand(x, q=q, sigma=sigma, order=order):
                mixed = 1 - q + q * mpmath.exp((2 * x - 1) / (2 * mpmath.mpf(sigma) ** 2))
                return mpmath.npdf(x, 0, sigma) * mixed**order

            exact = mpmath.log(mpmath.quad(integrand, [-20 * sigma, 0, order / 2, order, 60]))
            assert abs(poisson_integral(q, sigma, order) - exact) < 1e-12


def test_poisson_agrees_with_dp_accounting_on_150_configurations():
    import dp_accounting as dpa
    from dp_accounting.rdp import RdpAccountant

    rng = random.Random(5)
    orders = [2.0, 3.0, 7.0, 17.0, 48.0]
    for _ in range(150):
        q, sigma = random_poisson(rng)
        theirs = RdpAccountant(orders)
        theirs.compose(dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(sigma)))
        for order, value in zip(orders, theirs._rdp, strict=True):
            if value > 1e-5:  # below, its logarithms cancel
                ours = renyi.renyi(PoissonGaussian(q, sigma), order)
                assert ours == pytest.approx(float(value), rel=1e-9)


def test_tiny_rates_keep_their_digits():
    """Where the usual sum in logarithms has none left: q²α/2·(e^{1/σ²} - 1) is all there is."""
    for q in (1e-6, 1e-9, 1e-15):
        exact = 4 * q * q * math.expm1(1 / 4.0)
        assert renyi.renyi(PoissonGaussian(q, 2.0), 8.0) == pytest.approx(exact, rel=40 * q + 1e-9)


def laplace_integral(scale, order):
    """(α-1)ρ_α by exact integration of its three pieces."""
    b, a = mpmath.mpf(scale), mpmath.mpf(order)
    outer = (mpmath.exp((a - 1) / b) + mpmath.exp(-a / b)) / 2
    inner = mpmath.exp(-a / b) * mpmath.expm1((2 * a - 1) / b) / (2 * (2 * a - 1))
    return mpmath.log(outer + inner)


def test_laplace_on_500_configurations():
    rng = random.Random(6)
    with mpmath.workdps(60):
        for _ in range(500):
            scale, order = between(rng, 1e-3, 1e6), rng.choice(ORDERS)
            exact = laplace_integral(scale, order) / (mpmath.mpf(order) - 1)
            assert exact <= renyi.renyi(Laplace(scale), order) <= exact * (1 + 1e-9)


def test_laplace_by_quadrature():
    with mpmath.workdps(25):
        for b, order in [(1.0, 2), (0.5, 3.5), (4.0, 20)]:

            def integrand(x, b=mpmath.mpf(b), order=order):
                return mpmath.exp((-order * abs(x) - (1 - order) * abs(x - 1)) / b) / (2 * b)

            exact = mpmath.log(mpmath.quad(integrand, [-60 * b, -5, 0, 1, 6, 60 * b]))
            found = renyi.renyi(Laplace(b), float(order)) * (order - 1)
            assert found == pytest.approx(float(exact), rel=1e-9)


def test_pure_on_500_configurations():
    rng = random.Random(7)
    with mpmath.workdps(80):
        for _ in range(500):
            epsilon, order = between(rng, 1e-12, 1e4), rng.choice(ORDERS)
            e, a = mpmath.mpf(epsilon), mpmath.mpf(order)
            moment = (mpmath.exp(a * e) + mpmath.exp((1 - a) * e)) / (1 + mpmath.exp(e))
            exact = mpmath.log(moment) / (a - 1)
            assert exact <= renyi.renyi(Pure(epsilon), order) <= exact * (1 + 1e-9)


@pytest.mark.filterwarnings("ignore")
def test_autodp_and_the_closed_forms_agree_on_1500_configurations():
    """Where autodp keeps its digits; that is where it is asked."""
    from autodp.mechanism_zoo import ExactGaussianMechanism, LaplaceMechanism, PureDP_Mechanism
    from autodp.rdp_acct import anaRDPacct

    def poisson(q, sigma, order):
        theirs = anaRDPacct(m=2)
        theirs.compose_poisson_subsampled_mechanisms(lambda a: 0.5 / sigma**2 * a, q)
        theirs.build_zeroth_oracle()
        return theirs.evalRDP(order)

    rng, asked = random.Random(8), 0
    for _ in range(500):
        order = rng.choice(ORDERS)
        q, sigma = between(rng, 1e-5, 0.99), between(rng, 0.1, 100)
        scale, epsilon = between(rng, 1e-2, 1e3), between(rng, 1e-3, 1e2)
        ours = curves.poisson(q, sigma, (order,))[0], curves.laplace(scale, order)
        theirs = poisson(q, sigma, order), LaplaceMechanism(scale).RenyiDP(order)
        ours += curves.pure(epsilon, order), order / 2 * curves.gaussian_squared(sigma)
        theirs += (PureDP_Mechanism(epsilon).RenyiDP(order),)
        theirs += (ExactGaussianMechanism(sigma).RenyiDP(order),)
        for mine, other in zip(ours, theirs, strict=True):
            if (order - 1) * mine >= 1e-5:
                asked += 1
                assert mine == pytest.approx(float(other), rel=1e-9)
    assert asked > 1500


def test_many_orders_at_once_are_each_one():
    for q, sigma in [(0.01, 1.0), (0.5, 0.3), (0.9, 50.0), (1e-9, 5.0)]:
        at_once = curves.poisson(q, sigma, renyi.ORDERS)
        for order, value in zip(renyi.ORDERS, at_once, strict=True):
            assert curves.poisson(q, sigma, (order,))[0] == pytest.approx(value, rel=1e-11)


@pytest.mark.parametrize(
    "event",
    [
        Gaussian(2.0),
        PoissonGaussian(0.2, 0.6),
        FixedSizeGaussian(10, 100, 1.5),
        Laplace(0.7),
        Pure(1.5),
    ],
)
def test_divergences_rise_with_the_order_and_are_convex_where_they_must_be(event):
    """ρ_α rises, and (α-1)ρ_α is convex: else an interpolation would be no bound."""
    orders = np.array(renyi.ORDERS)
    rho = np.array([renyi.renyi(event, order) for order in renyi.ORDERS])
    assert (np.diff(rho) >= -1e-12 * rho[1:]).all()
    if not isinstance(event, FixedSizeGaussian):  # its bound need not be
        slopes = np.diff((orders - 1) * rho) / np.diff(orders)
        assert (np.diff(slopes) >= -1e-8 * slopes[1:]).all()


# -- privacy loss distributions ------------------------------------------------------------------

HARDLY_ANYTHING = Laplace(1e7)
"""Beside it nothing is exactly Gaussian, so that a distribution is composed."""


def test_the_distribution_of_gaussians_is_the_closed_form_rounded_up():
    rng = random.Random(9)
    for _ in range(6):
        events = [Gaussian(between(rng, 2, 20), rng.randint(1, 5)) for _ in range(2)]
        delta = between(rng, 1e-9, 1e-2)
        exact = gaussian.epsilon(gaussian.mu(events), delta)
        composed = pld.compose([*events, HARDLY_ANYTHING], delta, False)
        assert composed.mu is None
        assert exact <= composed.epsilon(delta) <= exact + 1e-3


def random_events(rng):
    """Kinds whose two bounds are of the same pair of distributions."""
    made = [
        Gaussian(between(rng, 2, 50), rng.randint(1, 20)),
        PoissonGaussian(between(rng, 0.003, 0.3), between(rng, 1.2, 5), rng.randint(1, 300)),
        Laplace(between(rng, 1, 50), rng.randint(1, 10)),
        Pure(between(rng, 0.01, 0.5), rng.randint(1, 10)),
        NoisyDescent(between(rng, 5, 50), rng.uniform(0.1, 1), rng.randint(1, 100)),
    ]
    return rng.sample(made, rng.randint(1, 3))


def test_the_gating_epsilon_is_never_below_the_distribution():
    rng = random.Random(10)
    for _ in range(20):
        events, delta = random_events(rng), between(rng, 1e-8, 1e-3)
        composed = pld.compose(events, delta, False)
        assert accountant.epsilon(events, delta) >= composed.epsilon(delta) - 2e-3


def test_the_gating_epsilon_is_never_below_the_closed_form():
    rng = random.Random(11)
    for _ in range(300):
        events = [Gaussian(between(rng, 0.5, 100), rng.randint(1, 50))]
        delta = between(rng, 1e-12, 0.1)
        exact = gaussian.epsilon(gaussian.mu(events), delta)
        assert accountant.epsilon(events, delta) >= exact


@pytest.mark.parametrize("scale", [0.3, 1.0, 5.0])
def test_one_laplace_is_its_exact_curve(scale):
    """δ(ε) = 1 - e^{(ε - 1/b)/2} (Balle, Barthe & Gaboardi 2018, Thm 3)."""
    for delta in (1e-6, 1e-3):
        exact = 1 / scale + 2 * math.log1p(-delta)
        found = accountant.epsilon_pld([Laplace(scale)], delta)
        assert exact <= found <= exact + 1e-4


@pytest.mark.parametrize("count", [1, 3, 20])
def test_pure_composes_to_the_exact_optimum(count):
    """Kairouz, Oh & Viswanath 2015, Thm 3.3: randomized response composed, by its binomial."""
    epsilon = 0.3
    told = 1 / (1 + math.exp(-epsilon))
    losses = [epsilon * (2 * k - count) for k in range(count + 1)]
    chances = [math.comb(count, k) * told**k * (1 - told) ** (count - k) for k in range(count + 1)]
    for at in (0.0, 0.2, 0.29, 1.0, 3.0):
        exact = sum(p * -math.expm1(min(at - x, 0)) for x, p in zip(losses, chances, strict=True))
        found = accountant.delta([Pure(epsilon, count)], at)
        assert exact <= found + 1e-15
        assert found <= exact + 1e-4


@pytest.mark.parametrize(("batch", "population", "sigma"), [(20, 1000, 1.5), (300, 1000, 1.0)])
def test_fixed_size_batches_are_above_a_direct_lower_bound(batch, population, sigma):
    """All rows zero but one, which is present or zero: the mixture against N(0) must be covered."""
    rate = batch / population
    for delta in (1e-6, 1e-3):
        found = accountant.epsilon_pld([FixedSizeGaussian(batch, population, sigma)], delta)
        with mpmath.workdps(40):
            ratio = mpmath.mpf(1) + (mpmath.exp(found) - 1) / rate
            assert gaussian_delta(1 / sigma, mpmath.log(ratio)) * rate <= delta
    many = accountant.epsilon_pld([FixedSizeGaussian(batch, population, sigma, 30)], 1e-5)
    sampled = accountant.epsilon_pld([PoissonGaussian(rate, sigma, 30)], 1e-5)
    assert many >= sampled - 1e-3


def test_the_distribution_of_a_fixed_size_batch_has_its_profile():
    profile = sampling.profile_fixed_size(20, 1000, 1.5, np.array([0.0, 0.01, 0.1, 0.5, 1.0]))
    event = FixedSizeGaussian(20, 1000, 1.5)
    for at, delta in zip([0.0, 0.01, 0.1, 0.5, 1.0], profile, strict=True):
        found = pld.compose([event], 1e-5, False).delta(at)
        assert delta <= found <= delta * (1 + 1e-5) + 1e-12


def test_few_and_many_copies_are_composed_alike():
    """Above 10,000 by squaring; a Gaussian curve is what both must end near."""
    events = [PoissonGaussian(0.01, 30.0, count) for count in (9_000, 30_000, 1_000_000)]
    for event in events:
        # The central limit of Poisson sampling (Bu et al. 2020, 1911.11607), close at many steps.
        limit = 0.01 * math.sqrt(event.count * math.expm1(1 / 30.0**2))
        found = accountant.epsilon_pld([event], 1e-5)
        assert found == pytest.approx(gaussian.epsilon(limit, 1e-5), rel=0.02)


# -- discrete noise ------------------------------------------------------------------------------


@pytest.mark.parametrize("s", [1.0, 1.7, 4.0, 30.0])
def test_rounded_and_discrete_noise_are_as_close_as_the_proof_says(s):
    """log(r/p) at every whole number within ten standard deviations, to 40 digits."""
    with mpmath.workdps(40):
        sd = mpmath.mpf(s)
        reach = int(60 * s)
        total = mpmath.fsum(
            mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * sd**2)) for k in range(-reach, reach + 1)
        )
        for k in range(0, int(10 * s) + 1):
            discrete = mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * sd**2)) / total
            tail = mpmath.erfc((k - mpmath.mpf(1) / 2) / sd / mpmath.sqrt(2))
            rounded = (tail - mpmath.erfc((k + mpmath.mpf(1) / 2) / sd / mpmath.sqrt(2))) / 2
            ratio = mpmath.log(rounded / discrete)
            assert ratio >= -1 / (24 * sd**2)
            assert ratio <= k**2 / (24 * sd**4) + 3 * mpmath.exp(-2 * mpmath.pi**2 * sd**2)


@pytest.mark.parametrize("shift", [256, 1024, 2048])
def test_fine_discrete_noise_covers_its_exact_curve(shift):
    """One number, sd 1024 cells, moved by a whole number of cells."""
    from dp_accounting.pld import privacy_loss_distribution as library

    exact = library.from_discrete_gaussian_mechanism(
        1024.0, shift, pessimistic_estimate=False, value_discretization_interval=1e-5
    )
    event = DiscreteGaussian(1024.0 / shift, grid_sd=1024.0, size=1)
    composed = pld.compose([event], 1e-5, False)
    assert composed.mu is not None
    assert 0 < composed.shift < 1e-3
    for delta in (1e-9, 1e-5, 1e-2):
        lower = exact.get_epsilon_for_delta(delta)
        assert lower - 1e-6 <= composed.epsilon(delta) <= lower + 1e-3


def test_coarse_discrete_noise_is_bounded_by_its_renyi_curve():
    event = DiscreteGaussian(3.0, grid_sd=3.0, size=5)
    assert pld.compose([event], 1e-5, False) is None
    assert accountant.epsilon_pld([event], 1e-5) == accountant.epsilon([event], 1e-5)
    mixed = [event, Pure(0.1)]
    found = accountant.epsilon_pld(mixed, 1e-5)
    assert gaussian.epsilon(1 / 3, 1e-5) < found <= accountant.epsilon(mixed, 1e-5)
    assert pld.compose(mixed, 1e-5, False).epsilon(1e-5) <= accountant.epsilon(mixed, 1e-5) + 1e-2
