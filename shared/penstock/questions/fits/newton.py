"""The maximum of a concave log likelihood, by Newton's steps that are halved where they overshoot.

The columns of a design are standardised, and so few that what steps cost is sums over rows.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Places = NDArray[np.intp]
Derivatives = Callable[[Array], tuple[float, Array, Array]]
"""At coefficients (p,): the log likelihood, its gradient (p,), and its information (p, p)."""

_ROUNDS, _HALVINGS = 50, 20
_CLOSE = 1e-12
"""Half the Newton decrement at which one more step, which squares the distance, is the last."""

_REACHED = 1e-9


@dataclass(frozen=True, slots=True)
class Maximum:
    """Coefficients (p,), the inverse of their information (p, p), and what the log likelihood has
    still to gain: half the Newton decrement."""

    coefficients: Array
    covariance: Array
    to_gain: float

    @property
    def reached(self) -> bool:
        """Whether next to nothing is left to gain."""
        return 0 <= self.to_gain < _REACHED

    def pick(self, places: Places) -> Maximum:
        """With its coefficients in this order."""
        covariance = self.covariance[np.ix_(places, places)]
        return Maximum(self.coefficients[places], covariance, self.to_gain)


class KnownMaxima:
    """Those that were found before, by all that they were found of.

    A study asks for one coefficient after the other of the same regression, and looks at its copies
    a second time.

    Args:
        most: are kept, the last ones used. Each is small; what it was found of is not kept.
    """

    def __init__(self, most: int = 1000) -> None:
        self._most, self._found = most, OrderedDict[bytes, Maximum]()

    def find(self, of: Sequence[Array], make: Callable[[], Maximum]) -> Maximum:
        """The maximum of these arrays, made where it is not known."""
        digest = hashlib.sha256()
        for array in of:
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        key = digest.digest()
        found = self._found.pop(key, None)
        # Where two threads make the same, it is the same.
        self._found[key] = found = make() if found is None else found
        while len(self._found) > self._most:
            self._found.popitem(last=False)
        return found


def maximise(derivatives: Derivatives, start: Array) -> Maximum:
    """The maximum, as near as steps get to it.

    Raises:
        LinAlgError: the information is singular.
    """
    beta = start
    value, score, information = derivatives(beta)
    for _ in range(_ROUNDS):
        step = np.linalg.solve(information, score)
        gain = 0.5 * float(score @ step)
        if not gain >= 0:  # not even concave in numbers: far out, where nothing is identified
            break
        for _ in range(_HALVINGS):
            found = derivatives(beta + step)
            # Near the maximum the gain is below rounding.
            if np.isfinite(found[0]) and found[0] >= value - 1e-12 * abs(value):
                break
            step = step / 2
        else:
            break
        beta, (value, score, information) = beta + step, found
        if gain <= _CLOSE:
            break
    covariance = np.asarray(np.linalg.inv(information), dtype=np.float64)
    return Maximum(beta, covariance, 0.5 * float(score @ covariance @ score))
