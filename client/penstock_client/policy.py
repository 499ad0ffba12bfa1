"""What a site answers: the steward's policy, and the keys the steward trusts."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.checks import unknown_keys, within
from penstock.errors import InvalidInput, Problem
from penstock.wire.signatures import fingerprint

from penstock_client.site import read_toml

CLASSES = ("formal", "public-flow", "empirical")
MECHANISMS = ("maf",)

TEMPLATE = """\
# What this site answers. The gate reads this file at every decision.

# Mechanisms that may run here, and guarantee classes that may leave.
# "empirical" releases have NO formal guarantee and end the data set's formal budget for good.
mechanisms = ["maf"]
guarantees = ["formal"]

# "automatic": a study within all limits runs at once; "by-hand": the steward approves each one.
approval = "by-hand"

[limits]
study_epsilon = 3.0      # the most one study may cost
study_delta = 1e-5
total_epsilon = 10.0     # the most the data set may ever cost, over all studies and signers
total_delta = 1e-5       # a common choice is well below 1/n
"""


@dataclass(frozen=True, slots=True)
class Policy:
    """``policy.toml``: (ε, δ) under zero-out with public n."""

    mechanisms: tuple[str, ...]
    guarantees: tuple[str, ...]
    approval: str
    study_epsilon: float
    study_delta: float
    total_epsilon: float
    total_delta: float


def read_policy(path: Path) -> Policy:
    """Parse the policy, all problems at once.

    Raises:
        InvalidInput: missing file, unknown keys, or values out of their domain.
    """
    values = read_toml(path)
    top = ("mechanisms", "guarantees", "approval", "limits")
    limits = ("study_epsilon", "study_delta", "total_epsilon", "total_delta")
    problems = unknown_keys(values, top)
    inner = values.get("limits", {})
    if not isinstance(inner, dict):
        problems.append(Problem("limits", "not a table"))
        inner = {}
    problems += within("limits", unknown_keys(inner, limits))
    problems += _check_list(values, "mechanisms", MECHANISMS)
    problems += _check_list(values, "guarantees", CLASSES)
    if values.get("approval") not in ("automatic", "by-hand"):
        problems.append(
            Problem(
                "approval",
                "missing or unknown",
                value=repr(values.get("approval")),
                bound="automatic or by-hand",
            )
        )
    for name in limits:
        problems += _check_number(f"limits.{name}", inner.get(name), delta=name.endswith("delta"))
    if not problems and inner["study_epsilon"] > inner["total_epsilon"]:
        problems.append(Problem("limits.study_epsilon", "above total_epsilon"))
    if problems:
        raise InvalidInput(str(path), problems)
    return Policy(
        mechanisms=tuple(values["mechanisms"]),
        guarantees=tuple(values["guarantees"]),
        approval=values["approval"],
        **{name: float(inner[name]) for name in limits},
    )


def _check_list(values: Mapping[str, Any], name: str, known: tuple[str, ...]) -> list[Problem]:
    value = values.get(name)
    if not isinstance(value, list) or not value:
        return [Problem(name, "missing or not a list", bound=", ".join(known))]
    return [
        Problem(name, "unknown", value=repr(item), bound=", ".join(known))
        for item in value
        if item not in known
    ]


def _check_number(where: str, value: object, *, delta: bool) -> list[Problem]:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return [Problem(where, "missing or not a number", value=repr(value))]
    upper = 1.0 if delta else math.inf
    lower = 1e-12 if delta else 0.0
    if not (math.isfinite(value) and lower < value < upper):
        bound = "1e-12 < δ < 1" if delta else "a finite number above 0"
        return [Problem(where, "out of range", value=repr(value), bound=bound)]
    return []


@dataclass(frozen=True, slots=True)
class Signer:
    """A pinned analyst: key, own ε allowance at this site, and the day the trust ends (UTC)."""

    key: str
    label: str
    epsilon: float
    expires: str

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.key)


@dataclass(frozen=True, slots=True)
class Trust:
    """``trust.json``: the pinned signers, by key."""

    signers: Mapping[str, Signer] = field(default_factory=dict)

    def add(self, signer: Signer) -> Trust:
        if not (signer.epsilon > 0 and math.isfinite(signer.epsilon)):
            problem = Problem("epsilon", "out of range", value=repr(signer.epsilon), bound="> 0")
            raise InvalidInput("trust", [problem])
        _ = signer.fingerprint  # refuses what is not a key
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
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(
            str(path), [Problem("", "damaged", value=type(error).__name__)]
        ) from None


def write_trust(path: Path, trust: Trust) -> None:
    """Replace ``trust.json`` atomically, mode 0600."""
    records = [asdict(s) for s in trust.signers.values()]
    write_atomic(path, json.dumps({"signers": records}, indent=2).encode() + b"\n")


def write_atomic(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write beside, sync, and rename: a reader sees the old file or the new one, never half."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make a rename in this directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
