r"""How much memory a release takes at most, from public numbers alone.

.. math:: M = P + S + R + T

==  ============================================================================================
P   the program: interpreter, libraries, this package; more where torch is loaded
S   the certified rows as they are laid out: K·n rows of C columns, k·n of d coordinates
R   the released rows of one table at a time: k·n rows of C columns, decoded and as Arrow
T   the mechanism's own work; times as many fits as run at once where it says so
==  ============================================================================================

n: public number of persons; k, K: rows per person of the study and of the site's dictionary; C:
columns; d: coordinates of the encoding. Refits and the steps of ``maf``, ``trajectory`` and
``gibbs`` are not in it: one after the other takes no more than one. Copies are kept for the refits
that are made from their rows.

All of it bounds the peak of the whole process, as resident memory and as what a limit on its data
(``RLIMIT_DATA``) counts; on a CPU. It is not what is taken: a quarter to a half of it, and more for
``gibbs``, is room for what an allocator leaves unused. ``tests/integration/test_memory.py`` holds
it against real workers that are given no more. Nothing here depends on a row, so that a refusal
tells of none.

The process that attacks a release for a steward's eyes (``preview --attack``) takes memory of its
own, :func:`attack_memory`: one fit at a time, no released rows, and the scores of those who were,
or were not, in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from penstock.mechanisms import plans
from penstock.mechanisms.flow.architecture import Architecture
from penstock.mechanisms.gibbs.plan import Plan as GibbsPlan
from penstock.mechanisms.sliced_wasserstein.body import Sliced
from penstock.mechanisms.tables.plan import Plan as TablePlan
from penstock.mechanisms.tables.stages import Autoregressive
from penstock.mechanisms.trajectory.plan import Plan as TrajectoryPlan
from penstock.schema import Schema

MB = 10**6
GB = 2**30
"""As ``memory_gb`` counts."""

PROGRAM, TORCH = 280 * MB, 160 * MB
"""What a worker holds before it has seen a row; and what torch adds."""

PER_THREAD = 50 * MB
"""Stacks, buffers of matrix products, and what a thread's own arena leaves unused."""

NUMBER = 8
"""Bytes."""

_SAMPLE = 1 << 14
"""Quasi-random rows at which a table's matches look."""

_CELLS, _REFERENCE, _LEVELS, _DEGREES = 256, 1 << 13, 513, 13
"""Of the sliced flow: cells of a step's grid, reference particles, points and kinds of targets."""

_SKETCHED, _PULLED, _SUMMED = 1 << 18, 1 << 19, 1 << 19
"""Numbers that are computed at once: of a sketch, of particles' pulls, of exact sums."""

_SCORED, _SCORES = 8, 20 * MB
"""Of an attack: tables of rows and latents that are held besides a fit's, and what does not grow
with them: distances and likelihoods of a part at a time, and the libraries that compute them."""

_BIG = 300
"""Bytes of a number that noise is added to exactly: Python's own whole numbers and fractions."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes, each at most.

    Attributes:
        program, rows, released, work: P, S, R and T of the formula above.
    """

    program: int
    rows: int
    released: int
    work: int

    @property
    def total(self) -> int:
        """M, in bytes."""
        return self.program + self.rows + self.released + self.work

    @property
    def gigabytes(self) -> float:
        """M as ``memory_gb`` counts it."""
        return self.total / GB


def memory(
    plan: plans.Plan, schema: Schema, dictionary: Schema | None = None, threads: int = 1
) -> Memory:
    """What a worker takes at most that carries this plan out on a CPU.

    Args:
        schema: the study's; dictionary: the site's, the same where none is given.
        threads: that the site lets a run have; as many fits are held at once.
    """
    columns, places = len(schema.columns), plan.persons * plan.rows
    d = _coordinates(plan, schema)
    released = places * (columns * 4 + 2 * d)
    if isinstance(plan, GibbsPlan):
        work, program = _of_answer(plan), PROGRAM
        released = places * columns * 2
    elif isinstance(plan, TrajectoryPlan):
        work, program = _of_paths(plan) + _of_copies(plan, d), PROGRAM + TORCH
        released += 2 * min(plan.paths * plan.path_times * d, 1 << 20)
        released += 14 * max(plan.path_times * d, 1 << 17)
    else:
        work, program = _of_tables(plan, threads) + _of_copies(plan, d), PROGRAM
    return Memory(
        program=program + _of_threads(threads),
        rows=_of_rows(plan, schema, dictionary or schema, d),
        released=NUMBER * released,
        work=work,
    )


def _of_threads(threads: int) -> int:
    """Those of one and a half threads at least.

    With one thread, a run in five took up to 4 % more than was planned without this; why is not
    known. An arena of a pool's thread beside the main one's is suspected.
    """
    return PER_THREAD * max(2 * threads, 3) // 2


