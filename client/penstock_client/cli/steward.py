"""`requests`, `preview`, `approve`, `reject`: what is asked of a site, and the steward's answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.console import done, emit_json, friendly, number, say, table
from penstock.wire import gate_pb2
from penstock_client.cli.common import AsJson, SiteDir, document, open_site, short, steward

RequestId = Annotated[str, typer.Argument(help="The request id, or its beginning.")]


@friendly
def requests(directory: SiteDir = Path(), as_json: AsJson = False) -> None:
    """Every request: who asks what, at what price, and where it stands."""
    paths, _ = open_site(directory)
    rows = document(paths, "Requests")["requests"]
    if as_json:
        emit_json(rows)
        return
    if not rows:
        say("no requests yet")
        return
    table(
        "requests",
        ("request", "study", "class", "ε", "δ", "state", "submitted", "why"),
        [
            (
                r["request"][:12],
                r["study"],
                r["guarantee"],
                number(r["epsilon"]),
                number(r["delta"]),
                r["state"],
                r["submitted"][:10],
                r["why"],
            )
            for r in rows
        ],
    )


@friendly
def preview(request: RequestId, directory: SiteDir = Path(), as_json: AsJson = False) -> None:
    """What a request would release and cost, by every account, before and after."""
    paths, _ = open_site(directory)
    shown = document(paths, "Preview", gate_pb2.JobRequest(request_id=request))
    if as_json:
        emit_json(shown)
        return
    rows = [(label, short(shown[key])) for key, label in _PREVIEW.items() if key in shown]
    table(f"request {shown['request'][:12]}", ("", ""), rows)
    for event in shown.get("events", []):
        rate = f", rate {event['rate']:.4g}" if "rate" in event else ""
        noise = f"noise multiplier {event['noise_multiplier']:.4g}, {event['count']} ×{rate}"
        say(f"  {event['label'] or event['kind']}: {noise}")


_PREVIEW = {
    "study": "study",
    "title": "title",
    "signer": "signed by",
    "state": "state",
    "estimands": "asks",
    "columns": "of columns",
    "mechanism": "mechanism",
    "copies": "synthetic copies",
    "w": "w, share of the rows' own latents",
    "guarantee": "guarantee",
    "epsilon": "ε asked",
    "delta": "δ asked",
    "epsilon_autodp": "ε by autodp, which is charged",
    "epsilon_pld": "ε by PLD, tighter",
    "epsilon_replace_one": "ε if one person is replaced",
    "lineage": "data set",
    "total_epsilon": "its total ε",
    "spent_before": "spent before, at the ledger's order",
    "spent_after": "spent after, at the ledger's order",
    "left_before": "one more study may cost, now",
    "left_after": "one more study may cost, after",
    "refusal": "would be refused",
    "warning": "WARNING",
    "note": "note",
}
"""What `preview` shows, in a steward's order."""


@friendly
def approve(request: RequestId, directory: SiteDir = Path()) -> None:
    """Let a waiting request run."""
    paths, _ = open_site(directory)
    job = steward(paths, "Approve", gate_pb2.JobRequest(request_id=request))
    done(f"{job.request_id[:12]} is {job.state}")


@friendly
def reject(request: RequestId, directory: SiteDir = Path()) -> None:
    """Say no to a waiting request; nothing is charged."""
    paths, _ = open_site(directory)
    job = steward(paths, "Reject", gate_pb2.RejectRequest(request_id=request))
    done(f"{job.request_id[:12]} is {job.state}")
