"""The way to the coordinator, one step at a time: name, port, TLS, clock, versions of the wire.

Where ``HTTPS_PROXY`` is set, and ``NO_PROXY`` does not exempt the coordinator, every step goes
through the proxy (CONNECT), as the SuperNode's own connection does.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import ipaddress
import json
import socket
import ssl
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.base.documents import Json
from penstock.base.times import read_stamp, utc_now
from penstock.processes import certificates
from penstock.processes.checkup import FAIL, OK, WARN, Row

SECONDS = 5.0
ABOUT = "/api/v1/about"
ABOUT_BYTES = 65_536
CLOCK_WARN, CLOCK_FAIL = 60.0, 280.0  # Flower refuses calls that are 300 s off
EXPIRY_WARN_DAYS = 14
_HEAD_BYTES = 65_536

_UNKNOWN_ISSUER = (18, 19, 20, 21, 2)  # X509_V_ERR_...: self-signed, no issuer, no signature
_EXPIRED, _EARLY, _WRONG_HOST, _WRONG_ADDRESS = 10, 9, 62, 64
_NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "UNKNOWN_PROTOCOL")
_OLD_TLS = ("UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "NO_PROTOCOLS_AVAILABLE")


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy of the environment; its password is used and never shown."""

    host: str
    port: int
    credentials: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class ProxyRefused(OSError):
    """The proxy answered CONNECT with something else than 200."""

    def __init__(self, proxy: Proxy, status: int, reason: str) -> None:
        self.status = status
        super().__init__(0, f"the proxy {proxy} answered {status} {reason}".strip())


def find_proxy(host: str, port: int) -> Proxy | None:
    """The proxy that TLS connections to a host go through; None for a direct way.

    Raises:
        ValueError: HTTPS_PROXY is not ``http://HOST:PORT``.
    """
    found = urllib.request.getproxies_environment()
    # With the port too: NO_PROXY may exempt one port only.
    exempt = urllib.request.proxy_bypass(host) or urllib.request.proxy_bypass(f"{host}:{port}")
    if "https" not in found or exempt:
        return None
    text = found["https"] if "://" in found["https"] else f"http://{found['https']}"
    parts = urllib.parse.urlsplit(text)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError("not http://HOST:PORT")
    user, password = (urllib.parse.unquote(t or "") for t in (parts.username, parts.password))
    credentials = f"{user}:{password}" if parts.username is not None else ""
    return Proxy(parts.hostname, parts.port or 80, credentials)


def connect(host: str, port: int) -> socket.socket:
    """A connection, through the proxy if there is one; every step within a few seconds.

    Raises:
        ProxyRefused: by the proxy; OSError: nobody there.
    """
    proxy = find_proxy(host, port)
    if proxy is None:
        return socket.create_connection((host, port), timeout=SECONDS)
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    raw = socket.create_connection((proxy.host, proxy.port), timeout=SECONDS)
    try:
        head = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n"
        if proxy.credentials:
            token = base64.b64encode(proxy.credentials.encode()).decode()
            head += f"Proxy-Authorization: Basic {token}\r\n"
        raw.sendall(f"{head}\r\n".encode())
        answer = b""
        # Byte by byte: what follows the head belongs to TLS.
        while not answer.endswith(b"\r\n\r\n") and len(answer) < _HEAD_BYTES:
            more = raw.recv(1)
            if not more:
                break
            answer += more
        words = answer.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        if status != 200:
            raise ProxyRefused(proxy, status, words[2] if len(words) > 2 else "")
    except BaseException:
        raw.close()
        raise
    return raw


def check_proxy(host: str, port: int) -> Row:
    """Which way connections to the coordinator take, by the environment."""
    found = urllib.request.getproxies_environment()
    try:
        proxy = find_proxy(host, port)
    except ValueError:
        remedy = "Set HTTPS_PROXY to http://HOST:PORT (the connection inside is TLS anyway)."
        return Row("proxy", FAIL, "HTTPS_PROXY is not http://HOST:PORT", remedy)
    if proxy is not None:
        what = f"HTTPS_PROXY: through {proxy}; this machine's own addresses are exempt"
        return Row("proxy", OK, what)
    if "https" in found:
        return Row("proxy", OK, f"direct: NO_PROXY exempts {host}")
    if "http" in found or "all" in found:
        name = "HTTP_PROXY" if "http" in found else "ALL_PROXY"
        remedy = "If this network needs a proxy, set HTTPS_PROXY as well."
        return Row("proxy", WARN, f"direct: {name} alone is not used for TLS", remedy)
    return Row("proxy", OK, "none: direct")


def check_dns(host: str, port: int) -> Row:
    """Whether the coordinator's name, or else the proxy's, has an address."""
    proxy = find_proxy(host, port)
    name = proxy.host if proxy is not None else host
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return Row("name", OK, f"{name} is an address" + _tell_of_proxy(proxy, host))
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        whose = "HTTPS_PROXY" if proxy is not None else "the coordinator's invite"
        remedy = f"Check the name in {whose}, and this machine's name server."
        return Row("name", FAIL, f"{name} has no address", remedy)
    addresses = ", ".join(list(dict.fromkeys(str(a[4][0]) for a in found))[:3])
    return Row("name", OK, f"{name} is {addresses}" + _tell_of_proxy(proxy, host))


