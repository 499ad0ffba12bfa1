r"""What sites that were lost on the way leave open of one release of many sites' sums.

A site that is lost has its rows in the sums of the first rounds, or in none; all sums are scaled up
to the whole frame. So the effect that is told lies between that among the persons of sites that are
in all sums, the *present* ones, and that among everybody. These two differ by the share w of
persons who are at lost sites, times the difference of the lost sites' effect from the others'. With
sites' effects independent, of variance τ², and :math:`p_s` a site's persons, its variance is

.. math:: w^2 τ^2 \Big(\frac{\sum_{lost} p_s^2}{(\sum_{lost} p_s)^2}
    + \frac{\sum_{present} p_s^2}{(\sum_{present} p_s)^2}\Big).

What lies between is off neither by more. An interval that is wider by it is one of the present
sites' effect, and of everybody's. τ² is DerSimonian and Laird's of the sites that are told apart,
and as uncertain as that is of a few; a release that was not asked how far sites differ knows none,
so that nothing is added, and the report says that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from penstock.inference.combine import SiteEstimate
from penstock_server.analysis.site_effects import SiteEffect, pool_sites

LEVEL = 0.95


def spread_lost(persons: Mapping[str, int], lost: Collection[str]) -> float:
    """By how much τ² counts in the variance of an effect; 0 where nobody is lost, or everybody.

    Args:
        persons: of each site of the release, the frame that it declared; lost: some of these.
    """
    gone = [count for site, count in persons.items() if site in lost]
    there = [count for site, count in persons.items() if site not in lost]
    if not gone or not there:
        return 0.0
    parts = (sum(p * p for p in some) / sum(some) ** 2 for some in (gone, there))
    return (sum(gone) / (sum(gone) + sum(there))) ** 2 * sum(parts)


def find_spread(effects: Sequence[SiteEffect], lost: Collection[str]) -> float | None:
    """τ² of sites that are there and known; None of too few."""
    pooled = pool_sites([e for e in effects if e.known and e.site not in lost], LEVEL)
    return None if pooled is None else pooled.tau2


def widen_lost(
    estimate: SiteEstimate,
    effects: Sequence[SiteEffect],
    persons: Mapping[str, int],
    lost: Collection[str],
) -> SiteEstimate:
    """The estimate of one release, with what lost sites leave open in its variance.

    Args:
        effects: of sites by themselves; those that are not known, or lost, say nothing.
    """
    added = spread_lost(persons, lost) * (find_spread(effects, lost) or 0.0)
    return replace(estimate, variance=estimate.variance + added)
