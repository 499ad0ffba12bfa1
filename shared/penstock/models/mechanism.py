"""The ``maf`` mechanism: from encoded rows to synthetic copies, every look at a row charged.

============  ========================================  ===========================
stage         what is released                          event
============  ========================================  ===========================
margins       noisy histograms of every column          Gaussian
moments       noisy second moments of clipped scores    Gaussian
flow          noisy clipped gradients, step by step     Gaussian or PoissonGaussian
injection     the rows' own clipped latents, if w > 0   Gaussian, per copy and row
============  ========================================  ===========================

:func:`plan` turns a study and the public n into noise multipliers on one common scale; it sees no
row. :func:`run` follows the plan. The flow starts as the Gaussian with the noisy moments, so that
it spends its share on what a Gaussian misses; its samples are then matched to the noisy moments,
since its own are the noisier ones. All that follows a stage's noise is post-processing.

Guarantee classes (privacy contract, section 2): ``formal``, all of the above; ``public-flow``, the
stages see public rows only, without noise, and the injection alone is charged; ``empirical``, no
noise but the injection's: ε = ∞.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import qmc

from penstock.errors import BudgetExceeded, InvalidInput, Problem
from penstock.models import dpsgd
from penstock.models import margins as early
from penstock.models.latent_noise import inject
from penstock.models.maf import Architecture, Flow
from penstock.privacy.accountant import epsilon
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Event, Gaussian, Unbounded, latent_injection
from penstock.privacy.noise import NoiseSource, permutation
from penstock.schema import Schema
from penstock.study import Mechanism, PrivacyRequest

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

GUARANTEES = ("formal", "public-flow", "empirical")

CLIP_QUANTILE = 0.8
PRIVATE_RATE, PUBLIC_RATE = 0.003, 0.01
"""Adam's learning rates with and without noise; frozen on simulated cohorts only."""

_MATCH_POWER = 14
_ROWS_AT_ONCE = 1 << 16


class Encoding(Protocol):
    """What :func:`run` needs of :class:`penstock.encoding.Encoding`; (d,) is the public box."""

    low: Array
    high: Array

    def encode(
        self, coded: Mapping[str, Array], rng: np.random.Generator
    ) -> tuple[Array, Bools]: ...

    def decode(self, rows: Array) -> Mapping[str, Array]: ...


@dataclass(frozen=True, slots=True)
class Shares:
    """How the budget, 1/σ² summed over releases, is divided. Adds up to 1."""

    margins: float
    moments: float
    flow: float


def budget_shares(signal: float, d: int) -> Shares:
    """Shares for ``signal`` = n·μ (μ² = Σ 1/σ² over the whole budget); measured on simulations.

    With little signal nearly all goes to the moments, and the model stays close to a Gaussian; with
    much, most goes to the flow. A moment's noise grows like d + 1, hence the rescaling.
    """
    low, high = math.log(700.0), math.log(5000.0)
    at = (math.log(max(signal * 7 / (d + 1), 1e-9)) - low) / (high - low)
    moments = 0.75 - 0.45 * min(max(at, 0.0), 1.0)
    return Shares(0.1, moments, 0.9 - moments)


@dataclass(frozen=True, slots=True)
class Plan:
    """All public parameters of one run.

    Args:
        persons: public n; rows: k, rows per person at most.
        radius: to which rows are clipped before their moments are summed.
        margins, moments: noise multipliers; None where these stages carry no noise.
        training: of the flow.
        events: what the run is charged as; epsilon: their ε at the requested δ.
    """

    guarantee: str
    persons: int
    rows: int
    copies: int
    w: float
    latent_clip: float
    arch: Architecture
    radius: float
    margins: float | None
    moments: float | None
    training: dpsgd.Training
    events: tuple[Event, ...]
    epsilon: float


