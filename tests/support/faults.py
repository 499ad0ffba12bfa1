"""Faults to plant in the package's real code: what a broken twin of a mechanism does wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np

from penstock.mechanisms.flow import training
from penstock.mechanisms.sliced_wasserstein.goals import Schedule
from penstock.mechanisms.tables import moments, outcome
from penstock.mechanisms.tables import run as mechanism
from penstock.mechanisms.trajectory import drift
from penstock.privacy.noise import sources as noises

EXPECTED_RATE = 0.25
"""Of the Poisson samples whose pulls :func:`realised_pulls` divides by the batch that came."""


def replaced(module: ModuleType | type, name: str, make: Callable[[Any], Any]) -> Callable[[], Any]:
    """The function ``name`` of a module, replaced by what ``make`` makes of it."""
    return lambda: patch.object(module, name, make(getattr(module, name)))


def less_noise(module: ModuleType) -> Callable[[], Any]:
    """Half the noise in every Gaussian sum of this module."""
    return replaced(module, "add_gaussian", lambda real: lambda v, sd, s: real(v, sd / 2, s))


def less_discrete_noise(module: ModuleType) -> Callable[[], Any]:
    return replaced(
        module,
        "add_discrete_gaussian",
        lambda real: lambda v, variance, s, unit=None: real(v, variance / 4, s, unit=unit),
    )


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


def whole_rows(real: Any) -> Any:
    """Each row of a person counts in full, however many they have in one cell."""
    return lambda cells, usable: np.ones(cells.shape)


def straight(real: Any) -> Any:
    """The slope of a squared loss, which nothing cuts off."""
    return lambda loss, z: z - loss.outcome


def half(real: Any) -> Any:
    """A property that is half of what it should be."""
    return property(lambda self: real.fget(self) / 2)


def squared_share(real: Any) -> Any:
    """Noise of sd 1 - w where the variance should have been 1 - w."""

    class Less:
        def __init__(self, noise: Any, factor: float) -> None:
            self.noise, self.factor = noise, factor

        def normal(self, shape: Any) -> Any:
            return self.factor * self.noise.normal(shape)

    def inject(latents: Any, present: Any, w: float, radius: float, noise: Any) -> Any:
        return real(latents, present, w, radius, Less(noise, math.sqrt(1 - w)))

    return inject


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


@contextmanager
def unclipped_score(most: float) -> Iterator[None]:
    """No score is shortened to the clip; its entries alone are held within ``most`` times it."""

    def whole(y: Any, present: Any, radius: float) -> Any:
        unit = moments._row_unit(radius)
        inside = np.clip(y, -most * radius, most * radius)
        return np.trunc(inside / unit).astype(np.int64) * present[:, None], unit

    with (
        patch.object(outcome, "clip_rows", lambda y, radius: y),
        patch.object(outcome, "whole_vectors", whole),
    ):
        yield


def first_row(rows: Any, step: float) -> Any:
    return rows[:, 0] * step


def unclipped_moments(scores: Any, present: Any, radius: float) -> Any:
    """Whole moments of rows that nothing holds inside the radius."""
    unit = moments._row_unit(radius)
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
    draw = training._Descent.draw

    def realised(self: Any) -> Any:
        who = draw(self)
        self._schedule[self.step, 0] = max(self._n if who is None else (who >= 0).sum(), 1)
        return who

    with patch.object(training._Descent, "draw", realised):
        yield
