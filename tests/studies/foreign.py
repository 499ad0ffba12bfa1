"""Tables that nobody here simulated: what is left of what a study asks, and of what it does not.

Real tables, of R's survival package and the UCI repository (in the folder that PENSTOCK_TABLES
names; what is absent is skipped), of lifelines, statsmodels and scikit-learn; and generators whose
laws are not the package's own: Weibull and log-normal accelerated failure in skewed and bimodal
columns, thresholds, crossing hazards, censoring that depends on covariates, rare events,
interactions that are named and that are not, cures. gbsg2, rossi, kidney, colon, mgus2, fair,
anes96, heart and breast may be tuned on, as may a family of other generators (`python -m
tests.studies.foreign_tuning`); the other tables and generators are the test. Cells, seeds, splits
and measures are fixed in `foreign_cells.py`.

One site, δ = min(1e-5, 1/10n), ten copies. Dictionaries are a newcomer's, names, kinds, units and
bounds as help pages have them: as `site check` suggests (scale, spike, decimals), or "plain",
without. Declared are the named coefficients of one model (Cox's but for adult, fair, anes96 and
breast, which are logistic, adult-hours, heart and diabetes, linear, and randhie, Poisson), each
adjusted for the others; and interactions, as far as an estimand can be one (here: DECLARED).
Measured is the mean over the copies against the table itself, in standard errors of the table's own
fit or curve:

- declared: root mean square over coefficients and seeds, at most 1.2 (ε = 3) and 2.5 (ε = 1) on
  real tables, .6 and 1.2 on generators, times √(500/events) where events are fewer; the share
  above 3, at most .02 on real tables at ε = 3; the largest |bias| of a coefficient, at most .3;
- undeclared main effects, in a model of all columns: root mean square at most 1.0 at n = 3000,
  ε = 3;
- interactions: the slope of the copies' coefficients on the table's, at least .9 where named;
- Kaplan-Meier at a fifth, two fifths, … of the follow-up (at the end: just before it): the largest
  |bias| at most .3; the largest |Δ|, events and the share at the end as medians, at most .03, 5 %
  and .03 at ε = 3.

In four sites a table is split at random, each site has an ε of its own, and copies are laid
together as `pull` does. Twelve sites of 450 to 6000 persons, drawn with replacement from one real
table, five coefficients: the pooled half-width over that without privacy, at most 1.5 (ε = 3) and
2.5 (ε = 1); how often the pooled interval holds the table's own coefficient, and the pooled
estimate without privacy. ARIC's men of the simulator, as in the study `hazard-ratio`: mean
|Δ log HR|.

How far one person moves a real table's coefficient, and what any Gaussian release then errs at
least, is in `foreign_influence.py`.

Peers, on the declared coefficients of the same tables and seeds, are described in
`foreign_peers.py`: a Gaussian copula, MST, AIM; and `maf` and `sliced-wasserstein`. "peer" is the
best of MST, AIM and the copula; ranks are by root mean square, 1 the best, over the tables where
all were run. A coefficient that cannot be fitted in most copies counts as an error of 10.

A cell that is in no store here keeps the rows of the last record, with the commit where they were
measured. Runs can be cut off and gone on with; PENSTOCK_SEEDS says how many seeds (20 are asked
for; a fifth where a release takes minutes), PENSTOCK_ONLY which cells (`structured+eps3,copula`).
"Holds" is within two standard errors, which are over seeds; each figure says how many seeds it is
from.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata
from tests.studies.foreign_arms import OURS, PEERS
from tests.studies.foreign_cells import (
    EPSILONS,
    REAL,
    Cell,
    Job,
    N,
    keep_answer,
    list_cells,
    list_missing,
    read_answers,
    table_of,
)
from tests.studies.foreign_generators import FROZEN
from tests.studies.foreign_influence import distance, least_error, most_moved
from tests.studies.foreign_measures import Answer, errors_of, names_of, slope_of, squares_of
from tests.studies.foreign_peers import can_run_smartnoise
from tests.studies.foreign_real import read_table
from tests.studies.foreign_tables import can_declare_products
from tests.studies.lni import over_runs
from tests.support.results import Row, at_most, read_rows, write

from penstock.privacy.request import advised_delta

Array = NDArray[np.float64]
Found = dict[Cell, list[Answer]]
Roots = dict[Cell, Row]
"""Of each cell, the row of its declared coefficients' error."""

