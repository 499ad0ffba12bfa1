"""Moments are written and read in one way: UTC, sorted as text."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.times import parse_time, read_stamp, stamp, stamp_now, stamp_seconds, utc_now

MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(9000, 1, 1), timezones=st.just(UTC))


@given(MOMENTS, MOMENTS)
def test_stamps_are_read_back_and_sort_as_text(one, other):
    assert read_stamp(stamp(one)) == one
    assert (stamp(one) < stamp(other)) == (one < other)
    assert parse_time(stamp_seconds(one)) == one.replace(microsecond=0)


def test_another_zone_is_written_in_utc():
    there = datetime(2026, 11, 21, 2, tzinfo=timezone(timedelta(hours=2)))
    assert stamp(there) == "2026-11-21T00:00:00.000000Z"
    assert stamp_seconds(there) == "2026-11-21T00:00:00Z"
    assert read_stamp("2026-11-21T02:00:00+02:00").utcoffset() == timedelta(0)


def test_this_machines_clock_is_stamped():
    before = utc_now()
    assert before <= read_stamp(stamp_now()) <= utc_now()


@pytest.mark.parametrize("text", ["2026-11-21T00:00:00", "now", ""])
def test_a_time_without_a_zone_is_no_stamp(text):
    with pytest.raises(ValueError, match=r"zone|isoformat"):
        read_stamp(text)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_that_utc_has_not_is_no_stamp(text):
    """It comes in the head of a call that nobody has signed yet."""
    with pytest.raises(ValueError, match="before the year 1"):
        read_stamp(text)


@pytest.mark.parametrize(
    "text", ["2026-11-21T00:00:00.5Z", "2026-11-21T00:00:00+00:00", "2026-11-21", None]
)
def test_a_study_takes_whole_seconds_in_utc_only(text):
    with pytest.raises(ValueError, match="not a UTC time"):
        parse_time(text)
