"""Broken twins of the package's mechanisms: a fault planted in the real code, and what it costs.

Each has its own worst-case data set, and an exact formula (not the package's) for the ε that the
fault really gives there: above the claim, and what an audit has to see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
from scipy.special import log_ndtr, ndtr

from penstock.audit import releases, trained
from penstock.audit.worlds import Target
from penstock.models.flow import training
from penstock.models.tables import latent_noise, margins, mechanism, moments, outcome
from penstock.privacy import discrete, sensitivity
from penstock.privacy import noise as noises


@dataclass(frozen=True, slots=True)
class Twin:
    """One fault.

    Args:
        make: the claim and its worst case; ``fault``: plants the fault while the attack runs.
        truth: δ ↦ the ε that the faulty mechanism has on this data set, at least.
        runs: per world; enough to be caught at confidence 1 - 1e-7.
    """

    name: str
    make: Callable[[], Target]
    fault: Callable[[], AbstractContextManager[Any]]
    truth: Callable[[float], float]
    runs: int


# -- exact ε ------------------------------------------------------------------------------------


def smallest_epsilon(profile: Callable[[float], float], high: float) -> Callable[[float], float]:
    """δ ↦ the ε at which a decreasing profile ε ↦ δ crosses it, by bisection; rounded down."""

    def at(delta: float) -> float:
        low, top = 0.0, high
        for _ in range(200):
            middle = (low + top) / 2
            low, top = (middle, top) if profile(middle) > delta else (low, middle)
        return low

    return at


def gaussian(mu: float) -> Callable[[float], float]:
    """N(μ, 1) against N(0, 1) (Balle & Wang 2018, Thm 8), in logarithms."""

    def profile(epsilon: float) -> float:
        a = epsilon / mu - mu / 2
        return float(ndtr(-a) - np.exp(epsilon + log_ndtr(-a - mu)))

    return smallest_epsilon(profile, mu * mu / 2 + 40 * mu)


def mixture(rate: float, mu: float) -> Callable[[float], float]:
    """(1-q)·N(0, 1) + q·N(μ, 1) against N(0, 1): δ(ε) = P(x > t) - e^ε Q(x > t), P = e^ε Q at t."""

    def profile(epsilon: float) -> float:
        t = (math.log((math.exp(epsilon) - 1 + rate) / rate) + mu * mu / 2) / mu
        likely = (1 - rate) * ndtr(-t) + rate * ndtr(mu - t)
        return float(likely - math.exp(epsilon) * ndtr(-t))

    return smallest_epsilon(profile, 100.0)


def discrete_laplace(scale: float, moved: int) -> Callable[[float], float]:
    """exp(-|k|/b) against exp(-|k - s|/b), k whole, by summation."""
    k = np.arange(-2000, 2001)
    q = np.exp(-np.abs(k) / scale)
    p = np.exp(-np.abs(k - moved) / scale)
    total = float(q.sum())
    q, p = q / total, p / total

    def profile(epsilon: float) -> float:
        return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())

    return smallest_epsilon(profile, 100.0)


# -- faults -------------------------------------------------------------------------------------


def replaced(module: ModuleType, name: str, make: Callable[[Any], Any]) -> Callable[[], Any]:
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


class _Unclipped(_Faulty):
    def clipped_sum(self, data: Any, who: Any, clip: float) -> Any:
        return self._flow.clipped_sum(data, who, math.inf)


class _ByRow(_Faulty):
    def load(self, rows: Any, present: Any) -> Any:
        return self._flow.load(rows.reshape(-1, 1, rows.shape[2]), present.reshape(-1, 1))


def _by_particle(real: Any) -> Any:
    def clipped(forces: Any, clip: float) -> Any:
        n, m, d = forces.shape
        return real(forces.reshape(n * m, 1, d), clip).reshape(n, m, d)

    return clipped


def _squared_share(real: Any) -> Any:
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


def _each_row_a_person(real: Any) -> Any:
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


nothing = nullcontext
SHUFFLED_STEP = 2 / 3  # the diameter over the noise's sd, 2R√w/√(1-w), at scale 1
INJECTION_RADIUS = 0.5  # w = 0.8, where (1-w) and √(1-w) differ most


def first_row(rows: Any, step: float) -> Any:
    return rows[:, 0] * step


TWINS: tuple[Twin, ...] = (
    Twin(
        "gaussian: noise halved",
        lambda: releases.gaussian(1.0),
        less_noise(noises),
        gaussian(2.0),
        20_000,
    ),
    Twin(
        "gaussian: the unit's sensitivity taken for the sum's",
        lambda: releases.gaussian(1.0),
        replaced(noises, "add_gaussian", lambda real: lambda v, sd, s: real(v, sd / 3.0, s)),
        gaussian(3.0),
        20_000,
    ),
    Twin(
        "discrete gaussian: noise halved",
        lambda: releases.discrete_gaussian(1.0),
        less_discrete_noise(discrete),
        gaussian(2.0),
        4_000,
    ),
    Twin(
        "laplace: scale halved",
        lambda: releases.laplace(1.0),
        replaced(discrete, "discrete_laplace", lambda real: lambda b, n, s: real(b / 2, n, s)),
        discrete_laplace(1.0, 2),
        8_000,
    ),
    Twin(
        "histograms: noise halved",
        lambda: releases.histograms(1.0),
        less_discrete_noise(margins),
        gaussian(4.0),
        1_000,
    ),
    Twin(
        "histograms: sensitivity without √(d+1)",
        lambda: releases.histograms(1.0),
        replaced(margins, "_histogram_variance", lambda real: lambda s, d, k: real(s, d, k) / 2),
        gaussian(2 * math.sqrt(2)),
        2_000,
    ),
    Twin(
        "moments: clipping off",
        lambda: releases.moments(1.0),
        replaced(moments, "whole_moments", lambda real: unclipped_moments),
        gaussian(5_000.0),
        1_000,
    ),
    Twin(
        "moments: radius taken for its square",
        lambda: releases.moments(1.0),
        replaced(moments, "_moment_variance", lambda real: lambda s, r, k: real(s, r, k) / 4),
        gaussian(4.0),
        1_000,
    ),
    Twin(
        "outcome: clipping off",
        lambda: releases.outcome(1.0),
        lambda: unclipped_score(math.inf),
        gaussian(390.0),
        1_000,
    ),
    Twin(
        "outcome: rows clipped in place of persons",
        lambda: releases.outcome(1.0),
        replaced(releases, "noisy_score", _each_row_a_person),
        gaussian(4.0),
        1_000,
    ),
    Twin(
        "outcome: entries clipped in place of norms",
        lambda: releases.outcome(1.0),
        lambda: unclipped_score(1.0),
        gaussian(4.0),
        1_000,
    ),
    Twin(
        "outcome: variance halved",
        lambda: releases.outcome(1.0),
        replaced(outcome, "_variance", lambda real: lambda s, d, m: real(s, d, m) / 2),
        gaussian(2 * math.sqrt(2)),
        4_000,
    ),
    Twin(
        "injection: clipping off",
        lambda: releases.injection(1.0),
        replaced(latent_noise, "clip_latents", lambda real: lambda z, there, r: z * there[:, None]),
        gaussian(200.0 / 3.0),
        10_000,
    ),
    Twin(
        "injection: 1 - w taken for its root",
        lambda: releases.injection(1.0, INJECTION_RADIUS),
        replaced(latent_noise, "inject", _squared_share),
        gaussian(math.sqrt(5.0)),
        20_000,
    ),
    Twin(
        "shuffled: order kept",
        lambda: releases.shuffled(1.0, first_row),
        replaced(noises, "permutation", lambda real: lambda n, noise: np.arange(n)),
        gaussian(SHUFFLED_STEP),
        16_000,
    ),
    Twin(
        "projections: released four times under one charge",
        lambda: releases.projections(1.0, releases=4),
        nothing,
        gaussian(2.0),
        20_000,
    ),
    Twin(
        "cdfs: one direction's sensitivity for all",
        lambda: releases.cdfs(1.0),
        replaced(noises, "add_gaussian", lambda r: lambda v, sd, s: r(v, sd / math.sqrt(3), s)),
        gaussian(math.sqrt(3)),
        20_000,
    ),
    Twin(
        "particles: clipped one by one",
        lambda: releases.particles(1.0),
        replaced(sensitivity, "clip_jointly", _by_particle),
        gaussian(3.0),
        20_000,
    ),
    Twin(
        "fixed-size: radius taken for the diameter",
        lambda: releases.fixed_size(1.0),
        less_noise(noises),
        mixture(1 / 3, 2.0),
        10_000,
    ),
    Twin(
        "descent: every iterate seen, the last charged",
        lambda: releases.descent(1.0, steps_seen=6),
        nothing,
        gaussian(math.sqrt(6)),
        20_000,
    ),
    Twin(
        "distributed: one drop-out more than charged",
        lambda: releases.distributed(1.0, missing=1),
        nothing,
        gaussian(math.sqrt(2)),
        40_000,
    ),
    Twin(
        "strata: a person in two",
        lambda: releases.strata(1.0, releases.STRATA),
        nothing,
        gaussian(math.sqrt(2)),
        40_000,
    ),
    Twin(
        "dpsgd: noise halved",
        lambda: trained.dpsgd_full(1.0),
        less_noise(training),
        gaussian(4.0),
        1_000,
    ),
    Twin(
        "dpsgd: clipping off",
        lambda: trained.dpsgd_full(1.0),
        replaced(trained, "fit", lambda real: lambda flow, *rest: real(_Unclipped(flow), *rest)),
        gaussian(1e6),
        600,
    ),
    Twin(
        "dpsgd: rows clipped in place of persons",
        lambda: trained.dpsgd_full(1.0),
        replaced(trained, "fit", lambda real: lambda flow, *rest: real(_ByRow(flow), *rest)),
        gaussian(4.0),
        1_000,
    ),
    Twin(
        "dpsgd-poisson: noise halved",
        lambda: trained.dpsgd_poisson(1.0, steps=1),
        less_noise(training),
        mixture(0.5, 2 / 0.7),
        2_000,
    ),
    Twin(
        "maf: rows leave as they are",
        lambda: trained.maf(1.0),
        no_synthesis,
        lambda delta: math.inf,  # a row that is in the table is in the data
        4,
    ),
)


def unclipped_moments(scores: Any, present: Any, radius: float) -> Any:
    """Whole moments of rows that nothing holds inside the radius."""
    unit = moments._row_unit(radius)
    y = np.column_stack([scores.reshape(-1, scores.shape[2]), np.ones(present.size)])
    whole = np.trunc(y / unit).astype(np.int64)
    whole[~present.ravel()] = 0
    return np.einsum("ni,nj->ij", whole, whole).astype(object), unit * unit


@contextmanager
def realised_batch() -> Iterator[None]:
    """Training divides by the batch that came, and not by the one expected.

    No data set shows this in the noisy sums, which are what is released: a law does
    (tests/laws/test_dpsgd.py).
    """
    draw = training._Descent.draw

    def realised(self: Any) -> Any:
        who = draw(self)
        self._schedule[self.step, 0] = max(self._n if who is None else len(who), 1)
        return who

    with patch.object(training._Descent, "draw", realised):
        yield
