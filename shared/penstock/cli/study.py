"""`penstock study` and `penstock pull`: what an analyst does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, TypeVar, cast

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
from penstock.analyst.consequences import describe_cost, describe_returned
from penstock.analyst.keyfile import read_private
from penstock.analyst.waiting import wait_for_end
from penstock.base.checks import Checks
from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, JobFailed, PenstockError, Problem, Unreachable
from penstock.base.times import stamp_seconds, utc_now
from penstock.cli.advice import show_suggestions
from penstock.cli.console import done, emit_json, err, escape, friendly, say, table
from penstock.cli.forecasts import RUNS, Runs, make_forecast, show_forecast
from penstock.mechanisms.memory import GB
from penstock.mechanisms.registry import MECHANISMS
from penstock.privacy.request import DELTA_TIMES_PERSONS, advised_delta
from penstock.schema import Schema, suggest_for
from penstock.study.scope import EACH, GLOBAL, Scope, choose_tolerance
from penstock.study.study import Study, require_estimands
from penstock.study.toml import (
    draft_study,
    mechanism_for,
    parse_dictionary,
    parse_study,
    question_for,
    read_file,
)
from penstock.study.toml.templates import DEADLINE_HOURS
from penstock.wire.canonical import read_json
from penstock.wire.messages import Copies, SiteState, StudyState
from penstock.wire.signatures import fingerprint, private_from_pem
from penstock.wire.signed import sign_cancel, sign_study

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
pull_app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

T = TypeVar("T")

RESULTS = "results:"
"""Names the bar of what is made of the sites' deliveries; no site has this name."""
USUAL_MEMORY_GB = 8.0
"""What a site lets a run have unless its steward says otherwise."""

TIMED = ", ".join(m.name for m in MECHANISMS.values() if m.takes_time)
"""Mechanisms that look at when a row was taken."""

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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


@app.callback()
def study() -> None:
    """Ask a question of many sites.

    In this order: `penstock login`, `penstock key new`, study new, (edit the
    file), check, plan, submit, status --wait; then `penstock pull`. With a
    quorum, close goes on without sites that are late.
    """


@app.command()
@friendly
def new(
    source: Annotated[
        Path, typer.Argument(help="A dictionary.toml, or a site's join.json, with the columns.")
    ],
    name: Annotated[str, typer.Option(help="A short name, such as sbp-cvd.")],
    site: Annotated[list[str], typer.Option("--site", help="A site to invite; repeat it.")],
    out: Annotated[Path, typer.Option(help="Where to write the draft.")] = Path("study.toml"),
    federation: Annotated[str, typer.Option(help="The federation's name.")] = "main",
    mechanism: Annotated[
        str, typer.Option(help=f"How sites make their release: {', '.join(MECHANISMS)}.")
    ] = MECHANISMS.default.name,
    time: Annotated[
        str | None, typer.Option(help=f"{TIMED}: the column that says when a row was taken.")
    ] = None,
    deadline_days: Annotated[
        float,
        typer.Option(
            help="How many days sites have; where stewards approve by hand, more than a week."
        ),
    ] = DEADLINE_HOURS / 24,
    together: Annotated[
        list[Path] | None,
        typer.Option("--global", help="Each site's join.json: one release of all.", hidden=True),
    ] = None,
) -> None:
    """Draft a study from a dictionary: a commented file to edit."""
    if out.exists():
        raise PenstockError("a file exists there already", value=out, remedy="choose --out")
    check = Checks("study new")
    check.number("--deadline-days", deadline_days, "above 0, at most 365", above=0, most=365)
    check.done()
    moment = utc_now().replace(microsecond=0)
    schema = _read_schema(source)
    chosen = mechanism_for(mechanism, schema, time)
    used = MECHANISMS.of(chosen)
    persons = _persons([source]) if source.suffix == ".json" else {}
    aggregation = _gather(together) if together else EACH
    text = draft_study(
        schema,
        name=name,
        delta=advised_delta(max(persons.values(), default=1)),
        sites=tuple(site),
        federation=federation,
        not_before=stamp_seconds(moment),
        # A site answers until then; room to edit and sign comes before the deadline's days.
        expires=stamp_seconds(moment + timedelta(days=max(30.0, deadline_days + 16))),
        deadline_hours=24 * deadline_days,
        mechanism=chosen,
        # Only a study with a question can ask for an answer instead of tables.
        estimands=(question_for(schema),) if used.answers else (),
        aggregation=aggregation,
    )
    out.write_text(text, encoding="utf-8")
    done(f"{out}: edit the estimands and the privacy asked for, then `penstock study check`")
    if time is None and (guessed := used.guessed(chosen)):
        say(f"  {guessed}")


