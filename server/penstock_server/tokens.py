"""Bearer tokens: who may speak to the coordinator's API. Only their hashes are stored."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa

from penstock.checks import NAME, NAME_BOUND
from penstock.errors import CoordinatorError, InvalidInput, Problem
from penstock_server.store import Store, metadata

PREFIX = "pst_"
TOKEN = re.compile(PREFIX + r"[A-Za-z0-9_-]{43}")
SECRET_BYTES = 32

token_table = sa.Table(
    "token",
    metadata,
    # 32 random bytes cannot be guessed from their hash: no salt, no slow hash is needed.
    sa.Column("sha256", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(64), nullable=False, index=True),
    sa.Column("role", sa.String, nullable=False),
    sa.Column("created", sa.String, nullable=False),
    sa.Column("expires", sa.String, nullable=False),
    sa.Column("revoked", sa.String, nullable=False, default=""),
)


class Role(StrEnum):
    """What the holder of a token may do."""

    ANALYST = "analyst"
    """Hand in, watch and cancel studies; fetch results."""
    ADMIN = "admin"
    """That, and enrol sites."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its secret. Times are RFC 3339 UTC; ``revoked`` is empty while it stands."""

    name: str
    role: Role
    created: str
    expires: str
    revoked: str = ""

    def good(self, now: str) -> bool:
        """Whether it opens anything at this time."""
        return not self.revoked and now < self.expires


class Tokens:
    """The tokens of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        with store.reading() as c:
            there = sa.inspect(c).has_table(token_table.name)
        if not there:
            # A coordinator that was made before there was an API.
            with store.begin() as c:
                token_table.create(c, checkfirst=True)

    def add(self, name: str, role: Role, now: str, expires: str) -> str:
        """Make a token; returns it, the only time that it is seen.

        Raises:
            InvalidInput: not a name.
            CoordinatorError: a good token of this name is there already.
        """
        if not NAME.fullmatch(name):
            problem = Problem("name", "is not well formed", value=repr(name[:80]), bound=NAME_BOUND)
            raise InvalidInput("token", [problem])
        secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        row = Token(name, role, now, expires)
        with self._store.begin() as c:
            if any(t.name == name and t.good(now) for t, _ in _rows(c)):
                raise CoordinatorError(
                    "a token of this name is in use",
                    value=name,
                    remedy=f"choose another name, or `penstock server token revoke {name}` first",
                )
            c.execute(
                token_table.insert().values(
                    sha256=_hash(secret),
                    name=row.name,
                    role=str(row.role),
                    created=row.created,
                    expires=row.expires,
                )
            )
        return secret

    def find(self, secret: str, now: str) -> Token | None:
        """The good token with this secret; None for any other, whatever is wrong with it."""
        wanted, found = _hash(secret), None
        with self._store.reading() as c:
            rows = _rows(c)
        for token, known in rows:  # all of them: how long it takes says nothing
            if hmac.compare_digest(known, wanted) and token.good(now):
                found = token
        return found

    def list(self) -> list[Token]:
        """All tokens ever made, oldest first."""
        with self._store.reading() as c:
            return [token for token, _ in _rows(c)]

    def revoke(self, name: str, now: str) -> None:
        """End the token of this name, from the next request on.

        Raises:
            CoordinatorError: none of this name stands.
        """
        mine = token_table.c.name == name, token_table.c.revoked == ""
        with self._store.begin() as c:
            if not c.execute(token_table.update().where(*mine).values(revoked=now)).rowcount:
                raise CoordinatorError(
                    "no such token", value=name[:80], remedy="see `penstock server token list`"
                )


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _rows(c: sa.Connection) -> list[tuple[Token, str]]:
    query = sa.select(token_table).order_by(token_table.c.created, token_table.c.name)
    return [
        (
            Token(r["name"], Role(r["role"]), r["created"], r["expires"], r["revoked"]),
            r["sha256"],
        )
        for r in c.execute(query).mappings().all()
    ]
