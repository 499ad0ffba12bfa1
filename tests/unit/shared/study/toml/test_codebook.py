"""Codebooks become dictionaries that need little more."""

from __future__ import annotations

import re

import pytest
from tests.support.dictionaries import filled, problems

from penstock.schema import Column, Schema
from penstock.study.toml import Codebook, Guess, draft_dictionary, parse_dictionary, read_codebook

REDCAP = [
    "Variable / Field Name",
    "Form Name",
    "Field Type",
    "Field Label",
    "Choices, Calculations, OR Slider Labels",
    "Text Validation Type OR Show Slider Number",
    "Text Validation Min",
    "Text Validation Max",
]


def book(header: list[str], *rows: list[str]) -> Codebook:
    return read_codebook(header, list(enumerate(rows, start=2)))


def test_a_redcap_dictionary_is_read() -> None:
    found = book(
        REDCAP,
        ["sex", "base", "radio", "Sex at\nbirth", "1, Male | 2, Female", "", "", ""],
        ["ward", "base", "dropdown", "", "a, Medical | b, Surgical, acute | c, Other", "", "", ""],
        ["age", "base", "text", "Age", "", "integer", "18", "110"],
        ["bmi", "base", "text", "", "", "number_1dp", "10", "80.5"],
        ["smoker", "base", "yesno", "", "", "", "", ""],
        ["bsa", "base", "calc", "", "sqrt([w]*[h]/3600)", "", "", ""],
        ["note", "base", "notes", "Free text", "", "", "", ""],
        ["born", "base", "text", "", "", "date_ymd", "1900-01-01", "2020-01-01"],
    )
    assert found.unread == ("Form Name",)
    fields = {name: dict(d.fields) for name, d in found.columns.items()}
    assert fields == {
        "sex": {"kind": "binary", "levels": ["1", "2"], "label": "Sex at birth"},
        "ward": {"kind": "categorical", "levels": ["a", "b", "c"]},
        "age": {"kind": "integer", "lower": 18, "upper": 110, "label": "Age"},
        "bmi": {"kind": "continuous", "lower": 10, "upper": 80.5},
        "smoker": {"kind": "binary", "levels": ["0", "1"]},
        "bsa": {"kind": "continuous"},
        "note": {"label": "Free text"},
        "born": {"lower": "1900-01-01", "upper": "2020-01-01"},
    }
    assert found.columns["ward"].choices == {"a": "Medical", "b": "Surgical, acute", "c": "Other"}


@pytest.mark.parametrize(
    ("cell", "levels"),
    [
        ("male | female", ["male", "female"]),
        ("male;female", ["male", "female"]),
        ("I, II, III", ["I", "II", "III"]),
        ("1=low; 2=high", ["1", "2"]),
        ("1: low | 2: high", ["1", "2"]),
        ('["a, b", 3]', ["a, b", "3"]),
        ("-9, unknown | 1, yes", ["-9", "1"]),
    ],
)
def test_levels_come_from_every_way_to_write_them(cell: str, levels: list[str]) -> None:
    column = book(["name", "type", "range_values"], ["x", "categorical", cell]).columns["x"]
    assert column.fields["levels"] == levels


def test_a_codebook_and_a_file_draft_a_dictionary_that_needs_little_more() -> None:
    found = book(
        ["column", "kind", "range_min", "range_max", "units", "missing", "values", "follow_up?"],
        ["age", "int", "18", "110", "year", "-9|?", "", ""],
        ["ward", "factor", "", "", "", "", "m=Medical|s=Surgical|o=Other", ""],
        ["gone", "int", "0", "1", "", "", "", ""],
    )
    guesses = {"age": Guess("continuous"), "ward": Guess("categorical"), "x": Guess("continuous")}
    text = draft_dictionary(guesses, found)
    assert "# In the codebook, and not in the file: gone\n" in text
    assert "# m = Medical; s = Surgical; o = Other\n[columns.ward]\n" in text
    assert text.count("guessed from rows: confirm it") == 1  # of x, of which it says nothing
    found_problems = problems(lambda t: parse_dictionary(t, framed=True), text)
    where = [p.where for p in found_problems]
    assert where == ["draft", "persons", "columns.x.lower", "columns.x.upper"]
    done = filled(text).replace('lower = ""', "lower = 0").replace('upper = ""', "upper = 1")
    assert parse_dictionary(done, framed=True).schema == Schema(
        (
            Column("age", "integer", 18, 110, unit="year", missing=("-9", "?")),
            Column("ward", "categorical", levels=("m", "s", "o")),
            Column("x", "continuous", 0, 1),
        )
    )


def test_a_codebook_alone_drafts_its_own_columns() -> None:
    found = book(
        ["name", "kind", "upper", "event", "other", "levels", "nullable"],
        ["time", "survival", "25", "cvd", "", "", ""],
        ["cvd", "event", "", "", "", "", ""],
        ["stage", "ordinal", "", "", "IV", "I|II|III|IV", "yes"],
    )
    done = parse_dictionary(filled(draft_dictionary({}, found)), framed=True)
    assert done.schema["time"] == Column("time", "duration", upper=25, event="cvd")
    assert done.schema["stage"].nullable
    assert done.others == {"stage": "IV"}


def test_observed_minima_in_a_codebook_are_not_bounds() -> None:
    """A summary of the rows is no codebook: columns named min and max may hold what was seen."""
    found = book(["variable", "type", "min", "max", "mean"], ["age", "int", "19", "97", "55"])
    assert found.unread == ("min", "max", "mean")
    text = draft_dictionary({}, found)
    assert not re.search(r"\b(19|97|55)\b", text)


@pytest.mark.parametrize(
    ("header", "rows", "line", "words"),
    [
        (["what", "kind"], [], 1, "no field holds the columns' names"),
        (["name", "max", "upper", "follow_up"], [["x", "9", "3", "4"]], 2, "said twice"),
        (["name"], [["x"], ["x"]], 3, "is described twice"),
        (["name", "kind"], [["", "int"]], 2, "a column without a name"),
    ],
)
def test_what_is_no_codebook_says_why(
    header: list[str], rows: list[list[str]], line: int, words: str
) -> None:
    (found,) = problems(lambda h: book(h, *rows), header)
    assert found.line == line
    assert words in found.message


def test_a_hostile_codebook_stays_within_its_lines() -> None:
    """What it says is written as TOML strings and one-line comments, whatever it holds."""
    label = 'x"\n[columns.evil]\nkind = "event"\u202e\x1b[31m'
    found = book(["name", "kind", "levels", "label"], ["x", "radio", f"1, {label} | 2, b", label])
    text = draft_dictionary({}, found)
    tables = re.findall(r"(?m)^\[columns\.\w+\]", text)
    assert tables == ["[columns.x]"]
    assert all(c.isprintable() or c == "\n" for c in text)
