"""Questions as an analyst writes them: formulas as in R, and a few functions of one column.

==============================================  ====================================================
text                                            what is asked
==============================================  ====================================================
``Surv(time, status) ~ rx + age``               hazard ratios of each column, by Cox's model
``y ~ a * b``                                   the product's coefficient, adjusted for both columns
``y ~ I(sbp/10) + age + strata(ward)``          per 10 units; within levels of ward
``logistic: dead ~ age where sex == 'F'``       a model by its name; of a subgroup
``robust: Surv(time, status) ~ rx``             the same, its errors by Lin and Wei's sandwich
``poisson: falls ~ age + offset(log(years))``   rate ratios
``mean(sbp)``, ``median(sbp)``                  of rows; also ``quantile(sbp, 0.9)``
``share(sbp > 140)``, ``share(ward == 'a')``     of rows beyond a value, or of a level
``survival(time, 5)``                           Kaplan and Meier's share without the event at 5
``incidence(time, other, 5)``                   Aalen and Johansen's share with the event by 5, of
                                                which ``other`` is a competing event
``rmst(time, 5)``                               the mean time without the event, until 5
``correlation(sbp, weight)``                    of rows
==============================================  ====================================================

Without a name the model is Cox's of a duration, logistic of a binary outcome, ordinal of levels in
order, and linear of numbers. A name of one of the study's estimands asks for that one.

Of persons over time, in a study that follows them, times are said behind the question:

==============================================  ====================================================
text                                            what is asked
==============================================  ====================================================
``quantile(sbp, 0.9) at 6``                     of persons at a time; also shares, correlations and
                                                regressions
``sbp ~ smoker + sbp at 0 until 6``             of columns at one time with the outcome at a later
``change(sbp) at 0 until 6``                    within persons; ``change-sd`` its standard deviation
``transition(stage, I, II) at 0 until 6``       of those with one level, the share with another
``Surv(years, died) ~ sbp at 1``                hazards from a landmark on
``survival(years, 5) at 1``                     of those who are followed at 1
``mixed: sbp ~ visit + smoker``                 slope along the time, with an intercept of each
==============================================  ====================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from penstock.base.checks import NAME, nearest, shown, within
from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.joint.consortium import SITE, ask_within
from penstock.mechanisms.protocol import Following
from penstock.mechanisms.registry import MECHANISMS
from penstock.questions.estimands import Estimand
from penstock.questions.grammar import Factor, Product, Regressor, Spline, read_regressor
from penstock.questions.models import EVERY, MODELS
from penstock.questions.occasions import Time, tell_time
from penstock.questions.suitability import estimand_problems
from penstock.schema import LEVEL_KINDS, Column, Schema
from penstock.study.study import Study

FORM = "outcome ~ column + column, mean(column), survival(time, 5), or an estimand's name"


@dataclass(frozen=True, slots=True)
class _Form:
    """How a function of a column is written.

    Attributes:
        text: what stands in the brackets; counts: how many words may come after the column.
        read: what they say of the estimand; model: its model's name, where it is another.
    """

    text: str
    counts: tuple[int, ...]
    read: Callable[[Sequence[str], Schema], dict[str, object]]
    model: str = ""


_FORMS = {
    "mean": _Form("column", (0,), lambda _, __: {}),
    "median": _Form("column", (0,), lambda _, __: {"probability": 0.5}, "quantile"),
    "quantile": _Form("column, number", (1,), lambda p, _: {"probability": _read_number(p[0])}),
    "survival": _Form("duration, number", (1,), lambda p, _: {"at": _read_number(p[0])}),
    "incidence": _Form(
        "duration, competing, number",
        (2,),
        lambda p, schema: {"competing": find_column(p[0], schema).name, "at": _read_number(p[1])},
        "cumulative-incidence",
    ),
    "rmst": _Form("duration, number", (1,), lambda p, _: {"until": _read_number(p[0])}),
    "correlation": _Form(
        "column, column",
        (0, 1),
        lambda p, schema: {"term": find_column(p[0], schema).name} if p else {},
    ),
    "change": _Form("column", (0,), lambda _, __: {}),
    "change-sd": _Form("column", (0,), lambda _, __: {}),
    "transition": _Form(
        "column, level, level",
        (2,),
        lambda p, _: {"level": p[0].strip("'\""), "outcome_level": p[1].strip("'\"")},
    ),
}

_ALIASES = {"linear": "ols", "lm": "ols", "glm": "logistic", "coxph": "cox"}
_GUESSED = {
    "duration": "cox",
    "binary": "logistic",
    "event": "logistic",
    "ordered": "ordinal",
    "continuous": "ols",
    "integer": "ols",
}
_PREFIX = re.compile(r"\s*([a-z][a-z-]*)\s*:\s*(?=\S)")
_FUNCTIONS = ("share", *_FORMS)
_CALL = re.compile(rf"\s*({'|'.join(_FUNCTIONS)})\s*\((.*)\)\s*")
_NO_FUNCTION = re.compile(r"\s*([\w.-]+)\s*\(.*\)\s*")
_NAME_TERM = "Name a column whose coefficient is asked for"
_WRITE_SHARE = "Write share(column > 140) or share(column == 'level')"
_MOMENT = r"('[^']*'|[^\s()']+)"
_TIMES = re.compile(rf"(.*\S)\s+at\s+{_MOMENT}(?:\s+until\s+{_MOMENT})?\s*")
_SURV = re.compile(rf"\s*Surv\s*\(\s*({NAME.pattern})\s*(?:,\s*({NAME.pattern})\s*)?\)\s*")
_LEVEL = re.compile(rf"\s*({NAME.pattern})\s*\[([^\[\]]{{1,64}})\]\s*")
_UNITS = re.compile(r"\bI\s*\(")
_SCALED = re.compile(rf"I\s*\(\s*({NAME.pattern})\s*/\s*([0-9.eE+-]+)\s*\)")
_STRATA = re.compile(r"strata\s*\(([^()]*)\)")
_OFFSET = re.compile(rf"offset\s*\(\s*log\s*\(\s*({NAME.pattern})\s*\)\s*\)")
_SHARE = re.compile(rf"\s*({NAME.pattern})\s*(>|<|==)\s*(.+?)\s*")


def read_question(text: str, study: Study) -> tuple[Estimand, ...]:
    """What a text asks, one estimand for each coefficient that it names; the study's own where it
    has declared the same.

    A column of a product has no coefficient of its own: it would be of rows where the other is 0.
    Of a spline none is told, either. Where all sites made one release, a regression is within
    sites, as the study's own are, unless it names the column that says of which site a row is.

    Raises:
        InvalidInput: it is no question, or its columns are not in the release, or do not suit.
    """
    for declared in study.estimands:
        if text.strip() == declared.name:
            return (declared,)
    formula, _, where = text.partition(" where ")
    formula, times = _split_times(formula)
    robust, model, rest = _split_model(formula)
    try:
        if "~" in rest:
            found = _read_formula(rest, model, where, study.schema)
        else:
            found = (_read_call(rest, where, study),)
        if robust:
            found = tuple(replace(e, errors="robust") for e in found)
        found = tuple(_ask_of(study, _ask_at(e, times)) for e in found)
    except InvalidInput as error:
        raise InvalidInput(f"question {shown(text)}", error.problems) from None
    problems = [p for e in found for p in estimand_problems(e, study.schema.columns)]
    problems = problems or [p for e in found if e.over_time for p in _refuse_over_time(e, study)]
    if problems:
        raise InvalidInput(f"question {shown(text)}", list(dict.fromkeys(problems)))
    return tuple(find_declared(e, study.estimands) or e for e in found)


def _ask_of(study: Study, asked: Estimand) -> Estimand:
    """What is asked, of the tables of this study."""
    mechanism = MECHANISMS.of(study.mechanism)
    apart = study.aggregation.joint and SITE in study.schema.names
    if not apart or SITE in (*asked.columns, *asked.strata):
        return asked
    return ask_within(asked, strata=mechanism.stratifies)


def _ask_at(asked: Estimand, times: Sequence[Time]) -> Estimand:
    """What is asked, at these times: of a survival the landmark, its own time being the second."""
    if not times:
        return asked
    given = [*times, *([] if asked.at is None else [asked.at])]
    if len(given) > 2:
        value = " ".join(tell_time(time) for time in given)
        raise _refused("times", value, "A survival has its own time, and one landmark at most")
    return replace(asked, at=given[0], until=given[1] if len(given) > 1 else asked.until)


def _refuse_over_time(asked: Estimand, study: Study) -> list[Problem]:
    if isinstance(study.mechanism, Following):
        return study.mechanism.problems_over_time(study.schema, asked)
    what = f"is of persons over time, whom {study.mechanism.name} does not follow"
    return [Problem("question", what, remedy="Leave out the times")]


def find_declared(asked: Estimand, declared: Sequence[Estimand]) -> Estimand | None:
    """The study's estimand that asks the same; in other units, too, where none are said."""
    for own in declared:
        per = own.per if asked.per == 1 else asked.per
        if _key(replace(asked, per=per)) == _key(own):
            return own
    return None


