"""What `site check` finds in a site's rows, and in its public table; nothing is written."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import replace

from penstock.base.errors import InvalidInput, LedgerError, Problem
from penstock.schema import Schema
from penstock.study.toml import (
    DictionaryFile,
    parse_dictionary,
    read_file,
)
from penstock.wire.signatures import private_to_pem
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database
from penstock_client.rows.findings import Finding
from penstock_client.rows.recoding import NOTHING_RECODED, Recoding
from penstock_client.rows.recoding_file import parse_recoding
from penstock_client.rows.sources.registry import SOURCES, Registry
from penstock_client.rows.sources.source import read_batches
from penstock_client.rows.validation import Checked, check_rows, find_outside_values
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import SiteSettings


def inspect_rows(
    paths: SitePaths,
    settings: SiteSettings,
    *,
    new_frame: bool = False,
    allow_empty: Collection[str] = (),
    sources: Registry = SOURCES,
) -> tuple[Checked, DictionaryFile]:
    """Validate the rows, the declared frame and a public table; writes nothing.

    Args:
        sources: the kinds of sources that rows may lie in.
        new_frame: the steward declares another frame than the data set had so far.
        allow_empty: columns that may be without a single known value.

    Raises:
        InvalidInput: dictionary or a recoding has problems, or a file cannot be read.
    """
    before = find_frame(paths, settings.lineage)
    dictionary = read_dictionary(paths, before)
    recoding = read_recoding(paths, dictionary.schema)
    source = sources.open(sources.locate(paths.root, settings.data), recoding.layout)
    checked = check_rows(
        read_batches(source),
        dictionary.schema,
        persons=dictionary.persons,
        others=dictionary.others,
        recoding=recoding,
        allow_empty=allow_empty,
        secret=private_to_pem(paths.key()),
    )
    checked = replace(checked, source=source.name)
    checked = replace(checked, public=_check_public(paths, settings, checked, allow_empty, sources))
    if before not in (None, dictionary.persons) and not new_frame:
        message = f"persons = {dictionary.persons}, and {settings.lineage} has a frame of {before}"
        remedy = (
            f"Write persons = {before}; or, if the frame itself is another one, add --new-frame, "
            "knowing that everybody sees it change."
        )
        other = Finding("", message, fatal=True, remedy=remedy)
        checked = replace(checked, findings=(other, *checked.findings))
    return checked, dictionary


def inspect_values(
    paths: SitePaths, settings: SiteSettings, *, sources: Registry = SOURCES
) -> dict[str, list[tuple[str, int]]]:
    """Which values lie outside levels and bounds, by column, with how often: VALUES OF ROWS.

    Raises:
        InvalidInput: the dictionary has problems, or the file cannot be read.
    """
    dictionary = read_dictionary(paths, find_frame(paths, settings.lineage))
    recoding = read_recoding(paths, dictionary.schema)
    source = sources.open(sources.locate(paths.root, settings.data), recoding.layout)
    return find_outside_values(read_batches(source), dictionary.schema, recoding)


def find_frame(paths: SitePaths, lineage: str) -> int | None:
    """The frame of a data set's versions so far; None where there is none, or nobody can look.

    Certified before frames were declared, it is the count of ids that was published then.
    """
    with contextlib.suppress(LedgerError):  # told when rows are certified, and mended there
        database = Database(paths.database, read_only=True)
        try:
            found = Ledger(database, None).state().lineages.get(lineage)
            return found.versions[-1].persons if found and found.versions else None
        finally:
            database.close()
    return None


def read_dictionary(paths: SitePaths, frame: int | None = None) -> DictionaryFile:
    """The dictionary that the steward wrote.

    Args:
        frame: the frame of the data set so far, to be told where the dictionary declares none.

    Raises:
        InvalidInput: missing, a draft that nobody finished, or with every problem and its line.
    """
    try:
        return parse_dictionary(read_file(paths.dictionary), framed=True)
    except FileNotFoundError:
        remedy = "Write it; `penstock site init --from DATA` drafts one"
        problems: tuple[Problem, ...] = (Problem("", "no such file", remedy=remedy),)
    except InvalidInput as error:
        problems = error.problems
    if frame is not None:
        stays = f"Add persons = {frame}: this data set was certified with it, and it stays"
        problems = tuple(replace(p, remedy=stays) if p.where == "persons" else p for p in problems)
    raise InvalidInput(str(paths.dictionary), problems)


def read_recoding(paths: SitePaths, dictionary: Schema) -> Recoding:
    """The recoding that the steward wrote; without one, columns are read as they are.

    Raises:
        InvalidInput: with every problem and its line.
    """
    try:
        text = read_file(paths.recoding)
    except FileNotFoundError:
        return NOTHING_RECODED
    return parse_recoding(text, dictionary, str(paths.recoding))


def _check_public(
    paths: SitePaths,
    settings: SiteSettings,
    checked: Checked,
    allow_empty: Collection[str],
    sources: Registry,
) -> Checked | None:
    """The public table, if there is one, against the same dictionary.

    The site's own recoding is never taken for it: it is about one file, and would turn codes that
    are right in another one into other codes, without a word. A public table has a recoding of its
    own, which may be the same file, or the dictionary's words; what is in neither is found.
    """
    if not settings.public_data:
        if settings.public_recoding:
            remedy = "Remove it, or name the table in public_data"
            problem = Problem("public_recoding", "is about no table", remedy=remedy)
            raise InvalidInput(str(paths.settings), [problem])
        return None
    place = sources.locate(paths.root, settings.public_data)
    if sources.open(place).is_same(sources.open(sources.locate(paths.root, settings.data))):
        problem = Problem("public_data", "is the private file", remedy="Name a public table")
        raise InvalidInput(str(paths.settings), [problem])
    recoding, said_in = NOTHING_RECODED, "a file that public_recoding names in site.toml"
    if settings.public_recoding:
        said_in = settings.public_recoding
        path = paths.root / said_in
        recoding = parse_recoding(read_file(path), checked.dictionary, str(path))

    def named(text: str) -> str:
        return text.replace("recoding.toml", said_in)

    source = sources.open(place, recoding.layout)
    try:
        found = check_rows(
            read_batches(source),
            checked.dictionary,
            others=checked.others,
            recoding=recoding,
            allow_empty=allow_empty,
        )
    except InvalidInput as error:
        problems = [replace(p, remedy=named(p.remedy or "") or None) for p in error.problems]
        raise InvalidInput(error.what, problems) from None
    findings = [
        replace(f, message=named(f.message), remedy=named(f.remedy)) for f in found.findings
    ]
    return replace(found, findings=tuple(findings), source=source.name)
