"""What a model must do with a table: count its events, be fitted, and bound its variance."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.questions.estimands import Estimand
from penstock.questions.models.model import Model
from penstock.schema import LEVEL_KINDS, MAX_LEVELS, Column, Schema

Array = NDArray[np.float64]
Places = NDArray[np.intp]


class Degenerate(Exception):
    """The table does not identify the estimand; the text goes into ``Estimate.problem``."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The last column's coefficient.

    Attributes:
        coefficient, variance: in units of the design's column.
        converged: the fit ended at a maximum.
        unit_variance: variance of an unrelated term of standard deviation 1, where separation is
            possible; else None.
        sandwich: the robust variance, of a fit that was asked for it; else None.
    """

    coefficient: float
    variance: float
    converged: bool
    unit_variance: float | None
    sandwich: float | None = None


class TableModel(ABC):
    """A model as it is fitted to the tables of sites, which are hostile.

    Every refit of a site is fitted as its copies are, so that refits need nothing more.

    Attributes:
        family: the distribution of the generalised linear model that it is, as statsmodels calls
            it; None where it is none.
        counts: whether what it supposes of the outcome's variance can be seen to fail in a
            dispersion.
        disperses: whether it estimates α of a variance μ + α μ².
    """

    model: ClassVar[Model]
    family: ClassVar[str | None] = None
    counts: ClassVar[bool] = False
    disperses: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return self.model.name

    @abstractmethod
    def count_events(self, outcome: Array, event: Array | None) -> int | None:
        """Events among complete rows (n,); None of a model without, or where they are none.

        Args:
            event: of a model that needs an event column, that; else None.
        """

    @abstractmethod
    def fit(self, outcome: Array, event: Array | None, design: Array) -> Fit:
        """The model's fit to complete rows, by design columns (n, p) of which the last is the term.

        Raises:
            Degenerate: the table does not identify the estimand. Whatever else a numerical library
                raises is taken for that, too.
        """

    def fit_strata(self, outcome: Array, event: Array | None, design: Array, strata: Array) -> Fit:
        """The same with a baseline of its own for each stratum, of a model without an intercept.

        Args:
            strata: (n,) a number for each row's stratum.
        """
        raise TypeError(f"a {self.name} model has no baseline beside its coefficients")

    def fit_robust(
        self, outcome: Array, event: Array | None, design: Array, strata: Array | None
    ) -> Fit:
        """The same with the robust variance, too, of a model that says it has one
        (:class:`penstock.questions.models.model.Model`).

        Args:
            strata: as of :meth:`fit_strata`; None: there is but one.
        """
        raise TypeError(f"a {self.name} model has no robust variance")

    def fit_offset(self, outcome: Array, event: Array | None, design: Array, offset: Array) -> Fit:
        """The same with an offset in the linear predictor, of a model that takes an exposure.

        Args:
            offset: (n,) of each row.
        """
        raise TypeError(f"a {self.name} model takes no exposure")

    def dispersion(self, outcome: Array, design: Array, offset: Array) -> float:
        """α of the fitted variance, of a model that :attr:`disperses`, 0 at its bound; 0 of others.

        Raises:
            Degenerate: the table does not identify it.
        """
        return 0.0

    @abstractmethod
    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        """A public lower bound for the variance of an estimate from ``rows`` rows; see
        :func:`penstock.inference.floor.variance_floor`."""


def event_share(event: Array, columns: int, *, censored: bool = True) -> float:
    """The share of events, of which there must be as many as columns (and non-events, if asked)."""
    if not np.isin(event, (0.0, 1.0)).all():
        raise Degenerate("the outcome has other values than 0 and 1")
    events = float(event.sum())
    least = min(events, len(event) - events) if censored else events
    if least < max(1, columns):
        kind = "events or non-events" if censored else "events"
        raise Degenerate(f"too few {kind}: {least:.0f} for {columns} columns")
    return events / len(event)


def number_levels(outcome: Array, columns: int) -> tuple[Places, Array]:
    """(n,) which of the levels that there are each row has, from 0, in order; and (K,) their
    shares. As many rows as columns must have another one than most."""
    if not ((outcome == np.floor(outcome)) & (outcome >= 0) & (outcome < MAX_LEVELS)).all():
        raise Degenerate("the outcome has other values than levels")
    levels, place = np.unique(outcome, return_inverse=True)
    counts = np.bincount(place, minlength=len(levels))
    least = len(outcome) - int(counts.max())
    if least < max(1, columns):
        raise Degenerate(f"too few rows beside one level: {least} for {columns} columns")
    return place.astype(np.intp), counts / len(outcome)


def count_ones(event: Array) -> int | None:
    """How many are 1; None where there are other values than 0 and 1."""
    return int(event.sum()) if np.isin(event, (0.0, 1.0)).all() else None


def require_spread(outcome: Array, spread: float) -> None:
    """Refuse an outcome whose standard deviation is not above rounding, or overflows."""
    if not 1e-10 * float(np.abs(outcome).max()) < spread < math.inf:
        raise Degenerate("the outcome is constant or overflows")


def largest_spread(schema: Schema, estimand: Estimand, rows: int) -> float:
    """n·r²/4, at most, of the term's sum of squares around any mean, in units of the estimate.

    A product lies beside its own columns in every design, so that it is as well one of these less
    the middles of their bounds: r/2 is the product of their half widths.
    """
    halves = [_range(schema[name]) / 2 for name in estimand.target.columns]
    reach = math.prod(halves) / estimand.per
    return rows * reach * reach


def rounding_variance(outcome: Column) -> float:
    """step²/12 of an outcome that is kept to a grid of that step; 0 without a grid."""
    return _step(outcome) ** 2 / 12


def _range(term: Column) -> float:
    if term.kind == "ordered":
        return float(len(term.levels) - 1)
    if term.kind in LEVEL_KINDS:
        return 1.0
    lower, upper = term.bounds
    return upper - lower


def _step(outcome: Column) -> float:
    """The smallest difference that the outcome's releases resolve; 0 without a grid."""
    if outcome.kind == "integer":
        return 1.0
    return 0.0 if outcome.decimals is None else 10.0**-outcome.decimals
