r"""Worst cases of what is trained: DP-SGD on a flow, and mechanisms for tables as a whole.

The attacker sees every iterate, as the accounting assumes, and nothing but what
:func:`penstock.mechanisms.flow.training.fit` lets anyone see. With a clip of 1e-12 Adam's second
moment is far below its 1e-8, so that its direction is linear in the gradients, and each noisy
gradient can be told from two iterates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from penstock.audit.releases import DELTA, repeated
from penstock.audit.worlds import Bools, Target
from penstock.mechanisms.flow.architecture import Architecture
from penstock.mechanisms.flow.engine import make_flow
from penstock.mechanisms.flow.training import Training, fit
from penstock.mechanisms.maf import plan as maf_plan
from penstock.mechanisms.maf.settings import Maf
from penstock.mechanisms.sliced_wasserstein import plan as sliced_plan
from penstock.mechanisms.sliced_wasserstein.settings import SlicedWasserstein
from penstock.mechanisms.tables import run as mechanism
from penstock.mechanisms.tables.plan import Plan
from penstock.privacy.noise.sources import NoiseSource
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Column, Schema
from penstock.schema.encoding import Encoding

Array = NDArray[np.float64]

_CLIP = 1e-12
_ADAM_FLOOR, _ADAM_MEMORY = 1e-8, 0.9
_ROWS = 2


class _Canary:
    """A flow, and a person whose gradient is as large as it can be and whose rows agree."""

    def __init__(self) -> None:
        self.flow = make_flow(Architecture(1, flows=1, hidden=(1,)), precision="double")
        self.start = self.flow.get_flat()
        self.rows = np.full((1, _ROWS, 1), 8.0)
        data = self.flow.load(self.rows, np.ones((1, _ROWS), dtype=np.bool_))
        pull = self.flow.clipped_sum(data, None, 1.0)
        self.direction = pull / np.linalg.norm(pull)

    def gradients(self, training: Training, person: bool, noise: NoiseSource) -> Array:
        """One training; each step's noisy sum along the person's gradient, over C; (steps,)."""
        iterates = [self.start]
        self.flow.set_flat(self.start)
        present = np.full((1, _ROWS), person)
        fit(
            self.flow,
            self.rows,
            present,
            training,
            noise,
            lambda step, steps: iterates.append(self.flow.get_flat()),
        )
        return _told(np.diff(iterates, axis=0) @ self.direction, training)


def _told(moves: Array, training: Training) -> Array:
    """Noisy sums over C from what each step moved, by undoing schedule, momentum and division."""
    steps = np.arange(training.steps)
    rates = training.learning_rate * 0.5 * (1 + np.cos(math.pi * steps / training.steps))
    momentum = -moves / rates * _ADAM_FLOOR * (1 - _ADAM_MEMORY ** (steps + 1))
    before = np.append(0.0, momentum[:-1])
    gradients = (momentum - _ADAM_MEMORY * before) / (1 - _ADAM_MEMORY)
    told: Array = gradients * (training.rate or 1.0) / training.clip
    return told


def dpsgd_full(scale: float, steps: int = 2) -> Target:
    """Full batches: the sum over the steps is the whole of what is told."""
    sigma = 0.5 * scale * math.sqrt(steps)
    training = Training(steps, _CLIP, sigma)
    canary = _Canary()

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        return repeated(lambda: float(canary.gradients(training, person, noise).sum()), runs)

    worst = "a person whose gradient is clipped, their rows alike; every iterate is seen"
    return Target("dpsgd", worst, (training.event(),), DELTA, 3_000, scores)


def dpsgd_poisson(scale: float, steps: int = 2) -> Target:
    """Poisson batches: the log likelihood ratio of each step's mixture, added up."""
    sigma, rate = 0.7 * scale, 0.5
    training = Training(steps, _CLIP, sigma, rate)
    canary = _Canary()

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        def once() -> float:
            seen = canary.gradients(training, person, noise)
            ratio = np.log1p(rate * np.expm1((2 * seen - 1) / (2 * sigma * sigma)))
            return float(ratio.sum())

        return repeated(once, runs)

    worst = "a person whose gradient is clipped, in some of the batches; every iterate is seen"
    return Target("dpsgd-poisson", worst, (training.event(),), DELTA, 5_000, scores)


def training(scale: float) -> Target:
    """The flow after training, as it is used: only the last iterate, an ordinary clip."""
    steps, clip = 2, 1.0
    trained = Training(steps, clip, 0.5 * scale * math.sqrt(steps), learning_rate=0.003)
    canary = _Canary()

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        present = np.full((1, _ROWS), person)

        def once() -> float:
            canary.flow.set_flat(canary.start)
            fit(canary.flow, canary.rows, present, trained, noise)
            return float((canary.start - canary.flow.get_flat()) @ canary.direction)

        return repeated(once, runs)

    worst = "a person whose gradient is clipped; only the trained flow is seen"
    return Target("training", worst, (trained.event(),), DELTA, 2_000, scores)


def maf(scale: float) -> Target:
    """The whole mechanism, with latent noise injection, which says most of single persons."""
    w = min(0.001 / scale**2, 0.5)
    asked = Maf(copies=1, refits=0, steps=4, flows=1, hidden=(4,), w=w, latent_clip=3.0)
    return _tables("maf", partial(maf_plan.plan, asked), scale)


def sliced_wasserstein(scale: float) -> Target:
    """The whole mechanism by its sketch."""
    asked = SlicedWasserstein(copies=1, refits=0, steps=4, bases=2, bins=16)
    return _tables("sliced-wasserstein", partial(sliced_plan.plan, asked), scale)


def _tables(name: str, plan: Callable[[Schema, int, PrivacyRequest], Plan], scale: float) -> Target:
    """Distinct persons at the box's corners, in by fair coins; one run.

    Seen are the released tables alone. Loose by nature: the tables say little of any one person.
    """
    persons, columns = 1000, 10
    # At 1 - 1e-7 the bound's own δ-term, 2mδ, must not drown it.
    delta = 1e-12
    names = [Column(f"x{i}", "continuous", -5.0, 5.0, 3) for i in range(columns)]
    schema = Schema(tuple(names))
    encoding = Encoding(schema)
    planned = plan(schema, persons, PrivacyRequest(1.0 / scale, delta))
    signs = (np.arange(persons)[:, None] >> np.arange(columns)) & 1
    rows = np.where(signs == 1, encoding.high, encoding.low)

    def canaries(noise: NoiseSource) -> tuple[Bools, Array]:
        included = noise.uniform(persons) < 0.5
        shown = np.where(included[:, None], rows, 0.0)[:, None, :]
        [table] = mechanism.run(planned, encoding, shown, included[:, None], noise).copies
        nearest, _ = cKDTree(table).query(rows)
        return included, -np.asarray(nearest)

    worst = "persons at the corners of the box; the released tables are seen"
    return Target(name, worst, planned.events, delta, 4, canaries=canaries, guessed=0.25)
