r"""A number, a count or a 0/1 column: what was counted of it, tilted for each person.

.. math:: P(y_c \mid z) ∝ e^{α_c + y_c\, z·β}

with α such that the released population has, as a whole, the shares that were counted: a
generalised linear model whose reference distribution is a parameter (Rathouz & Gao 2009,
"Generalized linear models with unspecified reference distribution", Biostatistics 10). Logistic and
Poisson regressions are such laws, and so is a normal one of constant spread, however skewed the
covariates are; a column's pile, bounds and grid stay as they were counted.

*Scores* are those of the declared regression, a mean μ that follows from z·b by its link:

.. math:: u = (z - \bar z)(y - μ)/s,\qquad (y - μ)/s,\qquad |y - μ|/s - m

the last for numbers alone: the second and the third correct the counted shares where counts are
mostly noise. s is the counted spread, and m the world's mean; z̄ is the mean by the slope of μ, so
that u is blind to the level, to first order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.structured.outcomes.links import Link
from penstock.mechanisms.structured.outcomes.protocol import LEAST_INFORMATION, OutcomeModel, World
from penstock.mechanisms.structured.outcomes.support import Support
from penstock.schema import Coded

Array = NDArray[np.float64]

_PRIOR, _STANDARDISED_PRIOR, _BEND_PRIOR = 1.0, 3.0, 0.3
"""Sds of coefficients, of standardised columns. That of a number is over its residual's variance,
and so the larger, the more is explained."""

_LEVEL_IMPORTANCE, _SPREAD_IMPORTANCE = 0.35, 0.3
_LEAST_ADJUSTED, _ADJUSTED = 0.01, 1.0
"""Sd of a correction of the counted shares; of a 0/1 column's by the noise, within these."""

_BALANCED, _NEWTON_ROUNDS, _SHIFTED, _SETTLED = 60, 25, 12, 1e-6
_EVEN, _NEAR = 1e-7, 1.0
"""Logarithms of shares over those looked for."""

_MOST_TILTED, _MOST_OWN, _MOST_STEP = 400.0, 30.0, 3.0
"""Bounds of exponents, and of a step in them."""

_LEAST_SHARE = 1e-300


@dataclass(frozen=True, slots=True)
class Line:
    """The declared regression: a level and coefficients (width,), zeros for bends; a person's
    information (linear, linear); z̄ (width,); and the mean absolute residual."""

    level: float
    coefficients: Array
    information: Array
    means: Array
    wide: float


@dataclass(frozen=True, slots=True)
class _Tilt:
    """α (c,), the persons' chances (N, c), and whether these have the shares looked for."""

    tilt: Array
    chances: Array
    even: bool


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

    def shorten(self, weights: Array) -> Values:
        """Each entry times its weight, and then all vectors at most of length 1."""
        a, b, c = (x * weights for x in (self.by_residual, self.by_off, self.by_itself))
        r, h = self.residual, self.off
        square = r * (r * _squares(a) + 2 * (a * c).sum(axis=1, keepdims=True)) + _squares(c)
        if b.any():
            square = square + h * (h * float(b @ b) + 2 * (r * (a @ b)[:, None] + (c @ b)[:, None]))
        kept = self.kept / np.sqrt(np.maximum(square, 1.0))
        return replace(self, by_residual=a, by_off=b, by_itself=c, kept=kept)

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


