"""Making a site, certifying its rows, and the public file that the coordinator enrols."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.base.checks import NAME, NAME_BOUND, SITE, SITE_BOUND, Checks
from penstock.base.errors import InvalidInput, LedgerError, PenstockError, Problem
from penstock.schema import Schema
from penstock.study.toml import (
    FRAME,
    Codebook,
    DictionaryFile,
    Roles,
    dictionary_draft,
    dictionary_toml,
    parse_dictionary,
    read_codebook,
    read_file,
)
from penstock.study.toml.writer import value
from penstock.wire.canonical import canonical
from penstock.wire.messages import SERVED_MAJORS, WIRE_VERSION
from penstock.wire.signatures import fingerprint, generate_key, private_to_pem, public_hex
from penstock_client.gate.facts import certified_dictionary
from penstock_client.gate.recovery import STOPPED, find
from penstock_client.ledger.database import Database, exclusive
from penstock_client.ledger.decisions import Who, check_reason, opened
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.state import State, Unit
from penstock_client.onboarding import recoded
from penstock_client.rows.drafts import Seen, look_at
from penstock_client.rows.findings import Finding
from penstock_client.rows.identities import Identities, keep, load
from penstock_client.rows.recoding import NOTHING_RECODED, Recoding, parse_recoding
from penstock_client.rows.snapshot import keyed_fingerprint, path_of, save, to_bytes
from penstock_client.rows.sniffer import sniff
from penstock_client.rows.sources import SEPARATORS, read_batches, read_text
from penstock_client.rows.validation import Checked, check, outside_values, require_clean
from penstock_client.site.files import write_atomic
from penstock_client.site.network_side import NetworkPaths, read_public_line
from penstock_client.site.paths import SitePaths, SiteSettings
from penstock_client.site.policy import TEMPLATE, read_policy

SETTINGS_TEMPLATE = """\
# Where this site's data lie. What may be asked of them is in policy.toml.
name = {name}
federation = {federation}
data = {data}
# The data set's name in the ledger, for good. A corrected file and new rows stay in the same
# lineage: what was spent on these persons is never reset, under this name or another.
lineage = "main"

