"""Particles beside the published flow's arithmetic and POT, in one run on one thread.

All contenders run in turn, round after round, in one process; medians and quartiles over the
rounds, and of the rounds' own ratios, where above 1 means that ours is faster. A target holds where
the median reaches it. A row begins with the peer that it is about.

- **Flow step**: 10,000 particles in d = 8, a batch of 250 rows, N directions; noise drawn on both
  sides' projections. The published step, re-stated here from its arithmetic and not copied: noisy
  projections, `torch.quantile` of rows and of particles at 30,000 percentiles (its configurations'
  number), two piecewise linear interpolations, a mean over directions. Beside it the same at fewer
  percentiles: as many as there are particles. Ours sorts once and places by rank. Given the same
  noise, ours and the published one at fewer percentiles make the same update to rounding; at 30,000
  that do not fall on the particles, it interpolates between them. The largest differences stand
  below, as shares of the largest move.
- **Sinkhorn**: T - 1 = 9 problems of m points, as between ten time points, float64, to the same
  marginal error (L1, both margins): that of `ot.sinkhorn` when it stops at 1e-7. Cold; and warm, as
  in the dynamics: from the potentials of points that have since moved by √reg / 10. A step of the
  dynamics itself stands beside: float32, warm, eight sweeps whatever the error. (Its
  own reg is the smallest of the three, or smaller.)
- **Couplings** of a trajectory at its default temperature, whose reg is a fifth of the smallest
  above: how long the T - 1 entropic ones take beside `ot.sinkhorn` in a loop (at most 3,000
  iterations each; the worst marginal errors of both stand below), and the exact ones beside
  `ot.emd`. Ours are a loop of scipy's `linear_sum_assignment`: between equally many particles of
  equal weight a best plan is an assignment, and a site needs no POT for it. Both plans are the
  same. Last, how much more an entropic plan's motion costs than an exact one's.
- **Paths**: 500 paths at 91 times through ten time points of 50 particles, the target in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from tests.benchmarks import flow
from tests.benchmarks import particle_scaling as scaling
from tests.benchmarks import particle_works as works
from tests.support.results import RESULTS, Row, write

from penstock.mechanisms import Trajectory
from penstock.mechanisms.trajectory.paths import couple, sample_paths
from penstock.mechanisms.trajectory.time_points import unit_temperature

REPEATS = 9
PATHS, PATH_TIMES, TEMPERATURE = 500, 91, 0.02
DEFAULT = unit_temperature(Trajectory("visit"))
"""In the space that particles are in."""
ENTROPIC = 200
"""Particles, beyond which POT's iteration takes minutes."""


def run() -> Path:
    """Measure; medians over REPEATS."""
    flow.threads(1)
    rows = [row for directions in (70, 72) for row in steps(directions)]
    for m in (50, 200):
        for reg in (0.1, 0.01, 0.003):
            rows += sinkhorns(m, reg)
    for m in (50, 200, 800):
        rows += couplings(m)
    rows += sampled_paths()
    scaling.picture(RESULTS / "particles.png")
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "pot"))
    note = f"{(__doc__ or '').strip()}\n\n{versions}.\n\n![Milliseconds](particles.png)"
    return write("particles", rows, note)


# -- a step of the sliced-Wasserstein flow --------------------------------------------------------


def steps(directions: int) -> Iterator[Row]:
    """A step's milliseconds."""
    taken = flow.interleaved(scaling.steps(works.PARTICLES, works.D, directions), REPEATS)
    what = f"flow step, {works.PARTICLES:,} particles, N = {directions}"
    yield from compared(what, taken, dict.fromkeys(("published", "published, fewer"), 10.0))
    for who, count in (("published", works.PERCENTILES), ("published, fewer", works.PARTICLES)):
        for dtype, name in ((torch.float64, "float64"), (torch.float32, "float32")):
            found = works.apart(directions, dtype, count)
            told = f"{who}: {what}, largest difference, {name}"
            # Without interpolation in between, what differs in float64 is rounding alone.
            most = 1e-9 if who == "published, fewer" and name == "float64" else None
            yield Row(told, found, None, 1, target=most, holds=most and found <= most)


# -- Sinkhorn --------------------------------------------------------------------------------------


