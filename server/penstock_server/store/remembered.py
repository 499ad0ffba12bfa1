"""Single values that a coordinator remembers, by name: its format, a simulation's truth."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from penstock_server.store.database import Database, Transaction
from penstock_server.store.sql_tables import settings_table


class Remembered:
    """The values of a store, each any JSON."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def set(self, name: str, value: object) -> None:
        with self._database.begin() as c:
            self.set_within(c, name, value)

    def set_within(self, c: Transaction, name: str, value: object) -> None:
        c.execute(settings_table.delete().where(settings_table.c.name == name))
        c.execute(settings_table.insert().values(name=name, value=json.dumps(value)))

    def get(self, name: str) -> Any:
        """The value of a name; None if there is none."""
        with self._database.reading() as c:
            return self.get_within(c, name)

    def get_within(self, c: Transaction, name: str) -> Any:
        query = sa.select(settings_table.c.value).where(settings_table.c.name == name)
        found = c.execute(query).scalar()
        return None if found is None else json.loads(found)

    def lock(self, c: Transaction) -> None:
        """Keep every other process that asks for this from writing until the transaction ends."""
        # On SQLite every writing transaction excludes the others already.
        one = sa.select(settings_table).where(settings_table.c.name == "schema")
        c.execute(one.with_for_update())
