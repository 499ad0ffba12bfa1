"""The plan of a synthetic table: what every mechanism for tables has in common.

Pure and public: no row is read, and no torch is imported, so that the gate can price a study
before it starts a worker. Each mechanism's own ``plan`` says which body is fitted, and what else is
charged; :mod:`penstock.mechanisms.tables.run` carries the plan out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from penstock.base.errors import Problem
from penstock.mechanisms.tables.stages import Body, Stages, Tuning, tune
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Event, Gaussian
from penstock.privacy.request import PrivacyRequest

UNCLIPPED = 100.0
"""A radius that no latent is beyond."""


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
    stages: Stages
    events: tuple[Event, ...]
    epsilon: float
    corrected: bool

    @property
    def d(self) -> int:
        """Encoded columns."""
        return self.stages.columns


def plan_stages(
    copies: int,
    refits: int,
    persons: int,
    privacy: PrivacyRequest,
    stages: Stages,
    events: tuple[Event, ...],
) -> Plan:
    """The plan of a table that is drawn from a model of these stages, and charged so."""
    return Plan(
        guarantee=privacy.guarantee,
        persons=persons,
        rows=stages.rows,
        copies=copies,
        refits=refits,
        w=0.0,
        latent_clip=UNCLIPPED,
        stages=stages,
        events=events,
        epsilon=epsilon(events, privacy.delta),
        corrected=True,
    )


def private_stages(
    body: Callable[[float, Tuning], Callable[[float], Body]],
    d: int,
    rows: int,
    persons: int,
    privacy: PrivacyRequest,
    outcomes: int,
    injection: tuple[Event, ...] = (),
) -> Stages:
    """Stages whose noise, together with the injection, costs at most ε.

    Args:
        body: from the signal and its division to bodies on a scale of noise.
        d, rows: encoded columns, and rows per person at most; outcomes: durations among them.
    """
    # What one release would get if it had all: the signal, on which the division depends.
    whole = smallest_scale(lambda s: (Gaussian(s), *injection), privacy.epsilon, privacy.delta)
    tuning = tune(persons / whole, persons, d, outcomes)
    bodies = body(persons / whole, tuning)

    def stages(scale: float) -> Stages:
        return Stages(
            margins=scale / math.sqrt(tuning.margins),
            moments=scale / math.sqrt(tuning.moments),
            outcome=scale / math.sqrt(tuning.outcome) if outcomes else None,
            radius=tuning.radius,
            body=bodies(scale),
            columns=d,
            rows=rows,
            outcomes=outcomes,
        )

    def charges(scale: float) -> tuple[Event, ...]:
        return (*stages(scale).events(), *injection)

    return stages(smallest_scale(charges, privacy.epsilon, privacy.delta))


def size_problems(d: int, rows: int, persons: int) -> list[Problem]:
    """What is wrong with the sizes of a table that is to be planned."""
    sizes = (("columns", d), ("max_rows_per_person", rows), ("persons", persons))
    return [
        Problem(name, "too few", value=str(value), bound="at least 1")
        for name, value in sizes
        if not value >= 1
    ]
