"""The coordinator's certificates: an authority of its own, or one that the institution brings.

``tls/`` holds ``ca.crt`` (what sites get), ``ca.key`` (only for an authority of our own),
``server.crt`` and ``server.key``. Keys are 0600 from their creation on. The authority is never
overwritten: every site that joined trusts it. A renewal keeps the server's key, so that there is
no moment at which key and certificate do not belong together.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import ssl
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.base.errors import CoordinatorError, InvalidInput, Problem
from penstock.base.files import write_atomic
from penstock.base.times import utc_now
from penstock.processes import certificates
from penstock.wire.signatures import private_to_pem

CA_CERT, CA_KEY, CERT, KEY = "ca.crt", "ca.key", "server.crt", "server.key"
CA_DAYS = 3652  # ten years
SERVER_DAYS = 397  # the longest that browsers accept
RENEW_DAYS = 30
BACKDATED = timedelta(hours=1)  # for clients whose clocks are a little behind

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")


def issue(folder: Path, names: Sequence[str], *, now: datetime | None = None) -> None:
    """Make the server's certificate for these names, and the authority if there is none yet.

    Args:
        folder: made with mode 0700 if it is not there.
        names: DNS names and IP addresses by which sites and analysts reach the coordinator.
        now: for tests only.

    Raises:
        InvalidInput: no name, or one that is neither a DNS name nor an address.
        CoordinatorError: the authority is the institution's, or its files are damaged.
    """
    subjects = _subjects(names)
    moment = now or utc_now()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority_key, authority_cert = _authority(folder, moment)
    key = _server_key(folder)
    until = min(moment + timedelta(days=SERVER_DAYS), authority_cert.not_valid_after_utc)
    common = x509.NameAttribute(NameOID.COMMON_NAME, "Penstock coordinator")
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([common]))
        .issuer_name(authority_cert.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - BACKDATED)
        .not_valid_after(until)
        .add_extension(x509.SubjectAlternativeName(subjects), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_issued_by(authority_cert), critical=False)
    )
    write_atomic(folder / CERT, _pem(builder.sign(authority_key, hashes.SHA256())), 0o644)


def adopt(folder: Path, cert: Path, key: Path, ca: Path) -> None:
    """Use the institution's certificate: checked as a client will check it, then copied.

    Args:
        cert: the server's certificate in PEM, followed by its intermediate authorities if any.
        key: its private key in PEM, without a passphrase.
        ca: the authority's root certificate in PEM: what sites and analysts will trust.

    Raises:
        InvalidInput: a file cannot be read, or the three do not make a connection that a client
            accepts: another key, another authority, expired, or no name in it.
        CoordinatorError: the coordinator made an authority of its own, which sites may trust.
    """
    if (folder / CA_KEY).exists():
        raise CoordinatorError(
            "this coordinator has an authority of its own, which sites may trust already",
            value=folder,
            remedy="to change it, move the folder away, adopt, and let every site join anew",
        )
    cert_pem, ca_pem = certificates.read_certificate(cert), certificates.read_certificate(ca)
    try:
        key_pem = key.read_bytes()
    except OSError as error:
        raise InvalidInput(str(key), [Problem("", f"cannot be read: {error.strerror}")]) from None
    _check_dates(cert, cert_pem)
    subjects = certificates.list_names(cert_pem)
    if not subjects:
        remedy = "Ask for one with subject alternative names; a common name is not enough"
        raise InvalidInput(str(cert), [Problem("", "is for no name", remedy=remedy)])
    context = _loaded(cert, key)
    for name in subjects:
        why = _handshake(context, ca_pem, name.replace("*", "penstock", 1), strict=False)
        if why:
            remedy = "Give the root in --ca, and the intermediates after the certificate"
            problem = Problem("", f"clients refuse it as {name}", value=why, remedy=remedy)
            raise InvalidInput(str(cert), [problem])
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(folder / CA_CERT, ca_pem.encode(), 0o644)
    write_atomic(folder / KEY, key_pem, 0o600)
    write_atomic(folder / CERT, cert_pem.encode(), 0o644)


def renew_if_due(folder: Path, names: Sequence[str], *, now: datetime | None = None) -> bool:
    """Make a new server certificate if the one there ends within 30 days, or has other names.

    An adopted certificate is never touched: only its institution can renew it.

    Returns:
        Whether a new one was made; the server must load it.

    Raises:
        InvalidInput: a name that is neither a DNS name nor an address.
        CoordinatorError: no authority there, or its files are damaged.
    """
    moment = now or utc_now()
    if is_adopted(folder):
        return False
    read_authority(folder)
    wanted = {str(subject.value) for subject in _subjects(names)}
    try:
        pem = certificates.read_certificate(folder / CERT)
    except InvalidInput:
        good = False
    else:
        good = certificates.count_days_left(pem, moment) >= RENEW_DAYS
        good = good and set(certificates.list_names(pem)) == wanted and _belongs(folder, pem)
    if not good:
        issue(folder, names, now=moment)
    return not good


def is_adopted(folder: Path) -> bool:
    """Whether the certificate is the institution's, and not by an authority of our own."""
    return (folder / CA_CERT).exists() and not (folder / CA_KEY).exists()


