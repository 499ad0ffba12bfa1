"""The plan of ``sliced-wasserstein``: from a study and the public n to noise and charges.

Pure and public, as :mod:`penstock.mechanisms.tables.plan`, which has what tables have in common.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.refusals import list_informal
from penstock.mechanisms.sliced_wasserstein import tuning as sliced_tuning
from penstock.mechanisms.sliced_wasserstein.body import Sliced
from penstock.mechanisms.sliced_wasserstein.directions import rounds
from penstock.mechanisms.sliced_wasserstein.goals import Schedule
from penstock.mechanisms.sliced_wasserstein.settings import SlicedWasserstein
from penstock.mechanisms.tables.plan import Plan, plan_stages, private_stages, size_problems
from penstock.mechanisms.tables.stages import Body, Tuning
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Schema
from penstock.schema.encoding import Encoding

_MOST_PAIRED = 1024
"""Directions, up to which a sketch has those of all pairs of columns."""

_ROW_BASES, _ROW_MARGIN = 4, 0.5
"""Of noisy projections of rows: how many bases, and by how much rows may be longer than √d, as
standard Gaussians mostly are."""


def plan(
    mechanism: SlicedWasserstein, schema: Schema, persons: int, privacy: PrivacyRequest
) -> Plan:
    """Noise multipliers and charges for a study at a site of ``persons`` persons; reads no row.

    Raises:
        InvalidInput: the study asks for what this mechanism does not do.
        BudgetExceeded: no amount of noise meets ε.
    """
    encoding = Encoding(schema)
    rows, outcomes = schema.max_rows_per_person, len(encoding.outcomes)
    given = (mechanism, encoding.d, rows, persons, privacy, outcomes)
    return plan_columns(*given, encoding.spared)


def plan_columns(
    mechanism: SlicedWasserstein,
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

    def body(signal: float, tuning: Tuning) -> Callable[[float], Body]:
        return _sliced(mechanism, d, rows, persons, signal, tuning)

    stages = private_stages(body, d, rows, persons, privacy, outcomes, spared=spared)
    return plan_stages(mechanism.copies, mechanism.refits, persons, privacy, stages)


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


def _check(
    mechanism: SlicedWasserstein, d: int, rows: int, persons: int, privacy: PrivacyRequest
) -> None:
    """What a valid study may still ask and this mechanism cannot do."""
    problems = size_problems(d, rows, persons)
    if mechanism.variant == "resampled" and rows > 1:
        what = "has batches of persons with one row each"
        value, bound = f"{rows} rows per person", "1"
        problems.append(Problem("mechanism.variant", what, value=value, bound=bound))
    problems += list_informal(privacy)
    if problems:
        raise InvalidInput("mechanism", problems)
