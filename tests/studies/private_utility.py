"""Whole tables beside those of other synthesizers: low-order margins, and a classifier.

UCI Adult without its weights and its second column of education: 13 columns, eight of them with up
UCI Adult without its weights and the second column of education: 13 columns, eight of them with up
is there or is not, the number of rows is public) and public bounds, and make 10,000 rows.

*k-way* is the mean total variation distance between the site's rows and the synthetic ones over all
13 one-way, all 78 two-way and 60 three-way margins, drawn once; numbers in 20 even bins between
their bounds. *AUC* is of a classifier of income (scikit-learn's gradient boosting) that is trained
on the synthetic rows, on the rows that the site did not draw; beside it that of one trained on the
site's own. `structured` sees the numbers as they are, with the spike of the two capital columns at
0; peers are given the 20 bins in which they are judged. MST and AIM are smartnoise-synth's, as
`foreign_smartnoise.py` calls them; the copula is that of `foreign_peers.py`.

Targets: one-way at most MST's, two- and three-way at most .9 of the best peer of the same run.
PENSTOCK_SEEDS says how many draws (10); peers have PENSTOCK_PEER_SEEDS of them (3). AIM takes
minutes to hours here and is run where PENSTOCK_AIM names its ε's, as "1,3".
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from tests.studies.foreign_arms import seed_of
from tests.studies.foreign_peers import can_run_smartnoise, copula, smartnoise
from tests.studies.kept import RELEASED, Answer, Store
from tests.studies.lni import over_runs
from tests.support.carried_out import release
from tests.support.results import Row, write

from penstock.mechanisms import Structured
from penstock.mechanisms.plans import plan
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Coded, Column, Schema
from penstock.schema.encoding import Encoding

Codes = NDArray[np.intp]

ROWS, EPSILONS, DELTA, BINS, TRIPLES = 10_000, (0.5, 1.0, 3.0, 8.0), 1e-5, 20, 60
NUMBERS = {
    "age": (16, 91),
    "capital-gain": (0, 100_000),
    "capital-loss": (0, 4_500),
    "hours-per-week": (0, 100),
}
DROPPED = ["fnlwgt", "education-num"]
JUDGED = "class"
MARGINS = ("one-way", "two-way", "three-way")
NEARER = 0.9


@dataclass(frozen=True, slots=True)
class Job:
    """One release of one arm."""

    arm: str
    epsilon: float
    number: int

    @property
    def key(self) -> str:
        return f"{self.arm} {self.epsilon:g} {self.number}"


@cache
def read_adult() -> tuple[Schema, Coded]:
    """The whole table, and its dictionary."""
    path = Path(os.environ.get("PENSTOCK_TABLES", ".")) / "adult.csv.gz"
    found = pd.read_csv(path).drop(columns=DROPPED)
    columns, coded = list[Column](), Coded()
    for name in found:
        key = str(name).replace("-", "_")
        if name in NUMBERS:
            spike = 0 if str(name).startswith("capital") else None
            columns.append(Column(key, "integer", *NUMBERS[str(name)], spike=spike))
            coded[key] = found[name].to_numpy(np.float64)
            continue
        levels = sorted(found[name].unique())
        coded[key] = found[name].map({level: i for i, level in enumerate(levels)}).to_numpy(float)
        kind = "binary" if len(levels) == 2 else "categorical"
        columns.append(Column(key, kind, levels=() if kind == "binary" else tuple(levels)))
    return Schema(tuple(columns)), coded


def draw_site(number: int) -> tuple[Coded, Coded]:
    """The site's rows, and all others."""
    _, coded = read_adult()
    whole = len(next(iter(coded.values())))
    order = np.random.default_rng(number).permutation(whole)
    mine, others = order[:ROWS], order[ROWS:]
    return ({k: v[mine] for k, v in coded.items()}, {k: v[others] for k, v in coded.items()})


def to_codes(rows: Coded) -> Codes:
    """(N, d) cells in which margins are compared."""
    schema, _ = read_adult()
    found = []
    for column in schema.columns:
        values = rows[column.name]
        if column.kind == "integer":
            low, high = column.bounds
            values = np.clip(np.floor((values - low) / (high - low) * BINS), 0, BINS - 1)
        found.append(values.astype(np.intp))
    return np.column_stack(found)


def list_sizes() -> list[int]:
    schema, _ = read_adult()
    return [BINS if c.kind == "integer" else max(len(c.levels), 2) for c in schema.columns]


@cache
def list_margins() -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Of one, two and three columns."""
    every = range(len(list_sizes()))
    rng = np.random.default_rng(0)
    triples = tuple(
        tuple(sorted(rng.choice(len(every), 3, replace=False).tolist())) for _ in range(TRIPLES)
    )
    return tuple((j,) for j in every), tuple(combinations(every, 2)), triples


def compare_margins(ours: Codes, theirs: Codes) -> list[float]:
    """Mean total variation distance over the margins of each size."""
    sizes = list_sizes()

    def share(codes: Codes, columns: tuple[int, ...]) -> NDArray[np.float64]:
        shape = tuple(sizes[j] for j in columns)
        place = np.ravel_multi_index(tuple(codes[:, j] for j in columns), shape)
        return np.bincount(place, minlength=math.prod(shape)) / len(codes)

    return [
        float(np.mean([np.abs(share(ours, m) - share(theirs, m)).sum() / 2 for m in margins]))
        for margins in list_margins()
    ]


def classify(train: Codes, test: Codes) -> float:
    """AUC of income, by all other columns."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score

    at = read_adult()[0].names.index(JUDGED)
    if len(np.unique(train[:, at])) < 2:
        return 0.5
    made = HistGradientBoostingClassifier(random_state=0).fit(
        np.delete(train, at, axis=1), train[:, at]
    )
    return float(roc_auc_score(test[:, at], made.predict_proba(np.delete(test, at, axis=1))[:, 1]))