DECLARED_REAL, DECLARED_MADE = {3.0: 1.2, 1.0: 2.5}, {3.0: 0.6, 1.0: 1.2}
ENOUGH_EVENTS = 500
ABOVE, BIAS, UNDECLARED, SLOPE = 0.02, 0.3, 1.0, 0.9
SHARE, EVENTS, SURVIVAL = 0.03, 0.05, 0.03
WIDTH = {3.0: 1.5, 1.0: 2.5}
_DECLARED, _LOST = "declared, rms error in s.e., ", "lost to "
_EVENTS = re.compile(r" \(\d+ events\)$")
HAZARD = {(2500, 1.0): 0.014, (2500, 3.0): 0.009, (8000, 1.0): 0.006, (8000, 3.0): 0.005}


def run() -> Path:
    """Measure what is missing of the cells that are asked for, and write all that there is."""
    asked = list_cells()
    if not can_run_smartnoise():
        sys.stderr.write("no environment for MST and AIM: `make reproduce NAME=foreign` makes it\n")
        asked = {cell: seeds for cell, seeds in asked.items() if cell.arm not in ("mst", "aim")}
    if jobs := list(list_missing(asked)):
        over_runs(keep_answer, jobs, "foreign", weight=_weight)
    cells = list_cells(only=())
    stored = sorted(read_answers(list(cells)).items(), key=lambda found: found[0][1])
    answers: Found = {cell: [] for cell in cells}
    for (cell, _), answer in stored:
        answers[cell].append(answer)
    found = {cell: given for cell, given in answers.items() if given}
    kept = _keep_rows([cell for cell in cells if cell not in found])
    roots = {
        cell: _rms(f"{_DECLARED}{cell}", given, "declared")
        for cell, given in found.items()
        if names_of(given, "declared")
    }
    for cell, recorded in kept.items():
        for row in recorded:
            if row.what.startswith(_DECLARED):
                roots[cell] = row
    rows = list[Row]()
    for cell in cells:
        rows += _rows(cell, found[cell], roots) if cell in found else kept.get(cell, [])
    note = (__doc__ or "").strip().replace("DECLARED", _products_declared())
    return write("foreign", [*rows, *_influence_rows(), *_rank_rows(roots)], note)


def _keep_rows(cells: Sequence[Cell]) -> dict[Cell, list[Row]]:
    """What the last record says of cells that no store here has an answer of."""
    recorded = [(_EVENTS.sub("", row.what), row) for row in read_rows("foreign")]
    recorded = [(what, row) for what, row in recorded if not what.startswith(_LOST)]
    found = {cell: [row for what, row in recorded if what.endswith(f", {cell}")] for cell in cells}
    return {cell: rows for cell, rows in found.items() if rows}


_SECONDS = {"maf": 8.0, "sliced-wasserstein": 10.0, "copula": 0.3, "mst": 40.0, "aim": 120.0}


def _weight(job: Job) -> float:
    """About how many seconds it takes."""
    cell, _ = job
    if cell.kind == "sites":
        return 400.0
    return (4 if cell.kind == "split" else 1) * _SECONDS.get(cell.arm, 1.5)


def _products_declared() -> str:
    return "they are declared" if can_declare_products() else "they are not"


# -- rows of a cell --------------------------------------------------------------------------------


def _rows(cell: Cell, answers: Sequence[Answer], roots: Roots) -> list[Row]:
    if cell.kind == "cohort":
        errors = [abs(one["hazard"]) for one in answers]
        target = HAZARD.get((cell.n, cell.epsilon))
        return [at_most(f"abs. error of the log hazard ratio, {cell}", errors, target=target)]
    if cell.kind == "sites":
        return _site_rows(cell, answers)
    if cell.arm not in ("structured", "maf"):
        return [_rms(f"{_DECLARED}{cell}", answers, "declared")]
    return _table_rows(cell, answers, roots)


