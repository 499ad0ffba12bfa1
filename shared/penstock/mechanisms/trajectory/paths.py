"""Couplings of particles at neighbouring time points, and continuous paths through them.

All of it is post-processing of particles that are released already.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.base.errors import InvalidInput, Problem

Array = NDArray[np.float64]

_HELD = 1 << 17
"""Bound on the numbers of walks that are computed at once; a path at least."""


def couple(particles: Array, reg: ArrayLike, exact: bool = False) -> Array:
    """Optimal transport from the particles of each time point to those of the next.

    Args:
        particles: (T, m, d), T >= 2, m >= 1, each weighing 1/m.
        reg: regularisation in units of ½‖x - y‖²; one, or one for each of the T - 1 gaps
            (temperature times the gap's length makes the chain of couplings that of a Schrödinger
            bridge). Not used where ``exact``.
        exact: without regularisation: between equally many particles of equal weight an optimal
            plan sends each to one other, so paths never split. It is POT's ``emd``, found as an
            assignment: no slower, and without POT at a site (``make bench NAME=particles``).

    Returns:
        (T - 1, m, m): entry [t, i, j] is the probability to go on to particle j from particle i.

    Raises:
        InvalidInput: wrong shape, values that are not finite, or a ``reg`` not above 0.
    """
    particles = _particles(particles)
    if exact:
        return _assignments(particles)
    # Slow to import, and the exact coupling needs none of it.
    import torch

    from penstock.mechanisms.trajectory.sinkhorn import sinkhorn

    each = np.asarray(reg, dtype=np.float64)
    if each.shape not in ((), (len(particles) - 1,)):
        bound = f"one, or one for each of {len(particles) - 1} gaps"
        raise InvalidInput("couplings", [Problem("reg", "wrong shape", bound=bound)])
    points = torch.as_tensor(particles)
    return np.asarray(sinkhorn(points[:-1], points[1:], torch.as_tensor(each)).forward)


def _assignments(particles: Array) -> Array:
    from scipy.optimize import linear_sum_assignment
    from scipy.spatial.distance import cdist

    gaps, m = len(particles) - 1, particles.shape[1]
    plans = np.zeros((gaps, m, m))
    for plan, x, y in zip(plans, particles[:-1], particles[1:], strict=True):
        plan[linear_sum_assignment(cdist(x, y, "sqeuclidean"))] = 1.0
    return plans


def sample_paths(
    particles: Array,
    couplings: Array,
    snapshot_times: ArrayLike,
    times: ArrayLike,
    temperature: float,
    paths: int,
    rng: np.random.Generator,
) -> Array:
    """Paths: a Markov chain of particles, Brownian bridges from each to the next.

    A path starts at any particle alike and goes on by the rows of the couplings. Draws are
    stratified: of all paths as equal a number starts at each particle, and those at one particle go
    on in as exact proportions, as whole numbers allow. So each path has the law of the chain, and
    all of them together are nearer to it than independent ones. Between its nodes x at
    time a and y at time b a path is a Brownian bridge: jointly Gaussian at any times, with
    mean x + (t - a)/(b - a) (y - x) and, in each coordinate,
    covariance(s, t) = temperature (s - a)(b - t)/(b - a) for s <= t, independent between gaps
    (Chizat, Zhang, Heitz & Schiebinger 2022, "Trajectory Inference via Mean-field Langevin in Path
    Space", theorem 3.1).

    Args:
        particles: (T, m, d), T >= 2.
        couplings: (T - 1, m, m) of :func:`couple`: rows that sum to 1.
        snapshot_times: T, ascending.
        times: when to look, in any order, twice if one likes, from the first snapshot's time to
            the last's.
        temperature: the paths' variance per unit of time, 0 (straight lines) or more.
        paths: how many, at least 1.
        rng: randomness that no guarantee rests on.

    Returns:
        (paths, len(times), d), as ``times`` are ordered. At a snapshot's time it is a particle.

    Raises:
        InvalidInput: shapes, order or range of the arguments; rows that do not sum to 1.
    """
    particles = _particles(particles)
    couplings = np.asarray(couplings, dtype=np.float64)
    nodes = np.asarray(snapshot_times, dtype=np.float64)
    seen = np.asarray(times, dtype=np.float64)
    _check(particles, couplings, nodes, seen, temperature, paths)
    chain = _chain(couplings, paths, rng)
    grid, place = np.unique(np.concatenate([nodes, seen]), return_inverse=True)
    own, wanted = place[: len(nodes)], place[len(nodes) :]
    d = particles.shape[2]
    spread = np.sqrt(temperature * np.diff(grid))[:, None]
    gap = np.clip(np.searchsorted(own, wanted, side="right") - 1, 0, len(own) - 2)
    share = ((seen - nodes[gap]) / np.diff(nodes)[gap])[:, None]
    nearest = gap + (share[:, 0] == 1)
    hit = nodes[nearest] == seen
    found, at_once = np.empty((paths, len(seen), d)), max(1, _HELD // (len(grid) * d))
    for first in range(0, paths, at_once):
        at = particles[np.arange(len(nodes)), chain[first : first + at_once]]  # (…, T, d)
        walk = np.zeros((len(at), len(grid), d))
        steps = rng.standard_normal((len(at), len(grid) - 1, d))
        steps *= spread
        np.cumsum(steps, axis=1, out=walk[:, 1:])
        # Each gap's walk, pinned at both ends: what it is off at the right end is taken back
        # linearly.
        off = at - walk[:, own]
        bridges = walk[:, wanted] + (1 - share) * off[:, gap] + share * off[:, gap + 1]
        bridges[:, hit] = at[:, nearest[hit]]  # a particle to the last digit
        found[first : first + at_once] = bridges
    return found


def _chain(couplings: Array, paths: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(paths, T) particles' numbers, by inverting the rows' cumulative sums."""
    gaps, m = couplings.shape[:2]
    chain = np.empty((paths, gaps + 1), dtype=np.int64)
    chain[:, 0] = _even(paths, rng) * m
    for t, plan in enumerate(couplings):
        rising = np.cumsum(plan, axis=1)
        rising /= rising[:, -1:]
        # All rows searched at once: row i's sums are raised to lie between i and i + 1.
        now = chain[:, t]
        key = np.minimum(now + _even_within(now, m, rng), np.nextafter(now + 1.0, 0.0))
        flat = (rising + np.arange(m)[:, None]).ravel()
        chain[:, t + 1] = np.minimum(np.searchsorted(flat, key, side="right") - now * m, m - 1)
    return chain


def _even(count: int, rng: np.random.Generator) -> Array:
    """Uniforms in [0, 1), one in each of ``count`` equal parts, in random order."""
    return np.minimum((rng.permutation(count) + rng.random(count)) / count, np.nextafter(1.0, 0.0))


def _even_within(groups: NDArray[np.int64], m: int, rng: np.random.Generator) -> Array:
    """Uniforms, one in each of equal parts for the members of each of m groups, in random order."""
    order = rng.permutation(len(groups))
    order = order[np.argsort(groups[order], kind="stable")]
    sizes = np.bincount(groups, minlength=m)
    first = np.cumsum(sizes) - sizes
    sorted_groups = groups[order]
    rank = np.arange(len(groups)) - first[sorted_groups]
    uniforms = np.empty(len(groups))
    uniforms[order] = (rank + rng.random(len(groups))) / sizes[sorted_groups]
    return uniforms


def _particles(particles: Array) -> Array:
    found = np.ascontiguousarray(particles, dtype=np.float64)
    problems = []
    if found.ndim != 3 or len(found) < 2 or not found.shape[1] or not found.shape[2]:
        bound = "(T, m, d) with T >= 2, m >= 1, d >= 1"
        problems.append(Problem("particles", "wrong shape", None, str(found.shape), bound))
    if not np.isfinite(found).all():
        problems.append(Problem("particles", "must be finite"))
    if problems:
        raise InvalidInput("particles", problems)
    return found


def _check(
    particles: Array, couplings: Array, nodes: Array, seen: Array, temperature: float, paths: int
) -> None:
    problems = []
    steps, m = particles.shape[:2]
    if couplings.shape != (steps - 1, m, m):
        value, bound = str(couplings.shape), str((steps - 1, m, m))
        problems.append(Problem("couplings", "wrong shape", None, value, bound))
    elif not ((couplings >= 0).all() and (abs(couplings.sum(axis=2) - 1) <= 1e-6).all()):
        problems.append(Problem("couplings", "rows must be probabilities that sum to 1"))
    if nodes.shape != (steps,) or not (np.isfinite(nodes).all() and (np.diff(nodes) > 0).all()):
        problems.append(Problem("snapshot_times", "must ascend", None, None, f"{steps} times"))
    elif seen.ndim != 1 or not ((seen >= nodes[0]) & (seen <= nodes[-1])).all():
        bound = f"{nodes[0]:g} to {nodes[-1]:g}"
        problems.append(Problem("times", "a list of times between snapshots", None, None, bound))
    if not (temperature >= 0 and math.isfinite(temperature)):
        problems.append(Problem("temperature", "must be finite and at least 0"))
    if not paths >= 1:
        problems.append(Problem("paths", "must be at least 1"))
    if problems:
        raise InvalidInput("paths", problems)