def _tell_of_proxy(proxy: Proxy | None, host: str) -> str:
    return f"; the proxy looks up {host}" if proxy is not None else ""


def check_port(host: str, port: int) -> Row:
    """Whether the coordinator's port takes connections, through the proxy if there is one."""
    proxy = find_proxy(host, port)
    place, way = f"{host} port {port}", f" through the proxy {proxy}" if proxy is not None else ""
    firewall = f"Ask for outgoing TCP to {place} to be opened, or whether the coordinator runs."
    try:
        connect(host, port).close()
    except ProxyRefused as error:
        return Row("port", FAIL, f"{error.strerror} for {place}", _proxy_remedy(error, place))
    except TimeoutError:
        return Row("port", FAIL, f"{place}: no answer in {SECONDS:g} s{way}", firewall)
    except ConnectionRefusedError:
        if proxy is not None:
            remedy = "Check the address in HTTPS_PROXY, and whether the proxy runs."
            return Row("port", FAIL, f"the proxy {proxy} refuses connections", remedy)
        remedy = "Ask whether the coordinator runs, and whether a firewall stands before it."
        return Row("port", FAIL, f"{place} is closed", remedy)
    except OSError as error:
        what = error.strerror or type(error).__name__
        return Row("port", FAIL, f"{place}: {what}{way}", firewall)
    return Row("port", OK, f"{place} takes connections{way}")


def _proxy_remedy(error: ProxyRefused, place: str) -> str:
    if error.status == 407:
        return "Put the proxy's user and password into HTTPS_PROXY: http://USER:PASSWORD@HOST:PORT."
    if error.status in (502, 503, 504):
        return f"The proxy cannot reach {place}: ask whether the coordinator runs."
    if error.status == 0:
        return "Check HTTPS_PROXY: what answers there is no HTTP proxy."
    return f"Ask who runs the proxy to allow CONNECT to {place}."


def check_tls_chain(host: str, port: int, ca_pem: str) -> Row:
    """Whether the coordinator proves who it is by the authority of the invitation."""
    context = certificates.make_client_context(ca_pem)
    try:
        with connect(host, port) as raw:
            with context.wrap_socket(raw, server_hostname=host) as up:
                version = up.version()
                pem = ssl.DER_cert_to_PEM_cert(up.getpeercert(binary_form=True) or b"")
    except ssl.SSLCertVerificationError as error:
        return _explain_refusal(host, port, error)
    except ssl.SSLError as error:
        return _report_no_tls(host, port, error.reason or "")
    except TimeoutError:
        remedy = "Ask which program listens there: it does not answer TLS."
        return Row("tls", FAIL, f"{host} port {port} does not answer the TLS greeting", remedy)
    except OSError as error:
        what = f"cut off during the TLS greeting ({error.strerror or type(error).__name__})"
        remedy = "Ask whether a firewall on the way lets TLS pass, and whether this is the port."
        return Row("tls", FAIL, what, remedy)
    left, last = certificates.count_days_left(pem), certificates.find_end(pem)
    found = f"{version}, certificate valid until {last:%Y-%m-%d}"
    if left < EXPIRY_WARN_DAYS:
        remedy = "Tell the coordinator: it renews its certificate when it is started anew."
        return Row("tls", WARN, f"{found}, {left} days", remedy)
    return Row("tls", OK, found)


def _report_no_tls(host: str, port: int, reason: str) -> Row:
    if reason in _NOT_TLS:
        what = f"what answers on {host} port {port} does not speak TLS"
        return Row("tls", FAIL, what, "Check the port: something else listens there.")
    if reason in _OLD_TLS:
        what = f"{host} port {port} offers no TLS 1.2 or later"
        return Row("tls", FAIL, what, "Check the port, and what stands between.")
    remedy = "Ask whether a firewall on the way lets TLS pass, and whether this is the port."
    return Row("tls", FAIL, f"the TLS greeting failed ({reason or 'cut off'})", remedy)


