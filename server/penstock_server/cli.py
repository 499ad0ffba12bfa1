"""`penstock server` and `penstock simulate`."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from penstock.base.errors import InvalidInput, Problem
from penstock.cli.console import done, emit_json, friendly, say, table
from penstock.wire.canonical import read_json
from penstock.wire.signatures import fingerprint
from penstock_server.access.accesslog import verified
from penstock_server.api.commands import token_app
from penstock_server.operate import service
from penstock_server.operate.doctor import doctor
from penstock_server.operate.options import CoordinatorDir

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
simulate_app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


app.add_typer(token_app, name="token")
app.command()(doctor)


@app.callback()
def server() -> None:
    """Run the coordinator: it pools what sites release, and holds no private row.

    In this order: init, enrol (once a site), token add (once an analyst), start.
    Then: access, which shows who came and what was read.
    """


Name = Annotated[
    list[str] | None,
    typer.Option(
        "--name",
        help="Host name or address that sites connect to; repeat it, the first goes into invites.",
    ),
]


@app.command()
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
    known = _truth(truth) if truth else None
    names = tuple(name or (socket.getfqdn(),))
    settings = service.init(
        directory.resolve(),
        store,
        simulation=simulation,
        names=names,
        port=port,
        bind=bind,
        certificate=_own(cert, key, ca),
    )
    if known is not None:
        service.open_coordinator(directory).store.values.set("truth", known)
    done(f"coordinator in {directory}; sites and analysts reach it at https://{settings.address}")
    say(f"CA fingerprint, for stewards: {service.authority_fingerprint(directory)}")
    say("next: `penstock server enrol SITE/join.json` for each site,")
    say("      `penstock server token add NAME --key THEIR.pub` for each analyst,")
    say("      and `penstock server start`")


def _own(cert: Path | None, key: Path | None, ca: Path | None) -> tuple[Path, Path, Path] | None:
    given = [p for p in (cert, key, ca) if p is not None]
    if not given:
        return None
    if cert is None or key is None or ca is None:
        problem = Problem("--cert, --key, --ca", "give all three, or none")
        raise InvalidInput("server init", [problem])
    return cert, key, ca


def _truth(path: Path) -> dict[str, float]:
    record = read_json(path.read_bytes(), what=str(path), limit=100_000)
    try:
        name = "log_hazard_ratio" if "log_hazard_ratio" in record else "coefficient"
        return {str(record["estimand"]): float(record[name])}
    except (KeyError, TypeError, ValueError):
        problem = Problem("", "needs estimand, and coefficient or log_hazard_ratio")
        raise InvalidInput(str(path), [problem]) from None


@app.command()
@friendly
def enrol(
    join: Annotated[Path, typer.Argument(help="A site's join.json.")],
    directory: CoordinatorDir = Path("coordinator"),
    out: Annotated[
        Path | None, typer.Option(help="Where to write the invite; beside join.json if not given.")
    ] = None,
) -> None:
    """Enrol a site, or its new public n, and write its invite. Compare fingerprints by voice."""
    record = read_json(join.read_bytes(), what=str(join), limit=10_000_000)
    coordinator = service.open_coordinator(directory)
    service.enrol(coordinator, record)
    name = record["site"]
    target = out or join.parent / f"invite-{name}.json"
    service.write_invite(coordinator, name, target)
    done(f"{name} enrolled, public n = {record['persons']}")
    say("compare by voice, before anything else:")
    say(f"  the gate's key, which the steward reads to you:  {fingerprint(record['gate_key'])}")
    say(f"  your CA, which you read to the steward:          {_authority(directory)}")
    say(f"then send the steward {target}")


def _authority(directory: Path) -> str:
    return service.authority_fingerprint(directory)


@app.command()
@friendly
def sites(directory: CoordinatorDir = Path("coordinator"), as_json: AsJson = False) -> None:
    """The enrolled sites: who they are, and when they were last heard of."""
    found = service.open_coordinator(directory).store.sites.all().values()
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


@app.command()
@friendly
def access(
    directory: CoordinatorDir = Path("coordinator"),
    last: Annotated[int, typer.Option(min=1, help="How many of the newest are shown.")] = 30,
    export: Annotated[
        Path | None, typer.Option(help="Write the whole chain there, for an auditor.")
    ] = None,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Go on with a new key: access.key is lost.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Who came and what was read: tokens, keys, studies, results, wrong tokens. Verifies it all."""
    chain = service.open_coordinator(directory).access
    if new_key:
        done(f"records are signed with {fingerprint(chain.renew_key())} from now on")
    rows = chain.rows()
    records = verified(rows)
    head = rows[-1][1] if rows else ""
    if export is not None:
        with export.open("x", encoding="utf-8") as file:
            file.write(json.dumps(chain.export(), indent=1) + "\n")
    if as_json:
        emit_json({"head": head, "records": records})
        return
    if not records:
        say("nothing yet")
        return
    table(
        "",
        ("record", "time (UTC)", "who", "from", "what"),
        [_access_row(record) for record in records[-last:]],
    )
    key = next(r["key"] for r in reversed(records) if r["kind"] in ("open", "key"))
    done(f"{len(records)} records, chain and signatures whole; head {head[:16]}…")
    say(f"signed with {fingerprint(key)}")
    if export is not None:
        done(f"{len(rows)} records in {export}")


