"""Settings of ``trajectory``: paths through snapshots, by mean-field Langevin dynamics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from penstock.base.checks import Checks, nearest, shown
from penstock.base.errors import Problem
from penstock.mechanisms.protocol import ABSENT
from penstock.mechanisms.trajectory.asked_end import check_end
from penstock.mechanisms.trajectory.asked_times import check_over_time
from penstock.mechanisms.trajectory.time_points import times_of
from penstock.questions.estimands import Estimand
from penstock.schema import LARGEST, Coded, Column, Schema

if TYPE_CHECKING:
    from penstock.questions.persons import Courses

STARTS = ("gaussian", "k-means", "public", "counts")
COUPLINGS = ("entropic", "exact")
DEPENDENCES = ("measured", "inferred")
TIME_KINDS = ("ordered", "integer", "continuous", "duration")

MOST_POINTS = 200
"""Time points at most."""

MOST_NUMBERS = 20_000_000
"""Particles · time points · other columns at most: what every step holds and adds noise to."""

MOST_MEASURED = 300
"""Numbers that a person is measured by at most: each column that varies at each time point once
(levels without an order once each but the last), and what does not vary."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Tables of snapshots, particles for each time point, and paths through them.

    Where persons have several rows, what these have in common is *measured*: a person is one
    vector, of which private counts and moments are taken. Where everybody has one, nobody was
    seen twice: particles are coupled from one time point to the next, by least motion, and paths
    are *inferred*.

    Attributes:
        time: the column that says when a row was taken.
        points: time points T >= 2, into which a column of numbers is binned evenly between its
            bounds. None: the levels of an ordered column, or each whole number of an integer one.
        subsample: how many of the time points have particles, both ends among them and the others
            spread evenly; rows at other times are counted only. None: all.
        copies: synthetic tables of snapshots, rows as the site's own are; 1 to 100.
        refits: as in ``maf``.
        particles: m per time point, 2 to 2000.
        paths: how many are sampled, 1 to 100000.
        path_times: at how many evenly spaced times, 2 to 1000.
        coupling: ``entropic`` or ``exact`` optimal transport between neighbouring time points.
        start: ``gaussian``: private means and covariances; ``k-means``: private clusters;
            ``public``: a fixed cloud around the middle of the bounds, without budget;
            ``counts``: private counts of each column at each time, and moments, as where dependence
            is measured, with the whole budget: tables are drawn from them, and particles, which do
            not move. Of persons with one row each.
        modes: clusters of a ``k-means`` start at each time point, 2 to 100.
        start_share: share of the budget that the start is given, between 0 and 1.
        steps, rate: of the dynamics, and the Poisson sampling rate of each. Of one release of many
            sites a step is a round, of everybody whatever the rate: 30 are as good as 60, but for
            a ``public`` start, which has to narrow its kernel first.
        temperature: τ of the diffusion along a path, in units of the encoded columns squared per
            whole duration.
        dependence: ``measured`` or ``inferred``. None: measured where persons may have several rows
            and nothing that is set is of particles alone (a start, or a subsample), unless there
            are more than :data:`MOST_MEASURED` numbers of a person; else inferred. Particles'
            settings (coupling to temperature) say nothing where it is measured.
        end: the duration, of a person, with whose end paths and visits end; where dependence is
            measured. None: none does.
        visit_times: when the visits of each time point begin, in units of ``end``, from 0. None:
            the column of time has these units itself, and begins at 0 or before.

    Raises:
        InvalidInput: with every problem.
    """

    name: ClassVar[str] = "trajectory"
    time: str
    points: int | None = None
    subsample: int | None = None
    copies: int = 10
    refits: int = 10
    particles: int = 50
    paths: int = 500
    path_times: int = 91
    coupling: str = "entropic"
    start: str = "gaussian"
    modes: int = 1
    start_share: float = 0.4
    steps: int = 60
    rate: float = 0.2
    temperature: float = 0.02
    dependence: str | None = field(default=None, metadata={ABSENT: None})
    end: str | None = field(default=None, metadata={ABSENT: None})
    visit_times: tuple[float, ...] | None = field(default=None, metadata={ABSENT: None})

    def __post_init__(self) -> None:
        check = Checks("mechanism")
        check.pattern("time", self.time)
        if self.points is not None:
            check.whole("points", self.points, 2, MOST_POINTS)
        if self.subsample is not None:
            check.whole("subsample", self.subsample, 2, MOST_POINTS)
        check.whole("copies", self.copies, 1, 100)
        check.whole("refits", self.refits, 0, 100)
        check.whole("particles", self.particles, 2, 2000)
        check.whole("paths", self.paths, 1, 100_000)
        check.whole("path_times", self.path_times, 2, 1000)
        check.choice("coupling", self.coupling, COUPLINGS)
        check.choice("start", self.start, STARTS)
        if self.dependence is not None:
            check.choice("dependence", self.dependence, DEPENDENCES)
        check.whole("modes", self.modes, 1, 100)
        if (self.start == "k-means") != (self.modes != 1) and self.start in STARTS:
            check.add(
                "modes",
                "goes with a start by k-means, and that with at least 2",
                value=shown(self.modes),
                remedy="Set start = 'k-means' and modes to at least 2, or neither",
            )
        if self.end is not None:
            check.pattern("end", self.end)
        if self.visit_times is not None:
            _check_visit_times(check, self)
        check.whole("steps", self.steps, 1, 10_000)
        share = check.number("start_share", self.start_share, "0 < share < 1", above=0, below=1)
        rate = check.number("rate", self.rate, "above 0, at most 1", above=0, most=1)
        # Without diffusion no entropic coupling has a scale.
        temperature = check.number(
            "temperature", self.temperature, "0.0001 to 10", least=0.0001, most=10
        )
        check.keep(self, rate=rate, temperature=temperature, start_share=share)
        check.done()

    def problems(self, schema: Schema, estimands: Sequence[Estimand]) -> list[Problem]:
        """What this study and schema ask that the mechanism cannot do."""
        check = Checks("mechanism")
        if self.time not in schema.names:
            check.add(
                "time",
                "is not a column of the study",
                value=shown(self.time),
                remedy=nearest(self.time, schema.names),
            )
            return check.problems
        column = schema[self.time]
        points = self._points(check, column)
        if column.nullable:
            check.add("time", "may be missing: a row without a time is no snapshot")
        if not column.varies:
            check.add("time", "is a column that does not vary: when is a person seen again?")
        if len(schema.names) < 2:
            check.add("time", "is the only column: nothing moves along it")
        if points is None or check.problems:
            return check.problems
        if self.dependence == "measured":
            self._check_measured(check, schema, points)
        if self.start == "counts":
            self._check_counts(check, schema, points)
        if not check.problems:
            check_end(check, self, schema, measured=self.measures(schema))
        if self.subsample is not None and self.subsample > points:
            check.add(
                "subsample",
                "is more than there are time points",
                value=str(self.subsample),
                bound=f"at most {points}",
            )
        if self.modes > self.particles:
            check.add(
                "modes",
                "are more than there are particles",
                value=str(self.modes),
                bound=f"at most {self.particles}",
            )
        size = points * self.particles * (len(schema.names) - 1)
        if size > MOST_NUMBERS:
            check.add(
                "particles",
                "are too many for so many time points and columns",
                value=f"{size} numbers",
                bound=f"at most {MOST_NUMBERS}",
            )
        return check.problems

    def problems_over_time(self, schema: Schema, estimand: Estimand) -> list[Problem]:
        """What an estimand of persons over time asks that the tables cannot tell; the study has no
        other problems."""
        # Which loads scipy, and a study without such estimands need not.
        from penstock.mechanisms.trajectory.follow_up import follow_up_of

        check = Checks("mechanism")
        times, measured = times_of(self, schema), self.measures(schema)
        check_over_time(
            check, estimand, schema, times, measured=measured, read=follow_up_of(self, schema)
        )
        return check.problems

    def read_courses(self, schema: Schema, table: Coded) -> Courses:
        """Whose each row of a released table is, and when it was taken."""
        from penstock.mechanisms.trajectory.histories import read_courses

        return read_courses(self, schema, table)

    def measures(self, schema: Schema) -> bool:
        """Whether what persons' rows have in common is measured, in a study without problems."""
        if self.dependence is not None:
            return self.dependence == "measured"
        points = self._points(Checks("mechanism"), schema[self.time])
        check = Checks("mechanism")
        self._check_measured(check, schema, points or 0)
        return not check.problems

    def _check_measured(self, check: Checks, schema: Schema, points: int) -> None:
        """What keeps dependence from being measured."""
        others = [c for c in schema.columns if c.name != self.time]
        if schema.max_rows_per_person < 2:
            remedy = "Set table.max_rows_per_person, or dependence = 'inferred'"
            check.add("dependence", "cannot be measured where everybody has one row", remedy=remedy)
        if self.start != "gaussian" or self.subsample is not None:
            check.add(
                "dependence",
                "is not measured by particles",
                value=f"start = {self.start!r}, subsample = {self.subsample}",
                remedy="Remove start and subsample, or set dependence = 'inferred'",
            )
        if not any(c.varies for c in others):
            check.add("dependence", "is that of columns that vary, and there is none")
        size = sum(_numbers(c) * (points if c.varies else 1) for c in others)
        _check_size(check, "dependence", size)

    def _check_counts(self, check: Checks, schema: Schema, points: int) -> None:
        """What keeps a start from being counted."""
        if schema.max_rows_per_person > 1:
            remedy = "Remove start: what a person's rows have in common is measured then"
            check.add("start", "by counts is of persons with one row each", remedy=remedy)
        if self.subsample is not None:
            check.add("subsample", "has no meaning for a start by counts", remedy="Remove it")
        size = sum(_numbers(c) * points for c in schema.columns if c.name != self.time)
        _check_size(check, "start", size)

    def time_points(self, schema: Schema) -> int:
        """How many time points have particles, in a study without problems.

        Raises:
            InvalidInput: the study has some.
        """
        check = Checks("mechanism")
        points = self._points(check, schema[self.time])
        check.done()
        return self.subsample or points or 0

    def _points(self, check: Checks, column: Column) -> int | None:
        """How many time points there are, or None where the column has none."""
        if column.kind not in TIME_KINDS:
            check.add(
                "time",
                f"column {column.name!r} is of kind {column.kind!r}",
                bound=f"one of {', '.join(TIME_KINDS)}",
            )
            return None
        if column.kind == "ordered":
            if self.points is not None:
                check.add("points", "an ordered column's are its levels", remedy="Remove it")
            return len(column.levels)
        grid = column.grid
        values = None if grid is None else grid[1] - grid[0] + 1
        if self.points is not None:
            if values is not None and self.points > values:
                check.add(
                    "points",
                    "are more than the column has values",
                    value=str(self.points),
                    bound=f"at most {values}",
                )
            return self.points
        if column.kind != "integer" or values is None or not 2 <= values <= MOST_POINTS:
            check.add(
                "points",
                "is missing: into how many time points is the column binned?",
                bound=f"2 to {MOST_POINTS}",
            )
            return None
        return values


def _check_size(check: Checks, where: str, size: int) -> None:
    if size > MOST_MEASURED:
        check.add(
            where,
            "would be that of too many numbers: columns that vary, times time points",
            value=str(size),
            bound=f"at most {MOST_MEASURED}",
            remedy="Set points lower, or leave columns out",
        )


def _check_visit_times(check: Checks, mechanism: Trajectory) -> None:
    given = check.sequence("visit_times", mechanism.visit_times, 2, MOST_POINTS)
    kept = [
        check.number("visit_times", time, "numbers from 0", least=0, most=LARGEST)
        for time in given or ()
    ]
    check.keep(mechanism, visit_times=tuple(time for time in kept if time is not None))


def _numbers(column: Column) -> int:
    """How many numbers say what a person's value is."""
    if column.kind != "categorical" or len(column.levels) <= 2:
        return 1
    return len(column.levels) - 1 + column.nullable
