r"""How much of what is told of a coefficient hangs on few persons, who lie far out.

Of its squared influences :math:`h_i^2` (with :math:`h_i` what person i moves the coefficient by),
the share that the largest have, of so few as one in two hundred, or of as many fewer as have a rare
event. And of a column's squared distances from its mean likewise: where few have much of all that
it varies by, privacy hides what it is and what goes together with it, so that no coefficient beside
it is sure.

Source: Belsley, Kuh & Welsch 1980, "Regression Diagnostics", chapter 2.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FEW = 1 / 200
"""Of all persons, who are few."""

MOST_BESIDE = 0.49
"""At most so large is the doubt about a coefficient for a column beside it: below one half, since
more such intervals hold than do not."""

_TELLING = 6.0
"""Times what a person tells: below 1 where the event is rare, and fewer have all there is."""

_LEAST_SQUARE = 1e-300


def share_few(distances: Array, telling: float = 1.0, weights: Array | None = None) -> float:
    """The share of the sum of squares that the largest have, in [0, 1].

    Args:
        distances: (n,) influences, or values less their mean.
        telling: what a person tells on average of a number that is added to everybody's linear
            predictor: below 1/6 where events are rare.
        weights: (n,) how much each counts; None: all alike.
    """
    squares = distances**2
    if weights is None:  # to sort is a good deal faster than to look for the order
        largest = -np.sort(-squares)
        counts = np.ones(len(squares))
    else:
        order = np.argsort(-squares)
        largest, counts = (weights * squares)[order], weights[order]
    upto = np.append(0.0, np.cumsum(counts))
    total = np.append(0.0, np.cumsum(largest))
    few = FEW * min(1.0, _TELLING * telling)
    return float(np.interp(few * upto[-1], upto, total) / max(total[-1], _LEAST_SQUARE))


def join_doubts(own: float, beside: Iterable[float]) -> float:
    """The doubt about a coefficient: what hangs on few of it, and of columns beside it.

    Args:
        own: the share of its squared influences; beside: of what each number in its regression
            varies by.
    """
    return max(own, min(max(beside, default=0.0), MOST_BESIDE))
