r"""What of an effect a release holds, as planted runs show it: a slope, and what it means.

In run i the estimate from a table that was drawn with effects planted is p_i, and that from what
the whole private procedure made of this table r_i. By how much each effect was changed is known:
x_i (:mod:`penstock.mechanisms.planted`). The slope is

.. math:: b = \sum_i (x_i - \bar x) r_i \Big/ \sum_i (x_i - \bar x) p_i,

x as the instrument (Wald 1940; Durbin 1954): what came back of what was planted. p's own sampling
error, which a procedure may pass on less or more than an effect, does not count, as it would in a
regression of r on p. Its standard error is that of an instrumental variable in a line, from the
residuals of r on p, with two degrees of freedom less than runs. The offset is what would come back
of no effect.

*Marks.* With t such that Student's t exceeds it by 10 %:

- ``unsupported``: b - t·s < .5 and b + t·s < .9: not shown to be half there, and shown not to be
  whole. A slope of at least .9 is called so in at most 10 %, whatever s is; one below .5 is not in
  at most 10 %, where t·s ≤ .2.
- ``attenuated``: b + t·s < .9, and shown to be at least half there.
- ``unresolved``: b - t·s < .5 and b + t·s ≥ .9: the runs cannot tell.
- ``held``: all else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

WHOLE, HALF = 0.9, 0.5
"""A slope from which an effect counts as held; and below which as lost."""

_SURE = 0.9
_LEAST_RUNS = 6
"""With an estimate before and after, below which nothing is said."""


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
        df: degrees of freedom of both errors; runs: with an estimate before and after.
    """

    slope: float
    slope_error: float
    offset: float
    offset_error: float
    df: float
    runs: int

    @property
    def known(self) -> bool:
        """Whether it is a number at all."""
        return math.isfinite(self.slope) and math.isfinite(self.slope_error)

    @property
    def mark(self) -> Mark:
        """What it says of the tables."""
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
    x, p, r = (np.asarray(values, dtype=np.float64) for values in (sizes, planted, recovered))
    good = np.isfinite(p) & np.isfinite(r)
    x, p, r, count = x[good], p[good], r[good], int(good.sum())
    none = Slope(math.nan, math.nan, math.nan, math.nan, math.nan, count)
    if count < _LEAST_RUNS:
        return none
    with np.errstate(all="ignore"):
        turned = x - x.mean()
        told = float(turned @ p)
        slope = float(turned @ r) / told if told else math.nan
        offset = float(r.mean() - slope * p.mean())
        rest = float(((r - offset - slope * p) ** 2).sum()) / (count - 2)
        error = math.sqrt(rest * float(turned @ turned)) / abs(told) if told else math.nan
        offset_error = math.hypot(math.sqrt(rest / count), float(p.mean()) * error)
    found = Slope(slope, error, offset, offset_error, count - 2.0, count)
    return found if all(map(math.isfinite, (slope, error, offset, offset_error))) else none


def pool_slopes(slopes: Sequence[Slope], weights: Sequence[float]) -> Slope:
    """What a weighted mean of sites' estimates would show of an effect that all of them share.

    Args:
        weights: of the estimates. Sites without a slope are left out; degrees of freedom are by
            Satterthwaite (1946).
    """
    pairs = [(s, w) for s, w in zip(slopes, weights, strict=True) if s.known and w > 0]
    if not pairs:
        return Slope(math.nan, math.nan, math.nan, math.nan, math.nan, 0)
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
    )
