r"""What is asked of rows and the noise with which it leaves: charge and noise are one object.

A *measurement* is called with what the rows contribute to a sum, and with a source of noise, and
returns the noisy sum. The noise follows from the very fields from which its ``event``, which is
charged, follows. A plan holds its measurements and is charged as their events; so nothing can be
released with another noise than the one that was charged. This is the one module in which numbers
that depend on rows are given their noise.

============== ====================================================== ==========================
measurement    what is released                                       event
============== ====================================================== ==========================
GaussianSum    a float64 sum, and :math:`N(0, (σΔ)^2)` on each number Gaussian; with a *credit*
                                                                      PoissonGaussian,
                                                                      FixedSizeGaussian or
                                                                      NoisyDescent
WholeSum       a sum of whole numbers of a unit, and exact discrete   DiscreteGaussian
               Gaussian noise of variance (σΔ)²
LatentNoise    each row's own latent √w·z, ‖z‖ ≤ R, and N(0, 1 - w)   Gaussian
============== ====================================================== ==========================

σ is the noise multiplier, Δ the L2 sensitivity to one person (zero-out with public n; with batches
of fixed size, the diameter). What rows *contribute*, and that one person moves it by no more than
Δ, is the mechanism's part: a pure function of rows and of what was released before.

An iterative mechanism is a :class:`Session`: it says what is asked next, and takes the noisy sum.
Whoever drives it (:func:`drive`: the worker; a coordinator, where many sites' sums are added)
computes the contributions, and the measurement adds the noise. The session sees no row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.base.errors import InvalidEvent
from penstock.privacy import sensitivity as sensitivities
from penstock.privacy.events import (
    INJECTION,
    DiscreteGaussian,
    Event,
    FixedSizeGaussian,
    Gaussian,
    NoisyDescent,
    PoissonGaussian,
)
from penstock.privacy.noise.discrete import (
    add_discrete_gaussian,
    exact_positive,
    from_grid,
    grid_exponent,
    grid_sd,
    to_grid,
)
from penstock.privacy.noise.sources import NoiseSource, add_gaussian
from penstock.privacy.numbers import positive, whole

Array = NDArray[np.float64]
Whole = NDArray[np.int64] | NDArray[np.object_]
State = TypeVar("State")

_ROUNDING = Fraction(1, 10**9)
"""By how much of itself a sensitivity may differ from the root of its exact square: bounds are
rounded up by 1e-12."""


class Measurement(Protocol):
    """One kind of noisy answer; frozen, public, and made before any row is read."""

    @property
    def label(self) -> str:
        """What it is used for, as the ledger shows it."""

    @property
    def event(self) -> Event:
        """What all of its calls together are charged as."""

    @property
    def calls(self) -> int:
        """How many calls that pays for."""


@dataclass(frozen=True, slots=True)
class PoissonSample:
    """Each call sees a fresh Poisson sample: everybody is in it by chance ``rate``, alone."""

    rate: float


@dataclass(frozen=True, slots=True)
class FixedSample:
    """Each call sees ``batch`` of ``population`` rows, drawn anew without replacement."""

    batch: int
    population: int


@dataclass(frozen=True, slots=True)
class LastIterate:
    """The calls are the ``steps`` of a descent that contracts by ``contraction`` for both
    neighbours, of which nothing but the last iterate is seen."""

    contraction: float
    steps: int


@dataclass(frozen=True, slots=True)
class Addend:
    """Numbers that one site adds to a sum of many, on a grid, without their noise.

    Args:
        whole: multiples of the grid's width; variance: that the sum's noise is to have, in squares
            of that width.
    """

    whole: Sequence[int]
    variance: Fraction


@runtime_checkable
class Exchange(NoiseSource, Protocol):
    """A source of noise by which a sum is one of many sites: each adds noise of its own."""

    @property
    def known(self) -> bool:
        """Whether the sites have added up the next sum already: then it depends on no row here."""

    def agree(self) -> NoiseSource:
        """Randomness that is the same at all sites, by the sums so far: public, and for nothing
        that a guarantee rests on."""

    def exchange(self, asked: WholeSum, addends: Sequence[Addend], /) -> Sequence[Sequence[int]]:
        """The noisy sums of all sites' addends, on the same grids."""


