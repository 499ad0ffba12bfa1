"""The ``gibbs`` mechanism: from encoded rows to one question's coefficients and covariance.

Stages and their charges are in :mod:`penstock.mechanisms.gibbs.plan`. Everything after the last
release is post-processing. A survival model's chain first approaches (its curvature grows with the
effects, several-fold where they are large), has the curvature released again, and settles by that:
only these last steps go into the answer. The start's and the ridge's part of the answer is taken
out (exactly on a quadratic, else linearised at the iterate), and the covariance adds the
mechanism's noise, carried through the chain, to the sampling error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import InvalidEvent
from penstock.mechanisms.frames import check_shapes
from penstock.mechanisms.gibbs.curvature import definite, share_of_start
from penstock.mechanisms.gibbs.design import read, reporting
from penstock.mechanisms.gibbs.langevin import (
    Ended,
    Preconditioner,
    Schedule,
    WholeSteps,
    carried,
    descend,
)
from penstock.mechanisms.gibbs.plan import (
    Plan,
    WholePlan,
    curvature_norm,
    largest_bend,
    narrowed,
)
from penstock.mechanisms.gibbs.posing import Loss, Rows, Summaries
from penstock.mechanisms.gibbs.posterior import Posterior, Regression
from penstock.mechanisms.gibbs.preparation import (
    curvature_cap,
    drawn,
    pose_posterior,
    release_curvature,
)
from penstock.mechanisms.gibbs.summaries import summarise
from penstock.mechanisms.gibbs.sums import add_up, ask_rows
from penstock.mechanisms.parts import Part, Progress
from penstock.mechanisms.released import ANSWER
from penstock.privacy.measurements import Whole, is_known
from penstock.privacy.noise.sources import NoiseSource
from penstock.schema.encoding import Encoding

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]


MOST_DISPERSED = 0.49
"""Doubt of counts that vary more than a Poisson variable's: of each effect, and of none alone."""

LONGEST = 0.3
"""Of a step of the approach: from afar, a Newton step on exponentials goes too far."""


@dataclass(frozen=True, slots=True)
class Known:
    """What was released of the curvature at the iterate.

    Attributes:
        curvature: (p, p) of the data, the mean over persons; spread: norm of the noise on it;
            dispersion: variance of a linear model's residuals; of a count's beside its mean, at
            least 1; 1 for others.
    """

    curvature: Array
    spread: float
    dispersion: float


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
    """The answer, as one part: columns ``term``, ``estimate``, ``doubt``, ``cov_1`` … ``cov_p``.

    ``term`` numbers them from 1, in the order of
    :func:`penstock.mechanisms.gibbs.settings.answer_terms`. Relation: zero-out with public n;
    charged as ``plan.events``. Whatever the rows hold, the answer is finite.

    Args:
        rows: (n, k, d), encoded; present: (n, k). n and k are the plan's; of many sites' frame each
            has its part.
        device: where the chain's gradients are computed, in float64.

    Raises:
        InvalidInput: shapes that are not the plan's.
    """
    check_shapes(plan, encoding, rows, present, noise)
    coded = encoding.decode(rows.reshape(-1, encoding.d))
    estimate, covariance, doubts = answer(
        plan, read(plan.asked, coded, present.reshape(-1)), noise, progress, device
    )
    columns: dict[str, NDArray[np.generic]] = {
        "term": np.arange(1.0, len(estimate) + 1),
        "estimate": estimate,
        "doubt": doubts,
    }
    columns |= {f"cov_{i + 1}": covariance[:, i] for i in range(len(estimate))}
    yield Part(ANSWER, columns)


