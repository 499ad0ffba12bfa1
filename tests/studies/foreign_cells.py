"""The cells of the study, each a pure function of its seed; and the store of what was measured.

Frozen before the first full run, in ``VERSION``: the generators of ``FROZEN``, the sites' sizes and
draws, the cells, the seeds (0, 1, …) and what is measured. Whoever changes one of them counts the
version up, which makes every seed anew, and says here why.

1. November 2026: as first run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache

import numpy as np
from tests.studies.foreign_arms import make, seed_of
from tests.studies.foreign_generators import FROZEN, TUNING
from tests.studies.foreign_measures import Answer, Measured, compare, measure
from tests.studies.foreign_tables import Table, read_table

VERSION = 1
COPIES = 10


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured with each seed.

    Args:
        table: a real table, which no seed changes, or a generator, of which each seed draws one.
        n: persons of a generator's table; 0 of a real one, which is taken as it is.
        plain: by a newcomer's dictionary; else with what `site check` suggests.
    """

    table: str
    n: int
    epsilon: float
    arm: str
    plain: bool = False

    @property
    def words(self) -> set[str]:
        """By which PENSTOCK_ONLY finds it."""
        kind = "plain" if self.plain else "suggested"
        return {self.table, self.arm, kind, f"n{self.n}", f"eps{self.epsilon:g}"}

    def __str__(self) -> str:
        size = f" (n = {self.n})" if self.n else ""
        plain = ", plain" if self.plain else ""
        return f"{self.table}{size}, ε = {self.epsilon:g}, {self.arm}{plain}"


Job = tuple[Cell, int]


def table_of(cell: Cell, seed: int) -> Table:
    """The private table.

    Raises:
        KeyError: a real table that is not there.
    """
    generator = (FROZEN | TUNING).get(cell.table)
    if generator is not None:
        # The same persons for each arm, ε and dictionary.
        return generator(cell.n, np.random.default_rng(_seed(cell.table, cell.n, seed)))
    found = read_table(cell.table)
    if found is None:
        raise KeyError(cell.table)
    return found


@cache
def _real(name: str) -> Measured:
    """A real table's own figures, which all seeds share."""
    return measure((table := table_of(Cell(name, 0, 1.0, ""), 0)).rows, table)


def answer(job: Job) -> Answer:
    """One seed of one cell, and how many seconds of a processor the release took."""
    cell, seed = job
    table = table_of(cell, seed)
    began = time.process_time()
    release = _seed(cell, seed)
    made = make(cell.arm, table, cell.epsilon, release, plain=cell.plain, copies=COPIES)
    taken = time.process_time() - began
    own = None if cell.n else _real(cell.table)
    return {**compare(made.copies, table, own), "seconds": taken}


def _seed(*what: object) -> int:
    return seed_of(VERSION, *what)
