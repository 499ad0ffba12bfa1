r"""When the end of a run shows outside: a function of public numbers, whatever the rows are.

A run that was reserved at r and planned to take p (from the public n, the study and a rehearsal on
synthetic rows) shows how it ended at the first of

    r + p,  r + 2p,  r + 4p,  …

by which it was over, and nothing before. So of a run's true length no more than the index of one
slot is ever seen: 0 for all runs that keep to the plan, which is made to hold them all. Moments
are RFC 3339 texts in UTC with microseconds, as the ledger writes them: they sort as text.
"""

from __future__ import annotations

import math
from datetime import timedelta

from penstock.base.times import read_stamp, stamp

MARGIN = 1.5
"""Planned over estimated: for a machine that is busier than it was in the rehearsal."""

SETTLING = 0.25
"""Seconds before a slot within which what ends waits for the next one: all that follows an end
(a record, a killed process, a removed folder) is done when the slot comes, and never shows."""

PARTS = 4
"""Progress is shown in quarters of the planned time."""


def plan_seconds(estimate: float, slot: float) -> float:
    """Seconds from the reservation to the first slot: whole slots of the policy, at least one.

    Raises:
        ValueError: a slot that is no positive number, or an estimate that is none.
    """
    if not (slot > 0 and 0 <= estimate < math.inf):
        raise ValueError("no time can be planned from these")
    return slot * max(1, math.ceil(MARGIN * estimate / slot))


def add_seconds(moment: str, seconds: float) -> str:
    """The moment so many seconds later."""
    return stamp(read_stamp(moment) + timedelta(seconds=seconds))


def count_seconds(moment: str, now: str) -> float:
    """Seconds from now to a moment, 0 where it is over."""
    return max(0.0, (read_stamp(moment) - read_stamp(now)).total_seconds())


def find_shown_at(reserved: str, ready: str, ended: str) -> str:
    """When an end shows outside.

    Args:
        ready: the first slot; empty in records of versions that planned no time: then at once.
        ended: when the run was over, or when it was told to end.
    """
    begin = read_stamp(reserved)
    span = read_stamp(ready) - begin if ready else timedelta(0)
    if span <= timedelta(0):
        return ended
    over = read_stamp(ended) - begin + timedelta(seconds=SETTLING)
    while span < over:
        span *= 2
    return stamp(begin + span)


def count_parts_over(reserved: str, ready: str, now: str) -> int:
    """How many of :data:`PARTS` of the planned time are over; never all, however late a run is."""
    if not ready:
        return 0
    begin = read_stamp(reserved)
    share = (read_stamp(now) - begin) / max(read_stamp(ready) - begin, timedelta(microseconds=1))
    return min(PARTS - 1, max(0, math.floor(PARTS * share)))


def find_next_slot(begun: str, slot: float, now: str) -> str:
    """The first whole number of slots after ``begun`` that is not over."""
    passed = (read_stamp(now) - read_stamp(begun)).total_seconds()
    return add_seconds(begun, slot * max(1, math.ceil(passed / slot)))
