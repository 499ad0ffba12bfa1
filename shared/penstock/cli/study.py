"""`penstock study` and `penstock pull`: what an analyst does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

from penstock.analyst import POLL_SECONDS, Fetching, Received, connect
from penstock.analyst.keyfile import read_private
from penstock.analyst.latex_tables import write_latex
from penstock.analyst.waiting import wait_for_end
from penstock.base.checks import Checks
from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, JobFailed, PenstockError, Problem, Unreachable
from penstock.base.times import stamp_seconds, utc_now
from penstock.cli import checking, drafting
from penstock.cli.console import done, emit_json, err, escape, friendly, say, table
from penstock.cli.forecasts import RUNS, Runs, make_forecast, show_forecast
from penstock.cli.joins import Joins, count_persons, read_joins
from penstock.cli.study_reading import AsJson, NoEstimands, StudyFile, read_study
from penstock.study.halves import describe_half, list_halves
from penstock.wire.messages import Copies, SiteState, StudyState
from penstock.wire.signatures import fingerprint, private_from_pem
from penstock.wire.signed import sign_cancel, sign_halves

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
pull_app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

RESULTS = "results:"
"""Names the bar of what is made of the sites' deliveries; no site has this name."""
LARGE = 4_000_000
"""Bytes of a file from which on a progress bar is worth showing."""

Where = Annotated[
    str | None,
    typer.Option(
        "--coordinator",
        "-c",
        envvar="PENSTOCK_COORDINATOR",
        help="https://HOST:PORT, a login's name, or a directory; your login if not given.",
    ),
]
KeyFile = Annotated[
    Path, typer.Option("--key", "-k", envvar="PENSTOCK_KEY", help="Your signing key.")
]
StudyName = Annotated[str, typer.Argument(help="A study's id, its beginning, or its name.")]


@app.callback()
def study() -> None:
    """Ask a question of many sites.

    In this order: `penstock login`, `penstock key new`, study new, (edit the
    file), check, plan, submit, status --wait; then `penstock pull`. With a
    quorum, close goes on without sites that are late.
    """


app.command()(drafting.new)
app.command()(checking.check)


