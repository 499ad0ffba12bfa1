"""From the scale on which sites are pooled to what a reader is told, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

MAX_EXPONENT = 690.0
"""exp() of more overflows a double."""


def ratio(coefficient: float) -> float:
    """exp(coefficient), cut where it would overflow: about 1e299."""
    return math.exp(max(-MAX_EXPONENT, min(MAX_EXPONENT, coefficient)))


def share(logit: float) -> float:
    """1/(1 + exp(−logit))."""
    return 1 / (1 + ratio(-logit))


def _logit(value: float) -> float:
    return math.log(value / (1 - value))


@dataclass(frozen=True, slots=True)
class Link:
    """A scale, by its name in a report.

    Attributes:
        show: from coefficient to value; back: the inverse, of values inside ``ends``.
        ends: what values lie between, not at.
        round: values at which an axis may have ticks, the best first; none: as its limits say.
    """

    name: str
    show: Callable[[float], float]
    back: Callable[[float], float]
    ends: tuple[float, float] = (-math.inf, math.inf)
    round: tuple[float, ...] = ()


PLAIN = Link("plain", float, float)
LOG = Link("log", ratio, math.log, (0.0, math.inf))
LOGIT = Link(
    "logit",
    share,
    _logit,
    (0.0, 1.0),
    (
        0.5,
        0.1,
        0.9,
        0.01,
        0.99,
        0.001,
        0.999,
        1e-5,
        0.99999,
        0.2,
        0.8,
        0.3,
        0.7,
        0.05,
        0.95,
        0.4,
        0.6,
    ),
)
COUNT = Link("count", partial(max, 0.0), float)
"""Of rows: an estimate below 0 is noise, and shown as 0."""
FISHER = Link(
    "fisher",
    math.tanh,
    math.atanh,
    (-1.0, 1.0),
    (0.0, 0.5, -0.5, 0.9, -0.9, 0.99, -0.99, 0.8, -0.8, 0.2, -0.2, 0.4, -0.4, 0.6, -0.6),
)

LINKS: Mapping[str, Link] = {link.name: link for link in (PLAIN, LOG, LOGIT, FISHER, COUNT)}
"""As :attr:`penstock.questions.models.model.Model.scale` names them."""
