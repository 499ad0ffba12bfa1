"""How follow-up ends: on which clock, what is counted of it, and what is drawn from the counts."""

from __future__ import annotations

from typing import Any

import lifelines
import numpy as np
import pytest

from penstock.mechanisms import Trajectory
from penstock.mechanisms.protocol import Asked, settings_to_dict
from penstock.mechanisms.registry import MECHANISMS
from penstock.mechanisms.trajectory.draft import draft_settings
from penstock.mechanisms.trajectory.endings import Endings
from penstock.mechanisms.trajectory.follow_up import FollowUp, follow_up_of
from penstock.mechanisms.trajectory.followed import Followed
from penstock.mechanisms.trajectory.time_points import times_of
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Column, Schema

DAY = Column("day", "continuous", lower=0, upper=100, decimals=0, unit="d")
X = Column("x", "continuous", lower=0, upper=1)
END = Column("days", "duration", upper=120, decimals=1, event="died", unit="d", varies=False)
DIED = Column("died", "event", varies=False)
WAVE = Column("wave", "ordered", levels=("first", "second", "third"))
HOW = Trajectory("day", points=5, end="days")


def schema(time: Column = DAY, end: Column = END, died: Column = DIED, rows: int = 5) -> Schema:
    return Schema((time, X, end, died), "id", rows)


def read(how: Trajectory = HOW, of: Schema | None = None) -> FollowUp:
    found = follow_up_of(how, of or schema(), 8)
    assert found is not None
    return found


def test_a_time_point_is_reached_where_one_of_its_values_is() -> None:
    made, times = read(), times_of(HOW, schema())
    starts = np.array(made.starts)
    assert (times.bins(starts) == np.arange(5)).all()
    assert (times.bins(starts[1:] - 1) == np.arange(4)).all()
    ends = np.array([0.0, starts[1] - 0.1, starts[1], starts[4] + 3, 120.0])
    assert made.last_point(ends).tolist() == [0, 0, 1, 4, 4]


def test_visits_after_the_end_are_not_there() -> None:
    there = np.ones((3, 5), dtype=np.bool_)
    once = {"days": np.array([0.0, 45.0, 120.0]), "died": np.array([1.0, 0.0, 0.0])}
    found = read().cut(Followed(there, {}, once))
    assert found.there.sum(axis=1).tolist() == [1, 3, 5]


def test_times_within_a_bin_do_not_come_after_the_end() -> None:
    """Neither do they where the last bin has begun by a tenth of a day."""
    made, times = read(), times_of(HOW, schema())
    ends = np.repeat(np.linspace(0, 100, 401), 5)
    last = made.last_point(ends)
    found = times.within(last, np.random.default_rng(0), ends)
    assert (found <= ends).all()
    assert (times.bins(found) == last).all()
    early = times.within(
        np.zeros(2000, dtype=np.int64), np.random.default_rng(1), np.full(2000, 9.0)
    )
    assert set(early) == set(range(10))


def test_another_clock_is_read_from_the_visits_times() -> None:
    how = Trajectory("wave", end="days", visit_times=(0, 30, 90))
    made, times = read(how, schema(WAVE)), times_of(how, schema(WAVE))
    assert made.last_point(np.array([29.9, 30, 100])).tolist() == [0, 1, 2]
    assert made.clock(times, np.array([0, 0.25, 0.5, 1])).tolist() == [0, 15, 30, 90]
    assert read().clock(times_of(HOW, schema()), np.array([0.0])).tolist() == [10]


def cohort(n: int = 4000) -> Followed:
    rng = np.random.default_rng(0)
    died, left = rng.exponential(90, n), rng.uniform(20, 160, n)
    time = np.round(np.minimum(np.minimum(died, left), 120), 1)
    event = (died <= left) & (died < 120)
    last = np.minimum(rng.integers(0, 6, n), read().last_point(time))
    there = np.arange(5) <= last[:, None]
    return Followed(there, {}, {"days": time, "died": event * 1.0})


