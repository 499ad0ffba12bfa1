"""`penstock server token`: who may speak to the API."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from penstock.base.errors import InvalidInput, Problem
from penstock.base.times import stamp, stamp_now, utc_now
from penstock.cli.console import done, emit_json, friendly, say, table
from penstock.cli.key import read_public
from penstock.wire.signatures import fingerprint
from penstock_server.access.tokens import Role, Tokens
from penstock_server.install.founding import open_coordinator
from penstock_server.operate.options import CoordinatorDir

token_app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
key_app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
token_app.add_typer(key_app, name="key")

MOST_DAYS = 3650

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


@token_app.callback()
def token() -> None:
    """Tokens of analysts and admins: add, list, revoke; and the keys that they sign with."""


@key_app.callback()
def key() -> None:
    """Signing keys of an account: only studies that are signed with one of them are taken."""


def _tokens(directory: Path) -> Tokens:
    coordinator = open_coordinator(directory)
    return Tokens(coordinator.store, coordinator.access)


@token_app.command()
@friendly
def add(
    name: Annotated[str, typer.Argument(help="Whose it is, such as ada.")],
    directory: CoordinatorDir = Path("coordinator"),
    role: Annotated[Role, typer.Option(help="admin may also enrol sites.")] = Role.ANALYST,
    days: Annotated[int, typer.Option(help="How long it is good for.")] = 365,
    key: Annotated[
        Path | None, typer.Option("--key", help="Their .pub file; what it signs is theirs.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, this once; the coordinator keeps only its hash."""
    if not 1 <= days <= MOST_DAYS:
        problem = Problem(
            "--days", "is out of range", value=str(days), bound=f"from 1 to {MOST_DAYS}"
        )
        raise InvalidInput("token add", [problem])
    moment = utc_now()
    expires = stamp(moment + timedelta(days=days))
    public, tokens = None if key is None else read_public(key), _tokens(directory)
    secret = tokens.add(name, role, stamp(moment), expires, key=public)
    bound = [fingerprint(k) for k in tokens.keys().get(name, ())]
    if as_json:
        made = {"name": name, "role": str(role), "expires": expires, "keys": bound}
        emit_json({**made, "token": secret})
        return
    done(f"token of {name} ({role}), good until {expires[:10]}; it is not shown again:")
    say(secret)
    say("hand it over safely; it is entered at the prompt of `penstock login https://...`")
    for each in bound:
        say(f"  signs with {each}  (compare by voice)")
    if not bound:
        say("it reads, and hands in studies as soon as a signing key is bound to it:")
        say(f"  penstock server token key add {name} analyst.pub")


@token_app.command("list")
@friendly
def list_tokens(directory: CoordinatorDir = Path("coordinator"), as_json: AsJson = False) -> None:
    """All tokens, without their secrets."""
    coordinator = open_coordinator(directory)
    tokens, moment = Tokens(coordinator.store, coordinator.access), stamp_now()
    found, keys = tokens.list(), tokens.keys()
    bound = {t.name: [fingerprint(k) for k in keys.get(t.name, ())] for t in found}
    if as_json:
        emit_json([{**asdict(t), "good": t.good(moment), "keys": bound[t.name]} for t in found])
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
            ", ".join(bound[t.name]) or "none: reads only",
        )
        for t in found
    ]
    table("tokens", ("name", "role", "created", "expires", "state", "signs with"), rows)
    wrong = coordinator.access.wrong_tokens(stamp(utc_now() - timedelta(days=7)))
    if wrong:
        say(f"wrong tokens in the last 7 days: {wrong}; see `penstock server access`")


@token_app.command()
@friendly
def revoke(
    name: Annotated[str, typer.Argument(help="Whose it is.")],
    directory: CoordinatorDir = Path("coordinator"),
) -> None:
    """End a token, from the next request on. The account keeps its studies, and its keys."""
    _tokens(directory).revoke(name, stamp_now())
    done(f"the token of {name} opens nothing any more")


Account = Annotated[str, typer.Argument(help="Whose token.")]
Public = Annotated[Path, typer.Argument(help="Their .pub file, of `penstock key new`.")]


@key_app.command("add")
@friendly
def add_key(name: Account, path: Public, directory: CoordinatorDir = Path("coordinator")) -> None:
    """Bind a signing key to an account, after comparing its fingerprint by voice."""
    public = read_public(path)
    _tokens(directory).add_key(name, public, stamp_now())
    done(f"{name} signs with {fingerprint(public)}")


@key_app.command("remove")
@friendly
def remove_key(
    name: Account, path: Public, directory: CoordinatorDir = Path("coordinator")
) -> None:
    """Take a signing key from an account. Studies that it has signed stay, and go on."""
    public = read_public(path)
    _tokens(directory).remove_key(name, public)
    done(f"{name} signs no more with {fingerprint(public)}")
