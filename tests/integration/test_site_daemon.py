"""`penstock site start` and what surrounds it: joining, two users, one daemon, a clean end."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from typer.testing import CliRunner

from penstock.base.errors import InvalidInput, PenstockError, SignatureError
from penstock.cli.main import app
from penstock.processes import certificates
from penstock.wire.signatures import fingerprint
from penstock_client.ledger.sqlite_file import find_holder, hold_exclusively
from penstock_client.onboarding.invite import FORMAT
from penstock_client.operate import site_daemon
from penstock_client.site.network_paths import (
    Coordinator,
    NetworkPaths,
    node_fingerprint,
    read_public_line,
)


def penstock(*args, code=0):
    result = CliRunner().invoke(app, [str(a) for a in args])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


def until(ask, seconds=90):
    end = time.monotonic() + seconds
    while not (found := ask()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def authority():
    """A CA's certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now).not_valid_after(now + timedelta(days=2))
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


@pytest.fixture
def site(world):
    return world.site()


def invite(here, **changes):
    join = json.loads(here.paths.join.read_text())
    record = {
        "format": FORMAT,
        "federation": "main",
        "site": "a",
        "address": "localhost:1",
        "ca": authority(),
        "gate_fingerprint": fingerprint(join["gate_key"]),
        "node_fingerprint": node_fingerprint(join["node_key"]),
        **changes,
    }
    path = here.paths.root.parent / "invite.json"
    path.write_text(json.dumps({k: v for k, v in record.items() if v is not None}))
    return path


def join(site, path, *more, code=0):
    return penstock("site", "join", path, "-d", site.paths.root, *more, code=code)


# -- the node key, and the join record ---------------------------------------------------------


def test_a_site_gets_a_node_key_as_ssh_keygen_makes_it(site):
    network = NetworkPaths(site.paths.network)
    assert network.root.stat().st_mode & 0o777 == 0o700
    assert network.node_key.stat().st_mode & 0o777 == 0o600
    assert network.node_public.stat().st_mode & 0o777 == 0o644
    assert network.node_key.read_bytes().startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    record = json.loads(site.paths.join.read_text())
    assert record["node_key"] == network.read_public() == network.make_key()
    assert "gate_socket" not in record
    if shutil.which("ssh-keygen"):
        said = subprocess.run(
            ["ssh-keygen", "-l", "-f", str(network.node_key)], capture_output=True, check=True
        ).stdout.decode()
        assert node_fingerprint(record["node_key"]) in said
        assert said.startswith("384 ")


def test_a_separate_network_user_keeps_its_own_key(world):
    folder = world.root / "net"
    said = penstock("site", "node-key", folder)
    line = NetworkPaths(folder).read_public()
    assert node_fingerprint(line) in said
    key = folder.joinpath("node.key").read_bytes()
    assert node_fingerprint(line) in penstock("site", "node-key", folder)  # kept, never replaced
    assert folder.joinpath("node.key").read_bytes() == key
    (folder / "commented.pub").write_text(f"{line} someone@host\n")
    penstock(
        *("site", "init", "--name", "b", "-d", world.root / "b"),
        *("--node-key", folder / "commented.pub"),
    )
    assert not (world.root / "b" / "network").exists()
    assert (world.root / "b" / "keys" / "node.pub").read_text().strip() == line


@pytest.mark.parametrize("text", ["", "ssh-rsa AAAA", "-----BEGIN OPENSSH PRIVATE KEY-----\nabc"])
def test_what_is_no_node_key_makes_no_site_and_is_not_shown(world, text):
    (world.root / "x.pub").write_text(text)
    said = penstock(
        *("site", "init", "--name", "b", "-d", world.root / "b"),
        *("--node-key", world.root / "x.pub"),
        code=5,
    )
    assert "not a node's public key" in said
    assert "abc" not in said
    assert not (world.root / "b").exists()


def test_other_curves_are_no_node_keys():
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    public = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    with pytest.raises(SignatureError, match="nistp384"):
        read_public_line(public.decode(), what="x")