def answer(
    plan: Plan,
    rows: Rows,
    noise: NoiseSource,
    progress: Progress | None = None,
    device: str = "cpu",
) -> tuple[Array, Array, Array]:
    """Coefficients (p,) and covariance (p, p) on the reporting scale; and what share of all that
    rows tell of each, in [0, 1], lies too far out to count: in its column, or, of counts that vary
    more than a Poisson variable's, in the outcome."""
    seen = summarise(plan, rows, noise)
    plan = narrowed(plan, seen.count)
    posed = pose_posterior(plan, rows, seen, noise, device)
    curvature, spread, posterior = posed.curvature, posed.spread, posed.posterior
    check_smooth(plan, posterior)
    how = preconditioner(posterior, curvature, spread) if plan.preconditioned else None

    whole = _add_up_steps(plan, posterior, noise) if isinstance(plan, WholePlan) else None

    def go(origin: Array, schedule: Schedule, how: Preconditioner | None, done: int = 0) -> Ended:
        def told(step: int, _: int) -> None:
            if progress is not None:
                progress(done + step, plan.schedule.steps)

        longest = LONGEST if done < plan.approach else math.inf
        gradient, unit = posterior.gradient, posterior.reach
        asked = None if whole is None else whole.part(done, done + schedule.steps)
        return descend(gradient, origin, schedule, unit, noise, how, told, longest, asked)

    def know(theta: Array) -> Known:
        return _information(plan, rows, seen, posterior, curvature, spread, theta, noise)

    origin = posterior.start
    if plan.approach:
        origin = go(origin, plan.schedule.part(0, plan.approach), how).theta
        known = know(origin)
        ended = go(origin, plan.settling, settled(posterior, known), plan.approach)
    else:
        ended = go(origin, plan.schedule, how)
        known = know(ended.theta)
    sensitivity = plan.schedule.sensitivity * posterior.reach
    estimate, covariance = corrected(plan, posterior, origin, ended, known, sensitivity)
    if not plan.asked.posing.model.intercept:
        first = plan.dimension - plan.asked.columns
        estimate = np.concatenate([[0.0], estimate[first:]])
        block = np.zeros((len(estimate), len(estimate)))
        block[1:, 1:] = covariance[first:, first:]
        covariance = block
    matrix, shift = reporting(plan.asked, seen.centre, seen.scale, seen.outcome)
    columns = posed.doubts
    if plan.asked.posing.disperses:
        # Residuals' bound was made for what a Poisson variable spreads by.
        columns = np.maximum(columns, min(1 - 1 / known.dispersion, MOST_DISPERSED))
    doubts = np.append(np.zeros(len(matrix) - plan.asked.columns), columns)
    return matrix @ estimate + shift, matrix @ covariance @ matrix.T, doubts


def _add_up_steps(plan: WholePlan, posterior: Posterior, noise: NoiseSource) -> WholeSteps:
    """The chain's steps as sums of whole numbers; of one that is known no row is looked at."""
    rows, p = len(posterior.weight), plan.dimension

    def sum_rows(theta: Array) -> Whole:
        if is_known(noise):
            return np.zeros(p, dtype=np.int64)
        return add_up(rows, p, lambda part: posterior.row_gradients(theta, part))

    def read_gradient(theta: Array, total: Array) -> Array:
        found: Array = posterior.reach / plan.persons * total + posterior.prior_gradient(theta)
        return found

    return WholeSteps(plan.steps, sum_rows, read_gradient)


def check_smooth(plan: Plan, posterior: Posterior) -> None:
    """The smoothness that the plan's contraction rests on, whatever the summaries turned out to be.

    Raises:
        InvalidEvent: the posterior bends more; decided by what is public or released.
    """
    claimed = largest_bend(plan.asked, plan.bound, plan.reach)
    own = plan.rows * plan.asked.posing.own_bend
    if not plan.rows * posterior.bend + own <= plan.rows * claimed * (1 + 1e-9):
        raise InvalidEvent("a posterior bends more than was planned", bound=claimed)


def preconditioner(
    posterior: Loss, curvature: Array, spread: float, intercept: bool = True
) -> Preconditioner:
    """P at an iterate: the inverse of the curvature that was released at the start, rescaled.

    Rescaled by :meth:`penstock.mechanisms.gibbs.families.Family.bend_ratio`.

    Args:
        intercept: whether rows start with 1; else they are centred.
    """
    known = definite(curvature)
    # Half of what noise may add: longer steps than the curvature bears would not settle.
    careful = spread / 2 * np.eye(len(known))
    family = posterior.family if isinstance(posterior, Regression) else None
    first = float(posterior.start[0]) if intercept else 0.0

    def at(theta: Array) -> Array:
        ratio = 1.0 if family is None else family.bend_ratio(known, first, theta, intercept)
        prior = posterior.prior_curvature(theta)
        found: Array = np.asarray(np.linalg.inv(ratio * known + careful + prior))
        return found

    return at


