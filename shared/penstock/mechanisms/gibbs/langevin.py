r"""Overdamped and underdamped Langevin chains, what they cost, and where their noise ends up.

A step from θ_t with velocity v_t (v₀ = 0), preconditioner P, step size a_t and momentum m:

.. math:: v_{t+1} = m v_t - a_t P (∇F(θ_t) + ξ_t), \quad θ_{t+1} = θ_t + v_{t+1}, \quad
   ξ_t ∼ N(0, σ_t^2 Δ^2 I)

with Δ the sensitivity of ∇F, which holds at every θ (:mod:`penstock.mechanisms.gibbs.posterior`),
so that no record's gradient is clipped. m = 0 is the overdamped (unadjusted) Langevin chain, m > 0
the underdamped one as it is discretised by the heavy ball. One iterate, the last, is released.

*Accounting.* ``plain`` chains (P = I, equal steps η, equal σ) without momentum contract by
``c = max(|1 - ηλ|, |1 - ηβ|)`` for both neighbours, and their last iterate alone is seen: μ-GDP by
:class:`penstock.privacy.events.NoisyDescent`. All others by composition, in which every noisy
gradient may be seen, so that P may be any function of what was released before. A plain chain takes
whichever of the two needs less noise.

*Decreasing steps.* On a quadratic with P the inverse of its Hessian, steps
a_t = s_t/(s_1 + … + s_t) with s_t = 1/σ_t² make the last iterate the mean of all one-step answers,
weighted by precision: its noise is that of one single gradient released at the whole budget,
whatever the number of steps, and no Gaussian can do with less where gradients fill an L2 ball.
Shares s_t that grow forget a poor start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import InvalidEvent
from penstock.privacy.accounting.curves import descent_squared
from penstock.privacy.measurements import GaussianSum, LastIterate, Query, Whole, WholeSum, drive
from penstock.privacy.noise.sources import NoiseSource

Array = NDArray[np.float64]
Gradient = Callable[[Array], Array]
Preconditioner = Callable[[Array], Array]
"""P (p, p) at an iterate: from what was released, and from nothing else."""

LABEL = "Langevin chain"
FAR = 1e6
"""Iterates are projected onto a ball of this radius, which no estimate comes near: whatever noise
does, they stay finite. A projection contracts no less (Bok et al. 2024 project, too)."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The public parameters of a chain.

    Args:
        sizes: a_t, (T,): step sizes.
        multipliers: σ_t, (T,): noise sd on each number of a gradient over the sensitivity Δ.
        momentum: m in [0, 1).
        contraction: c of a plain overdamped chain that is accounted by its last iterate; None:
            composition.
        sensitivity: Δ (zero-out, public n), in units of the bound on a row's own gradient: k/n, and
            room for rounding. That bound follows from what is public or was released before the
            chain began.
    """

    sizes: tuple[float, ...]
    multipliers: tuple[float, ...]
    momentum: float = 0.0
    contraction: float | None = None
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        numbers = (*self.sizes, *self.multipliers)
        if not (
            0 < len(self.sizes) == len(self.multipliers)
            and all(0 < v < math.inf for v in numbers)
            and 0 <= self.momentum < 1
        ):
            raise InvalidEvent("a chain needs positive steps and noise", value=len(self.sizes))
        equal = len(set(self.sizes)) == 1 and len(set(self.multipliers)) == 1
        if self.contraction is not None and not (equal and self.momentum == 0):
            raise InvalidEvent("last iterates are accounted for equal steps without momentum")

    @property
    def steps(self) -> int:
        return len(self.sizes)

    def part(self, first: int, end: int) -> Schedule:
        """A composed chain's steps from the first to before the end."""
        sizes, multipliers = self.sizes[first:end], self.multipliers[first:end]
        return replace(self, sizes=sizes, multipliers=multipliers)

    @property
    def measurements(self) -> tuple[GaussianSum, ...]:
        """The noisy gradients: one measurement for each σ that occurs, in order."""
        if self.contraction is not None:
            credit = LastIterate(self.contraction, self.steps)
            return (GaussianSum(LABEL, self.multipliers[0], self.sensitivity, credit=credit),)
        counts: dict[float, int] = {}
        for sigma in self.multipliers:
            counts[sigma] = counts.get(sigma, 0) + 1
        asked = counts.items()
        return tuple(GaussianSum(LABEL, s, self.sensitivity, count) for s, count in asked)


def joined(first: Schedule, then: Schedule) -> Schedule:
    """Two composed chains of the same momentum, one after the other."""
    if first.contraction is not None or then.contraction is not None:
        raise InvalidEvent("last iterates are accounted of one chain")
    sizes, multipliers = first.sizes + then.sizes, first.multipliers + then.multipliers
    return replace(then, sizes=sizes, multipliers=multipliers)


