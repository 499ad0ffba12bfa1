"""The coordinator's durable state, in SQL: SQLite by default, PostgreSQL by URL.

Every change is one transaction, which may span the store's parts: it is begun here, and handed to
their methods. Any process may write; :meth:`Register.lock` is what a decision on a study is made
under.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from penstock_server.store.access_rows import Records
from penstock_server.store.accounts import Accounts
from penstock_server.store.database import Database, Transaction
from penstock_server.store.mailbox import Mailbox
from penstock_server.store.migration import check_format, create_tables
from penstock_server.store.register import Register
from penstock_server.store.remembered import Remembered
from penstock_server.store.sites import Sites
from penstock_server.store.summing import Summing


class Store:
    """The parts of a store, by URL.

    Attributes:
        sites: the enrolled ones.
        studies: and each site's part in them.
        mailbox: messages to sites, and their replies.
        summing: how far the sums of many sites are.
        accounts: tokens and signing keys.
        records: the access log's rows.
        values: single values, by name.
    """

    def __init__(self, url: str) -> None:
        self.database = database = Database(url)
        self.sites = Sites(database)
        self.mailbox = Mailbox(database)
        self.studies = Register(database, self.sites, self.mailbox)
        self.summing = Summing(database)
        self.accounts = Accounts(database)
        self.records = Records(database)
        self.values = Remembered(database)

    @staticmethod
    def create(url: str) -> Store:
        """A new store in an empty database.

        Raises:
            CoordinatorError: a coordinator lives there already, or it cannot be reached.
        """
        store = Store(url)
        create_tables(store.database)
        return store

    def check(self, *, upgrade: bool = True) -> None:
        """Bring a store of a format before up to date, and refuse any other.

        Args:
            upgrade: False only looks.

        Raises:
            CoordinatorError: none there, or another format.
        """
        check_format(self.database, upgrade=upgrade)

    def begin(self) -> AbstractContextManager[Transaction]:
        """One writing transaction."""
        return self.database.begin()

    def reading(self) -> AbstractContextManager[Transaction]:
        """One reading transaction; writers are not kept waiting."""
        return self.database.reading()

    def close(self) -> None:
        self.database.close()
