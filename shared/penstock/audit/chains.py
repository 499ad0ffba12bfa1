r"""Worst cases of the ``gibbs`` mechanism: its chain by the last iterate alone, and all of it.

The chain descends on the package's own posterior, of which the person's loss is straight where the
chain goes: of full slope at every step. Without them only the ridge is left, whose curvature is
the convexity that the contraction is computed from. So nothing in the bound is loose.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from penstock.audit.releases import DELTA, repeated
from penstock.audit.worlds import Target
from penstock.mechanisms.gibbs import langevin
from penstock.mechanisms.gibbs import run as mechanism
from penstock.mechanisms.gibbs.families import LINEAR_LOSS
from penstock.mechanisms.gibbs.plan import plan
from penstock.mechanisms.gibbs.posterior import Regression
from penstock.mechanisms.gibbs.settings import Gibbs
from penstock.privacy.measurements import charge
from penstock.privacy.noise.sources import NoiseSource
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.schema.encoding import Encoding

Array = NDArray[np.float64]

_STEPS = 12


class _Watched:
    """A posterior that notes where its gradient is asked for: every iterate but the last."""

    def __init__(self, posterior: Regression) -> None:
        self._posterior = posterior
        self.seen: list[Array] = []

    def gradient(self, theta: Array) -> Array:
        self.seen.append(theta)
        return self._posterior.gradient(theta)


def last_iterate(scale: float, iterates: int = 1) -> Target:
    """A plain chain; of its iterates the last ones are seen, the last alone is charged for."""
    ridge, smoothness = 1.0, 2.0
    schedule = langevin.plain(_STEPS, 1 / smoothness, ridge, smoothness, 1 / scale)
    contraction = schedule.contraction or 1.0
    nobody, someone = _posterior(0.0, ridge, smoothness), _posterior(1.0, ridge, smoothness)
    unit = someone.reach * (1 + 1e-9)

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        def once() -> float:
            watched = _Watched(someone if person else nobody)
            ended = langevin.descend(watched.gradient, np.zeros(2), schedule, unit, noise)
            path = np.array([*watched.seen, ended.theta]).sum(axis=1)
            if iterates == 1:
                return float(path[-1])
            # Seen together, what each step adds.
            return float((path[1:] - contraction * path[:-1])[-iterates:].sum())

        return repeated(once, runs)

    worst = "a person whose loss has full slope wherever the chain goes"
    events = charge(replace(schedule, sensitivity=unit).measurements)
    return Target("gibbs-chain", worst, events, DELTA, 10_000, scores)


def _posterior(weight: float, ridge: float, smoothness: float) -> Regression:
    """One person, present or not, who pulls both coefficients up by the largest slope."""
    squared = smoothness - ridge
    row = np.full((1, 2), math.sqrt(squared / 2))
    return Regression(
        family=LINEAR_LOSS,
        design=row,
        outcome=np.array([1e6]),
        weight=np.array([weight]),
        squared=squared,
        limit=1.0,
        persons=1,
        rows=1,
        start=np.zeros(2),
        ridge=ridge,
    )


def answer(scale: float) -> Target:
    """The whole mechanism on a mean: everybody alike, but for one person at the upper bound.

    Only the answer is seen. Where all others are alike, what is released of the data besides the
    chain says little of the person, and the chain's noise is nearly all there is.
    """
    persons = 300
    schema = Schema((Column("y", "continuous", 0.0, 100.0, 0),))
    asked = Estimand("mean", "mean", "y", "y")
    planned = plan(Gibbs(), schema, persons, PrivacyRequest(8.0 / scale, DELTA), [asked])
    encoding = Encoding(schema)
    rows = np.zeros((persons, 1, encoding.d))
    rows[0] = encoding.high

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        there = np.ones((persons, 1), dtype=bool)
        there[0] = person

        def once() -> float:
            [part] = mechanism.run(planned, encoding, rows, there, noise)
            return float(part.columns["estimate"][0])

        return repeated(once, runs)

    worst = "a person at the upper bound, all others in the middle; the answer is seen"
    return Target("gibbs", worst, planned.events, DELTA, 3_000, scores)
