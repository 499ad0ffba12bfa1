"""What everybody must know of a regression model, and no library is needed for."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.base.checks import Checks
from penstock.schema import Column


@dataclass(frozen=True, slots=True)
class Measure:
    """What an estimate is called: "hazard ratio", short "HR"; and what values on either side of
    the null value say: "lower hazard", "higher hazard"."""

    name: str
    short: str
    lower: str
    higher: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that a study may name; what is not said is as most regressions have it.

    Attributes:
        name: as a study calls it.
        title: as the report calls it where it was fitted to tables.
        outcomes: kinds of column that it takes as its outcome.
        measure: what its estimate is called.
        share: what the estimate is called where the outcome is binary and the estimate the share
            of its second level; None where it is none.
        ratio: the coefficient is the logarithm of a ratio; else it is a difference or a mean.
        compares: it has a term and adjustment columns; else the estimate is of the outcome alone.
        intercept: its coefficients have an intercept before those of the columns.
        needs_event: the outcome is a duration, and says what it ended in by its event column.
        in_outcome_units: the estimate carries the outcome's unit.
        total: the estimate is a number of these very rows, of which sites are added up, and which
            no sampling of rows makes uncertain; else it is of the persons they stand for.
        averages: it follows from a mean over rows: of the outcome, or of who has its level or lies
            beyond its threshold.
        robust: whether ``errors = "robust"`` can be asked for it.
        draft: place among the questions that a draft of a study begins with, the first that suits
            its columns; None: no draft begins with it.
    """

    name: str
    title: str
    outcomes: tuple[str, ...]
    measure: Measure
    share: Measure | None = None
    ratio: bool
    compares: bool = True
    intercept: bool = True
    needs_event: bool = False
    in_outcome_units: bool = False
    total: bool = False
    averages: bool = False
    robust: bool = False
    draft: int | None = None

    def check_outcome(self, check: Checks, outcome: Column) -> None:
        """Add the problems of an outcome of a kind that suits: of its bounds."""

    @property
    def takes_exposure(self) -> bool:
        """Whether what is counted can be counted per unit of another column."""
        return False

    @property
    def names_level(self) -> bool:
        """Whether its estimate is of one level of the outcome, against the first."""
        return False

    @property
    def per_time(self) -> bool:
        """Whether the estimate is per so many units of its term, which is the time."""
        return False

    @property
    def contrasts(self) -> bool:
        """Whether its estimate is of rows that differ in a term; else of the outcome alone."""
        return self.compares

    @property
    def of_tables(self) -> bool:
        """Whether tables alone answer it, and no noisy sums."""
        return False

    @property
    def untried(self) -> bool:
        """Whether it rests on how columns go together of which no model behind tables is made, and
        which no run plants: so that nobody knows whether tables hold it."""
        return False

    @property
    def scale(self) -> str:
        """On which copies and sites are combined: ``plain``, ``log`` (of a ratio), ``logit`` (of a
        share), ``fisher`` (of a correlation) or ``count`` (of a number of rows)."""
        return "log" if self.ratio else "plain"

    def is_share(self, outcome: Column) -> bool:
        """Whether the estimate is the share of the outcome's second level."""
        return self.share is not None and outcome.kind == "binary"

    def measure_of(self, outcome: Column) -> Measure:
        """What the estimate of this outcome is called."""
        return self.share if self.share is not None and self.is_share(outcome) else self.measure
