"""Flower without processes: a Grid whose nodes are gates on this machine.

Packets, the site's app and the pump are the real ones; only Flower's transport is left out.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from tests.support import made

from penstock.processes.flower import pack, unpack
from penstock.wire.manifest import sign_manifest
from penstock.wire.messages import SiteState
from penstock.wire.signatures import public_hex
from penstock.wire.signed import sign_study
from penstock_client.operate.flower.forwarding import answer
from penstock_server.install.enrolment import enrol_site
from penstock_server.install.founding import make_coordinator, open_coordinator
from penstock_server.operate.builder import Builder
from penstock_server.results import production
from penstock_server.results.material import gather
from penstock_server.studies.coordinator import Coordinator
from penstock_server.transport.flower.grid_carrier import FlowerCarrier
from penstock_server.transport.pump import keep_pumping


class LocalGrid(Grid):
    """Nodes by id, each a gate's socket; one that is not there is not connected."""

    def __init__(self, sockets: Mapping[int, Path]) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self._sockets = sockets
        self._pool = ThreadPoolExecutor(8)
        self._replies: dict[str, Future[Message]] = {}

    @property
    def run(self):
        raise NotImplementedError

    def set_run(self, run) -> None:
        raise NotImplementedError

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return [node for node, socket in self._sockets.items() if socket.exists()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            number = f"m{time.monotonic_ns()}"
            message.metadata.__dict__["_message_id"] = number
            self._replies[number] = self._pool.submit(self._reply, message)
            ids.append(number)
        return ids

    def _reply(self, message: Message) -> Message:
        data = answer(unpack(message.content), self._sockets[message.metadata.dst_node_id])
        if not data:
            return Message(Error(ErrorCode.UNKNOWN, "malformed"), reply_to=message)
        return Message(pack(data), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        whole = [i for i in message_ids if self._replies[i].done()]
        return [self._replies.pop(i).result() for i in whole]


def network(sockets: Mapping[str, Path]) -> FlowerCarrier:
    """A network of gates by their sites' names."""
    nodes = {name: index + 10 for index, name in enumerate(sockets)}
    return FlowerCarrier(LocalGrid({nodes[n]: s for n, s in sockets.items()}), lambda: nodes)


def run(coordinator: Coordinator, network: FlowerCarrier, *, stop: Callable[[], bool]) -> None:
    """Pump, and make results, each study's in a process of its own, until ``stop()``."""
    builder = Builder(coordinator)

    def turned() -> bool:
        builder.turn()
        return stop()

    try:
        keep_pumping(coordinator, network, stop=turned)
    finally:
        builder.close()


def finish(coordinator: Coordinator, study_id: str) -> None:
    """Make the results of a study, of which some sites have delivered, in this process."""
    parts = coordinator.store.studies.parts(study_id)
    with coordinator.store.begin() as c:
        delivered = sum(p.state is SiteState.DELIVERED for p in parts)
        coordinator.leases.open(c, study_id, coordinator.clock.stamp(), delivered)
    lease, row = coordinator.leases.claim(), coordinator.store.studies.find(study_id)
    assert lease is not None
    assert lease.study_id == study_id
    coordinator.folder.results(study_id).mkdir(parents=True)
    production.build_results(
        gather(coordinator, row, lease.since), coordinator.folder.results(study_id)
    )
    assert coordinator.leases.finish(lease, lambda: None)


def hub(root: Path) -> Coordinator:
    """A coordinator with the sites of :mod:`tests.support.made`, all under one key."""
    make_coordinator(root)
    found = open_coordinator(root)
    for name in made.SITES:
        join = {
            "site": name,
            "federation": "net",
            "gate_key": public_hex(made.KEY),
            "persons": made.PERSONS,
            "dictionary": made.SCHEMA.to_dict(),
            "node_key": "ecdsa-sha2-nistp384 AAAA",
        }
        enrol_site(found, join)
    return found


def deliver(
    coordinator: Coordinator,
    key: Ed25519PrivateKey,
    mechanism: str,
    name: str,
    **changed: Any,
) -> str:
    """A study that two of its three sites have delivered to, and the third has not; its id.

    ``changed``: of the study.
    """
    study = made.study(
        made.MECHANISMS[mechanism],
        name=name,
        not_before="2020-01-01T00:00:00Z",
        expires="2099-01-01T00:00:00Z",
        **changed,
    )
    study_id = coordinator.submit(sign_study(study, key))
    for i, site in enumerate(made.SITES[:2]):
        data = made.stream(made.table(study, seed=i))
        path = coordinator.folder.table(study_id, site)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        manifest = replace(made.manifest(study, data, site=site), study_id=study_id)
        with coordinator.store.begin() as c:
            signed = sign_manifest(manifest, made.KEY)
            values = {"state": str(SiteState.DELIVERED), "manifest": signed}
            coordinator.store.studies.update_part(c, study_id, site, **values)
    return study_id


def ended(coordinator: Coordinator, study_id: str) -> bool:
    """Whether a study goes on no more."""
    return coordinator.store.studies.find(study_id).state.final


if __name__ == "__main__":
    # COORDINATOR SITE=SOCKET...: a pump of its own process, to be killed.
    places = dict(pair.split("=", 1) for pair in sys.argv[2:])
    run(
        open_coordinator(Path(sys.argv[1])),
        network({name: Path(path) for name, path in places.items()}),
        stop=lambda: False,
    )
