"""The cells of the study, each a pure function of its seed; and the store of what was measured.

Frozen by a commit before the first full run, as ``VERSION``: the generators of ``FROZEN``, the
sites' sizes and draws, the cells below, the seeds (0, 1, …) and what is measured. Whoever changes
one of them counts the version up, which draws all anew, and says here why.

1. November 2026: as first run.

Their digest is in `tests/unit/studies/test_foreign.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from tests.studies.foreign_arms import make, seed_of
from tests.studies.foreign_generators import FROZEN, TUNING
from tests.studies.foreign_measures import Answer, Measured, compare, measure
from tests.studies.foreign_real import read_table
from tests.studies.foreign_sites import FIVE, answer_cohort, answer_sites
from tests.studies.foreign_tables import Table
from tests.studies.kept import ROOT, read_code

VERSION = 1
SEEDS = int(os.environ.get("PENSTOCK_SEEDS", "20"))
ONLY = tuple(filter(None, os.environ.get("PENSTOCK_ONLY", "").split(",")))

REAL = (
    *("flchain", "nwtco", "rotterdam", "nafld1"),
    *("adult", "adult-hours", "randhie", "diabetes"),
)
"""Real tables that are the test; the rest may be tuned on, and are shown beside them."""

TUNED_ON = ("gbsg2", "rossi", "kidney", "colon", "mgus2", "fair", "anes96", "heart", "breast")
EPSILONS = (3.0, 1.0)
N, SMALL, LARGE = 3000, 800, 8000
SPLIT, SPLIT_TABLES = 4, ("flchain", "nwtco", "rotterdam", "nafld1", "colon", "mgus2", "kidney")
COHORT, COHORT_SIZES = "aric-m", (2500, 8000)
COPIES = 10


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured with each seed.

    Args:
        table: a real table, which no seed changes; or a generator, of which each seed draws one.
        n: persons of a generator's table; 0 of a real one, which is taken as it is.
        plain: by a newcomer's dictionary; else with what `site check` suggests.
        kind: ``table``; ``split``, at random into four sites of one ε each, whose copies are laid
            together as `pull` does; ``sites``, twelve, drawn from a real table; or ``cohort``.
    """

    table: str
    n: int
    epsilon: float
    arm: str
    plain: bool = False
    kind: str = "table"

    @property
    def words(self) -> set[str]:
        """By which PENSTOCK_ONLY finds it."""
        dictionary = "plain" if self.plain else "suggested"
        sizes = {f"n{self.n}", f"eps{self.epsilon:g}"}
        return {self.table, self.arm, dictionary, self.kind, *sizes}

    def __str__(self) -> str:
        size = f" (n = {self.n})" if self.n else ""
        sites = {"sites": ", twelve sites", "split": ", four sites"}.get(self.kind, "")
        plain = ", plain" if self.plain else ""
        return f"{self.table}{size}{sites}, ε = {self.epsilon:g}, {self.arm}{plain}"


Job = tuple[Cell, int]

PARTS = {
    "structured": 1.0,
    "plain": 1.0,
    "copula": 0.5,
    "few": 0.2,
    "maf": 0.5,
    "sliced-wasserstein": 0.2,
    "mst": 0.2,
    "aim": 0.1,
}
"""What part of the seeds a cell has: less where a release takes minutes."""


def list_cells(only: Sequence[str] = ONLY) -> dict[Cell, int]:
    """All cells, frozen, with how many seeds each; those that ``only`` names, if it names any.

    A cell is meant by ``word+word`` if all are words of it.
    """
    cells: dict[Cell, int] = {}

    def add(part: str, cell: Cell) -> None:
        cells[cell] = max(1, round(PARTS[part] * SEEDS))

    there = [name for name in (*REAL, *TUNED_ON) if read_table(name) is not None]
    for epsilon in EPSILONS:
        for name in FROZEN:
            cell = Cell(name, N, epsilon, "structured")
            add("structured", cell)
            add("few", replace(cell, plain=True))
            add("few", replace(cell, n=SMALL))
            add("few", replace(cell, n=LARGE))
        for name in there:
            cell = Cell(name, 0, epsilon, "structured")
            part = "structured" if name in REAL else "few"
            add(part, cell)
            add(part, replace(cell, plain=True))
        for arm in ("copula", "maf", "sliced-wasserstein", "mst", "aim"):
            for name in FROZEN:
                add(arm, Cell(name, N, epsilon, arm))
            for name in there:
                if name in REAL or arm in ("copula", "maf"):
                    add(arm, Cell(name, 0, epsilon, arm))
        for name in there:
            if name in FIVE:
                add("few", Cell(name, 0, epsilon, "structured", kind="sites"))
            if name in SPLIT_TABLES:
                for arm in ("structured", "copula", "maf"):
                    add("few", Cell(name, 0, epsilon, arm, kind="split"))
        for n in COHORT_SIZES:
            add("structured", Cell(COHORT, n, epsilon, "structured", kind="cohort"))
    wanted = [set(words.split("+")) for words in only]
    return {
        cell: seeds
        for cell, seeds in cells.items()
        if not wanted or any(words <= cell.words for words in wanted)
    }


