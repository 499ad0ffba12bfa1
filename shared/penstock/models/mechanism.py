"""The ``maf`` mechanism: from encoded rows to synthetic copies, every look at a row charged.

============  ========================================  ===========================
stage         what is released                          event
============  ========================================  ===========================
margins       noisy histograms of every column          DiscreteGaussian
moments       noisy second moments of clipped scores    DiscreteGaussian
flow          noisy clipped gradients, step by step     Gaussian or PoissonGaussian
injection     the rows' own clipped latents, if w > 0   Gaussian, per copy and row
============  ========================================  ===========================

:mod:`penstock.models.plan` turns a study and the public n into noise multipliers on one common
scale; it sees no row. :func:`run` follows the plan. The flow starts as the Gaussian with the noisy
moments, so that it spends its share on what a Gaussian misses; its samples are then matched to the
noisy moments, since its own are the noisier ones. All that follows a stage's noise is
post-processing.

Guarantee classes (privacy contract, section 2): ``formal``, all of the above; ``public-flow``, the
stages see public rows only, without noise, and the injection alone is charged; ``empirical``, no
noise but the injection's: ε = ∞.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import qmc

from penstock.errors import InvalidInput, Problem
from penstock.models import dpsgd
from penstock.models import margins as early
from penstock.models.latent_noise import inject
from penstock.models.maf import Flow
from penstock.models.plan import Plan
from penstock.privacy.noise import NoiseSource, permutation

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_MATCH_POWER = 14
_ROWS_AT_ONCE = 1 << 16


class Encoding(Protocol):
    """What :func:`run` needs of :class:`penstock.encoding.Encoding`; (d,) is the public box."""

    low: Array
    high: Array

    def encode(
        self, coded: Mapping[str, Array], rng: np.random.Generator, /
    ) -> tuple[Array, Bools]: ...

    def decode(self, rows: Array, /) -> Mapping[str, Array]: ...


@dataclass(frozen=True, slots=True)
class Model:
    """A fitted density: values in the public box ↔ (affine) ↔ flow ↔ latents.

    ``rows``: how many rows were present when it was fitted, as released (noisy).
    """

    low: Array
    high: Array
    affine: early.Affine
    flow: Flow
    rows: float

    def to_latent(self, x: Array) -> Array:
        """(n, d) values to latents; standard Gaussian if the model were exact."""
        scores = self.affine.invert(early.clamp(x, self.low, self.high))
        return _through(self.flow.to_latent, scores, self.flow)

    def to_values(self, z: Array) -> Array:
        """(n, d) latents to values in the box, finite."""
        values = self.affine.apply(_through(self.flow.from_latent, z, self.flow))
        return early.clamp(values, self.low, self.high)


@dataclass(frozen=True, slots=True)
class Release:
    """Encoded rows, each table of exactly persons · rows of them, in a random order.

    Args:
        copies: drawn from the one model that was fitted on the rows.
        refits: one table each from models that were fitted, by the same private procedure, on
            rows drawn from that model: a parametric bootstrap, in which nothing but the released
            model is looked at, and which is therefore free (post-processing).
    """

    copies: list[Array]
    refits: list[Array]


def run(
    plan: Plan,
    encoding: Encoding,
    rows: Array,
    present: Bools,
    noise: NoiseSource,
    progress: dpsgd.Progress | None = None,
    device: str = "cpu",
    public: tuple[Array, Bools] | None = None,
) -> Release:
    """Fit, and draw the plan's copies and refits.

    Relation: zero-out with public n; charged as ``plan.events``.

    Args:
        rows: (n, k, d), encoded; present: (n, k). n and k are the plan's.
        noise: source of all noise, latents and orders.
        public: rows and presence to fit on, for ``public-flow``.

    Raises:
        InvalidInput: shapes that are not the plan's, or public rows missing or not wanted.
    """
    _check_shapes(plan, encoding, rows, present, public)
    seen = (rows, present) if public is None else public
    steps, total = plan.stages.training.steps, plan.stages.training.steps * (1 + plan.refits)

    def after(fits: int) -> dpsgd.Progress | None:
        if progress is None:
            return None
        report = progress
        return lambda step, _: report(fits * steps + step, total)

    model = fit(plan, encoding, *seen, noise, after(0), device)
    latents = _latents(plan, model, rows)
    copies = [_draw(plan, model, latents, present, noise) for _ in range(plan.copies)]
    refits = [
        _refit(plan, encoding, model, noise, after(1 + i), device) for i in range(plan.refits)
    ]
    return Release(copies, refits)


def _latents(plan: Plan, model: Model, rows: Array) -> Array:
    """Latents of the rows, (persons · rows, d); zeros where no injection will look at them."""
    flat = rows.reshape(plan.persons * plan.rows, plan.arch.d)
    return _by_parts(model.to_latent, flat) if plan.w > 0 else np.zeros_like(flat)


def _draw(plan: Plan, model: Model, latents: Array, present: Bools, noise: NoiseSource) -> Array:
    """One table in a random order: fresh rows (w = 0), or the rows' own latents with noise."""
    z = inject(latents, present.reshape(len(latents)), plan.w, plan.latent_clip, noise)
    return _by_parts(model.to_values, z)[permutation(len(z), noise)]


