"""Packets over Flower's Grid."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from penstock.base.errors import PenstockError
from penstock.processes.flower import MESSAGE_TYPE, pack, unpack

log = logging.getLogger("penstock.coordinator")

TTL_SECONDS = 900.0
"""After this an answer is not waited for any more: 8 MB at 70 kbit/s."""
LOOK_SECONDS = 1.0
"""How old the list of connected nodes may be."""


@dataclass(frozen=True, slots=True)
class _Flight:
    site: str
    node: int
    sent: float


class FlowerCarrier:
    """:class:`penstock_server.transport.carrier.Carrier` over a Grid.

    Args:
        grid: of the run that is pumped.
        nodes: the enrolled sites' node ids, asked for anew whenever it looks who is there.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        grid: Grid,
        nodes: Callable[[], Mapping[str, int]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._grid, self._nodes, self._clock = grid, nodes, clock
        self._flights: dict[str, _Flight] = {}
        self._lost: list[str] = []
        self._online: dict[str, int] = {}
        self._looked = float("-inf")

    def ready(self) -> set[str]:
        self._find_online()
        return self._online.keys() - {f.site for f in self._flights.values()}

    def _find_online(self) -> None:
        now = self._clock()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        connected = set(self._grid.get_node_ids())
        self._online = {s: n for s, n in self._nodes().items() if n in connected}

    def send(self, packets: Mapping[str, bytes]) -> None:
        nodes = {site: self._online[site] for site in packets}
        messages = [
            Message(pack(packet), nodes[site], MESSAGE_TYPE, ttl=TTL_SECONDS)
            for site, packet in packets.items()
        ]
        # All at once: Flower pushes their parts side by side.
        for site, message_id in zip(packets, self._grid.push_messages(messages), strict=True):
            if message_id:
                self._flights[message_id] = _Flight(site, nodes[site], self._clock())
            else:
                self._lost.append(site)  # refused by the SuperLink: the node is gone

    def receive(self) -> list[tuple[str, bytes | str]]:
        came: list[tuple[str, bytes | str]] = [(site, "") for site in self._lost]
        self._lost.clear()
        if self._flights:
            # Replies that Flower makes itself carry its own node's id: only this field is sure.
            for reply in self._grid.pull_messages(list(self._flights)):
                flight = self._flights.pop(reply.metadata.reply_to_message_id, None)
                if flight is not None:
                    came.append((flight.site, _read_content(flight.site, reply)))
        return came + self._give_up()

    def _give_up(self) -> list[tuple[str, bytes | str]]:
        """Packets that nobody will answer: the node is gone, or it took too long."""
        self._find_online()
        late = self._clock() - TTL_SECONDS
        gone = [
            i
            for i, f in self._flights.items()
            if f.sent < late or self._online.get(f.site) != f.node
        ]
        return [(self._flights.pop(i).site, "") for i in gone]


def _read_content(site: str, reply: Message) -> bytes | str:
    if reply.has_error():
        log.info("no answer of %s (Flower's code %d)", site, reply.error.code)
        return "bundle" if reply.error.code == ErrorCode.INVALID_FAB else ""
    try:
        return unpack(reply.content)
    except PenstockError as error:
        log.warning("answer of %s: %s", site, error)
        return ""
