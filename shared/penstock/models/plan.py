"""The ``maf`` mechanism's plan: from a study and the public n to noise multipliers and charges.

Pure and public: no row is read, and no torch is imported, so that the gate can price a study
before it starts a worker. :mod:`penstock.models.mechanism` carries the plan out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.encoding import Encoding
from penstock.errors import BudgetExceeded, InvalidInput, Problem
from penstock.models.architecture import Architecture, public_clip
from penstock.models.margins import histogram_event, moment_event
from penstock.privacy.accountant import epsilon
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import (
    Event,
    Gaussian,
    PoissonGaussian,
    Unbounded,
    latent_injection,
)
from penstock.schema import Schema
from penstock.study import Mechanism, PrivacyRequest

CLIP_QUANTILE = 0.8
PRIVATE_RATE, PUBLIC_RATE = 0.003, 0.01
"""Adam's learning rates with and without noise; frozen on simulated cohorts only."""


@dataclass(frozen=True, slots=True)
class Training:
    """How a flow is trained; all of it public.

    Args:
        steps: number of noisy gradients, fixed.
        clip: C > 0, bound on a person's gradient norm; ``inf`` only without noise.
        noise_multiplier: σ > 0, noise sd over C; None trains without noise, on public rows or in
            the ``empirical`` class only.
        rate: Poisson sampling rate q in (0, 1), or None for all persons at every step.
        learning_rate: Adam's, at the start; it decays to 0 as a half cosine.
        average: the last share of the iterates that is averaged (0: the last iterate).

    Raises:
        InvalidInput: a value out of its bound.
    """

    steps: int
    clip: float
    noise_multiplier: float | None
    rate: float | None = None
    learning_rate: float = 0.01
    average: float = 0.0

    def __post_init__(self) -> None:
        sigma = self.noise_multiplier
        checks = (
            ("steps", self.steps, self.steps >= 1, "at least 1"),
            (
                "clip",
                self.clip,
                self.clip > 0 and (sigma is None or math.isfinite(self.clip)),
                "above 0",
            ),
            (
                "noise multiplier",
                sigma,
                sigma is None or (sigma > 0 and math.isfinite(sigma)),
                "above 0",
            ),
            ("rate", self.rate, self.rate is None or 0 < self.rate < 1, "between 0 and 1"),
            ("learning rate", self.learning_rate, 0 < self.learning_rate < 1, "between 0 and 1"),
            ("average", self.average, 0 <= self.average <= 1, "between 0 and 1"),
        )
        problems = [
            Problem(name, "out of bounds", value=str(v), bound=b)
            for name, v, ok, b in checks
            if not ok
        ]
        if problems:
            raise InvalidInput("training", problems)

    def event(self, label: str = "flow, DP-SGD") -> Event:
        """What this training is accounted as.

        Raises:
            InvalidInput: there is no noise, so that no finite ε covers it.
        """
        if self.noise_multiplier is None:
            raise InvalidInput("training", [Problem("noise multiplier", "none: not private")])
        if self.rate is None:
            return Gaussian(self.noise_multiplier, self.steps, label, self.clip)
        return PoissonGaussian(self.rate, self.noise_multiplier, self.steps, label, self.clip)


