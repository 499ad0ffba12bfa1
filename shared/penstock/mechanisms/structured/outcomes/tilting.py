r"""A column's values as counted, tilted for each person.

.. math:: P(y_c \mid z) ∝ e^{α_c + y_c\, z·β}

with α such that the released population has, as a whole, the shares that were counted: a
generalised linear model whose reference distribution is a parameter (Rathouz & Gao 2009,
"Generalized linear models with unspecified reference distribution", Biostatistics 10). Logistic and
Poisson regressions are such laws, and so is a normal one of constant spread, however skewed the
covariates are; a column's pile, bounds and grid stay as they were counted. Which regression rows
are scored by is not said here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.structured.outcomes.counted import LEAST_SHARE, Counted, turn_tilt
from penstock.mechanisms.structured.outcomes.protocol import Referred, World
from penstock.mechanisms.structured.outcomes.support import Support

Array = NDArray[np.float64]
Reference = TypeVar("Reference", bound=Referred)

_BEND_PRIOR = 0.3
"""Sd of a bend's coefficient, of a standardised column."""

_LEVEL_IMPORTANCE, _SPREAD_IMPORTANCE = 0.35, 0.3
_LEAST_ADJUSTED, _ADJUSTED = 0.01, 1.0
"""Sd of a correction of the counted shares; of a level's alone by the noise, within these."""

_MOST_TILTED = 400.0
"""Bound of exponents."""


@dataclass(frozen=True, slots=True)
class Values:
    """Sums of entries of the scores of all persons, for each value that they may have: with r its
    residual, r A + h B + C, h how far the size of r is above its mean.

    Args:
        residual: r, (N, c); off: h; by_residual: A, (N, q); by_off: B, (q,); by_itself: C, (N, q).
        kept: (N, c) by how much each is shortened; 0 of who has no part.
    """

    residual: Array
    off: Array
    by_residual: Array
    by_off: Array
    by_itself: Array
    kept: Array

    def weigh(self, weights: Array) -> Values:
        """Each entry times its weight."""
        a, b, c = (x * weights for x in (self.by_residual, self.by_off, self.by_itself))
        return replace(self, by_residual=a, by_off=b, by_itself=c)

    def square(self) -> list[Array]:
        """Squared lengths, (N, c)."""
        a, b, c = self.by_residual, self.by_off, self.by_itself
        r, h = self.residual, self.off
        square = r * (r * _squares(a) + 2 * (a * c).sum(axis=1, keepdims=True)) + _squares(c)
        if b.any():
            square = square + h * (h * float(b @ b) + 2 * (r * (a @ b)[:, None] + (c @ b)[:, None]))
        return [np.asarray(square)]

    def shorten(self, squares: Sequence[Array]) -> Values:
        """Vectors of which these are the squared lengths at most of length 1."""
        return replace(self, kept=self.kept / np.sqrt(np.maximum(squares[0], 1.0)))

    def sum_persons(self, weights: Array) -> Array:
        """(N, q) Σ over values, weighted."""
        each = weights * self.kept
        along = np.asarray(np.einsum("nc,nc->n", each, self.residual))
        found: Array = along[:, None] * self.by_residual
        found += each.sum(axis=1)[:, None] * self.by_itself
        if self.by_off.any():
            found += np.outer(np.einsum("nc,nc->n", each, self.off), self.by_off)
        return found

    def sum_values(self, weights: Array) -> Array:
        """(c, q) Σ over persons, weighted."""
        each = weights * self.kept
        found = (each * self.residual).T @ self.by_residual + each.T @ self.by_itself
        if self.by_off.any():
            found += np.outer(np.einsum("nc,nc->c", each, self.off), self.by_off)
        return np.asarray(found)

    def lay_out(self, every: int = 1) -> Array:
        """(c, N / every, q) of some persons."""
        r, h, kept = (x[::every].T[:, :, None] for x in (self.residual, self.off, self.kept))
        a, c = (x[::every] for x in (self.by_residual, self.by_itself))
        return np.asarray(kept * (r * a + h * self.by_off + c))


