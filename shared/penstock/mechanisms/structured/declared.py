"""Which columns are drawn from models of their own, by which regression, and in which order.

A column that an estimand asks a regression of is drawn from a model of its own, given the
covariates and the outcomes drawn before it; a duration always is, with its event. An outcome that
another one's estimand names, as its term, to adjust for or as its exposure, is drawn before it;
durations are last. Of columns that are asked about in a circle one stays among the covariates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.base.checks import Checks
from penstock.base.errors import Problem
from penstock.mechanisms.structured.extras import Extra, list_extras
from penstock.questions.estimands import Estimand
from penstock.questions.grammar import Factor
from penstock.questions.models import MODELS
from penstock.schema import Column, Schema

_KINDS = ("continuous", "integer", "binary", "ordered", "categorical")
"""An event is drawn with its duration."""

_OF_DURATIONS = next(MODELS.of(name) for name in MODELS.names if MODELS.of(name).needs_event)


@dataclass(frozen=True, slots=True)
class Drawn:
    """An outcome that is drawn from a model of its own.

    Args:
        column: its name; of survival, the duration's.
        regression: the name of the model whose scores it has; of a column that two of them are
            asked of, the one that suits fewer kinds of column: of a count, ``poisson``.
        terms, adjusted: columns that estimands of it ask for, and adjust for, those of products,
            strata and subgroups among them; none where no estimand does.
        extras: products, splines and subgroups themselves.
        levels: those of its own that estimands ask about, each against the first; most have none.
        plain: columns that estimands ask for without any of the extras in their regressions.
        contrasts: how many coefficients each column of the design has: of every level but the
            first where they are asked about one by one, else 1.
        exposure: of a count whose estimands are of rates, the column of which it is per unit; else
            empty.
        strata: of a duration, the columns of which each combination of levels has a baseline of
            its own, where all estimands of it name the same; else strata are adjusted for alone.
    """

    column: str
    regression: str
    terms: tuple[str, ...]
    adjusted: tuple[str, ...]
    extras: tuple[Extra, ...] = ()
    exposure: str = ""
    strata: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    contrasts: int = 1
    plain: tuple[str, ...] = ()

    @property
    def lasting(self) -> bool:
        """Whether it is a duration."""
        return MODELS.of(self.regression).needs_event

    @property
    def asked(self) -> bool:
        """Whether an estimand asks for a coefficient of it."""
        return bool(self.named or self.extras)

    @property
    def named(self) -> frozenset[str]:
        return frozenset((*self.terms, *self.adjusted))

    @property
    def twice(self) -> int:
        """Columns of its design that stand beside their own logarithm."""
        return int(self.exposure in self.named)

    @property
    def follows(self) -> frozenset[str]:
        """Columns before which it cannot be drawn."""
        return self.named | ({self.exposure} if self.exposure else set())


def list_outcomes(schema: Schema, estimands: Sequence[Estimand]) -> tuple[Drawn, ...]:
    """What is drawn from models of its own, in order."""
    asked: dict[str, list[Estimand]] = {column.name: [] for column in schema.columns}
    for estimand in estimands:
        if estimand.regression.compares and estimand.outcome in asked:
            asked[estimand.outcome].append(estimand)
    numbers = [
        _declare(column, asked[column.name])
        for column in schema.columns
        if column.kind in _KINDS and asked[column.name]
    ]
    durations = [_declare(column, asked[column.name]) for column in list_durations(schema)]
    return (*_order(numbers), *durations)


def list_durations(schema: Schema) -> list[Column]:
    """The durations, in order."""
    return [column for column in schema.columns if column.event is not None]


def list_covariates(schema: Schema, outcomes: Sequence[Drawn]) -> list[Column]:
    """What the population holds: every column but outcomes, durations and their events."""
    drawn = {outcome.column for outcome in outcomes}
    kinds = ("duration", "event")
    return [c for c in schema.columns if c.name not in drawn and c.kind not in kinds]


def has_model(estimand: Estimand, outcomes: Sequence[Drawn]) -> bool:
    """Whether an estimand's outcome is among those."""
    return any(estimand.outcome == outcome.column for outcome in outcomes)


def _declare(column: Column, asked: Sequence[Estimand]) -> Drawn:
    """An outcome with what its estimands name, each once."""
    models = [e.regression for e in asked]
    regression = min(models, key=lambda m: len(m.outcomes)) if models else _OF_DURATIONS
    terms = [e.term for e in asked if isinstance(e.target, Factor)]
    adjusted = [name for e in asked for name in (*e.covariates, *_compared(e)) if name != e.term]
    once = [tuple(dict.fromkeys(names)) for names in (terms, adjusted)]
    exposure = next((e.exposure for e in asked if e.exposure), "")
    strata = _list_strata(asked) if regression.needs_event else ()
    levels = dict.fromkeys(e.outcome_level for e in asked if e.outcome_level is not None)
    return Drawn(
        column.name,
        regression.name,
        once[0],
        once[1],
        list_extras(asked),
        exposure,
        strata,
        tuple(levels),
        len(column.levels) - 1 if regression.names_level else 1,
        tuple(dict.fromkeys(e.term for e in asked if not list_extras([e]))),
    )


def _list_strata(asked: Sequence[Estimand]) -> tuple[str, ...]:
    """Those that all estimands name, in whichever order; none where they differ."""
    named = {frozenset(e.strata) for e in asked}
    return tuple(sorted(named.pop())) if len(named) == 1 else ()


def _compared(estimand: Estimand) -> list[str]:
    return [comparison.column for comparison in estimand.subgroup]


def _order(outcomes: Sequence[Drawn]) -> list[Drawn]:
    """Those first which others name; of a circle one is left out."""
    ordered: list[Drawn] = []
    waiting = {outcome.column: outcome for outcome in outcomes}
    while waiting:
        free = [o for o in waiting.values() if not o.follows & waiting.keys()]
        if free:
            ordered.append(waiting.pop(free[0].column))
        else:
            waiting.pop(_in_circle(waiting))
    return ordered


def _in_circle(waiting: dict[str, Drawn]) -> str:
    """The first column of a circle, where each names one that waits: who follows long is in one."""
    at, passed = next(iter(waiting)), list[str]()
    while at not in passed:
        passed.append(at)
        at = next(name for name in waiting if name in waiting[at].follows)
    circle = passed[passed.index(at) :]
    return next(name for name in waiting if name in circle)


def list_exposure_problems(estimands: Sequence[Estimand]) -> list[Problem]:
    """A count is scored by one regression, of a rate or of the count itself."""
    check, found = Checks("estimands"), dict[str, str]()
    for estimand in estimands:
        if not estimand.regression.takes_exposure:
            continue
        first = found.setdefault(estimand.outcome, estimand.exposure)
        if first != estimand.exposure:
            check.add(
                "exposure",
                f"estimands of {estimand.outcome!r} differ in it, and one model is made of them",
                value=estimand.exposure or "none",
                bound=first or "none, as of the first one",
                remedy="Ask one of them in a study of its own",
            )
    return check.problems
