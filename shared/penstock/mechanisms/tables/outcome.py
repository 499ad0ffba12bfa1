r"""The outcome's score: one noisy sum that ties durations and events to the covariates.

Moments tie columns linearly; what a hazard ratio asks of a table is how the *martingale residual*
of an event goes with the covariates. With Λ(t) a Nelson-Aalen estimate from the noisy histograms,
and θ from a model's sample, each row has the score of a proportional hazards model,

.. math:: s = (1, z)\,\bigl(e - Λ(t)\,e^{θ^\top (1, z)}\bigr),

with z the whitened covariates. Its sum over persons, each clipped to a norm C, is released with
noise once. The sample's durations are then moved, by the covariates, until its own clipped scores
have the same mean: a fit to the sample then has, to first order, the coefficients of a fit to the
rows (indirect inference: Gourieroux, Monfort & Renault 1993). θ need only be near, since it is the
same on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from penstock.mechanisms.tables.margins import between, outcome_states
from penstock.mechanisms.tables.moments import (
    Affine,
    clip_rows,
    mean_and_covariance,
    power,
    row_unit,
    whole_vectors,
)
from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.discrete import exact_positive
from penstock.privacy.noise.sources import NoiseSource
from penstock.schema.encoding import Outcome

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_CLIP = 1.1
"""C, in units of √(number of entries): most persons' scores stay below it."""

_MODEL_ERROR = 0.007
"""Roughly what a model's mean score is off by before it is moved; noise far above it is shrunk."""

_LEAST_AT_RISK = 0.01
_NEWTON_ROUNDS, _MOVE_ROUNDS = 20, 12
_MOST_MOVE = 1.0
"""Bound on each entry of the move, in standard deviations of the duration's score."""


def outcome_clip(d: int) -> float:
    """C for d coordinates, of which three are the outcome's: of d - 2 entries."""
    return _CLIP * math.sqrt(d - 2)


def measure_scores(sigma: float, d: int, outcomes: int) -> WholeSum:
    """The sums of all outcomes' scores, one call each, which are one release.

    Sensitivity: C of :func:`outcome_clip` in L2 per outcome, zero-out of one person, exactly: the
    sum is of whole vectors of norm at most C
    (:func:`~penstock.mechanisms.tables.moments.whole_vectors`).
    """
    clip = outcome_clip(d)
    return WholeSum(
        label="outcome",
        noise_multiplier=sigma,
        sensitivity=clip * math.sqrt(outcomes),
        squared=exact_positive("clip", clip) ** 2 * outcomes,
        unit=row_unit(clip),
        size=outcomes * (d - 2),
        parts=outcomes,
    )


@dataclass(frozen=True, slots=True)
class Hazard:
    """A duration's cumulative hazard Λ, from its histograms; the covariates' centre and whitening.

    Args:
        outcome: coordinates of values; covariates: all others.
        times, cumulative: Λ at the bins' edges, linear between.
        centre, whiten: of the covariates' linear scores.
    """

    outcome: Outcome
    covariates: list[int]
    times: Array
    cumulative: Array
    centre: Array
    whiten: Array

    @classmethod
    def estimate(
        cls, outcome: Outcome, halves: Array, ended: float, times: Array, moments: Array
    ) -> Hazard:
        """Nelson & Aalen's estimate from noisy counts (2, bins), censored and events.

        Args:
            ended: noisy count of who is event-free at the end: at risk all along.
            times: (bins + 1,) edges, of values; moments: as released, over the number of rows.
        """
        counts = np.maximum(halves, 0.0)
        total = counts.sum(axis=0)
        at_risk = np.cumsum(total[::-1])[::-1] - total / 2 + max(ended, 0.0)
        least = max(_LEAST_AT_RISK * (float(total.sum()) + max(ended, 0.0)), 1.0)
        jumps = np.minimum(counts[1] / np.maximum(at_risk, least), 1.0)
        covariates = [j for j in range(len(moments) - 1) if j not in outcome]
        mean, covariance = mean_and_covariance(moments)
        whiten = power(covariance[np.ix_(covariates, covariates)], -0.5)
        cumulative = np.append(0.0, np.cumsum(jumps))
        return cls(outcome, covariates, times, cumulative, mean[covariates], whiten)

    def parts(self, values: Array, scores: Array) -> tuple[Array, Array, Array]:
        """(1, z), the event as 0 or 1, and Λ(t), of rows of values and linear scores (n, d)."""
        z = (scores[:, self.covariates] - self.centre) @ self.whiten
        happened, ended = outcome_states(values, self.outcome)
        reached = between(values[:, self.outcome.duration], self.times, self.cumulative)
        reached = np.where(ended, self.cumulative[-1], reached)
        return np.column_stack([np.ones(len(z)), z]), happened.astype(np.float64), reached

    def coefficients(self, values: Array, scores: Array) -> Array:
        """θ of a sample: Poisson regression of the event, offset log Λ(t), by Newton's steps."""
        z, happened, reached = self.parts(values, scores)
        theta = np.zeros(z.shape[1])
        for _ in range(_NEWTON_ROUNDS):
            expected = reached * _risk(z, theta)
            information = (z * expected[:, None]).T @ z + 1e-4 * len(z) * np.eye(len(theta))
            step = np.linalg.solve(information, z.T @ (happened - expected))
            theta = theta + np.clip(step, -0.5, 0.5)
        return theta

    def scores_of(self, values: Array, scores: Array, theta: Array) -> Array:
        """Each row's score s, (n, d - 2), unclipped."""
        z, happened, reached = self.parts(values, scores)
        score: Array = z * (happened - reached * _risk(z, theta))[:, None]
        return score


