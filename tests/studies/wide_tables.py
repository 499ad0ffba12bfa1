"""Tables of fifteen to forty columns of levels, beside other synthesizers: low-order margins.

Real tables of R's packages on which nothing here was tuned (`wide_tables_real.py`): 15 to 32
columns, most of 2 to 42 levels. A site draws 5,000 rows without replacement, or as many as there
are; bounds of numbers are the table's, for all arms. Nothing is declared. Arms, ε, δ, margins and
what *non-inferior* and *rank* mean are those of `private-utility`; `structured` and the DP copula
have PENSTOCK_SEEDS releases of a cell (20), MST, which takes a minute of each,
PENSTOCK_PEER_SEEDS (1). What MST made is kept in the folder `data` and not made again.
PENSTOCK_ONLY says which tables.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
from tests.studies.foreign_arms import seed_of
from tests.studies.foreign_peers import can_run_smartnoise
from tests.studies.kept import Answer, Store
from tests.studies.lni import over_runs
from tests.studies.private_utility import EPSILONS, list_cell_rows
from tests.studies.private_utility_releases import RESTS_ON, SLOW_PEERS_REST_ON, Job, compare
from tests.studies.wide_tables_real import FILES, draw_wide, read_wide
from tests.support.results import write

ROWS = 5000
ARMS = ("structured", "copula", "mst")


@cache
def store(arm: str = "structured") -> Store:
    """Where an arm's answers are kept: those of MST stay in the repository."""
    own = "tests/studies/wide_tables_real.py"
    if arm == "mst":
        rests_on = (*SLOW_PEERS_REST_ON, own)
        return Store("wide-tables-peers", rests_on, Path(__file__).parent / "data")
    return Store("wide-tables", (*RESTS_ON, own))


def read_answers() -> dict[str, Answer]:
    """All that are kept, by the keys of their jobs."""
    return store().read() | store("mst").read()


def list_jobs() -> list[Job]:
    """The first release of all arms first."""
    seeds = int(os.environ.get("PENSTOCK_SEEDS", "20"))
    few = int(os.environ.get("PENSTOCK_PEER_SEEDS", "1")) if can_run_smartnoise() else 0
    wanted = os.environ.get("PENSTOCK_ONLY", ",".join(FILES)).split(",")
    sizes = {
        name: min(len(next(iter(whole.rows.values()))), ROWS)
        for name in wanted
        if (whole := read_wide(name)) is not None
    }
    return [
        Job(arm, epsilon, number, name, n)
        for number in range(seeds)
        for arm in ARMS
        if arm != "mst" or number < few
        for name, n in sizes.items()
        for epsilon in EPSILONS
    ]


def answer(job: Job) -> Answer:
    """How one release compares; kept."""
    rng = np.random.default_rng(seed_of(job.table, job.n, job.number))
    found, _ = compare(job, draw_wide(job.table, job.n, rng))
    store(job.arm).keep(job.key, found)
    return found


def run() -> Path:
    """Runs what is not kept, and writes down all."""
    jobs, known = list_jobs(), read_answers()
    over_runs(answer, [job for job in jobs if job.key not in known], "releases")
    rows = list_cell_rows(read_answers(), jobs)
    return write("wide-tables", rows, (__doc__ or "").strip())
