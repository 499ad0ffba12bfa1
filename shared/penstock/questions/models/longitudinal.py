"""Models that are no regressions: a number of persons at a time, between two times, or along all.

Most need rows of which is known when they were taken and, of two times or more, whose they are: a
mechanism that follows persons. Where no time is said, quantiles, shares and correlations are of all
rows; and a survival's time is on its own duration, so that it always is. Restricted means, counts,
rates and tables are of rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.questions.models.model import Measure, Model
from penstock.schema import LEVEL_KINDS, Column

NUMBERS = ("continuous", "integer")
DIRECTIONS = ("above", "below")
"""Strictly: a value that is the threshold lies on neither side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongitudinalModel(Model):
    """A model of persons over time.

    Attributes:
        least, most: how many times an estimand names, ``at`` and ``until``.
        asks: which of ``probability``, ``threshold`` and ``direction`` it has to say.
        level: of an outcome with levels it says one, by ``outcome_level``, in place of these.
        pairs: the estimate is of two columns, or of one at two times; the term may be another one.
        cells: it names two levels of its outcome: ``level``, and ``outcome_level``.
        slope: the estimate is of all times, along its term, and may be adjusted for columns.
        ends: of a duration it may say, by ``until``, up to which time events and time count.
        rates: it is per so many units of time, by ``per``.
        crossed: it is of the levels of several columns together: of the outcome's and the term's.
        competes: it names a column, ``competing``, that says that follow-up ended by another event.
        bounded: it has to say, by ``until``, up to which time of the duration.
        adjusts: its term is a column, whose effect may be adjusted, and is no coefficient that a
            chain, or noisy sums, would have.
        standardises: that effect is of everybody having one level against the first one.
        tables: tables alone answer it, from their rows.
        link: the scale on which copies and sites are combined, as
            :attr:`penstock.questions.models.model.Model.scale` has it.
    """

    outcomes: tuple[str, ...] = NUMBERS
    ratio: bool = False
    compares: bool = False
    in_outcome_units: bool = True
    least: int = 1
    most: int = 1
    asks: tuple[str, ...] = ()
    level: bool = False
    pairs: bool = False
    cells: bool = False
    slope: bool = False
    ends: bool = False
    rates: bool = False
    crossed: bool = False
    competes: bool = False
    bounded: bool = False
    adjusts: bool = False
    standardises: bool = False
    tables: bool = False
    link: str = "plain"

    @property
    def of_rows(self) -> bool:
        """Whether it can be asked of rows, whenever they were taken."""
        return self.needs_event or (self.least == 0 and not self.slope)

    def of_level(self, outcome: Column) -> bool:
        """Whether it is of one level of this outcome."""
        return self.level and outcome.kind in LEVEL_KINDS

    def asks_of(self, outcome: Column) -> tuple[str, ...]:
        """Which of :attr:`asks` it has to say of this outcome: a level, or an event, is enough."""
        told = self.of_level(outcome) or outcome.kind == "duration"
        return () if told else self.asks

    @property
    def changing(self) -> bool:
        """Whether it is of how a number changes within persons."""
        return self.slope or (self.least > 1 and not self.cells)

    @property
    def per_time(self) -> bool:
        return self.slope

    @property
    def contrasts(self) -> bool:
        return self.adjusts

    @property
    def of_tables(self) -> bool:
        return self.tables

    @property
    def untried(self) -> bool:
        return self.competes

    @property
    def scale(self) -> str:
        return self.link


QUANTILE = LongitudinalModel(
    name="quantile",
    title="Quantile of persons",
    measure=Measure("quantile", "Quantile", "lower", "higher"),
    least=0,
    asks=("probability",),
)
SHARE = LongitudinalModel(
    name="share",
    title="Share of persons",
    measure=Measure("share", "Share", "lower", "higher"),
    outcomes=(*NUMBERS, *LEVEL_KINDS),
    least=0,
    asks=("threshold", "direction"),
    level=True,
    averages=True,
    link="logit",
)
CHANGE = LongitudinalModel(
    name="change",
    title="Change within persons",
    measure=Measure("mean change", "Change", "lower", "higher"),
    least=2,
    most=2,
)
CHANGE_SD = LongitudinalModel(
    name="change-sd",
    title="Change within persons",
    measure=Measure("standard deviation of the change", "SD", "lower", "higher"),
    least=2,
    most=2,
    ratio=True,
    link="log",
)
CORRELATION = LongitudinalModel(
    name="correlation",
    title="Correlation over persons",
    measure=Measure("correlation", "Correlation", "lower", "higher"),
    in_outcome_units=False,
    least=0,
    most=2,
    pairs=True,
    tables=True,
    link="fisher",
)
"""Over persons at one time or two; where no time is said, over rows."""
TRANSITION = LongitudinalModel(
    name="transition",
    title="Transition between levels",
    measure=Measure("probability", "Probability", "lower", "higher"),
    outcomes=("binary", "ordered", "categorical"),
    in_outcome_units=False,
    least=2,
    most=2,
    cells=True,
    link="logit",
)
MIXED = LongitudinalModel(
    name="mixed",
    title="Random-intercept model (REML)",
    measure=Measure("mean slope", "Slope", "lower", "higher"),
    least=0,
    most=0,
    slope=True,
)
SURVIVAL = LongitudinalModel(
    name="survival",
    title="Kaplan–Meier's survival",
    outcomes=("duration",),
    measure=Measure("survival", "Survival", "lower", "higher"),
    in_outcome_units=False,
    needs_event=True,
    most=2,
    link="logit",
)
"""The share that is without the event at a time of the duration; where two are said, at the second,
of those who are followed at the first."""
RMST = LongitudinalModel(
    name="rmst",
    title="Restricted mean survival time",
    outcomes=("duration",),
    measure=Measure("restricted mean survival time", "RMST", "shorter", "longer"),
    needs_event=True,
    least=0,
    most=0,
    ends=True,
    bounded=True,
    tables=True,
)
"""The mean time without the event, of the time until a bound."""
CUMULATIVE_INCIDENCE = LongitudinalModel(
    name="cumulative-incidence",
    title="Aalen–Johansen's cumulative incidence",
    outcomes=("duration",),
    measure=Measure("cumulative incidence", "CIF", "lower", "higher"),
    in_outcome_units=False,
    needs_event=True,
    competes=True,
    tables=True,
    link="logit",
)
"""The share that has the event by a time of the duration, where another one may come first."""
COUNT = LongitudinalModel(
    name="count",
    title="Count of rows",
    outcomes=(*NUMBERS, *LEVEL_KINDS, "duration"),
    measure=Measure("count", "Count", "fewer", "more"),
    least=0,
    most=0,
    asks=("threshold", "direction"),
    level=True,
    ends=True,
    total=True,
    averages=True,
    link="count",
)
"""Rows that have a level, a value beyond a threshold, or, of a duration, its event."""
RATE = LongitudinalModel(
    name="rate",
    title="Events per time",
    outcomes=("duration",),
    measure=Measure("rate", "Rate", "lower", "higher"),
    in_outcome_units=False,
    needs_event=True,
    ratio=True,
    least=0,
    most=0,
    ends=True,
    rates=True,
    link="log",
)
TABLE = LongitudinalModel(
    name="table",
    title="Contingency table",
    outcomes=LEVEL_KINDS,
    measure=Measure("share", "Share", "lower", "higher"),
    in_outcome_units=False,
    least=0,
    most=0,
    crossed=True,
    link="logit",
)
"""The share of rows that have one level of each of two or three columns."""
