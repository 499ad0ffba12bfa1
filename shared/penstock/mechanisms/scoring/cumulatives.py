r"""Quantiles, and shares and counts beyond thresholds, of one noisy distribution function.

Bins are even on the column's scale over its public range; a threshold, a bound and a spike have
bins of their own, so that a share is a number of whole ones. With F̂ at the ends of bins, made
to rise, a quantile is F̂⁻¹(p), linear within a bin, and errs by what Woodruff's interval says,

.. math:: \frac{\max\big(\hat F^{-1}(p + h) - \hat q,\ \hat q - \hat F^{-1}(p - h)\big)}{1.96},
          \qquad h = 1.96 \sqrt{\frac{p (1 - p)}{n} + τ^2},

with τ² the noise on F̂ there; and by as much as a value is unknown within its bin, w/√12. (The
larger side, not the mean of both: where many rows have one value, the other side is often 0.)

Sources: Woodruff 1952, JASA 47, 635–646; of the strategy :mod:`penstock.privacy.factorisation`.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.copula.grids import value_at
from penstock.mechanisms.scoring.descriptions import Description
from penstock.mechanisms.scoring.tallies import (
    COUNTED,
    LEAST_SEEN,
    NORMAL,
    Tally,
    Told,
    keep_inside,
    rescale,
)
from penstock.privacy.factorisation import (
    UNIT,
    absolute,
    longest_column,
    recovery,
    whole_strategy,
)
from penstock.schema import Coded

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]

BINS = 1024
"""At most, beside those that thresholds make: noise grows with their number's logarithm."""

_LEAST = 1e-4
"""Of a column's range, a standard error at least: all rows may have one value."""


class DistributionTally(Tally):
    """Rows in bins, by the strategy."""

    unit = UNIT

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        column = description.outcome
        asked = [e.threshold for e in description.estimands if e.threshold is not None]
        # Where many rows are likely to have one value it has a bin of its own.
        asked += [*column.bounds, *(() if column.spike is None else (column.spike,))]
        even = value_at(column, np.linspace(0.0, 1.0, BINS + 1))
        # Above a value, and not at it, begins with the next number that there is.
        apart = [edge for value in asked for edge in (value, math.nextafter(value, math.inf))]
        low, high = column.bounds
        edges = np.unique([*even, *apart])
        self._begins = edges[(edges >= low) & (edges <= high)]
        self._inner = self._begins[1:]
        step = 0.0 if column.grid is None else 10.0 ** -(column.decimals or 0)
        ends = np.concatenate([self._inner - step, [high]])
        self._ends = np.maximum(ends, self._begins)

    @property
    def size(self) -> int:
        return len(self._begins)

    @property
    def squared(self) -> Fraction:
        return longest_column(self.size)

    def add_up(self, coded: Coded, members: Bools) -> Whole:
        values = np.where(members, coded[self.description.outcome.name], self._begins[0])
        place = np.zeros(len(values), dtype=np.intp)
        for edge in self._inner:  # work that does not depend on the values
            place += values >= edge
        counts = np.bincount(np.where(members, place, self.size), minlength=self.size + 1)[:-1]
        return np.asarray(whole_strategy(self.size) @ counts)

    def tell(self, noisy: Array, sd: float) -> Told:
        from scipy.optimize import isotonic_regression  # slow to load, and adding up does without

        estimands = self.description.estimands
        halves, spread = recovery(self.size) @ noisy, sd**2 * absolute(self.size)
        rows = max(2 * float(halves[-1]), LEAST_SEEN * 2 * math.sqrt(spread[-1, -1]), 1.0)
        risen = np.clip(isotonic_regression(halves / rows + 0.5).x, 0.0, 1.0)
        risen = np.concatenate([[0.0], risen[:-1], [1.0]])
        # Of each estimand the edge below which the share of rows is asked, or nearly is.
        at = [self._find_edge(e.threshold, e.direction, e.probability, risen) for e in estimands]
        slopes = np.zeros((len(at), self.size))
        slopes[np.arange(len(at)), np.minimum(at, self.size - 1) - 1] = 1 / rows
        shares = np.array(
            [
                risen[edge] if e.probability is None else e.probability
                for edge, e in zip(at, estimands, strict=True)
            ]
        )
        scales = [e.regression.scale for e in estimands]
        counted = np.array([scale == COUNTED for scale in scales])
        above = np.array([-1.0 if e.direction == "above" else 1.0 for e in estimands])
        # The number of rows is the top edge's, of which F has its part; a count is of both.
        slopes[:, -1] += np.where(counted, above, 1 - 2 * shares) / rows
        counts = rows * above * (slopes @ halves)
        noise = slopes @ spread @ slopes.T
        kept = keep_inside(shares, rows, noise)
        sampling = (np.minimum.outer(kept, kept) - np.outer(kept, kept)) / rows
        beyond = np.where(above < 0, 1 - kept, kept)
        turn = np.outer(above, above)
        told, noise, sampling = rescale(scales, beyond, rows, noise * turn, sampling * turn, counts)
        for i, estimand in enumerate(estimands):
            if (p := estimand.probability) is None:
                continue
            own = float(noise[i, i]), float(sampling[i, i])
            told[i], *wanted = self._read_quantile(risen, p, *own)
            for matrix, variance in zip((noise, sampling), wanted, strict=True):
                factor = math.sqrt(variance / matrix[i, i])
                matrix[i] *= factor
                matrix[:, i] *= factor
        return told, noise, sampling

    def _find_edge(
        self, threshold: float | None, direction: str, probability: float | None, risen: Array
    ) -> int:
        """From 1 to the number of bins: the upper one of so many bins."""
        if probability is not None:
            return self._find_bin(risen, probability)
        if threshold is None:
            raise TypeError("a distribution is asked for a threshold or a probability")
        edge = math.nextafter(threshold, math.inf) if direction == "above" else threshold
        return int(np.searchsorted(self._inner, edge, side="left")) + 1

    def _find_bin(self, risen: Array, probability: float) -> int:
        """The first edge, from 1, at which F has reached it."""
        return int(np.argmax(risen[1:] >= probability)) + 1

    def _value(self, risen: Array, probability: float) -> float:
        """F̂⁻¹, within the bounds."""
        top = self._find_bin(risen, probability)
        step = risen[top] - risen[top - 1]
        within = (probability - risen[top - 1]) / step if step > 0 else 0.5
        begin, end = self._begins[top - 1], self._ends[top - 1]
        behind = self._begins[top] if top < self.size else end
        return float(min(begin + min(max(within, 0.0), 1.0) * (behind - begin), end))

    def _read_quantile(
        self, risen: Array, probability: float, noise: float, sampling: float
    ) -> tuple[float, float, float]:
        """The quantile, and the variances of noise and of sampling."""

        value = self._value(risen, probability)

        def reach(variance: float) -> float:
            """Woodruff's variance."""
            h = NORMAL * math.sqrt(variance)
            ends = [min(max(probability + way * h, 0.0), 1.0) for way in (-1, 1)]
            return max((abs(self._value(risen, end) - value) / NORMAL) ** 2 for end in ends)

        top = self._find_bin(risen, probability)
        inside = (self._ends[top - 1] - self._begins[top - 1]) ** 2 / 12
        drawn, whole = reach(sampling), reach(noise + sampling)
        low, high = self.description.outcome.bounds
        least = (_LEAST * (high - low)) ** 2
        return (
            value,
            max(whole - drawn, 0.0) + inside + least,
            drawn + least,
        )