def _table_rows(cell: Cell, answers: Sequence[Answer], roots: Roots) -> list[Row]:
    real = not cell.n
    events = float(np.mean([one["deaths"] for one in answers]))
    label = f"{cell} ({events:.0f} events)"
    scale = max(1.0, math.sqrt(ENOUGH_EVENTS / events))
    target = DECLARED_REAL[cell.epsilon] if real else DECLARED_MADE[cell.epsilon] * scale
    ours, whole = cell.arm == "structured", cell.kind == "table"
    peers = [
        root.ours
        for other, root in roots.items()
        if other.arm in PEERS and (other.table, other.n) == (cell.table, cell.n)
        if (other.epsilon, other.kind) == (cell.epsilon, cell.kind) and root.ours is not None
    ]
    what = f"{_DECLARED}{label}"
    rows = [_rms(what, answers, "declared", target if ours and whole else None, peers)]
    if ours:
        share = ABOVE if real and whole and cell.epsilon == 3 else None
        rows.append(_above(label, answers, share))
        rows.append(_bias("declared", label, answers))
    most = UNDECLARED if ours and not real and cell.n == N and cell.epsilon == 3 else None
    if names_of(answers, "undeclared"):
        rows.append(_rms(f"undeclared, rms error in s.e., {label}", answers, "undeclared", most))
    rows += [_slope(cell, name, label, answers) for name in names_of(answers, "made")]
    if names_of(answers, "mean"):
        return [*rows, _bias("mean", label, answers)]
    if ours:
        rows.append(_bias("survival", label, answers))
    medians: list[tuple[str, float, Callable[[Answer], float]]] = [
        ("largest abs. error of Kaplan-Meier", SURVIVAL, lambda one: one["curve"]),
        ("abs. relative error of events", EVENTS, lambda one: abs(one["events"])),
        ("abs. error of the share at the end", SHARE, lambda one: abs(one["share"])),
    ]
    for name, most, value in medians:
        low, middle, high = np.quantile([value(one) for one in answers], [0.25, 0.5, 0.75])
        limit = most if cell.epsilon == 3 else None
        holds = None if limit is None else bool(middle <= limit)
        spread = (float(low), float(high))
        count = len(answers)
        rows.append(
            Row(f"{name}, {label}", middle, None, count, limit, holds=holds, quartiles=spread)
        )
    return rows


def _rms(
    what: str,
    answers: Sequence[Answer],
    kind: str,
    target: float | None = None,
    peers: Sequence[float] = (),
) -> Row:
    squares = squares_of(answers, kind)
    root = math.sqrt(float(squares.mean()))
    se = _error(squares) / (2 * root) if len(squares) > 1 else None
    holds = None if target is None else root <= target + 2 * (se or 0.0)
    peer = min(peers, default=None)
    return Row(what, root, se, len(answers), target, peer, holds=holds)


def _error(values: Array) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values))


def _above(label: str, answers: Sequence[Answer], target: float | None) -> Row:
    named = [errors_of(answers, "declared", name) for name in names_of(answers, "declared")]
    above = np.abs(np.concatenate(named)) > 3
    share = float(above.mean())
    se = math.sqrt(share * (1 - share) / len(above))
    holds = None if target is None else share <= target + 2 * se
    return Row(
        f"declared, share above 3 s.e., {label}", share, se, len(answers), target, holds=holds
    )


def _bias(kind: str, label: str, answers: Sequence[Answer]) -> Row:
    """The worst one of all coefficients, or of five times."""
    means = {name: errors_of(answers, kind, name) for name in names_of(answers, kind)}
    worst = max(means, key=lambda name: abs(float(means[name].mean())))
    bias = abs(float(means[worst].mean()))
    se = _error(means[worst]) if len(means[worst]) > 1 else None
    holds = bias <= BIAS + 2 * (se or 0.0)
    what = f"{kind}, largest abs. bias in s.e. ({worst}), {label}"
    return Row(what, bias, se, len(answers), BIAS, holds=holds)


