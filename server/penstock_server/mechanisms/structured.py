"""Synthetic tables whose outcomes were drawn from models of what the study declares."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.mechanisms import Structured
from penstock.mechanisms.structured.declared import Drawn, has_model, list_outcomes
from penstock.questions.estimands import Estimand
from penstock.questions.grammar import Product
from penstock_server.mechanisms.tables.kind import TableKind

_HOW = (
    "Each site counted its columns with noise, released how they go together, and drew synthetic "
    "persons from that (structured). Each duration, and each other outcome that a regression of "
    "the study asks of, was then drawn from a model of its own, given the other columns, which was "
    "fitted to noisy sums; each person's part in all of these was cut to a bound."
)

_HOLDS = (
    "The tables hold {held}. They hold the other columns' distributions, and how pairs of them "
    "rise and fall together."
)

_MAIN = "the main effects of all other columns on each {}"
_DECLARED = "the regressions that the study declares ({}), and {}"

_WITH_DURATION = (
    "These estimands ask of an event as such, which was drawn together with its duration: the "
    "tables hold what the hazard model of that duration says of it, no more: {}."
)
_IN_PART = (
    "These estimands' outcomes have no model of their own, since the outcomes are asked of in a "
    "circle, each as a covariate of the other: the tables hold what the other models, and pairs of "
    "columns, say of them: {}."
)

_LACKS = (
    "The tables do not hold interactions{but}, nor effects that change over time: nobody may read "
    "their absence as no effect. Two durations go together only as far as the other columns say, "
    "and whose outcome is unknown is so by chance alone."
)

_BUT = " but those that the study names (products, and effects in subgroups)"


class StructuredKind(TableKind[Structured]):
    """Tables of a population and of models of the outcomes."""

    def tell_how(self) -> str:
        return _HOW

    def list_limits(self, *, mechanism_variance: bool) -> tuple[list[str], list[str]]:
        first, last = super().list_limits(mechanism_variance=mechanism_variance)
        schema, estimands = self.study.schema, self.study.estimands
        outcomes = list_outcomes(schema, estimands)
        asked = [e for e in estimands if e.regression.compares]
        others = [e for e in asked if not has_model(e, outcomes)]
        events = [e for e in others if schema[e.outcome].kind == "event"]
        circle = [e for e in others if e not in events]
        named = any(_names_interaction(e) for e in asked if has_model(e, outcomes))
        lacks = _LACKS.format(but=_BUT if named else "")
        said = [_HOLDS.format(held=_tell_held(outcomes, asked)), lacks]
        for text, of in ((_WITH_DURATION, events), (_IN_PART, circle)):
            if of:
                said.append(text.format(", ".join(e.name for e in of)))
        return first, [*last, *said]


def _tell_held(outcomes: Sequence[Drawn], asked: Sequence[Estimand]) -> str:
    """What the outcomes' models hold."""
    held = [e.name for e in asked if has_model(e, outcomes)]
    only_durations = all(outcome.lasting for outcome in outcomes)
    main = _MAIN.format("duration" if only_durations else "duration and outcome")
    return _DECLARED.format(", ".join(held), main) if held else main


def _names_interaction(estimand: Estimand) -> bool:
    """A product, or an effect in a subgroup."""
    products = any(isinstance(r, Product) for r in estimand.regressors)
    return products or bool(estimand.where)
