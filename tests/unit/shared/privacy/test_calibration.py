"""Calibration ends on the private side, and says when it cannot."""

import math

import pytest
from tests.support.spending import ASIDE, DELTA, GRID, ONE

from penstock.base.errors import BudgetExceeded, InvalidEvent
from penstock.privacy.accounting.accountant import epsilon, epsilon_pld
from penstock.privacy.calibration import smallest_scale, smallest_scale_within
from penstock.privacy.events import Gaussian, PoissonGaussian


class TestCalibration:
    @pytest.mark.parametrize("target", [0.3, 1.0, 3.0])
    @pytest.mark.parametrize("accountant", [epsilon, epsilon_pld])
    def test_it_ends_on_the_private_side(self, target, accountant):
        def events(scale):
            return (Gaussian(2 * scale), Gaussian(20 * scale, 100))

        scale = smallest_scale(events, target, DELTA, accountant=accountant)
        assert accountant(events(scale), DELTA) <= target
        assert accountant(events(scale * (1 - 1e-3)), DELTA) > target

    def test_it_says_when_a_part_does_not_shrink(self):
        with pytest.raises(BudgetExceeded, match="does not shrink"):
            smallest_scale(lambda s: (Gaussian(s), Gaussian(0.5)), 1.0, DELTA)

    @pytest.mark.parametrize("bad", [math.nan, 0.0, -1.0, math.inf])
    def test_it_refuses_bad_targets(self, bad):
        with pytest.raises(InvalidEvent):
            smallest_scale(lambda s: (Gaussian(s),), bad, DELTA)
        with pytest.raises(InvalidEvent):
            smallest_scale(lambda s: (Gaussian(s),), 1.0, DELTA, tolerance=bad or 1.0)

    @pytest.mark.parametrize("kept", [ONE, GRID, ASIDE])
    def test_what_is_left_is_used_up(self, kept):
        spent = (Gaussian(3.0), PoissonGaussian(0.01, 1.0, 100))

        def events(scale):
            return (PoissonGaussian(0.05, scale, 50), Gaussian(4 * scale))

        scale = smallest_scale_within(kept, spent, events)
        assert kept.admits(spent, events(scale))
        assert not kept.admits(spent, events(scale * (1 - 1e-3)))

    def test_nothing_left_is_said(self):
        with pytest.raises(BudgetExceeded, match="no amount of noise"):
            smallest_scale_within(ONE, (Gaussian(0.5),), lambda s: (Gaussian(s),))
