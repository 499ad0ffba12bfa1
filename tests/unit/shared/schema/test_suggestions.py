"""What is suggested of a column: from what is declared of it, and from nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.schema import Column, follow_suggestions, suggest_modelling

BOTH = {"scale": "log", "spike": 0}


@pytest.mark.parametrize(
    ("column", "keys"),
    [
        (Column("nodes", "integer", 0, 60), BOTH),
        (Column("admissions", "integer", 0, 50, label="Number of admissions"), BOTH),
        (Column("pgr", "integer", 0, 10_000, unit="fmol/l"), BOTH),
        (Column("crp", "continuous", 0, 500, 1, unit="mg/l"), BOTH),
        (Column("crp", "continuous", 0, 500, unit="mg/L"), {**BOTH, "decimals": 1}),
        (Column("kappa", "continuous", 0, 50, 2, label="Free light chain"), BOTH),
        (Column("alt", "integer", 5, 5000, unit="U/l"), {"scale": "log"}),
        (Column("creatinine", "continuous", 0.2, 20, unit="mg/dl"), {"scale": "log"}),
        (Column("wbc", "continuous", 0.1, 500, unit="10^9/l"), {"scale": "log"}),
        (Column("stay_cost", "continuous", 0, 1e6, 0, unit="EUR"), BOTH),
        (Column("cd4", "integer", 0, 2000, unit="cells/µl", spike=0), {"scale": "log"}),
    ],
    ids=lambda c: c.name if isinstance(c, Column) else "",
)
def test_counts_and_concentrations_could_do_with_a_log_scale(
    column: Column, keys: dict[str, object]
) -> None:
    found = suggest_modelling(column)
    assert found is not None
    assert (found.column, found.keys) == (column.name, keys)
    # What is suggested is valid, and says all there is to say.
    followed = follow_suggestions(column)
    assert followed.scale == "log"
    assert suggest_modelling(followed) is None
    assert 'scale = "log"' in str(found)


@pytest.mark.parametrize(
    "column",
    [
        Column("age", "integer", 0, 110),
        Column("age_months", "integer", 0, 240),
        Column("karnofsky", "integer", 0, 100),
        Column("pain", "integer", 0, 100, label="Visual analogue scale"),
        Column("adherence", "integer", 0, 100, unit="%"),
        Column("stay", "integer", 0, 90, unit="days"),
        Column("tumour", "integer", 0, 200, label="Tumour size", unit="mm"),
        Column("children", "integer", 0, 12),  # too narrow to bunch
        Column("sbp", "continuous", 60, 260, unit="mmHg"),
        Column("sodium", "continuous", 110, 180, unit="mmol/l"),  # hardly a magnitude
        Column("base_excess", "continuous", -30, 30, unit="mmol/l"),
        Column("bmi", "continuous", 10, 80, unit="kg/m2"),
        Column("nodes", "integer", 0, 60, scale="linear"),  # somebody decided
        Column("time", "duration", upper=10, event="died", unit="years"),
        Column("sex", "binary"),
    ],
    ids=lambda c: f"{c.name} {c.unit}",
)
def test_nothing_is_suggested_where_nothing_is_known(column: Column) -> None:
    assert suggest_modelling(column) is None
    assert follow_suggestions(column) is column


def test_local_keys_and_missing_codes_change_nothing() -> None:
    column = Column("nodes", "integer", 0, 60)
    same = replace(column, missing=("-9",), nullable=True)
    found, again = suggest_modelling(column), suggest_modelling(same)
    assert found is not None
    assert again == found
