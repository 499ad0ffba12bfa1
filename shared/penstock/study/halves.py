r"""A study that asks each site for a release of its own, and all of them for one together.

It is two studies, its halves, that are signed, asked and answered each by itself: where one fails,
the other stands. Each says in its signed text what the whole costs and what the other half does,
so that whoever holds one can write down the other, byte by byte. A gate that charges one of them
charges both in one go, or neither.

The whole's budget is shared in ρ. A Gaussian mechanism has Rényi divergences ρα, and those of what
is composed add up (Mironov 2017, arXiv 1702.07476, Prop. 1): with ρ the budget of the whole, one
half has a share s of it, the other the rest. ε is of ρ, and ρ of ε, by the conversion that the
accountant has (Canonne, Kamath & Steinke 2020, Prop. 12). That is exact for what is all Gaussian.
Of what is not, a gate composes the events of both halves, and refuses what is above the whole's ε.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from penstock.base.errors import InvalidInput, Problem
from penstock.study.scope import BOTH, GLOBAL, SHARE, SITE
from penstock.study.study import Study

_DIGITS = 4
"""To so many digits a half's ε is rounded, downwards: it is written, read and compared as text."""
_ASIDE = 5e-4
"""Of ε, what is not shared: an accountant takes the best of a grid of orders, not of all."""
_LEAST, _MOST = 1e-12, 1e6


def list_halves(study: Study) -> tuple[Study, ...]:
    """What of a study is signed: its halves, of each site's own and of the one release; or itself.

    Raises:
        InvalidInput: the budget is too small to be shared.
    """
    scope, privacy = study.aggregation, study.privacy
    if scope.scope != BOTH:
        return (study,)
    each, joint = split_epsilon(privacy.epsilon, privacy.delta, scope.share or SHARE)
    own = replace(
        study,
        privacy=replace(privacy, epsilon=each),
        aggregation=replace(scope, scope=SITE, share=None, whole=privacy.epsilon, other=joint),
    )
    return own, find_other(own)


def find_other(half: Study) -> Study:
    """The other half of the study that this one is a half of.

    Raises:
        InvalidInput: it is no half.
    """
    scope, privacy = half.aggregation, half.privacy
    if scope.other is None:
        problem = Problem("aggregation.other", "is missing", remedy="Only a half has another")
        raise InvalidInput("study", [problem])
    return replace(
        half,
        privacy=replace(privacy, epsilon=scope.other),
        aggregation=replace(scope, scope=SITE if scope.joint else GLOBAL, other=privacy.epsilon),
    )


def split_epsilon(epsilon: float, delta: float, share: float) -> tuple[float, float]:
    """(ε of each site's own release, ε of the one of all sites), each at δ; rounded down.

    Args:
        share: what the one release has of ρ, above 0, below 1.

    Raises:
        InvalidInput: it is so little that a half would be nothing.

    Example:
        >>> split_epsilon(1.0, 1e-5, 0.5)
        (0.6881, 0.6881)
    """
    if not convert(_LEAST, delta) < epsilon < convert(_MOST, delta):
        problem = Problem("privacy.epsilon", "cannot be shared", value=f"{epsilon:g}")
        raise InvalidInput("study", [problem])
    rho = _invert((1 - _ASIDE) * epsilon, delta)
    each, joint = (_round_down(convert(part * rho, delta)) for part in (1 - share, share))
    if not min(each, joint) > 0:
        text = "leaves a half with nothing"
        problem = Problem("aggregation.share", text, value=f"{share:g}", bound="nearer to 0.5")
        raise InvalidInput("study", [problem])
    return each, joint


def convert(rho: float, delta: float) -> float:
    r"""ε at δ of Rényi divergences ρα, α > 1: the least over α of
    ρα + ln((α-1)/α) - (ln δ + ln α)/(α-1), and never below 0.

    Source: Canonne, Kamath & Steinke 2020, Prop. 12.
    """
    from scipy.optimize import minimize_scalar  # slow to load, and only this asks for it

    def at(log: float) -> float:
        over = math.exp(log)  # α - 1
        order = 1 + over
        return rho * order - math.log1p(1 / over) - (math.log(delta) + math.log(order)) / over

    found = minimize_scalar(at, bounds=(-7.0, 28.0), method="bounded", options={"xatol": 1e-10})
    return max(0.0, float(found.fun))


def _invert(epsilon: float, delta: float) -> float:
    """The ρ whose ε is this one."""
    from scipy.optimize import brentq

    found = brentq(
        lambda log: convert(math.exp(log), delta) - epsilon,
        *(math.log(_LEAST), math.log(_MOST)),
        xtol=1e-13,
    )
    return math.exp(found)


def _round_down(value: float) -> float:
    if not value > 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - _DIGITS + 1)
    return float(f"{math.floor(value / unit) * unit:.{_DIGITS}g}")


def walk_halves(study: Study) -> Iterator[tuple[str, Study]]:
    """What each half is, in words, with it; nothing of a study that has none."""
    for half in list_halves(study):
        if half.aggregation.halved:
            yield describe_half(half), half


def describe_half(half: Study) -> str:
    """Which half it is, in a few words."""
    return "one release of all sites" if half.aggregation.joint else "each site's own release"
