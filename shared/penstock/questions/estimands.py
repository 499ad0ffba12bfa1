"""What a study estimates: a coefficient of a model, a mean, or another number of its rows."""

from __future__ import annotations

from dataclasses import dataclass, fields

from penstock.base.checks import Checks, shown, within
from penstock.base.documents import Json
from penstock.base.errors import InvalidInput
from penstock.questions.contingency import list_margins
from penstock.questions.grammar import (
    Comparison,
    Factor,
    Product,
    Regressor,
    read_regressor,
    read_where,
)
from penstock.questions.models import EVERY
from penstock.questions.models.longitudinal import LongitudinalModel
from penstock.questions.models.model import Model
from penstock.questions.occasions import Time, keep_occasions, tell_time

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
    "errors",
    "competing",
)
ERRORS = ("model", "robust")
"""Whose word is taken for how an estimate varies: the model's, or that of rows (a sandwich)."""


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
        competing: of a cumulative incidence, the 0/1 column that says that another event ended the
            follow-up; a row with the outcome's own event, too, has had that. Empty: none.
        errors: of :data:`ERRORS`: ``robust`` (of cox) where hazards need not be in proportion.

    Whether its columns exist and suit the model is checked by the :class:`Study`
    (:func:`penstock.questions.suitability.estimand_problems`).

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
    errors: str = "model"
    competing: str = ""

    def __post_init__(self) -> None:
        check = Checks(f"estimand {shown(self.name)}")
        check.pattern("name", self.name)
        known = check.choice("model", self.model, EVERY.names)
        check.pattern("outcome", self.outcome)
        if self.term != "":
            check.keep(self, term=_written(check, "term", self.term))
        elif known is not None and not EVERY.of(known).contrasts:
            check.keep(self, term=self.outcome)
        elif known is not None:  # else nobody knows whether it needs one
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
        if self.competing != "":
            check.pattern("competing", self.competing)
        if self.outcome_level is not None:
            check.text("outcome_level", self.outcome_level, 64)
        keep_occasions(check, self)
        check.choice("errors", self.errors, ERRORS)
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
        if not (self.regression.contrasts or self.regression.per_time):
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
        beside = [name for name in (self.exposure, self.competing) if name]
        paired = () if self.regression.contrasts else self.target.columns
        named = [self.outcome, *paired, *self.covariates, *compared, *beside]
        return tuple(dict.fromkeys(named))

    @property
    def formula(self) -> str:
        """What is asked, on one line: the term first."""
        parts = [str(r) for r in self.regressors]
        parts = parts[-1:] + parts[:-1] or ["1" if self.term == self.outcome else self.term]
        if self.strata:
            parts.append(f"strata({', '.join(self.strata)})")
        if self.exposure:
            parts.append(f"offset(log({self.exposure}))")
        where = f" where {self.where}" if self.where else ""
        of = f"[{self.outcome_level}]" if self.outcome_level is not None else ""
        more = " with robust errors" if self.robust else ""
        more = f" with {self.competing} competing" if self.competing else more
        return f"{self.outcome}{of} ~ {' + '.join(parts)}{self.when}{more}{where}"

    @property
    def question(self) -> str:
        """All that is asked, on one line, as an analyst and a steward read it.

        Example:
            >>> Estimand("middle", "quantile", "age", probability=0.5).question
            'quantile 0.5 of age'
            >>> Estimand("haem", "cox", "time", "kind", level="haem").question
            'cox time ~ kind, level haem'
        """
        if self.regression.contrasts or self.regression.per_time:
            unit = f"per {self.per:g}" if self.level is None else f"level {self.level}"
            return f"{self.model} {self.formula}, {unit}"
        many = "" if self.probability is None else f" {self.probability:g}"
        beside = f" with {self.competing} competing" if self.competing else ""
        where = f" where {self.where}" if self.where else ""
        per = "" if self.per == 1 else f", per {self.per:g}"
        return f"{self.model}{many} of {self._subject}{self.when}{beside}{where}{per}"

    @property
    def _subject(self) -> str:
        """The columns of what compares nothing, with the levels or values that are asked for."""
        model = self.regression
        if isinstance(model, LongitudinalModel) and model.crossed:
            return " and ".join(f"{column} = {level}" for column, level in list_margins(self))
        of = " and ".join(dict.fromkeys((self.outcome, *self.target.columns)))
        if self.level is not None:
            return f"{of} from {self.level} to {self.outcome_level}"
        if self.outcome_level is not None:
            return f"{of} = {self.outcome_level}"
        return of if self.threshold is None else f"{of} {self.direction} {self.threshold:g}"

    @property
    def robust(self) -> bool:
        """Whether its variance is not to take the model's word."""
        return self.errors == "robust"

    @property
    def when(self) -> str:
        """The times that it names, in words: " at 0 until 12"."""
        said = [("at", self.at), ("until", self.until)]
        return "".join(f" {word} {tell_time(time)}" for word, time in said if time is not None)

    def to_dict(self) -> Json:
        """The canonical JSON form.

        What came later it has only where it is said (strata, a subgroup, an exposure, a level of
        the outcome, times and thresholds, robust errors, a competing event): the bytes of a
        study, and so its id and its signature, are those of a study from before there were any.
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        for f in fields(self):
            if f.name in _LATER and values[f.name] == f.default:
                del values[f.name]
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
