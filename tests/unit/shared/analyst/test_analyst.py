"""The analyst's HTTP client against servers that are wrong in every way that happens."""

from __future__ import annotations

import hashlib
import io
import json
import math
import socket
import stat
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import made
from typer.testing import CliRunner

import penstock
from penstock.analyst import ALWAYS, RESULT_FILES, Fetching, answers, connect, logins, remote
from penstock.analyst.logins import Login, Logins, address
from penstock.analyst.remote import Remote
from penstock.analyst.waiting import wait_for_end
from penstock.base.errors import (
    BudgetExceeded,
    CoordinatorError,
    InvalidInput,
    NotAllowed,
    PenstockError,
    Problem,
    Refused,
    Unfinished,
    Unreachable,
    error_from_dict,
)
from penstock.cli.main import app
from penstock.mechanisms import Maf
from penstock.privacy.request import PrivacyRequest
from penstock.wire.messages import WIRE_VERSION
from penstock_server.install import tls

TOKEN = "pst_" + "t" * 43
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """No login, no proxy and no waiting from outside."""
    monkeypatch.setenv("PENSTOCK_CONFIG", str(tmp_path / "config"))
    for name in ("PENSTOCK_COORDINATOR", "PENSTOCK_TOKEN", "PENSTOCK_CA", "PENSTOCK_INSECURE_HTTP"):
        monkeypatch.delenv(name, raising=False)
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr(remote, "RETRY_SECONDS", 0.01)


