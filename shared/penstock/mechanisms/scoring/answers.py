r"""From what rows told of an outcome to the coefficients of a regression, with their covariance.

Rows told the coefficients b of all that the study declares of an outcome together. A regression
that has fewer columns, or is of a subgroup, is fitted to the world: its coefficients follow b by

.. math:: b_s = \hat b_s(θ) + W_{ss}^{-1} W_{s·} (b - \hat b(θ))

with W the information in the world of θ, to first order exact, and exactly for a linear model.

*Sampling*: with A a person's information, as rows' curvatures have it, and D the variance of the
score in the world beside the information there,

.. math:: V = A^{-1/2} D A^{-1/2} / n,\qquad D = W^{-1/2} \, E[u u'] \, W^{-1/2}

(Huber 1967; White 1980): the counted distribution of an outcome has the dispersion of the rows,
so that a count's standard error is not that of a Poisson law. D is of the world, where an
outcome's spread depends on persons as its model says.

*Doubt* is what share of a coefficient's squared influences

.. math:: h_i = W_{ss}^{-1} u_i

few persons of the world have (:mod:`penstock.questions.outliers`); or, where it is larger, of what
a number in the same regression varies by. It is a function of what was released. Where the few have
much of it, clipping them moves the answer by more than its covariance guesses, and the released
counts hardly know them: intervals held the truth in .95 where the first share was below .2, .91 up
to .3, .7 up to .4 and .6 beyond (eleven tables of ``tests/studies/foreign_real.py``, 700 to 4 000
rows, ε = 1 and 3, eight seeds).
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.scoring.regressions import Regression, term_key
from penstock.mechanisms.structured.interactions import Main
from penstock.mechanisms.structured.matching import Matched
from penstock.mechanisms.structured.outcomes.protocol import Imagined, OutcomeModel, Referred
from penstock.mechanisms.structured.regressors import Design
from penstock.questions.outliers import join_doubts, share_few
from penstock.schema import NUMBER_KINDS, Schema

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
R = TypeVar("R", bound=Referred)
F = TypeVar("F", bound=Imagined)


@dataclass(frozen=True, slots=True)
class Answer:
    """Coefficients (q,) with the covariances (q, q) of their noise and of sampling, and the doubt
    (q,) in [0, 1] about each."""

    coefficients: Array
    noise: Array
    sampling: Array
    doubt: Array


def fit_regression(
    model: OutcomeModel[R, F],
    matched: Matched,
    taken: Bools,
    members: Array,
    matrix: Array,
    count: float,
    numbers: Bools,
) -> Answer:
    """Sums of the coefficients of all linear columns of the design; what is not taken is 0.

    Args:
        taken: (linear,) columns that it has; members: (N,) 1 of quasi-random persons it is of.
        matrix: (q, linear) of the sums; count: rows, as released.
        numbers: (linear,) columns that are numbers as they stand, which may have a tail.

    Raises:
        ValueError: rows were not asked for the declared coefficients.
    """
    if matched.coefficients is None or matched.covariance is None:
        raise ValueError("rows were not asked for the declared coefficients")
    theta, linear = matched.theta, model.linear
    declared = model.world.declared
    whole = model.refer(theta, narrow=declared).coefficients[:linear]
    among = _see(model, declared, members).refer(theta, narrow=declared).information
    seen = _see(model, taken, members)
    reference = seen.refer(theta, narrow=taken)
    follows = np.zeros((linear, linear))
    both = np.ix_(taken, declared)
    follows[both] = np.linalg.solve(among[np.ix_(taken, taken)], among[both])
    # The score's variance beside the information.
    turn = np.eye(model.entries)[:, :linear][:, taken]
    vectors = seen.imagine(reference, turn, bounded=False).lay_out().reshape(-1, turn.shape[1])
    chances = model.chances(theta).T.reshape(-1, 1)
    spread = (vectors * chances).T @ vectors / len(model.world.design)
    within = np.ix_(taken, taken)
    known = reference.information
    sampling = np.zeros((linear, linear))
    shrunk, own = _root(known[within]), _root(matched.tails.turn(known)[within])
    sampling[within] = own @ (shrunk @ spread @ shrunk) @ own / count
    follows = matrix @ follows
    influences = matrix[:, taken] @ np.linalg.inv(known[within])
    weights = chances[:, 0] * np.tile(seen.world.complete, len(vectors) // len(members))
    telling, there = model.inform(theta), seen.world.complete
    columns = seen.world.design[:, :linear][:, taken & numbers]
    centred = columns - there @ columns / max(float(there.sum()), 1.0)
    beside = [share_few(column, weights=there) for column in centred.T]
    shares = [share_few(vectors @ each, telling, weights) for each in influences]
    return Answer(
        matrix @ reference.coefficients[:linear] + follows @ (matched.coefficients - whole),
        follows @ matched.covariance @ follows.T,
        matrix @ sampling @ matrix.T,
        np.array([join_doubts(share, beside) for share in shares]),
    )


def _see(model: OutcomeModel[R, F], taken: Bools, members: Array) -> OutcomeModel[R, F]:
    """The same model, of which another regression is asked."""
    seen = copy(model)
    complete = model.world.complete * members
    seen.world = replace(model.world, declared=taken, complete=complete)
    return seen


def _root(matrix: Array) -> Array:
    """The inverse of a symmetric matrix's root."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors / np.sqrt(np.maximum(values, 1e-12))) @ vectors.T)