def plan(mechanism: Mechanism, schema: Schema, persons: int, privacy: PrivacyRequest) -> Plan:
    """Noise multipliers and charges for a study at a site of ``persons`` persons; reads no row.

    Raises:
        InvalidInput: the study asks for what this mechanism does not do.
        BudgetExceeded: ε does not cover the injection; says which ε or w would do.
    """
    from penstock.encoding import Encoding as SchemaEncoding

    d = len(SchemaEncoding(schema).low)
    return plan_columns(mechanism, d, schema.max_rows_per_person, persons, privacy)


def plan_columns(
    mechanism: Mechanism, d: int, rows: int, persons: int, privacy: PrivacyRequest
) -> Plan:
    """:func:`plan` for rows of ``d`` encoded columns, at most ``rows`` of them per person."""
    _check(mechanism, d, rows, persons, privacy)
    arch = Architecture(d, mechanism.flows, tuple(mechanism.hidden))
    injection = _injection(mechanism, rows)
    private = privacy.guarantee == "formal"
    clip = dpsgd.public_clip(arch, CLIP_QUANTILE, rows) if private else math.inf
    rate = mechanism.rate if mechanism.sampling == "poisson" and mechanism.rate < 1 else None

    pace = PRIVATE_RATE if private else PUBLIC_RATE

    def training(sigma: float | None) -> dpsgd.Training:
        return dpsgd.Training(mechanism.steps, clip, sigma, rate, pace)

    def sigmas(scale: float, shares: Shares) -> tuple[float, float, float]:
        # A Poisson-sampled step costs about q² of a full one, hence the rate.
        step = math.sqrt(mechanism.steps / shares.flow) * (1.0 if rate is None else rate)
        return scale / math.sqrt(shares.margins), scale / math.sqrt(shares.moments), scale * step

    def charges(scale: float, shares: Shares) -> tuple[Event, ...]:
        margin, moment, step = sigmas(scale, shares)
        return (
            Gaussian(margin, label="margins"),
            Gaussian(moment, label="moments"),
            training(step).event(),
            *injection,
        )

    margin: float | None = None
    moment: float | None = None
    step: float | None = None
    if privacy.guarantee == "empirical":
        events: tuple[Event, ...] = (Unbounded("maf, fitted without noise"),)
    else:
        _check_injection(mechanism, rows, privacy)
        events = injection
    if private:
        # The shares follow the budget: first as if one release had it all, then with them fixed.
        whole = smallest_scale(lambda s: (Gaussian(s), *injection), privacy.epsilon, privacy.delta)
        shares = budget_shares(persons / whole, d)
        scale = smallest_scale(lambda s: charges(s, shares), privacy.epsilon, privacy.delta)
        margin, moment, step = sigmas(scale, shares)
        events = charges(scale, shares)
    return Plan(
        guarantee=privacy.guarantee,
        persons=persons,
        rows=rows,
        copies=mechanism.copies,
        w=mechanism.w,
        latent_clip=mechanism.latent_clip,
        arch=arch,
        radius=early.default_radius(d),
        margins=margin,
        moments=moment,
        training=training(step),
        events=events,
        epsilon=epsilon(events, privacy.delta),
    )


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
    low, high = encoding.low, encoding.high
    counts = early.noisy_histograms(rows, present, low, high, plan.margins, noise)
    scale = early.standardise(counts, low, high)
    scores = scale.invert(early.clamp(rows, low, high))
    moments = early.noisy_moments(scores, present, plan.radius, plan.moments, noise)
    start = early.gaussian(moments, counts.rows)
    flow = Flow(plan.arch, device)
    dpsgd.fit(flow, start.invert(scores), present, plan.training, noise, progress)

    def as_observed(y: Array) -> Array:
        # One seed for all rounds of the match: it looks at differences.
        x = encoding.decode(early.clamp(scale.apply(y), low, high))
        return scale.invert(encoding.encode(x, np.random.default_rng(plan.arch.seed))[0])

    latents = ndtri(qmc.Sobol(plan.arch.d, seed=plan.arch.seed).random_base2(_MATCH_POWER))
    sample = start.apply(_through(flow.from_latent, latents, flow))
    match = early.match_moments(moments, counts.rows, plan.radius, sample, as_observed)
    return Model(low, high, scale.after(match).after(start), flow)


