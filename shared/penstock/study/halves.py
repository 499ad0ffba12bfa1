r"""A study that asks each site for a release of its own, and all of them for one together.

It is two studies, its halves, that are signed, asked and answered each by itself: where one fails,
the other stands. Each says in its signed text what the whole costs and what the other half does,
so that whoever holds one can write down the other, byte by byte. A gate that charges one of them
charges both in one go, or neither.

The whole's budget is shared in ρ. A Gaussian mechanism has Rényi divergences ρα, and those of what
is composed add up (Mironov 2017, arXiv 1702.07476, Prop. 1): with ρ the budget of the whole, one
half has a share s of it, the other the rest. ε is of ρ, and ρ of ε, by the accountant that gates,
at its own orders: whoever took the best of all orders would share more than it counts. That is
exact for what is all Gaussian.
Of what is not, a gate composes the events of both halves, and refuses what is above the whole's ε.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from penstock.base.errors import InvalidInput, Problem
from penstock.privacy.events import Gaussian
from penstock.study.scope import BOTH, GLOBAL, SHARE, SITE
from penstock.study.study import Study

_DIGITS = 4
"""To so many digits a half's ε is rounded, downwards: it is written, read and compared as text."""
_ASIDE = 5e-4
"""Of ε, what is not shared: discrete noise, and sums of it, cost a little more than Gaussians."""
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
        (0.6861, 0.6861)
    """
    if not convert(_LEAST, delta) < epsilon < convert(_MOST, delta):
        problem = Problem("privacy.epsilon", "cannot be shared", value=f"{epsilon:g}")
        raise InvalidInput("study", [problem])
    rho = _invert((1 - _ASIDE) * epsilon, delta)
    each, joint = (_round_down(convert(part * rho, delta)) for part in (1 - share, share))
    if not min(each, joint) > convert(_LEAST, delta):
        text = "leaves a half with nothing"
        problem = Problem("aggregation.share", text, value=f"{share:g}", bound="nearer to 0.5")
        raise InvalidInput("study", [problem])
    return each, joint


def convert(rho: float, delta: float) -> float:
    """ε at δ of Rényi divergences ρα, which a Gaussian of noise multiplier 1/√(2ρ) has."""
    from penstock.privacy.accounting.accountant import epsilon  # slow to load

    return epsilon([Gaussian(1 / math.sqrt(2 * rho))], delta)


def _invert(epsilon: float, delta: float) -> float:
    """The ρ whose ε is this one, from below."""
    low, high = math.log(_LEAST), math.log(_MOST)
    while high - low > 1e-9:
        middle = (low + high) / 2
        fits = convert(math.exp(middle), delta) <= epsilon
        low, high = (middle, high) if fits else (low, middle)
    return math.exp(low)


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
