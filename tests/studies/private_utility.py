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
most MST's, two- and three-way at most .9 of the best peer. PENSTOCK_SEEDS says how many draws (10);
peers have PENSTOCK_PEER_SEEDS of them (3). AIM takes minutes to hours here and is run by `adult`
alone. What MST and AIM made is kept in the folder `data` and not made again.

*Cells* are of the real tables of `foreign_real.py` (its Adult has nine columns) and of three
generators of `foreign_generators.py`, with the dictionary that `site check` suggests: 300 rows,
2,000, and all up to 50,000 (of a generator 10,000), drawn without replacement, δ the smaller one of
1e-5 and 1/(10 n); and of the six tables of `large_tables.py`, in their own size or 50,000 rows. How
bins of numbers are divided was chosen on diamonds, weibull, interactions, nwtco, nafld1, randhie
and adult; how stiff densities are on flchain, gbsg2, colon, rotterdam, nafld1, adult, mgus2, heart,
kidney and fair; that piles are cells of their own came of a look at visits, vietnam and baseball.
On movies, budgets, rossi and thresholds nothing of these was chosen. No estimand is
declared; durations and their events are those of the dictionary. Margins are as above, all
three-way ones where there are at most 60. In a cell `structured` is *non-inferior* where its mean
is at most 1.1 times that of the best other arm, without an allowance for chance; its *rank* is 1
where no arm is better, of `structured`, MST and the copula. PENSTOCK_CELL_SEEDS says how many
releases `structured` and the copula have (20). MST, which takes 5 to 20 seconds of each once it is
compiled, has two, and a few more, up to PENSTOCK_CELL_PEER_SEEDS (20), as long as any of the three
verdicts lies within three standard errors of turning, by its draws and by ours (of MST's
the relative spread of one draw is that of all cells together); fewer where a run was cut off. A
cell without MST is not judged. MST's seconds are of processes of their own until 27 November 2026,
and with what was compiled kept since then: a ratio of both is none.
PENSTOCK_CELLS names the tables and sizes that are run, as "flchain", "2000" or "flchain+300,rossi".

`maf` and `sliced-wasserstein`, which nobody made for margins, have PENSTOCK_CELL_FLOW_SEEDS
releases (2) in eight cells: gbsg2 and heart of 300 rows, rotterdam and adult of 2,000, at ε = 1 and
3, in rows of their own beside `structured`. No cell is judged by them.

PENSTOCK_RECORDED=1 adds new cells to the record: rows of what was not run are carried over, each
with the commit where it was measured; shares and mean ranks are of the recorded cells and the new
ones together, by their means, standard errors and numbers, which are exact; a cell of both is
refused. The seconds of all cells stay those of the recorded ones.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.studies.foreign_peers import can_run_smartnoise
from tests.studies.kept import Answer
from tests.studies.lni import over_runs
from tests.studies.private_utility_releases import Job, answer, read_answers
from tests.studies.private_utility_tables import ADULT, MOST, NAMES, list_tables
from tests.support.results import Row, read_rows, write

EPSILONS = (0.5, 1.0, 3.0, 8.0)
NEARER, NON_INFERIOR, SHARE = 0.9, 1.1, 0.9
SMALL = 2000
FIRST, FEW, CLEAR = 2, 3, 3.0
"""Releases of MST in every cell, and so many more as long as a verdict is no more standard errors
from turning than this."""

JUDGED = ("structured", "copula", "mst")
FLOWS, FLOWS_EPSILONS = ("maf", "sliced-wasserstein"), (1.0, 3.0)
FLOWS_TABLES = (("gbsg2", 300), ("heart", 300), ("rotterdam", 2000), ("adult", 2000))
SECONDS = "seconds of a cell's release (peer: mst)"

Cell = tuple[str, int, float]
Arms = dict[str, list[Answer]]


def _read_number(name: str, default: int) -> int:
    return int(os.environ.get(f"PENSTOCK_{name}", default))


# -- what is run -----------------------------------------------------------------------------------


def list_jobs() -> list[Job]:
    """All releases that there may be, those of Adult first."""
    most = _read_number("CELL_PEER_SEEDS", 20)
    return list(dict.fromkeys(list_adult_jobs() + list_cell_jobs(most) + list_flow_jobs()))


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


