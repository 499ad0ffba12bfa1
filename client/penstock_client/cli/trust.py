"""`trust`: whose studies a site answers."""

from __future__ import annotations

from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.console import done, emit_json, friendly, number, say, table
from penstock.cli.key import read_public
from penstock.errors import InvalidInput, Problem
from penstock_client.cli.common import AsJson, SiteDir, open_site
from penstock_client.ledger.ledger import utc_now
from penstock_client.policy import Signer, read_policy, read_trust, write_trust

app = typer.Typer(no_args_is_help=True, help="Whose studies this site answers.")


@app.command("add")
@friendly
def trust_add(
    key: Annotated[Path, typer.Argument(help="The analyst's .pub file.")],
    label: Annotated[str, typer.Option(help="Who this is.")],
    epsilon: Annotated[float, typer.Option(help="The most this signer may ever spend here.")],
    expires: Annotated[str, typer.Option(help="Last day of trust, UTC, such as 2027-12-31.")],
    directory: SiteDir = Path(),
) -> None:
    """Pin an analyst's key, after comparing its fingerprint over the phone."""
    paths, _ = open_site(directory)
    policy = read_policy(paths.policy)
    signer = Signer(read_public(key), label, epsilon, _end_of_day(expires))
    write_trust(paths.trust, read_trust(paths.trust).add(signer))
    done(f"{label} may spend ε = {epsilon:g} in all (the data set: {policy.total_epsilon:g})")
    say(f"compare this fingerprint by voice: {signer.fingerprint}")


def _end_of_day(text: str) -> str:
    try:
        moment = f"{date.fromisoformat(text).isoformat()}T23:59:59.999999Z"
    except ValueError:
        problem = Problem("--expires", "not a date", value=text, bound="YYYY-MM-DD")
        raise InvalidInput("trust add", [problem]) from None
    if moment < utc_now():
        problem = Problem("--expires", "that day is over", value=text, bound="today or later, UTC")
        raise InvalidInput("trust add", [problem])
    return moment


@app.command("revoke")
@friendly
def trust_revoke(
    who: Annotated[str, typer.Argument(help="Label, fingerprint or key.")],
    directory: SiteDir = Path(),
) -> None:
    """Take trust back; takes effect at the gate's next decision."""
    paths, _ = open_site(directory)
    write_trust(paths.trust, read_trust(paths.trust).revoke(who))
    done(f"{who} is no longer trusted")


@app.command("list")
@friendly
def trust_list(directory: SiteDir = Path(), as_json: AsJson = False) -> None:
    """The pinned keys."""
    paths, _ = open_site(directory)
    signers = list(read_trust(paths.trust).signers.values())
    if as_json:
        emit_json([{**asdict(s), "fingerprint": s.fingerprint} for s in signers])
        return
    if not signers:
        say("nobody is trusted yet")
        return
    rows = [(s.label, s.fingerprint, number(s.epsilon), s.expires[:10]) for s in signers]
    table("trusted signers", ("label", "fingerprint", "ε", "until"), rows)
