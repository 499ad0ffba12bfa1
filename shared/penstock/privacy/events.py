r"""What was done to private data, apart from what it costs.

An *event* is a frozen record of one mechanism's public parameters. Relation everywhere:
**zero-out with public n** (dp-accounting's REPLACE_SPECIAL): neighbouring data sets differ in one
person, whose data is replaced by a null record that contributes nothing; *n*, the number of
persons in the declared frame, is public. The unit is a person: every sensitivity is that of a
person's whole contribution, all their rows together.

==================== ============================================= ==========================
event                what happened                                 of noise multiplier σ
==================== ============================================= ==========================
Gaussian             Gaussian noise, no sampling                   sd / L2 sensitivity
DiscreteGaussian     the same on a grid, exact in floating point   sd / L2 sensitivity
PoissonGaussian      ... on a Poisson sample of the persons        sd / L2 sensitivity
FixedSizeGaussian    ... on a sample of fixed size                 sd / L2 *diameter*
Laplace              Laplace noise                                 (scale / L1 sensitivity)
NoisyDescent         last iterate of noisy gradient descent        sd / gradient's sensitivity
ShuffledGaussian     rows with Gaussian noise in random order      sd / L2 *diameter* of a row
DistributedGaussian  a sum on a grid, noise of several sites    sd of all / L2 sensitivity
Pure, Approximate    anything with a proven ε, or (ε, δ)           --
OnStratum            an event on one declared stratum alone        --
Unbounded            no guarantee                                  --
==================== ============================================= ==========================

Costs are in :mod:`penstock.privacy.accounting.accountant`; what one person can move, in
:mod:`penstock.privacy.sensitivity`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar, Protocol

from penstock.base.errors import InvalidEvent
from penstock.privacy.numbers import MAX_PERSONS, positive, share, whole

RELATION = "zero-out, public n"
INJECTION = "latent noise injection"
"""The label of its events, by which they are known again."""
DIAMETER = "replace-one, which covers zero-out; public n"
UNIT = "person"


class _Noisy(Protocol):
    """An event with noise of a multiplier."""

    @property
    def noise_multiplier(self) -> float: ...
    @property
    def sensitivity(self) -> float: ...
    @property
    def count(self) -> int: ...


def _check_noise(event: _Noisy) -> None:
    positive("noise multiplier", event.noise_multiplier)
    positive("sensitivity", event.sensitivity)
    whole("count", event.count)


@dataclass(frozen=True, slots=True)
class _Event:
    """What all events have in common.

    ``delta`` is what an event takes off the top of any δ; its ε then holds with the rest.
    """

    kind: ClassVar[str]
    relation: ClassVar[str] = RELATION
    unit: ClassVar[str] = UNIT
    delta_off_top: ClassVar[float] = 0.0


@dataclass(frozen=True, slots=True)
class Gaussian(_Event):
    r"""``count`` releases of a query with Gaussian noise, without sampling.

    Rényi divergence of order α: ``count · α / (2σ²)`` (Mironov 2017, arXiv 1702.07476, Cor. 3).
    The exact curve is :math:`δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ)`, μ² = count/σ² (Balle & Wang
    2018, arXiv 1805.06530, Thm 8; composition: Dong, Roth & Su 2022, arXiv 1905.02383, Cor. 3.3).

    Args:
        noise_multiplier: σ, noise sd over the L2 sensitivity to one person (zero-out).
        count: how many such releases, composed.
        label: what it was used for, shown in the ledger.
        sensitivity: L2, in the query's own units; the raw sd is ``noise_multiplier·sensitivity``.

    Example:
        >>> Gaussian(4.0, count=10, label="moments").count
        10
        >>> Gaussian(float("nan"))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        penstock.base.errors.InvalidEvent: noise multiplier must be a finite positive ...
    """

    kind: ClassVar[str] = "gaussian"
    noise_multiplier: float
    count: int = 1
    label: str = ""
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        _check_noise(self)


@dataclass(frozen=True, slots=True)
class DiscreteGaussian(_Event):
    r"""``count`` releases on a grid with exact discrete Gaussian noise, without sampling.

    Rényi divergence of order α: at most ``count · α / (2σ²)``, for every vector of whole numbers
    and independent noise in each coordinate (Canonne, Kamath & Steinke 2020, arXiv 2004.00010,
    Thm 14). No floating-point number is drawn, so this is a proof on the machine
    and not only on paper (:mod:`penstock.privacy.noise.discrete`).

    Args:
        noise_multiplier: σ, noise sd over the L2 sensitivity of the query *rounded to the grid*.
        count, label: as in :class:`Gaussian`.
        sensitivity: L2, rounding included, in the query's own units.
        grid_sd: the smallest sd over the grid's width, of all coordinates.
        size: how many numbers one release has.
    """

    kind: ClassVar[str] = "discrete-gaussian"
    noise_multiplier: float
    count: int = 1
    label: str = ""
    sensitivity: float = 1.0
    grid_sd: float = 1.0
    size: int = 1

    def __post_init__(self) -> None:
        _check_noise(self)
        positive("sd over the grid", self.grid_sd)
        whole("size", self.size)


@dataclass(frozen=True, slots=True)
class PoissonGaussian(_Event):
    r"""``count`` Gaussian releases, each on a fresh Poisson sample of the persons.

    Each person is included independently with probability ``rate`` per step; the noisy sum is
    divided by the expected batch size ``rate · n``. Rényi divergence: Mironov, Talwar & Zhang
    2019 (arXiv 1908.10530, Thm 4 with Cor. 7); equal to autodp's amplification with its improved
    bound for the Gaussian (Zhu & Wang 2019, Thm 8).

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
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        _check_noise(self)
        share("sampling rate", self.rate)


