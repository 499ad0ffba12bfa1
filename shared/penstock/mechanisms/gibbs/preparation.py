"""From rows and released summaries to a posterior, and to what is released of its curvature."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.gibbs.curvature import shrunk, symmetric
from penstock.mechanisms.gibbs.plan import (
    EXTRA,
    Plan,
    curvature_norm,
    squared_bound,
    summary_norm,
)
from penstock.mechanisms.gibbs.posing import Loss, Rows, Standardised, Summaries
from penstock.mechanisms.gibbs.posterior import Piecewise, Regression, weights
from penstock.mechanisms.gibbs.sums import ask_rows
from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.sources import NoiseSource

Array = NDArray[np.float64]


_LEAST_SQUARE = 1e-3
"""Of a level that hardly anybody has."""


@dataclass(frozen=True, slots=True)
class Posed:
    """A posterior, and what was released to pose it.

    Attributes:
        curvature: (p, p) of the data at the start, the mean over persons; spread: norm of the noise
            on it; doubts: (q,) of :func:`find_doubts`.
    """

    posterior: Loss
    curvature: Array
    spread: float
    doubts: Array


AFFORDED = 0.15
"""Of a typical curvature: the noise up to which rows of more count in full."""


def pose_posterior(
    plan: Plan, rows: Rows, seen: Summaries, noise: NoiseSource, device: str = "cpu"
) -> Posed:
    """From the summaries, and a release of the curvature at the start."""
    asked, squared = plan.asked, squared_bound(plan.asked, plan.bound)
    x = np.where(rows.there[:, None], (rows.x - seen.centre) / seen.scale, 0.0)
    weight = weights(x, plan.bound) * rows.there
    posterior = asked.posing.pose(plan, seen, Standardised(rows, x, weight, squared))
    if plan.approach:  # beside rare events the whole of it would be a good part of what is known
        typical = curvature_cap(plan, posterior, seen, start=True)
        posterior = replace(posterior, ridge=asked.ridge * min(1.0, typical))
    if plan.curvature is None:  # a mean: every row counts as one
        known = np.eye(1) * seen.count / plan.persons
        return Posed(_on(posterior, device), known, 0.0, np.zeros(0))
    cap, p = curvature_cap(plan, posterior, seen, start=True), plan.dimension
    matrix, events = release_curvature(
        plan, posterior, posterior.start, cap, plan.curvature, noise, start=True
    )
    if isinstance(posterior, Regression) and asked.posing.counts_events:
        posterior = _with_events(posterior, events)
    sd = plan.curvature.sd * cap * squared / plan.persons
    sd *= curvature_norm(beside=asked.posing.counts_events)
    doubts = find_doubts(plan, posterior, seen, matrix)
    matrix = drawn(plan, posterior, seen, matrix, sd)
    return Posed(_on(posterior, device), matrix, sd * math.sqrt(2 * p), doubts)


def find_doubts(plan: Plan, posterior: Loss, seen: Summaries, matrix: Array) -> Array:
    r"""(q,) how much of each column's spread is lost because rows far out count for less.

    With H the released curvature at the start, where rows hardly differ in how much they bend, h
    its entry of the baseline, v the mean square that the column has if all rows count in full (1,
    or of a rare level less) and e the sd of the noise on that, in units of it,

    .. math:: 1 - \frac{H_{jj}}{h \, v_j (1 + e_j)}

    within 0 and 1: noise may have made a long tail look like none. A function of what was released.
    Rows far out in a skewed column decide what a regression says of it, and count for less here.
    """
    q = plan.asked.columns
    numeric = np.asarray(plan.asked.numeric, dtype=np.bool_)
    rare = np.clip((1 - seen.centre**2) / seen.scale**2, _LEAST_SQUARE, 1.0)
    full = np.where(numeric, 1.0, rare)
    sd = summary_norm(plan.asked) * plan.summaries.sd / seen.count
    unsure = sd * np.sqrt(1 + 4 * seen.centre**2) / seen.scale**2
    own = np.diag(matrix)
    first = own[:1] if isinstance(posterior, Regression) else own[: len(own) - q]
    base = max(float(first.sum()), 1e-9)
    kept = own[len(own) - q :] / (base * full * (1 + np.where(numeric, unsure, 0.0)))
    return np.asarray(np.clip(1 - kept, 0.0, 1.0))


def _on(posterior: Loss, device: str) -> Loss:
    if isinstance(posterior, Piecewise):
        names: tuple[str, ...] = ("hazard", "died", "covariates", "weight")
    else:
        names = ("design", "outcome", "weight")
    return replace(posterior, **{n: place(getattr(posterior, n), device) for n in names})


def place(array: Array, device: str) -> Any:
    """The array where a chain's arithmetic is done: numpy on a CPU, else a float64 tensor."""
    if device == "cpu":
        return array
    import torch

    return torch.asarray(array, dtype=torch.float64, device=device)


def drawn(plan: Plan, posterior: Loss, seen: Summaries, matrix: Array, sd: float) -> Array:
    """A noisy curvature, :func:`~penstock.mechanisms.gibbs.curvature.shrunk` by what is known.

    Covariates have mean squares of 1, but rare levels, by their share.
    """
    numeric = np.asarray(plan.asked.numeric, dtype=np.bool_)
    squares = np.where(numeric, 1.0, (1 - seen.centre**2) / seen.scale**2)
    typical = curvature_cap(plan, posterior, seen, start=True)
    return shrunk(matrix, sd, plan.dimension - plan.asked.columns, squares, typical)


def curvature_cap(plan: Plan, posterior: Loss, seen: Summaries, *, start: bool) -> float:
    """Bound on a row's curvature: at the start the exact one, later a few times a typical one."""
    highest = posterior.bend / posterior.squared
    spread = plan.information.sd * posterior.squared * math.sqrt(2 * plan.dimension)
    reach = max(plan.reach, 1 + AFFORDED * plan.persons / spread)
    return plan.asked.posing.curvature_cap(seen, reach, highest, start=start)


def release_curvature(
    plan: Plan,
    posterior: Loss,
    theta: Array,
    cap: float,
    measurement: WholeSum,
    noise: NoiseSource,
    *,
    start: bool,
) -> tuple[Array, float]:
    """The mean Hessian over persons (p, p), and what is released beside it: at the start the
    weighted count of events (weibull); later the weighted sum of squared residuals in units of
    their bound's square (poisson); else 0."""
    p, posing = plan.dimension, plan.asked.posing
    extra = posing.counts_events if start else posing.disperses
    size, norm = p * (p + 1) // 2 + extra, curvature_norm(beside=extra)

    def contributions(part: slice) -> Array:
        found = posterior.information(theta, cap, part)
        if extra and isinstance(posterior, Regression):
            beside = posterior.weights(part) * (
                posterior.outcomes(part)
                if start
                else (posterior.residuals(theta, part) / posterior.limit) ** 2
            )
            found = np.column_stack([found, EXTRA * beside])
        return found / norm

    total = norm * ask_rows(measurement, len(posterior.weight), contributions, size, noise)
    beside = float(total[-1]) / EXTRA if extra else 0.0
    triangular = total[:-1] if extra else total
    unit = cap * posterior.squared / plan.persons
    return symmetric(triangular, p) * unit, beside


def _with_events(posterior: Regression, events: float) -> Regression:
    """At least one event, and no more than there are rows."""
    most = float(posterior.persons * posterior.rows)
    return replace(posterior, events=min(max(events, 1.0), most))
