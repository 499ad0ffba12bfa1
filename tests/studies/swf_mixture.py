"""What ε buys on a mixture in 8 dimensions: the sliced-Wasserstein flow's variants and its peers.

Five clusters (sd .1) with centres anywhere on the sphere of radius .65, n = 5000 rows in the unit
ball; every run draws its own mixture, its own rows, and 5000 fresh rows to which SW2 is taken (500
directions). δ = 1e-5. **Relation: replace-one**, by doubling all noise that is calibrated for
zero-out (twice its sensitivity is at least the diameter), and directly for batches, which are
charged so anyway. Every arm spends the whole ε, and every arm's rows are brought back into the
ball, which is public. 5000 particles each.

- sketch: moments (15 % of μ²), then noisy distribution functions of projections on directions and
  bins by the public tuning; particles from the noisy Gaussian, matched rank by rank;
- sketch, as a map: the same release through the map that makes a table's rows one by one;
- DP Gaussian: the moments with the whole budget, nothing else;
- noisy histograms: 64 projections on fixed ranges, 32 bins each, noise on each count;
- resampled: the paper's DPSWflow-r, 50 steps of batches of 250, 64 directions;
- presampled: the paper's DPSWflow, 64 directions, noise drawn once;
- the rows themselves: what sampling alone leaves.

Tuned on mixtures of other seeds. Targets: the means reached before, .0245, .016 and .011 at ε = 1,
3 and 10; and never worse than the DP Gaussian, paired.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.studies.lni import COLOURS, GREY, INK, mean_se, over_runs
from tests.studies.rank_particles import Particles
from tests.support.measured import noisy_moments, noisy_sketch, presampled, resampled
from tests.support.results import RESULTS, Row, at_most, write

from penstock.mechanisms.sliced_wasserstein.batches import measure_batches
from penstock.mechanisms.sliced_wasserstein.distribution import REACH, Targets, predicted
from penstock.mechanisms.sliced_wasserstein.flow import SlicedFlow
from penstock.mechanisms.sliced_wasserstein.goals import Schedule, goals, least_squares
from penstock.mechanisms.sliced_wasserstein.sketch import Directions, counts
from penstock.mechanisms.sliced_wasserstein.tuning import tune
from penstock.mechanisms.tables.moments import mean_and_covariance
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Gaussian
from penstock.privacy.noise.sources import NoiseSource, SecureNoise, add_gaussian
from penstock.privacy.sensitivity import histogram, orthonormal_stack

Array = NDArray[np.float64]

D, N, DELTA, RADIUS, RUNS = 8, 5000, 1e-5, 1.0, 12
TARGETS = {1.0: 0.0245, 3.0: 0.016, 10.0: 0.011}
ARMS = (
    *("sketch", "sketch, as a map", "DP Gaussian", "noisy histograms"),
    *("resampled", "presampled", "the rows themselves"),
)
SCALE, CLIP, SPREAD_FLOOR = 2.0, 0.9, 1e-3
"""Moments are of rows scaled so beside the constant 1, clipped to this norm, and so spread at
least."""
STEPS, ROW_STEPS, ROW_BASES, BATCH = 120, 50, 8, 250
HISTOGRAM_BASES, HISTOGRAM_BINS = 8, 32
_FRESH = 40_000


def mixture(rng: np.random.Generator) -> Callable[[int], Array]:
    """A mixture, as a function from a number of rows to rows (n, 8)."""
    centres = rng.standard_normal((5, D))
    centres *= 0.65 / np.linalg.norm(centres, axis=1, keepdims=True)

    def draw(n: int) -> Array:
        rows = centres[rng.integers(5, size=n)] + 0.1 * rng.standard_normal((n, D))
        return in_ball(rows)

    return draw


def in_ball(rows: Array) -> Array:
    """Rows beyond the public radius brought back to it."""
    norm = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    inside: Array = rows * np.minimum(1.0, RADIUS / norm)
    return inside


def sliced_quantiles(sample: Array, directions: int = 500) -> Array:
    """(directions, 2000): of a sample on directions that are always the same."""
    theta = np.random.default_rng(0).standard_normal((sample.shape[1], directions))
    theta /= np.linalg.norm(theta, axis=0)
    at = (np.arange(2000) + 0.5) / 2000 * len(sample) - 0.5
    ordered = np.ascontiguousarray((sample @ theta).T, dtype=np.float32)
    ordered.sort(axis=1)
    low = np.clip(np.floor(at).astype(np.intp), 0, len(sample) - 2)
    found: Array = ordered[:, low] + (ordered[:, low + 1] - ordered[:, low]) * (at - low)
    return found


def apart(x: Array, y: Array) -> float:
    """SW2 between samples, from their quantiles."""
    return math.sqrt(float(((x - y) ** 2).mean()))


def released_gaussian(rows: Array, sigma: float, noise: NoiseSource) -> tuple[Array, Array]:
    """Mean (d,) and covariance (d, d) from noisy moments; σ relative to zero-out."""
    there, scale = np.ones((len(rows), 1), dtype=bool), np.append(np.full(D, SCALE), 1.0)
    radius = math.hypot(SCALE * CLIP, 1.0)
    moments = noisy_moments(SCALE * rows[:, None], there, radius, sigma, noise)
    mean, _ = mean_and_covariance(moments / np.outer(scale, scale) / len(rows))
    raw = moments[:-1, :-1] / (SCALE**2 * len(rows)) - np.outer(mean, mean)
    values, vectors = np.linalg.eigh((raw + raw.T) / 2)
    return mean, (vectors * np.maximum(values, SPREAD_FLOOR)) @ vectors.T


def sketched(rows: Array, whole: float, noise: NoiseSource) -> dict[str, Array]:
    """The sketch's two ways to rows; ``whole``: the noise multiplier of one release with all ε."""
    n, rng = len(rows), noise.generator()
    tuned = tune(n / whole, n, D)
    mean, covariance = released_gaussian(rows, whole / math.sqrt(1 - tuned.share), noise)
    root = root_of(covariance)
    theta = orthonormal_stack(tuned.bases * D, D, rng)
    sd = np.sqrt(np.einsum("dn,de,en->n", theta, covariance, theta))
    where = Directions.within(theta, mean @ theta, REACH * sd)
    there = np.ones((n, 1), dtype=bool)
    sketch = noisy_sketch(
        rows[:, None], there, where, tuned.bins, whole / math.sqrt(tuned.share), noise
    )
    targets = predicted(sketch, n)
    start = mean + rng.standard_normal((n, D)) @ root
    schedule = Schedule(steps=120, step=0.75)
    flow = SlicedFlow(goals(targets, schedule), D, schedule, start=(root, mean), radius=RADIUS)
    return {
        "sketch": matched(start, targets),
        "sketch, as a map": flow.from_latent(rng.standard_normal((n, D))),
    }


