"""When an end shows: public numbers and one slot's index, and nothing else of a run's length."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_client.gate import schedule
from penstock_client.gate.schedule import (
    add_seconds,
    count_parts_over,
    count_seconds,
    find_next_slot,
    find_shown_at,
    plan_seconds,
)

RESERVED = "2026-11-22T10:00:00.000000Z"
SPANS = st.floats(0.25, 1e5)
LENGTHS = st.floats(0, 1e6)


def shown(span: float, length: float) -> float:
    """Seconds after the reservation at which a run of some length shows."""
    ready = add_seconds(RESERVED, span)
    return count_seconds(find_shown_at(RESERVED, ready, add_seconds(RESERVED, length)), RESERVED)


@settings(deadline=None, derandomize=True)
@given(SPANS, LENGTHS)
def test_an_end_shows_at_a_doubling_of_the_planned_time_and_never_before_it(span, length):
    at = shown(span, length)
    doublings = math.log2(at / count_seconds(add_seconds(RESERVED, span), RESERVED))
    assert doublings == pytest.approx(round(doublings), abs=1e-9)
    assert doublings >= 0
    assert at >= length
    assert at <= max(span, 2 * (length + schedule.SETTLING)) + 1e-5


@settings(deadline=None, derandomize=True)
@given(SPANS, LENGTHS, LENGTHS)
def test_a_longer_run_never_shows_earlier(span, one, other):
    assert shown(span, min(one, other)) <= shown(span, max(one, other))


@settings(deadline=None, derandomize=True)
@given(SPANS, st.floats(0, 1), st.floats(0, 1))
def test_runs_within_the_planned_time_show_at_one_moment(span, one, other):
    room = max(0.0, span - schedule.SETTLING - 1e-5)
    assert shown(span, one * room) == shown(span, other * room) == pytest.approx(span, abs=1e-5)


def test_records_that_planned_no_time_show_at_once():
    ended = add_seconds(RESERVED, 7)
    assert find_shown_at(RESERVED, "", ended) == ended
    assert find_shown_at(RESERVED, RESERVED, ended) == ended
    assert count_parts_over(RESERVED, "", ended) == 0


@settings(deadline=None, derandomize=True)
@given(st.floats(0, 1e6), st.floats(0.1, 86_400))
def test_planned_times_are_whole_slots_and_hold_the_estimate(estimate, slot):
    found = plan_seconds(estimate, slot)
    assert found / slot == pytest.approx(round(found / slot))
    assert found >= slot
    assert found >= schedule.MARGIN * estimate * (1 - 1e-12)


@pytest.mark.parametrize(
    ("estimate", "slot"), [(math.nan, 1), (math.inf, 1), (-1, 1), (1, 0), (1, math.nan)]
)
def test_no_time_is_planned_from_nonsense(estimate, slot):
    with pytest.raises(ValueError, match="no time"):
        plan_seconds(estimate, slot)


@settings(deadline=None, derandomize=True)
@given(SPANS, LENGTHS, LENGTHS)
def test_progress_is_the_clocks_alone_and_never_whole(span, one, other):
    ready = add_seconds(RESERVED, span)
    parts = [
        count_parts_over(RESERVED, ready, add_seconds(RESERVED, x)) for x in sorted((one, other))
    ]
    assert parts == sorted(parts)
    assert set(parts) <= set(range(schedule.PARTS))


@settings(deadline=None, derandomize=True)
@given(st.floats(0.1, 1000), st.floats(0, 1e5))
def test_a_reservation_waits_for_a_whole_slot(slot, passed):
    now = add_seconds(RESERVED, passed)
    wait = count_seconds(find_next_slot(RESERVED, slot, now), RESERVED)
    assert wait >= passed - 1e-5
    assert wait <= max(slot, passed + slot) + 1e-5
    assert wait / slot == pytest.approx(max(1, round(wait / slot)), abs=1e-3)
