r"""Training of flows by Adam on noisy clipped gradients: the loop, whatever the engine.

The loss is the sum of -log p(row), the unit a person. An engine sums clipped gradients
(:meth:`penstock.mechanisms.flow.interface.Flow.clipped_sum`); what is done with the sums is here.

Formal guarantees (zero-out, public n), of one step's noisy sum:

=========================  ==============================================================
absent rows, null persons  contribute exactly 0, by the same work
NaN, ±inf in a row         the flow clamps its input; a non-finite gradient contributes 0
one person                 moves the sum, as computed, by ≤ C, whatever the parameters
noise                      :attr:`Training.measurement`'s, on every active parameter
division                   by q·n, the expected batch, never by the realised one
a step's work              that of a public size: Poisson batches are filled up to it
everything else            a function of the noisy sums: schedule, averaging, parameters
=========================  ==============================================================

No loss is computed, logged or looked at; the number of steps is fixed beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.flow.architecture import active, project
from penstock.mechanisms.flow.interface import Descending, Flow, Joining, Joint
from penstock.privacy.measurements import GaussianSum, PoissonSample, Query, answer, drive
from penstock.privacy.noise.sources import NoiseSource, poisson_batch

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.intp]
Progress = Callable[[int, int], None]

_BETA_1, _BETA_2, _FLOOR = 0.9, 0.999, 1e-8
"""Adam's decays of its two moments, and what is added to the root of the second."""

LABEL = "flow, DP-SGD"

_LEAP = 64
"""Noise-free steps that an engine may make in one call."""

_HELD = 1 << 27
"""Bound on the numbers that fits which are computed as one hold at once."""


@dataclass(frozen=True, slots=True)
class Training:
    """How a flow is trained; all of it public.

    Args:
        steps: number of noisy gradients, fixed.
        clip: C > 0, bound on a person's gradient norm; ``inf`` only without noise.
        noise_multiplier: σ > 0, noise sd over C; None trains without noise, on public rows or in
            the ``empirical`` class only.
        rate: Poisson sampling rate q in (0, 1), or None for all persons at every step.
        learning_rate: Adam's, at the start; it decays to 0 as a half cosine.
        average: the last share of the iterates that is averaged (0: the last iterate).
        batch: persons per step, or None for ``rate``'s or all. Every pass over the persons is in a
            new random order, without replacement; its last batch may be short, and is divided by
            its own size. Without noise only: no accounting here covers such batches.

    Raises:
        InvalidInput: a value out of its bound.
    """

    steps: int
    clip: float
    noise_multiplier: float | None
    rate: float | None = None
    learning_rate: float = 0.01
    average: float = 0.0
    batch: int | None = None

    def __post_init__(self) -> None:
        sigma = self.noise_multiplier
        checks = (
            ("steps", self.steps, self.steps >= 1, "at least 1"),
            (
                "clip",
                self.clip,
                self.clip > 0 and (sigma is None or math.isfinite(self.clip)),
                "above 0",
            ),
            (
                "noise multiplier",
                sigma,
                sigma is None or (sigma > 0 and math.isfinite(sigma)),
                "above 0",
            ),
            ("rate", self.rate, self.rate is None or 0 < self.rate < 1, "between 0 and 1"),
            ("learning rate", self.learning_rate, 0 < self.learning_rate < 1, "between 0 and 1"),
            ("average", self.average, 0 <= self.average <= 1, "between 0 and 1"),
            ("batch", self.batch, self.batch is None or self.batch >= 1, "at least 1"),
            (
                "batch",
                self.batch,
                self.batch is None or (sigma is None and self.rate is None),
                "none with noise or a rate",
            ),
        )
        problems = [
            Problem(name, "out of bounds", value=str(v), bound=b)
            for name, v, ok, b in checks
            if not ok
        ]
        if problems:
            raise InvalidInput("training", problems)

    @property
    def measurement(self) -> GaussianSum | None:
        r"""Each step's :math:`\sum_i \mathrm{clip}_C(g_i) + N(0, σ^2C^2)`; None without noise.

        Over all persons, or over a fresh Poisson sample of them. Sensitivity C in L2, zero-out with
        public n (Abadi et al. 2016, with the expected batch size).
        """
        if self.noise_multiplier is None:
            return None
        credit = None if self.rate is None else PoissonSample(self.rate)
        return GaussianSum(LABEL, self.noise_multiplier, self.clip, self.steps, credit)


