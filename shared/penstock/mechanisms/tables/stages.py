"""The stages of a table's fit, what each is charged as, and how a budget is divided among them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.parts import Progress
from penstock.privacy.measurements import Measurement, WholeSum
from penstock.privacy.noise.sources import NoiseSource

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

    @property
    def measurement(self) -> Measurement | None:
        """What a fit asks of rows, and with which noise; None: it has none."""

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


@runtime_checkable
class SummedBody(Body, Protocol):
    """A body whose noise can be made larger, as that of many sites is."""

    def with_noise(self, factor: float) -> Self:
        """The same with so many times the noise."""


@dataclass(frozen=True, slots=True)
class Stages:
    """How the model is fitted.

    Args:
        margins, moments, outcome: None where there is no noise; the last, no outcome either.
        radius: to which rows (scores, 1) are clipped before their moments are summed.
        body: what is fitted to the rows once their margins and moments are known.
        columns, rows: d encoded columns, at most k rows per person.
        outcomes: how many durations with their events there are.
    """

    margins: WholeSum | None
    moments: WholeSum | None
    outcome: WholeSum | None
    radius: float
    body: Body
    columns: int
    rows: int
    outcomes: int

    @property
    def moment_sd(self) -> float:
        """Standard deviation of the noise on a moment of two different entries."""
        return 0.0 if self.moments is None else self.moments.sd / math.sqrt(2)

    @property
    def outcome_sd(self) -> float:
        """Standard deviation of the noise on each entry of an outcome's score."""
        return 0.0 if self.outcome is None else self.outcome.sd

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """All that fitting asks of rows.

        Raises:
            InvalidInput: a stage has no noise, so that no finite ε covers it.
        """
        asked: list[Measurement | None] = [self.margins, self.moments, self.body.measurement]
        asked += [self.outcome] if self.outcomes else []
        noisy = tuple(each for each in asked if each is not None)
        if len(noisy) < len(asked):
            raise InvalidInput("stages", [Problem("noise multiplier", "none: not private")])
        return noisy

    def with_noise(self, factor: float) -> Stages:
        """The same with so many times the noise.

        Raises:
            InvalidInput: a stage asks for more than a sum of whole numbers, or has no noise.
        """
        for asked in self.measurements:
            if not isinstance(asked, WholeSum):
                problem = Problem("measurement", "is no sum of whole numbers", value=asked.label)
                raise InvalidInput("stages", [problem])
        if not isinstance(self.body, SummedBody):
            raise InvalidInput("stages", [Problem("body", "has one noise, whoever adds it")])

        def more(asked: WholeSum | None) -> WholeSum | None:
            return None if asked is None else asked.with_noise(factor)

        return replace(
            self,
            margins=more(self.margins),
            moments=more(self.moments),
            outcome=more(self.outcome),
            body=self.body.with_noise(factor),
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
