"""Whole tables beside those of other synthesizers: low-order margins, and a classifier.

UCI Adult without its weights and its second column of education: 13 columns, eight of them
categorical with up to 42 levels. A site draws 10,000 rows. Every arm is set to the same ε, δ, the
zero-out relation (a row is there or is not, the number of rows is public) and public bounds, and
makes 10,000 rows; `structured` as many as it counts with noise, and at most these.

*k-way* is the mean total variation distance between the site's rows and the synthetic ones over all
13 one-way, all 78 two-way and 60 three-way margins, drawn once; numbers in 20 even bins between
their bounds. *AUC* is of a classifier of income (scikit-learn's gradient boosting) that is trained
on the synthetic rows, on the rows that the site did not draw; beside it that of one trained on the
site's own. `structured` sees the numbers as they are, with the spike of the two capital columns at
0; peers are given the 20 bins in which they are judged. MST and AIM are smartnoise-synth's, as
`foreign_smartnoise.py` calls them; the copula is that of `foreign_peers.py`. Targets: one-way at
most MST's, two- and three-way at most .9 of the best peer of the same run. PENSTOCK_SEEDS says how
many draws (10); peers have PENSTOCK_PEER_SEEDS of them (3). AIM takes minutes to hours here and is
run by `adult` alone.

*Cells* are of the real tables of `foreign_real.py` (its Adult has nine columns) and of three
generators of `foreign_generators.py`, with the dictionary that `site check` suggests: 300 rows,
2,000, and all up to 50,000 (of a generator 10,000), drawn without replacement, δ the smaller one of
1e-5 and 1/(10 n). No estimand is declared; durations and their events are those of the dictionary.
Margins are as above, all three-way ones where there are at most 60. In a cell `structured` is
*non-inferior* where its mean is at most 1.1 times that of the best other arm, without an allowance
for chance; its *rank* is 1 where no arm is better. PENSTOCK_CELL_SEEDS says how many releases
`structured` and the copula have (20), PENSTOCK_CELL_PEER_SEEDS how many MST (3, at most 2 above
2,000 rows); `maf` and `sliced-wasserstein`, which nobody made for margins, have
PENSTOCK_CELL_FLOW_SEEDS (2) where there are at most 2,000 rows. A cell without MST, which takes
half a minute of each, is not judged. PENSTOCK_CELLS names the tables and sizes that are run, as
"flchain", "2000" or "flchain+300,rossi".
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tests.studies.foreign_peers import can_run_smartnoise
from tests.studies.kept import Answer
from tests.studies.lni import over_runs
from tests.studies.private_utility_releases import Job, answer, store
from tests.studies.private_utility_tables import ADULT, NAMES, list_tables
from tests.support.results import Row, write

EPSILONS = (0.5, 1.0, 3.0, 8.0)
NEARER, NON_INFERIOR, SHARE = 0.9, 1.1, 0.9
SMALL = 2000

Cell = tuple[str, int, float]
Arms = dict[str, list[Answer]]


def _read_number(name: str, default: int) -> int:
    return int(os.environ.get(f"PENSTOCK_{name}", default))


# -- what is run -----------------------------------------------------------------------------------


def list_jobs() -> list[Job]:
    """All releases, those of Adult first."""
    return list_adult_jobs() + list_cell_jobs()


def list_adult_jobs(aim: Sequence[float] = ()) -> list[Job]:
    """AIM has one draw, at these ε."""
    seeds, few = _read_number("SEEDS", 10), _read_number("PEER_SEEDS", 3)
    jobs = [Job("structured", e, number) for e in EPSILONS for number in range(seeds)]
    jobs += [Job("copula", e, number) for e in EPSILONS for number in range(few)]
    jobs += [Job("real", 0.0, number) for number in range(few)]
    if can_run_smartnoise():
        jobs += [Job("mst", e, number) for e in EPSILONS for number in range(few)]
        jobs += [Job("aim", epsilon, 0) for epsilon in aim]
    return jobs


def list_cells() -> list[Cell]:
    """Tables, sizes and ε's; those of 2,000 rows first, then those of 300, then the rest."""
    named = os.environ.get("PENSTOCK_CELLS", "").split(",")
    wanted = [set(words.split("+")) for words in named if words]
    sized = [
        (name, n)
        for name, sizes in list_tables().items()
        for n in sizes
        if not wanted or any(words <= {name, str(n)} for words in wanted)
    ]
    sized.sort(key=lambda pair: (pair[1] != SMALL, pair[1] > SMALL or pair[1] != 300))
    return [(name, n, epsilon) for name, n in sized for epsilon in EPSILONS]


def list_cell_jobs() -> list[Job]:
    """Fast arms first, and one release of each cell by MST before its second one."""
    cells, seeds = list_cells(), _read_number("CELL_SEEDS", 20)
    jobs = [
        Job(arm, epsilon, number, name, n)
        for arm in ("structured", "copula")
        for name, n, epsilon in cells
        for number in range(seeds)
    ]
    if can_run_smartnoise():
        most = _read_number("CELL_PEER_SEEDS", 3)
        jobs += [
            Job("mst", epsilon, number, name, n)
            for number in range(most)
            for name, n, epsilon in cells
            if number < 2 or n <= SMALL
        ]
    jobs += [
        Job(arm, epsilon, number, name, n)
        for arm in ("maf", "sliced-wasserstein")
        for number in range(_read_number("CELL_FLOW_SEEDS", 2))
        for name, n, epsilon in cells
        if n <= SMALL
    ]
    return jobs


