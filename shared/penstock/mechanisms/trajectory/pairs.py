r"""Which pairs of a person's numbers are alike, and what a pair learns from those that are.

Where moments are mostly noise, a correlation is drawn to what pairs of the same columns, as far
apart in time, have in common: as in a stationary process, which needs so many fewer numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.trajectory.coordinates import Places

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]

_ALIKE, _AGES, _CORRELATED = 0.06, 0.1, 0.5
"""How far a correlation is from that of pairs as far apart in time, these from those at whatever
different times, and these from 0, a priori."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Numbers of pairs.

    Attributes:
        kinds: (D, D) numbers of the kind of pair: of the same numbers as far apart in time.
        families: of each kind, the number of its family: of the same numbers at whatever
            different times.
        apart: (D, D) pairs that are not correlated: levels of one column at one time, and how a
            person attends, and is followed, with itself.
    """

    kinds: Whole
    families: Whole
    apart: Bools

    @classmethod
    def of(cls, places: Places) -> Pairs:
        """Which pairs are alike, and which say nothing."""
        size, times = places.size, places.times()
        base, visit = np.arange(size), times >= 0
        base[visit] = places.start + (base[visit] - places.start) % max(places.width, 1)
        first, second = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
        low = np.where(times[first] <= times[second], first, second)
        high = np.where(times[first] <= times[second], second, first)
        lag = np.where(times[low] >= 0, times[high] - times[low], 0)
        # Which of two columns is the earlier one matters, and of none at the same time.
        a, b = base[low], base[high]
        a, b = np.where(lag == 0, np.minimum(a, b), a), np.where(lag == 0, np.maximum(a, b), b)
        _, kinds = np.unique((lag * size + a) * size + b, return_inverse=True)
        _, family = np.unique(((lag > 0) * size + a) * size + b, return_inverse=True)
        kinds, family = kinds.reshape(size, size), family.reshape(size, size)
        of_kind = np.zeros(int(kinds.max()) + 1, dtype=np.int64)
        of_kind[kinds.ravel()] = family.ravel()
        return cls(kinds, of_kind, _find_apart(places))

    def pool(self, raw: Array, precision: Array) -> Array:
        """Each pair's correlation between its own and that of its kind, and that between its own
        and that of its family, by what noise leaves."""
        flat = precision.ravel()
        sums, total = _sum_alike(self.kinds, raw.ravel(), flat, _ALIKE)
        own = sums / np.maximum(total, 1e-12)
        sums, weight = _sum_alike(self.families, own, total, _AGES)
        families = sums / (weight + 1 / _CORRELATED**2)
        older = families[self.families]
        common = ((own * total + older / _AGES**2) / (total + 1 / _AGES**2))[self.kinds]
        return np.asarray((precision * raw + common / _ALIKE**2) / (precision + 1 / _ALIKE**2))


def _find_apart(places: Places) -> Bools:
    size = places.size
    owner = np.zeros(size, dtype=np.int64)
    owner[: places.ahead] = -1
    for j, _, at in places.fixed():
        owner[at] = -2 - j
    for t in range(places.count):
        for j, _, at in places.at(t):
            owner[at] = t * max(len(places.varying), 1) + j
    return np.asarray((owner[:, None] == owner[None, :]) & ~np.eye(size, dtype=np.bool_))


def _sum_alike(
    groups: Whole, values: Array, precision: Array, differ: float
) -> tuple[Array, Array]:
    """Of each group the weighted sum and the weight, where members differ by so much."""
    tells = np.where(precision > 0, 1 / (1 / np.maximum(precision, 1e-12) + differ**2), 0.0)
    flat = groups.ravel()
    summed, total = (np.bincount(flat, weights=weights) for weights in (tells * values, tells))
    return np.asarray(summed, dtype=np.float64), np.asarray(total, dtype=np.float64)
