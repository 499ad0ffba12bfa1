"""`init`, `check`, `node-key`, `join`: a site is made, certified, and joined to a coordinator."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.console import done, emit_json, err, friendly, say
from penstock.daemon import certificates
from penstock.errors import InvalidInput, Problem
from penstock.wire.signatures import fingerprint
from penstock_client import setup
from penstock_client.cli.common import AsJson, SiteDir, open_site
from penstock_client.dumps import forbid_dumps
from penstock_client.join import Invite, accept, check_site, read_invite
from penstock_client.network import NetworkPaths, node_fingerprint
from penstock_client.rows.validation import Checked
from penstock_client.site import SEEDED, SitePaths


@friendly
def init(
    name: Annotated[str, typer.Option(help="The site's name in the federation, such as aric-f.")],
    directory: SiteDir = Path(),
    source: Annotated[
        Path | None, typer.Option("--from", help="Draft the dictionary from this CSV or Parquet.")
    ] = None,
    federation: Annotated[str, typer.Option(help="The federation's name.")] = "main",
    node_key: Annotated[
        Path | None,
        typer.Option(help="The node.pub of a network side that has a user of its own."),
    ] = None,
) -> None:
    """Make a site: the gate's key, an empty ledger, and drafts of dictionary and policy."""
    forbid_dumps()
    paths = SitePaths(directory.resolve())
    setup.init(paths, name, federation, source.resolve() if source else None, node_key)
    done(f"site {name} in {paths.root}")
    say(f"gate fingerprint {fingerprint(paths.gate_public())}")
    say("next: edit dictionary.toml (bounds are public knowledge, never observed minima)")
    say("      and policy.toml, then run `penstock site check`")


@friendly
def check(
    directory: SiteDir = Path(),
    accept: Annotated[
        bool, typer.Option("--accept", help="Accept the clamping and mapping that is reported.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report only; certify nothing.")
    ] = False,
    new_data: Annotated[
        bool,
        typer.Option(
            "--new-data",
            help="Declare, after a recovery of the ledger, that no row was in a data set before.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check the rows against the dictionary, and certify them for studies.

    What is found is shown here only, as columns and line numbers. Nothing outside depends on it.
    """
    forbid_dumps()
    paths, settings = open_site(directory)
    checked, _ = setup.inspect(paths, settings)
    standing = checked.standing(accept=accept)
    if settings.insecure_seed is not None:
        err.print("  !", SEEDED, markup=False)
    if not as_json:
        _show_findings(checked)
    version = None
    if not (dry_run or standing):
        version = setup.certify(paths, settings, checked, accept=accept, new_data=new_data)
    if as_json:
        emit_json(
            {
                "rows": checked.rows,
                "persons": checked.persons,
                "findings": [asdict(f) for f in checked.findings],
                "unused": list(checked.unused),
                "version": version,
            }
        )
    elif version is not None:
        done(f"certified as version {version} of {settings.lineage}; public n = {checked.persons}")
        say(f"{paths.join} is what the coordinator enrols")
    if dry_run:
        raise typer.Exit(2 if checked.fatal else 0)
    if standing:
        what = "add --accept to clamp and map as said, or correct the file"
        if checked.fatal:
            what = "correct what is marked ✗, in the file or in dictionary.toml"
        source = str(setup.data_path(paths, settings.data))
        raise InvalidInput(source, [Problem("", f"nothing was certified: {what}")])


def _show_findings(checked: Checked) -> None:
    columns = len(checked.dictionary.columns)
    say(f"{checked.rows} rows, {checked.persons} persons, {columns} columns")
    if checked.unused:
        err.print("  not in the dictionary:", ", ".join(checked.unused), markup=False)
    for finding in checked.findings:
        err.print("  ✗" if finding.fatal else "  !", str(finding), markup=False)


@friendly
def node_key(
    directory: Annotated[Path, typer.Argument(help="The network side's directory, to be made.")],
) -> None:
    """Make a directory and a key for a network side that runs as a user of its own.

    Give its node.pub to `penstock site init --node-key`.
    """
    network = NetworkPaths(directory.resolve())
    network.make()
    line = network.make_key()
    done(f"{network.node_public} goes to `penstock site init --node-key`")
    say(f"node fingerprint {node_fingerprint(line)}")


@friendly
def join(
    invite: Annotated[Path, typer.Argument(help="The invite that the coordinator sent back.")],
    directory: SiteDir = Path(),
    network: Annotated[
        Path | None,
        typer.Option(help="The network side's directory, where it has a user of its own."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Accept another CA than the one that is pinned.")
    ] = False,
) -> None:
    """Join a coordinator by its invite; then compare the CA's fingerprint over the phone."""
    found = read_invite(invite)
    target = NetworkPaths(network.resolve() if network else directory.resolve() / "network")
    checked = _check_invite(found, invite, directory, alone=network is not None)
    accept(found, target, what=str(invite), replace=replace)
    done(f"{found.site} has joined {found.federation} at {found.address}")
    if not checked:
        say(f"compare with the steward: gate fingerprint {found.gate_fingerprint}")
    say("compare by voice with the coordinator, before you start:")
    say(f"  CA fingerprint {certificates.fingerprint(found.ca)}")


def _check_invite(found: Invite, invite: Path, directory: Path, *, alone: bool) -> bool:
    """Compare an invite with the site; false where a network user cannot see one."""
    if alone and not SitePaths(directory.resolve()).settings.exists():
        return False
    paths, settings = open_site(directory)
    check_site(found, paths, settings, what=str(invite))
    return True
