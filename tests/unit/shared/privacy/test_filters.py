"""Filters and the odometer: what fits, what is left, and on which side."""

import itertools
import math

import pytest
from tests.support.spending import ASIDE, DELTA, GRID, ONE, ORDER

from penstock.base.errors import BudgetExceeded, InvalidEvent
from penstock.privacy.accounting.accountant import epsilon, epsilon_pld
from penstock.privacy.accounting.renyi import renyi_total, to_epsilon
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import (
    Approximate,
    Gaussian,
    Laplace,
    OnStratum,
    PoissonGaussian,
    Unbounded,
)
from penstock.privacy.filters import RUNGS, Filter, Odometer


@pytest.mark.parametrize("kept", [ONE, GRID, ASIDE])
class TestFilter:
    def test_what_is_left_is_itself_admitted_and_not_much_more(self, kept):
        spent = (Gaussian(4.0),)
        left = kept.left(spent)
        sigma = smallest_scale(lambda s: (Gaussian(s),), left, DELTA)
        assert kept.admits(spent, (Gaussian(sigma),))
        more = smallest_scale(lambda s: (Gaussian(s),), left * 1.01, DELTA)
        assert not kept.admits(spent, (Gaussian(more),))

    def test_shares_add_up_to_a_budget_that_is_full(self, kept):
        spent = (Gaussian(8.0),)
        part = kept.share(spent)
        assert 0 < part < 1
        assert kept.share(spent * 3) == pytest.approx(3 * part, rel=1e-12)
        most = math.floor(1 / part)
        assert kept.admits(spent * (most - 1), spent)
        assert not kept.admits(spent * most, spent)

    def test_refusal_changes_nothing_and_says_what_is_left(self, kept):
        spent = (Gaussian(2.0),)
        with pytest.raises(BudgetExceeded, match="ask for") as caught:
            kept.check(spent, (Gaussian(0.5),), what="data set")
        assert f"{kept.left(spent):.3g}" in caught.value.remedy
        kept.check(spent, (Gaussian(20.0),), what="data set")

    def test_nothing_fits_beside_the_unbounded(self, kept):
        assert not kept.admits((Unbounded(),), (Gaussian(100.0),))
        assert not kept.admits((), (Unbounded(),))
        assert kept.spent((Unbounded(),)) == math.inf
        assert kept.left((Unbounded(),)) == 0.0

    def test_the_spent_epsilon_says_whether_it_fits(self, kept):
        for sigma in (0.9, 1.2, 1.5, 1.8, 2.5):
            charge = (Gaussian(sigma), PoissonGaussian(0.02, 1.0, 10))
            assert kept.admits((), charge) == (kept.spent(charge) <= kept.epsilon)
        assert kept.spent(()) == 0.0

    def test_a_charge_on_another_stratum_is_parallel(self, kept):
        big = Gaussian(1.0 / math.sqrt(2 * 0.9 * max(kept.budget(a) / a for a in kept.orders)))
        north, south = OnStratum("north", big), OnStratum("south", big)
        assert kept.admits((), (big,))
        assert not kept.admits((north,), (north,))
        assert not kept.admits((north,), (big,))
        assert kept.admits((north,), (south,))


def test_a_grid_admits_what_one_of_its_orders_does():
    """Each order alone at its own share of δ: the grid is their union, and no more."""
    alone = [Filter(3.0, DELTA / 3, a) for a in GRID.orders]
    charges = [
        (Gaussian(1.5),),
        (Gaussian(1.9),),
        (PoissonGaussian(0.02, 0.7, 60),),  # dear at high orders only
        (PoissonGaussian(0.02, 0.7, 600),),
        (Laplace(0.7),),
        (Gaussian(11.0),),
    ]
    seen = set()
    for charge in charges:
        found = [f.admits((), charge) for f in alone]
        assert GRID.admits((), charge) == any(found)
        assert GRID.spent(charge) == pytest.approx(min(f.spent(charge) for f in alone))
        seen.add(tuple(found))
    assert len(seen) > 2  # the orders differ, so that the union was tried


def test_a_grid_divides_delta():
    assert GRID.delta_per_order == pytest.approx(DELTA / 3)
    assert Filter(3.0, DELTA, (8.0,)).rho_max == Filter(3.0, DELTA, 8.0).rho_max
    assert GRID.budget(9.0) < Filter(3.0, DELTA, 9.0).rho_max
    assert Filter(3.0, DELTA, 8.0, approximate_delta=5e-6).rho_max < ONE.budget(8.0)


class TestApproximateDelta:
    charge = (Approximate(0.1, 4e-7),)

    def test_it_is_admitted_within_its_share_alone(self):
        assert ASIDE.admits((), self.charge)
        assert ASIDE.admits(self.charge, self.charge)
        assert not ASIDE.admits(self.charge * 2, self.charge)
        assert not ONE.admits((), self.charge)
        assert ASIDE.spent(self.charge * 3) == math.inf

    def test_the_share_is_that_of_the_dearest_stratum(self):
        north, south = (OnStratum(s, self.charge[0]) for s in ("north", "south"))
        assert ASIDE.admits((north, north, south), (south,))
        assert not ASIDE.admits((north, north, south), (north,))
        assert not ASIDE.admits((north, north, south), self.charge)

    def test_the_refusal_says_so(self):
        with pytest.raises(BudgetExceeded, match="off the top of δ"):
            ASIDE.check(self.charge * 2, self.charge, what="data set")

    def test_what_a_filter_admits_is_within_epsilon_and_delta(self):
        """Were all known beforehand, the accountant agrees."""
        spent = []
        for i in itertools.count():
            charge = Approximate(0.05, 4e-8) if i % 3 else Gaussian(9.0)
            if not ASIDE.admits(spent, (charge,)):
                break
            spent.append(charge)
        assert len(spent) > 10
        assert epsilon(spent, DELTA) <= 3.0
        assert epsilon_pld(spent, DELTA) <= 3.0


