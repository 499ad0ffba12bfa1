"""The plan of a synthetic table: from a study and the public n to noise multipliers and charges.

Pure and public: no row is read, and no torch is imported, so that the gate can price a study
before it starts a worker. :mod:`penstock.mechanisms.tables.run` carries the plan out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.base.errors import BudgetExceeded, InvalidInput, Problem
from penstock.mechanisms import Maf, SlicedWasserstein
from penstock.mechanisms.flow.architecture import Architecture, public_clip
from penstock.mechanisms.flow.training import Training
from penstock.mechanisms.sliced_wasserstein import tuning as sliced_tuning
from penstock.mechanisms.sliced_wasserstein.body import Sliced
from penstock.mechanisms.sliced_wasserstein.directions import rounds
from penstock.mechanisms.sliced_wasserstein.goals import Schedule
from penstock.mechanisms.tables.margins import measure_histograms
from penstock.mechanisms.tables.moments import measure_moments
from penstock.mechanisms.tables.outcome import measure_scores
from penstock.mechanisms.tables.stages import Autoregressive, Body, Stages, Tuning, tune
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Event, Gaussian, Unbounded
from penstock.privacy.measurements import LatentNoise, Measurement, charge
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Schema
from penstock.schema.encoding import Encoding

CLIP_QUANTILE = 0.8
_UNCLIPPED = 100.0
_MOST_PAIRED = 1024
"""Directions, up to which a sketch has those of all pairs of columns."""

_ROW_BASES, _ROW_MARGIN = 4, 0.5
"""Of noisy projections of rows: how many bases, and by how much rows may be longer than √d, as
standard Gaussians mostly are."""
PRIVATE_RATE, PUBLIC_RATE = 0.003, 0.01
"""Adam's learning rates with and without noise; frozen on simulated cohorts only."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All public parameters of one run.

    Args:
        persons: public n; rows: k, rows per person at most.
        injection: of the rows' own latents; None at w = 0, where tables have none of them.
        latent_clip: radius to which latents are, or would be, clipped.
        stages: how the model is fitted.
        epsilon: of the events at the requested δ.
        corrected: whether samples are matched to the noisy moments and the outcome's score.
    """

    guarantee: str
    persons: int
    rows: int
    copies: int
    refits: int
    injection: LatentNoise | None
    latent_clip: float
    stages: Stages
    epsilon: float
    corrected: bool

    @property
    def d(self) -> int:
        """Encoded columns."""
        return self.stages.columns

    @property
    def w(self) -> float:
        """The rows' own share of the latents."""
        return 0.0 if self.injection is None else self.injection.w

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """All that is asked of rows, and the noise with which it leaves."""
        stages = self.stages.measurements if self.guarantee == "formal" else ()
        return stages if self.injection is None else (*stages, self.injection)

    @property
    def events(self) -> tuple[Event, ...]:
        """What the run is charged as: ∞ where rows are looked at without noise."""
        if self.guarantee == "empirical":
            return (Unbounded("maf, fitted without noise"),)
        return charge(self.measurements)


def plan(
    mechanism: Maf | SlicedWasserstein, schema: Schema, persons: int, privacy: PrivacyRequest
) -> Plan:
    """Noise multipliers and charges for a study at a site of ``persons`` persons; reads no row.

    Raises:
        InvalidInput: the study asks for what this mechanism does not do.
        BudgetExceeded: ε does not cover the injection; says which ε or w would do.
    """
    encoding = Encoding(schema)
    rows, outcomes = schema.max_rows_per_person, len(encoding.outcomes)
    return plan_columns(mechanism, encoding.d, rows, persons, privacy, outcomes)