def find_alike(asked: Estimand, declared: Sequence[Estimand]) -> Estimand | None:
    """The study's estimand of the same coefficient, whatever errors it asks for: of what tables
    hold, errors say nothing."""
    found = (find_declared(replace(asked, errors=own.errors), [own]) for own in declared)
    return next((own for own in found if own is not None), None)


def _key(estimand: Estimand) -> tuple[object, ...]:
    """What two estimands that ask the same have in common; the order of columns says nothing."""
    plain = replace(estimand, name="same", adjust=(), strata=())
    beside = frozenset(str(r) for r in estimand.regressors[:-1])
    return plain, beside, frozenset(estimand.strata)


def _split_times(text: str) -> tuple[str, tuple[Time, ...]]:
    """A question without the times behind it, and these: none to two."""
    found = _TIMES.fullmatch(text)
    if found is None:
        return text, ()
    return found[1], tuple(_read_time(time) for time in found.groups()[1:] if time is not None)


def _read_time(text: str) -> Time:
    try:
        return float(text)
    except ValueError:
        return text.strip("'")


def _split_model(text: str) -> tuple[bool, str, str]:
    """Whether errors are to be robust, the model's name, if it is said, and what comes after both
    and their colons."""
    found = _PREFIX.match(text)
    robust = found is not None and found[1] == "robust"
    if found is not None and robust:
        text = text[found.end() :]
        found = _PREFIX.match(text)
    if found is None:
        return robust, "", text
    name = _ALIASES.get(found[1], found[1])
    if name in EVERY.names:
        return robust, name, text[found.end() :]
    if "~" in text[: found.end()]:
        return robust, "", text
    raise _refused("model", found[1], nearest(found[1], MODELS.names))


