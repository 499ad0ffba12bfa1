"""The ``maf`` mechanism: from encoded rows to synthetic copies, every look at a row charged.

============  ==========================================  ===========================
stage         what is released                            event
============  ==========================================  ===========================
margins       noisy histograms of every column            DiscreteGaussian
moments       noisy second moments of clipped scores      DiscreteGaussian
flow          noisy clipped gradients, step by step       Gaussian or PoissonGaussian
outcome       a noisy sum of clipped hazard scores, for   DiscreteGaussian
              tables with a duration and its event
injection     the rows' own clipped latents, if w > 0     Gaussian, per copy and row
============  ==========================================  ===========================

:mod:`~penstock.mechanisms.tables.plan` turns a study and the public n into noise multipliers on one
common scale; it sees no row. :mod:`~penstock.mechanisms.tables.fitting` has the stages up to the
flow and the outcome; :func:`run` draws the tables.

Guarantee classes (docs/privacy.md, "Guarantee classes"): ``formal``, all of the above;
``public-flow``, the stages see public rows only, without noise, and the injection alone is
charged; ``empirical``, no noise but the injection's: ε = ∞. Rows that are injected without formal
noise pass through the flow as it was fitted: to match what a flow draws from latents that are not
the rows' own would pull the rows apart.

A table has as many rows as its model was fitted on, *as released*: the margins' noisy count. So it
varies as a sample of that size does, however many persons of the frame have no rows. n·k rows are
drawn all the same, and the rest dropped, which is post-processing. ``public-flow`` has no such
count, since no stage saw the rows: its tables have n·k rows, null ones among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.parts import Progress
from penstock.mechanisms.released import EACH, name_copy, name_refit
from penstock.mechanisms.tables.fitting import Encoding, Model, fit, fit_many
from penstock.mechanisms.tables.latent_noise import inject, likely_present, thinned
from penstock.mechanisms.tables.plan import Plan
from penstock.privacy.measurements import Exchange
from penstock.privacy.noise.sources import NoiseSource, permutation

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.intp]

_ROWS_AT_ONCE = 1 << 16
_HELD = 1 << 24
"""Bound on the rows of all refits that are computed at once."""


@dataclass(frozen=True, slots=True)
class Release:
    """Encoded rows, in each table :func:`size` of its model, in a random order.

    Args:
        copies: drawn from the one model that was fitted on the rows.
        refits: one table each from models that were fitted, by the same private procedure, on
            the rows of a copy, the copies in turn: a parametric bootstrap, in which nothing but
            released rows is looked at, and which is therefore free (post-processing). About the
            copy's own estimate a refit's varies less than about the mean of all, so that as many
            refits tell more of the mechanism (``penstock.inference.refits``).
    """

    copies: list[Array]
    refits: list[Array]


def run(
    plan: Plan,
    encoding: Encoding,
    rows: Array,
    present: Bools,
    noise: NoiseSource,
    progress: Progress | None = None,
    device: str = "cpu",
    public: tuple[Array, Bools] | None = None,
    threads: int = 1,
) -> Release:
    """Fit, and draw the plan's copies and refits.

    Relation: zero-out with public n; charged as ``plan.events``.

    Args:
        rows: (n, k, d), encoded; present: (n, k). n and k are the plan's.
        noise: source of all noise, latents and orders; or the :class:`Exchange` by which sums are
            of many sites, of whose frame these rows are a part.
        public: rows and presence to fit on, for ``public-flow``.
        threads: on a CPU, for one fit or for as many refits at a time; they change no number.

    Raises:
        InvalidInput: shapes that are not the plan's, or public rows missing or not wanted.
    """
    given = (encoding, rows, present, noise, progress, device, public, threads)
    tables = [table for _, table in draw(plan, *given)]
    return Release(tables[: plan.copies], tables[plan.copies :])


def draw(
    plan: Plan,
    encoding: Encoding,
    rows: Array,
    present: Bools,
    noise: NoiseSource,
    progress: Progress | None = None,
    device: str = "cpu",
    public: tuple[Array, Bools] | None = None,
    threads: int = 1,
) -> Iterator[tuple[str, Array]]:
    """The tables of :func:`run` one by one, by name: the copies, then the refits."""
    _check_shapes(plan, encoding, rows, present, public, part=isinstance(noise, Exchange))
    seen = (rows, present) if public is None else public
    tick = _counter(plan.stages.body.steps * (1 + plan.refits), progress)
    model = fit(plan, encoding, *seen, noise, tick(), device, threads)
    if isinstance(noise, Exchange):  # no site has all rows, and tables ask for none of them
        rows, present = _lay_out_nobody(plan)
    latents = _latents(plan, model, rows)
    kept = []
    for index in range(plan.copies):
        table = _draw(plan, model, latents, present, noise)
        if index < plan.refits:  # later ones have no refit made from them
            kept.append(table)
        yield name_copy(index + 1), table
    refits = _refits(plan, encoding, model, kept, noise, tick, device, threads)
    for index, table in enumerate(refits):
        yield name_refit(index + 1), table


def _lay_out_nobody(plan: Plan) -> tuple[Array, Bools]:
    """The whole frame without anybody's rows."""
    shape = (plan.persons, plan.rows)
    return np.zeros((*shape, plan.d)), np.zeros(shape, dtype=np.bool_)


