"""Intervals of τ², and of I² and H², which follow from it.

The Q-profile interval of τ² holds every value at which Q(τ²) = Σ(y − μ̂(τ²))²/(v + τ²) is between
the quantiles (1 ± level)/2 of χ²(k − 1). It is exact where estimates are normal and the v known;
degrees of freedom of the v are not taken into account. I² = τ²/(τ² + s²) and H² = 1 + τ²/s², with
the typical variance s² = (k−1)Σw/((Σw)²−Σw²), w = 1/v, rise with τ²: so do their ends.

Source: Viechtbauer, Statistics in Medicine 26 (2007) 37–52.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from penstock.inference.pooling import check_sites
from penstock.inference.tau_squared import (
    Array,
    find_root,
    generalised_q,
    sum_cross_products,
)


@dataclass(frozen=True, slots=True)
class Profiled:
    """Q-profile intervals: (low, high) of τ², of I², a fraction, and of H².

    ``empty``: no τ² ≥ 0 is in the interval, sites are nearer to each other than their variances
    allow; both ends are 0 then.
    """

    tau2: tuple[float, float]
    i2: tuple[float, float]
    h2: tuple[float, float]
    empty: bool = False


def profile_q(
    estimates: ArrayLike,
    variances: ArrayLike,
    *,
    level: float = 0.95,
    ceiling: float | None = None,
) -> Profiled | None:
    """The Q-profile intervals of k sites; None of one site.

    Args:
        estimates, variances: as for :func:`~penstock.inference.pooling.pool`.
        level: coverage, in (0, 1).
        ceiling: no end of τ² is above it, squared units of the estimates; metafor's is 100. None:
            as far as it goes, which is far with two sites.

    Raises:
        InvalidInput: as :func:`~penstock.inference.pooling.pool`.

    Example:
        >>> found = profile_q([0.20, 0.12, 0.55], [0.01, 0.02, 0.01])
        >>> [round(end, 2) for end in found.i2]
        [0.14, 0.99]
    """
    y, v, _ = check_sites(estimates, variances, "fixed", "z", level, None)
    k = len(y)
    if k == 1:
        return None
    # Q falls in τ²: its upper quantile belongs to the lower end.
    most, least = (float(special.chdtri(k - 1, (1 + sign * level) / 2)) for sign in (-1, 1))
    low, high = (_reach(bound, y, v, ceiling) for bound in (most, least))
    w = 1.0 / v
    typical = (k - 1) * float(w.sum()) / sum_cross_products(w)
    return Profiled(
        tau2=(low, high),
        i2=(low / (low + typical), high / (high + typical)),
        h2=(1 + low / typical, 1 + high / typical),
        empty=generalised_q(0.0, y, v) < least,
    )


def _reach(bound: float, y: Array, v: Array, ceiling: float | None) -> float:
    """The τ² at which Q is ``bound``; 0 where it is below that already."""
    if generalised_q(0.0, y, v) <= bound:
        return 0.0
    # Q(τ²) ≤ Σ(y − ȳ)²/τ².
    high = float(np.square(y - y.mean()).sum()) / bound
    if ceiling is not None and high > ceiling:
        high = ceiling
    if generalised_q(high, y, v) >= bound:
        return high
    return find_root(lambda t: generalised_q(t, y, v) - bound, 0.0, high, v)
