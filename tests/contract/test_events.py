"""One contract for every event: fail closed, count once, round trip."""

import math

import pytest

from penstock.errors import BudgetExceeded, InvalidEvent
from penstock.privacy.accountant import epsilon
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import (
    Gaussian,
    PoissonGaussian,
    Unbounded,
    from_dict,
    latent_injection,
    to_dict,
)
from penstock.privacy.filters import Filter, best_order
from penstock.privacy.renyi import renyi, renyi_total

DELTA = 1e-6
MAKERS = {
    "gaussian": lambda count=1, sigma=1.3: Gaussian(sigma, count),
    "poisson": lambda count=1, sigma=1.3: PoissonGaussian(0.07, sigma, count),
}
BAD = [math.nan, math.inf, -math.inf, 0.0, -1.0, "1", None]


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("n", [2, 7, 400])
def test_n_at_once_equal_n_single_ones(kind, n):
    together = renyi(MAKERS[kind](n), 6.0)
    apart = renyi_total([MAKERS[kind](1)] * n, 6.0)
    assert together == pytest.approx(apart, rel=1e-12)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("sigma", BAD)
def test_bad_noise_is_refused(kind, sigma):
    with pytest.raises(InvalidEvent):
        MAKERS[kind](1, sigma)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("count", [0, -1, 1.5, math.nan, True])
def test_bad_counts_are_refused(kind, count):
    with pytest.raises(InvalidEvent):
        MAKERS[kind](count)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, math.nan, 2.0])
def test_bad_rates_are_refused(rate):
    with pytest.raises(InvalidEvent):
        PoissonGaussian(rate, 1.0)


@pytest.mark.parametrize("kind", MAKERS)
def test_more_noise_never_costs_more(kind):
    costs = [epsilon((MAKERS[kind](10, sigma),), DELTA) for sigma in (0.7, 1.0, 2.0, 5.0)]
    assert costs == sorted(costs, reverse=True)
    assert all(c >= 0 and math.isfinite(c) for c in costs)


@pytest.mark.parametrize(
    "event", [Gaussian(1.5, 3, "x"), PoissonGaussian(0.1, 2.0, 5), Unbounded("why")]
)
def test_round_trip(event):
    assert from_dict(to_dict(event)) == event


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"kind": "laplace"},
        {"kind": "gaussian"},
        {"kind": "gaussian", "noise_multiplier": 1.0, "extra": 1},
        {"kind": "gaussian", "noise_multiplier": float("nan")},
        {"kind": ["gaussian"]},
    ],
)
def test_unknown_records_are_refused(record):
    with pytest.raises(InvalidEvent):
        from_dict(record)


@pytest.mark.parametrize(("w", "clip"), [(0.5, 2.0), (0.95, 3.0)])
def test_latent_injection_has_the_published_price(w, clip):
    # privacy contract: R = 2, w = .5 costs 10.0 and R = 3, w = .95 costs 140 at δ = 1e-5 (exact
    # Gaussian); ours is the RDP bound above it.
    from penstock.privacy.accountant import epsilon_pld

    exact = {(0.5, 2.0): 10.0, (0.95, 3.0): 140.0}[(w, clip)]
    event = latent_injection(w, clip, 1)
    assert epsilon_pld((event,), 1e-5) == pytest.approx(exact, rel=0.01)
    assert epsilon((event,), 1e-5) >= exact * 0.999


@pytest.mark.parametrize("w", [0.0, 1.0, -0.1, math.nan])
def test_latent_injection_refuses_a_w_outside_its_domain(w):
    with pytest.raises(InvalidEvent):
        latent_injection(w, 2.0, 1)


@pytest.mark.parametrize("target", [0.3, 1.0, 3.0])
def test_calibration_ends_on_the_private_side(target):
    def events(scale):
        return (Gaussian(2 * scale), Gaussian(20 * scale, 100))

    scale = smallest_scale(events, target, DELTA)
    assert epsilon(events(scale), DELTA) <= target
    assert epsilon(events(scale * (1 - 1e-3)), DELTA) > target


def test_calibration_says_when_a_part_does_not_shrink():
    with pytest.raises(BudgetExceeded, match="does not shrink"):
        smallest_scale(lambda s: (Gaussian(s), Gaussian(0.5)), 1.0, DELTA)


@pytest.mark.parametrize("bad", [math.nan, 0.0, -1.0, math.inf])
def test_calibration_refuses_bad_targets(bad):
    with pytest.raises(InvalidEvent):
        smallest_scale(lambda s: (Gaussian(s),), bad, DELTA)


class TestFilter:
    filter = Filter(3.0, 1e-5, best_order(3.0, 1e-5))

    def test_what_is_left_is_itself_admitted_and_not_much_more(self):
        spent = (Gaussian(4.0),)
        left = self.filter.left(spent)
        sigma = smallest_scale(lambda s: (Gaussian(s),), left, 1e-5)
        assert self.filter.admits(spent, (Gaussian(sigma),))
        more = smallest_scale(lambda s: (Gaussian(s),), left * 1.01, 1e-5)
        assert not self.filter.admits(spent, (Gaussian(more),))

    def test_refusal_changes_nothing_and_says_what_is_left(self):
        with pytest.raises(BudgetExceeded, match="ask for"):
            self.filter.check((Gaussian(2.0),), (Gaussian(0.5),), what="data set")

    def test_nothing_fits_beside_the_unbounded(self):
        assert not self.filter.admits((Unbounded(),), (Gaussian(100.0),))
        assert not self.filter.admits((), (Unbounded(),))

    @pytest.mark.parametrize("order", [1.0, 0.5, math.nan, math.inf])
    def test_bad_orders_are_refused(self, order):
        with pytest.raises(InvalidEvent):
            Filter(3.0, 1e-5, order)
