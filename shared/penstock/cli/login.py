"""`penstock login` and `penstock logout`: where the coordinator is, and who you are there."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from penstock.analyst import logins
from penstock.base.checks import NAME, NAME_BOUND
from penstock.base.errors import InvalidInput, PenstockError, Problem
from penstock.cli.console import done, emit_json, friendly, say

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
logout_app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

MOST_READ = 1000


@app.command()
@friendly
def login(
    url: Annotated[str, typer.Argument(help="The coordinator: https://HOST:PORT.")],
    ca: Annotated[
        Path | None,
        typer.Option(help="The ca.crt you were given; the system's authorities if not given."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What to call it here; the host if not given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Check a token against the coordinator, and keep both for the other commands.

    The token is asked for, or read from standard input; it is never an argument, which others on
    this machine could read.
    """
    address = logins.read_address(url)
    called = _name_host(address) if name is None else name
    if not NAME.fullmatch(called):
        problem = Problem("--name", "is not well formed", value=repr(called[:80]), bound=NAME_BOUND)
        raise InvalidInput("login", [problem])
    pem = None if ca is None else logins.read_ca(ca)
    saved = logins.load()
    token = logins.check_token(_ask())
    from penstock.analyst.remote import Remote

    with Remote(address, token, ca=pem) as remote:
        about, me = remote.about(), remote.me()
    path = logins.save(saved.add(logins.Login(called, address, token, pem)))
    if as_json:
        emit_json({"login": called, "url": address, **me})
        return
    done(f"{called}: logged in as {me['name']} ({me['role']}), until {str(me['expires'])[:10]}")
    if me.get("keys") == []:
        say("  no signing key is bound to this account yet: it reads, and cannot hand in studies;")
        say("  send your .pub file to who runs the coordinator")
    say(f"  {address} runs Penstock {about['penstock']}; kept in {path}")
    if os.environ.get("PENSTOCK_COORDINATOR"):
        say("  PENSTOCK_COORDINATOR is set, and goes before this login")


def _name_host(address: str) -> str:
    """The host as a login's name; it may begin with a digit, which a name does not."""
    host = (urlsplit(address).hostname or "").replace(":", "-")
    return host[:64] if NAME.fullmatch(host[:64]) else f"at-{host}"[:64]


def _ask() -> str:
    if sys.stdin.isatty():
        return getpass.getpass("token: ", stream=sys.stderr)
    return sys.stdin.readline(MOST_READ)


@logout_app.command()
@friendly
def logout(
    name: Annotated[
        str | None, typer.Argument(help="Which login; the default one if not given.")
    ] = None,
) -> None:
    """Forget a saved login. The token itself stays good until the coordinator revokes it."""
    saved = logins.load()
    which = saved.default if name is None else name
    if not which:
        known = ", ".join(saved.logins) or "none"
        raise PenstockError("which login?", bound=f"saved: {known}", remedy="give its name")
    logins.save(saved.remove(which))
    done(f"{which} is forgotten; ask for its token to be revoked if others may have seen it")