class Tilted(OutcomeModel[Line, Values]):
    """The model of one column.

    Args:
        support: the column's counted distribution; link: of the declared regression.
        world: the persons.
    """

    def __init__(self, support: Support, link: Link, world: World) -> None:
        super().__init__(world, link.own)
        self._support, self._link = support, link
        self._design, self._importance = world.design, world.importance
        share, values = support.shares, support.values
        middle = float(share @ values)
        spread = float(np.sqrt(share @ (values - middle) ** 2))
        # All rows in one cell have a scale all the same.
        spread = max(spread, 1e-6 * float(np.abs(values).max())) or 1.0
        self._middle, self._unit = (middle, spread) if link.standardised else (0.0, 1.0)
        self._values = (values - self._middle) / self._unit
        self._spread = spread / self._unit
        # What the counted shares are corrected by: a level's own, and of a number how far out of
        # sight of the counts. Where these see it all, nothing is.
        self._corrected = (values[None] if self.own == 1 else support.hidden) / spread
        self._last: tuple[bytes, _Tilt] | None = None

    def start(self) -> Array:
        self._last = None
        return np.zeros(self.size)

    def prior(self) -> Array:
        adjusted = np.full(self.own, _ADJUSTED)
        if self.own == 1:
            # Of the logit of a share, which the counts' noise leaves open.
            noise = self._support.error / self._spread
            adjusted = np.clip([noise], _LEAST_ADJUSTED, _ADJUSTED)
        sds = [
            np.full(self.linear, _STANDARDISED_PRIOR if self._link.standardised else _PRIOR),
            np.full(self.coefficients - self.linear, _BEND_PRIOR),
            adjusted,
        ]
        return np.diag(np.concatenate(sds) ** -2)

    def importance(self, again: bool) -> Array:
        own = np.array([_LEVEL_IMPORTANCE, _SPREAD_IMPORTANCE])[: self.own]
        return np.concatenate([self._importance, own])

    # -- the world ---------------------------------------------------------------------------------

    def _predict(self, theta: Array, design: Array) -> Array:
        most = _MOST_TILTED / max(float(np.ptp(self._values)), 1e-9)
        return np.clip(design @ theta[: self.coefficients], -most, most)

    def _correct(self, theta: Array) -> Array:
        """The shares that the world is to have."""
        own = np.clip(theta[self.coefficients :], -2.0, 2.0) @ self._corrected
        return _softmax(np.log(self._support.shares) + np.clip(own, -_MOST_OWN, _MOST_OWN))

    def _make_world(self, theta: Array) -> _Tilt:
        """Proportional fitting, and Newton's steps near what is looked for; from the last one."""
        if self._last is None or self._last[0] != theta.tobytes():
            off, goal = np.inf, self._correct(theta)
            leaning = self._predict(theta, self._design)[:, None] * self._values
            tilt = np.log(goal)
            if self._last is not None and self._last[1].even:
                tilt = self._last[1].tilt
            for _ in range(_BALANCED):
                chances = _softmax(tilt + leaning)
                found = np.maximum(chances.mean(axis=0), _LEAST_SHARE)
                step = np.log(goal / found)
                off = float(np.abs(step).max())
                if off < _EVEN:
                    break
                if off < _NEAR:
                    step = _turn(chances, found, (goal - found)[:, None])[:, 0]
                tilt = tilt + np.clip(step, -_MOST_STEP, _MOST_STEP)
            world = _Tilt(tilt, _softmax(tilt + leaning), off < _NEAR)
            self._last = theta.tobytes(), world
        return self._last[1]

    def chances(self, theta: Array) -> Array:
        """Of each part of the distribution."""
        return self._make_world(theta).chances

    def look(self, theta: Array, found: Values) -> Array:
        return np.asarray(found.sum_persons(self.chances(theta)).mean(axis=0))

    def slopes(self, theta: Array, found: Values) -> Array:
        chances, n = self.chances(theta), len(self._design)
        there = np.maximum(chances.mean(axis=0), _LEAST_SHARE)
        # By the predictor, and by α; α follows θ, so that the shares stay.
        pulled = chances * (self._values - (chances @ self._values)[:, None])
        by_tilt = (found.sum_values(chances) - chances.T @ found.sum_persons(chances)) / n
        goal = self._correct(theta)
        own = goal[:, None] * (self._corrected.T - self._corrected @ goal)
        moved = np.column_stack([-pulled.T @ self._design / n, own])
        result = by_tilt.T @ _turn(chances, there, moved)
        result[:, : self.coefficients] += found.sum_persons(pulled).T @ self._design / n
        return np.asarray(result)

    @property
    def unit(self) -> float:
        return self._spread * self._unit if self._link.standardised else 1.0

    def inform(self, theta: Array) -> float:
        chances = self.chances(theta)
        mean = chances @ self._values
        variance = np.maximum(chances @ self._values**2 - mean**2, 1e-9)
        slope = self._link.slope(self._link.predictor(mean))
        return float((slope**2 / variance).mean()) * (self.unit / self._unit) ** 2

    def draw(
        self, theta: Array, design: Array, uniforms: Array, added: Array | None = None
    ) -> Coded:
        tilt, predicted = self._make_world(theta).tilt, self._predict(theta, design)
        if added is not None:
            predicted = self._shift(tilt, predicted, added)
        risen = np.cumsum(_softmax(tilt + predicted[:, None] * self._values), axis=1)
        place = (uniforms[:, :1] >= risen[:, :-1]).sum(axis=1)
        return {self._support.grid.column.name: self._support.draw(place, uniforms[:, 1])}

    def _shift(self, tilt: Array, predicted: Array, added: Array) -> Array:
        """By how much more each person's chances are tilted, so that the mean moves as asked."""
        goal, at = np.zeros(0), predicted
        ends = float(self._values[0]), float(self._values[-1])
        for turn in range(_SHIFTED):
            chances = _softmax(tilt + at[:, None] * self._values)
            mean = chances @ self._values
            if turn == 0:
                moved = self._link.predictor(mean) + added / self._unit
                room = 1e-3 * (ends[1] - ends[0])
                goal = np.clip(self._link.mean(moved), ends[0] + room, ends[1] - room)
            slope = np.maximum(chances @ self._values**2 - mean**2, 1e-9)
            most = _MOST_STEP / np.sqrt(slope)
            at = at + np.clip((goal - mean) / slope, -most, most)
        return at

    # -- the declared regression -------------------------------------------------------------------

    def refer(self, theta: Array, at: Array | None = None, narrow: bool = False) -> Line:
        chances, link, there = self.chances(theta), self._link, self.world.complete
        y, n = chances @ self._values, len(there)
        taken = self.world.taken(narrow)
        z = np.column_stack([self._design[:, : self.linear] * taken, np.ones(n)])
        line = np.zeros(z.shape[1])
        line[-1] = link.predictor(np.array([there @ y / max(float(there.sum()), 1.0)]))[0]
        moved = np.ones(len(line), dtype=np.bool_)
        # The first reference is that of no effect.
        if at is not None or not theta[: self.coefficients].any():
            moved[:-1] = False
        if at is not None:
            line[:-1] = at * taken
        for _ in range(_NEWTON_ROUNDS):
            predicted = z @ line
            information = (z * (there * link.slope(predicted))[:, None]).T @ z
            # Of nobody there is none.
            information += max(1e-6 * float(np.trace(information)), 1e-12) * np.eye(len(line))
            score = z.T @ (there * (y - link.mean(predicted)))
            step = np.linalg.solve(information[np.ix_(moved, moved)], score[moved])
            line[moved] += np.clip(step, -1.0, 1.0)
            if np.abs(step).max() < _SETTLED:
                break
        slope = there * link.slope(z @ line)
        means = slope @ self._design / max(float(slope.sum()), 1e-12)
        apart = z[:, :-1] - means[: self.linear]
        off = np.abs(self._values - link.mean(z @ line)[:, None]) / self._spread
        bends = np.zeros(self.coefficients - self.linear)
        return Line(
            float(line[-1]),
            np.append(line[:-1], bends),
            (apart * slope[:, None]).T @ apart / (n * self._spread)
            + np.diag(1 - taken + LEAST_INFORMATION),
            means,
            float(there @ (chances * off).sum(axis=1) / max(float(there.sum()), 1.0)),
        )

    def scores(self, reference: Line, design: Array, coded: Coded) -> Array:
        y = (coded[self._support.grid.column.name] - self._middle) / self._unit
        known = ~np.isnan(y)
        predicted = reference.level + design @ reference.coefficients
        residual = np.where(known, y - self._link.mean(predicted), 0.0) / self._spread
        own = np.column_stack([residual, known * (np.abs(residual) - reference.wide)])
        scores = (design - reference.means) * residual[:, None]
        curvature = known[:, None] * self._curve(reference, design, predicted)
        return np.column_stack([scores, own[:, : self.own], curvature])

    def imagine(self, reference: Line, turn: Array, bounded: bool = True) -> Values:
        """A row's part has no bound of its own."""
        scores, own, curved = np.split(turn, [self.coefficients, self.size])
        design, there = self._design, self.world.complete
        predicted = reference.level + design @ reference.coefficients
        residual = (self._values - self._link.mean(predicted)[:, None]) / self._spread
        apart = design - reference.means
        return Values(
            residual,
            np.abs(residual) - reference.wide,
            apart @ scores + own[0],
            own[1] if self.own > 1 else np.zeros(turn.shape[1]),
            self._curve(reference, design, predicted) @ curved,
            np.broadcast_to(there[:, None], residual.shape),
        )

    def _curve(self, reference: Line, design: Array, predicted: Array) -> Array:
        """(N, pairs) what each adds to the information."""
        apart = design - reference.means
        slope = self._link.slope(predicted) / self._spread
        found = [slope * apart[:, i] * apart[:, j] for i, j in self.pairs]
        return np.stack(found, axis=1) if found else np.zeros((len(design), 0))


def _squares(vectors: Array) -> Array:
    """(N, 1) squared lengths."""
    return np.asarray((vectors**2).sum(axis=1, keepdims=True))


def _turn(chances: Array, shares: Array, moved: Array) -> Array:
    """By how much α changes, (c, m), where the world's shares do by ``moved``, (c, m).

    Shares change by (diag p - PᵀP/N) α, of which a constant α is the kernel.
    """
    root = np.sqrt(shares)
    scaled = chances / root
    curvature = np.eye(len(root)) - scaled.T @ scaled / len(chances) + np.outer(root, root)
    curvature += 1e-9 * np.eye(len(root))
    return np.asarray(np.linalg.solve(curvature, moved / root[:, None]) / root[:, None])


def _softmax(logs: Array) -> Array:
    weights = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))
