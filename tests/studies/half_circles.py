"""Three branches through the plane, seen once per person: half-circles at (ε, δ) = (1, .01).

From (-1, 0) at time 0 to (1, 0) at time 1, a third of the persons each along the upper half-circle,
the line and the lower half-circle, with noise of variance .005 per coordinate. 3000 persons at each
of 10 times, each seen at one time only; public box [-1.3, 1.3]²; zero-out, public n, ε by privacy
loss distributions; 100 particles per time. Distances are W2 to 1000 fresh persons per time,
averaged over the times, in the plane's own units. Every arm of a run sees the same persons.

- **k-means**: `start = "k-means"` with 3 modes, then the dynamics.
- **k-means, start alone**: the same start with the same share of the budget, and no dynamics.
- **annealed**: `start = "public"`: the whole budget for dynamics whose kernel narrows; at (1, .01)
  and at (1.84, .01), where the paper shows its annealed schedule.
- **DP histogram**: noisy counts of a grid of 14² cells at each time at the full budget, made a
  distribution by projection; 100 points drawn independently from it, evenly within a cell. Beside
  it a grid of 12² cells and stratified draws, an advantage that the starts above have, too.
- **not private**: `k-means` without noise. **100 true samples**: fresh persons.

At time .5, which nobody was seen at: 500 paths beside 500 true samples, W2 to 1000 fresh persons.
**Cross-branch**: the share of 500 paths that change branch (|y| = .35) between times 3/9 and 6/9.

All settings but the start are the mechanism's defaults, which were tuned on simulated pen strokes;
the histograms' grids are the best of 8 to 24 on other seeds of these very shapes, in their favour.
The paper shows these shapes in pictures, without numbers.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import ot
from numpy.typing import NDArray
from tests.studies import particle_plots
from tests.studies.lni import over_runs
from tests.support.results import RESULTS, at_most, write

from penstock.mechanisms import Trajectory
from penstock.mechanisms.trajectory import run as mechanism
from penstock.mechanisms.trajectory.paths import couple, sample_paths
from penstock.mechanisms.trajectory.plan import Plan, plan
from penstock.privacy.accounting.accountant import epsilon_pld
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Gaussian
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Column, Schema
from penstock.schema.encoding import Encoding

Array = NDArray[np.float64]

PERSONS, TIMES, PARTICLES, PATHS, FRESH = 3000, 10, 100, 500, 1000
EPSILON, DELTA, PAPER_EPSILON = 1.0, 0.01, 1.84
BOX, VARIANCE, BRANCH = 1.3, 0.005, 0.35
WIDTH = 2 * BOX
"""Of the box; the mechanism's unit space is 1 wide."""

ALONE = "k-means, start alone"
"""What the first one's start is before its particles move."""

GRIDS = {"DP histogram": (14, False), "DP histogram, stratified": (12, True)}
"""Cells per side, and whether draws are stratified."""

TARGET, SEEDS, SILENT = 0.172, 24, 1e-6
"""SILENT: a noise multiplier that is as good as none."""

SCHEMA = Schema(
    (
        Column("time", "integer", lower=0, upper=TIMES - 1),
        Column("x", "continuous", lower=-BOX, upper=BOX),
        Column("y", "continuous", lower=-BOX, upper=BOX),
    )
)
SETTINGS = {
    "k-means": Trajectory("time", particles=PARTICLES, start="k-means", modes=3),
    "annealed": Trajectory("time", particles=PARTICLES, start="public"),
}
FOLLOWED = ("k-means", f"annealed, ε = {EPSILON:g}", "not private")
"""Arms whose paths are looked at."""

ARMS = (
    "k-means",
    ALONE,
    f"annealed, ε = {EPSILON:g}",
    f"annealed, ε = {PAPER_EPSILON:g}",
    "DP histogram",
    "DP histogram, stratified",
    "not private",
    "100 true samples",
)


def half_circles(count: int, at: float, rng: np.random.Generator) -> Array:
    """(count, 2) persons at one time in [0, 1]."""
    branch, angle = rng.integers(0, 3, count), math.pi * (1 - at)
    x = np.where(branch == 1, 2 * at - 1, math.cos(angle))
    y = np.choose(branch, [math.sin(angle), 0.0, -math.sin(angle)])
    return np.column_stack([x, y]) + math.sqrt(VARIANCE) * rng.standard_normal((count, 2))


