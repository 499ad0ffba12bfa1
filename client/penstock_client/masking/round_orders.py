"""What a gate was asked to add in each round: the first input of a round is its only one.

Kept, durably, before rows are looked at for it: asked for something else, a gate refuses; and after
any end of its process it goes on with what it was asked. ``size`` is written together with the
masked vector (:mod:`~penstock_client.masking.sum_record`), in one transaction. A round's sum is
kept once, however many rounds follow it.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock_client.ledger.sqlite_file import Database

_ORDERS = """CREATE TABLE IF NOT EXISTS sum_order (
    study TEXT NOT NULL, round INTEGER NOT NULL, opening BLOB NOT NULL, opened TEXT NOT NULL,
    size INTEGER,
    PRIMARY KEY (study, round)
) STRICT"""
_SUMS = """CREATE TABLE IF NOT EXISTS sum_told (
    study TEXT NOT NULL, round INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (study, round)
) STRICT"""
_COLUMNS = "round, opening, opened, size"


@dataclass(frozen=True, slots=True)
class Order:
    """One round.

    Attributes:
        round: 0, 1, ...; opening: as the coordinator sent it.
        opened: when it came, RFC 3339 in UTC.
        size: how many numbers were masked; None while they were not.
    """

    round: int
    opening: bytes
    opened: str
    size: int | None


class RoundOrders:
    """The orders of one study, and the sums that it was told of."""

    def __init__(self, database: Database, study: str) -> None:
        self._database, self._study = database, study
        with database.transaction() as connection:
            connection.execute(_ORDERS)
            connection.execute(_SUMS)

    def get(self, number: int) -> Order | None:
        found = self._select("AND round = ?", number)
        return found[0] if found else None

    def newest(self) -> Order | None:
        """Of the last round that was opened."""
        found = self._select("ORDER BY round DESC LIMIT 1")
        return found[0] if found else None

    def read_sums(self, count: int | None = None) -> tuple[bytes, ...]:
        """The sums of the first rounds; of all that it was told of."""
        rows = self._database.query(
            "SELECT data FROM sum_told WHERE study = ? ORDER BY round LIMIT ?",
            self._study,
            -1 if count is None else count,
        )
        return tuple(row[0] for row in rows)

    def keep(self, number: int, opening: bytes, sums: tuple[bytes, ...], opened: str) -> None:
        """The first one of a round stays.

        Args:
            sums: of the rounds before, from the first that is not known on.
        """
        with self._database.transaction() as connection:
            for round_, data in enumerate(sums, number - len(sums)):
                connection.execute(
                    "INSERT INTO sum_told (study, round, data) VALUES (?, ?, ?)",
                    (self._study, round_, data),
                )
            connection.execute(
                "INSERT INTO sum_order (study, round, opening, opened) VALUES (?, ?, ?, ?)",
                (self._study, number, opening, opened),
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
        return [Order(int(r[0]), r[1], str(r[2]), r[3]) for r in rows]
