"""Waiting for the end of a study."""

from __future__ import annotations

import pytest

from penstock.analyst.waiting import wait_for_end
from penstock.base.errors import InvalidInput, NotAllowed, PenstockError, Unfinished, Unreachable


def scripted(*answers):
    left = list(answers)

    def ask():
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, BaseException):
            raise answer
        return {"state": answer}

    return ask


GONE = Unreachable("the connection was lost", passing=True)


def test_waiting_says_once_that_the_coordinator_is_away():
    said, seen = [], []
    found = wait_for_end(
        scripted("open", GONE, GONE, GONE, "open", "finished"),
        every=0.0,
        seen=lambda status: seen.append(status["state"]),
        away=said.append,
    )
    assert found == {"state": "finished"}
    assert said == [GONE, None]
    assert seen == ["open", "open", "finished"]


def test_waiting_goes_on_while_results_are_made():
    seen = []
    found = wait_for_end(
        scripted("open", "pooling", "pooling", "finished"),
        every=0.0,
        seen=lambda status: seen.append(status["state"]),
    )
    assert found == {"state": "finished"}
    assert seen == ["open", "pooling", "pooling", "finished"]


def test_waiting_ends_with_what_does_not_pass():
    for first in (GONE, NotAllowed("no valid token")):
        with pytest.raises(PenstockError, match=first.message):
            wait_for_end(scripted(first), every=0.0)
    for later in (Unreachable("the certificate has expired"), NotAllowed("revoked")):
        with pytest.raises(PenstockError, match=later.message):
            wait_for_end(scripted("open", later), every=0.0)


@pytest.mark.parametrize("answers", [("open",), ("open", GONE)])
def test_waiting_has_an_end(answers):
    with pytest.raises(Unfinished, match=r"waited 0\.05 s"):
        wait_for_end(scripted(*answers), every=0.01, timeout=0.05)


@pytest.mark.parametrize("timeout", [-1.0, float("nan")])
def test_a_time_out_is_a_number_of_seconds(timeout):
    with pytest.raises(InvalidInput, match="must not be negative"):
        wait_for_end(scripted("finished"), every=0.0, timeout=timeout)
