"""Levels without an order: counted as levels, at the price of one column, and as frequent in tables
as they were counted. A model that leaves them to the nearest point is seen.

Seeds are fixed: no alarm is by chance.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.statistical.test_margins import before_noise, distance
from tests.support.measured import noisy_histograms

from penstock.base.errors import InvalidInput
from penstock.mechanisms import Maf, SlicedWasserstein
from penstock.mechanisms.plans import plan
from penstock.mechanisms.tables import run as tables
from penstock.mechanisms.tables.level_shares import draw_shares, fit_levels, spread_levels
from penstock.mechanisms.tables.margins import BINS, Margins, measure_histograms, release_histograms
from penstock.privacy import sensitivity
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Coded, Column, Schema
from penstock.schema.encoding import Encoding

LEVELS = tuple("abcdefghij")
SCHEMA = Schema(
    (
        Column("age", "continuous", 20, 90, decimals=0),
        Column("code", "categorical", levels=LEVELS),
        Column("ward", "categorical", levels=("n", "s", "w"), nullable=True),
    )
)
SHARES = np.array([0.3, 0.2, 0.15, 0.1, 0.08, 0.07, 0.05, 0.03, 0.015, 0.005])
N, QUIET = 4000, SeededNoise(0)


def patients() -> Coded:
    rng = np.random.default_rng(0)
    code = rng.choice(len(LEVELS), N, p=SHARES).astype(float)
    age = rng.normal(45 + 3 * code, 8).clip(20, 90).round()
    ward = np.where(rng.random(N) < 0.2, np.nan, rng.choice(3, N, p=(0.7, 0.2, 0.1)))
    return {"age": age, "code": code, "ward": ward}


def encoded() -> tuple[Encoding, np.ndarray, np.ndarray]:
    encoding = Encoding(SCHEMA)
    x, present = encoding.encode(patients(), np.random.default_rng(1))
    return encoding, x[:, None], present[:, None]


def test_levels_are_counted_as_they_are_and_the_missing_apart() -> None:
    encoding, x, present = encoded()
    given = (encoding.low, encoding.high, None, QUIET, (), encoding.levels, encoding.simplices)
    counts = noisy_histograms(x, present, *given)
    table = patients()
    wanted = [*np.bincount(table["code"].astype(int), minlength=len(LEVELS)), 0]
    np.testing.assert_array_equal(counts.levels[0], wanted)
    ward = table["ward"]
    known = np.bincount(ward[~np.isnan(ward)].astype(int), minlength=3)
    np.testing.assert_array_equal(counts.levels[1], [*known, np.isnan(ward).sum()])
    assert counts.rows == pytest.approx(N)


def test_the_coordinates_margins_follow_from_the_levels() -> None:
    """As they are counted bin by bin, but for the drawing of the noise about points."""
    encoding, x, present = encoded()
    given = (encoding.low, encoding.high, None, QUIET, (), encoding.levels)
    told = noisy_histograms(x, present, *given, encoding.simplices)
    maps = Margins(told, encoding.low, encoding.high, (), encoding.levels, encoding.simplices)
    for column, counts in zip(encoding.simplices, told.levels, strict=True):
        edges = np.linspace(encoding.low[column.where], encoding.high[column.where], BINS + 1).T
        risen = spread_levels(column, counts, edges)
        for j, own, ends in zip(
            range(column.where.start, column.where.stop), risen, edges, strict=True
        ):
            seen = np.searchsorted(np.sort(x[:, 0, j]), ends) / N
            np.testing.assert_allclose(own, seen, atol=0.03)
            np.testing.assert_allclose(maps.whole[j], own, atol=1e-3)


def test_a_row_counts_once_for_all_coordinates_of_its_level() -> None:
    """The sensitivity is what is charged: attained by rows that are all in one cell of a column."""
    encoding, x, present = encoded()
    spared = sum(len(s.points) - 2 for s in encoding.simplices)
    d, gone = encoding.d, present.copy()
    gone[0] = False
    null = np.where(gone[..., None], x, 0.0)
    given = (encoding.low, encoding.high, 1.0, QUIET, (), encoding.levels, encoding.simplices)
    with before_noise() as seen:
        noisy_histograms(x, present, *given)
        noisy_histograms(null, gone, *given)
    # Three columns, who has a ward, and the number of rows.
    assert distance(*seen) == d + 1 - spared == 5
    charged = measure_histograms(1.0, d, 1, spared=spared)
    assert charged.sensitivity == sensitivity.histogram(5, 1)
    assert len(seen[0][0]) <= charged.size
    # Levels that are counted coordinate by coordinate are more than was charged.
    with pytest.raises(InvalidInput, match="more histograms than were charged"):
        release_histograms(x, present, encoding.low, encoding.high, charged, QUIET)
    # Whatever a row holds, it is in one cell of a column.
    wild = np.random.default_rng(2).normal(0, 1e6, (50, 1, d))
    wild[0] = np.nan
    with before_noise() as seen:
        noisy_histograms(wild, np.ones((50, 1), dtype=bool), *given)
    assert sum(seen[0][0]) == 50 * 5


@pytest.mark.parametrize(
    "settings", [Maf(copies=1, refits=0, steps=20), SlicedWasserstein(copies=1, refits=0, steps=20)]
)
def test_tables_have_levels_as_often_as_they_were_counted(
    settings: Maf | SlicedWasserstein,
) -> None:
    """As far as a table of 4,000 rows can, .02, and the noise."""
    encoding, x, present = encoded()
    planned = plan(settings, SCHEMA, N, PrivacyRequest(2.0, 1e-5))
    counted = planned.measurements[0]
    assert counted.event.sensitivity == sensitivity.histogram(5, 1)
    [drawn] = tables.run(planned, encoding, x, present, SeededNoise(3)).copies
    assert measure_distance(encoding.simplices[0].find_levels(drawn), SHARES) < 0.05
    ward = encoding.simplices[1].find_levels(drawn)
    assert np.mean(ward == 3) == pytest.approx(0.2, abs=0.05)
    assert measure_distance(ward[ward < 3], np.array([0.7, 0.2, 0.1])) < 0.06


def measure_distance(levels: np.ndarray, shares: np.ndarray) -> float:
    """Total variation."""
    found = np.bincount(levels, minlength=len(shares)) / len(levels)
    return float(np.abs(found - shares).sum() / 2)


def test_rows_between_points_have_the_shares_that_were_counted() -> None:
    """Of a model that knows of no level; the nearest point has them all alike."""
    [code, _] = Encoding(SCHEMA).simplices
    rng = np.random.default_rng(5)
    drawn, further = (rng.normal(0, 0.3, (4096, Encoding(SCHEMA).d)) for _ in range(2))
    shares = fit_levels(code, drawn, 4000 * SHARES, 0.0)
    assert measure_distance(code.find_levels(further), SHARES) > 0.3  # the twin
    shares.settle(further)
    assert measure_distance(code.find_levels(further), SHARES) < 0.03


def test_rows_without_a_level_are_no_part_of_it() -> None:
    """Half of the rows have none, and their coordinates lie about the centre: the others' shares
    are as counted. All of them without one are left as they are."""
    encoding, rng = Encoding(SCHEMA), np.random.default_rng(6)
    ward, shares = encoding.simplices[1], np.array([0.7, 0.2, 0.1])
    drawn = rng.normal(0, 0.2, (8192, encoding.d))
    missing = np.arange(8192) % 2 == 0
    assert ward.present is not None
    drawn[:, ward.present] = np.where(missing, -1.0, 1.0)
    fit_levels(ward, drawn[:4096], 2000 * shares, 0.0).settle(drawn)
    assert measure_distance(ward.find_levels(drawn)[~missing], shares) < 0.03
    nobody = fit_levels(ward, drawn[missing], 2000 * shares, 0.0)
    np.testing.assert_array_equal(nobody.added, np.zeros(3))


def test_shares_that_are_mostly_noise_are_the_models_own() -> None:
    own = np.array([0.5, 0.3, 0.2])
    exact = draw_shares(np.array([600.0, 300.0, 100.0]), 0.0, own)
    np.testing.assert_allclose(exact, [0.6, 0.3, 0.1])
    np.testing.assert_allclose(draw_shares(np.array([600.0, 300.0, 100.0]), 1e4, own), own)
    between = draw_shares(np.array([600.0, 300.0, 100.0]), 50.0, own)
    assert own[0] < between[0] < exact[0]
    # Counts below none, and no row at all.
    assert draw_shares(np.array([-5.0, -1.0, -2.0]), 3.0, own).sum() == pytest.approx(1.0)


def test_settling_moves_rows_of_other_levels_and_no_others() -> None:
    encoding, x, _ = encoded()
    [code, _] = encoding.simplices
    rows = x[:, 0].copy()
    before = code.find_levels(rows)
    wanted = np.full(len(LEVELS), N / len(LEVELS))
    shares = fit_levels(code, rows[:1000] * 0.3, wanted, 0.0)
    shares.settle(rows)
    after = code.find_levels(rows)
    same = after == before
    np.testing.assert_array_equal(rows[same], x[same, 0])
    others = np.setdiff1d(np.arange(encoding.d), np.arange(code.where.start, code.where.stop))
    np.testing.assert_array_equal(rows[:, others], x[:, 0, others])
    quiet = replace(shares, added=np.zeros(len(LEVELS)))
    untouched = x[:, 0].copy()
    quiet.settle(untouched)
    np.testing.assert_array_equal(untouched, x[:, 0])
