"""Tokens, of which only hashes are kept, and the signing keys of accounts."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from penstock_server.store.database import Database, Transaction
from penstock_server.store.sql_tables import account_key_table, token_table


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token without its secret."""

    sha256: str
    name: str
    role: str
    created: str
    expires: str
    revoked: str = ""


class Accounts:
    """The tokens and keys of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def make_tables(self) -> None:
        """Where a coordinator was made before there was an API."""
        if not self._database.has_table(token_table.name):
            with self._database.begin() as c:
                token_table.create(c, checkfirst=True)

    # -- tokens --------------------------------------------------------------------------------

    def tokens(self, c: Transaction) -> list[TokenRow]:
        """All tokens ever made, oldest first."""
        query = sa.select(token_table).order_by(token_table.c.created, token_table.c.name)
        return [TokenRow(**row) for row in c.execute(query).mappings().all()]

    def add_token(self, c: Transaction, row: TokenRow) -> None:
        c.execute(
            token_table.insert().values(
                sha256=row.sha256,
                name=row.name,
                role=row.role,
                created=row.created,
                expires=row.expires,
            )
        )

    def revoke_tokens(self, c: Transaction, name: str, now: str) -> bool:
        """End what stands of this name; whether anything did."""
        mine = token_table.c.name == name, token_table.c.revoked == ""
        return bool(c.execute(token_table.update().where(*mine).values(revoked=now)).rowcount)

    # -- keys ----------------------------------------------------------------------------------

    def keys(self) -> list[tuple[str, str]]:
        """(account, key), oldest first."""
        query = sa.select(account_key_table).order_by(account_key_table.c.added)
        with self._database.reading() as c:
            return [(r["account"], r["key"]) for r in c.execute(query).mappings().all()]

    def key_holder(self, c: Transaction, key: str) -> str | None:
        """The account that a key is bound to."""
        bound = sa.select(account_key_table.c.account).where(account_key_table.c.key == key)
        holder: str | None = c.execute(bound).scalar()
        return holder

    def add_key(self, c: Transaction, account: str, key: str, now: str) -> None:
        c.execute(account_key_table.insert().values(key=key, account=account, added=now))

    def remove_key(self, c: Transaction, account: str, key: str) -> bool:
        """Take a key from an account; whether it was bound to it."""
        mine = account_key_table.c.account == account, account_key_table.c.key == key
        return bool(c.execute(account_key_table.delete().where(*mine)).rowcount)