def _read_formula(text: str, model: str, where: str, schema: Schema) -> tuple[Estimand, ...]:
    left, _, right = text.partition("~")
    outcome, level = _read_outcome(left, schema)
    model = model or _guess_model(outcome)
    along = EVERY.of(model).per_time
    if not (along or EVERY.of(model).compares):
        raise _refused("model", model, _advise_form(model))
    strata: list[str] = []
    exposure, terms = "", list[str]()
    per: dict[str, float] = {}
    for part in _split_sum(right):
        if not part:
            remedy = "Name a column on either side of each '+'" if "+" in right else _NAME_TERM
            raise _refused("formula", text.strip(), remedy)
        if (found := _STRATA.fullmatch(part)) is not None:
            strata += [name.strip() for name in found[1].split(",")]
        elif (found := _OFFSET.fullmatch(part)) is not None:
            exposure = found[1]
        elif (found := _SCALED.fullmatch(part)) is not None:
            terms.append(found[1])
            per[found[1]] = _read_number(found[2])
        elif _UNITS.search(part):
            remedy = "I(column/number) is a term by itself; a product is of columns as they are"
            raise _refused("term", part, remedy)
        elif "*" in part and "(" not in part:
            factors = [piece.strip() for piece in part.split("*")]
            terms += [*(f.partition("[")[0] for f in factors), ":".join(factors)]
        elif part != "1":
            terms.append(re.sub(r"^n?s\s*\(", "spline(", part))
    terms = list(dict.fromkeys(terms))
    regressors = [_read_term(term) for term in terms]
    paired = {c for r in regressors if isinstance(r, Product) for c in r.columns}
    found_estimands: list[Estimand] = []
    for place, (term, regressor) in enumerate(zip(terms, regressors, strict=True)):
        if along and place:
            break
        if isinstance(regressor, Spline) or (isinstance(regressor, Factor) and term in paired):
            continue
        for asked, own in _list_levels(term, regressor, schema):
            found_estimands.append(
                Estimand(
                    f"q{len(found_estimands) + 1}",
                    model,
                    outcome.name,
                    asked,
                    per=per.get(term, 1.0),
                    adjust=tuple(_drop_levels(t) for i, t in enumerate(terms) if i != place),
                    level=own,
                    strata=tuple(strata),
                    where=where.strip(),
                    exposure=exposure,
                    outcome_level=level,
                )
            )
    if not found_estimands:
        raise _refused("formula", text.strip(), _NAME_TERM)
    return tuple(found_estimands)


def _read_term(text: str) -> Regressor:
    try:
        return read_regressor(text)
    except InvalidInput as error:
        raise InvalidInput("question", within("term", error.problems)) from None


