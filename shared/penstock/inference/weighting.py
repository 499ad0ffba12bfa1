r"""What pooling may be off by since it weighs sites by their precision, and the mean that does not.

Sites are sampled, and what is asked is the mean μ of the effects θ of all such sites. Weights
h_i ∝ 1/(v_i + τ²) give it if θ and v have nothing to do with each other. They often have: where the
old have another effect than the young, a site of the old has more events, or fewer, and so another
variance. Then Σ h_i θ_i is the effect of precise sites, however many sites there are; the interval,
which allows for chance alone, lies about that. The plain mean ȳ = Σ y_i/k has no such bias, and
where nothing is amiss it is as much less precise as weights are unequal. With

.. math:: b = \hat μ - ȳ, \quad Var\, b = \sum_i (h_i - 1/k)^2 (v_i + τ^2)

by chance, b² − Var b estimates the square of the bias without a bias of its own. No weights make
more of effects that differ by τ than

.. math:: (k - 1) τ^2 \sum_i (h_i - 1/k)^2

(Cauchy and Schwarz). :func:`allow_weighting` adds the former, as far as it is above 0 and not above
the latter, to the squared standard error: the error of an estimate that is kept. τ² is the larger
one of what weights were made with and of Hedges', max(0, s² − v̄), which no weights are in. Where
sites agree nothing is added. Where they differ, and not by their variances, b is farther from 0
than its own standard deviation in a third of all federations, and their intervals are wider, by a
fifth or so. There is no constant in it; that it is this rule, and not one that asks for more
evidence, was chosen on the worlds of the study of coverage (``docs/analyse.md``).

Sources: Shuster, Statistics in Medicine 29 (2010) 1259–1265, of weights that go with effects;
Hedges, Psychological Bulletin 93 (1983) 388–395, of the plain mean. In metafor the latter
is ``rma(y, v, method = "HE", weighted = FALSE, test = "t")``.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from penstock.inference.pooling import Estimated, Pooled, Test, pool, restate
from penstock.inference.tau_squared import estimate_tau2


def pool_weighed(
    estimates: ArrayLike,
    variances: ArrayLike,
    *,
    method: Estimated = "reml",
    test: Test = "knapp-hartung-floored",
    level: float = 0.95,
    degrees: ArrayLike | None = None,
) -> Pooled:
    """Pool k estimates, with the interval of :func:`allow_weighting`: the headline's rule.

    Arguments and errors as for :func:`~penstock.inference.pooling.pool`.
    """
    plain = pool(estimates, variances, method=method, test=test, level=level, degrees=degrees)
    return allow_weighting(plain, estimates, variances)


def allow_weighting(pooled: Pooled, estimates: ArrayLike, variances: ArrayLike) -> Pooled:
    """The pooled estimate with the interval that allows for effects that go with weights.

    Args:
        pooled: of two sites or more; of one nothing is weighed, and it stays as it is.
        estimates, variances: (k,), as it was pooled of.
    """
    y, v = np.asarray(estimates, np.float64), np.asarray(variances, np.float64)
    apart = np.asarray(pooled.weights) - 1 / pooled.k
    unequal = float(apart @ apart)
    # Of differences alone: rounding of what all y have in common would be a bias of equal weights.
    bias, chance = float(apart @ (y - y.mean())), float(apart**2 @ (v + pooled.tau2))
    tau2 = max(pooled.tau2, estimate_tau2("he", y, v, np.full_like(v, math.inf)))
    allowed = min(bias**2 - chance, (pooled.k - 1) * tau2 * unequal)
    return pooled if allowed <= 0 else restate(pooled, se=math.sqrt(pooled.se**2 + allowed))


def average_sites(
    estimates: ArrayLike,
    variances: ArrayLike,
    *,
    level: float = 0.95,
    degrees: ArrayLike | None = None,
) -> Pooled:
    """The plain mean of sites, each alike: Student's t(k − 1) with se² = max(s², v̄)/k.

    s² is the variance of the estimates, so that se² holds for any variances and any heterogeneity,
    whatever they have to do with each other; v̄ is the floor of it. τ² is Hedges'.

    Arguments and errors as for :func:`~penstock.inference.pooling.pool`.
    """
    by_hedges = pool(estimates, variances, method="he", level=level, degrees=degrees)
    y, v = np.asarray(estimates, np.float64), np.asarray(variances, np.float64)
    k = len(y)
    spread = float(y.var(ddof=1)) if k > 1 else 0.0
    se = math.sqrt(max(spread, float(v.mean())) / k)
    alike = replace(by_hedges, method="unweighted", weights=(1 / k,) * k)
    return restate(alike, se=se, estimate=float(y.mean()))
