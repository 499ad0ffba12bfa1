"""`penstock analyse`: further questions to what a study has released."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.analyst import connect
from penstock.analyst.pulled import analyse as ask
from penstock.base.checks import shown
from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, Problem
from penstock.cli.console import done, emit_json, escape, friendly, number, out, say, table
from penstock.cli.study import Where
from penstock.cli.study_reading import AsJson
from penstock.enquiry.reply import plot_answer
from penstock.telling.forest import forest_svg
from penstock.telling.marks import is_answer

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
    moderator: Annotated[
        list[str] | None,
        typer.Option("--moderator", help="A number of each site: 'mean(age)'. Repeatable."),
    ] = None,
    among: Annotated[
        list[str] | None,
        typer.Option("--among", help="A group of sites: 'north=SITE,SITE'. Repeatable."),
    ] = None,
    coordinator: Where = None,
    as_json: AsJson = False,
) -> None:
    """Ask released tables anything that their columns allow; it costs no privacy.

    Answers are combined over copies, widened by what refits show of the
    mechanism's noise, and pooled over sites as in the report. Without a question
    the study's own are answered, with the report's numbers. Each says what the
    tables hold of it; where they hold nothing there is no number in its sentence.

    What explains how sites differ is asked beside: --moderator regresses their
    answers on a number of each site, --among pools groups of sites by themselves
    and compares them.
    """
    told = ask(
        study,
        questions or [],
        lambda name, out: connect(coordinator).pull(name, out, copies="refits"),
        moderators=moderator or [],
        among=_read_groups(among or []),
    )
    drawn = [] if plot is None else _draw(told, plot)
    if as_json:
        emit_json({"answers": told})
        return
    for each in told:
        show_answer(each)
    for path in drawn:
        done(str(path))


def show_answer(told: Json) -> None:
    """Under its question: the sentence, what sites say, and what explains how they differ."""
    out.print(escape(told["question"]), style="bold")
    say(told["sentence"])
    # Of one release of all sites the answer is the only row.
    apart = not (told["joint"] and told["random"])
    rows = [_tell_row(site["site"], site) for site in told["sites"] if apart]
    lost = "" if is_answer(told["held"]) else ": no answer"
    if told["random"] is not None:
        rows.append(_tell_row(f"all ({told['random']['method']}){lost}", told["random"]))
    alike = [other for other in told["others"] if other["method"] == "unweighted"]
    rows += [_tell_row(f"each site alike{lost}", other) for other in alike]
    table("", ("site", "n", told["short"], "95% interval", "df", "weight"), rows)
    if told["moderation"] is not None:
        _show_moderation(told["moderation"], lost)
    if told["among"] is not None:
        _show_groups(told["among"], told["short"], lost)


def _show_moderation(found: Json, lost: str) -> None:
    first, *others = found["coefficients"]
    rows = [("a site with these means", "", *_tell_numbers(first))]
    rows += [(f"per 1 of {o['name']}", number(o["centre"], 4), *_tell_numbers(o)) for o in others]
    columns = ("", "mean of sites", found["change"], "95% interval", "p")
    table(f"What explains how sites differ{lost}", columns, rows)
    say(f"All moderators: {_tell_test(found)}. {_tell_left(found)}.{_tell_left_out(found)}")
    say(found["text"])


def _show_groups(found: Json, short: str, lost: str) -> None:
    rows = []
    for group in found["groups"]:
        told = ("", group["problem"], "") if group["problem"] else _tell_numbers(group)
        rows.append((group["group"], ", ".join(group["sites"]), *told))
    table(f"Groups of sites{lost}", ("group", "sites", short, "95% interval", "p"), rows)
    compared = found["test"]
    if compared is not None:
        test = f"Between groups: {_tell_test(compared)}"
        say(f"{test}. {_tell_left(compared)}.{_tell_left_out(found)}")


def _tell_numbers(found: Json) -> tuple[str, str, str]:
    value = found["value"]
    interval = f"{number(value['low'], 4)} to {number(value['high'], 4)}"
    return number(value["estimate"], 4), interval, number(found["p"], 2)


def _tell_test(found: Json) -> str:
    return (
        f"F = {number(found['f'])} with {found['f_df']} and {found['df']} df, "
        f"p = {number(found['p'], 2)}"
    )


def _tell_left(found: Json) -> str:
    explained = "" if found["r2"] is None else f" (R² = {found['r2']:.0%})"
    return (
        f"Left between sites: τ² = {number(found['tau2'])}{explained}, "
        f"Q = {number(found['q'])} with {found['q_df']} df, p = {number(found['q_p'], 2)}"
    )


def _tell_left_out(found: Json) -> str:
    return f" Left out: {', '.join(found['left_out'])}." if found["left_out"] else ""


def _read_groups(texts: list[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for text in texts:
        name, sign, sites = text.partition("=")
        if not sign or not name.strip() or name.strip() in groups:
            what = "is no group" if name.strip() not in groups else "is said twice"
            problem = Problem("--among", what, value=shown(text), remedy="Write NAME=SITE,SITE")
            raise InvalidInput("analyse", [problem])
        groups[name.strip()] = [site.strip() for site in sites.split(",") if site.strip()]
    return groups


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
