"""What each site does to a pooled estimate: looked at once, and shown in two places of a report."""

from __future__ import annotations

from functools import lru_cache

from penstock.inference.influence import Influence, measure_influence


@lru_cache(maxsize=1024)
def weigh_sites(
    estimates: tuple[float, ...], variances: tuple[float, ...], degrees: tuple[float, ...]
) -> tuple[Influence, ...]:
    """As :func:`penstock.inference.influence.measure_influence` has it, of known numbers alone.

    Raises:
        InvalidInput: as there.
    """
    return measure_influence(estimates, variances, degrees=degrees)