def _read_schema(source: Path) -> Schema:
    if source.suffix == ".json":
        record = read_json(source.read_bytes(), what=str(source), limit=10_000_000)
        if not isinstance(record.get("dictionary"), dict):
            problem = Problem("dictionary", "is missing", remedy="Give a site's join.json")
            raise InvalidInput(str(source), [problem])
        return _parse_named(source, lambda: Schema.from_dict(record["dictionary"]))
    text = read_file(source)
    return _parse_named(source, lambda: parse_dictionary(text).schema)


def _read(path: Path) -> Study:
    text = read_file(path)
    return _parse_named(path, lambda: parse_study(text))


def _parse_named(path: Path, parse: Callable[[], T]) -> T:
    """The problems of a text, under the name of its file."""
    try:
        return parse()
    except InvalidInput as error:
        raise InvalidInput(str(path), error.problems) from None


StudyFile = Annotated[Path, typer.Argument(help="The study's TOML file.")]
NoEstimands = Annotated[
    bool,
    typer.Option("--no-estimands", help="What sites release is wanted, and no report's answer."),
]


def _read_asked(path: Path, no_estimands: bool) -> Study:
    """A study that asks something, unless its analyst says that it need not.

    Raises:
        InvalidInput: with every problem of the file; or there is no estimand.
    """
    found = _read(path)
    if not no_estimands:
        require_estimands(found, str(path), "give --no-estimands")
    return found


