"""The ``gibbs`` mechanism: from encoded rows to one question's coefficients and covariance.

Stages and their charges are in :mod:`penstock.models.gibbs.plan`. Everything after the last release
is post-processing: the start's and the ridge's part of the answer is taken out (exactly on a
quadratic, else linearised at the iterate), and the covariance adds the mechanism's noise, carried
through the chain, to the sampling error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from penstock.encoding import Encoding
from penstock.errors import InvalidInput, Problem
from penstock.models.gibbs.chain import descend, propagate
from penstock.models.gibbs.design import EARLIEST, Rows, exposures, read, reporting
from penstock.models.gibbs.plan import (
    EXTRA,
    LINEAR,
    MOST_HAZARD,
    Plan,
    squared_bound,
    summary_norm,
)
from penstock.models.gibbs.posterior import Piecewise, Regression, place, weights
from penstock.models.gibbs.sums import noisy_sum, reach, symmetric
from penstock.models.parts import Part, Progress
from penstock.privacy.noise import NoiseSource

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Loss = Regression | Piecewise

_WIDEST_BINARY = 0.6
"""Least scale of a 0/1 column in units of half its width: rarer levels than a tenth would otherwise
lie so far out that the rows that have them lose their weight."""
_DRIFT = 0.15
_LEAST_DIAGONAL = 0.2
_FLOOR = 0.03
"""Least eigenvalue of an information, over their mean: noise may have made some negative."""


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


def run(
    plan: Plan,
    encoding: Encoding,
    rows: Array,
    present: Bools,
    noise: NoiseSource,
    progress: Progress | None = None,
    device: str = "cpu",
    threads: int = 1,
) -> Iterator[Part]:
    """The answer, as one part: columns ``term``, ``estimate``, ``cov_1`` … ``cov_p``.

    Relation: zero-out with public n; charged as ``plan.events``. Whatever the rows hold, the answer
    is finite.

    Args:
        rows: (n, k, d), encoded; present: (n, k). n and k are the plan's.
        device: where the chain's gradients are computed, in float64.

    Raises:
        InvalidInput: shapes that are not the plan's.
    """
    shape = (plan.persons, plan.rows, encoding.d)
    if rows.shape != shape or present.shape != shape[:2]:
        problem = Problem("rows", "not of the plan's shape", value=str(rows.shape), bound=str(shape))
        raise InvalidInput("run", [problem])
    coded = encoding.decode(rows.reshape(-1, encoding.d))
    estimate, covariance = answer(
        plan, read(plan.asked, coded, present.reshape(-1)), noise, progress, device
    )
    columns: dict[str, NDArray[np.generic]] = {
        "term": np.array(plan.asked.answers, dtype=object),
        "estimate": estimate,
    }
    columns |= {f"cov_{i + 1}": covariance[:, i] for i in range(len(estimate))}
    yield Part(1, columns)


def answer(
    plan: Plan, rows: Rows, noise: NoiseSource, progress: Progress | None = None, device: str = "cpu"
) -> tuple[Array, Array]:
    """Coefficients (p,) and covariance (p, p) on the reporting scale."""
    seen = summarise(plan, rows, noise)
    curvature, spread, posterior = posed(plan, rows, seen, noise, device)
    precondition = None
    if plan.preconditioned:
        # Half of what noise may add: longer steps than the curvature bears would not settle.
        careful = _definite(curvature) + spread / 2 * np.eye(plan.dimension)
        precondition = np.linalg.inv(careful + posterior.prior_curvature(posterior.start))
    sensitivity = plan.rows * posterior.reach / plan.persons * (1 + 1e-9)
    theta = descend(
        posterior.gradient,
        posterior.start,
        plan.schedule,
        sensitivity,
        noise,
        precondition,
        progress,
    )
    data, dispersion = _information(plan, rows, seen, posterior, curvature, theta, noise)
    estimate, covariance = corrected(
        plan, posterior, theta, data, dispersion, sensitivity, precondition
    )
    first = 0 if plan.asked.model != "cox" else plan.dimension - plan.asked.columns
    if plan.asked.model == "cox":
        estimate = np.concatenate([[0.0], estimate[first:]])
        block = np.zeros((len(estimate), len(estimate)))
        block[1:, 1:] = covariance[first:, first:]
        covariance = block
    matrix, shift = reporting(plan.asked, seen.centre, seen.scale, seen.outcome)
    return matrix @ estimate + shift, matrix @ covariance @ matrix.T


def summarise(plan: Plan, rows: Rows, noise: NoiseSource) -> Summaries:
    """The noisy summaries, each of which ends within its public bounds."""
    asked, q = plan.asked, plan.asked.columns
    numeric = np.asarray(asked.numeric, dtype=np.bool_)
    norm = summary_norm(asked)

    def contributions(part: slice) -> Array:
        x, there = rows.x[part], rows.there[part].astype(np.float64)
        blocks = [there[:, None], x, x[:, numeric] ** 2, _of_outcome(plan, rows, part)]
        return np.column_stack(blocks) / norm

    size = plan.summary_size
    total = norm * noisy_sum(
        len(rows.y), size, contributions, plan.summaries, plan.rows, noise
    )
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
    return Summaries(
        count, mean, scale, _outcome(plan, rest, count, sd), _hazard(plan, rest, sd)
    )


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
        root = float(np.clip(sums[0] / count, error / 2, 1.0)) * math.sqrt(max(plan.asked.high, 1.0))
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
    cap, p = _cap(plan, posterior, seen, start=True), plan.dimension
    matrix, events = _noisy_curvature(plan, posterior, posterior.start, cap, plan.curvature, noise)
    if isinstance(posterior, Regression) and asked.weibull:
        posterior = _with_events(posterior, events)
    sd = plan.curvature * reach(plan.curvature_size, plan.rows) * cap * squared / plan.persons
    sd *= math.sqrt(1 + EXTRA**2) if asked.weibull else 1.0
    matrix, kept = shrunk(matrix, sd, p - asked.columns)
    return matrix, kept * sd * math.sqrt(2 * p), _on(posterior, device)


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


def _cap(plan: Plan, posterior: Loss, seen: Summaries, *, start: bool) -> float:
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


def _noisy_curvature(
    plan: Plan, posterior: Loss, theta: Array, cap: float, sigma: float, noise: NoiseSource
) -> tuple[Array, float]:
    """The mean Hessian over persons (p, p), and the weighted count of events (weibull)."""
    p, at_start = plan.dimension, sigma == plan.curvature
    extra = plan.asked.weibull and at_start
    size = p * (p + 1) // 2 + extra
    norm = math.sqrt(1 + EXTRA**2) if extra else 1.0

    def contributions(part: slice) -> Array:
        found = posterior.information(theta, cap, part)
        if extra and isinstance(posterior, Regression):
            events = EXTRA * posterior.weight[part] * posterior.outcome[part]
            found = np.column_stack([found, events])
        return found / norm

    rows = plan.persons * plan.rows
    total = norm * noisy_sum(rows, size, contributions, sigma, plan.rows, noise)
    events = float(total[-1]) / EXTRA if extra else 0.0
    triangular = total[:-1] if extra else total
    unit = cap * posterior.squared / plan.persons
    return symmetric(triangular, p) * unit, events


def _with_events(posterior: Regression, events: float) -> Regression:
    """At least one event, and no more than there are rows."""
    most = float(posterior.persons * posterior.rows)
    return replace(posterior, events=min(max(events, 1.0), most))


def _information(
    plan: Plan,
    rows: Rows,
    seen: Summaries,
    posterior: Loss,
    curvature: Array,
    theta: Array,
    noise: NoiseSource,
) -> tuple[Array, float]:
    """The data's part of the mean Hessian at the iterate, and the dispersion."""
    if plan.asked.model not in LINEAR or not isinstance(posterior, Regression):
        cap = _cap(plan, posterior, seen, start=False)
        matrix, _ = _noisy_curvature(plan, posterior, theta, cap, plan.information, noise)
        sd = plan.information * plan.rows * cap * posterior.squared / plan.persons
        matrix, _ = shrunk(matrix, sd, plan.dimension - plan.asked.columns)
        return _blend(plan, posterior, seen, curvature, matrix), 1.0

    def contributions(part: slice) -> Array:
        found = posterior.residuals(theta, part) / posterior.limit
        weight = posterior.weights(part)
        return np.column_stack([weight * found**2, weight]) / math.sqrt(2)

    total = noisy_sum(len(rows.y), 2, contributions, plan.information, plan.rows, noise)
    sd = plan.information * reach(2, plan.rows)
    share = max(float(total[0]), 0.05 * sd) / max(float(total[1]), sd)
    return curvature, share * posterior.limit**2