def _explain_refusal(host: str, port: int, error: ssl.SSLCertVerificationError) -> Row:
    """Which of the things that can be wrong with a certificate it is."""
    shown = _fetch_presented(host, port)
    code = error.verify_code
    if code in (_WRONG_HOST, _WRONG_ADDRESS) and shown:
        names = ", ".join(certificates.list_names(shown)) or "no name at all"
        remedy = f"Use one of its names, or ask the coordinator for a certificate for {host}."
        return Row("tls", FAIL, f"the certificate is not for {host} but for {names}", remedy)
    if code == _EXPIRED and shown:
        last = f"{certificates.find_end(shown):%Y-%m-%d}"
        remedy = "Tell the coordinator to renew it; check this machine's date as well."
        return Row("tls", FAIL, f"the certificate expired on {last}{_tell_time()}", remedy)
    if code == _EARLY and shown:
        first = f"{certificates.find_begin(shown):%Y-%m-%d %H:%M} UTC"
        remedy = "Set this machine's clock; if it is right, the coordinator's is wrong."
        return Row("tls", FAIL, f"the certificate is valid only from {first}{_tell_time()}", remedy)
    if code in _UNKNOWN_ISSUER:
        by = f", but of {certificates.parse(shown).issuer.rfc4514_string()}" if shown else ""
        remedy = (
            "Ask your network's people to exempt the coordinator from TLS inspection; "
            "if they do none, join again with a fresh invite."
        )
        return Row("tls", FAIL, f"not the authority of the invite{by}", remedy)
    return Row("tls", FAIL, f"refused: {error.verify_message}", "Show this to the coordinator.")


def _tell_time() -> str:
    return f" (here it is {utc_now():%Y-%m-%d %H:%M} UTC)"


def _fetch_presented(host: str, port: int) -> str:
    """The certificate that is shown there, trusted for nothing; empty if there is none now."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with contextlib.suppress(OSError, ValueError):
        with connect(host, port) as raw, context.wrap_socket(raw, server_hostname=host) as up:
            return ssl.DER_cert_to_PEM_cert(up.getpeercert(binary_form=True) or b"")
    return ""


def ask_about(url: str, ca_pem: str) -> tuple[Json, float]:
    """What the coordinator says of itself, and how many seconds this clock is ahead of its own.

    Raises:
        OSError: nobody there; ValueError: not a coordinator's answer.
    """
    parts = urllib.parse.urlsplit(url)
    host, number = parts.hostname or "", parts.port or 443
    context = certificates.make_client_context(ca_pem)
    with connect(host, number) as raw, context.wrap_socket(raw, server_hostname=host) as up:
        before = utc_now()
        up.sendall(
            f"GET {ABOUT} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode()
        )
        answer = http.client.HTTPResponse(up)
        try:
            answer.begin()
            body = answer.read(ABOUT_BYTES)
        except http.client.HTTPException as error:
            raise ValueError(f"no HTTP ({type(error).__name__})") from None
        after = utc_now()
    if answer.status != 200:
        raise ValueError(f"HTTP status {answer.status}")
    said = json.loads(body)
    if not isinstance(said, dict):
        raise ValueError("no object")
    theirs = read_stamp(str(said.get("time")))
    return said, (before + (after - before) / 2 - theirs).total_seconds()


def check_clock(url: str, ca_pem: str, served: Iterable[int] | None = None) -> list[Row]:
    """This clock against the coordinator's, and the wire versions both sides speak.

    Args:
        served: our major versions of the wire; None leaves that row out.
    """
    try:
        said, ahead = ask_about(url, ca_pem)
    except (OSError, ValueError) as error:
        what = f"the coordinator does not answer {ABOUT} ({error})"
        remedy = "Check the port, and that the coordinator's version is 0.1 or later."
        return [Row("clock", FAIL, what, remedy)]
    off, way = abs(ahead), "ahead of" if ahead > 0 else "behind"
    state = FAIL if off > CLOCK_FAIL else WARN if off > CLOCK_WARN else OK
    found = f"{off:.0f} s {way} the coordinator's" if off >= 1 else "as the coordinator's"
    remedy = "Let this machine's clock follow NTP; beyond 300 s the coordinator refuses all calls."
    rows = [Row("clock", state, found, "" if state == OK else remedy)]
    if served is not None:
        rows.append(_check_wire(said, set(served)))
    return rows


def _check_wire(said: Json, ours: set[int]) -> Row:
    theirs = said.get("wire_majors")
    known = {m for m in theirs if type(m) is int} if isinstance(theirs, list) else set()
    shared = sorted(ours & known)
    name = f"coordinator {str(said.get('penstock'))[:40]}"
    if shared:
        return Row("wire", OK, f"{name}, wire {', '.join(map(str, shared))}")
    what = f"{name} speaks wire {sorted(known) or 'unknown'}, this side {sorted(ours)}"
    return Row("wire", FAIL, what, "Install the same version of Penstock on both sides.")


def check_way(
    host: str, number: int, ca_pem: str, served: Iterable[int] | None = None
) -> list[Row]:
    """All steps to the coordinator in their order, as far as the first that fails."""
    shown = f"[{host}]:{number}" if ":" in host else f"{host}:{number}"
    steps: list[Callable[[], list[Row]]] = [
        lambda: [check_proxy(host, number)],
        lambda: [check_dns(host, number)],
        lambda: [check_port(host, number)],
        lambda: [check_tls_chain(host, number, ca_pem)],
        lambda: check_clock(f"https://{shown}", ca_pem, served),
    ]
    rows: list[Row] = []
    for step in steps:
        rows += step()
        if any(row.state == FAIL for row in rows):
            break
    return rows
