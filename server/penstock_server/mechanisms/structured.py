"""Synthetic tables whose outcomes were drawn from models of what the study declares."""

from __future__ import annotations

from penstock.mechanisms import Structured
from penstock.mechanisms.structured.settings import has_model
from penstock.questions.estimands import Estimand
from penstock.questions.grammar import Product
from penstock_server.mechanisms.tables.kind import TableKind

_HOW = (
    "Each site counted its columns with noise, released how they go together, and drew synthetic "
    "persons from that (structured). Each duration was then drawn from a proportional hazards "
    "model of its own, given the other columns, which was fitted to noisy sums; each person's part "
    "in all of these was cut to a bound."
)

_HOLDS = (
    "The tables hold {held}. They hold the other columns' distributions, and how pairs of them "
    "rise and fall together."
)

_MAIN = "the main effects of all other columns on each duration"
_DECLARED = f"the regressions that the study declares ({{}}), and {_MAIN}"

_IN_PART = (
    "These estimands' outcomes have no model of their own, and the tables hold what pairs of "
    "columns say of them, no more: {}."
)

_LACKS = (
    "The tables do not hold interactions{but}, nor effects that change over time: nobody may read "
    "their absence as no effect. Two outcomes go together only as far as the other columns say, "
    "and whose outcome is unknown is so by chance alone."
)

_BUT = " but those that the study names (products, and effects in subgroups)"


class StructuredKind(TableKind[Structured]):
    """Tables of a population and of models of the outcomes."""

    def tell_how(self) -> str:
        return _HOW

    def list_limits(self, *, mechanism_variance: bool) -> tuple[list[str], list[str]]:
        first, last = super().list_limits(mechanism_variance=mechanism_variance)
        asked = [e for e in self.study.estimands if e.regression.compares]
        held = [e.name for e in asked if has_model(e)]
        others = [e.name for e in asked if not has_model(e)]
        named = any(_names_interaction(e) for e in asked if has_model(e))
        lacks = _LACKS.format(but=_BUT if named else "")
        said = [_HOLDS.format(held=_DECLARED.format(", ".join(held)) if held else _MAIN), lacks]
        if others:
            said.append(_IN_PART.format(", ".join(others)))
        return first, [*last, *said]


def _names_interaction(estimand: Estimand) -> bool:
    """A product, or an effect in a subgroup."""
    products = any(isinstance(r, Product) for r in estimand.regressors)
    return products or bool(estimand.where)
