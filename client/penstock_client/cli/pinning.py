"""`peers`: with whose gates a site adds up."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from penstock.base.errors import InvalidInput, Problem
from penstock.cli.console import done, emit_json, friendly, say, table
from penstock_client.cli.common import AsJson, Reason, SiteDir, open_site
from penstock_client.ledger.decisions import Who, file_digest, open_decisions
from penstock_client.site.peer_keys import peers_text, read_peer, read_peers, write_peers

app = typer.Typer(no_args_is_help=True, help="With whose gates this site adds up.")


@app.command("add")
@friendly
def peers_add(
    join: Annotated[Path, typer.Argument(help="The other site's join.json.")],
    directory: SiteDir = Path(),
    reason: Reason = "",
) -> None:
    """Pin another site's gate, after comparing its fingerprint over the phone."""
    paths, settings = open_site(directory)
    peer = read_peer(join, settings.federation)
    if peer.site == settings.name or peer.key == paths.gate_public():
        problem = Problem("site", "is this one", value=peer.site)
        raise InvalidInput("peers add", [problem])
    peers = read_peers(paths.peers).add(peer)
    with open_decisions(paths, settings.name) as decisions:
        decisions.append(
            "peer-add", Who.here(), reason, peer=asdict(peer), digest=file_digest(peers_text(peers))
        )
    write_peers(paths.peers, peers)
    done(f"{peer.site}: this site may add up with its gate")
    say(f"compare this fingerprint by voice: {peer.fingerprint}")


@app.command("remove")
@friendly
def peers_remove(
    who: Annotated[str, typer.Argument(help="Site, fingerprint or key.")],
    directory: SiteDir = Path(),
    reason: Reason = "",
) -> None:
    """Unpin a gate; takes effect at the gate's next decision."""
    paths, settings = open_site(directory)
    before = read_peers(paths.peers)
    peers = before.remove(who)
    gone = [asdict(peer) for peer in before.every() if peer.site not in peers.keys]
    with open_decisions(paths, settings.name) as decisions:
        decisions.append(
            "peer-remove", Who.here(), reason, peers=gone, digest=file_digest(peers_text(peers))
        )
    write_peers(paths.peers, peers)
    done(f"{who} is no longer pinned")


@app.command("list")
@friendly
def peers_list(directory: SiteDir = Path(), as_json: AsJson = False) -> None:
    """The pinned gates."""
    paths, _ = open_site(directory)
    found = read_peers(paths.peers).every()
    if as_json:
        emit_json([{**asdict(peer), "fingerprint": peer.fingerprint} for peer in found])
        return
    if not found:
        say("no other site's gate is pinned yet")
        return
    table("pinned gates", ("site", "fingerprint"), [(p.site, p.fingerprint) for p in found])
