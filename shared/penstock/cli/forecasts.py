"""A forecast, as an analyst and a steward see it: made while a bar moves, then as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from penstock.analyst.consequences import describe_together
from penstock.base.errors import PenstockError
from penstock.cli.console import err, number, say, table
from penstock.forecast import RUNS
from penstock.questions.estimands import Estimand
from penstock.study.study import Study

if TYPE_CHECKING:  # what makes forecasts comes with scipy, for which no other command shall wait
    from penstock.forecast.expected import Expected, Forecast

__all__ = ["RUNS", "Runs", "list_remedies", "make_forecast", "show_forecast"]

Runs = Annotated[
    int,
    typer.Option(
        "--runs", help="How often the mechanism is run at each size: more is more precise."
    ),
]


def make_forecast(study: Study, persons: Mapping[str, int], runs: int) -> Forecast:
    """What a study's answers will be worth at sites of these sizes; a bar on standard error.

    Raises:
        PenstockError: what makes releases is not installed.
        InvalidInput: as :func:`penstock.forecast.expected.forecast`.
    """
    from penstock.forecast.expected import forecast

    columns = (TextColumn("forecasting"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=err, transient=True) as bar:
            task = bar.add_task("", total=None)

            def told(done: int, of: int) -> None:
                bar.update(task, completed=done, total=of)

            return forecast(study, persons, runs=runs, progress=told)
    except ModuleNotFoundError as error:
        raise PenstockError(
            "a forecast runs the mechanism, which is not installed here whole",
            value=error.name,
            remedy="pip install 'penstock[site]'",
        ) from None


def show_forecast(found: Forecast) -> None:
    """The table, and in words what cannot be had and what would do."""
    rows = [row for e in found.study.estimands for row in _list_rows(found, e.name)]
    precision = f"{100 * found.precision:.0f} %"
    title = (
        f"standard errors that {found.study.mechanism.name} is expected to give at "
        f"ε = {found.study.privacy.epsilon:g}"
    )
    table(title, ("estimand", "site", "persons", *_COLUMNS), rows)
    say(
        f"from the study's planning values and {found.runs} runs on made-up cohorts at each size, "
        f"never from rows; what privacy adds is known to about {precision}"
    )
    for scale, names in _list_scales(found.study.estimands).items():
        say(f"on the scale of {scale}: {', '.join(names)}")
    if not found.study.planning.to_dict():
        say("the study declares no [planning]: bounds alone stand for what is expected of columns")
    unsaid = [e.name for e in found.study.estimands if not found.study.planning.effect(e.name)]
    if unsaid:
        say(f"no power without an effect in [planning.effects]: {', '.join(unsaid)}")
    if found.untold:
        say(f"not forecast, since they are of persons over time: {', '.join(found.untold)}")
    for line in describe_together(found.joint) if found.joint is not None else []:
        say(f"  {line}")
    for line in list_remedies(found):
        say(f"  ! {line}")


_COLUMNS = ("sampling", "privacy", "together", "times as wide", "power")


def _list_rows(found: Forecast, name: str) -> list[tuple[str, ...]]:
    effect = found.study.planning.effect(name)
    rows = [
        (name if not i else "", site, str(at.persons), *_cells(at.expected[name], effect))
        for i, (site, at) in enumerate(found.sites.items())
    ]
    if len(found.sites) > 1 and name in found.pooled:
        persons = sum(at.persons for at in found.sites.values() if at.expected[name].estimated)
        rows.append(("", "pooled", str(persons), *_cells(found.pooled[name], effect)))
    return rows


def _list_scales(estimands: Iterable[Estimand]) -> dict[str, list[str]]:
    """Estimands whose standard errors are not those of the number that is told, by their scale."""
    found: dict[str, list[str]] = {}
    for estimand in estimands:
        model = estimand.regression
        words = {"log": "log", "logit": "logit of", "fisher": "Fisher's z of"}
        if model.scale in words:
            scale = f"{words[model.scale]} {model.measure.name}"
            found.setdefault(scale, []).append(estimand.name)
    return found


def _cells(found: Expected, effect: float) -> tuple[str, ...]:
    if not found.estimated:
        return ("", "no estimate", "", "", "")
    shown = (found.sampling, found.privacy, found.total, found.wider)
    return (*(number(value) for value in shown), number(found.power(effect)) if effect else "")


def list_remedies(found: Forecast) -> list[str]:
    """What cannot be had, and about which ε, how many persons or which columns would do."""
    lines = []
    for estimand in found.study.estimands:
        for site, at in found.sites.items():
            lines += _explain(found, estimand.name, f"{estimand.name} at {site}", site, at.persons)
    if found.without is not None:
        lines.append(_explain_columns(found, found.without.persons))
    return lines


def _explain(found: Forecast, name: str, what: str, site: str, persons: int) -> list[str]:
    from penstock.forecast.expected import suggest

    expected = found.sites[site].expected[name]
    if not expected.estimated:
        return [
            f"{what} cannot be had: in {expected.failed} of {found.runs} runs there was no "
            "estimate. Try a larger ε, fewer columns, or more persons (--persons SITE=NUMBER)"
        ]
    would_do = suggest(expected, found.study.privacy.epsilon, persons)
    lost = expected.bias_found(found.runs)
    lines = []
    if lost:
        lines.append(
            f"{what} comes back {expected.bias:+.2g} off: what the tables lose of it, not noise"
        )
    if would_do is not None:
        more = "" if would_do["epsilon"] is None else f"ε = {number(would_do['epsilon'], 2)}, or "
        lines.append(
            f"{what}: the mechanism's noise is {number(expected.times, 2)} times the sampling "
            f"error; about {more}{would_do['persons']} persons would make them equal"
        )
    return lines


def _explain_columns(found: Forecast, persons: int) -> str:
    """What the study's answers gain without the columns that no estimand needs."""
    before = next(at for at in found.sites.values() if at.persons == persons).expected
    after = found.without.expected if found.without is not None else {}
    gains = [
        f"{name} {number(after[name].privacy, 2)} for {number(before[name].privacy, 2)}"
        for name in after
        if after[name].estimated and before[name].estimated
    ]
    names = ", ".join(found.unneeded)
    return (
        f"no estimand needs {names}; without {'them' if len(found.unneeded) > 1 else 'it'} privacy "
        f"would add, at {persons} persons: {'; '.join(gains) or 'as much'}"
    )
