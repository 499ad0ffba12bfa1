"""What strangers, and a captured coordinator, get from the real processes: nothing."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import socket
import ssl
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import psutil
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import TIMESTAMP_HEADER, ErrorCode
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import ListNodesRequest, StartRunRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient
from tests.integration.test_canaries import SCHEMA, canaries, csv_with_canaries
from tests.support.federation import COORDINATOR, Federation

from penstock.processes.flower import (
    MESSAGE_TYPE,
    acquire,
    keep_beating,
    make_task_client,
    pack,
    unpack,
)
from penstock.questions.estimands import Estimand
from penstock_client.site.network_paths import NetworkPaths
from penstock_server.store.folder import Folder
from penstock_server.transport import packets
from penstock_server.transport.flower import runner
from penstock_server.transport.flower.control import Control, read_bundle, read_node_key
from penstock_server.transport.flower.grid import COMPONENT, UnixGrid

QUESTION = {"schema": SCHEMA, "estimands": (Estimand("e", "ols", "y", "x"),)}
PROJECT = """\
[project]
name = "penstock-bundle"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["flwr>=1.41,<1.42"]
[tool.flwr.app]
publisher = "penstock"
fab-include = ["**/*.py"]
[tool.flwr.app.components]
serverapp = "penstock_bundle:server"
clientapp = "penstock_bundle:client"
"""


@pytest.fixture(scope="module")
def federation():
    """One site, whose rows hold strings that nothing else holds."""
    made = Federation(("a",), csv=csv_with_canaries(), schema=SCHEMA)
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def trust(federation):
    return ssl.create_default_context(cadata=federation.ca.read_text())


def network(federation):
    return NetworkPaths(federation.site("a").paths.network)


# -- a captured coordinator ------------------------------------------------------------------------


def as_coordinator(federation, fab, packet):
    """What the site answers to whoever owns the coordinator's machine and sends this bundle."""
    folder = Folder(federation.folder(COORDINATOR))
    control = Control(folder.superlink_socket)
    line = network(federation).read_public()
    node = control.reconcile({"a": read_node_key(line)})["a"]
    request = StartRunRequest(fab=fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {})))
    run_id = control._client.StartRun(request).run_id
    control.close()
    secret, path = folder.secret.read_bytes(), folder.superlink_socket
    tokens = acquire(path, COMPONENT, secret, runner.TASK, stop=lambda: False)
    token = next(tokens)
    client = make_task_client(path, COMPONENT, token)
    with keep_beating(client):
        task = client.PullTaskInput(PullTaskInputRequest())
        assert task.run.run_id == run_id
        grid = UnixGrid(path, token)
        grid.set_run(run_from_proto(task.run))
        TaskIdentity.run_id, TaskIdentity.task_id = run_id, task.task_id
        TaskIdentity.node_id = task.context.node_id
        (sent,) = grid.push_messages([Message(pack(packet), node, MESSAGE_TYPE, ttl=60.0)])
        replies = []

        def came():
            replies.extend(grid.pull_messages([sent]))
            return bool(replies)

        federation.until(came, "the site's reply", 60)
        grid.close()
    tokens.close()
    client.close()
    return replies[0]


