"""`trust`: whose studies a site answers."""

from __future__ import annotations

from dataclasses import asdict
from datetime import date
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from penstock.base.errors import InvalidInput, Problem
from penstock.base.times import stamp_now
from penstock.cli.console import done, friendly, number
from penstock.cli.key import read_public
from penstock_client.cli.common import AsJson, Reason, SiteDir, open_site
from penstock_client.cli.key_rings import (
    Heard,
    keep_change,
    require_heard,
    show_keys,
    tell_comparing,
)
from penstock_client.site.policy import read_policy
from penstock_client.site.signers import Signer, read_trust, trust_text, write_trust

app = typer.Typer(no_args_is_help=True, help="Whose studies this site answers.")


@app.command("add")
@friendly
def trust_add(
    key: Annotated[Path, typer.Argument(help="The analyst's .pub file.")],
    label: Annotated[str, typer.Option(help="Who this is.")],
    epsilon: Annotated[float, typer.Option(help="The most this signer may ever spend here.")],
    expires: Annotated[str, typer.Option(help="Last day of trust, UTC, such as 2027-12-31.")],
    heard: Heard = None,
    directory: SiteDir = Path(),
    reason: Reason = "",
) -> None:
    """Pin an analyst's key, after comparing its fingerprint over the phone."""
    paths, settings = open_site(directory)
    policy = read_policy(paths.policy)
    signer = Signer(read_public(key), label, epsilon, _end_of_day(expires))
    require_heard("trust add", {label: signer.fingerprint}, heard)
    trust = read_trust(paths.trust).add(signer)
    keep_change(
        paths,
        settings,
        "trust-add",
        reason,
        text=trust_text(trust),
        write=partial(write_trust, paths.trust, trust),
        signer=asdict(signer),
    )
    done(f"{label} may spend ε = {epsilon:g} in all (the data set: {policy.total_epsilon:g})")
    if not heard:
        tell_comparing([signer.fingerprint])


def _end_of_day(text: str) -> str:
    try:
        moment = f"{date.fromisoformat(text).isoformat()}T23:59:59.999999Z"
    except ValueError:
        problem = Problem("--expires", "not a date", value=text, bound="YYYY-MM-DD")
        raise InvalidInput("trust add", [problem]) from None
    if moment < stamp_now():
        problem = Problem("--expires", "that day is over", value=text, bound="today or later, UTC")
        raise InvalidInput("trust add", [problem])
    return moment


@app.command("revoke")
@friendly
def trust_revoke(
    who: Annotated[str, typer.Argument(help="Label, fingerprint or key.")],
    directory: SiteDir = Path(),
    reason: Reason = "",
) -> None:
    """Take trust back; takes effect at the gate's next decision."""
    paths, settings = open_site(directory)
    before = read_trust(paths.trust)
    trust = before.revoke(who)
    keep_change(
        paths,
        settings,
        "trust-revoke",
        reason,
        text=trust_text(trust),
        write=partial(write_trust, paths.trust, trust),
        signers=[asdict(s) for key, s in before.signers.items() if key not in trust.signers],
    )
    done(f"{who} is no longer trusted")


@app.command("list")
@friendly
def trust_list(directory: SiteDir = Path(), as_json: AsJson = False) -> None:
    """The pinned keys."""
    paths, _ = open_site(directory)
    signers = list(read_trust(paths.trust).signers.values())
    show_keys(
        "trusted signers",
        ("label", "fingerprint", "ε", "until"),
        [(s.label, s.fingerprint, number(s.epsilon), s.expires[:10]) for s in signers],
        [{**asdict(s), "fingerprint": s.fingerprint} for s in signers],
        nobody="nobody is trusted yet",
        as_json=as_json,
    )
