r"""How far a regression's coefficients are otherwise at each level of a column, such as a site: one
step from the fit of all rows, by each level's own scores.

With b the coefficients of all rows, a row's *efficient* score is that part of its score of what is
asked which is blind to all other declared coefficients, and to the level's own intercept or
baseline; clipped, :math:`c_i = \min(1, 1/‖w∘u_i‖)\, u_i`. Of level s, with n_s rows,

.. math:: U_s = \sum_{i∈s} c_i + N(0, σ²/w²),\qquad
          b_s = b + J_s^{-1} K^{-1} \Big(\frac{U_s}{n_s} - l\Big),\qquad
          K = E[c u']\,E[u u']^{-1},\quad l = E[c - u],

where K says how much less a clipped score moves with the coefficients (the derivative of E c is
E c u' by the information identity), and l what clipping takes of everybody. Both are expectations
over the persons of the world, and public, as J_s is: a row's efficient information by the fit, as
rows' curvatures have it, times what the world says of the level's own persons beside all. n_s is
the level's share of the released population, which the counts of its column say.

.. math:: \mathrm{Var}\, b_s = \frac{J_s^{-1/2} Φ J_s^{-1/2}}{n_s}
          + B_s \Big(\frac{σ²}{w² n_s²} + m²\Big) B_s',\qquad B_s = J_s^{-1} K^{-1},

Φ the scores' variance beside the information (:mod:`penstock.mechanisms.scoring.answers`) and m
what clipping may hide (:func:`~penstock.mechanisms.structured.score_clipping.weigh_reach`). An
error of b is in none of it to first order: it moves U_s as much as b. So levels are independent
estimates, and may be pooled. What a step misses of itself is in no variance, which would be the
larger, the further off a level is, so that pooling hardly saw it (τ² at a half). It is of second
order, but of hazards, where who is at risk follows from coefficients, up to a third of a step.

Sources: Bickel, Klaassen, Ritov & Wellner 1993, *Efficient and Adaptive Estimation*, §2.5 (one-step
estimates); Cochran 1954 for what becomes of them.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.scoring.answers import report_terms
from penstock.mechanisms.scoring.divisible import list_terms
from penstock.mechanisms.scoring.regressions import Regression
from penstock.mechanisms.structured.corrections import SIMPSON
from penstock.mechanisms.structured.matching import Inquiry, Matched, doubt_tails
from penstock.mechanisms.structured.outcomes.protocol import Imagined, OutcomeModel, Referred
from penstock.mechanisms.structured.regressors import Design
from penstock.mechanisms.structured.score_clipping import Sizes, sum_levels, weigh_reach
from penstock.mechanisms.structured.score_questions import ask_some
from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.sources import NoiseSource

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Places = NDArray[np.intp]
R = TypeVar("R", bound=Referred)
F = TypeVar("F", bound=Imagined)

_ALIKE = 100.0
"""Persons of the world, of whom a level has about 2,048 by the number of levels, that say of a
level's information what those of all levels say: fewer say it badly themselves."""

_FURTHEST = 3.0
"""From the world's coefficients, at which scores are taken, on standardised columns: further out
than rows could have led from one round to the next there is noise alone."""

_TURNS, _LONGEST = 4, 1.5
"""How often the information along a step is found again, and how long one is."""

_LEAST = 1e-9


@dataclass(frozen=True, slots=True)
class Apart:
    """Of each term that is asked for, (p, S): a level's coefficient, per one unit, its variance,
    and the mechanism's part of that."""

    estimates: Array
    variances: Array
    noise: Array


@dataclass(frozen=True, slots=True)
class Levels:
    """Who is of which level: rows (n·k,), persons of the world (N,); count: how many levels."""

    rows: Places
    world: Places
    count: int


@dataclass(frozen=True, slots=True)
class Fitted:
    """An outcome's design, what its rows were asked, and what they told: θ and b."""

    design: Design
    inquiry: Inquiry
    matched: Matched