def evil_bundle(folder, marker):
    """A bundle that shadows the installed packages; any import of it leaves a mark."""
    for name in ("penstock_bundle", "penstock_client", "penstock"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(
            f"open({str(marker)!r}, 'a').write(__name__)\nserver = client = None\n"
        )
    (folder / "pyproject.toml").write_text(PROJECT)
    return build_fab_from_disk(folder)


@pytest.mark.thorough
def test_a_bundle_that_shadows_the_packages_is_never_run(federation, tmp_path):
    marker = federation.root / "marker"
    fab = evil_bundle(tmp_path / "evil", marker)
    command = [sys.executable, "-c", "import penstock_client"]
    subprocess.run(command, cwd=tmp_path / "evil", check=True)
    assert marker.read_text() == "penstock_client"  # it would, if it were run
    marker.unlink()
    asked = packets.write_batch([], {}, b"")
    honest = as_coordinator(federation, read_bundle(), asked)
    assert (
        packets.read_description(packets.read_answers(unpack(honest.content))[packets.DESCRIBE])[
            "site"
        ]
        == "a"
    )
    log = network(federation).log / "runner.log"
    digest = hashlib.sha256(fab).hexdigest()
    assert digest not in log.read_text()
    reply = as_coordinator(federation, fab, asked)
    assert reply.has_error()
    assert reply.error.code == ErrorCode.INVALID_FAB
    assert f"refused bundle {digest}" in log.read_text()
    assert not marker.exists()
    unpacked = [p for p in federation.root.rglob("penstock_*") if p.is_dir()]
    assert unpacked == []
    # And the federation goes on.
    assert federation.ended(federation.submit("after", **QUESTION))["state"] == "finished"


def test_what_is_no_packet_is_answered_by_a_code(federation):
    reply = as_coordinator(federation, read_bundle(), b"\xff" * 100)
    assert unpack(reply.content) == b""


# -- other nodes -----------------------------------------------------------------------------------


def test_a_node_with_another_key_is_refused(federation, tmp_path):
    stranger = NetworkPaths(federation.root / "stranger")
    stranger.make()
    stranger.make_key()
    own = network(federation)
    for path in (own.ca, own.coordinator):
        (stranger.root / path.name).write_bytes(path.read_bytes())
    with open(tmp_path / "out", "wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock_client.operate.flower.supernode", str(stranger.root)],
            stdout=out,
            stderr=out,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
    try:
        process.wait(90)  # it ends by itself, and says why
    finally:
        process.kill()
        process.wait()
    assert "does not know this node's key" in (tmp_path / "out").read_text()
    control = Control(Folder(federation.folder(COORDINATOR)).superlink_socket)
    nodes = control._client.ListNodes(ListNodesRequest()).nodes_info
    control.close()
    known = [n.public_key for n in nodes if n.status == "online"]
    assert known == [read_node_key(own.read_public())]


class SignedAt:
    """A node's headers, made at another time."""

    def __init__(self, federation, moment):
        self.key = load_ssh_private_key(network(federation).node_key.read_bytes(), None)
        self.moment = moment

    def intercept(self, context, call_next):
        text = self.moment.isoformat()
        public = public_key_to_bytes(self.key.public_key())
        signature = sign_message(self.key, text.encode("ascii"))
        headers = {
            FLEET_HTTP_PUBLIC_KEY_HEADER: base64.b64encode(public).decode(),
            TIMESTAMP_HEADER: text,
            FLEET_HTTP_SIGNATURE_HEADER: base64.b64encode(signature).decode(),
        }
        add_headers(context.request, headers)
        return call_next(context)


@pytest.mark.parametrize(
    ("seconds", "accepted"), [(0, True), (-200, True), (-310, False), (-86400, False), (60, False)]
)
def test_headers_of_another_time_are_refused(federation, seconds, accepted):
    control = Control(Folder(federation.folder(COORDINATOR)).superlink_socket)
    (node,) = control._client.ListNodes(ListNodesRequest()).nodes_info
    control.close()
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
    interceptors = [version, SignedAt(federation, moment)]
    client = FleetHttpClient.from_server_address(
        f"127.0.0.1:{federation.port}", False, federation.ca.read_bytes(), interceptors=interceptors
    )
    request = SendNodeHeartbeatRequest(node=Node(node_id=node.node_id), heartbeat_interval=15)
    with client:
        if accepted:
            assert client.SendNodeHeartbeat(request).success
        else:
            with pytest.raises(httpx.HTTPStatusError) as caught:
                client.SendNodeHeartbeat(request)
            assert caught.value.response.status_code == 401


# -- the public port -------------------------------------------------------------------------------

HIDDEN = (
    *("/v1/control/start-run", "/v1/control/list-nodes", "/v1/control/register-node"),
    *("/v1/runtime/acquire-task", "/v1/runtime/pull-task-input", "/v1/runtime/push-messages"),
    *(
        "/v1/fleet/../control/list-nodes",
        "/v1/fleet/%2e%2e/control/list-nodes",
        "/v1//fleet/get-run",
    ),
    *("/docs", "/redoc", "/openapi.json", "/health", "/v1/docs", "/v1/openapi.json", "/"),
)


@pytest.mark.parametrize("path", HIDDEN)
def test_everything_else_is_not_found(federation, trust, path):
    with httpx.Client(verify=trust, trust_env=False) as client:
        for method in ("GET", "POST"):
            # The path as it is, which a client would tidy up.
            url = httpx.URL(federation.url).copy_with(raw_path=path.encode())
            assert client.request(method, url).status_code in (404, 405)
            assert client.request("POST", url).status_code == 404


def test_with_the_ca_alone_nobody_takes_a_task(federation):
    client = RuntimeHttpClient.from_server_address(
        server_address=f"127.0.0.1:{federation.port}",
        insecure=False,
        root_certificates=federation.ca.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")],
    )
    with client, pytest.raises(httpx.HTTPStatusError) as caught:
        client.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-serverapp"]))
    assert caught.value.response.status_code == 404


@pytest.mark.parametrize("token", [None, "pst_" + "A" * 43])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "me"),
        ("GET", "studies"),
        ("POST", "studies"),
        ("GET", "studies/after"),
        ("POST", "studies/after/cancel"),
        ("GET", "studies/after/files"),
        ("GET", "studies/after/uploads/a"),
        ("GET", "sites"),
        ("POST", "sites"),
        ("GET", "tokens"),
    ],
)
def test_without_a_token_nothing_is_read_or_handed_in(federation, trust, method, path, token):
    data = federation.signed("no-token", **QUESTION).to_bytes() if method == "POST" else None
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(verify=trust, trust_env=False, headers=headers) as client:
        answer = client.request(method, f"{federation.url}/api/v1/{path}", content=data)
    assert answer.status_code == 401
    assert "no-token" not in {s["name"] for s in federation.analyst.studies()}


