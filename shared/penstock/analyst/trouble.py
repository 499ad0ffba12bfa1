"""What may go wrong between here and a coordinator, and what to do about each."""

from __future__ import annotations

import errno
import json
import re
import socket
import ssl
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from penstock.analyst.logins import is_loopback
from penstock.base.documents import Json
from penstock.base.errors import (
    CoordinatorError,
    NotAllowed,
    PenstockError,
    Unreachable,
    error_from_dict,
)
from penstock.base.printable import make_printable
from penstock.base.shapes import has_fields, is_object
from penstock.wire.messages import WIRE_VERSION

# X509_V_ERR_*: https://docs.openssl.org/master/man3/X509_STORE_CTX_get_error/
_NOT_YET, _EXPIRED, _WRONG_NAME, _WRONG_ADDRESS = 9, 10, 62, 64
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21, 24)
_NOT_TLS = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
)
_AWAY = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)
_CUT = (ConnectionResetError, BrokenPipeError, ConnectionAbortedError)
_LOST = ("ReadError", "WriteError", "CloseError", "RemoteProtocolError")
_PASSING_STATUS = (429, 502, 503, 504)


def is_lost(error: BaseException) -> bool:
    """Whether a connection broke that had been there: asking again makes sense."""
    if type(error).__name__ in _LOST:
        return not _is_garbage(error)
    causes = list(_list_causes(error))
    return any(isinstance(c, (*_CUT, ssl.SSLEOFError)) for c in causes)


def _is_garbage(error: BaseException) -> bool:
    return type(error).__name__ == "RemoteProtocolError" and "illegal" in str(error)


