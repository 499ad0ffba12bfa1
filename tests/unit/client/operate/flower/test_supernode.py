"""How often an idle site looks for messages: each look is a signature and three processes' work."""

from penstock_client.operate.flower import supernode
from penstock_server.transport.pump import DESCRIBE_SECONDS

MINUTES = 20
MOST_LOOKS = 30
"""A minute; twenty are Flower's own pace, with a look every three seconds."""


def test_a_site_that_is_only_greeted_looks_rarely(monkeypatch):
    """It looked 47 times a minute: every greeting made it quick for most of a minute."""
    clock = [0.0]

    def sleep(seconds):
        clock[0] += seconds

    monkeypatch.setattr(supernode.time, "sleep", sleep)
    pace, looks, greeted = supernode.Pace(), 0, 0.0
    while clock[0] < 60 * MINUTES:
        looks += 1
        if clock[0] >= greeted:
            greeted += DESCRIBE_SECONDS
            pace.sleep(0.5)  # Flower waits for the reply
        pace.sleep(3.0)
    assert looks / MINUTES < MOST_LOOKS


def test_a_site_that_is_asked_something_looks_at_once_for_more(monkeypatch):
    waits = []
    monkeypatch.setattr(supernode.time, "sleep", waits.append)
    pace = supernode.Pace()
    pace.sleep(0.5)
    for _ in range(8):
        pace.sleep(3.0)
    assert max(waits[:5]) <= 0.3
    assert max(waits) <= 1.0


def test_a_site_whose_look_was_kept_waiting_looks_again_at_once(monkeypatch):
    clock, waits = [0.0], []
    monkeypatch.setattr(supernode.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(supernode.time, "sleep", waits.append)
    pace = supernode.Pace()
    for _ in range(40):
        pace.sleep(3.0)  # a coordinator that lets nobody wait
    assert waits[-1] == supernode.IDLE_SECONDS
    clock[0] += 10.0
    pace.sleep(3.0)
    assert waits[-1] < 0.1
    pace.sleep(3.0)
    assert waits[-1] == supernode.IDLE_SECONDS