class Server:
    """A web server that runs a function for every request; over TLS if it has certificates."""

    def __init__(self, handle, certificates: Path | None = None) -> None:
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                outer.seen.append((self.command, self.path, dict(self.headers)))
                self.rfile.read(int(self.headers.get("Content-Length", "0")))
                handle(self)

            do_GET = do_POST = do_CONNECT = answer

            def log_message(self, *args) -> None:
                pass

            def say(self, status, body=b"", kind="application/json", **headers) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", headers.pop("length", str(len(body))))
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                self.wfile.write(body)

            def cut(self) -> None:
                """End the connection as a restart does."""
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, request, client_address) -> None:
                pass  # handshakes that fail are what is tested

        self.httpd = Quiet(("127.0.0.1", 0), Handler)
        self.port = self.httpd.server_address[1]
        if certificates is not None:
            context = tls.server_context(certificates)
            self.httpd.socket = context.wrap_socket(
                self.httpd.socket, server_side=True, do_handshake_on_connect=False
            )
        self.scheme = "http" if certificates is None else "https"
        self.thread = threading.Thread(target=self.httpd.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"{self.scheme}://localhost:{self.port}"

    def close(self) -> None:
        self.httpd.shutdown()
        self.httpd.server_close()
        self.thread.join()


@pytest.fixture
def serve(monkeypatch):
    """Start servers; plain ones are allowed on this machine only, with the ugly flag."""
    monkeypatch.setenv("PENSTOCK_INSECURE_HTTP", "1")
    made = []

    def start(handle, certificates=None) -> Server:
        made.append(Server(handle, certificates))
        return made[-1]

    yield start
    for server in made:
        server.close()


@pytest.fixture
def certificates(tmp_path):
    tls.issue(tmp_path / "tls", ["localhost"])
    return tmp_path / "tls"


def ca(folder: Path) -> str:
    return (folder / "ca.crt").read_text()


ME = json.dumps({"name": "ada", "role": "analyst", "expires": "2027-01-01"}).encode()


def polite(handler) -> None:
    handler.say(200, ME)


def failing(url: str, pem: str | None = None) -> Unreachable:
    with Remote(url, TOKEN, ca=pem) as client, pytest.raises(Unreachable) as error:
        client.me()
    assert error.value.exit_code == 11
    assert error.value.remedy
    assert TOKEN not in str(error.value)
    return error.value


# -- the way there -----------------------------------------------------------------------------


def test_a_good_connection(serve, certificates):
    server = serve(polite, certificates)
    with Remote(server.url, TOKEN, ca=ca(certificates)) as client:
        assert client.me()["name"] == "ada"
    method, path, headers = server.seen[0]
    assert (method, path) == ("GET", "/api/v1/me")
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert headers["Penstock-Wire"] == WIRE_VERSION


def test_another_authority(serve, certificates, tmp_path):
    server = serve(polite, certificates)
    tls.issue(tmp_path / "other", ["localhost"])
    for pem in (ca(tmp_path / "other"), None):
        error = failing(server.url, pem)
        assert "authority that is not trusted here" in str(error)
        assert "--ca" in str(error)
        assert not error.passing
    assert not server.seen


def test_another_name(serve, tmp_path):
    tls.issue(tmp_path / "tls", ["elsewhere.example", "10.1.2.3"])
    server = serve(polite, tmp_path / "tls")
    for host in ("localhost", "127.0.0.1"):
        error = failing(f"https://{host}:{server.port}", ca(tmp_path / "tls"))
        assert "for another name" in str(error)
    assert not server.seen


@pytest.mark.parametrize(("days", "words"), [(-500, "has expired"), (5, "is not valid yet")])
def test_a_certificate_of_another_time(serve, tmp_path, days, words):
    moment = datetime.now(UTC)
    # The authority is good at any time, or it would be blamed.
    tls.issue(tmp_path / "tls", ["localhost"], now=moment - timedelta(days=1000))
    tls.issue(tmp_path / "tls", ["localhost"], now=moment + timedelta(days=days))
    error = failing(serve(polite, tmp_path / "tls").url, ca(tmp_path / "tls"))
    assert words in str(error)
    assert "clock" in str(error)


def test_a_port_that_speaks_plain_http(serve):
    server = serve(polite)
    error = failing(f"https://localhost:{server.port}")
    assert "does not speak TLS" in str(error)
    assert "check the port" in str(error)


def test_a_port_where_nobody_is():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    error = failing(f"https://127.0.0.1:{port}")
    assert "nothing answers at that port" in str(error)
    assert error.passing


def test_a_name_that_nobody_has():
    error = failing("https://no-such-host.invalid")
    assert "cannot be found" in str(error)


def test_a_server_that_never_answers(monkeypatch):
    monkeypatch.setattr(remote, "TIMEOUT", remote.httpx.Timeout(0.2))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        error = failing(f"https://127.0.0.1:{listener.getsockname()[1]}")
    assert "in time" in str(error)
    assert error.passing


def through(monkeypatch, server: Server) -> str:
    """An address behind a proxy, with the proxy's password in the environment."""
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:hunter2@127.0.0.1:{server.port}")
    return "https://coordinator.example:8443"


@pytest.mark.parametrize(
    ("status", "words", "passing"),
    [
        (407, "wants a user name and password", False),
        (403, "does not let this connection through", False),
        (502, "makes no connection", True),
    ],
)
def test_a_proxy_that_refuses(serve, monkeypatch, status, words, passing):
    server = serve(lambda handler: handler.say(status, b"<html>no", "text/html"))
    error = failing(through(monkeypatch, server))
    assert words in str(error)
    assert f"through the proxy 127.0.0.1:{server.port}" in str(error)
    assert "hunter2" not in str(error)
    assert error.passing == passing
    assert server.seen[0][:2] == ("CONNECT", "coordinator.example:8443")
    assert "Authorization" not in server.seen[0][2]


def test_no_proxy_stands_before_this_machine(serve, certificates, monkeypatch):
    proxy = serve(lambda handler: handler.say(403))
    through(monkeypatch, proxy)
    server = serve(polite, certificates)
    with Remote(server.url, TOKEN, ca=ca(certificates)) as client:
        assert client.me()["name"] == "ada"
    assert not proxy.seen


def test_a_proxy_that_cannot_be_used(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "gopher://user:hunter2@proxy.example")
    with pytest.raises(Unreachable, match="HTTPS_PROXY") as error:
        Remote("https://coordinator.example", TOKEN)
    assert "hunter2" not in str(error.value)


# -- answers that are none ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind", "body", "error", "words"),
    [
        (200, "text/html", b"<html>welcome", Unreachable, "no Penstock coordinator answers"),
        (404, "text/html", b"<html>", Unreachable, "that sends text/html"),
        (404, "application/json", b'{"detail": "Not Found"}', Unreachable, "no Penstock"),
        (200, "application/json", b"[]", Unreachable, "JSON of another form"),
        (200, "application/json", b"[" * 10**5, Unreachable, "no Penstock"),
        (403, "text/html", b"<html>blocked", NotAllowed, "something before the coordinator"),
        (407, "text/html", b"", Unreachable, "the proxy wants a user name"),
        (502, "text/html", b"<html>", Unreachable, "HTTP 502"),
        (426, "text/plain", b"upgrade", Unreachable, "wants another protocol"),
        (500, "application/json", b'{"code":"internal"}', CoordinatorError, "error of its own"),
        (404, "application/json", b'{"code":"not-found"}', CoordinatorError, "may be older"),
        (503, "application/json", b'{"code":"unavailable"}', Unreachable, "is not ready"),
        (
            426,
            "application/json",
            b'{"code":"coordinator","message":"x","bound":"majors 3"}',
            Unreachable,
            r"wire 1.1 here; there majors 3\): upgrade the older",
        ),
    ],
)
def test_answers_of_strangers(serve, status, kind, body, error, words):
    server = serve(lambda handler: handler.say(status, body, kind))
    with Remote(server.url, TOKEN) as client, pytest.raises(error, match=words):
        client.me()
    assert len(server.seen) == 1