def list_cell_jobs(draws: int) -> list[Job]:
    """Fast arms first, and one release of each cell by MST before its second one.

    Args:
        draws: of MST.
    """
    cells, seeds = list_cells(), _read_number("CELL_SEEDS", 20)
    jobs = [
        Job(arm, epsilon, number, name, n)
        for arm in ("structured", "copula")
        for name, n, epsilon in cells
        for number in range(seeds)
    ]
    if can_run_smartnoise():
        jobs += [
            Job("mst", epsilon, number, name, n)
            for number in range(draws)
            for name, n, epsilon in cells
        ]
    return jobs


def list_close_jobs(answers: dict[str, Answer]) -> list[Job]:
    """The next few releases of MST in each cell of which a verdict is not clear."""
    most = _read_number("CELL_PEER_SEEDS", 20)
    found = {
        cell: collect_arms(answers, own)
        for cell, own in _group_by_cell(list_cell_jobs(most)).items()
    }
    judged = {cell: arms for cell, arms in found.items() if {"structured", "mst"} <= arms.keys()}
    spreads = {
        name: _spread_peer([arms["mst"] for arms in judged.values()], name) for name in NAMES
    }
    jobs = list[Job]()
    for (table, n, epsilon), arms in judged.items():
        if any(not _is_clear(arms, name, spreads[name]) for name in NAMES):
            every = [Job("mst", epsilon, number, table, n) for number in range(most)]
            # A run that was cut off may have left out some.
            jobs += [job for job in every if job.key not in answers][:FEW]
    return jobs


def _spread_peer(cells: Sequence[Sequence[Answer]], name: str) -> float:
    """The relative sd of one release, of all cells with several."""
    drawn = [[answer[name] for answer in own] for own in cells if len(own) > 1]
    squares = [np.var(own, ddof=1) / np.mean(own) ** 2 for own in drawn]
    weights = [len(own) - 1 for own in drawn]
    return float(np.sqrt(np.average(squares, weights=weights))) if drawn else math.inf


def _is_clear(arms: Arms, name: str, spread: float) -> bool:
    """Whether no other draws of MST, or of ours, would turn who is nearer, by all that is known."""
    means = _list_means(arms, name)
    ours, chance = average([answer[name] for answer in arms["structured"]])
    others = [mean for arm, mean in means.items() if arm not in ("structured", "mst")]
    if others and ours > NON_INFERIOR * min(others):
        return True  # lost whatever MST does
    limit = NON_INFERIOR * means["mst"]
    error = math.hypot(chance, limit * spread / math.sqrt(len(arms["mst"])))
    return abs(limit - ours) > CLEAR * error


def list_flow_jobs() -> list[Job]:
    """Those of flows, and of `structured` in the same cells."""
    seeds, few = _read_number("CELL_SEEDS", 20), _read_number("CELL_FLOW_SEEDS", 2)
    there = list_tables()
    return [
        Job(arm, epsilon, number, name, n)
        for name, n in FLOWS_TABLES
        if name in there
        for epsilon in FLOWS_EPSILONS
        for arm, releases in {
            "structured": seeds if few else 0,
            **dict.fromkeys(FLOWS, few),
        }.items()
        for number in range(releases)
    ]


def run() -> Path:
    """Runs what is not kept, and writes down all."""
    most = _read_number("CELL_PEER_SEEDS", 20)
    first = list_adult_jobs() + list_cell_jobs(min(FIRST, most)) + list_flow_jobs()
    known = read_answers()
    missing = [job for job in dict.fromkeys(first) if job.key not in known]
    while missing:
        over_runs(answer, missing, "releases", lambda job: 1.0 if job.arm != "mst" else 8.0)
        missing = list_close_jobs(read_answers())
    jobs = list_jobs()
    note = " ".join((__doc__ or "").split("\n\n", 1)[1].split())
    answers = read_answers()
    rows = [*list_adult_rows(answers, jobs), *list_cell_rows(answers, jobs)]
    rows += list_flow_rows(answers, jobs)
    if _read_number("RECORDED", 0):
        rows = add_to_record(read_rows("private-utility"), rows)
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
    found = {cell: collect_arms(answers, own) for cell, own in _group_by_cell(jobs).items()}
    judged = {cell: arms for cell, arms in found.items() if {"structured", "mst"} <= arms.keys()}
    if not judged:
        return []
    whole, single = list[Row](), list[Row]()
    for name in NAMES:
        rows = {cell: _judge_cell(cell, arms, name) for cell, arms in judged.items()}
        share = float(np.mean([row.holds is True for row in rows.values()]))
        ranks = [_rank_ours(arms, name) for arms in judged.values()]
        what = f"{_SHARE}{name} is non-inferior"
        whole.append(Row(what, share, None, len(rows), SHARE, holds=share >= SHARE))
        mean, se = average(ranks)
        whole.append(Row(f"{_RANK}{name}", mean, se, len(ranks)))
        single += rows.values()
    whole.append(_time_cells(SECONDS, list(judged.values())))
    if large := [arms for (_, n, _), arms in judged.items() if n == MOST]:
        whole.append(_time_cells(f"seconds of a release of {MOST} rows (peer: mst)", large))
    return whole + single


