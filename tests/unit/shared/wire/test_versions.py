"""Wire versions: who reads what, and in which form a study is answered."""

from __future__ import annotations

from dataclasses import fields

import pytest

from penstock.study.scope import EACH_WIRE, LEAST_WIRE
from penstock.study.study import Study
from penstock.wire.messages import (
    LABELLED_VERSION,
    SERVED_MAJORS,
    WIRE_VERSION,
    choose_version,
    is_newer,
    names_parts,
    read_version,
)


def test_studies_are_written_for_the_oldest_version_that_can_say_them() -> None:
    (wire,) = (field.default for field in fields(Study) if field.name == "wire")
    assert wire == EACH_WIRE == "1.2"
    assert LEAST_WIRE == WIRE_VERSION
    version = read_version(WIRE_VERSION)
    assert version is not None
    assert version[0] == max(SERVED_MAJORS)


@pytest.mark.parametrize("text", ["", "1", "1.", ".1", "1.2.3", "1.2 ", "-1.2", "1.٢", "1.20000"])
def test_what_is_no_version_names_no_parts(text: str) -> None:
    assert read_version(text) is None
    assert not names_parts(text)


def test_minor_versions_are_numbers() -> None:
    assert is_newer("1.10", "1.9")
    assert not is_newer("1.9", "1.10")
    assert not is_newer("1.2", "1.2")
    assert is_newer("2.0", "1.99")


@pytest.mark.parametrize(
    ("asked", "answered"),
    [("1.0", "1.1"), ("1.1", "1.1"), ("1.2", "1.2"), ("1.3", "1.3"), ("1.10", "1.3")],
)
def test_a_study_is_answered_in_no_newer_form(asked: str, answered: str) -> None:
    """But that 1.1 differs from 1.0 in how refits are made, and not in how they are read."""
    assert choose_version(asked) == answered
    assert names_parts(answered) == names_parts(asked)


def test_the_last_version_with_labels_is_the_one_before_parts() -> None:
    assert not names_parts(LABELLED_VERSION)
    assert names_parts(WIRE_VERSION)