def read_authority(folder: Path) -> str:
    """The authority's certificate in PEM: what invitations carry.

    Raises:
        CoordinatorError: none there.
    """
    if not (folder / CA_CERT).exists():
        raise CoordinatorError(
            "no certificates here", value=folder, remedy="run `penstock server init`"
        )
    return certificates.read_certificate(folder / CA_CERT)


def find_problem(folder: Path, name: str, *, strict: bool = False) -> str:
    """Why a client that knows the coordinator by this name refuses it; empty if it does not.

    Args:
        strict: as a client does that also requires what RFC 5280 asks (Python 3.13 and later).

    Raises:
        InvalidInput: certificate or key is missing or damaged; CoordinatorError: no authority.
    """
    return _handshake(server_context(folder), read_authority(folder), name, strict=strict)


def server_context(folder: Path) -> ssl.SSLContext:
    """TLS 1.2 or later with the server's certificate.

    Raises:
        InvalidInput: certificate and key are missing, or do not belong together.
    """
    return _loaded(folder / CERT, folder / KEY)


def _authority(
    folder: Path, moment: datetime
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """The authority's key and certificate, made if there is none."""
    if is_adopted(folder):
        raise CoordinatorError(
            "the certificate here is the institution's",
            value=folder,
            remedy="ask who issued it for a new one",
        )
    if not (folder / CA_KEY).exists():
        made = private_to_pem(ec.generate_private_key(ec.SECP256R1()))
        write_atomic(folder / CA_KEY, made, 0o600, new=True)
    key = _read_key(folder / CA_KEY)
    if key is None:
        raise CoordinatorError(
            "the authority's key is damaged", value=folder / CA_KEY, remedy="restore it"
        )
    if not (folder / CA_CERT).exists():
        write_atomic(folder / CA_CERT, _pem(_self_signed(key, moment)), 0o644, new=True)
    cert = certificates.parse(read_authority(folder), what=str(folder / CA_CERT))
    if cert.public_key() != key.public_key():
        raise CoordinatorError(
            "the authority's key and certificate do not belong together",
            value=folder,
            remedy="restore both from the same backup",
        )
    return key, cert


def _self_signed(key: ec.EllipticCurvePrivateKey, moment: datetime) -> x509.Certificate:
    public = key.public_key()
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    # Part of the name, so that two coordinators' authorities are never taken for each other.
    label = f"Penstock authority {identifier.digest.hex()[:12]}"
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, label)])
    by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - BACKDATED)
        .not_valid_after(moment + timedelta(days=CA_DAYS))
        # Path length 0: it signs servers, never another authority.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign=False), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(by, critical=False)
        .sign(key, hashes.SHA256())
    )


