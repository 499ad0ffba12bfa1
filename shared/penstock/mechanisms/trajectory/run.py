"""The ``trajectory`` mechanism: from encoded rows to particles, paths and tables of snapshots.

=========  ==============================================  ===========================
stage      what is released                                event
=========  ==============================================  ===========================
start      noisy moments of each time point, or cluster    DiscreteGaussian
particles  noisy clipped data-fit sums, step by step       Gaussian or PoissonGaussian;
                                                           of many sites DiscreteGaussian
=========  ==============================================  ===========================

Everything else follows from these two and costs nothing: the couplings are those of the particles;
paths run through them (:mod:`penstock.mechanisms.trajectory.paths`); a snapshot table draws time
points by their released counts, then a particle of each, with noise that gives the table the
released covariances.

Of many sites start and steps are the rounds in which these add up sums. A run that begins anew in
each round moves the particles by the sums that are known, without a look at rows, and asks rows for
the next one: replaying costs as much as the updates do. Where particles begin and how they diffuse
is drawn by the sums (:func:`~penstock.privacy.measurements.agree`), so that all sites and whoever
concludes have the same; machines' floats may differ by rounding, which no site compares.

A person's rows are points of the *unit space*: the encoded columns other than the time, halved and
centred in the public box. They may all be of one time point, or of as many as there are rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from penstock.mechanisms.frames import check_shapes
from penstock.mechanisms.parts import Part, Progress
from penstock.mechanisms.released import EACH, PARTICLES, PATHS, name_copy, name_refit
from penstock.mechanisms.sobol import draw_sobol
from penstock.mechanisms.trajectory.drift import Rows
from penstock.mechanisms.trajectory.dynamics import descend
from penstock.mechanisms.trajectory.particle_tables import Model, table, walk
from penstock.mechanisms.trajectory.paths import couple
from penstock.mechanisms.trajectory.plan import Plan
from penstock.mechanisms.trajectory.start import Marginals, released
from penstock.mechanisms.trajectory.unit_space import from_unit, hold_constants, to_unit
from penstock.privacy.measurements import agree
from penstock.privacy.noise.sources import NoiseSource
from penstock.schema.encoding import Encoding

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]

_PUBLIC_SPREAD = 0.2
"""Of a public start, in half widths of the box."""

_LEAST_OWN = 1e-8
"""Of a variance of particles: all of them may be in one place."""

_PATHS_AT_ONCE, _DECODED_AT_ONCE = 1 << 20, 1 << 17
"""Numbers of paths that are drawn together, evenly from the particles; and that are decoded."""


def run(
    plan: Plan,
    encoding: Encoding,
    rows: Array,
    present: Bools,
    noise: NoiseSource,
    progress: Progress | None = None,
    device: str = "cpu",
    threads: int = 1,
    dtype: str = "float32",
) -> Iterator[Part]:
    """Copies, particles, paths and refits, each as soon as it is made.

    Relation: zero-out with public n; charged as ``plan.events``. The fit is complete before the
    first part is given.

    Args:
        rows: (n, k, d), encoded; present: (n, k). n and k are the plan's.
        noise: source of all noise, starts and orders.
        progress: called with the steps done, of the run and its refits.
        device, dtype: of the dynamics; ``float64`` for exactness rather than speed.
        threads: of the dynamics on a CPU; they change no number but by rounding.

    Raises:
        InvalidInput: shapes that are not the plan's.
    """
    check_shapes(plan, encoding, rows, present, noise)
    tick = _counter(plan.dynamics.steps * (1 + plan.refits), progress)
    where = (device, dtype, threads)
    model = fit(plan, encoding, rows, present, noise, tick, *where)
    # The first of a table's rows are released: all are kept, for no time depends on how many.
    kept = []
    for copy in range(1, plan.copies + 1):
        drawn = table(plan, encoding, model, noise)
        if copy <= plan.refits:  # later ones have no refit made from them
            kept.append(drawn)
        yield _snapshots(plan, model, drawn, name_copy(copy))
    yield _particles(plan, encoding, model)
    yield from _paths(plan, encoding, model, noise)
    for refit in range(1, plan.refits + 1):
        source = noise.child()
        made_of = kept[EACH.find_copy(refit, plan.copies) - 1]
        pseudo, there = _rows_of(plan, encoding, model, made_of, source)
        again = fit(plan, encoding, pseudo, there, source, tick, *where)
        drawn = table(plan, encoding, again, source)
        yield _snapshots(plan, again, drawn, name_refit(refit))


def _snapshots(plan: Plan, model: Model, columns: Mapping[str, Array], name: str) -> Part:
    """A table's first rows, as many as the model was fitted on, as released."""
    count = size(plan, model)
    return Part(name, {column: values[:count] for column, values in columns.items()})


