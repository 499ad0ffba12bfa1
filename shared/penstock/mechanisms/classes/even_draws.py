r"""Tables of classes that have nearly as many rows in each cell as are expected.

Rows that are drawn one by one miss a cell's share by chance, by far more than the noise does where
ε is high. Here each class has its number of rows, and each column's cells have theirs of it, up or
down (systematic sampling, Madow & Madow 1944, Annals of Mathematical Statistics 15, 1-24), so that
what is unlikely in a class stays so. Of two such samples f and g one is taken, with the chance
:math:`1/2 + ⟨w, f - g⟩ / 2c` of the first, w being by how much the column's cells have had too few
so far: what one class has too much of, another has less (the walk of Alweiss, Liu & Sawhney 2021,
"Discrepancy minimization via a self-balancing walk", STOC). On average each cell of each class has
what is expected. Which rows of a class these are is chance. Post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Places = NDArray[np.intp]

_STEADY = 4.0
"""c: a column whose cells are off by more takes the sample that brings them back."""


def deal_classes(risen: Array, points: Array, rng: np.random.Generator) -> tuple[Places, Places]:
    """The class of each of N rows, and how many each has: expected ones, up or down.

    Args:
        risen: (K,) share of classes up to each; points: (N,) in (0, 1), by whose order they are.
    """
    ends = np.floor(risen * len(points) + rng.random())
    ends = np.minimum(ends, len(points)).astype(np.intp)
    ends[-1] = len(points)
    sizes = np.diff(ends, prepend=0)
    member = np.empty(len(points), dtype=np.intp)
    member[np.argsort(points, kind="stable")] = np.repeat(np.arange(len(sizes)), sizes)
    return member, sizes


def deal_cells(risen: Sequence[Array], sizes: Places, rng: np.random.Generator) -> list[Places]:
    """How many rows of each class are in each cell, (K, cells) of each column.

    They add up to the classes' sizes, and are what is expected, rounded up or down.

    Args:
        risen: (K, cells - 1) of each column, the share of a class before each cell but the first.
    """
    most = max(each.shape[1] for each in risen) + 2
    ends = np.ones((len(sizes), len(risen), most))
    for j, each in enumerate(risen):
        ends[:, j, 0], ends[:, j, 1 : each.shape[1] + 1] = 0.0, each
    before = sizes[:, None, None] * ends
    first, second = (
        np.diff(np.floor(before + rng.random((*before.shape[:2], 1))), axis=2) for _ in range(2)
    )
    apart, between = first - second, np.diff(before, axis=2) - (first + second) / 2
    chances = rng.random(apart.shape[:2])
    took = np.empty(apart.shape[:2], dtype=np.bool_)
    missing = np.zeros(apart.shape[1:])
    for own, chance in enumerate(chances):
        missing += between[own]
        lean = (missing * apart[own]).sum(axis=1) / (2 * _STEADY)
        took[own] = chance < 0.5 + lean
        missing -= np.where(took[own], 0.5, -0.5)[:, None] * apart[own]
    counts = np.where(took[:, :, None], first, second).astype(np.intp)
    return [counts[:, j, : each.shape[1] + 1] for j, each in enumerate(risen)]


def hand_out(counts: Places, member: Places, points: Array) -> Places:
    """The cell of each row, of as many rows of each class as ``counts`` (K, cells) has; a row of a
    higher point has no lower cell than another of its class."""
    place = np.empty(len(member), dtype=np.intp)
    cells = np.tile(np.arange(counts.shape[1]), len(counts))
    # Points are below 1, so that a class's rows stay together.
    place[np.argsort(member + points)] = np.repeat(cells, counts.ravel())
    return place


def spread_inside(place: Places, rng: np.random.Generator) -> Array:
    """How far in its cell each row lies, (N,) in (0, 1): in each evenly, in an order of chance."""
    order = np.argsort(place + rng.random(len(place)))
    counts = np.bincount(place)
    before = np.cumsum(counts) - counts
    inside = np.empty(len(place))
    own = place[order]
    inside[order] = (np.arange(len(place)) - before[own] + rng.random(len(place))) / counts[own]
    return inside