@dataclass(frozen=True, slots=True)
class FixedSizeGaussian(_Event):
    r"""``count`` Gaussian releases, each on ``batch`` of ``population`` rows without replacement.

    Even where a person is zeroed out another row takes their place in the batch, so this is
    accounted by *replacing* a row: ``noise_multiplier`` is relative to the diameter, the most by
    which one row exchanged for another moves the sum (2r for rows of norm ≤ r). The bound covers
    zero-out, as the null record is one of the rows that may take the place. One row per person.

    Rényi divergence at whole orders: Wang, Balle & Kasiviswanathan 2019 (arXiv 1808.00087, Thm 9),
    or with the Gaussian's exact moments in it where these are smaller (proved in
    :mod:`penstock.privacy.accounting.sampling`); between them by convexity. Privacy profile: Balle,
    Barthe & Gaboardi 2018 (arXiv 1807.01647, Thm 9).

    Args:
        batch, population: 1 ≤ batch < population, both public.
        noise_multiplier: noise sd over the L2 diameter of a row.
        sensitivity: that diameter, in the query's own units.
    """

    kind: ClassVar[str] = "fixed-size-gaussian"
    relation: ClassVar[str] = DIAMETER
    batch: int
    population: int
    noise_multiplier: float
    count: int = 1
    label: str = ""
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        _check_noise(self)
        whole("batch", self.batch, MAX_PERSONS)
        whole("population", self.population, MAX_PERSONS)
        if not self.batch < self.population:
            raise InvalidEvent(
                "a batch must be smaller than its population",
                value=self.batch,
                bound=f"below {self.population}",
                remedy="without sampling it is a Gaussian",
            )


@dataclass(frozen=True, slots=True)
class Laplace(_Event):
    r"""``count`` releases with (discrete or continuous) Laplace noise, without sampling.

    Rényi divergence of order α, b the scale: log of α/(2α-1) e^{(α-1)/b} + (α-1)/(2α-1) e^{-α/b},
    over α - 1 (Mironov 2017, arXiv 1702.07476, Prop. 6). Pure ε of one release: 1/b (Dwork et al.
    2006; the discrete one: Ghosh, Roughgarden & Sundararajan 2009).

    Args:
        scale: b, the noise's scale over the L1 sensitivity to one person (zero-out).
        sensitivity: L1, in the query's own units.
    """

    kind: ClassVar[str] = "laplace"
    scale: float
    count: int = 1
    label: str = ""
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        positive("scale", self.scale)
        positive("sensitivity", self.sensitivity)
        whole("count", self.count)