def size(plan: Plan, model: Model) -> int:
    """Rows of a released table, from 1 to n·k."""
    return min(max(round(model.rows), 1), plan.persons * plan.rows)


def fit(
    plan: Plan,
    encoding: Encoding,
    rows: Array,
    present: Bools,
    noise: NoiseSource,
    tick: Callable[[], None] | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int = 1,
) -> Model:
    """The private part: start and dynamics, charged as ``plan.events``."""
    import torch

    z, bins, there = unit_rows(plan, encoding, rows, present)
    box = half_widths(plan, encoding)
    found = begin(plan, z, bins, there, box, noise)
    used = np.asarray(plan.times.used)
    here = replace(
        found,
        counts=found.counts[used],
        means=found.means[used],
        covariances=found.covariances[used],
    )
    public = agree(noise)
    particles = draw(here, plan.particles, box, public.generator())
    mean, covariance = _whole_moments(here)
    spread = np.sqrt(np.trace(covariance, axis1=1, axis2=2) / len(box))
    place = np.full(plan.times.count, -1)
    place[used] = np.arange(len(used))
    if device == "cpu":
        torch.set_num_threads(threads)
    data = Rows(z, place[bins], there, len(used), device, dtype)
    moved = descend(
        plan.dynamics,
        data,
        particles,
        spread,
        here.counts.sum(axis=1),
        plan.times.positions,
        box,
        noise,
        public,
        tick,
        None if plan.start.sigma is None else (mean, covariance),
    )
    reg = plan.dynamics.temperature * np.diff(plan.times.positions)
    shares = _shares(found)
    if plan.start.sigma is None:
        # Nothing is known of the covariances; in theory the fit's own kernel is what is missing.
        widths = (plan.dynamics.bandwidth * spread) ** 2
        sources, kernels = moved, widths[:, None, None] * np.eye(len(box))
    else:
        sources, kernels = _match(moved, covariance)
    return Model(moved, shares, found.rows, sources, kernels, couple(moved, reg, plan.exact))


def unit_rows(
    plan: Plan, encoding: Encoding, rows: Array, present: Bools
) -> tuple[Array, Whole, Bools]:
    """Points z (n, k, d) of the unit space, their time points and presence, (n, k)."""
    n, k, _ = rows.shape
    there = present & np.isfinite(rows).all(axis=2)
    safe = np.where(there[..., None], rows, 0.0)
    times = encoding.decode(safe.reshape(n * k, -1))[plan.times.column.name]
    z = to_unit(encoding, plan.space, safe)
    return np.where(there[..., None], z, 0.0), plan.times.bins(times).reshape(n, k), there


def half_widths(plan: Plan, encoding: Encoding) -> Array:
    """(d,) of the unit space's box."""
    at = list(plan.space)
    widths: Array = (encoding.high[at] - encoding.low[at]) / 4
    return widths


def begin(
    plan: Plan, z: Array, bins: Whole, there: Bools, box: Array, noise: NoiseSource
) -> Marginals:
    """What the start releases; of a public start, what is public."""
    if plan.start.sigma is not None:
        return released(plan.start, z, bins, there, noise)
    count, d = plan.times.count, len(box)
    rows = float(plan.persons * plan.rows)
    even = np.full((count, 1), rows / count)
    covariance = np.tile(np.diag((_PUBLIC_SPREAD * box) ** 2), (count, 1, 1, 1))
    return Marginals(even, np.zeros((count, 1, d)), covariance, 0.0, rows)


