"""Calibration ends on the private side, and says when it cannot."""

import math

import pytest
from tests.support.spending import DELTA

from penstock.base.errors import BudgetExceeded, InvalidEvent
from penstock.privacy.accounting.accountant import epsilon, epsilon_pld
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Gaussian


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
