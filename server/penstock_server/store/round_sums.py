"""The sum of one round, as sites and results are told of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoundSum:
    """
    Attributes:
        survivors: whose vectors it is of, in the roster's order.
        data: of :func:`penstock.aggregation.exchanges.write_sum`.
    """

    survivors: tuple[str, ...]
    data: bytes