def is_known(noise: NoiseSource) -> bool:
    """Whether the next sum is known before a row is looked at: in a release of many sites, whose
    runs begin anew in each round."""
    return isinstance(noise, Exchange) and noise.known


def agree(noise: NoiseSource) -> NoiseSource:
    """A source for what no guarantee rests on, which is the same at all sites of one release; of
    a site's own release the source itself."""
    return noise.agree() if isinstance(noise, Exchange) else noise


Credit = PoissonSample | FixedSample | LastIterate
"""What makes a release cost less than its noise by itself."""


@dataclass(frozen=True, slots=True)
class GaussianSum:
    r"""A sum in float64 with Gaussian noise of sd σΔ on each number, on a grid.

    Charged as :class:`~penstock.privacy.events.Gaussian`, or as the event of its credit, whose
    docstrings have the formulas and sources. Relation: zero-out, public n; with
    :class:`FixedSample`, replace-one.

    Args:
        noise_multiplier: σ; sensitivity: Δ in L2, of one call, the diameter with a
            :class:`FixedSample`.
        count: how many calls there are (of a :class:`LastIterate`, how many descents).
        credit: None where everybody is in every sum, and all sums may be seen.

    Raises:
        InvalidEvent: a value out of its domain.
    """

    label: str
    noise_multiplier: float
    sensitivity: float
    count: int = 1
    credit: Credit | None = None

    def __post_init__(self) -> None:
        _ = self.event

    @property
    def sd(self) -> float:
        """Of the noise on each number."""
        return self.noise_multiplier * self.sensitivity

    @property
    def calls(self) -> int:
        return self.count * (self.credit.steps if isinstance(self.credit, LastIterate) else 1)

    @property
    def event(self) -> Event:
        sigma, common = self.noise_multiplier, (self.count, self.label, self.sensitivity)
        match self.credit:
            case None:
                return Gaussian(sigma, *common)
            case PoissonSample(rate):
                return PoissonGaussian(rate, sigma, *common)
            case FixedSample(batch, population):
                return FixedSizeGaussian(batch, population, sigma, *common)
            case LastIterate(contraction, steps):
                return NoisyDescent(sigma, contraction, steps, *common)

    def __call__(self, total: Array, noise: NoiseSource, unit: float = 1.0) -> Array:
        """The noisy sum: :func:`~penstock.privacy.noise.sources.add_gaussian`, of any shape.

        Args:
            total: what is moved by Δ·unit at most, by one person.
            unit: in which the sensitivity is meant, public or released before.
        """
        sd = self.noise_multiplier * (self.sensitivity * positive("unit", unit))
        return add_gaussian(total, sd, noise)


