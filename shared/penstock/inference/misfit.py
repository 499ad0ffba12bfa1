r"""What the model behind tables misses of a question that no study named, alike at all sites.

Tables hold columns, pairs of columns, and what a study declared. A regression that nobody declared
is answered as far as that tells it. What it is off by is no noise, so that refits do not show it
(they lack what copies lack); and sites of one kind are off alike, so that it does not average out
over sites. It is allowed for as an error that all sites have in common,

.. math:: se'^2 = se^2 + φ^2 \bigl(\sum_i h_i \sqrt{n_i ū_i}\bigr)^2,

with h the sites' weights, n_i the rows of a copy and ū_i the variance of an estimate of them: φ is
an error in standard errors of one single row, of a standardised column's linear coefficient about
that of a partial correlation. Degrees of freedom and τ² stay.

φ is no theorem. It was set on tables that no study of coverage shows, where undeclared regressions
were off by .3 standard errors of 1,500 rows in the median, and by .9 in one of ten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from penstock.inference.combine import SiteEstimate
from penstock.inference.pooling import Pooled, quantile, tail

MISFIT = 0.015
"""φ."""


def allow_misfit(pooled: Pooled, sites: Sequence[SiteEstimate]) -> Pooled:
    """The pooled estimate with the interval that holds what the model may miss.

    Args:
        sites: those that were pooled, in their order, estimates of tables.
    """
    scales = (math.sqrt((one.n or 0) * one.within) for one in sites)
    common = MISFIT * sum(w * s for w, s in zip(pooled.weights, scales, strict=True))
    se = math.hypot(pooled.se, common)
    half = quantile(pooled.level, pooled.df) * se
    statistic = pooled.estimate / se
    further = None
    if pooled.pi_low is not None:
        further = quantile(pooled.level, pooled.k - 2) * math.sqrt(pooled.tau2 + se**2)
    return replace(
        pooled,
        se=se,
        statistic=statistic,
        p_value=2 * tail(abs(statistic), pooled.df),
        ci_low=pooled.estimate - half,
        ci_high=pooled.estimate + half,
        pi_low=None if further is None else pooled.estimate - further,
        pi_high=None if further is None else pooled.estimate + further,
    )
