r"""From rows' released scores to an outcome's model: indirect inference, a few rounds.

Each round takes the declared regression at a reference, sums rows' scores u, weighted by column
and clipped to norm 1,

.. math:: S = \sum_i \min(1, 1/‖w∘u_i‖)\, w∘u_i + N(0, σ²),

and moves θ until persons of the released population, drawn at θ and *clipped alike*, have the mean
score S / n (Gourieroux, Monfort & Renault 1993). Clipping therefore does not bias what it bounds,
as far as the model holds; and where the reference is near the rows' own regression, hardly at all.

w is :math:`1/C√c_j`, c_j how far entry j reaches among those persons and C the norm few exceed: all
of it released before. The sum is of whole numbers with exact noise
(:class:`~penstock.privacy.measurements.WholeSum`); a person is one vector, of all their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.structured.outcomes.protocol import OutcomeModel
from penstock.mechanisms.tables.moments import clip_rows, row_unit, whole_vectors
from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.sources import NoiseSource
from penstock.schema import Coded

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
R = TypeVar("R")

_REACHES = (0.99, 0.995, 0.998, 0.9995)
"""Quantiles of the released population's scores that are not clipped; the best is looked for."""

_LEAST_REACH = 0.3
_STEPS, _FIRST_DAMPING = 14, 1e-3
_EASED, _STIFFENED = 0.2, 8.0
_SMALL, _SPARSE = 1e-3, 4
_MODEL_ERROR = 2e-4
"""Sd of a mean score that is no noise: what the quasi-random persons miss."""

_REMEMBERED = 0.25
"""How much of what a round told counts in the next: it was told of another reference."""


@dataclass(frozen=True, slots=True)
class _Belief:
    """Gaussian, of θ: a mean and a precision."""

    mean: Array
    precision: Array

    def value(self, theta: Array) -> float:
        off = theta - self.mean
        return 0.5 * float(off @ self.precision @ off)

    def slope(self, theta: Array) -> Array:
        return np.asarray(self.precision @ (theta - self.mean))


def match_outcome(
    model: OutcomeModel[R],
    design: Array,
    coded: Coded,
    present: Bools,
    per_person: int,
    world_complete: Bools,
    rounds: Sequence[WholeSum | None],
    count: float,
    noise: NoiseSource,
) -> Array:
    """θ of the outcome, after as many releases as there are rounds.

    Args:
        design: (n·k, width) of rows, and ``present`` (n·k,), false too where an outcome's own
            covariate is missing; coded: their columns.
        world_complete: which quasi-random persons have all declared covariates; the others have
            no part, as rows have none.
        rounds: the measurement of each, of sensitivity 1; None: without noise.
        count: number of rows whose outcome is known, as released.
    """
    first = _Belief(model.start(), np.diag(model.prior()))
    theta, beliefs = first.mean, [first]
    for again, measurement in enumerate(rounds):
        reference = model.refer(theta)
        sd = _MODEL_ERROR if measurement is None else measurement.sd / count
        sd = float(np.hypot(sd, _MODEL_ERROR))
        imagined = model.imagine(reference) * world_complete[:, None, None]
        importance = model.importance(again > 0)
        asked = importance > 0
        imagined = np.ascontiguousarray(imagined[:, :, asked])
        chosen = _choose_weights(model, theta, imagined, importance[asked], sd, beliefs)
        weights = np.zeros(model.size)
        weights[asked] = chosen
        scores = model.scores(reference, design, coded) * weights
        total = release_scores(scores, present, per_person, measurement, noise)
        found = _clipped(imagined * chosen)
        theta, told = _solve(model, found, total[asked] / count, sd, theta, beliefs)
        # The next round trusts its own numbers more.
        known = first.precision + told
        beliefs = [
            _Belief(first.mean, (1 - _REMEMBERED) * first.precision),
            _Belief(theta, _REMEMBERED * known),
        ]
    return theta


