r"""The estimate of one release of all sites: it is the answer, and nothing is pooled,

.. math:: \hatμ ± t(ν) \sqrt{v}.

Of how far sites differ nothing is known: there is no heterogeneity to tell, and no further site.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.inference.combine import SiteEstimate
from penstock.inference.pooling import Pooled, pool


def take_alone(release: SiteEstimate, level: float = 0.95) -> Pooled:
    """The estimate with its own interval, as the report has those that are pooled.

    Raises:
        InvalidInput: it is not poolable (:func:`penstock.inference.pooling.poolable`).
    """
    y, v, df = [release.estimate], [release.variance], [release.df]
    return replace(pool(y, v, method="fixed", level=level, degrees=df), method="release")
