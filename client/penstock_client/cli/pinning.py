"""`peers`: with whose gates a site adds up."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from penstock.base.errors import InvalidInput, Problem
from penstock.cli.console import done, friendly, say
from penstock_client.cli.common import AsJson, Reason, SiteDir, open_site
from penstock_client.cli.key_rings import (
    Heard,
    keep_change,
    require_heard,
    show_keys,
    tell_comparing,
)
from penstock_client.site.peer_keys import Peer, peers_text, read_peer, read_peers, write_peers

app = typer.Typer(
    no_args_is_help=True,
    help="With whose gates this site adds up, in one release of many sites.",
)


@app.command("add")
@friendly
def peers_add(
    joins: Annotated[list[Path], typer.Argument(help="Each other site's join.json.")],
    heard: Heard = None,
    directory: SiteDir = Path(),
    reason: Reason = "",
) -> None:
    """Pin other sites' gates, after comparing their fingerprints over the phone.

    In one release of many sites (a study with scope = "global") a sum hides
    what this site adds to it, as long as the others are who they seem to be:
    whoever chooses the keys can be all of them. So it adds up with gates only
    whose keys you pinned. Give --fingerprint what each steward read to you, and
    a file with another key is refused; or compare what is shown here.
    """
    paths, settings = open_site(directory)
    own = Peer(settings.name, paths.gate_public())
    found: dict[str, Peer] = {}
    for path in joins:
        peer = read_peer(path, settings.federation)
        if peer == own and len(joins) > 1:
            continue  # all sites' files were given, its own among them
        if peer.site == own.site or peer.key == own.key:
            problem = Problem("site", "is this one", value=peer.site)
            raise InvalidInput("peers add", [problem])
        if found.setdefault(peer.site, peer) != peer:
            problem = Problem("site", "is given with two keys", value=peer.site)
            raise InvalidInput("peers add", [problem])
    require_heard("peers add", {p.site: p.fingerprint for p in found.values()}, heard)
    before = read_peers(paths.peers)
    peers = before
    for peer in found.values():
        peers = peers.add(peer)
        keep_change(
            paths,
            settings,
            "peer-add",
            reason,
            text=peers_text(peers),
            write=partial(write_peers, paths.peers, peers),
            peer=asdict(peer),
        )
        done(f"{peer.site}: this site may add up with its gate")
        if before.keys.get(peer.site, peer.key) != peer.key:
            say(f"  ! {peer.site} had another key before: ask its steward why it is a new one")
        if not heard:
            tell_comparing([peer.fingerprint])


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
    keep_change(
        paths,
        settings,
        "peer-remove",
        reason,
        text=peers_text(peers),
        write=partial(write_peers, paths.peers, peers),
        peers=[asdict(peer) for peer in before.every() if peer.site not in peers.keys],
    )
    done(f"{who} is no longer pinned")


@app.command("list")
@friendly
def peers_list(directory: SiteDir = Path(), as_json: AsJson = False) -> None:
    """The pinned gates."""
    paths, _ = open_site(directory)
    found = read_peers(paths.peers).every()
    show_keys(
        "pinned gates",
        ("site", "fingerprint"),
        [(p.site, p.fingerprint) for p in found],
        [{**asdict(p), "fingerprint": p.fingerprint} for p in found],
        nobody="no other site's gate is pinned yet",
        as_json=as_json,
    )
