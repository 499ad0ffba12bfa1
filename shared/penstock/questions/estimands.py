"""What a study estimates, a coefficient of a model or a mean, and whether its columns can tell."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields

from penstock.base.checks import Checks, nearest, shown, within
from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, Problem
from penstock.questions.contingency import check_margins
from penstock.questions.grammar import (
    Comparison,
    Factor,
    Product,
    Regressor,
    Spline,
    read_regressor,
    read_where,
)
from penstock.questions.models import EVERY
from penstock.questions.models.longitudinal import LongitudinalModel
from penstock.questions.models.model import Model
from penstock.questions.occasions import Time, check_occasions, keep_occasions, tell_time
from penstock.questions.roles import find_role
from penstock.schema import NUMBER_KINDS, Column

COVARIATES = ("continuous", "integer", "binary", "ordered", "categorical")
STRATA = ("binary", "ordered", "categorical")
_LATER = (
    "strata",
    "where",
    "exposure",
    "outcome_level",
    "at",
    "until",
    "probability",
    "threshold",
    "direction",
)
MOST_STRATA = 100
"""Combinations of levels, each with a baseline of its own."""
MOST_PRODUCTS = 200
"""Columns that an estimand's products come to; two of a hundred levels each would be ten thousand.
"""


@dataclass(frozen=True, slots=True)
class Estimand:
    """A coefficient, or a mean, that the study estimates.

    Attributes:
        name: how the report calls it.
        model: the name of one of :data:`penstock.questions.models.MODELS`.
        outcome: a column; for cox the duration (its event column comes from the schema).
        term: the column, or the product of two (:mod:`penstock.questions.grammar`), whose
            coefficient is the estimand; of a mean the outcome itself, which need not be said.
        per: the coefficient is reported per this many units of the term, > 0; of a product, per
            this many products of units.
        adjust: what is adjusted for: columns, products, splines. Columns of a product are, too,
            whether they are listed or not.
        level: where the term is a categorical column, this level against the first one. A
            product's stands in the product: ``ward[b]:age``.
        strata: columns with levels: each combination has a baseline of its own (cox), or an
            intercept.
        where: of which rows, such as ``age >= 65 and sex == 'F'``; empty: of all.
        exposure: of a count, the column that says for how long, or of how many, it was counted:
            the regression has its logarithm with coefficient 1, and is of rates. Empty: none.
        outcome_level: of a multinomial model, the outcome's level that is asked about, against the
            first one; of a share or a count, the level itself; of a transition, the level that
            persons go to, from ``level``; of a table, the outcome's level in the cell that is asked
            for (:mod:`penstock.questions.contingency`).
        at, until: of persons over time: when, in the time column's values; the first of two times,
            and the second. Of a duration, times of its own: a landmark, from which a hazard is
            asked; of a survival its time, or a landmark and then its time; of a count of events
            and of a rate ``until`` says up to which they count.
        probability: of a quantile, between 0 and 1.
        threshold, direction: of a share of persons: ``above`` it or ``below`` it.

    Whether its columns exist and suit the model is checked by the :class:`Study`
    (:func:`estimand_problems`).

    Raises:
        InvalidInput: with every problem.

    Example:
        The hazard ratio of ten units of blood pressure, adjusted for age; how much larger it is at
        each further year of age; and a mean.

        >>> Estimand("pressure", "cox", "time", "sbp", per=10, adjust=("age",)).per
        10.0
        >>> print(Estimand("both", "cox", "time", "sbp:age", strata=("sex",)).formula)
        time ~ sbp:age + sbp + age + strata(sex)
        >>> Estimand("smokers", "mean", "smoker").term
        'smoker'
    """

    name: str
    model: str
    outcome: str
    term: str = ""
    per: float = 1.0
    adjust: tuple[str, ...] = ()
    level: str | None = None
    strata: tuple[str, ...] = ()
    where: str = ""
    exposure: str = ""
    outcome_level: str | None = None
    at: Time | None = None
    until: Time | None = None
    probability: float | None = None
    threshold: float | None = None
    direction: str = ""

    def __post_init__(self) -> None:
        check = Checks(f"estimand {shown(self.name)}")
        check.pattern("name", self.name)
        known = check.choice("model", self.model, EVERY.names)
        check.pattern("outcome", self.outcome)
        if self.term != "":
            check.keep(self, term=_written(check, "term", self.term))
        elif known is not None and not EVERY.of(known).compares:
            check.keep(self, term=self.outcome)
        else:
            check.add("term", "is missing", remedy="Name the column whose coefficient is asked for")
        check.keep(
            self, per=check.number("per", self.per, "above 0, at most 1e12", above=0, most=1e12)
        )
        if check.sequence("adjust", self.adjust, 0, 100) is not None:
            written = [_written(check, "adjust", text) for text in self.adjust]
            check.distinct("adjust", written)
            if None not in written:
                check.keep(self, adjust=tuple(written))
        if self.level is not None:
            check.text("level", self.level, 64)
        if check.sequence("strata", self.strata, 0, 4) is not None:
            for name in self.strata:
                check.pattern("strata", name)
            check.distinct("strata", self.strata)
        _keep_where(check, self)
        if self.exposure != "":
            check.pattern("exposure", self.exposure)
        if self.outcome_level is not None:
            check.text("outcome_level", self.outcome_level, 64)
        keep_occasions(check, self)
        check.done()

    @property
    def regression(self) -> Model:
        """The model itself."""
        return EVERY.of(self.model)

    @property
    def over_time(self) -> bool:
        """Whether it is of persons over time: of a table whose rows are persons at times."""
        model = self.regression
        if model.needs_event and not model.compares:
            return None not in (self.at, self.until)  # else it is of all rows, until one time
        if isinstance(model, LongitudinalModel) and model.of_rows:
            return self.at is not None
        return self.at is not None or isinstance(model, LongitudinalModel)

    @property
    def within(self) -> bool:
        """Whether it needs rows of one person at several times."""
        model = self.regression
        repeated = isinstance(model, LongitudinalModel) and model.slope
        return repeated or self.landmark or len(self.times) > 1

    @property
    def landmark(self) -> bool:
        """Whether it is of a duration from a time on, of those who are in follow-up at it."""
        return self.regression.needs_event and self.over_time

    @property
    def times(self) -> tuple[Time, ...]:
        """The times that it names, none to two."""
        return tuple(time for time in (self.at, self.until) if time is not None)

    @property
    def factor(self) -> float:
        """What a number of an answer is multiplied by, as coefficients are told per one unit of
        their term; a rate has its ``per`` in it."""
        return self.per if self.regression.compares else 1.0

    @property
    def target(self) -> Regressor:
        """The term: a column, or a product."""
        return read_regressor(self.term)

    @property
    def regressors(self) -> tuple[Regressor, ...]:
        """What stands in the regression: what is adjusted for, columns of products that are not
        listed, then the term; nothing of a mean.

        A spline has its column in it, and strata have theirs. The term of a slope is the time.
        """
        if not (self.regression.compares or self.regression.per_time):
            return ()
        given, target = [read_regressor(text) for text in self.adjust], self.target
        held = {r.column for r in (*given, target) if not isinstance(r, Product)} | {*self.strata}
        products = [r for r in (*given, target) if isinstance(r, Product)]
        added = dict.fromkeys(name for p in products for name in p.columns if name not in held)
        return (*given, *map(Factor, added), target)

    @property
    def covariates(self) -> tuple[str, ...]:
        """Columns beside the outcome, each once: those of the regression, then strata."""
        asked = [name for regressor in self.regressors for name in regressor.columns]
        return tuple(dict.fromkeys([*asked, *self.strata]))

    @property
    def subgroup(self) -> tuple[Comparison, ...]:
        """What a row is to meet: all of it."""
        return read_where(self.where)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is named, each once; the event of a duration is not."""
        compared = [comparison.column for comparison in self.subgroup]
        exposed = [self.exposure] if self.exposure else []
        paired = () if self.regression.compares else self.target.columns
        named = [self.outcome, *paired, *self.covariates, *compared, *exposed]
        return tuple(dict.fromkeys(named))

    @property
    def formula(self) -> str:
        """What is asked, on one line: the term first."""
        parts = [str(r) for r in self.regressors]
        parts = parts[-1:] + parts[:-1] or ["1"]
        if self.strata:
            parts.append(f"strata({', '.join(self.strata)})")
        if self.exposure:
            parts.append(f"offset(log({self.exposure}))")
        where = f" where {self.where}" if self.where else ""
        of = f"[{self.outcome_level}]" if self.outcome_level is not None else ""
        return f"{self.outcome}{of} ~ {' + '.join(parts)}{self.when}{where}"

    @property
    def when(self) -> str:
        """The times that it names, in words: " at 0 until 12"."""
        said = [("at", self.at), ("until", self.until)]
        return "".join(f" {word} {tell_time(time)}" for word, time in said if time is not None)

    def to_dict(self) -> Json:
        """The canonical JSON form.

        What came later it has only where it is said (strata, a subgroup, an exposure, a level of
        the outcome, times and thresholds): the bytes of a study, and so its id and its signature,
        are those of a study from before there were any.
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in _LATER:
            if values[name] in (None, "", ()):
                del values[name]
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def _written(check: Checks, where: str, text: object) -> str | None:
    """A regressor's text as everybody writes it, or None after its problems were added."""
    try:
        return str(read_regressor(text))
    except InvalidInput as error:
        check.problems += within(where, error.problems)
        return None