def _group_by_cell(jobs: Sequence[Job]) -> dict[Cell, list[Job]]:
    by_cell: dict[Cell, list[Job]] = {}
    for job in jobs:
        if job.table != ADULT and job.arm in JUDGED:
            by_cell.setdefault((job.table, job.n, job.epsilon), []).append(job)
    return by_cell


_SHARE, _RANK, _IN_PLACE = "share of cells where ", "mean rank in a cell, ", " in place of "


def _time_cells(what: str, cells: Sequence[Arms]) -> Row:
    seconds = [a["seconds"] for arms in cells for a in arms["structured"]]
    # Some answers of MST were taken over from a record that does not say how long they took.
    peer = [a["seconds"] for arms in cells for a in arms["mst"] if "seconds" in a]
    return _row(what, seconds, None, average(peer)[0])


def list_flow_rows(answers: dict[str, Answer], jobs: Sequence[Job]) -> list[Row]:
    """Of each cell in which flows were released, with `structured` as the peer."""
    rows = []
    for name, n in FLOWS_TABLES:
        for epsilon in FLOWS_EPSILONS:
            own = [j for j in jobs if (j.table, j.n, j.epsilon) == (name, n, epsilon)]
            arms = collect_arms(answers, own)
            if "structured" not in arms:
                continue
            for arm in (arm for arm in FLOWS if arm in arms):
                for ways in NAMES:
                    what = f"{arm}{_IN_PLACE}structured, {name}, n = {n}, {ways}, ε = {epsilon:g}"
                    mean, se = average([a[ways] for a in arms[arm]])
                    peer = average([a[ways] for a in arms["structured"]])[0]
                    rows.append(
                        Row(f"{what} (peer: structured)", mean, se, len(arms[arm]), None, peer)
                    )
    return rows


def add_to_record(recorded: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """The recorded rows, in place, and the new ones behind them; shares and ranks of both.

    Raises:
        ValueError: a judged cell is in both, so that it would count twice.
    """
    old, new = ({row.what.split(" (peer: ")[0]: row for row in own} for own in (recorded, rows))
    cells = [name for name in new if ", n = " in name and _IN_PLACE not in name]
    twice = [new[name].what for name in cells if name in old]
    if twice:
        raise ValueError(f"recorded already: {twice[0]}")
    found = []
    for name, row in old.items():
        again = new.pop(name, None)
        if again is not None and name.startswith((_SHARE, _RANK)):
            found.append(_join(row, again))
        elif again is None or row.what == SECONDS:
            found.append(row)
        else:
            found.append(again)
    return found + list(new.values())


def _join(one: Row, other: Row) -> Row:
    """The mean, and its standard error, of the cells of both."""
    if one.ours is None or other.ours is None:
        raise ValueError(one.what)
    runs = one.n_runs + other.n_runs
    mean = (one.n_runs * one.ours + other.n_runs * other.ours) / runs
    if one.se is None or other.se is None:  # of a share
        return replace(one, ours=mean, n_runs=runs, holds=mean >= SHARE, commit="")
    # Of each its sum of squares about its own mean, and that mean's about the mean of both.
    squares = sum(
        each.n_runs * (each.n_runs - 1) * (each.se or 0.0) ** 2
        + each.n_runs * ((each.ours or 0.0) - mean) ** 2
        for each in (one, other)
    )
    return replace(
        one, ours=mean, se=math.sqrt(squares / (runs - 1) / runs), n_runs=runs, commit=""
    )


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