@dataclass(frozen=True, slots=True)
class NoisyDescent(_Event):
    r"""``count`` last iterates of ``steps`` full-batch noisy gradient steps each.

    x ← x - η(∇F(x) + N(0, s²)), where x - η∇F(x) contracts distances by ``contraction`` *for both
    neighbours*, and one person moves ∇F, at any x, by at most the sensitivity. Nothing but the last
    iterate may be seen. Then the whole is μ-GDP with

    .. math:: μ = \frac1σ \sqrt{\frac{1-c^T}{1+c^T} \cdot \frac{1+c}{1-c}}

    and √T/σ at c = 1, which is plain composition (Bok, Su & Altschuler 2024, arXiv 2403.00278v2,
    Sec. 4: full-batch NoisyGD, F λ-strongly convex and β-smooth, ``c = max(|1-ηλ|, |1-ηβ|)``). It
    is the best of their shifted interpolations: the least Σ a_k² with Σ c^{T-k} a_k = Σ c^{T-k},
    the shifts a_k of the T steps in units of σ; attained by quadratics.

    Args:
        noise_multiplier: σ = s / sensitivity.
        contraction: c in (0, 1]; 1 claims no contraction and gives composition.
        steps: T, fixed beforehand.
        sensitivity: of the gradient, L2, in the query's own units; the raw sd of a step's noise is
            ``noise_multiplier·sensitivity``. Older records have 1 here, whatever it was.
    """

    kind: ClassVar[str] = "noisy-descent"
    noise_multiplier: float
    contraction: float
    steps: int
    count: int = 1
    label: str = ""
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        _check_noise(self)
        whole("steps", self.steps)
        positive("contraction", self.contraction)
        if not self.contraction <= 1:
            raise InvalidEvent(
                "the steps do not contract", value=self.contraction, bound="at most 1"
            )


@dataclass(frozen=True, slots=True)
class ShuffledGaussian(_Event):
    r"""``count`` tables of one noisy row per person, each in a fresh random order, without ids.

    Every row is a local randomizer that is (ε₀, ``local_delta``)-DP for any two inputs, by the
    Gaussian's exact curve. In random order the table is (ε, ``delta``)-DP, ε from the clones of
    Feldman, McMillan & Talwar 2021 (arXiv 2012.12803v4, Thm 3.2 with 3.1, numerically; Thm 3.8 for
    local_delta > 0), or from one row's own curve at ``delta`` where that is less:
    :mod:`penstock.privacy.accounting.shuffling`. Relation: one person's row replaced by any
    other, which covers zero-out.

    Args:
        persons: n, public; rows in the table.
        noise_multiplier: noise sd over the L2 *diameter* of a row (2R√w for latents).
        local_delta: δ₀ of one row's randomizer; enters ``delta`` times about n·e^ε.
        delta: δ of one shuffled table, taken off the top; must exceed what local_delta costs.
        sensitivity: the diameter, in the row's own units.
    """

    kind: ClassVar[str] = "shuffled-gaussian"
    relation: ClassVar[str] = DIAMETER
    persons: int
    noise_multiplier: float
    local_delta: float
    delta: float
    count: int = 1
    label: str = ""
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        whole("persons", self.persons, MAX_PERSONS)
        _check_noise(self)
        share("local δ", self.local_delta)
        share("δ", self.delta)

    @property
    def delta_off_top(self) -> float:  # type: ignore[override]
        return self.count * self.delta


FINE = 1024.0
"""How fine a grid is to which several sites add noise: so many widths make one site's sd."""


