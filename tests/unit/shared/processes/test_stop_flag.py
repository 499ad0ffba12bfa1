"""A loop that a signal stops: it does stop, whatever it was in the middle of."""

import signal
import sys
import threading

import pytest

from penstock.processes.stop_flag import StopFlag


def test_it_waits_for_so_long_or_until_told():
    flag = StopFlag()
    assert not flag.wait(0.0)
    assert not flag.wait(0.01)
    threading.Timer(0.1, flag.set).start()
    assert flag.wait(60.0)
    assert flag.is_set()
    assert flag.wait(60.0)


class Stuck(Exception):
    """The handler did not come back."""


@pytest.fixture
def limited():
    """Whatever waits for ever is interrupted: the alarm's handler raises in the main thread."""

    def give_up(*_):
        raise Stuck

    left, _ = signal.getitimer(signal.ITIMER_REAL)  # the test's own limit has the same alarm
    before = signal.signal(signal.SIGALRM, give_up)
    yield
    signal.signal(signal.SIGALRM, before)
    signal.setitimer(signal.ITIMER_REAL, left)


def tell_in_the_middle(flag, moment):
    """Raise a signal before the so-manyth line that a wait runs; whether there was such a line."""
    left, place = [moment], None

    def trace(frame, event, _argument):
        nonlocal place
        if event == "line" and frame.f_code.co_name != "set" and place is None:
            left[0] -= 1
            if left[0] < 0:
                place = frame.f_lineno
                signal.alarm(2)
                signal.raise_signal(signal.SIGUSR1)
        return trace

    before = signal.signal(signal.SIGUSR1, lambda *_: flag.set())
    tracing = sys.gettrace()
    sys.settrace(trace)
    try:
        flag.wait(0.01)
    finally:
        sys.settrace(tracing)
        signal.alarm(0)
        signal.signal(signal.SIGUSR1, before)
    return place is not None


def count_moments(make):
    """Tell before every line of a wait, one after the other; how many lines there were."""
    moment = 0
    while True:
        flag = make()
        if not tell_in_the_middle(flag, moment):
            return moment
        assert flag.is_set()
        moment += 1


def test_it_may_be_told_in_the_middle_of_its_wait(limited):
    assert count_moments(StopFlag) > 3


def test_an_event_may_not(limited):
    with pytest.raises(Stuck):
        count_moments(threading.Event)
