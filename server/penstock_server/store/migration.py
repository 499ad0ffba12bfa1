"""The store's format: making its tables, and bringing those of versions before up to date."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from penstock.base.errors import CoordinatorError
from penstock_server.store.database import Database, Transaction
from penstock_server.store.remembered import Remembered
from penstock_server.store.sql_tables import (
    access_table,
    account_key_table,
    metadata,
    pooling_table,
    round_sum_table,
    step_table,
    study_reader_table,
    study_table,
    summation_table,
)

SCHEMA_VERSION = 5
UPGRADED = (2, 3, 4)
"""Formats that are brought up to date in place."""


def create_tables(database: Database) -> None:
    """Make the tables in an empty database.

    Raises:
        CoordinatorError: a coordinator lives there already, or it cannot be reached.
    """
    if database.has_table("settings"):
        shown = database.engine.url.render_as_string(hide_password=True)
        raise CoordinatorError("a coordinator's store exists already", value=shown)
    with database.translate_errors():
        metadata.create_all(database.engine)
    Remembered(database).set("schema", SCHEMA_VERSION)


def check_format(database: Database, *, upgrade: bool = True) -> None:
    """Bring a store of a format before up to date, and refuse any other.

    Args:
        upgrade: False only looks.

    Raises:
        CoordinatorError: none there, or another format.
    """
    if not database.has_table("settings"):
        raise CoordinatorError("no coordinator here", remedy="run `penstock server init`")
    found = Remembered(database).get("schema")
    if found in UPGRADED:
        if not upgrade:
            raise CoordinatorError(
                "the store has the format of the version before",
                value=found,
                bound=SCHEMA_VERSION,
                remedy="back it up; `penstock server start` brings it up to date",
            )
        upgrade_format(database)
    elif found != SCHEMA_VERSION:
        raise CoordinatorError("the store has another format", value=found, bound=SCHEMA_VERSION)


def upgrade_format(database: Database) -> None:
    """Bring a store of a format before up to date; one that is so already stays as it is."""
    values = Remembered(database)
    with database.begin() as c:
        values.lock(c)
        found = values.get_within(c, "schema")
        if found == SCHEMA_VERSION:
            return  # another process was faster
        if found == 2:
            _add_owners(c)
        # What had all answers, but no results yet, goes on as an open study.
        for table in (pooling_table, summation_table, step_table, round_sum_table):
            table.create(c, checkfirst=True)
        values.set_within(c, "schema", SCHEMA_VERSION)


def _add_owners(c: Transaction) -> None:
    """From format 2: who handed a study in is not known, but who signed it is."""
    for column in ("owner", "signer"):
        c.exec_driver_sql(f"ALTER TABLE study ADD COLUMN {column} VARCHAR(64) NOT NULL DEFAULT ''")
    for table in (study_reader_table, account_key_table, access_table):
        table.create(c, checkfirst=True)
    for row in c.execute(sa.select(study_table.c.id)).mappings().all():
        mine = study_table.c.id == row["id"]
        signed: Any = c.execute(sa.select(study_table.c.signed).where(mine)).scalar()
        signer = json.loads(bytes(signed))["signer"]  # it was verified when it came
        c.execute(study_table.update().where(mine).values(signer=signer))
