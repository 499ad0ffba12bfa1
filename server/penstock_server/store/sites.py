"""The enrolled sites, what they said of themselves, and what their ledgers have shown."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import sqlalchemy as sa

from penstock.base.documents import Json
from penstock.base.errors import CoordinatorError
from penstock_server.store.database import Database, Transaction, Within, do_nothing
from penstock_server.store.sql_tables import ledger_seen_table, site_table


@dataclass(frozen=True, slots=True)
class Site:
    """An enrolled site."""

    name: str
    federation: str
    gate_key: str
    persons: int
    join: Json
    seen: str = ""
    said: Json = field(default_factory=dict)


class Sites:
    """The sites of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, join: Json, now: str, within: Within = do_nothing) -> None:
        """Enrol a site, or its new public n; its key stays.

        Args:
            within: done in the same transaction.

        Raises:
            CoordinatorError: a site of this name is enrolled with another key.
        """
        name = join["site"]
        known = self.all().get(name)
        if known is not None and known.gate_key != join["gate_key"]:
            raise CoordinatorError(
                "a site of this name is enrolled with another key",
                value=name,
                remedy="compare fingerprints with the site before anything else",
            )
        values = {
            "federation": join["federation"],
            "gate_key": join["gate_key"],
            "persons": join["persons"],
            "join_record": json.dumps(join),
        }
        with self._database.begin() as c:
            within(c)
            if known is None:
                c.execute(site_table.insert().values(name=name, enrolled=now, **values))
            else:
                c.execute(site_table.update().where(site_table.c.name == name).values(**values))

    def all(self) -> dict[str, Site]:
        """Every enrolled site, by name."""
        with self._database.reading() as c:
            rows = c.execute(sa.select(site_table).order_by(site_table.c.name)).mappings().all()
        return {
            r["name"]: Site(
                r["name"],
                r["federation"],
                r["gate_key"],
                r["persons"],
                json.loads(r["join_record"]),
                r["seen"],
                json.loads(r["said"]),
            )
            for r in rows
        }

    def note_said(self, name: str, moment: str, said: Json) -> None:
        """Remember when a site was last heard of, and what it said of itself then."""
        with self._database.begin() as c:
            values = {"seen": moment, "said": json.dumps(said)}
            c.execute(site_table.update().where(site_table.c.name == name).values(**values))

    # -- ledgers -------------------------------------------------------------------------------

    def ledger_heads(self, name: str) -> dict[int, str]:
        """Heads that a site's manifests have shown, by position."""
        query = sa.select(ledger_seen_table).where(ledger_seen_table.c.site == name)
        with self._database.reading() as c:
            return {r["seq"]: r["head"] for r in c.execute(query).mappings().all()}

    def newest_position(self, c: Transaction, name: str) -> int:
        """The highest ledger position that a site has shown; 0 before the first."""
        last = sa.select(sa.func.max(ledger_seen_table.c.seq))
        return int(c.execute(last.where(ledger_seen_table.c.site == name)).scalar() or 0)

    def note_position(
        self, c: Transaction, name: str, seq: int, head: str, manifest: bytes = b""
    ) -> None:
        """Remember a position; it was checked against :meth:`ledger_heads` before."""
        known = ledger_seen_table.c.site == name, ledger_seen_table.c.seq == seq
        if c.execute(sa.select(ledger_seen_table).where(*known)).first() is None:
            c.execute(ledger_seen_table.insert().values(site=name, seq=seq, head=head))
        newest = site_table.c.name == name, site_table.c.newest_seq < seq
        values = {"newest_seq": seq, "newest_manifest": manifest}
        c.execute(site_table.update().where(*newest).values(**values))

    def newest_manifest(self, name: str) -> bytes:
        """The manifest of a site with the highest ledger position; empty before the first."""
        query = sa.select(site_table.c.newest_manifest).where(site_table.c.name == name)
        with self._database.reading() as c:
            return bytes(c.execute(query).scalar() or b"")
