"""The numbers of an answer, as every reader of it finds them: by coefficient, and as shown."""

from __future__ import annotations

import math

from penstock.base.documents import Json
from penstock.inference import pooling
from penstock.inference.combine import SiteEstimate
from penstock.telling.scales import Link

LEVEL = 0.95
"""Coverage of every interval of an answer."""

ENDS = ("estimate", "low", "high")


def tell_pooled(p: pooling.Pooled, link: Link) -> Json:
    """What sites say together."""
    prediction = None
    if p.pi_low is not None and p.pi_high is not None:
        prediction = {"low": p.pi_low, "high": p.pi_high}
    return {
        "method": p.method,
        "test": p.test,
        "k": p.k,
        "df": p.df,
        "se": p.se,
        "p": p.p_value,
        "coefficient": {"estimate": p.estimate, "low": p.ci_low, "high": p.ci_high},
        "value": show_interval(p.estimate, p.ci_low, p.ci_high, link),
        "prediction": prediction,
        "tau2": p.tau2,
        "i2": p.i2,
    }


def tell_site(name: str, e: SiteEstimate, weight: float | None, link: Link) -> Json:
    """What one site says, or why it says nothing; it has no weight then."""
    if weight is None:
        return {"site": name, "problem": e.problem or "the estimate is beyond what can be pooled"}
    half = pooling.quantile(LEVEL, e.df) * math.sqrt(e.variance)
    ends = (e.estimate, e.estimate - half, e.estimate + half)
    return {
        "site": name,
        "problem": None,
        "n": e.n,
        "events": e.events,
        "coefficient": dict(zip(ENDS, ends, strict=True)),
        "value": show_interval(*ends, link),
        "variance": e.variance,
        "mechanism_variance": e.mechanism_variance,
        "correction": e.correction,
        "df": e.df if math.isfinite(e.df) else None,
        "weight": weight,
    }


def show_interval(estimate: float, low: float, high: float, link: Link) -> Json:
    """An estimate with its interval, from coefficients to what a reader is told."""
    ends = (estimate, low, high)
    return dict(zip(ENDS, map(link.show, ends), strict=True))