def plan_columns(
    mechanism: Maf | SlicedWasserstein,
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
    if isinstance(mechanism, Maf):
        return _plan_maf(mechanism, d, rows, persons, privacy, outcomes)

    def body(signal: float, tuning: Tuning) -> Callable[[float], Body]:
        return _sliced(mechanism, d, rows, persons, signal, tuning)

    stages = _private_stages(body, d, rows, persons, privacy, outcomes, ())
    return _planned(mechanism, persons, privacy, stages, _UNCLIPPED, None)


def _plan_maf(
    mechanism: Maf, d: int, rows: int, persons: int, privacy: PrivacyRequest, outcomes: int
) -> Plan:
    arch = Architecture(d, mechanism.flows, tuple(mechanism.hidden))
    # Where ε is ∞ whatever the radius, clipping would protect nobody, and cost accuracy.
    clip = _UNCLIPPED if privacy.guarantee == "empirical" else mechanism.latent_clip
    injection = _injection(mechanism, rows, clip)
    if privacy.guarantee != "empirical":
        _check_injection(mechanism, rows, injection, privacy)
    if privacy.guarantee == "formal":

        def body(signal: float, tuning: Tuning) -> Callable[[float], Body]:
            return _autoregressive(mechanism, arch, rows, tuning)

        free = () if injection is None else (injection.event,)
        stages = _private_stages(body, d, rows, persons, privacy, outcomes, free)
    else:
        noiseless = Training(mechanism.steps, math.inf, None, _rate(mechanism), PUBLIC_RATE)
        flow = Autoregressive(arch, noiseless)
        stages = Stages(None, None, None, math.inf, flow, d, rows, outcomes)
    return _planned(mechanism, persons, privacy, stages, clip, injection)


def _planned(
    mechanism: Maf | SlicedWasserstein,
    persons: int,
    privacy: PrivacyRequest,
    stages: Stages,
    clip: float,
    injection: LatentNoise | None,
) -> Plan:
    made = Plan(
        guarantee=privacy.guarantee,
        persons=persons,
        rows=stages.rows,
        copies=mechanism.copies,
        refits=mechanism.refits,
        injection=injection,
        latent_clip=clip,
        stages=stages,
        epsilon=math.inf,
        corrected=privacy.guarantee == "formal" or injection is None,
    )
    return replace(made, epsilon=epsilon(made.events, privacy.delta))


def _private_stages(
    body: Callable[[float, Tuning], Callable[[float], Body]],
    d: int,
    rows: int,
    persons: int,
    privacy: PrivacyRequest,
    outcomes: int,
    injection: tuple[Event, ...],
) -> Stages:
    """Stages whose noise, together with the injection, costs at most ε.

    ``body``: from the signal and its division to bodies on a scale of noise.
    """
    # What one release would get if it had all: the signal, on which the division depends.
    whole = smallest_scale(lambda s: (Gaussian(s), *injection), privacy.epsilon, privacy.delta)
    tuning = tune(persons / whole, persons, d, outcomes)
    bodies = body(persons / whole, tuning)

    def stages(scale: float) -> Stages:
        return Stages(
            margins=measure_histograms(scale / math.sqrt(tuning.margins), d, rows, outcomes),
            moments=measure_moments(scale / math.sqrt(tuning.moments), tuning.radius, d, rows),
            outcome=measure_scores(scale / math.sqrt(tuning.outcome), d, outcomes)
            if outcomes
            else None,
            radius=tuning.radius,
            body=bodies(scale),
            columns=d,
            rows=rows,
            outcomes=outcomes,
        )

    def charges(scale: float) -> tuple[Event, ...]:
        return (*charge(stages(scale).measurements), *injection)

    return stages(smallest_scale(charges, privacy.epsilon, privacy.delta))


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


def _sliced(
    mechanism: SlicedWasserstein, d: int, rows: int, persons: int, signal: float, tuning: Tuning
) -> Callable[[float], Sliced]:
    schedule = Schedule(mechanism.steps, mechanism.step, diffusion=mechanism.diffusion)
    tuned = sliced_tuning.tune(signal, persons, d)
    noisy_rows = mechanism.variant != "sketch"
    # A batch of steps is charged step by step; everything else once.
    releases = mechanism.steps if mechanism.variant == "resampled" else 1
    whole = Sliced(
        variant=mechanism.variant,
        persons=persons,
        d=d,
        rows=rows,
        bases=mechanism.bases or (_ROW_BASES if noisy_rows else max(tuned.bases, _pairs(d))),
        bins=mechanism.bins or tuned.bins,
        batch=min(mechanism.batch, persons),
        radius=math.sqrt(d) + _ROW_MARGIN,
        noise_multiplier=1.0,
        schedule=schedule,
    )
    rate = whole.batch / persons if mechanism.variant == "resampled" else 1.0
    per_release = math.sqrt(releases / tuning.flow) * rate

    def at(scale: float) -> Sliced:
        return replace(whole, noise_multiplier=scale * per_release)

    return at


def _pairs(d: int) -> int:
    """Bases until each pair of columns has had its directions, where these are not too many."""
    bases = rounds(d)
    return bases if bases * d <= _MOST_PAIRED else 0


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


def _check(
    mechanism: Maf | SlicedWasserstein, d: int, rows: int, persons: int, privacy: PrivacyRequest
) -> None:
    """What a valid study may still ask and this mechanism cannot do."""
    sizes = (("columns", d), ("max_rows_per_person", rows), ("persons", persons))
    problems = [
        Problem(name, "too few", value=str(value), bound="at least 1")
        for name, value in sizes
        if not value >= 1
    ]
    if not isinstance(mechanism, Maf):
        if mechanism.variant == "resampled" and rows > 1:
            what = "has batches of persons with one row each"
            value, bound = f"{rows} rows per person", "1"
            problems.append(Problem("mechanism.variant", what, value=value, bound=bound))
        if privacy.guarantee != "formal":
            asked = privacy.guarantee
            problems.append(
                Problem("privacy.guarantee", "is not on offer here", value=asked, bound="formal")
            )
    elif privacy.guarantee == "public-flow" and mechanism.w == 0:
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
