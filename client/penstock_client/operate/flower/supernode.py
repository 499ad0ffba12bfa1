"""The SuperNode: Flower's connection to the coordinator, with its runtime API on a Unix socket.

``python -m penstock_client.operate.flower.supernode NETWORK_DIRECTORY``
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.common.constant import ISOLATION_MODE_PROCESS
from flwr.proto.task_pb2 import Task
from flwr.supercore import heartbeat
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, pull_objects
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import RunNotRunningException
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeState, NodeStateFactory
from google.protobuf.message import Message as Proto

from penstock.base.errors import PenstockError
from penstock.processes import logs
from penstock.processes.direct_calls import ACQUIRE, DirectCalls, Lobby, Seat, list_runtime_calls
from penstock.processes.flower import make_secret
from penstock_client.operate.flower.link import Link, make_watched_client
from penstock_client.site.network_paths import NetworkPaths

log = logging.getLogger("penstock.supernode")

HEARTBEAT_SECONDS = 15
"""A SuperNode that was killed is let in again after twice this, not after Flower's minute."""
PACE = ((4, 0.3), (12, 1.0))
SHORT_SECONDS = 0.05
HELD_SECONDS = 2.0
"""A look that took so long was kept waiting by the coordinator, or its line is as slow as that."""
IDLE_SECONDS = 3.0
"""Seconds between two looks for messages: short for so many looks after a message, then Flower's
own. A look costs a signature and three processes' work; a site that is asked nothing is greeted
now and then, and is not to look more often for that."""


def main(folder: Path) -> None:
    """Run until SIGTERM; exits when the coordinator does not know this node."""
    os.umask(0o077)
    paths = NetworkPaths(folder)
    key = load_ssh_private_key(paths.node_key.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise PenstockError("not a node key", value=paths.node_key, bound="EC P-384")
    make_secret(paths.secret)
    state = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
    _serve(state, paths)
    _tune(paths)
    start_client_internal.start_client_internal(
        state_factory=state,
        server_address=paths.read_coordinator().address,
        node_config={},
        root_certificates=paths.ca.read_bytes(),
        insecure=False,
        authentication_keys=(key, key.public_key()),
        isolation=ISOLATION_MODE_PROCESS,
        superexec_auth_secret=paths.secret.read_bytes(),
        runtime_dependency_install=False,
    )


def _serve(state: NodeStateFactory, paths: NetworkPaths) -> None:
    """The runtime API, for the runner, in a thread that ends with the process."""
    app = create_app(state_factory=state, superexec_auth_secret=paths.secret.read_bytes())
    lobby = Lobby(Tasks())
    _call_on_messages(state.state(), lobby)
    answer_unread(state.state())
    paths.supernode_socket.unlink(missing_ok=True)
    config = uvicorn.Config(
        DirectCalls(app, list_runtime_calls("SuperNode"), lobby),
        uds=str(paths.supernode_socket),
        access_log=False,
        log_level="warning",
        workers=1,
    )
    server = uvicorn.Server(config)
    threading.Thread(target=server.run, daemon=True, name="runtime").start()
    while not server.started:
        time.sleep(0.05)
    # uvicorn opens its socket to everybody; the directory is closed too.
    os.chmod(paths.supernode_socket, 0o600)


class Tasks:
    """The runner, which there is one of, waits for its next task."""

    def find_seat(self, path: str, request: Proto, answer: Proto) -> Seat | None:
        return Seat(0) if path == ACQUIRE and not answer.HasField("task") else None

    def find_called(self, path: str, request: Proto) -> list[int]:
        return []


def _call_on_messages(state: NodeState, lobby: Lobby) -> None:
    """Call the runner once a message is there: its task comes before it, and is nothing alone."""
    store = state.store_message

    def store_and_call(message: Message) -> str | None:
        found = store(message)
        lobby.call([0])
        return found

    state.store_message = store_and_call  # type: ignore[method-assign]


def answer_unread(state: NodeState) -> None:
    """Answer also for a runner that died before it had read its task's message.

    Flower answers for messages that were read, once their task's time is over. For any other its
    loop would wait for ever, and the site with it.
    """
    answer = state._on_task_tokens_expired  # type: ignore[attr-defined]

    def answer_all(tasks: list[Task]) -> None:
        with state.lock_msg_store:  # type: ignore[attr-defined]
            entries = list(state.msg_store.values())  # type: ignore[attr-defined]
        for entry in entries:
            known = entry.message.metadata
            if not known.reply_to_message_id and not entry.is_retrieved:
                state.record_message_processing_start(known.message_id)
                entry.is_retrieved = True
        answer(tasks)

    state._on_task_tokens_expired = answer_all  # type: ignore[attr-defined]


class Pace:
    """How long Flower's loop waits: it asks for 3 s without a message, 0.5 s without a reply.

    Where the coordinator let a look wait for a message already, the next one is due at once.
    """

    def __init__(self) -> None:
        self._idle = 0
        self._woke = float("inf")

    def sleep(self, seconds: float) -> None:
        if seconds < 1.0:
            self._idle = 0
            time.sleep(SHORT_SECONDS)
        elif time.monotonic() - self._woke >= HELD_SECONDS:
            time.sleep(SHORT_SECONDS)
        else:
            self._idle += 1
            time.sleep(next((wait for looks, wait in PACE if self._idle <= looks), IDLE_SECONDS))
        self._woke = time.monotonic()


def _pull(object_ids: list[str], pull_object_fn: Callable[[str], bytes]) -> dict[str, bytes]:
    """Fetch a message's parts; that its run has ended meanwhile is an error like any other.

    Flower's own class for it is no ``Exception``: its loop would leave the message's task behind,
    and the runner would wait hours for parts that never come.

    Raises:
        ObjectPullError: the run has ended, or a part does not come.
    """
    try:
        found: dict[str, bytes] = pull_objects(object_ids, pull_object_fn, initial_backoff=0.05)
    except RunNotRunningException:
        raise ObjectPullError("of a message", "its run has ended") from None
    return found


def _tune(paths: NetworkPaths) -> None:
    # Flower has no settings for these; its modules look the names up when they use them.
    for module, name, value in (
        (fleet_http_connection, "FleetHttpClient", make_watched_client(Link(paths))),
        (start_client_internal, "pull_objects", _pull),
        (start_client_internal, "time", SimpleNamespace(sleep=Pace().sleep)),
        (fleet_http_connection, "HEARTBEAT_DEFAULT_INTERVAL", HEARTBEAT_SECONDS),
        (heartbeat, "HEARTBEAT_DEFAULT_INTERVAL", HEARTBEAT_SECONDS),
    ):
        if not hasattr(module, name):
            raise PenstockError("this Flower is another one", value=name, bound="flwr 1.41")
        setattr(module, name, value)


if __name__ == "__main__":
    logs.log_to_stderr()
    main(Path(sys.argv[1]))