def distance(points: Array, fresh: Array) -> float:
    """W2 between two clouds of even weights."""
    return math.sqrt(max(ot.emd2([], [], ot.dist(points, fresh), numItermax=1_000_000), 0.0))


def planned(start: str, epsilon: float) -> Plan:
    privacy = PrivacyRequest(epsilon, DELTA)
    return plan(SETTINGS[start], SCHEMA, PERSONS * TIMES, privacy, epsilon_pld)


def plans() -> dict[str, Plan]:
    """How each arm that is fitted is fitted."""
    private = planned("k-means", EPSILON)
    return {
        "k-means": private,
        ALONE: private,
        f"annealed, ε = {EPSILON:g}": planned("annealed", EPSILON),
        f"annealed, ε = {PAPER_EPSILON:g}": planned("annealed", PAPER_EPSILON),
        "not private": replace(
            private,
            start=replace(private.start, sigma=SILENT),
            dynamics=replace(private.dynamics, sigma=SILENT),
        ),
    }


def fitted(how: Plan, clouds: Array, rng: np.random.Generator, *, alone: bool = False) -> Array:
    """(T, m, 2) particles in the plane, from clouds (T, N, 2).

    Args:
        alone: as the start draws them, without dynamics.
    """
    encoding, flat = Encoding(SCHEMA), clouds.reshape(-1, 2)
    when = np.repeat(np.arange(TIMES), PERSONS).astype(np.float64)
    coded = {"time": when, "x": flat[:, 0], "y": flat[:, 1]}
    rows, present = encoding.encode(coded, rng)
    noise = SeededNoise(int(rng.integers(2**32)))
    if alone:
        box = mechanism.half_widths(how, encoding)
        given = mechanism.unit_rows(how, encoding, rows[:, None], present[:, None])
        found = mechanism.begin(how, *given, box, noise)
        return WIDTH * mechanism.draw(found, how.particles, box, noise.generator())
    model = mechanism.fit(how, encoding, rows[:, None], present[:, None], noise)
    return WIDTH * model.particles


def histogram(sigma: float, clouds: Array, cells: int, rng: np.random.Generator) -> Array:
    """(T, cells²) shares: noisy counts, each time's projected onto the distributions."""
    edges = np.linspace(-BOX, BOX, cells + 1)
    inside = np.clip(clouds, -BOX, BOX)
    counts = np.stack([np.histogram2d(*c.T, bins=[edges, edges])[0].ravel() for c in inside])
    noisy = counts + sigma * rng.standard_normal(counts.shape)
    return np.stack([projected(each / PERSONS) for each in noisy])


def projected(values: Array) -> Array:
    """The nearest distribution."""
    falling = np.sort(values)[::-1]
    excess = (np.cumsum(falling) - 1) / np.arange(1, len(values) + 1)
    return np.maximum(values - excess[np.flatnonzero(falling > excess)[-1]], 0.0)


