"""The plan of ``maf``: from a study and the public n to noise multipliers and charges.

Pure and public, as :mod:`penstock.mechanisms.tables.plan`, which has what tables have in common.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from penstock.base.errors import BudgetExceeded, InvalidInput, Problem
from penstock.mechanisms.flow.architecture import Architecture, public_clip
from penstock.mechanisms.flow.training import Training
from penstock.mechanisms.maf.body import Autoregressive
from penstock.mechanisms.maf.settings import Maf
from penstock.mechanisms.tables.plan import (
    UNCLIPPED,
    Plan,
    plan_stages,
    private_stages,
    size_problems,
)
from penstock.mechanisms.tables.stages import Body, Stages, Tuning
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Gaussian
from penstock.privacy.measurements import LatentNoise
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Schema
from penstock.schema.encoding import Encoding

CLIP_QUANTILE = 0.8
PRIVATE_RATE, PUBLIC_RATE = 0.003, 0.01
"""Adam's learning rates with and without noise; frozen on simulated cohorts only."""


def plan(mechanism: Maf, schema: Schema, persons: int, privacy: PrivacyRequest) -> Plan:
    """Noise multipliers and charges for a study at a site of ``persons`` persons; reads no row.

    Raises:
        InvalidInput: the study asks for what this mechanism does not do.
        BudgetExceeded: ε does not cover the injection; says which ε or w would do.
    """
    encoding = Encoding(schema)
    rows, outcomes = schema.max_rows_per_person, len(encoding.outcomes)
    given = (mechanism, encoding.d, rows, persons, privacy, outcomes)
    return plan_columns(*given, encoding.spared)


def plan_columns(
    mechanism: Maf,
    d: int,
    rows: int,
    persons: int,
    privacy: PrivacyRequest,
    outcomes: int = 0,
    spared: int = 0,
) -> Plan:
    """:func:`plan` for rows of ``d`` encoded columns, at most ``rows`` of them per person.

    ``outcomes``: how many durations with their events are among the columns; ``spared``: how many
    columns share their count, of levels, with another.
    """
    _check(mechanism, d, rows, persons, privacy)
    arch = Architecture(d, mechanism.flows, tuple(mechanism.hidden))
    # Where ε is ∞ whatever the radius, clipping would protect nobody, and cost accuracy.
    clip = UNCLIPPED if privacy.guarantee == "empirical" else mechanism.latent_clip
    injection = _injection(mechanism, rows, clip)
    if privacy.guarantee != "empirical":
        _check_injection(mechanism, rows, injection, privacy)
    if privacy.guarantee == "formal":

        def body(signal: float, tuning: Tuning) -> Callable[[float], Body]:
            return _autoregressive(mechanism, arch, rows, tuning)

        free = () if injection is None else (injection.event,)
        stages = private_stages(body, d, rows, persons, privacy, outcomes, free, spared)
    else:
        noiseless = Training(mechanism.steps, math.inf, None, _rate(mechanism), PUBLIC_RATE)
        flow = Autoregressive(arch, noiseless)
        stages = Stages(None, None, None, math.inf, flow, d, rows, outcomes)
    return plan_stages(
        mechanism.copies,
        mechanism.refits,
        persons,
        privacy,
        stages,
        clip,
        injection,
        unbounded="maf, fitted without noise",
    )


def _autoregressive(
    mechanism: Maf, arch: Architecture, rows: int, tuning: Tuning
) -> Callable[[float], Autoregressive]:
    clip = tuning.clip * public_clip(arch, CLIP_QUANTILE, rows)
    rate = _rate(mechanism)
    # A Poisson-sampled step costs about q² of a full one, hence the rate.
    per_step = math.sqrt(mechanism.steps / tuning.flow) * (1.0 if rate is None else rate)

    def at(scale: float) -> Autoregressive:
        return Autoregressive(
            arch, Training(mechanism.steps, clip, scale * per_step, rate, PRIVATE_RATE)
        )

    return at


def _rate(mechanism: Maf) -> float | None:
    return mechanism.rate if mechanism.sampling == "poisson" and mechanism.rate < 1 else None


def _injection(mechanism: Maf, rows: int, clip: float) -> LatentNoise | None:
    return LatentNoise(mechanism.w, clip, rows, mechanism.copies) if mechanism.w > 0 else None


def _check_injection(
    mechanism: Maf, rows: int, injection: LatentNoise | None, privacy: PrivacyRequest
) -> None:
    """Refuse a w whose injection alone costs more than ε, and say what would do."""
    if injection is None:
        return
    spent = epsilon((injection.event,), privacy.delta)
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
    problems = size_problems(d, rows, persons)
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
