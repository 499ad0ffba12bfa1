"""The texts that name what a regression is of: columns, products, splines; and subgroups.

=============================  =====================================================================
text                           what it is
=============================  =====================================================================
``age``                        a column; of one with levels and no order, each against the first
``age:sex``                    the product of two columns; ``ward[b]:age`` of level b
``spline(age, 3)``             a natural cubic spline with 3 degrees of freedom, 2 to 6, whose knots
                               lie evenly within the public bounds
``spline(age, 40, 55, 70)``    the same with these knots, 3 to 7
``age >= 65 and sex == 'F'``   rows of a subgroup: at most three comparisons with a value
=============================  =====================================================================

Nothing else is in the grammar, and nothing is evaluated. A text comes over the wire: its length is
bounded before it is looked at.

Source: Harrell 2015, "Regression Modeling Strategies", 2nd ed., section 2.4.5 (natural splines,
there called restricted).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise

from penstock.base.checks import NAME, NAME_BOUND, shown
from penstock.base.errors import InvalidInput, Problem

MAX_TEXT = 400
LEAST_DF, MOST_DF = 2, 6
LEAST_KNOTS, MOST_KNOTS = LEAST_DF + 1, MOST_DF + 1
MOST_COMPARISONS = 3
OPERATORS = ("==", "!=", "<=", ">=", "<", ">")

_FACTOR = re.compile(rf"\s*({NAME.pattern})\s*(?:\[([^\[\]]{{1,64}})\])?\s*")
_SPLINE = re.compile(rf"\s*spline\s*\(\s*({NAME.pattern})\s*((?:,[^,()]*)*)\)\s*")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_COMPARISON = re.compile(
    rf"\s*({NAME.pattern})\s*({'|'.join(OPERATORS)})\s*"
    rf"(?:'([^']{{1,64}})'|\"([^\"]{{1,64}})\"|({_NUMBER.pattern}))\s*"
)
_AND = re.compile(r"and\b")

_REGRESSOR_BOUND = "a column, a product such as age:sex, or spline(age, 3)"
_WHERE_BOUND = f"age >= 65, sex == 'F', or up to {MOST_COMPARISONS} of these joined by and"


@dataclass(frozen=True, slots=True)
class Factor:
    """A column, or of one without an order the level that stands for it in a product."""

    column: str
    level: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def key(self) -> str:
        """What two of them may not share in one model."""
        return self.column

    def __str__(self) -> str:
        return self.column if self.level is None else f"{self.column}[{self.level}]"


@dataclass(frozen=True, slots=True)
class Product:
    """The product of two columns."""

    left: Factor
    right: Factor

    @property
    def factors(self) -> tuple[Factor, Factor]:
        return self.left, self.right

    @property
    def columns(self) -> tuple[str, ...]:
        return self.left.column, self.right.column

    @property
    def key(self) -> str:
        return ":".join(sorted(self.columns))

    def __str__(self) -> str:
        return f"{self.left}:{self.right}"


@dataclass(frozen=True, slots=True)
class Spline:
    """A natural cubic spline of a column, its linear part among it.

    Attributes:
        df: degrees of freedom where knots are left to the public bounds; knots: where they are not.
    """

    column: str
    df: int | None
    knots: tuple[float, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def key(self) -> str:
        return self.column

    @property
    def bends(self) -> int:
        """Columns beside the linear one: two fewer than knots."""
        return self.df - 1 if self.df is not None else len(self.knots) - 2

    def __str__(self) -> str:
        numbers = [str(self.df)] if self.df is not None else [f"{knot:.15g}" for knot in self.knots]
        return f"spline({', '.join([self.column, *numbers])})"


Regressor = Factor | Product | Spline


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of a column with a value, as it was written; quoted: it can only be a level."""

    column: str
    operator: str
    value: str
    quoted: bool

    def __str__(self) -> str:
        mark = "" if not self.quoted else '"' if "'" in self.value else "'"
        return f"{self.column} {self.operator} {mark}{self.value}{mark}"


def read_regressor(text: object) -> Regressor:
    """A column, a product or a spline.

    Raises:
        InvalidInput: it is none, with what could be done.

    Example:
        >>> read_regressor("ward[b] : age")
        Product(left=Factor(column='ward', level='b'), right=Factor(column='age', level=None))
        >>> str(read_regressor("spline(age,40,55,70)"))
        'spline(age, 40, 55, 70)'
    """
    given = _bounded(text, _REGRESSOR_BOUND)
    if "(" in given:
        return _read_spline(given)
    # A level may hold a colon, a column's name may not.
    first = _FACTOR.match(given)
    rest = "" if first is None else given[first.end() :]
    if first is not None and not rest:
        return _factor(first)
    second = _FACTOR.fullmatch(rest, 1) if rest.startswith(":") else None
    if first is None or second is None:
        raise _refused(given, _REGRESSOR_BOUND, _advise(given, rest))
    product = Product(_factor(first), _factor(second))
    if product.left.column == product.right.column:
        raise _refused(
            given, "a product of two different columns", f"Adjust for spline({product.left}, 3)"
        )
    return product