def test_a_redirect_is_not_followed_with_the_token(serve):
    other = serve(polite)
    server = serve(lambda handler: handler.say(302, Location=f"{other.url}/login"))
    error = failing(server.url)
    assert "sends on to localhost" in str(error)
    assert not other.seen


def test_control_characters_do_not_reach_the_terminal(serve):
    body = json.dumps({"code": "coordinator", "message": "bad\x1b[2J", "value": "\x07"}).encode()
    server = serve(lambda handler: handler.say(409, body))
    with Remote(server.url, TOKEN) as client, pytest.raises(CoordinatorError) as error:
        client.me()
    assert str(error.value).isprintable()
    assert remote.printable({"a": ["\x1b[2J\n"]}) == {"a": ["\N{REPLACEMENT CHARACTER}[2J\n"]}


def test_a_lost_connection_is_tried_again_twice(serve):
    cuts = []

    def handle(handler) -> None:
        cuts.append(1)
        if len(cuts) % 3:
            handler.cut()
        elif handler.command == "POST":
            handler.say(200, b'{"study": "x"}')
        else:
            polite(handler)

    server = serve(handle)
    with Remote(server.url, TOKEN) as client:
        assert client.me()["name"] == "ada"
        assert client.submit(b"signed") == "x"
    assert [method for method, _, _ in server.seen] == ["GET"] * 3 + ["POST"] * 3


def test_a_connection_that_stays_lost_is_said(serve):
    server = serve(lambda handler: handler.cut())
    error = failing(server.url)
    assert "the connection was lost" in str(error)
    assert error.passing
    assert len(server.seen) == 3


# -- files -------------------------------------------------------------------------------------

CONTENT = {name: name.encode() * 50_000 for name in RESULT_FILES}


def listing(content=CONTENT, **changes) -> bytes:
    files = [
        {"name": n, "size": len(c), "sha256": hashlib.sha256(c).hexdigest()} | changes
        for n, c in content.items()
    ]
    return json.dumps({"study": "0" * 64, "files": files}).encode()


def files(handler, cut=lambda name: 0, listed=None) -> None:
    """Serve the result files; ``cut`` says after how many bytes a connection breaks."""
    path = handler.path.partition("?")[0]
    name = path.rpartition("/")[2]
    if name == "files":
        handler.say(200, listed or listing())
        return
    start = int(handler.headers.get("Range", "bytes=0-")[6:-1])
    body, broken = CONTENT[name][start:], cut(name)
    headers = {"Content_Range": f"bytes {start}-{len(body)}/*"} if start else {}
    if broken:
        handler.say(206 if start else 200, body[:broken], length=str(len(body)), **headers)
        handler.cut()
    else:
        handler.say(206 if start else 200, body, **headers)