def test_the_port_speaks_tls_only_and_under_its_own_certificate(federation):
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{federation.port}/api/v1/about", trust_env=False)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{federation.url}/api/v1/about", trust_env=False)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(cadata=federation.ca.read_text())
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", federation.port), timeout=10) as plain:
        with pytest.raises((ssl.SSLError, OSError)):
            old.wrap_socket(plain, server_hostname="127.0.0.1").close()


# -- ports, secrets, rows, while a study runs ------------------------------------------------------


def secrets(federation):
    """Everything that only its holder may know, in every form that a process could carry."""
    hub, site = Folder(federation.folder(COORDINATOR)), federation.site("a").paths
    raw = [hub.secret.read_bytes(), network(federation).secret.read_bytes()]
    found = {federation.token.encode(), b"PRIVATE KEY", b"pst_"}
    for data in raw:
        found |= {data, data.hex().encode(), base64.b64encode(data)}
    keys = [site.gate_key, network(federation).node_key, *hub.tls.glob("*.key")]
    assert len(keys) >= 4
    for key in keys:
        found.add(key.read_text().splitlines()[1].encode())
    return found


@dataclass
class Watched:
    """What was seen of all processes while a study ran: kinds, ports, and secrets shown."""

    study: str
    kinds: set[tuple[str, str]] = field(default_factory=set)
    ports: dict[str, set[int]] = field(default_factory=dict)
    shown: set[tuple[str, str]] = field(default_factory=set)


