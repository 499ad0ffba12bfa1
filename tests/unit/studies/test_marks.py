"""The study of marks: its private tables differ in the effects alone, and it stays frozen."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from tests.studies import marks, marks_cells
from tests.studies.foreign_generators import FROZEN, TUNING
from tests.studies.marks import Found, find_ratio, list_rows, read_effects
from tests.studies.marks_cells import (
    CELLS,
    MARKS,
    NULLS,
    REQUESTED,
    Cell,
    Job,
    draw_world,
    list_jobs,
    list_requested,
    measure_marks,
    measure_slopes,
    name_effects,
    pose_study,
)

from penstock.inference.slopes import Mark
from penstock.mechanisms import Structured
from penstock.questions.estimation import estimate
from penstock.schema import check_coded

DIGESTS = {1: "5e37c9e38f1dba93"}
"""Of cells, effects and seeds, by version of the study."""

SMALL = Cell("t-modifiers", n=500)


def test_the_frozen_cells_are_those_of_their_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks_cells, "ONLY", ())
    told = [[asdict(cell) for cell in CELLS], dict(REQUESTED)]
    keys = [job.key for job in list_jobs(CELLS, NULLS)]
    sizes = [marks_cells.MOST_BLOCKS, marks_cells.KNOWN, marks_cells.PLANTED, marks_cells._STEP]
    digest = hashlib.sha256(json.dumps([told, keys, sizes]).encode()).hexdigest()[:16]
    assert digest == DIGESTS[marks_cells.VERSION]


def test_nothing_is_tuned_on_that_is_a_test() -> None:
    assert {cell.table for cell in CELLS} == set(FROZEN)
    assert {cell.table for cell in marks_cells.TUNED_ON} <= set(TUNING)
    assert set(NULLS) <= set(CELLS)


@pytest.mark.parametrize("cell", [*marks_cells.TUNED_ON, *CELLS], ids=str)
def test_a_cell_is_a_study(cell: Cell) -> None:
    """Its estimands and what is tried are all known to its dictionary."""
    world = draw_world(replace(cell, n=300), 1)
    study = pose_study(cell, world.table, Structured(1, 0, 12, list_requested(cell)))
    effects = name_effects(study)
    assert len(effects) >= 7
    assert sum(text not in list_requested(cell) for text in effects) >= 5
    assert ("time ~ titre" in effects) == (cell.tail > 0)
    check_coded(world.table.rows, world.table.schema)


def test_without_a_shift_the_table_is_the_generators() -> None:
    world = draw_world(SMALL, 2)
    again = world.shift(np.zeros(SMALL.n))
    assert all((again.rows[name] == world.table.rows[name]).all() for name in world.table.rows)
    # A second draw hears nothing of the first.
    assert (draw_world(SMALL, 2).happens == world.happens).all()


def test_a_shift_moves_one_effect_and_leaves_covariates_as_they_were() -> None:
    world = draw_world(replace(SMALL, n=4000), 3)
    study = pose_study(SMALL, world.table, Structured(1, 0, 0))
    coin = world.table.rows["coin"]
    moved = world.shift(0.5 * (coin - coin.mean()))
    changed = [n for n in moved.rows if (moved.rows[n] != world.table.rows[n]).any()]
    assert set(changed) == {"time", "event"}
    by = {}
    for asked in study.estimands:
        own, then = (estimate(t.rows, study.schema, asked) for t in (world.table, moved))
        by[asked.term] = (then.estimate - own.estimate) / math.sqrt(own.variance)
    # Times of constant hazard: as much on the scale of a log hazard, here of seven standard errors.
    assert 4 < by["coin"] < 9
    assert all(abs(z) < 1 for term, z in by.items() if "coin" not in term)


@pytest.mark.thorough
def test_a_block_tells_what_is_held_from_what_is_not() -> None:
    """A named interaction comes back, and one that nobody declares does not, by the table's own."""
    found = measure_slopes(Cell("t-modifiers", n=1500, epsilon=50.0), 1)

    def slope(text: str) -> float:
        return found[f"back/time ~ {text}"] / found[f"own/time ~ {text}"]

    assert abs(slope("carrier:drug") - 1) < 0.15
    assert abs(slope("age") - 1) < 0.15
    assert abs(slope("female:frail")) < 0.15
    assert all(value == 0 for key, value in found.items() if key.startswith("failed/"))


