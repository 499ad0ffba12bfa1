"""What sites say of themselves in public: from their join.json files, or from a coordinator."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from penstock.analyst import connect
from penstock.base.checks import Checks, within
from penstock.base.documents import Json, JsonView
from penstock.base.errors import InvalidInput, Problem
from penstock.base.files import reading_named
from penstock.schema import Schema, compare
from penstock.study.scope import GLOBAL, Scope, choose_tolerance
from penstock.study.study import Study
from penstock.wire.canonical import read_json

REMEDY = "Give a site's join.json, which `penstock site check` writes in the site's directory"

Joins = Annotated[
    list[Path] | None,
    typer.Option("--join", help="A site's join.json, for its persons and columns; repeat it."),
]


@dataclass(frozen=True, slots=True)
class Join:
    """A site's public facts.

    Args:
        persons: its declared frame; key: its gate's, in hex; federation: empty where not said.
        schema: of its dictionary; None where not said.
    """

    site: str
    persons: int
    key: str
    federation: str = ""
    schema: Schema | None = None


def read_joins(paths: Sequence[Path]) -> dict[str, Join]:
    """The sites whose join.json files these are, by name.

    Raises:
        InvalidInput: not such a file, or one site twice.
    """
    found: dict[str, Join] = {}
    for path in paths:
        record = read_record(path)
        join = _read_facts(record, str(path), str(record.get("site", path.name)))
        if join.site in found:
            raise InvalidInput(str(path), [Problem("site", "is given twice", value=join.site)])
        found[join.site] = join
    return found


def read_record(path: Path) -> Json:
    """A join.json as it was parsed.

    Raises:
        InvalidInput: it is not there, or no such file.
    """
    with reading_named(path, REMEDY):
        data = path.read_bytes()
    try:
        return read_json(data, what=str(path), limit=10_000_000)
    except InvalidInput as error:
        problems = [replace(problem, remedy=REMEDY) for problem in error.problems]
        raise InvalidInput(str(path), problems) from None


def fetch_joins(coordinator: str | None, federation: str) -> dict[str, Join]:
    """The sites of a federation that a coordinator has enrolled, by name.

    Nothing rests on what it says: a site refuses another frame or key than its own, and other
    sites' keys than those which its steward has pinned.

    Raises:
        InvalidInput: it has none of this federation.
    """
    records = connect(coordinator).sites()
    joins = [_read_facts(record, "coordinator", str(record.get("site"))) for record in records]
    found = {join.site: join for join in joins if join.federation == federation}
    if not found:
        bound = f"one of {', '.join(sorted({join.federation for join in joins})) or 'none'}"
        problem = Problem(
            "--federation", "no site of it is enrolled there", value=federation, bound=bound
        )
        raise InvalidInput("study new", [problem])
    return found


def _read_facts(record: JsonView, what: str, site: str) -> Join:
    persons = record.get("persons")
    if isinstance(persons, bool) or not isinstance(persons, int) or not persons >= 1:
        raise InvalidInput(what, [Problem("persons", "is missing", remedy=REMEDY)])
    key, federation = str(record.get("gate_key", "")), str(record.get("federation", ""))
    held = record.get("dictionary")
    try:
        schema = None if held is None else Schema.from_dict(held)
    except InvalidInput as error:
        raise InvalidInput(what, within("dictionary", error.problems)) from None
    return Join(site, persons, key, federation, schema)


def count_persons(joins: Mapping[str, Join]) -> dict[str, int]:
    """The public n of each site, by its name."""
    return {site: join.persons for site, join in joins.items()}


def gather(joins: Mapping[str, Join], sites: Sequence[str], federation: str, noise: str) -> Scope:
    """One release of these sites.

    Raises:
        InvalidInput: of a site nothing is known, or it is in another federation.
    """
    check = Checks("study new")
    for site in sites:
        if site not in joins:
            known = f"known: {', '.join(joins) or 'none'}"
            check.add("--site", "nothing is known of it", value=site, bound=known, remedy=REMEDY)
        elif joins[site].federation not in ("", federation):
            where, there = f"--join {site}", joins[site].federation
            check.add(where, "is of another federation", value=there, bound=federation)
    check.done()
    chosen = [joins[site] for site in sites]
    dropouts, colluders = choose_tolerance(len(chosen), noise)
    persons = tuple((join.site, join.persons) for join in chosen)
    keys = tuple((join.site, join.key) for join in chosen)
    return Scope(GLOBAL, dropouts, colluders, persons, keys, noise)


def compare_joins(study: Study, joins: Collection[Join]) -> list[Problem]:
    """What these sites would refuse: columns that they do not have so, and of one release what
    they do not say of themselves."""
    scope, check = study.aggregation, Checks("study")
    for join in joins:
        if join.schema is not None and join.site in study.sites:
            found = compare(study.schema, join.schema)
            check.problems += [replace(p, where=f"{join.site}: {p.where}") for p in found]
    if not scope.adds:
        return check.problems
    persons, keys = dict(scope.persons), dict(scope.keys)
    for join in joins:
        if join.site not in persons:
            continue
        where, said = f"aggregation.persons.{join.site}", persons[join.site]
        if said != join.persons:
            bound = f"{join.persons}, in its join.json"
            check.add(where, "is not what the site declared", value=str(said), bound=bound)
        if keys[join.site] != join.key:
            where = f"aggregation.keys.{join.site}"
            check.add(where, "is not the key of the site's gate", bound=f"{join.key[:16]}…")
    return check.problems
