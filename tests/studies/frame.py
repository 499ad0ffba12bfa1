"""What a frame larger than the cohort costs: answers from n persons in a frame of n, and of 2n.

A site declares how many persons its data set may hold; those without rows are null records. The
noise is the same, the rows are the same, and so the answers and their intervals should be. Cohorts:

- simulated after Framingham's men (22 % events), with a known truth;
- GBSG2, 686 breast cancers (Schumacher et al. 1994), out of the lifelines package;
- rotterdam, 2982 breast cancers, if it is there: `write.csv(survival::rotterdam, "rotterdam.csv")`
  in R, in the folder that PENSTOCK_TABLES names. It is not part of the package.

Of the real tables each cohort is n persons drawn with replacement: the table is the population,
its own fit the truth. n = 800 for maf, and 2500 for gibbs, whose answers are mostly noise where
persons are few. ε = 3, δ = min(1e-5, 1/10N), zero-out; log hazard ratio per 10 mmHg, or of hormone
therapy, adjusted. "Error": against the cohort's own fit. "Plain" s.e.: of sampling and synthesis;
"whole": widened by what refits show (six of them, beside five copies), or an answer's own. "As
before": a row for each place of the frame, without refits. Ratios are within each cohort; medians
have quartiles beside them. (A coverage from r runs has a standard error of √(.95·.05/r).)
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
from lifelines.datasets import load_gbsg2
from numpy.typing import NDArray
from tests.studies.lni import over_runs
from tests.support.carried_out import release
from tests.support.results import Row, at_most, write

from penstock.inference.combine import combine
from penstock.inference.refits import spread, widened
from penstock.mechanisms import Gibbs, Maf, Settings
from penstock.mechanisms.plans import plan
from penstock.mechanisms.released import name_copy, name_refit
from penstock.mechanisms.tables import run as tables
from penstock.privacy.noise.sources import SecureNoise, permutation
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Column, Schema
from penstock.schema.encoding import Encoding
from penstock_server.simulate import cvd

Coded = dict[str, NDArray[np.float64]]
EPSILON, DELTA, Z = 3.0, 1e-5, 1.959964
MAF = Maf(copies=5, refits=6)
MECHANISMS: dict[str, Settings] = {"maf": MAF, "gibbs": Gibbs()}
PERSONS, ANSWERS = {"maf": 800, "gibbs": 2500}, 40
HORMONE = Estimand("hormone", "cox", "time", "hormone", adjust=("age", "nodes"))
CANCERS = Schema(
    (
        Column("age", "integer", 18, 95),
        Column("nodes", "integer", 0, 60, scale="log"),
        Column("hormone", "binary"),
        Column("time", "duration", upper=20, decimals=2, event="died"),
        Column("died", "event"),
    )
)


@dataclass(frozen=True, slots=True)
class Source:
    """Cohorts: ``draw`` gives one of n persons; ``runs``: of tables, which take their time."""

    schema: Schema
    question: Estimand
    truth: float
    draw: Callable[[np.random.Generator, int], Coded]
    runs: int


@cache
def sources() -> dict[str, Source]:
    """Those whose data are there."""

    def simulated(rng: np.random.Generator, n: int) -> Coded:
        rows = cvd.simulate(cvd.find("framingham-m"), rng, n=n)
        return {c: np.asarray(rows[c], dtype=np.float64) for c in cvd.schema().names}

    known = Source(cvd.schema(), cvd.estimand(), cvd.LOG_HR, simulated, 30)
    found = {"Framingham, simulated": known, "GBSG2": _table(_gbsg2(), 20)}
    elsewhere = Path(os.environ.get("PENSTOCK_TABLES", "."))
    for name in ("rotterdam.csv", "rotterdam.csv.gz"):
        if (elsewhere / name).exists():
            found["rotterdam"] = _table(_rotterdam(elsewhere / name), 10)
    return found


def _gbsg2() -> Coded:
    table = load_gbsg2()
    return {
        "age": table["age"].to_numpy(float),
        "nodes": table["pnodes"].to_numpy(float),
        "hormone": (table["horTh"] == "yes").to_numpy(float),
        "time": (table["time"].to_numpy(float) / 365.25).round(2),
        "died": table["cens"].to_numpy(float),
    }


def _rotterdam(path: Path) -> Coded:
    table = pd.read_csv(path)
    return {
        "age": table["age"].to_numpy(float),
        "nodes": table["nodes"].to_numpy(float),
        "hormone": table["hormon"].to_numpy(float),
        "time": (table["dtime"].to_numpy(float) / 365.25).round(2),
        "died": table["death"].to_numpy(float),
    }


def _table(table: Coded, runs: int) -> Source:
    size = len(table["age"])

    def draw(rng: np.random.Generator, n: int) -> Coded:
        chosen = rng.integers(size, size=n)
        return {name: values[chosen] for name, values in table.items()}

    truth = estimate(table, CANCERS, HORMONE).estimate
    return Source(CANCERS, HORMONE, truth, draw, runs)


@dataclass(frozen=True, slots=True)
class Answer:
    """One release's: against the cohort's own fit and the truth; rows and s.e. over the cohort's.

    ``plain``: s.e. without the mechanism's own noise; of an answer there is only the whole.
    """

    error: float
    off: float
    rows: float
    plain: float
    se: float


def one(job: tuple[str, str, int]) -> list[Answer]:
    """In a frame of n; of 2n; and of 2n as before, of a simulated cohort's tables."""
    name, kind, seed = job
    source, asked = sources()[name], MECHANISMS[kind]
    rng = np.random.default_rng([40_000 + seed, PERSONS[kind]])
    coded = source.draw(rng, PERSONS[kind])
    own = estimate(coded, source.schema, source.question).estimate
    found = [_answer(source, asked, coded, frame, own, rng) for frame in (1, 2)]
    if kind == "maf" and name == next(iter(sources())):
        with mock.patch.object(tables, "_kept", _all):
            found.append(_answer(source, replace(MAF, refits=0), coded, 2, own, rng))
    return found