def settled(posterior: Loss, known: Known) -> Preconditioner:
    """P of the steps after the approach: the inverse of the curvature where it ended."""
    data = definite(known.curvature) + known.spread / 2 * np.eye(len(known.curvature))

    def at(theta: Array) -> Array:
        return np.asarray(np.linalg.inv(data + posterior.prior_curvature(theta)))

    return at


def _information(
    plan: Plan,
    rows: Rows,
    seen: Summaries,
    posterior: Loss,
    curvature: Array,
    spread: float,
    theta: Array,
    noise: NoiseSource,
) -> Known:
    """The data's part of the mean Hessian at the iterate, and the dispersion."""
    if not plan.asked.posing.quadratic or not isinstance(posterior, Regression):
        cap = curvature_cap(plan, posterior, seen, start=False)
        matrix, squares = release_curvature(
            plan, posterior, theta, cap, plan.information, noise, start=False
        )
        sd = plan.information.noise_multiplier * plan.rows * cap * posterior.squared / plan.persons
        sd *= curvature_norm(beside=plan.asked.posing.disperses)
        raw = matrix
        matrix = drawn(plan, posterior, seen, matrix, sd)
        other = sd * math.sqrt(2 * plan.dimension)
        share = share_of_start(curvature, spread, other, raw)
        blended = share * curvature + (1 - share) * matrix
        dispersion = 1.0
        if plan.asked.posing.disperses and isinstance(posterior, Regression):
            varied = squares * posterior.limit**2 / plan.persons
            # The intercept's curvature is the weighted mean of counts, which a Poisson variable's
            # variance is (McCullagh & Nelder 1989, 6.2.4).
            dispersion = max(1.0, varied / float(definite(blended)[0, 0]))
        return Known(blended, math.hypot(share * spread, (1 - share) * other), dispersion)

    def contributions(part: slice) -> Array:
        found = posterior.residuals(theta, part) / posterior.limit
        weight = posterior.weights(part)
        return np.column_stack([weight * found**2, weight]) / math.sqrt(2)

    total = ask_rows(plan.information, len(rows.y), contributions, 2, noise)
    sd = plan.information.sd
    share = max(float(total[0]), 0.05 * sd) / max(float(total[1]), sd)
    return Known(curvature, spread, share * posterior.limit**2)


def corrected(
    plan: Plan,
    posterior: Posterior,
    origin: Array,
    ended: Ended,
    known: Known,
    sensitivity: float,
) -> tuple[Array, Array]:
    r"""From the iterate to an estimate of the unpenalised coefficients, and its covariance.

    With H the Hessian, G = H - λI, and Π and the noise covariance S of the steps from θ₁:
    θ* = (I-Π)⁻¹(θ_T - Πθ₁) has forgotten where they began; θ̂ = θ₀ + G⁻¹H(θ* - θ₀) is one Newton
    step from there to the minimum without the ridge. Its covariance is that of the chain, carried
    along, and G⁻¹ times the dispersion over n, the sampling error.
    """
    p, start, theta = plan.dimension, posterior.start, ended.theta
    prior = posterior.prior_curvature(theta)
    ridge = posterior.ridge * np.eye(p)
    free = definite(known.curvature + prior - ridge)
    onward, forget, _ = carried(plan.settling, free, ridge, ended)
    estimate: Array = start + onward @ (origin + forget @ (theta - origin) - start)
    # Noise on the curvature may hide that there is less of it, by one sd in every direction.
    less = definite(free - known.spread / math.sqrt(2 * p) * np.eye(p))
    onward, forget, noise = carried(plan.settling, less, ridge, ended)
    values, vectors = np.linalg.eigh(noise)
    # By a root of S: a chain that hardly moved is carried far, and rounding with it.
    carried_root = onward @ forget @ (vectors * np.sqrt(np.maximum(values, 0.0)))
    covariance = carried_root @ carried_root.T * sensitivity**2
    covariance += known.dispersion * np.linalg.inv(less) / plan.persons
    return estimate, (covariance + covariance.T) / 2