def contraction(step: float, convexity: float, smoothness: float) -> float:
    """``c = max(|1 - ηλ|, |1 - ηβ|)``, rounded up; at most 1.

    Raises:
        InvalidEvent: not 0 < λ ≤ β, or the step is too long: η > 2/β.
    """
    if not 0 < convexity <= smoothness < math.inf:
        raise InvalidEvent("needs 0 < λ <= β", value=f"{convexity}, {smoothness}")
    if not 0 < step * smoothness <= 2:
        raise InvalidEvent("a step that does not contract", value=step, bound="2/β at most")
    c = max(abs(1 - step * convexity), abs(1 - step * smoothness))
    return min(1.0, c * (1 + 1e-12))


def last_iterate(c: float, steps: int) -> float:
    """σ·μ of the last iterate, as it is charged; at most √T."""
    return math.sqrt(descent_squared(1.0, c, steps))


def plain(
    steps: int, step: float, convexity: float, smoothness: float, mu: float, momentum: float = 0.0
) -> Schedule:
    """Equal steps whose noise makes the chain μ-GDP: by last iterate or composition, the less.

    Args:
        mu: μ > 0 of the whole chain.
        convexity, smoothness: λ and β that hold for both neighbours.
    """
    composed = math.sqrt(steps) / mu
    if momentum > 0:
        return Schedule((step,) * steps, (composed,) * steps, momentum)
    c = contraction(step, convexity, smoothness)
    seen_last = last_iterate(c, steps) / mu
    # A little room: a bound is never taken for the last digit's sake.
    if seen_last * (1 + 1e-9) < composed:
        return Schedule((step,) * steps, (seen_last * (1 + 1e-9),) * steps, 0.0, c)
    return Schedule((step,) * steps, (composed,) * steps)


def averaging(steps: int, growth: float, mu: float, momentum: float = 0.0) -> Schedule:
    """Decreasing steps for a preconditioned chain: shares of the budget grow by ``growth``.

    Args:
        growth: ≥ 1, of one step's share over the one before it.
        mu: μ > 0 of the whole chain, by composition.
        momentum: with it, steps shrink by 1 - m, so that a long run of them goes as far.
    """
    shares = np.power(growth, np.arange(steps) - (steps - 1.0))
    shares /= shares.sum()
    sizes = (1 - momentum) * shares / np.cumsum(shares)
    multipliers = 1.0 / (mu * np.sqrt(shares))
    return Schedule(tuple(sizes.tolist()), tuple(multipliers.tolist()), momentum)


@dataclass(frozen=True, slots=True)
class WholeSteps:
    """A chain's steps as sums of whole numbers, which many sites can add up.

    Args:
        asks: of each step its sum: of rows' own gradients, in units of the bound on one.
        add_up: these sums at an iterate, in whole numbers; read: ∇F of an iterate and a noisy sum.
    """

    asks: tuple[WholeSum, ...]
    add_up: Callable[[Array], Whole]
    read: Callable[[Array, Array], Array]

    def part(self, first: int, end: int) -> WholeSteps:
        """Those from the first to before the end."""
        return replace(self, asks=self.asks[first:end])


@dataclass(frozen=True, slots=True)
class Ended:
    """Where a chain ended: the last iterate (p,), and the preconditioners of its steps."""

    theta: Array
    preconditioners: tuple[Array, ...]


def descend(
    gradient: Gradient,
    start: Array,
    schedule: Schedule,
    unit: float,
    noise: NoiseSource,
    precondition: Preconditioner | None = None,
    progress: Callable[[int, int], None] | None = None,
    longest: float = math.inf,
    whole: WholeSteps | None = None,
) -> Ended:
    """Run a chain; its last iterate is to be released, and no other.

    Args:
        gradient: ∇F, on private rows; one person moves it by at most Δ·``unit`` at any θ.
        start: θ₀ (p,), public or released.
        unit: the bound on a row's own gradient.
        precondition: of the iterate, which composition lets be seen; None: the identity. A chain
            that is accounted by its last iterate must have none.
        longest: a step's length at most, which composition allows, too.
        whole: the steps as sums of whole numbers, in place of the gradient; their noise is the
            schedule's.

    Raises:
        InvalidEvent: a preconditioner with last-iterate accounting.
    """
    session = Chain(schedule, start, unit, precondition, longest, whole)

    def stepped() -> None:
        if progress is not None:
            progress(session.step, schedule.steps)

    drive(session, gradient if whole is None else whole.add_up, noise, stepped)
    return session.ended()


