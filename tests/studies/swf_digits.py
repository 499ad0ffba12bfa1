"""Sliced-Wasserstein flows of digits: table 1 of Sebag et al. 2025 in form, on smaller images.

Half of scikit-learn's 1797 digits (8x8) is public: it trains an autoencoder onto the unit sphere of
ℝ⁸ and a small classifier. Three eighths (n = 673) are private: of these only latents are used, and
only by the methods. An eighth is held out. Each run splits anew and trains everything anew.

Score: the Fréchet distance (squared, as in the FID) between 2000 decoded samples and the held-out
images, on the classifier's 8 features in units of their sd. *Not an Inception distance*: those
weights are not to be had here. "Paper" holds its FIDs (MNIST, 30 000 private images), to compare
orders, not sizes. SW2 is between latents: samples, on the sphere, and held-out ones.

- DPSWflow-r: noisy projections of a fresh batch at each step, on fresh directions.
- DPSWflow: noisy projections of all rows on directions drawn once, with noise drawn once.
- DPSWgen: the paper's generator, from what DPSWflow-r learns at each step.
- sketch: ours: a DP Gaussian, then noisy distribution functions of projections, measured once.
- DP Gaussian: where the sketch starts, for the whole budget: not in the paper.

What any score is worth: "private images" have the least that 225 held-out images let show, "private
latents" what the decoder leaves, and "uniform on the sphere" needs no private data at all.

ε is for one image exchanged for another (replace-one, as in the paper), δ = 1e-5, by privacy loss
distributions; for one image left out (zero-out, public n) it is below, and less where nothing is
sampled. Directions are orthonormal stacks, so that sensitivities hold with certainty; noise that is
reused is drawn once; batches are drawn afresh, without replacement; diffusion would earn no credit
and is 0. Samples are brought to norm 1 before they are decoded, whatever the method.

Settings of the paper's three methods were tuned on the Fréchet distance at ε = 10 and ∞ on three
other splits, which are of the same images, for want of more. The sketch has the mechanism's
defaults, tuned on simulated mixtures.

"Paired": the sketch less another on the same split; to be at most 0.

"Published code": ε of what it does, at its own noise and the sensitivity it states, beside the ε it
states ("paper"), δ = 1e-5. DPSWflow-r cycles through the batches of its first epoch, so that each
image is in 35 (stated 10: σ = .67) or 20 (5: .8) releases of one batch, without amplification.
DPSWflow draws noise anew at each of 1500 steps, for projections that it charges once (σ = c/ε, c =
√(2 ln(2.5/δ))).

Picture: `swf-digits.png`, the first run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from tests.studies.lni import over_runs
from tests.studies.swf_digits_figure import SHOWN, draw
from tests.studies.swf_digits_generator import Generated
from tests.studies.swf_digits_images import (
    LATENT,
    fit_autoencoder,
    fit_features,
    frechet,
    on_sphere,
    sliced_w2,
    split_digits,
)
from tests.studies.swf_digits_methods import Moments, Presampled, Resampled, Sketched
from tests.support.results import Row, at_most, write

from penstock.privacy.accounting.accountant import epsilon_pld
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Event, Gaussian
from penstock.privacy.noise.sources import NoiseSource, SeededNoise

Array = NDArray[np.float64]
Scores = dict[tuple[str, float], tuple[float, float]]

RUNS, SAMPLES, DELTA = 10, 2000, 1e-5
EPSILONS = (math.inf, 10.0, 5.0)
R, ONCE, GENERATOR, SKETCH, GAUSSIAN = "DPSWflow-r", "DPSWflow", "DPSWgen", "sketch", "DP Gaussian"
PAPER = {R: (21.0, 70.0, 114.0), ONCE: (73.0, 118.0, 171.0), GENERATOR: (114.0, 124.0, 198.0)}
"""Its table 1, MNIST, at these ε."""

IMAGES, DECODED, SPHERE = "private images", "private latents", "uniform on the sphere"
"""What no method can beat, or none without noise, and what takes no data at all."""


class Method(Protocol):
    """A method of the table."""

    def events(self, n: int, d: int, sigma: float) -> tuple[Event, ...]:
        """What it costs on n rows."""

    def run(self, rows: Array, sigma: float | None, count: int, noise: NoiseSource) -> Array:
        """Synthetic rows."""


def methods(epsilon: float) -> dict[str, Method]:
    """As tuned; more steps and directions, all free, where there is no noise."""
    if math.isinf(epsilon):
        return {
            R: Resampled(steps=100, batch=250, bases=9, step=0.5, last=0.05),
            ONCE: Presampled(steps=100, bases=16, at_once=4, step=0.5, last=0.05),
            GENERATOR: Generated(steps=400, batch=250, bases=9, rate=1e-3),
            SKETCH: Sketched(),
            GAUSSIAN: Moments(),
        }
    return {
        R: Resampled(steps=100, batch=84, bases=1, step=0.2, last=0.005),
        ONCE: Presampled(steps=60, bases=4, at_once=4, step=0.4, last=0.02),
        GENERATOR: Generated(steps=300, batch=84, bases=1, rate=1e-4),
        SKETCH: Sketched(),
        GAUSSIAN: Moments(),
    }


@cache
def multiplier(name: str, epsilon: float, n: int) -> float | None:
    """The smallest noise multiplier for ε of n rows under replace-one; None for ε = ∞."""
    if math.isinf(epsilon):
        return None
    method = methods(epsilon)[name]
    return smallest_scale(
        lambda sigma: method.events(n, LATENT, sigma),
        epsilon,
        DELTA,
        tolerance=1e-3,
        accountant=partial(epsilon_pld, relation="replace-one"),
    )


def zero_out(name: str, epsilon: float, n: int) -> float:
    """ε of the same noise where one image is taken away."""
    sigma = multiplier(name, epsilon, n)
    if sigma is None:
        return math.inf
    return epsilon_pld(methods(epsilon)[name].events(n, LATENT, sigma), DELTA)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one run.

    Args:
        private: how many rows the methods had.
        scores: Fréchet distance and SW2, by method and ε, and of the references (ε = ∞).
        accuracy: of the classifier on the held-out images.
        real, made: the first images of each, for the picture; empty but in the first run.
    """

    private: int
    scores: Scores
    accuracy: float
    real: dict[str, Array]
    made: dict[tuple[str, str], Array]


