"""The rows of the access log; what they mean is :mod:`penstock_server.access.access_chain`'s."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from penstock_server.store.database import Database, Transaction
from penstock_server.store.sql_tables import access_table


class Row(NamedTuple):
    """Body, hash and signature of a record."""

    body: str
    hash: str
    signature: str


class Records:
    """The access log's rows of a store: they are added, and never changed."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, c: Transaction, seq: int, row: Row) -> None:
        c.execute(access_table.insert().values(seq=seq, **row._asdict()))

    def last(self, c: Transaction) -> Row | None:
        """The newest."""
        newest = sa.select(access_table).order_by(access_table.c.seq.desc()).limit(1)
        row = c.execute(newest).mappings().first()
        return None if row is None else Row(row["body"], row["hash"], row["signature"])

    def all(self) -> list[Row]:
        """Every one, in order."""
        query = sa.select(access_table).order_by(access_table.c.seq)
        with self._database.reading() as c:
            rows = c.execute(query).mappings().all()
        return [Row(r["body"], r["hash"], r["signature"]) for r in rows]

    def bodies_with(self, text: str) -> list[str]:
        """The bodies that hold a text, in no order."""
        query = sa.select(access_table.c.body)
        with self._database.reading() as c:
            found = c.execute(query.where(access_table.c.body.contains(text, autoescape=True)))
            return [row["body"] for row in found.mappings().all()]
