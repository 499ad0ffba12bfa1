"""The headline of an estimand, and what stands beside it: one rule for a report and an analyst.

REML with the Knapp–Hartung interval floored at 1, which also allows for effects that go with
weights; beside it the fixed effect, and of two sites or more DerSimonian–Laird, Paule–Mandel and
the plain mean. Counts are added up; one release of all sites is taken as it is. What a study did
not declare is allowed what its tables' model may miss.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.inference import pooling
from penstock.inference.combine import SiteEstimate
from penstock.inference.misfit import allow_misfit
from penstock.inference.totals import add_up
from penstock.inference.unpooled import take_alone
from penstock.inference.weighting import average_sites, pool_weighed


def pool_sites(
    sites: Sequence[SiteEstimate],
    *,
    total: bool,
    joint: bool,
    level: float = 0.95,
    further: bool = False,
    beside: bool = True,
) -> dict[str, pooling.Pooled]:
    """Sites that can be pooled, together: ``random`` is the headline; nothing of no site.

    Args:
        total: they are counts, which are added up; joint: there is one, a release of all sites.
        further: it is a regression that no study declared (:mod:`penstock.inference.misfit`).
        beside: with what stands beside the headline.

    Raises:
        InvalidInput: one cannot be pooled (:func:`penstock.inference.pooling.poolable`).
    """
    if not sites:
        return {}
    if total:
        return {"random": add_up(sites, level)}
    if joint:
        alone = take_alone(sites[0], level)
        return {"random": allow_misfit(alone, sites) if further else alone}
    y, v, df = ([getattr(s, name) for s in sites] for name in ("estimate", "variance", "df"))
    found = {"random": pool_weighed(y, v, level=level, degrees=df)}
    if beside:
        others: tuple[pooling.Estimated, ...] = ("fixed", "dl", "pm")
        for method in others if len(sites) > 1 else others[:1]:
            found[method] = pooling.pool(y, v, method=method, level=level, degrees=df)
    if beside and len(sites) > 1:
        found["unweighted"] = average_sites(y, v, level=level, degrees=df)
    return {n: allow_misfit(p, sites) for n, p in found.items()} if further else found
