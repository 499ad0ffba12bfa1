"""Faults to plant in the package's real code: what a broken twin of a mechanism does wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from fractions import Fraction
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np

from penstock.mechanisms.flow import training
from penstock.mechanisms.sliced_wasserstein.goals import Schedule
from penstock.mechanisms.tables import moments, outcome
from penstock.mechanisms.tables import run as mechanism
from penstock.mechanisms.trajectory import drift
from penstock.privacy import measurements
from penstock.privacy.measurements import GaussianSum, LatentNoise, WholeSum
from penstock.privacy.noise import sources as noises

EXPECTED_RATE = 0.25
"""Of the Poisson samples whose pulls :func:`realised_pulls` divides by the batch that came."""


def replaced(module: ModuleType | type, name: str, make: Callable[[Any], Any]) -> Callable[[], Any]:
    """The function ``name`` of a module, replaced by what ``make`` makes of it."""
    return lambda: patch.object(module, name, make(getattr(module, name)))


def less_noise(share: float = 0.5) -> Callable[[], Any]:
    """Half the noise in every Gaussian sum, or another share of it."""
    return replaced(
        measurements, "add_gaussian", lambda real: lambda v, sd, s: real(v, share * sd, s)
    )


def less_discrete_noise(share: Fraction = Fraction(1, 4)) -> Callable[[], Any]:
    """Half the noise in every sum of whole numbers, or another share of its variance."""
    return replaced(
        measurements,
        "add_discrete_gaussian",
        lambda real: lambda v, variance, s, unit: real(v, share * variance, s, unit=unit),
    )


@contextmanager
def called(change: Callable[[Any], Any]) -> Iterator[None]:
    """Other measurements are called in the place of a plan's own."""
    with ExitStack() as stack:
        for kind in (GaussianSum, WholeSum, LatentNoise):
            real = kind.__call__
            stack.enter_context(
                patch.object(
                    kind, "__call__", lambda own, *given, real=real: real(change(own), *given)
                )
            )
        yield


@contextmanager
def less_noise_of(label: str) -> Iterator[None]:
    """The noise of one measurement's calls is one per cent too small."""
    at_work: list[str] = []

    def note(own: Any) -> Any:
        at_work[:] = [own.label]
        return own

    def gaussian(real: Any) -> Any:
        return lambda v, sd, s: real(v, 0.99 * sd if at_work == [label] else sd, s)

    def discrete(real: Any) -> Any:
        def add(v: Any, variance: Any, s: Any, *, unit: float) -> Any:
            cut = Fraction(9801, 10000) if at_work == [label] else 1
            return real(v, cut * variance, s, unit=unit)

        return add

    with (
        called(note),
        replaced(measurements, "add_gaussian", gaussian)(),
        replaced(measurements, "add_discrete_gaussian", discrete)(),
    ):
        yield


class _Faulty:
    """A flow, of any engine, but for what a subclass does wrong."""

    def __init__(self, flow: Any) -> None:
        self._flow = flow

    def __getattr__(self, name: str) -> Any:
        return getattr(self._flow, name)


class Unclipped(_Faulty):
    def clipped_sum(self, data: Any, who: Any, clip: float) -> Any:
        return self._flow.clipped_sum(data, who, math.inf)


class ByRow(_Faulty):
    def load(self, rows: Any, present: Any) -> Any:
        return self._flow.load(rows.reshape(-1, 1, rows.shape[2]), present.reshape(-1, 1))


def by_particle(real: Any) -> Any:
    """Clip what a person pulls at on each particle, and not all of it together."""

    def clipped(data: Any, x: Any, widths: Any, clip: float, who: Any) -> Any:
        taken = range(x.shape[1])
        alone = [real(data, x[:, j : j + 1], widths, clip, who) for j in taken[:1]]
        # All particles are at one place: what one is pulled by, all are.
        return np.concatenate(alone * len(taken), axis=1)

    return clipped


def unscaled(real: Any) -> Any:
    """Nobody's pull is shortened."""
    return lambda data, lengths, time, clip: lengths * 0 + 1


def each_time_alone(real: Any) -> Any:
    """Clip what a person pulls at each time point, and not all of it together."""

    def scales(data: Any, lengths: Any, time: Any, clip: float) -> Any:
        alike = (time[:, :, None] == time[:, None, :]).double()
        return (clip / (alike @ lengths[..., None])[..., 0]).clamp(max=1.0)

    return scales