def test_a_node_key_that_others_can_read_is_not_used(site):
    network = NetworkPaths(site.paths.network)
    network.node_key.chmod(0o640)
    with pytest.raises(SignatureError, match="chmod 600"):
        network.make_key()


# -- joining -----------------------------------------------------------------------------------


def test_an_invite_is_kept_and_its_ca_shown_for_the_telephone(site):
    path = invite(site, address="penstock.example.org:9443")
    said = join(site, path)
    network = NetworkPaths(site.paths.network)
    ca = json.loads(path.read_text())["ca"]
    assert certificates.fingerprint(ca) in said
    assert network.ca.read_text() == ca
    found = network.read_coordinator()
    assert found == Coordinator("main", "a", "penstock.example.org:9443")
    assert (found.host, found.port) == ("penstock.example.org", 9443)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"site": "b"}, "site: is not this site's"),
        ({"federation": "other"}, "federation: is not this site's"),
        ({"gate_fingerprint": "SHA256:x"}, "gate_fingerprint: is not this site's"),
        ({"node_fingerprint": "SHA256:x"}, "node_fingerprint: is not this site's"),
        ({"node_fingerprint": None}, "node_fingerprint: is missing"),
        ({"gate_key": "ab" * 32}, "gate_fingerprint: is missing or another's"),
        ({"address": "nowhere"}, "address: is not one"),
        ({"address": "host:0"}, "address: is not one"),
        ({"address": "host:99999"}, "address: is not one"),
        ({"address": "https://host:1"}, "address: is not one"),
        ({"address": None}, "address: is missing"),
        ({"ca": "-----BEGIN CERTIFICATE-----"}, "not a certificate"),
        ({"ca": 7}, "ca: is missing"),
        ({"format": "penstock-join/1"}, "not an invite"),
    ],
)
def test_an_invite_that_is_not_this_sites_is_refused(site, changes, words):
    assert words in join(site, invite(site, **changes), code=2)
    assert not NetworkPaths(site.paths.network).joined


def test_another_ca_needs_to_be_accepted(site):
    join(site, invite(site))
    pinned = site.paths.network.joinpath("ca.crt").read_text()
    other = invite(site, address="localhost:2").rename(site.paths.root.parent / "other.json")
    assert "another CA is pinned here" in join(site, other, code=1)
    assert site.paths.network.joinpath("ca.crt").read_text() == pinned
    join(site, invite(site, ca=pinned, address="localhost:3"))  # the same: moved, no more
    assert NetworkPaths(site.paths.network).read_coordinator().port == 3
    join(site, other, "--replace")
    assert site.paths.network.joinpath("ca.crt").read_text() != pinned


def test_a_network_user_joins_without_seeing_the_site(world, site):
    folder = world.root / "net"
    penstock("site", "node-key", folder)
    print_ = node_fingerprint(NetworkPaths(folder).read_public())
    alone = ("-d", world.root / "no-site-here", "--network", folder)
    said = penstock("site", "join", invite(site), *alone, code=5)
    assert "another node key" in said
    said = penstock("site", "join", invite(site, node_fingerprint=print_), *alone)
    assert json.loads(invite(site).read_text())["gate_fingerprint"] in said
    assert NetworkPaths(folder).joined


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": "penstock-coordinator/1"}'])
def test_a_damaged_coordinator_file_is_named(tmp_path, text):
    network = NetworkPaths(tmp_path)
    with pytest.raises(PenstockError, match="has not joined"):
        network.read_coordinator()
    network.coordinator.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        network.read_coordinator()
    assert str(network.coordinator) in str(caught.value)


# -- the daemon --------------------------------------------------------------------------------


def start(site, *command):
    """The real command, as a process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "site", *(command or ("start",))]
        + ([] if command else ["--dir", str(site.paths.root)]),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    site.processes.append(process)
    return process


def up(site):
    return site_daemon.is_answering(site.paths.steward_socket)


def ended(process):
    """What a process said, once it has ended."""
    output = process.communicate(timeout=90)[0].decode()
    return process.returncode, output


def status(site):
    return json.loads(penstock("site", "status", "--json", "-d", site.paths.root))


def gate_of(process):
    """The gate's process: the supervisor's child that runs the gate's command."""
    for child in psutil.Process(process.pid).children():
        with contextlib.suppress(psutil.Error):
            if "gate" in child.cmdline():
                return child
    return None