def pull(server: Server, out: Path, **options):
    with Remote(server.url, TOKEN) as client:
        return client.fetch("trial", RESULT_FILES, out, copies="one", **options)


def test_files_come_whole_with_progress(serve, tmp_path):
    heard = []
    found = pull(serve(files), tmp_path / "out", received=lambda *said: heard.append(said))
    assert [f.name for f in found] == list(RESULT_FILES)
    for file in found:
        assert file.read_bytes() == CONTENT[file.name]
        assert stat.S_IMODE(file.stat().st_mode) == 0o644
    for name, content in CONTENT.items():
        steps = [done for n, done, size in heard if n == name and size == len(content)]
        assert steps == sorted(steps)
        assert steps[-1] == len(content)


def test_a_download_goes_on_where_it_broke_off(serve, tmp_path):
    left = {"pooled.csv": [200_000, 100_000]}
    server = serve(
        lambda h: files(h, cut=lambda name: left.get(name, []).pop() if left.get(name) else 0)
    )
    pull(server, tmp_path)
    assert (tmp_path / "pooled.csv").read_bytes() == CONTENT["pooled.csv"]
    ranges = [h.get("Range") for _, path, h in server.seen if "pooled.csv" in path]
    assert ranges == [None, "bytes=100000-", "bytes=300000-"]


def test_an_interrupted_download_leaves_what_was_there(serve, tmp_path):
    (tmp_path / "report.html").write_text("of last week")
    server = serve(lambda h: files(h, cut=lambda name: 1000 if name == "pooled.csv" else 0))
    with pytest.raises(Unreachable, match="the connection was lost"):
        pull(server, tmp_path)
    assert {p.name: p.read_text() for p in tmp_path.iterdir() if p.is_file()} == {
        "report.html": "of last week"
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sha256": "0" * 64}, "another SHA-256"),
        ({"size": 10}, "more than 10 bytes"),
        ({"size": 10**9}, "of 1000000000 bytes"),
        ({"size": -1}, "a listing of another form"),
        ({"size": "9"}, "a listing of another form"),
    ],
)
def test_a_file_that_is_not_what_was_announced_is_not_kept(serve, tmp_path, changes, words):
    server = serve(lambda h: files(h, listed=listing(**changes)))
    with pytest.raises(PenstockError, match=words):
        pull(server, tmp_path / "out")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_names_from_a_server_are_no_paths(serve, tmp_path):
    strange = {**CONTENT, "../evil": b"x", "/tmp/evil": b"x", "setup.py": b"x"}
    server = serve(lambda h: files(h, listed=listing(strange)))
    pull(server, tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(RESULT_FILES)
    assert not any("evil" in path for _, path, _ in server.seen)
    fewer = {"../report.html": b"x"}
    server = serve(lambda h: files(h, listed=listing(fewer)))
    with pytest.raises(CoordinatorError, match="no such file"):
        pull(server, tmp_path / "none")


def test_without_names_all_files_of_a_study_come(serve, tmp_path):
    """Which files there are depends on the mechanism; the report's are always there."""
    others = ("pooled", "refits", "pa", "coup")
    answered = {n: c for n, c in CONTENT.items() if not n.startswith(others)}
    server = serve(lambda h: files(h, listed=listing(answered)))
    with Remote(server.url, TOKEN) as client:
        found = client.pull("trial", tmp_path / "out", copies="one")
    assert [f.name for f in found] == [*ALWAYS, "coefficients.csv", "coefficients.json"]
    short = {n: c for n, c in CONTENT.items() if n != "report.json"}
    server = serve(lambda h: files(h, listed=listing(short)))
    with (
        Remote(server.url, TOKEN) as client,
        pytest.raises(CoordinatorError, match=r"no such file.*report\.json"),
    ):
        client.pull("trial", tmp_path / "none", copies="one")


class Directory:
    """A coordinator on this machine, with these files."""

    def __init__(self, content: dict[str, bytes]) -> None:
        self.content = content

    def pull(self, study: str, out: Path, *, copies: str) -> list[Path]:
        for name, data in self.content.items():
            (out / name).write_bytes(data)
        return [out / name for name in self.content]


def test_a_client_reads_what_the_mechanism_released(monkeypatch):
    sink = io.BytesIO()
    table = pa.table({"_site": ["a", "a"], "_path": [1, 1], "_time": [0.0, 0.5], "sbp": [1.0, 2.0]})
    pq.write_table(table, sink)
    there = Directory(
        {"paths.parquet": sink.getvalue(), "particles.parquet": sink.getvalue(),
         "coefficients.json": b'{"terms": ["x"], "sites": []}'}
    )  # fmt: skip
    monkeypatch.setattr("penstock.analyst.client.connect", lambda where: there)
    client = penstock.Client()
    assert client.paths("trial")["_time"].tolist() == [0.0, 0.5]
    assert client.particles("trial")["sbp"].tolist() == [1.0, 2.0]
    assert client.coefficients("trial")["terms"] == ["x"]
    with pytest.raises(CoordinatorError, match=r"no such file.*pooled\.parquet"):
        client.pooled("trial")


# -- what a study costs and brings ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "maf",
            ["with about as many rows", "at most 2 rows for each person", "2 refits", "pooled.csv"],
        ),
        ("sliced-wasserstein", ["2 synthetic tables", "without refits, intervals lack"]),
        (
            "trajectory",
            ["6 particles at each of 3 time points of visit", "5 paths at 9 times",
             "not persons' histories", "paths, particles and couplings"],
        ),
        ("gibbs", ["5 coefficients with covariance, and no table: (intercept), sbp",
                   "coefficients.csv"]),
    ],
)  # fmt: skip
def test_what_comes_back_is_said(name, words):
    study = made.study(made.MECHANISMS[name])
    said = " ".join(answers.returned(study))
    for word in words:
        assert word in said
    assert "ε = 2 at δ = 1e-05 per person (formal)" in answers.cost(study)
    assert ("costs again" in answers.cost(study)) == (name == "gibbs")


