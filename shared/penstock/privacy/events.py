r"""What was done to private data, apart from what it costs.

An *event* is a frozen record of one mechanism's public parameters. Relation everywhere:
**zero-out with public n** (dp-accounting's REPLACE_SPECIAL): neighbouring data sets differ in one
person, whose data is replaced by a null record that contributes nothing; *n*, the number of
persons in the declared frame, is public. All noise multipliers are relative to one person's whole
contribution: σ = (standard deviation of the noise) / (L2 sensitivity under zero-out).

Costs are in :mod:`penstock.privacy.accountant`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar

from penstock.errors import InvalidEvent

RELATION = "zero-out, public n"


def _positive(name: str, value: float) -> None:
    if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
        raise InvalidEvent(f"{name} must be a finite positive number", value=value)


def _whole(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidEvent(f"{name} must be a whole number of at least 1", value=value)


@dataclass(frozen=True, slots=True)
class Gaussian:
    r"""``count`` releases of a query with Gaussian noise, without sampling.

    Rényi divergence of order α: ``count · α / (2σ²)`` (Mironov 2017, arXiv 1702.07476, Cor. 3).

    Args:
        noise_multiplier: σ, noise sd over the L2 sensitivity to one person (zero-out).
        count: how many such releases, composed.
        label: what it was used for, shown in the ledger.
    """

    kind: ClassVar[str] = "gaussian"
    noise_multiplier: float
    count: int = 1
    label: str = ""

    def __post_init__(self) -> None:
        _positive("noise multiplier", self.noise_multiplier)
        _whole("count", self.count)


@dataclass(frozen=True, slots=True)
class PoissonGaussian:
    r"""``count`` Gaussian releases, each on a fresh Poisson sample of the persons.

    Each person is included independently with probability ``rate`` per step; the noisy sum is
    divided by the expected batch size ``rate · n``. Rényi divergence: Mironov, Talwar & Zhang
    2019 (arXiv 1908.10530); equal to autodp's amplification with its improved bound for the
    Gaussian (Zhu & Wang 2019).

    Args:
        rate: q, in (0, 1).
        noise_multiplier: σ as in :class:`Gaussian`, before amplification.
        count: number of steps.
    """

    kind: ClassVar[str] = "poisson-gaussian"
    rate: float
    noise_multiplier: float
    count: int = 1
    label: str = ""

    def __post_init__(self) -> None:
        _positive("noise multiplier", self.noise_multiplier)
        _whole("count", self.count)
        if not (isinstance(self.rate, float) and 0 < self.rate < 1):
            raise InvalidEvent("sampling rate must lie in (0, 1)", value=self.rate)


@dataclass(frozen=True, slots=True)
class Unbounded:
    """Something released without a formal guarantee: ε = ∞ (the ``empirical`` class)."""

    kind: ClassVar[str] = "unbounded"
    label: str = ""


Event = Gaussian | PoissonGaussian | Unbounded
_KINDS: dict[str, type[Gaussian] | type[PoissonGaussian] | type[Unbounded]] = {
    cls.kind: cls for cls in (Gaussian, PoissonGaussian, Unbounded)
}


def latent_injection(w: float, clip: float, count: int) -> Gaussian:
    r"""Latent noise injection as a local randomizer, under zero-out.

    A person's latent z is clipped to radius R and released as √w·z + √(1-w)·Z; the null record
    has latent 0. L2 sensitivity R√w, noise sd √(1-w): σ = √((1-w)/w) / R. Every copy and every
    row of a person is one more release.

    Args:
        w: mixing weight in (0, 1).
        clip: R > 0, latent radius.
        count: copies times rows per person.

    Source: the Gaussian mechanism on the map of Shen & Tian 2025, eq. (4); privacy contract §2.
    """
    if not 0 < w < 1:
        raise InvalidEvent("the mixing weight w must lie in (0, 1)", value=w)
    _positive("latent clip", clip)
    return Gaussian(math.sqrt((1 - w) / w) / clip, count, label="latent noise injection")


def to_dict(event: Event) -> dict[str, object]:
    """The event's canonical JSON form."""
    return {"kind": event.kind, **asdict(event)}


def from_dict(record: Mapping[str, object]) -> Event:
    """Read an event back; unknown kinds and fields are refused.

    Raises:
        InvalidEvent: unknown kind, unknown or missing field, or a value out of its domain.
    """
    fields = dict(record)
    kind = fields.pop("kind", None)
    cls = _KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise InvalidEvent("unknown kind of event", value=kind, bound=", ".join(_KINDS))
    try:
        return cls(**fields)  # type: ignore[arg-type]
    except TypeError as error:
        raise InvalidEvent(f"malformed {kind} event", value=sorted(fields)) from error
