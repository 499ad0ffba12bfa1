"""The ``trajectory`` mechanism where what persons' rows have in common is measured.

Persons are laid out by time point (:mod:`~penstock.mechanisms.trajectory.followed`), measured in
two releases, and drawn again (:mod:`~penstock.mechanisms.trajectory.dependence`). All that leaves
is of drawn persons: a table has the rows of as many persons as were counted with noise, each one's
visits one after the other in time; a particle is a person at each time point; and a path is a
person at evenly spaced times, as if there all the time until their follow-up ends, where the study
says by which column it does. Between two time points a person's numbers go evenly from one to the
other.

A refit is the same procedure, with fresh noise, on the persons of a copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from penstock.mechanisms.copula.grids import make_grid
from penstock.mechanisms.frames import check_shapes
from penstock.mechanisms.parts import Part, Progress
from penstock.mechanisms.released import EACH, PARTICLES, PATHS, name_copy, name_refit
from penstock.mechanisms.sobol import draw_sobol
from penstock.mechanisms.trajectory.coordinates import Places
from penstock.mechanisms.trajectory.dependence import Dependence, fit
from penstock.mechanisms.trajectory.followed import Followed, follow
from penstock.mechanisms.trajectory.histories import order_persons
from penstock.mechanisms.trajectory.least_motion import walk_between
from penstock.mechanisms.trajectory.repeats import RepeatsPlan
from penstock.privacy.noise.sources import NoiseSource, permutation
from penstock.schema import NUMBER_KINDS, Coded, Schema
from penstock.schema.encoding import Encoding

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_AT_ONCE = 1 << 19
"""Numbers of persons that are drawn together."""

_SPARE, _LEAST_SPARE = 0.1, 64
"""How many persons more are drawn than the frame holds: tables of one model have one length."""


_FEWEST, _LEAST_SPREAD = 5, 0.1
"""Particles who are followed, of whom a mean and a spread are taken; and the least of that."""


def draw(
    plan: RepeatsPlan,
    encoding: Encoding,
    rows: Array,
    present: Bools,
    noise: NoiseSource,
    progress: Progress | None = None,
) -> Iterator[Part]:
    """Copies, particles, paths and refits, each as soon as it is made.

    Relation: zero-out with public n; charged as ``plan.events``. The fit is complete before the
    first part is given.

    Args:
        rows: (n, k, d), encoded; present: (n, k). n and k are the plan's.

    Raises:
        InvalidInput: shapes that are not the plan's.
    """
    check_shapes(plan, encoding, rows, present, noise)
    schema = encoding.schema
    places = make_places(plan, schema)
    model = fit(plan, places, lay_out(plan, encoding, rows, present), noise)
    _tell(progress, plan, 0)
    kept = []
    for copy in range(1, plan.copies + 1):
        persons = _draw_persons(plan, model, noise.generator())
        if copy <= plan.refits:  # later ones have no refit made from them
            kept.append(persons)
        yield Part(name_copy(copy), _table(plan, schema, model, persons, noise.generator()))
    particles = _particles(plan, schema, model, noise.generator())
    yield particles
    if plan.coupling is None:
        yield from _paths(plan, schema, model, noise.generator())
    else:
        yield from walk_between(plan, encoding, particles.columns, noise.generator())
    for refit in range(1, plan.refits + 1):
        source = noise.child()
        of = kept[EACH.find_copy(refit, plan.copies) - 1]
        again = fit(plan, places, _place(plan, model, of, source), source)
        persons = _draw_persons(plan, again, source.generator())
        yield Part(name_refit(refit), _table(plan, schema, again, persons, source.generator()))
        _tell(progress, plan, refit)


def make_places(plan: RepeatsPlan, schema: Schema) -> Places:
    """Where the numbers of a person's vector are."""
    constants, varying = (
        [make_grid(schema[name]) for name in names] for names in (plan.constants, plan.varying)
    )
    return Places(constants, varying, plan.times.count, plan.follow_up, plan.once)


