r"""Sums of rows that answer without a model: what a row adds to them, and what they tell.

Of each :class:`~penstock.mechanisms.scoring.descriptions.Description` one release, with exact
discrete Gaussian noise on whole numbers; zero-out with public n. A person has k rows at most:

============  ========================================================  ==============
way           what is added up                                          sensitivity
============  ========================================================  ==============
mean          x̃, x̃² - ½ and √½, with x̃ in [-1, 1] by the public bounds  k·√(1 + ¼ + ½)
levels        rows of each level that is asked for, and of the others   k
distribution  A·h, h rows in bins of the public range                   k·max ‖A e_b‖
survival      events, and rows that leave, in each interval of time     k
events        rows with the event, by the times until which is asked    k
rate          events, ½ the time, ¼ that of events, ¼ its squares       k·√1.375
table         rows of each combination of levels                        k
============  ========================================================  ==============

A is :mod:`penstock.privacy.factorisation`'s, so that any number of bins costs little. What a tally
tells has two covariances: the noise's, which is known, carried on to first order; and that of
sampling rows from a population, by what the noisy sums say of it. A count is of the rows
themselves, and has the first alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.scoring.descriptions import Description
from penstock.mechanisms.tables.margins import expect_positive
from penstock.privacy.measurements import WholeSum
from penstock.privacy.sensitivity import clipped_sum
from penstock.schema import Coded

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]
Told = tuple[Array, Array, Array]
"""Numbers (q,), on the scale of their models, and the covariances (q, q) of noise and sampling."""

NORMAL = 1.959964
"""Of a 95 % interval."""

COUNTED = "count"
"""The scale of a number of rows."""

LEAST_SEEN = 2.0
"""Rows are taken to be at least so many sds of the noise on their number."""


class Tally(ABC):
    """One description's sums.

    Args:
        description: of which it is.

    Attributes:
        unit: of which all numbers are whole multiples; squared: the most that the square of what a
            row adds may be, in units of 1.
        size: how many numbers.
    """

    unit: float = 1.0

    def __init__(self, description: Description) -> None:
        self.description = description

    @property
    @abstractmethod
    def size(self) -> int: ...

    @property
    @abstractmethod
    def squared(self) -> Fraction: ...

    def measure(self, sigma: float, rows_per_person: int) -> WholeSum:
        """The release, with noise of multiplier σ.

        Sensitivity: k·√squared, zero-out of one person of k rows: all of them add the same.
        """
        squared = self.squared * rows_per_person**2
        return WholeSum(
            label=self.description.way.value,
            noise_multiplier=sigma,
            sensitivity=clipped_sum(math.sqrt(self.squared), rows_per_person),
            squared=squared,
            unit=self.unit,
            size=self.size,
        )

    @abstractmethod
    def add_up(self, coded: Coded, members: Bools) -> Whole:
        """(size,) the sums over rows that are members, in units."""

    @abstractmethod
    def tell(self, noisy: Array, sd: float) -> Told:
        """What noisy sums say, whatever they are, of each name of the description.

        Args:
            sd: of the noise on each number.
        """


class MeanTally(Tally):
    """Σ x̃, Σ (x̃² - ½) and √½ times how many there are; x̃ = (x - middle)/half.

    With m the mean of x̃, of the noise on it the number's has m²/(½) of the variance of the sum's:
    a column whose values lie near a bound has the more of it.
    """

    unit = 2.0**-16
    _COUNT = math.sqrt(0.5)

    @property
    def size(self) -> int:
        return 3

    @property
    def squared(self) -> Fraction:
        """Of x̃ = ±1, where both the first two are largest."""
        whole = [round(part / self.unit) for part in (1.0, 0.5, self._COUNT)]
        return Fraction(sum(part**2 for part in whole)) * Fraction(self.unit) ** 2

    def add_up(self, coded: Coded, members: Bools) -> Whole:
        low, high = self.description.outcome.bounds
        values = np.where(members, coded[self.description.outcome.name], low)
        share = np.clip(2 * (values - low) / (high - low) - 1, -1.0, 1.0)
        parts = (share, share**2 - 0.5, np.full(len(share), self._COUNT))
        whole = np.rint(np.array(parts) / self.unit).astype(np.int64)
        return np.asarray((whole * members).sum(axis=1))

    def tell(self, noisy: Array, sd: float) -> Told:
        rows = max(float(noisy[2]) / self._COUNT, LEAST_SEEN * sd / self._COUNT, 1.0)
        mean = float(np.clip(noisy[0] / rows, -1.0, 1.0))
        squares, unit = float(noisy[1]) / rows, sd / rows
        noise = unit**2 * (1 + (mean / self._COUNT) ** 2)
        of_count = (2 * mean**2 - squares) / self._COUNT
        off = unit * math.sqrt(1 + 4 * mean**2 + of_count**2)
        variance = min(expect_positive(squares + 0.5 - mean**2, off), 1.0)
        low, high = self.description.outcome.bounds
        half, ones = (high - low) / 2, np.ones((len(self.description.estimands),) * 2)
        told = (low + high) / 2 + half * mean
        return ones[0] * told, ones * half**2 * noise, ones * half**2 * variance / rows


class LevelTally(Tally):
    """Rows of each level that is asked for, and of all others together: shares, and counts."""

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        levels = description.outcome.levels
        # A mean of levels is the share of the second one.
        self._places = [
            1 if e.outcome_level is None else levels.index(e.outcome_level)
            for e in description.estimands
        ]
        self._kept = sorted(set(self._places))
        self._cell = np.full(len(levels), len(self._kept))
        self._cell[self._kept] = np.arange(len(self._kept))

    @property
    def size(self) -> int:
        return len(np.unique(self._cell))

    @property
    def squared(self) -> Fraction:
        return Fraction(1)

    def add_up(self, coded: Coded, members: Bools) -> Whole:
        level = np.where(members, coded[self.description.outcome.name], 0.0).astype(np.intp)
        cell = np.where(members, self._cell[level], self.size)
        return np.bincount(cell, minlength=self.size + 1)[:-1]

    def tell(self, noisy: Array, sd: float) -> Told:
        scales = [e.regression.scale for e in self.description.estimands]
        return tell_cells(noisy, sd, self._cell[self._places], scales)


def tell_cells(noisy: Array, sd: float, cells: Whole, scales: Sequence[str]) -> Told:
    """Shares of rows in cells, and counts, each on its scale; shares at least as far from 0 and 1
    as half a row, and as noise could hide.

    Args:
        noisy: (c,) rows of each cell; sd: of the noise on each of them.
        cells: (q,) of which something is told; scales: of each.
    """
    rows = max(float(noisy.sum()), LEAST_SEEN * sd * math.sqrt(len(noisy)), 1.0)
    shares = noisy / rows
    counted = np.array([scale == COUNTED for scale in scales])
    slopes = (np.eye(len(noisy))[cells] - np.where(counted, 0.0, shares[cells])[:, None]) / rows
    noise = sd**2 * slopes @ slopes.T
    kept = keep_inside(shares[cells], rows, noise)
    same = cells[:, None] == cells
    # Shares that are kept away from 0 may add up to more than 1, as no covariance has them.
    shown = np.flatnonzero(~counted)
    once = shown[np.unique(cells[shown], return_index=True)[1]]
    whole = max(1.0, float(kept[once].sum()))
    sampling = (np.where(same, kept[:, None], 0.0) - np.outer(kept, kept) / whole) / rows
    return rescale(scales, kept, rows, noise, sampling, noisy[cells])


def keep_inside(shares: Array, rows: float, noise: Array) -> Array:
    """The same, as far from 0 and 1 as half a row, and as one sd of the noise."""
    least = np.minimum(np.maximum(0.5 / rows, np.sqrt(np.diag(noise))), 0.5)
    return np.asarray(np.clip(shares, least, 1 - least))


def rescale(
    scales: Sequence[str],
    shares: Array,
    rows: float,
    noise: Array,
    sampling: Array,
    counts: Array | None = None,
) -> Told:
    """From shares inside (0, 1) to the scale on which each is pooled: the logit, as it is, or the
    count that stands in place of it, which is as it came: a total of cut ones would be too large.

    Noise is even on shares. On the logit it reaches further towards the nearer one of 0 and 1: its
    sd there is so large that 1.96 of it end where 1.96 sds of the share do, or at a fifth of a row.

    Args:
        noise: of shares; of a count of that over ``rows``. sampling: of shares.
        counts: (q,) looked at where the scale is that of counts.
    """
    logit = np.array([scale == "logit" for scale in scales])
    counted = np.array([scale == COUNTED for scale in scales])
    near, sd = np.minimum(shares, 1 - shares), np.sqrt(np.diag(noise))
    end = np.maximum(near - NORMAL * sd, np.minimum(0.2 / rows, near / 2))
    grown = (_logit(near) - _logit(end)) / (NORMAL * sd)
    told = np.where(logit, _logit(shares), shares)
    told = told if counts is None else np.where(counted, counts, told)
    by_noise = np.where(logit, grown, np.where(counted, rows, 1.0))
    by_sampling = np.where(logit, 1 / (shares * (1 - shares)), np.where(counted, 0.0, 1.0))
    return (
        told,
        noise * np.outer(by_noise, by_noise),
        sampling * np.outer(by_sampling, by_sampling),
    )


def _logit(shares: Array) -> Array:
    return np.asarray(np.log(shares / (1 - shares)))
