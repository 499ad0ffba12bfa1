r"""How much memory a release takes at most, from public numbers alone.

.. math:: M = P + S + R + T

==  ============================================================================================
P   the program: interpreter, libraries, this package; more where torch is loaded
S   the certified rows as they are laid out: K·n rows of C columns, k·n of d coordinates
R   the released rows of one table at a time: k·n rows of C columns, decoded and as Arrow
T   the mechanism's own work; times as many fits as run at once where it says so
==  ============================================================================================

n: public number of persons; k, K: rows per person of the study and of the site's dictionary; C:
columns; d: coordinates of the encoding. Refits, and steps where one after the other takes no more
than one, are not in it. Copies are kept for the refits
that are made from their rows.

Each mechanism says its own R and T (:meth:`penstock.mechanisms.protocol.Mechanism.memory`); here is
what all have in common.

All of it bounds the peak of the whole process, as resident memory and as what a limit on its data
(``RLIMIT_DATA``) counts; on a CPU. It is not what is taken: a quarter to three fifths of it, and
more for an answer, is room for what an allocator leaves unused.
``tests/integration/test_memory.py`` holds it against real workers that are given no more. Nothing
here depends on a row, so that a refusal tells of none.

The process that attacks a release for a steward's eyes (``preview --attack``) takes memory of its
own (:meth:`penstock.mechanisms.protocol.Mechanism.attack_memory`): one fit at a time, no released
rows, and the scores of those who were, or were not, in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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

BIG = 300
"""Bytes of a number that noise is added to exactly: Python's own whole numbers and fractions."""


class Planned(Protocol):
    """What of a plan decides on the room for rows and copies."""

    @property
    def persons(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def copies(self) -> int: ...

    @property
    def refits(self) -> int: ...


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


def threads_memory(threads: int) -> int:
    """Of the threads of a run: of one and a half of them at least.

    With one thread, a run in five took up to 4 % more than was planned without this; why is not
    known. An arena of a pool's thread beside the main one's is suspected.
    """
    return PER_THREAD * max(2 * threads, 3) // 2


def rows_memory(plan: Planned, schema: Schema, dictionary: Schema, d: int) -> int:
    """S: the certified rows by the site's dictionary, and laid out by the study's schema.

    Args:
        d: coordinates of the encoding.
    """
    held = plan.persons * max(dictionary.max_rows_per_person, plan.rows)
    stored = 3 * held * (len(dictionary.columns) + 1)
    places = plan.persons * plan.rows
    return NUMBER * (stored + places * (len(schema.columns) + 5 * d + 4))


def tables_memory(plan: Planned, schema: Schema, d: int) -> int:
    """R of synthetic tables, one at a time: decoded, and as Arrow."""
    return NUMBER * plan.persons * plan.rows * (len(schema.columns) * 4 + 2 * d)


def copies_memory(plan: Planned, d: int) -> int:
    """Of the copies from whose rows refits are made, the first ones."""
    return NUMBER * min(plan.copies, plan.refits) * plan.persons * plan.rows * d
