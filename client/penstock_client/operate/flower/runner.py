"""The runner: takes the SuperNode's tasks, and answers them with the installed app.

It stands where Flower would unpack the bundle that the coordinator sent and run it. This one
never unpacks anything: a bundle is accepted by its hash, which ships with the package
(``bundles.json``), and serves as a version number only.

``python -m penstock_client.operate.flower.runner NETWORK_DIRECTORY GATE_SOCKET``
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from functools import partial
from importlib.resources import files
from pathlib import Path

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    pull_and_inflate_object_from_tree,
)
from flwr.supernode.runtime import run_clientapp
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from penstock.base.errors import PenstockError
from penstock.processes import logs
from penstock.processes.flower import (
    acquire,
    keep_beating,
    make_task_client,
    pack,
    unpack,
    wait_for,
)
from penstock_client.operate.flower.forwarding import answer
from penstock_client.site.network_paths import NetworkPaths

log = logging.getLogger("penstock.runner")

COMPONENT = "flwr-clientapp"
TASK = "flwr-clientapp"
PARTS_SECONDS = 900.0
"""A task whose message has not become whole by then is given up: nobody waits for it any more."""


def read_accepted() -> dict[str, str]:
    """SHA-256 of every bundle that this version accepts, and the wire version it stands for."""
    text = (
        files("penstock_client.operate.flower").joinpath("bundles.json").read_text(encoding="utf-8")
    )
    known: dict[str, str] = json.loads(text)
    return known


def main(folder: Path, gate_socket: Path) -> None:
    """Answer tasks until the process is ended."""
    os.umask(0o077)
    logs.log_to_stderr()
    # A task may come before its message's parts; Flower waits a second before it looks again.
    run_clientapp.pull_and_inflate_object_from_tree = partial(  # type: ignore[attr-defined]
        pull_and_inflate_object_from_tree, initial_backoff=0.05, max_time=PARTS_SECONDS
    )
    paths = NetworkPaths(folder)
    wait_for(paths.supernode_socket, stop=lambda: False)
    bundles = frozenset(read_accepted())
    log.info("runner takes tasks")
    secret = paths.secret.read_bytes()
    for token in acquire(paths.supernode_socket, COMPONENT, secret, TASK, stop=lambda: False):
        try:
            _run_task(paths, gate_socket, token, bundles)
        except (httpx.HTTPError, ObjectPullError, RuntimeError) as error:
            # The task's message is lost and will be sent again; the next one may do better.
            log.warning("a task ended early: %s", type(error).__name__)
        except KeyboardInterrupt:
            # Flower's way to say that the task's run is over. Nobody else sends it: this process
            # has no terminal, and is stopped by SIGTERM.
            log.info("a task's run has ended")


def _run_task(paths: NetworkPaths, gate_socket: Path, token: str, bundles: frozenset[str]) -> None:
    client = make_task_client(paths.supernode_socket, COMPONENT, token)
    context, status, details = None, SubStatus.FAILED, "unknown"
    try:
        with keep_beating(client):
            message, context, _, fab = pull_task_input(client)
            digest = hashlib.sha256(fab.content).hexdigest()
            reply, status, details = _answer_message(message, digest in bundles, gate_socket)
            if digest not in bundles:
                log.error("refused bundle %s", digest)
            push_message(client, reply, context)
    finally:
        push_task_output(client=client, context=context, sub_status=status, details=details)
        client.close()


def _answer_message(message: Message, known: bool, gate_socket: Path) -> tuple[Message, str, str]:
    """The reply, and how the task ended; never an exception's text."""
    if not known:
        error = Error(ErrorCode.INVALID_FAB, "bundle")
        return Message(error, reply_to=message), SubStatus.FAILED, "bundle"
    try:
        data = answer(unpack(message.content), gate_socket)
        return Message(pack(data), reply_to=message), SubStatus.COMPLETED, ""
    except PenstockError:
        error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "malformed")
        return Message(error, reply_to=message), SubStatus.FAILED, "malformed"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
