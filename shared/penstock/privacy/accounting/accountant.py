"""What events cost.

Two accountants, never mixed:

- **autodp gates** (:mod:`penstock.privacy.accounting.renyi`). For one study, whose mechanism is
  fixed before it runs, the best order may be taken. For a *lineage*, which composes adaptively
  chosen studies, one order or a grid is fixed at creation (:mod:`penstock.privacy.filters`).
- **dp-accounting's PLD is reported** beside it (:mod:`penstock.privacy.accounting.pld`), or the
  closed form where all is Gaussian: tighter by 10-40 %, for the mechanisms actually run, and for
  the replace-one relation that papers and ethics boards quote.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from penstock.privacy.accounting import pld
from penstock.privacy.accounting.renyi import check_delta, delta_off_top, epsilon_of_one
from penstock.privacy.events import Event, by_person

Relation = Literal["zero-out", "replace-one"]


def epsilon(events: Sequence[Event], delta: float) -> float:
    """ε at δ of a non-adaptive composition, by Rényi divergence at its best order.

    An upper bound under zero-out with public n. Of δ, what approximate events take off the top is
    not there for the rest. 0 for no events; ∞ with an unbounded one, or where nothing of δ is left.

    Example:
        Four releases cost as much as one with half the noise.

        >>> from penstock.privacy.events import Gaussian
        >>> round(epsilon([Gaussian(4.0)], delta=1e-5), 3)
        1.013
        >>> round(epsilon([Gaussian(4.0, count=4)], delta=1e-5), 3)
        2.166
        >>> round(epsilon([Gaussian(2.0)], delta=1e-5), 3)
        2.166
    """
    check_delta(delta)
    return max(epsilon_of_one(own, delta - delta_off_top(own)) for own in by_person(events))


def epsilon_pld(events: Sequence[Event], delta: float, *, relation: Relation = "zero-out") -> float:
    """ε at δ by the closed form where all is Gaussian, else by privacy loss distributions.

    An upper bound, as :func:`epsilon`, and nearly tight. ``relation="replace-one"`` gives the value
    that papers quote: a person exchanged for another
    (:func:`penstock.privacy.accounting.pld.replace_one`).

    Example:
        >>> from penstock.privacy.events import Gaussian
        >>> round(epsilon_pld([Gaussian(4.0)], delta=1e-5), 3)
        0.926
        >>> round(epsilon_pld([Gaussian(4.0)], delta=1e-5, relation="replace-one"), 3)
        1.993
    """
    check_delta(delta)
    return pld.epsilon(events, delta, relation == "replace-one")


def delta(events: Sequence[Event], epsilon: float, *, relation: Relation = "zero-out") -> float:
    """δ at ε, as :func:`epsilon_pld`; an upper bound, at most 1.

    Raises:
        InvalidEvent: ε is negative or NaN.
    """
    return pld.delta(events, epsilon, relation == "replace-one")
