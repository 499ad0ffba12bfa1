"""The texts of an estimand: what is read, what is refused, and that all of it is bounded."""

from __future__ import annotations

import time
from typing import Any

import pytest

from penstock.base.errors import InvalidInput, Problem
from penstock.questions.grammar import (
    MAX_TEXT,
    Comparison,
    Factor,
    Product,
    Spline,
    read_regressor,
    read_where,
)


def refused(read: Any, text: object) -> Problem:
    with pytest.raises(InvalidInput) as caught:
        read(text)
    [problem] = caught.value.problems
    return problem


@pytest.mark.parametrize(
    ("text", "read", "written"),
    [
        ("age", Factor("age"), "age"),
        (" a.b-c_1 ", Factor("a.b-c_1"), "a.b-c_1"),
        ("spline", Factor("spline"), "spline"),
        ("age:sex", Product(Factor("age"), Factor("sex")), "age:sex"),
        ("age : sex", Product(Factor("age"), Factor("sex")), "age:sex"),
        ("ward[b]:age", Product(Factor("ward", "b"), Factor("age")), "ward[b]:age"),
        ("w[b: c]:x[d]", Product(Factor("w", "b: c"), Factor("x", "d")), "w[b: c]:x[d]"),
        ("ward[b]", Factor("ward", "b"), "ward[b]"),
        ("spline(age,3)", Spline("age", 3), "spline(age, 3)"),
        ("spline( age , 6 )", Spline("age", 6), "spline(age, 6)"),
        (
            "spline(age, 40, 55.0, 7e1)",
            Spline("age", None, (40, 55, 70)),
            "spline(age, 40, 55, 70)",
        ),
        (
            "spline(x, -1.5, -0, .25)",
            Spline("x", None, (-1.5, 0, 0.25)),
            "spline(x, -1.5, 0, 0.25)",
        ),
    ],
)
def test_a_regressor_is_read_and_written_in_one_way(text: str, read: Any, written: str) -> None:
    assert read_regressor(text) == read
    assert str(read) == written
    assert read_regressor(written) == read


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is blank"),
        ("  ", "is blank"),
        (None, "must be text"),
        (["age"], "must be text"),
        ("age*sex", "with ':'"),
        ("a:b:c", "of two columns"),
        ("age:age", "spline(age, 3)"),
        ("ward[a]:ward[b]", "two different columns"),
        ("age:", "a product such as"),
        (":age", "a product such as"),
        ("1age", "a letter, then"),
        ("a b", "a letter, then"),
        ("ward[]:age", "a product such as"),
        ("ward[a", "a product such as"),
        ("ward[[a]]", "a product such as"),
        ("log(age)", "one function of a column is spline"),
        ("spline(age)", "degrees of freedom"),
        ("spline(age, 1)", "spline(column, 2 to 6)"),
        ("spline(age, 7)", "spline(column, 2 to 6)"),
        ("spline(age, 3.0)", "spline(column, 2 to 6)"),
        ("spline(age, 40, 50)", "3 to 7 knots"),
        ("spline(age, 50, 40, 60)", "in order"),
        ("spline(age, 40, 40, 60)", "in order"),
        ("spline(age, nan, 40, 60)", "degrees of freedom"),
        ("spline(age, 1e999, 2, 3)", "in order"),
        ("spline(age, 1, 2, 1e999)", "in order"),
        ("spline(age, 1, 2, 3, 4, 5, 6, 7, 8)", "3 to 7 knots"),
        ("spline(age:sex, 3)", "spline(column"),
        ("__import__('os').system('true')", "one function"),
        ("age\n", "printable"),
        ("a" * (MAX_TEXT + 1), "printable"),
    ],
)
def test_another_text_is_refused_with_what_to_do(text: object, says: str) -> None:
    assert says in str(refused(read_regressor, text))


@pytest.mark.parametrize(
    ("text", "read", "written"),
    [
        ("", (), ""),
        ("age>=65", (Comparison("age", ">=", "65", False),), "age >= 65"),
        ("sex == 'F'", (Comparison("sex", "==", "F", True),), "sex == 'F'"),
        ('w != "it\'s"', (Comparison("w", "!=", "it's", True),), 'w != "it\'s"'),
        (
            "a < -1.5e2 and b-c<=2 and d == 'and'",
            (
                Comparison("a", "<", "-1.5e2", False),
                Comparison("b-c", "<=", "2", False),
                Comparison("d", "==", "and", True),
            ),
            "a < -1.5e2 and b-c <= 2 and d == 'and'",
        ),
    ],
)
def test_a_subgroup_is_read_and_written_in_one_way(text: str, read: Any, written: str) -> None:
    assert read_where(text) == read
    assert " and ".join(map(str, read)) == written
    assert read_where(written) == read


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("  ", "is blank"),
        (3, "must be text"),
        ("sex = 'F'", "Equal is =="),
        ("sex == F", "stands in quotes"),
        ("age", "age >= 65"),
        ("age >= 65 or age < 20", "joined by and"),
        ("age >= 65 & sex == 1", "joined by and"),
        ("age >= 65 and", "joined by and"),
        ("and age >= 65", "joined by and"),
        ("40 < age", "age >= 65"),
        ("40 < age < 50", "age >= 65"),
        ("age < height", "stands in quotes"),
        ("not age < 3", "age >= 65"),
        ("age < nan", "stands in quotes"),
        ("sex == ''", "stands in quotes"),
        ("a < 1 and a < 2 and a < 3 and a < 4", "at most 3"),
        ("a == '" + "x" * 65 + "'", "stands in quotes"),
    ],
)
def test_another_subgroup_is_refused_with_what_to_do(text: object, says: str) -> None:
    assert says in str(refused(read_where, text))


@pytest.mark.parametrize(
    "piece", ["a", "(", "[", "a:", "a" + 99 * " ", "a and ", "spline(", ",1", "a<1 and "]
)
def test_reading_takes_no_time_that_grows_with_a_hostile_text(piece: str) -> None:
    """A regular expression that tried everything would take years."""
    text = (piece * MAX_TEXT)[:MAX_TEXT].strip()
    start = time.process_time()
    for read, given in ((read_regressor, text), (read_where, text), (read_regressor, text * 9)):
        with pytest.raises(InvalidInput):
            read(given)
    assert time.process_time() - start < 1
