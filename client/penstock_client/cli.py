"""`penstock site`: everything a data steward does."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer

from penstock.cli.console import done, emit_json, err, friendly, number, say, table
from penstock.cli.key import read_public
from penstock.errors import GateUnavailable, InvalidInput, LedgerLocked, PenstockError, Problem
from penstock.wire import gate_pb2, gate_pb2_grpc
from penstock.wire.calls import connect, failure
from penstock.wire.signatures import fingerprint
from penstock_client import setup
from penstock_client.database import Database, exclusive
from penstock_client.ledger import Ledger, summary, utc_now
from penstock_client.policy import Signer, read_policy, read_trust, write_trust
from penstock_client.site import SitePaths, SiteSettings, read_settings
from penstock_client.validation import Checked

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
trust_app = typer.Typer(no_args_is_help=True, help="Whose studies this site answers.")
ledger_app = typer.Typer(no_args_is_help=True, help="What was spent, and the proof of it.")
app.add_typer(trust_app, name="trust")
app.add_typer(ledger_app, name="ledger")

SiteDir = Annotated[
    Path,
    typer.Option("--dir", "-d", envvar="PENSTOCK_SITE", help="The site's directory."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
RPC_SECONDS = 30.0
STOP_SECONDS = 60.0


@app.callback()
def site() -> None:
    """Keep a site's gate: rows stay, only differentially private releases leave.

    In this order: init, (edit dictionary.toml and policy.toml), check,
    trust add, start. Then: requests, preview, and approve or reject.
    """


def _site(root: Path) -> tuple[SitePaths, SiteSettings]:
    paths = SitePaths(root.resolve())
    if not paths.settings.exists():
        problem = Problem("", "no site here", remedy="run `penstock site init` first")
        raise InvalidInput(str(root), [problem])
    return paths, read_settings(paths)


@app.command()
@friendly
def init(
    name: Annotated[str, typer.Option(help="The site's name in the federation, such as aric-f.")],
    directory: SiteDir = Path(),
    source: Annotated[
        Path | None, typer.Option("--from", help="Draft the dictionary from this CSV or Parquet.")
    ] = None,
    federation: Annotated[str, typer.Option(help="The federation's name.")] = "main",
) -> None:
    """Make a site: the gate's key, an empty ledger, and drafts of dictionary and policy."""
    paths = SitePaths(directory.resolve())
    setup.init(paths, name, federation, source.resolve() if source else None)
    done(f"site {name} in {paths.root}")
    say(f"gate fingerprint {fingerprint(paths.gate_public())}")
    say("next: edit dictionary.toml (bounds are public knowledge, never observed minima)")
    say("      and policy.toml, then run `penstock site check`")


