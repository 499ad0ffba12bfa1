"""A site's directory: where everything lies."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from penstock.base.errors import PenstockError, SignatureError
from penstock.processes.sockets import check_path
from penstock.wire.signatures import private_from_pem, public_hex

RUN_VARIABLE = "PENSTOCK_RUN"
"""Moves the sockets elsewhere, such as systemd's RuntimeDirectory: /run/penstock."""


@dataclass(frozen=True, slots=True)
class SitePaths:
    """Every file of a site, below one directory of mode 0700 (``run`` is 0750).

    Only ``run`` may lie elsewhere: where the environment's ``PENSTOCK_RUN`` says, so that another
    user can reach ``gate.sock`` without a way into the site's directory.
    """

    root: Path

    @property
    def settings(self) -> Path:
        return self.root / "site.toml"

    @property
    def dictionary(self) -> Path:
        return self.root / "dictionary.toml"

    @property
    def recoding(self) -> Path:
        """How the file of the rows says what the dictionary describes; nobody else's business."""
        return self.root / "recoding.toml"

    @property
    def policy(self) -> Path:
        return self.root / "policy.toml"

    @property
    def trust(self) -> Path:
        return self.root / "trust.json"

    @property
    def peers(self) -> Path:
        return self.root / "peers.json"

    @property
    def join(self) -> Path:
        return self.root / "join.json"

    @property
    def gate_key(self) -> Path:
        return self.root / "keys" / "gate.key"

    @property
    def lock(self) -> Path:
        return self.root / "ledger" / "lock"

    @property
    def database(self) -> Path:
        return self.root / "ledger" / "gate.db"

    @property
    def decisions(self) -> Path:
        """Who decided what: the second chain."""
        return self.root / "ledger" / "decisions.db"

    @property
    def identities(self) -> Path:
        """Keyed hashes of everybody who was ever certified: who may not be in two data sets."""
        return self.root / "ledger" / "identities"

    @property
    def snapshots(self) -> Path:
        return self.root / "snapshots"

    @property
    def releases(self) -> Path:
        return self.root / "releases"

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def log(self) -> Path:
        return self.root / "log" / "gate.log"

    @property
    def evidence(self) -> Path:
        """Proof that the ledger is older than what it has shown; stops the gate."""
        return self.root / "ledger" / "rollback.json"

    @property
    def network(self) -> Path:
        """The network side's directory, where it has no user of its own."""
        return self.root / "network"

    @property
    def node_public(self) -> Path:
        """The public key of a network side that has a user, and a directory, of its own."""
        return self.root / "keys" / "node.pub"

    @property
    def run(self) -> Path:
        moved = os.environ.get(RUN_VARIABLE)
        return Path(moved) if moved else self.root / "run"

    @property
    def gate_socket(self) -> Path:
        return self.run / "gate.sock"

    @property
    def steward_socket(self) -> Path:
        return self.run / "steward.sock"

    @property
    def daemon_lock(self) -> Path:
        return self.run / "daemon.lock"

    @property
    def daemon_state(self) -> Path:
        return self.run / "daemon.json"

    def make(self) -> None:
        """Create the directories with their modes."""
        if not self.run.is_relative_to(self.root):
            # First: where it cannot be made, nothing else is left behind.
            self.run.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in ("keys", "ledger", "snapshots", "releases", "work", "log"):
            (self.root / path).mkdir(mode=0o700, exist_ok=True)
        self.run.mkdir(mode=0o750, parents=True, exist_ok=True)

    def key(self) -> Ed25519PrivateKey:
        """The gate's signing key.

        Raises:
            SignatureError: unreadable, or readable by others.
        """
        try:
            if self.gate_key.stat().st_mode & 0o077:
                raise SignatureError(
                    "the gate's key can be read by others",
                    value=oct(self.gate_key.stat().st_mode & 0o777),
                    bound="0600",
                    remedy=f"chmod 600 {self.gate_key}",
                )
            return private_from_pem(self.gate_key.read_bytes())
        except FileNotFoundError:
            raise PenstockError(
                "no site here", value=self.root, remedy="run `penstock site init` first"
            ) from None

    def gate_public(self) -> str:
        return public_hex(self.key())

    def check_sockets(self) -> None:
        """Unix socket paths are at most 107 bytes long."""
        for path in (self.gate_socket, self.steward_socket):
            check_path(path, "the site's directory")
