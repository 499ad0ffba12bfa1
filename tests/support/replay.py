r"""Replay: the real release on neighbouring data sets that are given the same noisy answers.

Every number that leaves a mechanism gets its noise in a call of a measurement
(:mod:`penstock.privacy.measurements`), from one of two functions (:data:`SEAM`). A *tape* notes
whose call it is, and takes the place of the two. In the first world it draws the noise and keeps
what was asked and answered; in another it answers the same again, so that all that is adaptive goes
the same way, and what is *about to be noised* can be compared. The measurement must be one that the
plan holds, and is charged for. Of a release of noise multiplier σ, by arrays v_j with noise of sd
s_j,

.. math:: \sum_j ‖v_j - v_j'‖² / s_j² ≤ 1/σ²,

in whole numbers where the noise is drawn in whole numbers. There is no statistics in this: it takes
milliseconds, sees every number, and a claim that is one per cent too small is seen where a person
reaches it. And since a release is its answers, post-processed, a world with the same answers must
release the same bytes, whatever its rows are.

What it cannot see: noise that is not what it says (tests/statistical), and persons that nobody
thought of.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from tests.support.carried_out import release

from penstock.mechanisms.gibbs import run as gibbs_run
from penstock.mechanisms.maf import body as maf_body
from penstock.mechanisms.parts import Part
from penstock.mechanisms.protocol import Plan, Settings
from penstock.mechanisms.sliced_wasserstein import body as sliced_body
from penstock.mechanisms.structured import run as structured_run
from penstock.mechanisms.tables import run as tables_run
from penstock.mechanisms.trajectory import cohorts as trajectory_cohorts
from penstock.mechanisms.trajectory import run as trajectory_run
from penstock.privacy.events import DIAMETER, Event, NoisyDescent
from penstock.privacy.measurements import GaussianSum, LatentNoise, WholeSum
from penstock.privacy.noise import discrete
from penstock.privacy.noise import sources as noise
from penstock.privacy.noise.sources import SeededNoise
from penstock.schema.encoding import Encoding

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Fault = Callable[[], AbstractContextManager[Any]]

SEAM = (noise.add_gaussian, discrete.add_discrete_gaussian)
"""Where numbers get their noise."""

MEASUREMENTS = (GaussianSum, WholeSum, LatentNoise)
"""By whose calls alone they do."""

Asked = GaussianSum | WholeSum | LatentNoise

_ROUNDING = 1e-8
"""Sensitivities are rounded up by 1e-12 and more; the law's own sums are rounded, too."""


class Broken(AssertionError):
    """A release is not what it is charged as, or not post-processing of its noisy answers."""


class _Enough(Exception):
    """All that was to be seen has been."""


# -- the tape ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Statistic:
    """What was about to be noised, and what was answered.

    Args:
        asked: the measurement that was called; scale: in what units its sensitivity is meant.
        value: float64, or Python's whole numbers of a ``unit``.
        variance: of the noise on each number, in the value's own units squared.
    """

    asked: Asked
    scale: float
    value: NDArray[Any]
    unit: Fraction
    variance: Fraction
    answer: Array

    @property
    def label(self) -> str:
        return self.asked.label

    @property
    def sd(self) -> float:
        return math.sqrt(self.variance)

    def same(self, other: Statistic) -> bool:
        """Whether no bit differs."""
        return bool(np.array_equal(self.value, other.value)) and self.unit == other.unit

    def moved(self, other: Statistic) -> Fraction:
        """‖v - v'‖² over the noise's variance."""
        apart = (self.value - other.value).ravel()
        if self.value.dtype == object:
            squared = Fraction(sum(a * a for a in apart.tolist()))
        else:
            squared = Fraction(math.fsum((apart * apart).tolist()))
        return squared * self.unit**2 / self.variance


