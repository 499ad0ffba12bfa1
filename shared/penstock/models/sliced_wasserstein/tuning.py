"""How many directions and bins a sketch has, and what it may spend: public, without any row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """What the signal decides.

    Args:
        bases: of d directions each; bins: B.
        share: of the budget (1/σ² summed over releases) that the sketch gets; the rest is for the
            moments that it starts from.
    """

    bases: int
    bins: int
    share: float


_LARGEST = 512
"""Directions at most: beyond, each has its price in time and none in accuracy."""


def tune(signal: float, persons: int, d: int) -> Tuning:
    """Frozen on simulated mixtures; ``signal`` is n·μ, where μ² = Σ 1/σ² over the whole budget.

    A direction's noise grows with the root of their number, and so does what they say together:
    hence more of them cost nothing but the bias of what is not linear (monotone functions), which
    is small where signal is large. Bins finer than the noise would show nothing.
    """
    relative = signal / d
    directions = 128 if relative < 300 else 256 if relative < 1500 else _LARGEST
    bins = 16 if signal < 500 else 32 if signal < 20_000 else 64
    bases = max(1, round(directions / d))
    return Tuning(bases, bins, 0.8 if persons > 0 else 0.0)
