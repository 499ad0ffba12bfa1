"""The study of break-even: how a budget is split, and where two errors are the same."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from tests.studies import break_even, break_even_cells
from tests.studies.break_even import BEYOND, find_break_even, gather, list_rows
from tests.studies.break_even_cells import (
    COPIES,
    EPSILONS,
    FROZEN,
    REFITS,
    REFITTED,
    SHARED_BY,
    TUNED_ON,
    WAYS,
    Cell,
    Job,
    list_jobs,
    measure,
    read_asked,
    split_budget,
)
from tests.studies.coverage_cells import DECLARED, PRODUCTS, UNDECLARED
from tests.studies.foreign_real import read_table

from penstock.mechanisms import MECHANISMS, Gibbs, Scoring
from penstock.mechanisms.protocol import Asked
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.request import DELTA, PrivacyRequest

DIGESTS = {1: "34bbf0ee1185afcc", 2: "996786505507d9ea"}
"""Of tables, questions and what is measured, by version of the study."""


def test_cells_are_those_of_their_version() -> None:
    asked = {name: (DECLARED[name], PRODUCTS[name], UNDECLARED[name]) for name, _ in FROZEN}
    frozen = (FROZEN, EPSILONS, SHARED_BY, COPIES, REFITS, REFITTED, WAYS, asked)
    digest = hashlib.sha256(repr(frozen).encode()).hexdigest()
    assert digest[:16] == DIGESTS[break_even_cells.VERSION]
    assert not {name for name, _ in FROZEN} & {name for name, _ in TUNED_ON}


@pytest.mark.parametrize("total", EPSILONS)
def test_parts_of_a_budget_cost_together_what_the_whole_does(total: float) -> None:
    table = read_table("gbsg2")
    assert table is not None
    every = read_asked("gbsg2").every
    cases = [(Scoring(), "age"), (Scoring(), "survival(time, 913)"), (Gibbs(), "age")]
    for settings, name in cases:
        for shared_by in (1, 16, 1024):
            share = split_budget(total, 1 / shared_by)
            question = Asked(
                settings, table.suggested(), PrivacyRequest(share, DELTA), (every[name],)
            )
            events = MECHANISMS.of(settings).plan(question, table.n).events
            whole = epsilon(events * shared_by, DELTA)
            assert 0.99 * total < whole <= 1.0005 * total
    assert split_budget(total, 0.25) < total / 2


def test_errors_that_grow_as_the_root_break_even_where_they_should() -> None:
    asked = {q: 0.04 * q for q in SHARED_BY}
    assert find_break_even(asked, 0.04 * 11) == pytest.approx(11)
    assert find_break_even(asked, 0.04 * 64) == pytest.approx(64)
    assert find_break_even(asked, 0.01) == 1
    assert find_break_even(asked, 0.04 * 1025) == BEYOND
    assert find_break_even({q: 0.0 for q in SHARED_BY}, 0.01) == BEYOND


def test_an_error_that_falls_by_chance_is_made_monotone() -> None:
    asked = {1: 1.0, 2: 3.0, 4: 1.0, 8: 5.0}
    # 2 and 4 are taken together: 2 of both.
    assert find_break_even(asked, 2.0) == pytest.approx(2)
    assert find_break_even(asked, math.sqrt(10)) == pytest.approx(math.sqrt(32))


@pytest.mark.thorough
def test_all_ways_answer_and_a_table_is_one_release(monkeypatch) -> None:
    monkeypatch.setattr(break_even_cells, "SHARED_BY", (1, 16))
    monkeypatch.setattr(break_even_cells, "REFITS", 2)
    monkeypatch.setattr(break_even, "SHARED_BY", (1, 16))
    monkeypatch.setattr(break_even, "SHOWN", (1, 16))
    monkeypatch.setattr(break_even, "EPSILONS", (3.0,))
    cell = Cell("gbsg2", 300, 3.0)
    kept = {job.key: measure(job) for job in (Job(cell, way, 0) for way in WAYS)}
    assert measure(Job(cell, "gibbs", 0)) == kept[Job(cell, "gibbs", 0).key]
    assert list(gather(Cell("gbsg2", 300, 1.0), kept)) == []
    found = {one.name: one for one in gather(cell, kept)}
    assert found.keys() == read_asked("gbsg2").every.keys()
    assert len({one.kind for one in found.values()}) == 5
    assert "gibbs" in found["age"].asked
    assert "gibbs" not in found["survival(time, 913)"].asked
    for one in found.values():
        assert len(one.tables) == 1
        assert set(one.asked["scoring"]) == set(one.asked["together"]) == {1, 16}
        assert np.all(np.isfinite(one.asked["scoring"][16]))
    rows = list(list_rows(list(found.values())))
    assert all(row.ours is not None and math.isfinite(row.ours) for row in rows)
    assert len({row.what for row in rows}) == len(rows)


def test_the_first_seeds_of_all_come_first_and_tables_have_more(monkeypatch) -> None:
    monkeypatch.setattr(break_even_cells, "list_cells", lambda: [Cell("gbsg2", 0, 3.0)])
    jobs = list(list_jobs(2))
    assert [job.seed for job in jobs] == [0] * 4 + [1] * 4 + [2, 3, 4, 5]
    assert {job.way for job in jobs[8:]} == {"tables"}
