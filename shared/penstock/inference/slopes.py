r"""What of an effect a release holds, as planted runs show it: a slope, and what it means.

In run i the estimate from a table that was drawn with effects planted is p_i, and that from what
the whole private procedure made of this table r_i. By how much each effect was changed is known:
x_i (:mod:`penstock.mechanisms.planted`). Runs come in
pairs of opposite x and the same noise; with Δ the difference in pair k, the slope is

.. math:: b = \sum_k x_k Δr_k \Big/ \sum_k x_k Δp_k,

x as the instrument (Wald 1940; Durbin 1954): what came back of what was planted. p's own sampling
error, which a procedure may pass on less or more than an effect, does not count, as it would in a
regression of r on p. Its standard error is that of an instrumental variable in a line through 0,
from the residuals of Δr on Δp, with one degree of freedom less than pairs: what noise a pair
shares is in neither. The offset is what would come back of no effect.

*Marks.* With t such that Student's t exceeds it by 10 %:

- ``unsupported``: b - t·s < .5 and b + t·s < .9: not shown to be half there, and shown not to be
  whole. A slope of at least .9 is called so in at most 10 %, whatever s is; one below .5 is not in
  at most 10 %, where t·s ≤ .2.
- ``attenuated``: b + t·s < .9, and shown to be at least half there.
- ``unresolved``: b - t·s < .5 and b + t·s ≥ .9: the runs cannot tell.
- ``held``: all else.

An effect of a *coarse* column, of which nearly all lies in one cell that sites count, is
``unsupported`` whatever the slope is: the released model is as coarse, and does not know better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

Array = NDArray[np.float64]

WHOLE, HALF = 0.9, 0.5
"""A slope from which an effect counts as held; and below which as lost."""

_SURE = 0.9
_LEAST_PAIRS = 3
"""Of which both runs have an estimate before and after, below which nothing is said."""


class Mark(StrEnum):
    """What a table holds of an effect."""

    HELD = "held"
    ATTENUATED = "attenuated"
    UNSUPPORTED = "unsupported"
    UNRESOLVED = "unresolved"


@dataclass(frozen=True, slots=True)
class Slope:
    """What came back of an effect that was planted in several sizes.

    Attributes:
        slope, slope_error: b and its standard error, 1 where all of it came back.
        offset, offset_error: what came back of no effect, on the scale of the coefficient.
        df: degrees of freedom of both errors; runs: in pairs with all four estimates.
        coarse: the effect's columns of which nearly all lies in one cell.
    """

    slope: float
    slope_error: float
    offset: float
    offset_error: float
    df: float
    runs: int
    coarse: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether it is a number at all."""
        return math.isfinite(self.slope) and math.isfinite(self.slope_error)

    @property
    def mark(self) -> Mark:
        """What it says of the tables."""
        if self.coarse:
            return Mark.UNSUPPORTED
        if not self.known:
            return Mark.UNRESOLVED
        room = float(stdtrit(self.df, _SURE)) * self.slope_error
        half, whole = self.slope - room >= HALF, self.slope + room >= WHOLE
        if whole:
            return Mark.HELD if half else Mark.UNRESOLVED
        return Mark.ATTENUATED if half else Mark.UNSUPPORTED


@dataclass(frozen=True, slots=True)
class Held:
    """Slopes at one site: of estimands by their names, of requested effects by their texts."""

    estimands: Mapping[str, Slope]
    requested: Mapping[str, Slope]


def find_slope(sizes: ArrayLike, planted: ArrayLike, recovered: ArrayLike) -> Slope:
    """The slope of what came back.

    Args:
        sizes: x, of each run; planted, recovered: p and r, NaN where there is no estimate.
    """
    x, p, r = (_pair(values) for values in (sizes, planted, recovered))
    good = np.isfinite(p).all(axis=1) & np.isfinite(r).all(axis=1)
    x, p, r, count = x[good], p[good], r[good], int(good.sum())
    none = Slope(math.nan, math.nan, math.nan, math.nan, math.nan, 2 * count)
    if count < _LEAST_PAIRS:
        return none
    with np.errstate(all="ignore"):
        turned, before, after = ((v[:, 0] - v[:, 1]) / 2 for v in (x, p, r))
        told = float(turned @ before)
        slope = float(turned @ after) / told if told else math.nan
        rest = float(((after - slope * before) ** 2).sum()) / (count - 1)
        error = math.sqrt(rest * float(turned @ turned)) / abs(told) if told else math.nan
        middle = r.mean(axis=1) - slope * p.mean(axis=1)
        offset = float(middle.mean())
        shared = float(((middle - offset) ** 2).sum()) / (count - 1)
        offset_error = math.hypot(math.sqrt(shared / count), float(p.mean()) * error)
    found = Slope(slope, error, offset, offset_error, count - 1.0, 2 * count)
    return found if all(map(math.isfinite, (slope, error, offset, offset_error))) else none


def _pair(values: ArrayLike) -> Array:
    """(pairs, 2); the last one of an odd number of runs is left out."""
    given = np.asarray(values, dtype=np.float64)
    return given[: len(given) // 2 * 2].reshape(-1, 2)


def find_recovery(estimate: float, shift: float, error: float, runs: int) -> Slope:
    """What of an estimate comes back when the tables that have it are released once more.

    No effect was planted: the tables' own one, θ̂, stands for it, and b = 1 + shift/θ̂. Of what the
    mechanism weakens by a, in rows as in tables, b shows a; what the model lacks, it does not show.

    Args:
        estimate: θ̂, not 0; shift, error: by how much refits differ from the copies that they were
            made of, in the mean, and its standard error; runs: how many refits.
    """
    size = abs(estimate)
    return Slope(1 + shift / estimate, error / size, math.nan, math.nan, max(runs - 1, 1), runs)


def pool_slopes(slopes: Sequence[Slope], weights: Sequence[float]) -> Slope:
    """What a weighted mean of sites' estimates would show of an effect that all of them share.

    Args:
        weights: of the estimates. Sites without a slope are left out; degrees of freedom are by
            Satterthwaite (1946). Columns are coarse that are so at sites of half the weight.
    """
    whole = sum(weights)
    coarse = tuple(
        name
        for name in dict.fromkeys(name for slope in slopes for name in slope.coarse)
        if 2 * sum(w for s, w in zip(slopes, weights, strict=True) if name in s.coarse) >= whole
    )
    pairs = [(s, w) for s, w in zip(slopes, weights, strict=True) if s.known and w > 0]
    if not pairs:
        return Slope(math.nan, math.nan, math.nan, math.nan, math.nan, 0, coarse)
    share = np.array([w for _, w in pairs])
    share = share / share.sum()
    errors = share * [s.slope_error for s, _ in pairs]
    offsets = share * [s.offset_error for s, _ in pairs]
    degrees = np.array([s.df for s, _ in pairs])
    total = float(errors @ errors)
    df = total**2 / float((errors**4 / degrees).sum()) if total > 0 else float(degrees.sum())
    return Slope(
        slope=float(share @ [s.slope for s, _ in pairs]),
        slope_error=math.sqrt(total),
        offset=float(share @ [s.offset for s, _ in pairs]),
        offset_error=float(np.sqrt(offsets @ offsets)),
        df=df,
        runs=sum(s.runs for s, _ in pairs),
        coarse=coarse,
    )