@dataclass(frozen=True, slots=True)
class DistributedGaussian(_Event):
    r"""``count`` sums over several sites on one grid, of which only the noisy total is seen.

    With S sites enrolled, at most t dropped out and at most c colluding, each site adds discrete
    Gaussian noise of σ/√(S-t-c), so that what is not known to the colluders is at least σ in total:
    Rényi divergence α/(2σ²) as in :class:`DiscreteGaussian`. A sum of h discrete Gaussians is not
    quite one. Of two, of sds a and b, the mass at k is ρ_σ(k), σ² = a² + b², times the sum of
    ρ_τ(x - kτ²/b²) over all whole x, τ = ab/σ, which differs between any k by a factor within
    e^{±7 exp(-2π²τ²)} for τ ≥ 1 (Poisson summation). Adding them up one by one τ² is at least half
    of one site's variance s², so that all chances of a number lie within e^{±7 h exp(-π²s²)} of
    those of one discrete Gaussian (compare Kairouz, Liu & Steinke 2021, arXiv 2102.06387, Thm 1 and
    Cor. 12). From s = 1024 on that is exp(-10⁷): far less than accountants round up by.

    :func:`alone` gives what holds if all others collude.

    Args:
        noise_multiplier: σ, the sd of S-t-c sites' noise together over the L2 sensitivity.
        sites, dropouts, colluders: S, t ≥ 0, c ≥ 0 with S - t - c ≥ 1; with c = 0 it holds against
            who sees the sum alone, and against no site.
        grid_sd: s, the smallest sd of one site's noise over the grid's width, of all coordinates:
            at least 1024.
        size: how many numbers one release has.
    """

    kind: ClassVar[str] = "distributed-gaussian"
    noise_multiplier: float
    sites: int
    dropouts: int
    colluders: int
    count: int = 1
    label: str = ""
    sensitivity: float = 1.0
    grid_sd: float = FINE
    size: int = 1

    def __post_init__(self) -> None:
        _check_noise(self)
        whole("sites", self.sites)
        for name, value in (("drop-outs", self.dropouts), ("colluders", self.colluders)):
            if value != 0 or isinstance(value, bool):
                whole(name, value)
        positive("grid_sd", self.grid_sd)
        whole("size", self.size)
        if not self.honest >= 1:
            raise InvalidEvent(
                "no site is left that adds noise",
                value=f"{self.sites} sites, {self.dropouts} drop-outs, {self.colluders} colluders",
            )
        if self.grid_sd < FINE:
            raise InvalidEvent(
                "the grid of a distributed sum is too coarse",
                value=self.grid_sd,
                bound=f"at least {FINE:g} widths to one site's sd",
            )

    @property
    def honest(self) -> int:
        """S - t - c: how many sites' noise counts."""
        return self.sites - self.dropouts - self.colluders


@dataclass(frozen=True, slots=True)
class Pure(_Event):
    """``count`` releases that are each (ε, 0)-DP, by a proof that the label names.

    Rényi divergence: that of randomized response (Bun & Steinke 2016, arXiv 1605.02065, Prop. 3.3;
    tight: Kairouz, Oh & Viswanath 2015, arXiv 1311.0776).
    """

    kind: ClassVar[str] = "pure"
    epsilon: float
    count: int = 1
    label: str = ""

    def __post_init__(self) -> None:
        positive("ε", self.epsilon)
        whole("count", self.count)


@dataclass(frozen=True, slots=True)
class Approximate(_Event):
    """``count`` releases that are each (ε, δ)-DP, by a proof that the label names.

    Each is dominated by: with probability δ everything is told, otherwise it is (ε, 0)-DP (Kairouz,
    Oh & Viswanath 2015, arXiv 1311.0776, Thm 3.4). So ``count·δ`` is taken off the top, and ε
    composes as :class:`Pure`.
    """

    kind: ClassVar[str] = "approximate"
    epsilon: float
    delta: float
    count: int = 1
    label: str = ""

    def __post_init__(self) -> None:
        positive("ε", self.epsilon)
        share("δ", self.delta)
        whole("count", self.count)

    @property
    def delta_off_top(self) -> float:  # type: ignore[override]
        return self.count * self.delta


