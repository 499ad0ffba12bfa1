"""The ``maf`` mechanism: from encoded rows to synthetic copies, every look at a row charged.

============  ========================================  ===========================
stage         what is released                          event
============  ========================================  ===========================
margins       noisy histograms of every column          Gaussian
moments       noisy second moments of clipped scores    Gaussian
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
    """A fitted density: values in the public box ↔ (affine) ↔ flow ↔ latents."""

    low: Array
    high: Array
    affine: early.Affine
    flow: Flow

    def to_latent(self, x: Array) -> Array:
        """(n, d) values to latents; standard Gaussian if the model were exact."""
        scores = self.affine.invert(early.clamp(x, self.low, self.high))
        return _through(self.flow.to_latent, scores, self.flow)

    def to_values(self, z: Array) -> Array:
        """(n, d) latents to values in the box, finite."""
        values = self.affine.apply(_through(self.flow.from_latent, z, self.flow))
        return early.clamp(values, self.low, self.high)


def run(
    plan: Plan,
    encoding: Encoding,
    rows: Array,
    present: Bools,
    noise: NoiseSource,
    progress: dpsgd.Progress | None = None,
    device: str = "cpu",
    public: tuple[Array, Bools] | None = None,
) -> list[Array]:
    """Synthetic copies, each of exactly persons · rows encoded rows, in a random order.

    Relation: zero-out with public n; charged as ``plan.events``. Copies come from one fitted model.

    Args:
        rows: (n, k, d), encoded; present: (n, k). n and k are the plan's.
        noise: source of all noise, latents and orders.
        public: rows and presence to fit on, for ``public-flow``.

    Raises:
        InvalidInput: shapes that are not the plan's, or public rows missing or not wanted.
    """
    _check_shapes(plan, encoding, rows, present, public)
    seen = (rows, present) if public is None else public
    model = fit(plan, encoding, *seen, noise, progress, device)
    size, d = plan.persons * plan.rows, plan.arch.d
    there = present.reshape(size)
    latents = np.zeros((size, d))
    if plan.w > 0:
        latents = _by_parts(model.to_latent, rows.reshape(size, d))
    copies = []
    for _ in range(plan.copies):
        z = inject(latents, there, plan.w, plan.latent_clip, noise)
        copies.append(_by_parts(model.to_values, z)[permutation(size, noise)])
    return copies


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
    return Model(low, high, scale.after(match).after(start), flow)


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