def _slope(cell: Cell, name: str, label: str, answers: Sequence[Answer]) -> Row:
    named = name in table_of(Cell(cell.table, min(cell.n, 50), 1.0, ""), 0).products
    slope = slope_of(answers, name)
    real, made = errors_of(answers, "real", name), errors_of(answers, "made", name)
    rest = made - slope * real
    se = float(np.sqrt((rest**2).mean() / (real**2).sum())) if len(real) > 1 else None
    holds = slope >= SLOPE - 2 * (se or 0.0) if named else None
    what = f"interaction {name}{'' if named else ', undeclared'}, slope, {label}"
    return Row(what, slope, se, len(answers), SLOPE if named else None, holds=holds)


def _site_rows(cell: Cell, answers: Sequence[Answer]) -> list[Row]:
    rows = []
    for name in names_of(answers, "width"):
        widths = errors_of(answers, "width", name).tolist()
        what = f"pooled half-width over that without privacy, {name}, {cell}"
        rows.append(at_most(what, widths, target=WIDTH[cell.epsilon]))
    for kind, what in (
        ("holds", "pooled interval holds the table's own coefficient"),
        ("real", "the same without privacy"),
        ("found", "pooled interval holds the pooled estimate without privacy"),
        ("site", "a site's interval holds the table's own coefficient"),
    ):
        names = names_of(answers, kind)
        shares = [float(np.mean([one[f"{kind}/{name}"] for name in names])) for one in answers]
        count, share = len(answers) * len(names), float(np.mean(shares))
        se = math.sqrt(0.95 * 0.05 / count)
        target = 0.95 if kind == "holds" else None
        holds = None if target is None else share >= target - 2 * se
        rows.append(Row(f"{what}, {cell}", share, se, len(answers), target, holds=holds))
    rows.append(_rms(f"pooled, rms error in real s.e., {cell}", answers, "pooled"))
    return rows


# -- what one person moves -------------------------------------------------------------------------


def _influence_rows() -> list[Row]:
    """Of each real table's named coefficients, the one that one person moves furthest."""
    rows = []
    for name in REAL:
        table = read_table(name)
        if table is None:
            continue
        most = max(most_moved(table), key=lambda influence: influence.moved)
        what = f"{most.name} of {name}, in s.e.: moved by one person"
        rows.append(Row(what, most.moved, None, table.n))
        for epsilon in EPSILONS:
            mu = distance(epsilon, advised_delta(table.n))
            what = f"the same: least rms error with or without that person, ε = {epsilon:g}"
            rows.append(Row(what, least_error(most.moved, mu), None, table.n))
    return rows


# -- beside peers ----------------------------------------------------------------------------------


def _rank_rows(roots: Roots) -> list[Row]:
    """Mean ranks over the tables where every arm was run, and where ours is not the first."""
    rows = []
    arms = [arm for arm in (*OURS, *PEERS) if any(cell.arm == arm for cell in roots)]
    for epsilon in sorted({cell.epsilon for cell in roots}, reverse=True):
        ranks, lost = [], list[Row]()
        for name, n in [*((name, N) for name in FROZEN), *((name, 0) for name in REAL)]:
            cells = [Cell(name, n, epsilon, arm) for arm in arms]
            if not all(cell in roots for cell in cells) or len(arms) < 2:
                continue
            errors = np.array([roots[cell].ours for cell in cells], dtype=np.float64)
            ranks.append(rankdata(errors))
            best = int(np.argmin(errors))
            if arms[best] != "structured":
                what, runs = f"{_LOST}{arms[best]}: {_DECLARED}{cells[0]}", roots[cells[0]].n_runs
                lost.append(Row(what, float(errors[0]), None, runs, peer=float(errors[best])))
        if not ranks:
            continue
        means, count = np.mean(ranks, axis=0), len(ranks)
        for arm, column, mean in zip(arms, np.transpose(ranks), means, strict=True):
            holds = bool(mean <= means.min()) if arm == "structured" else None
            what = f"mean rank over {count} tables, ε = {epsilon:g}, {arm}"
            se = _error(column) if count > 1 else None
            rows.append(Row(what, float(mean), se, count, holds=holds))
        rows += lost
    return rows
