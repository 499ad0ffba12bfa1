r"""How far one person moves an answer, and what follows for any private method.

Two tables differ in one person, and their coefficients by Δ. An estimate T that is released by a
Gaussian mechanism whose outputs on the two are at most as far apart as two normal distributions of
distance μ errs, in one of the two tables at least, by a root mean square of

.. math:: \frac{Δ}{2}\sqrt{2Φ(-μ/2)},

since (T − a)² + (T − b)² ≥ Δ²/2 for whatever T, and the two distributions share 2Φ(−μ/2) of their
mass (Le Cam's two points; Dong, Roth & Su 2022 for μ, *Gaussian differential privacy*).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr
from tests.studies.foreign_measures import Fit, fit_terms
from tests.studies.foreign_tables import Table

from penstock.privacy.accounting import gaussian

Array = NDArray[np.float64]

_TRIED = 6
"""Persons who are left out, one by one, for each coefficient: who lie furthest off come first."""


@dataclass(frozen=True, slots=True)
class Influence:
    """The most that one person moves a named coefficient, in its own standard errors."""

    name: str
    moved: float


def most_moved(table: Table) -> list[Influence]:
    """Of each named coefficient, by leaving out one person: exact, of those tried."""
    columns = list(dict.fromkeys(name.partition("=")[0] for name in table.named))
    whole = fit_terms(table.rows, table, columns)
    found = []
    for name in table.named:
        value, spread = whole[name]
        moved = [
            abs(_without(table, columns, person)[name][0] - value) / spread
            for person in _furthest(table, name.partition("=")[0])
        ]
        found.append(Influence(name, max(moved)))
    return found


def least_error(moved: float, mu: float) -> float:
    """Root mean square, in one of two tables whose coefficients are so far apart."""
    return float(moved / 2 * np.sqrt(2 * ndtr(-mu / 2)))


def distance(epsilon: float, delta: float) -> float:
    """μ of the Gaussian mechanism that is (ε, δ)-private, exactly."""
    return float(brentq(lambda mu: gaussian.delta(mu, epsilon) - delta, 1e-3, 20.0))


def _furthest(table: Table, column: str) -> Array:
    """Places of the rows that lie furthest from a column's mean."""
    values = table.rows[column]
    away = np.nan_to_num(np.abs(values - np.nanmean(values)))
    return np.argsort(-away, kind="stable")[:_TRIED]


def _without(table: Table, columns: list[str], person: int) -> dict[str, Fit]:
    kept = np.delete(np.arange(table.n), person)
    return fit_terms(table.take(kept).rows, table, columns)
