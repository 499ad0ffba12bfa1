"""Five Gaussians in the plane: particles against level sets, and SW2 over the steps.

The paper's toy (its section 4.1: N = 200 directions, step h = 1, λ = .001; centres and spreads are
not printed, here five on a circle of radius 2 with sd .2), 3000 rows and 3000 particles, 200 steps;
SW2 to 3000 fresh rows, mean over runs. Rows are clipped to radius 3, which hardly any exceed.

- without noise, and smoothed with σ = .5 and 1 as in its figure 1: fresh noise on all rows'
  projections at every step, on the particles' as well. Its ε beside it is what that costs (δ =
  1e-5, zero-out, 200 Gaussian releases at sensitivity 3 √(N/d)): none that anybody would sign;
- our sketch at ε = 1 and 3 (zero-out): moments (15 % of μ²), then noisy distribution functions,
  once; 200 steps at no further cost.

"Holds" for the flow without noise: within 2 s.e. of what 3000 other rows have, plus .02; for the
sketch: below the DP Gaussian of the same ε.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.studies.lni import COLOURS, GREY, INK, mean_se, over_runs
from tests.studies.rank_particles import Particles
from tests.studies.swf_mixture import apart, sliced_quantiles
from tests.support.measured import noisy_moments, noisy_sketch
from tests.support.results import RESULTS, Row, at_most, write

from penstock.mechanisms.sliced_wasserstein.distribution import REACH, predicted
from penstock.mechanisms.sliced_wasserstein.goals import least_squares
from penstock.mechanisms.sliced_wasserstein.sketch import Directions
from penstock.mechanisms.sliced_wasserstein.tuning import tune
from penstock.mechanisms.tables.moments import gaussian
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Gaussian
from penstock.privacy.noise.sources import SecureNoise
from penstock.privacy.sensitivity import orthonormal_projections, orthonormal_stack

Array = NDArray[np.float64]

N, DIRECTIONS, STEPS, LAMBDA, DELTA, RADIUS = 3000, 200, 200, 0.001, 1e-5, 3.0
CIRCLE, SD, RUNS = 2.0, 0.2, 4
SMOOTHINGS, EPSILONS = (0.0, 0.5, 1.0), (1.0, 3.0)
SHOWN, EVERY = (0, 10, 50, 200), 10

Path_ = list[Array]
"""Particles before the first step and after each EVERY of them."""


def five(n: int, rng: np.random.Generator) -> Array:
    """(n, 2)."""
    angle = 2 * math.pi * rng.integers(5, size=n) / 5
    centres = CIRCLE * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    rows: Array = centres + SD * rng.standard_normal((n, 2))
    norm = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1.0, RADIUS / np.maximum(norm, 1e-30))


def density(x: Array, y: Array) -> Array:
    """Of the mixture, before clipping."""
    angles = 2 * math.pi * np.arange(5) / 5
    apart_ = [(x - CIRCLE * math.cos(a)) ** 2 + (y - CIRCLE * math.sin(a)) ** 2 for a in angles]
    return np.sum([np.exp(-a / (2 * SD**2)) for a in apart_], axis=0) / (10 * math.pi * SD**2)


def smoothed(rows: Array, sigma: float, rng: np.random.Generator) -> Iterator[Array]:
    """The paper's flow: particles after each step, noise from a public generator."""
    particles = Particles(rng.standard_normal((N, 2)))
    yield particles.values
    for _ in range(STEPS):
        theta = orthonormal_stack(DIRECTIONS, 2, rng)
        projected, own = (rows @ theta).T.astype(np.float32), None
        if sigma:
            projected += sigma * rng.standard_normal(projected.shape, np.float32)
            own = particles.tensor(sigma * rng.standard_normal((DIRECTIONS, N), np.float32))
        # As many particles as rows: their quantiles are the rows' own, in order.
        quantiles = np.sort(projected, axis=1)
        particles.step(
            particles.tensor(theta),
            particles.tensor(theta / DIRECTIONS),
            particles.tensor(quantiles),
            own,
            particles.tensor(math.sqrt(2 * LAMBDA) * rng.standard_normal((N, 2))),
        )
        yield particles.values


def sketched(rows: Array, budget: float, rng: np.random.Generator) -> Iterator[Array]:
    """The sketch's flow; its start is a DP Gaussian with the moments' share of the budget."""
    noise, there = SecureNoise(), np.ones((N, 1), dtype=bool)
    whole = smallest_scale(lambda s: (Gaussian(s),), budget, DELTA)
    tuned = tune(N / whole, N, 2)
    start = released(rows, whole / math.sqrt(1 - tuned.share))
    theta = orthonormal_stack(tuned.bases * 2, 2, rng)
    sd = np.linalg.norm(start[0].T @ theta, axis=0)
    where = Directions.within(theta, start[1] @ theta, REACH * sd)
    sigma = whole / math.sqrt(tuned.share)
    targets = predicted(noisy_sketch(rows[:, None], there, where, tuned.bins, sigma, noise), N)
    particles = Particles(rng.standard_normal((N, 2)) @ start[0].T + start[1])
    quantiles = particles.tensor(targets.quantiles((np.arange(N) + 0.5) / N))
    back = least_squares(theta)
    yield particles.values
    for size in np.geomspace(0.75, 0.15, STEPS):
        particles.step(particles.tensor(theta), particles.tensor(size * back), quantiles)
        particles.keep_in_ball(RADIUS)
        yield particles.values


