"""Whether a site's dictionary carries a study's schema."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.cohort_columns import AGE, CVD, SCHEMA, STAGE, TIME, WARD

from penstock.schema import Column, Schema, compare


def with_columns(*columns: Column) -> Schema:
    return replace(SCHEMA, columns=columns)


def test_a_dictionary_carries_its_own_schema() -> None:
    assert compare(SCHEMA, SCHEMA) == []


@pytest.mark.parametrize(
    "study",
    [
        with_columns(AGE),
        with_columns(replace(AGE, lower=30, upper=60)),
        with_columns(replace(TIME, upper=10), CVD),
        with_columns(replace(WARD, levels=("c", "a", "b"))),
        with_columns(replace(AGE, label="how old", decimals=None, nullable=True)),
        with_columns(replace(AGE, spike=18, scale="log")),
        replace(SCHEMA, max_rows_per_person=2),
    ],
)
def test_a_dictionary_carries_narrower_schemas(study: Schema) -> None:
    assert compare(study, SCHEMA) == []


@pytest.mark.parametrize(
    ("study", "where"),
    [
        (with_columns(replace(AGE, name="agee")), "columns.agee"),
        (with_columns(replace(AGE, kind="integer", decimals=None)), "columns.age.kind"),
        (with_columns(replace(AGE, unit="month")), "columns.age.unit"),
        (with_columns(replace(AGE, lower=17)), "columns.age.lower"),
        (with_columns(replace(AGE, upper=101)), "columns.age.upper"),
        (with_columns(replace(TIME, upper=26), CVD), "columns.time.upper"),
        (with_columns(replace(WARD, levels=("a", "b"))), "columns.ward.levels"),
        (with_columns(replace(STAGE, levels=("1", "3", "2"))), "columns.stage.levels"),
        (replace(SCHEMA, max_rows_per_person=4), "max_rows_per_person"),
        (replace(SCHEMA, person="patient"), "person"),
        (replace(SCHEMA, person=None, max_rows_per_person=1), "person"),
    ],
)
def test_a_dictionary_does_not_carry_other_schemas(study: Schema, where: str) -> None:
    assert [p.where for p in compare(study, SCHEMA)] == [where]


def test_another_event_is_not_carried() -> None:
    other = Column("death", "event")
    study = with_columns(replace(TIME, event="death"), other)
    held = with_columns(TIME, CVD, replace(TIME, name="t2", event="death"), other)
    assert [p.where for p in compare(study, held)] == ["columns.time.event"]
