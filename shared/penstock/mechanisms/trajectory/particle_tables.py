"""Tables of snapshots, and paths, from what a release says of particles; post-processing.

A row is of a time point, by the released shares; a particle of it, with noise that gives the table
the released covariances; at time points without particles, where paths are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.trajectory.paths import sample_paths
from penstock.mechanisms.trajectory.plan import Plan
from penstock.mechanisms.trajectory.unit_space import from_unit
from penstock.privacy.noise.sources import NoiseSource, permutation
from penstock.schema.encoding import Encoding

Array = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Model:
    """What is released, and nothing else.

    Attributes:
        particles: (U, m, d) in the unit space, of the time points in use.
        shares: (T,) of rows by time point, adding up to 1; rows: how many were present.
        sources: (U, m, d) particles as tables are drawn from them, nearer to their means where
            they spread further than was released; kernels: (U, d, d) covariance of what a table
            adds to one.
        couplings: (U - 1, m, m).
    """

    particles: Array
    shares: Array
    rows: float
    sources: Array
    kernels: Array
    couplings: Array


def table(plan: Plan, encoding: Encoding, model: Model, noise: NoiseSource) -> dict[str, Array]:
    """Snapshots, n·k rows in a random order."""
    most, rng = plan.persons * plan.rows, noise.generator()
    bins = _bins(model.shares, most, rng)
    z = np.empty((most, len(plan.space)))
    used = np.asarray(plan.times.used)
    for place, t in enumerate(used):
        own = np.flatnonzero(bins == t)
        z[own] = _near(model, place, len(own), rng)
    skipped = np.flatnonzero(~np.isin(bins, used))
    if len(skipped):
        z[skipped] = _between(plan, model, bins[skipped], rng)
    order = permutation(most, noise)
    return from_unit(
        encoding, plan.space, z[order], plan.times.column, plan.times.within(bins[order], rng)
    )


def _bins(shares: Array, size: int, rng: np.random.Generator) -> Whole:
    """(size,) time points, each drawn by its share."""
    edges = np.cumsum(shares)
    drawn: Whole = np.searchsorted(edges, rng.random(size) * edges[-1], side="right")
    return np.minimum(drawn, len(shares) - 1)


def _near(model: Model, place: int, size: int, rng: np.random.Generator) -> Array:
    """(size, d): a particle each, with the kernel's noise.

    Drawn independently, not in turn: what combines copies, and what refits show, counts on rows
    that vary as a sample does.
    """
    which = rng.integers(model.particles.shape[1], size=size)
    near: Array = model.sources[place, which] + _kernel_noise(model, place, size, rng)
    return near


def _kernel_noise(model: Model, place: int, size: int, rng: np.random.Generator) -> Array:
    values, vectors = np.linalg.eigh(model.kernels[place])
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    noise: Array = rng.standard_normal((size, len(values))) @ root.T
    return noise


def _between(plan: Plan, model: Model, bins: Whole, rng: np.random.Generator) -> Array:
    """(size, d): where paths are at time points without particles; noise is the nearest's."""
    z = np.empty((len(bins), len(plan.space)))
    used = np.asarray(plan.times.used)
    for t in np.unique(bins):
        own = np.flatnonzero(bins == t)
        at = np.array([t / (plan.times.count - 1)])
        nearest = int(np.abs(used - t).argmin())
        noise = _kernel_noise(model, nearest, len(own), rng)
        z[own] = walk(plan, model, at, len(own), rng)[:, 0] + noise
    return z


def walk(plan: Plan, model: Model, times: Array, paths: int, rng: np.random.Generator) -> Array:
    """(paths, times, d) of paths through the particles."""
    return sample_paths(
        model.particles,
        model.couplings,
        plan.times.positions,
        times,
        plan.dynamics.temperature,
        paths,
        rng,
    )
