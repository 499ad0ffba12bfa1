"""`penstock site doctor`: what keeps a site from working, from its files to the coordinator."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import grpc
import typer

from penstock.base.errors import GateUnavailable, InvalidInput
from penstock.cli.console import friendly
from penstock.processes import certificates, reachability
from penstock.processes.checkup import (
    FAIL,
    OK,
    WARN,
    Check,
    Row,
    check_device,
    check_disk,
    check_modes,
    check_versions,
    report_trouble,
    run,
    show,
)
from penstock.wire import gate_pb2, gate_pb2_grpc
from penstock.wire.calls import connect, explain_failure
from penstock.wire.messages import SERVED_MAJORS
from penstock_client.site.network_paths import NetworkPaths
from penstock_client.site.policy import find_retired, read_policy
from penstock_client.site.signers import read_trust
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import SiteSettings, read_settings

GATE_SECONDS = 5.0


def check_site(folder: Path, network: Path | None = None) -> list[Row]:
    """Everything a site needs, from its own files to the coordinator's clock.

    Args:
        folder: the site's directory.
        network: the network side's, where it is not within the site's.
    """
    paths = SitePaths(folder.resolve())
    joined = NetworkPaths(network.resolve() if network is not None else paths.network)
    checks: list[tuple[str, Check]] = []
    settings = None
    if not paths.root.is_dir():
        # With --network a site that is not there would pass for one that only cannot be seen.
        remedy = "Give the site's own directory as --dir."
        absent = Row("site", FAIL, f"there is no directory {paths.root}", remedy)
        checks.append(("site", lambda: absent))
    # The network side's user cannot see a site, and is to look at its own directory.
    alone = network is not None and not paths.settings.exists()
    try:
        settings = None if alone else read_settings(paths)
    except InvalidInput as error:
        # The rest of the site means nothing without this file; the machine's rows still do.
        broken = report_trouble("site", error)
        checks = checks or [("site", lambda: broken)]
    if settings is not None:
        checks += _list_checks(paths, settings)
    wanted = settings.device if settings is not None else "auto"
    checks += [
        ("modes", lambda: check_modes(_list_private(None if alone else paths, joined))),
        ("disk", lambda: check_disk(joined.root if alone else paths.root)),
        ("versions", lambda: check_versions(torch=True)),
        ("device", lambda: check_device(wanted)),
        ("coordinator", lambda: _check_coordinator(paths, joined)),
    ]
    return run(checks)


def _list_checks(paths: SitePaths, settings: SiteSettings) -> list[tuple[str, Check]]:
    return [
        ("site", lambda: Row("site", OK, f"{settings.name} of federation {settings.federation}")),
        ("noise", lambda: _check_noise(settings)),
        ("data", lambda: _check_data(paths)),
        ("policy", lambda: _check_policy(paths)),
        ("trust", lambda: _check_trust(paths)),
        ("gate", lambda: _check_gate(paths)),
    ]


def _check_noise(settings: SiteSettings) -> Row:
    if settings.insecure_seed is not None:
        remedy = "Remove insecure_seed from site.toml; it is for simulated rows only."
        return Row("noise", FAIL, "comes from a test seed: nothing released is private", remedy)
    return Row("noise", OK, "keyed by the operating system")


def _list_private(paths: SitePaths | None, network: NetworkPaths) -> list[Path]:
    """What only the site's own user may open; without a site, the network side's."""
    own = [paths.root, paths.gate_key.parent, paths.gate_key, paths.snapshots] if paths else []
    return [*own, network.root, network.node_key, network.secret]


def _check_data(paths: SitePaths) -> Row:
    certified = paths.join.exists() and (paths.snapshots / "dictionary.toml").exists()
    if not certified:
        return Row("data", FAIL, "no rows are certified", "Run `penstock site check`.")
    return Row("data", OK, "rows are certified")


def _check_policy(paths: SitePaths) -> list[Row]:
    """What the policy allows, and each key that a steward may believe to be a rule of it."""
    policy = read_policy(paths.policy)
    what = f"{policy.approval}, at most ε = {policy.total_epsilon:g} in all"
    remedy = "Remove the key: it was one of an earlier version."
    retired = [
        Row("policy", WARN, f"line {line}: {key} has no effect", remedy)
        for key, line in find_retired(paths.policy)
    ]
    return [Row("policy", OK, what), *retired]


def _check_trust(paths: SitePaths) -> Row:
    signers = len(read_trust(paths.trust).signers)
    if not signers:
        remedy = "Run `penstock site trust add` with an analyst's .pub file."
        return Row("trust", WARN, "nobody's studies are answered", remedy)
    return Row("trust", OK, f"{signers} signer{'s' if signers > 1 else ''}")


def _check_gate(paths: SitePaths) -> Row:
    start = "Run `penstock site start`."
    if not paths.steward_socket.exists():
        return Row("gate", WARN, "does not run", start)
    try:
        with contextlib.closing(connect(paths.steward_socket)) as channel:
            stub = gate_pb2_grpc.StewardStub(channel)
            stub.Status(gate_pb2.Nothing(), timeout=GATE_SECONDS)
    except grpc.RpcError as error:
        why = explain_failure(error)
        if isinstance(why, GateUnavailable):
            remedy = f"{start[:-1]}; if it runs, stop it first and look at log/gate.log."
            return Row("gate", FAIL, "does not answer on its socket", remedy)
        return report_trouble("gate", why)
    return Row("gate", OK, "answers")


def _check_coordinator(paths: SitePaths, network: NetworkPaths) -> Sequence[Row]:
    """The way to the coordinator; one row if the site has not joined one."""
    if not network.joined:
        if paths.node_public.exists() and network.root == paths.network:
            what = "the network side has a directory of its own"
            remedy = "Run doctor as its user, with --network and that directory."
        else:
            what = "this site has not joined a coordinator"
            remedy = "Send join.json to the coordinator, and `penstock site join` its invite."
        return [Row("coordinator", WARN, what, remedy)]
    joined, ca = network.read_coordinator(), certificates.read_certificate(network.ca)
    return reachability.check_way(joined.host, joined.port, ca, SERVED_MAJORS)


@friendly
def doctor(
    directory: Annotated[
        Path,
        typer.Option("--dir", "-d", envvar="PENSTOCK_SITE", help="The site's directory."),
    ] = Path(),
    network: Annotated[
        Path | None,
        typer.Option(help="The network side's directory, where it is not within the site's."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Find what keeps this site from working, and say what to do. Changes nothing."""
    raise typer.Exit(show(check_site(directory, network), as_json))
