"""From rows and released summaries to a posterior, and to what is released of its curvature."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.gibbs.curvature import shrunk
from penstock.mechanisms.gibbs.design import EARLIEST, Rows, exposures
from penstock.mechanisms.gibbs.plan import EXTRA, LINEAR, MOST_HAZARD, Plan, squared_bound
from penstock.mechanisms.gibbs.posterior import Piecewise, Regression, place, weights
from penstock.mechanisms.gibbs.summaries import Summaries
from penstock.mechanisms.gibbs.sums import add_up, symmetric
from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.sources import NoiseSource

Array = NDArray[np.float64]
Loss = Regression | Piecewise


def posed(
    plan: Plan, rows: Rows, seen: Summaries, noise: NoiseSource, device: str = "cpu"
) -> tuple[Array, float, Loss]:
    """The data's curvature at the start, the norm of the noise on it, and the posterior."""
    asked, squared = plan.asked, squared_bound(plan.asked, plan.bound)
    x = np.where(rows.there[:, None], (rows.x - seen.centre) / seen.scale, 0.0)
    weight = weights(x, plan.bound) * rows.there
    if asked.model == "cox" and not asked.weibull:
        posterior: Loss = _piecewise(plan, rows, x, weight, seen, squared)
    else:
        posterior = _regression(plan, rows, x, weight, seen, squared)
    if plan.curvature is None:  # a mean: every row counts as one
        return np.eye(1) * seen.count / plan.persons, 0.0, _on(posterior, device)
    cap, p = curvature_cap(plan, posterior, seen, start=True), plan.dimension
    matrix, events = release_curvature(
        plan, posterior, posterior.start, cap, plan.curvature, noise, start=True
    )
    if isinstance(posterior, Regression) and asked.weibull:
        posterior = _with_events(posterior, events)
    sd = plan.curvature.sd * cap * squared / plan.persons
    sd *= math.sqrt(1 + EXTRA**2) if asked.weibull else 1.0
    matrix = shrunk(matrix, sd, p - asked.columns)
    return matrix, sd * math.sqrt(2 * p), _on(posterior, device)


def _regression(
    plan: Plan, rows: Rows, x: Array, weight: Array, seen: Summaries, squared: float
) -> Regression:
    asked, there = plan.asked, rows.there.astype(np.float64)
    one = there[:, None]
    centre, spread = seen.outcome
    start = np.zeros(plan.dimension)
    family, design, y, limit = asked.model, np.column_stack([one, x]), rows.y, 1.0
    if family in LINEAR:
        y = (rows.y - centre) / spread * there
        family, limit = "linear", min(plan.reach, (1 + abs(centre)) / spread)
    elif family == "logistic":
        start[0] = math.log(centre / (1 - centre))
    elif family == "poisson":
        start[0] = math.log(centre)
        limit = min(plan.reach * spread, max(asked.high, 1.0))
    else:
        total = float(seen.hazard[0])
        # log t, centred so that its bound is small: in [-2, 1].
        late = (np.log(np.maximum(rows.time, EARLIEST)) + 1.0) * there
        family, design = "weibull", np.column_stack([one, late, x])
        start[:2] = math.log(total) - 1.0, 1.0
        limit = max(1.0, (1 + plan.reach) * min(total, MOST_HAZARD))
    return Regression(
        family=family,
        design=design,
        outcome=y,
        weight=weight,
        squared=squared,
        limit=limit,
        persons=plan.persons,
        rows=plan.rows,
        start=start,
        ridge=asked.ridge,
        largest=max(asked.high, 1.0),
    )


def _piecewise(
    plan: Plan, rows: Rows, x: Array, weight: Array, seen: Summaries, squared: float
) -> Piecewise:
    """Follow-up ends where the baseline's cumulative hazard reaches a public bound: censoring by
    what was released, which biases nothing."""
    lived, ended = exposures(plan.asked, rows.time)
    most = min(MOST_HAZARD, float(seen.hazard.sum()))
    before = np.concatenate([[0.0], np.cumsum(seen.hazard)[:-1]])
    hazard = np.clip(lived * seen.hazard, 0.0, np.maximum(most - before, 0.0))
    full = (lived * seen.hazard).sum(axis=1)
    died = ended * (rows.y * (full <= most))[:, None]
    relative = 1 + plan.reach
    group = (np.arange(plan.asked.pieces) * plan.levels // plan.asked.pieces)[:, None]
    together = (group == np.arange(plan.levels)).astype(np.float64)
    return Piecewise(
        hazard=(hazard * rows.there[:, None]) @ together,
        died=died @ together,
        covariates=x,
        weight=weight,
        # Rounding may leave a sum a little above.
        most=most * (1 + 1e-12),
        relative=relative,
        squared=squared,
        persons=plan.persons,
        rows=plan.rows,
        start=np.zeros(plan.dimension),
        ridge=plan.asked.ridge,
    )


def _on(posterior: Loss, device: str) -> Loss:
    if isinstance(posterior, Piecewise):
        names: tuple[str, ...] = ("hazard", "died", "covariates", "weight")
    else:
        names = ("design", "outcome", "weight")
    return replace(posterior, **{n: place(getattr(posterior, n), device) for n in names})


def curvature_cap(plan: Plan, posterior: Loss, seen: Summaries, *, start: bool) -> float:
    """Bound on a row's curvature: at the start the exact one, later a few times a typical one."""
    if isinstance(posterior, Piecewise):
        most = posterior.most
        return most if start else max(1.5, plan.reach - 1) * most
    if posterior.family == "linear":
        return 1.0
    if posterior.family == "logistic":
        share = seen.outcome[0]
        return share * (1 - share) if start else min(0.25, 3 * share * (1 - share))
    typical = seen.outcome[0] if posterior.family == "poisson" else float(seen.hazard[0])
    highest = posterior.bend / posterior.squared
    return min(typical if start else max(1.5, plan.reach - 1) * typical, highest)


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
    extra = plan.asked.weibull and start
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
