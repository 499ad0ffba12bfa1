"""Figures of who is in the tables, beside those of pandas."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from penstock.questions.persons import Courses, keep_first
from penstock.schema import Coded, Column, Schema
from penstock_server.analysis.baseline_figures import (
    POINTS,
    Figures,
    describe_baseline,
    find_followed,
    list_described,
    pool_described,
)

SCHEMA = Schema(
    (
        Column("years", "duration", upper=10.0, decimals=1, event="died"),
        Column("died", "event"),
        Column("sbp", "continuous", lower=80, upper=220, decimals=0, nullable=True),
        Column("visits", "integer", lower=0, upper=9),
        Column("ward", "categorical", levels=("a", "b", "c"), nullable=True),
    )
)


def table(seed: int, n: int, higher: float = 0.0) -> Coded:
    rng = np.random.default_rng(seed)
    sbp = np.round(rng.normal(130 + higher, 15, n))
    sbp[rng.random(n) < 0.2] = np.nan
    ward = rng.integers(0, 3, n).astype(float)
    ward[rng.random(n) < 0.1] = np.nan
    return {
        "years": np.round(rng.uniform(0, 10, n), 1),
        "died": (rng.random(n) < 0.3).astype(float),
        "sbp": sbp,
        "visits": rng.integers(0, 5, n).astype(float),
        "ward": ward,
    }


def check(found: Figures, values: pd.Series, *, quartiles: float = 0.0) -> None:
    """A number's figures are pandas'; its quartiles within a tolerance."""
    assert found.known == values.count()
    assert found.missing == pytest.approx(values.isna().mean())
    assert found.mean == pytest.approx(values.mean())
    assert found.sd == pytest.approx(values.std())
    near = pytest.approx(values.quantile([0.25, 0.5, 0.75]).tolist(), abs=quartiles or 1e-9)
    assert found.quartiles == near


def test_one_table_is_as_pandas_reads_it() -> None:
    given = table(1, 37)
    frame = pd.DataFrame(given)
    found = describe_baseline(SCHEMA, [given]).whole
    assert found.rows == 37
    assert list(found.columns) == ["years", "sbp", "visits", "ward"]
    check(found.columns["sbp"], frame["sbp"])
    check(found.columns["visits"], frame["visits"])
    ward = found.columns["ward"]
    shares = frame["ward"].value_counts(normalize=True).sort_index()
    assert ward.shares == pytest.approx(shares.tolist())
    assert ward.missing == pytest.approx(frame["ward"].isna().mean())
    years = found.columns["years"]
    assert years.events == frame["died"].sum()
    assert years.quartiles == pytest.approx(frame["years"].quantile([0.25, 0.5, 0.75]).tolist())
    assert years.mean is years.sd is years.shares is ward.mean is ward.quartiles is None


def test_a_figure_is_its_mean_over_copies() -> None:
    copies = [table(seed, 40 + seed) for seed in range(3)]
    found, alone = (describe_baseline(SCHEMA, of) for of in (copies, copies[:1]))
    apart = [describe_baseline(SCHEMA, [copy]).whole for copy in copies]
    assert found.whole.rows == np.mean([one.rows for one in apart])
    for name in ("sbp", "visits"):
        figures = [one.columns[name] for one in apart]
        assert found.whole.columns[name].mean == pytest.approx(np.mean([f.mean for f in figures]))
        assert found.whole.columns[name].sd == pytest.approx(np.mean([f.sd for f in figures]))
    shares = np.mean([one.columns["ward"].shares for one in apart], axis=0)
    assert found.whole.columns["ward"].shares == pytest.approx(shares)
    assert found.whole.columns["sbp"].mean != alone.whole.columns["sbp"].mean


def test_all_sites_are_as_their_tables_one_below_the_other() -> None:
    """Quartiles from points: within one part in :data:`POINTS` of the rows, of normal values half
    a standard deviation's tenth."""
    tables = [table(1, 500), table(2, 1500, 20), table(3, 90, -30)]
    sites = [describe_baseline(SCHEMA, [given]).whole for given in tables]
    whole = pd.concat([pd.DataFrame(given) for given in tables])
    found = pool_described(sites)
    assert found.rows == len(whole)
    check(found.columns["sbp"], whole["sbp"], quartiles=0.75)
    ordered = np.sort(whole["sbp"].dropna())
    for share, value in zip((0.25, 0.5, 0.75), found.columns["sbp"].quartiles or (), strict=True):
        # Values are whole numbers, of which some percent are the same one.
        below, above = (np.searchsorted(ordered, value + d) for d in (-1, 1))
        assert below / len(ordered) - 1 / POINTS <= share <= above / len(ordered) + 1 / POINTS
    shares = whole["ward"].value_counts(normalize=True).sort_index()
    assert found.columns["ward"].shares == pytest.approx(shares.tolist())
    assert found.columns["ward"].missing == pytest.approx(whole["ward"].isna().mean())
    assert found.columns["years"].events == whole["died"].sum()
    assert pool_described(sites[:1]) is sites[0]