def make_rows(job: Job, own: Coded) -> Codes:
    """One synthetic table, in cells."""
    schema, _ = read_adult()
    privacy, seed = PrivacyRequest(job.epsilon, DELTA), seed_of(job.key)
    if job.arm == "structured":
        encoding, asked = Encoding(schema), Structured(copies=1, refits=0, planted=0)
        rows, present = encoding.encode(own, np.random.default_rng(seed))
        planned = plan(asked, schema, ROWS, privacy, ())
        given = (encoding, rows[:, None], present[:, None], SeededNoise(seed))
        [copy] = release(asked, planned, *given)
        return to_codes(dict(copy.columns))
    codes = to_codes(own)
    levels = [tuple(f"c{i}" for i in range(size)) for size in list_sizes()]
    kinds = ["categorical" if len(own_levels) > 2 else "binary" for own_levels in levels]
    binned = Schema(
        tuple(
            Column(name, kind, levels=() if kind == "binary" else own_levels)
            for name, kind, own_levels in zip(schema.names, kinds, levels, strict=True)
        )
    )
    given_codes = {name: codes[:, j].astype(float) for j, name in enumerate(schema.names)}
    if job.arm == "copula":
        noise, rng = SeededNoise(seed), np.random.default_rng([seed, 1])
        [made] = copula(given_codes, binned, privacy, 1, noise, rng)
    else:
        [made] = smartnoise(job.arm, given_codes, binned, privacy, 1, seed)
    return np.column_stack([made[name] for name in schema.names]).astype(np.intp)


def answer(job: Job) -> Answer:
    """How one release compares; kept."""
    own, others = draw_site(job.number)
    began = time.perf_counter()
    made = make_rows(job, own) if job.arm != "real" else to_codes(own)
    seconds = time.perf_counter() - began
    found: Answer = dict(zip(MARGINS, compare_margins(to_codes(own), made), strict=True))
    found |= {"AUC": classify(made, to_codes(others)), "seconds": seconds}
    store().keep(job.key, found)
    return found


@cache
def store() -> Store:
    studies = [f"tests/studies/{name}.py" for name in ("private_utility", "foreign_peers")]
    return Store("private-utility", [*RELEASED, *studies, "tests/studies/foreign_smartnoise.py"])


def list_jobs() -> list[Job]:
    seeds, few = (
        int(os.environ.get(name, default))
        for name, default in (("PENSTOCK_SEEDS", "10"), ("PENSTOCK_PEER_SEEDS", "3"))
    )
    jobs = [Job("structured", e, number) for e in EPSILONS for number in range(seeds)]
    jobs += [Job("copula", e, number) for e in EPSILONS for number in range(few)]
    jobs += [Job("real", 0.0, number) for number in range(few)]
    if can_run_smartnoise():
        jobs += [Job("mst", e, number) for e in EPSILONS for number in range(few)]
        asked = [float(e) for e in os.environ.get("PENSTOCK_AIM", "").split(",") if e]
        jobs += [Job("aim", e, 0) for e in asked]
    return jobs


def list_rows(answers: dict[str, Answer], jobs: Sequence[Job]) -> list[Row]:
    rows = []
    for epsilon in EPSILONS:
        arms: dict[str, list[Answer]] = {}
        for job in jobs:
            if job.epsilon == epsilon and job.key in answers:
                arms.setdefault(job.arm, []).append(answers[job.key])
        ours, peers = arms.pop("structured", []), arms
        if not ours:
            continue
        for name in MARGINS:
            means = {arm: float(np.mean([a[name] for a in own])) for arm, own in peers.items()}
            best = min(means, key=means.__getitem__, default="")
            judged = "mst" if name == "one-way" and "mst" in means else best
            peer = means.get(judged)
            target = None if peer is None else peer * (1 if name == "one-way" else NEARER)
            what = f"{name}, ε = {epsilon:g}" + (f" (peer: {judged})" if judged else "")
            rows.append(_row(what, [a[name] for a in ours], target, peer))
        best = max(peers, key=lambda arm: np.mean([a["AUC"] for a in peers[arm]]), default="")
        peer = float(np.mean([a["AUC"] for a in peers[best]])) if best else None
        what = f"AUC of income, ε = {epsilon:g}" + (f" (peer: {best})" if best else "")
        mean, se = _mean([a["AUC"] for a in ours])
        target = None if peer is None else peer - 0.01
        holds = None if target is None else mean >= target - 2 * se
        rows.append(Row(what, mean, se, len(ours), target, peer, holds=holds))
        rows.append(_row(f"seconds, ε = {epsilon:g}", [a["seconds"] for a in ours], 20.0, None))
    real = [answers[job.key]["AUC"] for job in jobs if job.arm == "real" and job.key in answers]
    if real:
        rows.append(_row("AUC of income, trained on the site's own rows", real, None, None))
    return rows


def _row(what: str, values: Sequence[float], target: float | None, peer: float | None) -> Row:
    mean, se = _mean(values)
    holds = None if target is None else mean <= target + 2 * se
    return Row(what, mean, se, len(values), target, peer, holds=holds)


def _mean(values: Sequence[float]) -> tuple[float, float]:
    spread = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(np.mean(values)), spread


def run() -> Path:
    """Runs what is not kept, and writes down all."""
    jobs, known = list_jobs(), store().read()
    missing = [job for job in jobs if job.key not in known]
    over_runs(answer, missing, "releases", lambda job: 1.0 if job.arm != "mst" else 60.0)
    note = " ".join((__doc__ or "").split("\n\n", 1)[1].split())
    return write("private-utility", list_rows(store().read(), jobs), note)
