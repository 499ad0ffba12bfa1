"""The plan of a synthetic table: what every mechanism for tables has in common.

Pure and public: no row is read, and no torch is imported, so that the gate can price a study
before it starts a worker. Each mechanism's own ``plan`` says which body is fitted, and what else is
charged; :mod:`penstock.mechanisms.tables.run` carries the plan out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.tables.margins import measure_histograms
from penstock.mechanisms.tables.moments import measure_moments
from penstock.mechanisms.tables.outcome import measure_scores
from penstock.mechanisms.tables.stages import Body, Stages, Tuning, tune
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Event, Gaussian, Unbounded
from penstock.privacy.measurements import LatentNoise, Measurement, charge
from penstock.privacy.request import PrivacyRequest

UNCLIPPED = 100.0
"""A radius that no latent is beyond."""


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
        unbounded: of ``empirical``, what is charged: in words, for the ledger.
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
    unbounded: str = ""

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
        """All that is asked of rows, and the noise with which it leaves.

        Raises:
            InvalidInput: a formal fit has a stage without noise; or a guarantee that nobody knows.
        """
        match self.guarantee:
            case "formal":
                stages = self.stages.measurements
            case "public-flow" | "empirical":
                stages = ()
            case unknown:
                raise InvalidInput("plan", [Problem("guarantee", "is unknown", value=unknown)])
        return stages if self.injection is None else (*stages, self.injection)

    @property
    def events(self) -> tuple[Event, ...]:
        """What the run is charged as: ∞ where rows are looked at without noise."""
        if self.guarantee == "empirical":
            return (Unbounded(self.unbounded),)
        return charge(self.measurements)

    def with_noise(self, factor: float) -> Plan:
        """The same with so many times the noise.

        Raises:
            InvalidInput: more is asked of rows than sums of whole numbers.
        """
        return replace(self, stages=self.stages.with_noise(factor))


def plan_stages(
    copies: int,
    refits: int,
    persons: int,
    privacy: PrivacyRequest,
    stages: Stages,
    clip: float = UNCLIPPED,
    injection: LatentNoise | None = None,
    unbounded: str = "",
) -> Plan:
    """The plan of tables that are drawn from a model of these stages."""
    made = Plan(
        guarantee=privacy.guarantee,
        persons=persons,
        rows=stages.rows,
        copies=copies,
        refits=refits,
        injection=injection,
        latent_clip=clip,
        stages=stages,
        epsilon=math.inf,
        corrected=privacy.guarantee == "formal" or injection is None,
        unbounded=unbounded,
    )
    return replace(made, epsilon=epsilon(made.events, privacy.delta))


def private_stages(
    body: Callable[[float, Tuning], Callable[[float], Body]],
    d: int,
    rows: int,
    persons: int,
    privacy: PrivacyRequest,
    outcomes: int,
    injection: tuple[Event, ...] = (),
    spared: int = 0,
) -> Stages:
    """Stages whose noise, together with the injection, costs at most ε.

    Args:
        body: from the signal and its division to bodies on a scale of noise.
        d, rows: encoded columns, and rows per person at most; outcomes: durations among them;
            spared: coordinates of levels that have no count of their own.
    """
    # What one release would get if it had all: the signal, on which the division depends.
    whole = smallest_scale(lambda s: (Gaussian(s), *injection), privacy.epsilon, privacy.delta)
    tuning = tune(persons / whole, persons, d, outcomes)
    bodies = body(persons / whole, tuning)

    def stages(scale: float) -> Stages:
        return Stages(
            margins=measure_histograms(
                scale / math.sqrt(tuning.margins), d, rows, outcomes, spared
            ),
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


def size_problems(d: int, rows: int, persons: int) -> list[Problem]:
    """What is wrong with the sizes of a table that is to be planned."""
    sizes = (("columns", d), ("max_rows_per_person", rows), ("persons", persons))
    return [
        Problem(name, "too few", value=str(value), bound="at least 1")
        for name, value in sizes
        if not value >= 1
    ]
