"""Carry a plan out on rows: every mechanism's release, part by part."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.gibbs import run as gibbs
from penstock.mechanisms.gibbs.plan import Plan as GibbsPlan
from penstock.mechanisms.parts import Array, Part, Progress
from penstock.mechanisms.plans import Plan
from penstock.mechanisms.tables import run as tables
from penstock.mechanisms.trajectory import run as trajectory
from penstock.mechanisms.trajectory.plan import Plan as TrajectoryPlan
from penstock.privacy.noise.sources import NoiseSource
from penstock.schema.encoding import Encoding

Bools = NDArray[np.bool_]


def release(
    plan: Plan,
    encoding: Encoding,
    rows: Array,
    present: Bools,
    noise: NoiseSource,
    *,
    progress: Progress | None = None,
    device: str = "cpu",
    threads: int = 1,
    public: tuple[Array, Bools] | None = None,
) -> Iterator[Part]:
    """The parts of one release, each as soon as it is made, so that none waits in memory.

    Synthetic tables have as many rows as were counted with noise, at most n·k.

    Relation: zero-out with public n; charged as ``plan.events``, whatever is read of them.

    Args:
        rows: (n, k, d), encoded; present: (n, k).
        public: rows and presence to fit on, for the guarantee ``public-flow``.
    """
    given = (encoding, rows, present, noise, progress, device)
    if isinstance(plan, GibbsPlan):
        yield from gibbs.run(plan, *given, threads)
    elif isinstance(plan, TrajectoryPlan):
        yield from trajectory.run(plan, *given, threads)
    else:
        for copy, table in tables.draw(plan, *given, public, threads):
            yield Part(copy, encoding.decode(table))
