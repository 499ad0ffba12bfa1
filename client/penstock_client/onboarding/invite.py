"""A coordinator's invite: checked against the site, and kept with the network side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, PenstockError, Problem, SignatureError
from penstock.base.files import write_atomic
from penstock.processes import certificates
from penstock.wire.canonical import read_json
from penstock.wire.signatures import fingerprint
from penstock_client.onboarding.join_file import read_node_line
from penstock_client.site.network_paths import (
    Coordinator,
    NetworkPaths,
    node_fingerprint,
    read_public_line,
)
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import SiteSettings

FORMAT = "penstock-invite/1"
MAX_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Invite:
    """What a coordinator sends to a site that it has enrolled; nothing in it is secret.

    Attributes:
        address: ``host:port``.
        ca: the certificate of the authority that signs the coordinator's, PEM.
        gate_fingerprint: of the gate's key, as enrolled.
        node_fingerprint: of the node key, as enrolled.
    """

    federation: str
    site: str
    address: str
    ca: str
    gate_fingerprint: str
    node_fingerprint: str

    @property
    def coordinator(self) -> Coordinator:
        return Coordinator(self.federation, self.site, self.address)


def read_invite(path: Path) -> Invite:
    """Parse an invite.

    Raises:
        InvalidInput: not one, an address that is none, or a CA that is no certificate.
        SignatureError: a key in it that is none.
    """
    record = read_json(path.read_bytes(), what=str(path), limit=MAX_BYTES)
    if record.get("format") != FORMAT:
        remedy = "Use the invite file that the coordinator sent back"
        problem = Problem("format", "not an invite", bound=FORMAT, remedy=remedy)
        raise InvalidInput(str(path), [problem])
    texts = ("federation", "site", "address", "ca")
    absent = [Problem(n, "is missing") for n in texts if not isinstance(record.get(n), str)]
    if absent:
        raise InvalidInput(str(path), absent)
    invite = Invite(
        **{name: record[name] for name in texts},
        gate_fingerprint=_read_gate_print(record, path),
        node_fingerprint=_read_node_print(record, path),
    )
    try:
        _ = invite.coordinator  # validates names and address
    except InvalidInput as error:
        raise InvalidInput(str(path), error.problems) from None
    certificates.parse(invite.ca, what=f"{path}: ca")
    return invite


def _read_gate_print(record: Json, path: Path) -> str:
    """The gate key's fingerprint, from the key where the invite holds one."""
    key, claimed = record.get("gate_key"), record.get("gate_fingerprint")
    own = fingerprint(str(key)) if key is not None else None
    return _require_agreement(own, claimed, "gate", path)


def _read_node_print(record: Json, path: Path) -> str:
    """The node key's fingerprint, from the key where the invite holds one."""
    key, claimed = record.get("node_key"), record.get("node_fingerprint")
    own = node_fingerprint(read_public_line(str(key), what=str(path))) if key is not None else None
    return _require_agreement(own, claimed, "node", path)


def _require_agreement(computed: str | None, claimed: object, name: str, path: Path) -> str:
    said = [text for text in (computed, claimed) if text is not None]
    if not said or any(text != said[0] for text in said):
        raise InvalidInput(str(path), [Problem(f"{name}_fingerprint", "is missing or another's")])
    return str(said[0])


def check_site(invite: Invite, paths: SitePaths, settings: SiteSettings, *, what: str) -> None:
    """Whether an invite is for this site and its keys.

    Raises:
        InvalidInput: naming everything that is another's.
    """
    expected = (
        ("site", invite.site, settings.name),
        ("federation", invite.federation, settings.federation),
        ("gate_fingerprint", invite.gate_fingerprint, fingerprint(paths.gate_public())),
        ("node_fingerprint", invite.node_fingerprint, node_fingerprint(read_node_line(paths))),
    )
    problems = [
        Problem(name, "is not this site's", value=got, bound=wanted)
        for name, got, wanted in expected
        if got != wanted
    ]
    if problems:
        raise InvalidInput(what, problems)


def accept_invite(invite: Invite, network: NetworkPaths, *, what: str, replace: bool) -> None:
    """Keep the address and pin the CA; the SuperNode reads both when it starts.

    Raises:
        SignatureError: the invite is for another node key than the one here.
        PenstockError: another CA is pinned, and ``replace`` was not given; or no key is here.
    """
    own = node_fingerprint(network.read_public())
    if own != invite.node_fingerprint:
        raise SignatureError(
            "the invite is for another node key",
            value=invite.node_fingerprint,
            bound=own,
            remedy=f"is {what} this site's?",
        )
    if network.ca.exists() and not replace:
        pinned = network.ca.read_text(encoding="utf-8")
        if certificates.fingerprint(pinned) != certificates.fingerprint(invite.ca):
            raise PenstockError(
                "another CA is pinned here",
                value=certificates.fingerprint(invite.ca),
                bound=certificates.fingerprint(pinned),
                remedy="compare by voice, then --replace",
            )
    network.make()
    # The address last: with it the site has joined.
    write_atomic(network.ca, invite.ca.encode(), mode=0o644)
    write_atomic(network.coordinator, invite.coordinator.to_bytes(), mode=0o644)