@dataclass(frozen=True, slots=True)
class WholeSum:
    r"""A sum of whole numbers of a unit, with exact discrete Gaussian noise of variance (σΔ)².

    Nothing rests on floating point: the sum is exact, the variance is a fraction, and the noise is
    drawn in whole numbers. Charged as :class:`~penstock.privacy.events.DiscreteGaussian` (Canonne,
    Kamath & Steinke 2020, Thm 14). Relation: zero-out, public n.

    Args:
        noise_multiplier: σ; sensitivity: Δ in L2, as it is charged; squared: Δ² exactly, of which
            the sensitivity is the root but for rounding.
        unit: a power of two, of which all numbers are whole multiples.
        size: how many numbers one release has, at most.
        count: how many releases; parts: in how many calls each of them is made.
        symmetric: the numbers are symmetric matrices. Such a one is a vector of its diagonal and √2
            times its upper triangle, of the same L2 norm; so what is beside the diagonal carries
            half of the variance.

    Raises:
        InvalidEvent: a value out of its domain, or a sensitivity that is not its square's root.
    """

    label: str
    noise_multiplier: float
    sensitivity: float
    squared: Fraction
    unit: float
    size: int
    count: int = 1
    parts: int = 1
    symmetric: bool = False

    def __post_init__(self) -> None:
        whole("parts", self.parts)
        claimed = Fraction(positive("sensitivity", self.sensitivity)) ** 2
        if not abs(claimed - self.squared) <= 2 * _ROUNDING * claimed:
            raise InvalidEvent(
                "a sensitivity must be the root of its square",
                value=self.sensitivity,
                bound=f"its square, {float(claimed):.12g}",
            )
        _ = self.event

    @property
    def variance(self) -> Fraction:
        """Of the noise on each number; of a symmetric matrix, on its diagonal."""
        return exact_positive("noise multiplier", self.noise_multiplier) ** 2 * self.squared

    @property
    def sd(self) -> float:
        """σΔ: of the same noise."""
        return self.noise_multiplier * self.sensitivity

    @property
    def calls(self) -> int:
        return self.count * self.parts

    @property
    def event(self) -> DiscreteGaussian:
        grid = grid_sd(self.variance, self.unit)
        if self.symmetric:
            grid = min(grid, grid_sd(self.variance / 2, self.unit))
        return DiscreteGaussian(
            self.noise_multiplier, self.count, self.label, self.sensitivity, grid, self.size
        )

    def __call__(self, total: ArrayLike, noise: NoiseSource) -> Array:
        """The noisy sum, in the query's own units: float64, of the shape of ``total``.

        Args:
            total: whole numbers, of any size, in units; (…, q, q) if symmetric.
            noise: or the :class:`Exchange` by which it is a sum of many sites.

        Raises:
            InvalidEvent: numbers that are not whole, or more of them than are charged for.
        """
        given = np.asarray(total)
        parts = self._part(given)
        self._check_size(sum(part.size for part, _ in parts))
        if isinstance(noise, Exchange):
            return self._join(given.shape, self._exchange(parts, noise))
        noisy = [add_discrete_gaussian(p, v, noise, unit=self.unit) for p, v in parts]
        return self._join(given.shape, noisy)

    def with_noise(self, factor: float) -> WholeSum:
        """The same with so many times the noise."""
        return replace(self, noise_multiplier=self.noise_multiplier * factor)

    def _part(self, total: Whole) -> list[tuple[Whole, Fraction]]:
        """The numbers that say all, by the variance of their noise."""
        if not self.symmetric:
            return [(total, self.variance)]
        size = total.shape[-1]
        place, (i, j) = np.arange(size), np.triu_indices(size, 1)
        return [
            (total[..., place, place], self.variance),
            (total[..., i, j], self.variance / 2),
        ]

    def _join(self, shape: tuple[int, ...], parts: Sequence[Array]) -> Array:
        """Inverse of :meth:`_part`."""
        if not self.symmetric:
            return parts[0]
        size = shape[-1]
        place, (i, j) = np.arange(size), np.triu_indices(size, 1)
        whole = np.zeros(shape)
        whole[..., place, place] = parts[0]
        whole[..., i, j] = whole[..., j, i] = parts[1]
        return whole

    def _exchange(self, parts: Sequence[tuple[Whole, Fraction]], noise: Exchange) -> list[Array]:
        """The noisy sums of all sites."""
        grids = [grid_exponent(variance, self.unit) for _, variance in parts]
        asked = [
            Addend(to_grid(part, grid, self.unit), variance / Fraction(4) ** grid)
            for (part, variance), grid in zip(parts, grids, strict=True)
        ]
        given = noise.exchange(self, asked)
        return [
            from_grid(sums, grid, part.shape)
            for sums, grid, (part, _) in zip(given, grids, parts, strict=True)
        ]

    def _check_size(self, found: int) -> None:
        if not found * self.parts <= self.size:
            raise InvalidEvent(
                f"{self.label}: more numbers than were planned", value=found, bound=self.size
            )