def root_of(covariance: Array) -> Array:
    """Its symmetric square root."""
    values, vectors = np.linalg.eigh(covariance)
    root: Array = (vectors * np.sqrt(np.maximum(values, SPREAD_FLOOR))) @ vectors.T
    return root


def matched(start: Array, targets: Targets) -> Array:
    """Particles from ``start`` that are matched rank by rank, all directions at each step."""
    particles = Particles(start)
    levels = (np.arange(len(start)) + 0.5) / len(start)
    quantiles, theta = particles.tensor(targets.quantiles(levels)), particles.tensor(targets.matrix)
    back = least_squares(targets.matrix)
    first, then = particles.tensor(0.75 * back), particles.tensor(0.225 * back)
    for step in range(STEPS):
        particles.step(theta, first if step < 0.6 * STEPS else then, quantiles)
        particles.keep_in_ball(RADIUS)
    return particles.values


def histograms(rows: Array, whole: float, noise: NoiseSource) -> Array:
    """Counts with noise of their own, brought back to shares that add up to 1."""
    rng, count = noise.generator(), HISTOGRAM_BASES * D
    theta = orthonormal_stack(count, D, rng)
    there = np.ones((len(rows), 1), dtype=bool)
    where = Directions.within(theta, 0.0, RADIUS)
    whole_counts = counts(rows[:, None], there, where, HISTOGRAM_BINS).astype(np.float64)
    noisy = add_gaussian(whole_counts, whole * histogram(count), noise) / len(rows)
    edges = np.tile(np.linspace(-RADIUS, RADIUS, HISTOGRAM_BINS + 1), (count, 1))
    cdf = np.cumsum(on_simplex(noisy) + 1e-9, axis=1)
    cdf = np.concatenate([np.zeros((count, 1)), cdf / cdf[:, -1:]], axis=1)
    start = in_ball(0.4 * rng.standard_normal((len(rows), D)))
    return matched(start, Targets(theta, edges, cdf))


def on_simplex(shares: Array) -> Array:
    """Each row's nearest point with entries >= 0 that add up to 1 (Held, Wolfe & Crowder 1974)."""
    ordered = -np.sort(-shares, axis=1)
    over = np.cumsum(ordered, axis=1) - 1
    ranks = np.arange(1, shares.shape[1] + 1)
    last = (ordered - over / ranks > 0).sum(axis=1) - 1
    level = np.take_along_axis(over, last[:, None], axis=1) / (last[:, None] + 1)
    return np.maximum(shares - level, 0.0)


