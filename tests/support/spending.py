"""Charges that tests of filters share."""

from penstock.privacy.filters import Filter, best_order

DELTA = 1e-5
ORDER = best_order(3.0, DELTA)
ONE = Filter(3.0, DELTA, ORDER)
GRID = Filter(3.0, DELTA, (5.5, 9.0, 32.0))
ASIDE = Filter(3.0, DELTA, ORDER, approximate_delta=1e-6)
