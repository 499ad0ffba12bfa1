"""Columns and schemas refuse what is wrong, and know their grids."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.cohort_columns import AGE, CVD, SCHEMA, TIME, VISITS, WARD, refused

from penstock.base.errors import InvalidInput
from penstock.schema import Column, Schema


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "1st"),
        ("name", "a b"),
        ("name", "a" * 65),
        ("name", "a\n"),
        ("name", None),
        ("kind", "nominal"),
        ("kind", ""),
        ("kind", ["continuous"]),
        ("lower", None),
        ("lower", ""),
        ("lower", "18"),
        ("lower", math.nan),
        ("lower", -math.inf),
        ("lower", 10**400),
        ("lower", True),
        ("upper", None),
        ("upper", math.nan),
        ("upper", 18),
        ("upper", 17),
        ("upper", 1e13),
        ("decimals", -1),
        ("decimals", 13),
        ("decimals", 1.0),
        ("decimals", True),
        ("levels", ("a", "b")),
        ("unit", "mm\nHg"),
        ("unit", 3),
        ("label", "x" * 201),
        ("label", "\u202eevil"),
        ("spike", 17),
        ("spike", 100.5),
        ("spike", math.nan),
        ("spike", "0"),
        ("spike", True),
        ("scale", "logit"),
        ("scale", ""),
        ("scale", 1),
        ("nullable", 1),
        ("missing", ["-9"]),
        ("missing", ("-9", "-9")),
        ("missing", (-9,)),
        ("event", "cvd"),
    ],
)
def test_a_field_out_of_bounds_is_refused(field: str, value: Any) -> None:
    assert set(refused(replace, AGE, **{field: value})) == {field}


@pytest.mark.parametrize(
    ("kind", "levels"),
    [
        ("binary", ("a",)),
        ("binary", ("a", "b", "c")),
        ("event", ("no", "yes")),
        ("event", ("1", "0")),
        ("ordered", ()),
        ("ordered", ("a",)),
        ("categorical", ("a", "a")),
        ("categorical", ("a", "")),
        ("categorical", ("a", " b")),
        ("categorical", (0, 1)),
        ("categorical", tuple(map(str, range(101)))),
        ("categorical", ["a", "b"]),
    ],
)
def test_levels_out_of_bounds_are_refused(kind: str, levels: Any) -> None:
    assert set(refused(Column, "x", kind, levels=levels)) == {"levels"}


@pytest.mark.parametrize(
    ("kwargs", "where"),
    [
        ({"kind": "duration", "event": "e"}, "upper"),
        ({"kind": "duration", "event": "e", "upper": 0}, "upper"),
        ({"kind": "duration", "event": "e", "upper": 9, "lower": 1}, "lower"),
        ({"kind": "duration", "upper": 9}, "event"),
        ({"kind": "duration", "upper": 9, "event": ""}, "event"),
        ({"kind": "integer", "lower": 0.5, "upper": 3}, "lower"),
        ({"kind": "integer", "lower": 0, "upper": 3, "decimals": 0}, "decimals"),
        ({"kind": "binary", "lower": 0}, "lower"),
        ({"kind": "continuous", "lower": 0.1, "upper": 0.9, "decimals": 0}, "decimals"),
        ({"kind": "continuous", "lower": 0, "upper": 1e9, "decimals": 9}, "decimals"),
        ({"kind": "continuous", "lower": 1e11, "upper": 1e11 + 1}, "upper"),
        ({"kind": "categorical", "levels": ("a", "b"), "missing": ("a",)}, "missing"),
        ({"kind": "binary", "spike": 0}, "spike"),
        ({"kind": "ordered", "levels": ("a", "b"), "scale": "log"}, "scale"),
        ({"kind": "continuous", "lower": 0, "upper": 9, "spike": 0}, "spike"),
        ({"kind": "continuous", "lower": 0.1, "upper": 9, "decimals": 0, "spike": 0.1}, "spike"),
        ({"kind": "integer", "lower": 0, "upper": 9, "spike": 0.5}, "spike"),
        ({"kind": "continuous", "lower": 0, "upper": 9, "scale": "log"}, "scale"),
        ({"kind": "continuous", "lower": 1e-12, "upper": 9, "scale": "log"}, "scale"),
        ({"kind": "integer", "lower": -1, "upper": 9, "scale": "log"}, "scale"),
        ({"kind": "integer", "lower": 0, "upper": 10**12, "scale": "log"}, "scale"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(kwargs: dict[str, Any], where: str) -> None:
    assert refused(Column, "x", **kwargs) == [where]


def test_all_problems_of_a_column_are_reported_together() -> None:
    wheres = refused(Column, "", "continuous", math.nan, None, -1, levels=("a",))
    assert wheres == ["name", "lower", "upper", "decimals", "levels"]


def test_a_blank_bound_says_where_bounds_come_from() -> None:
    with pytest.raises(InvalidInput, match="never observed minima"):
        Column.from_dict({"name": "x", "kind": "continuous", "lower": "", "upper": 3})


def test_bounds_are_kept_as_floats() -> None:
    assert repr(AGE.lower) == "18.0"
    assert repr(replace(AGE, lower=-0.0).lower) == "0.0"
    assert repr(replace(AGE, spike=40).spike) == "40.0"


@pytest.mark.parametrize(
    ("columns", "where"),
    [
        ((), "columns"),
        ((AGE, AGE), "columns"),
        ((TIME,), "columns.time.event"),
        ((replace(TIME, event="age"), AGE), "columns.time.event"),
        ((CVD,), "columns.cvd"),
        ((CVD, TIME, replace(TIME, name="t2")), "columns.cvd"),
        ([AGE], "columns"),
        (("age",), "columns"),
    ],
)
def test_columns_that_do_not_go_together_are_refused(columns: Any, where: str) -> None:
    assert refused(Schema, columns) == [where]


@pytest.mark.parametrize(
    ("person", "rows", "where"),
    [
        ("age", 1, "person"),
        ("", 1, "person"),
        (3, 1, "person"),
        (None, 2, "person"),
        ("pid", 0, "max_rows_per_person"),
        ("pid", 1001, "max_rows_per_person"),
        ("pid", 1.0, "max_rows_per_person"),
        (None, math.nan, "max_rows_per_person"),
    ],
)
def test_a_person_must_be_well_defined(person: Any, rows: Any, where: str) -> None:
    assert refused(Schema, (AGE,), person, rows) == [where]


def test_dict_round_trip() -> None:
    assert Schema.from_dict(SCHEMA.to_dict()) == SCHEMA


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (None, ["columns"]),
        ({"columns": {}}, ["columns"]),
        ({"columns": [3]}, ["columns.[1]"]),
        ({"columns": [{"kind": "binary"}]}, ["columns.[1].name"]),
        ({"columns": [{"name": "a"}]}, ["columns.a.kind"]),
        ({"columns": [AGE.to_dict()], "persn": "x"}, ["persn"]),
        ({"columns": [AGE.to_dict() | {"lowr": 3}]}, ["columns.age.lowr"]),
        ({"columns": [AGE.to_dict()] * 5000}, ["columns"]),
    ],
    ids=str,
)
def test_hostile_dicts_are_refused(data: Any, where: list[str]) -> None:
    assert sorted(set(refused(Schema.from_dict, data))) == where


def test_a_broken_event_is_reported_once() -> None:
    broken = [TIME.to_dict(), CVD.to_dict() | {"unit": 3}]
    assert refused(Schema.from_dict, {"columns": broken}) == ["columns.cvd.unit"]


def test_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(InvalidInput, match="Did you mean 'lower'"):
        Schema.from_dict({"columns": [AGE.to_dict() | {"lowr": 3}]})


def test_lookup() -> None:
    assert SCHEMA["ward"] is WARD
    with pytest.raises(KeyError):
        SCHEMA["wards"]


@pytest.mark.parametrize(
    ("lower", "upper", "decimals", "grid"),
    [
        (0.7, 1.3, 1, (7, 13)),
        (0.13, 0.77, 1, (2, 7)),
        (-0.77, 0.13, 1, (-7, 1)),
        (-1.5, 1.5, 0, (-1, 1)),
    ],
)
def test_grid_is_exact(lower: float, upper: float, decimals: int, grid: tuple[int, int]) -> None:
    assert Column("x", "continuous", lower, upper, decimals).grid == grid


@pytest.mark.parametrize(
    ("column", "values", "snapped"),
    [
        (AGE, [17.2, 18.4, 1e300, -np.inf, np.nan], [18, 18, 100, 18, np.nan]),
        (TIME, [-1, 0.126, 26], [0, 0.13, 25]),
        (VISITS, [0.4, 0.6, np.inf], [0, 1, 20]),
        (WARD, [0, 2, 3, -1, 0.5, np.inf], [0, 2, np.nan, np.nan, np.nan, np.nan]),
    ],
)
def test_snap(column: Column, values: list[float], snapped: list[float]) -> None:
    np.testing.assert_array_equal(column.snap(values), snapped)


def test_what_varies_has_the_bytes_of_before_there_was_any_that_does_not() -> None:
    assert "varies" not in AGE.to_dict()
    sex = Column("sex", "binary", varies=False)
    assert sex.to_dict()["varies"] is False
    assert Column.from_dict(sex.to_dict()) == sex
    assert Column.from_dict(AGE.to_dict()).varies
    assert refused(Column, "sex", "binary", varies="no") == ["varies"]