# -- one seed --------------------------------------------------------------------------------------


def answer(job: Job) -> Answer:
    """One seed of one cell, with the seconds of a processor that the release took."""
    cell, seed = job
    if cell.kind == "cohort":
        return answer_cohort(cell.table, cell.n, cell.arm, cell.epsilon, seed)
    if cell.kind == "sites":
        table = replace(table_of(cell, seed), named=FIVE[cell.table])
        return answer_sites(table, cell.arm, cell.epsilon, _release_seed(cell, seed))
    table, began = table_of(cell, seed), sum(os.times()[:4])
    release = _release_seed(cell, seed)
    sites = SPLIT if cell.kind == "split" else 1
    places = np.random.default_rng([release, 4]).permutation(table.n)
    parts = [table] if sites == 1 else [table.take(p) for p in np.array_split(places, sites)]
    made = [
        make(cell.arm, part, cell.epsilon, release + i, plain=cell.plain, copies=COPIES).copies
        for i, part in enumerate(parts)
    ]
    copies = [
        {name: np.concatenate([site[copy][name] for site in made]) for name in table.rows}
        for copy in range(COPIES)
    ]
    taken = sum(os.times()[:4]) - began
    own = None if cell.n else _real(cell.table)
    return {**compare(copies, table, own), "seconds": taken}


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
    table = table_of(Cell(name, 0, 1.0, ""), 0)
    return measure(table.rows, table)


def _seed(*what: object) -> int:
    return seed_of(VERSION, *what)


def _release_seed(cell: Cell, seed: int) -> int:
    return _seed(cell.table, cell.n, f"{cell.epsilon:g}", cell.arm, cell.plain, cell.kind, seed)


# -- the store -------------------------------------------------------------------------------------

STORE = Path(os.environ.get("PENSTOCK_CELLS", ROOT / "build" / "foreign"))
"""A file for each arm and each state of the source that it rests on, a line for each seed."""

_PACKAGE = "shared/penstock"
_COMMON = (
    "tests/studies/foreign_generators.py",
    "tests/studies/foreign_tables.py",
    "tests/studies/foreign_real.py",
    "tests/studies/foreign_measures.py",
    "tests/studies/foreign_arms.py",
    f"{_PACKAGE}/schema",
)
_NOISE = (f"{_PACKAGE}/privacy", f"{_PACKAGE}/questions", f"{_PACKAGE}/mechanisms/tables")
_RESTS_ON = {
    "structured": (f"{_PACKAGE}/mechanisms/structured", f"{_PACKAGE}/mechanisms/copula", *_NOISE),
    "maf": (f"{_PACKAGE}/mechanisms/maf", f"{_PACKAGE}/mechanisms/flow", *_NOISE),
    "sliced-wasserstein": (f"{_PACKAGE}/mechanisms/sliced_wasserstein", *_NOISE),
    "copula": ("tests/studies/foreign_peers.py", f"{_PACKAGE}/privacy"),
    "mst": ("tests/studies/foreign_peers.py", "tests/studies/foreign_smartnoise.py"),
    "aim": ("tests/studies/foreign_peers.py", "tests/studies/foreign_smartnoise.py"),
}


_KIND_RESTS_ON = {
    "table": (),
    "split": (),
    "sites": ("tests/studies/foreign_sites.py", "server/penstock_server/analysis"),
    "cohort": ("tests/studies/foreign_sites.py", "server/penstock_server/simulate/cvd.py"),
}


def _file(cell: Cell) -> Path:
    return _file_of(cell.arm, cell.kind)


@cache
def _file_of(arm: str, kind: str) -> Path:
    """Where answers are: none of them outlives a change of the source that it rests on."""
    digest = hashlib.sha256(str(VERSION).encode())
    for name in (*_COMMON, *_RESTS_ON[arm], *_KIND_RESTS_ON[kind]):
        path = ROOT / name
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            digest.update(read_code(file).encode())
    return STORE / f"{arm}-{kind}-{digest.hexdigest()[:12]}.jsonl"


def read_answers(cells: Sequence[Cell]) -> dict[Job, Answer]:
    """What is in the store of these cells."""
    found: dict[Job, Answer] = {}
    for path in dict.fromkeys(map(_file, cells)):
        for line in map(json.loads, path.read_text().splitlines() if path.exists() else ()):
            found[Cell(**line["cell"]), line["seed"]] = line["answer"]
    wanted = set(cells)
    return {job: got for job, got in found.items() if job[0] in wanted}


def keep_answer(job: Job) -> None:
    """Measure one seed, and write it down at once: a run that is cut off is gone on with."""
    cell, seed = job
    line = json.dumps({"cell": asdict(cell), "seed": seed, "answer": answer(job)})
    STORE.mkdir(parents=True, exist_ok=True)
    with _file(cell).open("a") as file:
        file.write(line + "\n")


def list_missing(cells: dict[Cell, int]) -> Iterator[Job]:
    """What is not in the store: the first seeds of all cells first."""
    kept = read_answers(list(cells))
    jobs = ((cell, seed) for cell, seeds in cells.items() for seed in range(seeds))
    yield from sorted((job for job in jobs if job not in kept), key=lambda job: job[1])