@app.command()
@friendly
def plan(
    path: StudyFile,
    joins: Joins = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option("--persons", help="SITE=NUMBER, for a site without its file; repeat it."),
    ] = None,
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Forecast what each answer will be worth, before a site is asked or charged.

    Of a study of both there is a table of either half.
    Of one release of all sites the table has one row an estimand, and what it
    promises stands below; --join and --persons say other sizes than the study.

    Cohorts are made up from the study's planning values and the
    dictionary, the mechanism is run on them as a site would, and every estimand
    is estimated on the rows and on what would be released. The table has standard errors on the
    scale of coefficients (log ratios, differences; named below it): of sampling alone, what
    privacy adds, both together, how many times as wide that makes an interval,
    and the chance to see the planned effect. Where the noise is larger than
    the sampling error it says which ε or how many persons would do.

    What you expect stands in the study's planning tables: means, spreads, shares
    and effects, from the literature and never from the sites' rows. A draft by
    `penstock study new` shows how they are written.
    """
    found = read_study(path, no_estimands=False)
    persons = count_persons(read_joins(joins or [])) | _read_sizes(sizes or [])
    halves = list_halves(found)
    forecasts = [make_forecast(half, persons, runs) for half in halves]
    if as_json:
        scopes = [half.aggregation.scope for half in halves]
        told = dict(zip(scopes, (made.to_dict() for made in forecasts), strict=True))
        emit_json(told if len(told) > 1 else told[scopes[0]])
        return
    for half, made in zip(halves, forecasts, strict=True):
        if half.aggregation.halved:
            say(f"{describe_half(half)}, of ε = {half.privacy.epsilon:g}:")
        show_forecast(made)
        asked = [site for site in found.sites if site not in made.sites]
        if asked and made.joint is None:
            say(f"not in it, for lack of their number of persons: {', '.join(asked)}")


def _read_sizes(texts: list[str]) -> dict[str, int]:
    """``SITE=NUMBER`` of each."""
    check, found = Checks("study plan"), {}
    for text in texts:
        site, _, number = text.partition("=")
        if site and number.isascii() and number.isdigit():
            found[site] = int(number)
        else:
            check.add("--persons", "is not well formed", value=text[:80], bound="SITE=NUMBER")
    check.done()
    return found


@app.command()
@friendly
def submit(
    path: StudyFile,
    key: KeyFile,
    coordinator: Where = None,
    no_estimands: NoEstimands = False,
    as_json: AsJson = False,
) -> None:
    """Sign a study with your key, here, and hand it in. The same study again changes nothing."""
    found = read_study(path, no_estimands)
    halves = sign_halves(found, private_from_pem(read_private(key)))
    asked = connect(coordinator)
    asked.require_wire(found.wire)
    ids = [asked.submit(signed.to_bytes()) for signed in halves]
    known: list[Json] = []
    with suppress(PenstockError):  # it is handed in, whether or not others can be listed
        known = asked.studies()
    if as_json:
        other = {"other": ids[1]} if len(ids) > 1 else {}
        emit_json({"study": ids[0], **other, "signer": halves[0].signer})
        _warn_of_known(found.name, ids, known)
        return
    for study_id, signed in zip(ids, halves, strict=True):
        half = f", {describe_half(signed.study)}" if len(ids) > 1 else ""
        done(f"study {found.name}{half} is {study_id[:12]}")
    _warn_of_known(found.name, ids, known)
    say(f"  signed by {fingerprint(halves[0].signer)}")
    for study_id in ids:
        say(f"  penstock study status {study_id[:12]}")


def _warn_of_known(name: str, ids: Sequence[str], known: Sequence[Json]) -> None:
    """Say whether it was cancelled before, and which other studies have its name."""
    for study in known:
        told = f"{study['study'][:12]} ({study['state']})"
        if study["study"] in ids and study["state"] == StudyState.CANCELLED:
            text = f"{told} was handed in before, and stays cancelled: raise `release` to ask again"
        elif study["study"] not in ids and study["name"] == name:
            text = f"{name} is already the name of study {told}: call either by its id"
        else:
            continue
        err.print(f"  ! {text}", markup=False)


@app.command("list")
@friendly
def list_studies(coordinator: Where = None, as_json: AsJson = False) -> None:
    """The studies of a coordinator that you may read: yours, and those that name you a reader."""
    rows = connect(coordinator).studies()
    if as_json:
        emit_json(rows)
        return
    if not rows:
        say("no studies yet")
        return
    table(
        "studies",
        ("study", "name", "state", "sites", "created"),
        [
            (r["study"][:12], r["name"], _tell_state(r), len(r["sites"]), r["created"][:16])
            for r in rows
        ],
    )


@app.command()
@friendly
def status(
    study: StudyName,
    coordinator: Where = None,
    wait: Annotated[bool, typer.Option("--wait", help="Watch until the study has ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """Where a study stands, site by site; a site's trouble as code and remedy."""
    remote = connect(coordinator)
    found = remote.status(study)
    if wait:
        every = getattr(remote, "poll_seconds", POLL_SECONDS)
        found = _watch(lambda: remote.status(study), found, every)
    if as_json:
        emit_json(found)
    else:
        _show(found)
    if wait and found["state"] != "finished":
        raise JobFailed("the study ended without results", value=found["state"])


def _tell_state(found: Json) -> str:
    """A study's state; how far its sums are, or its results while they are made."""
    rounds = found.get("rounds")
    if rounds and found["state"] == StudyState.OPEN:
        if rounds["stage"] == "introduce":
            return f"{found['state']}, before the first of {rounds['of']} rounds"
        return f"{found['state']}, {rounds['done']} of {rounds['of']} rounds"
    pooling = found.get("pooling")  # a coordinator of before has none
    done = f", {pooling['done']} of {pooling['sites']} sites" if pooling else ""
    return f"{found['state']}{done}"