def one(seed: int) -> Outcome:
    """A split, what is trained on its public half, and every method on its private part."""
    torch.set_num_threads(1)
    digits = split_digits(seed)
    features = fit_features(digits.public, digits.labels, seed)
    coder = fit_autoencoder(digits.public, seed)
    private, held_out = coder.encode(digits.private), coder.encode(digits.held_out)
    goal = features.of(digits.held_out)
    scores: Scores = {}
    made: dict[tuple[str, str], Array] = {}

    def score(name: str, epsilon: float, latents: Array) -> None:
        images = coder.decode(latents)
        apart = sliced_w2(on_sphere(latents), held_out, np.random.default_rng(0))
        scores[name, epsilon] = frechet(features.of(images), goal), apart
        if seed == 0 and name not in (DECODED, SPHERE):
            made[name, _column(epsilon)] = images[:SHOWN]

    sphere = np.random.default_rng([42, seed]).standard_normal((SAMPLES, LATENT))
    score(SPHERE, math.inf, sphere)
    score(DECODED, math.inf, private)
    bare = frechet(features.of(digits.private), goal)
    scores[IMAGES, math.inf] = bare, scores[DECODED, math.inf][1]
    for at, epsilon in enumerate(EPSILONS):
        for which, (name, method) in enumerate(methods(epsilon).items()):
            noise = SeededNoise(10_000 + 1000 * at + 100 * which + seed)
            sigma = multiplier(name, epsilon, len(private))
            score(name, epsilon, method.run(private, sigma, SAMPLES, noise))
    real = {
        "held-out images": digits.held_out[:SHOWN],
        "the same, through the autoencoder": coder.decode(held_out)[:SHOWN],
        "uniform on the sphere, decoded": coder.decode(sphere)[:SHOWN],
    }
    accuracy = features.accuracy(digits.held_out, digits.held_out_labels)
    return Outcome(len(private), scores, accuracy, real if seed == 0 else {}, made)


def _column(epsilon: float) -> str:
    return "ε = ∞" if math.isinf(epsilon) else f"ε = {epsilon:g}"


def run() -> Path:
    """Ten splits."""
    found = over_runs(one, range(RUNS), "splits")
    draw(found[0].real, found[0].made, [_column(epsilon) for epsilon in EPSILONS])
    rows = [
        *_table(found, 0, "Fréchet"),
        *_table(found, 1, "SW2"),
        at_most("classifier's accuracy, held out", [o.accuracy for o in found]),
        *_zero_out(found[0].private),
        *published(),
    ]
    return write("swf-digits", rows, (__doc__ or "").strip())


def _table(found: Sequence[Outcome], which: int, what: str) -> list[Row]:
    """Fréchet distances (0) or SW2 (1): references, the table, and paired differences."""

    def of(name: str, epsilon: float) -> Array:
        return np.array([o.scores[name, epsilon][which] for o in found])

    references = (IMAGES, DECODED, SPHERE) if which == 0 else (DECODED, SPHERE)
    rows = [at_most(f"{what}, {name}", of(name, math.inf).tolist()) for name in references]
    for at, epsilon in enumerate(EPSILONS):
        for name in methods(epsilon):
            paper = PAPER[name][at] if which == 0 and name in PAPER else None
            label = f"{what}, {_column(epsilon)}, {name}"
            rows.append(at_most(label, of(name, epsilon).tolist(), paper=paper))
    for epsilon in EPSILONS:
        for name in (R, ONCE, GENERATOR, GAUSSIAN):
            less = of(SKETCH, epsilon) - of(name, epsilon)
            label = f"{what}, {_column(epsilon)}, paired: sketch less {name}"
            target = None if math.isinf(epsilon) else 0.0
            rows.append(at_most(label, less.tolist(), target=target))
    return rows


def _zero_out(n: int) -> list[Row]:
    return [
        Row(f"zero-out ε of {name} at {_column(epsilon)}", zero_out(name, epsilon, n), None, 1)
        for epsilon in EPSILONS
        if not math.isinf(epsilon)
        for name in methods(epsilon)
    ]


def published() -> list[Row]:
    """ε of the published code (github.com/ilanasebag/dpswgf, 18c199d) at the paper's settings.

    A multiplier relative to a diameter is one of replace-one as it stands, so the composed
    Gaussian's own curve is read.
    """
    rows = []
    for stated, sigma, epochs in ((10.0, 0.67, 35), (5.0, 0.8, 20)):
        cost = epsilon_pld((Gaussian(sigma, epochs),), DELTA)
        rows.append(Row(f"published code, {R}, stated {stated:g}", cost, None, 1, paper=stated))
    for stated in (10.0, 5.0):
        sigma = math.sqrt(2 * math.log(2.5 / DELTA)) / stated
        cost = epsilon_pld((Gaussian(sigma, 1500),), DELTA)
        rows.append(Row(f"published code, {ONCE}, stated {stated:g}", cost, None, 1, paper=stated))
    return rows
