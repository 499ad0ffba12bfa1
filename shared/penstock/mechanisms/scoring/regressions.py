"""The regressions of a study: estimands of one of them share its sums, its answer and its price."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from penstock.questions.estimands import Estimand
from penstock.questions.grammar import Spline
from penstock.questions.terms import DesignTerm, ProductTerm, SplineTerm, design_terms
from penstock.schema import Schema

Key = frozenset[Hashable]


@dataclass(frozen=True, slots=True)
class Regression:
    """A regression that a study declares, whichever of its coefficients are asked for.

    Attributes:
        number: from 1, in the order in which the estimands first name it.
        model, outcome, strata, where: as its estimands have them.
        terms: columns of its design, in the order of the first estimand's; no intercept.
        asked: of each estimand of it, by name, the place of what it asks for among the terms.
        formula: of what it is, on one line.
    """

    number: int
    model: str
    outcome: str
    strata: tuple[str, ...]
    where: str
    terms: tuple[DesignTerm, ...]
    asked: Mapping[str, int]
    formula: str

    @property
    def names(self) -> tuple[str, ...]:
        """Of the terms."""
        return tuple(term.name for term in self.terms)


def list_regressions(schema: Schema, estimands: Sequence[Estimand]) -> tuple[Regression, ...]:
    """All of a study, each once; estimands that compare nothing are of none."""
    found: dict[Key, list[Estimand]] = {}
    for estimand in estimands:
        if estimand.regression.compares:
            found.setdefault(_key_of(estimand), []).append(estimand)
    return tuple(
        _make_regression(schema, number, of) for number, of in enumerate(found.values(), start=1)
    )


def term_key(term: DesignTerm) -> Key:
    """What a term is, whichever way it is written."""
    if isinstance(term, SplineTerm):
        return frozenset([(term.column, term.knots, term.number)])
    parts = (term.left, term.right) if isinstance(term, ProductTerm) else (term,)
    return frozenset((part.column, part.level) for part in parts)


def _key_of(estimand: Estimand) -> Key:
    """Alike for two estimands that differ in what they ask of one regression, and in no more."""
    regressors = frozenset(str(r) if isinstance(r, Spline) else r.key for r in estimand.regressors)
    of = (estimand.model, estimand.outcome, frozenset(estimand.strata), estimand.where)
    return frozenset([of, ("regressors", regressors)])


def _make_regression(schema: Schema, number: int, estimands: Sequence[Estimand]) -> Regression:
    first = estimands[0]
    terms = design_terms(schema, first)
    places = {term_key(term): at for at, term in enumerate(terms)}
    return Regression(
        number=number,
        model=first.model,
        outcome=first.outcome,
        strata=first.strata,
        where=first.where,
        terms=terms,
        asked={e.name: places[term_key(design_terms(schema, e)[-1])] for e in estimands},
        formula=first.formula,
    )