# memory_gb = 8.0       # the worker's limit
# threads = 1
# device = "auto"       # cpu, cuda, or auto
# public_data = ""      # a PUBLIC table with the same columns, for public-flow releases
# public_recoding = ""  # how that table says them, as recoding.toml does of yours; may be that file
"""

MAX_CODEBOOK_BYTES = 20_000_000


def init(
    paths: SitePaths,
    name: str,
    federation: str,
    data: Path | None,
    node_public: Path | None = None,
    codebook: Path | None = None,
    roles: Roles | None = None,
) -> None:
    """Make a site: directories, the gate's key, an empty ledger, and drafts to edit.

    A dictionary, a recoding or a policy that lies there already is kept.

    Args:
        roles: what the steward said of the columns; of none, what their names suggest is drafted.
        data: the site's rows; of them the draft has the columns' names and kinds, and no value.
        codebook: a table (CSV or TSV) of what the columns are; the draft has all that it says.
        node_public: the node.pub of a network side that has a user of its own; without it, the
            site gets a network directory, and a node key, itself.

    Raises:
        InvalidInput: a name is not well formed, ``data`` or ``codebook`` cannot be read, or a
            codebook was given for a dictionary that lies there; nothing was made.
        PenstockError: a site exists there already; nothing is overwritten.
    """
    asked = Checks("site init")
    asked.pattern("--name", name, SITE, SITE_BOUND)
    asked.pattern("--federation", federation, NAME, NAME_BOUND)
    if codebook is not None and paths.dictionary.exists():
        remedy = "Remove that file, or leave the codebook out"
        asked.add("--codebook", "dictionary.toml lies there already, and is kept", remedy=remedy)
    if roles is not None and paths.dictionary.exists():
        remedy = "Say it there; leave --person, --time, --event and --leave-out out"
        asked.add("", "dictionary.toml lies there already, and is kept", remedy=remedy)
    asked.done()
    if any(p.exists() for p in (paths.settings, paths.database, paths.gate_key)):
        raise PenstockError(
            "a site exists there already and is never overwritten",
            value=paths.root,
            remedy="choose another --dir",
        )
    paths.check_sockets()
    line = None
    if node_public is None:
        NetworkPaths(paths.network).check_sockets()
    else:
        line = read_public_line(node_public.read_text("ascii", "replace"), what=str(node_public))
    seen = look_at(data) if data is not None else Seen()
    said = _read_codebook(codebook, data) if codebook is not None else None
    if said is not None:
        named = {raw: name for name, raw in seen.names.items()}
        said = replace(said, columns={named.get(n, n): d for n, d in said.columns.items()})
    if roles is not None:
        roles = _roles_of(roles, seen, said)
    paths.make()
    _keep_node_key(paths, line)
    if not paths.policy.exists():
        write_atomic(paths.policy, TEMPLATE.encode())
    if not paths.dictionary.exists():
        draft = dictionary_draft(seen.guesses, said, roles, tuple(seen.dates))
        write_atomic(paths.dictionary, draft.encode())
    if not paths.recoding.exists():
        write_atomic(paths.recoding, seen.recoding().encode())
    key = generate_key()
    write_atomic(paths.gate_key, private_to_pem(key))
    with exclusive(paths.lock):
        database = Database.create(paths.database)
        try:
            Ledger(database, key).open_for(name)
        finally:
            database.close()
    settings = SETTINGS_TEMPLATE.format(
        name=value(name),
        federation=value(federation),
        data=value(os.path.relpath(data, paths.root) if data is not None else "data.csv"),
    )
    # Last, since its presence says that a site is here.
    write_atomic(paths.settings, settings.encode())


def _roles_of(roles: Roles, seen: Seen, said: Codebook | None) -> Roles:
    """The roles under the names that the draft has, whichever of the two names was given."""
    named = {raw: name for name, raw in seen.names.items()}

    def of(name: str | None) -> str | None:
        return None if name is None else named.get(name, name)

    left_out = tuple(named.get(name, name) for name in roles.left_out)
    found = Roles(of(roles.person), of(roles.time), of(roles.event), left_out)
    found.check(list(seen.guesses) or list(said.columns if said is not None else ()))
    return found


def _read_codebook(path: Path, data: Path | None) -> Codebook:
    """What a codebook says of each column.

    Raises:
        InvalidInput: it cannot be read, is none, or is the file of the rows.
    """
    if path.suffix.lower() not in SEPARATORS:
        known = ", ".join(SEPARATORS)
        problem = Problem("", "unknown kind of file", None, path.suffix or "no ending", known)
        raise InvalidInput(str(path), [problem])
    if not path.exists():
        raise InvalidInput(str(path), [Problem("", "no such file", remedy="Correct --codebook")])
    if data is not None and path.samefile(data):
        problem = Problem("--codebook", "is the file of the rows", remedy="Name the codebook")
        raise InvalidInput(str(path), [problem])
    if (size := path.stat().st_size) > MAX_CODEBOOK_BYTES:
        bound = f"at most {MAX_CODEBOOK_BYTES}"
        problem = Problem("", "is too large", value=f"{size} bytes", bound=bound)
        raise InvalidInput(str(path), [problem])
    table = read_text(path, sniff(path))
    try:
        rows = zip(table.index.tolist(), table.to_numpy().tolist(), strict=True)
        return read_codebook(list(table.columns), rows)
    except InvalidInput as error:
        raise InvalidInput(str(path), error.problems) from None


def _keep_node_key(paths: SitePaths, line: str | None) -> None:
    if line is not None:
        write_atomic(paths.node_public, line.encode() + b"\n", mode=0o644)
        return
    network = NetworkPaths(paths.network)
    network.make()
    network.make_key()


def node_line(paths: SitePaths) -> str:
    """The public key line of the site's network side.

    Raises:
        SignatureError: what is kept of it is none; PenstockError: there is none.
    """
    if paths.node_public.exists():
        return read_public_line(paths.node_public.read_text("ascii"), what=str(paths.node_public))
    return NetworkPaths(paths.network).read_public()


def data_path(paths: SitePaths, text: str) -> Path:
    """A path in site.toml: absolute, or relative to the site."""
    return paths.root / text


def inspect(
    paths: SitePaths,
    settings: SiteSettings,
    *,
    new_frame: bool = False,
    allow_empty: Collection[str] = (),
) -> tuple[Checked, DictionaryFile]:
    """Validate the rows, the declared frame and a public table; writes nothing.

    Args:
        new_frame: the steward declares another frame than the data set had so far.
        allow_empty: columns that may be without a single known value.

    Raises:
        InvalidInput: dictionary or a recoding has problems, or a file cannot be read.
    """
    before = known_frame(paths, settings.lineage)
    dictionary = read_dictionary(paths, before)
    recoding = read_recoding(paths, dictionary.schema)
    checked = check(
        read_batches(data_path(paths, settings.data), recoding.layout),
        dictionary.schema,
        persons=dictionary.persons,
        others=dictionary.others,
        recoding=recoding,
        allow_empty=allow_empty,
        secret=private_to_pem(paths.key()),
    )
    checked = replace(checked, public=_check_public(paths, settings, checked, allow_empty))
    if before not in (None, dictionary.persons) and not new_frame:
        message = f"persons = {dictionary.persons}, and {settings.lineage} has a frame of {before}"
        remedy = (
            f"Write persons = {before}; or, if the frame itself is another one, add --new-frame, "
            "knowing that everybody sees it change."
        )
        other = Finding("", message, fatal=True, remedy=remedy)
        checked = replace(checked, findings=(other, *checked.findings))
    return checked, dictionary


def inspect_values(paths: SitePaths, settings: SiteSettings) -> dict[str, list[tuple[str, int]]]:
    """Which values lie outside levels and bounds, by column, with how often: VALUES OF ROWS.

    Raises:
        InvalidInput: the dictionary has problems, or the file cannot be read.
    """
    dictionary = read_dictionary(paths, known_frame(paths, settings.lineage))
    recoding = read_recoding(paths, dictionary.schema)
    rows = read_batches(data_path(paths, settings.data), recoding.layout)
    return outside_values(rows, dictionary.schema, recoding)


def known_frame(paths: SitePaths, lineage: str) -> int | None:
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


@dataclass(frozen=True, slots=True)
class Declared:
    """What the steward says of rows, and nothing in them can tell; it is recorded.

    Attributes:
        disjoint: nobody is in another data set of this site; asked for a second data set.
        new_data: no row was ever in a data set of this site; asked for a new lineage once records
            of the ledger were lost.
        new_frame: other people may now be in the data set; asked where the declared number of
            persons changes.
        reason: why, in the steward's words.
    """

    disjoint: bool = False
    new_data: bool = False
    new_frame: bool = False
    reason: str = ""

    def said(self) -> list[str]:
        """The names of what was declared."""
        return [n for n in ("disjoint", "new_data", "new_frame") if getattr(self, n)]


NOTHING_DECLARED = Declared()


def certify(
    paths: SitePaths,
    settings: SiteSettings,
    checked: Checked,
    *,
    accept: bool,
    declared: Declared = NOTHING_DECLARED,
) -> int:
    """Record checked rows as a version of the lineage; returns the version's number.

    The same rows under the same dictionary are the same version. A new version leaves what was
    spent where it is.

    Args:
        declared: what the steward says of the rows; what nothing in them can tell.

    Raises:
        InvalidInput: findings that stand in the way; LedgerLocked: the gate runs.
        LedgerError: the ledger must be recovered first; a second data set that is not disjoint, or
            shares persons with another; another unit, or another frame, than before.
    """
    require_clean(str(data_path(paths, settings.data)), checked, accept=accept)
    check_reason(declared.reason)
    policy = read_policy(paths.policy)
    persons = _frame(checked)
    public = None
    if checked.public is not None:
        source = str(data_path(paths, settings.public_data))
        require_clean(source, checked.public, accept=accept)
        public = to_bytes(checked.public)
    data = to_bytes(checked)
    key = paths.key()
    meaning = canonical(checked.dictionary.to_dict())
    _ = node_line(paths)  # a site that could not be enrolled is told before anything is recorded
    secret = private_to_pem(key)
    print_of_rows = keyed_fingerprint(data + meaning, secret)
    unit = Unit(checked.dictionary.person, checked.dictionary.max_rows_per_person)
    everybody = checked.everybody
    if everybody is None:
        raise PenstockError(
            "these rows were checked without the gate's key, and cannot be certified"
        )
    with exclusive(paths.lock):
        database = Database(paths.database)
        try:
            ledger = Ledger(database, key)
            state = ledger.verify(public_hex(key))
            _refuse_if_restored(paths, ledger)
            lineage = state.lineages.get(settings.lineage)
            latest = lineage.versions[-1] if lineage and lineage.versions else None
            # The frame is no part of the print: the same rows in another frame are a new version.
            same = (print_of_rows, persons)
            known = latest is not None and (latest.fingerprint, latest.persons) == same
            number = (latest.number if latest else 0) + (0 if known else 1)
            # All that can be refused is, before anything is written.
            ledger.refuse_another_unit(settings.lineage, unit)
            ledger.refuse_another_frame(settings.lineage, persons, declared.new_frame)
            _refuse_overlap(paths, state, settings.lineage, everybody, declared)
            if lineage is None:
                ledger.add_lineage(
                    settings.lineage,
                    policy.total_epsilon,
                    policy.total_delta,
                    unit=unit,
                    disjoint=declared.disjoint,
                    new_data=declared.new_data,
                    reason=declared.reason,
                )
            ledger.fix_unit(settings.lineage, unit)
            recoding = checked.recoding.text
            prints = (print_of_rows, recoded.fingerprint(recoding, secret))
            _record(paths, settings, number, persons, prints, declared)
            # First: who is in a version that the ledger holds is always known.
            keep(paths.identities, settings.lineage, everybody)
            # Without its dictionary the gate answers "not ready": rows are never read with
            # another version's levels, wherever this is interrupted.
            certified = certified_dictionary(paths)
            certified.unlink(missing_ok=True)
            # Rows first, record second: a version in the ledger always has its rows.
            save(paths.snapshots, settings.lineage, number, data)
            recoded.keep(paths.snapshots, settings.lineage, number, recoding)
            if not known:
                ledger.add_version(
                    settings.lineage,
                    persons,
                    print_of_rows,
                    new_frame=declared.new_frame,
                    reason=declared.reason,
                )
            if public is None:
                (paths.snapshots / "public.arrow").unlink(missing_ok=True)
            else:
                write_atomic(paths.snapshots / "public.arrow", public)
            text = dictionary_toml(checked.dictionary, persons, checked.others)
            write_atomic(certified, text.encode())
            _forget(paths, settings.lineage, number)
        finally:
            database.close()
    join = join_record(paths, settings, checked)
    write_atomic(paths.join, json.dumps(join, indent=2).encode() + b"\n", mode=0o644)
    return number


def _record(
    paths: SitePaths,
    settings: SiteSettings,
    number: int,
    persons: int,
    prints: tuple[str, str | None],
    declared: Declared,
) -> None:
    """The steward's word, and whose it was; of the rows nothing but what the ledger holds.

    Args:
        prints: keyed fingerprints of the rows, and of the recoding by which they were read.
    """
    with opened(paths, settings.name) as decisions:
        decisions.notice(paths)
        decisions.append(
            "certify",
            Who.here(),
            declared.reason,
            lineage=settings.lineage,
            version=number,
            persons=persons,
            fingerprint=prints[0],
            recoding=prints[1],
            declared=declared.said(),
        )


def _refuse_overlap(
    paths: SitePaths, state: State, name: str, everybody: Identities, declared: Declared
) -> None:
    """Nobody may be in two data sets that were declared disjoint, in any of their versions.

    Raises:
        LedgerError: somebody is, or nobody knows.
    """
    own = state.lineages.get(name)
    apart = own.disjoint if own else declared.disjoint or declared.new_data
    for other in state.lineages.values():
        if other.name == name or not (apart or other.disjoint) or not other.versions:
            continue
        theirs = load(paths.identities, other.name)
        if theirs is None and other.exhausted and declared.new_data:
            continue  # its rows may be lost with the records; its budget is
        if theirs is None:
            raise LedgerError(
                f"nobody knows who is in {other.name}: an older Penstock certified it",
                value=name,
                bound=f"disjoint from {other.name}",
                remedy=f"first run `penstock site check` with lineage = {other.name!r} and its "
                "rows",
            )
        shared = everybody.shared(theirs)
        if shared:
            raise LedgerError(
                f"{shared} persons of these rows are, or were, in {other.name}, and the two are "
                "declared disjoint: they would be given a second budget",
                value=name,
                bound=f"nobody of {other.name}",
                remedy=f"leave them out, or write lineage = {other.name!r}; where two sources only "
                "number their persons alike, make the ids distinct",
            )


def _refuse_if_restored(paths: SitePaths, ledger: Ledger) -> None:
    """A record more would part a restored ledger from the records that it lost."""
    if find(paths, ledger, paths.gate_public()) is not None:
        raise LedgerError(STOPPED, value=paths.root)


def _forget(paths: SitePaths, lineage: str, number: int) -> None:
    """Rows of earlier versions are no longer needed, and are not kept; their recodings are."""
    for older in range(1, number):
        path_of(paths.snapshots, lineage, older).unlink(missing_ok=True)


def _frame(checked: Checked) -> int:
    """The declared frame: nothing else may stand for it, least of all the count of ids."""
    if checked.persons is None:
        raise InvalidInput("dictionary", [Problem("persons", "is missing", remedy=FRAME)])
    return checked.persons


def _check_public(
    paths: SitePaths, settings: SiteSettings, checked: Checked, allow_empty: Collection[str]
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
    source = data_path(paths, settings.public_data)
    if source.exists() and source.samefile(data_path(paths, settings.data)):
        problem = Problem("public_data", "is the private file", remedy="Name a public table")
        raise InvalidInput(str(paths.settings), [problem])
    recoding, said_in = NOTHING_RECODED, "a file that public_recoding names in site.toml"
    if settings.public_recoding:
        said_in = settings.public_recoding
        text = read_file(data_path(paths, said_in))
        recoding = parse_recoding(text, checked.dictionary, str(data_path(paths, said_in)))

    def named(text: str) -> str:
        return text.replace("recoding.toml", said_in)

    try:
        found = check(
            read_batches(source, recoding.layout),
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
    return replace(found, findings=tuple(findings))


def join_record(paths: SitePaths, settings: SiteSettings, checked: Checked) -> dict[str, Any]:
    """The public facts a coordinator enrols: nothing in it comes from rows.

    Raises:
        InvalidInput: the rows were checked without a declared frame.
    """
    public = paths.gate_public()
    dictionary = checked.dictionary.to_dict()
    columns = [{**c, "missing": []} for c in dictionary["columns"]]
    return {
        "site": settings.name,
        "federation": settings.federation,
        "gate_key": public,
        "fingerprint": fingerprint(public),
        "persons": _frame(checked),
        "wire": WIRE_VERSION,
        "wire_majors": list(SERVED_MAJORS),
        "dictionary": {**dictionary, "columns": columns},
        "node_key": node_line(paths),
    }
