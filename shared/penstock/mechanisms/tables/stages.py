"""The stages of a table's fit, what each is charged as, and how a budget is divided among them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.parts import Progress
from penstock.mechanisms.tables.margins import histogram_event
from penstock.mechanisms.tables.moments import moment_event
from penstock.mechanisms.tables.outcome import outcome_event
from penstock.privacy.events import Event
from penstock.privacy.noise.sources import NoiseSource
from penstock.privacy.sensitivity import second_moments

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Transport(Protocol):
    """What a body is once it is fitted: rows, as the body sees them, from standard Gaussians."""

    def from_latent(self, z: Array, /) -> Array:
        """(n, d) → (n, d), finite."""


class Begun(Protocol):
    """A fit whose margins and moments are released.

    Attributes:
        inside: the rows (n, k, d) as the body is to see them; present: (n, k).
        rows: how many are present, as released.
    """

    inside: Array
    present: Bools
    rows: float


class Body(Protocol):
    """What turns standard Gaussians into rows, and is fitted at a price."""

    @property
    def steps(self) -> int:
        """Of a fit, for who watches its progress."""

    def event(self) -> Event:
        """What a fit is charged as.

        Raises:
            InvalidInput: it has no noise, so that no finite ε covers it.
        """

    def fit(
        self,
        begun: Sequence[Begun],
        noises: Sequence[NoiseSource],
        progress: Progress | None,
        device: str,
        threads: int,
    ) -> Sequence[Transport]:
        """The body, fitted to each table with its own source of noise."""

    def memory(self, places: int) -> tuple[int, int]:
        """Bytes of what stays of a fit to so many rows, and of what it takes besides."""


@dataclass(frozen=True, slots=True)
class Stages:
    """How the model is fitted.

    Args:
        margins, moments, outcome: noise multipliers; None where there is no noise.
        radius: to which rows (scores, 1) are clipped before their moments are summed.
        body: what is fitted to the rows once their margins and moments are known.
        columns, rows: d encoded columns, at most k rows per person.
        outcomes: how many durations with their events there are.
    """

    margins: float | None
    moments: float | None
    outcome: float | None
    radius: float
    body: Body
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
            self.body.event(),
            *outcome,
        )


@dataclass(frozen=True, slots=True)
class Tuning:
    """What the signal decides.

    Args:
        margins, moments, flow, outcome: shares of the budget (1/σ² summed over releases), adding
            up to 1.
        radius: to which rows (scores, 1) are clipped before their moments are summed.
        clip: of gradients, in units of :func:`penstock.mechanisms.flow.architecture.public_clip`.
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
