"""The study of coverage: what it keeps of a site, and how it judges federations."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from tests.studies import coverage, coverage_cells
from tests.studies.coverage_cells import (
    BANK,
    DECLARED,
    PRODUCTS,
    UNDECLARED,
    WORLDS,
    Job,
    World,
    find_truth,
    list_jobs,
    measure_site,
    pose_questions,
    read_site,
    read_world,
)
from tests.studies.foreign_generators import FROZEN

DIGESTS = {1: "acaa3200bb8f59b8"}
"""Of worlds and questions, by version of the study."""

WORLD = World("thresholds", 400, 3.0)


@pytest.fixture(autouse=True, scope="module")
def small():
    """Of a population that is quickly drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coverage_cells, "PERSONS", 6000)
        read_world.cache_clear()
        yield
        read_world.cache_clear()


def test_worlds_and_questions_are_those_of_their_version() -> None:
    digest = hashlib.sha256(repr((WORLDS, DECLARED, PRODUCTS, UNDECLARED)).encode())
    assert digest.hexdigest()[:16] == DIGESTS[coverage_cells.VERSION]


@pytest.mark.parametrize("world", [w for w in WORLDS if w.table in FROZEN], ids=str)
def test_every_question_can_be_asked_and_has_a_truth(world: World) -> None:
    table = read_world(world.table)
    assert table is not None
    asked = pose_questions(world, table)
    assert len({e.model for e in asked.every.values()}) >= 5
    assert sum(":" in name for name in asked.declared) >= 1
    truth = find_truth(replace(world, unlike=0.0))
    assert all(math.isfinite(truth[name]) for name in asked.every)
    assert {truth[name] for name in asked.nothing} == {0.0}


def test_unlike_sites_have_a_truth_that_is_the_mean_of_their_kinds(monkeypatch) -> None:
    monkeypatch.setattr(coverage_cells, "UNLIKENESS", 5)
    truth = find_truth(replace(WORLD, unlike=0.5))
    kinds = [truth[f"mean(glucose)/{kind}"] for kind in range(5)]
    assert truth["mean(glucose)"] == pytest.approx(np.mean(kinds))
    ages = [
        coverage_cells.draw_site(read_world("thresholds"), 4000, a, np.random.default_rng(1))
        .rows["age"]
        .mean()
        for a in (-0.5, 0.0, 0.5)
    ]
    assert ages == sorted(ages)
    assert ages[2] - ages[0] > 10


@pytest.mark.thorough
def test_a_site_is_kept_as_numbers_and_judged_with_others() -> None:
    table = read_world(WORLD.table)
    assert table is not None
    asked, truth = pose_questions(WORLD, table), find_truth(WORLD)
    kept = {Job(WORLD, number).key: measure_site(WORLD, number) for number in range(2)}
    again = measure_site(WORLD, 1)
    assert again == kept[Job(WORLD, 1).key]
    assert all(isinstance(value, float) for value in again.values())
    one = read_site(again, list(asked.every))
    assert {"age", "coin", "survival(time, 730)", "median(pulse)"} <= set(one.measured)
    assert {"age", "statin"} <= set(one.slopes)
    assert all(m.plain.problem is None and m.shown is not None for m in one.measured.values())
    sites = {
        str(number): read_site(kept[Job(WORLD, number).key], list(asked.every))
        for number in range(2)
    }
    found = {each.question: each for each in coverage.judge(WORLD, asked, sites, truth)}
    assert found["coin"].nothing
    assert found["coin"].declared
    assert not found["time ~ luck"].declared
    assert not found["time ~ age:male"].answers
    assert found["mean(glucose)"].width > 0.9
    far = {name: value + 1e6 for name, value in truth.items()}
    missed = list(coverage.judge(WORLD, asked, sites, far))
    assert not any(each.holds or each.real or each.imputed or each.naive for each in missed)
    assert not any(each.alike for each in missed)


def test_cells_far_below_are_named_and_others_not() -> None:
    cells = {
        (WORLD, 4, "good"): [True] * 95 + [False] * 5,
        (WORLD, 4, "bad"): [True] * 80 + [False] * 20,
        (WORLD, 8, "few"): [True, False, False],
    }
    assert coverage._list_below(cells) == [(WORLD, 4, "bad"), (WORLD, 8, "few")]


