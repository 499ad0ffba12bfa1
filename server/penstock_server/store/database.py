"""The connection to the store's database, and its transactions: SQLite, or PostgreSQL by URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from penstock.base.errors import CoordinatorError

Transaction = sa.Connection
"""What a change is made in: all that is done with one becomes true at once, or never."""

Within = Callable[[Transaction], None]
"""Something that is done, or refused, in the same transaction as a change."""


def do_nothing(_: Transaction) -> None:
    """Nothing more than the change itself."""


class Database:
    """A database, by URL. Writing transactions exclude each other on SQLite."""

    def __init__(self, url: str) -> None:
        try:
            self.engine = sa.create_engine(url)
        except (SQLAlchemyError, ImportError) as error:
            # Not the URL itself: it may hold a password.
            raise CoordinatorError(
                "the store's URL cannot be used",
                value=type(error).__name__,
                remedy="use postgresql://USER@HOST/DATABASE, and install psycopg",
            ) from None
        if self.engine.dialect.name == "sqlite":
            sa.event.listen(self.engine, "connect", _durable_sqlite)
            sa.event.listen(self.engine, "begin", _begin_sqlite)
        self._writer = self.engine.execution_options(penstock_write=True)

    @contextmanager
    def begin(self) -> Iterator[Transaction]:
        """One writing transaction."""
        with self.translate_errors(), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """One reading transaction; writers are not kept waiting."""
        with self.translate_errors(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """The driver's errors as ours."""
        try:
            yield
        except DBAPIError as error:
            # SQLAlchemy's text holds statements and their values; the driver's own text is enough.
            raise CoordinatorError(
                "the coordinator's store cannot be used", value=str(error.orig).split("\n")[0]
            ) from None

    def has_table(self, name: str) -> bool:
        with self.translate_errors():
            return sa.inspect(self.engine).has_table(name)

    def close(self) -> None:
        self.engine.dispose()


def _durable_sqlite(connection: Any, _record: object) -> None:
    # The driver would begin a transaction at the first write only: what was read before it could
    # have changed. SQLAlchemy's "begin" says when instead.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA busy_timeout=10000")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    write = connection.get_execution_options().get("penstock_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def sqlite_url(folder: Path) -> str:
    """The default store of a coordinator's directory."""
    return f"sqlite:///{folder / 'coordinator.db'}"