def test_an_empirical_study_costs_everything():
    study = made.study(Maf(), privacy=PrivacyRequest(math.inf, 1e-5, "empirical"))
    assert "ε = ∞" in answers.cost(study)


# -- waiting -----------------------------------------------------------------------------------


def scripted(*answers):
    left = list(answers)

    def ask():
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, BaseException):
            raise answer
        return {"state": answer}

    return ask


GONE = Unreachable("the connection was lost", passing=True)


def test_waiting_says_once_that_the_coordinator_is_away():
    said, seen = [], []
    found = wait_for_end(
        scripted("open", GONE, GONE, GONE, "open", "finished"),
        every=0.0,
        seen=lambda status: seen.append(status["state"]),
        away=said.append,
    )
    assert found == {"state": "finished"}
    assert said == [GONE, None]
    assert seen == ["open", "open", "finished"]


def test_waiting_goes_on_while_results_are_made():
    seen = []
    found = wait_for_end(
        scripted("open", "pooling", "pooling", "finished"),
        every=0.0,
        seen=lambda status: seen.append(status["state"]),
    )
    assert found == {"state": "finished"}
    assert seen == ["open", "pooling", "pooling", "finished"]


def test_waiting_ends_with_what_does_not_pass():
    for first in (GONE, NotAllowed("no valid token")):
        with pytest.raises(PenstockError, match=first.message):
            wait_for_end(scripted(first), every=0.0)
    for later in (Unreachable("the certificate has expired"), NotAllowed("revoked")):
        with pytest.raises(PenstockError, match=later.message):
            wait_for_end(scripted("open", later), every=0.0)


@pytest.mark.parametrize("answers", [("open",), ("open", GONE)])
def test_waiting_has_an_end(answers):
    with pytest.raises(Unfinished, match=r"waited 0\.05 s"):
        wait_for_end(scripted(*answers), every=0.01, timeout=0.05)


