"""`init`, `check`, `node-key`, `join`: a site is made, certified, and joined to a coordinator."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from penstock.base.checks import nearest, shown
from penstock.base.errors import InvalidInput, Problem
from penstock.cli.advice import show_suggestions
from penstock.cli.console import done, emit_json, err, friendly, say
from penstock.privacy.request import DELTA_TIMES_PERSONS
from penstock.processes import certificates
from penstock.processes.confinement import forbid_dumps
from penstock.schema import suggest_for
from penstock.study.toml import Roles, guess_person
from penstock.study.toml.writer import key
from penstock.wire.signatures import fingerprint
from penstock_client.cli.common import AsJson, Reason, SiteDir, open_site
from penstock_client.onboarding.certification import Declared, certify_rows
from penstock_client.onboarding.inspection import inspect_rows, inspect_values, read_dictionary
from penstock_client.onboarding.invite import Invite, accept_invite, check_site, read_invite
from penstock_client.onboarding.kept_recodings import find_recoding
from penstock_client.onboarding.new_site import make_site
from penstock_client.rows.drafts import Outline, outline_source
from penstock_client.rows.validation import Checked
from penstock_client.site.network_paths import NetworkPaths, node_fingerprint
from penstock_client.site.policy import read_policy
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import SEEDED, SiteSettings

MOST_VALUES = 40
MOST_MAPPED = 12
NOBODY = "-"


@friendly
def init(
    name: Annotated[str, typer.Option(help="The site's name in the federation, such as aric-f.")],
    directory: SiteDir = Path(),
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Your rows: the draft takes names and kinds of this file."),
    ] = None,
    codebook: Annotated[
        Path | None,
        typer.Option(help="Your codebook (CSV or TSV): the draft takes all that it says."),
    ] = None,
    person: Annotated[str | None, typer.Option(help="The column that identifies a person.")] = None,
    no_person: Annotated[
        bool, typer.Option("--no-person", help="Each row is a person; no column identifies one.")
    ] = False,
    time: Annotated[
        str | None, typer.Option(help="The column with the time to an event (a duration).")
    ] = None,
    event: Annotated[
        str | None, typer.Option(help="The column that says whether it ended with an event.")
    ] = None,
    leave_out: Annotated[
        list[str] | None, typer.Option(help="A column that is no study's business; again for more.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing: draft what the names suggest.")
    ] = False,
    federation: Annotated[str, typer.Option(help="The federation's name.")] = "main",
    node_key: Annotated[
        Path | None,
        typer.Option(help="The node.pub of a network side that has a user of its own."),
    ] = None,
) -> None:
    """Make a site: the gate's key, an empty ledger, and drafts of dictionary and policy.

    In a terminal it asks what the columns are; elsewhere it drafts what their names suggest.
    """
    forbid_dumps()
    paths = SitePaths(directory.resolve())
    data = source.resolve() if source else None
    given = Roles(person, time, event, tuple(leave_out or ()))
    if no_person and person is not None:
        problem = Problem("--no-person", "says the opposite of --person", remedy="Give one of them")
        raise InvalidInput("site init", [problem])
    if data is not None and not data.exists():
        raise InvalidInput(str(data), [Problem("", "no such file", remedy="Correct --from")])
    roles = given if no_person or given != Roles() else None
    new = not paths.dictionary.exists() and not paths.settings.exists()
    if data is not None and new and not yes and _can_ask():
        roles = ask_roles(outline_source(data), given, no_person=no_person)
    elif roles is not None and data is not None and not no_person and person is None:
        roles = replace(roles, person=guess_person(outline_source(data).guesses))
    make_site(paths, name, federation, data, node_key, codebook, roles)
    done(f"site {name} in {paths.root}")
    say(f"gate fingerprint {fingerprint(paths.gate_public())}")
    say("next: finish dictionary.toml (bounds, levels and the frame are public knowledge, never")
    say("      taken from rows), say in recoding.toml where your file writes it otherwise,")
    say("      edit policy.toml (it allows one mechanism: say which may run),")
    say("      then run `penstock site check`")


def _can_ask() -> bool:
    """Whether somebody is there to answer: nothing may wait for a terminal that is none."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def ask_roles(seen: Outline, given: Roles, *, no_person: bool = False) -> Roles:
    """Ask in the terminal what the columns are; what was given is not asked again.

    Raises:
        InvalidInput: an answer that is no column, or one column in two roles.
    """
    columns = [*seen.guesses]
    say(f"the file's columns: {', '.join(map(shown, columns))}")
    kinds = {name: guess.kind for name, guess in seen.guesses.items()}

    def asked(question: str, suggested: str | None) -> str | None:
        while True:
            hint = suggested if suggested is not None else NOBODY
            answer = str(typer.prompt(f"{question} ({NOBODY}: there is none)", default=hint))
            if answer == NOBODY:
                return None
            if answer in columns:
                return answer
            say(f"{shown(answer)} is no column. {nearest(answer, columns) or ''}")

    person, time, event = given.person, given.time, given.event
    if person is None and not no_person:
        person = asked("Which column identifies a person?", guess_person(columns))
    if time is None:
        found = [name for name, kind in kinds.items() if kind == "duration"]
        time = asked("Which holds the time to an event?", found[0] if len(found) == 1 else None)
    if event is None and time is not None:
        found = [name for name, kind in kinds.items() if kind == "event"]
        event = asked("Which says if it happened?", found[0] if len(found) == 1 else None)
    left_out = given.left_out
    if not left_out:
        answer = typer.prompt("Columns to leave out, with commas between", default=NOBODY)
        left_out = tuple(n.strip() for n in str(answer).split(",") if n.strip() not in ("", NOBODY))
    found_roles = Roles(person, time, event, left_out)
    found_roles.check(columns)
    return found_roles


