"""What an analyst asks of a federation, as a signed, canonical object. (being written)"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock.schema import Schema


@dataclass(frozen=True, slots=True)
class Estimand:
    name: str
    model: str
    outcome: str
    term: str
    per: float = 1.0
    adjust: tuple[str, ...] = ()
    level: str | None = None


@dataclass(frozen=True, slots=True)
class PrivacyRequest:
    epsilon: float
    delta: float
    guarantee: str = "formal"


@dataclass(frozen=True, slots=True)
class Mechanism:
    name: str = "maf"
    copies: int = 10
    w: float = 0.0
    latent_clip: float = 3.0
    steps: int = 300
    sampling: str = "full"
    rate: float = 1.0
    flows: int = 4
    hidden: tuple[int, ...] = (32,)


@dataclass(frozen=True, slots=True)
class Study:
    name: str
    title: str
    federation: str
    sites: tuple[str, ...]
    schema: Schema
    estimands: tuple[Estimand, ...]
    privacy: PrivacyRequest
    mechanism: Mechanism
    quorum: int
    deadline_hours: float
    not_before: str
    expires: str
    release: int = 1
    max_sites_per_person: int = 1
    wire: str = "1.0"

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Study:
        d = dict(data)
        d["sites"] = tuple(d["sites"])
        d["schema"] = Schema.from_dict(d["schema"])
        d["estimands"] = tuple(
            Estimand(**{**e, "adjust": tuple(e["adjust"])}) for e in d["estimands"]
        )
        d["privacy"] = PrivacyRequest(**d["privacy"])
        m = d["mechanism"]
        d["mechanism"] = Mechanism(**{**m, "hidden": tuple(m["hidden"])})
        return cls(**d)


def canonical_bytes(study: Study) -> bytes:
    return json.dumps(
        study.to_dict(),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    ).encode("utf-8")