def _keep_where(check: Checks, estimand: Estimand) -> None:
    try:
        check.keep(estimand, where=" and ".join(map(str, read_where(estimand.where))))
    except InvalidInput as error:
        check.problems += within("where", error.problems)


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
    outcome = find_role(check, "outcome", estimand.outcome, known, broken, model.outcomes)
    if outcome is not None:
        model.check_outcome(check, outcome)
        _check_outcome_level(check, estimand, outcome)
    if not model.compares:
        _check_alone(check, estimand)
    if isinstance(model, LongitudinalModel) and model.crossed:
        check_margins(check, estimand, known, broken)
    if model.compares or model.per_time:
        _check_regressors(check, estimand, known, broken)
    check_occasions(check, estimand, known, broken)
    for comparison in estimand.subgroup:
        column = find_role(check, "where", comparison.column, known, broken, COVARIATES)
        if column is not None:
            _check_comparison(check, estimand, comparison, column)
    if estimand.exposure:
        _check_exposure(check, estimand, known, broken)
    return check.problems


def _check_outcome_level(check: Checks, estimand: Estimand, outcome: Column) -> None:
    level, model = estimand.outcome_level, estimand.regression
    over = model if isinstance(model, LongitudinalModel) else None
    if over is not None and (over.cells or over.crossed or over.of_level(outcome)):
        return  # of which each may be the first
    if not model.names_level:
        if level is not None:
            what = f"has no meaning for a {estimand.model}"
            check.add("outcome_level", what, value=shown(level), remedy="Remove it")
    elif level not in outcome.levels[1:]:
        check.add(
            "outcome_level",
            "must be a level of the outcome other than its first",
            value=shown(level),
            bound=f"one of {', '.join(outcome.levels[1:])[:200]}",
        )


