"""One release of many sites beside a release of each: the same questions, the same ε for everybody.

Sites are made by drawing the persons of one real table (`foreign_real.py`), with replacement: they
share its effects. *Alike*, every person is as likely at every site; *unlike*, each site prefers the
old or the young, by weights of exp(a·z) with z their standardised age and a of N(0, ½²) for each
site. Twelve sites have the sizes of a real trial's (`foreign_sites.py`), four have 1,500 persons
each, and fifty have 500. One study asks `scoring` for the named coefficients of one model, each
adjusted for the others.

*apart*: each site answers with noise of its own, and answers are pooled. *joint*: one release, of
sums to which each site adds its share of the noise; sites are strata. t and c are how many may drop
out and collude: with t = c = 0 a sum has the noise of one place with all rows, else √(S/(S-t-c))
times as much. Here all rows stand in one place, and are asked with that noise: that sums over
sites are the same numbers is a law (`tests/laws/test_joint.py`).

*Width*: the interval's half-width over that of a stratified fit to all rows without privacy. *Off*:
the estimate less that fit's, in the mechanism's own standard errors (root mean square: 1 where
these are right). *Holds*: whether the interval holds the table's own coefficient. Long tails
(nodes) are an answer's weak point, joint or not.

PENSTOCK_SEEDS says how many draws (4), PENSTOCK_ONLY which tables.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tests.studies.foreign_arms import seed_of
from tests.studies.foreign_real import read_table
from tests.studies.foreign_sites import FIVE, SIZES
from tests.studies.foreign_tables import Table, estimands
from tests.studies.lni import over_runs
from tests.support.carried_out import release
from tests.support.results import Row, write

from penstock.base.errors import Hopeless
from penstock.inference.pooling import pool
from penstock.mechanisms import MECHANISMS, Scoring
from penstock.mechanisms.joint.consortium import Consortium
from penstock.mechanisms.joint.plan import plan_jointly
from penstock.mechanisms.protocol import Asked, Plan
from penstock.mechanisms.released import COVARIANCE, ESTIMATE, NOISE
from penstock.mechanisms.scoring.blocks import find_places
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Coded
from penstock.schema.encoding import Encoding

SEEDS = int(os.environ.get("PENSTOCK_SEEDS", "4"))
ONLY = tuple(filter(None, os.environ.get("PENSTOCK_ONLY", "").split(",")))
TABLES = ("colon", "adult", "rotterdam")
GROUPS = {"four": (1500,) * 4, "twelve": SIZES, "fifty": (500,) * 50}
EPSILONS = (3.0, 1.0)
LOST = ((0, 0), (1, 1))
_PREFERS, _NORMAL = 0.5, 1.959964


@dataclass(frozen=True, slots=True)
class Job:
    """One draw of all sites of a table."""

    table: str
    group: str
    alike: bool
    seed: int


@dataclass(frozen=True, slots=True)
class Told:
    """An estimate, per the estimand's units, its variance, and the mechanism's part of that."""

    estimate: float
    variance: float
    noise: float


Found = dict[str, tuple[float, float, float]]
"""Width, off and holds, by ``arm/ε/coefficient``."""


def run() -> Path:
    """Measure, and write what was found."""
    there = [n for n in TABLES if (not ONLY or n in ONLY) and read_table(n) is not None]
    cells = [(n, g, a) for n in there for g in GROUPS for a in (True, False)]
    jobs = [Job(*cell, seed) for seed in range(SEEDS) for cell in cells]
    found = over_runs(measure, jobs, "global")
    rows: list[Row] = []
    for name, group, alike in cells:
        of = [
            f
            for j, f in zip(jobs, found, strict=True)
            if (j.table, j.group, j.alike) == (name, group, alike)
        ]
        rows += _list_rows(f"{name}, {group} sites{'' if alike else ' unlike'}", of)
    return write("global", rows, (__doc__ or "").strip())


def _list_rows(label: str, of: Sequence[Found]) -> Iterator[Row]:
    for key in of[0]:
        arm, epsilon, name = key.split("/")
        values = np.array([one[key] for one in of if key in one])
        what, count = f"{name}, {label}, ε = {epsilon}, {arm}", len(values)
        error = float(np.std(values[:, 0], ddof=1)) / math.sqrt(count) if count > 1 else None
        yield Row(f"width, {what}", float(np.mean(values[:, 0])), error, count)
        yield Row(f"off, {what}", float(np.sqrt(np.mean(values[:, 1] ** 2))), None, count)
        yield Row(f"holds, {what}", float(np.mean(values[:, 2])), None, count)


def measure(job: Job) -> Found:
    """One draw of all sites."""
    table, sizes = _read(job.table), GROUPS[job.group]
    asked = tuple(estimands(table))
    truth = [estimate(table.rows, table.schema, each).estimate for each in asked]
    rng = np.random.default_rng([job.seed, len(sizes), job.alike])
    sites = [_draw(table, size, job.alike, rng) for size in sizes]
    names = tuple(f"s{number:02d}" for number in range(1, len(sizes) + 1))
    together = {n: np.concatenate([site.rows[n] for site in sites]) for n in table.rows}
    together["site"] = np.repeat(np.arange(float(len(sizes))), sizes)
    found: Found = {}
    for epsilon in EPSILONS:
        given = Asked(
            Scoring(), table.suggested(), PrivacyRequest(epsilon, 1e-5 / len(sizes)), asked
        )
        seed = seed_of(job.table, job.group, f"{epsilon:g}", job.alike, job.seed)
        arms = {"apart": _answer_apart(given, sites, seed)}
        for number, (dropouts, colluders) in enumerate(LOST):
            group = Consortium(names, sizes, dropouts, colluders)
            plan = plan_jointly(MECHANISMS.of(given.settings), given, group)
            arm = f"joint, t = {dropouts}, c = {colluders}"
            arms[arm] = _answer(plan.asked, plan.carried, together, seed + number + 1)
            joined = plan.asked
        for at, (name, each) in enumerate(zip(table.named, joined.estimands, strict=True)):
            whole = estimate(together, joined.schema, each)
            for arm, told in arms.items():
                if not told:
                    continue
                one = told[at]
                holds = abs(one.estimate - truth[at]) <= _NORMAL * math.sqrt(one.variance)
                found[f"{arm}/{epsilon:g}/{name}"] = (
                    math.sqrt(one.variance / whole.variance),
                    (one.estimate - whole.estimate) / math.sqrt(one.noise),
                    float(holds),
                )
    return found


def _read(name: str) -> Table:
    found = read_table(name)
    if found is None:
        raise KeyError(name)
    return replace(found, named=FIVE.get(name, found.named), products=())


def _draw(table: Table, size: int, alike: bool, rng: np.random.Generator) -> Table:
    if alike:
        return table.take(rng.integers(0, table.n, size))
    age = table.rows["age"]
    weights = np.exp(_PREFERS * rng.standard_normal() * (age - age.mean()) / age.std())
    return table.take(rng.choice(table.n, size, p=weights / weights.sum()))


def _answer_apart(given: Asked[Scoring], sites: Sequence[Table], seed: int) -> list[Told]:
    """Pooled answers of sites of which each has the whole ε; of those that would answer."""
    mechanism, told = MECHANISMS.of(given.settings), list[list[Told]]()
    for number, site in enumerate(sites):
        plan = mechanism.plan(given, site.n)
        try:
            mechanism.require_worth(given, plan)
        except Hopeless:
            continue
        told.append(_answer(given, plan, site.rows, seed_of(seed, number)))
    if len(told) < 2:
        return []
    found = []
    for answers in zip(*told, strict=True):
        one = pool([a.estimate for a in answers], [a.variance for a in answers], method="dl")
        weights = np.array(one.weights)
        share = weights / weights.sum()
        noise = float(share**2 @ [a.noise for a in answers])
        found.append(Told(one.estimate, one.se**2, noise))
    return found


def _answer(given: Asked[Scoring], plan: Plan, rows: Coded, seed: int) -> list[Told]:
    encoding, asked = Encoding(given.schema), given.estimands
    encoded, there = encoding.encode(rows, np.random.default_rng([seed, 1]))
    part, *_ = release(
        Scoring(), plan, encoding, encoded[:, None], there[:, None], SeededNoise(seed)
    )
    places = find_places(given.schema, asked)
    return [_tell(part.columns, e, places[e.name]) for e in asked]


def _tell(columns: Coded, estimand: Estimand, at: int) -> Told:
    def variance(name: str) -> float:
        return float(np.asarray(columns[name.format(at + 1)])[at]) * estimand.per**2

    found = float(np.asarray(columns[ESTIMATE])[at]) * estimand.per
    return Told(found, variance(COVARIANCE), variance(NOISE))
