"""`requests`, `preview`, `approve`, `reject`: what is asked of a site, and the steward's answer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from penstock.base.documents import Json, JsonView
from penstock.cli.console import done, emit_json, err, friendly, number, say, table
from penstock.cli.forecasts import RUNS, Runs, make_forecast, show_forecast
from penstock.processes.confinement import forbid_dumps
from penstock.study.study import Study
from penstock.wire import gate_pb2
from penstock.wire.messages import JobState
from penstock_client.cli.common import (
    AsJson,
    Reason,
    SiteDir,
    call_document,
    call_steward,
    identify_decider,
    open_site,
    shorten,
)
from penstock_client.ledger.decisions import check_reason

if TYPE_CHECKING:  # attacks come with scipy, for which no other command shall wait
    from penstock.audit.membership import Interval
    from penstock_client.attack.inference import Outcome

RequestId = Annotated[str, typer.Argument(help="The request id, or its beginning.")]


@friendly
def requests(directory: SiteDir = Path(), as_json: AsJson = False) -> None:
    """Every request that was taken: who asks what, at what price, and where it stands.

    What is refused as it comes, for its signer, its dictionary, the policy or
    a budget without room, is neither charged nor kept, and not in `site ledger
    decisions` either: whoever asked is told why.
    """
    paths, _ = open_site(directory)
    rows = call_document(paths, "Requests")["requests"]
    if as_json:
        emit_json(rows)
        return
    if not rows:
        say("no requests yet")
        return
    why = any(r["why"] for r in rows)
    table(
        "requests",
        ("request", "state", "ε", "asked by", "submitted", "study", *(["why"] if why else [])),
        [
            (
                r["request"][:12],
                r["state"],
                number(r["epsilon"]),
                r["signer_label"] or f"{r['signer'][:19]}… (not trusted now)",
                r["submitted"][:10],
                _titled(r["study"], r["title"]),
                *([r["why"]] if why else []),
            )
            for r in rows
        ],
    )
    for row in rows:
        if row.get("together_with"):
            say(f"  {row['request'][:12]}: {_describe_joint(row)}")
    if any(r["state"] == JobState.AWAITING for r in rows):
        say("what a request would release and cost: `penstock site preview REQUEST`")


def _describe_joint(row: JsonView) -> str:
    """Of one release of many sites: its class, what holds without the others, and who is unknown
    here."""
    said = f"one release with {', '.join(row['together_with'])}: {row['guarantee']}"
    alone = row["alone_epsilon"]
    if row["guarantee"] != "formal" and alone is not None:
        said += f", ε = {number(alone)} if all of them collude"
    return f"{said}; not pinned here: {', '.join(row['unpinned'])}" if row["unpinned"] else said


def _titled(name: str, title: str) -> str:
    """A study's name, and its title where that says more."""
    return name if title in ("", name) else f"{name}: {title}"