@pytest.fixture(scope="module")
def watched(federation):
    seen, hidden = Watched(federation.submit("watched", **QUESTION)), secrets(federation)

    def look():
        for machine in federation.machines:
            seen.ports.setdefault(machine, set()).update(federation.open_ports(machine))
            for kind, pid in federation.pids(machine).items():
                seen.kinds.add((machine, kind))
                gone = (FileNotFoundError, ProcessLookupError, PermissionError)
                with contextlib.suppress(*gone):  # a gate's environment is nobody's to read
                    for part in ("cmdline", "environ"):
                        text = Path(f"/proc/{pid}/{part}").read_bytes()
                        if any(s in text for s in hidden):
                            seen.shown.add((f"{kind} of {machine}", part))
        return federation.status_of(seen.study)["state"] not in ("open", "pooling")

    federation.until(look, "the study")
    assert federation.ended(seen.study)["state"] == "finished"
    return seen


def test_a_study_opens_no_port_and_shows_no_secret(federation, watched):
    site = ("supervisor", "gate", "supernode", "runner", "worker")
    hub = ("supervisor", "superlink", "runner", "builder", "assembly", "api")
    assert watched.kinds == {*(("a", k) for k in site), *((COORDINATOR, k) for k in hub)}
    assert watched.ports == {COORDINATOR: {federation.port}, "a": set()}
    assert watched.shown == set()
    hidden = secrets(federation)
    logged = b"".join(p.read_bytes() for p in federation.log_files())
    assert [s for s in hidden if s in logged] == []


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_sockets_keys_and_directories_are_closed(federation):
    hub, site = Folder(federation.folder(COORDINATOR)), federation.site("a").paths
    net = network(federation)
    closed = [hub.root, hub.tls, hub.run, hub.home, hub.logs, site.root, net.root, net.run]
    assert {str(p): oct(mode(p)) for p in closed} == {str(p): "0o700" for p in closed}
    private = [hub.secret, net.secret, site.gate_key, net.node_key, *hub.tls.glob("*.key")]
    private += [hub.settings, hub.root / "coordinator.db", hub.superlink_database, site.database]
    private += [site.steward_socket, net.supernode_socket]
    assert {str(p): oct(mode(p)) for p in private} == {str(p): "0o600" for p in private}
    assert mode(site.gate_socket) == 0o660
    assert mode(site.run) == 0o750
    assert stat.S_ISSOCK(hub.superlink_socket.stat().st_mode)
    for log in federation.log_files():
        assert mode(log) & 0o077 == 0, log


def memory(pid):
    """The writable memory of a process, region by region."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
        for line in maps:
            place, flags = line.split()[:2]
            if not flags.startswith("rw") or "[v" in line:
                continue
            begin, end = (int(x, 16) for x in place.split("-"))
            with contextlib.suppress(OSError, ValueError):
                mem.seek(begin)
                yield mem.read(end - begin)


@pytest.mark.usefixtures("watched")
def test_the_network_side_and_the_coordinator_hold_no_row(federation):
    site = federation.site("a").paths
    assert len(canaries((federation.root / "a.csv").read_bytes())) == 3  # it detects
    folders = (site.network, federation.folder(COORDINATOR), site.root / "log")
    files = [p for f in folders for p in f.rglob("*") if p.is_file()]
    files += federation.root.glob("*.out")
    assert len(files) > 15
    assert {str(p): found for p in files if (found := canaries(p.read_bytes()))} == {}
    pids = federation.pids("a")
    for kind in ("runner", "supernode"):
        opened = [Path(f.path) for f in psutil.Process(pids[kind]).open_files()]
        ours = [p for p in opened if p.is_relative_to(site.root)]
        assert [p for p in ours if not p.is_relative_to(site.network)] == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.usefixtures("watched")
def test_the_network_sides_memory_holds_no_row(federation):
    pids = federation.pids("a")
    try:
        own = any(canaries(part) for part in memory(os.getpid()))
        found = {
            kind: [c for part in memory(pids[kind]) for c in canaries(part)]
            for kind in ("runner", "supernode")
        }
    except PermissionError:
        pytest.skip("this user may not read the memory of its own processes")
    assert own  # it detects
    assert found == {"runner": [], "supernode": []}