def _blend(plan: Plan, posterior: Loss, seen: Summaries, first: Array, last: Array) -> Array:
    """The Hessian at the iterate, and as much of the start's as the noise of the former asks for:
    the latter is off by a share that is taken to be :data:`_DRIFT`."""
    if plan.curvature is None:
        return last
    spread = plan.information * _cap(plan, posterior, seen, start=False)
    other = plan.curvature * _cap(plan, posterior, seen, start=True)
    unit = posterior.squared * plan.rows / plan.persons
    drift = _DRIFT * max(float(np.trace(first)) / plan.dimension, 0.0)
    share = (spread * unit) ** 2 / ((spread * unit) ** 2 + (other * unit) ** 2 + drift**2)
    blended: Array = share * first + (1 - share) * last
    return blended


def corrected(
    plan: Plan,
    posterior: Loss,
    theta: Array,
    data: Array,
    dispersion: float,
    sensitivity: float,
    precondition: Array | None,
) -> tuple[Array, Array]:
    r"""From the iterate to an estimate of the unpenalised coefficients, and its covariance.

    With H the Hessian, G = H - λI, and the chain's Π and noise covariance S:
    θ* = (I-Π)⁻¹(θ_T - Πθ₀) has forgotten the start; θ̂ = θ₀ + G⁻¹H(θ* - θ₀) is one Newton step from
    there to the minimum without the ridge. Its covariance is that of the chain, carried along, and
    G⁻¹ times the dispersion over n, the sampling error.
    """
    p, start = plan.dimension, posterior.start
    prior = posterior.prior_curvature(theta)
    ridge = posterior.ridge * np.eye(p)
    free = _definite(data + prior - ridge)
    chain = propagate(plan.schedule, free + ridge, precondition)
    forget = np.linalg.inv(np.eye(p) - chain.bias)
    inverse = np.linalg.inv(free)
    onward = inverse @ (free + ridge) @ forget
    estimate: Array = start + onward @ (theta - start)
    mechanism = onward @ chain.noise @ onward.T * sensitivity**2
    covariance = mechanism + dispersion * inverse / plan.persons
    return estimate, (covariance + covariance.T) / 2