def _choose_weights(
    model: OutcomeModel[R],
    theta: Array,
    imagined: Array,
    importance: Array,
    sd: float,
    beliefs: Sequence[_Belief],
) -> Array:
    """Those weights of which the world says that they leave least noise on what is asked."""
    chances = model.chances(theta)[::_SPARSE].ravel()
    some = np.abs(imagined[::_SPARSE].reshape(len(chances), -1))
    reaches = np.maximum(_quantiles(some, chances), _LEAST_REACH)
    asked = importance[: model.coefficients] >= 1
    believed = sum((b.precision for b in beliefs), np.zeros((len(theta),) * 2))
    best, least = np.zeros(len(importance)), np.inf
    for at, reach in enumerate(reaches):
        weights = importance / np.sqrt(reach)
        length = _quantiles(np.sqrt(some**2 @ weights**2)[:, None], chances)[at, 0]
        weights = weights / max(length, 1e-9)
        slopes = model.slopes(theta, _clipped(imagined * weights))
        precision = slopes.T @ slopes / sd**2 + believed
        noise = float(np.diag(np.linalg.inv(precision))[: model.coefficients][asked].sum())
        if noise < least:
            best, least = weights, noise
    return best


def _quantiles(values: Array, chances: Array) -> Array:
    """(reaches, q) of columns of values (o, q), each with its chance."""
    order = np.argsort(values, axis=0)
    risen = np.cumsum(chances[order], axis=0)
    places = [(risen < at * risen[-1]).sum(axis=0) for at in _REACHES]
    place = np.minimum(places, len(values) - 1)
    return np.take_along_axis(np.take_along_axis(values, order, axis=0), place, axis=0)


def _clipped(scores: Array) -> Array:
    """(…, q), each shortened to norm 1."""
    length = np.sqrt(np.einsum("...q,...q->...", scores, scores))
    return np.asarray(scores / np.maximum(length, 1.0)[..., None])


def release_scores(
    scores: Array,
    present: Bools,
    per_person: int,
    measurement: WholeSum | None,
    noise: NoiseSource,
) -> Array:
    """Σ over persons of their rows' summed scores, clipped to norm 1, with noise."""
    there = np.where(present[:, None], scores, 0.0)
    each = there.reshape(-1, per_person, scores.shape[1]).sum(axis=1)
    someone = np.asarray(present.reshape(-1, per_person).any(axis=1))
    whole, unit = whole_vectors(clip_rows(each, 1.0), someone, 1.0)
    total = whole.sum(axis=0)
    if measurement is None:
        return np.asarray(total * unit)
    return measurement(total, noise)


def _solve(
    model: OutcomeModel[R],
    found: Array,
    goal: Array,
    sd: float,
    theta: Array,
    beliefs: Sequence[_Belief],
) -> tuple[Array, Array]:
    """θ where noise and beliefs have their mode, by Levenberg and Marquardt's damped steps; and
    the precision that the goal adds."""

    def value(mean: Array, at: Array) -> float:
        off = (goal - mean) / sd
        return 0.5 * float(off @ off) + sum(b.value(at) for b in beliefs)

    def look(at: Array) -> Array:
        return np.asarray(np.tensordot(model.chances(at), found, 2) / len(found))

    mean, slopes = look(theta), model.slopes(theta, found)
    now, damping = value(mean, theta), _FIRST_DAMPING
    for _ in range(_STEPS):
        told = slopes.T @ slopes / sd**2
        curvature = told + sum(b.precision for b in beliefs)
        pull = slopes.T @ (goal - mean) / sd**2 - sum(b.slope(theta) for b in beliefs)
        step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), pull)
        there = theta + step
        seen = look(there)
        if (then := value(seen, there)) < now:
            small = now - then < _SMALL
            theta, mean, now, damping = there, seen, then, damping * _EASED
            if small:
                break
            slopes = model.slopes(theta, found)
        else:
            damping *= _STIFFENED
    return theta, slopes.T @ slopes / sd**2


UNIT = row_unit(1.0)
"""Of the whole numbers that a sum is made of."""
