r"""A number: its mean is linear in the design, and its residual has a shape of its own.

The residual's shape is that of the released margin, smoothed, and its spread a parameter: the third
part of a score is the squared residual, less one. Values are on the margin's spread, so that
coefficients are of a like size; the world has the cells in which the column was counted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from penstock.mechanisms.structured.outcomes.enumerated import Enumerated, Line
from penstock.schema import Coded, Column

Array = NDArray[np.float64]

_PLACES, _SMOOTH = 65, 0.3
_SPREAD_PRIOR, _SPREAD_IMPORTANCE, _FAR = 0.7, 0.5, 12.0


class Linear(Enumerated):
    """The model of a number.

    Args:
        points, shares: (c,) its cells' values, and their shares as counted.
    """

    def __init__(
        self,
        column: Column,
        points: Array,
        shares: Array,
        design: Array,
        linear: int,
        importance: Array,
    ) -> None:
        there = ~np.isnan(points)
        share, x = shares[there] / shares[there].sum(), points[there]
        order = np.argsort(x, kind="stable")
        share, x = share[order], x[order]
        self._middle = float(share @ x)
        spread = float(np.sqrt(share @ (x - self._middle) ** 2))
        self._spread = max(spread, 1e-6 * (column.bounds[1] - column.bounds[0]))
        at = (np.arange(_PLACES) + 0.5) / _PLACES
        quantiles = np.interp(at, np.cumsum(share) - share / 2, (x - self._middle) / self._spread)
        shape = (quantiles - quantiles.mean()) / max(float(quantiles.std()), 1e-6)
        self._shape = shape * np.sqrt(1 - _SMOOTH**2)
        self._look = np.linspace(-_FAR, _FAR, 2401)
        off = (self._look[:, None] - self._shape) / _SMOOTH
        self._risen = ndtr(off).mean(axis=1)
        self._dense = np.exp(-0.5 * off**2).mean(axis=1) / (_SMOOTH * np.sqrt(2 * np.pi))
        self._points = (x - self._middle) / self._spread
        self._edges = (self._points[1:] + self._points[:-1]) / 2
        super().__init__(column, design, linear, importance, 0.0)

    own = 2

    def start(self) -> Array:
        return np.zeros(self.size)

    def prior(self) -> Array:
        return np.append(super().prior(), _SPREAD_PRIOR**-2)

    def importance(self, again: bool) -> Array:
        return np.append(super().importance(again), _SPREAD_IMPORTANCE)

    def values(self) -> Array:
        return self._points

    def _risen_at(self, theta: Array) -> tuple[Array, Array, Array, float]:
        """How much lies below each edge, how dense it is there, and where that is."""
        spread = float(np.exp(np.clip(theta[-1], -3.0, 1.0)))
        off = (self._edges - self._predict(theta, self._design)[:, None]) / spread
        below = np.interp(off, self._look, self._risen)
        return below, np.interp(off, self._look, self._dense), off, spread

    def chances(self, theta: Array) -> Array:
        below = self._risen_at(theta)[0]
        return np.diff(below, axis=1, prepend=0.0, append=1.0)

    def slopes(self, theta: Array, found: Array) -> Array:
        _, dense, off, spread = self._risen_at(theta)
        by_mean = np.diff(-dense / spread, axis=1, prepend=0.0, append=0.0)
        by_spread = np.diff(-dense * off, axis=1, prepend=0.0, append=0.0)
        person = np.matmul(by_mean[:, None, :], found)[:, 0]
        wider = np.matmul(by_spread[:, None, :], found)[:, 0].sum(axis=0)
        whole = np.column_stack([person.T @ self._design, person.sum(axis=0), wider])
        return np.asarray(whole / len(found))

    def chances_at(self, predicted: Array) -> tuple[Array, Array]:
        raise NotImplementedError("a number's chances depend on its residual's spread, too")

    def mean(self, predicted: Array) -> Array:
        return predicted

    def mean_slope(self, predicted: Array) -> Array:
        return np.ones_like(predicted)

    def code(self, coded: Coded) -> Array:
        return np.asarray((coded[self._column.name] - self._middle) / self._spread)

    def scores(self, reference: Line, design: Array, coded: Coded) -> Array:
        plain, y = super().scores(reference, design, coded), self.code(coded)
        squared = np.where(np.isnan(y), 0.0, plain[:, -1] ** 2 - 1)
        return np.column_stack([plain, squared])

    def imagine(self, reference: Line) -> Array:
        plain = super().imagine(reference)
        return np.concatenate([plain, plain[:, :, -1:] ** 2 - 1], axis=2)

    def draw(self, theta: Array, design: Array, uniforms: Array) -> Coded:
        spread = float(np.exp(np.clip(theta[-1], -3.0, 1.0)))
        place = np.minimum((uniforms[:, 0] * _PLACES).astype(np.intp), _PLACES - 1)
        residual = self._shape[place] + _SMOOTH * ndtri(np.clip(uniforms[:, 1], 1e-9, 1 - 1e-9))
        at = self._predict(theta, design) + spread * residual
        return {self._column.name: self._column.snap(self._middle + self._spread * at)}
