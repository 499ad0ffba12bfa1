"""The first release of an answer: counts, means and spreads, from which all else is scaled."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.gibbs.plan import Plan, summary_norm
from penstock.mechanisms.gibbs.posing import Rows, Summaries
from penstock.mechanisms.gibbs.sums import noisy_sum, reach
from penstock.privacy.noise.sources import NoiseSource

Array = NDArray[np.float64]

_WIDEST_BINARY = 0.6
"""Least scale of a 0/1 column in units of half its width: rarer levels than a tenth would otherwise
lie so far out that the rows that have them lose their weight."""


def summarise(plan: Plan, rows: Rows, noise: NoiseSource) -> Summaries:
    """The noisy summaries, each of which ends within its public bounds."""
    asked, posing, q = plan.asked, plan.asked.posing, plan.asked.columns
    numeric = np.asarray(asked.numeric, dtype=np.bool_)
    norm = summary_norm(asked)

    def contributions(part: slice) -> Array:
        x, there = rows.x[part], rows.there[part].astype(np.float64)
        blocks = [there[:, None], x, x[:, numeric] ** 2, posing.summands(asked, rows, part)]
        return np.column_stack(blocks) / norm

    size = plan.summary_size
    total = norm * noisy_sum(len(rows.y), size, contributions, plan.summaries, plan.rows, noise)
    sd = norm * plan.summaries * reach(size, plan.rows)
    count = max(float(total[0]), sd, 1.0)
    mean = np.clip(total[1 : 1 + q] / count, -1.0, 1.0)
    square = np.ones(q)
    square[numeric] = total[1 + q : 1 + q + numeric.sum()] / count
    # Where noise hides a column's spread, it may be as wide as its bounds allow.
    least = np.where(numeric, max(0.02, math.sqrt(min(sd / count, 1 / 3))), _WIDEST_BINARY)
    most = np.sqrt(np.maximum(1 - mean**2, least**2))
    scale = np.clip(np.sqrt(np.maximum(square - mean**2, 0.0)), least, most)
    rest = total[1 + q + numeric.sum() :]
    outcome = posing.outcome_scale(asked, rest, count, sd)
    return Summaries(count, mean, scale, outcome, posing.hazard(asked, rest, sd))
