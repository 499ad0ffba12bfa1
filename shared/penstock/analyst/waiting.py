"""Watch a study until it ends, across restarts of the coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, Problem, Unfinished, Unreachable
from penstock.wire.messages import StudyState

GOING_ON = tuple(str(state) for state in StudyState if not state.final)

Seen = Callable[[Json], None]
Away = Callable[[Unreachable | None], None]


def wait_for_end(
    ask: Callable[[], Json],
    *,
    every: float,
    first: Json | None = None,
    seen: Seen | None = None,
    away: Away | None = None,
    timeout: float | None = None,
) -> Json:
    """Ask for a study's status until it has ended; returns the last.

    Args:
        ask: the status; the first call must succeed, unless ``first`` is given.
        first: a status that was asked for just now.
        every: seconds between calls.
        seen: told each status.
        away: told the error, once, when the coordinator does not answer any more, and None when it
            answers again. Only what may pass by itself is waited for.
        timeout: seconds; None for as long as it takes.

    Raises:
        Unfinished: it had not ended after ``timeout``.
        Unreachable: what does not pass by itself, or the first call.
        InvalidInput: a time-out that is no number of seconds.
    """
    if timeout is not None and not timeout >= 0:
        problem = Problem("timeout", "must not be negative", value=str(timeout))
        raise InvalidInput("wait", [problem])
    end = None if timeout is None else time.monotonic() + timeout
    found, gone = first if first is not None else ask(), False
    while True:
        if seen is not None and not gone:
            seen(found)
        if found["state"] not in GOING_ON:
            return found
        left = every if end is None else min(every, end - time.monotonic())
        if end is not None and left <= 0:
            raise Unfinished(
                "the study has not ended yet",
                value=found["state"],
                bound=f"waited {timeout:g} s",
                remedy="wait longer, or see `penstock study status`",
            )
        time.sleep(left)
        try:
            found = ask()
        except Unreachable as error:
            if not error.passing:
                raise
            if not gone and away is not None:
                away(error)
            gone = True
        else:
            if gone and away is not None:
                away(None)
            gone = False