def _show(found: Json) -> None:
    joint = found.get("rounds") is not None
    least = "one release of all sites" if joint else f"quorum {found['quorum']}"
    say(f"{found['name']} ({found['study'][:12]}): {_tell_state(found)}, {least}")
    if found["note"]:
        say(f"  {found['note']}")
    if found["state"] == StudyState.OPEN:
        say(f"  sites have until {found['deadline'][:16].replace('T', ' ')} UTC")
        there = sum(s["state"] == SiteState.DELIVERED for s in found["sites"])
        if there >= found["quorum"] and not joint:
            say("  its quorum is there: `penstock study close` finishes it now, without the others")
    table(
        "",
        ("site", "state", "progress", "code", "what it means, and what to do"),
        [
            (
                s["site"],
                s["state"],
                f"{s['step']}/{s['steps']}" if s["steps"] else "",
                s["code"],
                ": ".join(filter(None, (s["meaning"], s["remedy"]))),
            )
            for s in found["sites"]
        ],
    )


def _watch(ask: Callable[[], Json], found: Json, every: float) -> Json:
    """Wait until the study has ended: progress bars in a terminal, plain lines elsewhere."""
    return _watch_bars(ask, found, every) if err.is_terminal else _watch_lines(ask, found, every)


def _tell_away(error: Unreachable | None) -> None:
    text = "the coordinator answers again" if error is None else f"{error.message}; waiting"
    err.print(text, markup=False)


def _watch_lines(ask: Callable[[], Json], found: Json, every: float) -> Json:
    """One line on standard error for each change, for logs: time, site, state, progress."""
    before: dict[str, str] = {}

    def seen(status: Json) -> None:
        now = stamp_seconds(utc_now())
        for s in status["sites"]:
            done_tenths = 10 * s["step"] // s["steps"] if s["steps"] else 0
            share = f"{10 * done_tenths} %" if s["state"] == SiteState.RUNNING else ""
            line = " ".join(filter(None, (s["site"], s["state"], s["code"], share)))
            if before.get(s["site"]) != line:
                err.print(f"{now} {line}", markup=False)
            before[s["site"]] = line
        if before.get("") != status["state"]:
            err.print(f"{now} study {status['state']}", markup=False)
        before[""] = status["state"]

    return wait_for_end(ask, every=every, first=found, seen=seen, away=_tell_away)


