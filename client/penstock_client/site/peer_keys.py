"""``peers.json``: the gates of other sites, each with the key that the steward compared.

A sum of many sites hides a site's part because each of them knows the others' keys: whoever chooses
the keys can be all of the others. So a site adds up with gates that its own steward has pinned, and
with nobody else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.base.checks import SITE, SITE_BOUND, Checks, shown
from penstock.base.errors import InvalidInput, Problem
from penstock.base.files import write_atomic
from penstock.wire.canonical import read_json
from penstock.wire.signatures import fingerprint

_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Peer:
    """Another site's gate.

    Attributes:
        site: its name; key: its gate's public key, 64 hex digits.

    Raises:
        InvalidInput: with every problem.
    """

    site: str
    key: str

    def __post_init__(self) -> None:
        check = Checks(f"peer {shown(self.site)}")
        check.pattern("site", self.site, SITE, SITE_BOUND)
        check.pattern("gate_key", self.key, _KEY, "64 hex digits, as in a site's join.json")
        check.done()

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.key)


@dataclass(frozen=True, slots=True)
class Peers:
    """The pinned gates, by site."""

    keys: Mapping[str, str] = field(default_factory=dict)

    def every(self) -> tuple[Peer, ...]:
        """All of them, by name."""
        return tuple(Peer(site, self.keys[site]) for site in sorted(self.keys))

    def add(self, peer: Peer) -> Peers:
        """Pin a gate; a site that is pinned already gets the new key."""
        return Peers({**self.keys, peer.site: peer.key})

    def remove(self, text: str) -> Peers:
        """Unpin the site whose name, fingerprint or key is ``text``.

        Raises:
            InvalidInput: there is none.
        """
        left = {p.site: p.key for p in self.every() if text not in (p.site, p.key, p.fingerprint)}
        if len(left) == len(self.keys):
            known = ", ".join(self.keys) or "none"
            problem = Problem("peer", "not pinned", value=text, bound=f"known: {known}")
            raise InvalidInput("peers", [problem])
        return Peers(left)

    def find_unknown(self, keys: Mapping[str, str]) -> tuple[str, ...]:
        """Those of these sites whose key is not the pinned one."""
        return tuple(sorted(site for site, key in keys.items() if self.keys.get(site) != key))


def read_peer(path: Path, federation: str) -> Peer:
    """The gate of a site's ``join.json``.

    Raises:
        InvalidInput: no site's, one of another federation, or a fingerprint that is not its key's.
    """
    record = read_json(path.read_bytes(), what=str(path), limit=10_000_000)
    if record.get("federation") != federation:
        problem = Problem(
            "federation",
            "is another than this site's",
            value=shown(record.get("federation")),
            bound=federation,
        )
        raise InvalidInput(str(path), [problem])
    try:
        found = Peer(str(record.get("site")), str(record.get("gate_key")))
    except InvalidInput as error:
        raise InvalidInput(str(path), error.problems) from None
    if record.get("fingerprint", found.fingerprint) != found.fingerprint:
        remedy = "Somebody changed it: ask the site for the file again"
        problem = Problem(
            "fingerprint",
            "is not that of the file's own key",
            value=shown(record["fingerprint"]),
            bound=found.fingerprint,
            remedy=remedy,
        )
        raise InvalidInput(str(path), [problem])
    return found


def read_peers(path: Path) -> Peers:
    """Read ``peers.json``; a missing file pins nobody.

    Raises:
        InvalidInput: the file is damaged.
    """
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
        found = [Peer(**record) for record in records["peers"]]
        return Peers({peer.site: peer.key for peer in found})
    except FileNotFoundError:
        return Peers()
    except InvalidInput as error:
        raise InvalidInput(str(path), error.problems) from None
    except (ValueError, KeyError, TypeError) as error:
        remedy = "Restore it, or remove it and add each peer again"
        problem = Problem("", "damaged", value=type(error).__name__, remedy=remedy)
        raise InvalidInput(str(path), [problem]) from None


def write_peers(path: Path, peers: Peers) -> None:
    """Replace ``peers.json`` atomically, mode 0600."""
    write_atomic(path, peers_text(peers))


def peers_text(peers: Peers) -> bytes:
    """What ``peers.json`` holds."""
    records = [{"site": peer.site, "key": peer.key} for peer in peers.every()]
    return json.dumps({"peers": records}, indent=2).encode() + b"\n"
