"""Enrolling a site: its join record comes in, its invite goes out."""

from __future__ import annotations

import json
from pathlib import Path

from penstock.base.checks import SITE, SITE_BOUND
from penstock.base.documents import Json
from penstock.base.errors import CoordinatorError
from penstock.base.files import write_atomic
from penstock.base.shapes import find_misfit
from penstock.schema import Schema
from penstock.wire.signatures import fingerprint
from penstock_server.access.access_chain import Visitor, name_local_visitor
from penstock_server.install import tls
from penstock_server.install.configuration import read_settings
from penstock_server.intake.texts import printable_text
from penstock_server.studies.coordinator import Coordinator

INVITE = "penstock-invite/1"
MAX_PERSONS = 1_000_000_000


def enrol_site(coordinator: Coordinator, join: Json, by: Visitor | None = None) -> None:
    """Enrol a site from its join record, after fingerprints were compared.

    Args:
        by: who does; None for whoever holds the directory.
    """
    checked, facts = read_join(join), ("site", "persons", "gate_key")
    fields = {name: checked[name] for name in facts} | (by or name_local_visitor()).fields
    record = coordinator.access.within("enrol", **fields)
    coordinator.store.sites.add(checked, coordinator.clock.stamp(), record)


def read_join(data: Json) -> Json:
    """Check a site's join record before it is enrolled.

    Raises:
        CoordinatorError: a field is missing or of the wrong kind.
        InvalidInput, SignatureError: the dictionary, or the key, is none.
    """
    wanted: dict[str, type] = {
        "site": str,
        "federation": str,
        "gate_key": str,
        "persons": int,
        "dictionary": dict,
        "node_key": str,
    }
    misfit = find_misfit(data, wanted)
    if data.get("format") == INVITE:
        raise CoordinatorError(
            "not a site's join record but an invite, which goes to the site",
            bound="join.json",
            remedy="its steward runs `penstock site join` with it; what to enrol is the join.json "
            "that `penstock site check` writes in the site's directory",
        )
    if misfit is not None:
        raise CoordinatorError(
            "not a site's join record",
            value=misfit if misfit in data else f"no {misfit}",
            bound=f"join.json has it as {wanted[misfit].__name__}",
            remedy="give the join.json that `penstock site check` writes in the site's directory",
        )
    if not SITE.fullmatch(data["site"]):
        # The name becomes a file's name here.
        raise CoordinatorError(
            "not a site's name", value=printable_text(data["site"], 80), bound=SITE_BOUND
        )
    if not 1 <= data["persons"] <= MAX_PERSONS:
        raise CoordinatorError("not a public n", value=data["persons"], bound=f"1 to {MAX_PERSONS}")
    fingerprint(data["gate_key"])
    Schema.from_dict(data["dictionary"])
    return data


def make_invite(coordinator: Coordinator, name: str) -> Json:
    """What an enrolled site needs to connect; nothing in it is secret.

    Raises:
        CoordinatorError: no such site.
    """
    site = coordinator.store.sites.all().get(name)
    if site is None:
        raise CoordinatorError("no such site", value=name)
    settings = read_settings(coordinator.folder.root)
    return {
        "format": INVITE,
        "federation": site.federation,
        "site": site.name,
        "address": settings.address,
        "ca": tls.read_authority(coordinator.folder.tls),
        "gate_key": site.gate_key,
        "gate_fingerprint": fingerprint(site.gate_key),
        "node_key": site.join["node_key"],
    }


def write_invite(coordinator: Coordinator, name: str, path: Path) -> None:
    """Write an enrolled site's invite, in one rename and for its owner's eyes only (0600).

    Nothing in it is secret; but it names a hospital, its keys and the way in, and is handed over
    by a person, not picked up.

    Raises:
        CoordinatorError: no such site.
    """
    text = json.dumps(make_invite(coordinator, name), indent=1) + "\n"
    write_atomic(path, text.encode())