def _risk(z: Array, theta: Array) -> Array:
    risk: Array = np.exp(np.clip(z @ theta, -6.0, 4.0))
    return risk


def release_score(
    hazard: Hazard,
    values: Array,
    scores: Array,
    present: Bools,
    theta: Array,
    measurement: WholeSum | None,
    noise: NoiseSource,
) -> Array:
    """Σ over persons of their rows' summed scores, clipped to C, with noise; (d - 2,).

    Args:
        values, scores: (n, k, d), in the box, and their linear scores; present: (n, k).
        measurement: of :func:`measure_scores`, or None for no noise.
    """
    total = sum_scores(hazard, values, scores, present, theta)
    if measurement is None:
        return np.asarray(total * row_unit(outcome_clip(values.shape[2])))
    return measurement(total, noise)


def sum_scores(
    hazard: Hazard, values: Array, scores: Array, present: Bools, theta: Array
) -> NDArray[np.int64]:
    """The same in whole numbers, without noise."""
    n, k, d = values.shape
    clip = outcome_clip(d)
    flat = hazard.scores_of(values.reshape(n * k, d), scores.reshape(n * k, d), theta)
    each = np.where(present[..., None], flat.reshape(n, k, d - 2), 0.0).sum(axis=1)
    someone = np.asarray(present.max(axis=1))
    whole, _ = whole_vectors(clip_rows(each, clip), someone, clip)
    total: NDArray[np.int64] = whole.sum(axis=0)
    return total


def restore_shares(outcome: Outcome, counts: Array, sample: Array) -> Affine:
    """The map that gives a sample the counted shares of an outcome's states.

    Moments leave means to their own noise, which is larger than that of counts, and a model its
    own. So the event's and the end's normal scores are shifted until as many rows are beyond their
    thresholds as were counted.

    Args:
        counts: (3,), rows censored before the end, event-free at it, and with the event; > 0.
        sample: (N, d), normal scores as the model makes them.
    """
    d = sample.shape[1]
    shift = np.zeros(d)
    free = np.ones(len(sample), dtype=np.bool_)
    # The end is that of the rows without an event.
    states = (
        (outcome.event, counts[2] / counts.sum()),
        (outcome.end, counts[1] / counts[:2].sum()),
    )
    for j, share in states:
        threshold = ndtri(1 - share)
        by = threshold - np.quantile(sample[free, j], 1 - share)
        shift[j] = np.clip(by, -_MOST_MOVE, _MOST_MOVE)
        free &= sample[:, j] + shift[j] <= threshold
        if not free.any():
            break
    return Affine(np.eye(d), shift)


def match_score(
    hazard: Hazard,
    theta: Array,
    goal: Array,
    sd: float,
    sample: Array,
    observe: Callable[[Array], tuple[Array, Array]],
) -> Affine:
    """The map that moves a sample's durations, by its covariates, until its mean score is ``goal``.

    All entries but the first are brought there. That one is a matter of the durations themselves,
    which the margins know better: they keep their mean and sd, and roughly (by a linear fit) their
    means with and without the event.

    Args:
        goal: (d - 2,), the released sum over the number of rows; sd: of its noise, per entry.
        sample: (N, d), scores as the model makes them.
        observe: those scores to values and linear scores as rows have them.
    """
    d, others, duration = sample.shape[1], hazard.covariates, hazard.outcome.duration
    states = [hazard.outcome.event, hazard.outcome.end]
    clip, times = outcome_clip(d), sample[:, duration]
    known = np.column_stack([np.ones(len(sample)), sample[:, states]])
    line = np.linalg.lstsq(known, sample[:, others], rcond=None)[0]
    apart = sample[:, others] - known @ line
    whiten = power(apart.T @ apart / len(apart), -0.5)
    design, middle, spread = apart @ whiten, float(times.mean()), float(times.std())

    def scale_of(move: Array) -> float:
        return spread / max(float((times + design @ move).std()), 1e-9)

    def mean_score(changed: Array) -> Array:
        moved = sample.copy()
        moved[:, duration] = changed
        mean: Array = clip_rows(hazard.scores_of(*observe(moved), theta), clip).mean(axis=0)
        return mean

    before = mean_score(times)
    # Longer durations lower the residuals: the slope is negative, and the same for all entries.
    slope = min(float((mean_score(times + 0.1) - before)[0]) / 0.1, -0.02)
    weight = _MODEL_ERROR**2 / (_MODEL_ERROR**2 + sd**2)
    aim = before + weight * (goal - before)
    move = np.zeros(d - 3)
    for _ in range(_MOVE_ROUNDS):
        changed = middle + scale_of(move) * (times - middle + design @ move)
        by = 0.7 * (aim - mean_score(changed))[1:] / slope
        move = np.clip(move + by, -_MOST_MOVE, _MOST_MOVE)
    scale, tilt = scale_of(move), whiten @ move
    matrix, shift = np.eye(d), np.zeros(d)
    matrix[duration, duration] = scale
    matrix[duration, others] = scale * tilt
    matrix[duration, states] = -scale * (line[1:] @ tilt)
    shift[duration] = (1 - scale) * middle - scale * float(line[0] @ tilt)
    return Affine(matrix, shift)
