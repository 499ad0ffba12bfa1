"""How large each effect is in each planted run: public, the same at a site and a coordinator.

A *planted run* draws a table from the released model with some effects changed, and repeats the
whole private procedure on it: what comes back of a change that is known says what the tables hold
(``penstock_server.analysis.slopes``). Here is by how much an effect is changed, in units that
only the site needs: ±1 in half of the runs and ±2 in the others, as columns of a Hadamard matrix,
so that no effect goes with another one, and none with the size.

Sources: Plackett & Burman, "The design of optimum multifactorial experiments", Biometrika 33
(1946) 305-325, for 12 runs; Sylvester's doubling for the others.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_TWELVE = (1, 1, -1, 1, 1, 1, -1, -1, -1, 1, -1)
_GOLDEN = (math.sqrt(5) - 1) / 2


def choose_sizes(runs: int, effects: int) -> Array:
    """(effects, runs) of ±1 and ±2: by what each effect is changed in each run.

    Exactly balanced, and of every two effects hardly correlated, where there are 8, 12, 16, 24, 32
    or 48 runs and at most two effects fewer; nearly so elsewhere.
    """
    matrix = _hadamard(max(runs, effects + 2))
    # A part of a matrix is a thin sieve of all its rows: its first ones would be much alike.
    size = len(matrix)
    step = next(s for s in range(round(_GOLDEN * size), 2 * size) if math.gcd(s, size) == 1)
    rows = matrix[np.arange(runs) * step % size]
    large, signs = rows[:, 1], rows[:, 2 : 2 + effects]
    return np.asarray(signs.T * (1.5 + 0.5 * large))


def _hadamard(least: int) -> Array:
    """The smallest of 8, 12, 16, 24, … rows that has so many; its first column is constant."""
    cyclic = np.array([np.roll(_TWELVE, i) for i in range(len(_TWELVE))] + [[-1] * len(_TWELVE)])
    bases = (np.ones((1, 1)), np.column_stack([np.ones(len(cyclic)), cyclic]))
    found = []
    for base in bases:
        matrix = base
        while len(matrix) < max(least, 8):
            matrix = np.kron(np.array([[1, 1], [1, -1]]), matrix)
        found.append(matrix)
    return np.asarray(min(found, key=len), dtype=np.float64)
