"""``time ~ age + sex + age:sex + strata(stage)``: an estimand's fields on one line.

Sugar for a study's TOML: what is signed are the fields. As R has it, but that the outcome is a
column by itself, and that the regression is as :mod:`penstock.questions.grammar` says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.base.checks import NAME, Checks, shown, within
from penstock.base.documents import Json, JsonView
from penstock.base.errors import InvalidInput, Problem
from penstock.questions.grammar import MAX_TEXT, read_regressor

FORMULA = "formula"
_SAID = ("outcome", "adjust", "strata", "exposure")
"""What a formula says, and nobody beside it."""

_BOUND = (
    "outcome ~ term + term, with age, age:sex, age*sex, spline(age, 3), strata(stage), "
    "offset(log(years))"
)
_STRATA = re.compile(r"strata\s*\(([^()]*)\)")
_OFFSET = re.compile(r"offset\s*\(\s*log\s*\(([^()]*)\)\s*\)")
_PLUS = re.compile(r"\+(?![^(\[]*[)\]])")
"""Between terms: not within their brackets."""


def expand_formula(item: JsonView) -> Json:
    """An estimand's table with its formula taken apart; one without is as it was.

    The term is what is asked; everything else of the formula is adjusted for.

    Raises:
        InvalidInput: with every problem.

    Example:
        >>> expand_formula({"formula": "time ~ age * sex + strata(ward)", "term": "age:sex"})
        {'term': 'age:sex', 'outcome': 'time', 'adjust': ['age', 'sex'], 'strata': ['ward']}
    """
    if FORMULA not in item:
        return dict(item)
    check = Checks("formula")
    for name in _SAID:
        if name in item:
            check.add(name, "is in the formula already", remedy="Remove it, or the formula")
    text = check.text(FORMULA, item[FORMULA], 10 * MAX_TEXT)
    outcome, sign, right = (text or "").partition("~")
    outcome = outcome.strip()
    if text is not None and not (sign and NAME.fullmatch(outcome)):
        remedy = "A duration's event comes from the columns: write the duration alone"
        check.add(FORMULA, "has no outcome", value=shown(text), bound=_BOUND, remedy=remedy)
    check.done()
    strata, exposures = list[str](), list[str]()
    regressors: dict[str, str] = {}
    for part in map(str.strip, _PLUS.split(right)):
        found = _STRATA.fullmatch(part)
        if found is not None:
            strata += [name.strip() for name in found[1].split(",")]
            continue
        if (offset := _OFFSET.fullmatch(part)) is not None:
            exposures.append(offset[1].strip())
            continue
        for one in _expand_star(part):
            _keep(check, regressors, one)
    if len(exposures) > 1:
        value = shown(" + ".join(exposures))
        check.add(FORMULA, "has several offsets", value=value, bound="one, offset(log(years))")
    check.done()
    left = {name: value for name, value in item.items() if name != FORMULA}
    term = left.get("term")
    asked = _key(term)
    if asked is None or asked not in regressors:
        remedy = "Say which of the formula's terms is asked for"
        check.add("term", "is not in the formula", value=shown(term), remedy=remedy)
    check.done()
    adjust = [one for key, one in regressors.items() if key != asked]
    more: Json = {"strata": strata} if strata else {}
    if exposures:
        more["exposure"] = exposures[0]
    return left | {"outcome": outcome, "adjust": adjust} | more


def expand_formulas(items: object) -> tuple[object, dict[str, list[Problem]]]:
    """The same of a list of estimands; and the problems of those that could not be taken apart, by
    where these stand: ``estimands[1]`` is the first."""
    if not isinstance(items, list):
        return items, {}
    expanded: list[object] = []
    problems: dict[str, list[Problem]] = {}
    for number, item in enumerate(items, start=1):
        where = f"estimands[{number}]"
        try:
            expanded.append(expand_formula(item) if isinstance(item, Mapping) else item)
        except InvalidInput as error:
            problems[where] = within(where, error.problems)
            expanded.append({key: item[key] for key in ("name",) if key in item})
    return expanded, problems


def _expand_star(part: str) -> list[str]:
    """``a*b`` is a, b and their product, as in R."""
    factors = [factor.strip() for factor in part.split("*")]
    return [part] if len(factors) != 2 else [*factors, ":".join(factors)]


def _keep(check: Checks, regressors: dict[str, str], text: str) -> None:
    try:
        read = read_regressor(text)
    except InvalidInput as error:
        check.problems += within(FORMULA, error.problems)
        return
    # `age*sex + age*ward` names age twice, and means it once.
    regressors.setdefault(read.key, str(read))


def _key(term: object) -> str | None:
    """By which a term is found in the formula, whatever level it names."""
    try:
        return read_regressor(term).key
    except InvalidInput:
        return None
