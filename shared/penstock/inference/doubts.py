"""What an answer is worth where much of it hangs on few persons.

A site tells of each coefficient what share of all that rows tell of it hangs on a few persons who
lie far out, whom the mechanism cuts to a bound (:data:`penstock.mechanisms.released.DOUBT`).
Privacy hides just these persons, so that no covariance knows how far they move the answer.

- ``unsupported``: half of it or more. Hardly more than half of such intervals hold the truth.
- ``attenuated``: :data:`PART` or more.
- ``held``: all else.

Chosen on colon, mgus2, gbsg2, rossi, fair and heart of ``tests/studies/foreign_real.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.inference.slopes import Mark

PART, HALF = 0.35, 0.5


@dataclass(frozen=True, slots=True)
class Doubts:
    """The share, in [0, 1], at one site; by the estimand's name."""

    estimands: Mapping[str, float]

    @classmethod
    def of(cls, shares: Mapping[str, float]) -> Doubts:
        """Without those that the site does not tell, NaN."""
        return cls({name: share for name, share in shares.items() if not math.isnan(share)})


def mark_doubt(share: float) -> Mark:
    """What the share makes of an estimate."""
    if not share < HALF:
        return Mark.UNSUPPORTED
    return Mark.HELD if share < PART else Mark.ATTENUATED


def word_doubt(share: float) -> str:
    """The mark, of a coefficient in a file; nothing where the site does not tell the share."""
    return "" if math.isnan(share) else mark_doubt(share)


def pool_doubts(shares: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Of a weighted mean of sites' estimates.

    Args:
        weights: of the estimates; sites without one count as nothing, unless all are.
    """
    total = sum(weights.get(site, 0.0) for site in shares)
    if not total > 0:
        return sum(shares.values()) / len(shares)
    return sum(share * weights.get(site, 0.0) for site, share in shares.items()) / total