# -- the reporting scale ---------------------------------------------------------------------------

Places = dict[frozenset[object], int]


def find_columns(design: Design) -> Places:
    """Where each term's column is in a design; an exposure is no term."""
    found: Places = {}
    for at, main in enumerate(design.columns):
        if not main.exposure:
            found[frozenset([_key(main)])] = at
    for at, further in enumerate(design.further, start=len(design.columns)):
        if further.bend is not None:
            found[frozenset([further.bend])] = at
        elif not further.subgroup:
            found[frozenset(_key(design.columns[j]) for j in further.factors)] = at
    return found


def list_taken(design: Design, regression: Regression) -> Bools:
    """(linear,) the columns that a regression has, and of its strata."""
    places, taken = find_columns(design), np.zeros(design.linear, dtype=np.bool_)
    for term in regression.terms:
        if (at := places.get(term_key(term))) is not None:
            taken[at] = True
    for at, main in enumerate(design.columns):
        taken[at] |= main.name in regression.strata
    return taken


def list_numbers(design: Design, schema: Schema) -> Bools:
    """(linear,) the columns that are numbers as they stand."""
    found = np.zeros(design.linear, dtype=np.bool_)
    for at, main in enumerate(design.columns):
        found[at] = not main.exposure and schema[main.name].kind in NUMBER_KINDS
    return found


def report_terms(design: Design, regression: Regression, unit: float) -> tuple[Array, Bools]:
    """(terms, linear) what a regression's terms are of standardised coefficients, per one unit of
    each; and which terms other columns say all of, so that nobody can tell them.

    Beside products columns' own coefficients are those in the middle of the other column.

    Args:
        unit: of the outcome.
    """
    mains, linear = len(design.columns), design.linear
    # Each column is a sum of raw ones: of a product those of standardised columns.
    spread = np.concatenate([design.spread, np.ones(linear - mains)])
    made = np.eye(linear)
    for at, further in enumerate(design.further, start=mains):
        for factor in further.factors:
            spread[at] *= design.spread[factor]
        made[at] /= further.spread
        if further.line is not None:
            for parent, slope in zip(further.parents, further.line[1:], strict=True):
                made[at] -= slope / further.spread * made[parent]
    whole = unit * made.T / spread[:, None]
    places = find_columns(design)
    there = [places.get(term_key(term)) for term in regression.terms]
    rows = [np.zeros(linear) if place is None else whole[place] for place in there]
    return np.array(rows), np.array([place is None for place in there])


def _key(main: Main) -> tuple[str, int | None]:
    return main.name, main.level
