"""The first release of an answer: counts, means and spreads, from which all else is scaled."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.gibbs.plan import Plan, summary_norm
from penstock.mechanisms.gibbs.posing import Rows, Summaries
from penstock.mechanisms.gibbs.sums import ask_rows
from penstock.privacy.noise.sources import NoiseSource

Array = NDArray[np.float64]


def summarise(plan: Plan, rows: Rows, noise: NoiseSource) -> Summaries:
    """The noisy summaries, each of which ends within its public bounds."""
    asked, posing, q = plan.asked, plan.asked.posing, plan.asked.columns
    numeric = np.asarray(asked.numeric, dtype=np.bool_)
    norm = summary_norm(asked)

    def contributions(part: slice) -> Array:
        x, there = rows.x[part], rows.there[part].astype(np.float64)
        blocks = [there[:, None], x, x[:, numeric] ** 2, posing.summands(asked, rows, part)]
        return np.column_stack(blocks) / norm

    asks = plan.summaries
    total = norm * ask_rows(asks, len(rows.y), contributions, plan.summary_size, noise)
    sd = norm * asks.noise_multiplier * asks.sensitivity
    count = max(float(total[0]), sd, 1.0)
    mean = np.clip(total[1 : 1 + q] / count, -1.0, 1.0)
    square = np.ones(q)
    square[numeric] = total[1 + q : 1 + q + numeric.sum()] / count
    # Where noise hides a column's spread, it may be as wide as its bounds allow.
    narrow = max(0.02, math.sqrt(min(sd / count, 1 / 3)))
    # A rare level lies no farther out than a row may beside its other columns: it keeps its weight.
    rare = (1 + np.abs(mean)) / math.sqrt(max(1.0, plan.bound**2 - (q - 1)))
    least = np.where(numeric, narrow, rare)
    most = np.sqrt(np.maximum(1 - mean**2, least**2))
    scale = np.clip(np.sqrt(np.maximum(square - mean**2, 0.0)), least, most)
    rest = total[1 + q + numeric.sum() :]
    outcome = posing.outcome_scale(asked, rest, count, sd)
    return Summaries(count, mean, scale, outcome, posing.hazard(asked, rest, sd))