@friendly
def preview(
    request: RequestId,
    directory: SiteDir = Path(),
    attacked: Annotated[
        bool,
        typer.Option(
            "--attack", help="Also run it here, for your eyes only, and try to tell who was in it."
        ),
    ] = False,
    repeats: Annotated[
        int, typer.Option("--repeats", help="How often, each time with other people held out.")
    ] = 3,
    swept: Annotated[
        bool,
        typer.Option(
            "--sweep-w", help="Attack it at other w too: what each w leaks, and is good for."
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            help="Draw the attacks' ROC curves, or utility against leakage with --sweep-w: .png, "
            ".pdf or .svg.",
        ),
    ] = None,
    forecasted: Annotated[
        bool,
        typer.Option(
            "--forecast",
            help="Also what its answers would be worth here, from the study's planning values.",
        ),
    ] = False,
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """What a request would release and cost, by every account, before and after.

    Each ε is of what its line says, and no two of them add up: what adds up over
    studies is the share of the data set's life. The ε of all releases so far is
    the bound that guards the total, at the total's δ: as long as little is spent
    it is far above what was asked for.

    With --forecast also what the budget would buy at this site: the standard
    errors that are expected from sampling and from privacy. It is made from
    the study's planning values, the dictionary and the declared frame; your
    rows are not looked at, since a refusal would then tell of them.
    """
    paths, settings = open_site(directory)
    if plot is not None:
        from penstock_client.attack.inference import check_place

        check_place(plot, paths)
    shown = call_document(paths, "Preview", gate_pb2.JobRequest(request_id=request))
    if not as_json:
        _show_preview(shown)
    if forecasted:
        shown |= {"forecast": _forecast(shown, runs, quiet=as_json)}
    if not (attacked or swept or plot):
        if as_json:
            emit_json(shown)
        return
    from penstock_client.attack import inference as attack

    forbid_dumps()
    asked = attack.seal_task(paths, settings, shown["request"])
    with asked as (spec, rows), _progress() as progress:
        found = attack.run(spec, rows, repeats, progress, swept=swept)
    if as_json:
        emit_json({**shown, "attack": found.to_dict()})
    else:
        _show_attack(found, shown["guarantee"])
    if plot is not None:
        _draw(found, plot, f"attacks on request {shown['request'][:12]}: {shown['guarantee']}")


def _forecast(shown: Json, runs: int, *, quiet: bool) -> Json:
    """What the request's answers would be worth here: from the study and the public n alone."""
    made = make_forecast(Study.from_dict(shown["signed"]), {shown["site"]: shown["persons"]}, runs)
    if not quiet:
        say("")
        show_forecast(made)
    return made.to_dict()


def _show_preview(shown: Json) -> None:
    rows = [
        (label, shorten(shown[key]))
        for key, label in _PREVIEW.items()
        if key in shown and not (key == "unpinned" and not shown[key])
    ]
    if "share_of_life" in shown:
        rows.append((_SHARE, f"{100 * shown['share_of_life']:.2g} %, which adds up"))
    table(f"request {shown['request'][:12]}", ("", ""), rows)
    for event in shown.get("events", []):
        say(f"  {event_line(event)}")
    if shown.get("unpinned"):
        say("compare their fingerprints with their stewards, and `penstock site peers add` them")


def event_line(event: JsonView) -> str:
    """One charged event, as :func:`penstock.privacy.events.to_dict` wrote it, in one line."""
    if event["kind"] == "on-stratum":
        return f"stratum {event['stratum']}: {event_line(event['event'])}"
    kind = _KINDS.get(event["kind"], event["kind"])
    label = event.get("label")
    times = f"{event['count']} × " if event.get("count", 1) != 1 else ""
    sizes = [
        f"{name} {event[key] if isinstance(event[key], int) else format(event[key], '.4g')}"
        for key, name in _SIZES.items()
        if key in event
    ]
    return ", ".join([f"{label + ': ' if label else ''}{times}{kind}", *sizes])


_KINDS = {
    "gaussian": "Gaussian",
    "discrete-gaussian": "discrete Gaussian",
    "poisson-gaussian": "Gaussian on Poisson samples",
    "fixed-size-gaussian": "Gaussian on batches of fixed size",
    "laplace": "Laplace",
    "noisy-descent": "noisy descent, last iterate only",
    "shuffled-gaussian": "Gaussian rows in random order",
    "distributed-gaussian": "Gaussian noise of several sites",
    "pure": "pure DP",
    "approximate": "approximate DP",
    "unbounded": "without any bound, ε = ∞",
}
"""How `preview` calls the kinds of events."""

_SIZES = {
    "noise_multiplier": "noise multiplier",
    "scale": "scale",
    "epsilon": "ε",
    "delta": "δ",
    "local_delta": "a row's own δ",
    "rate": "rate",
    "batch": "batch",
    "population": "of",
    "steps": "steps",
    "contraction": "contraction",
    "persons": "persons",
    "sites": "sites",
    "dropouts": "drop-outs",
    "colluders": "colluders",
}
"""What it says of them, in this order."""


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error, gone at the end."""
    columns = (TextColumn("attacking"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def _show_attack(found: Outcome, guarantee: str) -> None:
    from penstock.audit.membership import EXTREMES

    asked = found.asked
    if not asked.reports:
        say("too few people to hold some out: nothing was attacked")
        return
    rows = [
        (
            name.removesuffix(EXTREMES),
            "5 % most extreme" if name.endswith(EXTREMES) else "all",
            _interval(report.auc),
            _interval(report.tpr),
            f"{report.members} + {report.nonmembers}",
        )
        for name, report in asked.reports.items()
    ]
    columns = ("attack", "records", "AUC (95 %)", "found at 1 % FPR (95 %)", "members + held out")
    say("")
    table(f"attacks on it, {found.repeats} runs, people held out in each", columns, rows)
    if asked.pairing is not None:
        own = asked.pairing
        say(
            f"  a person's own synthetic row: {own.nearer:.1%} of the others are nearer to the "
            f"person; among synthetic rows its median rank is {own.rank:.1f}, 1 being the closest"
        )
    for line in _MEANING:
        say(f"  {line}")
    if found.swept:
        _show_sweep(found, guarantee)


def _show_sweep(found: Outcome, guarantee: str) -> None:
    from penstock.audit.tradeoff import DISTANCE, LATENT, MOST_AUC, RATIO

    marks = (
        (0.0, "flow sampling"),
        (found.w, "asked"),
        (found.largest_w, f"largest with AUC ≤ {MOST_AUC:g}"),
    )
    rows = [
        (
            number(point.w),
            *(_interval(point.reports[name].auc) for name in (DISTANCE, RATIO)),
            "" if point.pairing is None else f"{point.pairing.nearer:.1%}",
            *(f"{error:.2g}" for error in point.errors.values()),
            ", ".join(mark for w, mark in marks if w == point.w),
        )
        for point in found.table.by(LATENT)
    ]
    errors = (f"{name} off" for name in found.asked.errors)
    columns = ("w", f"AUC, {DISTANCE}", f"AUC, {RATIO}", "others nearer", *errors, "")
    say("")
    table(
        f"the same fits at other w; AUC with 95 % limits, means of {found.repeats}", columns, rows
    )
    if found.largest_w is None:
        say(f"  Both attacks stay within AUC {MOST_AUC:g} at no w up to which all others do.")
    for line in (*_SWEPT, _CHOOSING[guarantee == "empirical"]):
        say(f"  {line}")


def _interval(found: Interval | None) -> str:
    if found is None:
        return "too few held out"
    return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"


def _draw(found: Outcome, plot: Path, title: str) -> None:
    from penstock.audit.membership import plot_roc
    from penstock.audit.tradeoff_plot import plot_tradeoff

    # Created first, so that its owner alone can read it.
    os.close(os.open(plot, os.O_CREAT | os.O_WRONLY, 0o600))
    try:
        if found.swept:
            plot_tradeoff(found.table, plot, title=title, chosen=found.largest_w, asked=found.w)
        else:
            plot_roc(found.asked.curves, plot, title=title)
    except BaseException:
        if not plot.stat().st_size:
            plot.unlink()
        raise
    err.print(f"drew {plot}: keep it here", markup=False)


_MEANING = (
    "AUC: how often a member looks more like one than a person who was held out; 0.5 is a coin.",
    "Found at 1 % FPR: members that are recognised where 1 in 100 others is accused; chance: 0.01.",
    "Both attacks know a person's whole row; the likelihood ratio also knows the fitted model.",
    "A low AUC proves nothing: another attack may see more. What is proven is ε, where it is "
    "finite.",
    "This was computed from real rows: keep it here. Do not let it decide on a formal release; "
    "your yes or no would tell of the rows, and nobody accounts for that.",
)
"""What the figures mean, and what they do not."""

_SWEPT = (
    "Others nearer: how often another person is nearer to a person than their own synthetic row.",
    "Off: mean difference between synthetic rows and the members' own; of means and standard "
    "deviations (sds) in units of a column's sd.",
    "The fit is that of the w asked for. Under a finite ε another w would leave it another share.",
)

_CHOOSING = (
    "w is fixed in this study, before any row is looked at. Do not ask for another because of "
    "these figures: a w that is chosen on real rows tells of them, and only the class empirical "
    "allows for it.",
    "The class empirical may ask for a w that was found so: it is a choice on real rows, and its "
    "ε is infinite with or without.",
)
"""Whether w may follow from what was seen: not under a finite ε; under empirical."""

_SHARE = "takes of the data set's life"
_PREVIEW = {
    "study": "study",
    "title": "title",
    "signer_label": "asked by",
    "signer": "signed by",
    "readers": "read by",
    "state": "state",
    "estimands": "asks",
    "columns": "of columns",
    "persons": "of persons, as declared",
    "mechanism": "mechanism",
    "settings": "its settings",
    "guarantee": "guarantee",
    "together_with": "one release with",
    "promise": "promised",
    "alone_epsilon": "ε if all other sites collude",
    "unpinned": "gates that are not pinned here yet",
    "noise": "its noise",
    "rounds": "in so many rounds",
    "seconds": "which take so many seconds, at least",
    "epsilon": "ε asked",
    "delta": "δ asked",
    "half": "it is a half of a study",
    "other_half": "whose other half is",
    "whole_epsilon": "ε of both, which are charged at once",
    "other_epsilon": "ε of the other half",
    "epsilon_autodp": "ε by autodp, which is charged",
    "epsilon_pld": "ε by PLD, tighter",
    "epsilon_replace_one": "ε if one person is replaced",
    "lineage": "data set",
    "total_epsilon": "its total ε",
    "spent_before": "ε of all releases before it",
    "spent_after": "ε of all releases with it",
    "spent_after_replace_one": "the same, replace-one, by PLD",
    "left_before": "ε one more study may cost, now",
    "left_after": "ε one more study may cost, after",
    "refusal": "would be refused",
    "warning": "WARNING",
    "note": "note",
}
"""What `preview` shows, in a steward's order."""


@friendly
def approve(request: RequestId, directory: SiteDir = Path(), reason: Reason = "") -> None:
    """Let a waiting request run."""
    check_reason(reason)
    paths, _ = open_site(directory)
    job = call_steward(
        paths,
        "Approve",
        gate_pb2.ApproveRequest(request_id=request, reason=reason, by=identify_decider()),
    )
    done(f"{job.request_id[:12]} is {job.state}")


@friendly
def reject(request: RequestId, directory: SiteDir = Path(), reason: Reason = "") -> None:
    """Say no to a waiting request; nothing is charged."""
    check_reason(reason)
    paths, _ = open_site(directory)
    job = call_steward(
        paths,
        "Reject",
        gate_pb2.RejectRequest(request_id=request, reason=reason, by=identify_decider()),
    )
    done(f"{job.request_id[:12]} is {job.state}")
