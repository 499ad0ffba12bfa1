"""`penstock audit`: attack the package's own claims."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from penstock.base.errors import PenstockError
from penstock.base.pictures import check_picture
from penstock.cli.console import done, emit_json, err, friendly, number, say, table

if TYPE_CHECKING:
    from penstock.audit.worlds import Finding, Kind, Target

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
@friendly
def audit(
    mechanisms: Annotated[
        list[str] | None, typer.Argument(help="Which ones, by name; all if none is given.")
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(help="Runs in each world; each mechanism's own number if not given."),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of the bounds that are shown.")] = 0.95,
    epsilon: Annotated[
        float | None, typer.Option(help="Noise for this ε, instead of each mechanism's own.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="At which ε is claimed.")] = None,
    one_run: Annotated[
        bool | None,
        typer.Option("--one-run/--two-world", help="Only this kind of attack; both if not given."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Repeat an audit exactly; without, the noise of a real site.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw claims and bounds to a .png, .svg or .pdf.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Name what can be audited.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Attack the mechanisms: does any show more ε than is claimed?

    Each mechanism's real code runs on a worst-case data set of its own, made
    up here; no site and no row is involved. Two worlds: many runs without
    one person, many with them, and a test that tells them apart. One run:
    many persons, in or out by fair coins, and the coins are guessed.

    What comes out is a lower bound on ε. It can prove a claim wrong, and
    never right: a low bound may only mean a weak attack. "Gaussian" and
    "sampled Gaussian" bounds come nearer, and count only against a claim of
    that very kind. A claim is called broken (exit code 3) if a bound at
    confidence 1 - 1e-7 lies above it.

    Examples: penstock audit --list; penstock audit gaussian dpsgd;
    penstock audit gaussian --epsilon 1 --runs 1000000 --plot audit.png
    """
    _check_accountants()
    from penstock.audit import worlds
    from penstock.audit.targets import NAMES, build

    targets = [
        build(name, epsilon=epsilon, delta=delta) for name in dict.fromkeys(mechanisms or NAMES)
    ]
    if listed:
        _list(targets, as_json)
        return
    if plot is not None:
        check_picture(plot)  # now, and not after minutes of work
    kinds: tuple[Kind, ...] = ("two-world", "one-run")
    if one_run is not None:
        kinds = kinds[1:] if one_run else kinds[:1]
    findings = _run(targets, kinds, runs, confidence, seed)
    if as_json:
        emit_json([found.to_dict() for found in findings])
    else:
        _show(findings, confidence)
    if plot is not None:
        from penstock.audit.plot import draw

        draw(findings, plot)
        if not as_json:
            done(f"{plot}: claims beside bounds")
    worlds.check(findings)
    if not as_json:
        done("no claim was broken")


def _check_accountants() -> None:
    for module in ("autodp", "dp_accounting"):
        if find_spec(module) is None:
            remedy = "pip install 'penstock[site]'"
            raise PenstockError(f"penstock audit needs {module}", remedy=remedy)


def _list(targets: Sequence[Target], as_json: bool) -> None:
    if as_json:
        emit_json(
            [
                {"name": t.name, "worst": t.worst, "attacks": t.kinds, "runs": t.runs}
                for t in targets
            ]
        )
        return
    rows = [(t.name, t.worst, ", ".join(t.kinds)) for t in targets]
    table("mechanisms", ("name", "worst case", "attacks"), rows)


def _run(
    targets: Sequence[Target],
    kinds: Sequence[Kind],
    runs: int | None,
    confidence: float,
    seed: int | None,
) -> list[Finding]:
    from penstock.audit import worlds
    from penstock.privacy.noise.sources import NoiseSource, SecureNoise, SeededNoise

    noise: NoiseSource = SecureNoise() if seed is None else SeededNoise(seed)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    found: list[Finding] = []
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:
        for target in targets:
            total = 2 * (runs or target.runs) if "two-world" in kinds else 1
            bar = bars.add_task(target.name, total=total)
            found += worlds.audit(
                target,
                noise,
                runs=runs,
                confidence=confidence,
                kinds=kinds,
                progress=partial(bars.advance, bar),
            )
            bars.remove_task(bar)
    return found


def _show(findings: Sequence[Finding], confidence: float) -> None:
    if not findings:
        say("no such attack on these mechanisms; see penstock audit --list")
        return
    rows = [
        (
            f.name,
            f.method.removeprefix("two-world, "),
            f"{f.runs:,}",
            number(f.claim),
            number(f.pld),
            number(f.shown.epsilon),
            number(f.gate.epsilon),
            "holds" if f.holds else "BROKEN",
        )
        for f in findings
    ]
    columns = ("mechanism", "attack", "runs", "claim", "PLD", "shown", "gate", "claim")
    table("ε that is claimed, and ε that attacks show", columns, rows)
    say(f"shown: at least, with confidence {100 * confidence:g} %; gate: with 1 - 1e-7")
    deltas: dict[float, list[str]] = {}
    for f in findings:
        deltas.setdefault(f.delta, []).append(f.name)
    for delta, names in deltas.items():
        which = "" if len(deltas) == 1 else f": {', '.join(dict.fromkeys(names))}"
        say(f"ε at δ = {delta:g}{which}")