def shrunk(matrix: Array, sd: float, baseline: int) -> tuple[Array, float]:
    """A noisy curvature, drawn towards a diagonal by as much as is noise; and what is left of it.

    The diagonal is the mean one of the baseline's parameters, and that of the covariates', which
    are standardised: there is little else to expect. The share is noise's expected square over the
    square of what lies off that diagonal (Ledoit & Wolf 2004, the noise's variance known).

    Args:
        sd: of the noise on a number of the diagonal; 1/√2 of it elsewhere.
        baseline: parameters before the covariates'.
    """
    p = len(matrix)
    diagonal = np.diag(matrix).copy()
    for part in (slice(0, baseline), slice(baseline, p)):
        if diagonal[part].size:
            least = _LEAST_DIAGONAL * max(float(diagonal[part].mean()), 0.0)
            diagonal[part] = np.maximum(diagonal[part], least)
    off = matrix - np.diag(np.diag(matrix))
    expected = sd**2 * p * (p - 1) / 2
    kept = 1 - min(1.0, expected / max(float((off**2).sum()), 1e-300))
    found: Array = np.diag(diagonal) + kept * off
    return found, kept


def _definite(matrix: Array) -> Array:
    """Eigenvalues floored: noise may have made them negative."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    typical = max(float(values.mean()), 1e-6)
    found: Array = (vectors * np.maximum(values, _FLOOR * typical)) @ vectors.T
    return found
