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
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.schema import Coded

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Reference = TypeVar("Reference")


class OutcomeModel(ABC, Generic[Reference]):
    """The model of one outcome on the quasi-random persons of a population.

    Attributes:
        coefficients: of the design, the first entries of θ; own: further entries of θ.
        unit: what is much on the scale of the linear predictor: 1 where it is the logarithm of
            odds, of a rate or of a hazard, else about an sd of what it does not explain.
    """

    coefficients: int
    own: int
    unit: float = 1.0

    @property
    def size(self) -> int:
        """Entries of θ, and of a score."""
        return self.coefficients + self.own

    @abstractmethod
    def start(self) -> Array:
        """θ of no effect, and what the counts say."""

    @abstractmethod
    def prior(self) -> Array:
        """(size,) precisions of a weak prior around :meth:`start`, on the scale of θ."""

    @abstractmethod
    def importance(self, again: bool) -> Array:
        """(size,) how much each entry of a score counts beside the others; 0: not at all.

        Args:
            again: rows have been asked before.
        """

    @abstractmethod
    def refer(self, theta: Array) -> Reference:
        """The declared regression, fitted to the world of θ."""

    @abstractmethod
    def scores(self, reference: Reference, design: Array, coded: Coded) -> Array:
        """(N, size) what each row adds, unclipped; 0 where the outcome is missing."""

    @abstractmethod
    def imagine(self, reference: Reference) -> Array:
        """(N, outcomes, size) the same of the quasi-random persons, for each outcome."""

    @abstractmethod
    def chances(self, theta: Array) -> Array:
        """(N, outcomes), rows adding up to 1."""

    @abstractmethod
    def slopes(self, theta: Array, found: Array) -> Array:
        """By θ, (q, size), of the mean over the world of what was found of each outcome: near
        enough for Newton's steps.

        Args:
            found: (N, outcomes, q).
        """

    @abstractmethod
    def information(self, theta: Array) -> float:
        """What a person tells on average of a number that is added to everybody's linear predictor,
        by Fisher: the inverse of its variance, of one person, in squares of :attr:`unit`."""

    @abstractmethod
    def draw(
        self, theta: Array, design: Array, uniforms: Array, added: Array | None = None
    ) -> Coded:
        """The outcome's columns of any persons.

        Args:
            design: (N, coefficients); uniforms: (N, 2) in (0, 1).
            added: (N,) to their linear predictors: effects that θ does not have.
        """
