"""The coordinator's API as a process of its own, over TLS, and what strangers may send to it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from tests.support.local import finish
from typer.testing import CliRunner

import penstock
from penstock.analyst import ALWAYS
from penstock.analyst.remote import Remote
from penstock.base.errors import (
    CoordinatorError,
    InvalidInput,
    JobFailed,
    NotAllowed,
    SignatureError,
    Unfinished,
)
from penstock.base.times import stamp, stamp_now, utc_now
from penstock.cli.main import app as commands
from penstock.mechanisms import Maf
from penstock.privacy.events import RELATION, Gaussian, to_dict
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema, to_arrow
from penstock.study.study import Study
from penstock.study.toml import write_study
from penstock.wire.canonical import canonical
from penstock.wire.manifest import Manifest, sign_manifest
from penstock.wire.messages import MAX_STUDY_BYTES, SiteState
from penstock.wire.signatures import fingerprint, generate_key, private_to_pem, public_hex
from penstock.wire.signed import sign_cancel, sign_study
from penstock_server.access.tokens import Role, Tokens
from penstock_server.api import serve
from penstock_server.api.directory import Directory
from penstock_server.install.enrolment import enrol_site
from penstock_server.install.founding import make_coordinator, open_coordinator
from penstock_server.store.folder import Folder

ANALYST, STRANGER = generate_key(), generate_key()
GATES = {name: generate_key() for name in ("a", "b", "c")}
NODES = {name: ec.generate_private_key(ec.SECP384R1()) for name in GATES}
PERSONS, COPIES = 20, 2
TABLES = (*ALWAYS, "pooled.parquet", "pooled.csv", "baseline.csv")
SCHEMA = Schema(columns=(Column("age", "continuous", lower=18, upper=100, decimals=0),))
STUDY = Study(
    name="trial",
    title="A trial",
    federation="main",
    sites=("a", "b"),
    schema=SCHEMA,
    estimands=(),
    privacy=PrivacyRequest(3.0, 1e-5),
    mechanism=Maf(copies=COPIES, refits=0),
    quorum=1,
    deadline_hours=1.0,
    not_before="2020-01-01T00:00:00Z",
    expires="2099-01-01T00:00:00Z",
)
MB = 1 << 20


def signed(name: str, **changes: object):
    return sign_study(replace(STUDY, name=name, **changes), ANALYST)


def join(name: str, **changes: object) -> dict[str, object]:
    return {
        "site": name,
        "federation": "main",
        "gate_key": public_hex(GATES[name]),
        "persons": PERSONS,
        "dictionary": SCHEMA.to_dict(),
        "node_key": NODES[name]
        .public_key()
        .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        .decode(),
        **changes,
    }


def sign_call(name: str, moment: datetime | None = None) -> dict[str, str]:
    """What a SuperNode adds to a call."""
    stamped = (moment or datetime.now(UTC)).isoformat()
    public = public_key_to_bytes(NODES[name].public_key())
    signature = sign_message(NODES[name], stamped.encode())
    return {
        FLEET_HTTP_PUBLIC_KEY_HEADER: base64.b64encode(public).decode(),
        TIMESTAMP_HEADER: stamped,
        FLEET_HTTP_SIGNATURE_HEADER: base64.b64encode(signature).decode(),
    }


def free_port() -> int:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return int(listener.getsockname()[1])


def table() -> bytes:
    rng = np.random.default_rng(1)
    label = np.repeat(np.arange(1, COPIES + 1, dtype=np.int32), PERSONS)
    made = to_arrow({"age": rng.normal(50, 5, len(label))}, SCHEMA)
    made = made.add_column(0, "_copy", pa.array(label))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, made.schema) as writer:
        writer.write_table(made)
    return sink.getvalue().to_pybytes()


def manifest(study_id: str, data: bytes) -> bytes:
    found = Manifest(
        wire="1.0",
        study_id=study_id,
        site="a",
        request_id="0" * 64,
        release=0,
        lineage="main",
        version=1,
        persons=PERSONS,
        rows=PERSONS,
        copies=COPIES,
        refits=0,
        guarantee="formal",
        mechanism="maf",
        events=(to_dict(Gaussian(9.0)),),
        relation=RELATION,
        delta=1e-5,
        epsilon_autodp=1.0,
        epsilon_pld=1.0,
        epsilon_replace_one=2.0,
        injection_epsilon=None,
        table_sha256=hashlib.sha256(data).hexdigest(),
        table_bytes=len(data),
        ledger_seq=2,
        ledger_head="0" * 64,
        released_at="2026-11-21T08:00:00Z",
        insecure_seed=False,
        software={},
        gate_key=public_hex(GATES["a"]),
    )
    return sign_manifest(found, GATES["a"])


def allow(root: Path, **limits: int) -> None:
    """Other limits than the usual ones, as an admin sets them."""
    file = Folder(root).settings
    file.write_text(json.dumps(json.loads(file.read_text()) | limits))


class Api:
    """A coordinator's directory, and its API as a process."""

    def __init__(self, root: Path, **limits: int) -> None:
        self.root, self.port = root, free_port()
        make_coordinator(root, port=self.port, bind="127.0.0.1")
        allow(root, **limits)
        self.coordinator = open_coordinator(root)
        for name in ("a", "b"):
            enrol_site(self.coordinator, join(name))
        self.store = self.coordinator.store
        self.tokens = Tokens(self.store, self.coordinator.access)
        self.ca = (root / "tls" / "ca.crt").read_text()
        self.url = f"https://localhost:{self.port}"
        self.analyst = self.token("ada", Role.ANALYST)
        self.tokens.add_key("ada", public_hex(ANALYST), stamp_now())
        self.admin = self.token("root", Role.ADMIN)
        self.log = root / "log" / "api.log"
        self.start()

    def token(self, name: str, role: Role, days: float = 1.0) -> str:
        moment = utc_now()
        ends = stamp(moment + timedelta(days=days))
        return self.tokens.add(name, role, stamp(moment - timedelta(days=2)), ends)

    def start(self) -> None:
        command = [sys.executable, "-m", "penstock_server.api.serve", str(self.root)]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.until(self.answers)

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.client().get("/api/v1/about").status_code == 200
        except httpx.TransportError:
            return False

    @staticmethod
    def until(done, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, "it did not come to be"
            time.sleep(0.05)

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(30)

    def client(self, token: str | None = None) -> httpx.Client:
        context = ssl.create_default_context(cadata=self.ca)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(
            base_url=self.url, verify=context, headers=headers, trust_env=False, timeout=30
        )

    def node(self, name: str = "a") -> httpx.Client:
        """A client that signs as an enrolled node does."""

        def signed_call(request: httpx.Request) -> httpx.Request:
            request.headers.update(sign_call(name))
            return request

        client = self.client()
        client.auth = signed_call
        return client

    def remote(self, token: str | None = None) -> Remote:
        return Remote(self.url, token or self.analyst, ca=self.ca)

    def study(self, name: str) -> str:
        with self.remote() as remote:
            return remote.submit(signed(name).to_bytes())

    def finished(self, name: str) -> str:
        """A study that one of its two sites has delivered to."""
        study_id, data = self.study(name), table()
        path = self.coordinator.folder.table(study_id, "a")
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        with self.store.begin() as c:
            delivered = {"state": str(SiteState.DELIVERED), "manifest": manifest(study_id, data)}
            self.store.studies.update_part(c, study_id, "a", **delivered)
        finish(self.coordinator, study_id)
        return study_id


@contextlib.contextmanager
def running_api(**limits: int) -> Iterator[Api]:
    """An API that runs, in a folder that goes with it."""
    # Not pytest's own folder: Unix socket paths end at 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="pk-"))
    try:
        made = Api(root / "c", **limits)
        try:
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(root)


@pytest.fixture(scope="module")
def api():
    # One address, one account, and far more of everything than people do.
    with running_api(wrong_tokens=10_000, open_studies_each=1000, open_studies=1000) as made:
        yield made


@pytest.fixture
def remote(api):
    with api.remote() as made:
        yield made


# -- who may ask -------------------------------------------------------------------------------

ANALYSTS = (
    ("GET", "me"),
    ("GET", "studies"),
    ("POST", "studies"),
    ("GET", "studies/x"),
    ("POST", "studies/x/cancel"),
    ("POST", "studies/x/close"),
    ("GET", "studies/x/files"),
    ("GET", "studies/x/files/report.html"),
    ("GET", "studies/x/uploads/a"),
    ("GET", "sites"),
)
ADMINS = (("POST", "sites"), ("GET", "tokens"))


@pytest.mark.parametrize(("method", "path"), ANALYSTS + ADMINS)
def test_every_route_wants_a_good_token_and_says_no_more(api, method, path):
    name = f"{method}-{path.replace('/', '-')}"
    revoked = api.token(f"gone-{name}", Role.ADMIN)
    api.tokens.revoke(f"gone-{name}", stamp_now())
    expired = api.token(f"old-{name}", Role.ADMIN, days=-1)
    given = (
        {},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer pst_{'x' * 43}"},
        {"Authorization": f"Bearer {revoked}"},
        {"Authorization": f"Bearer {expired}"},
        {"Authorization": f"Basic {api.admin}"},
        {"Authorization": f"Bearer {api.admin} x"},
    )
    with api.client() as client:
        answers = [client.request(method, f"/api/v1/{path}", headers=h) for h in given]
        twice = [("Authorization", f"Bearer {t}") for t in (api.admin, "x")]
        answers.append(client.request(method, f"/api/v1/{path}", headers=twice))
    assert {a.status_code for a in answers} == {401}
    assert len({a.content for a in answers}) == 1
    assert {a.headers["www-authenticate"] for a in answers} == {'Bearer realm="penstock"'}


@pytest.mark.parametrize(("method", "path"), ADMINS)
def test_an_analyst_cannot_do_what_an_admin_can(api, method, path):
    with api.client(api.analyst) as client:
        answer = client.request(method, f"/api/v1/{path}", content=b"{}")
    assert answer.status_code == 403
    assert answer.json()["code"] == "not-allowed"
    with api.remote() as remote, pytest.raises(NotAllowed, match="may not do that"):
        remote.enrol(canonical(join("c")))


def test_a_revoked_token_ends_with_the_next_request(api):
    token = api.token("brief", Role.ANALYST)
    with api.remote(token) as remote:
        assert remote.me()["name"] == "brief"
        api.tokens.revoke("brief", stamp_now())
        with pytest.raises(NotAllowed, match="no valid token"):
            remote.me()


def test_about_needs_no_token_and_tells_the_time(api):
    with api.client() as client:
        answer = client.get("/api/v1/about")
    assert answer.json()["penstock"] == penstock.__version__
    assert answer.json()["wire_majors"] == [1]
    assert abs((pd.Timestamp(answer.json()["time"]) - pd.Timestamp.now("UTC")).total_seconds()) < 60


def test_an_admin_enrols_a_site_and_gets_its_invitation(api):
    with api.remote(api.admin) as remote:
        invite = remote.enrol(canonical(join("c")))
        assert (invite["site"], invite["address"]) == ("c", f"localhost:{api.port}")
        assert invite["ca"].strip() == api.ca.strip()
        assert {s["site"]: s["gate_fingerprint"] for s in remote.sites()}["c"] == fingerprint(
            public_hex(GATES["c"])
        )
        with pytest.raises(CoordinatorError, match="another key"):
            remote.enrol(canonical(join("c", gate_key=public_hex(STRANGER))))
        with pytest.raises(CoordinatorError, match="not a site's join record"):
            remote.enrol(b"{}")
        with pytest.raises(InvalidInput, match="not valid JSON"):
            remote.enrol(b"\xff")


def test_an_admin_sees_who_holds_tokens_and_no_token(api):
    with api.client(api.admin) as client:
        answer = client.get("/api/v1/tokens")
    found = {t["name"]: t for t in answer.json()}
    assert found["ada"]["role"] == "analyst"
    assert found["ada"]["good"]
    for secret in (api.analyst, api.admin, hashlib.sha256(api.analyst.encode()).hexdigest()):
        assert secret not in answer.text


# -- studies -----------------------------------------------------------------------------------


def test_a_study_is_handed_in_watched_and_cancelled(api, remote):
    study = signed("life")
    study_id = remote.submit(study.to_bytes())
    assert remote.submit(study.to_bytes()) == study_id == study.study_id
    assert remote.status("life") == remote.status(study_id[:12]) == remote.status(study_id)
    assert [s["site"] for s in remote.status("life")["sites"]] == ["a", "b"]
    assert study_id in [s["study"] for s in remote.studies()]
    with pytest.raises(NotAllowed, match="not bound to your account"):
        remote.cancel(sign_cancel(study_id, STRANGER).to_bytes())
    for _ in range(2):  # a lost reply costs nothing
        remote.cancel(sign_cancel(study_id, ANALYST).to_bytes())
    assert remote.status("life")["state"] == "cancelled"
    with pytest.raises(NotAllowed, match="not bound to your account"):
        remote.cancel(sign_cancel(study_id, STRANGER).to_bytes())


def test_a_study_is_closed_by_its_owner_once_its_quorum_is_there(api, remote, home):
    study_id = api.study("slow")
    with pytest.raises(CoordinatorError, match="too few sites have delivered"):
        remote.close_study(sign_cancel(study_id, ANALYST).to_bytes())
    assert "penstock study close" not in run("study", "status", "slow")
    with api.store.begin() as c:
        api.store.studies.update_part(c, study_id, "a", state=str(SiteState.DELIVERED))
    assert "its quorum is there: `penstock study close`" in run("study", "status", "slow")
    with pytest.raises(NotAllowed, match="not bound to your account"):
        remote.close_study(sign_cancel(study_id, STRANGER).to_bytes())
    said = run("study", "close", "slow", "-k", home / "ada.key")
    assert "is closed with 1 of 2 sites; pooling" in said
    with penstock.Client() as client:  # the same again changes nothing
        client.close_study("slow", ANALYST)
    (late,) = [s for s in remote.status("slow")["sites"] if s["site"] == "b"]
    assert (late["state"], late["code"]) == ("timed-out", "late")
    assert "nothing is charged" in run("study", "status", "slow").replace("\n", " ")
    remote.cancel(sign_cancel(study_id, ANALYST).to_bytes())
    with pytest.raises(CoordinatorError, match="ended already"):
        remote.close_study(sign_cancel(study_id, ANALYST).to_bytes())


@pytest.mark.parametrize("verb", ["cancel", "close"])
def test_a_cancellation_is_of_the_study_in_the_path(api, verb):
    first, second = api.study(f"one-{verb}"), api.study(f"two-{verb}")
    with api.client(api.analyst) as client:
        wish = sign_cancel(first, ANALYST).to_bytes()
        answer = client.post(f"/api/v1/studies/{second}/{verb}", content=wish)
    assert answer.status_code == 409
    with api.remote() as remote:
        assert {remote.status(s)["state"] for s in (first, second)} == {"open"}


def test_errors_come_back_as_what_they_were(api, remote):
    with pytest.raises(CoordinatorError) as unknown:
        remote.submit(signed("elsewhere", sites=("a", "zz")).to_bytes())
    assert unknown.value.value == "zz"
    assert "a, b" in str(unknown.value)
    record = json.loads(signed("forged").to_bytes())
    with pytest.raises(SignatureError, match="does not match"):
        remote.submit(canonical({**record, "signer": public_hex(STRANGER)}))
    with pytest.raises(SignatureError, match="not signed: `penstock study submit`"):
        remote.submit(canonical({"study": STUDY.to_dict()}))
    with pytest.raises(InvalidInput) as problems:
        remote.submit(b"[1, NaN]")
    assert problems.value.problems[0].message == "not valid JSON"
    with pytest.raises(CoordinatorError, match=r"no such study \(got nothing\)"):
        remote.status("nothing")
    with pytest.raises(CoordinatorError, match="no such study"):
        remote.status("../me")


def test_names_that_fit_several_studies_are_not_guessed(api, remote):
    for release in (1, 2):
        remote.submit(signed("same", release=release).to_bytes())
    with pytest.raises(CoordinatorError, match="several studies of that name"):
        remote.status("same")


# -- results -----------------------------------------------------------------------------------


def test_results_are_pulled_as_from_the_directory(api, remote, tmp_path):
    study_id = api.finished("done")
    for copies in ("one", "all"):
        here, there = tmp_path / f"here-{copies}", tmp_path / f"there-{copies}"
        files = remote.pull("done", there, copies=copies)
        assert [f.name for f in files] == list(TABLES)
        assert sorted(f.name for f in there.iterdir()) == sorted(TABLES)
        Directory(str(api.root)).pull(study_id, here, copies=copies)
        for name in TABLES:
            assert (here / name).read_bytes() == (there / name).read_bytes(), name
        assert len(pd.read_parquet(there / "pooled.parquet")) == PERSONS * (
            2 if copies == "all" else 1
        )


def test_files_are_made_whole_however_many_ask(api):
    study_id = api.finished("popular")
    with ThreadPoolExecutor(8) as pool, api.client(api.analyst) as client:
        path = f"/api/v1/studies/{study_id}/files?copies=all"
        answers = list(pool.map(lambda _: client.get(path), range(8)))
    assert {a.status_code for a in answers} == {200}
    assert len({a.content for a in answers}) == 1
    cache = api.root / "cache"
    assert [f.name for f in cache.iterdir() if f.name.startswith(study_id)] == [
        f"{study_id}-all-{penstock.__version__}"
    ]
    assert not [f for f in cache.iterdir() if f.name.startswith(".")]
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_a_file_can_be_had_in_part_and_never_by_another_name(api):
    study_id = api.finished("ranged")
    base = f"/api/v1/studies/{study_id}/files"
    with api.client(api.analyst) as client:
        whole = client.get(f"{base}/report.json").content
        part = client.get(f"{base}/report.json", headers={"Range": "bytes=10-"})
        html = client.get(f"{base}/report.html")
        strange = ("listing.json", "..%2f..%2fcoordinator.json", "%2e%2e", "report.json%00")
        # Files of other mechanisms are none of this study.
        for name in (*strange, "paths.csv", "coefficients.json"):
            assert client.get(f"{base}/{name}").status_code == 404
        assert client.get(f"{base}?copies=both").json()["problems"][0]["where"] == "copies"
    assert (part.status_code, part.content) == (206, whole[10:])
    assert html.headers["content-disposition"].startswith("attachment")
    assert html.headers["x-content-type-options"] == "nosniff"
    assert html.headers["cache-control"] == "no-store"
    assert "sandbox" in html.headers["content-security-policy"]


def test_a_delivered_table_is_fetched_and_only_that(api):
    study_id = api.finished("table")
    base = f"/api/v1/studies/{study_id}/uploads"
    with api.client(api.analyst) as client:
        assert client.get(f"{base}/a").content == table()
        for site in ("b", "zz", "..%2fa", "a.arrow"):
            assert client.get(f"{base}/{site}").status_code == 404


def test_an_open_study_has_no_results(api, remote, tmp_path):
    api.study("early")
    with pytest.raises(CoordinatorError, match="the study has no results"):
        remote.pull("early", tmp_path / "out", copies="one")
    assert not (tmp_path / "out").exists()


def test_a_missing_table_is_not_told_by_its_path(api, remote, tmp_path):
    study_id = api.finished("lost")
    api.coordinator.folder.table(study_id, "a").unlink()
    with pytest.raises(CoordinatorError, match="a delivered table is gone") as error:
        remote.pull("lost", tmp_path, copies="one")
    assert str(api.root) not in str(error.value)


# -- what strangers send -----------------------------------------------------------------------


def chunks(total: int, sent: list[int] | None = None):
    """A body in parts."""
    for _ in range(total // 10_000):
        if sent is not None:
            sent.append(10_000)
        yield b" " * 10_000


@pytest.mark.parametrize(("path", "limit"), [("studies", MAX_STUDY_BYTES), ("sites", 10_000_000)])
def test_a_body_is_bounded_with_and_without_a_length(api, path, limit):
    with api.client(api.admin) as client:
        url = f"/api/v1/{path}"
        answer = client.post(url, content=b" " * (limit + 1))
        assert (answer.status_code, answer.json()["code"]) == (413, "invalid-input")
        assert client.post(url, content=b" " * limit).status_code == 422  # read, and no JSON
        with contextlib.suppress(httpx.TransportError):  # cut off while it still sends
            assert client.post(url, content=chunks(limit)).status_code == 411


def test_an_endless_body_is_cut_off_while_it_comes(api):
    sent: list[int] = []
    with api.client(api.analyst) as client, contextlib.suppress(httpx.TransportError):
        headers = {"Content-Length": str(10**9)}
        answer = client.post("/api/v1/studies", content=chunks(10**9, sent), headers=headers)
        assert answer.status_code == 413
    assert sum(sent) < 200 * MB


def test_a_body_is_not_read_without_a_token(api):
    sent: list[int] = []
    with api.client() as client, contextlib.suppress(httpx.TransportError):
        headers = {"Content-Length": str(10**9)}
        answer = client.post("/api/v1/studies", content=chunks(10**9, sent), headers=headers)
        assert answer.status_code == 401
    assert sum(sent) < 200 * MB


@pytest.mark.parametrize("coding", ["gzip", "br", "identity", "x"])
def test_encoded_bodies_are_not_taken(api, coding):
    with api.client(api.analyst) as client:
        headers = {"Content-Encoding": coding}
        answer = client.post("/api/v1/studies", content=b"{}", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (415, "invalid-input")


def test_another_major_of_the_wire_is_told_so(api):
    with api.client(api.analyst) as client:
        assert client.get("/api/v1/me", headers={"Penstock-Wire": "2.0"}).status_code == 426
        assert client.get("/api/v1/me", headers={"Penstock-Wire": "1.9"}).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/", "/docs", "/openapi.json", "/api/v1/", "/api/v1/nothing", "/api/v1/about/", "/api/v2/me"],
)
def test_there_is_nothing_else_to_see(api, path):
    with api.client(api.admin) as client:
        answer = client.get(path)
    assert (answer.status_code, answer.json()) == (404, {"code": "not-found"})
    assert "server" not in answer.headers
    assert "access-control-allow-origin" not in answer.headers


def test_other_methods_are_refused(api):
    with api.client(api.admin) as client:
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            assert client.request(method, "/api/v1/studies").status_code == 405


def test_slow_senders_keep_nobody_waiting(api):
    context = ssl.create_default_context(cadata=api.ca)
    slow = []
    try:
        for _ in range(100):  # more than there are threads
            plain = socket.create_connection(("127.0.0.1", api.port))
            tls = context.wrap_socket(plain, server_hostname="localhost")
            head = (
                "POST /api/v1/studies HTTP/1.1\r\nHost: x\r\n"
                f"Authorization: Bearer {api.analyst}\r\nContent-Length: 100000\r\n\r\n{{"
            )
            tls.sendall(head.encode())
            slow.append(tls)
        with api.remote() as remote:
            assert remote.me()["name"] == "ada"
    finally:
        for tls in slow:
            tls.close()


def test_a_connection_that_asks_for_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(serve, "HEAD_SECONDS", 0.1)

    async def hello(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    port = free_port()
    config = uvicorn.Config(
        hello, port=port, http=serve.Impatient, lifespan="off", log_config=None, interface="asgi3"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        Api.until(lambda: server.started)
        for head in (b"", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as idle:
                idle.sendall(head)
                assert idle.recv(100) == b""
        assert httpx.get(f"http://127.0.0.1:{port}", trust_env=False).text == "hello"
    finally:
        server.should_exit = True
        thread.join(30)


def test_trouble_of_its_own_is_not_described(api):
    study_id = api.finished("broken")
    (api.root / "studies" / study_id / "report.json").write_text("{not json: pst_secret")
    with api.client(api.analyst) as client:
        answer = client.get(f"/api/v1/studies/{study_id}/files?copies=one&x=query-text")
    assert (answer.status_code, answer.content) == (500, b'{"code":"internal"}')
    with api.remote() as remote, pytest.raises(CoordinatorError, match="error of its own"):
        remote.pull(study_id, api.root / "nowhere", copies="one")
    said = api.log.read_text()
    assert "JSONDecodeError at " in said
    for secret in ("Traceback", "pst_secret", "query-text", study_id):
        assert secret not in said.split("ERROR")[-1]


def test_plain_http_at_the_tls_port_is_no_trouble(api):
    with socket.create_connection(("127.0.0.1", api.port)) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP/1.1" not in plain.recv(1000)
    assert api.answers()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_tls_is_not_spoken(api, version):
    context = ssl.create_default_context(cadata=api.ca)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version = context.maximum_version = version
    with socket.create_connection(("127.0.0.1", api.port)) as plain:
        with pytest.raises(ssl.SSLError, match=r"(?i)protocol|alert"):
            context.wrap_socket(plain, server_hostname="localhost")


# -- the sites' way to the SuperLink -----------------------------------------------------------


class SuperLink:
    """A stand-in on the Unix socket: says what reached it."""

    def __init__(self, path: Path) -> None:
        self.requests: list[tuple[str, dict[str, str], int, str]] = []
        self.answered = 0
        config = uvicorn.Config(
            self.app,
            uds=str(path),
            log_level="critical",
            lifespan="off",
            interface="asgi3",
            ws="none",
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        Api.until(lambda: self.server.started)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(30)

    async def app(self, scope, receive, send):
        size, digest, more = 0, hashlib.sha256(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            digest.update(part)
        headers = {n.decode(): v.decode() for n, v in scope["headers"]}
        self.requests.append((scope["path"], headers, size, digest.hexdigest()))
        status = int(headers.get("x-status", "200"))
        answer = [(b"content-type", b"application/protobuf"), (b"connection", b"x-hop")]
        answer += [(b"x-hop", b"1"), (b"x-kept", b"1"), (b"keep-alive", b"5")]
        await send({"type": "http.response.start", "status": status, "headers": answer})
        for _ in range(int(headers.get("x-megabytes", "0"))):
            await send({"type": "http.response.body", "body": b"r" * MB, "more_body": True})
        await send({"type": "http.response.body", "body": b"end"})
        self.answered += 1


@pytest.fixture
def superlink(api):
    made = SuperLink(Folder(api.root).superlink_socket)
    yield made
    made.stop()


def test_the_fleet_is_passed_through_both_ways(api, superlink):
    body = os.urandom(MB) * 20
    headers = {"X-Passed": "s", "X-Megabytes": "20", "Authorization": "Bearer x"}
    with api.node() as client:
        answer = client.post("/v1/fleet/push-object", content=body, headers=headers)
        again = client.post("/v1/fleet/pull-object", content=body[: 5 * MB])
    assert (len(answer.content), answer.content[-3:]) == (20 * MB + 3, b"end")
    assert answer.headers["content-type"] == "application/protobuf"
    assert answer.headers["x-kept"] == "1"
    assert "x-hop" not in answer.headers
    assert again.status_code == 200
    path, seen, size, digest = superlink.requests[0]
    assert (path, size) == ("/v1/fleet/push-object", 20 * MB)
    assert digest == hashlib.sha256(body).hexdigest()
    assert seen["x-passed"] == "s"
    assert seen[FLEET_HTTP_SIGNATURE_HEADER]
    assert seen["host"] == "superlink"
    assert "authorization" not in seen
    assert superlink.requests[1][2] == 5 * MB


def test_a_large_body_is_streamed_and_not_kept(api, superlink):
    psutil = pytest.importorskip("psutil")
    before = psutil.Process(api.process.pid).memory_info().rss
    with api.node() as client:
        answer = client.post(
            "/v1/fleet/push-object",
            content=iter([b"x" * MB] * 60),
            headers={"X-Megabytes": "60", "Content-Length": str(60 * MB)},
        )
        assert len(answer.content) > 60 * MB
    assert superlink.requests[0][2] == 60 * MB
    assert psutil.Process(api.process.pid).memory_info().rss - before < 40 * MB


def test_the_superlinks_answers_stay_what_they_are(api, superlink):
    with api.node() as client:
        for status in (401, 403, 404, 422, 500):
            headers = {"X-Status": str(status)}
            answer = client.post("/v1/fleet/pull-messages", headers=headers)
            assert (answer.status_code, answer.content) == (status, b"end")


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/",
        "/v1/control/list-runs",
        "/v1/runtime/get-task",
        "/v1/fleet",
        "/v1/fleet/",
        "/v1/fleet//push-object",
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control",
        "/v1/fleet/a%2f..%2f..%2fcontrol",
        "/v1/fleet/push-object/",
        "/v1/fleet/push-object/x",
        "/v1/fleet/push-object?x=1",
        "/v1/fleet/Push-Object",
        "/v1/fleet;x/push-object",
        "//v1/fleet/push-object",
        "/health",
        "http://superlink/v1/control/list-runs",
    ],
)
def test_nothing_else_reaches_the_superlink(api, superlink, path):
    # By hand: clients tidy paths up.
    context = ssl.create_default_context(cadata=api.ca)
    with socket.create_connection(("127.0.0.1", api.port)) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as tls:
            tls.sendall(
                f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n"
                "Connection: close\r\n\r\n".encode()
            )
            said = b"".join(iter(lambda: tls.recv(10_000), b""))
    assert said.startswith(b"HTTP/1.1 404")
    assert said.endswith(b'\r\n\r\n{"code":"not-found"}') or said.endswith(b'{"code": "not-found"}')
    assert not superlink.requests


def test_only_posts_reach_the_fleet(api, superlink):
    with api.node() as client:
        for method in ("GET", "PUT", "DELETE", "OPTIONS", "HEAD"):
            assert client.request(method, "/v1/fleet/push-object").status_code == 405
    assert not superlink.requests


def test_a_fleet_request_is_bounded(api, superlink):
    with api.node() as client:
        # Cut off while they still send: the answer may be lost on its way, the limit is not.
        with contextlib.suppress(httpx.TransportError):
            body = b"x" * ((64 << 20) + 1)
            assert client.post("/v1/fleet/push-object", content=body).status_code == 413
        with contextlib.suppress(httpx.TransportError):
            parts = (b"x" * MB for _ in range(65))
            assert client.post("/v1/fleet/push-object", content=parts).status_code == 411
        assert not superlink.requests
        body = b"x" * 64 * MB
        assert client.post("/v1/fleet/push-object", content=body).status_code == 200


def test_without_a_superlink_the_fleet_waits_and_the_api_works(api):
    with api.node() as client:
        answer = client.post("/v1/fleet/pull-messages", content=b"x" * 1000)
    assert (answer.status_code, answer.json()) == (503, {"code": "unavailable"})
    assert api.answers()


# -- from Python, and by command ---------------------------------------------------------------


@pytest.fixture
def home(api, tmp_path, monkeypatch):
    """An analyst's machine that is logged in."""
    monkeypatch.setenv("PENSTOCK_CONFIG", str(tmp_path / "config"))
    for name in ("PENSTOCK_COORDINATOR", "PENSTOCK_TOKEN", "PENSTOCK_CA"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "ca.crt").write_text(api.ca)
    key = tmp_path / "ada.key"
    key.write_bytes(private_to_pem(ANALYST))
    key.chmod(0o600)
    run("login", api.url, "--ca", tmp_path / "ca.crt", stdin=api.analyst + "\n")
    return tmp_path


def run(*args: object, code: int = 0, stdin: str = "") -> str:
    result = CliRunner().invoke(commands, [str(a) for a in args], input=stdin)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


def test_a_client_does_all_that_an_analyst_does(api, home):
    study = replace(STUDY, name="python")
    with penstock.Client() as client:
        study_id = client.submit(study, ANALYST, no_estimands=True)
        assert client.submit(study, home / "ada.key", no_estimands=True) == study_id
        assert client.status("python")["state"] == "open"
        with pytest.raises(Unfinished, match="has not ended yet"):
            client.wait("python", timeout=0)
        client.cancel("python", home / "ada.key")
        with pytest.raises(JobFailed, match="cancelled"):
            client.wait("python")
        api.finished("pandas")
        seen: list[dict[str, object]] = []
        assert client.wait("pandas", progress=seen.append)["state"] == "finished"
        assert [s["state"] for s in seen] == ["finished"]
        assert client.report("pandas")["study"]
        rows = client.pooled("pandas")
        assert list(rows.columns) == ["_site", "_copy", "age"]
        assert len(client.pooled("pandas", copies="all")) == COPIES * len(rows) == COPIES * PERSONS
        assert len(client.pull("pandas", home / "out")) == len(TABLES)
        assert {"python", "pandas"} <= {s["name"] for s in client.studies()}
        with pytest.raises(InvalidInput, match="'one', 'all', 'refits'"):
            client.pooled("pandas", copies="some")  # type: ignore[arg-type]


def test_a_client_handed_in_a_study_without_estimands_that_a_command_refuses(api, home):
    study, file = replace(STUDY, name="empty"), home / "empty.toml"
    file.write_text(write_study(study))
    with penstock.Client() as client:
        for given, what in ((study, "study empty"), (file, str(file))):
            with pytest.raises(InvalidInput, match="the report would answer nothing") as caught:
                client.submit(given, ANALYST)
            assert caught.value.what == what
            (problem,) = caught.value.problems
            assert "no_estimands=True" in (problem.remedy or "")
        assert "empty" not in {s["name"] for s in client.studies()}
        mean = Estimand("age", "mean", "age")
        asking = client.submit(replace(study, name="asking", estimands=(mean,)), ANALYST)
        assert client.submit(file, ANALYST, no_estimands=True) != asking
        for name in ("empty", "asking"):
            assert client.status(name)["state"] == "open"
            client.cancel(name, ANALYST)


def test_a_study_whose_results_are_made_says_how_far_they_are(api, home):
    study = api.study("half")
    with api.store.begin() as c:
        api.coordinator.leases.open(c, study, stamp_now(), 2)
    assert api.coordinator.leases.renew(api.coordinator.leases.claim(), 1)
    with penstock.Client() as client:
        shown = client.status("half")
        assert (shown["state"], shown["pooling"]) == ("pooling", {"sites": 2, "done": 1})
        with pytest.raises(Unfinished):
            client.wait("half", timeout=0.1)
        with pytest.raises(CoordinatorError, match="no results"):
            client.report("half")
    assert "pooling, 1 of 2 sites" in run("study", "status", "half")
    assert "pooling, 1 of 2 sites" in " ".join(run("study", "list").split())
    with api.remote() as remote:
        remote.cancel(sign_cancel(study, ANALYST).to_bytes())
        assert remote.status(study)["state"] == "cancelled"


def test_a_client_reads_a_directory_the_same_way(api, home):
    api.finished("local")
    with penstock.Client(api.root) as client, penstock.Client() as far:
        pd.testing.assert_frame_equal(client.pooled("local"), far.pooled("local"))
        assert client.report("local") == far.report("local")


def test_the_commands_use_the_login(api, home):
    api.finished("shell")
    assert "finished" in run("study", "status", "shell", "--wait")
    assert "shell" in run("study", "list")
    assert "report.html" in run("pull", "shell", "--out", home / "out")
    assert json.loads(run("study", "status", "shell", "--json"))["state"] == "finished"
    cancelled = api.study("stopped")
    assert "is cancelled" in run("study", "cancel", "stopped", "-k", home / "ada.key")
    assert api.coordinator.status(cancelled)["state"] == "cancelled"
    run("study", "list", "--coordinator", "localhost")
    run("study", "list", "--coordinator", api.url)
    assert "run `penstock login" in run("study", "list", "-c", "https://other.example", code=12)


def test_login_keeps_a_token_for_its_owner_only(api, home):
    file = home / "config" / "logins.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert json.loads(file.read_text())["logins"]["localhost"]["token"] == api.analyst
    file.chmod(0o644)
    assert f"chmod 600 {file}" in run("study", "list", code=1)
    file.chmod(0o600)
    assert "is forgotten" in run("logout")
    assert api.analyst not in file.read_text()
    assert "run `penstock login" in run("study", "list", code=12)


def test_a_token_that_the_server_refuses_is_not_kept(api, home):
    before = (home / "config" / "logins.json").read_text()
    args = ("login", api.url, "--ca", home / "ca.crt", "--name", "other")
    assert "no valid token" in run(*args, stdin=f"pst_{'x' * 43}\n", code=12)
    said = run(*args, stdin="hunter2\n", code=12)
    assert "that is not a token" in said
    assert "hunter2" not in said
    assert (home / "config" / "logins.json").read_text() == before


def test_the_environment_stands_in_for_a_login(api, home, monkeypatch):
    run("logout")
    monkeypatch.setenv("PENSTOCK_TOKEN", api.admin)
    monkeypatch.setenv("PENSTOCK_CA", str(home / "ca.crt"))
    monkeypatch.setenv("PENSTOCK_COORDINATOR", api.url)
    run("study", "list")
    monkeypatch.setenv("PENSTOCK_TOKEN", "nonsense")
    assert "nonsense" not in run("study", "list", code=12)


def test_waiting_outlives_a_restart(api, home):
    study_id = api.study("patient")
    command = [sys.executable, "-m", "penstock", "study", "status", "patient", "--wait"]
    watching = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "FORCE_COLOR": "1"},  # bars as on a terminal: they show that it watches
    )
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.extend(watching.stderr))
    reader.start()
    try:
        Api.until(lambda: any("invited" in line for line in said) or watching.poll() is not None)
        api.stop(signal.SIGKILL)
        Api.until(lambda: any("; waiting" in line for line in said))
        api.start()
        Api.until(lambda: any("answers again" in line for line in said))
        api.coordinator.cancel(sign_cancel(study_id, ANALYST))
        assert watching.wait(60) == 10
    finally:
        watching.kill()
        watching.wait()
        reader.join()
        watching.stdout.close()
        watching.stderr.close()
        if api.process.poll() is not None:
            api.start()
    assert sum("; waiting" in line for line in said) == 1


def test_tokens_are_in_no_log_and_no_argument(api, home):
    said = api.log.read_text()
    assert "handed in by ada" in said
    for secret in (api.analyst, api.admin, "?copies"):
        assert secret not in said
    assert "pst_" not in " ".join(api.process.args)
    helped = run("login", "--help")
    assert "--token" not in helped


def test_a_second_server_says_that_the_port_is_taken(api):
    command = [sys.executable, "-m", "penstock_server.api.serve", str(api.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 9
    assert f"127.0.0.1:{api.port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_stops_when_told_even_with_connections_open(api):
    with api.client(api.analyst) as client:
        client.get("/api/v1/me")
        api.stop()
        assert api.process.returncode == 0
        api.start()