def test_the_first_draw_of_all_worlds_comes_first(monkeypatch) -> None:
    monkeypatch.setattr(coverage_cells, "read_world", lambda name: name in FROZEN or None)
    jobs = list(list_jobs(2))
    worlds = [world for world in WORLDS if world.table in FROZEN]
    assert jobs[: len(worlds)] == [Job(world, -1) for world in worlds]
    first = jobs[len(worlds) : len(worlds) + BANK * len(worlds)]
    assert {job.number for job in first} == set(range(BANK))


def test_sites_are_dealt_in_another_order_among_those_of_one_size() -> None:
    first, again = (coverage.deal_sites(WORLD, 48, deal) for deal in (0, 1))
    assert first == list(range(48))
    assert sorted(again) == first != again
    assert [number % 3 for number in again] == [number % 3 for number in first]
    assert again == coverage.deal_sites(WORLD, 48, 1)


def test_standard_errors_are_of_chance_however_often_sites_are_dealt() -> None:
    """Of intervals that hold where the mean of k sites is near: over banks of sites, the share over
    all deals differs by as much as its standard error says, and less than that of one deal."""
    rng, template = np.random.default_rng(3), _find(0, 0, True)

    def judge_bank(sites: np.ndarray, deals: int) -> tuple[float, float]:
        found = []
        for deal in range(deals):
            order = coverage.deal_sites(WORLD, len(sites), deal)
            for first in range(0, len(sites), 8):
                near = abs(sites[order[first : first + 8]].mean()) < 0.45
                found.append(replace(template, holds=bool(near), deal=deal, block=first // BANK))
        share, chance = coverage._over_cells(found)
        return share, chance

    one, many = np.array(
        [[judge_bank(bank, deals) for bank in rng.normal(size=(150, 96))] for deals in (1, 12)]
    )
    for shares, chances in (one.T, many.T):
        assert np.std(shares) == pytest.approx(np.sqrt(np.mean(chances**2)), rel=0.25)
    assert np.std(many[:, 0]) < 0.7 * np.std(one[:, 0])


def test_of_one_block_no_standard_error_is_known() -> None:
    found = [_find(deal, 0, deal > 1) for deal in range(4)]
    assert math.isnan(coverage._over_cells(found)[1])


def _find(deal: int, block: int, holds: bool) -> coverage.Found:
    flags, numbers = (holds,) * 5, (1.0, 1.0, 1.0, 0.0, math.nan, math.nan)
    head = (WORLD, 8, "age", True, True, False, None)
    return coverage.Found(*head, *flags, *numbers, deal, block)


def test_of_sites_whose_truths_are_known_skewed_ones_are_held_too_seldom() -> None:
    """Student's t is exact of normal truths, of lognormal ones it holds less."""
    even = norm.ppf((np.arange(401) + 0.5) / 401)
    assert coverage.hold_known(tuple(even), 4) == pytest.approx(0.95, abs=0.005)
    few, many = (coverage.hold_known(tuple(np.exp(1.2 * even)), k) for k in (4, 100))
    assert few < 0.86 < many
    assert coverage.hold_known((0.3,) * 5, 4) == 1
    assert math.isnan(coverage.hold_known((0.3,), 1))
    found = [replace(_find(0, 0, True), real_i2=0.9, known=0.9)]
    rows = {row.what: row for row in coverage.list_rows(found, (WORLD,))}
    label = f"holds, declared, mean over cells, {coverage.APART}, if sites' effects were known"
    assert rows[label].ours == 0.9


def test_cells_are_unlike_by_what_half_of_real_federations_show() -> None:
    found = [
        replace(_find(0, 0, True), question=question, declared=True, real_i2=i2)
        for question, shown in {"apart": (0.2, 0.6, 0.9), "alike": (0.0, 0.1, 0.8)}.items()
        for i2 in shown
    ]
    rows = {row.what: row for row in coverage.list_rows(found, (WORLD,))}
    assert rows[f"holds, declared, mean over cells, {coverage.APART}"].n_runs == 3
    assert rows["holds, declared, mean over cells, all worlds"].n_runs == 6


def test_real_rows_are_told_over_cells_as_ours_are() -> None:
    many = [replace(_find(0, 0, True), question="many", real=False)] * 3
    found = [*many, replace(_find(0, 0, True), question="one", real=True)]
    rows = {row.what: row for row in coverage.list_rows(found, (WORLD,))}
    assert rows["holds, declared, mean over cells, all worlds"].peer == 0.5