def at_each_step(real: Any) -> Any:
    """One release per step, where all steps were to share one."""

    def goals(*given: Any) -> Iterator[Any]:
        schedule = next(each for each in given if isinstance(each, Schedule))
        for _ in range(schedule.steps):
            yield next(real(*given))

    return goals


def visit_by_visit(real: Any) -> Any:
    """Each visit of a person is clipped by itself: together they are longer than the radius."""

    def whole(scores: Any, present: Any, radius: float) -> Any:
        inside = np.clip(scores[:, 0], -radius, radius)
        y = np.column_stack([inside, np.ones(len(inside))]) * present
        unit = moments.row_unit(radius)
        y = np.trunc(y / unit).astype(np.int64)
        return np.einsum("ni,nj->ij", y, y).astype(object), unit * unit

    return whole


def whole_rows(real: Any) -> Any:
    """Each row of a person counts in full, however many they have in one cell."""
    return lambda cells, usable: np.ones(cells.shape)


def straight(real: Any) -> Any:
    """The slope of a squared loss, which nothing cuts off."""
    return lambda family, z, y, limit: z - y


def half(real: Any) -> Any:
    """A property that is half of what it should be."""
    return property(lambda self: real.fget(self) / 2)


def squared_share(real: Any) -> Any:
    """Noise of sd 1 - w where the variance should have been 1 - w."""

    return property(lambda own: 1 - own.w)


@contextmanager
def no_synthesis() -> Iterator[None]:
    """The mechanism fits its model, and then lets the rows themselves go, shuffled."""

    def draw(plan: Any, model: Any, rows: Any, present: Any, noise: Any) -> Any:
        shown = np.where(present.reshape(-1, 1), rows, 0.0)
        return shown[noises.permutation(len(rows), noise)]

    with (
        patch.object(mechanism, "_latents", lambda plan, model, rows: rows[:, 0]),
        patch.object(mechanism, "_draw", draw),
    ):
        yield


def each_row_a_person(real: Any) -> Any:
    def score(hazard: Any, values: Any, scores: Any, present: Any, *rest: Any) -> Any:
        apart = (a.reshape(-1, 1, a.shape[2]) for a in (values, scores))
        return real(hazard, *apart, present.reshape(-1, 1), *rest)

    return score


def each_score_a_person(real: Any) -> Any:
    return lambda scores, present, per_person, *rest: real(scores, present, 1, *rest)


@contextmanager
def unclipped_score(most: float, where: Any = outcome) -> Iterator[None]:
    """No score is shortened to the clip; its entries alone are held within ``most`` times it.

    Args:
        where: the module that sums scores.
    """

    def whole(y: Any, present: Any, radius: float) -> Any:
        unit = moments.row_unit(radius)
        inside = np.clip(y, -most * radius, most * radius)
        return np.trunc(inside / unit).astype(np.int64) * present[:, None], unit

    with (
        patch.object(where, "clip_rows", lambda y, radius: y),
        patch.object(where, "whole_vectors", whole),
    ):
        yield


def first_row(rows: Any, step: float) -> Any:
    return rows[:, 0] * step


def unclipped_moments(scores: Any, present: Any, radius: float) -> Any:
    """Whole moments of rows that nothing holds inside the radius."""
    unit = moments.row_unit(radius)
    y = np.column_stack([scores.reshape(-1, scores.shape[2]), np.ones(present.size)])
    whole = np.trunc(y / unit).astype(np.int64)
    whole[~present.ravel()] = 0
    return np.einsum("ni,nj->ij", whole, whole).astype(object), unit * unit


def realised_pulls() -> AbstractContextManager[Any]:
    """The same for particles: what pulls on them is divided by the batch that came."""

    def planted(real: Any) -> Any:
        def divided(data: Any, x: Any, widths: Any, clip: float, who: Any) -> Any:
            came = (who >= 0).sum()
            return real(data, x, widths, clip, who) * EXPECTED_RATE * data.persons / came

        return divided

    return replaced(drift.Rows, "clipped_sum", planted)()


@contextmanager
def realised_batch() -> Iterator[None]:
    """Training divides by the batch that came, and not by the one expected.

    No data set shows this in the noisy sums, which are what is released: a law does
    (tests/laws/test_dpsgd.py).
    """
    draw = training.Descent._draw

    def realised(self: Any) -> Any:
        who = draw(self)
        self._schedule[self.step, 0] = max(self._n if who is None else (who >= 0).sum(), 1)
        return who

    with patch.object(training.Descent, "_draw", realised):
        yield