@pytest.mark.parametrize("timeout", [-1.0, float("nan")])
def test_a_time_out_is_a_number_of_seconds(timeout):
    with pytest.raises(InvalidInput, match="must not be negative"):
        wait_for_end(scripted("finished"), every=0.0, timeout=timeout)


# -- addresses and logins ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("https://Coordinator.Example", "https://coordinator.example"),
        ("https://c.example:8443/", "https://c.example:8443"),
        ("https://c.example/penstock/", "https://c.example/penstock"),
        ("https://[::1]:8443", "https://[::1]:8443"),
        ("  https://c.example\n", "https://c.example"),
    ],
)
def test_addresses(given, found):
    assert address(given) == found


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("http://c.example", "is not encrypted"),
        ("http://127.0.0.1:1", "is not encrypted"),
        ("c.example:8443", "is no web address"),
        ("ftp://c.example", "is no web address"),
        ("https://", "is no web address"),
        ("https://c.example:99999", "cannot be read"),
        ("https://ada:hunter2@c.example", "holds a user name or password"),
        ("https://c.example/?token=hunter2", "has more than host, port and path"),
    ],
)
def test_addresses_that_are_none(given, words):
    with pytest.raises(InvalidInput, match=words) as error:
        address(given)
    assert "hunter2" not in str(error.value)


def test_plain_http_needs_this_machine_and_the_ugly_flag(monkeypatch):
    monkeypatch.setenv("PENSTOCK_INSECURE_HTTP", "1")
    assert address("http://127.0.0.1:8080") == "http://127.0.0.1:8080"
    for url in ("http://c.example", "http://10.0.0.1", "http://localhost.example"):
        with pytest.raises(InvalidInput, match="is not encrypted"):
            address(url)
    monkeypatch.setenv("PENSTOCK_INSECURE_HTTP", "yes")
    with pytest.raises(InvalidInput, match="is not encrypted"):
        address("http://127.0.0.1:8080")


def test_logins_by_address_name_and_default(monkeypatch):
    first = Login("one", "https://one.example", TOKEN, "-----BEGIN CERTIFICATE-----")
    second = Login("two", "https://two.example", TOKEN + "2")
    path = logins.save(Logins().add(first).add(second))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["logins.json"]
    assert logins.find(None) == second
    assert logins.find("one") == logins.find("https://ONE.example/") == first
    assert logins.find("three") is None
    with pytest.raises(NotAllowed, match="penstock login https://three"):
        logins.find("https://three.example")
    monkeypatch.setenv("PENSTOCK_TOKEN", TOKEN + "3")
    assert logins.find("one").token == TOKEN + "3"
    assert logins.find("https://three.example").token == TOKEN + "3"
    assert TOKEN not in repr(first)


def test_logins_where_xdg_says(monkeypatch, tmp_path):
    monkeypatch.delenv("PENSTOCK_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert logins.file() == tmp_path / "penstock" / "logins.json"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert logins.file() == tmp_path / "home" / ".config" / "penstock" / "logins.json"


def test_the_default_moves_only_where_it_is_plain():
    three = Logins()
    for name in ("a", "b", "c"):
        three = three.add(Login(name, f"https://{name}.example", TOKEN))
    assert three.default == "c"
    assert three.remove("a").default == "c"
    assert three.remove("c").default == ""
    assert three.remove("c").remove("b").default == "a"
    with pytest.raises(PenstockError, match=r"no such login \(got z; saved: a, b, c\)"):
        three.remove("z")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"format": "penstock-logins/2", "default": "", "logins": {}}',
        '{"format": "penstock-logins/1", "default": "", "logins": {"x": {"url": "ftp://x"}}}',
    ],
)
def test_damaged_logins_are_said_and_kept(text):
    path = logins.save(Logins())
    path.write_text(text)
    with pytest.raises(PenstockError, match="cannot be read"):
        logins.load()
    assert path.read_text() == text


