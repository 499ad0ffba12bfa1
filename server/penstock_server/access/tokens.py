"""Bearer tokens, and the keys that their accounts sign with. Of a token only its hash is stored.

An account is a token's name. It outlives its token: whoever gets a new token under the same name
has the same keys and the same studies, so a name is never given to somebody else.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa

from penstock.base.checks import NAME, NAME_BOUND
from penstock.base.errors import CoordinatorError, InvalidInput, NotAllowed, Problem
from penstock.wire.signatures import fingerprint
from penstock_server.access.accesslog import AccessLog, here
from penstock_server.store.store import Store, account_key_table, metadata

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
    """The tokens of a store. Who changes them holds the directory, and leaves a record."""

    def __init__(self, store: Store, access: AccessLog) -> None:
        self._store = store
        self._access = access
        with store.reading() as c:
            there = sa.inspect(c).has_table(token_table.name)
        if not there:
            # A coordinator that was made before there was an API.
            with store.begin() as c:
                token_table.create(c, checkfirst=True)

    def add(self, name: str, role: Role, now: str, expires: str, *, key: str | None = None) -> str:
        """Make a token; returns it, the only time that it is seen.

        Args:
            key: a signing key to bind to the account.

        Raises:
            InvalidInput: not a name.
            CoordinatorError: a good token of this name is there already, or the key is another
                account's.
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
            told = {"account": name, "role": str(role), "expires": expires}
            self._access.append(c, "token-add", **told, **here().fields)
            if key is not None:
                self._bind(c, name, key, now)
        return secret

    def find(self, secret: str, now: str) -> Token | None:
        """The good token with this secret; None for any other, whatever is wrong with it."""
        found = self.ever(secret)
        return found if found is not None and found.good(now) else None

    def ever(self, secret: str) -> Token | None:
        """The token with this secret, also one that opens nothing any more."""
        wanted, found = _hash(secret), None
        with self._store.reading() as c:
            rows = _rows(c)
        for token, known in rows:  # all of them: how long it takes says nothing
            if hmac.compare_digest(known, wanted):
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
                raise _no_token(name)
            self._access.append(c, "token-revoke", account=name, **here().fields)

    # -- signing keys --------------------------------------------------------------------------

    def keys(self) -> dict[str, tuple[str, ...]]:
        """The signing keys of every account that has one."""
        query = sa.select(account_key_table).order_by(account_key_table.c.added)
        with self._store.reading() as c:
            rows = c.execute(query).mappings().all()
        accounts = dict.fromkeys(r["account"] for r in rows)
        return {name: tuple(r["key"] for r in rows if r["account"] == name) for name in accounts}

    def add_key(self, account: str, key: str, now: str) -> None:
        """Bind a signing key to an account; the same again changes nothing.

        Raises:
            CoordinatorError: no such account, or the key is bound to another.
            SignatureError: not a key.
        """
        with self._store.begin() as c:
            if all(t.name != account for t, _ in _rows(c)):
                raise _no_token(account)
            self._bind(c, account, key, now)

    def remove_key(self, account: str, key: str) -> None:
        """Take a signing key from an account: what it signs is refused from the next request on.

        Raises:
            CoordinatorError: it is not bound to the account.
        """
        mine = account_key_table.c.account == account, account_key_table.c.key == key
        with self._store.begin() as c:
            if not c.execute(account_key_table.delete().where(*mine)).rowcount:
                raise CoordinatorError(
                    "this key is not bound to that account",
                    value=fingerprint(key),
                    remedy="see `penstock server token list`",
                )
            self._access.append(c, "key-remove", account=account, key=key, **here().fields)

    def check_signer(self, account: str, key: str) -> None:
        """Refuse what is signed with a key that is not the account's.

        Raises:
            NotAllowed: it is another's, or nobody's: which of both is not said.
        """
        own = self.keys().get(account, ())
        if key not in own:
            raise NotAllowed(
                "this is signed with a key that is not bound to your account",
                value=fingerprint(key),
                bound=f"{account}: {', '.join(map(fingerprint, own)) or 'no key yet'}",
                remedy="sign with your own key, or send your .pub file to who runs the coordinator:"
                f" `penstock server token key add {account} analyst.pub`",
            )

    def check_readers(self, names: Sequence[str]) -> None:
        """Refuse readers without an account here: whoever got that name later could read.

        Raises:
            CoordinatorError: naming them.
        """
        known = {token.name for token in self.list()}
        missing = [name for name in names if name not in known]
        if missing:
            raise CoordinatorError(
                "readers without an account here",
                value=", ".join(missing),
                remedy="correct `readers`, or ask who runs the coordinator to add them",
            )

    def _bind(self, c: sa.Connection, account: str, key: str, now: str) -> None:
        fingerprint(key)  # raises unless it is a key
        bound = sa.select(account_key_table.c.account).where(account_key_table.c.key == key)
        holder = c.execute(bound).scalar()
        if holder == account:
            return
        if holder is not None:
            raise CoordinatorError(
                "this key is bound to another account",
                value=holder,
                remedy=f"a key is one person's: `penstock server token key remove {holder}` first",
            )
        c.execute(account_key_table.insert().values(key=key, account=account, added=now))
        self._access.append(c, "key-add", account=account, key=key, **here().fields)


def _no_token(name: str) -> CoordinatorError:
    remedy = "see `penstock server token list`"
    return CoordinatorError("no such token", value=name[:80], remedy=remedy)


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
