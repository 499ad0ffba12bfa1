r"""Numbers of rows at sites, added up: with estimates y_i, of variances v_i with ν_i degrees of
freedom,

.. math:: \sum y_i,\qquad \mathrm{se}^2 = \sum v_i,\qquad
          ν = \Big(\sum v_i\Big)^2 \Big/ \sum \frac{v_i^2}{ν_i}.

A total is of the rows of the sites that answered. No mean is behind it about which sites would
differ, so that there is no heterogeneity, and nothing is said of a further site.

Source: Satterthwaite 1946, Biometrics Bulletin 2, 110–114.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import special

from penstock.inference.combine import SiteEstimate
from penstock.inference.pooling import Pooled, quantile


def add_up(sites: Sequence[SiteEstimate], level: float = 0.95) -> Pooled:
    """The total of at least one site. Each one's weight is its part of it, where that is above 0.

    Its p-value is that of a total of 0, which nobody asks for, and which the form wants.
    """
    estimate = math.fsum(site.estimate for site in sites)
    variance = math.fsum(site.variance for site in sites)
    unknown = math.fsum(site.variance**2 / site.df for site in sites)
    df = variance**2 / unknown if unknown > 0 else None
    se = math.sqrt(variance)
    half, size = quantile(level, df) * se, abs(estimate) / se
    tail = special.ndtr(-size) if df is None else special.stdtr(df, -size)
    parts = [max(site.estimate, 0.0) for site in sites]
    whole = math.fsum(parts)
    return Pooled(
        method="total",
        test="z",
        k=len(sites),
        level=level,
        estimate=estimate,
        se=se,
        df=df,
        statistic=estimate / se,
        p_value=2 * float(tail),
        ci_low=estimate - half,
        ci_high=estimate + half,
        pi_low=None,
        pi_high=None,
        tau2=0.0,
        q=0.0,
        q_df=len(sites) - 1,
        q_df2=None,
        q_p=1.0,
        i2=0.0,
        h2=1.0,
        weights=tuple(part / whole if whole > 0 else 1 / len(parts) for part in parts),
    )