def test_marks_are_of_every_effect() -> None:
    answer = measure_marks(replace(SMALL, epsilon=50.0), 1)
    world = draw_world(SMALL, 1)
    study = pose_study(SMALL, world.table, Structured(1, 0, 12, list_requested(SMALL)))
    for text in name_effects(study):
        assert MARKS[int(answer[f"mark/{text}"])] in Mark
    assert MARKS[int(answer["mark/time ~ female:frail"])] is Mark.UNSUPPORTED


@pytest.mark.thorough
def test_a_tail_that_no_cell_has_is_marked() -> None:
    cell = replace(SMALL, epsilon=50.0, plain=True, tail=1.5)
    assert MARKS[int(measure_marks(cell, 1)["mark/time ~ titre"])] is Mark.UNSUPPORTED


def test_a_ratio_of_sums_has_the_spread_of_its_blocks() -> None:
    rng = np.random.default_rng(5)
    found = []
    for _ in range(400):
        own = rng.uniform(1, 2, 6)
        found.append(find_ratio(list(own), list(0.7 * own + 0.1 * rng.standard_normal(6))))
    slopes, errors = np.array(found).T
    assert slopes.mean() == pytest.approx(0.7, abs=0.01)
    assert np.sqrt((errors**2).mean()) == pytest.approx(slopes.std(), rel=0.15)


def made_up(slope: float, *seen: Mark, error: float = 0.02, declared: bool = True) -> Found:
    given = (3, slope, error, (slope,) * len(seen), seen)
    return Found(SMALL, "time ~ age", declared, *given)


def test_figures_are_of_effects_whose_slope_is_known() -> None:
    found = [
        made_up(0.1, Mark.UNSUPPORTED, Mark.UNSUPPORTED, Mark.HELD),
        made_up(0.2, Mark.UNSUPPORTED, Mark.UNSUPPORTED, Mark.UNSUPPORTED),
        made_up(0.1, Mark.HELD, Mark.HELD, Mark.HELD, error=0.3),
        made_up(1.0, Mark.HELD, Mark.UNRESOLVED, Mark.HELD),
        made_up(0.7, Mark.ATTENUATED, Mark.ATTENUATED, Mark.HELD),
    ]
    rows = {row.what: row for row in list_rows(found, [])}
    assert rows["declared effects whose slope is known to .1"].ours == 4
    lost = rows["declared: lost effects marked unsupported"]
    assert lost.ours == pytest.approx(5 / 6)
    assert lost.n_runs == 2
    assert lost.holds is True
    assert rows["declared: held effects marked unsupported"].ours == 0
    assert rows["declared: held effects, unresolved"].ours == pytest.approx(1 / 3)
    missed = [made_up(0.1, Mark.HELD), made_up(0.1, Mark.HELD)]
    rows = {row.what: row for row in list_rows(missed, [])}
    assert rows["declared: lost effects marked unsupported"].holds is False
    assert "tried: lost effects marked held" not in rows


def test_what_is_kept_is_read_by_effect() -> None:
    text = "time ~ age"
    kept = {
        Job("slopes", SMALL, seed).key: {f"own/{text}": 2.0, f"back/{text}": back}
        for seed, back in enumerate((1.0, 1.2, 1.4))
    }
    mark = {f"slope/{text}": 0.5, f"error/{text}": 0.1, f"mark/{text}": 0.0}
    kept[Job("marks", SMALL, 0).key] = mark
    [found] = read_effects([SMALL], kept)
    assert found.slope == pytest.approx(0.6)
    assert found.blocks == 3
    assert found.marks == (MARKS[0],)
    assert found.declared
    assert read_effects([replace(SMALL, n=501)], kept) == []


def test_intervals_of_no_effect_are_counted() -> None:
    one = {"declared/time ~ coin": 1.0, "declared/x": 0.0, "other/y": 0.0, "own/y": 0.0}
    rows = marks._null_rows([one | {"width/y": 1.5}, one | {"width/y": 1.7}])
    assert [row.ours for row in rows] == [0.5, 0.0, 0.0, 1.6]
    assert rows[0].holds is False
    assert rows[1].holds is True
