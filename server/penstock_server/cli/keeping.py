"""`penstock server init | enrol | sites | pool | start`: keeping a coordinator."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

from penstock.base.errors import InvalidInput, Problem
from penstock.cli.console import done, emit_json, friendly, say, say_with_time, table
from penstock.cli.joins import read_record
from penstock.wire.canonical import read_json
from penstock.wire.signatures import fingerprint
from penstock_server.install.enrolment import enrol_site, write_invite
from penstock_server.install.founding import (
    authority_fingerprint,
    make_coordinator,
    open_coordinator,
)
from penstock_server.operate.options import CoordinatorDir

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]

Name = Annotated[
    list[str] | None,
    typer.Option(
        "--name",
        help="Host name or address that sites connect to; repeat it, the first goes into invites.",
    ),
]


@friendly
def init(
    directory: CoordinatorDir = Path("coordinator"),
    name: Name = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The only port that is open.")] = 8443,
    bind: Annotated[str, typer.Option(help="The address to listen on.")] = "0.0.0.0",
    store: Annotated[
        str | None,
        typer.Option(
            envvar="PENSTOCK_STORE", help="SQL URL; SQLite in the directory if not given."
        ),
    ] = None,
    cert: Annotated[
        Path | None, typer.Option(help="Your own certificate, with its chain; one is made if not.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="Your own certificate's key.")] = None,
    ca: Annotated[Path | None, typer.Option(help="The CA that sites are to trust.")] = None,
    simulation: Annotated[
        bool, typer.Option("--simulation", help="Accept releases made with test seeds.")
    ] = False,
    truth: Annotated[
        Path | None, typer.Option(help="A simulation's truth.json, shown beside the estimates.")
    ] = None,
) -> None:
    """Make a coordinator, with a certificate authority of its own. Never overwrites."""
    known = _read_truth(truth) if truth else None
    names = tuple(name or (socket.getfqdn(),))
    settings = make_coordinator(
        directory.resolve(),
        store,
        simulation=simulation,
        names=names,
        port=port,
        bind=bind,
        certificate=_read_own(cert, key, ca),
    )
    if known is not None:
        open_coordinator(directory).store.values.set("truth", known)
    done(f"coordinator in {directory}; sites and analysts reach it at https://{settings.address}")
    say(f"CA fingerprint, for stewards: {authority_fingerprint(directory)}")
    say("next: `penstock server enrol SITE/join.json` for each site,")
    say("      `penstock server token add NAME --key THEIR.pub` for each analyst,")
    say("      and `penstock server start`")


def _read_own(
    cert: Path | None, key: Path | None, ca: Path | None
) -> tuple[Path, Path, Path] | None:
    given = [p for p in (cert, key, ca) if p is not None]
    if not given:
        return None
    if cert is None or key is None or ca is None:
        problem = Problem("--cert, --key, --ca", "give all three, or none")
        raise InvalidInput("server init", [problem])
    return cert, key, ca


def _read_truth(path: Path) -> dict[str, float]:
    record = read_json(path.read_bytes(), what=str(path), limit=100_000)
    try:
        if "estimands" in record:
            return {str(name): float(value) for name, value in record["estimands"].items()}
        name = "log_hazard_ratio" if "log_hazard_ratio" in record else "coefficient"
        return {str(record["estimand"]): float(record[name])}
    except (AttributeError, KeyError, TypeError, ValueError):
        what = "needs estimands by name, or estimand, and coefficient or log_hazard_ratio"
        problem = Problem("", what)
        raise InvalidInput(str(path), [problem]) from None


@friendly
def enrol(
    join: Annotated[Path, typer.Argument(help="A site's join.json.")],
    directory: CoordinatorDir = Path("coordinator"),
    out: Annotated[
        Path | None, typer.Option(help="Where to write the invite; beside join.json if not given.")
    ] = None,
) -> None:
    """Enrol a site, or its new public n, and write its invite. Compare fingerprints by voice."""
    record = read_record(join)
    coordinator = open_coordinator(directory)
    enrol_site(coordinator, record)
    name = record["site"]
    target = out or join.parent / f"invite-{name}.json"
    write_invite(coordinator, name, target)
    done(f"{name} enrolled, public n = {record['persons']}")
    say("compare by voice, before anything else:")
    say(f"  the gate's key, which the steward reads to you:  {fingerprint(record['gate_key'])}")
    say(f"  your CA, which you read to the steward:          {_print_authority(directory)}")
    say(f"then send the steward {target}")


def _print_authority(directory: Path) -> str:
    return authority_fingerprint(directory)


@friendly
def sites(directory: CoordinatorDir = Path("coordinator"), as_json: AsJson = False) -> None:
    """The enrolled sites: who they are, and when they were last heard of."""
    found = open_coordinator(directory).store.sites.all().values()
    if as_json:
        emit_json(
            [
                {
                    "site": s.name,
                    "federation": s.federation,
                    "persons": s.persons,
                    "gate_key": s.gate_key,
                    "seen": s.seen,
                    **s.said,
                }
                for s in found
            ]
        )
        return
    rows = [
        (
            s.name,
            s.federation,
            s.persons,
            s.seen[:16].replace("T", " ") or "never",
            s.said.get("stopped") or s.said.get("software", ""),
            fingerprint(s.gate_key),
        )
        for s in found
    ]
    table(
        "sites",
        ("site", "federation", "public n", "last heard of (UTC)", "says", "gate fingerprint"),
        rows,
    )


@friendly
def pool(
    study: Annotated[str, typer.Argument(help="A study's id, its beginning, or its name.")],
    directory: CoordinatorDir = Path("coordinator"),
) -> None:
    """Make the results of a study again that could not be made. No site is asked or charged."""
    row = open_coordinator(directory).pool_again(study)
    done(f"{row.name} ({row.id[:12]}) is pooled again, as soon as the coordinator runs")
    say(f"  penstock study status {row.id[:12]}")


@friendly
def start(directory: CoordinatorDir = Path("coordinator")) -> None:
    """Run the coordinator in the foreground, until Ctrl-C. Safe to kill and start again."""
    from penstock_server.operate.server_daemon import serve

    def ready(address: str) -> None:
        done(f"coordinator in {directory} answers at https://{address}")

    serve(directory.resolve(), tell=say_with_time, ready=ready)