def run() -> Path:
    """Runs what is not kept, and writes down all."""
    jobs, known = list_jobs(), store().read()
    missing = [job for job in jobs if job.key not in known]
    over_runs(answer, missing, "releases", lambda job: 1.0 if job.arm != "mst" else 60.0)
    note = " ".join((__doc__ or "").split("\n\n", 1)[1].split())
    answers = store().read()
    rows = [*list_adult_rows(answers, jobs), *list_cell_rows(answers, jobs)]
    return write("private-utility", rows, note)


# -- Adult -----------------------------------------------------------------------------------------


def list_adult_rows(answers: dict[str, Answer], jobs: Sequence[Job]) -> list[Row]:
    rows = []
    for epsilon in EPSILONS:
        arms = collect_arms(answers, [j for j in jobs if j.table == ADULT and j.epsilon == epsilon])
        ours, peers = arms.pop("structured", []), arms
        if not ours:
            continue
        for name in NAMES:
            means = {arm: float(np.mean([a[name] for a in runs])) for arm, runs in peers.items()}
            best = min(means, key=means.__getitem__, default="")
            judged = "mst" if name == "one-way" and "mst" in means else best
            peer = means.get(judged)
            target = None if peer is None else peer * (1 if name == "one-way" else NEARER)
            what = f"{name}, ε = {epsilon:g}" + (f" (peer: {judged})" if judged else "")
            rows.append(_row(what, [a[name] for a in ours], target, peer))
        best = max(peers, key=lambda arm: np.mean([a["AUC"] for a in peers[arm]]), default="")
        peer = float(np.mean([a["AUC"] for a in peers[best]])) if best else None
        what = f"AUC of income, ε = {epsilon:g}" + (f" (peer: {best})" if best else "")
        mean, se = average([a["AUC"] for a in ours])
        target = None if peer is None else peer - 0.01
        holds = None if target is None else mean >= target - 2 * se
        rows.append(Row(what, mean, se, len(ours), target, peer, holds=holds))
        rows.append(_row(f"seconds, ε = {epsilon:g}", [a["seconds"] for a in ours], 20.0, None))
    real = [answers[job.key]["AUC"] for job in jobs if job.arm == "real" and job.key in answers]
    if real:
        rows.append(_row("AUC of income, trained on the site's own rows", real, None, None))
    return rows


# -- cells -----------------------------------------------------------------------------------------


def list_cell_rows(answers: dict[str, Answer], jobs: Sequence[Job]) -> list[Row]:
    """Over all cells that are judged, then each of them."""
    by_cell: dict[Cell, list[Job]] = {}
    for job in jobs:
        if job.table != ADULT:
            by_cell.setdefault((job.table, job.n, job.epsilon), []).append(job)
    found = {cell: collect_arms(answers, own) for cell, own in by_cell.items()}
    judged = {cell: arms for cell, arms in found.items() if {"structured", "mst"} <= arms.keys()}
    if not judged:
        return []
    whole, single = list[Row](), list[Row]()
    for name in NAMES:
        rows = {cell: _judge_cell(cell, arms, name) for cell, arms in judged.items()}
        share = float(np.mean([row.holds is True for row in rows.values()]))
        ranks = [_rank_ours(arms, name) for arms in judged.values()]
        what = f"share of cells where {name} is non-inferior"
        whole.append(Row(what, share, None, len(rows), SHARE, holds=share >= SHARE))
        mean, se = average(ranks)
        whole.append(Row(f"mean rank in a cell, {name}", mean, se, len(ranks)))
        single += rows.values()
    seconds = [a["seconds"] for arms in judged.values() for a in arms["structured"]]
    peer = [a["seconds"] for arms in judged.values() for a in arms["mst"]]
    whole.append(_row("seconds of a cell's release (peer: mst)", seconds, None, average(peer)[0]))
    return whole + single


def _judge_cell(cell: Cell, arms: Arms, name: str) -> Row:
    table, n, epsilon = cell
    means = _list_means(arms, name)
    mean, se = average([a[name] for a in arms["structured"]])
    best = min((arm for arm in means if arm != "structured"), key=means.__getitem__)
    target = NON_INFERIOR * means[best]
    what = f"{table}, n = {n}, {name}, ε = {epsilon:g} (peer: {best})"
    runs = len(arms["structured"])
    return Row(what, mean, se, runs, target, means[best], holds=mean <= target)


def _rank_ours(arms: Arms, name: str) -> float:
    means = _list_means(arms, name)
    return 1.0 + sum(mean < means["structured"] for mean in means.values())


def _list_means(arms: Arms, name: str) -> dict[str, float]:
    return {arm: float(np.mean([a[name] for a in own])) for arm, own in arms.items()}


def collect_arms(answers: dict[str, Answer], jobs: Sequence[Job]) -> Arms:
    arms: Arms = {}
    for job in jobs:
        if job.key in answers:
            arms.setdefault(job.arm, []).append(answers[job.key])
    return arms


def _row(what: str, values: Sequence[float], target: float | None, peer: float | None) -> Row:
    mean, se = average(values)
    holds = None if target is None else mean <= target + 2 * se
    return Row(what, mean, se, len(values), target, peer, holds=holds)


def average(values: Sequence[float]) -> tuple[float, float]:
    spread = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(np.mean(values)), spread
