"""One site's estimate from the m synthetic copies that it released."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.base.errors import PenstockError
from penstock.questions.estimation import Estimate


@dataclass(frozen=True, slots=True)
class SiteEstimate:
    """An estimand at one site, combined over its copies; coefficient scale.

    Attributes:
        estimate: q̄, mean of the copies' estimates, and the correction; NaN where there is a
            problem.
        variance: T = ū(1 + 1/m), and the mechanism variance once it is known; NaN where there is a
            problem.
        within: ū, mean of the copies' variances.
        between: b, sample variance of the copies' estimates; None with a single copy.
        n: complete rows per copy (rounded mean), or as many as these are a share of; None of an
            answer, which does not tell.
        events: events among them; None for ols.
        copies: copies released.
        copies_used: copies with an estimate, m.
        mechanism_variance: what was added for the mechanism's own noise.
        df: degrees of freedom of the variance, for Student's t: how well it is known. Infinite
            where nothing in it was estimated from refits.
        correction: by how much it was moved for the mechanism's bias, as refits show it.
        total: it is a number of the site's own rows, of which sites are added up: their sampling is
            no part of its variance.
        problem: why there is no estimate, or None.
    """

    estimate: float
    variance: float
    within: float
    between: float | None
    n: int | None
    events: int | None
    copies: int
    copies_used: int
    mechanism_variance: float = 0.0
    problem: str | None = None
    df: float = math.inf
    total: bool = False
    correction: float = 0.0


def combine(copies: Sequence[Estimate], *, total: bool = False, share: float = 1.0) -> SiteEstimate:
    """Combine m copies of n rows each, all drawn from *one* fitted private model.

    q̄ = mean of the estimates, ū = mean of the variances (each at n rows, as many as the site has,
    by a noisy count: one that is off by a share of x leaves standard errors off by x/2),

        T = ū (1 + 1/m).

    The model is fitted once and plugged in: ū is the sampling variance of the real cohort, ū/m
    that of drawing the copies (plug-in synthesis with synthetic size = real size). T holds if the
    model contains the truth. By itself it does **not** hold the noise that the private mechanism
    put into the model, nor its bias from clipping: all copies share them, so the copies cannot
    show them. Refits can, and add it (:func:`penstock.inference.refits.widened`). b, the
    variance
    between copies, is kept for diagnosis: it estimates ū, and is not part of T.

    A total is a number of the rows that the site has, which are not drawn from anything: of it

        T = ū/m.

    Where copies have a share s of as many rows as the site, ū above is s times what they have, ū/m
    is what they have over m, and a total is 1/s times theirs (Raab et al., k ≠ n).

    Args:
        copies: the estimates of all released copies, failed ones (NaN) included.
        total: whether it is one; share: s.

    Returns:
        The site's estimate; NaN with a problem if fewer than half of the copies have one.

    Raises:
        PenstockError: no copies.

    Source: Raab, Nowok & Dibben, "Practical data synthesis for large samples", Journal of Privacy
    and Confidentiality 7 (2016–2017) 67–97, section 3 (k = n).
    """
    if not copies:
        raise PenstockError("no copies to combine")
    good = [c for c in copies if math.isfinite(c.estimate) and 0 < c.variance < math.inf]
    m = len(good)
    seen = good or list(copies)
    n = round(float(np.mean([c.n for c in seen])) / share)
    counts = [c.events for c in seen if c.events is not None]
    events = round(float(np.mean(counts)) / share) if counts else None
    if m == 0 or 2 * m < len(copies):
        reasons = sorted({c.problem for c in copies if c.problem is not None})
        problem = f"{len(copies) - m} of {len(copies)} copies have no estimate"
        if reasons:
            problem += f": {'; '.join(reasons)}"
        nan = math.nan
        return SiteEstimate(
            nan, nan, nan, None, n, events, len(copies), m, 0.0, problem, total=total
        )
    scale = 1 / share if total else 1.0
    estimates = scale * np.array([c.estimate for c in good])
    drawn = scale**2 * float(np.mean([c.variance for c in good]))
    return SiteEstimate(
        estimate=float(estimates.mean()),
        variance=drawn * ((0.0 if total else share) + 1.0 / m),
        within=drawn if total else share * drawn,
        between=float(estimates.var(ddof=1)) if m > 1 else None,
        n=n,
        events=events,
        copies=len(copies),
        copies_used=m,
        total=total,
    )