def endings(found: Followed) -> Endings:
    made, n = read(), len(found.there)
    ends, lasts = (each / 2.0 for each in made.count(found))
    spans = np.zeros(15)
    last = found.there.sum(axis=1) - 1
    np.add.at(spans, last * (last + 1) // 2, 1)
    return Endings.read(made, ends, lasts, spans, float(n), 1e-3)


def test_persons_are_drawn_as_they_were_counted() -> None:
    """Shares of the event, of the end, and of each last visit; and Kaplan and Meier's curve within
    a cell's width, as lifelines has it."""
    real = cohort()
    made = endings(real)
    rng = np.random.default_rng(2)
    drawn = made.draw(rng.standard_normal((40_000, 2)))
    time, event = real.constants["days"], real.constants["died"] > 0
    assert abs(drawn.event.mean() - event.mean()) < 0.01
    assert abs((drawn.time >= 120).mean() - (time >= 120).mean()) < 0.01
    at = np.linspace(10, 110, 11)
    curves = [
        lifelines.KaplanMeierFitter().fit(t, e).survival_function_at_times(at).to_numpy()
        for t, e in ((time, event), (drawn.time, drawn.event))
    ]
    assert np.abs(curves[0] - curves[1]).max() < 0.02
    last = made.draw_last(drawn, rng.random(40_000))
    assert (last <= drawn.point).all()
    shares = [np.bincount(x, minlength=5) / len(x) for x in (last, real.there.sum(axis=1) - 1)]
    assert np.abs(shares[0] - shares[1]).max() < 0.02


def test_scores_have_mean_0_and_rise_with_time() -> None:
    real = cohort()
    made = endings(real)
    scores = made.score(read().read(real.constants))
    assert np.abs(scores.mean(axis=0)).max() < 0.02
    assert np.abs(scores.std(axis=0) - 1).max() < 0.02
    cells = len(made.points) // 2
    assert (np.diff(made.points[:cells, 0]) > 0).all()
    assert (np.diff(made.points[cells : 2 * cells, 1]) > 0).all()
    assert np.abs(scores).max() <= made.reach.max()


@pytest.mark.parametrize(
    ("of", "settings", "where", "words"),
    [
        (schema(), {"end": "dys"}, "end", "is not a column"),
        (schema(), {"end": "x"}, "end", "is of kind"),
        (schema(rows=1), {"end": "days"}, "end", "measured together"),
        (schema(), {"end": "days", "dependence": "inferred"}, "end", "measured together"),
        (schema(died=Column("died", "event")), {"end": "days"}, "end", "'died' varies"),
        (
            schema(died=Column("died", "event", varies=False, nullable=True)),
            {"end": "days"},
            "end",
            "may be missing",
        ),
        (schema(Column("day", "continuous", lower=0, upper=9)), {"end": "days"}, "end", "clock"),
        (
            schema(Column("day", "continuous", lower=1, upper=9, unit="d")),
            {"end": "days"},
            "end",
            "begins at 0",
        ),
        (schema(), {"visit_times": (0, 1)}, "visit_times", "no path ends"),
        (schema(), {"end": "days", "visit_times": (0, 9)}, "visit_times", "beginnings"),
        (schema(), {"end": "days", "visit_times": (1, 2, 3, 4, 5)}, "visit_times", "beginnings"),
        (schema(), {"end": "days", "visit_times": (0, 2, 2, 4, 5)}, "visit_times", "beginnings"),
        (schema(), {"end": "days", "visit_times": (0, 2, 3, 4, 121)}, "visit_times", "beginnings"),
    ],
)
def test_what_cannot_end_a_path_is_refused(
    of: Schema, settings: Any, where: str, words: str
) -> None:
    found = Trajectory("day", points=5, **settings).problems(of, ())
    assert any(p.where == where and words in p.message for p in found), found


def test_settings_without_an_end_have_the_bytes_of_before_it() -> None:
    assert not {"end", "visit_times"} & settings_to_dict(Trajectory("day")).keys()
    given = Trajectory("wave", end="days", visit_times=(0, 30, 90))
    kept = settings_to_dict(given)
    assert kept["visit_times"] == [0.0, 30.0, 90.0]
    assert MECHANISMS.read(kept) == given


def test_a_draft_ends_paths_with_the_only_duration_that_can() -> None:
    whole = Column("day", "integer", lower=0, upper=100, unit="d")
    assert draft_settings(schema(whole), None).end == "days"
    assert draft_settings(schema(whole, rows=1), None).end is None
    assert draft_settings(schema(Column("day", "integer", lower=0, upper=9)), None).end is None


def test_what_comes_back_is_said_of_persons_and_of_their_ends() -> None:
    def said(how: Trajectory, of: Schema) -> str:
        asked = Asked(how, of, PrivacyRequest(1.0, 1e-5))
        return "\n".join(MECHANISMS.of(how).returned(asked))

    assert "about as many persons as the site has, of at most 5 rows each" in said(HOW, schema())
    assert "paths and visits end with days" in said(HOW, schema())
    assert "set end = 'days' if they are to" in said(Trajectory("day", points=5), schema())
    once = said(Trajectory("day", points=5, start="counts"), schema(rows=1))
    assert "about as many rows as the site has" in once
    assert "paths and visits" not in once


def test_a_draft_starts_by_counts_where_everybody_has_one_row() -> None:
    few, many = (Column("day", "integer", lower=0, upper=most, unit="d") for most in (9, 150))
    assert draft_settings(schema(few, rows=1), None).start == "counts"
    assert draft_settings(schema(many, rows=1), None).start == "gaussian"
    assert draft_settings(schema(few), None).start == "gaussian"
