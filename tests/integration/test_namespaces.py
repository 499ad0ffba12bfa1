"""Network namespaces as separate hosts: only one port is spoken to, links that break and crawl."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import socket
import struct
import subprocess
import threading

import pytest
from flwr.proto.control_pb2 import ListNodesRequest
from tests.support.federation import COORDINATOR, Federation, small_disk

from penstock_client.site.network_paths import NetworkPaths
from penstock_server.store.folder import Folder
from penstock_server.transport.flower.control import Control, read_node_key

pytestmark = pytest.mark.thorough

SITES = ("a", "b")
MACHINES = (COORDINATOR, *SITES)
SUBNET = "10.213.77"
HUB = f"{SUBNET}.1"
TOOLS = ("ip", "nsenter", "ss", "tc")
ETH_P_ALL, ETH_P_IP, ETH_P_ARP, TCP = 3, 0x0800, 0x0806, 6
SYN, ACK = 2, 16
CLONE_NEWNET = 0x40000000


def run(*command, check=True):
    return subprocess.run(command, check=check, capture_output=True, text=True)


class Hosts:
    """A switch, and a host for each machine, with no way to anywhere else."""

    def __init__(self):
        self.tag = f"pk{secrets.token_hex(3)}"
        self.made = []
        self.switch = self._namespace("sw")
        run("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "br0", "up")
        for number, machine in enumerate(MACHINES, start=1):
            host = self._namespace(self.suffix(machine))
            run(
                *("ip", "-n", host, "link", "add", "eth0", "type", "veth"),
                *("peer", "name", self.port(machine), "netns", self.switch),
            )
            run("ip", "-n", host, "addr", "add", f"{SUBNET}.{number}/24", "dev", "eth0")
            run("ip", "-n", host, "link", "set", "eth0", "up")
            run("ip", "-n", self.switch, "link", "set", self.port(machine), "master", "br0")
            run("ip", "-n", self.switch, "link", "set", self.port(machine), "up")

    def _namespace(self, suffix):
        name = f"{self.tag}-{suffix}"
        run("ip", "netns", "add", name)
        self.made.append(name)
        # Its chatter would be packets to elsewhere.
        run(*self.inside(name), "sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6")
        run("ip", "-n", name, "link", "set", "lo", "up")
        return name

    @staticmethod
    def suffix(machine):
        return "hub" if machine == COORDINATOR else machine

    @staticmethod
    def port(machine):
        return f"port-{Hosts.suffix(machine)}"

    def host(self, machine):
        return f"{self.tag}-{self.suffix(machine)}"

    @staticmethod
    def inside(name):
        # Unlike `ip netns exec`, it shares the mounts.
        return ("nsenter", f"--net=/run/netns/{name}", "--")

    def prefixes(self):
        return {m: self.inside(self.host(m)) for m in MACHINES}

    def listening(self, machine):
        """Local addresses of listening TCP and bound UDP sockets."""
        shown = run(*self.inside(self.host(machine)), "ss", "-H", "-ltun").stdout
        return {line.split()[4] for line in shown.splitlines()}

    def cable(self, machine, state):
        run("ip", "-n", self.switch, "link", "set", self.port(machine), state)

    def shape(self, machine):
        """A slow link, both ways; returns how slow it could be made."""
        ends = [(self.host(machine), "eth0"), (self.switch, self.port(machine))]
        slow = ("netem", "delay", "100ms", "rate", "1mbit", "loss", "1%")
        thin = ("tbf", "rate", "1mbit", "burst", "16kbit", "latency", "400ms")
        for kind in (slow, thin):
            made = [
                run("tc", "-n", n, "qdisc", "replace", "dev", d, "root", *kind, check=False)
                for n, d in ends
            ]
            if all(m.returncode == 0 for m in made):
                return kind[0]
        pytest.skip(f"no traffic control here: {made[0].stderr}")

    def unshape(self, machine):
        for name, device in ((self.host(machine), "eth0"), (self.switch, self.port(machine))):
            run("tc", "-n", name, "qdisc", "del", "dev", device, "root", check=False)

    def close(self):
        for name in reversed(self.made):
            run("ip", "netns", "del", name, check=False)


class Sniffer:
    """Every kind of packet that crosses the switch."""

    def __init__(self, namespace):
        self.flows, self.others, self.calls = set(), set(), set()
        self._ready, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(namespace,), daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def _run(self, namespace):
        # This thread alone moves there; it ends there too.
        with open(f"/run/netns/{namespace}") as file:
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.setns(file.fileno(), CLONE_NEWNET) == 0
        with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL)) as tap:
            tap.settimeout(0.2)
            self._ready.set()
            while not self._stopping.is_set():
                with contextlib.suppress(TimeoutError):
                    data, address = tap.recvfrom(65535)
                    self._take(data, address)

    def _take(self, data, address):
        if address[1] != ETH_P_IP:
            self.others.add(address[1])
            return
        header = 4 * (data[0] & 15)
        source, target = socket.inet_ntoa(data[12:16]), socket.inet_ntoa(data[16:20])
        if data[9] != TCP:
            self.flows.add((data[9], source, 0, target, 0))
            return
        own, other = struct.unpack_from("!HH", data, header)
        flags = data[header + 13]
        # The ports of clients differ each time.
        hub = HUB in (source, target)
        self.flows.add(
            (
                TCP,
                source,
                own * (source == HUB or not hub),
                target,
                other * (target == HUB or not hub),
            )
        )
        if flags & SYN and not flags & ACK:
            self.calls.add((source, target, other))

    def stop(self):
        self._stopping.set()
        self._thread.join(5)


@pytest.fixture(scope="module")
def hosts():
    if os.getuid() != 0:
        pytest.skip("only root can make network namespaces")
    missing = [t for t in TOOLS if shutil.which(t) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    made = Hosts.__new__(Hosts)
    try:
        try:
            made.__init__()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr}")
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def federation(hosts):
    made = Federation(SITES, prefixes=hosts.prefixes(), host=HUB)
    try:
        made.start()
        yield made
    finally:
        made.close()


def delivered(federation, study, seconds=180):
    status = federation.ended(study, seconds)
    assert {p["site"]: p["state"] for p in status["sites"]} == dict.fromkeys(SITES, "delivered")
    assert federation.charges(study) == {name: ["committed"] for name in SITES}
    assert federation.draws(study) == dict.fromkeys(SITES, 1)
    assert all(federation.same_bytes(study, name) for name in SITES)


def test_sites_speak_to_one_port_and_listen_on_none(hosts, federation):
    for machine in MACHINES:
        routes = run("ip", "-n", hosts.host(machine), "route").stdout.splitlines()
        assert [r.split()[0] for r in routes] == [f"{SUBNET}.0/24"]
    sniffer = Sniffer(hosts.switch)
    try:
        federation.stop("a")
        federation.start("a")  # its first words, too
        study = federation.submit("seen")
        delivered(federation, study)
    finally:
        sniffer.stop()
    sites = {f"{SUBNET}.{n}" for n in range(2, 2 + len(SITES))}
    port = federation.port
    assert sniffer.flows == {
        *((TCP, site, 0, HUB, port) for site in sites),
        *((TCP, HUB, port, site, 0) for site in sites),
    }
    assert sniffer.others <= {ETH_P_ARP}
    # The others may have kept their connections; nobody calls a site.
    assert sniffer.calls <= {(site, HUB, port) for site in sites}
    assert (f"{SUBNET}.2", HUB, port) in sniffer.calls
    assert {m: hosts.listening(m) for m in MACHINES} == {
        COORDINATOR: {f"{HUB}:{port}"},
        **{name: set() for name in SITES},
    }


def online(federation, name):
    control = Control(Folder(federation.folder(COORDINATOR)).superlink_socket)
    try:
        nodes = control._client.ListNodes(ListNodesRequest()).nodes_info
    finally:
        control.close()
    network = NetworkPaths(federation.site(name).paths.network)
    key = read_node_key(network.read_public())
    return any(n.public_key == key and n.status == "online" for n in nodes)


@pytest.mark.soak
def test_a_site_that_is_cut_off_in_mid_study_delivers_when_it_is_back(hosts, federation):
    federation.policy("b", "by-hand")
    try:
        study = federation.submit("cut")
        federation.reached(study, "b", "awaiting-approval")
        hosts.cable("b", "down")
        federation.until(lambda: not online(federation, "b"), "the loss to be seen")
        federation.approve("b", "cut")  # the site itself works on
        federation.until(lambda: federation.charges(study)["b"] == ["committed"], "b's release")
        assert federation.parts(study) == {"a": "delivered", "b": "awaiting-approval"}
        hosts.cable("b", "up")
        delivered(federation, study, 300)
    finally:
        hosts.cable("b", "up")
        federation.policy("b", "automatic")


@pytest.mark.soak
def test_a_link_that_breaks_again_and_again_costs_one_charge(hosts, federation):
    federation.policy("b", "by-hand")
    try:
        study = federation.submit("flaps")
        federation.reached(study, "b", "awaiting-approval")
        federation.approve("b", "flaps")
        for _ in range(10):
            hosts.cable("b", "down")
            hosts.cable("b", "up")
        delivered(federation, study, 300)
    finally:
        federation.policy("b", "automatic")


@pytest.mark.soak
def test_a_slow_link_delivers_too(hosts, federation):
    hosts.shape("b")
    try:
        delivered(federation, federation.submit("slow"), 600)
    finally:
        hosts.unshape("b")


@pytest.mark.soak
def test_a_full_disk_at_the_coordinator_over_the_network(federation):
    log = federation.folder(COORDINATOR) / "log" / "runner.log"
    before = log.read_text().count("No space left")
    with small_disk(federation.folder(COORDINATOR) / "uploads") as give_room:
        study = federation.submit("full")
        federation.until(lambda: log.read_text().count("No space left") > before, "a full disk")
        give_room()
        delivered(federation, study)
