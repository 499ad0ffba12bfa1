"""Adult alone of the arena, every arm by itself, `maf` and `sliced-wasserstein` among them.

As `private-utility` has it (its docstring says how arms are set and judged), whose kept answers are
used where there are some. AIM takes minutes to hours of each ε: PENSTOCK_AIM names those at which
it is run (".5,1,3"), of one draw. The two flows, which nobody made for levels, have one draw, too.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.studies.lni import over_runs
from tests.studies.private_utility import (
    EPSILONS,
    average,
    collect_arms,
    list_adult_jobs,
    list_adult_rows,
)
from tests.studies.private_utility_releases import Job, answer, read_answers
from tests.studies.private_utility_tables import NAMES
from tests.support.results import Row, write


def run() -> Path:
    """Runs what is not kept, and writes down all."""
    aim = [float(epsilon) for epsilon in os.environ.get("PENSTOCK_AIM", ".5,1,3").split(",")]
    flows = [Job(arm, e, 0) for arm in ("maf", "sliced-wasserstein") for e in EPSILONS]
    jobs, known = [*list_adult_jobs(aim), *flows], read_answers()
    over_runs(answer, [job for job in jobs if job.key not in known], "releases")
    answers = read_answers()
    rows = list_adult_rows(answers, jobs)
    for epsilon in EPSILONS:
        for arm, own in collect_arms(answers, [j for j in jobs if j.epsilon == epsilon]).items():
            for name in (*NAMES, "AUC", "seconds"):
                mean, se = average([one[name] for one in own])
                rows.append(Row(f"{arm}, {name}, ε = {epsilon:g}", mean, se, len(own)))
    return write("adult", rows, (__doc__ or "").strip())