def draw(found: Marginals, m: int, box: Array, rng: np.random.Generator) -> Array:
    """(T, m, d) particles of the mixtures, evenly spread: no more uneven than they must be.

    Latents are the same quasi-random ones at every time point, so that particles begin on paths.
    """
    count, _, d = found.means.shape
    points = draw_sobol(d, math.ceil(math.log2(m)), rng)[:m]
    latents = ndtri(np.clip(points, 1e-6, 1 - 1e-6))
    values, vectors = np.linalg.eigh(found.covariances)
    # The symmetric root: latents keep their directions from one time point to the next.
    roots = (vectors * np.sqrt(values)[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    particles = np.empty((count, m, d))
    for t in range(count):
        mode = _allot(found.counts[t] + found.count_sd, m)
        particles[t] = found.means[t, mode] + np.einsum("mij,mj->mi", roots[t, mode], latents)
    return np.clip(particles, -box, box)


def _allot(weights: Array, m: int) -> Whole:
    """(m,): which mode each particle begins in, in proportion and in turn."""
    total = float(weights.sum())
    shares = weights / total if total > 0 else np.full(len(weights), 1 / len(weights))
    edges = np.cumsum(shares)
    # In a scattered order: the latents' first ones must not all go to the first mode.
    places = (np.arange(m) * 0.6180339887498949 + 0.5 / m) % 1.0
    rank = np.argsort(np.argsort(places))
    return np.minimum(np.searchsorted(edges, (rank + 0.5) / m), len(weights) - 1)


def _whole_moments(found: Marginals) -> tuple[Array, Array]:
    """Means (T, d) and covariances (T, d, d) of each time point, all its clusters together."""
    weights = found.counts + max(found.count_sd, 1e-9)
    weights = (weights / weights.sum(axis=1, keepdims=True))[..., None]
    mean = (weights * found.means).sum(axis=1)
    apart = found.means - mean[:, None]
    spread = found.covariances + apart[..., :, None] * apart[..., None, :]
    covariance: Array = (weights[..., None] * spread).sum(axis=1)
    return mean, covariance


def _shares(found: Marginals) -> Array:
    """(T,) by released counts; one that is below its noise's sd counts as none."""
    counts = found.counts.sum(axis=1)
    counts = np.where(counts > found.count_sd, counts, 0.0)
    total = float(counts.sum())
    even = np.full(len(counts), 1 / len(counts))
    return counts / total if total > 0 else even


def _match(particles: Array, covariances: Array) -> tuple[Array, Array]:
    """Particles (T, m, d) drawn together where they spread further than was released, as noise in
    the steps makes them in columns that are narrow; and kernels (T, d, d), what they lack of the
    released covariances."""
    mean = particles.mean(axis=1, keepdims=True)
    apart = particles - mean
    own = np.einsum("tmi,tmj->tij", apart, apart) / particles.shape[1]
    values, vectors = np.linalg.eigh(own)
    size = np.sqrt(np.maximum(values, _LEAST_OWN))[:, None, :]
    root = (vectors * size) @ np.swapaxes(vectors, 1, 2)
    inverse = (vectors / size) @ np.swapaxes(vectors, 1, 2)
    ratios, axes = np.linalg.eigh(inverse @ covariances @ inverse)
    along = root @ axes
    drawn = (axes * np.sqrt(np.clip(ratios, 0.0, 1.0))[:, None, :]) @ np.swapaxes(axes, 1, 2)
    less = np.einsum("tij,tmj->tmi", root @ drawn @ inverse, apart)
    kernels = (along * np.maximum(ratios - 1, 0.0)[:, None, :]) @ np.swapaxes(along, 1, 2)
    return mean + less, np.asarray(kernels)


def _particles(plan: Plan, encoding: Encoding, model: Model) -> Part:
    count, m, d = model.particles.shape
    times = np.repeat(plan.times.at(plan.times.positions), m)
    columns = from_unit(
        encoding, plan.space, model.particles.reshape(count * m, d), plan.times.column, times
    )
    return Part(PARTICLES, columns)


def _paths(plan: Plan, encoding: Encoding, model: Model, noise: NoiseSource) -> Iterator[Part]:
    """The paths, as many at a time as fit into memory."""
    positions = np.linspace(0.0, 1.0, plan.path_times)
    rng, times = noise.generator(), plan.times.at(positions)
    at_once = max(1, _PATHS_AT_ONCE // (plan.path_times * len(plan.space)))
    for first in range(0, plan.paths, at_once):
        size = min(at_once, plan.paths - first)
        z = walk(plan, model, positions, size, rng)
        few = max(1, _DECODED_AT_ONCE // (plan.path_times * len(plan.space)))
        for at in range(0, size, few):
            part = z[at : at + few]
            columns = from_unit(
                encoding,
                plan.space,
                part.reshape(-1, len(plan.space)),
                plan.times.column,
                np.tile(times, len(part)),
            )
            yield Part(PATHS, hold_constants(encoding, columns, plan.path_times))


def _rows_of(
    plan: Plan,
    encoding: Encoding,
    model: Model,
    drawn: Mapping[str, Array],
    noise: NoiseSource,
) -> tuple[Array, Bools]:
    """Rows (persons, k, d) of a copy, ``drawn`` from the model: those that are released.

    A person's rows are at different times, as far as there are any: visits are.
    """
    again, there = encoding.encode(drawn, noise.generator())
    there[size(plan, model) :] = False
    order = np.argsort(drawn[plan.times.column.name], kind="stable")
    order = order.reshape(plan.rows, plan.persons).T
    return np.where(there[order][..., None], again[order], 0.0), there[order]


def _counter(total: int, progress: Progress | None) -> Callable[[], None]:
    """Adds up the steps of all fits."""
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    return tick
