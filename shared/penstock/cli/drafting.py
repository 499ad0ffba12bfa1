"""`penstock study new`: a draft to edit, of one release of each site or of all together."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from penstock.base.checks import Checks
from penstock.base.errors import InvalidInput, PenstockError
from penstock.base.times import stamp_seconds, utc_now
from penstock.cli.console import done, friendly, say, table
from penstock.cli.joins import count_persons, fetch_joins, gather, read_joins
from penstock.cli.study_reading import read_schema
from penstock.mechanisms.joint.consortium import LOCAL, NOISES, SHARED
from penstock.mechanisms.registry import MECHANISMS
from penstock.privacy.request import advised_delta
from penstock.study.scope import BOTH, EACH, Scope
from penstock.study.toml import draft_study, mechanism_for, parse_study, question_for
from penstock.study.toml.templates import DEADLINE_HOURS
from penstock.wire.signatures import fingerprint

TIMED = ", ".join(m.name for m in MECHANISMS.values() if m.takes_time)
"""Mechanisms that look at when a row was taken."""


@friendly
def new(
    source: Annotated[
        Path, typer.Argument(help="A dictionary.toml, or a site's join.json, with the columns.")
    ],
    name: Annotated[str, typer.Option(help="A short name, such as sbp-cvd.")],
    site: Annotated[
        list[str] | None,
        typer.Option(
            "--site",
            help="A site to invite; repeat it. With --global: all that --join or the coordinator "
            "names, if not given.",
        ),
    ] = None,
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
        bool,
        typer.Option(
            "--global",
            help="One release of all sites, from sums of which nobody sees a site's part.",
        ),
    ] = False,
    both: Annotated[
        bool,
        typer.Option(
            "--both",
            help="--global: and a release of each site's own beside it, for half of the budget.",
        ),
    ] = False,
    joins: Annotated[
        list[Path] | None,
        typer.Option(
            "--join",
            help="--global: a site's join.json, for its frame and its gate's key; repeat it. "
            "Without any, the coordinator's list of sites is taken.",
        ),
    ] = None,
    coordinator: Annotated[
        str | None,
        typer.Option(
            "--coordinator",
            "-c",
            envvar="PENSTOCK_COORDINATOR",
            help="--global: whose list of sites is taken; your login if not given.",
        ),
    ] = None,
    noise: Annotated[
        str,
        typer.Option(
            help="--global: shared, each site adds a share, and sites trust each other; or local, "
            "each adds all of it, and nobody need be trusted."
        ),
    ] = SHARED,
) -> None:
    """Draft a study from a dictionary: a commented file to edit.

    Each site makes a release of its own rows, and the coordinator pools them.
    With --global all sites make one together: they add up, and rare events,
    small sites and many columns keep far more, since noise is added once and
    not at each site. What it takes: two sites, or four if one may drop out,
    whose stewards have pinned each other's gates (`penstock site peers add`); a
    mechanism that is made of sums (scoring, structured, sliced-wasserstein,
    trajectory); and sites that are there for some minutes at the same time.
    With --both as well, sites make their own releases, too, for a share of the
    same budget: estimates of each site, beside the narrower one of all.
    """
    if out.exists():
        raise PenstockError("a file exists there already", value=out, remedy="choose --out")
    check = Checks("study new")
    check.number("--deadline-days", deadline_days, "above 0, at most 365", above=0, most=365)
    check.choice("--noise", noise, NOISES)
    if not together and (joins or noise != SHARED):
        check.add("--global", "is missing: --join and --noise are of one release of all sites")
    if both and not together:
        check.add("--both", "is of --global, which is missing")
    if not together and not site:
        check.add("--site", "is missing", remedy="Name a site to invite; repeat it")
    check.done()
    moment = utc_now().replace(microsecond=0)
    schema = read_schema(source)
    chosen = mechanism_for(mechanism, schema, time)
    used = MECHANISMS.of(chosen)
    aggregation, sites = EACH, tuple(site or ())
    persons = count_persons(read_joins([source])) if source.suffix == ".json" else {}
    if together:
        known = read_joins(joins) if joins else fetch_joins(coordinator, federation)
        sites = sites or tuple(known)
        aggregation = gather(known, sites, federation, noise)
        aggregation = replace(aggregation, scope=BOTH) if both else aggregation
        persons = dict(aggregation.persons)
    text = draft_study(
        schema,
        name=name,
        delta=advised_delta(max(persons.values(), default=1)),
        sites=sites,
        federation=federation,
        not_before=stamp_seconds(moment),
        # A site answers until then; room to edit and sign comes before the deadline's days.
        expires=stamp_seconds(moment + timedelta(days=max(30.0, deadline_days + 16))),
        deadline_hours=24 * deadline_days,
        # Of one release all sites but those that may drop out are needed.
        quorum=len(sites) - aggregation.dropouts if together else None,
        mechanism=chosen,
        # Only a study with a question can ask for an answer instead of tables.
        estimands=(question_for(schema),) if used.answers else (),
        aggregation=aggregation,
    )
    if together:
        _require_joint(text)
    out.write_text(text, encoding="utf-8")
    done(f"{out}: edit the estimands and the privacy asked for, then `penstock study check`")
    if time is None and (guessed := used.guessed(chosen)):
        say(f"  {guessed}")
    if together:
        _show_sites(aggregation)


def _require_joint(text: str) -> None:
    """Refuse at once what no site would answer together with others.

    Raises:
        InvalidInput: with every problem; the draft has no file yet, and so no lines.
    """
    try:
        parse_study(text)
    except InvalidInput as error:
        raise InvalidInput("study new", [replace(p, line=None) for p in error.problems]) from None


def _show_sites(scope: Scope) -> None:
    """Who adds up, and what stewards have to do for it."""
    keys = dict(scope.keys)
    rows = [(site, str(persons), fingerprint(keys[site])) for site, persons in scope.persons]
    table("one release of", ("site", "persons", "its gate's fingerprint"), rows)
    if scope.noise == LOCAL:
        say("each site adds the whole noise: stewards need not pin each other's gates")
        return
    say("each steward pins the other sites' gates, with these fingerprints compared by voice:")
    say("  penstock site peers add SITE/join.json …")
