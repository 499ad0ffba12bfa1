"""`penstock server token`: who may speak to the API."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.console import done, emit_json, friendly, say, table
from penstock.errors import InvalidInput, Problem
from penstock_server import service
from penstock_server.lifecycle import now, stamp
from penstock_server.tokens import Role, Tokens

token_app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

MOST_DAYS = 3650

Folder = Annotated[
    Path,
    typer.Option("--dir", "-d", envvar="PENSTOCK_COORDINATOR", help="The coordinator's directory."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


@token_app.callback()
def token() -> None:
    """Tokens of analysts and admins: add, list, revoke."""


def _tokens(directory: Path) -> Tokens:
    return Tokens(service.open_coordinator(directory).store)


@token_app.command()
@friendly
def add(
    name: Annotated[str, typer.Argument(help="Whose it is, such as ada.")],
    directory: Folder = Path("coordinator"),
    role: Annotated[Role, typer.Option(help="admin may also enrol sites.")] = Role.ANALYST,
    days: Annotated[int, typer.Option(help="How long it is good for.")] = 365,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, this once; the coordinator keeps only its hash."""
    if not 1 <= days <= MOST_DAYS:
        problem = Problem(
            "--days", "is out of range", value=str(days), bound=f"from 1 to {MOST_DAYS}"
        )
        raise InvalidInput("token add", [problem])
    moment = now()
    expires = stamp(moment + timedelta(days=days))
    secret = _tokens(directory).add(name, role, stamp(moment), expires)
    if as_json:
        emit_json({"name": name, "role": str(role), "expires": expires, "token": secret})
        return
    done(f"token of {name} ({role}), good until {expires[:10]}; it is not shown again:")
    say(secret)
    say("hand it over safely; it is entered at the prompt of `penstock login https://...`")


@token_app.command("list")
@friendly
def list_tokens(directory: Folder = Path("coordinator"), as_json: AsJson = False) -> None:
    """All tokens, without their secrets."""
    moment, found = stamp(now()), _tokens(directory).list()
    if as_json:
        emit_json([{**asdict(t), "good": t.good(moment)} for t in found])
        return
    if not found:
        say("no tokens yet: `penstock server token add NAME`")
        return
    rows = [
        (
            t.name,
            t.role,
            t.created[:10],
            t.expires[:10],
            "good" if t.good(moment) else "revoked" if t.revoked else "expired",
        )
        for t in found
    ]
    table("tokens", ("name", "role", "created", "expires", "state"), rows)


@token_app.command()
@friendly
def revoke(
    name: Annotated[str, typer.Argument(help="Whose it is.")],
    directory: Folder = Path("coordinator"),
) -> None:
    """End a token, from the next request on."""
    _tokens(directory).revoke(name, stamp(now()))
    done(f"the token of {name} opens nothing any more")