def _refit(
    plan: Plan,
    encoding: Encoding,
    model: Model,
    noise: NoiseSource,
    progress: dpsgd.Progress | None,
    device: str,
) -> Array:
    """A table from a model fitted on rows of ``model``, in which no private row is looked at."""
    size = plan.persons * plan.rows
    values = _by_parts(model.to_values, noise.normal((size, plan.arch.d)))
    again, there = encoding.encode(encoding.decode(values), noise.generator())
    absent = size - min(size, round(model.rows))
    there[permutation(size, noise)[:absent]] = False
    rows = np.where(there[:, None], again, 0.0).reshape(plan.persons, plan.rows, plan.arch.d)
    present = there.reshape(plan.persons, plan.rows)
    if plan.guarantee != "public-flow":  # there the model is the same whatever the private rows
        model = fit(plan, encoding, rows, present, noise, progress, device)
    return _draw(plan, model, _latents(plan, model, rows), present, noise)


def fit(
    plan: Plan,
    encoding: Encoding,
    rows: Array,
    present: Bools,
    noise: NoiseSource,
    progress: dpsgd.Progress | None = None,
    device: str = "cpu",
) -> Model:
    """The model of the first three stages; private as far as the plan's multipliers make it."""
    low, high, stages = encoding.low, encoding.high, plan.stages
    counts = early.noisy_histograms(rows, present, low, high, stages.margins, noise)
    scale = early.standardise(counts, low, high)
    scores = scale.invert(early.clamp(rows, low, high))
    moments = early.noisy_moments(scores, present, stages.radius, stages.moments, noise)
    start = early.gaussian(moments, counts.rows)
    flow = Flow(plan.arch, device)
    dpsgd.fit(flow, start.invert(scores), present, stages.training, noise, progress)

    def as_observed(y: Array) -> Array:
        # One seed for all rounds of the match: it looks at differences.
        x = encoding.decode(early.clamp(scale.apply(y), low, high))
        return scale.invert(encoding.encode(x, np.random.default_rng(plan.arch.seed))[0])

    latents = ndtri(qmc.Sobol(plan.arch.d, seed=plan.arch.seed).random_base2(_MATCH_POWER))
    sample = start.apply(_through(flow.from_latent, latents, flow))
    match = early.match_moments(moments, counts.rows, stages.radius, sample, as_observed)
    return Model(low, high, scale.after(match).after(start), flow, counts.rows)


def _through(function: Callable[[torch.Tensor], torch.Tensor], x: Array, flow: Flow) -> Array:
    with torch.no_grad():
        out = function(torch.as_tensor(x, dtype=flow.dtype, device=flow.device))
    result: Array = out.cpu().numpy().astype(np.float64)
    return result


def _by_parts(function: Callable[[Array], Array], x: Array) -> Array:
    parts = [function(x[at : at + _ROWS_AT_ONCE]) for at in range(0, len(x), _ROWS_AT_ONCE)]
    return np.concatenate(parts)


def _check_shapes(
    plan: Plan, encoding: Encoding, rows: Array, present: Bools, public: tuple[Array, Bools] | None
) -> None:
    shape = (plan.persons, plan.rows, plan.arch.d)
    problems = []
    # Shapes are public: n is the frame's, k and d the schema's.
    if rows.shape != shape or present.shape != shape[:2]:
        problems.append(
            Problem("rows", "not of the plan's shape", value=str(rows.shape), bound=str(shape))
        )
    if encoding.low.shape != shape[2:] or encoding.high.shape != shape[2:]:
        problems.append(Problem("encoding", "another number of columns than planned"))
    if (public is not None) != (plan.guarantee == "public-flow"):
        problems.append(
            Problem("public", "public rows go with the guarantee public-flow, and only with it")
        )
    elif public is not None and (public[0].shape[1:] != shape[1:] or not public[1].any()):
        problems.append(Problem("public", "needs rows of the plan's shape"))
    if problems:
        raise InvalidInput("run", problems)
