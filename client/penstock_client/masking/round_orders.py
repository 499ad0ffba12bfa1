"""What a gate was asked to add in each round: the first input of a round is its only one.

Kept, durably, before rows are looked at for it: asked for something else, a gate refuses; and after
any end of its process it goes on with what it was asked. ``size`` is written together with the
masked vector (:mod:`~penstock_client.masking.sum_record`), in one transaction.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.aggregation.envelopes import pack_parts, unpack_parts
from penstock_client.ledger.sqlite_file import Database

_TABLE = """CREATE TABLE IF NOT EXISTS sum_order (
    study TEXT NOT NULL, round INTEGER NOT NULL, opening BLOB NOT NULL, sums BLOB NOT NULL,
    opened TEXT NOT NULL, size INTEGER,
    PRIMARY KEY (study, round)
) STRICT"""
_COLUMNS = "round, opening, sums, opened, size"
_LIMIT = 2**26


@dataclass(frozen=True, slots=True)
class Order:
    """One round.

    Attributes:
        round: 0, 1, ...; opening: as the coordinator sent it; sums: of the rounds before.
        opened: when it came, RFC 3339 in UTC.
        size: how many numbers were masked; None while they were not.
    """

    round: int
    opening: bytes
    sums: tuple[bytes, ...]
    opened: str
    size: int | None


class RoundOrders:
    """The orders of one study."""

    def __init__(self, database: Database, study: str) -> None:
        self._database, self._study = database, study
        with database.transaction() as connection:
            connection.execute(_TABLE)

    def get(self, number: int) -> Order | None:
        found = self._select("AND round = ?", number)
        return found[0] if found else None

    def every(self) -> list[Order]:
        """All of them, in the order of their rounds."""
        return self._select("ORDER BY round")

    def keep(self, number: int, opening: bytes, sums: tuple[bytes, ...], opened: str) -> None:
        """The first one of a round stays."""
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO sum_order (study, round, opening, sums, opened) "
                "VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (self._study, number, opening, pack_parts({}, sums), opened),
            )

    def keep_size(self, number: int, size: int) -> None:
        """The round's vector was masked."""
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE sum_order SET size = ? WHERE study = ? AND round = ?",
                (size, self._study, number),
            )

    def _select(self, where: str, *values: object) -> list[Order]:
        rows = self._database.query(
            f"SELECT {_COLUMNS} FROM sum_order WHERE study = ? {where}", self._study, *values
        )
        return [
            Order(int(r[0]), r[1], unpack_parts(r[2], "sums", _LIMIT).parts, str(r[3]), r[4])
            for r in rows
        ]