@friendly
def check(
    directory: SiteDir = Path(),
    accept: Annotated[
        bool, typer.Option("--accept", help="Accept the clamping and mapping that is reported.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report only; certify nothing.")
    ] = False,
    new_data: Annotated[
        bool,
        typer.Option(
            "--new-data",
            help="Declare, after a recovery of the ledger, that no row was in a data set before.",
        ),
    ] = False,
    disjoint: Annotated[
        bool,
        typer.Option(
            "--disjoint", help="Declare that nobody in these rows is in another data set here."
        ),
    ] = False,
    new_frame: Annotated[
        bool,
        typer.Option(
            "--new-frame",
            help="Declare another frame than the data set had so far: everybody sees it change.",
        ),
    ] = False,
    allow_empty: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-empty",
            help="Certify this column although no value of it is known; again for more.",
        ),
    ] = None,
    reason: Reason = "",
    values: Annotated[
        bool,
        typer.Option(
            "--values", help="Show which values lie outside, in this terminal; certify nothing."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check the rows against the dictionary, and certify them for studies.

    What is found is shown here only, as columns and line numbers. Nothing outside depends on it.
    """
    forbid_dumps()
    paths, settings = open_site(directory)
    if values:
        _show_values(paths, settings, as_json=as_json)
        return
    empty = tuple(allow_empty or ())
    checked, _ = inspect_rows(paths, settings, new_frame=new_frame, allow_empty=empty)
    tables = [checked] if checked.public is None else [checked, checked.public]
    standing = [one for one in tables if one.standing(accept=accept)]
    if settings.insecure_seed is not None:
        err.print("  !", SEEDED, markup=False)
    if not as_json:
        _show_findings(checked)
        if checked.public is not None:
            _show_public(settings, checked.public)
        show_suggestions(checked.dictionary)
        _warn_of_delta(paths, checked.persons or 0)
    version = None
    if not (dry_run or standing):
        declared = Declared(disjoint, new_data, new_frame, reason)
        version = certify_rows(paths, settings, checked, accept=accept, declared=declared)
    if as_json:
        emit_json(
            {
                "rows": checked.rows,
                "counted": checked.counted,
                "persons": checked.persons,
                "findings": [asdict(f) for f in checked.findings],
                "suggestions": [asdict(s) for s in suggest_for(checked.dictionary)],
                "unused": list(checked.unused),
                "without": checked.without,
                "public": checked.public
                and {
                    "rows": checked.public.rows,
                    "findings": [asdict(f) for f in checked.public.findings],
                    "unused": list(checked.public.unused),
                },
                "version": version,
            }
        )
    elif version is not None:
        done(f"certified as version {version} of {settings.lineage}; public n = {checked.persons}")
        say(f"{paths.join} is what the coordinator enrols")
    if dry_run:
        raise typer.Exit(2 if any(one.fatal for one in tables) else 0)
    if standing:
        what = "add --accept to clamp and map as said, or correct the file"
        listed = [finding for one in standing for finding in one.standing(accept=accept)]
        if any(one.fatal for one in standing):
            what = "correct what is marked ✗, in the file or in dictionary.toml"
            listed = [finding for finding in listed if finding.fatal]
        problem = Problem("", f"nothing was certified: {what}")
        raise InvalidInput(standing[0].source, [problem], count=len(listed))


def _warn_of_delta(paths: SitePaths, persons: int) -> None:
    """A δ that is no small chance any more among so many persons."""
    try:
        policy = read_policy(paths.policy)
    except InvalidInput:
        return  # certification says what is wrong with it
    if persons and policy.total_delta * persons > DELTA_TIMES_PERSONS * (1 + 1e-9):
        err.print(
            f"  ! total_delta = {policy.total_delta:g} in policy.toml is above 1/(10 n): at most "
            f"{DELTA_TIMES_PERSONS / persons:.2g} for {persons} persons is advised",
            markup=False,
        )


def _show_findings(checked: Checked) -> None:
    columns = len(checked.dictionary.columns)
    say(f"{checked.rows} rows, {checked.counted} persons, {columns} columns")
    say(f"public n = {checked.persons}, the declared frame; how many there are stays here")
    if checked.persons == checked.counted:
        what = "the frame is exactly the count: right only if that number was public beforehand"
        err.print("  !", what, markup=False)
    if checked.unused:
        err.print("  not in the dictionary:", ", ".join(checked.unused), markup=False)
    for finding in checked.findings:
        err.print("  ✗" if finding.fatal else "  !", str(finding), markup=False)
    if checked.without:
        what = f"{checked.without} of {checked.counted} persons would contribute nothing"
        err.print("  !", f"{what} to a study of all columns", markup=False)
    if checked.findings:
        err.print("    which values lie outside, --values shows you, in a terminal only")


def _show_public(settings: SiteSettings, public: Checked) -> None:
    """What was found in the public table, which is fitted in place of the rows."""
    how = settings.public_recoding or "the dictionary's own words"
    say(f"public table {settings.public_data}, by {how}: {public.rows} rows")
    if public.unused:
        err.print("  not in the dictionary:", ", ".join(public.unused), markup=False)
    for finding in public.findings:
        err.print("  ✗" if finding.fatal else "  !", str(finding), markup=False)
    if public.findings and not settings.public_recoding:
        what = "says it otherwise? public_recoding in site.toml names a recoding of this table"
        err.print("   ", what, markup=False)


def _show_values(paths: SitePaths, settings: SiteSettings, *, as_json: bool) -> None:
    """Values of rows, for the steward's own eyes: in a terminal, and nowhere else."""
    if as_json or not sys.stdout.isatty():
        remedy = "Leave --json, pipes and files out"
        problem = Problem("--values", "shows values of rows in a terminal only", remedy=remedy)
        raise InvalidInput("site check", [problem])
    found = inspect_values(paths, settings)
    for column, outside in found.items():
        total = sum(count for _, count in outside)
        say(f"{column}: {total} outside, {len(outside)} different")
        for value, count in outside[:MOST_VALUES]:
            say(f"  {count} × {shown(value)}")
        if len(outside) > MOST_VALUES:
            say(f"  and {len(outside) - MOST_VALUES} more")
        for line in _recoding_to_write(paths, column, [value for value, _ in outside]):
            say(f"    {line}")
    if not found:
        say("no value lies outside")
    say("these are values of rows: nothing of them was written anywhere, nor certified")


def _recoding_to_write(paths: SitePaths, name: str, values: Sequence[str]) -> list[str]:
    """Lines for recoding.toml, with blanks for the steward; none where there are no levels."""
    column = read_dictionary(paths).schema[name]
    if not column.levels or not 0 < len(values) <= MOST_MAPPED:
        return []
    if not all(value.isprintable() and value.isascii() for value in values):
        return []
    blanks = ", ".join(f'{key(value)} = ""' for value in values)
    return [
        f"in recoding.toml, with one of {', '.join(column.levels)} for each:",
        f"[columns.{key(name)}]",
        f"values = {{ {blanks} }}",
    ]


@friendly
def recoding(
    version: Annotated[
        int | None, typer.Argument(help="Of the data set; the newest if not given.")
    ] = None,
    lineage: Annotated[
        str | None, typer.Option(help="Another data set than the one in site.toml.")
    ] = None,
    directory: SiteDir = Path(),
    as_json: AsJson = False,
) -> None:
    """By which recoding a version was made: the text of recoding.toml as it was certified by.

    It stays at the site. Versions, and who certified them, are in `penstock site ledger decisions`.
    """
    paths, settings = open_site(directory)
    found = find_recoding(paths, lineage or settings.lineage, version)
    if as_json:
        emit_json(asdict(found))
        return
    when = found.time[:16].replace("T", " ")
    what = f"{found.lineage} version {found.version}, certified {when} UTC"
    if found.text is None:
        say(f"{what}: there was no recoding.toml, and columns were read as they are")
        return
    err.print(f"{what}, by this recoding.toml:", markup=False)
    sys.stdout.write(found.text)


@friendly
def node_key(
    directory: Annotated[Path, typer.Argument(help="The network side's directory, to be made.")],
) -> None:
    """Make a directory and a key for a network side that runs as a user of its own.

    Give its node.pub to `penstock site init --node-key`.
    """
    network = NetworkPaths(directory.resolve())
    network.make()
    line = network.make_key()
    done(f"{network.node_public} goes to `penstock site init --node-key`")
    say(f"node fingerprint {node_fingerprint(line)}")


@friendly
def join(
    invite: Annotated[Path, typer.Argument(help="The invite that the coordinator sent back.")],
    directory: SiteDir = Path(),
    network: Annotated[
        Path | None,
        typer.Option(help="The network side's directory, where it has a user of its own."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Accept another CA than the one that is pinned.")
    ] = False,
) -> None:
    """Join a coordinator by its invite; then compare the CA's fingerprint over the phone."""
    found = read_invite(invite)
    target = NetworkPaths(network.resolve() if network else directory.resolve() / "network")
    checked = _check_invite(found, invite, directory, alone=network is not None)
    accept_invite(found, target, what=str(invite), replace=replace)
    done(f"{found.site} has joined {found.federation} at {found.address}")
    if not checked:
        say(f"compare with the steward: gate fingerprint {found.gate_fingerprint}")
    say("compare by voice with the coordinator, before you start:")
    say(f"  CA fingerprint {certificates.fingerprint(found.ca)}")


def _check_invite(found: Invite, invite: Path, directory: Path, *, alone: bool) -> bool:
    """Compare an invite with the site; false where a network user cannot see one."""
    if alone and not SitePaths(directory.resolve()).settings.exists():
        return False
    paths, settings = open_site(directory)
    check_site(found, paths, settings, what=str(invite))
    return True
