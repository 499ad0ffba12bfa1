"""A site's directory: where everything lies, and the few settings that are not policy."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from penstock.checks import SITE, SITE_BOUND, unknown_keys
from penstock.errors import InvalidInput, PenstockError, Problem, SignatureError
from penstock.wire.signatures import private_from_pem, public_hex

MAX_SOCKET_PATH = 107


@dataclass(frozen=True, slots=True)
class SitePaths:
    """Every file of a site, below one directory of mode 0700 (``run`` is 0750)."""

    root: Path

    @property
    def settings(self) -> Path:
        return self.root / "site.toml"

    @property
    def dictionary(self) -> Path:
        return self.root / "dictionary.toml"

    @property
    def policy(self) -> Path:
        return self.root / "policy.toml"

    @property
    def trust(self) -> Path:
        return self.root / "trust.json"

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
    def gate_socket(self) -> Path:
        return self.root / "run" / "gate.sock"

    @property
    def steward_socket(self) -> Path:
        return self.root / "run" / "steward.sock"

    def make(self) -> None:
        """Create the directories with their modes."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in ("keys", "ledger", "snapshots", "releases", "work", "log"):
            (self.root / path).mkdir(mode=0o700, exist_ok=True)
        (self.root / "run").mkdir(mode=0o750, exist_ok=True)

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
        longest = max(len(os.fsencode(p)) for p in (self.gate_socket, self.steward_socket))
        if longest > MAX_SOCKET_PATH:
            raise PenstockError(
                "the site's directory has too long a path for a Unix socket",
                value=f"{longest} bytes",
                bound=f"at most {MAX_SOCKET_PATH}",
                remedy="move the site to a shorter path",
            )


@dataclass(frozen=True, slots=True)
class SiteSettings:
    """``site.toml``.

    Attributes:
        data: the CSV or Parquet file, relative to the site's directory unless absolute.
        lineage: the steward's name for the data set; new rows stay in the same lineage.
        public_data: an optional public table for ``public-flow`` releases; never private rows.
        memory_gb: the worker's memory limit.
        device: ``cpu``, ``cuda``, or ``auto`` (a GPU if there is one).
        insecure_seed: simulation only; marks every release as not private.
    """

    name: str
    federation: str
    data: str
    lineage: str
    public_data: str = ""
    memory_gb: float = 8.0
    threads: int = 1
    device: str = "auto"
    insecure_seed: int | None = None


_FIELDS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "federation": (str,),
    "data": (str,),
    "lineage": (str,),
    "public_data": (str,),
    "memory_gb": (int, float),
    "threads": (int,),
    "device": (str,),
    "insecure_seed": (int,),
}


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file the steward wrote.

    Raises:
        InvalidInput: missing or not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problem = Problem("", "no such file", remedy="run `penstock site init` first")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problem = Problem("", f"not valid TOML: {error}")
    raise InvalidInput(str(path), [problem])


def read_settings(paths: SitePaths) -> SiteSettings:
    """Parse ``site.toml``; unknown keys are refused.

    Raises:
        InvalidInput: with all problems.
    """
    values = read_toml(paths.settings)
    problems = unknown_keys(values, list(_FIELDS))
    for name, types in _FIELDS.items():
        value = values.get(name)
        required = name in ("name", "federation", "data", "lineage")
        if value is None:
            if required:
                problems.append(Problem(name, "missing"))
        elif isinstance(value, bool) or not isinstance(value, types):
            kinds = " or ".join(t.__name__ for t in types)
            problems.append(Problem(name, "wrong type", value=repr(value), bound=kinds))
    if not problems:
        problems = _semantic(values)
    if problems:
        raise InvalidInput(str(paths.settings), problems)
    return SiteSettings(**values)


def _semantic(values: dict[str, Any]) -> list[Problem]:
    problems = []
    if not SITE.fullmatch(values["name"]):
        problems.append(Problem("name", "not a site name", value=values["name"], bound=SITE_BOUND))
    if not values.get("memory_gb", 8.0) >= 1:
        problems.append(Problem("memory_gb", "too small", bound="at least 1"))
    if values.get("threads", 1) < 1:
        problems.append(Problem("threads", "too small", bound="at least 1"))
    if values.get("device", "auto") not in ("auto", "cpu", "cuda"):
        problems.append(Problem("device", "unknown", bound="auto, cpu or cuda"))
    return problems