def _access_row(record: dict[str, Any]) -> tuple[object, ...]:
    known = ("seq", "prev", "time", "kind", "by", "origin")
    more = ", ".join(f"{k} {_short(v)}" for k, v in record.items() if k not in known)
    who = record.get("by") or ("admin" if "by" in record else "")
    moment = str(record["time"])[:19].replace("T", " ")
    return record["seq"], moment, who, record.get("origin", ""), f"{record['kind']}: {more}"


def _short(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(_short(v) for v in value) or "none"
    if isinstance(value, dict):
        return "×".join(str(v) for v in value.values())
    text = str(value)
    return text[:12] if len(text) == 64 else text


@app.command()
@friendly
def pool(
    study: Annotated[str, typer.Argument(help="A study's id, its beginning, or its name.")],
    directory: CoordinatorDir = Path("coordinator"),
) -> None:
    """Make the results of a study again that could not be made. No site is asked or charged."""
    row = service.open_coordinator(directory).pool_again(study)
    done(f"{row.name} ({row.id[:12]}) is pooled again, as soon as the coordinator runs")
    say(f"  penstock study status {row.id[:12]}")


@app.command()
@friendly
def start(directory: CoordinatorDir = Path("coordinator")) -> None:
    """Run the coordinator in the foreground, until Ctrl-C. Safe to kill and start again."""
    from penstock_server.operate.daemon import serve

    def tell(text: str) -> None:
        say(f"{time.strftime('%H:%M:%S')} {text}")

    def ready(address: str) -> None:
        done(f"coordinator in {directory} answers at https://{address}")

    serve(directory.resolve(), tell=tell, ready=ready)


@simulate_app.callback()
def simulate() -> None:
    """Write simulated cohorts with a known truth."""


@simulate_app.command()
@friendly
def cvd(
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write into.")],
    site: Annotated[
        list[str] | None, typer.Option("--site", help="A cohort, such as chs-f; repeat it.")
    ] = None,
    hazard_ratio: Annotated[
        float, typer.Option(help="The true hazard ratio per 10 mmHg of blood pressure.")
    ] = 1.171,
    seed: Annotated[int, typer.Option(help="Of the simulation; the data are not private.")] = 1,
) -> None:
    """Twelve cardiovascular cohorts after the published moments of six studies by sex.

    Writes FOLDER/<cohort>/data.csv and dictionary.toml, and FOLDER/truth.json.
    """
    from penstock_server.simulate import cvd as engine

    known = {c.name: c for c in engine.COHORTS}
    unknown = [s for s in site or [] if s not in known]
    problems = [
        Problem("--site", "unknown cohort", value=s, bound=", ".join(known)) for s in unknown
    ]
    if not (hazard_ratio > 0 and np.isfinite(hazard_ratio)):
        problems.append(Problem("--hazard-ratio", "must be above 0", value=str(hazard_ratio)))
    if problems:
        raise InvalidInput("simulate cvd", problems)
    log_hr = float(np.log(hazard_ratio))
    for index, cohort in enumerate(engine.COHORTS):
        if not site or cohort.name in site:
            rng = np.random.default_rng([seed, index])
            engine.write_site(cohort, out / cohort.name, rng, log_hr_per_10=log_hr)
            done(f"{out / cohort.name}: {cohort.title}, {cohort.n} persons")
    engine.write_truth(out, log_hr_per_10=log_hr)
    done(f"{out / 'truth.json'}: hazard ratio {hazard_ratio:g} per 10 mmHg")


@simulate_app.command()
@friendly
def visits(
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write into.")],
    site: Annotated[
        list[str] | None, typer.Option("--site", help="A clinic, such as clinic-east; repeat it.")
    ] = None,
    most: Annotated[
        int, typer.Option(help="Visits of one patient at most, 1 to 9; 1: a snapshot each.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="Of the simulation; the data are not private.")] = 1,
) -> None:
    """Four clinics with repeated visits: blood pressure and LDL under a treatment.

    Some patients respond to it and others do not, so that one cloud becomes two. Writes
    FOLDER/<clinic>/data.csv and dictionary.toml, and FOLDER/truth.json.
    """
    from penstock_server.simulate import visits as engine

    known = {c.name: c for c in engine.CLINICS}
    unknown = [s for s in site or [] if s not in known]
    problems = [
        Problem("--site", "unknown clinic", value=s, bound=", ".join(known)) for s in unknown
    ]
    if not 1 <= most <= engine.VISITS:
        bound = f"1 to {engine.VISITS}"
        problems.append(Problem("--most", "out of range", value=str(most), bound=bound))
    if problems:
        raise InvalidInput("simulate visits", problems)
    for index, clinic in enumerate(engine.CLINICS):
        if not site or clinic.name in site:
            rng = np.random.default_rng([seed, index])
            engine.write_site(clinic, out / clinic.name, rng, most=most)
            done(f"{out / clinic.name}: {clinic.n} patients")
    engine.write_truth(out)
    done(f"{out / 'truth.json'}: {engine.slope():.3f} mmHg per visit")