class Chain:
    """A chain between its gradients: a session, with the arguments of :func:`descend`.

    A query is about the iterate θ (p,).
    """

    def __init__(
        self,
        schedule: Schedule,
        start: Array,
        unit: float,
        precondition: Preconditioner | None = None,
        longest: float = math.inf,
        whole: WholeSteps | None = None,
    ) -> None:
        if precondition is not None and schedule.contraction is not None:
            raise InvalidEvent("last iterates are accounted without a preconditioner")
        self._schedule, self._unit, self._precondition = schedule, unit, precondition
        self._longest, self._whole = longest, whole
        if whole is not None:
            given = tuple(asks.noise_multiplier for asks in whole.asks)
            if given != schedule.multipliers or schedule.contraction is not None:
                raise InvalidEvent("sums of other noise than the chain's", value=len(given))
        self._by_sigma = {asks.noise_multiplier: asks for asks in schedule.measurements}
        self._theta = np.array(start, dtype=np.float64)
        self._velocity = np.zeros_like(self._theta)
        self._used: list[Array] = []
        self.step = 0

    def next_query(self) -> Query[Array] | None:
        if self.step >= self._schedule.steps:
            return None
        identity = np.eye(len(self._theta))
        how = self._precondition
        self._used.append(identity if how is None else how(self._theta))
        if self._whole is not None:
            return Query(self._theta, self._whole.asks[self.step])
        asks = self._by_sigma[self._schedule.multipliers[self.step]]
        return Query(self._theta, asks, self._unit)

    def absorb(self, noisy: Array) -> None:
        """One step on a noisy gradient, or on the noisy sum that it is read of."""
        if self._whole is not None:
            noisy = self._whole.read(self._theta, noisy)
        size = self._schedule.sizes[self.step]
        moved = self._schedule.momentum * self._velocity - size * (self._used[-1] @ noisy)
        moved *= min(1.0, self._longest / max(float(np.linalg.norm(moved)), 1e-300))
        theta = self._theta + moved
        self._velocity = moved
        self._theta = theta * min(1.0, FAR / max(float(np.linalg.norm(theta)), 1e-300))
        self.step += 1

    def ended(self) -> Ended:
        """The last iterate, and the preconditioners that led there."""
        return Ended(self._theta, tuple(self._used))


@dataclass(frozen=True, slots=True)
class Propagation:
    """A chain on a quadratic with Hessian H and minimum θ*: θ_T - θ* = Π(θ₀ - θ*) + noise.

    Attributes:
        bias: Π (p, p).
        noise: (p, p) covariance of the noise, for Δ = 1.
    """

    bias: Array
    noise: Array


def propagate(
    schedule: Schedule, hessian: Array, preconditioners: Sequence[Array] | None = None
) -> Propagation:
    """Exactly where a chain's start and noise end up on a quadratic; elsewhere, linearised.

    Overdamped with equal steps this is the Lyapunov sum Σ_k (I-ηH)^k η²σ² (I-ηH)^k.

    Args:
        preconditioners: of each step; None: the identity.
    """
    p = len(hessian)
    identity, zero = np.eye(p), np.zeros((p, p))
    matrices = [identity] * schedule.steps if preconditioners is None else preconditioners
    # State (θ - θ*, v).
    state = np.vstack([identity, zero])
    covariance, turn = np.zeros((2 * p, 2 * p)), np.zeros((2 * p, 2 * p))
    turn[:p, p:] = turn[p:, p:] = schedule.momentum * identity
    for size, sigma, matrix in zip(schedule.sizes, schedule.multipliers, matrices, strict=True):
        drift, kick = matrix @ hessian, matrix @ matrix.T
        turn[:p, :p], turn[p:, :p] = identity - size * drift, -size * drift
        state = turn @ state
        covariance = turn @ covariance @ turn.T
        # To all four blocks: a kick moves θ by as much as v.
        covariance.reshape(2, p, 2, p)[:] += ((size * sigma) ** 2 * kick)[:, None]
    return Propagation(state[:p], covariance[:p, :p])


def carried(
    schedule: Schedule, free: Array, ridge: Array, ended: Ended
) -> tuple[Array, Array, Array]:
    """How an iterate goes into an answer without the ridge: G⁻¹H, (I-Π)⁻¹, and S for Δ = 1.

    With G the data's curvature, H = G + λI; Π and S of :func:`propagate`.
    """
    chain = propagate(schedule, free + ridge, ended.preconditioners)
    forget: Array = np.asarray(np.linalg.inv(np.eye(len(free)) - chain.bias))
    onward: Array = np.asarray(np.linalg.solve(free, free + ridge))
    return onward, forget, chain.noise
