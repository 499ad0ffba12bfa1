"""What a study estimates, a coefficient of a model or a mean, and whether its columns can tell."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from penstock.base.checks import Checks, nearest, shown
from penstock.base.errors import Problem
from penstock.questions.models import MODELS
from penstock.questions.models.model import Model
from penstock.schema import Column

COVARIATES = ("continuous", "integer", "binary", "ordered", "categorical")


@dataclass(frozen=True, slots=True)
class Estimand:
    """A coefficient, or a mean, that the study estimates.

    Attributes:
        name: how the report calls it.
        model: the name of one of :data:`penstock.questions.models.MODELS`.
        outcome: a column; for cox the duration (its event column comes from the schema).
        term: the column whose coefficient is the estimand; of a mean the outcome itself, which
            need not be said.
        per: the coefficient is reported per this many units of the term, > 0.
        adjust: adjustment columns.
        level: where the term is categorical, this level against the first one.

    Whether its columns exist and suit the model is checked by the :class:`Study`
    (:func:`estimand_problems`).

    Raises:
        InvalidInput: with every problem.
    """

    name: str
    model: str
    outcome: str
    term: str = ""
    per: float = 1.0
    adjust: tuple[str, ...] = ()
    level: str | None = None

    def __post_init__(self) -> None:
        check = Checks(f"estimand {shown(self.name)}")
        check.pattern("name", self.name)
        known = check.choice("model", self.model, MODELS.names)
        check.pattern("outcome", self.outcome)
        if self.term != "":
            check.pattern("term", self.term)
        elif known is not None and not MODELS.of(known).compares:
            check.keep(self, term=self.outcome)
        else:
            check.add("term", "is missing", remedy="Name the column whose coefficient is asked for")
        check.keep(
            self, per=check.number("per", self.per, "above 0, at most 1e12", above=0, most=1e12)
        )
        if check.sequence("adjust", self.adjust, 0, 100) is not None:
            for name in self.adjust:
                check.pattern("adjust", name)
            check.distinct("adjust", self.adjust)
        if self.level is not None:
            check.text("level", self.level, 64)
        check.done()

    @property
    def regression(self) -> Model:
        """The model itself."""
        return MODELS.of(self.model)

    @property
    def covariates(self) -> tuple[str, ...]:
        """Columns beside the outcome: adjustment columns, then the term; none of a mean."""
        return (*self.adjust, self.term) if self.regression.compares else ()


def estimand_problems(
    estimand: Estimand, columns: Sequence[Column], broken: Collection[str] = ()
) -> list[Problem]:
    """Whether an estimand's columns exist and are of kinds that its model can use.

    Args:
        estimand: the estimand.
        columns: the study's columns.
        broken: names of columns that have problems of their own; nothing is said about them.
    """
    check = Checks(f"estimand {estimand.name!r}")
    known = {c.name: c for c in columns}
    model = estimand.regression
    outcome = _role(check, "outcome", estimand.outcome, known, broken, model.outcomes)
    if outcome is not None:
        model.check_outcome(check, outcome)
    if not model.compares:
        _check_alone(check, estimand)
        return check.problems
    term = _role(check, "term", estimand.term, known, broken, COVARIATES)
    for name in estimand.adjust:
        _role(check, "adjust", name, known, broken, COVARIATES)
    names = [estimand.outcome, estimand.term, *estimand.adjust]
    check.distinct("adjust" if estimand.outcome != estimand.term else "term", names)
    if term is not None:
        _check_term(check, estimand, term)
    return check.problems


def _check_alone(check: Checks, estimand: Estimand) -> None:
    """What compares nothing, a mean, has an outcome, and nothing else."""
    what = f"has no meaning for a {estimand.model}"
    if estimand.term != estimand.outcome:
        check.add(
            "term",
            what,
            value=shown(estimand.term),
            bound=f"{estimand.outcome}, or left out",
            remedy="Remove it",
        )
    if estimand.per != 1:
        check.add("per", what, value=shown(estimand.per), bound="1")
    if estimand.adjust:
        check.add("adjust", what, remedy="Remove it")
    if estimand.level is not None:
        check.add("level", what, remedy="Remove it")


def _check_term(check: Checks, estimand: Estimand, term: Column) -> None:
    if term.kind in ("categorical", "binary") and estimand.per != 1:
        check.add(
            "per", "has no meaning for a term with levels", value=shown(estimand.per), bound="1"
        )
    if term.kind != "categorical":
        if estimand.level is not None:
            check.add(
                "level", f"has no meaning for a term of kind {term.kind!r}", remedy="Remove it"
            )
        return
    if estimand.level not in term.levels[1:]:
        check.add(
            "level",
            "must be a level of the term other than its first",
            value=shown(estimand.level),
            bound=f"one of {', '.join(term.levels[1:])[:200]}",
        )


def _role(
    check: Checks,
    role: str,
    name: str,
    known: Mapping[str, Column],
    broken: Collection[str],
    kinds: Sequence[str],
) -> Column | None:
    column = known.get(name)
    if column is None:
        if name not in broken:
            remedy = nearest(name, known)
            check.add(role, "is not a column of the study", value=shown(name), remedy=remedy)
        return None
    if column.kind not in kinds:
        check.add(
            role,
            f"column {name!r} is of kind {column.kind!r}",
            bound=f"one of {', '.join(kinds)}",
        )
        return None
    return column