def released(rows: Array, sigma: float) -> tuple[Array, Array]:
    """A DP Gaussian as the matrix and the shift that make it of standard ones."""
    there = np.ones((N, 1), dtype=bool)
    moments = noisy_moments(rows[:, None], there, math.hypot(RADIUS, 1.0), sigma, SecureNoise())
    affine = gaussian(moments, N)
    return affine.matrix, affine.shift


def one(seed: int) -> dict[str, Path_]:
    """Particles of each arm on their way, fresh rows, and the rows themselves."""
    import torch

    torch.set_num_threads(1)
    rng = np.random.default_rng([50_000, seed])
    rows, fresh = five(N, rng), five(N, rng)
    made: dict[str, Path_] = {"rows": [rows], "fresh": [fresh]}
    for sigma in SMOOTHINGS:
        made[smoothing(sigma)] = list(smoothed(rows, sigma, rng))[::EVERY]
    for budget in EPSILONS:
        made[sketch(budget)] = list(sketched(rows, budget, rng))[::EVERY]
        whole = smallest_scale(lambda s: (Gaussian(s),), budget, DELTA)
        matrix, shift = released(rows, whole)
        made[peer(budget)] = [rng.standard_normal((N, 2)) @ matrix.T + shift]
    return made


def smoothing(sigma: float) -> str:
    """An arm's name, with what it would cost."""
    if not sigma:
        return "no noise (ε = ∞)"
    reach = orthonormal_projections(RADIUS, DIRECTIONS, 2)
    spent = epsilon([Gaussian(sigma / reach, STEPS)], DELTA)
    return f"σ = {sigma:g} (ε = {spent:.2g})"


def sketch(budget: float) -> str:
    return f"sketch, ε = {budget:g}"


def peer(budget: float) -> str:
    return f"DP Gaussian, ε = {budget:g}"


def distances(made: dict[str, Path_]) -> dict[str, Array]:
    """SW2 to fresh rows along each arm's way."""
    truth = sliced_quantiles(made["fresh"][0])
    return {
        arm: np.array([apart(sliced_quantiles(x), truth) for x in way])
        for arm, way in made.items()
        if arm != "fresh"
    }


def draw_figure(example: dict[str, Path_], found: list[dict[str, Array]]) -> None:
    """Particles against level sets, and SW2 over the steps: ``swf-toy.png``."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {"font.size": 8, "axes.edgecolor": GREY, "text.color": INK}
    arms = [*map(smoothing, SMOOTHINGS), *map(sketch, EPSILONS)]
    grid = np.linspace(-3, 3, 121)
    x, y = np.meshgrid(grid, grid)
    levels = density(x, y)
    with rc_context(style):
        figure = Figure(figsize=(9.6, 13.2), layout="constrained", facecolor="white")
        top, bottom = figure.subfigures(2, 1, height_ratios=(len(arms) * 2.2, 2.6))
        panels = top.subplots(len(arms), len(SHOWN), sharex=True, sharey=True)
        for step, panel in zip(SHOWN, panels[0], strict=True):
            panel.set_title(f"step {step}")
        for line, arm, colour in zip(panels, arms, COLOURS, strict=False):
            for panel, step in zip(line, SHOWN, strict=True):
                panel.contour(x, y, levels, levels=4, colors=GREY, linewidths=0.5)
                points = example[arm][step // EVERY][:1000]
                panel.scatter(*points.T, s=1.2, color=colour, linewidths=0)
                panel.set(xlim=(-3, 3), ylim=(-3, 3), aspect="equal", xticks=[], yticks=[])
            line[0].set_ylabel(arm)
        curve: Any = bottom.subplots()
        steps = np.arange(0, STEPS + 1, EVERY)
        for arm, colour in zip(arms, COLOURS, strict=False):
            curve.plot(steps, np.mean([run[arm] for run in found], axis=0), color=colour, label=arm)
        floor = float(np.mean([run["rows"][0] for run in found]))
        curve.axhline(floor, color=GREY, linestyle=":", linewidth=0.8, label="the rows themselves")
        curve.set(yscale="log", xlabel="step", ylabel="SW2 to fresh rows")
        curve.spines[["top", "right"]].set_visible(False)
        curve.legend(frameon=False, ncols=2)
        RESULTS.mkdir(exist_ok=True)
        figure.savefig(RESULTS / "swf-toy.png", dpi=120)


def run() -> Path:
    """All arms, RUNS times."""
    made = over_runs(one, list(range(RUNS)), "five Gaussians")
    found = [distances(each) for each in made]
    draw_figure(made[0], found)
    floor = mean_se([each["rows"][0] for each in found])[0]
    rows: list[Row] = []
    for arm in found[0]:
        last = [float(each[arm][-1]) for each in found]
        target = floor + 0.02 if arm == smoothing(0.0) else None
        rows.append(at_most(f"SW2 after {STEPS} steps, {arm}", last, target=target))
    for budget in EPSILONS:
        ahead = [float(each[sketch(budget)][-1] - each[peer(budget)][-1]) for each in found]
        rows.append(at_most(f"paired: sketch less DP Gaussian, ε = {budget:g}", ahead, target=0.0))
    return write("swf-toy", rows, (__doc__ or "").strip())
