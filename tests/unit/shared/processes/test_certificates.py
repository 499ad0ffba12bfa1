"""Certificates: what is issued is accepted by strict clients, and nothing else is adopted."""

import contextlib
import ipaddress
import os
import socket
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.base.errors import CoordinatorError, InvalidInput
from penstock.processes import certificates
from penstock.wire.signatures import private_to_pem
from penstock_server.install import tls

NAMES = ("localhost", "127.0.0.1", "::1")


@pytest.fixture(scope="module")
def issued(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls") / "tls"
    tls.issue(folder, NAMES)
    return folder


@contextlib.contextmanager
def serving(folder, address="127.0.0.1"):
    """A TLS server on loopback that finishes handshakes; its port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    context = tls.server_context(folder)
    with socket.create_server((address, 0), family=family) as listener:

        def serve():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.settimeout(5)
                with connection, contextlib.suppress(OSError):
                    with context.wrap_socket(connection, server_side=True) as up:
                        up.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def greet(folder, name, address="127.0.0.1"):
    """One strict handshake; raises what a client would."""
    context = certificates.make_client_context(tls.read_authority(folder), strict=True)
    with serving(folder, address) as port:
        with socket.create_connection((address, port), timeout=5) as raw:
            with context.wrap_socket(raw, server_hostname=name) as up:
                return up.version()


@pytest.mark.parametrize(
    ("name", "address"),
    [("localhost", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("::1", "::1")],
)
def test_a_strict_client_accepts(issued, name, address):
    if address == "::1":
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("no IPv6 on this machine")
    assert greet(issued, name, address) == "TLSv1.3"


@pytest.mark.parametrize("name", ["other.example", "127.0.0.2"])
def test_a_wrong_name_is_refused(issued, name):
    with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid for"):
        greet(issued, name)


def test_another_authority_is_refused(issued, tmp_path):
    tls.issue(tmp_path, NAMES)
    context = certificates.make_client_context(tls.read_authority(tmp_path))
    with serving(issued) as port, socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
        with pytest.raises(ssl.SSLCertVerificationError):
            context.wrap_socket(raw, server_hostname="localhost")


def test_an_expired_one_is_refused(tmp_path):
    tls.issue(tmp_path, NAMES)
    tls.issue(tmp_path, NAMES, now=datetime.now(UTC) - timedelta(days=400))
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        greet(tmp_path, "localhost")


def test_modes_and_contents(issued):
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in issued.iterdir()}
    assert modes == {"ca.crt": 0o644, "ca.key": 0o600, "server.crt": 0o644, "server.key": 0o600}
    assert stat.S_IMODE(issued.stat().st_mode) == 0o700
    pem = (issued / "server.crt").read_text()
    assert sorted(certificates.list_names(pem)) == sorted(NAMES)
    assert certificates.count_days_left(pem) in (396, 397)
    ca = certificates.parse(tls.read_authority(issued))
    constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    assert certificates.count_days_left(tls.read_authority(issued)) > 3650


def test_keys_are_private_from_their_creation_on(tmp_path, monkeypatch):
    seen = []
    replace, link = os.replace, os.link

    def watched(move):
        def run(source, target):
            seen.append((target.name, stat.S_IMODE(os.stat(source).st_mode)))
            move(source, target)

        return run

    monkeypatch.setattr(os, "replace", watched(replace))
    monkeypatch.setattr(os, "link", watched(link))
    previous = os.umask(0)
    try:
        tls.issue(tmp_path, NAMES)
    finally:
        os.umask(previous)
    assert dict(seen)["ca.key"] == dict(seen)["server.key"] == 0o600
    assert len(list(tmp_path.iterdir())) == 4


def test_renewal_keeps_the_authority_and_the_key(tmp_path):
    long_ago = datetime.now(UTC) - timedelta(days=380)
    tls.issue(tmp_path, NAMES, now=long_ago)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert not tls.renew_if_due(tmp_path, NAMES, now=long_ago + timedelta(days=366))
    assert tls.renew_if_due(tmp_path, NAMES)
    after = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert {n for n in before if before[n] != after[n]} == {"server.crt"}
    assert greet(tmp_path, "localhost")
    assert not tls.renew_if_due(tmp_path, NAMES)


def test_other_names_and_damage_are_renewed(tmp_path):
    tls.issue(tmp_path, NAMES)
    assert tls.renew_if_due(tmp_path, ["Coordinator.Example.ORG", "[::1]"])
    pem = (tmp_path / "server.crt").read_text()
    assert certificates.list_names(pem) == ["coordinator.example.org", "::1"]
    assert not tls.renew_if_due(tmp_path, ["coordinator.example.org", "::1"])
    for damage in (b"", b"-----BEGIN"):
        (tmp_path / "server.crt").write_bytes(damage)
        assert tls.renew_if_due(tmp_path, NAMES)
        (tmp_path / "server.key").write_bytes(damage)
        assert tls.renew_if_due(tmp_path, NAMES)
        assert greet(tmp_path, "localhost")
    with pytest.raises(CoordinatorError, match="no certificates here"):
        tls.renew_if_due(tmp_path / "nothing", NAMES)


def test_the_authority_is_never_replaced(tmp_path):
    tls.issue(tmp_path, NAMES)
    (tmp_path / "ca.key").write_bytes(b"damaged")
    with pytest.raises(CoordinatorError, match="damaged"):
        tls.issue(tmp_path, NAMES)
    other = tmp_path / "other"
    tls.issue(other, NAMES)
    (tmp_path / "ca.key").write_bytes((other / "ca.key").read_bytes())
    with pytest.raises(CoordinatorError, match="do not belong together"):
        tls.issue(tmp_path, NAMES)


def test_making_goes_on_where_it_was_killed(tmp_path):
    tls.issue(tmp_path, NAMES)
    key = (tmp_path / "ca.key").read_bytes()
    for lost in ("ca.crt", "server.crt", "server.key"):
        (tmp_path / lost).unlink()
    tls.issue(tmp_path, NAMES)
    assert (tmp_path / "ca.key").read_bytes() == key
    assert greet(tmp_path, "localhost")


@pytest.mark.parametrize(
    "name", ["", "a b", "host:8443", "1.2.3", "1.2.3.400", "-a.example", "a..b", "fe80::1%eth0"]
)
def test_names_that_are_none(tmp_path, name):
    with pytest.raises(InvalidInput, match="cannot be in a certificate"):
        tls.issue(tmp_path, [name])
    with pytest.raises(InvalidInput, match="is missing"):
        tls.issue(tmp_path, [])
    assert not list(tmp_path.iterdir())


def own_certificate(folder, names, *, days=100, started=1):
    """An institution's certificate, made without our code: certificate, key and root."""
    key, root_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    now = datetime.now(UTC)
    root_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "A hospital's root")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])

    def build(subject, public, *, ca):
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(root_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=started))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )

    root = build(root_name, root_key.public_key(), ca=True).sign(root_key, hashes.SHA256())
    leaf = build(name, key.public_key(), ca=False)
    if names:
        found = [
            x509.IPAddress(ipaddress.ip_address(n)) if n[0].isdigit() else x509.DNSName(n)
            for n in names
        ]
        leaf = leaf.add_extension(x509.SubjectAlternativeName(found), critical=False)
    folder.mkdir()
    paths = folder / "own.pem", folder / "own.key", folder / "root.pem"
    paths[0].write_bytes(
        leaf.sign(root_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )
    paths[1].write_bytes(private_to_pem(key))
    paths[2].write_bytes(root.public_bytes(serialization.Encoding.PEM))
    return paths


def test_adopting(tmp_path):
    own = own_certificate(tmp_path / "in", ["localhost", "127.0.0.1", "*.example.org"])
    folder = tmp_path / "tls"
    tls.adopt(folder, *own)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()}
    assert modes == {"ca.crt": 0o644, "server.crt": 0o644, "server.key": 0o600}
    assert tls.read_authority(folder) == own[2].read_text()
    tls.adopt(folder, *own)  # the institution renewed it
    # Nobody but the institution can renew it, and it is never replaced by one of ours.
    assert not tls.renew_if_due(folder, NAMES, now=datetime.now(UTC) + timedelta(days=99))
    with pytest.raises(CoordinatorError, match="institution's"):
        tls.issue(folder, NAMES)


