"""The SuperLink's control API: which nodes may connect, and the one run that carries messages."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from penstock.base.errors import SignatureError
from penstock.processes.flower import make_unix_client

log = logging.getLogger("penstock.coordinator")

GONE = ("unregistered",)
ENDED = "finished"


def read_node_key(line: str) -> bytes:
    """An OpenSSH public key line as Flower keeps it.

    Raises:
        SignatureError: not a P-384 key.
    """
    try:
        key = load_ssh_public_key(line.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp384r1":
        raise SignatureError("not a node's public key", bound="OpenSSH, EC P-384")
    return bytes(public_key_to_bytes(key))


def read_bundle() -> bytes:
    """The bundle that ships with this version: a version number, no code that runs."""
    return files("penstock_server.transport.flower").joinpath("penstock.fab").read_bytes()


class Control:
    """Calls on the control API of the SuperLink at ``socket``."""

    def __init__(self, socket: Path) -> None:
        self._client = make_unix_client(ControlHttpClient, socket, "flwr-cli")

    def close(self) -> None:
        self._client.close()

    def reconcile(self, wanted: Mapping[str, bytes]) -> dict[str, int]:
        """Register the enrolled sites' nodes, and no others; returns node ids by site."""
        names = {key: site for site, key in wanted.items()}
        known: dict[str, int] = {}
        for node in self._client.ListNodes(ListNodesRequest()).nodes_info:
            if node.status in GONE:
                continue
            site = names.get(node.public_key)
            if site is None:
                self._client.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
                log.info("node %d is no longer registered", node.node_id)
            else:
                known[site] = node.node_id
        for site in wanted.keys() - known.keys():
            request = RegisterNodeRequest(public_key=wanted[site], name=site)
            known[site] = self._client.RegisterNode(request).node_id
            log.info("node of %s registered", site)
        return known

    def start_run(self) -> int:
        """End every run that was left behind, and start the one that is pumped now."""
        for run_id, run in self._client.ListRuns(ListRunsRequest()).run_dict.items():
            if run.status.status != ENDED:
                self._client.StopRun(StopRunRequest(run_id=run_id))
        content = read_bundle()
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        return int(self._client.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id)
