"""From rows and released summaries to a posterior, and to what is released of its curvature."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.gibbs.curvature import shrunk, symmetric
from penstock.mechanisms.gibbs.plan import EXTRA, Plan, squared_bound
from penstock.mechanisms.gibbs.posing import Loss, Rows, Standardised, Summaries
from penstock.mechanisms.gibbs.posterior import Piecewise, Regression, weights
from penstock.mechanisms.gibbs.sums import add_up
from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.sources import NoiseSource

Array = NDArray[np.float64]


AFFORDED = 0.15
"""Of a typical curvature: the noise up to which rows of more count in full."""


def pose_posterior(
    plan: Plan, rows: Rows, seen: Summaries, noise: NoiseSource, device: str = "cpu"
) -> tuple[Array, float, Loss]:
    """The data's curvature at the start, the norm of the noise on it, and the posterior."""
    asked, squared = plan.asked, squared_bound(plan.asked, plan.bound)
    x = np.where(rows.there[:, None], (rows.x - seen.centre) / seen.scale, 0.0)
    weight = weights(x, plan.bound) * rows.there
    posterior = asked.posing.pose(plan, seen, Standardised(rows, x, weight, squared))
    if plan.approach:  # beside rare events the whole of it would be a good part of what is known
        typical = curvature_cap(plan, posterior, seen, start=True)
        posterior = replace(posterior, ridge=asked.ridge * min(1.0, typical))
    if plan.curvature is None:  # a mean: every row counts as one
        return np.eye(1) * seen.count / plan.persons, 0.0, _on(posterior, device)
    cap, p = curvature_cap(plan, posterior, seen, start=True), plan.dimension
    matrix, events = release_curvature(
        plan, posterior, posterior.start, cap, plan.curvature, noise, start=True
    )
    if isinstance(posterior, Regression) and asked.posing.counts_events:
        posterior = _with_events(posterior, events)
    sd = plan.curvature.sd * cap * squared / plan.persons
    sd *= math.sqrt(1 + EXTRA**2) if asked.posing.counts_events else 1.0
    matrix = drawn(plan, posterior, seen, matrix, sd)
    return matrix, sd * math.sqrt(2 * p), _on(posterior, device)


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
    """The mean Hessian over persons (p, p), and the weighted count of events (weibull)."""
    p = plan.dimension
    extra = plan.asked.posing.counts_events and start
    size = p * (p + 1) // 2 + extra
    norm = math.sqrt(1 + EXTRA**2) if extra else 1.0

    def contributions(part: slice) -> Array:
        found = posterior.information(theta, cap, part)
        if extra and isinstance(posterior, Regression):
            events = EXTRA * posterior.weight[part] * posterior.outcome[part]
            found = np.column_stack([found, events])
        return found / norm

    rows = plan.persons * plan.rows
    total = norm * measurement(add_up(rows, size, contributions), noise)
    events = float(total[-1]) / EXTRA if extra else 0.0
    triangular = total[:-1] if extra else total
    unit = cap * posterior.squared / plan.persons
    return symmetric(triangular, p) * unit, events


def _with_events(posterior: Regression, events: float) -> Regression:
    """At least one event, and no more than there are rows."""
    most = float(posterior.persons * posterior.rows)
    return replace(posterior, events=min(max(events, 1.0), most))
