"""`ledger`: what was spent, the proof of it, and its recovery after a restore."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.console import done, emit_json, friendly, number, say, table
from penstock.errors import GateUnavailable, InvalidInput, PenstockError, Problem
from penstock_client.cli.common import AsJson, SiteDir, document, open_site
from penstock_client.database import Database
from penstock_client.ledger import Ledger, summary
from penstock_client.recovery import Recovered, recover_from, recover_worst_case
from penstock_client.site import SitePaths

app = typer.Typer(no_args_is_help=True, help="What was spent, and the proof of it.")


def _ledger_view(paths: SitePaths) -> dict[str, Any]:
    """The ledger from the running gate, or from its file where none runs."""
    if paths.steward_socket.exists():
        try:
            return document(paths, "Ledger")
        except GateUnavailable:
            pass  # A socket left behind by a killed gate.
    database = Database(paths.database, read_only=True)
    try:
        ledger, public = Ledger(database, None), paths.gate_public()
        return {"export": ledger.export(public), "summary": summary(ledger.verify(public))}
    finally:
        database.close()


@app.command("show")
@friendly
def ledger_show(directory: SiteDir = Path(), as_json: AsJson = False) -> None:
    """Spent, left, and every charge of every data set."""
    paths, _ = open_site(directory)
    rows = _ledger_view(paths)["summary"]
    if as_json:
        emit_json(rows)
        return
    if not rows:
        say("no data set yet: run `penstock site check`")
    for lineage in rows:
        spent = "∞ (ended)" if lineage["closed"] else number(lineage["spent_epsilon_best_order"])
        if lineage["exhausted"]:
            spent += " (records were lost: all that was left is charged)"
        say(
            f"{lineage['lineage']}: total ε {lineage['total_epsilon']:g} "
            f"at δ {lineage['delta']:g}; "
            f"spent {spent}; the next study may cost {lineage['left_epsilon']:.3g}"
        )
        if not lineage["charges"]:
            continue
        table(
            "",
            ("time", "request", "mechanism", "ε", "δ", "status", "why"),
            [
                (
                    c["time"][:16],
                    c["request"][:12],
                    c["mechanism"],
                    number(c["epsilon"]),
                    number(c["delta"]),
                    c["status"],
                    c["reason"],
                )
                for c in lineage["charges"]
            ],
        )


@app.command("verify")
@friendly
def ledger_verify(directory: SiteDir = Path()) -> None:
    """Check the hash chain and every signature."""
    paths, _ = open_site(directory)
    database = Database(paths.database, read_only=True)
    try:
        ledger = Ledger(database, None)
        state, records = ledger.verify(paths.gate_public()), ledger.records()
    finally:
        database.close()
    done(f"{len(records)} records, chain and signatures whole; head {state.head[:16]}…")


@app.command("export")
@friendly
def ledger_export(
    out: Annotated[Path, typer.Argument(help="Where to write the JSON file.")],
    directory: SiteDir = Path(),
) -> None:
    """Write the whole ledger as one JSON file that a third party can recompute."""
    paths, _ = open_site(directory)
    export = _ledger_view(paths)["export"]
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(json.dumps(export, indent=1) + "\n")
    except FileExistsError:
        remedy = "choose another name"
        raise PenstockError("a file exists there already", value=out, remedy=remedy) from None
    done(f"{len(export['records'])} records in {out}")


@app.command("recover")
@friendly
def ledger_recover(
    directory: SiteDir = Path(),
    source: Annotated[
        Path | None,
        typer.Option("--from", help="An exported ledger, or a copy of gate.db, with the records."),
    ] = None,
    worst_case: Annotated[
        bool,
        typer.Option("--accept-worst-case", help="Charge every data set all that is left of it."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take a ledger that was restored from an older copy back into use.

    The gate stops when it is shown what its ledger has lost. With --from, the lost records are
    taken from another copy, and nothing else is charged. Without one, --accept-worst-case charges
    all that is left: nothing more can be released of these data sets.
    """
    paths, _ = open_site(directory)
    if (source is None) != worst_case:
        problem = Problem("", "give --from FILE or --accept-worst-case, and not both")
        raise InvalidInput("ledger recover", [problem])
    made = recover_from(paths, source) if source is not None else recover_worst_case(paths)
    if as_json:
        emit_json(asdict(made))
        return
    _show_recovered(made)


def _show_recovered(made: Recovered) -> None:
    done(f"the ledger goes on after record {made.seq}; {made.records} added")
    if made.burnt:
        say(f"{made.burnt} reservations were open: they are burnt, and stay charged")
    for name in made.exhausted:
        say(f"{name}: nothing is left; a new data set needs `penstock site check --new-data`")
    say("next: `penstock site check`, then `penstock site start`")
