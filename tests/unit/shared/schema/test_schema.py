"""Columns and schemas refuse what is wrong, Arrow round trips, and dictionaries compare."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.base.errors import InvalidInput
from penstock.schema import Column, Schema, compare, from_arrow, to_arrow

AGE = Column("age", "continuous", 18, 100, 0, unit="year")
TIME = Column("time", "duration", upper=25, decimals=2, unit="year", event="cvd")
CVD = Column("cvd", "event")
WARD = Column("ward", "categorical", levels=("a", "b", "c"), nullable=True)
STAGE = Column("stage", "ordered", levels=("1", "2", "3"))
VISITS = Column("visits", "integer", 0, 20, nullable=True)
SCHEMA = Schema((AGE, TIME, CVD, WARD, STAGE, VISITS), "pid", 3)


def refused(make: Any, *args: Any, **kwargs: Any) -> list[str]:
    """Where the problems of a refused construction lie."""
    with pytest.raises(InvalidInput) as caught:
        make(*args, **kwargs)
    return [p.where for p in caught.value.problems]


def with_columns(*columns: Column) -> Schema:
    return replace(SCHEMA, columns=columns)


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


CODED = {
    "age": np.array([18.0, 55.0, 100.0]),
    "time": np.array([0.0, 12.34, 25.0]),
    "cvd": np.array([0.0, 1.0, 0.0]),
    "ward": np.array([2.0, np.nan, 0.0]),
    "stage": np.array([0.0, 1.0, 2.0]),
    "visits": np.array([3.0, np.nan, 20.0]),
}


def test_arrow_holds_labels_and_types() -> None:
    table = to_arrow(CODED, SCHEMA)
    kinds = [pa.float64(), pa.float64(), pa.int64(), pa.string(), pa.int64(), pa.int64()]
    assert table.schema.types == kinds
    assert table["ward"].to_pylist() == ["c", None, "a"]
    assert table["stage"].to_pylist() == [1, 2, 3]
    assert table["visits"].to_pylist() == [3, None, 20]
    assert table["time"].to_pylist() == [0.0, 12.34, 25.0]


def test_arrow_round_trip() -> None:
    coded = from_arrow(to_arrow(CODED, SCHEMA), SCHEMA)
    for name, values in CODED.items():
        np.testing.assert_array_equal(coded[name], values)


def test_arrow_of_no_rows() -> None:
    empty = {name: np.empty(0) for name in SCHEMA.names}
    assert from_arrow(to_arrow(empty, SCHEMA), SCHEMA)["ward"].size == 0


@pytest.mark.parametrize(
    ("column", "values", "coded"),
    [
        (WARD, pa.array(["b", "x", None]), [1, np.nan, np.nan]),
        (WARD, pa.array(["b", "a"]).dictionary_encode(), [1, 0]),
        (STAGE, pa.array(["2", "9"]), [1, np.nan]),
        (STAGE, pa.array([3.0, 1.5, None]), [2, np.nan, np.nan]),
        (Column("b", "binary"), pa.array([True, False, None]), [1, 0, np.nan]),
        (AGE, pa.array([3, 2000, None]), [3, 2000, np.nan]),
        (AGE, pa.array([float("inf")], pa.float32()), [np.inf]),
        (AGE, pa.nulls(2), [np.nan, np.nan]),
    ],
)
def test_from_arrow_reads_what_people_write(
    column: Column, values: pa.Array, coded: list[float]
) -> None:
    table = pa.table({column.name: values})
    np.testing.assert_array_equal(from_arrow(table, Schema((column,)))[column.name], coded)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (AGE, pa.array(["44"])),
        (AGE, pa.array([True])),
        (AGE, pa.array([[1.0]])),
        (AGE, pa.array([0], pa.timestamp("s"))),
        (WARD, pa.array([1])),
        (WARD, pa.array([b"a"])),
    ],
)
def test_from_arrow_refuses_types_that_do_not_fit(column: Column, values: pa.Array) -> None:
    table = pa.table({column.name: values})
    assert refused(from_arrow, table, Schema((column,))) == [column.name]


@pytest.mark.parametrize(
    "table",
    [
        pa.table({}),
        pa.table({"age": [1.0], "more": [1.0]}),
        pa.Table.from_arrays([pa.array([1.0])] * 2, names=["age", "age"]),
    ],
)
def test_from_arrow_refuses_other_columns(table: pa.Table) -> None:
    assert refused(from_arrow, table, Schema((AGE,)))


def test_errors_hold_no_values_of_rows() -> None:
    with pytest.raises(InvalidInput) as caught:
        from_arrow(pa.table({"age": ["secret"]}), Schema((AGE,)))
    assert "secret" not in str(caught.value)


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
