"""What the SuperNode knows of its connection, kept in a small file for the steward.

Flower retries for ever and in silence, and answers "unauthorized" to an unknown key and to a wrong
clock alike. Here every change is told once, with what to do.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from flwr.supernode.fleet_http_client import FleetHttpClient

from penstock.base.files import write_atomic
from penstock.processes import certificates, reachability
from penstock.processes.checkup import FAIL, Row
from penstock_client.site.network_paths import NetworkPaths

log = logging.getLogger("penstock.supernode")

CONNECTED, UNREACHABLE, REFUSED = "connected", "unreachable", "refused"
LOOK_AGAIN_SECONDS = 60.0
REFUSALS = (400, 401, 403, 404, 409, 412)
TRY_SECONDS, HELD_SECONDS = 2.0, 45.0
"""Where the coordinator still holds the connection of a process that was killed, the next one asks
so often, and so long: a process that ended instead would begin again ever later."""


class Link:
    """The connection's state: connected, unreachable or refused, and why."""

    def __init__(self, paths: NetworkPaths, clock: Callable[[], float] = time.monotonic) -> None:
        self._paths, self._clock = paths, clock
        self._joined = paths.read_coordinator()
        self._ca = certificates.read_certificate(paths.ca)
        self._state, self._why = "", ""
        self._looked = float("-inf")
        self._was_known = _was_known(paths.link)

    def connected(self) -> None:
        """A call was answered."""
        self._tell(CONNECTED, f"connected to {self._joined.address}")

    def lost(self) -> None:
        """Nobody answers: find out which step of the way fails, now and then."""
        if self._state == UNREACHABLE and self._clock() - self._looked < LOOK_AGAIN_SECONDS:
            return
        self._looked = self._clock()
        failed = [r for r in self._check_way() if r.state == FAIL]
        if failed:
            why = f"{failed[0].found}. {failed[0].remedy}"
        else:
            why = "it broke off, and is there again"
        self._tell(UNREACHABLE, f"no connection to {self._joined.address}: {why}")

    def refused(self) -> None:
        """Somebody answers, and does not let this node in."""
        failed = [r for r in self._check_way() if r.state == FAIL]
        if failed:
            why = f"{failed[0].found}. {failed[0].remedy}"
        elif self._was_known:
            why = "it still holds the connection that broke off; again in half a minute"
        else:
            why = "it does not know this node's key. Ask its admin to enrol this site's join.json"
        self._tell(REFUSED, f"{self._joined.address} does not let this site in: {why}")

    @property
    def was_known(self) -> bool:
        """Whether the coordinator has let this node in before."""
        return self._was_known

    def _check_way(self) -> list[Row]:
        return reachability.check_way(self._joined.host, self._joined.port, self._ca)

    def _tell(self, state: str, why: str) -> None:
        self._was_known = self._was_known or state == CONNECTED
        if (state, why) == (self._state, self._why):
            return
        self._state, self._why = state, why
        log.log(logging.INFO if state == CONNECTED else logging.WARNING, "%s", why)
        record = {"state": state, "why": why, "known": self._was_known}
        with suppress(OSError):  # a full disk must not end the connection
            write_atomic(self._paths.link, json.dumps(record).encode())


def _was_known(path: Path) -> bool:
    """Whether the coordinator has let this node in before."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))["known"] is True
    except (OSError, ValueError, KeyError, TypeError):
        return False


def make_watched_client(link: Link) -> type[FleetHttpClient]:
    """Flower's client, whose calls tell the link how they went."""

    class Watched(FleetHttpClient):
        def _unary_unary(self, **call: Any) -> Any:
            end = time.monotonic() + HELD_SECONDS
            while True:
                try:
                    answer = super()._unary_unary(**call)
                except httpx.TransportError:
                    link.lost()
                    raise
                except httpx.HTTPStatusError as error:
                    status = error.response.status_code
                    if status not in REFUSALS or not call["path"].endswith("/activate-node"):
                        raise
                    link.refused()
                    if not link.was_known or time.monotonic() > end:
                        raise
                    time.sleep(TRY_SECONDS)
                else:
                    link.connected()
                    return answer

    return Watched
