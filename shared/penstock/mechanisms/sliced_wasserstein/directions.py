"""Directions for tables: pairs of columns first, then any.

What a Gaussian misses in a table is mostly between two columns at a time, and a dense direction of
many columns hardly sees it: of a third moment E[x_i² x_j] it shows d^-1.5, a direction between the
two 2^-1.5. A sketch costs the same whatever its directions are. So the first bases turn by 45°
within pairs of columns, all of them in as few bases as can be (a round-robin tournament); from then
on bases are uniformly random.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from penstock.privacy.numbers import whole
from penstock.privacy.sensitivity import orthonormal_stack

Array = NDArray[np.float64]


def rounds(d: int) -> int:
    """How many bases it takes until each of d columns was paired with each other: d - 1, or d."""
    return whole("dimension", d) - 1 + d % 2 if d > 1 else 0


def paired_stack(bases: int, d: int, rng: np.random.Generator) -> Array:
    """(d, bases·d): orthonormal bases side by side, pairs first; public."""
    paired = min(whole("bases", bases), rounds(d))
    first = [_round(r, d) for r in range(paired)]
    rest = bases - paired
    stack = [*first, orthonormal_stack(rest * d, d, rng)] if rest else first
    return np.concatenate(stack, axis=1)


def _round(r: int, d: int) -> Array:
    """One basis: (e_i ± e_j)/√2 for the pairs of round r; where d is odd, one column is alone."""
    # The circle method: one stays, the others move on by one place each round.
    circle = [0, *(1 + (i + r) % (d + d % 2 - 1) for i in range(d + d % 2 - 1))]
    half, basis, at = len(circle) // 2, np.zeros((d, d)), 0
    for i, j in zip(circle[:half], reversed(circle[half:]), strict=True):
        if max(i, j) >= d:
            basis[min(i, j), at] = 1.0
            at += 1
        else:
            basis[[i, j], at] = math.sqrt(0.5)
            basis[[i, j], at + 1] = math.sqrt(0.5), -math.sqrt(0.5)
            at += 2
    return basis
