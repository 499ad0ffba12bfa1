"""`ledger what-if`: what could still be asked, and what it would buy."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from penstock.base.checks import Checks
from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, Problem
from penstock.base.times import stamp_now
from penstock.cli.console import emit_json, friendly, number, say, table
from penstock.mechanisms.protocol import Asked
from penstock.mechanisms.registry import MECHANISMS
from penstock.privacy.request import PrivacyRequest
from penstock.study.toml import parse_dictionary, parse_study, read_file
from penstock_client.cli.common import AsJson, SiteDir, open_site
from penstock_client.cli.reading import read_ledger
from penstock_client.gate.facts import locate_dictionary
from penstock_client.ledger import prospects, whatif
from penstock_client.ledger.prospects import PLAIN_NUMBER
from penstock_client.site.policy import read_policy
from penstock_client.site.signers import Signer, Trust, read_trust
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import SiteSettings

_PRICED = tuple(m.name for m in MECHANISMS.values() if m.priced_alone)
"""What needs no more than a dictionary to be priced: mechanisms for tables."""


def _describe_option(setting: str, what: str) -> str:
    """What an option is, after the mechanisms that have it."""
    whose = [name for name in _PRICED if setting in MECHANISMS[name].notes]
    return f"{'Of a table' if len(whose) == len(_PRICED) else ', '.join(whose)}: {what}"


def _name_kind(mechanism: str) -> str:
    """What is released, in words."""
    if mechanism == PLAIN_NUMBER:
        return "one noisy number"
    return f"{MECHANISMS[mechanism].product} ({mechanism})"


@friendly
def what_if(
    epsilon: Annotated[float | None, typer.Option(help="ε that is asked; 1 if not given.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="Its δ; the largest of a study if not given.")
    ] = None,
    mechanism: Annotated[
        str,
        typer.Option(
            help=f"{PLAIN_NUMBER}: one noisy number; {' or '.join(_PRICED)}: a synthetic table. "
            "Others need a --study."
        ),
    ] = PLAIN_NUMBER,
    study: Annotated[
        Path | None, typer.Option(help="Price this study file, instead of the options here.")
    ] = None,
    signer: Annotated[
        str | None, typer.Option(help="Who would sign: a label, a fingerprint or a key.")
    ] = None,
    releases: Annotated[int, typer.Option(help="How many such releases are wanted.")] = 1,
    copies: Annotated[
        int | None, typer.Option(help=_describe_option("copies", "synthetic copies."))
    ] = None,
    w: Annotated[
        float | None, typer.Option(help=_describe_option("w", "share of the rows' own latents."))
    ] = None,
    latent_clip: Annotated[
        float | None, typer.Option(help=_describe_option("latent_clip", "radius of the latents."))
    ] = None,
    steps: Annotated[int | None, typer.Option(help=_describe_option("steps", "steps."))] = None,
    sampling: Annotated[
        str | None, typer.Option(help=_describe_option("sampling", "full, or poisson."))
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help=_describe_option("rate", "Poisson sampling rate."))
    ] = None,
    directory: SiteDir = Path(),
    as_json: AsJson = False,
) -> None:
    """What could still be asked for, and what it would buy. Nothing is charged.

    Says by which limit a release would be refused, how many such releases still fit, and the
    largest ε that does.
    """
    given = {
        "copies": copies,
        "w": w,
        "latent_clip": latent_clip,
        "steps": steps,
        "sampling": sampling,
        "rate": rate,
    }
    options = {k: v for k, v in given.items() if v is not None}
    _check_options(mechanism, study, epsilon is not None or delta is not None, options)
    paths, settings = open_site(directory)
    state, policy, trust = read_ledger(paths)[1], read_policy(paths.policy), read_trust(paths.trust)
    by = None if signer is None else prospects.find_signer(trust, signer)
    persons = whatif.find_lineage(state, settings.lineage).versions[-1].persons
    if study is not None:
        prospect = _price_file(study, persons, _read_machine(paths, settings), by)
    else:
        largest = min(policy.study_delta, policy.largest_delta(persons))
        asked = PrivacyRequest(
            1.0 if epsilon is None else epsilon, largest if delta is None else delta
        )
        if mechanism == PLAIN_NUMBER:
            prospect = prospects.price_number(asked.epsilon, asked.delta, by)
        else:
            made = MECHANISMS.read(MECHANISMS.complete({"name": mechanism, **options}))
            machine = _read_machine(paths, settings)
            priced = Asked(made, machine.dictionary, asked)
            prospect = prospects.price_release(priced, persons, machine, signer=by)
    now = max(stamp_now(), state.time)
    found = whatif.answer_prospect(
        prospect, state, policy, settings.lineage, now=now, releases=releases
    ) | {"signer_known": by is not None or not trust.signers}
    if as_json:
        emit_json(found)
    else:
        _show(found, trust)


def _check_options(
    mechanism: str, study: Path | None, priced: bool, tuned: Collection[str]
) -> None:
    check = Checks("ledger what-if")
    check.choice("--mechanism", mechanism, (PLAIN_NUMBER, *_PRICED))
    if study is not None and (priced or tuned or mechanism != PLAIN_NUMBER):
        check.add("--study", "says everything but --signer and --releases itself")
    elif tuned and mechanism == PLAIN_NUMBER:
        have = [name for name in _PRICED if MECHANISMS[name].notes.keys() >= set(tuned)]
        remedy = f"Add --mechanism {have[0]}" if have else "No mechanism has all of them"
        check.add("", "these options are of another mechanism", remedy=remedy)
    check.done()


def _read_machine(paths: SitePaths, settings: SiteSettings) -> prospects.Machine:
    """The columns as certified, and what a run may have, as an admission takes them."""
    path = locate_dictionary(paths)
    if not path.exists():
        remedy = "Run `penstock site check`"
        raise InvalidInput("ledger what-if", [Problem("", "not certified yet", remedy=remedy)])
    dictionary = parse_dictionary(read_file(path)).schema
    return prospects.Machine(dictionary, settings.memory_gb, settings.threads)


def _price_file(
    path: Path, persons: int, machine: prospects.Machine, signer: Signer | None
) -> prospects.Prospect:
    try:
        return prospects.price_study(parse_study(read_file(path)), persons, machine, signer)
    except InvalidInput as error:
        raise InvalidInput(str(path), error.problems) from None


# -- for people --------------------------------------------------------------------------------


def _show(found: Json, trust: Trust) -> None:
    asked = found["asked_epsilon"]
    price = f"ε = {number(asked)} at δ = {found['delta']:g}, {_name_kind(found['mechanism'])}"
    verdict = "would be admitted" if found["admitted"] else "would be refused"
    say(f"{found['lineage']}: {price}: {verdict}; nothing was charged")
    for refusal in found["refusals"]:
        say(f"  {refusal['reason']}: {refusal['why']}")
    if alone := found.get("alone_epsilon"):
        say(
            f"  distributed: ε = {number(alone)} if all other sites collude; the policy allows "
            f"{number(found['alone_allowed'])}"
        )
    if found["ends_formal_budget"]:
        say("  it has NO formal guarantee, and ends the data set's formal budget")
    if found["limits"]:
        rows = [
            (
                row["limit"],
                f"{row['epsilon']:g}",
                number(row["spent_epsilon"]),
                number(row["after_epsilon"]),
                _tell_count(row["more"]),
            )
            for row in found["limits"]
        ]
        table("", ("limit", "ε", "spent", "after", "such releases still fit"), rows)
    if asked is None:
        return
    _show_releases(found)
    largest = found["largest_epsilon"]
    by = f", by {found['largest_limit']}" if found["largest_limit"] else ""
    shown = _round_down(largest) if largest else "none"
    say(f"the largest ε of this kind that fits now: {shown}{by}")
    if found["signer"] is None and trust.signers:
        say(f"no signer's allowance was looked at: --signer {' or '.join(_list_labels(trust))}")
    _show_noise(found, asked)


def _show_releases(found: Json) -> None:
    wanted, left = found["releases"], _tell_count(found["releases_left"])
    if wanted > 1:
        fit = "fit" if found["releases_fit"] else "do not fit"
        say(f"{wanted} such releases {fit}; {left} would, from now on")
    yearly = [r for r in found["limits"] if r["reason"] == "yearly-budget"]
    life = [r for r in found["limits"] if r["reason"] != "yearly-budget"]
    counts = [r["more"] for r in life if r["more"] is not None]
    if yearly and found["admitted"]:
        say(f"this year {left}, and {_tell_count(min(counts, default=None))} over all years")


def _show_noise(found: Json, asked: float) -> None:
    sd, share = found["buys"]["count_sd"], found["buys"]["share_sd"]
    say(
        f"what ε = {number(asked)} buys, all of it spent on one count: noise of sd {sd:.3g}, "
        f"within ±{1.96 * sd:.3g} in 95 of 100"
    )
    persons = found["persons"]
    say(f"  as a share of the frame's {persons} persons: sd {100 * share:.3g} percentage points")
    for event in found["events"]:
        if found["mechanism"] != PLAIN_NUMBER and "noise_multiplier" in event:
            times = f", {event['count']} times" if event["count"] > 1 else ""
            rate = f", on a sample of {event['rate']:.3g}" if "rate" in event else ""
            noise = f"noise multiplier {event['noise_multiplier']:.4g}"
            say(f"  {event['label'] or event['kind']}: {noise}{times}{rate}")


def _list_labels(trust: Trust) -> list[str]:
    return [s.label for s in trust.signers.values()]


def _tell_count(count: int | None) -> str:
    return f"over {whatif.MOST_RELEASES:,}" if count is None else str(count)


def _round_down(value: float) -> str:
    """Three digits, rounded down: what is said must fit."""
    from decimal import ROUND_DOWN, Context, Decimal

    return f"{Context(prec=3, rounding=ROUND_DOWN).create_decimal(Decimal(value)):f}"
