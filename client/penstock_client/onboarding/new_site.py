"""Making a site: its directories, the gate's key, an empty ledger, and drafts to edit."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from penstock.base.checks import NAME, NAME_BOUND, SITE, SITE_BOUND, Checks
from penstock.base.errors import InvalidInput, PenstockError, Problem
from penstock.base.files import write_atomic
from penstock.study.toml import (
    Codebook,
    Roles,
    draft_dictionary,
    read_codebook,
)
from penstock.study.toml.writer import value
from penstock.wire.signatures import generate_key, private_to_pem
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database, hold_exclusively
from penstock_client.rows.drafts import Outline, outline_source
from penstock_client.rows.sources.registry import TABLES
from penstock_client.rows.sources.source import read_batches
from penstock_client.site.network_paths import NetworkPaths, read_public_line
from penstock_client.site.policy import TEMPLATE
from penstock_client.site.site_paths import SitePaths

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


def make_site(
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
    seen = outline_source(data) if data is not None else Outline()
    said = _read_codebook(codebook, data) if codebook is not None else None
    if said is not None:
        named = {raw: name for name, raw in seen.names.items()}
        said = replace(said, columns={named.get(n, n): d for n, d in said.columns.items()})
    if roles is not None:
        roles = _rename_roles(roles, seen, said)
    paths.make()
    _keep_node_key(paths, line)
    if not paths.policy.exists():
        write_atomic(paths.policy, TEMPLATE.encode())
    if not paths.dictionary.exists():
        draft = draft_dictionary(seen.guesses, said, roles, tuple(seen.dates))
        write_atomic(paths.dictionary, draft.encode())
    if not paths.recoding.exists():
        write_atomic(paths.recoding, seen.recoding().encode())
    key = generate_key()
    write_atomic(paths.gate_key, private_to_pem(key))
    with hold_exclusively(paths.lock):
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


def _rename_roles(roles: Roles, seen: Outline, said: Codebook | None) -> Roles:
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
    table = TABLES.open(path)
    if not path.exists():
        raise InvalidInput(str(path), [Problem("", "no such file", remedy="Correct --codebook")])
    if data is not None and path.samefile(data):
        problem = Problem("--codebook", "is the file of the rows", remedy="Name the codebook")
        raise InvalidInput(str(path), [problem])
    if (size := path.stat().st_size) > MAX_CODEBOOK_BYTES:
        bound = f"at most {MAX_CODEBOOK_BYTES}"
        problem = Problem("", "is too large", value=f"{size} bytes", bound=bound)
        raise InvalidInput(str(path), [problem])
    batches = list(read_batches(TABLES.open(path, table.guess_layout())))
    names = batches[0].names
    try:
        return read_codebook(names, [row for batch in batches for row in batch.read_rows(names)])
    except InvalidInput as error:
        raise InvalidInput(str(path), error.problems) from None


def _keep_node_key(paths: SitePaths, line: str | None) -> None:
    if line is not None:
        write_atomic(paths.node_public, line.encode() + b"\n", mode=0o644)
        return
    network = NetworkPaths(paths.network)
    network.make()
    network.make_key()