@dataclass
class Tape:
    """Stands in for :data:`SEAM`.

    Args:
        given: the statistics of the world whose answers it gives; None: noise.
        most: after how many questions the run ends, unfinished.
    """

    given: Sequence[Statistic] | None = None
    most: float = math.inf
    seen: list[Statistic] = field(default_factory=list)
    # Of its own: what is drawn without a look at rows must be the same in all worlds.
    noise: SeededNoise = field(default_factory=lambda: SeededNoise(1))

    # Whose call it is, and the unit that it was given.
    called: list[tuple[Asked, float]] = field(default_factory=list)

    def noting(self, real: Callable[..., Array]) -> Callable[..., Array]:
        """A measurement's call, of which the tape knows while it goes on."""

        def call(asked: Asked, total: Any, source: noise.NoiseSource, *unit: float) -> Array:
            self.called.append((asked, *(unit or (1.0,))))
            try:
                return real(asked, total, source, *unit)
            finally:
                self.called.pop()

        return call

    def gaussian(self, value: Array | float, sd: float, source: noise.NoiseSource) -> Array:
        array = np.array(value, dtype=np.float64)
        if not np.isfinite(array).all():
            raise Broken("a number that is none is about to be released")
        return self._answer(
            array, Fraction(1), Fraction(sd) ** 2, lambda: SEAM[0](array, sd, self.noise)
        )

    def discrete(
        self, value: Any, variance: Any, source: noise.NoiseSource, *, unit: float
    ) -> Array:
        array = np.array(np.asarray(value).tolist(), dtype=object)
        if not all(isinstance(v, int) for v in array.ravel().tolist()):
            raise Broken("discrete noise on numbers that are not whole")
        return self._answer(
            array,
            Fraction(unit),
            Fraction(variance),
            lambda: SEAM[1](value, variance, self.noise, unit=unit),
        )

    def _answer(
        self,
        value: NDArray[Any],
        unit: Fraction,
        variance: Fraction,
        noisy: Callable[[], Array],
    ) -> Array:
        if not self.called:
            raise Broken("noise beside all measurements: nobody is charged")
        asked, scale = self.called[-1]
        at = len(self.seen)
        if self.given is None:
            answer = noisy()
        elif at < len(self.given):
            other = self.given[at]
            now = (asked, scale, value.shape, unit, variance)
            if now != (other.asked, other.scale, other.value.shape, other.unit, other.variance):
                raise Broken(f"question {at}: {asked}, where another world asks {other.asked}")
            answer = other.answer
        else:
            raise Broken(f"{asked.label}: asks more than another world does")
        self.seen.append(Statistic(asked, scale, value, unit, variance, answer))
        if len(self.seen) >= self.most:
            raise _Enough
        return answer.copy()


LOADED = (
    gibbs_run,
    maf_body,
    sliced_body,
    structured_run,
    tables_run,
    trajectory_cohorts,
    trajectory_run,
)
"""What sees rows is imported when it is called: too late to listen to where it adds noise."""


@cache
def seams() -> list[tuple[ModuleType, str, int]]:
    """Every name in the package under which a function of :data:`SEAM` is called."""
    modules = [m for name, m in sys.modules.items() if name.startswith("penstock.")]
    return [
        (module, name, SEAM.index(value))
        for module in modules
        for name, value in vars(module).items()
        if any(value is real for real in SEAM)
    ]


@contextmanager
def listening(tape: Tape) -> Iterator[None]:
    """The tape in the place of the noise, everywhere."""
    with ExitStack() as stack:
        for module, name, kind in seams():
            hear = (tape.gaussian, tape.discrete)[kind]
            stack.enter_context(patch.object(module, name, hear))
        for kind_of in MEASUREMENTS:
            heard = tape.noting(kind_of.__call__)
            stack.enter_context(patch.object(kind_of, "__call__", heard))
        yield


