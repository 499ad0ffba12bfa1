"""Looking at certificates: who they are for, until when, and a fingerprint to read by voice."""

from __future__ import annotations

import hashlib
import ssl
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from penstock.base.errors import InvalidInput, Problem
from penstock.base.times import utc_now

MAX_BYTES = 1_000_000  # a certificate and its chain are a few thousand


def parse(pem: str, *, what: str = "certificate") -> x509.Certificate:
    """The first certificate of a PEM text.

    Raises:
        InvalidInput: no certificate there, or not a readable one.
    """
    return parse_all(pem, what=what)[0]


def parse_all(pem: str, *, what: str = "certificate") -> list[x509.Certificate]:
    """Every certificate of a PEM text, in its order.

    Raises:
        InvalidInput: none there, or one that cannot be read.
    """
    try:
        found = x509.load_pem_x509_certificates(pem.encode())
    except ValueError:
        remedy = "Give a PEM file that starts with -----BEGIN CERTIFICATE-----"
        raise InvalidInput(what, [Problem("", "not a certificate in PEM", remedy=remedy)]) from None
    return found


def read_certificate(path: Path) -> str:
    """A file's PEM text, once it is known to hold a certificate.

    Raises:
        InvalidInput: missing, not permitted, too large, or no certificate.
    """
    problem: Problem
    try:
        if path.stat().st_size > MAX_BYTES:
            problem = Problem("", "too large for a certificate", bound=f"at most {MAX_BYTES} bytes")
        else:
            pem = path.read_text(encoding="utf-8")
            parse(pem, what=str(path))
            return pem
    except FileNotFoundError:
        problem = Problem("", "no such file")
    except UnicodeDecodeError:
        problem = Problem("", "not PEM text", remedy="Convert it with `openssl x509 -inform DER`")
    except OSError as error:
        problem = Problem("", f"cannot be read: {error.strerror}")
    raise InvalidInput(str(path), [problem])


def fingerprint(pem: str) -> str:
    """``SHA256`` and 16 groups of four hex digits of the DER: what openssl prints, for voices.

    Raises:
        InvalidInput: no certificate.
    """
    der = parse(pem).public_bytes(serialization.Encoding.DER)
    digits = hashlib.sha256(der).hexdigest().upper()
    return "SHA256 " + " ".join(digits[i : i + 4] for i in range(0, len(digits), 4))


def find_end(pem: str) -> datetime:
    """The last moment at which the first certificate is valid, in UTC.

    Raises:
        InvalidInput: no certificate.
    """
    return parse(pem).not_valid_after_utc


def find_begin(pem: str) -> datetime:
    """The first moment at which the first certificate is valid, in UTC.

    Raises:
        InvalidInput: no certificate.
    """
    return parse(pem).not_valid_before_utc


def list_names(pem: str) -> list[str]:
    """The DNS names and IP addresses that the first certificate is for; a common name is none.

    Raises:
        InvalidInput: no certificate.
    """
    certificate = parse(pem)
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = [str(a) for a in found.get_values_for_type(x509.IPAddress)]
    return [*found.get_values_for_type(x509.DNSName), *addresses]


def count_days_left(pem: str, now: datetime | None = None) -> int:
    """Whole days until the first certificate expires; negative when it has.

    Raises:
        InvalidInput: no certificate.
    """
    return (find_end(pem) - (now or utc_now())).days


def make_client_context(ca_pem: str, *, strict: bool = False) -> ssl.SSLContext:
    """TLS 1.2 or later to a server whose chain ends at one of these authorities, and no others.

    Args:
        strict: also require what RFC 5280 asks of a chain, as Python does from 3.13 on.

    Raises:
        InvalidInput: no certificate.
    """
    parse_all(ca_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=ca_pem)
    if strict:
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context
