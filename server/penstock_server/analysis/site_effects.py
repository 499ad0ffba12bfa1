r"""What one release of all sites tells of each site: its own coefficients, one step from those of
all (:mod:`penstock.mechanisms.scoring.levels`), pooled as estimates of sites are.

A site is *known* where its standard error is at most :data:`~penstock.mechanisms.widths.MOST_WIDE`
times what its rows alone would leave. Which are follows from noise and sizes, and not from what
was found, so that leaving out the others leaves no trace in what is pooled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.inference.pooling import Pooled, pool, poolable
from penstock.mechanisms.widths import MOST_WIDE

LEAST_KNOWN = 2
"""Sites, without which nothing is said of how far sites differ."""


@dataclass(frozen=True, slots=True)
class SiteEffect:
    """A site's estimate, per the estimand's units, its variance, and the mechanism's part of it."""

    site: str
    estimate: float
    variance: float
    noise: float

    @property
    def known(self) -> bool:
        """Whether it says anything."""
        sampling = self.variance - self.noise
        return self.variance <= MOST_WIDE**2 * sampling and poolable(self.estimate, self.variance)


@dataclass(frozen=True, slots=True)
class SiteEffects:
    """Of each estimand that sites are told apart for: of every site its own, and in which round,
    from the last one back (1), rows were asked for it."""

    estimands: Mapping[str, Sequence[SiteEffect]]
    rounds: Mapping[str, int]


def pool_sites(effects: Sequence[SiteEffect], level: float) -> Pooled | None:
    """Random effects of sites, as estimates of sites are pooled elsewhere: τ² by REML, and
    Knapp and Hartung's interval; None of too few.

    Args:
        effects: of sites that are known.
    """
    if len(effects) < LEAST_KNOWN:
        return None
    return pool([e.estimate for e in effects], [e.variance for e in effects], level=level)