def _all(*given: object) -> NDArray[np.intp]:
    """Rows for every place, as they once left."""
    _, _, z, _, noise = given
    return permutation(len(z), noise)  # type: ignore[arg-type]


def _answer(
    source: Source,
    asked: Settings,
    coded: Coded,
    frame: int,
    own: float,
    rng: np.random.Generator,
) -> Answer:
    schema, question, n = source.schema, source.question, len(coded[source.question.outcome])
    encoding, persons = Encoding(schema), frame * n
    x, there = encoding.encode(coded, rng)
    rows = np.zeros((persons, 1, encoding.d))
    present = np.zeros((persons, 1), dtype=np.bool_)
    rows[:n, 0], present[:n, 0] = x, there
    request = PrivacyRequest(EPSILON, min(DELTA, 1 / (10 * persons)))
    planned = plan(asked, schema, persons, request, (question,))
    parts = list(release(asked, planned, encoding, rows, present, SecureNoise()))
    if isinstance(asked, Gibbs):
        last = parts[0].columns
        value, variance = (float(last[c][-1]) for c in ("estimate", f"cov_{len(last['term'])}"))
        return Answer(value - own, value - source.truth, math.nan, math.nan, math.sqrt(variance))
    fits = {p.name: estimate(dict(p.columns), schema, question) for p in parts}
    copies = [fits[name_copy(i + 1)] for i in range(asked.copies)]
    refits = [fits[name_refit(i + 1)] for i in range(asked.refits)]
    plain = combine(copies)
    wide = widened(plain, spread(plain, refits, copies)) if refits else plain
    se = math.inf if wide.problem is not None else math.sqrt(wide.variance)
    return Answer(
        plain.estimate - own,
        plain.estimate - source.truth,
        len(parts[0].columns[question.outcome]) / n,
        math.sqrt(plain.variance),
        se,
    )


ARMS = ("frame n", "frame 2n", "frame 2n, as before")


def run() -> Path:
    """Measure."""
    jobs = [
        (name, kind, seed)
        for name, source in sources().items()
        for kind in MECHANISMS
        for seed in range(source.runs if kind == "maf" else ANSWERS)
    ]
    answers, rows = over_runs(one, jobs, "frame"), list[Row]()
    for name in sources():
        for kind in MECHANISMS:
            own = [a for a, job in zip(answers, jobs, strict=True) if job[:2] == (name, kind)]
            rows += _rows(f"{name}, {kind}", own)
    return write("frame", rows, (__doc__ or "").strip())


def _rows(what: str, runs: list[list[Answer]]) -> list[Row]:
    found: list[Row] = []
    for place, answers in enumerate(zip(*runs, strict=True)):
        label, r, before = f"{what}, {ARMS[place]}", len(answers), place == 2
        inside = float(np.mean([abs(a.off) <= Z * a.se for a in answers]))
        error = math.sqrt(0.95 * 0.05 / r)
        found.append(_median(f"abs. error, {label}", [abs(a.error) for a in answers]))
        if not before:
            found.append(_median(f"whole s.e., {label}", [a.se for a in answers]))
            held = inside >= 0.95 - 2 * error
            what_share = f"coverage of nominal 95 %, {label}"
            found.append(Row(what_share, inside, error, r, 0.95, holds=held))
        if not math.isnan(answers[0].plain):
            found.append(at_most(f"rows of a copy over n, {label}", [a.rows for a in answers]))
            found.append(_ratio(f"plain s.e., {label} over n", runs, place))
    return found


def _median(what: str, values: list[float]) -> Row:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return Row(what, float(middle), None, len(values), quartiles=(float(low), float(high)))


def _ratio(what: str, runs: list[list[Answer]], place: int) -> Row:
    """Meant to be 1, within a tenth; as before it was 1/√2."""
    row = at_most(what, [run[place].plain / run[0].plain for run in runs])
    wanted = place == 1
    holds = abs((row.ours or 0.0) - 1) <= 0.1 if wanted else None
    return Row(what, row.ours, row.se, row.n_runs, 1.0 if wanted else None, holds=holds)
