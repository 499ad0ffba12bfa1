"""Flower's SuperLink on a Unix socket, which nobody but the coordinator's user can open.

``python -m penstock_server.transport.flower.superlink COORDINATOR_DIRECTORY``

Its control API has no accounts and its runtime API hands out tasks, so neither is ever on a port:
the api passes ``/v1/fleet`` through, where every request is signed by an enrolled node's key.

Where its database is locked for longer than it waits, as on a machine with far more to do than
cores, Flower would answer 500, and a site's SuperNode would drop its answer: the coordinator then
waits a quarter of an hour before it asks again. Here it is 503, and tried again.

A node that looks for messages waits at the SuperLink until there is one, ten seconds at most; and
frequent calls take the short way (:mod:`penstock.processes.direct_calls`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from flwr.common.constant import ISOLATION_MODE_PROCESS, TRANSPORT_TYPE_GRPC_RERE
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig, load_control_authn_plugin
from flwr.superlink.main import create_app

from penstock.processes import logs
from penstock.processes.direct_calls import DirectCalls, Lobby
from penstock.processes.flower import make_secret
from penstock_server.store.folder import Folder
from penstock_server.transport.flower.busy import ask_again
from penstock_server.transport.flower.fleet_calls import Exchange, list_calls


def main(root: Path) -> None:
    """Serve until SIGTERM."""
    os.umask(0o077)
    logs.log_to_stderr()
    folder = Folder(root)
    make_secret(folder.secret)
    folder.superlink_socket.unlink(missing_ok=True)
    lobby = Lobby(Exchange())
    config = uvicorn.Config(
        DirectCalls(make_app(folder), list_calls(), lobby),
        uds=str(folder.superlink_socket),
        access_log=False,
        log_level="warning",
        workers=1,
    )
    server = uvicorn.Server(config)
    # It ends once all calls are answered, and is not to wait for those that wait.
    lobby.ended = lambda: server.should_exit
    server.run()


def make_app(folder: Folder) -> FastAPI:
    """Flower's own app; where its database cannot be written to, it says to ask again."""
    return ask_again(create_app(_settings(folder), SuperLinkLifespan))


def _settings(folder: Folder) -> SuperLinkLifespanConfig:
    return SuperLinkLifespanConfig(
        control_address="",
        health_server_address=None,
        host="",
        port=0,
        # TLS ends at the api; what follows is a socket of this user's.
        insecure=True,
        certificates=None,
        superexec_auth_secret=folder.secret.read_bytes(),
        authn_plugin=load_control_authn_plugin(),
        event_log_plugin=None,
        fleet_event_log_plugin=None,
        enable_event_log=False,
        artifact_provider=None,
        enable_supernode_auth=True,
        fleet_api_type=TRANSPORT_TYPE_GRPC_RERE,
        fleet_api_address=None,
        simulation=False,
        ssl_ca_certfile=None,
        ssl_certfile=None,
        ssl_keyfile=None,
        database=str(folder.superlink_database),
        isolation=ISOLATION_MODE_PROCESS,
        runtime_dependency_install=False,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