def _advise_form(model: str) -> str:
    """How a model that has no formula is asked, if it is."""
    written = {form.model or name: f"Write {name}({form.text})" for name, form in _FORMS.items()}
    # Of an undeclared one nobody knows what tables miss: it would have no mark, and no allowance.
    named = f"A {model} is asked by the name of an estimand that the study has declared"
    return ({"share": _WRITE_SHARE} | written).get(model, named)


def _read_outcome(left: str, schema: Schema) -> tuple[Column, str | None]:
    timed, levelled = _SURV.fullmatch(left), _LEVEL.fullmatch(left)
    if timed is not None:
        column = find_column(timed[1], schema)
        if timed[2] is not None and column.event != timed[2]:
            remedy = f"Write Surv({column.name}, {column.event})"
            raise _refused("outcome", left.strip(), remedy)
        return column, None
    if levelled is not None:
        return find_column(levelled[1], schema), levelled[2].strip()
    return find_column(left.strip(), schema), None


def find_column(name: str, schema: Schema) -> Column:
    """A column of the release.

    Raises:
        InvalidInput: there is none of this name.
    """
    for column in schema.columns:
        if column.name == name:
            return column
    problem = Problem(
        "column",
        "is not in the release",
        value=shown(name),
        remedy=nearest(name, schema.names),
    )
    raise InvalidInput("question", [problem])


def _guess_model(outcome: Column) -> str:
    if outcome.kind not in _GUESSED:
        remedy = "Write multinomial: outcome[level] ~ …"
        raise _refused("outcome", outcome.name, remedy)
    return _GUESSED[outcome.kind]


def _list_levels(
    term: str, regressor: Factor | Product | Spline, schema: Schema
) -> list[tuple[str, str | None]]:
    """A term for each of its coefficients: (term, level)."""
    if isinstance(regressor, Factor):
        column = find_column(regressor.column, schema)
        if column.kind != "categorical":
            return [(term, None)]
        levels = [regressor.level] if regressor.level is not None else column.levels[1:]
        return [(regressor.column, level) for level in levels]
    texts = [""]
    for factor in regressor.factors if isinstance(regressor, Product) else ():
        column = find_column(factor.column, schema)
        many = column.kind == "categorical" and factor.level is None
        own = [f"{factor.column}[{x}]" for x in column.levels[1:]] if many else [str(factor)]
        texts = [f"{text}:{one}".lstrip(":") for text in texts for one in own]
    return [(text, None) for text in texts]


def _drop_levels(term: str) -> str:
    """What is adjusted for is all levels."""
    return re.sub(r"\[[^\[\]]*\]", "", term)


def _read_call(text: str, where: str, study: Study) -> Estimand:
    found = _CALL.fullmatch(text)
    if found is None:
        if unknown := _NO_FUNCTION.fullmatch(text):
            raise _refused("function", unknown[1], nearest(unknown[1], _FUNCTIONS))
        names = [e.name for e in study.estimands]
        raise _refused("question", text.strip(), nearest(text.strip(), names))
    name, inside = found[1], found[2]
    given: dict[str, object] = {"where": where.strip()}
    if name == "share":
        shared = _SHARE.fullmatch(inside)
        if shared is None:
            raise _refused("share", inside, _WRITE_SHARE)
        if shared[2] != "==" and shared[3].startswith("="):
            remedy = "Compare by > or < alone: of whole numbers >= 60 is > 59"
            raise _refused("share", inside, remedy)
        column = find_column(shared[1], study.schema)
        if shared[2] == "==":
            given["outcome_level"] = shared[3].strip("'\"")
        else:
            given["threshold"] = _read_number(shared[3])
            given["direction"] = "above" if shared[2] == ">" else "below"
    else:
        parts = [part.strip() for part in inside.split(",")]
        column = find_column(parts.pop(0), study.schema)
        if name == "mean" and column.kind in LEVEL_KINDS and column.kind != "binary":
            remedy = f"Write share({column.name} == '{column.levels[-1]}')"
            raise _refused(name, inside, remedy)
        form = _FORMS[name]
        if len(parts) not in form.counts:
            raise _refused(name, inside, f"Write {name}({form.text})")
        given |= form.read(parts, study.schema)
        name = form.model or name
    asked: Estimand = Estimand("q1", name, column.name, **given)  # type: ignore[arg-type]
    return asked


def _split_sum(text: str) -> list[str]:
    """Summands, none of them within brackets."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in "([") - (sign in ")]")
        if sign == "+" and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]


def _read_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _refused("number", text, "Write a number, such as 0.9") from None


def _refused(where: str, value: str, remedy: str | None) -> InvalidInput:
    problem = Problem(where, "cannot be asked", value=shown(value), bound=FORM, remedy=remedy)
    return InvalidInput("question", [problem])