@pytest.mark.parametrize(
    ("budget", "delta", "order", "aside"),
    [
        (3.0, DELTA, 1.0, 0.0),
        (3.0, DELTA, 0.5, 0.0),
        (3.0, DELTA, math.nan, 0.0),
        (3.0, DELTA, math.inf, 0.0),
        (3.0, DELTA, 20_000.0, 0.0),
        (3.0, DELTA, 1.5, 0.0),  # holds no release at all
        (3.0, DELTA, (), 0.0),
        (3.0, DELTA, (8.0, 8.0), 0.0),
        (3.0, DELTA, (8.0, 1.0), 0.0),
        (3.0, DELTA, 8.0, DELTA),
        (3.0, DELTA, 8.0, -1e-9),
        (3.0, DELTA, 8.0, math.nan),
        (3.0, 1e-12, (8.0, 16.0), 0.0),
        (0.0, DELTA, 8.0, 0.0),
        (math.inf, DELTA, 8.0, 0.0),
        (3.0, 1.0, 8.0, 0.0),
    ],
)
def test_what_is_no_filter_is_refused(budget, delta, order, aside):
    with pytest.raises(InvalidEvent):
        Filter(budget, delta, order, approximate_delta=aside)


class TestOdometer:
    odometer = Odometer(4.0, DELTA)
    steps = tuple((Gaussian(12.0), PoissonGaussian(0.01, 1.0 + i / 100, 5)) for i in range(60))

    def test_readings_rise_and_are_rungs(self):
        found = self.odometer.readings(self.steps)
        rungs = [rung.epsilon for rung in self.odometer.rungs]
        assert found == sorted(found)
        assert set(found) <= {*rungs, math.inf}
        assert found[0] < 2.1 < found[-1] < 6
        assert rungs == sorted(rungs)
        assert len(rungs) == RUNGS

    @pytest.mark.parametrize("order", [None, 8.0, (4.0, 16.0)])
    def test_a_reading_is_the_lowest_filter_that_admits_it_all(self, order):
        odometer = Odometer(4.0, DELTA, order, approximate_delta=1e-6)
        so_far = []
        for step, reading in zip(self.steps, odometer.readings(self.steps), strict=True):
            so_far += step
            if len(so_far) % 20:
                continue
            assert odometer.reading(so_far) == reading
            for rung in odometer.rungs:
                assert rung.admits((), so_far) == (rung.epsilon >= reading)

    def test_every_rung_has_its_share_of_delta(self):
        for aside in (0.0, 1e-6):
            rungs = Odometer(4.0, DELTA, approximate_delta=aside).rungs
            assert all(rung.approximate_delta == aside for rung in rungs)
            assert sum(r.delta - aside for r in rungs) <= (DELTA - aside) * (1 + 1e-9)

    def test_it_costs_more_than_stopping_at_a_time_fixed_beforehand(self):
        events = [event for step in self.steps for event in step]
        rho = renyi_total(events, ORDER)
        assert self.odometer.reading(events) > to_epsilon(rho, ORDER, DELTA)

    def test_its_ends(self):
        assert self.odometer.reading(()) == 0.0
        assert self.odometer.readings([(), (Gaussian(50.0),)])[0] == 0.0
        assert self.odometer.reading((Unbounded(),)) == math.inf
        assert self.odometer.reading((Gaussian(0.1),)) == math.inf
        assert self.odometer.reading((Approximate(0.1, 1e-9),)) == math.inf

    def test_strata_are_parallel(self):
        events = [OnStratum(s, Gaussian(4.0)) for s in ("north", "south")]
        assert self.odometer.reading(events) == self.odometer.reading([Gaussian(4.0)])
        assert self.odometer.reading([*events, Gaussian(4.0)]) == self.odometer.reading(
            [Gaussian(4.0, 2)]
        )

    def test_an_order_that_can_hold_nothing_reads_infinity(self):
        odometer = Odometer(0.01, DELTA, 1.5)
        assert odometer.rungs == ()
        assert odometer.reading([Gaussian(1e6)]) == math.inf
        assert odometer.reading([]) == 0.0

    def test_a_grid_serves_the_rungs_it_can(self):
        few = Odometer(4.0, DELTA, (5.0, 16.0)).rungs
        assert {rung.orders for rung in few} == {(16.0,), (5.0, 16.0)}
        # The share of δ stays that of the whole grid, or better.
        assert all(rung.delta_per_order >= DELTA / RUNGS / 2 * (1 - 1e-9) for rung in few)

    @pytest.mark.parametrize(
        ("budget", "delta", "order", "aside"),
        [
            (0.0, DELTA, None, 0.0),
            (math.nan, DELTA, None, 0.0),
            (4.0, 0.0, None, 0.0),
            (4.0, DELTA, 1.0, 0.0),
            (4.0, DELTA, (8.0, math.nan), 0.0),
            (4.0, DELTA, None, DELTA),
            (4.0, DELTA, None, math.nan),
        ],
    )
    def test_what_is_no_odometer_is_refused(self, budget, delta, order, aside):
        with pytest.raises(InvalidEvent):
            Odometer(budget, delta, order, aside)