def test_a_site_that_has_not_joined_runs_its_gate_and_says_how_to_join(world, site):
    process = start(site)
    until(lambda: up(site))
    until(lambda: status(site)["processes"] == {"gate": "runs"})
    shown = status(site)
    assert (shown["daemon"], shown["coordinator"]) == (process.pid, None)
    job = site.submit(world.signed())
    assert site.wait(job.request_id).state == "delivered"
    second = start(site)
    code, said = ended(second)
    assert (code, f"this site runs already (got pid {process.pid})" in said) == (7, True)
    assert up(site)
    penstock("site", "stop", "-d", site.paths.root)
    code, said = ended(process)
    assert code == 0
    assert "penstock site join" in said
    assert "gate runs" in said
    assert "gate has stopped" in said
    assert find_holder(site.paths.lock) is None
    assert not site.paths.daemon_state.exists()


def test_a_gate_that_is_killed_comes_back_and_the_site_can_be_stopped_meanwhile(site):
    process = start(site)
    until(lambda: up(site))
    first = until(lambda: gate_of(process))
    first.kill()
    until(lambda: up(site) and (found := gate_of(process)) and found.pid != first.pid)
    # While it is away: the supervisor itself is told.
    until(lambda: gate_of(process)).kill()
    until(lambda: not up(site))
    penstock("site", "stop", "-d", site.paths.root)
    code, said = ended(process)
    assert (code, "gate ended" in said) == (0, True)


def test_a_killed_daemon_leaves_nothing_running_and_no_lie(site):
    process = start(site)
    until(lambda: up(site))
    gate = until(lambda: gate_of(process))
    site.kill(process)
    psutil.wait_procs([gate], timeout=60)
    until(lambda: find_holder(site.paths.lock) is None)
    assert "the gate does not run" in penstock("site", "status", "-d", site.paths.root, code=8)
    start(site)
    until(lambda: up(site))


def test_what_would_stop_the_gate_is_said_before_anything_starts(site):
    policy = site.paths.policy.read_text()
    site.paths.policy.write_text(policy.replace("automatic", "automatc"))
    code, said = ended(start(site))
    assert (code, "automatc" in said) == (2, True)
    site.paths.policy.write_text(policy)
    with hold_exclusively(site.paths.lock):
        code, said = ended(start(site))
    assert (code, "another process holds this site's lock" in said) == (7, True)
    with open(site.paths.database, "r+b") as file:
        file.write(b"junk" * 10)
    code, said = ended(start(site))
    assert (code, "the ledger's file is damaged" in said) == (7, True)


def test_a_joined_site_starts_supernode_and_runner_too(site):
    join(site, invite(site))  # nobody listens there: they are to be seen trying
    process = start(site)
    until(lambda: up(site))
    until(lambda: set(status(site)["processes"]) == {"gate", "supernode", "runner"})
    shown = status(site)
    assert shown["coordinator"] == "localhost:1"
    until(lambda: (site.paths.network / "log" / "supernode.log").exists())
    penstock("site", "stop", "-d", site.paths.root)
    assert ended(process)[0] == 0


def test_the_network_side_runs_alone_from_its_own_directory(world, site):
    folder = world.root / "net"
    penstock("site", "node-key", folder)
    code, said = ended(start(site, "network", str(folder), "--gate", str(site.paths.gate_socket)))
    assert (code, "has not joined" in said) == (1, True)
    print_ = node_fingerprint(NetworkPaths(folder).read_public())
    path = invite(site, node_fingerprint=print_)
    penstock("site", "join", path, "-d", world.root / "none", "--network", folder)
    process = start(site, "network", str(folder), "--gate", str(site.paths.gate_socket))
    until(lambda: NetworkPaths(folder).log.joinpath("supernode.log").exists())
    assert find_holder(NetworkPaths(folder).lock) == process.pid
    process.send_signal(signal.SIGTERM)
    code, said = ended(process)
    assert code == 0
    assert "nobody answers on" in said
