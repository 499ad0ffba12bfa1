"""How many directions and bins a sketch has, and what it may spend: public, without any row."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """What the signal decides.

    Args:
        bases: of d directions each; bins: B.
        share: of the budget (1/σ² summed over releases) that the sketch gets where it and the
            moments that it starts from are all that is released.
    """

    bases: int
    bins: int
    share: float


_SHARE = 0.85
_FEWEST, _MOST = 32, 512
"""Directions: beyond the most, each has its price in time and hardly any in accuracy."""


def tune(signal: float, persons: int, d: int) -> Tuning:
    """Frozen on simulated mixtures; ``signal`` is n·μ, where μ² = Σ 1/σ² over the whole budget.

    A direction's noise grows with the root of their number, and what many of them say together is
    the same; so more of them cost nothing but what rising distribution functions make of noise, and
    fewer leave out what lies between them. Bins finer than the noise, or than the sampling error
    1/(2√n), would show nothing.
    """
    wanted = 128 * (max(signal, 1e-9) / 700) ** 0.7
    directions = min(max(wanted, _FEWEST), _MOST)
    fine = min(signal / 20, math.sqrt(max(persons, 1)))
    bins = 2 ** min(max(round(math.log2(max(fine, 1.0))), 4), 6)
    return Tuning(max(1, round(directions / d)), bins, _SHARE)
