"""Drafts of dictionaries: kinds are guessed, no value of a row is kept, blanks are asked for."""

from __future__ import annotations

import re

import pytest
from tests.support.dictionaries import filled, problems

from penstock.schema import Column, Schema
from penstock.study.toml import Guess, draft_dictionary, infer_kind, parse_dictionary


@pytest.mark.parametrize(
    ("name", "values", "guess"),
    [
        ("age", ["18", "99", "", "NA"], Guess("integer")),
        ("age", ["18.5", "-9e1", None], Guess("continuous")),
        ("smoker", ["0", "1", "?"], Guess("binary", ("0", "1"))),
        ("cvd_event", ["0", "1"], Guess("event", ("0", "1"))),
        ("time", ["1.5", "3"], Guess("duration")),
        ("sex", ["m", "f", "m"], Guess("binary")),
        ("ward", ["c", "a", "b"], Guess("categorical")),
        ("note", [f"text {i}" for i in range(50)], Guess("categorical")),
        ("empty", ["", "NA"], Guess("categorical")),
    ],
)
def test_kinds_are_guessed(name: str, values: list[str | None], guess: Guess) -> None:
    assert infer_kind(name, values) == guess


def drafted(**kinds: str) -> str:
    return draft_dictionary({name: Guess(kind) for name, kind in kinds.items()})


@pytest.mark.parametrize(
    "values",
    [
        ["1234", "5678"],
        ["12.5", "-3.25"],
        ["male", "female"],
        ["a", "b", "HIV index case 1987, J. Smith"],
        ["1", "2", "77"],
        [f"text {i}" for i in range(50)],
    ],
)
def test_a_draft_holds_no_value_of_a_row(values: list[str]) -> None:
    text = draft_dictionary({n: infer_kind(n, values) for n in ("age", "time", "event", "ward")})
    body = text[text.index("[columns.age]") :]
    assert not [v for v in values if re.search(rf"(?<!\w){re.escape(v)}(?!\w)", body)]


def test_a_draft_asks_for_every_blank() -> None:
    text = drafted(age="continuous", time="duration", cvd="event", ward="categorical", sex="binary")
    found = problems(lambda t: parse_dictionary(t, framed=True), text)
    assert [p.where for p in found] == [
        "draft",
        "persons",
        "columns.age.lower",
        "columns.age.upper",
        "columns.time.follow_up",
        "columns.ward.levels",
        "columns.sex.levels",
    ]
    blank = re.compile(r'= (true|""|\[\])$')
    assert all(blank.search(text.splitlines()[(p.line or 0) - 1]) for p in found)


def test_a_draft_that_nobody_finished_is_refused_though_nothing_is_blank() -> None:
    text = draft_dictionary({"sex": infer_kind("sex", ["0", "1"])})
    text = text.replace('persons = ""', "persons = 500")
    (found,) = problems(parse_dictionary, text)
    assert (found.where, text.splitlines()[(found.line or 0) - 1]) == ("draft", "draft = true")
    assert parse_dictionary(filled(text)).schema == Schema((Column("sex", "binary"),))


def test_a_filled_draft_parses() -> None:
    text = filled(drafted(time="duration", cvd="event", sex="binary"), 700)
    text = text.replace('follow_up = ""', "follow_up = 9").replace("[]", '["f", "m"]')
    found = parse_dictionary(text, framed=True)
    assert found.schema["time"].event == "cvd"
    assert found.schema["sex"].levels == ("f", "m")
    assert found.persons == 700


def test_names_that_need_quotes_are_quoted() -> None:
    text = draft_dictionary({n: Guess("binary", ("0", "1")) for n in ("AGE (yrs)", 'a"b')})
    found = problems(parse_dictionary, text.replace("draft = true", "").replace('persons = ""', ""))
    assert [p.message for p in found] == ["is not well formed"] * 2
    assert all(p.line is not None for p in found)


def test_whole_numbers_written_with_a_point_are_whole():
    assert infer_kind("sex", ["1.0", "0.0", ""]).kind == "binary"
    assert infer_kind("age", ["63.0", "41.0"]).kind == "integer"
    assert infer_kind("oldpeak", ["2.0", "1.5"]).kind == "continuous"