def read_where(text: object) -> tuple[Comparison, ...]:
    """The comparisons that a row of a subgroup meets, all of them; none of an empty text.

    Raises:
        InvalidInput: it is none, with what could be done.

    Example:
        >>> [str(c) for c in read_where("age>=65 and sex=='F'")]
        ['age >= 65', "sex == 'F'"]
    """
    if text == "":
        return ()
    given, found, at, ended = _bounded(text, _WHERE_BOUND), list[Comparison](), 0, False
    while not ended and (read := _COMPARISON.match(given, at)) is not None:
        single, double, number = read[3], read[4], read[5]
        value = next(v for v in (single, double, number) if v is not None)
        found.append(Comparison(read[1], read[2], value, number is None))
        joined = _AND.match(given, read.end())
        at, ended = read.end() if joined is None else joined.end(), joined is None
    if not ended or at != len(given):
        single_sign = re.search(r"(?<![=!<>])=(?!=)", given)
        remedy = "Equal is ==" if single_sign else "Text stands in quotes, a number does not"
        raise _refused(given, _WHERE_BOUND, remedy)
    if len(found) > MOST_COMPARISONS:
        bound = f"at most {MOST_COMPARISONS} comparisons"
        raise _refused(given, bound, "Ask of a larger subgroup")
    return tuple(found)


def _read_spline(given: str) -> Spline:
    found = _SPLINE.fullmatch(given)
    bound = f"spline(column, {LEAST_DF} to {MOST_DF}), or with {LEAST_KNOTS} to {MOST_KNOTS} knots"
    if found is None:
        raise _refused(given, bound, _advise_brackets(given))
    numbers = [part.strip() for part in found[2].split(",")[1:]]
    if not numbers or not all(_NUMBER.fullmatch(n) for n in numbers):
        raise _refused(given, bound, "Say how many degrees of freedom it has, or its knots")
    if len(numbers) == 1:
        if not (numbers[0].isdecimal() and LEAST_DF <= int(numbers[0]) <= MOST_DF):
            raise _refused(given, bound, "One number is how many degrees of freedom it has")
        return Spline(found[1], int(numbers[0]))
    knots = tuple(float(n) + 0.0 for n in numbers)
    rising = all(a < b for a, b in pairwise(knots))
    if not (LEAST_KNOTS <= len(knots) <= MOST_KNOTS and rising and math.isfinite(sum(knots))):
        raise _refused(given, bound, "Write its knots in order, from public knowledge")
    return Spline(found[1], None, knots)


def _factor(found: re.Match[str]) -> Factor:
    level = found[2]
    return Factor(found[1], None if level is None else level.strip())


def _bounded(text: object, bound: str) -> str:
    """Printable text of a length that is worth looking at."""
    if not isinstance(text, str):
        raise InvalidInput("term", [Problem("", "must be text", value=shown(text), bound=bound)])
    if not text.strip():
        raise InvalidInput("term", [Problem("", "is blank", value=shown(text), bound=bound)])
    if len(text) > MAX_TEXT or not text.isprintable():
        raise _refused(text, f"at most {MAX_TEXT} printable characters on one line", None)
    return text


def _advise(given: str, rest: str) -> str | None:
    if "*" in given:
        return "A product is written with ':', and its main effects are added"
    if ":" in rest[1:]:
        return "A product is of two columns"
    if ")" in given:
        return "A bracket is not closed, or not opened"
    if not any(sign in given for sign in ":[]"):
        return f"A column's name is {NAME_BOUND}"
    return None


def _advise_brackets(given: str) -> str | None:
    if given.count("(") != given.count(")"):
        return "A bracket is not closed, or not opened"
    word = given.partition("(")[0].strip()
    if word == "I":
        return "Units are no part of a term: write the column, and the estimand's field `per`"
    if not word:
        return "Write terms without brackets around them"
    return None if word == "spline" else "The one function of a column is spline"


def _refused(given: str, bound: str, remedy: str | None) -> InvalidInput:
    problem = Problem(
        "", "is not well formed", value=shown(given.strip()), bound=bound, remedy=remedy
    )
    return InvalidInput("term", [problem])