def _list_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@dataclass(frozen=True, slots=True)
class Place:
    """Where a coordinator is, for messages about the way there.

    Attributes:
        proxy: host and port of the proxy between, without its password; None if there is none.
    """

    url: str
    proxy: str | None = None

    @classmethod
    def of(cls, url: str) -> Place:
        """A place with the proxy that the environment puts before it."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        if is_loopback(host) or urllib.request.proxy_bypass(host):
            return cls(url)
        proxies = urllib.request.getproxies()
        given = proxies.get(parts.scheme) or proxies.get("all")
        if not given:
            return cls(url)
        return cls(url, given.rpartition("@")[2].rpartition("://")[2].rstrip("/"))

    # -- no answer -------------------------------------------------------------------------------

    def explain(self, error: BaseException) -> Unreachable:
        """The typed error for a request that had no answer."""
        causes = list(_list_causes(error))
        for cause in causes:
            if isinstance(cause, ssl.SSLCertVerificationError):
                return self._certificate(cause)
            if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
                return self._no_tls(cause)
            if isinstance(cause, socket.gaierror):
                return self._no_name(cause)
            if isinstance(cause, ConnectionRefusedError):
                return self._error(
                    "nothing answers at that port",
                    "check the port, and ask who runs the coordinator whether it is up",
                    passing=True,
                )
            if isinstance(cause, OSError) and cause.errno in _AWAY:
                remedy = "check this machine's network, and whether a VPN is needed"
                return self._error("there is no way to that address", remedy, passing=True)
        kind = type(error).__name__
        if kind == "ProxyError":
            return self._proxy_refuses(str(error))
        if kind in ("ConnectTimeout", "PoolTimeout"):
            return self._error(
                "no connection in time",
                "a firewall may drop it: ask whether this machine may reach that port",
                passing=True,
            )
        if "Timeout" in kind:
            remedy = "try again; if it stays so, ask who runs the coordinator"
            return self._error("no answer in time", remedy, passing=True)
        if kind == "UnsupportedProtocol" or _is_garbage(error):
            return self.stranger("no HTTP")
        remedy = "try again; if it stays so, a firewall or proxy may cut connections"
        return self._error("the connection was lost", remedy, passing=True)

    def _certificate(self, cause: ssl.SSLCertVerificationError) -> Unreachable:
        code = cause.verify_code
        if code == _EXPIRED:
            what = "the server's certificate has expired"
            remedy = "ask who runs the coordinator to renew it; is this machine's clock right?"
        elif code == _NOT_YET:
            what = "the server's certificate is not valid yet"
            remedy = "set this machine's clock"
        elif code in (_WRONG_NAME, _WRONG_ADDRESS):
            what = "the server's certificate is for another name"
            remedy = "use the name it was made for, or ask for a certificate with this one"
        elif code in _UNKNOWN_AUTHORITY:
            what = "the server's certificate is by an authority that is not trusted here"
            remedy = "log in again with --ca and the ca.crt of who runs the coordinator"
            if self.proxy:
                remedy += "; the proxy may open connections: then ask for it to leave this one"
        else:
            what = f"the server's certificate is refused: {cause.verify_message}"
            remedy = "show this to who runs the coordinator"
        return self._error(what, remedy)

    def _no_tls(self, cause: ssl.SSLError) -> Unreachable:
        if cause.reason in _NOT_TLS:
            return self._error(
                "that port does not speak TLS",
                "check the port: the coordinator's own is meant, not a plain http one",
            )
        # Not the library's whole text: it names source lines.
        reason = (cause.reason or "unknown").lower().replace("_", " ")
        remedy = "show this to who runs the coordinator"
        return self._error(f"no TLS connection: {reason}", remedy)

    def _no_name(self, cause: socket.gaierror) -> Unreachable:
        remedy = "check the spelling, and whether a VPN or a proxy (HTTPS_PROXY) is needed"
        passing = cause.errno == socket.EAI_AGAIN
        return self._error("that name cannot be found", remedy, passing=passing)

    def _proxy_refuses(self, text: str) -> Unreachable:
        found = re.search(r"\b[45]\d\d\b", text)
        status = int(found[0]) if found else 0
        if status == 407:
            return self._error(
                "the proxy wants a user name and password (407)",
                "set HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT, or ask for a rule without",
            )
        if status == 403:
            return self._error(
                "the proxy does not let this connection through (403)",
                "ask who runs the proxy to allow CONNECT to this host and port",
            )
        return self._error(
            f"the proxy makes no connection ({status or 'no answer'})",
            "ask who runs the proxy, or exempt this host with NO_PROXY",
            passing=status in _PASSING_STATUS,
        )

    def _error(self, what: str, remedy: str, *, passing: bool = False) -> Unreachable:
        bound = f"through the proxy {self.proxy}" if self.proxy else None
        return Unreachable(what, value=self.url, bound=bound, remedy=remedy, passing=passing)

    # -- an answer that is none ------------------------------------------------------------------

    def stranger(self, what: str) -> Unreachable:
        """Something answers, and it is no Penstock coordinator."""
        shown = make_printable(what[:60], "")
        return self._error(
            f"no Penstock coordinator answers there, but something that sends {shown}",
            "check host and port; a proxy's or portal's page may come instead",
        )

    def refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> PenstockError:
        """The typed error for an answer other than 200."""
        record = _record(body)
        if record is None:
            return self._not_ours(status, headers)
        code = record["code"]
        if status == 426:
            theirs = error_from_dict(record).bound
            return Unreachable(
                "this version and the coordinator's do not understand each other",
                value=f"wire {WIRE_VERSION} here",
                bound=None if theirs is None else f"there {theirs}",
                remedy="upgrade the older: `pip install -U penstock` here, or ask who runs it",
            )
        if status == 503 and code == "unavailable":
            remedy = "try again in a minute"
            return self._error("the coordinator is not ready", remedy, passing=True)
        if code == "internal":
            return CoordinatorError(
                "the coordinator met an error of its own",
                remedy="ask who runs it to look at its log",
            )
        if "message" not in record:
            return CoordinatorError(
                "the coordinator does not know this request",
                value=f"HTTP {status}",
                remedy="its version may be older than this one: ask who runs it",
            )
        return error_from_dict(record)

    def _not_ours(self, status: int, headers: Mapping[str, str]) -> PenstockError:
        if status == 407:
            return self._proxy_refuses("407")
        if status in _PASSING_STATUS:
            remedy = "try again in a minute; if it stays so, ask who runs the coordinator"
            what = f"something before the coordinator has no answer from it (HTTP {status})"
            return self._error(what, remedy, passing=True)
        if status in (401, 403):
            return NotAllowed(
                f"something before the coordinator refuses (HTTP {status})",
                value=self.url,
                remedy="a proxy or portal stands between: ask who runs it to let this through",
            )
        if status == 426:
            return self._error("the server wants another protocol (HTTP 426)", "check the port")
        if 300 <= status < 400:
            elsewhere = urlsplit(headers.get("location", "")).hostname or "another page"
            shown = make_printable(elsewhere[:80], "")
            return self._error(
                f"that address sends on to {shown}",
                "use the coordinator's own address; your token was sent nowhere else",
            )
        return self.stranger(headers.get("content-type", "") or f"HTTP {status}")


def _record(body: bytes) -> Json | None:
    """The body of an answer that only a coordinator of ours gives."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if is_object(found) and has_fields(found, str, "code") else None
