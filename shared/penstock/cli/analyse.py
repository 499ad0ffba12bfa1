"""`penstock analyse`: further questions to what a study has released."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.analyst import connect
from penstock.analyst.pulled import analyse as ask
from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, Problem
from penstock.cli.console import done, emit_json, friendly, number, say, table
from penstock.cli.study import Where
from penstock.cli.study_reading import AsJson
from penstock.enquiry.reply import plot_answer
from penstock.telling.forest import forest_svg

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
@friendly
def analyse(
    study: Annotated[
        str, typer.Argument(help="A folder that `pull --refits` wrote, or a study's id or name.")
    ],
    questions: Annotated[
        list[str] | None,
        typer.Argument(help="'y ~ a + b', 'Surv(time, status) ~ rx', 'mean(x)', or an estimand."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="A folder for a forest plot (SVG) of each answer.")
    ] = None,
    coordinator: Where = None,
    as_json: AsJson = False,
) -> None:
    """Ask released tables anything that their columns allow; it costs no privacy.

    Answers are combined over copies, widened by what refits show of the
    mechanism's noise, and pooled over sites as in the report. Without a question
    the study's own are answered, with the report's numbers. Each says what the
    tables hold of it; where they hold nothing there is no number in its sentence.
    """
    told = ask(
        study,
        questions or [],
        lambda name, out: connect(coordinator).pull(name, out, copies="refits"),
    )
    drawn = [] if plot is None else _draw(told, plot)
    if as_json:
        emit_json({"answers": told})
        return
    for each in told:
        _show(each)
    for path in drawn:
        done(str(path))


def _show(told: Json) -> None:
    say(told["sentence"])
    rows = [_tell_row(site["site"], site) for site in told["sites"]]
    if told["random"] is not None:
        rows.append(_tell_row(f"all ({told['random']['method']})", told["random"]))
    table("", ("site", "n", told["short"], "95% interval", "df", "weight"), rows)


def _tell_row(name: str, found: Json) -> tuple[str, ...]:
    if found.get("problem"):
        return (name, "", "", found["problem"], "", "")
    value, weight = found["value"], found.get("weight")
    n = found.get("n")
    return (
        name,
        "" if n is None else f"{n:,}",
        number(value["estimate"], 4),
        f"{number(value['low'], 4)} to {number(value['high'], 4)}",
        number(found["df"]),
        "" if weight is None else f"{weight:.0%}",
    )


def _draw(told: list[Json], folder: Path) -> list[Path]:
    if folder.exists() and not folder.is_dir():
        problem = Problem("--plot", "is no folder", value=str(folder))
        raise InvalidInput("analyse", [problem])
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for place, each in enumerate(told, start=1):
        path = folder / f"forest-{place}.svg"
        path.write_text(forest_svg(plot_answer(each), standalone=True), encoding="utf-8")
        paths.append(path)
    return paths
