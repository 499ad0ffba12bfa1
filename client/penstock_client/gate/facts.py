"""What a decision depends on, read from the site's files: public facts, and never rows."""

from __future__ import annotations

import logging
from functools import lru_cache
from pathlib import Path

from penstock import __version__
from penstock.base.documents import Json
from penstock.base.errors import InvalidInput
from penstock.mechanisms.registry import MECHANISMS, Registry
from penstock.schema import Schema
from penstock.study.toml import parse_dictionary, read_file
from penstock.wire.messages import SERVED_MAJORS, WIRE_VERSION
from penstock_client.gate.admission import SiteFacts, refuse
from penstock_client.ledger.state import State
from penstock_client.site.peer_keys import read_peers
from penstock_client.site.policy import Policy, read_policy
from penstock_client.site.signers import read_trust
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import SiteSettings

log = logging.getLogger("penstock.gate")


def read_facts(
    paths: SitePaths,
    settings: SiteSettings,
    state: State,
    now: str,
    mechanisms: Registry = MECHANISMS,
) -> SiteFacts:
    """Read everything anew: the steward may have changed it.

    Args:
        now: the clock's time; decisions are made at it, or at the last record's if that is later.
        mechanisms: all there are.

    Raises:
        Refused: not certified yet, or a file that the steward is just editing.
    """
    policy = read_current_policy(paths, mechanisms)
    try:
        trust, peers = read_trust(paths.trust), read_peers(paths.peers)
    except InvalidInput as error:
        log.error("%s", error)
        raise refuse("misconfigured") from None
    return SiteFacts(
        name=settings.name,
        federation=settings.federation,
        lineage=settings.lineage,
        dictionary=_read_dictionary(paths),
        policy=policy,
        trust=trust,
        peers=peers,
        gate_key=paths.gate_public(),
        state=state,
        now=max(now, state.time),
        has_public_data=find_public_snapshot(paths) is not None,
        memory_gb=settings.memory_gb,
        threads=settings.threads,
        mechanisms=mechanisms,
    )


def read_current_policy(paths: SitePaths, mechanisms: Registry = MECHANISMS) -> Policy:
    """The policy as it stands.

    Raises:
        Refused: it has problems; they are in the site's log.
    """
    try:
        return read_policy(paths.policy, mechanisms)
    except InvalidInput as error:
        log.error("%s", error)
        raise refuse("misconfigured") from None


def locate_dictionary(paths: SitePaths) -> Path:
    """The dictionary as certified with the rows; while it is away, the gate says "not ready"."""
    return paths.snapshots / "dictionary.toml"


def _read_dictionary(paths: SitePaths) -> Schema:
    path = locate_dictionary(paths)
    if not path.exists():
        raise refuse("not-ready")
    return _parse_schema(read_file(path))


@lru_cache(maxsize=1)
def _parse_schema(text: str) -> Schema:
    """Every call of a coordinator asks for it, and certified rows are seldom certified anew."""
    return parse_dictionary(text).schema


def find_public_snapshot(paths: SitePaths) -> Path | None:
    """The certified public table, if there is one."""
    path = paths.snapshots / "public.arrow"
    return path if path.exists() else None


def describe_identity(settings: SiteSettings, gate_key: str) -> Json:
    """Who a gate is, and what it speaks: known whatever state it is in."""
    return {
        "site": settings.name,
        "federation": settings.federation,
        "wire": WIRE_VERSION,
        "wire_majors": list(SERVED_MAJORS),
        "software": __version__,
        "gate_key": gate_key,
    }


def describe_offer(facts: SiteFacts, position: tuple[int, str]) -> Json:
    """What may be asked of a site, and where its ledger stands: public.

    Args:
        position: the newest record that may be known, and its hash.
    """
    lineage = facts.state.lineages.get(facts.lineage)
    latest = lineage.versions[-1] if lineage and lineage.versions else None
    return {
        "persons": latest.persons if latest else None,
        "version": latest.number if latest else None,
        "mechanisms": list(facts.policy.mechanisms),
        "guarantees": list(facts.policy.guarantees),
        "ledger_seq": position[0],
        "ledger_head": position[1],
    }
