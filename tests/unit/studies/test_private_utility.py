"""The study of whole tables: its margins, and how a cell is judged."""

from __future__ import annotations

import numpy as np
import pytest
from tests.studies.private_utility import list_cell_rows
from tests.studies.private_utility_releases import Job, bin_schema
from tests.studies.private_utility_tables import (
    NAMES,
    compare_margins,
    count_cells,
    draw_table,
    list_margins,
    to_codes,
)

from penstock.schema import Column, Schema

SCHEMA = Schema(
    (
        Column("age", "integer", 0, 100, nullable=True),
        Column("sex", "binary"),
        Column("arm", "categorical", levels=("a", "b", "c")),
    )
)
ROWS = {
    "age": np.array([0.0, 100.0, 42.0, np.nan]),
    "sex": np.array([0.0, 1.0, 1.0, 0.0]),
    "arm": np.array([0.0, 1.0, 2.0, 2.0]),
}


def test_numbers_have_even_bins_and_what_is_missing_has_a_cell_of_its_own() -> None:
    assert count_cells(SCHEMA) == [21, 2, 3]
    assert to_codes(ROWS, SCHEMA)[:, 0].tolist() == [0, 19, 8, 20]
    assert [len(column.levels) for column in bin_schema(SCHEMA).columns] == [21, 2, 3]


def test_a_table_is_at_no_distance_from_itself_and_at_one_from_another_with_none_of_its_cells() -> (
    None
):
    codes, cells = to_codes(ROWS, SCHEMA), count_cells(SCHEMA)
    assert compare_margins(codes, codes[::-1], cells) == [0.0, 0.0, 0.0]
    assert compare_margins(codes * 0, codes * 0 + 1, cells) == [1.0, 1.0, 1.0]
    half = np.where(np.arange(4)[:, None] < 2, codes * 0, codes * 0 + 1)
    assert compare_margins(codes * 0, half, cells) == [0.5, 0.5, 0.5]


@pytest.mark.parametrize(("columns", "triples"), [(3, 1), (5, 10), (8, 56), (9, 60), (13, 60)])
def test_at_most_sixty_margins_have_three_columns(columns: int, triples: int) -> None:
    assert [len(margins) for margins in list_margins(columns)] == [
        columns,
        columns * (columns - 1) // 2,
        triples,
    ]


def test_a_draw_is_the_same_again() -> None:
    first, second, other = (draw_table("weibull", 50, number) for number in (0, 0, 1))
    assert all((first.rows[k] == second.rows[k]).all() for k in first.rows)
    assert any((first.rows[k] != other.rows[k]).any() for k in first.rows)


def test_a_cell_is_judged_by_its_best_peer_and_not_without_mst() -> None:
    means = {"structured": 0.105, "mst": 0.1, "copula": 0.2}
    jobs = [Job(arm, 1.0, 0, "rossi", 300) for arm in means]
    answers = {job.key: dict.fromkeys((*NAMES, "seconds"), means[job.arm]) for job in jobs}
    rows = {row.what: row for row in list_cell_rows(answers, jobs)}
    assert rows["share of cells where two-way is non-inferior"].ours == 1.0
    assert rows["mean rank in a cell, two-way"].ours == 2.0
    single = rows["rossi, n = 300, two-way, ε = 1 (peer: mst)"]
    assert (single.peer, single.holds) == (0.1, True)
    assert not list_cell_rows({k: v for k, v in answers.items() if "mst" not in k}, jobs)
