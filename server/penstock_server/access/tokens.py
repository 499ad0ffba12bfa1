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

from penstock.base.checks import NAME, NAME_BOUND
from penstock.base.errors import CoordinatorError, InvalidInput, NotAllowed, Problem
from penstock.wire.signatures import fingerprint
from penstock_server.access.access_chain import AccessLog, name_local_visitor
from penstock_server.store.accounts import TokenRow
from penstock_server.store.database import Transaction
from penstock_server.store.store import Store

PREFIX = "pst_"
TOKEN = re.compile(PREFIX + r"[A-Za-z0-9_-]{43}")
SECRET_BYTES = 32


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
        store.accounts.make_tables()

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
        with self._store.begin() as c:
            if any(t.name == name and t.good(now) for t, _ in self._read(c)):
                raise CoordinatorError(
                    "a token of this name is in use",
                    value=name,
                    remedy=f"choose another name, or `penstock server token revoke {name}` first",
                )
            row = TokenRow(_hash(secret), name, str(role), now, expires)
            self._store.accounts.add_token(c, row)
            told = {"account": name, "role": str(role), "expires": expires}
            self._access.append(c, "token-add", **told, **name_local_visitor().fields)
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
            rows = self._read(c)
        for token, known in rows:  # all of them: how long it takes says nothing
            if hmac.compare_digest(known, wanted):
                found = token
        return found

    def list(self) -> list[Token]:
        """All tokens ever made, oldest first."""
        with self._store.reading() as c:
            return [token for token, _ in self._read(c)]

    def revoke(self, name: str, now: str) -> None:
        """End the token of this name, from the next request on.

        Raises:
            CoordinatorError: none of this name stands.
        """
        with self._store.begin() as c:
            if not self._store.accounts.revoke_tokens(c, name, now):
                raise _make_unknown(name)
            self._access.append(c, "token-revoke", account=name, **name_local_visitor().fields)

    # -- signing keys --------------------------------------------------------------------------

    def keys(self) -> dict[str, tuple[str, ...]]:
        """The signing keys of every account that has one."""
        found = self._store.accounts.keys()
        accounts = dict.fromkeys(account for account, _ in found)
        return {name: tuple(key for holder, key in found if holder == name) for name in accounts}

    def add_key(self, account: str, key: str, now: str) -> None:
        """Bind a signing key to an account; the same again changes nothing.

        Raises:
            CoordinatorError: no such account, or the key is bound to another.
            SignatureError: not a key.
        """
        with self._store.begin() as c:
            if all(t.name != account for t, _ in self._read(c)):
                raise _make_unknown(account)
            self._bind(c, account, key, now)

    def remove_key(self, account: str, key: str) -> None:
        """Take a signing key from an account: what it signs is refused from the next request on.

        Raises:
            CoordinatorError: it is not bound to the account.
        """
        with self._store.begin() as c:
            if not self._store.accounts.remove_key(c, account, key):
                raise CoordinatorError(
                    "this key is not bound to that account",
                    value=fingerprint(key),
                    remedy="see `penstock server token list`",
                )
            self._access.append(
                c, "key-remove", account=account, key=key, **name_local_visitor().fields
            )

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
                remedy="sign with a key that is, or send the .pub file of this one to who runs the "
                f"coordinator: `penstock server token key add {account} KEY.pub`",
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

    def _read(self, c: Transaction) -> Sequence[tuple[Token, str]]:
        """Every token ever made, with the hash of its secret."""
        return [
            (Token(r.name, Role(r.role), r.created, r.expires, r.revoked), r.sha256)
            for r in self._store.accounts.tokens(c)
        ]

    def _bind(self, c: Transaction, account: str, key: str, now: str) -> None:
        fingerprint(key)  # raises unless it is a key
        holder = self._store.accounts.key_holder(c, key)
        if holder == account:
            return
        if holder is not None:
            raise CoordinatorError(
                "this key is bound to another account",
                value=holder,
                remedy=f"a key is one person's: `penstock server token key remove {holder}` first",
            )
        self._store.accounts.add_key(c, account, key, now)
        self._access.append(c, "key-add", account=account, key=key, **name_local_visitor().fields)


def _make_unknown(name: str) -> CoordinatorError:
    remedy = "see `penstock server token list`"
    return CoordinatorError("no such token", value=name[:80], remedy=remedy)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