# -- worlds ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class World:
    """A data set: rows (n, k, d) as they are encoded, and which are there (n, k)."""

    rows: Array
    present: Bools

    def without_first(self) -> World:
        """Person 0 replaced by nothing."""
        rows, present = self.rows.copy(), self.present.copy()
        rows[0], present[0] = 0.0, False
        return World(rows, present)

    def with_first(self, rows: Array, present: Bools) -> World:
        """Person 0's rows (k, d) replaced by these."""
        all_rows, all_present = self.rows.copy(), self.present.copy()
        all_rows[0], all_present[0] = rows, present
        return World(all_rows, all_present)


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: what was noised, what was released, and how it said that it went on."""

    seen: list[Statistic]
    parts: list[Part]
    progress: list[tuple[int, int]]


def run(
    settings: Settings,
    plan: Plan,
    encoding: Encoding,
    world: World,
    given: Ran | None = None,
    fault: Fault = nullcontext,
    public: World | None = None,
    most: float = math.inf,
) -> Ran:
    """The release in a world.

    Args:
        given: the run whose noisy answers it gets.
        public: rows of the guarantee ``public-flow``.
        most: after how many questions it ends, unfinished.
    """
    tape = Tape(None if given is None else given.seen, most)
    told: list[tuple[int, int]] = []
    made: list[Part] = []
    with listening(tape), fault(), suppress(_Enough):
        parts = release(
            settings,
            plan,
            encoding,
            world.rows.copy(),
            world.present.copy(),
            SeededNoise(7),
            progress=lambda done, total: told.append((done, total)),
            public=None if public is None else (public.rows, public.present),
        )
        made.extend(parts)
    if given is not None and len(tape.seen) < min(most, len(given.seen)):
        raise Broken(f"asks {len(tape.seen)} questions, another world {len(given.seen)}")
    return Ran(tape.seen, made, told)


# -- the two laws ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """Arrays that are noised one after the other and are one release of an event, or several.

    Args:
        asked: the measurement of the plan, by which it is charged.
        parts: sd of each array's noise, over the measurement's σ · sensitivity.
        releases: how many of the event's count this is.
    """

    asked: Asked
    parts: tuple[float, ...] = (1.0,)
    releases: int = 1

    @property
    def event(self) -> Event:
        return self.asked.event

    @property
    def sigma(self) -> float:
        return self.asked.noise_multiplier

    def reached(self, ours: Sequence[Statistic], theirs: Sequence[Statistic]) -> float:
        """What moved, squared, over what may.

        Raises:
            Broken: it is more; another measurement was called; there was too little noise.
        """
        label = self.asked.label
        if [s.label for s in ours] != [label] * len(self.parts):
            raise Broken(f"{label}: charged, but {[s.label for s in ours]} looked")
        for part, seen in zip(self.parts, ours, strict=True):
            least = part * self.sigma * self.asked.sensitivity * seen.scale
            if not seen.sd >= least * (1 - _ROUNDING):
                raise Broken(f"{label}: noise of sd {seen.sd:.6g}, charged for {least:.6g}")
            if not covers(self.asked, seen.asked):
                raise Broken(f"{label}: {seen.asked} was called, {self.asked} is charged")
        if self.event.relation == DIAMETER:
            # Whoever takes a place is a row of at most the longest one's length.
            longest = max(float((s.value**2).sum(axis=1).max()) for s in (*ours, *theirs))
            moved = Fraction(4 * longest) / ours[0].variance
        else:
            moved = sum((a.moved(b) for a, b in zip(ours, theirs, strict=True)), Fraction(0))
        ratio = float(moved * Fraction(self.sigma) ** 2 / self.releases)
        if not ratio <= 1 + _ROUNDING:
            raise Broken(f"{label}: moves {math.sqrt(ratio):.6f} of what it is charged for")
        return ratio


def covers(held: Asked, called: Asked) -> bool:
    """Whether a plan's measurement is the one that was called, or that of fewer numbers, of which
    one person moves no more."""
    if isinstance(held, WholeSum) and isinstance(called, WholeSum):
        fewer = replace(
            held, size=called.size, sensitivity=called.sensitivity, squared=called.squared
        )
        return (
            called == fewer and called.size <= held.size and called.sensitivity <= held.sensitivity
        )
    return called == held


def hold_claims(plan: Plan, looks: Sequence[Look], ours: Ran, theirs: Ran) -> dict[str, float]:
    """What one person moved of each event, at most, squared, over what is charged.

    Args:
        looks: in order, as the mechanism says it looks.

    Raises:
        Broken: too much moved; or what was looked at is not what is charged, one by one. What is
            noised after the last look, of refits, must not move at all.
    """
    charged: Counter[Event] = Counter()
    paid: Counter[Event] = Counter()
    for event in plan.events:
        charged[event] += _releases(event)
    for look in looks:
        paid[look.event] += look.releases
    if paid != charged:
        raise Broken(f"charged {dict(charged)}, and looked {dict(paid)}")
    found: dict[str, float] = {}
    at = 0
    for look in looks:
        end = at + len(look.parts)
        ratio = look.reached(ours.seen[at:end], theirs.seen[at:end])
        found[look.event.label] = max(found.get(look.event.label, 0.0), ratio)
        at = end
    for mine, other in zip(ours.seen[at:], theirs.seen[at:], strict=False):
        if not mine.same(other):
            raise Broken(f"{mine.label}: looks at rows, and nobody is charged")
    return found


def _releases(event: Event) -> int:
    return event.count * (event.steps if isinstance(event, NoisyDescent) else 1)


def hold_purity(ours: Ran, theirs: Ran) -> None:
    """The same answers, the same release, to the last bit.

    Raises:
        Broken: something of the rows left without noise.
    """
    if ours.progress != theirs.progress:
        raise Broken("progress depends on rows")
    if [part.name for part in ours.parts] != [part.name for part in theirs.parts]:
        raise Broken("other tables are released")
    for mine, other in zip(ours.parts, theirs.parts, strict=True):
        if _bytes(mine) != _bytes(other):
            raise Broken(f"{mine.name} shows more of the rows than its noisy answers")


def _bytes(part: Part) -> Mapping[str, bytes]:
    columns = part.columns.items()
    return {name: np.ascontiguousarray(values).tobytes() for name, values in columns}
