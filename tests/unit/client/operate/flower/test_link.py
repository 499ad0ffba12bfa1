"""What a SuperNode does while the coordinator still holds the connection of the one before it."""

from __future__ import annotations

import httpx
import pytest
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.error.catalog import API_ERROR_MAP
from flwr.supernode.fleet_http_client import FleetHttpClient

from penstock_client.operate.flower import link
from penstock_client.operate.flower.link import HELD_SECONDS, make_watched_client

ACTIVATE = "/v1/fleet/activate-node"
HELD = API_ERROR_MAP[ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED].http_status_code


class Told:
    """A link that only notes what it is told."""

    def __init__(self, known: bool) -> None:
        self.was_known = known
        self.told: list[str] = []

    def connected(self) -> None:
        self.told.append("connected")

    def refused(self) -> None:
        self.told.append("refused")

    def lost(self) -> None:
        self.told.append("lost")


class Door:
    """A coordinator that refuses a node until a moment of its own clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, until: float) -> None:
        self.now, self.until = 0.0, until
        monkeypatch.setattr(link.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(link.time, "sleep", self.wait)
        monkeypatch.setattr(FleetHttpClient, "_unary_unary", lambda _, **call: self.answer())

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def answer(self) -> str:
        if self.now < self.until:
            request = httpx.Request("POST", f"https://hub{ACTIVATE}")
            raise httpx.HTTPStatusError("held", request=request, response=httpx.Response(HELD))
        return "let in"


def ask(told: Told, path: str = ACTIVATE) -> object:
    client = make_watched_client(told)("https://hub")  # type: ignore[arg-type]
    return client._unary_unary(path=path)


def test_a_node_that_was_known_asks_until_it_is_let_in_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ended each time, and its supervisor began it again ever later."""
    told, door = Told(known=True), Door(monkeypatch, until=30.0)
    assert ask(told) == "let in"
    assert door.now < 33.0
    assert told.told[0] == "refused"
    assert told.told[-1] == "connected"


@pytest.mark.parametrize(
    ("known", "path", "seconds"),
    [
        (True, ACTIVATE, HELD_SECONDS),
        (False, ACTIVATE, 0.0),
        (True, "/v1/fleet/pull-messages", 0.0),
    ],
)
def test_a_node_that_is_not_let_in_ends(
    monkeypatch: pytest.MonkeyPatch, known: bool, path: str, seconds: float
) -> None:
    door = Door(monkeypatch, until=1000.0)
    with pytest.raises(httpx.HTTPStatusError):
        ask(Told(known), path)
    assert seconds <= door.now <= seconds + 5.0
