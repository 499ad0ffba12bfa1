"""`penstock login` and `logout`."""

from __future__ import annotations

import json
import socket

from tests.support.web_servers import ME, TOKEN
from typer.testing import CliRunner

from penstock.analyst import Fetching, connect, logins
from penstock.cli.main import app


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
    assert not logins.find_file().exists()


def test_without_a_coordinator_the_way_in_is_said(tmp_path):
    assert "run `penstock login https://" in run("study", "list", code=12)
    assert "no coordinator here" in run("study", "list", "-c", tmp_path / "none", code=9)