def drawn(shares: Array, stratified: bool, rng: np.random.Generator) -> Array:
    """(T, m, 2) points of histograms, evenly within a cell."""
    points, cells = [], math.isqrt(shares.shape[1])
    for share in shares:
        places = rng.random(PARTICLES)
        if stratified:
            places = (np.arange(PARTICLES) + places) / PARTICLES
        cell = np.minimum(np.searchsorted(np.cumsum(share), places), len(share) - 1)
        corner = np.column_stack([cell // cells, cell % cells])
        points.append(WIDTH * (corner + rng.random((PARTICLES, 2))) / cells - BOX)
    return np.stack(points)


def paths(how: Plan, particles: Array, times: Array, exact: bool, seed: int) -> Array:
    """(PATHS, times, 2) in the plane; the temperature is that of the dynamics."""
    temperature = WIDTH**2 * how.dynamics.temperature
    nodes = how.times.positions
    couplings = couple(particles, temperature * np.diff(nodes), exact)
    rng = np.random.default_rng(seed)
    return sample_paths(particles, couplings, nodes, times, temperature, PATHS, rng)


def crossed(seen: Array) -> float:
    """The share of paths (p, k, 2) that are not on one branch at all k times."""
    branch = np.digitize(seen[:, :, 1], [-BRANCH, BRANCH])
    return float((branch != branch[:, :1]).any(axis=1).mean())


def one(job: tuple[dict[str, Plan], float, int]) -> dict[str, float]:
    """All figures of one run."""
    how, sigma, seed = job
    rng = np.random.default_rng([41_000, seed])
    at = np.arange(TIMES) / (TIMES - 1)
    clouds = np.stack([half_circles(PERSONS, t, rng) for t in at])
    fresh = np.stack([half_circles(FRESH, t, rng) for t in at])
    made, seconds = {}, 0.0
    for arm, each in how.items():
        begun = time.perf_counter()
        made[arm] = fitted(each, clouds, rng, alone=arm == ALONE)
        if arm == "k-means":
            seconds = time.perf_counter() - begun
    for arm, (cells, stratified) in GRIDS.items():
        made[arm] = drawn(histogram(sigma, clouds, cells, rng), stratified, rng)
    made["100 true samples"] = np.stack([half_circles(PARTICLES, t, rng) for t in at])
    found = {
        arm: float(np.mean([distance(a, b) for a, b in zip(points, fresh, strict=True)]))
        for arm, points in made.items()
    }
    unseen = half_circles(FRESH, 0.5, rng)
    found["500 true samples at .5"] = distance(half_circles(PATHS, 0.5, rng), unseen)
    for arm in FOLLOWED:
        for exact in (False, True):
            seen = paths(how[arm], made[arm], np.array([0.5, *at[3:7]]), exact, seed)
            name = f"{arm}, {'exact' if exact else 'entropic'}"
            found[f"{name}, at .5"] = distance(seen[:, 0], unseen)
            found[f"{name}, cross-branch"] = crossed(seen[:, 1:])
    return found | {"seconds": seconds}


def picture(how: Plan) -> None:
    """Paths and particles of one run, by either coupling."""
    rng = np.random.default_rng(40_000)
    at = np.arange(TIMES) / (TIMES - 1)
    made = fitted(how, np.stack([half_circles(PERSONS, t, rng) for t in at]), rng)
    times = np.linspace(0, 1, 91)
    for exact, name in ((True, "half-circles"), (False, "half-circles-entropic")):
        seen = paths(how, made, times, exact, seed=0)
        release = particle_plots.Trajectories(("x", "y"), times, seen, at, made, "time")
        figure = particle_plots.trajectories(release, plane=(0, 1), shown=[1])
        particle_plots.save(figure, RESULTS / f"{name}.png", dpi=110)


def run() -> Path:
    """Measure."""
    how = plans()
    sigma = smallest_scale(lambda s: (Gaussian(s),), EPSILON, DELTA, accountant=epsilon_pld)
    jobs = [(how, sigma, seed) for seed in range(SEEDS)]
    runs = over_runs(one, jobs, "half-circles")
    found = {name: [each[name] for each in runs] for name in runs[0]}
    rows = []
    for arm in ARMS:
        target = TARGET if arm == "k-means" else None
        peer = float(np.mean(found["DP histogram"])) if arm == "k-means" else None
        rows.append(at_most(f"mean W2, {arm}", found[arm], target=target, peer=peer))
    for arm in GRIDS:
        ahead = np.subtract(found["k-means"], found[arm]).tolist()
        rows.append(at_most(f"paired: k-means less {arm}", ahead, target=0.0))
    rows.append(at_most("W2 at time .5, 500 true samples", found["500 true samples at .5"]))
    for arm in FOLLOWED:
        for coupling in ("entropic", "exact"):
            name = f"{arm}, {coupling}"
            rows.append(at_most(f"W2 at time .5, {name}", found[f"{name}, at .5"]))
            rows.append(at_most(f"cross-branch share, {name}", found[f"{name}, cross-branch"]))
    rows.append(at_most("seconds per fit, k-means, one thread", found["seconds"]))
    picture(how["k-means"])
    note = (__doc__ or "").strip()
    shown = "![Exact couplings](half-circles.png)\n\n![Entropic](half-circles-entropic.png)"
    return write("half-circles", rows, f"{note}\n\n{shown}")