def fit(
    flow: Flow,
    rows: Array,
    present: Bools,
    training: Training,
    noise: NoiseSource,
    progress: Progress | None = None,
) -> None:
    r"""Train ``flow`` in place by Adam on noisy clipped gradients.

    What a step releases, and what it costs: :attr:`Training.measurement`.

    Args:
        rows: (n, k, d), standardised; k rows per person at most.
        present: (n, k); absent rows contribute nothing.
        noise: source of the noise and of the batches.
        progress: called as ``progress(step, steps)``, without noise not after every step; learns
            nothing else.
    """
    data = flow.load(rows, present)
    descent = Descent(flow, len(rows), training, noise)
    plain = training.noise_multiplier is None and flow.arch.spectral is None

    def went_on() -> None:
        flow.set_flat(descent.parameters)
        if progress is not None:
            progress(descent.step, training.steps)

    def contribute(who: Indices | None) -> Array:
        return descent.trained(flow.clipped_sum(data, who, training.clip))

    if plain and isinstance(flow, Descending):
        while descent.step < training.steps:
            descent.leap(flow, data)
            went_on()
    else:
        drive(descent, contribute, noise, went_on)
    flow.set_flat(descent.result())


_Fit = tuple[Flow, Array, Bools, Training, NoiseSource]