def sinkhorns(m: int, reg: float) -> Iterator[Row]:
    """Milliseconds for all T - 1 problems to one marginal error."""
    contenders, error = works.transports(m, reg)
    step = {"a step": works.dynamics_step(m, reg)}
    taken = flow.interleaved(contenders | step, REPEATS)
    what = f"{works.TIMES - 1} Sinkhorns, m = {m}, reg = {reg:g}"
    for kind in ("cold", "warm"):
        for peer in ("loop of ot.sinkhorn", "ot.solve_batch"):
            kept = {"ours": taken[f"ours, {kind}"], peer: taken[peer]}
            yield from compared(f"{what}, {kind}", kept, {"loop of ot.sinkhorn": 5.0})
    yield flow.summary(f"{what}, a step of the dynamics (ms)", 1e3 * taken["a step"])
    reached = {who: works.margins_off(np.asarray(work())) for who, work in contenders.items()}
    for who in ("ours, cold", "ours, warm"):
        own = reached[who]
        told = f"loop of ot.sinkhorn: {what}, {who[6:]}, marginal error"
        yield Row(told, own, None, 1, target=error, peer=error, holds=own <= error)
    told = f"ot.solve_batch: {what}, cold, marginal error"
    yield Row(told, reached["ours, cold"], None, 1, peer=reached["ot.solve_batch"])


# -- couplings of a trajectory ---------------------------------------------------------------------


def couplings(m: int) -> Iterator[Row]:
    """Milliseconds for all T - 1 gaps between m particles, exact and, but for many, entropic."""
    points, reg = works.clouds(m).numpy(), DEFAULT / (works.TIMES - 1)
    costs = works.costs_of(works.clouds(m)).numpy()
    exact: flow.Works = {
        "ours": lambda: couple(points, reg, exact=True) / m,
        "loop of ot.emd": lambda: works.solved(works.costs_of(works.clouds(m)).numpy()),
    }
    what = f"exact couplings, {works.TIMES} time points of {m} particles"
    yield from compared(what, flow.interleaved(exact, REPEATS), {})
    best, theirs = (np.asarray(work()) for work in exact.values())
    told = f"loop of ot.emd: {what}, largest difference of the plans"
    off = float(abs(best - theirs).max())
    yield Row(told, off, None, 1, target=1e-12, holds=off <= 1e-12)
    if m > ENTROPIC:
        return
    entropic: flow.Works = {
        "ours": lambda: couple(points, reg) / m,
        "loop of ot.sinkhorn": lambda: works.looped(costs, reg, 3_000),
    }
    what = f"entropic couplings, {works.TIMES} time points of {m} particles, reg = {reg:.1g}"
    yield from compared(what, flow.interleaved(entropic, REPEATS), {"loop of ot.sinkhorn": 5.0})
    own, theirs = (np.asarray(work()) for work in entropic.values())
    told = f"loop of ot.sinkhorn: {what}, marginal error"
    errors = [works.margins_off(plans) for plans in (own, theirs)]
    yield Row(
        told, errors[0], None, 1, peer=errors[1], target=errors[1], holds=errors[0] <= errors[1]
    )
    more = float((own * costs).sum() / (best * costs).sum())
    yield Row(f"{what}, cost over that of the exact ones", more, None, 1)


# -- paths -----------------------------------------------------------------------------------------


def sampled_paths() -> Iterator[Row]:
    """Seconds for all paths, couplings given."""
    points = works.clouds(50).numpy()
    nodes, when = np.linspace(0, 1, works.TIMES), np.linspace(0, 1, PATH_TIMES)
    reg = TEMPERATURE * np.diff(nodes)
    plans, rng = couple(points, reg), np.random.default_rng(0)
    contenders = {
        "paths": lambda: sample_paths(points, plans, nodes, when, TEMPERATURE, PATHS, rng)
    }
    spent = flow.interleaved(contenders, REPEATS)["paths"]
    told = f"{PATHS} paths at {PATH_TIMES} times (s)"
    yield flow.summary(told, spent, target=0.2, holds=flow.median(spent) <= 0.2)


def compared(what: str, taken: flow.Times, targets: dict[str, float]) -> Iterator[Row]:
    """Our milliseconds beside each other's, and by how many times they are fewer."""
    own = 1e3 * taken["ours"]
    for who in (name for name in taken if name != "ours"):
        yield flow.summary(f"{who}: {what} (ms)", own, peer=1e3 * flow.median(taken[who]))
        yield flow.faster(f"{who}: {what}, times faster", own, 1e3 * taken[who], targets.get(who))
