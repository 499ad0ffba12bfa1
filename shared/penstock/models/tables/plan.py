"""The ``maf`` mechanism's plan: from a study and the public n to noise multipliers and charges.

Pure and public: no row is read, and no torch is imported, so that the gate can price a study
before it starts a worker. :mod:`penstock.models.tables.mechanism` carries the plan out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.encoding import Encoding
from penstock.errors import BudgetExceeded, InvalidInput, Problem
from penstock.mechanisms import Maf
from penstock.models.flow.architecture import Architecture, public_clip
from penstock.models.flow.training import Training
from penstock.models.tables.margins import histogram_event
from penstock.models.tables.moments import moment_event
from penstock.models.tables.outcome import outcome_event
from penstock.privacy.accountant import epsilon
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import (
    Event,
    Gaussian,
    Unbounded,
    latent_injection,
)
from penstock.privacy.sensitivity import second_moments
from penstock.schema import Schema
from penstock.study import PrivacyRequest

CLIP_QUANTILE = 0.8
_UNCLIPPED = 100.0
PRIVATE_RATE, PUBLIC_RATE = 0.003, 0.01
"""Adam's learning rates with and without noise; frozen on simulated cohorts only."""


@dataclass(frozen=True, slots=True)
class Stages:
    """How the model is fitted.

    Args:
        margins, moments, outcome: noise multipliers; None where there is no noise.
        radius: to which rows (scores, 1) are clipped before their moments are summed.
        training: of the flow.
        columns, rows: d encoded columns, at most k rows per person.
        outcomes: how many durations with their events there are.
    """

    margins: float | None
    moments: float | None
    outcome: float | None
    radius: float
    training: Training
    columns: int
    rows: int
    outcomes: int

    @property
    def moment_sd(self) -> float:
        """Standard deviation of the noise on a moment of two different entries."""
        if self.moments is None:
            return 0.0
        return self.moments * second_moments(self.radius, self.rows) / math.sqrt(2)

    @property
    def outcome_sd(self) -> float:
        """Standard deviation of the noise on each entry of an outcome's score."""
        if self.outcome is None:
            return 0.0
        return self.outcome * outcome_event(self.outcome, self.columns, self.outcomes).sensitivity

    def events(self) -> tuple[Event, ...]:
        """What fitting is charged as.

        Raises:
            InvalidInput: a stage has no noise, so that no finite ε covers it.
        """
        unknown = self.outcomes and self.outcome is None
        if self.margins is None or self.moments is None or unknown:
            raise InvalidInput("stages", [Problem("noise multiplier", "none: not private")])
        outcome: tuple[Event, ...] = ()
        if self.outcome is not None:
            outcome = (outcome_event(self.outcome, self.columns, self.outcomes),)
        return (
            histogram_event(self.margins, self.columns, self.rows, self.outcomes),
            moment_event(self.moments, self.radius, self.columns, self.rows),
            self.training.event(),
            *outcome,
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """All public parameters of one run.

    Args:
        persons: public n; rows: k, rows per person at most.
        latent_clip: radius to which injected latents are clipped.
        stages: how the model is fitted.
        events: what the run is charged as; epsilon: their ε at the requested δ.
        corrected: whether samples are matched to the noisy moments and the outcome's score.
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
    corrected: bool


def plan(mechanism: Maf, schema: Schema, persons: int, privacy: PrivacyRequest) -> Plan:
    """Noise multipliers and charges for a study at a site of ``persons`` persons; reads no row.

    Raises:
        InvalidInput: the study asks for what this mechanism does not do.
        BudgetExceeded: ε does not cover the injection; says which ε or w would do.
    """
    encoding = Encoding(schema)
    rows, outcomes = schema.max_rows_per_person, len(encoding.outcomes)
    return plan_columns(mechanism, encoding.d, rows, persons, privacy, outcomes)


def plan_columns(
    mechanism: Maf,
    d: int,
    rows: int,
    persons: int,
    privacy: PrivacyRequest,
    outcomes: int = 0,
) -> Plan:
    """:func:`plan` for rows of ``d`` encoded columns, at most ``rows`` of them per person.

    ``outcomes``: how many durations with their events are among the columns.
    """
    _check(mechanism, d, rows, persons, privacy)
    arch = Architecture(d, mechanism.flows, tuple(mechanism.hidden))
    injection = _injection(mechanism, rows)
    if privacy.guarantee == "formal":
        stages = _private_stages(mechanism, arch, rows, persons, privacy, outcomes)
        events = (*stages.events(), *injection)
    else:
        free = Training(mechanism.steps, math.inf, None, _rate(mechanism), PUBLIC_RATE)
        stages = Stages(None, None, None, math.inf, free, d, rows, outcomes)
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
        # Where ε is ∞ whatever the radius, clipping would protect nobody, and cost accuracy.
        latent_clip=_UNCLIPPED if privacy.guarantee == "empirical" else mechanism.latent_clip,
        arch=arch,
        stages=stages,
        events=events,
        epsilon=epsilon(events, privacy.delta),
        corrected=privacy.guarantee == "formal" or mechanism.w == 0,
    )


def _private_stages(
    mechanism: Maf,
    arch: Architecture,
    rows: int,
    persons: int,
    privacy: PrivacyRequest,
    outcomes: int,
) -> Stages:
    """Stages whose noise, together with the injection, costs at most ε."""
    _check_injection(mechanism, rows, privacy)
    injection = _injection(mechanism, rows)
    # What one release would get if it had all: the signal, on which the division depends.
    whole = smallest_scale(lambda s: (Gaussian(s), *injection), privacy.epsilon, privacy.delta)
    tuning = tune(persons / whole, persons, arch.d, outcomes)
    clip = tuning.clip * public_clip(arch, CLIP_QUANTILE, rows)
    rate = _rate(mechanism)
    # A Poisson-sampled step costs about q² of a full one, hence the rate.
    per_step = math.sqrt(mechanism.steps / tuning.flow) * (1.0 if rate is None else rate)

    def stages(scale: float) -> Stages:
        return Stages(
            margins=scale / math.sqrt(tuning.margins),
            moments=scale / math.sqrt(tuning.moments),
            outcome=scale / math.sqrt(tuning.outcome) if outcomes else None,
            radius=tuning.radius,
            training=Training(mechanism.steps, clip, scale * per_step, rate, PRIVATE_RATE),
            columns=arch.d,
            rows=rows,
            outcomes=outcomes,
        )

    def charges(scale: float) -> tuple[Event, ...]:
        return (*stages(scale).events(), *injection)

    return stages(smallest_scale(charges, privacy.epsilon, privacy.delta))


def _rate(mechanism: Maf) -> float | None:
    return mechanism.rate if mechanism.sampling == "poisson" and mechanism.rate < 1 else None


@dataclass(frozen=True, slots=True)
class Tuning:
    """What the signal decides.

    Args:
        margins, moments, flow, outcome: shares of the budget (1/σ² summed over releases), adding
            up to 1.
        radius: to which rows (scores, 1) are clipped before their moments are summed.
        clip: of gradients, in units of :func:`penstock.models.flow.architecture.public_clip`.
    """

    margins: float
    moments: float
    flow: float
    outcome: float
    radius: float
    clip: float


def tune(signal: float, persons: int, d: int, outcomes: int = 0) -> Tuning:
    """Frozen on simulated cohorts; ``signal`` is n·μ, where μ² = Σ 1/σ² over the whole budget.

    With little signal nearly all goes to the moments, and the model stays close to a Gaussian
    copula; with much, most goes to the flow. Clipping gives way as noise does: the radius where the
    moments' noise stays below their sampling error, the gradients' bound in proportion to the
    signal. A moment's noise grows like d + 1, hence the rescaling.
    """
    relative = max(signal * 7 / (d + 1), 1e-9)
    low, high = math.log(700.0), math.log(5000.0)
    at = min(max((math.log(relative) - low) / (high - low), 0.0), 1.0)
    margins = 0.2 - 0.1 * at
    outcome = 0.1 if outcomes else 0.0
    moments = 0.65 - 0.3 * at
    typical = math.sqrt(d + 1)
    radius = math.sqrt(0.4 * signal * math.sqrt(moments / persons))
    return Tuning(
        margins=margins,
        moments=moments,
        flow=1.0 - margins - outcome - moments,
        outcome=outcome,
        radius=min(max(radius, typical + 0.75), typical + 3),
        clip=min(max(relative / 3000, 1.0), 8.0),
    )


def _injection(mechanism: Maf, rows: int) -> tuple[Event, ...]:
    if mechanism.w == 0:
        return ()
    return (latent_injection(mechanism.w, mechanism.latent_clip, mechanism.copies * rows),)


def _check_injection(mechanism: Maf, rows: int, privacy: PrivacyRequest) -> None:
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


def _check(mechanism: Maf, d: int, rows: int, persons: int, privacy: PrivacyRequest) -> None:
    """What a valid study may still ask and this mechanism cannot do."""
    sizes = (("columns", d), ("max_rows_per_person", rows), ("persons", persons))
    problems = [
        Problem(name, "too few", value=str(value), bound="at least 1")
        for name, value in sizes
        if not value >= 1
    ]
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