def paper(rows: Array, epsilon: float, whole: float, noise: NoiseSource) -> dict[str, Array]:
    """The paper's two variants, with charges that hold; from particles of sd .4."""
    there, rng = np.ones((len(rows), 1), dtype=bool), noise.generator()
    start, z = (0.4 * np.eye(D), np.zeros(D)), rng.standard_normal((len(rows), D))
    batches = Schedule(steps=ROW_STEPS, step=1.0, last=0.3, bases=ROW_BASES)
    per_step = smallest_scale(
        lambda s: (measure_batches(s, RADIUS, ROW_BASES, len(rows), BATCH, ROW_STEPS).event,),
        epsilon,
        DELTA,
    )
    once = Schedule(steps=150, step=1.0, last=0.3, bases=ROW_BASES)
    steps = {
        "resampled": (
            batches,
            resampled(rows[:, None], there, RADIUS, ROW_BASES, BATCH, per_step, batches, noise),
        ),
        "presampled": (
            once,
            presampled(rows[:, None], there, RADIUS, ROW_BASES, whole, once, noise),
        ),
    }
    return {
        arm: SlicedFlow(towards, D, schedule, start=start, radius=RADIUS).from_latent(z)
        for arm, (schedule, towards) in steps.items()
    }


def one(job: tuple[float, int]) -> dict[str, float]:
    """SW2 of each arm to fresh rows, for one mixture."""
    import torch

    torch.set_num_threads(1)
    epsilon, seed = job
    rng, noise = np.random.default_rng([_FRESH + seed]), SecureNoise()
    draw = mixture(rng)
    rows, fresh = draw(N), draw(N)
    # Replace-one: the noise multiplier relative to twice the zero-out sensitivity.
    whole = smallest_scale(lambda s: (Gaussian(s / 2),), epsilon, DELTA)
    mean, covariance = released_gaussian(rows, whole, noise)
    gaussian = in_ball(mean + rng.standard_normal((N, D)) @ root_of(covariance))
    made = {
        **sketched(rows, whole, noise),
        "DP Gaussian": gaussian,
        "noisy histograms": histograms(rows, whole, noise),
        **paper(rows, epsilon, whole, noise),
        "the rows themselves": rows,
    }
    truth = sliced_quantiles(fresh)
    return {arm: apart(sliced_quantiles(made[arm]), truth) for arm in ARMS}


def draw_figure(found: Mapping[float, Mapping[str, Array]]) -> None:
    """ε against distance, ``swf-mixture.png``."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {"font.size": 9, "axes.edgecolor": GREY, "text.color": INK}
    with rc_context(style):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained", facecolor="white")
        panel: Any = figure.subplots()
        at = list(found)
        for arm, colour in zip(ARMS, COLOURS, strict=True):
            means, errors = zip(*(mean_se(found[e][arm]) for e in at), strict=True)
            line = ":" if arm == "the rows themselves" else "-"
            panel.errorbar(at, means, errors, color=colour, linestyle=line, marker="o", label=arm)
        panel.plot(at, list(TARGETS.values()), "k_", markersize=14, label="target")
        panel.set(xscale="log", yscale="log", xlabel="ε (replace-one, δ = 1e-5)", ylabel="SW2")
        panel.set_xticks(at, [f"{e:g}" for e in at])
        panel.minorticks_off()
        panel.set_yticks([0.01, 0.02, 0.05, 0.1], [".01", ".02", ".05", ".1"])
        panel.set_title(f"8-D mixture, n = {N}: distance to fresh rows", loc="left")
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_ylim(top=0.6)
        panel.legend(frameon=False, fontsize=8, ncols=2, loc="upper right")
        RESULTS.mkdir(exist_ok=True)
        figure.savefig(RESULTS / "swf-mixture.png", dpi=130)


def run() -> Path:
    """All arms at all ε."""
    rows: list[Row] = []
    found: dict[float, dict[str, Array]] = {}
    for epsilon, target in TARGETS.items():
        runs = over_runs(one, [(epsilon, seed) for seed in range(RUNS)], f"ε = {epsilon:g}")
        found[epsilon] = {arm: np.array([run[arm] for run in runs]) for arm in ARMS}
        what, peer = f"SW2 at ε = {epsilon:g} (replace-one)", found[epsilon]["DP Gaussian"]
        for arm in ARMS:
            ours = arm.startswith("sketch")
            rows.append(
                at_most(
                    f"{what}, {arm}",
                    found[epsilon][arm].tolist(),
                    target=target if ours else None,
                    peer=float(peer.mean()) if ours else None,
                )
            )
        for arm in ARMS[:2]:
            worst = float((found[epsilon][arm] - peer).max())
            named = f"worst run of all: {arm} less DP Gaussian, ε = {epsilon:g}"
            rows.append(Row(named, worst, None, RUNS, 0.0, holds=worst <= 0))
        sys.stderr.write(f"ε = {epsilon:g}: done\n")
    draw_figure(found)
    return write("swf-mixture", rows, (__doc__ or "").strip())
