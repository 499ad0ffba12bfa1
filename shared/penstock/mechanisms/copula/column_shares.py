"""Shares of one column's cells, from noisy counts and from what else is known of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.copula.densities import STIFFNESS, Known, Reference, estimate_density
from penstock.mechanisms.copula.grids import Grid
from penstock.mechanisms.tables.margins import expect_positive

Array = NDArray[np.float64]

TWICE = 2
"""So many times the noise is on counts of values."""

_FLOOR, _LEAST_INNER = 1e-7, 0.02
"""Of a cell; and of all that are in a number's bins, however many others noise says there are."""


def read_shares(
    grid: Grid,
    counts: Array,
    sd: float,
    rows: float,
    known: Sequence[Known] = (),
    reference: Reference | None = None,
    stiffnesses: Sequence[float] = (STIFFNESS,),
) -> Array:
    """Shares of a column's cells; a number's bins as a smooth density beside its own cells.

    Args:
        reference: of the bins alone; stiffnesses: as :func:`estimate_density` has them.
    """
    if not grid.numeric:
        positive = np.maximum(counts, 0.0) + _FLOOR * rows
        return _hold_means(positive / positive.sum(), math.hypot(sd, 1.0) / rows, known)
    apart = [cell for cell in (grid.spike, grid.missing) if cell >= 0]
    share = np.zeros(grid.count)
    share[apart] = np.clip(counts[apart] / rows, 0.0, 1.0)
    inner = max(1.0 - float(share.sum()), _LEAST_INNER)
    bins = grid.bins
    beside = [k.without(share, apart, bins, inner) for k in known]
    share[bins] = inner * estimate_density(
        counts[bins], sd, rows * inner, beside, reference, stiffnesses=stiffnesses
    )
    share = share + _FLOOR
    return np.asarray(share / share.sum())


def _hold_means(shares: Array, error: float, known: Sequence[Known]) -> Array:
    """Levels' shares, each with so large an sd, by what is known of who has one of them."""
    for one in known:
        level = int(np.argmax(one.points))
        # They add up to 1, so that what all points have in common says nothing.
        along = error**2 * (one.points - one.points.mean())
        whole = float(along @ one.points) + one.mean_sd**2
        shares = shares + along * (one.mean - float(one.points @ shares)) / whole
        variance = error**2 * (1 - 1 / len(shares)) - along[level] ** 2 / whole
        # Of a rare level noise may say that nobody has it, or fewer than nobody.
        kept = min(expect_positive(float(shares[level]), math.sqrt(variance)), 1 - _FLOOR)
        others = np.delete(np.maximum(shares, _FLOOR), level)
        shares = np.insert(others * (1 - kept) / others.sum(), level, kept)
    return shares
