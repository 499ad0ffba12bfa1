"""`penstock server` and `penstock simulate`."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from penstock.cli.console import done, emit_json, friendly, say, table
from penstock.errors import InvalidInput, Problem
from penstock.wire.canonical import read_json
from penstock.wire.signatures import fingerprint
from penstock_server import service

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
simulate_app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)

Folder = Annotated[
    Path,
    typer.Option("--dir", "-d", envvar="PENSTOCK_COORDINATOR", help="The coordinator's directory."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


@app.callback()
def server() -> None:
    """Run the coordinator: it pools what sites release, and holds no private row.

    In this order: init, enrol (once a site), start.
    """


@app.command()
@friendly
def init(
    directory: Folder = Path("coordinator"),
    store: Annotated[
        str | None,
        typer.Option(
            envvar="PENSTOCK_STORE", help="SQL URL; SQLite in the directory if not given."
        ),
    ] = None,
    simulation: Annotated[
        bool, typer.Option("--simulation", help="Accept releases made with test seeds.")
    ] = False,
    truth: Annotated[
        Path | None, typer.Option(help="A simulation's truth.json, shown beside the estimates.")
    ] = None,
) -> None:
    """Make a coordinator. Never overwrites."""
    known = _truth(truth) if truth else None
    service.init(directory, store, simulation=simulation)
    if known is not None:
        service.open_coordinator(directory).store.set("truth", known)
    done(f"coordinator in {directory}")
    say("next: `penstock server enrol SITE/join.json` for each site, then `penstock server start`")


def _truth(path: Path) -> dict[str, float]:
    record = read_json(path.read_bytes(), what=str(path), limit=100_000)
    try:
        return {str(record["estimand"]): float(record["log_hazard_ratio"])}
    except (KeyError, TypeError, ValueError):
        problem = Problem("", "needs estimand and log_hazard_ratio")
        raise InvalidInput(str(path), [problem]) from None


@app.command()
@friendly
def enrol(
    join: Annotated[Path, typer.Argument(help="A site's join.json.")],
    directory: Folder = Path("coordinator"),
) -> None:
    """Enrol a site, or its new public n. Compare the fingerprint with the steward by voice."""
    record = read_json(join.read_bytes(), what=str(join), limit=10_000_000)
    service.enrol(service.open_coordinator(directory), record)
    done(f"{record['site']} enrolled, public n = {record['persons']}")
    say(f"compare this gate fingerprint by voice: {fingerprint(record['gate_key'])}")


@app.command()
@friendly
def sites(directory: Folder = Path("coordinator"), as_json: AsJson = False) -> None:
    """The enrolled sites."""
    found = service.open_coordinator(directory).store.sites().values()
    if as_json:
        emit_json([{"site": s.name, "persons": s.persons, "gate_key": s.gate_key} for s in found])
        return
    rows = [(s.name, s.federation, s.persons, fingerprint(s.gate_key)) for s in found]
    table("sites", ("site", "federation", "public n", "gate fingerprint"), rows)


@app.command()
@friendly
def start(directory: Folder = Path("coordinator")) -> None:
    """Run the coordinator in the foreground, until Ctrl-C. Safe to kill and start again."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    coordinator = service.open_coordinator(directory)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger("penstock").addHandler(handler)
    logging.getLogger("penstock").setLevel(logging.INFO)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    done(f"coordinator in {directory} runs")
    service.run(coordinator, stop=stopping.is_set)


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