@app.command()
@friendly
def check(
    path: StudyFile,
    no_estimands: NoEstimands = False,
    joins: Annotated[
        list[Path] | None,
        typer.Option("--join", help="A site's join.json, for its number of persons; repeat it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a study file: every problem at once, with its line."""
    found, persons = _read_asked(path, no_estimands), _persons(joins or [])
    _warn_of_delta(found, persons)
    _plan_for(found, persons)
    if as_json:
        suggestions = [asdict(s) for s in suggest_for(found.schema)]
        emit_json(found.to_dict() | {"suggestions": suggestions})
        return
    show_suggestions(found.schema)
    done(f"{path}: {found.name}, {len(found.sites)} sites, quorum {found.quorum}")
    say(f"  {found.mechanism.name} {describe_cost(found)}")
    for line in describe_returned(found):
        say(f"  {line}")
    others = f", {', '.join(found.readers)}" if found.readers else ""
    say(f"  may be read by you{others} and the coordinator's admins")
    for e in found.estimands:
        if not (e.regression.compares or e.regression.per_time):
            where = f" where {e.where}" if e.where else ""
            of = ":".join(dict.fromkeys((e.outcome, *e.target.columns)))
            say(f"  {e.name}: {e.model} of {of}{e.when}{where}")
            continue
        say(f"  {e.name}: {e.model} {e.formula}, per {e.per:g}")
    if found.estimands:
        say(f"  what each answer will be worth: `penstock study plan {path}`")


def _gather(joins: list[Path]) -> Scope:
    """One release of the sites whose join.json files these are."""
    persons, keys = _persons(joins), {}
    for path in joins:
        record = read_json(path.read_bytes(), what=str(path), limit=10_000_000)
        keys[str(record.get("site", path.name))] = str(record.get("gate_key"))
    dropouts, colluders = choose_tolerance(len(persons))
    return Scope(GLOBAL, dropouts, colluders, tuple(persons.items()), tuple(keys.items()))


def _persons(joins: list[Path]) -> dict[str, int]:
    """The public n of each site whose join.json is given, by the site's name."""
    found = {}
    for path in joins:
        try:
            record = read_json(path.read_bytes(), what=str(path), limit=10_000_000)
        except InvalidInput as error:
            remedy = "Give a site's join.json"
            raise InvalidInput(
                str(path), [replace(problem, remedy=remedy) for problem in error.problems]
            ) from None
        persons = record.get("persons")
        if isinstance(persons, bool) or not isinstance(persons, int) or not persons >= 1:
            problem = Problem("persons", "is missing", remedy="Give a site's join.json")
            raise InvalidInput(str(path), [problem])
        found[str(record.get("site", path.name))] = persons
    return found


def _warn_of_delta(study: Study, persons: dict[str, int]) -> None:
    """A δ that is no small chance any more among so many persons: sites refuse it by default."""
    delta = study.privacy.delta
    for site, n in persons.items():
        if delta * n > DELTA_TIMES_PERSONS * (1 + 1e-9):
            err.print(
                f"  ! δ = {delta:g} is above 1/(10 n) at {site}, of {n} persons; a site refuses it "
                f"by default: ask for at most {advised_delta(n):.2g}",
                markup=False,
            )


def _plan_for(study: Study, persons: dict[str, int]) -> None:
    """Plan it for sites whose sizes are known: what they would refuse, and how much memory it is.

    Where the accountants are not installed, which sites have, nothing is planned.

    Raises:
        Hopeless: its answer would be noise at a site.
    """
    used = MECHANISMS.of(study.mechanism)
    for site, n in persons.items():
        try:
            planned = used.plan(study.asked, n)
            used.require_worth(study.asked, planned)
            needed = used.memory(planned, study.schema)
        except ModuleNotFoundError:
            return
        if needed.total > USUAL_MEMORY_GB * GB:
            err.print(
                f"  ! needs up to {needed.gigabytes:.2g} GB of memory at {site}, of {n} persons; a "
                f"site lets a run have {USUAL_MEMORY_GB:g} by default",
                markup=False,
            )


@app.command()
@friendly
def plan(
    path: StudyFile,
    joins: Annotated[
        list[Path] | None,
        typer.Option("--join", help="A site's join.json, for its number of persons; repeat it."),
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option("--persons", help="SITE=NUMBER, for a site without its file; repeat it."),
    ] = None,
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Forecast what each answer will be worth, before a site is asked or charged.

    Cohorts are made up from the study's planning values and the
    dictionary, the mechanism is run on them as a site would, and every estimand
    is estimated on the rows and on what would be released. The table has standard errors on the
    scale of coefficients (log ratios, differences): of sampling alone, what
    privacy adds, both together, how many times as wide that makes an interval,
    and the chance to see the planned effect. Where the noise is larger than
    the sampling error it says which ε or how many persons would do.

    What you expect stands in the study's planning tables: means, spreads, shares
    and effects, from the literature and never from the sites' rows. A draft by
    `penstock study new` shows how they are written.
    """
    found = _read_asked(path, no_estimands=False)
    made = make_forecast(found, _persons(joins or []) | _read_sizes(sizes or []), runs)
    if as_json:
        emit_json(made.to_dict())
        return
    show_forecast(made)
    asked = [site for site in found.sites if site not in made.sites]
    if asked:
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
    found = _read_asked(path, no_estimands)
    signed = sign_study(found, private_from_pem(read_private(key)))
    asked = connect(coordinator)
    asked.require_wire(found.wire)
    study_id = asked.submit(signed.to_bytes())
    if as_json:
        emit_json({"study": study_id, "signer": signed.signer})
        return
    done(f"study {found.name} is {study_id[:12]}")
    say(f"  signed by {fingerprint(signed.signer)}")
    say(f"  penstock study status {study_id[:12]}")


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
    """A study's state; while its results are made, how far they are."""
    pooling = found.get("pooling")  # a coordinator of before has none
    done = f", {pooling['done']} of {pooling['sites']} sites" if pooling else ""
    return f"{found['state']}{done}"


def _show(found: Json) -> None:
    say(f"{found['name']} ({found['study'][:12]}): {_tell_state(found)}, quorum {found['quorum']}")
    if found["note"]:
        say(f"  {found['note']}")
    if found["state"] == StudyState.OPEN:
        say(f"  sites have until {found['deadline'][:16].replace('T', ' ')} UTC")
        there = sum(s["state"] == SiteState.DELIVERED for s in found["sites"])
        if there >= found["quorum"]:
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
    study_id = remote.status(study)["study"]
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
    as_json: AsJson = False,
) -> None:
    """Fetch the report (report.html, report.json, dictionary.json) and what sites released.

    Synthetic tables are pooled.parquet and pooled.csv; with --refits there are refits.parquet and
    refits.csv beside them, and dictionary.json has the rule that makes intervals of your own
    estimates from both. Tables of transitions are in transitions.csv. A mechanism may have paths
    and particles, too, or coefficients.csv and
    coefficients.json instead: `penstock study check` says what comes back.
    """
    if copies not in ("one", "all"):
        problem = Problem("--copies", "unknown", value=copies, bound="one or all")
        raise InvalidInput("pull", [problem])
    remote, wanted = connect(coordinator), cast(Copies, "refits" if refits else copies)
    if isinstance(remote, Fetching):
        with _show_downloads() as received:
            files = remote.fetch(study, None, out, copies=wanted, received=received)
    else:
        files = remote.pull(study, out, copies=wanted)
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
