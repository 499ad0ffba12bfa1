"""A number's bins, divided where its rows are.

Even bins between public bounds say little of a number of which most lies in a few of them: of
diamonds between 0 and 59 mm long nine in ten are in three. What their values, or parts, were
counted as, with more noise, divides them: into as many cells as stand out of the noise, so that a
thin bin stays one. A part with a pile of rows, as whole years are in a number with decimals, is a
cell of its own in any bin. The cells' density is bent as little from what the bins alone say as
all counts allow (:mod:`~penstock.mechanisms.copula.densities`). Post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.copula.densities import Blocks, Reference, estimate_density
from penstock.mechanisms.copula.grids import (
    MOST_DIVIDED,
    Grid,
    divide,
    shape_bins,
)
from penstock.mechanisms.copula.population import TWICE, read_shares

Array = NDArray[np.float64]
Places = NDArray[np.intp]

_STANDS, _STIFFNESS = 3.0, 10.0
"""How many sds of noise a cell's rows are, at least; and λ of bends away from what bins say. Frozen
on tables that the study of whole tables (`private-utility`) names."""

_PILES = 64
"""Parts that are cells of their own, at most."""

_LEAST = 1e-9
"""Share of every cell, at least: one without any would make sums of shares exceed 1 by rounding."""


def divide_bins(
    grid: Grid,
    counts: Array,
    values: Array,
    sd: float,
    rows: float,
    stiffnesses: Sequence[float],
) -> tuple[Grid, Array]:
    r"""A column in cells as fine as its counts say, and their shares.

    A bin of B rows, of which K values are counted with noise of s each, is divided into m cells of
    as many values each, :math:`B / m ≥ 3 s \sqrt{K / m}`.

    Args:
        counts: (cells,) noisy, sd: of their noise; values: of the grid's values or parts, with
            twice the noise, or none; rows: in all.
        stiffnesses: of the bins, as :func:`~penstock.mechanisms.copula.population.read_shares` has
            them.
    """
    shares = read_shares(grid, counts, sd, rows, stiffnesses=stiffnesses)
    if not len(values):
        return grid, shares
    bins, noise = shares[grid.bins], TWICE * sd
    within, piled = shape_bins(grid, shares, values, noise, rows)
    # A pile of one value is drawn as one in whatever cell it is (``read_within``).
    piles = _list_piles(values * piled) if len(grid.parts) else np.zeros(0, dtype=np.intp)
    ends = np.append(piles, piles + 1)
    others = rows * bins - np.bincount(grid.homes[piles], values[piles], len(bins))
    starts = _choose_starts(grid.homes, np.maximum(others, 0), noise, MOST_DIVIDED - len(ends))
    starts = np.union1d(starts, ends[ends < len(values)])
    if len(starts) <= len(bins):
        return grid, shares
    of, joined = grid.homes[starts], np.diff(np.append(starts, len(values)))
    before, inner = bins[of] * np.add.reduceat(within, starts), float(bins.sum())
    found = estimate_density(
        np.add.reduceat(values, starts),
        noise,
        rows * inner,
        [Blocks(counts[grid.bins], of, sd, rows * inner)],
        Reference(before / before.sum(), _STIFFNESS),
        joined,
    )
    fine = divide(grid, starts)
    share = np.zeros(fine.count)
    share[fine.bins] = inner * found + _LEAST
    for own, was in ((fine.spike, grid.spike), (fine.missing, grid.missing)):
        if own >= 0:
            share[own] = shares[was]
    return fine, share / share.sum()


def _list_piles(counts: Array) -> Places:
    """Places of the largest, at most :data:`_PILES`, that are above 0."""
    largest = np.argsort(-counts, kind="stable")[:_PILES]
    return np.asarray(largest[counts[largest] > 0])


def _choose_starts(homes: Places, rows: Array, noise: float, most: int) -> Places:
    """Of the values, in order, those with which cells begin.

    Args:
        homes: (values,) the bin of each; rows: (bins,) in each; noise: sd of a value's count; most:
            cells, about.
    """
    each = np.bincount(homes, minlength=len(rows))
    full = np.maximum(each, 1)
    into = np.clip((rows / (_STANDS * max(noise, 1e-9))) ** 2 / full, 1, full)
    into = np.floor(np.clip(into * min(1.0, most / into.sum()), 1, full))
    first = np.cumsum(each) - each
    within = np.floor((np.arange(len(homes)) - first[homes]) * into[homes] / each[homes])
    return np.flatnonzero(np.append(True, (np.diff(homes) > 0) | (np.diff(within) > 0)))
