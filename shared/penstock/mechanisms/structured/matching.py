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

_REACH = 0.998
"""Quantile of the released population's scores that is not clipped."""

_LEAST_REACH = 0.5
_STEPS, _LONGEST, _MOST, _NUDGE = 8, 0.5, 3.0, 0.15
_MODEL_ERROR = 3e-4
"""Sd of a mean score that is no noise: what the quasi-random persons miss."""


def match_outcome(
    model: OutcomeModel[R],
    design: Array,
    coded: Coded,
    present: Bools,
    per_person: int,
    world_design: Array,
    rounds: Sequence[WholeSum | None],
    count: float,
    noise: NoiseSource,
) -> Array:
    """θ of the outcome, after as many releases as there are rounds.

    Args:
        design: (n·k, width) of rows, and ``present`` (n·k,), false too where an outcome's own
            covariate is missing; coded: their columns.
        world_design: of the quasi-random persons.
        rounds: the measurement of each, of sensitivity 1; None: without noise.
        count: number of rows, as released.
    """
    start, prior = model.start(), model.prior()
    theta = start
    for measurement in rounds:
        reference = model.refer(theta)

        def seen(at: Array, reference: R = reference) -> Array:
            return model.scores(reference, world_design, model.world(at))

        weights = _weigh(seen(theta))
        scores = model.scores(reference, design, coded) * weights
        total = _sum_persons(scores, present, per_person, measurement, noise)
        goal = total / count
        sd = _MODEL_ERROR if measurement is None else measurement.sd / count + _MODEL_ERROR
        theta = _solve(lambda at, w=weights: _clipped(seen(at) * w).mean(axis=0), goal, sd, theta, start, prior)  # type: ignore[misc]
    return theta


def _weigh(scores: Array) -> Array:
    """w: by how far each entry reaches, and so that few persons are longer than 1."""
    reach = np.maximum(np.quantile(np.abs(scores), _REACH, axis=0), _LEAST_REACH)
    weights = 1 / np.sqrt(reach)
    length = float(np.quantile(np.linalg.norm(scores * weights, axis=1), _REACH))
    return np.asarray(weights / max(length, 1e-9))


def _clipped(scores: Array) -> Array:
    return clip_rows(scores, 1.0)


def _sum_persons(
    scores: Array,
    present: Bools,
    per_person: int,
    measurement: WholeSum | None,
    noise: NoiseSource,
) -> Array:
    """Σ over persons of their rows' summed scores, clipped to norm 1, with noise."""
    there = np.where(present[:, None], scores, 0.0)
    each = there.reshape(-1, per_person, scores.shape[1]).sum(axis=1)
    someone = present.reshape(-1, per_person).any(axis=1)
    whole, unit = whole_vectors(clip_rows(each, 1.0), someone, 1.0)
    total = whole.sum(axis=0)
    if measurement is None:
        return np.asarray(total * unit)
    return measurement(total, noise)


def _solve(stat, goal: Array, sd: float, theta: Array, start: Array, prior: Array) -> Array:  # type: ignore[no-untyped-def]
    """Gauss and Newton's steps to the posterior mode: Gaussian noise, weak prior around the start."""
    at = theta.copy()
    found = stat(at)
    slopes = np.empty((len(goal), len(at)))
    for j in range(len(at)):
        there = at.copy()
        there[j] += _NUDGE
        back = at.copy()
        back[j] -= _NUDGE
        slopes[:, j] = (stat(there) - stat(back)) / (2 * _NUDGE)
    curvature = slopes.T @ slopes / sd**2 + np.diag(prior)
    for _ in range(_STEPS):
        step = np.linalg.solve(curvature, slopes.T @ (goal - found) / sd**2 - prior * (at - start))
        step *= min(1.0, _LONGEST / max(float(np.abs(step).max()), 1e-9))
        at = np.clip(at + step, -_MOST, _MOST)
        found = stat(at)
    return at


UNIT = row_unit(1.0)
"""Of the whole numbers that a sum is made of."""