@dataclass(frozen=True, slots=True)
class LatentNoise:
    r"""Latent noise injection as a local randomizer: √w·z + √(1-w)·Z for each row.

    A person's latent z is clipped to radius R; the null record has latent 0. L2 sensitivity of one
    row R√w, noise sd √(1-w): σ = √((1-w)/w) / R. Every copy of every row is one more release.
    Relation: zero-out, public n.

    Args:
        w: mixing weight in (0, 1); radius: R.
        rows: of a person; copies: how often each row is released, a call each.

    Source: the Gaussian mechanism on the map of Shen & Tian 2025, eq. (4); docs/privacy.md,
    "What each mechanism is charged for".

    Raises:
        InvalidEvent: a value out of its domain.
    """

    w: float
    radius: float
    rows: int = 1
    copies: int = 1

    def __post_init__(self) -> None:
        whole("rows per person", self.rows)
        whole("copies", self.copies)
        _ = self.event

    @property
    def label(self) -> str:
        return INJECTION

    @property
    def noise_multiplier(self) -> float:
        return math.sqrt((1 - self.w) / self.w) / self.radius

    @property
    def sensitivity(self) -> float:
        return sensitivities.latent(self.w, self.radius)

    @property
    def sd(self) -> float:
        """√(1-w), exactly: the model must be given standard Gaussians."""
        return math.sqrt(1 - self.w)

    @property
    def calls(self) -> int:
        return self.copies

    @property
    def event(self) -> Gaussian:
        reach = self.sensitivity  # checks both numbers before anything is divided by them
        return Gaussian(self.noise_multiplier, self.copies * self.rows, self.label, reach)

    def __call__(self, latents: Array, noise: NoiseSource) -> Array:
        """One copy's noisy latents.

        Args:
            latents: √w·z of every row, ‖z‖ ≤ R, and 0 where there is none.
        """
        return add_gaussian(latents, self.sd, noise)


def charge(measurements: Iterable[Measurement]) -> tuple[Event, ...]:
    """What they are charged as, together."""
    return tuple(measurement.event for measurement in measurements)


@dataclass(frozen=True, slots=True)
class Query(Generic[State]):
    """What a session asks next.

    Args:
        about: all that the contributions depend on, beside the rows: public, or released before.
        measurement: how their sum is noised; None: not at all, of public rows or where no
            guarantee is given.
        unit: of the measurement's sensitivity; a sum of whole numbers has its own.
    """

    about: State
    measurement: GaussianSum | WholeSum | None
    unit: float = 1.0


class Session(Protocol[State]):
    """An iterative mechanism between its looks at rows. It never sees a row."""

    def next_query(self) -> Query[State] | None:
        """What is asked next; None at the end, after a number of queries that is public."""

    def absorb(self, noisy: Array, /) -> None:
        """Go on with the noisy answer to the last query."""


def answer(query: Query[State], total: Array | Whole, noise: NoiseSource) -> Array:
    """The sum as it leaves: with the noise of the query's own measurement."""
    match query.measurement:
        case None:
            return np.asarray(total, dtype=np.float64)
        case WholeSum():
            return query.measurement(total, noise)
        case GaussianSum():
            return query.measurement(np.asarray(total), noise, query.unit)


def drive(
    session: Session[State],
    contribute: Callable[[State], Array | Whole],
    noise: NoiseSource,
    absorbed: Callable[[], None] | None = None,
) -> None:
    """Run a session to its end, on rows of which ``contribute`` computes the bounded sums.

    Args:
        absorbed: called after each answer; it learns nothing.
    """
    while (query := session.next_query()) is not None:
        session.absorb(answer(query, contribute(query.about), noise))
        if absorbed is not None:
            absorbed()