def _check_exposure(
    check: Checks, estimand: Estimand, known: Mapping[str, Column], broken: Collection[str]
) -> None:
    """A rate is per unit of a number above 0, whose coefficient is no longer free."""
    name = estimand.exposure
    if not estimand.regression.takes_exposure:
        check.add("exposure", f"has no meaning for a {estimand.model}", remedy="Remove it")
        return
    column = find_role(check, "exposure", name, known, broken, NUMBER_KINDS[:2])
    if column is not None and not column.bounds[0] > 0:
        check.add(
            "exposure",
            f"column {name!r} may be 0, of which there is no rate",
            value=f"lower = {column.bounds[0]:g}",
            bound="above 0",
            remedy="Declare the least exposure that counts; without any a row is left out",
        )
    if name in (estimand.outcome, *estimand.covariates):
        check.add(
            "exposure",
            "stands in the regression twice: its logarithm has coefficient 1",
            value=name,
            remedy="Remove it here, or where it is the outcome, the term or adjusted for",
        )


def _check_regressors(
    check: Checks, estimand: Estimand, known: Mapping[str, Column], broken: Collection[str]
) -> None:
    target, adjusted = estimand.target, [read_regressor(text) for text in estimand.adjust]
    before, beside = len(check.problems), [("adjust", regressor) for regressor in adjusted]
    # Which column is the time of a slope, the mechanism knows.
    asked = [("term", target)] if estimand.regression.compares else []
    for role, regressor in asked + beside:
        kinds = NUMBER_KINDS[:2] if isinstance(regressor, Spline) else COVARIATES
        found = [find_role(check, role, name, known, broken, kinds) for name in regressor.columns]
        if estimand.outcome in regressor.columns and isinstance(regressor, Product):
            check.add(role, "has the outcome in it", value=shown(str(regressor)))
        sound = [column for column in found if column is not None]
        if len(sound) < len(found):
            continue
        if isinstance(regressor, Spline):
            _check_spline(check, role, regressor, sound[0])
        elif role == "adjust":
            _check_adjusted(check, regressor)
        elif isinstance(regressor, Product):
            _check_product(check, estimand, regressor, sound)
        else:
            _check_term(check, estimand, sound[0])
    for name in estimand.strata if estimand.regression.compares else ():
        find_role(check, "strata", name, known, broken, STRATA)
    names = [target.key, *(r.key for r in adjusted)]
    if asked or estimand.outcome != estimand.term:
        names.insert(0, estimand.outcome)
    check.distinct("adjust" if estimand.outcome != estimand.term else "term", names)
    mains = [name for name in names if ":" not in name]
    check.distinct("strata", [*dict.fromkeys(mains), *estimand.strata])
    _check_marginal(check, estimand, adjusted)
    if len(check.problems) == before:
        _check_counts(check, estimand, known)