@app.command()
@friendly
def check(
    directory: SiteDir = Path(),
    accept: Annotated[
        bool, typer.Option("--accept", help="Accept the clamping and mapping that is reported.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report only; certify nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check the rows against the dictionary, and certify them for studies.

    What is found is shown here only, as columns and line numbers. Nothing outside depends on it.
    """
    paths, settings = _site(directory)
    checked, _ = setup.inspect(paths, settings)
    standing = checked.standing(accept=accept)
    if not as_json:
        _show_findings(checked)
    version = None
    if not (dry_run or standing):
        version = setup.certify(paths, settings, checked, accept=accept)
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


@app.command()
@friendly
def start(directory: SiteDir = Path()) -> None:
    """Run the gate in the foreground, until Ctrl-C or `penstock site stop`."""
    # gRPC's forks and threads are noisy on standard error; our log says what matters.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from penstock_client.service import serve

    paths, settings = _site(directory)
    read_policy(paths.policy)  # a typo is told to the steward now, not to an analyst later
    trusted = read_trust(paths.trust).signers
    handler = logging.FileHandler(paths.log)
    os.chmod(paths.log, 0o600)
    shown = logging.StreamHandler(sys.stderr)
    for each in (handler, shown):
        each.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.getLogger("penstock").addHandler(each)
    logging.getLogger("penstock").setLevel(logging.INFO)

    def ready(notes: list[str]) -> None:
        if not paths.join.exists():
            notes.append("no rows are certified yet: stop the gate and run `penstock site check`")
        if not trusted:
            notes.append("nobody's studies are answered yet: see `penstock site trust add`")
        for note in notes:
            err.print("  !", note, markup=False)
        done(f"gate of {settings.name} answers on {paths.gate_socket}")

    serve(paths, settings, ready=ready)


def _steward(paths: SitePaths, method: str, request: Any) -> Any:
    """One call on steward.sock."""
    if not paths.steward_socket.exists():
        raise GateUnavailable(
            "the gate does not run", value=paths.root, remedy="`penstock site start` it"
        )
    with connect(paths.steward_socket) as channel:
        try:
            return getattr(gate_pb2_grpc.StewardStub(channel), method)(request, timeout=RPC_SECONDS)
        except grpc.RpcError as error:
            raise failure(error) from None


def _document(paths: SitePaths, method: str, request: Any = None) -> dict[str, Any]:
    reply = _steward(paths, method, request or gate_pb2.DescribeRequest())
    document: dict[str, Any] = json.loads(reply.json)
    return document


@app.command()
@friendly
def stop(directory: SiteDir = Path()) -> None:
    """Stop the gate. A run in progress is ended and its charge stays."""
    paths, _ = _site(directory)
    _document(paths, "Stop")
    end = time.monotonic() + STOP_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(LedgerLocked), exclusive(paths.lock):
            done("the gate has stopped")
            return
        time.sleep(0.1)
    raise GateUnavailable("the gate is still stopping", remedy="look at log/gate.log")


@app.command()
@friendly
def status(directory: SiteDir = Path(), as_json: AsJson = False) -> None:
    """What the gate says of itself, and how many requests it holds."""
    paths, _ = _site(directory)
    shown = _document(paths, "Status")
    if as_json:
        emit_json(shown)
    else:
        shown["gate_key"] = fingerprint(shown["gate_key"])
        table(f"gate of {shown['site']}", ("", ""), [(k, _short(v)) for k, v in shown.items()])


@app.command()
@friendly
def requests(directory: SiteDir = Path(), as_json: AsJson = False) -> None:
    """Every request: who asks what, at what price, and where it stands."""
    paths, _ = _site(directory)
    rows = _document(paths, "Requests")["requests"]
    if as_json:
        emit_json(rows)
        return
    if not rows:
        say("no requests yet")
        return
    table(
        "requests",
        ("request", "study", "class", "ε", "δ", "state", "submitted", "why"),
        [
            (
                r["request"][:12],
                r["study"],
                r["guarantee"],
                number(r["epsilon"]),
                number(r["delta"]),
                r["state"],
                r["submitted"][:10],
                r["why"],
            )
            for r in rows
        ],
    )


RequestId = Annotated[str, typer.Argument(help="The request id, or its beginning.")]


@app.command()
@friendly
def preview(request: RequestId, directory: SiteDir = Path(), as_json: AsJson = False) -> None:
    """What a request would release and cost, by every account, before and after."""
    paths, _ = _site(directory)
    shown = _document(paths, "Preview", gate_pb2.JobRequest(request_id=request))
    if as_json:
        emit_json(shown)
        return
    rows = [(label, _short(shown[key])) for key, label in _PREVIEW.items() if key in shown]
    table(f"request {shown['request'][:12]}", ("", ""), rows)
    for event in shown.get("events", []):
        rate = f", rate {event['rate']:.4g}" if "rate" in event else ""
        noise = f"noise multiplier {event['noise_multiplier']:.4g}, {event['count']} ×{rate}"
        say(f"  {event['label'] or event['kind']}: {noise}")


_PREVIEW = {
    "study": "study",
    "title": "title",
    "signer": "signed by",
    "state": "state",
    "estimands": "asks",
    "columns": "of columns",
    "mechanism": "mechanism",
    "copies": "synthetic copies",
    "w": "w, share of the rows' own latents",
    "guarantee": "guarantee",
    "epsilon": "ε asked",
    "delta": "δ asked",
    "epsilon_autodp": "ε by autodp, which is charged",
    "epsilon_pld": "ε by PLD, tighter",
    "epsilon_replace_one": "ε if one person is replaced",
    "lineage": "data set",
    "total_epsilon": "its total ε",
    "spent_before": "spent before, at the ledger's order",
    "spent_after": "spent after, at the ledger's order",
    "left_before": "one more study may cost, now",
    "left_after": "one more study may cost, after",
    "refusal": "would be refused",
    "warning": "WARNING",
    "note": "note",
}
"""What `preview` shows, in a steward's order."""


def _short(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{v} {k}" for k, v in value.items()) or "none"
    if value is None:
        return "∞"
    return ", ".join(map(str, value)) if isinstance(value, list) else value


@app.command()
@friendly
def approve(request: RequestId, directory: SiteDir = Path()) -> None:
    """Let a waiting request run."""
    paths, _ = _site(directory)
    job = _steward(paths, "Approve", gate_pb2.JobRequest(request_id=request))
    done(f"{job.request_id[:12]} is {job.state}")


@app.command()
@friendly
def reject(request: RequestId, directory: SiteDir = Path()) -> None:
    """Say no to a waiting request; nothing is charged."""
    paths, _ = _site(directory)
    job = _steward(paths, "Reject", gate_pb2.RejectRequest(request_id=request))
    done(f"{job.request_id[:12]} is {job.state}")


@trust_app.command("add")
@friendly
def trust_add(
    key: Annotated[Path, typer.Argument(help="The analyst's .pub file.")],
    label: Annotated[str, typer.Option(help="Who this is.")],
    epsilon: Annotated[float, typer.Option(help="The most this signer may ever spend here.")],
    expires: Annotated[str, typer.Option(help="Last day of trust, UTC, such as 2027-12-31.")],
    directory: SiteDir = Path(),
) -> None:
    """Pin an analyst's key, after comparing its fingerprint over the phone."""
    paths, _ = _site(directory)
    policy = read_policy(paths.policy)
    signer = Signer(read_public(key), label, epsilon, _end_of_day(expires))
    write_trust(paths.trust, read_trust(paths.trust).add(signer))
    done(f"{label} may spend ε = {epsilon:g} in all (the data set: {policy.total_epsilon:g})")
    say(f"compare this fingerprint by voice: {signer.fingerprint}")


def _end_of_day(text: str) -> str:
    try:
        moment = f"{date.fromisoformat(text).isoformat()}T23:59:59.999999Z"
    except ValueError:
        problem = Problem("--expires", "not a date", value=text, bound="YYYY-MM-DD")
        raise InvalidInput("trust add", [problem]) from None
    if moment < utc_now():
        problem = Problem("--expires", "that day is over", value=text, bound="today or later, UTC")
        raise InvalidInput("trust add", [problem])
    return moment


@trust_app.command("revoke")
@friendly
def trust_revoke(
    who: Annotated[str, typer.Argument(help="Label, fingerprint or key.")],
    directory: SiteDir = Path(),
) -> None:
    """Take trust back; takes effect at the gate's next decision."""
    paths, _ = _site(directory)
    write_trust(paths.trust, read_trust(paths.trust).revoke(who))
    done(f"{who} is no longer trusted")


@trust_app.command("list")
@friendly
def trust_list(directory: SiteDir = Path(), as_json: AsJson = False) -> None:
    """The pinned keys."""
    paths, _ = _site(directory)
    signers = list(read_trust(paths.trust).signers.values())
    if as_json:
        emit_json([{**asdict(s), "fingerprint": s.fingerprint} for s in signers])
        return
    if not signers:
        say("nobody is trusted yet")
        return
    rows = [(s.label, s.fingerprint, number(s.epsilon), s.expires[:10]) for s in signers]
    table("trusted signers", ("label", "fingerprint", "ε", "until"), rows)


def _ledger_view(paths: SitePaths) -> dict[str, Any]:
    """The ledger from the running gate, or from its file where none runs."""
    if paths.steward_socket.exists():
        try:
            return _document(paths, "Ledger")
        except GateUnavailable:
            pass  # A socket left behind by a killed gate.
    database = Database(paths.database, read_only=True)
    try:
        ledger, public = Ledger(database, None), paths.gate_public()
        return {"export": ledger.export(public), "summary": summary(ledger.verify(public))}
    finally:
        database.close()


@ledger_app.command("show")
@friendly
def ledger_show(directory: SiteDir = Path(), as_json: AsJson = False) -> None:
    """Spent, left, and every charge of every data set."""
    paths, _ = _site(directory)
    rows = _ledger_view(paths)["summary"]
    if as_json:
        emit_json(rows)
        return
    if not rows:
        say("no data set yet: run `penstock site check`")
    for lineage in rows:
        spent = "∞ (ended)" if lineage["closed"] else number(lineage["spent_epsilon_best_order"])
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


@ledger_app.command("verify")
@friendly
def ledger_verify(directory: SiteDir = Path()) -> None:
    """Check the hash chain and every signature."""
    paths, _ = _site(directory)
    database = Database(paths.database, read_only=True)
    try:
        state = Ledger(database, None).verify(paths.gate_public())
    finally:
        database.close()
    done(f"{state.seq} records, chain and signatures whole; head {state.head[:16]}…")


@ledger_app.command("export")
@friendly
def ledger_export(
    out: Annotated[Path, typer.Argument(help="Where to write the JSON file.")],
    directory: SiteDir = Path(),
) -> None:
    """Write the whole ledger as one JSON file that a third party can recompute."""
    paths, _ = _site(directory)
    export = _ledger_view(paths)["export"]
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(json.dumps(export, indent=1) + "\n")
    except FileExistsError:
        remedy = "choose another name"
        raise PenstockError("a file exists there already", value=out, remedy=remedy) from None
    done(f"{len(export['records'])} records in {out}")
