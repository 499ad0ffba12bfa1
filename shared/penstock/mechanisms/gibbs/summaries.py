"""The first release of an answer: counts, means and spreads, from which all else is scaled."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.gibbs.design import Rows, exposures
from penstock.mechanisms.gibbs.plan import Plan, summary_norm
from penstock.mechanisms.gibbs.sums import add_up
from penstock.privacy.noise.sources import NoiseSource

Array = NDArray[np.float64]

_WIDEST_BINARY = 0.6
"""Least scale of a 0/1 column in units of half its width: rarer levels than a tenth would otherwise
lie so far out that the rows that have them lose their weight."""


@dataclass(frozen=True, slots=True)
class Summaries:
    """What the first release says; all else follows from it and from public numbers.

    Attributes:
        count: rows; centre, scale: (q,) of the covariates in [-1, 1]; outcome: centre and scale of
            the outcome in its own units; hazard: (J,) rate per interval.
    """

    count: float
    centre: Array
    scale: Array
    outcome: tuple[float, float]
    hazard: Array


def summarise(plan: Plan, rows: Rows, noise: NoiseSource) -> Summaries:
    """The noisy summaries, each of which ends within its public bounds."""
    asked, q = plan.asked, plan.asked.columns
    numeric = np.asarray(asked.numeric, dtype=np.bool_)
    norm = summary_norm(asked)

    def contributions(part: slice) -> Array:
        x, there = rows.x[part], rows.there[part].astype(np.float64)
        blocks = [there[:, None], x, x[:, numeric] ** 2, _of_outcome(plan, rows, part)]
        return np.column_stack(blocks) / norm

    asks = plan.summaries
    total = norm * asks(add_up(len(rows.y), plan.summary_size, contributions), noise)
    sd = norm * asks.noise_multiplier * asks.sensitivity
    count = max(float(total[0]), sd, 1.0)
    mean = np.clip(total[1 : 1 + q] / count, -1.0, 1.0)
    square = np.ones(q)
    square[numeric] = total[1 + q : 1 + q + numeric.sum()] / count
    # Where noise hides a column's spread, it may be as wide as its bounds allow.
    least = np.where(numeric, max(0.02, math.sqrt(min(sd / count, 1 / 3))), _WIDEST_BINARY)
    most = np.sqrt(np.maximum(1 - mean**2, least**2))
    scale = np.clip(np.sqrt(np.maximum(square - mean**2, 0.0)), least, most)
    rest = total[1 + q + numeric.sum() :]
    return Summaries(count, mean, scale, _outcome(plan, rest, count, sd), _hazard(plan, rest, sd))


def _of_outcome(plan: Plan, rows: Rows, part: slice) -> Array:
    y, model = rows.y[part], plan.asked.model
    if model == "cox":
        lived, ended = exposures(plan.asked, rows.time[part])
        there = rows.there[part][:, None]
        return np.column_stack([ended * y[:, None], np.where(there, lived, 0.0)])
    if model == "logistic":
        return y[:, None]
    if model == "poisson":
        return np.sqrt(y / max(plan.asked.high, 1.0))[:, None]
    return np.column_stack([y, y**2])


def _outcome(plan: Plan, sums: Array, count: float, sd: float) -> tuple[float, float]:
    """Centre and scale of the outcome; of a logistic model, its share and 1."""
    if plan.asked.model == "cox":
        return 0.0, 1.0
    error = sd / count
    if plan.asked.model == "logistic":
        least = min(max(0.01, error), 0.5)
        return float(np.clip(sums[0] / count, least, 1 - least)), 1.0
    if plan.asked.model == "poisson":
        # The square root of a Poisson count has variance 1/4, nearly; spread beyond is allowed for.
        root = float(np.clip(sums[0] / count, error / 2, 1.0)) * math.sqrt(
            max(plan.asked.high, 1.0)
        )
        return root**2 + 0.25, 1.2 * math.sqrt(root**2 + 0.25)
    mean = float(np.clip(sums[0] / count, -1.0, 1.0))
    variance = float(sums[1] / count) - mean**2
    return mean, math.sqrt(min(max(variance, error, 4e-4), 1.0))


def _hazard(plan: Plan, sums: Array, sd: float) -> Array:
    """Events per interval lived through; noise may not take it below what it could hide."""
    if plan.asked.model != "cox":
        return np.ones(1)
    j = plan.asked.pieces
    events, lived = np.maximum(sums[:j], sd), np.maximum(sums[j : 2 * j], 2 * sd)
    found: Array = np.clip(events / lived, 1e-3, 20.0)
    return found