def _check_alone(check: Checks, estimand: Estimand) -> None:
    """What compares nothing, a mean, has an outcome, and nothing else but a subgroup; a slope has
    its time, and what it is adjusted for."""
    what, model = f"has no meaning for a {estimand.model}", estimand.regression
    over = model if isinstance(model, LongitudinalModel) else None
    beside = over is not None and (over.pairs or over.slope or over.crossed)
    if estimand.term != estimand.outcome and not beside:
        check.add(
            "term",
            what,
            value=shown(estimand.term),
            bound=f"{estimand.outcome}, or left out",
            remedy="Remove it",
        )
    if estimand.per != 1 and not (over is not None and (over.slope or over.rates)):
        check.add("per", what, value=shown(estimand.per), bound="1")
    if estimand.adjust and not (over is not None and over.slope):
        check.add("adjust", what, remedy="Remove it")
    if estimand.level is not None and not (over is not None and (over.cells or over.crossed)):
        check.add("level", what, remedy="Remove it")
    if estimand.strata:
        check.add("strata", what, remedy="Remove it, or ask for a subgroup with where")


def _check_term(check: Checks, estimand: Estimand, term: Column) -> None:
    if estimand.target != Factor(term.name):
        remedy = f"Write level = {str(estimand.term).partition('[')[2].rstrip(']')!r}"
        check.add("term", "has a level, which stands in a product only", remedy=remedy)
        return
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


def _check_product(
    check: Checks, estimand: Estimand, product: Product, columns: Sequence[Column]
) -> None:
    """A product that is asked for: it says a level of each column that has no order."""
    for factor, column in zip(product.factors, columns, strict=True):
        if column.kind != "categorical":
            if factor.level is not None:
                check.add(
                    "term",
                    f"has a level of {column.name!r}, which is of kind {column.kind!r}",
                    value=shown(factor.level),
                    remedy=f"Write {column.name}",
                )
        elif factor.level not in column.levels[1:]:
            check.add(
                "term",
                f"must name a level of {column.name!r} other than its first",
                value=shown(factor.level),
                bound=f"one of {', '.join(column.levels[1:])[:200]}",
                remedy=f"Write {column.name}[{column.levels[1]}]",
            )
    if estimand.level is not None:
        check.add(
            "level",
            "has no meaning for a product",
            remedy="A level stands in the product, such as ward[b]:age",
        )
    counted = any(column.kind not in ("categorical", "binary") for column in columns)
    if estimand.per != 1 and not counted:
        check.add(
            "per", "has no meaning for a product of levels", value=shown(estimand.per), bound="1"
        )