def fit_many(
    flows: Sequence[Flow],
    rows: Sequence[Array],
    present: Sequence[Bools],
    trainings: Sequence[Training],
    noises: Sequence[NoiseSource],
    progress: Progress | None = None,
    threads: int = 1,
    together: bool | None = None,
) -> None:
    """Train several flows, each as :func:`fit` would with the same arguments.

    Results are those of one fit after the other, to rounding if ``together``. Each fit is a release
    of its own.

    Args:
        flows, rows, present, trainings: one of each per fit.
        noises: one per fit; a :class:`.SecureNoise` may stand in all places, a seeded one may not.
        progress: called as ``progress(steps done, steps of all fits)``, from any thread.
        threads: fits at a time, each on the threads of its own engine besides; or, if ``together``,
            threads that draw noise.
        together: as one computation with a dimension of fits, which needs torch flows of one
            architecture and precision, and as many steps and rows per person in each. None: where
            that can be had and the flows are not on a CPU.

    Raises:
        InvalidInput: not one of each per fit, no threads, or flows that cannot go together.
    """
    fits = list(zip(flows, rows, present, trainings, noises, strict=False))
    problems = []
    if {*map(len, (flows, rows, present, trainings, noises))} != {len(fits)}:
        problems.append(Problem("fits", "needs one of each kind of argument per fit"))
    if not threads >= 1:
        problems.append(Problem("threads", "too few", value=str(threads), bound="at least 1"))
    if together and not _alike(fits):
        problems.append(Problem("together", "needs torch flows and data of one shape"))
    if problems:
        raise InvalidInput("training", problems)
    if together is None:
        together = all(flow.device != "cpu" for flow in flows) and _alike(fits)
    tick = _counter(sum(t.steps for t in trainings), progress)

    def alone(own: _Fit) -> None:
        before = 0

        def report(step: int, steps: int) -> None:
            nonlocal before
            tick(step - before)
            before = step

        fit(*own, progress=report)

    with ThreadPoolExecutor(threads) as pool:
        if together:
            size = max(1, _HELD // max(x.size for x in rows))
            for at in range(0, len(fits), size):
                _fit_together(fits[at : at + size], pool, tick)
        else:
            list(pool.map(alone, fits))


def _alike(fits: Sequence[_Fit]) -> bool:
    """Whether these can be computed as one."""
    kinds = {(rows.shape[1:], training.steps) for _, rows, _, training, _ in fits}
    return len(kinds) == 1 and _joint(fits) is not None


def _joint(fits: Sequence[_Fit]) -> Joint | None:
    flows, first = [flow for flow, *_ in fits], fits[0][0]
    return first.joined(flows) if isinstance(first, Joining) else None


def _counter(total: int, progress: Progress | None) -> Callable[[int], None]:
    """Add up the steps of all fits, in whatever threads they are done."""
    lock, done = Lock(), 0

    def tick(steps: int) -> None:
        nonlocal done
        if progress is not None:
            with lock:
                done += steps
                progress(done, total)

    return tick


def _fit_together(
    fits: Sequence[_Fit], pool: ThreadPoolExecutor, tick: Callable[[int], None]
) -> None:
    flows, rows, present, trainings, noises = zip(*fits, strict=True)
    joint = _joint(fits)
    if joint is None:
        raise InvalidInput("training", [Problem("together", "these flows cannot be joined")])
    data, clips = joint.load(rows, present), [t.clip for t in trainings]
    descents = [Descent(flow, len(own), t, noise) for flow, own, _, t, noise in fits]
    while all(queries := [descent.next_query() for descent in descents]):
        asked = [query for query in queries if query is not None]
        who = [query.about for query in asked]
        chosen = [
            np.arange(len(x)) if own is None else own for own, x in zip(who, rows, strict=True)
        ]
        everyone = all(own is None for own in who)
        totals = joint.clipped_sum(data, None if everyone else chosen, clips)
        list(pool.map(_take, descents, asked, totals, noises))
        joint.set_flat(np.stack([descent.parameters for descent in descents]))
        tick(len(fits))
    for flow, descent in zip(flows, descents, strict=True):
        flow.set_flat(descent.result())


def _take(descent: Descent, query: Query[Indices | None], total: Array, noise: NoiseSource) -> None:
    descent.absorb(answer(query, descent.trained(total), noise))


class Descent:
    """One training between its gradients, a session: batches, Adam, projection, average.

    A query is about who takes part in the step (None: everyone); what they contribute are their
    clipped gradients at ``parameters``, of which :meth:`trained` picks those that are trained.

    Args:
        n: persons, public; noise: source of the batches.
    """

    def __init__(self, flow: Flow, n: int, training: Training, noise: NoiseSource) -> None:
        self._arch, self._n, self._training, self._noise = flow.arch, n, training, noise
        self._active = np.flatnonzero(active(flow.arch))
        self.parameters = flow.get_flat()
        self._state = np.zeros((4, len(self._active)))  # θ, Adam's moments, the average
        self._state[0] = self.parameters[self._active]
        self._gradient = np.zeros(len(self._active))
        self._schedule = _schedule(training, n)
        self._measurement = training.measurement
        self._batches = None if training.batch is None else _batches(n, training.batch, noise)
        self.step = 0

    def next_query(self) -> Query[Indices | None] | None:
        if self.step >= self._training.steps:
            return None
        return Query(self._draw(), self._measurement)

    def _draw(self) -> Indices | None:
        """Who takes part in the next step; None for everyone."""
        if self._training.rate is not None:
            return poisson_batch(self._n, self._training.rate, self._noise)
        return None if self._batches is None else next(self._batches)

    def trained(self, total: Array) -> Array:
        """A sum of gradients (p,) on the parameters that are trained; the others' is 0."""
        return np.take(total, self._active, out=self._gradient, mode="clip")  # "raise" would buffer

    def absorb(self, noisy: Array) -> None:
        """One step on a clipped sum of those parameters."""
        gradient = self._gradient
        theta, m, v, mean = self._state
        divisor, floor, factor, kept = self._schedule[self.step]
        np.divide(noisy, divisor, out=gradient)
        _move(theta, m, v, gradient, floor, factor)
        self.parameters[self._active] = theta
        if self._arch.spectral is not None:
            project(self._arch, self.parameters)
            np.take(self.parameters, self._active, out=theta, mode="clip")
        if kept > 0:
            np.subtract(theta, mean, out=gradient)
            gradient /= kept
            mean += gradient
        self.step += 1

    def leap(self, flow: Descending, data: Any) -> None:
        """Several steps at once, by an engine that makes the very same ones."""
        schedule = self._schedule[self.step : self.step + _LEAP]
        batches = [self._draw() for _ in schedule]
        decays = _BETA_1, _BETA_2
        clip = self._training.clip
        flow.descend(data, batches, clip, self._active, schedule, decays, self._state)
        self.parameters[self._active] = self._state[0]
        self.step += len(schedule)

    def result(self) -> Array:
        """The last iterate, or the average of the last ones; (p,)."""
        if self._schedule[-1, 3] > 0:
            self.parameters[self._active] = self._state[3]
        return self.parameters


def _schedule(training: Training, n: int) -> Array:
    """Each step's divisor, Adam's floor and factor, and its number among those averaged, or 0."""
    step = np.arange(training.steps)
    divisor = np.full(training.steps, float(max(n, 1)))
    if training.rate is not None:
        divisor *= training.rate
    if training.batch is not None:
        per_pass = max(1, -(-n // training.batch))
        left = n - training.batch * (step % per_pass)
        divisor = np.clip(left, 1, training.batch).astype(np.float64)
    cosine = 0.5 * (1 + np.cos(np.pi * step / training.steps))
    # Adam's m̂ / (√v̂ + floor), with m̂ = a·M and v̂ = b²·V of unnormalised moments.
    a = (1 - _BETA_1) / (1 - _BETA_1 ** (step + 1))
    b = np.sqrt((1 - _BETA_2) / (1 - _BETA_2 ** (step + 1)))
    first = training.steps - math.floor(training.average * training.steps)
    kept = np.maximum(step + 1 - first, 0)
    factor = training.learning_rate * cosine * a / b
    return np.stack([divisor, _FLOOR / b, factor, kept], axis=1)


def _move(theta: Array, m: Array, v: Array, gradient: Array, floor: float, factor: float) -> None:
    r"""One step of Adam (Kingma & Ba 2015), in place; its size is bounded, so weights stay finite.

    Moments are kept unnormalised, :math:`M ← β_1 M + g, V ← β_2 V + g^2`, and constants are in the
    two scalars: ten passes over the parameters, with ``gradient`` as scratch.
    """
    m *= _BETA_1
    m += gradient
    gradient *= gradient
    v *= _BETA_2
    v += gradient
    np.sqrt(v, out=gradient)
    gradient += floor
    np.divide(m, gradient, out=gradient)
    gradient *= factor
    theta -= gradient


def _batches(n: int, size: int, noise: NoiseSource) -> Iterator[Indices]:
    """Passes over ``n`` persons, each in a new order; the last batch of a pass may be short."""
    rng = noise.generator()
    while True:
        order = rng.permutation(n)
        for at in range(0, max(n, 1), size):
            yield order[at : at + size]
