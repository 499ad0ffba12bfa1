"""What one site does to a pooled estimate, and how the estimate came about site by site.

With μ̂, τ² and se² of all k sites, μ̂₍₋ᵢ₎, τ²₍₋ᵢ₎ and se²₍₋ᵢ₎ of the others, and the leverage
h_i = w_i/Σw, w = 1/(v + τ²):

- residual (y_i − μ̂₍₋ᵢ₎)/√(v_i + τ²₍₋ᵢ₎ + se₍₋ᵢ₎²), externally studentised;
- DFFITS (μ̂ − μ̂₍₋ᵢ₎)/√(h_i (v_i + τ²₍₋ᵢ₎));
- Cook's distance (μ̂ − μ̂₍₋ᵢ₎)²/se²;
- covariance ratio se₍₋ᵢ₎²/se².

Standard errors are those of test ``z``, as in metafor's ``rstudent`` and ``influence``.

Source: Viechtbauer & Cheung, Research Synthesis Methods 1 (2010) 112–125.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from penstock.inference.pooling import (
    Estimated,
    Pooled,
    Test,
    check_sites,
    pool,
    quantile,
    tail,
)
from penstock.inference.weighting import pool_weighed

FLAG_RESIDUAL = 3.0
"""A site is flagged beyond this externally studentised residual (two-sided normal: 0.27 %)."""
FLAG_MIN_SITES = 4
"""Below this many sites τ² without the site rests on two estimates: nothing is flagged."""


@dataclass(frozen=True, slots=True)
class Influence:
    """What one site does to the pooled estimate; formulas as the module has them.

    Attributes:
        without: the pooled result of the other k−1 sites.
        change: (μ̂ − μ̂₍₋ᵢ₎)/se₍₋ᵢ₎, how far the site moves the pooled estimate, in standard errors
            of the estimate without it.
        residual: externally studentised.
        dffits, cook, covariance_ratio, leverage: of the site.
        flagged: the residual is as unlikely as a normal one beyond 3, by Student's t with the
            degrees of freedom of the site's own variance; and k ≥ 4.
    """

    without: Pooled
    change: float
    residual: float
    dffits: float
    cook: float
    covariance_ratio: float
    leverage: float
    flagged: bool


def leave_one_out(
    estimates: ArrayLike,
    variances: ArrayLike,
    *,
    method: Estimated = "reml",
    test: Test = "knapp-hartung-floored",
    level: float = 0.95,
    degrees: ArrayLike | None = None,
    weighed: bool = False,
) -> tuple[Pooled, ...]:
    """The k pooled results with one site left out each, in the order of the sites.

    Empty for k = 1. Arguments and errors as for :func:`~penstock.inference.pooling.pool`;
    ``weighed``: pooled as a headline is, by :func:`~penstock.inference.weighting.pool_weighed`.
    """
    y, v, nu = check_sites(estimates, variances, method, test, level, degrees)
    if len(y) == 1:
        return ()

    def without(i: int) -> Pooled:
        rule = pool_weighed if weighed else pool
        rest = (np.delete(part, i) for part in (y, v))
        return rule(*rest, method=method, test=test, level=level, degrees=np.delete(nu, i))

    return tuple(without(i) for i in range(len(y)))


def accumulate(
    estimates: ArrayLike,
    variances: ArrayLike,
    *,
    order: Sequence[int] | None = None,
    method: Estimated = "reml",
    test: Test = "knapp-hartung-floored",
    level: float = 0.95,
    degrees: ArrayLike | None = None,
    weighed: bool = False,
) -> tuple[Pooled, ...]:
    """The k pooled results of the first site, of the first two, and so on.

    Args:
        order: positions of sites, each once; None: from the most precise on, the order of
            variances.

    Other arguments and errors as for :func:`leave_one_out`.
    """
    y, v, nu = check_sites(estimates, variances, method, test, level, degrees)
    first = list(np.argsort(v, kind="stable")) if order is None else list(order)

    def of(n: int) -> Pooled:
        of, rule = first[:n], pool_weighed if weighed else pool
        return rule(y[of], v[of], method=method, test=test, level=level, degrees=nu[of])

    return tuple(of(n + 1) for n in range(len(first)))


def measure_influence(
    estimates: ArrayLike,
    variances: ArrayLike,
    *,
    method: Estimated = "reml",
    degrees: ArrayLike | None = None,
) -> tuple[Influence, ...]:
    """How much each site moves the pooled estimate; flags those beyond their leave-one-out limit.

    A site is flagged if its externally studentised residual is beyond 3 (of an estimated variance,
    beyond what Student's t exceeds as rarely) and there are at least 4 sites. A flag asks for a
    look: it is not a reason to leave the site out. Two outlying sites can mask each other, as τ²
    without one of them still holds the other. Empty for k = 1.

    Raises:
        InvalidInput: as :func:`~penstock.inference.pooling.pool`.
    """
    y, v, nu = check_sites(estimates, variances, method, "z", 0.95, degrees)
    k = len(y)
    whole = pool(y, v, method=method, test="z", degrees=nu)
    rest = leave_one_out(y, v, method=method, test="z", degrees=nu)
    if not rest:
        return ()
    level = 1 - 2 * tail(FLAG_RESIDUAL, None)
    limits = [FLAG_RESIDUAL if math.isinf(df) else quantile(level, df) for df in nu]
    found = []
    for i, (without, limit) in enumerate(zip(rest, limits, strict=True)):
        moved = whole.estimate - without.estimate
        spread, leverage = float(v[i]) + without.tau2, whole.weights[i]
        residual = (float(y[i]) - without.estimate) / math.sqrt(spread + without.se**2)
        found.append(
            Influence(
                without=without,
                change=moved / without.se,
                residual=residual,
                # A weight may be 0 to double precision: then the site moves nothing.
                dffits=moved / math.sqrt(leverage * spread) if leverage > 0 else 0.0,
                cook=(moved / whole.se) ** 2,
                covariance_ratio=(without.se / whole.se) ** 2,
                leverage=leverage,
                flagged=bool(k >= FLAG_MIN_SITES and abs(residual) > limit),
            )
        )
    return tuple(found)
