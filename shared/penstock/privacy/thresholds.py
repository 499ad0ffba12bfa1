"""How many sites must answer before a sum of theirs is seen, and how many that takes.

What is promised of them, and why, is in :mod:`penstock.aggregation.roster`, "Theorem".
"""

from __future__ import annotations


def find_threshold(sites: int, dropouts: int, colluders: int) -> int:
    """T: the least whole number with (u + 1)·(T - c) > u·(S - c), u = max(t, 1)."""
    lost = max(dropouts, 1)
    return colluders + lost * (sites - colluders) // (lost + 1) + 1


def count_sites(dropouts: int, colluders: int) -> int:
    """The least S with T ≤ S - t: t·(t + 1) + c + 1."""
    return dropouts * (dropouts + 1) + colluders + 1
