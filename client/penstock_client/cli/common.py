"""What the rooms of `penstock site` share: the site's directory, and calls on steward.sock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import grpc
import typer
from google.protobuf.message import Message

from penstock.base.documents import Json
from penstock.base.errors import GateUnavailable, InvalidInput, Problem
from penstock.wire import gate_pb2, gate_pb2_grpc
from penstock.wire.calls import connect, explain_failure, listens
from penstock_client.ledger.decisions import Who
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import SiteSettings, read_settings

RPC_SECONDS = 30.0

SiteDir = Annotated[
    Path,
    typer.Option("--dir", "-d", envvar="PENSTOCK_SITE", help="The site's directory."),
]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is recorded with the decision.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def open_site(root: Path) -> tuple[SitePaths, SiteSettings]:
    """The site in a directory.

    Raises:
        InvalidInput: there is none, or its settings have problems.
    """
    paths = SitePaths(root.resolve())
    if not paths.settings.exists():
        problem = Problem("", "no site here", remedy="run `penstock site init` first")
        raise InvalidInput(str(root), [problem])
    return paths, read_settings(paths)


def call_steward(paths: SitePaths, method: str, request: Message) -> Message:
    """One call on steward.sock.

    Raises:
        GateUnavailable: the gate does not run; Refused: it says no.
    """
    if not listens(paths.steward_socket):
        raise GateUnavailable(
            "the gate does not run", value=paths.root, remedy="`penstock site start` it"
        )
    with connect(paths.steward_socket) as channel:
        try:
            return getattr(gate_pb2_grpc.StewardStub(channel), method)(request, timeout=RPC_SECONDS)
        except grpc.RpcError as error:
            raise explain_failure(error) from None


def call_document(paths: SitePaths, method: str, request: Message | None = None) -> Json:
    """A call whose answer is a document."""
    reply = call_steward(paths, method, request or gate_pb2.Nothing())
    found: Json = json.loads(reply.json)
    return found


def identify_decider() -> gate_pb2.Decider:
    """Whoever runs this command, for the gate's record of what they decide."""
    who = Who.here()
    return gate_pb2.Decider(uid=who.uid or 0, user=who.user, claimed=dict(who.claimed))


def shorten(value: object) -> object:
    """A value in a cell of a table."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{v} {k}" for k, v in value.items()) or "none"
    if value is None:
        return "∞"
    return ", ".join(map(str, value)) if isinstance(value, list) else value