def _through(function: Callable[[torch.Tensor], torch.Tensor], x: Array, flow: Flow) -> Array:
    with torch.no_grad():
        out = function(torch.as_tensor(x, dtype=flow.dtype, device=flow.device))
    result: Array = out.cpu().numpy().astype(np.float64)
    return result


def _by_parts(function: Callable[[Array], Array], x: Array) -> Array:
    parts = [function(x[at : at + _ROWS_AT_ONCE]) for at in range(0, len(x), _ROWS_AT_ONCE)]
    return np.concatenate(parts)


def _injection(mechanism: Mechanism, rows: int) -> tuple[Event, ...]:
    if mechanism.w == 0:
        return ()
    return (latent_injection(mechanism.w, mechanism.latent_clip, mechanism.copies * rows),)


def _check_injection(mechanism: Mechanism, rows: int, privacy: PrivacyRequest) -> None:
    """Refuse a w whose injection alone costs more than ε, and say what would do."""
    spent = epsilon(_injection(mechanism, rows), privacy.delta)
    if not spent > privacy.epsilon:
        return
    count = mechanism.copies * rows
    # √((1-w)/w)/R is the noise multiplier; the smallest that fits gives the largest w.
    sigma = smallest_scale(lambda s: (Gaussian(s, count),), privacy.epsilon, privacy.delta)
    largest = 1 / (1 + (sigma * mechanism.latent_clip) ** 2)
    raise BudgetExceeded(
        f"latent noise injection alone, {count} releases at w = {mechanism.w:g}, costs too much",
        value=f"ε = {spent:.4g}",
        bound=f"at most {privacy.epsilon:g}",
        remedy=f"use w below {math.floor(largest * 1e6) / 1e6:g}, ask for an ε above {spent:.4g},"
        " or ask for fewer copies",
    )


def _check(mechanism: Mechanism, d: int, rows: int, persons: int, privacy: PrivacyRequest) -> None:
    checks = (
        ("mechanism.name", mechanism.name, mechanism.name == "maf", "maf"),
        ("mechanism.w", mechanism.w, 0 <= mechanism.w < 1, "at least 0 and below 1"),
        ("mechanism.latent_clip", mechanism.latent_clip, mechanism.latent_clip > 0, "above 0"),
        ("mechanism.copies", mechanism.copies, mechanism.copies >= 1, "at least 1"),
        ("mechanism.steps", mechanism.steps, mechanism.steps >= 1, "at least 1"),
        (
            "mechanism.sampling",
            mechanism.sampling,
            mechanism.sampling in ("full", "poisson"),
            "full or poisson",
        ),
        ("mechanism.rate", mechanism.rate, 0 < mechanism.rate <= 1, "above 0 and at most 1"),
        ("columns", d, d >= 1, "at least 1"),
        ("max_rows_per_person", rows, rows >= 1, "at least 1"),
        ("persons", persons, persons >= 1, "at least 1"),
        (
            "privacy.guarantee",
            privacy.guarantee,
            privacy.guarantee in GUARANTEES,
            ", ".join(GUARANTEES),
        ),
    )
    problems = [
        Problem(name, "out of bounds", value=str(value), bound=bound)
        for name, value, ok, bound in checks
        if not ok
    ]
    if privacy.guarantee == "public-flow" and mechanism.w == 0:
        problems.append(
            Problem(
                "mechanism.w",
                "a flow from public rows alone would release nothing private",
                value="0",
                bound="above 0",
                remedy="Set w, or ask for guarantee formal",
            )
        )
    if problems:
        raise InvalidInput("mechanism", problems)


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
