"""Answers and files over HTTP from servers that are wrong in every way that happens."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path

import pytest
from tests.support.web_servers import TOKEN, Server, failing, polite

from penstock.analyst import ALWAYS, RESULT_FILES, remote
from penstock.analyst.remote import Remote
from penstock.base.errors import CoordinatorError, NotAllowed, PenstockError, Unreachable


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
            r"wire 1.3 here; there majors 3\): upgrade the older",
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


@pytest.mark.parametrize(
    ("wire", "theirs", "known"),
    [
        ("1.0", "1.0", True),
        ("1.1", "1.0", True),  # whoever reads labels reads what sites answer
        ("1.2", "1.2", True),
        ("1.2", "1.10", True),
        ("1.2", "1.1", False),
        ("1.3", "1.2", False),
        ("1.2", "\\u001b[2J", False),
    ],
)
def test_a_study_that_the_coordinator_could_not_read_the_answers_of_is_not_handed_in(
    serve, wire, theirs, known
):
    about = b'{"penstock": "0", "wire": "%s", "time": "x"}' % theirs.encode()
    server = serve(lambda handler: handler.say(200, about))
    with Remote(server.url, TOKEN) as client:
        if known:
            client.require_wire(wire)
            return
        with pytest.raises(CoordinatorError, match="newer than the coordinator") as error:
            client.require_wire(wire)
    assert "\x1b" not in str(error.value)


def test_a_connection_that_stays_lost_is_said(serve):
    server = serve(lambda handler: handler.cut())
    error = failing(server.url)
    assert "the connection was lost" in str(error)
    assert error.passing
    assert len(server.seen) == 3


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
    there = (*ALWAYS, "coefficients.csv", "coefficients.json")
    answered = {n: c for n, c in CONTENT.items() if n in there}
    server = serve(lambda h: files(h, listed=listing(answered)))
    with Remote(server.url, TOKEN) as client:
        found = client.pull("trial", tmp_path / "out", copies="one")
    assert [f.name for f in found] == list(there)
    short = {n: c for n, c in CONTENT.items() if n != "report.json"}
    server = serve(lambda h: files(h, listed=listing(short)))
    with (
        Remote(server.url, TOKEN) as client,
        pytest.raises(CoordinatorError, match=r"no such file.*report\.json"),
    ):
        client.pull("trial", tmp_path / "none", copies="one")


@pytest.mark.parametrize(
    "token", ["", "hunter2", "pst_short", f"{TOKEN}\r\nX-Evil: 1", "pst_ä" * 20]
)
def test_what_is_no_token_is_neither_sent_nor_shown(token):
    with pytest.raises(NotAllowed, match="that is not a token") as error:
        Remote("https://c.example", token)
    assert not token or token not in str(error.value)