@dataclass(frozen=True, slots=True)
class Unbounded(_Event):
    """Something released without a formal guarantee: ε = ∞ (the ``empirical`` class)."""

    kind: ClassVar[str] = "unbounded"
    label: str = ""


Release = (
    Gaussian
    | DiscreteGaussian
    | PoissonGaussian
    | FixedSizeGaussian
    | Laplace
    | NoisyDescent
    | ShuffledGaussian
    | DistributedGaussian
    | Pure
    | Approximate
    | Unbounded
)


@dataclass(frozen=True, slots=True)
class OnStratum(_Event):
    """An event that reads the persons of one declared stratum, and of no other.

    Strata part the persons once and for all: nobody is in two, and nobody ever moves. Then events
    on different strata compose in parallel: a person pays for their own stratum alone (McSherry
    2009, Thm 4; for Rényi divergences by the same argument, order by order). The number of persons
    in a stratum is *not* public by this: divide by a public constant, or charge a noisy count.
    """

    kind: ClassVar[str] = "on-stratum"
    stratum: str
    event: Release

    def __post_init__(self) -> None:
        if not (isinstance(self.stratum, str) and 0 < len(self.stratum) <= 200):
            raise InvalidEvent("a stratum needs a name", value=self.stratum)
        if isinstance(self.event, OnStratum) or not isinstance(self.event, _Event):
            raise InvalidEvent("a stratum holds one plain event", value=type(self.event).__name__)

    @property
    def count(self) -> int:
        return 1 if isinstance(self.event, Unbounded) else self.event.count

    @property
    def label(self) -> str:
        return self.event.label

    @property
    def delta_off_top(self) -> float:  # type: ignore[override]
        return self.event.delta_off_top


Event = Release | OnStratum
_KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        Gaussian,
        DiscreteGaussian,
        PoissonGaussian,
        FixedSizeGaussian,
        Laplace,
        NoisyDescent,
        ShuffledGaussian,
        DistributedGaussian,
        Pure,
        Approximate,
        Unbounded,
        OnStratum,
    )
}


def by_person(events: Iterable[Event]) -> list[list[Release]]:
    """What can happen to one person: everything without a stratum, and one stratum's events.

    One list per stratum that occurs, or a single one where none does. The cost of a composition is
    that of its dearest list.
    """
    common: list[Release] = []
    strata: dict[str, list[Release]] = {}
    for event in events:
        if isinstance(event, OnStratum):
            strata.setdefault(event.stratum, []).append(event.event)
        else:
            common.append(event)
    return [[*common, *own] for own in strata.values()] or [common]


def is_unbounded(event: Event) -> bool:
    """Whether the event has no finite ε at all."""
    return isinstance(event.event if isinstance(event, OnStratum) else event, Unbounded)


def alone(event: DistributedGaussian) -> DiscreteGaussian:
    """What holds of a distributed sum if all other sites collude: one site's own noise."""
    own = event.noise_multiplier / math.sqrt(event.honest)
    return DiscreteGaussian(
        own, event.count, event.label, event.sensitivity, event.grid_sd, event.size
    )


def injections(events: Iterable[Event]) -> tuple[Gaussian, ...]:
    """Those of a release's events that are its latent noise injection."""
    return tuple(e for e in events if isinstance(e, Gaussian) and e.label == INJECTION)


def to_dict(event: Event) -> dict[str, object]:
    """The event's canonical JSON form."""
    if isinstance(event, OnStratum):
        return {"kind": event.kind, "stratum": event.stratum, "event": to_dict(event.event)}
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
    if cls is OnStratum and isinstance(fields.get("event"), Mapping):
        inner = fields["event"]
        if isinstance(inner, Mapping) and inner.get("kind") == OnStratum.kind:
            raise InvalidEvent("a stratum holds one plain event", value=OnStratum.kind)
        fields["event"] = from_dict(inner)  # type: ignore[arg-type]
    try:
        return cls(**fields)  # type: ignore[arg-type]
    except TypeError as error:
        raise InvalidEvent(f"malformed {kind} event", value=sorted(fields)) from error
