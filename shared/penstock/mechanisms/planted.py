"""How large each effect is in each planted run: public, the same at a site and a coordinator.

A *planted run* draws a table from the released model with some effects changed, and repeats the
whole private procedure on it: what comes back of a change that is known says what the tables hold
(``penstock.inference.slopes``). Here is by how much an effect is changed, in units that
only the site needs: ±1 in half of the runs and ±2 in the others, with signs that hardly go
together in two effects; of many runs, columns of a Hadamard matrix.

Runs come in *pairs*, 1 and 2, 3 and 4, …: what is added in the one is taken away in the other, and
both have the same noise and the same draws. What is a run's own, and no effect's, is then in both,
and their difference tells a slope about twice as well as runs with noise of their own would.

Sources: Plackett & Burman, "The design of optimum multifactorial experiments", Biometrika 33
(1946) 305-325, for 12 rows; Sylvester's doubling for the others.
Two runs with opposite signs are a foldover (Box & Wilson 1951), with the same noise antithetic runs
with common random numbers (Hammersley & Morton 1956).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Whole = NDArray[np.int64]

_FEW = 8
"""Pairs, of which all signs can be looked through."""

_TWELVE = (1, 1, -1, 1, 1, 1, -1, -1, -1, 1, -1)
_GOLDEN = (math.sqrt(5) - 1) / 2


def choose_sizes(runs: int, effects: int) -> Array:
    """(effects, runs) of ±1 and ±2: by what each effect is changed in each run.

    Of a pair of runs the second has the first's with the other sign; the last one of an odd number
    is alone. Of every two effects little correlated as long as there are few of them, and never
    the same as long as there are 2 to the power of the pairs less one.
    """
    pairs = (runs + 1) // 2
    each = 2 - np.arange(pairs) % 2
    signs = _list_signs(effects, each) if pairs <= _FEW else _sieve_signs(effects, pairs)
    both = np.stack([signs * each, -signs * each], axis=2).astype(np.float64)
    return np.asarray(both.reshape(effects, 2 * pairs)[:, :runs])


def _list_signs(effects: int, each: Whole) -> Whole:
    """(effects, pairs) one by one of all that there are, the one that is least like those before
    it; in whole numbers, so that it is the same everywhere."""
    pairs = len(each)
    bits = np.arange(1 << (pairs - 1))[:, None] >> np.arange(pairs) & 1
    every = 1 - 2 * bits
    alike = np.abs((every * each**2) @ every.T)
    order = np.lexsort((np.arange(len(every)), np.abs(every @ each)))
    chosen = [int(order[0])]
    while len(chosen) < effects:
        given = alike[chosen]
        worst, total = given.max(axis=0), (given**2).sum(axis=0)
        chosen.append(int(np.lexsort((np.arange(len(every)), total, worst))[0]))
    return np.asarray(every[chosen[:effects]])


def _sieve_signs(effects: int, pairs: int) -> Whole:
    """(effects, pairs) of a Hadamard matrix."""
    matrix = _hadamard(max(pairs, effects + 1))
    # A part of a matrix is a thin sieve of all its rows: its first ones would be much alike.
    size = len(matrix)
    step = next(s for s in range(round(_GOLDEN * size), 2 * size) if math.gcd(s, size) == 1)
    rows = matrix[np.arange(pairs) * step % size]
    return np.asarray(rows[:, 1 : 1 + effects].T, dtype=np.int64)


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
