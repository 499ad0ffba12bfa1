"""Mantel and Haenszel's estimates and Peto's against R's metafor 3.8, and their own laws.

Data and their script: tests/golden/data/stratified_multivariate.R. Tolerance 1e-10 relative
(absolute below 1): all of it is in closed form, and the largest deviation seen is 5e-15.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.base.errors import InvalidInput
from penstock.inference.fourfold import (
    MEASURES,
    MOST,
    Stratified,
    Weighed,
    pool_mantel_haenszel,
    pool_peto,
)

ORACLE: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "stratified_multivariate.json").read_text(encoding="utf-8")
)["tables"]
NAMED: dict[str, Weighed] = {"OR": "odds-ratio", "RR": "risk-ratio", "RD": "risk-difference"}
ALL = (*MEASURES, "peto")


def near(value: Any, within: float = 1e-10) -> Any:
    return pytest.approx(value, rel=within, abs=within)


def pool(measure: str, cells: Any, **options: Any) -> Stratified | None:
    if measure == "peto":
        return pool_peto(*cells, **options)
    return pool_mantel_haenszel(*cells, measure=measure, **options)  # type: ignore[arg-type]


def cells_of(block: str) -> list[np.ndarray]:
    return [np.atleast_1d(ORACLE[block][name]).astype(float) for name in "abcd"]


@pytest.mark.parametrize("block", ORACLE)
@pytest.mark.parametrize("name", [*NAMED, "PETO"])
def test_pooled_tables_agree_with_metafor(block: str, name: str) -> None:
    gold, got = ORACLE[block][name], pool(NAMED.get(name, "peto"), cells_of(block))
    assert got is not None
    assert [got.estimate, got.se, got.p_value, got.ci_low, got.ci_high] == near(
        [gold[key] for key in ("estimate", "se", "p", "low", "high")]
    )
    assert [got.q, got.q_p] == near([gold["q"], gold["q_p"]])
    assert got.q_df == gold["q_df"]
    assert [100 * w for w in got.weights] == near(np.atleast_1d(gold["weights"]).tolist())
    assert got.se_noise == 0


def test_one_table_has_the_estimates_of_a_textbook() -> None:
    a, b, c, d = cells_of("alone")
    odds, risks, difference = (pool(measure, (a, b, c, d)) for measure in MEASURES)
    assert odds is not None
    assert risks is not None
    assert difference is not None
    assert odds.estimate == near(math.log(12 * 95 / (88 * 5)))
    assert odds.se == near(math.sqrt(1 / 12 + 1 / 88 + 1 / 5 + 1 / 95))
    assert risks.estimate == near(math.log(12 / 5))
    assert risks.se == near(math.sqrt(1 / 12 - 1 / 100 + 1 / 5 - 1 / 100))
    assert difference.estimate == near(0.07)
    assert (odds.q, odds.q_df, odds.q_p) == (0, 0, 1)


@pytest.mark.parametrize("measure", ALL)
@pytest.mark.parametrize("block", ["bcg", "zeros", "noisy"])
def test_groups_and_outcomes_can_be_swapped(measure: str, block: str) -> None:
    a, b, c, d = cells_of(block)
    one, groups = pool(measure, (a, b, c, d)), pool(measure, (c, d, a, b))
    assert one is not None
    assert groups is not None
    assert [groups.estimate, groups.se, groups.q] == near([-one.estimate, one.se, one.q])
    if measure == "risk-ratio":
        return
    other = pool(measure, (b, a, d, c))
    assert other is not None
    assert [other.estimate, other.se, other.q] == near([-one.estimate, one.se, one.q])


@pytest.mark.parametrize("measure", ALL)
def test_a_site_that_compares_nothing_is_left_out(measure: str) -> None:
    cells = cells_of("zeros")
    silent = ([0, 0, 5], [0, 0, 9], [3, 0, 0], [8, 0, 0])
    more = [np.append(cell, extra) for cell, extra in zip(cells, silent, strict=True)]
    assert pool(measure, more) == pool(measure, cells)


@pytest.mark.parametrize("measure", ALL)
@pytest.mark.parametrize("block", ["bcg", "zeros", "noisy"])
def test_noise_is_carried_by_the_gradient(measure: str, block: str) -> None:
    """g by differences of the estimate itself."""
    cells = np.stack(cells_of(block))
    # A cell of 0 cannot be moved down.
    cells = np.where(cells == 0, 0.7, cells)
    rng = np.random.default_rng(3)
    roots = rng.normal(size=(cells.shape[1], 4, 4))
    noise = roots @ np.swapaxes(roots, 1, 2)
    plain, wide = pool(measure, cells), pool(measure, cells, noise=noise)
    assert plain is not None
    assert wide is not None
    step, added = 1e-5, 0.0
    for site, covariance in enumerate(noise):
        slope = np.zeros(4)
        for cell in range(4):
            ends = []
            for sign in (-1, 1):
                moved = cells.copy()
                moved[cell, site] += sign * step
                end = pool(measure, moved)
                assert end is not None
                ends.append(end.estimate)
            slope[cell] = (ends[1] - ends[0]) / (2 * step)
        added += float(slope @ covariance @ slope)
    assert wide.estimate == plain.estimate
    assert wide.se**2 == near(plain.se**2 + added, 1e-6)
    assert wide.se_noise**2 == near(added, 1e-6)
    assert wide.q < plain.q


@pytest.mark.parametrize("measure", MEASURES)
def test_intervals_of_noisy_counts_hold_the_truth_only_with_the_noise(measure: Weighed) -> None:
    """Five sites of 200 and 300 persons, noise of sd 8 on each count, 1 500 draws: with the noise
    .95 of intervals hold the truth within five standard errors of a share (false alarm: 6e-7),
    without it fewer than .9."""
    rng, runs, k = np.random.default_rng(8), 1500, 5
    base = np.linspace(0.25, 0.4, k)
    exposed = {
        "odds-ratio": 1 / (1 + (1 - base) / base / 1.5),
        "risk-ratio": base * 1.5,
        "risk-difference": base + 0.1,
    }[measure]
    truth = 0.1 if measure == "risk-difference" else math.log(1.5)
    a, c = rng.binomial(200, exposed, (runs, k)), rng.binomial(300, base, (runs, k))
    counts = np.stack([a, 200 - a, c, 300 - c], axis=1) + rng.normal(0, 8, (runs, 4, k))
    noise, held = np.tile(64 * np.eye(4), (k, 1, 1)), np.zeros(2)
    for table in counts:
        for at, given in enumerate((noise, None)):
            found = pool_mantel_haenszel(*np.maximum(table, 0), measure=measure, noise=given)
            assert found is not None
            held[at] += found.ci_low <= truth <= found.ci_high
    assert held[0] / runs == pytest.approx(0.95, abs=5 * math.sqrt(0.95 * 0.05 / runs))
    assert held[1] / runs < 0.9


@pytest.mark.parametrize(
    ("measure", "cells"),
    [
        ("odds-ratio", ([0, 0], [9, 8], [2, 3], [7, 6])),
        ("odds-ratio", ([2, 3], [7, 6], [4, 3], [0, 0])),
        ("risk-ratio", ([0, 0], [9, 8], [2, 3], [7, 6])),
        ("risk-ratio", ([9, 8], [0, 0], [2, 3], [0, 0])),
        ("risk-difference", ([0, 0], [9, 8], [0, 0], [7, 6])),
        ("peto", ([0, 0], [9, 8], [0, 0], [7, 6])),
        ("peto", ([0.2], [0.2], [0.2], [0.2])),
        *((measure, ([3, 4], [9, 8], [0, 0], [0, 0])) for measure in ALL),
        *((measure, ([0], [0], [0], [0])) for measure in ALL),
    ],
)
def test_nothing_is_told_where_there_is_no_estimate(measure: str, cells: Any) -> None:
    assert pool(measure, cells) is None


@pytest.mark.parametrize("measure", ALL)
def test_nothing_is_not_a_number(measure: str) -> None:
    """Whatever margins are 0, of one site and of others beside it."""
    for pattern in range(16):
        cells = np.array([[(pattern >> cell & 1) * 7.5, 4.0 + cell] for cell in range(4)])
        found = pool(measure, cells)
        assert found is not None
        numbers = (found.estimate, found.se, found.p_value, found.q, found.q_p, *found.weights)
        assert all(map(math.isfinite, numbers))
        alone = pool(measure, cells[:, :1])
        assert alone is None or math.isfinite(alone.estimate + alone.se + alone.q)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"a": [-1.0, 2]}, "exposed_events"),
        ({"b": [math.nan, 2]}, "exposed_rest"),
        ({"c": [math.inf, 2]}, "other_events"),
        ({"d": [2 * MOST, 2]}, "other_rest"),
        ({"d": [1.0]}, "exposed_events, exposed_rest, other_events, other_rest"),
        ({name: [] for name in "abcd"}, "exposed_events, exposed_rest, other_events, other_rest"),
        ({"noise": np.zeros((2, 4))}, "noise"),
        ({"noise": np.full((2, 4, 4), math.nan)}, "noise"),
        ({"noise": np.tile(-np.eye(4), (2, 1, 1))}, "noise"),
        ({"level": 1.0}, "level"),
        ({"level": math.nan}, "level"),
    ],
)
@pytest.mark.parametrize("measure", ALL)
def test_bad_tables_are_refused(measure: str, change: dict[str, Any], where: str) -> None:
    given: dict[str, Any] = {"a": [3.0, 4], "b": [9.0, 8], "c": [2.0, 3], "d": [7.0, 6]} | change
    cells = [given.pop(name) for name in "abcd"]
    with pytest.raises(InvalidInput) as caught:
        pool(measure, cells, **given)
    assert where in [problem.where for problem in caught.value.problems]


def test_an_unknown_measure_is_refused() -> None:
    with pytest.raises(InvalidInput, match="measure"):
        pool("hazard-ratio", cells_of("bcg"))