def _counter(total: int, progress: Progress | None) -> Callable[[], Progress | None]:
    """Adds up the steps of one call after the other, each of which counts from 1."""
    done = 0

    def next_call() -> Progress | None:
        before = done

        def report(step: int, _steps: int) -> None:
            nonlocal done
            done = max(done, before + step)
            if progress is not None:
                progress(done, total)

        return report

    return next_call


def _latents(plan: Plan, model: Model, rows: Array) -> Array:
    """Latents of the rows, (persons · rows, d); zeros where no injection will look at them."""
    flat = rows.reshape(plan.persons * plan.rows, plan.d)
    return np.zeros_like(flat) if plan.injection is None else _by_parts(model.to_latent, flat)


def size(plan: Plan, model: Model) -> int:
    """Rows of a table: those that the model was fitted on, as released; at most n·k.

    Exact where nothing is private (``empirical``); of a ``public-flow`` n·k, which is public.
    """
    most = plan.persons * plan.rows
    return most if plan.guarantee == "public-flow" else min(round(model.rows), most)


def _draw(plan: Plan, model: Model, latents: Array, present: Bools, noise: NoiseSource) -> Array:
    """One table in a random order: fresh rows (w = 0), or the rows' own latents with noise."""
    there = present.reshape(len(latents))
    z = inject(latents, there, plan.injection, noise)
    # All n·k of them, whatever the count: no time depends on it.
    values = _by_parts(model.to_values, z)
    return values[_kept(plan, model, z, there, noise)]


def _kept(plan: Plan, model: Model, z: Array, there: Bools, noise: NoiseSource) -> Indices:
    """Which rows leave, in a random order; not those of null records, as far as one can tell.

    From what is released alone: from the noisy latents and the noisy count. ``empirical`` tables
    have the rows that are there.
    """
    count, injection = size(plan, model), plan.injection
    if injection is None or count == len(z):
        return permutation(len(z), noise)[:count]
    if plan.guarantee == "empirical":
        return thinned(there.astype(np.float64), count, noise)
    likely = likely_present(z, count / len(z), injection.w, injection.radius)
    return thinned(likely, count, noise)


def _refits(
    plan: Plan,
    encoding: Encoding,
    model: Model,
    copies: Sequence[Array],
    noise: NoiseSource,
    tick: Callable[[], Progress | None],
    device: str,
    threads: int,
) -> Iterator[Array]:
    """Tables from models fitted on rows of ``copies``, in which no private row is looked at."""
    made = 0
    # A GPU computes many fits as one; on a CPU each thread has one, and memory holds no more.
    at_once = threads if device == "cpu" else max(1, _HELD // (plan.persons * plan.rows))
    while made < plan.refits:
        sources = [noise.child() for _ in range(min(at_once, plan.refits - made))]
        of = [copies[EACH.find_copy(made + i + 1, plan.copies) - 1] for i in range(len(sources))]
        drawn = [_rows_of(plan, encoding, *one) for one in zip(of, sources, strict=True)]
        models = [model] * len(drawn)
        if plan.guarantee != "public-flow":  # there the model is the same whatever the rows
            models = fit_many(plan, encoding, drawn, sources, tick(), device, threads, refits=True)
        for again, (rows, present), source in zip(models, drawn, sources, strict=True):
            latents = _latents(plan, again, rows)
            yield _draw(plan, again, latents, present, source)
        made += len(sources)


def _rows_of(
    plan: Plan, encoding: Encoding, copy: Array, noise: NoiseSource
) -> tuple[Array, Bools]:
    """Rows (persons, k, d) of a copy, as it is released: decoded, encoded again, in random places.

    All n·k places are computed, whatever the copy's count.
    """
    most = plan.persons * plan.rows
    places = permutation(most, noise)[: len(copy)]
    values, drawn = np.tile(copy[:1], (most, 1)), np.zeros(most, dtype=bool)
    values[places], drawn[places] = copy, True
    again, there = encoding.encode(encoding.decode(values), noise.generator())
    there &= drawn
    rows = np.where(there[:, None], again, 0.0)
    shape = (plan.persons, plan.rows)
    return rows.reshape(*shape, plan.d), there.reshape(shape)


def _by_parts(function: Callable[[Array], Array], x: Array) -> Array:
    parts = [function(x[at : at + _ROWS_AT_ONCE]) for at in range(0, len(x), _ROWS_AT_ONCE)]
    return np.concatenate(parts)


def _check_shapes(
    plan: Plan,
    encoding: Encoding,
    rows: Array,
    present: Bools,
    public: tuple[Array, Bools] | None,
    *,
    part: bool,
) -> None:
    # Of many sites' frame each has its part.
    persons = min(len(rows), plan.persons) if part else plan.persons
    shape = (persons, plan.rows, plan.d)
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
