"""What every model of an outcome is asked, whichever it is.

A model has parameters θ: coefficients of the design
(:mod:`~penstock.mechanisms.structured.regressors`)
and some of its own. The persons of the released population, each with the chances that θ gives
every outcome that there can be, are the *world* of θ: no outcome is drawn, so that nothing is
left to chance. A *reference* is the regression as the study declares it, fitted to a world; of it
rows have scores. Rows' mean score at a reference, released, is what the world's is to be.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.schema import Coded

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Reference = TypeVar("Reference", bound="Referred")
Found = TypeVar("Found", bound="Imagined")


LEAST_INFORMATION = 1e-6
"""Of a person, on a standardised column: added, so that there is some where nothing happens."""


class Referred(Protocol):
    """The declared regression, fitted to a world.

    Attributes:
        coefficients: (linear + bends,), the latter 0; information: (linear, linear) a person's.
    """

    @property
    def coefficients(self) -> Array: ...

    @property
    def information(self) -> Array: ...


class Imagined(Protocol):
    """Sums of entries of a score, of every quasi-random person and whatever may come of them:
    N · outcomes vectors of length q, which nobody lays out where there is a shorter way."""

    def weigh(self, weights: Array) -> Self:
        """Each entry times its weight, (q,)."""

    def square(self) -> list[Array]:
        """Squared lengths of all vectors, in arrays whose shapes hang on persons alone."""

    def shorten(self, squares: Sequence[Array]) -> Self:
        """All vectors at most of length 1, of which these are the squared lengths."""

    def lay_out(self, every: int = 1) -> Array:
        """(outcomes, N / every, q) of some persons."""


@dataclass(frozen=True, slots=True)
class Regression:
    """One of those that the study's estimands are asked in.

    Attributes:
        has: (linear,) which columns; asks: (linear,) the coefficients that are asked in this one;
            beside: (linear,) what these are made of, and what is asked in another one: rows tell
            how much both have in common.
    """

    has: Bools
    asks: Bools
    beside: Bools

    def repeat(self, times: int) -> Regression:
        """The same, one after the other."""
        return Regression(*(np.tile(each, times) for each in (self.has, self.asks, self.beside)))


@dataclass(frozen=True, slots=True)
class World:
    """The quasi-random persons, as an outcome's model sees them.

    Attributes:
        design: (N, width) of the persons, of which the first ``linear`` columns are no bends;
            importance: (width,) of each beside the others: 1 of what is asked.
        declared: (linear,) which of those the study's own regressions have.
        regressions: of the declared columns, each that has coefficients that are asked in it; none:
            one of them all.
        pairs: of linear columns with tails, of which rows are asked the curvature, too.
        complete: (N,) 1 of who has all declared covariates; others have no part, as rows have none.
        fixed: (linear,) coefficients that the study's own regressions have unasked: an exposure's.
        wide: (linear,) how wide a coefficient is believed, beside others: 1, and less of one of
            many levels where these are spared.
    """

    design: Array
    linear: int
    importance: Array
    declared: Bools
    pairs: Sequence[tuple[int, int]]
    complete: Array
    fixed: Array
    wide: Array
    regressions: tuple[Regression, ...] = ()

    def list_regressions(self) -> tuple[Regression, ...]:
        """At least one. Each declared coefficient is asked in one of them."""
        nothing = np.zeros(self.linear, dtype=np.bool_)
        return self.regressions or (Regression(self.declared, self.declared, nothing),)

    def taken(self, narrow: Bools | None) -> Array:
        """(linear,) 1 of the columns that a reference has: all, or those of one regression."""
        return np.ones(self.linear) if narrow is None else np.where(narrow, 1.0, 0.0)

    def held(self, narrow: Bools | None) -> Array:
        """(linear,) coefficients of columns that a reference has, and does not estimate."""
        return self.fixed * (1 - self.taken(narrow))


class Drawable(Protocol):
    """What is asked of a model that is fitted.

    Attributes:
        unit: what is much on the scale of the linear predictor: 1 where it is the logarithm of
            odds, of a rate or of a hazard, else about an sd of the outcome.
    """

    @property
    def unit(self) -> float: ...

    def inform(self, theta: Array) -> float:
        """What a person tells on average of a number that is added to everybody's linear predictor,
        by Fisher: the inverse of its variance, of one person, in squares of :attr:`unit`."""

    def draw(
        self, theta: Array, design: Array, uniforms: Array, added: Array | None = None
    ) -> Coded:
        """The outcome's columns of any persons.

        Args:
            design: (N, coefficients); uniforms: (N, 2) in (0, 1).
            added: (N,) to the linear predictor of the declared regression, on its scale: the
                logarithm of a ratio, or the outcome's own units.
        """


class OutcomeModel(ABC, Generic[Reference, Found]):
    """The model of one outcome in a world.

    Args:
        own: how many entries θ has beside the design's coefficients, which are its first.
    """

    def __init__(self, world: World, own: int) -> None:
        self.world, self.own, self.linear = world, own, world.linear
        self.coefficients: int = world.design.shape[1]
        self.pairs = world.pairs
        # Whether levels of which each has few persons are believed alike, and not asked for.
        self.sparing = False

    @property
    def wide(self) -> Array:
        """(linear,) by how much sds of the prior differ between coefficients."""
        return self.world.wide if self.sparing else np.ones(self.linear)

    @property
    def tailed(self) -> list[int]:
        """Columns of which rows are asked how much they tell by themselves."""
        return [one for one, other in self.pairs if one == other]

    @property
    def asked(self) -> Array:
        """The world's importance; 0 of what is spared."""
        spared = np.zeros(len(self.world.importance), dtype=np.bool_)
        spared[: self.linear] = self.wide < 1
        return np.where(spared, 0.0, self.world.importance)

    @property
    def unit(self) -> float:
        """As :class:`Drawable` has it."""
        return 1.0

    @property
    def size(self) -> int:
        """Entries of θ."""
        return self.coefficients + self.own

    @property
    def entries(self) -> int:
        """Of a score: one for each of θ, then the curvatures."""
        return self.size + len(self.pairs)

    @abstractmethod
    def start(self) -> Array:
        """θ of no effect, and what the counts say. Worlds are sought from the last one, so this
        forgets all: what follows is a function of the θ that follow, and of nothing before."""

    @abstractmethod
    def prior(self) -> Array:
        """(size, size) the precision of a weak prior around :meth:`start`."""

    @abstractmethod
    def importance(self, again: bool) -> Array:
        """(size,) how much each entry of a score counts beside the others; 0: not at all.

        Args:
            again: rows have been asked before.
        """

    @abstractmethod
    def refer(
        self, theta: Array, at: Array | None = None, narrow: Bools | None = None
    ) -> Reference:
        """A regression that is fitted to the world of θ, or has these coefficients.

        Args:
            narrow: (linear,) of these columns alone, as the study asks; of all linear ones without.
        """

    @abstractmethod
    def scores(self, reference: Reference, design: Array, coded: Coded) -> Array:
        """(N, entries) what each row adds, unclipped; 0 where the outcome is missing.

        A row's part of the curvature is what it adds to the information's diagonal.
        """

    @abstractmethod
    def imagine(self, reference: Reference, turn: Array, bounded: bool = True) -> Found:
        """The same of the quasi-random persons, for each outcome; of its entries these sums.

        Args:
            turn: (entries, q), each column of entries of θ's coefficients and own, or of
                curvatures.
            bounded: as rows' scores are bounded by the model itself.
        """

    @abstractmethod
    def chances(self, theta: Array) -> Array:
        """(N, outcomes), rows adding up to 1."""

    @abstractmethod
    def look(self, theta: Array, found: Found) -> Array:
        """(q,) the world's mean of what was found of each outcome."""

    @abstractmethod
    def slopes(self, theta: Array, found: Found) -> Array:
        """(q, size) of that, by θ: near enough for Newton's steps."""

    @abstractmethod
    def inform(self, theta: Array) -> float:
        """As :class:`Drawable` has it."""

    @abstractmethod
    def draw(
        self, theta: Array, design: Array, uniforms: Array, added: Array | None = None
    ) -> Coded:
        """As :class:`Drawable` has it."""
