"""The enrolled sites, as an analyst is told of them."""

from __future__ import annotations

from penstock.base.documents import Json
from penstock.wire.signatures import fingerprint
from penstock_server.studies.coordinator import Coordinator


def list_sites(coordinator: Coordinator) -> list[Json]:
    """Of each its name, federation, declared frame, and its gate's key with the fingerprint."""
    return [
        {
            "site": site.name,
            "federation": site.federation,
            "persons": site.persons,
            "gate_key": site.gate_key,
            "gate_fingerprint": fingerprint(site.gate_key),
        }
        for site in coordinator.store.sites.all().values()
    ]
