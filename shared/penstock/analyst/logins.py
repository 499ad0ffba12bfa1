"""Logins that `penstock login` has saved: address, token and authority, readable by their owner.

``~/.config/penstock/logins.json`` (``XDG_CONFIG_HOME`` and ``PENSTOCK_CONFIG`` move it), 0600.
``PENSTOCK_TOKEN`` and ``PENSTOCK_CA`` (a file) stand in for a login where nothing is to be saved.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from penstock.base.documents import JsonView
from penstock.base.errors import InvalidInput, NotAllowed, PenstockError, Problem
from penstock.base.files import reading_named, write_atomic

FORMAT = "penstock-logins/1"
TOKEN = re.compile(r"pst_[A-Za-z0-9_-]{20,200}")
INSECURE = "PENSTOCK_INSECURE_HTTP"


@dataclass(frozen=True, slots=True)
class Login:
    """How one coordinator is reached.

    Attributes:
        url: as :func:`read_address` gives it.
        ca: the authority's certificate in PEM; None for those that the system trusts.
    """

    name: str
    url: str
    token: str = field(repr=False)
    ca: str | None = None


@dataclass(frozen=True, slots=True)
class Logins:
    """All saved logins by name, and the one that is meant where none is named."""

    default: str = ""
    logins: Mapping[str, Login] = field(default_factory=dict)

    def add(self, login: Login) -> Logins:
        """With this login, which becomes the default; it takes the place of one of its name."""
        return Logins(login.name, {**self.logins, login.name: login})

    def remove(self, name: str) -> Logins:
        """Without this login; the default moves to another if there is exactly one.

        Raises:
            PenstockError: none of this name.
        """
        if name not in self.logins:
            known = ", ".join(self.logins) or "none"
            raise PenstockError("no such login", value=name, bound=f"saved: {known}")
        rest = {n: login for n, login in self.logins.items() if n != name}
        default = (
            self.default if self.default in rest else next(iter(rest)) if len(rest) == 1 else ""
        )
        return Logins(default, rest)


def find_file() -> Path:
    """Where logins are kept."""
    if own := os.environ.get("PENSTOCK_CONFIG"):
        return Path(own) / "logins.json"
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "penstock" / "logins.json"


def load() -> Logins:
    """What is saved; empty if nothing is.

    Raises:
        PenstockError: others can read the file, or it is damaged.
    """
    path = find_file()
    try:
        mode = path.stat().st_mode & 0o777
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Logins()
    if os.name == "posix" and mode & 0o077:
        raise PenstockError(
            "the saved logins can be read by others",
            value=oct(mode),
            bound="0600",
            remedy=f"chmod 600 {path}; if others use this machine, ask for new tokens",
        )
    try:
        data = json.loads(text)
        if data["format"] != FORMAT:
            raise ValueError
        found = {name: _login(name, entry) for name, entry in data["logins"].items()}
        return Logins(str(data["default"]), found)
    except (ValueError, KeyError, TypeError, AttributeError, InvalidInput):
        raise PenstockError(
            "the saved logins cannot be read",
            value=path,
            remedy="move the file away, and log in again",
        ) from None


def _login(name: str, data: JsonView) -> Login:
    token, ca = data["token"], data["ca"]
    if not TOKEN.fullmatch(token) or not (ca is None or isinstance(ca, str)):
        raise ValueError
    return Login(name, read_address(data["url"]), token, ca)


def save(saved: Logins) -> Path:
    """Write all logins, whole or not at all, and never readable by others."""
    path = find_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    entries = {n: {"url": x.url, "token": x.token, "ca": x.ca} for n, x in saved.logins.items()}
    data = {"format": FORMAT, "default": saved.default, "logins": entries}
    write_atomic(path, json.dumps(data, indent=1).encode())
    return path


def find(where: str | None) -> Login | None:
    """The login for an address, of a name, or (None) the default one.

    Returns:
        None if ``where`` names no login and is no address.

    Raises:
        InvalidInput: not an address.
        NotAllowed: an address, or the default, without a login.
    """
    saved, token = load(), os.environ.get("PENSTOCK_TOKEN")
    if where is not None and "://" in where:
        url = read_address(where)
        same = [x for x in saved.logins.values() if x.url == url]
        # Two logins may share an address (two roles): the default one goes first.
        same.sort(key=lambda x: x.name != saved.default)
        found = same[0] if same else Login(url, url, "", _environment_ca())
    else:
        known = saved.logins.get(saved.default if where is None else where)
        if known is None and where is not None:
            return None
        if known is None:
            raise NotAllowed(
                "no coordinator is named, and there is no login",
                remedy="run `penstock login https://...`, or give --coordinator",
            )
        found = known
    if token:
        found = Login(found.name, found.url, check_token(token), found.ca)
    if not found.token:
        raise NotAllowed(
            "not logged in there", value=found.url, remedy=f"run `penstock login {found.url}`"
        )
    return found


def _environment_ca() -> str | None:
    path = os.environ.get("PENSTOCK_CA")
    return read_ca(Path(path)) if path else None


def read_ca(path: Path) -> str:
    """An authority's certificate in PEM.

    Raises:
        InvalidInput: it cannot be read, or holds no certificate, or a private key.
    """
    remedy = "Give the ca.crt that you got from who runs the coordinator"
    try:
        with reading_named(path, remedy):
            text = path.read_text(encoding="ascii")
    except UnicodeDecodeError:
        text = ""
    if "PRIVATE KEY" in text:
        instead = "Give ca.crt; a private key is never needed here"
        raise InvalidInput(str(path), [Problem("", "holds a private key", remedy=instead)])
    if "BEGIN CERTIFICATE" not in text:
        raise InvalidInput(str(path), [Problem("", "no certificate in PEM", remedy=remedy)])
    return text


def check_token(token: str) -> str:
    """A token that can be one; what it is not is never shown.

    Raises:
        NotAllowed: it cannot.
    """
    token = token.strip()
    if not TOKEN.fullmatch(token):
        raise NotAllowed(
            "that is not a token",
            bound="pst_ and 43 letters, digits, '-' or '_'",
            remedy="copy it whole, as `penstock server token add` printed it",
        )
    return token


def read_address(url: str) -> str:
    """A coordinator's address: https, a host, perhaps a port and a path, and nothing else.

    Raises:
        InvalidInput: something else. What it is, is not shown where it may hold a password.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise _refuse_address("cannot be read") from None
    host = (parts.hostname or "").lower()
    if parts.username is not None or parts.password is not None:
        raise _refuse_address("holds a user name or password", "Leave them out")
    if parts.scheme not in ("https", "http") or not host:
        raise _refuse_address("is no web address", "Write https://HOST:PORT")
    if parts.query or parts.fragment:
        raise _refuse_address("has more than host, port and path", "Leave out what follows")
    if parts.scheme == "http" and not (is_loopback(host) and os.environ.get(INSECURE) == "1"):
        raise _refuse_address("is not encrypted: your token could be read", "Write https://")
    shown = f"[{host}]" if ":" in host else host
    netloc = shown if port is None else f"{shown}:{port}"
    return SplitResult(parts.scheme, netloc, parts.path.rstrip("/"), "", "").geturl()


def _refuse_address(message: str, remedy: str | None = None) -> InvalidInput:
    return InvalidInput("coordinator", [Problem("address", message, remedy=remedy)])


def is_loopback(host: str) -> bool:
    """Whether a host is this machine itself, so that no proxy and no wire lies between."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
