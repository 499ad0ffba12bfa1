r"""What the theorems of Ganesh & Talwar 2020 would ask: for comparison, never as a guarantee.

"Faster Differentially Private Samplers via Rényi Divergence Analysis of Discretized Langevin MCMC"
(arXiv 2010.14658) bounds the Rényi divergence between a discretised Langevin chain and the Gibbs
posterior R ∝ e^-f that it approximates, f 1-strongly convex and κ-smooth with its minimum at 0. A
private posterior then gives a private chain, (ζ, δ)-DP the one and (3ζ, 3δ)-DP the other (after
Theorem 1). The paper leaves its constants to "a sufficiently large c"; here is each of them, from
its proofs:

- *Lemma 13* (movement within a step, strongly convex): c = 44. The hardest of its steps is the
  continuous chain's ‖x‖ ≤ c/(4√η)·(√d + √ln(T/δ)): a step contracts by e^(-η/2) ≤ 1 - .393η for
  η ≤ 1, and adds at most √(2η)·(√d + √(2 ln(4(T+1)/δ))) ≤ √(2η)·3.04·(√d + √ln(T/δ)) (Fact 30,
  T ≥ 1, d ≥ 1), so c ≥ 4√2·3.04/.393 = 43.8; the Brownian part (Fact 32) asks for 9.5 alone.
- *Lemma 18* (Lipschitz): c = 3.8, from ηB ≤ √η·B and Fact 32 at δ/T.
- *Lemma 27* (underdamped): c = 2√2. With φ the Hamiltonian, sup of √(2γμ)·W_s - (γ/2)s exceeds
  2μ ln(1/δ) with probability δ, so ‖v‖² ≤ 2φ₀ + 4μ ln(1/δ) + 4γμdτ; γ ≥ 2, and the start within
  half of the bound.

Theorem 19's statement has κ⁴ where its proof, with Lemma 18 for Lemma 13, gives κ²: we take κ².
Theorem 28's proof writes μ for what its Lemmas 26 and 27 multiply to μ²; we take μ². No convergence
in Rényi divergence is proved there for the underdamped diffusion, nor for the merely Lipschitz
case: their counts are for a time that is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from penstock.base.errors import InvalidEvent

MOVEMENT, LIPSCHITZ_MOVEMENT, VELOCITY = 44.0, 3.8, 2 * math.sqrt(2.0)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a theorem asks of a chain.

    Attributes:
        theorem: which.
        steps: T = τ/η, at least; step: η; time: τ.
        order: α, divergence: ε of the Rényi divergence that is guaranteed then.
    """

    theorem: str
    steps: float
    step: float
    time: float
    order: float
    divergence: float


def order_and_divergence(zeta: float, delta: float) -> tuple[float, float]:
    """(α, ε) = (1 + 2 ln(1/δ)/ζ, ζ/2), which Fact 9 turns into (ζ, δ) (after Theorem 1)."""
    _positive(zeta=zeta, delta=delta)
    if not delta < 1:
        raise InvalidEvent("δ must be below 1", value=delta)
    return 1 + 2 * math.log(1 / delta) / zeta, zeta / 2


def inner_order(order: float, divergence: float) -> float:
    """α' of Theorem 15's proof: 4ακ - 2, κ = 3 ln α · ln(1/ε)/((α-1)ε), at least 1; α ≥ 4."""
    _positive(divergence=divergence)
    if not 1 < order < math.inf:
        raise InvalidEvent("an order above 1", value=order)
    if divergence >= 3 * math.log(order) / (order - 1):
        return 4 * max(order, 4.0) - 2
    ratio = 3 * math.log(order) * math.log(1 / min(divergence, 1 / math.e))
    return 4 * order * max(1.0, ratio / ((order - 1) * divergence)) - 2


def theorem_15(order: float, divergence: float, kappa: float, d: int, time: float) -> Asked:
    """Overdamped, against the continuous diffusion at time τ.

    The largest η with 3τα'(α'-1)κ⁴c²(d + 2 ln(τ/η))η/4 ≤ ln 2 and η ≤ 2/(κ+1), c of Lemma 13.
    """
    _positive(kappa=kappa, d=d, time=time)
    inner = inner_order(order, divergence)
    factor = 3 * time * inner * (inner - 1) * kappa**4 * MOVEMENT**2 / 4

    def holds(step: float) -> bool:
        steps = max(time / step, 1.0)
        return factor * (d + 2 * math.log(steps)) * step <= math.log(2)

    step = _largest(holds, 2 / (kappa + 1))
    return Asked("theorem 15", time / step, step, time, order, divergence)


def theorem_12(order: float, divergence: float, kappa: float, d: int) -> Asked:
    """Overdamped from N(0, I/κ), D_α(P‖R) ≤ ε: theorem 15 at (2α, ε/3), τ = α ln(3d ln κ/(2ε)).

    (Lemmas 16 and 17 bring D_2α(Q‖R) to ε/3; Fact 7 with p = q = 2 adds them, α ≥ 3/2.)
    """
    time = order * math.log(max(3 * d * math.log(kappa) / (2 * divergence), math.e))
    found = theorem_15(2 * order, divergence / 3, kappa, d, time)
    return Asked("theorem 12", found.steps, found.step, time, order, divergence)


