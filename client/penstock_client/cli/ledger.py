"""`ledger`: what was spent, what is left, the proof of it, and its recovery after a restore."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from penstock.base.documents import JsonView
from penstock.base.errors import InvalidInput, LedgerError, PenstockError, Problem
from penstock.base.times import utc_now
from penstock.cli.console import done, emit_json, friendly, say, table
from penstock.wire.signatures import fingerprint
from penstock_client.cli.budget_view import show_lineage
from penstock_client.cli.common import AsJson, Reason, SiteDir, open_site
from penstock_client.cli.reading import read_ledger
from penstock_client.cli.whatif import what_if
from penstock_client.gate.recovery import Recovered, recover_from, recover_worst_case
from penstock_client.ledger import picture, replay
from penstock_client.ledger.budget import summarize_budget
from penstock_client.ledger.decisions import (
    export_decisions,
    name_decider,
    read_decisions,
    read_exported_decisions,
)
from penstock_client.site.policy import read_policy
from penstock_client.site.signers import read_trust

app = typer.Typer(no_args_is_help=True, help="What was spent, what is left, and the proof of it.")
app.command("what-if")(what_if)


@app.command("show")
@friendly
def ledger_show(
    directory: SiteDir = Path(),
    detail: Annotated[
        bool,
        typer.Option("--detail", help="Every account of ε, the allowances, and the charges' ids."),
    ] = False,
    as_json: AsJson = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw the budget over time: a .png, .svg or .pdf."),
    ] = None,
) -> None:
    """How much of each data set's life is used, and by which studies; --json has everything."""
    paths, settings = open_site(directory)
    _, state = read_ledger(paths)
    # The steward's files as they stand now: allowances may have been changed since the last charge.
    rows = summarize_budget(state, read_policy(paths.policy), read_trust(paths.trust))
    if plot is not None:
        _refuse_existing(plot)
        picture.draw_budget(rows, plot, site=settings.name, now=utc_now())
    if as_json:
        emit_json(rows)
        return
    if not rows:
        say("no data set yet: run `penstock site check`")
    for lineage in rows:
        show_lineage(lineage, detail=detail)
    if plot is not None:
        done(f"drawn in {plot}")


@app.command("verify")
@friendly
def ledger_verify(
    export: Annotated[
        Path | None,
        typer.Argument(help="An exported ledger, of this site or another; without it, this one."),
    ] = None,
    directory: SiteDir = Path(),
    as_json: AsJson = False,
) -> None:
    """Check chain and signatures, and that every charge fitted when it was made."""
    decided = None
    if export is None:
        paths, _ = open_site(directory)
        records, gate_key = replay.read_records(read_ledger(paths)[0]), paths.gate_public()
        decided = read_decisions(paths)
    else:
        records, gate_key = replay.read_export(export)
        decided = read_exported_decisions(json.loads(export.read_text(encoding="utf-8")), gate_key)
    found = replay.verify_ledger(records, gate_key)
    missing = replay.compare_decisions(found.state, decided) if decided is not None else []
    if as_json:
        emit_json(
            {
                "ok": not (found.findings or missing),
                "records": found.records,
                "head": found.state.head,
                "gate": fingerprint(found.gate_key),
                "charges": len(found.state.charges),
                "findings": [asdict(f) for f in found.findings],
                "decisions": None if decided is None else len(decided),
                "decisions_missing": missing,
            }
        )
    else:
        _show_verified(found)
        if decided is not None and not missing:
            done(f"{len(decided)} decisions, chain and signatures whole")
    if missing:
        remedy = "restore ledger/decisions.db; what is lost cannot be made again"
        raise LedgerError(missing[0], value=f"{len(missing)} such charges", remedy=remedy)
    if found.findings:
        first = found.findings[0]
        message = f"{len(found.findings)} charges should not be; the first is record {first.record}"
        raise LedgerError(message, remedy="release nothing more, and tell every coordinator")


def _show_verified(found: replay.Verified) -> None:
    done(f"{found.records} records, chain and signatures whole; head {found.state.head[:16]}…")
    say(f"signed by gate {fingerprint(found.gate_key)}")
    if found.findings:
        table("", ("record", "what is wrong"), [(f.record, f.what) for f in found.findings])
        return
    done(f"{len(found.state.charges)} charges, each within its data set's ε when it was made")


@app.command("export")
@friendly
def ledger_export(
    out: Annotated[Path, typer.Argument(help="Where to write the JSON file; - prints it.")],
    directory: SiteDir = Path(),
    decisions: Annotated[
        bool, typer.Option("--decisions", help="With who decided what, and why: names of staff.")
    ] = False,
) -> None:
    """Write the whole ledger as one JSON file that a third party can recompute."""
    paths, _ = open_site(directory)
    export, _ = read_ledger(paths)
    if decisions:  # after the ledger, so that every decision it names is there
        export["decisions"] = export_decisions(paths)
    text = json.dumps(export, indent=1) + "\n"
    if out == Path("-"):
        sys.stdout.write(text)
        return
    _refuse_existing(out)
    with out.open("x", encoding="utf-8") as file:
        file.write(text)
    done(f"{len(export['records'])} records in {out}")


def _refuse_existing(out: Path) -> None:
    if out.exists():
        remedy = "choose another name"
        raise PenstockError("a file exists there already", value=out, remedy=remedy)


@app.command("decisions")
@friendly
def ledger_decisions(directory: SiteDir = Path(), as_json: AsJson = False) -> None:
    """Who decided what, when and why: approvals, refusals, trust, policy and certifications."""
    paths, _ = open_site(directory)
    found = read_decisions(paths)
    if as_json:
        emit_json(found)
        return
    if not found:
        say("no decision yet")
        return
    columns = ("time (UTC)", "decision", "by", "of what", "reason")
    table("decisions", columns, [_list_decision(one) for one in found])


def _list_decision(one: JsonView) -> tuple[str, ...]:
    return one["time"][:19], one["kind"], name_decider(one["by"]), _name_subject(one), one["reason"]


def _name_subject(one: JsonView) -> str:
    """What a decision is about, in a few words."""
    kind = one["kind"]
    if kind in ("approve", "reject"):
        return f"request {one['request'][:12]}" + (" (silently)" if one.get("silent") else "")
    if kind == "certify":
        declared = "".join(f", {name.replace('_', ' ')}" for name in one["declared"])
        recoding = f", recoding {one['recoding'][:12]}" if one.get("recoding") else ""
        return f"{one['lineage']} version {one['version']}{recoding}{declared}"
    if kind == "trust-add":
        return f"{one['signer']['label']}, ε {one['signer']['epsilon']:g}"
    if kind == "trust-revoke":
        return ", ".join(signer["label"] for signer in one["signers"])
    if kind == "peer-add":
        return str(one["peer"]["site"])
    if kind == "peer-remove":
        return ", ".join(peer["site"] for peer in one["peers"])
    if kind in ("policy", "trust", "peers"):
        return f"as found, {one['digest'][:12]}"
    return ""


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
    reason: Reason = "",
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
    made = (
        recover_from(paths, source, reason)
        if source is not None
        else recover_worst_case(paths, reason)
    )
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
