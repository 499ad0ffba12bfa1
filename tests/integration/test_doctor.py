"""The doctors, against real sockets: each thing that can be wrong is told apart from the others."""

import contextlib
import json
import os
import shutil
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
import urllib.request
from datetime import UTC, datetime, timedelta

import pytest

from penstock.mechanisms.flow import kernel
from penstock.processes import certificates, checkup, reachability
from penstock.processes.checkup import FAIL, OK, WARN, Row
from penstock_client.operate import site_doctor as site_doctor
from penstock_client.site.network_paths import NetworkPaths
from penstock_server.install import tls
from penstock_server.install.configuration import read_settings
from penstock_server.install.founding import make_coordinator
from penstock_server.operate import server_doctor as server_doctor

ALL_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in ALL_PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def issued(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    tls.issue(folder, ["localhost", "127.0.0.1"])
    return folder


def about(ahead=0.0, **more):
    """What a coordinator says whose clock is ``ahead`` seconds ahead of ours."""
    time = (datetime.now(UTC) + timedelta(seconds=ahead)).isoformat()
    return {"penstock": "9.9.9", "wire": "1.0", "wire_majors": [1], "time": time, **more}


class Threaded(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def handle_error(self, *_):
        pass  # a client that goes away is what most of these tests are about


@contextlib.contextmanager
def listening(handle):
    """A TCP server that hands each connection to a function; its port."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.settimeout(10)
            handle(self.request)

    with Threaded(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def read_head(up):
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        more = up.recv(1)
        if not more:
            return b""
        head += more
    return head


def coordinator(folder, answer=about, status="200 OK", context=None):
    """A tiny coordinator: TLS, and an answer to GET /api/v1/about."""
    context = context or tls.server_context(folder)

    def handle(raw):
        with context.wrap_socket(raw, server_side=True) as up:
            if read_head(up).startswith(b"GET /api/v1/about HTTP/1.1\r\n"):
                said = answer()
                body = said if isinstance(said, bytes) else json.dumps(said).encode()
                up.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
                up.sendall(body)

    return listening(handle)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def look(port, folder, host="localhost"):
    return reachability.check_way(host, port, tls.read_authority(folder), (1,))


def the(rows, check):
    (found,) = [row for row in rows if row.check == check]
    return found


def failed(rows):
    """The one failed row; every row that is not well says what to do."""
    (found,) = [row for row in rows if row.state == FAIL]
    assert all(row.remedy for row in rows if row.state != OK)
    return found


# -- the way to the coordinator ------------------------------------------------------------------


def test_all_well(issued):
    with coordinator(issued) as port:
        rows = look(port, issued)
    assert [r.check for r in rows] == ["proxy", "name", "port", "tls", "clock", "wire"]
    assert {r.state for r in rows} == {OK}
    assert "TLSv1.3, certificate valid until" in the(rows, "tls").found
    assert "coordinator 9.9.9, wire 1" in the(rows, "wire").found


def test_a_name_without_an_address(issued):
    row = failed(look(443, issued, host="coordinator.invalid"))
    assert (row.check, row.found) == ("name", "coordinator.invalid has no address")


def test_a_closed_port(issued):
    row = failed(look(free_port(), issued))
    assert row.check == "port"
    assert "is closed" in row.found


def test_a_port_without_tls(issued):
    def plain(raw):
        raw.recv(1000)
        raw.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with listening(plain) as port:
        row = failed(look(port, issued))
    assert row.check == "tls"
    assert "does not speak TLS" in row.found


def test_a_port_that_says_nothing(issued, monkeypatch):
    monkeypatch.setattr(reachability, "SECONDS", 0.3)
    end = threading.Event()
    with listening(lambda raw: end.wait(20)) as port:
        row = failed(look(port, issued))
        end.set()
    assert row.check == "tls"
    assert "does not answer the TLS greeting" in row.found


def test_a_firewall_that_cuts_tls(issued):
    with listening(lambda raw: raw.recv(1000)) as port:
        row = failed(look(port, issued))
    assert row.check == "tls"
    assert "firewall" in row.remedy


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_an_old_tls(issued):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued / "server.crt", issued / "server.key")
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    with coordinator(issued, context=context) as port:
        row = failed(look(port, issued))
    assert "no TLS 1.2 or later" in row.found


def test_another_authority(issued, tmp_path):
    tls.issue(tmp_path, ["localhost"])
    with coordinator(tmp_path) as port:
        row = failed(look(port, issued))
    assert "not the authority of the invite, but of CN=Penstock authority" in row.found
    assert "TLS inspection" in row.remedy


def test_an_expired_certificate(issued, tmp_path):
    tls.issue(tmp_path, ["localhost"])
    long_ago = datetime.now(UTC) - timedelta(days=400)
    tls.issue(tmp_path, ["localhost"], now=long_ago)
    with coordinator(tmp_path) as port:
        row = failed(look(port, tmp_path))
    assert f"expired on {long_ago + timedelta(days=397):%Y-%m-%d}" in row.found


def test_a_certificate_of_the_future(tmp_path):
    tls.issue(tmp_path, ["localhost"])
    soon = datetime.now(UTC) + timedelta(days=2)
    tls.issue(tmp_path, ["localhost"], now=soon)
    with coordinator(tmp_path) as port:
        row = failed(look(port, tmp_path))
    assert f"valid only from {soon - timedelta(hours=1):%Y-%m-%d}" in row.found
    assert "clock" in row.remedy


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_another_name(tmp_path, host):
    tls.issue(tmp_path, ["coordinator.example.org", "192.0.2.1"])
    with coordinator(tmp_path) as port:
        row = failed(look(port, tmp_path, host=host))
    names = "coordinator.example.org, 192.0.2.1"
    assert row.found == f"the certificate is not for {host} but for {names}"


def test_a_certificate_that_ends_soon(tmp_path):
    tls.issue(tmp_path, ["localhost"])
    tls.issue(tmp_path, ["localhost"], now=datetime.now(UTC) - timedelta(days=390))
    with coordinator(tmp_path) as port:
        row = the(look(port, tmp_path), "tls")
    assert row.state == WARN
    assert row.remedy


@pytest.mark.parametrize(
    ("ahead", "state", "way"),
    [
        (0, OK, ""),
        (-30, OK, "ahead of"),
        (30, OK, "behind"),
        (90, WARN, "behind"),
        (-90, WARN, "ahead of"),
        (310, FAIL, "behind"),
        (-310, FAIL, "ahead of"),
        (-86400, FAIL, "ahead of"),
    ],
)
def test_clocks(issued, ahead, state, way):
    with coordinator(issued, lambda: about(ahead)) as port:
        row = the(look(port, issued), "clock")
    assert row.state == state
    assert bool(row.remedy) == (state != OK)
    if way:
        seconds, found = row.found.split(" s ")
        assert found == f"{way} the coordinator's"
        assert abs(int(seconds) - abs(ahead)) < 15  # a slow machine takes its time to answer


@pytest.mark.parametrize(
    "answer",
    [b"", b"[]", b"{", b"{}", b'{"time": "now"}', b'{"time": "2026-11-21T00:00:00"}', b"x" * 70000],
)
def test_what_is_no_coordinator(issued, answer):
    with coordinator(issued, lambda: answer) as port:
        assert failed(look(port, issued)).check == "clock"


def test_an_answer_without_an_end(issued):
    with coordinator(issued, lambda: about(more="x" * reachability.ABOUT_BYTES)) as port:
        assert failed(look(port, issued)).check == "clock"


def test_a_coordinator_without_the_route(issued):
    with coordinator(issued, status="404 Not Found") as port:
        row = failed(look(port, issued))
    assert "HTTP status 404" in row.found


@pytest.mark.parametrize("majors", [[2], [], None, "1", [True]])
def test_another_wire(issued, majors):
    with coordinator(issued, lambda: about(wire_majors=majors)) as port:
        row = failed(look(port, issued))
    assert row.check == "wire"


# -- through a proxy -----------------------------------------------------------------------------


def proxy(status="200 Connection established", seen=None, target=None):
    """An HTTP proxy that knows CONNECT only; it reaches ``target`` for every name."""

    def handle(raw):
        head = read_head(raw)
        if seen is not None:
            seen.append(head.decode())
        raw.sendall(f"HTTP/1.1 {status}\r\nVia: test\r\n\r\n".encode())
        if not status.startswith("200"):
            return
        with socket.create_connection(("127.0.0.1", target), timeout=10) as there:
            back = threading.Thread(target=pipe, args=(there, raw), daemon=True)
            back.start()
            pipe(raw, there)
            back.join(10)

    return listening(handle)


def pipe(source, sink):
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def test_through_a_proxy(tmp_path, monkeypatch):
    tls.issue(tmp_path, ["coordinator.invalid"])
    seen = []
    with coordinator(tmp_path) as port, proxy(seen=seen, target=port) as through:
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:se%2Fcret@127.0.0.1:{through}")
        rows = look(8443, tmp_path, host="coordinator.invalid")
    assert {r.state for r in rows} == {OK}, rows
    assert f"through 127.0.0.1:{through}" in the(rows, "proxy").found
    assert "the proxy looks up coordinator.invalid" in the(rows, "name").found
    assert "through the proxy" in the(rows, "port").found
    assert all(s.startswith("CONNECT coordinator.invalid:8443 HTTP/1.1\r\n") for s in seen)
    assert all("Proxy-Authorization: Basic bWU6c2UvY3JldA==\r\n" in s for s in seen)
    assert len(seen) == 3  # the port, the certificate, the clock
    assert not any("cret" in f"{r.found} {r.remedy}" for r in rows)


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        ("403 Forbidden", "allow CONNECT to coordinator.invalid port 8443"),
        ("407 Proxy Authentication Required", "user and password"),
        ("502 Bad Gateway", "cannot reach"),
        ("nonsense", "no HTTP proxy"),
    ],
)
def test_a_proxy_that_says_no(issued, monkeypatch, status, remedy):
    with proxy(status) as through:
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{through}")
        row = failed(look(8443, issued, host="coordinator.invalid"))
    assert row.check == "port"
    assert remedy in row.remedy


def test_a_proxy_that_is_not_there(issued, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{free_port()}")
    row = failed(look(8443, issued, host="coordinator.invalid"))
    assert "refuses connections" in row.found
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:3128")
    row = failed(look(8443, issued, host="coordinator.invalid"))
    assert row.found == "proxy.invalid has no address"
    assert "HTTPS_PROXY" in row.remedy


def test_exempt_from_the_proxy(issued, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:3128")
    with coordinator(issued) as port:
        for exempt in ("localhost", f"localhost:{port}", "*"):
            monkeypatch.setenv("NO_PROXY", exempt)
            rows = look(port, issued)
            assert {r.state for r in rows} == {OK}
            assert "NO_PROXY exempts localhost" in the(rows, "proxy").found


def test_proxy_variables_that_do_not_help(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:3128")
    assert reachability.check_proxy("example.org", 443).state == WARN
    for wrong in ("https://proxy.invalid:3128", "socks5://proxy.invalid:1080", "http://"):
        monkeypatch.setenv("HTTPS_PROXY", wrong)
        assert reachability.check_proxy("example.org", 443).state == FAIL
    # The library looks the same way as the standard library that others use.
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:3128")
    assert urllib.request.getproxies()["https"] == "http://proxy.invalid:3128"


# -- this machine --------------------------------------------------------------------------------


def test_checks_run_at_the_same_time_and_none_hides_another():
    meet = threading.Barrier(2, timeout=20)
    never = threading.Event()

    def together():
        meet.wait()
        return Row("together", OK, "met")

    def broken():
        raise KeyError("a secret")

    def unreadable():
        raise PermissionError(13, "Permission denied", "/some/file")

    rows = checkup.run(
        [
            ("late", lambda: never.wait(60) or Row("late", OK, "")),
            ("a", together),
            ("b", together),
            ("broken", broken),
            ("unreadable", unreadable),
        ],
        seconds=2.0,
    )
    never.set()
    assert [r.state for r in rows] == [FAIL, OK, OK, FAIL, FAIL]
    assert rows[0].found == "no answer in 2 s"
    assert rows[3].found == "the check itself failed (KeyError)"
    assert rows[4].found == "Permission denied: /some/file"
    assert all(r.remedy for r in rows if r.state == FAIL)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KiB, and one of 3 GiB that takes no memory until it is filled."""
    made = []

    def make(size):
        place = tmp_path / size
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
            return None
        made.append(place)
        return place

    yield make
    for place in made:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize(("size", "free", "state"), [("64k", 65536, FAIL), ("3g", 3 * 2**30, WARN)])
def test_a_disk_that_is_almost_full(small_disk, tmp_path, monkeypatch, size, free, state):
    place = small_disk(size)
    if place is None:  # not root, or no mounts in this container
        place = tmp_path
        monkeypatch.setattr(checkup, "_count_free_bytes", lambda _: free)
    row = checkup.check_disk(place / "not" / "made" / "yet")
    assert row.state == state
    assert row.remedy


def test_modes(tmp_path):
    key, folder = tmp_path / "key", tmp_path / "folder"
    key.touch(mode=0o600)
    folder.mkdir(mode=0o700)
    absent = tmp_path / "absent"
    (row,) = checkup.check_modes([key, folder, absent])
    assert (row.state, row.found) == (OK, "2 keys and directories closed to others")
    key.chmod(0o640)
    folder.chmod(0o755)
    rows = checkup.check_modes([key, folder, absent])
    assert [r.remedy for r in rows] == [f"Run chmod 600 {key}", f"Run chmod 700 {folder}"]
    assert {r.state for r in rows} == {FAIL}


def test_versions(monkeypatch):
    have = {"penstock": "0.1.0", "flwr": "1.41.3", "torch": "2.12.0+cpu"}
    monkeypatch.setattr(checkup, "version", lambda name: have[name])
    assert {r.state for r in checkup.check_versions(torch=True)} == {OK}
    for name, wrong in (("flwr", "1.42.0"), ("flwr", "1.4.1"), ("torch", "2.3.9"), ("torch", "x")):
        monkeypatch.setattr(checkup, "version", {**have, name: wrong}.__getitem__)
        row = failed(checkup.check_versions(torch=True))
        assert row.check == name

    def missing(name):
        raise checkup.PackageNotFoundError(name)

    monkeypatch.setattr(checkup, "version", missing)
    rows = checkup.check_versions(torch=False)
    assert [(r.check, r.found) for r in rows if r.state == FAIL] == [
        ("penstock", "is not installed"),
        ("flwr", "is not installed"),
    ]


def test_the_device(monkeypatch):
    import torch

    found = torch.cuda.is_available()
    (row,) = checkup.check_device("cpu")
    compiled = (OK, "cpu, by the compiled kernel")
    assert (row.state, row.found) == compiled or row.found.startswith("cpu, by torch: ")
    monkeypatch.setattr(kernel, "available", lambda: False)
    monkeypatch.setattr(kernel, "why_not", lambda: "no compiler")
    (row,) = checkup.check_device("cpu")
    assert (row.state, row.found) == (WARN, "cpu, by torch: no compiler")
    (row,) = checkup.check_device("cuda")
    assert row.state == (OK if found else FAIL)
    monkeypatch.setattr(checkup, "_PROBE", "raise SystemExit(3)")
    (row,) = checkup.check_device("cpu")
    assert (row.state, row.found) == (FAIL, "torch does not start")


def test_what_is_shown(capsys):
    rows = [
        Row("a", OK, "fine"),
        Row("long name", WARN, "evil \x1b[2J text", "Do that."),
    ]
    assert checkup.show(rows, as_json=False) == 0
    text = capsys.readouterr().out
    assert text.splitlines() == [
        "✓ a          fine",
        "! long name  evil �[2J text",
        "             → Do that.",
        "2 checks: 0 failed, 1 to look at",
    ]
    assert checkup.show([*rows, Row("c", FAIL, "no", "Do this.")], as_json=True) == 10
    shown = json.loads(capsys.readouterr().out)
    assert shown[2] == {"check": "c", "state": "fail", "found": "no", "remedy": "Do this."}
    with pytest.raises(ValueError, match="no such state"):
        Row("a", "fine", "")


# -- a site --------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    """Torch was looked at above; it takes seconds each time."""
    monkeypatch.setattr(site_doctor, "check_device", lambda wanted: [Row("device", OK, wanted)])


def join(site, address, ca):
    """What `penstock site join` leaves behind."""
    network = NetworkPaths(site.paths.network)
    network.make()
    network.make_key()
    network.ca.write_text(ca)
    record = {"federation": "main", "site": site.name, "address": address}
    network.coordinator.write_text(json.dumps({"format": "penstock-coordinator/1", **record}))


def test_a_site_that_has_not_joined(world, quick):
    site = world.site()
    rows = site_doctor.check_site(site.paths.root)
    assert not [r for r in rows if r.state == FAIL]
    assert {r.check for r in rows if r.state == WARN} - {"disk"} == {"coordinator", "gate"}
    assert "site join" in the(rows, "coordinator").remedy


def test_a_site_that_works(world, quick, issued):
    site = world.site()
    site.start()
    with coordinator(issued) as port:
        join(site, f"localhost:{port}", tls.read_authority(issued))
        rows = site_doctor.check_site(site.paths.root)
    assert {r.state for r in rows if r.check != "disk"} == {OK}
    assert the(rows, "gate").found == "answers"
    assert the(rows, "wire")


def test_keys_of_a_policy_that_have_no_effect_are_named_one_a_row(world, quick):
    """A steward who wrote a limit years ago must not believe that it still holds."""
    site = world.site()
    text = site.paths.policy.read_text().replace("[limits]", "[limits]\napproximate_delta = 1e-6")
    site.paths.policy.write_text(text + '[strata]\nnames = ["north"]\n')
    limit = text.split("\n").index("approximate_delta = 1e-6") + 1
    last = text.count("\n") + 1
    rows = site_doctor.check_site(site.paths.root)
    first, *retired = [r for r in rows if r.check == "policy"]
    assert first.state == OK
    assert [(r.state, r.found) for r in retired] == [
        (WARN, f"line {limit}: limits.approximate_delta has no effect"),
        (WARN, f"line {last}: strata has no effect"),
    ]
    assert all("Remove the key" in r.remedy for r in retired)


def test_a_site_with_everything_wrong(world, quick):
    site = world.site()
    join(site, f"localhost:{free_port()}", "no certificate")
    site.paths.policy.write_text("approval = 3\n")
    site.paths.join.unlink()
    site.paths.gate_key.chmod(0o644)
    site.paths.trust.unlink()
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(str(site.paths.steward_socket))  # left by a gate that was killed
    rows = site_doctor.check_site(site.paths.root)
    wrong = {r.check for r in rows if r.state == FAIL}
    assert wrong >= {"policy", "data", "modes", "gate", "coordinator"}
    assert the(rows, "trust").state == WARN
    assert "not a certificate" in the(rows, "coordinator").found
    assert all(r.remedy for r in rows if r.state != OK)


def test_no_site_at_all(tmp_path, quick):
    rows = site_doctor.check_site(tmp_path)
    assert "site init" in the(rows, "site").remedy
    assert {r.check for r in rows} >= {"disk", "penstock", "flwr", "torch", "device"}


def run_command(module, *arguments):
    """A doctor as a command of its own: exit status and output."""
    program = (
        "import sys, typer\n"
        f"from {module} import doctor\n"
        "app = typer.Typer(add_completion=False)\n"
        "app.command()(doctor)\n"
        "app()\n"
    )
    command = [sys.executable, "-c", program, *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert not found.stderr
    return found.returncode, found.stdout


def test_the_site_command(world):
    site = world.site()
    status, text = run_command(
        "penstock_client.operate.site_doctor", "--dir", site.paths.root, "--json"
    )
    assert {row["check"] for row in json.loads(text)} >= {"site", "data", "device", "coordinator"}
    assert status == 0, text
    site.paths.gate_key.chmod(0o644)
    status, text = run_command("penstock_client.operate.site_doctor", "--dir", site.paths.root)
    assert status == 10
    assert f"Run chmod 600 {site.paths.gate_key}" in text


# -- the coordinator -----------------------------------------------------------------------------


@pytest.fixture
def made(world):
    root = world.root / "c"
    make_coordinator(root, names=["localhost"], port=free_port(), bind="127.0.0.1")
    return root


def test_a_coordinator_that_does_not_run(made):
    rows = server_doctor.check_coordinator(made)
    assert not [r for r in rows if r.state == FAIL], rows
    assert "does not run" in the(rows, "port").found
    assert the(rows, "certificate").state == OK
    assert (
        certificates.fingerprint(tls.read_authority(made / "tls")) in the(rows, "authority").found
    )


def test_a_coordinator_that_runs_and_one_whose_port_is_taken(made, issued):
    port = read_settings(made).port

    def serve(folder):
        context = tls.server_context(folder)

        def handle(raw):
            with context.wrap_socket(raw, server_side=True) as up:
                up.recv(1)

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                handle(self.request)

        server = Threaded(("127.0.0.1", port), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    server = serve(made / "tls")
    rows = server_doctor.check_coordinator(made)
    server.shutdown()
    server.server_close()
    assert the(rows, "port").state == OK
    assert the(rows, "sites").found == "0 of 0 online"
    server = serve(issued)  # another authority: not ours
    rows = server_doctor.check_coordinator(made)
    server.shutdown()
    server.server_close()
    assert failed(rows).check == "port"


def test_a_coordinator_with_everything_wrong(made):
    folder = made / "tls"
    (folder / "server.key").chmod(0o644)
    (made / "coordinator.db").write_bytes(b"no database")
    tls.issue(folder, ["localhost"], now=datetime.now(UTC) - timedelta(days=400))
    rows = server_doctor.check_coordinator(made)
    assert {r.check for r in rows if r.state == FAIL} == {"modes", "store", "certificate"}
    tls.issue(folder, ["other.example"])
    row = the(server_doctor.check_coordinator(made), "certificate")
    assert row.state == FAIL
    assert "it is for other.example" in row.found
    tls.issue(folder, ["localhost"], now=datetime.now(UTC) - timedelta(days=380))
    assert the(server_doctor.check_coordinator(made), "certificate").state == WARN
    tls.issue(folder, ["localhost"], now=datetime.now(UTC) + timedelta(days=1))
    assert the(server_doctor.check_coordinator(made), "clock").state == FAIL
    shutil.copy(folder / "ca.key", folder / "server.key")
    row = the(server_doctor.check_coordinator(made), "certificate")
    assert "is not the key of the certificate" in row.found


def test_no_coordinator_at_all(tmp_path):
    row = failed(server_doctor.check_coordinator(tmp_path))
    assert row.check == "coordinator"
    assert "server init" in row.remedy


def test_the_server_command(made):
    status, text = run_command("penstock_server.operate.server_doctor", "-d", made, "--json")
    assert status == 0
    assert all(set(row) == {"check", "state", "found", "remedy"} for row in json.loads(text))
    (made / "tls" / "ca.key").chmod(0o640)
    status, text = run_command("penstock_server.operate.server_doctor", "-d", made)
    assert status == 10
    assert "chmod 600" in text
