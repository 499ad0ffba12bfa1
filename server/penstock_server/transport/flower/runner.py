"""The coordinator's runner: one resident Flower run, whose only task is to pump messages.

It takes the place of Flower's ServerApp process. Nothing that a run carries is ever unpacked;
what it does is :class:`penstock_server.transport.pump.Pump`. Killed anywhere, it begins a new run.

``python -m penstock_server.transport.flower.runner COORDINATOR_DIRECTORY``
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from flwr.common.constant import SubStatus
from flwr.common.serde import run_from_proto
from flwr.proto.runtime_pb2 import PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.task_identity import TaskIdentity

from penstock.base.errors import CoordinatorError, SignatureError
from penstock.privacy.accounting.accountant import epsilon_pld
from penstock.privacy.events import Gaussian
from penstock.processes import logs
from penstock.processes.flower import acquire, keep_beating, make_task_client, wait_for
from penstock.processes.stop_flag import StopFlag
from penstock_server.install.founding import open_coordinator
from penstock_server.store.folder import Folder
from penstock_server.studies.coordinator import Coordinator
from penstock_server.transport.flower.control import Control, read_node_key
from penstock_server.transport.flower.grid import COMPONENT, UnixGrid
from penstock_server.transport.flower.grid_carrier import FlowerCarrier
from penstock_server.transport.packets import drop_pieces
from penstock_server.transport.pump import keep_pumping

log = logging.getLogger("penstock.coordinator")

TASK = "flwr-serverapp"
STOP_SECONDS = 5.0


def main(root: Path) -> None:
    """Pump until SIGTERM."""
    os.umask(0o077)
    logs.log_to_stderr()
    stopping = StopFlag()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _end(stopping))
    folder = Folder(root)
    coordinator = open_coordinator(root)
    drop_pieces(folder)
    # It imports for seconds, which the first upload would otherwise let every site wait for.
    epsilon_pld((Gaussian(1.0),), 1e-5)
    wait_for(folder.superlink_socket, stop=stopping.is_set)
    control = Control(folder.superlink_socket)
    nodes = Nodes(coordinator, control)
    nodes()
    _pump(folder, coordinator, control.start_run(), nodes, stopping.is_set)


def _end(stopping: StopFlag) -> None:
    """Stop; and where a call to a SuperLink that is gone is tried again for ever, end anyway.

    Nothing is lost: what was on its way is asked again by the next runner.
    """
    stopping.set()
    last = threading.Timer(STOP_SECONDS, os._exit, (0,))
    last.daemon = True
    last.start()


class Nodes:
    """Node ids of the enrolled sites; registers those that have come since the last look."""

    def __init__(self, coordinator: Coordinator, control: Control) -> None:
        self._coordinator, self._control = coordinator, control
        self._keys: dict[str, str] | None = None
        self._ids: Mapping[str, int] = {}

    def __call__(self) -> Mapping[str, int]:
        sites = self._coordinator.store.sites.all()
        keys = {name: site.join["node_key"] for name, site in sites.items()}
        if keys != self._keys:
            self._ids = self._control.reconcile(_select_usable(keys))
            self._keys = keys
        return self._ids


def _select_usable(keys: Mapping[str, str]) -> dict[str, bytes]:
    """The keys that Flower can take; one site's bad key must not stop the others."""
    wanted: dict[str, bytes] = {}
    for name, line in keys.items():
        try:
            key = read_node_key(line)
            if key in wanted.values():
                raise SignatureError("another site has the same node key")
            wanted[name] = key
        except SignatureError as error:
            log.error("%s cannot connect: %s; enrol its join.json again", name, error)
    return wanted


def _pump(
    folder: Folder,
    coordinator: Coordinator,
    run_id: int,
    nodes: Nodes,
    stop: Callable[[], bool],
) -> None:
    secret, socket = folder.secret.read_bytes(), folder.superlink_socket
    for token in acquire(socket, COMPONENT, secret, TASK, stop=stop):
        client = make_task_client(socket, COMPONENT, token)
        with keep_beating(client):
            task = client.PullTaskInput(PullTaskInputRequest())
            if task.run.run_id == run_id:
                grid = UnixGrid(socket, token)
                grid.set_run(run_from_proto(task.run))
                # Flower's messages take their origin from here.
                TaskIdentity.run_id = run_id
                TaskIdentity.node_id = task.context.node_id
                TaskIdentity.task_id = task.task_id
                log.info("run %d carries messages", run_id)
                keep_pumping(coordinator, FlowerCarrier(grid, nodes), stop=stop)
                grid.close()
                return
        # Somebody else's run, or one of before: it is never executed.
        refusal = PushTaskOutputRequest(sub_status=SubStatus.FAILED, details="not this one's")
        client.PushTaskOutput(refusal)
        client.close()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except CoordinatorError as error:
        log.error("%s", error)
        sys.exit(error.exit_code)