def lay_out(plan: RepeatsPlan, encoding: Encoding, rows: Array, present: Bools) -> Followed:
    """Rows (n, k, d) as persons by time point."""
    n, k, d = rows.shape
    safe = np.where(present[..., None], rows, 0.0)
    coded = {
        name: values.reshape(n, k)
        for name, values in encoding.decode(safe.reshape(n * k, d)).items()
    }
    bins = plan.times.bins(coded[plan.times.column.name])
    once, read = plan.constants, plan.follow_up
    if read is not None:
        once = (*once, read.duration.name, read.event)
    followed = follow(coded, present, bins, plan.times.count, plan.varying, once)
    return followed if read is None else read.cut(followed)


def _draw_persons(plan: RepeatsPlan, model: Dependence, rng: np.random.Generator) -> Followed:
    """Persons of the model, so many more than the frame holds."""
    count = plan.persons + max(math.ceil(_SPARE * plan.persons), _LEAST_SPARE)
    each = max(1, _AT_ONCE // model.latents)
    parts = []
    for first in range(0, count, each):
        few = min(each, count - first)
        latents, uniforms = (
            rng.standard_normal((few, model.latents)),
            rng.random((few, plan.times.count)),
        )
        parts.append(model.draw(latents, uniforms))
    return _joined(parts)


def _joined(parts: list[Followed]) -> Followed:
    first = parts[0]
    return Followed(
        np.concatenate([part.there for part in parts]),
        {name: np.concatenate([part.varying[name] for part in parts]) for name in first.varying},
        {
            name: np.concatenate([part.constants[name] for part in parts])
            for name in first.constants
        },
    )


def size(plan: RepeatsPlan, model: Dependence) -> int:
    """Rows of a released table, from 1 to n·k."""
    return min(max(round(model.rows), 1), plan.persons * plan.rows)


def _table(
    plan: RepeatsPlan,
    schema: Schema,
    model: Dependence,
    persons: Followed,
    rng: np.random.Generator,
) -> Coded:
    """The visits of the first persons, one person after the other, as many as were counted; those
    who begin late first, so that persons can be told apart
    (:mod:`penstock.mechanisms.trajectory.histories`)."""
    who, when = np.nonzero(persons.there)
    # Where persons of whom each was drawn have fewer visits than were counted, the first come
    # again, as others: a table's length is the model's.
    turn, chosen = np.divmod(np.arange(size(plan, model)), len(who))
    order = order_persons(turn * len(persons.there) + who[chosen], when[chosen])
    who, when = who[chosen][order], when[chosen][order]
    found = {name: values[who, when] for name, values in persons.varying.items()}
    found |= {name: values[who] for name, values in persons.constants.items()}
    ends = _find_ends(plan, found)
    found[plan.times.column.name] = plan.times.within(when.astype(np.int64), rng, ends)
    return _snapped(schema, found)


def _find_ends(plan: RepeatsPlan, columns: Mapping[str, Array]) -> Array | None:
    """When follow-up ends, where visits are on its clock."""
    read = plan.follow_up
    return columns[read.duration.name] if read is not None and read.same else None


def _snapped(schema: Schema, found: Mapping[str, Array]) -> Coded:
    return {column.name: column.snap(found[column.name]) for column in schema.columns}


def _place(plan: RepeatsPlan, model: Dependence, persons: Followed, noise: NoiseSource) -> Followed:
    """As many of a copy's persons as were counted, in random places of a frame like the site's."""
    n, k = plan.persons, plan.rows
    kept = min(max(round(model.persons), 1), n)
    order = permutation(n, noise)
    there = persons.there[:n] & (np.arange(n) < kept)[:, None]
    # Nobody has more visits than a row each.
    there &= np.cumsum(there, axis=1) <= k
    return Followed(
        there[order],
        {name: values[:n][order] for name, values in persons.varying.items()},
        {name: values[:n][order] for name, values in persons.constants.items()},
    )


def _particles(
    plan: RepeatsPlan, schema: Schema, model: Dependence, rng: np.random.Generator
) -> Part:
    """Persons at each time point, evenly spread; the same ones at all."""
    power = math.ceil(math.log2(plan.particles))
    points = draw_sobol(model.latents, power, rng)[: plan.particles]
    joined = model.join(ndtri(np.clip(points, 1e-9, 1 - 1e-9)))
    fixed = model.draw_fixed(joined)
    last = None if plan.follow_up is None else plan.follow_up.read(fixed).point
    each = []
    for t in range(plan.times.count):
        # Ranks of all alike: what is seen at a time point is those who are there.
        followed = np.ones(len(joined), dtype=np.bool_) if last is None else last >= t
        seen = model.draw_at(_standardised(joined, followed), t)
        each.append(fixed | {name: np.where(followed, x, np.nan) for name, x in seen.items()})
    found = {name: np.concatenate([one[name] for one in each]) for name in each[0]}
    times = plan.times.at(plan.times.positions)
    found[plan.times.column.name] = np.repeat(times, plan.particles)
    return Part(PARTICLES, _snapped(schema, found))


def _paths(
    plan: RepeatsPlan, schema: Schema, model: Dependence, rng: np.random.Generator
) -> Iterator[Part]:
    """Persons at evenly spaced times, as many at a time as fit into memory."""
    at_once = max(1, _AT_ONCE // max(model.latents, plan.path_times * len(schema.columns)))
    times = plan.times.at(np.linspace(0.0, 1.0, plan.path_times))
    for first in range(0, plan.paths, at_once):
        few = min(at_once, plan.paths - first)
        joined = model.join(rng.standard_normal((few, model.latents)))
        found = {name: np.empty((few, plan.path_times)) for name in plan.varying}
        walk = partial(_between, plan, schema, model, (joined - model.middle) / model.spread)
        for step, position in enumerate(np.linspace(0.0, plan.times.count - 1, plan.path_times)):
            for name, values in walk(float(position)).items():
                found[name][:, step] = values
        flat = {name: values.ravel() for name, values in found.items()}
        fixed = model.draw_fixed(joined)
        flat |= {name: np.repeat(values, plan.path_times) for name, values in fixed.items()}
        _end_paths(plan, flat)
        flat[plan.times.column.name] = np.tile(times, few)
        yield Part(PATHS, _snapped(schema, flat))


def _between(
    plan: RepeatsPlan, schema: Schema, model: Dependence, ranked: Array, position: float
) -> dict[str, Array]:
    """Coded columns (N,) of persons at a time between two time points, or at one.

    Numbers lie on the line between what both say of a person; levels, and what is missing, are
    those of the nearer one.
    """
    low = min(int(position), plan.times.count - 2)
    share = position - low
    ends = [model.draw_at(ranked, t) for t in (low, low + 1)]
    nearer = ends[round(share)]
    found = {}
    for name, values in nearer.items():
        line = (1 - share) * ends[0][name] + share * ends[1][name]
        even = schema[name].kind in NUMBER_KINDS and 0 < share < 1
        known = ~np.isnan(line) & ~np.isnan(values)
        found[name] = np.where(known, line, values) if even else values
    return found


def _end_paths(plan: RepeatsPlan, flat: dict[str, Array]) -> None:
    """Nothing is known of what varies after a path's end. The rows stay: their number is public."""
    read = plan.follow_up
    if read is None:
        return
    clock = read.clock(plan.times, np.linspace(0.0, 1.0, plan.path_times))
    ends = flat[read.duration.name]
    gone = np.tile(clock, len(ends) // plan.path_times) > ends
    for name in plan.varying:
        flat[name] = np.where(gone, np.nan, flat[name])


def _standardised(joined: Array, followed: Bools) -> Array:
    """Numbers of mean 0 and spread 1 among those who are followed; where all are, as they are."""
    if followed.all() or np.count_nonzero(followed) < _FEWEST:
        return joined
    few = joined[followed]
    return np.asarray((joined - few.mean(axis=0)) / np.maximum(few.std(axis=0), _LEAST_SPREAD))


def _tell(progress: Progress | None, plan: RepeatsPlan, fits: int) -> None:
    """So many fits are made beside that of the copies."""
    if progress is not None:
        progress(1 + fits, 1 + plan.refits)
