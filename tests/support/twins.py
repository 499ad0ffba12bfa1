"""Broken twins of the package's mechanisms: a fault planted in the real code, and what it costs.

Each has its own worst-case data set, and an exact formula (not the package's) for the ε that the
fault really gives there: above the claim, and what an audit has to see.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtr
from tests.support.faults import (
    ByRow,
    Unclipped,
    at_each_step,
    by_particle,
    each_row_a_person,
    each_score_a_person,
    each_time_alone,
    first_row,
    half,
    less_discrete_noise,
    less_noise,
    no_synthesis,
    replaced,
    squared_share,
    straight,
    unclipped_moments,
    unclipped_score,
    unscaled,
    visit_by_visit,
    whole_rows,
)

from penstock.audit import chains, particle_dynamics, releases, sketches, structures, trained
from penstock.audit.worlds import Target
from penstock.mechanisms.gibbs import families, posterior
from penstock.mechanisms.scoring.plan import SHARES
from penstock.mechanisms.sliced_wasserstein import batches
from penstock.mechanisms.structured import score_clipping
from penstock.mechanisms.tables import latent_noise, moments
from penstock.mechanisms.trajectory import drift, follow_up, start
from penstock.privacy.measurements import LatentNoise
from penstock.privacy.noise import discrete
from penstock.privacy.noise import sources as noises


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


# -- twins -------------------------------------------------------------------------------------

nothing = nullcontext
SHUFFLED_STEP = 2 / 3  # the diameter over the noise's sd, 2R√w/√(1-w), at scale 1
INJECTION_RADIUS = 0.5  # w = 0.8, where (1-w) and √(1-w) differ most

TWINS: tuple[Twin, ...] = (
    Twin(
        "gaussian: noise halved",
        lambda: releases.gaussian(1.0),
        less_noise(),
        gaussian(2.0),
        20_000,
    ),
    Twin(
        "gaussian: the unit's sensitivity taken for the sum's",
        lambda: releases.gaussian(1.0),
        less_noise(1 / 3),
        gaussian(3.0),
        20_000,
    ),
    Twin(
        "discrete gaussian: noise halved",
        lambda: releases.discrete_gaussian(1.0),
        less_discrete_noise(),
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
        less_discrete_noise(),
        gaussian(4.0),
        1_000,
    ),
    Twin(
        "histograms: sensitivity without √(d+1)",
        lambda: releases.histograms(1.0),
        less_discrete_noise(Fraction(1, 2)),
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
        less_discrete_noise(),
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
        replaced(releases, "release_score", each_row_a_person),
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
        less_discrete_noise(Fraction(1, 2)),
        gaussian(2 * math.sqrt(2)),
        4_000,
    ),
    Twin(
        "structured: clipping off",
        lambda: structures.scores(1.0),
        lambda: unclipped_score(math.inf, score_clipping),
        gaussian(600.0),
        1_000,
    ),
    Twin(
        "structured: entries clipped in place of norms",
        lambda: structures.scores(1.0),
        lambda: unclipped_score(1.0, score_clipping),
        gaussian(2 * math.sqrt(3)),
        2_000,
    ),
    Twin(
        "structured: rows clipped in place of persons",
        lambda: structures.scores(1.0),
        replaced(score_clipping, "release_scores", each_score_a_person),
        gaussian(4.0),
        1_000,
    ),
    Twin(
        "structured: noise of a round halved",
        lambda: structures.scores(1.0),
        less_discrete_noise(),
        gaussian(4.0),
        1_000,
    ),
    Twin(
        "structured-margins: sensitivity of one histogram for all",
        lambda: structures.margins(1.0),
        less_discrete_noise(Fraction(1, 3)),
        gaussian(2 * math.sqrt(2)),
        3_000,
    ),
    Twin(
        "structured-pairs: sensitivity of one histogram for all",
        lambda: structures.pairs(1.0),
        less_discrete_noise(Fraction(1, 6)),
        gaussian(2 * math.sqrt(6)),
        3_000,
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
        replaced(LatentNoise, "sd", squared_share),
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
        "sketch: drawn four times under one charge",
        lambda: sketches.sketch(1.0, releases=4),
        nothing,
        gaussian(4.0),
        500,
    ),
    Twin(
        "sketch: one direction's sensitivity for all",
        lambda: sketches.sketch(1.0),
        less_discrete_noise(Fraction(1, 4)),
        gaussian(4.0),
        500,
    ),
    Twin(
        "sketch: noise halved",
        lambda: sketches.sketch(1.0),
        less_discrete_noise(),
        gaussian(4.0),
        500,
    ),
    Twin(
        "presampled: noise drawn anew at each step",
        lambda: sketches.presampled(1.0),
        replaced(batches, "presampled", at_each_step),
        gaussian(4.0),
        500,
    ),
    Twin(
        "resampled: radius taken for the diameter",
        lambda: sketches.resampled(1.0),
        replaced(batches, "row_diameter", lambda real: lambda radius: real(radius) / 2),
        mixture(1 / 3, 4.0),
        3_000,
    ),
    Twin(
        "trajectory-start: noise halved",
        lambda: particle_dynamics.start(1.0),
        less_discrete_noise(),
        gaussian(4.0),
        500,
    ),
    Twin(
        "trajectory-start: a person's rows in one cell count in full",
        lambda: particle_dynamics.start(1.0),
        replaced(start, "_shared", whole_rows),
        gaussian(2 * math.sqrt(2)),
        2_500,
    ),
    Twin(
        "trajectory-persons: noise halved",
        lambda: particle_dynamics.together(1.0),
        less_discrete_noise(),
        gaussian(4.0),
        500,
    ),
    Twin(
        "trajectory-persons: clipped visit by visit",
        lambda: particle_dynamics.together(1.0),
        replaced(moments, "whole_moments", visit_by_visit),
        gaussian(8.0),
        500,
    ),
    Twin(
        "trajectory-margins: noise halved",
        lambda: particle_dynamics.attended(1.0),
        less_discrete_noise(),
        gaussian(4.0),
        500,
    ),
    Twin(
        "trajectory-margins: an end weighs three times what is charged",
        lambda: particle_dynamics.attended(1.0),
        replaced(follow_up, "WEIGHT", lambda real: 3 * real),
        gaussian(2 * math.sqrt(82 / 18)),
        500,
    ),
    Twin(
        "trajectory: noise halved",
        lambda: particle_dynamics.dynamics(1.0),
        less_noise(),
        gaussian(4.0),
        500,
    ),
    Twin(
        "trajectory: clipping off",
        lambda: particle_dynamics.dynamics(1.0),
        replaced(drift.Rows, "_scales", unscaled),
        gaussian(100.0),
        500,
    ),
    Twin(
        "trajectory: clipped particle by particle",
        lambda: particle_dynamics.dynamics(7.36, particles=3_600),
        replaced(drift.Rows, "clipped_sum", by_particle),
        gaussian(2 * 60 / 7.36),
        150,
    ),
    Twin(
        "trajectory: clipped time point by time point",
        lambda: particle_dynamics.dynamics(2.0, times=16),
        replaced(drift.Rows, "_scales", each_time_alone),
        gaussian(4.0),
        150,
    ),
    Twin(
        "scoring: noise of a round halved",
        lambda: structures.rounds(1.0),
        less_discrete_noise(),
        gaussian(4 * math.sqrt(sum(SHARES.rounds))),
        1_000,
    ),
    Twin(
        "scoring-tallies: noise halved",
        lambda: structures.tallies(1.0),
        less_discrete_noise(),
        gaussian(4.0),
        500,
    ),
    Twin(
        "gibbs-chain: every iterate seen, the last charged",
        lambda: chains.last_iterate(1.0, iterates=12),
        nothing,
        gaussian(2.0 - 1e-3),
        1_500,
    ),
    Twin(
        "gibbs-chain: slopes not cut off",
        lambda: chains.last_iterate(1.0),
        replaced(type(families.LINEAR_LOSS), "slope", straight),
        gaussian(1e5),
        500,
    ),
    Twin(
        "gibbs: the gradient's sensitivity halved",
        lambda: chains.answer(1.0),
        replaced(posterior.Regression, "reach", half),
        gaussian(2.5),
        600,
    ),
    Twin(
        "gibbs: noise halved",
        lambda: chains.answer(1.0),
        less_noise(),
        gaussian(2.5),
        600,
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
        less_noise(),
        gaussian(4.0),
        1_000,
    ),
    Twin(
        "dpsgd: clipping off",
        lambda: trained.dpsgd_full(1.0),
        replaced(trained, "fit", lambda real: lambda flow, *rest: real(Unclipped(flow), *rest)),
        gaussian(1e6),
        600,
    ),
    Twin(
        "dpsgd: rows clipped in place of persons",
        lambda: trained.dpsgd_full(1.0),
        replaced(trained, "fit", lambda real: lambda flow, *rest: real(ByRow(flow), *rest)),
        gaussian(4.0),
        1_000,
    ),
    Twin(
        "dpsgd-poisson: noise halved",
        lambda: trained.dpsgd_poisson(1.0, steps=1),
        less_noise(),
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