def test_a_private_key_is_no_authority(tmp_path):
    for text, words in (
        ("-----BEGIN PRIVATE KEY-----", "holds a private key"),
        ("hello", "no certificate in PEM"),
    ):
        (tmp_path / "ca.crt").write_text(text)
        with pytest.raises(InvalidInput, match=words):
            logins.read_ca(tmp_path / "ca.crt")
    with pytest.raises(InvalidInput, match="No such file"):
        logins.read_ca(tmp_path / "none")
    with pytest.raises(InvalidInput, match="no certificate that can be used"):
        Remote("https://c.example", TOKEN, ca="-----BEGIN CERTIFICATE-----\nx")


@pytest.mark.parametrize(
    "token", ["", "hunter2", "pst_short", f"{TOKEN}\r\nX-Evil: 1", "pst_ä" * 20]
)
def test_what_is_no_token_is_neither_sent_nor_shown(token):
    with pytest.raises(NotAllowed, match="that is not a token") as error:
        Remote("https://c.example", token)
    assert not token or token not in str(error.value)


def run(*args, code=0, stdin=""):
    result = CliRunner().invoke(app, [str(a) for a in args], input=stdin)
    assert result.exit_code == code, result.output
    return result.output


def test_login_by_command(serve, certificates, tmp_path):
    about = b'{"penstock": "9", "wire": "1.0", "time": "x"}'
    server = serve(lambda h: h.say(200, about if "about" in h.path else ME), certificates)
    args = ("login", server.url, "--ca", certificates / "ca.crt")
    said = run(*args, stdin=f"{TOKEN}\n")
    assert "localhost: logged in as ada (analyst), until 2027-01-01" in said
    assert TOKEN not in said
    assert json.loads(run(*args, "--name", "mine", "--json", stdin=TOKEN))["login"] == "mine"
    assert logins.load().default == "mine"
    assert isinstance(connect(), Fetching)
    assert "is not well formed" in run(*args, "--name", "a b", stdin=TOKEN, code=2)
    assert "saved: localhost, mine" in run("logout", "other", code=1)
    run("logout", "mine")
    run("logout")
    assert "which login?" in run("logout", code=1)


def test_login_where_nothing_is_saves_nothing():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert "nothing answers" in run("login", f"https://127.0.0.1:{port}", stdin=TOKEN, code=11)
    assert not logins.file().exists()


def test_without_a_coordinator_the_way_in_is_said(tmp_path):
    assert "run `penstock login https://" in run("study", "list", code=12)
    assert "no coordinator here" in run("study", "list", "-c", tmp_path / "none", code=9)


# -- errors over the wire, and a light import --------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        CoordinatorError("no", value=3, bound="at most 2", remedy="less"),
        InvalidInput(
            "study", [Problem("a.b", "is blank", 3, None, "x", "Fill in"), Problem("", "")]
        ),
        Refused("budget", "above what is left", remedy="ask for less"),
        BudgetExceeded("too much"),
        Unreachable("lost"),
        PenstockError("plain"),
    ],
)
def test_an_error_comes_back_as_it_was(error):
    again = error_from_dict(json.loads(json.dumps(error.to_dict())))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.to_dict() == error.to_dict()


def test_an_error_leaves_paths_at_home():
    error = CoordinatorError("gone", value=Path("/srv/penstock/x"))
    assert error.to_dict()["value"] is None


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"code": "of-the-future", "message": "x"},
        {"code": 3, "message": ["x"], "value": {}},
        {"code": "invalid-input", "problems": [3, {"where": 1, "line": "x"}] * 1000, "what": 1},
        {"code": "refused"},
    ],
)
def test_strange_errors_are_still_errors(data):
    assert isinstance(error_from_dict(data), PenstockError)
    assert len(str(error_from_dict(data))) < 10_000


def test_importing_penstock_is_light():
    code = """
import sys, penstock
heavy = {"pandas", "httpx", "numpy", "cryptography", "typer"} & set(sys.modules)
assert not heavy, heavy
assert penstock.Client.__name__ == "Client"
assert "pandas" in sys.modules
assert not hasattr(penstock, "Clients")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
