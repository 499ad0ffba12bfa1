"""Synthetic tables whose outcomes were drawn from models of what the study declares."""

from __future__ import annotations

from dataclasses import replace

from penstock.base.text import count_text
from penstock.mechanisms import Structured
from penstock.mechanisms.released import Refitting
from penstock.mechanisms.structured.declared import has_model, list_outcomes
from penstock.mechanisms.structured.settings import FRESH, FRESH_DEALT, count_per_fit
from penstock.questions.estimands import Estimand
from penstock.questions.grammar import Product
from penstock_server.mechanisms.protocol import EffectClass, Results
from penstock_server.mechanisms.tables.kind import TableKind

_HOW = (
    "Each site counted its columns with noise, released how they go together, and drew synthetic "
    "persons from that (structured). Each duration, and each other outcome that a regression of "
    "the study asks of, was then drawn from a model of its own, given the other columns, which was "
    "fitted to noisy sums; each person's part in all of these was cut to a bound."
)

_HOW_JOINTLY = (
    "The columns of all sites' rows were counted together, and how they go together; of which site "
    "a row is was one of these columns. Synthetic persons were drawn from that (structured). Each "
    "duration, and each other outcome that a regression of the study asks of, was then drawn from "
    "a model of its own, given the other columns and the site; each person's part in all of these "
    "was cut to a bound."
)

_PLANTED = (
    " In {runs} more effects of known size were planted into the released model, and the whole "
    "private procedure was repeated on what was drawn from it: what came back says what the tables "
    "hold. That costs no privacy."
)

_DECLARED = EffectClass(
    "what estimands ask for: {}",
    "yes",
    "Drawn from a model of the outcome that has them. How much of each came back is said beside "
    "its estimate, where effects were planted.",
)
_OTHER_MAIN = EffectClass(
    "effects of other columns on {}, one by one",
    "in part",
    "In the model of the outcome, with less of the budget: with few persons or a small ε they are "
    "mostly noise.",
)
_PAIRS = EffectClass(
    "how two of the other columns go together",
    "in part",
    "As far as a correlation of normal scores says it: they rise and fall together, or against "
    "each other.",
)
_PAIRS_COUNTED = EffectClass(
    _PAIRS.effects,
    "in part",
    "Each pair was counted as a table, numbers in twelve groups. Tables hold what stands out of "
    "the noise there, and, of numbers, how far they rise and fall together.",
)
_WITH_DURATION = EffectClass(
    "estimands of an event as such: {}",
    "in part",
    "It was drawn together with its duration: the tables hold what the hazard model of that "
    "duration says of it, no more.",
)
_IN_CIRCLE = EffectClass(
    "estimands whose outcome has no model of its own: {}",
    "in part",
    "Outcomes are asked of in a circle, each as a covariate of the other: the tables hold what the "
    "other models, and pairs of columns, say of it.",
)
_NOT_HELD = tuple(
    EffectClass(effects, "no", "Not in the model. Their absence is not evidence of none.")
    for effects in (
        "interactions that no estimand declares",
        "effects that are no straight line, and no spline that an estimand declares",
        "effects that change over time",
        "what two durations have in common beyond the other columns",
        "whom an outcome is unknown of",
    )
)

_LACKS = (
    "The tables do not hold interactions{but}, nor effects that change over time: nobody may read "
    "their absence as no effect. Two durations go together only as far as the other columns say, "
    "and whose outcome is unknown is so by chance alone."
)

_BUT = " but those that the study names (products, and effects in subgroups)"


class StructuredKind(TableKind[Structured]):
    """Tables of a population and of models of the outcomes."""

    def load_results(self) -> Results:
        from penstock_server.mechanisms.tables.results import TableResults

        return TableResults(self.study, self.refitting)

    @property
    def refitting(self) -> Refitting:
        fresh = FRESH_DEALT if self._counts_pairs else FRESH
        return Refitting(per_fit=count_per_fit(self.used), fresh=fresh)

    @property
    def most_rows(self) -> int | None:
        return self.used.most_rows

    @property
    def _counts_pairs(self) -> bool:
        from penstock.mechanisms.structured.plan import counts_pairs, make_grids

        outcomes = list_outcomes(self.study.schema, self.study.estimands)
        return counts_pairs(make_grids(self.study.schema, outcomes), outcomes, self.used)

    def tell_how(self) -> str:
        return _HOW_JOINTLY if self.joint else _HOW

    def tell_what_left(self) -> str:
        runs = (
            self.used.planted
            if self.used.list_effects(self.study.schema, self.study.estimands)
            else 0
        )
        told = super().tell_what_left()
        return told + _PLANTED.format(runs=count_text(runs, "table")) if runs else told

    def list_limits(self, *, mechanism_variance: bool) -> tuple[list[str], list[str]]:
        first, last = super().list_limits(mechanism_variance=mechanism_variance)
        outcomes = list_outcomes(self.study.schema, self.study.estimands)
        asked = [e for e in self.study.estimands if e.regression.compares]
        named = any(_names_interaction(e) for e in asked if has_model(e, outcomes))
        return first, [*last, _LACKS.format(but=_BUT if named else "")]

    def list_classes(self) -> list[EffectClass]:
        schema, estimands = self.study.schema, self.study.estimands
        outcomes = list_outcomes(schema, estimands)
        asked = [e for e in estimands if e.regression.compares]
        held = [e for e in asked if has_model(e, outcomes)]
        others = [e for e in asked if e not in held]
        events = [e for e in others if schema[e.outcome].kind == "event"]
        circle = [e for e in others if e not in events]
        only_durations = all(outcome.lasting for outcome in outcomes)
        on = "a duration" if only_durations else "a duration or an outcome"
        main = replace(_OTHER_MAIN, effects=_OTHER_MAIN.effects.format(on))
        found = [
            replace(kind, effects=kind.effects.format(", ".join(e.name for e in of)))
            for kind, of in ((_DECLARED, held), (_WITH_DURATION, events), (_IN_CIRCLE, circle))
            if of
        ]
        return [*found, main, _PAIRS_COUNTED if self._counts_pairs else _PAIRS, *_NOT_HELD]


def _names_interaction(estimand: Estimand) -> bool:
    """A product, or an effect in a subgroup."""
    products = any(isinstance(r, Product) for r in estimand.regressors)
    return products or bool(estimand.where)