@dataclass(frozen=True, slots=True)
class Stages:
    """How the model is fitted.

    Args:
        margins, moments: noise multipliers; None where there is no noise.
        radius: to which rows (scores, 1) are clipped before their moments are summed.
        training: of the flow.
        columns, rows: d encoded columns, at most k rows per person.
    """

    margins: float | None
    moments: float | None
    radius: float
    training: Training
    columns: int
    rows: int

    def events(self) -> tuple[Event, ...]:
        """What fitting is charged as.

        Raises:
            InvalidInput: a stage has no noise, so that no finite ε covers it.
        """
        if self.margins is None or self.moments is None:
            raise InvalidInput("stages", [Problem("noise multiplier", "none: not private")])
        return (
            histogram_event(self.margins, self.columns, self.rows),
            moment_event(self.moments, self.radius, self.columns, self.rows),
            self.training.event(),
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """All public parameters of one run.

    Args:
        persons: public n; rows: k, rows per person at most.
        stages: how the model is fitted.
        events: what the run is charged as; epsilon: their ε at the requested δ.
    """

    guarantee: str
    persons: int
    rows: int
    copies: int
    refits: int
    w: float
    latent_clip: float
    arch: Architecture
    stages: Stages
    events: tuple[Event, ...]
    epsilon: float


def plan(mechanism: Mechanism, schema: Schema, persons: int, privacy: PrivacyRequest) -> Plan:
    """Noise multipliers and charges for a study at a site of ``persons`` persons; reads no row.

    Raises:
        InvalidInput: the study asks for what this mechanism does not do.
        BudgetExceeded: ε does not cover the injection; says which ε or w would do.
    """
    d = len(Encoding(schema).low)
    return plan_columns(mechanism, d, schema.max_rows_per_person, persons, privacy)


def plan_columns(
    mechanism: Mechanism, d: int, rows: int, persons: int, privacy: PrivacyRequest
) -> Plan:
    """:func:`plan` for rows of ``d`` encoded columns, at most ``rows`` of them per person."""
    _check(mechanism, d, rows, persons, privacy)
    arch = Architecture(d, mechanism.flows, tuple(mechanism.hidden))
    injection = _injection(mechanism, rows)
    if privacy.guarantee == "formal":
        stages = _private_stages(mechanism, arch, rows, persons, privacy)
        events = (*stages.events(), *injection)
    else:
        free = Training(mechanism.steps, math.inf, None, _rate(mechanism), PUBLIC_RATE)
        stages = Stages(None, None, math.inf, free, d, rows)
        unbounded = Unbounded("maf, fitted without noise")
        events = injection if privacy.guarantee == "public-flow" else (unbounded,)
    if privacy.guarantee == "public-flow":
        _check_injection(mechanism, rows, privacy)
    return Plan(
        guarantee=privacy.guarantee,
        persons=persons,
        rows=rows,
        copies=mechanism.copies,
        refits=mechanism.refits,
        w=mechanism.w,
        latent_clip=mechanism.latent_clip,
        arch=arch,
        stages=stages,
        events=events,
        epsilon=epsilon(events, privacy.delta),
    )


def _private_stages(
    mechanism: Mechanism, arch: Architecture, rows: int, persons: int, privacy: PrivacyRequest
) -> Stages:
    """Stages whose noise, together with the injection, costs at most ε."""
    _check_injection(mechanism, rows, privacy)
    injection = _injection(mechanism, rows)
    # What one release would get if it had all: the signal, on which the division depends.
    whole = smallest_scale(lambda s: (Gaussian(s), *injection), privacy.epsilon, privacy.delta)
    tuning = tune(persons / whole, persons, arch.d)
    clip = tuning.clip * public_clip(arch, CLIP_QUANTILE, rows)
    rate = _rate(mechanism)
    # A Poisson-sampled step costs about q² of a full one, hence the rate.
    per_step = math.sqrt(mechanism.steps / tuning.flow) * (1.0 if rate is None else rate)

    def stages(scale: float) -> Stages:
        return Stages(
            margins=scale / math.sqrt(tuning.margins),
            moments=scale / math.sqrt(tuning.moments),
            radius=tuning.radius,
            training=Training(mechanism.steps, clip, scale * per_step, rate, PRIVATE_RATE),
            columns=arch.d,
            rows=rows,
        )

    def charges(scale: float) -> tuple[Event, ...]:
        return (*stages(scale).events(), *injection)

    return stages(smallest_scale(charges, privacy.epsilon, privacy.delta))


def _rate(mechanism: Mechanism) -> float | None:
    return mechanism.rate if mechanism.sampling == "poisson" and mechanism.rate < 1 else None


@dataclass(frozen=True, slots=True)
class Tuning:
    """What the signal decides.

    Args:
        margins, moments, flow: shares of the budget (1/σ² summed over releases), adding up to 1.
        radius: to which rows (scores, 1) are clipped before their moments are summed.
        clip: of gradients, in units of :func:`penstock.models.architecture.public_clip`.
    """

    margins: float
    moments: float
    flow: float
    radius: float
    clip: float


def tune(signal: float, persons: int, d: int) -> Tuning:
    """Frozen on simulated cohorts; ``signal`` is n·μ, where μ² = Σ 1/σ² over the whole budget.

    With little signal nearly all goes to the moments, and the model stays close to a Gaussian; with
    much, most goes to the flow. Clipping gives way as noise does: the radius where the moments'
    noise stays below their sampling error, the gradients' bound in proportion to the signal. A
    moment's noise grows like d + 1, hence the rescaling.
    """
    relative = max(signal * 7 / (d + 1), 1e-9)
    low, high = math.log(700.0), math.log(5000.0)
    at = min(max((math.log(relative) - low) / (high - low), 0.0), 1.0)
    moments = 0.75 - 0.45 * at
    typical = math.sqrt(d + 1)
    radius = math.sqrt(0.4 * signal * math.sqrt(moments / persons))
    return Tuning(
        margins=0.1,
        moments=moments,
        flow=0.9 - moments,
        radius=min(max(radius, typical + 0.75), typical + 3),
        clip=min(max(relative / 3000, 1.0), 8.0),
    )


def _injection(mechanism: Mechanism, rows: int) -> tuple[Event, ...]:
    if mechanism.w == 0:
        return ()
    return (latent_injection(mechanism.w, mechanism.latent_clip, mechanism.copies * rows),)


def _check_injection(mechanism: Mechanism, rows: int, privacy: PrivacyRequest) -> None:
    """Refuse a w whose injection alone costs more than ε, and say what would do."""
    spent = epsilon(_injection(mechanism, rows), privacy.delta)
    if not spent > privacy.epsilon:
        return
    count = mechanism.copies * rows
    # √((1-w)/w)/R is the noise multiplier; the smallest that fits gives the largest w.
    sigma = smallest_scale(lambda s: (Gaussian(s, count),), privacy.epsilon, privacy.delta)
    largest = 1 / (1 + (sigma * mechanism.latent_clip) ** 2)
    raise BudgetExceeded(
        f"latent noise injection alone, {count} releases at w = {mechanism.w:g}, costs too much",
        value=f"ε = {spent:.4g}",
        bound=f"at most {privacy.epsilon:g}",
        remedy=f"use w below {math.floor(largest * 1e6) / 1e6:g}, ask for an ε above {spent:.4g},"
        " or ask for fewer copies",
    )


def _check(mechanism: Mechanism, d: int, rows: int, persons: int, privacy: PrivacyRequest) -> None:
    """What a valid study may still ask and this mechanism cannot do."""
    sizes = (("columns", d), ("max_rows_per_person", rows), ("persons", persons))
    problems = [
        Problem(name, "too few", value=str(value), bound="at least 1")
        for name, value in sizes
        if not value >= 1
    ]
    if mechanism.name != "maf":
        problems.append(Problem("mechanism.name", "another mechanism's plan", bound="maf"))
    if privacy.guarantee == "public-flow" and mechanism.w == 0:
        problems.append(
            Problem(
                "mechanism.w",
                "a flow from public rows alone would release nothing private",
                value="0",
                bound="above 0",
                remedy="Set w, or ask for guarantee formal",
            )
        )
    if problems:
        raise InvalidInput("mechanism", problems)