def theorem_1(order: float, divergence: float, kappa: float, d: int) -> Asked:
    """Overdamped from N(0, I), both directions: theorem 15 at (2α, ε/3), the longer of two times.

    τ = 2α ln(3d ln κ/ε) brings D_2α(R‖Q) to ε/3 (Lemmas 20, 22), and
    τ = ½ ln((2α-1)κ) + α ln(3d ln κ/ε) does so for D_2α(Q‖R) (Lemmas 17, 21, 22).
    """
    far = math.log(max(3 * d * math.log(kappa) / divergence, math.e))
    time = max(2 * order * far, 0.5 * math.log((2 * order - 1) * kappa) + order * far)
    found = theorem_15(2 * order, divergence / 3, kappa, d, time)
    return Asked("theorem 1", found.steps, found.step, time, order, divergence)


def corollary(zeta: float, delta: float, kappa: float, d: int) -> Asked:
    """Theorem 1 at (α, ε) of (ζ, δ): a (ζ, δ)-DP posterior gives a (3ζ, 3δ)-DP chain."""
    order, divergence = order_and_divergence(zeta, delta)
    found = theorem_1(order, divergence, kappa, d)
    return Asked("(3ζ, 3δ) corollary", found.steps, found.step, found.time, order, divergence)


def corollary_11(zeta: float, delta: float, kappa: float, d: int) -> Asked:
    """The cheapest reading: Corollary 11 alone, what may move too far taken off δ.

    Tακ²r²η/4 ≤ ζ/2 with r = √(2η)·s + ηκ·s, s = √d + √(2 ln(4T/δ)), where Lemma 13's movements stay
    with probability 1 - δ, for a chain that starts within s of the minimum; τ = α ln(d ln κ/ε).
    """
    order, divergence = order_and_divergence(zeta, delta)
    _positive(kappa=kappa, d=d)
    time = order * math.log(max(d * math.log(kappa) / divergence, math.e))

    def holds(step: float) -> bool:
        steps = max(time / step, 1.0)
        reach = math.sqrt(d) + math.sqrt(2 * math.log(4 * steps / delta))
        moved = math.sqrt(2 * step) * reach + step * kappa * reach
        return time * order * (kappa * moved) ** 2 / 4 <= divergence

    step = _largest(holds, 2 / (kappa + 1))
    return Asked("corollary 11", time / step, step, time, order, divergence)


def theorem_19(
    order: float, divergence: float, kappa: float, d: int, time: float, lipschitz: float
) -> Asked:
    """Overdamped, f B-Lipschitz and κ-smooth, against the diffusion at a given time.

    The largest η ≤ 1 with τα'(α'-1)κ²c²(B² + d + 2 ln(τ/η))η ≤ ln 2, c of Lemma 18.
    """
    _positive(kappa=kappa, d=d, time=time, lipschitz=lipschitz)
    inner = inner_order(order, divergence)
    factor = time * inner * (inner - 1) * kappa**2 * LIPSCHITZ_MOVEMENT**2

    def holds(step: float) -> bool:
        steps = max(time / step, 1.0)
        return factor * (lipschitz**2 + d + 2 * math.log(steps)) * step <= math.log(2)

    step = _largest(holds, 1.0)
    return Asked("theorem 19", time / step, step, time, order, divergence)


def theorem_28(
    order: float,
    divergence: float,
    kappa: float,
    d: int,
    time: float,
    friction: float = 2.0,
    mass: float | None = None,
) -> Asked:
    """Underdamped, against the underdamped diffusion at a given time.

    The largest η ≤ γ/(μκ) with 3τ²dα'(α'-1)κ²μ²c²η²/4 ≤ ln 2, c of Lemma 27; γ ≥ 2.

    Args:
        friction: γ; mass: μ, by default 1/κ (inverse mass in units of the smoothness).
    """
    mu = 1 / kappa if mass is None else mass
    _positive(kappa=kappa, d=d, time=time, mass=mu)
    if not friction >= 2:
        raise InvalidEvent("γ must be at least 2", value=friction)
    inner = inner_order(order, divergence)
    factor = 3 * time**2 * d * inner * (inner - 1) * (kappa * mu * VELOCITY) ** 2 / 4
    step = min(math.sqrt(math.log(2) / factor), friction / (mu * kappa))
    return Asked("theorem 28", time / step, step, time, order, divergence)


def _largest(holds: Callable[[float], bool], most: float) -> float:
    """The largest step (to 1e-6, relative, from below) that a monotone condition allows."""
    if holds(most):
        return most
    low, high = most, most
    while not holds(low):
        low /= 16
        if low < 1e-300:
            raise InvalidEvent("no step is short enough", value=most)
    while high > low * (1 + 1e-6):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise InvalidEvent(f"{name} must be finite and positive", value=value)