def _usage(*, sign: bool) -> x509.KeyUsage:
    """Key usage: signatures of a server's handshake, or of certificates."""
    return x509.KeyUsage(
        digital_signature=sign,
        key_cert_sign=not sign,
        crl_sign=not sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _issued_by(authority_cert: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    own = authority_cert.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)


def _server_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    key = _read_key(folder / KEY)
    if key is None:
        key = ec.generate_private_key(ec.SECP256R1())
        write_atomic(folder / KEY, private_to_pem(key), 0o600)
    return key


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey | None:
    """A key of ours; None if there is none, or none that can be read."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _belongs(folder: Path, pem: str) -> bool:
    """Whether the server's certificate fits its key and is by this authority."""
    cert, key = certificates.parse(pem), _read_key(folder / KEY)
    if key is None or cert.public_key() != key.public_key():
        return False
    try:
        cert.verify_directly_issued_by(certificates.parse(read_authority(folder)))
    except Exception:  # a signature, name or key type that does not fit: each its own exception
        return False
    return True


def _subjects(names: Sequence[str]) -> list[x509.GeneralName]:
    """Names as a certificate holds them.

    Raises:
        InvalidInput: none, or any that is neither a DNS name nor an IP address.
    """
    found: list[x509.GeneralName] = []
    problems: list[Problem] = []
    for name in dict.fromkeys(names):
        address, host = _address(name), _host(name)
        if address is not None:
            found.append(x509.IPAddress(address))
        elif host is None:
            bound = "a DNS name or an IP address, without a port"
            problems.append(Problem("name", "cannot be in a certificate", value=name, bound=bound))
        else:
            found.append(x509.DNSName(host))
    if not names:
        remedy = "Say by which name or address sites reach the coordinator"
        problems.append(Problem("name", "is missing", remedy=remedy))
    if problems:
        raise InvalidInput("certificate", problems)
    return list(dict.fromkeys(found))


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An IP address, with or without brackets; None if it is none, or has a zone."""
    try:
        return None if "%" in name else ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return None


def _host(name: str) -> str | None:
    """A DNS name in ASCII and small letters; None if it is none."""
    try:
        host = name.encode("idna").decode().lower().rstrip(".")
    except UnicodeError:
        return None
    labels = host.removeprefix("*.").split(".")
    # Numbers and dots only is an address with a mistake in it, not a name.
    wrong = len(host) > 253 or all(label.isdigit() for label in labels)
    return None if wrong or not all(_LABEL.fullmatch(label) for label in labels) else host


def _check_dates(path: Path, pem: str) -> None:
    moment = utc_now()
    first, last = certificates.find_begin(pem), certificates.find_end(pem)
    if first <= moment <= last:
        return
    what = "has expired" if moment > last else "is not valid yet"
    bound = f"from {first:%Y-%m-%d} to {last:%Y-%m-%d}"
    remedy = "Ask who issued it for a new one, or set this machine's clock"
    raise InvalidInput(str(path), [Problem("", what, bound=bound, remedy=remedy)])


def _loaded(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A handshake is work that a client can ask for: once in a connection.
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        # Without the function, OpenSSL would ask for a passphrase on the terminal.
        context.load_cert_chain(cert, key, password=lambda: b"")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None)
        if reason == "KEY_VALUES_MISMATCH":
            problem = Problem("", "is not the key of the certificate", value=str(cert))
        elif isinstance(error, ssl.SSLError | ValueError):
            remedy = "Give it in PEM, without a passphrase"
            problem = Problem("", "certificate or key cannot be used", value=reason, remedy=remedy)
        else:
            problem = Problem("", f"cannot be read: {error.strerror}")
        raise InvalidInput(str(key), [problem]) from None
    return context


def _handshake(server: ssl.SSLContext, ca_pem: str, name: str, *, strict: bool) -> str:
    """Why a client that trusts only this authority refuses the server; empty if it does not.

    A whole handshake, in memory: exactly what clients will do.
    """
    client = certificates.make_client_context(ca_pem, strict=strict)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(down, up, server_hostname=name),
        server.wrap_bio(up, down, server_side=True),
    )
    try:
        for end in ends * 4:  # more turns than a handshake has
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLError as error:
        return str(getattr(error, "verify_message", "") or error.reason)
    return ""


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