class Tilting(Counted[Reference, Values], Generic[Reference]):
    """The law of one column.

    Args:
        support: the column's counted distribution; world: the persons.
        own: how many parameters correct the counted shares: of their mean, and of a spread.
        wide: sd of coefficients, of standardised columns, before anything is known.
        spreads: in how many of its spreads, from its mean, the outcome is taken, so that a
            coefficient is of a like size whatever its unit is; None: as it is.
        least: what that comes to at least.
    """

    def __init__(
        self,
        support: Support,
        world: World,
        own: int,
        wide: float,
        spreads: float | None,
        least: float = 0.0,
    ) -> None:
        self._wide = wide
        share, values = support.shares, support.values
        middle = float(share @ values)
        spread = float(np.sqrt(share @ (values - middle) ** 2))
        # All rows in one cell have a scale all the same.
        spread = max(spread, 1e-6 * float(np.abs(values).max())) or 1.0
        self._middle, self._unit = 0.0, 1.0
        if spreads is not None:
            self._middle, self._unit = middle, max(spreads * spread, least)
        self._values = (values - self._middle) / self._unit
        self._spread = spread / self._unit
        # What the counted shares are corrected by: a level's own, and of a number how far out of
        # sight of the counts. Where these see it all, nothing is.
        super().__init__(support, world, (values[None] if own == 1 else support.hidden) / spread)

    def prior(self) -> Array:
        adjusted = _ADJUSTED * self._support.loose[: self.own]
        if self.own == 1:
            # Of the logit of a share, which the counts' noise leaves open.
            adjusted = np.clip([self._unsure], _LEAST_ADJUSTED, _ADJUSTED)
        sds = [
            self._wide * self.wide,
            np.full(self.coefficients - self.linear, _BEND_PRIOR),
            adjusted,
        ]
        return np.diag(np.concatenate(sds) ** -2)

    @property
    def _unsure(self) -> float:
        """Sd of the correction of the counted mean that the counts' noise asks for."""
        return self._support.error / self._spread

    def importance(self, again: bool) -> Array:
        own = np.array([_LEVEL_IMPORTANCE, _SPREAD_IMPORTANCE])[: self.own]
        return np.concatenate([self.asked, own])

    # -- the world ---------------------------------------------------------------------------------

    def _predict(self, theta: Array, design: Array) -> Array:
        most = _MOST_TILTED / max(float(np.ptp(self._values)), 1e-9)
        return np.clip(design @ theta[: self.coefficients], -most, most)

    def _lean(self, theta: Array, design: Array) -> Array:
        return self._predict(theta, design)[:, None] * self._values

    def look(self, theta: Array, found: Values) -> Array:
        return np.asarray(found.sum_persons(self.chances(theta)).mean(axis=0))

    def slopes(self, theta: Array, found: Values) -> Array:
        chances, n = self.chances(theta), len(self._design)
        there = np.maximum(chances.mean(axis=0), LEAST_SHARE)
        # By the predictor, and by α; α follows θ, so that the shares stay.
        pulled = chances * (self._values - (chances @ self._values)[:, None])
        by_tilt = (found.sum_values(chances) - chances.T @ found.sum_persons(chances)) / n
        goal = self._correct(theta)
        own = goal[:, None] * (self._corrected.T - self._corrected @ goal)
        moved = np.column_stack([-pulled.T @ self._design / n, own])
        result = by_tilt.T @ turn_tilt(chances, there, moved)
        result[:, : self.coefficients] += found.sum_persons(pulled).T @ self._design / n
        return np.asarray(result)


def _squares(vectors: Array) -> Array:
    """(N, 1) squared lengths."""
    return np.asarray((vectors**2).sum(axis=1, keepdims=True))
