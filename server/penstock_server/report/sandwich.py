"""What a sandwich variance says of an estimand's standard errors, in words and numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from penstock.base.documents import Json
from penstock.inference.robust import LARGE, Robust
from penstock.telling.axis import number_text

_REFITTED = (
    " The intervals have that already: refits show how much estimates of such tables vary, "
    "whatever the model says."
)
_WIDER = " Read the interval as too narrow, by up to that."
_SMALLER = " The interval is rather too wide."
_DISPERSION = " Counts vary {} times as much as a {} has it."
_ALPHA = " Their variance is μ + {} μ²."
_NO_ALPHA = " They vary no more than a Poisson model has it, which is what was fitted."


def tell_robust(
    found: Mapping[str, Robust], weights: Mapping[str, float], *, title: str, refitted: bool
) -> Json | None:
    """How the sites' standard errors compare; None where no site has such a model.

    Args:
        found: of each site; weights: of its estimate in what is pooled, as are the ratios.
        title: the model's, as the report calls it.
        refitted: whether refits are part of the intervals.
    """
    if not found:
        return None
    shares = [weights.get(site, 0.0) for site in found]
    if not any(shares):
        shares = [1.0] * len(found)
    total = sum(shares)
    pairs = list(zip(found.values(), shares, strict=True))
    # Each site's part of the pooled variance goes as its weight.
    ratio = math.sqrt(sum(w * one.ratio**2 for one, w in pairs) / total)
    dispersions = [one.dispersion * w for one, w in pairs if one.dispersion is not None]
    dispersion = sum(dispersions) / total if dispersions else None
    alphas = [one.alpha * w for one, w in pairs if one.alpha is not None]
    text = _tell(ratio, refitted)
    if dispersion is not None:
        text += _DISPERSION.format(number_text(dispersion, 2), title[0].lower() + title[1:])
    if alphas:
        alpha = sum(alphas) / total
        text += _ALPHA.format(number_text(alpha, 2)) if alpha else _NO_ALPHA
    return {
        "ratio": ratio,
        "dispersion": dispersion,
        "warned": bool(ratio >= LARGE and not refitted),
        "text": text,
        "sites": [
            {"site": site, "ratio": one.ratio, "dispersion": one.dispersion}
            for site, one in found.items()
        ],
    }


def _tell(ratio: float, refitted: bool) -> str:
    text = (
        "Standard errors that do not take the model's word for how the outcome varies (sandwich, "
        f"HC0) are {number_text(ratio, 2)} times those of the model."
    )
    if ratio >= LARGE:
        text += _REFITTED if refitted else _WIDER
    elif ratio <= 1 / LARGE:
        text += _SMALLER
    return text


def tell_ratios(robust: Json) -> dict[str, str]:
    """Of each site the ratio."""
    return {site["site"]: number_text(site["ratio"], 2) for site in robust["sites"]}