def tell_levels(
    model: OutcomeModel[R, F],
    fitted: Fitted,
    regression: Regression,
    levels: Levels,
    measurement: WholeSum,
    noise: NoiseSource,
) -> Apart:
    """One release: of each level its own coefficients, with what they err by.

    Relation: zero-out with public n; sensitivity and charge as
    :mod:`penstock.mechanisms.scoring.divisible` has them. A level that nothing is known of has a
    variance so large that nothing is told.

    Args:
        regression: the only one of its outcome, of all rows.

    Raises:
        ValueError: rows were not asked for the declared coefficients.
    """
    matched, rows = fitted.matched, fitted.inquiry.count
    if matched.coefficients is None:
        raise ValueError("rows were not asked for the declared coefficients")
    theta, linear = matched.theta, model.linear
    matrix, untold = report_terms(fitted.design, regression, model.unit)
    places = list_terms(regression)
    matrix, untold = matrix[places], untold[places]
    mine = (matrix != 0).any(axis=0) & model.world.declared
    if not mine.any():  # the round is asked all the same
        mine[np.argmax(model.world.declared)] = True
    world = model.refer(theta, narrow=model.world.declared).coefficients[:linear]
    at = world + np.clip(matched.coefficients - world, -_FURTHEST, _FURTHEST)
    reference = model.refer(theta, at, narrow=model.world.declared)
    question = ask_some(model, matched.tails.turn(reference.information), mine)
    imagined = model.imagine(reference, question.turn)
    error = measurement.sd * levels.count / max(rows, 1.0)
    sizes = Sizes.of(imagined, model.chances(theta))
    weights, missed = weigh_reach(sizes, question, error, doubt_tails(model.world, question))
    asked = fitted.inquiry
    scores = (model.scores(reference, asked.design, asked.coded) @ question.turn) * weights
    total = sum_levels(scores, asked.present, asked.per_person, levels.rows, levels.count)
    told = measurement(total, noise).reshape(levels.count, -1) / weights
    kept, lost, spread = _expect_clipped(model, theta, imagined, weights)
    plain = ask_some(model, reference.information, mine).information
    dispersion = _turn(_root(plain), spread)
    found = np.empty((3, len(places), levels.count))
    mapped = matrix[:, mine]
    for level in range(levels.count):
        seen, share = _see_level(model, levels, level)
        count = max(rows * share, 1.0)
        off = np.linalg.solve(kept, told[level] / count - lost)
        own, step = question.information, np.zeros(len(lost))
        for _ in range(_TURNS):
            scale = _follow_information(seen, theta, at, step, mine, plain, share)
            own = question.information * np.sqrt(np.outer(scale, scale))
            step = (step + np.clip(np.linalg.solve(own, off), -_LONGEST, _LONGEST)) / 2
        step = np.clip(np.linalg.solve(own, off), -_LONGEST, _LONGEST)
        back = np.linalg.inv(kept @ own)
        errors = (measurement.sd / weights / count) ** 2 + missed**2
        added = (back * errors) @ back.T
        sampled = _turn(_root(own), dispersion) / count
        found[0, :, level] = matrix @ at + mapped @ step
        for place, covariance in ((1, sampled + added), (2, added)):
            found[place, :, level] = np.einsum("pi,ij,pj->p", mapped, covariance, mapped)
    nothing = np.where(untold, np.inf, 0.0)[:, None]
    return Apart(found[0], found[1] + nothing, found[2] + nothing)


def _expect_clipped(
    model: OutcomeModel[R, F], theta: Array, imagined: F, weights: Array
) -> tuple[Array, Array, Array]:
    """K (p, p), l (p,) and E[u u'] (p, p) over the world."""
    vectors = imagined.lay_out().reshape(-1, len(weights))
    chances = model.chances(theta).T.reshape(-1, 1) / len(model.world.design)
    kept = 1 / np.maximum(np.linalg.norm(vectors * weights, axis=1), 1.0)[:, None]
    spread = (vectors * chances).T @ vectors
    clipped = (vectors * chances * kept).T @ vectors
    ridge = _LEAST * (np.trace(spread) + 1) * np.eye(len(spread))
    lost = (vectors * chances * (kept - 1)).sum(axis=0)
    return np.linalg.solve(spread + ridge, clipped + ridge).T, lost, spread


def _see_level(
    model: OutcomeModel[R, F], levels: Levels, level: int
) -> tuple[OutcomeModel[R, F], float]:
    """The same model of a world of one level's persons, and these as a share of all."""
    there, seen = levels.world == level, copy(model)
    seen.world = replace(model.world, complete=model.world.complete * there)
    return seen, float(there.mean())


def _follow_information(
    seen: OutcomeModel[R, F],
    theta: Array,
    at: Array,
    step: Array,
    mine: Bools,
    plain: Array,
    share: float,
) -> Array:
    """(p,) how much more a level's row tells than any does, on average along a step."""
    passed, far = np.zeros(len(step)), at.copy()
    for along, weight in SIMPSON:
        far[mine] = at[mine] + along * step
        information = seen.refer(theta, far, narrow=seen.world.declared).information
        passed += weight * np.diag(ask_some(seen, information, mine).information)
    # Of a row of the level, and not of any.
    persons = share * len(seen.world.design)
    ratio = passed / max(share, _LEAST) / np.maximum(np.diag(plain), _LEAST)
    return np.asarray((persons * np.maximum(ratio, _LEAST) + _ALIKE) / (persons + _ALIKE))


def _root(matrix: Array) -> Array:
    """The inverse of a symmetric matrix's root."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors / np.sqrt(np.maximum(values, _LEAST))) @ vectors.T)


def _turn(by: Array, matrix: Array) -> Array:
    return np.asarray(by @ matrix @ by)
