"""``trust.json``: whom a site answers, key by key."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from penstock.base.checks import Checks, shown
from penstock.base.errors import InvalidInput, Problem
from penstock.base.files import write_atomic
from penstock.wire.signatures import fingerprint

_KEY = re.compile(r"[0-9a-f]{64}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")


@dataclass(frozen=True, slots=True)
class Signer:
    """A pinned analyst.

    Attributes:
        key: the public key, 64 lower-case hex digits as on the wire.
        label: who this is, for the steward.
        epsilon: the most this signer may ever spend here.
        expires: when the trust ends, RFC 3339 in UTC.

    Raises:
        InvalidInput: with every problem.
    """

    key: str
    label: str
    epsilon: float
    expires: str

    def __post_init__(self) -> None:
        check = Checks(f"signer {shown(self.label)}")
        check.pattern("key", self.key, _KEY, "64 hex digits: the content of a .pub file")
        check.text("label", self.label, 80)
        epsilon = check.number("epsilon", self.epsilon, "a finite number above 0", above=0)
        check.pattern("expires", self.expires, _TIME, "such as 2027-12-31T23:59:59Z")
        check.keep(self, epsilon=epsilon)
        check.done()

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.key)


@dataclass(frozen=True, slots=True)
class Trust:
    """``trust.json``: the pinned signers, by key."""

    signers: Mapping[str, Signer] = field(default_factory=dict)

    def add(self, signer: Signer) -> Trust:
        """Pin a signer; a key that is pinned already gets the new label, allowance and day."""
        return Trust({**self.signers, signer.key: signer})

    def revoke(self, text: str) -> Trust:
        """Remove the signer whose key, fingerprint or label is ``text``."""
        left = {
            k: s for k, s in self.signers.items() if text not in (s.key, s.fingerprint, s.label)
        }
        if len(left) == len(self.signers):
            known = ", ".join(s.label for s in self.signers.values()) or "none"
            raise InvalidInput(
                "trust", [Problem("signer", "not trusted", value=text, bound=f"known: {known}")]
            )
        return Trust(left)


def read_trust(path: Path) -> Trust:
    """Read ``trust.json``; a missing file trusts nobody.

    Raises:
        InvalidInput: the file is damaged.
    """
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
        return Trust({r["key"]: Signer(**r) for r in records["signers"]})
    except FileNotFoundError:
        return Trust()
    except InvalidInput as error:
        raise InvalidInput(str(path), error.problems) from None
    except (ValueError, KeyError, TypeError) as error:
        remedy = "Restore it, or remove it and add each signer again"
        problem = Problem("", "damaged", value=type(error).__name__, remedy=remedy)
        raise InvalidInput(str(path), [problem]) from None


def write_trust(path: Path, trust: Trust) -> None:
    """Replace ``trust.json`` atomically, mode 0600."""
    write_atomic(path, trust_text(trust))


def trust_text(trust: Trust) -> bytes:
    """What ``trust.json`` holds."""
    records = [asdict(s) for s in trust.signers.values()]
    return json.dumps({"signers": records}, indent=2).encode() + b"\n"
