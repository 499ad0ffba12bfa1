"""Making a site, certifying its rows, and the public file that the coordinator enrols."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from penstock.errors import InvalidInput, PenstockError, Problem
from penstock.schema import Schema
from penstock.toml import dictionary_draft, infer_kind, parse_dictionary
from penstock.wire.messages import SERVED_MAJORS, WIRE_VERSION
from penstock.wire.signatures import fingerprint, generate_key, private_to_pem, public_hex

from penstock_client.database import Database, exclusive
from penstock_client.ledger import Ledger
from penstock_client.policy import TEMPLATE, read_policy, write_atomic
from penstock_client.site import SitePaths, SiteSettings, read_settings
from penstock_client.snapshot import keyed_fingerprint, path_of, save, to_bytes
from penstock_client.sources import read_text
from penstock_client.validation import Checked, check, require_clean

SETTINGS_TEMPLATE = """\
# Where this site's data lie. What may be asked of them is in policy.toml.
name = {name}
federation = {federation}
data = {data}
# The data set's name in the ledger. A corrected file or new rows stay in the same lineage:
# what was spent on it is never reset.
lineage = "main"

# memory_gb = 8.0       # the worker's limit
# threads = 1
# device = "auto"       # cpu, cuda, or auto
# public_data = ""      # a PUBLIC table with the same columns, for public-flow releases
"""

SAMPLE_ROWS = 5000


def init(paths: SitePaths, name: str, federation: str, data: Path | None) -> None:
    """Make a site: directories, the gate's key, an empty ledger, and drafts to edit.

    Raises:
        PenstockError: a site exists there already; nothing is overwritten.
    """
    if paths.settings.exists() or paths.database.exists():
        raise PenstockError(
            "a site exists there already and is never overwritten", value=paths.root
        )
    paths.check_sockets()
    frame = read_text(data) if data is not None else None
    paths.make()
    key = generate_key()
    write_atomic(paths.gate_key, private_to_pem(key))
    settings = SETTINGS_TEMPLATE.format(
        name=json.dumps(name),
        federation=json.dumps(federation),
        data=json.dumps(os.path.relpath(data, paths.root) if data is not None else "data.csv"),
    )
    write_atomic(paths.policy, TEMPLATE.encode())
    if not paths.dictionary.exists():
        columns = {}
        if frame is not None:
            sample = frame.head(SAMPLE_ROWS)
            columns = {c: infer_kind(c, sample[c].tolist()) for c in frame.columns}
        write_atomic(paths.dictionary, dictionary_draft(columns).encode())
    with exclusive(paths.lock):
        database = Database.create(paths.database)
        try:
            Ledger(database, key).open_for(name)
        finally:
            database.close()
    # Last, since its presence says that a site is here.
    write_atomic(paths.settings, settings.encode())
    read_settings(paths)


def data_path(paths: SitePaths, text: str) -> Path:
    """A path in site.toml: absolute, or relative to the site."""
    return paths.root / text


def inspect(paths: SitePaths, settings: SiteSettings) -> tuple[Checked, Schema]:
    """Validate the rows against the dictionary; writes nothing.

    Raises:
        InvalidInput: the dictionary has problems, or the file cannot be read.
    """
    dictionary = parse_dictionary(read_dictionary(paths)).schema
    return check(read_text(data_path(paths, settings.data)), dictionary), dictionary


def read_dictionary(paths: SitePaths) -> str:
    try:
        return paths.dictionary.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InvalidInput(
            str(paths.dictionary),
            [Problem("", "no such file", remedy="write it, or see `penstock site init --from`")],
        ) from None


def certify(paths: SitePaths, settings: SiteSettings, checked: Checked, *, accept: bool) -> int:
    """Record checked rows as a version of the lineage; returns the version's number.

    The same rows under the same dictionary are the same version. A new version leaves what was
    spent where it is.

    Raises:
        InvalidInput: findings that stand in the way; LedgerLocked: the gate runs.
    """
    require_clean(str(data_path(paths, settings.data)), checked, accept=accept)
    policy = read_policy(paths.policy)
    text = read_dictionary(paths)
    data = to_bytes(checked)
    key = paths.key()
    print_of_rows = keyed_fingerprint(data + text.encode(), private_to_pem(key))
    with exclusive(paths.lock):
        database = Database(paths.database)
        try:
            ledger = Ledger(database, key)
            state = ledger.verify(public_hex(key))
            lineage = state.lineages.get(settings.lineage)
            if lineage is None:
                ledger.add_lineage(settings.lineage, policy.total_epsilon, policy.total_delta)
            latest = lineage.versions[-1] if lineage and lineage.versions else None
            if latest is not None and latest.fingerprint == print_of_rows:
                number = latest.number
            else:
                number = (latest.number if latest else 0) + 1
                # Rows first, record second: a version in the ledger always has its rows.
                save(paths.snapshots, settings.lineage, number, data)
                ledger.add_version(settings.lineage, checked.persons, print_of_rows)
                _forget(paths, settings.lineage, number)
            write_atomic(paths.snapshots / "dictionary.toml", text.encode())
            certify_public(paths, settings)
        finally:
            database.close()
    join = join_record(paths, settings, checked.persons)
    write_atomic(paths.join, json.dumps(join, indent=2).encode() + b"\n", mode=0o644)
    return number


def _forget(paths: SitePaths, lineage: str, number: int) -> None:
    """Rows of earlier versions are no longer needed, and are not kept."""
    for older in range(1, number):
        path_of(paths.snapshots, lineage, older).unlink(missing_ok=True)


def certify_public(paths: SitePaths, settings: SiteSettings) -> None:
    """Snapshot the public table, if there is one, by the same dictionary."""
    target = paths.snapshots / "public.arrow"
    if not settings.public_data:
        target.unlink(missing_ok=True)
        return
    dictionary = parse_dictionary(read_dictionary(paths)).schema
    source = data_path(paths, settings.public_data)
    public = check(read_text(source), dictionary)
    require_clean(str(source), public, accept=True)
    write_atomic(target, to_bytes(public))


def join_record(paths: SitePaths, settings: SiteSettings, persons: int) -> dict[str, Any]:
    """The public facts a coordinator enrols: nothing in it comes from rows but n."""
    public = paths.gate_public()
    dictionary = parse_dictionary(read_dictionary(paths)).schema
    columns = [{**c, "missing": []} for c in dictionary.to_dict()["columns"]]
    return {
        "site": settings.name,
        "federation": settings.federation,
        "gate_key": public,
        "fingerprint": fingerprint(public),
        "persons": persons,
        "wire": WIRE_VERSION,
        "wire_majors": list(SERVED_MAJORS),
        "dictionary": {**dictionary.to_dict(), "columns": columns},
        "gate_socket": str(paths.gate_socket),
    }