def _watch_bars(ask: Callable[[], Json], found: Json, every: float) -> Json:
    """Progress bars, one a site."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, transient=False) as progress:
        bars = {
            s["site"]: progress.add_task(escape(s["site"]), total=100, state=s["state"])
            for s in found["sites"]
        }

        def seen(status: Json) -> None:
            for s in status["sites"]:
                share = 100.0 * s["step"] / s["steps"] if s["steps"] else 0.0
                if s["state"] == "delivered":
                    share = 100.0
                state = escape(f"{s['state']} {s['code']}".strip())
                progress.update(bars[s["site"]], completed=share, state=state)
            pooling = status.get("pooling")
            if pooling and RESULTS not in bars:
                bars[RESULTS] = progress.add_task(RESULTS, total=100, state="")
            if RESULTS in bars:
                share = 100.0 * pooling["done"] / pooling["sites"] if pooling else 100.0
                progress.update(bars[RESULTS], completed=share, state=_tell_state(status))

        return wait_for_end(ask, every=every, first=found, seen=seen, away=_tell_away)


@app.command("close")
@friendly
def close_study(study: StudyName, key: KeyFile, coordinator: Where = None) -> None:
    """Finish a study now, with the sites that have delivered: at least its quorum.

    Sites that have not begun are told so, and charge nothing. What a site has
    reserved for a run in progress stays charged, and its release stays there.
    """
    remote = connect(coordinator)
    study_id = remote.status(study)["study"]
    remote.close_study(sign_cancel(study_id, private_from_pem(read_private(key))).to_bytes())
    found = remote.status(study_id)
    there = sum(s["state"] == SiteState.DELIVERED for s in found["sites"])
    done(f"{study_id[:12]} is closed with {there} of {len(found['sites'])} sites; {found['state']}")


@app.command()
@friendly
def cancel(study: StudyName, key: KeyFile, coordinator: Where = None) -> None:
    """End a study. What a site has reserved for a run in progress stays charged."""
    remote = connect(coordinator)
    found = remote.status(study)
    study_id = found["study"]
    if found["state"] == StudyState.CANCELLED:
        done(f"{study_id[:12]} was cancelled already")
        return
    remote.cancel(sign_cancel(study_id, private_from_pem(read_private(key))).to_bytes())
    done(f"{study_id[:12]} is cancelled")


@pull_app.command()
@friendly
def pull(
    study: StudyName,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write into.")],
    coordinator: Where = None,
    copies: Annotated[
        str, typer.Option(help="'one' (the first synthetic copy) or 'all', for inference.")
    ] = "one",
    refits: Annotated[
        bool, typer.Option("--refits", help="All copies and the refits, for full intervals.")
    ] = False,
    imputations: Annotated[
        bool,
        typer.Option("--imputations", help="Tables that software for multiple imputation takes."),
    ] = False,
    latex: Annotated[
        bool, typer.Option("--latex", help="The report's tables as .tex, too, beside each CSV.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch the report (report.html, report.json, dictionary.json) and what sites released.

    With --refits `penstock analyse` asks the folder further questions (study.json says of what).
    Synthetic tables are pooled.parquet and pooled.csv; with --refits there are refits.parquet and
    refits.csv beside them, and dictionary.json has the rule that makes intervals of your own
    estimates from both; with --imputations imputations.parquet and imputations.csv, to be combined
    by Rubin's rules, are simpler, and mostly less exact. Tables of transitions are in
    transitions.csv. A mechanism may have paths and particles, too, or coefficients.csv and
    coefficients.json instead: `penstock study check` says what comes back.
    """
    if copies not in ("one", "all"):
        problem = Problem("--copies", "unknown", value=copies, bound="one or all")
        raise InvalidInput("pull", [problem])
    if refits and imputations:
        problem = Problem("--imputations", "are of the refits", remedy="Leave out one of both")
        raise InvalidInput("pull", [problem])
    chosen = "refits" if refits else "imputations" if imputations else copies
    remote, wanted = connect(coordinator), cast(Copies, chosen)
    if isinstance(remote, Fetching):
        with _show_downloads() as received:
            files = remote.fetch(study, None, out, copies=wanted, received=received)
    else:
        files = remote.pull(study, out, copies=wanted)
    if imputations and not any(file.name.startswith("imputations") for file in files):
        remedy = "Ask for refits in a study of tables"
        problem = Problem("--imputations", "cannot be made: there are no refits", remedy=remedy)
        raise InvalidInput("pull", [problem])
    if latex:
        files = [*files, *write_latex(out, files)]
    if as_json:
        emit_json({"files": [str(f) for f in files]})
        return
    report = json.loads((out / "report.json").read_text())
    for name in (str(f) for f in files):
        done(name)
    _show_answers(report)


@contextmanager
def _show_downloads() -> Iterator[Received]:
    """A bar for every large file."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        bars = {}

        def received(name: str, done_bytes: int, size: int) -> None:
            if size >= LARGE:
                if name not in bars:
                    bars[name] = progress.add_task(name, total=size)
                progress.update(bars[name], completed=done_bytes)

        yield received


def _show_answers(report: Json) -> None:
    for estimand in report.get("estimands", []):
        if estimand.get("sentence"):
            say(estimand["sentence"])