def test_what_is_not_adopted(tmp_path):
    folder = tmp_path / "tls"
    cert, key, root = own_certificate(tmp_path / "good", ["localhost"])
    other = own_certificate(tmp_path / "other", ["localhost"])
    expired = own_certificate(tmp_path / "expired", ["localhost"], days=-1, started=9)
    early = own_certificate(tmp_path / "early", ["localhost"], started=-1)
    nameless = own_certificate(tmp_path / "nameless", [])
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        tls._read_key(key).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    cases = [
        ((cert, other[1], root), "not the key of the certificate"),
        ((cert, key, other[2]), "clients refuse it as localhost"),
        (expired, "has expired"),
        (early, "not valid yet"),
        (nameless, "is for no name"),
        ((cert, locked, root), "without a passphrase"),
        ((key, key, root), "not a certificate"),
        ((cert, cert, root), "cannot be used"),
        ((tmp_path / "absent", key, root), "no such file"),
        ((cert, tmp_path / "absent", root), "cannot be read"),
    ]
    for files, message in cases:
        with pytest.raises(InvalidInput, match=message):
            tls.adopt(folder, *files)
        assert not folder.exists()
    tls.issue(folder, NAMES)
    with pytest.raises(CoordinatorError, match="authority of its own"):
        tls.adopt(folder, cert, key, root)


def test_a_fingerprint_for_voices(issued):
    pem = tls.read_authority(issued)
    shown = certificates.fingerprint(pem)
    kind, *groups = shown.split()
    assert kind == "SHA256"
    assert [len(g) for g in groups] == [4] * 16
    raw = certificates.parse(pem).fingerprint(hashes.SHA256())
    assert bytes.fromhex("".join(groups)) == raw


def test_reading_what_is_no_certificate(tmp_path, issued):
    (tmp_path / "der").write_bytes(ssl.PEM_cert_to_DER_cert(tls.read_authority(issued)))
    (tmp_path / "key").write_bytes((issued / "server.key").read_bytes())
    (tmp_path / "big").write_bytes(b"x" * (certificates.MAX_BYTES + 1))
    cases = {
        "der": "not PEM text",
        "key": "not a certificate",
        "big": "too large",
        "none": "no such file",
    }
    for name, message in cases.items():
        with pytest.raises(InvalidInput, match=message):
            certificates.read_certificate(tmp_path / name)
    assert certificates.read_certificate(issued / "ca.crt") == tls.read_authority(issued)
