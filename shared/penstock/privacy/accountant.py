"""What events cost.

Two accountants, never mixed:

- **autodp gates** (:mod:`penstock.privacy.renyi`). For one study, whose mechanism is fixed before
  it runs, the best order may be taken. For a *lineage*, which composes adaptively chosen studies,
  one order is fixed at creation (:mod:`penstock.privacy.filters`).
- **dp-accounting's PLD is reported** beside it: tighter by 10-40 %, for the mechanisms actually
  run, and for the replace-one relation that papers and ethics boards quote.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Literal

from penstock.errors import InvalidEvent
from penstock.privacy.events import Event, Gaussian, PoissonGaussian, Unbounded
from penstock.privacy.renyi import ORDERS, check_delta, renyi_total, to_epsilon

PLD_INTERVAL = 1e-4


def epsilon(events: Sequence[Event], delta: float) -> float:
    """ε at δ of a non-adaptive composition, by autodp's RDP at its best order.

    An upper bound under zero-out with public n. 0 for no events, ∞ for an unbounded one.
    """
    check_delta(delta)
    if not events:
        return 0.0

    @cache
    def at(index: int) -> float:
        order = ORDERS[index]
        return to_epsilon(renyi_total(events, order), order, delta)

    # Every order gives a valid bound, so a search that misses the best one is loose, never wrong.
    # Coarse to fine, since autodp takes about 10 ms for each order of a sampled Gaussian.
    best = min(range(0, len(ORDERS), 16), key=at)
    for step in (4, 1):
        near = range(max(best - 4 * step, 0), min(best + 4 * step, len(ORDERS) - 1) + 1, step)
        best = min((best, *near), key=at)
    return at(best)


Relation = Literal["zero-out", "replace-one"]


def epsilon_pld(events: Sequence[Event], delta: float, *, relation: Relation = "zero-out") -> float:
    """ε at δ by dp-accounting's privacy loss distributions (pessimistic estimate).

    ``relation="replace-one"`` gives the value that papers quote: a person exchanged for another.
    There an unsampled Gaussian has twice the sensitivity, and a Poisson-sampled one the mixture
    (1-q)·N(0) + q·N(±1) in both directions; dp-accounting accounts for both itself.
    """
    check_delta(delta)
    if any(isinstance(event, Unbounded) for event in events):
        return math.inf
    if not events:
        return 0.0
    # dp-accounting imports slowly, and the analyst's half of this package never needs it.
    import dp_accounting as dpa
    from dp_accounting import pld

    neighbours = {
        "zero-out": dpa.NeighboringRelation.REPLACE_SPECIAL,
        "replace-one": dpa.NeighboringRelation.REPLACE_ONE,
    }[relation]
    accountant = pld.PLDAccountant(neighbours, value_discretization_interval=PLD_INTERVAL)
    for event, count in _merged(events).items():
        once = dpa.GaussianDpEvent(event.noise_multiplier)
        if isinstance(event, PoissonGaussian):
            once = dpa.PoissonSampledDpEvent(event.rate, once)
        accountant.compose(dpa.SelfComposedDpEvent(once, count) if count > 1 else once)
    value = float(accountant.get_epsilon(delta))
    if not value >= 0:
        raise InvalidEvent("dp-accounting gave no valid ε", value=value)
    return value


def _merged(events: Iterable[Event]) -> dict[Gaussian | PoissonGaussian, int]:
    """Add up the counts of events that differ only in count and label; a PLD each is costly."""
    merged: dict[Gaussian | PoissonGaussian, int] = {}
    for event in events:
        match event:
            case Gaussian():
                key: Gaussian | PoissonGaussian = Gaussian(event.noise_multiplier)
            case PoissonGaussian():
                key = PoissonGaussian(event.rate, event.noise_multiplier)
            case _:
                raise InvalidEvent("not a bounded event", value=type(event).__name__)
        merged[key] = merged.get(key, 0) + event.count
    return merged
