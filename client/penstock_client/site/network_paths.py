"""The network side of a site: its own directory, and nothing of the gate's but ``gate.sock``.

The SuperNode and the runner may so run as another user than the gate. What they hold is the node
key, which authenticates the site to the coordinator's Flower and signs nothing of worth.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from penstock.base.checks import NAME, NAME_BOUND, SITE, SITE_BOUND, Checks, shown, unknown_keys
from penstock.base.errors import InvalidInput, PenstockError, Problem, SignatureError
from penstock.base.files import write_atomic
from penstock.processes.sockets import check_path

FORMAT = "penstock-coordinator/1"
KEY_KIND = "ecdsa-sha2-nistp384"
ADDRESS_BOUND = "HOST:PORT, such as penstock.example.org:9443"
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?):(\d+)")
_FIELDS = ("format", "federation", "site", "address")


@dataclass(frozen=True, slots=True)
class Coordinator:
    """``coordinator.json``: what a site has joined.

    Attributes:
        address: ``host:port`` of the coordinator's one port.

    Raises:
        InvalidInput: with every problem.
    """

    federation: str
    site: str
    address: str

    def __post_init__(self) -> None:
        check = Checks("coordinator")
        check.pattern("federation", self.federation, NAME, NAME_BOUND)
        check.pattern("site", self.site, SITE, SITE_BOUND)
        address = self.address
        found = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
        if found is None or not 1 <= int(found[3][:6]) <= 65535:
            check.add("address", "is not one", value=shown(address), bound=ADDRESS_BOUND)
        check.done()

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def to_bytes(self) -> bytes:
        record = {
            "format": FORMAT,
            "federation": self.federation,
            "site": self.site,
            "address": self.address,
        }
        return json.dumps(record, indent=2).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class NetworkPaths:
    """Every file of a site's network side, below one directory of mode 0700."""

    root: Path

    @property
    def node_key(self) -> Path:
        return self.root / "node.key"

    @property
    def node_public(self) -> Path:
        return self.root / "node.pub"

    @property
    def ca(self) -> Path:
        return self.root / "ca.crt"

    @property
    def coordinator(self) -> Path:
        return self.root / "coordinator.json"

    @property
    def secret(self) -> Path:
        return self.root / "secret"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def supernode_socket(self) -> Path:
        return self.run / "supernode.sock"

    @property
    def lock(self) -> Path:
        return self.run / "daemon.lock"

    @property
    def state(self) -> Path:
        return self.run / "daemon.json"

    @property
    def link(self) -> Path:
        """What the SuperNode says of its connection."""
        return self.run / "link.json"

    @property
    def home(self) -> Path:
        return self.root / "flower"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def joined(self) -> bool:
        """Whether an invite was accepted here."""
        return self.coordinator.exists() and self.ca.exists()

    def make(self) -> None:
        """Create the directories, closed to everybody else.

        Raises:
            PenstockError: the path is too long for a Unix socket.
        """
        self.check_sockets()
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (self.run, self.home, self.log):
            path.mkdir(mode=0o700, exist_ok=True)

    def make_key(self) -> str:
        """Make the node key, as ``ssh-keygen -t ecdsa -b 384`` would; returns the public line.

        A key that is there is kept.

        Raises:
            SignatureError: what is there is no such key.
        """
        if not self.node_key.exists():
            key = ec.generate_private_key(ec.SECP384R1())
            private = key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.OpenSSH,
                serialization.NoEncryption(),
            )
            write_atomic(self.node_key, private, mode=0o600)
        line = self._public_line()
        if not self.node_public.exists() or self.node_public.read_text().strip() != line:
            write_atomic(self.node_public, line.encode() + b"\n", mode=0o644)
        return line

    def _public_line(self) -> str:
        """The public half of the node key, from the key itself."""
        mode = self.node_key.stat().st_mode & 0o777
        if mode & 0o077:
            raise SignatureError(
                "the node key can be read by others",
                value=oct(mode),
                bound="0600",
                remedy=f"chmod 600 {self.node_key}",
            )
        try:
            key = serialization.load_ssh_private_key(self.node_key.read_bytes(), None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise SignatureError("not a node key", value=self.node_key, bound="EC P-384, OpenSSH")
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        return read_public_line(public.decode(), what=str(self.node_key))

    def read_public(self) -> str:
        """The public line of ``node.pub``.

        Raises:
            SignatureError: it holds none; PenstockError: there is none.
        """
        try:
            return read_public_line(self.node_public.read_text("ascii"), what=str(self.node_public))
        except UnicodeDecodeError:
            raise SignatureError("not a node key", value=self.node_public) from None
        except FileNotFoundError:
            raise PenstockError(
                "no node key here",
                value=self.root,
                remedy="make one with `penstock site node-key DIRECTORY`",
            ) from None

    def read_coordinator(self) -> Coordinator:
        """What this site has joined.

        Raises:
            PenstockError: it has not joined; InvalidInput: the file is damaged.
        """
        try:
            record = json.loads(self.coordinator.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise PenstockError(
                "this site has not joined a coordinator",
                value=self.root,
                remedy="`penstock site join` the invite that the coordinator sends back",
            ) from None
        except ValueError as error:
            raise self._damaged(type(error).__name__) from None
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise self._damaged("another format")
        problems = unknown_keys(record, _FIELDS)
        if problems:
            raise InvalidInput(str(self.coordinator), problems)
        try:
            return Coordinator(**{k: v for k, v in record.items() if k != "format"})
        except InvalidInput as error:
            raise InvalidInput(str(self.coordinator), error.problems) from None
        except TypeError:
            raise self._damaged("a field is missing") from None

    def _damaged(self, what: str) -> InvalidInput:
        remedy = "Join again with the coordinator's invite"
        return InvalidInput(
            str(self.coordinator), [Problem("", "damaged", value=what, remedy=remedy)]
        )

    def check_sockets(self) -> None:
        """Unix socket paths are at most 107 bytes long.

        Raises:
            PenstockError: the directory's path is too long.
        """
        check_path(self.supernode_socket, "the network directory")


def read_public_line(text: str, *, what: str) -> str:
    """An OpenSSH public key line of kind P-384, without its comment.

    Raises:
        SignatureError: anything else; the text is not shown, it may be a private key.
    """
    words = text.split("\n", 1)[0].split()
    try:
        key = serialization.load_ssh_public_key(" ".join(words[:2]).encode("ascii"))
    except (ValueError, UnsupportedAlgorithm, binascii.Error):
        key = None
    if not (isinstance(key, ec.EllipticCurvePublicKey) and words[0] == KEY_KIND):
        raise SignatureError(
            "not a node's public key",
            value=what,
            bound=f"one line that begins with {KEY_KIND}",
            remedy="use the node.pub that `penstock site node-key` wrote",
        )
    return f"{words[0]} {words[1]}"


def node_fingerprint(line: str) -> str:
    """``SHA256:`` and the base64 of the key's hash, as ``ssh-keygen -l`` prints it."""
    blob = base64.b64decode(line.split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