def attack_memory(
    plan: TablePlan, schema: Schema, dictionary: Schema | None = None, threads: int = 1
) -> Memory:
    """What the process takes at most that attacks such a release, at however many w.

    Args: as of :func:`memory`; only one fit is held at once, whatever ``threads`` is.
    """
    d = plan.d
    scored = NUMBER * _SCORED * plan.persons * plan.rows * d + _SCORES
    return Memory(
        program=PROGRAM + _of_threads(threads),
        rows=_of_rows(plan, schema, dictionary or schema, d),
        released=0,
        work=_of_tables(plan, 1) + scored,
    )


def _of_rows(plan: plans.Plan, schema: Schema, dictionary: Schema, d: int) -> int:
    """The certified rows by the site's dictionary, and laid out by the study's schema."""
    held = plan.persons * max(dictionary.max_rows_per_person, plan.rows)
    stored = 3 * held * (len(dictionary.columns) + 1)
    places = plan.persons * plan.rows
    return NUMBER * (stored + places * (len(schema.columns) + 5 * d + 4))


def _of_copies(plan: TablePlan | TrajectoryPlan, d: int) -> int:
    """Copies from whose rows refits are made, the first ones."""
    return NUMBER * min(plan.copies, plan.refits) * plan.persons * plan.rows * d


def _coordinates(plan: plans.Plan, schema: Schema) -> int:
    if isinstance(plan, TablePlan):
        return plan.d
    from penstock.schema.encoding import Encoding

    return Encoding(schema).d


def _of_tables(plan: TablePlan, threads: int) -> int:
    """Fits that run at once, each with its rows, its match and its body, and one model besides."""
    places, d = plan.persons * plan.rows, plan.d
    body = plan.stages.body
    fit = NUMBER * (11 * places * d + 24 * _SAMPLE * d)
    if isinstance(body, Sliced):
        kept, fitted = _of_sliced(body, places)
    elif isinstance(body, Autoregressive):
        weights = _weights(body.arch)
        kept, fitted = NUMBER * 4 * weights, NUMBER * 24 * weights
    else:
        raise TypeError(f"no memory is known of {type(body).__name__}")
    at_once = max(1, min(threads, plan.refits))
    return at_once * (fit + fitted + kept) + kept


def _weights(arch: Architecture) -> int:
    """Parameters of a flow, masked ones too."""
    widths = (arch.d, *arch.hidden)
    inner = sum((below + 1) * own for below, own in pairwise(widths))
    return arch.flows * (inner + 2 * arch.d * (arch.hidden[-1] + arch.d + 1))


def _of_sliced(body: Sliced, places: int) -> tuple[int, int]:
    """Of a flow: what stays of it, and what its fit takes besides."""
    d = body.d
    directions, bins = body.bases * d, body.bins
    at_a_step = min(body.schedule.bases * d, directions)
    kept = 4 * body.steps * at_a_step * (2 * _CELLS + 2 * d + 32)
    reference = 4 * _REFERENCE * (4 * d + 2 * at_a_step) + NUMBER * 8 * at_a_step * _CELLS
    if body.variant == "sketch":
        counted = 5 * NUMBER * max(_SKETCHED, directions) + _BIG * directions * bins
        gain = NUMBER * 3 * _DEGREES * bins * (bins + _LEVELS)
        return kept, reference + counted + gain + 6 * NUMBER * directions * _LEVELS
    rows = places if body.variant == "presampled" else body.batch
    return kept, reference + 8 * NUMBER * directions * rows


def _of_paths(plan: TrajectoryPlan) -> int:
    """The rows in the unit space, and the largest of start, dynamics, couplings and paths."""
    places, d, m = plan.persons * plan.rows, len(plan.space), plan.particles
    times, cells = len(plan.times.used), plan.times.count * plan.start.modes
    rows = NUMBER * places * (8 * d + 6 + plan.rows + 2 * plan.start.modes)
    start = _BIG * cells * (d + 1) ** 2
    block = max(_PULLED, 16 * plan.rows * m * d)
    pulls = 4 * 3 * block + NUMBER * 8 * max(1 << 17, 16 * plan.rows * m)
    particles = NUMBER * 12 * times * m * d
    couplings = NUMBER * 14 * (times - 1) * m * m
    return rows + start + pulls + particles + couplings


def _of_answer(plan: GibbsPlan) -> int:
    """A design, and sums of triangles of it, as many numbers at once as are summed."""
    places, p = plan.persons * plan.rows, plan.dimension
    design = NUMBER * places * (4 * p + 4 * plan.asked.pieces + 8)
    sizes = (plan.summary_size, plan.curvature_size, plan.information_size)
    at_once = min(places * max(sizes), max(_SUMMED, max(sizes)))
    return design + 9 * NUMBER * at_once + _BIG * max(sizes)