def _check_adjusted(check: Checks, regressor: Regressor) -> None:
    factors = regressor.factors if isinstance(regressor, Product) else (regressor,)
    for factor in factors:
        if isinstance(factor, Factor) and factor.level is not None:
            check.add(
                "adjust",
                "names a level: what is adjusted for is all levels",
                value=shown(str(factor)),
                remedy=f"Write {factor.column}",
            )


def _check_spline(check: Checks, role: str, spline: Spline, column: Column) -> None:
    if role == "term":
        check.add(
            "term",
            "is a spline, which has no one coefficient",
            value=shown(str(spline)),
            remedy="Adjust for it, and ask for another column's",
        )
    lower, upper = column.bounds
    outside = [knot for knot in spline.knots if not lower <= knot <= upper]
    if outside:
        check.add(
            role,
            f"has a knot outside the bounds of {column.name!r}",
            value=f"{outside[0]:g}",
            bound=f"{lower:g} to {upper:g}",
        )


def _check_marginal(check: Checks, estimand: Estimand, adjusted: Sequence[Regressor]) -> None:
    """Beside a product, a column's own coefficient is its effect where the other column is 0."""
    target, product = estimand.target, estimand.regression.compares
    for regressor in adjusted:
        both = regressor.columns
        if not isinstance(regressor, Product) or target.key not in both:
            continue
        other = both[1] if target.key == both[0] else both[0]
        check.add(
            "adjust",
            f"has a product with the term: its coefficient would be of rows where {other} is 0",
            value=shown(str(regressor)),
            remedy=f"Ask for {f'{regressor} itself, or for ' if product else ''}{target} in a "
            "subgroup, by where",
        )


def _check_comparison(
    check: Checks, estimand: Estimand, comparison: Comparison, column: Column
) -> None:
    text = shown(str(comparison))
    if column.name == estimand.outcome:
        check.add("where", "chooses rows by the outcome", value=text, remedy="Remove it")
    if column.kind in NUMBER_KINDS:
        if comparison.quoted:
            remedy = "Write a number without quotes"
            check.add("where", f"compares {column.name!r} with text", value=text, remedy=remedy)
            return
        lower, upper = column.bounds
        if not lower <= float(comparison.value) <= upper:
            bound = f"{lower:g} to {upper:g}"
            check.add("where", f"lies outside {column.name!r}", value=text, bound=bound)
    elif comparison.value not in column.levels:
        check.add(
            "where",
            f"is no level of {column.name!r}",
            value=shown(comparison.value),
            remedy=nearest(comparison.value, column.levels),
        )
    elif column.kind != "ordered" and comparison.operator not in ("==", "!="):
        check.add("where", f"levels of {column.name!r} have no order", value=text, bound="== or !=")
    alone = comparison.operator == "==" and estimand.regression.compares
    if alone and column.name in estimand.target.columns:
        check.add(
            "where",
            f"leaves one value of {column.name!r}, of which the term is",
            value=text,
            remedy="Compare another column",
        )


def _check_counts(check: Checks, estimand: Estimand, known: Mapping[str, Column]) -> None:
    def width(name: str) -> int:
        column = known[name]
        return len(column.levels) - 1 if column.kind == "categorical" else 1

    cells = math.prod(len(known[name].levels) for name in estimand.strata)
    if cells > MOST_STRATA:
        bound = f"at most {MOST_STRATA} combinations of levels"
        check.add("strata", "are too many", value=str(cells), bound=bound)
    products = [r.columns for r in estimand.regressors if isinstance(r, Product)]
    count = sum(width(left) * width(right) for left, right in products)
    if count > MOST_PRODUCTS:
        bound = f"at most {MOST_PRODUCTS}"
        check.add("adjust", "has products of too many columns", value=str(count), bound=bound)