def test_one_release_is_described_by_the_site_that_it_says() -> None:
    given = table(5, 200)
    place = np.arange(200) % 3
    column = Column("site", "categorical", levels=("n", "s", "w", "empty"))
    schema = Schema((*SCHEMA.columns, column))
    found = describe_baseline(schema, [{**given, "site": place.astype(float)}], by="site")
    assert "site" not in found.whole.columns
    assert list(found.groups) == ["n", "s", "w", "empty"]
    check(found.whole.columns["sbp"], pd.Series(given["sbp"]))
    for name, at in (("n", 0), ("s", 1), ("w", 2)):
        assert found.groups[name].rows == (place == at).sum()
        check(found.groups[name].columns["sbp"], pd.Series(given["sbp"][place == at]))
        # What only serves to pool is not kept of a hundred sites.
        assert found.groups[name].columns["sbp"].points is None
    assert found.groups["empty"].rows == 0
    assert found.groups["empty"].columns["sbp"] == Figures(0, None)


def test_each_person_of_several_visits_counts_once_at_their_first() -> None:
    given = table(7, 60)
    person = np.repeat(np.arange(20), 3)
    courses = Courses(person, np.tile(np.arange(3), 20), np.arange(3.0), lambda time: 0)
    found = describe_baseline(
        SCHEMA, [given], once=True, pick=lambda rows: keep_first(rows, courses)
    )
    assert found.once
    assert found.whole.rows == 20
    check(found.whole.columns["sbp"], pd.Series(given["sbp"][::3]))


def test_a_table_of_nothing_known_has_no_figures() -> None:
    """Whatever a hostile table holds: no error, and no NaN."""
    empty = {name: values[:0] for name, values in table(1, 3).items()}
    unknown = {name: np.full(4, np.nan) for name in SCHEMA.names}
    single = table(3, 1) | {"sbp": np.array([120.0])}
    assert describe_baseline(SCHEMA, [empty]).whole.columns["sbp"] == Figures(0, None)
    assert describe_baseline(SCHEMA, [unknown]).whole.columns["years"] == Figures(0, 1.0)
    alone = describe_baseline(SCHEMA, [single]).whole
    assert (alone.columns["sbp"].mean, alone.columns["sbp"].sd) == (120.0, None)
    both = [describe_baseline(SCHEMA, [one]).whole for one in (empty, unknown)]
    pooled = pool_described(both)
    assert pooled.columns["sbp"] == Figures(0, 1.0)
    assert pool_described([both[0], both[0]]).columns["ward"] == Figures(0, None)
    mixed = pool_described([*both, alone])
    assert (mixed.columns["sbp"].mean, mixed.columns["sbp"].sd) == (120.0, None)
    # A time without its event is not known.
    half = table(3, 10)
    half["died"][:4] = np.nan
    assert describe_baseline(SCHEMA, [half]).whole.columns["years"].known == 6


def test_an_event_stands_beside_its_duration() -> None:
    assert [c.name for c in list_described(SCHEMA)] == ["years", "sbp", "visits", "ward"]
    assert [c.name for c in list_described(SCHEMA, "ward")] == ["years", "sbp", "visits"]


def test_who_has_the_event_is_not_taken_to_have_been_followed_no_longer() -> None:
    """Half of these would have been followed to 6, but events cut it short."""
    time, event = np.array([1.0, 2, 3, 4, 5, 6, 7, 8]), np.array([1.0, 0, 1, 0, 1, 0, 1, 0])
    # Of 7, 5, 3 and 1 at risk at 2, 4, 6 and 8 one leaves without it each time.
    left = np.cumprod([6 / 7, 4 / 5, 2 / 3])
    assert left[1] > 0.5 > left[2]
    assert find_followed(time, event) == 6
    assert find_followed(np.append(time, np.nan), np.append(event, 1)) == 6
    assert find_followed(time, np.ones(8)) is None
    assert find_followed(np.array([np.nan]), np.array([0.0])) is None


def test_all_copies_together_say_how_long_a_site_followed() -> None:
    copies = [table(seed, 50) for seed in (1, 2)]
    together = {name: np.concatenate([one[name] for one in copies]) for name in SCHEMA.names}
    found = describe_baseline(SCHEMA, copies).whole.columns
    assert found["years"].followed == find_followed(together["years"], together["died"])
    assert found["sbp"].followed is None
    two = [describe_baseline(SCHEMA, [one]).whole for one in copies]
    assert pool_described(two).columns["years"].followed is None
