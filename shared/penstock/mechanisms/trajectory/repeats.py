r"""The plan of ``trajectory`` where persons have several rows, and these are measured together.

A person is *one* vector: each column that varies at each time point, what does not vary once, and
who is there when. Pure and public, as :mod:`penstock.mechanisms.trajectory.plan` is.

===========  ===========================================================  =================
measurement  what is released                                             event
===========  ===========================================================  =================
margins      counts: of each column's cells at each time point, of what   DiscreteGaussian
             does not vary, of who is there when, and, where it ends a
             path, of when and how follow-up ends
moments      second moments of a person's whole clipped vector of scores  DiscreteGaussian
===========  ===========================================================  =================

Sensitivities (zero-out of one person, public n). A person is at v ≤ K = min(k, T) time points, in
one cell of d columns and of who is there at each of them, in one of c columns that do not vary, and
in one each of first and last, of how many visits, and of all persons: √(K(d + 1) + c + 3) in L2,
attained. Where follow-up ends, it counts as 2 in one cell of its time and event, and in one of its
last time point, the last visit and the event: √(K(d + 1) + c + 3 + 2·2²). Where everybody has one
row (a start by ``counts``) nothing is to be counted of first, last and how many: √(d + 2).
Moments: R², of one vector a person, however many rows it is made of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from penstock.mechanisms.copula.grids import Grid, make_grid
from penstock.mechanisms.tables.margins import time_cells
from penstock.mechanisms.tables.moments import measure_moments
from penstock.mechanisms.trajectory.attendance import LATENTS, cells_of
from penstock.mechanisms.trajectory.follow_up import ENDS, WEIGHT, FollowUp, follow_up_of
from penstock.mechanisms.trajectory.settings import Trajectory
from penstock.mechanisms.trajectory.time_points import Times, times_of, unit_temperature
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.calibration import Accountant, smallest_scale
from penstock.privacy.events import Event
from penstock.privacy.measurements import WholeSum, charge
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Schema

MARGINS = 0.35
"""Share of the budget (1/σ² summed over releases) that margins have; moments have the rest. Frozen,
as what follows, on simulated panels that no study shows."""

SCORES = 5.0
"""Mean square of a person's scores beside a constant of 1. The smaller, the more exact are means,
and the less correlations: so, as many of them as there are, a mean costs them little."""

ROOM = 1.3
"""By how much a person's scores may be longer than their root mean square, squared: those of one
person go together."""


@dataclass(frozen=True, slots=True)
class RepeatsPlan:
    """All public parameters of one run.

    Attributes:
        persons: public n; rows: k, rows per person at most.
        copies, refits, particles, paths, path_times: as in the study's settings.
        times: the time points; varying, constants: names of the columns.
        radius: R, to which a person's vector (scores, 1) is clipped; told: its scores.
        follow_up: what ends a path, if anything does.
        coupling: where everybody has one row, how particles are joined to those of the next time
            point; temperature: τ of paths through them, in the unit space.
        epsilon: of the events at the requested δ.
    """

    persons: int
    rows: int
    copies: int
    refits: int
    particles: int
    paths: int
    path_times: int
    times: Times
    varying: tuple[str, ...]
    constants: tuple[str, ...]
    margins: WholeSum
    moments: WholeSum
    radius: float
    told: int
    follow_up: FollowUp | None = None
    coupling: str | None = None
    temperature: float = 0.0
    epsilon: float = math.inf

    @property
    def guarantee(self) -> str:
        """There is no other."""
        return "formal"

    @property
    def once(self) -> bool:
        """Everybody has one row: no two time points are of the same persons."""
        return self.rows == 1

    @property
    def visits(self) -> int:
        """K, time points at which a person can be."""
        return min(self.rows, self.times.count)

    @property
    def measurements(self) -> tuple[WholeSum, ...]:
        """All that is asked of rows, and the noise with which it leaves."""
        return self.margins, self.moments

    @property
    def events(self) -> tuple[Event, ...]:
        """What the run is charged as."""
        return charge(self.measurements)

    def with_noise(self, factor: float) -> RepeatsPlan:
        """The same with so many times the noise."""
        return replace(
            self, margins=self.margins.with_noise(factor), moments=self.moments.with_noise(factor)
        )


def plan_repeats(
    mechanism: Trajectory,
    schema: Schema,
    persons: int,
    privacy: PrivacyRequest,
    accountant: Accountant = epsilon,
) -> RepeatsPlan:
    """Noise multipliers and charges, for a study without problems; reads no row."""
    times = times_of(mechanism, schema)
    varying, constants = list_grids(mechanism, schema)
    most, count = min(schema.max_rows_per_person, times.count), times.count
    told = LATENTS + _latents(constants) + count * _latents(varying)
    told += 0 if mechanism.end is None else ENDS

    def made(scale: float) -> RepeatsPlan:
        radius, sigma = math.sqrt(1 + SCORES * ROOM), scale / math.sqrt(MARGINS)
        # In how many cells times are counted has no part in what a person moves.
        asked = (sigma, varying, constants, count, most)
        noise = measure_persons(*asked, follow_up_of(mechanism, schema)).sd
        cells = time_cells(persons, noise / WEIGHT)
        follow_up = follow_up_of(mechanism, schema, cells)
        return RepeatsPlan(
            persons=persons,
            rows=schema.max_rows_per_person,
            copies=mechanism.copies,
            refits=mechanism.refits,
            particles=mechanism.particles,
            paths=mechanism.paths,
            path_times=mechanism.path_times,
            times=times,
            varying=tuple(grid.column.name for grid in varying),
            constants=tuple(grid.column.name for grid in constants),
            margins=measure_persons(*asked, follow_up),
            moments=measure_moments(scale / math.sqrt(1 - MARGINS), radius, told, 1),
            radius=radius,
            told=told,
            follow_up=follow_up,
            coupling=mechanism.coupling if most == 1 else None,
            temperature=unit_temperature(mechanism),
        )

    scale = smallest_scale(
        lambda s: made(s).events, privacy.epsilon, privacy.delta, accountant=accountant
    )
    found = made(scale)
    return replace(found, epsilon=accountant(found.events, privacy.delta))


def list_grids(mechanism: Trajectory, schema: Schema) -> tuple[list[Grid], list[Grid]]:
    """The cells of columns that vary, and of those that do not; all but the time, and what ends a
    path."""
    apart = {mechanism.time}
    if mechanism.end is not None:
        apart |= {mechanism.end, str(schema[mechanism.end].event)}
    columns = [c for c in schema.columns if c.name not in apart]
    # Where everybody has one row, other persons are seen at each time, and nothing stays the same.
    each = schema.max_rows_per_person == 1
    varying = [make_grid(c) for c in columns if c.varies or each]
    return varying, [make_grid(c) for c in columns if not (c.varies or each)]


def measure_persons(
    sigma: float,
    varying: list[Grid],
    constants: list[Grid],
    count: int,
    most: int,
    follow_up: FollowUp | None = None,
) -> WholeSum:
    """All counts of persons at ``count`` time points, who are at ``most`` of them: the module's
    docstring has the sensitivity."""
    ends = follow_up.sizes if follow_up is not None else ()
    attended = 3 if most > 1 else 1
    squared = most * (len(varying) + 1) + len(constants) + attended + WEIGHT**2 * len(ends)
    cells = sum(grid.count for grid in constants) + count * sum(grid.count for grid in varying)
    return WholeSum(
        label="margins",
        noise_multiplier=sigma,
        sensitivity=math.sqrt(squared) * (1 + 1e-12),
        squared=Fraction(squared),
        unit=1.0,
        size=cells + 2 * cells_of(count) * (most > 1) + count + 1 + sum(ends),
    )


def _latents(grids: list[Grid]) -> int:
    return sum(grid.latents for grid in grids)
