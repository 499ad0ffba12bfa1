"""How far sites differ, as one release of all of them tells it: each site's own coefficients, one
step from those of all, beside a fit of each site's raw rows.

Twelve sites of a real trial's sizes (`foreign_sites.py`) are drawn from one real table, with
replacement (`joint_sites.py`). *Alike*: all share its effects. *Planted*: each row of site s is
drawn with weight exp(d_s z y), z its standardised value of each numeric covariate that is asked for
and y its binary outcome, which adds d_s to its coefficient per sd; d_s is of N(0, τ²). What is true
of a site is a fit of 400,000 rows of its law: of a table that no logistic model holds for, that is
not the table's coefficient and d_s.

*Sites hold*: of sites that are told, how many intervals hold the site's own true coefficient.
*Known*: the share of sites that are told at all. *Q*: Cochran's Q over its degrees of freedom, 1
where sites are alike. *τ²* (DerSimonian and Laird): its mean, of numbers per sd; *raw* is what the
sites' raw rows say. *Mean holds*: whether the random-effects interval holds the mean of
all sites' true effects. *Price*: how much wider the
interval of all sites' effect is than where sites are not asked.

PENSTOCK_SEEDS says how many draws (4), PENSTOCK_ONLY which tables.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tests.studies.foreign_arms import seed_of
from tests.studies.foreign_sites import SIZES
from tests.studies.foreign_tables import Table, estimands
from tests.studies.joint_sites import _read
from tests.studies.lni import over_runs
from tests.support.carried_out import release
from tests.support.results import Row, write

from penstock.inference.pooling import pool
from penstock.mechanisms import MECHANISMS, Scoring
from penstock.mechanisms.joint.consortium import Consortium
from penstock.mechanisms.joint.plan import plan_jointly
from penstock.mechanisms.protocol import Asked, Settings
from penstock.mechanisms.released import ADDED, COVARIANCE, ESTIMATE, VARIANCE
from penstock.mechanisms.scoring.blocks import find_places
from penstock.mechanisms.scoring.divisible import list_apart
from penstock.mechanisms.scoring.regressions import list_regressions
from penstock.mechanisms.widths import MOST_WIDE
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimation import estimate
from penstock.schema import NUMBER_KINDS
from penstock.schema.encoding import Encoding

SEEDS = int(os.environ.get("PENSTOCK_SEEDS", "4"))
ONLY = tuple(filter(None, os.environ.get("PENSTOCK_ONLY", "").split(",")))
TABLES, EPSILONS, TIMES = ("colon", "adult", "rotterdam"), (3.0,), (1, 8)
PLANTED = {"colon": (0.0,), "adult": (0.0, 0.3), "rotterdam": (0.0,)}
_NORMAL, _TRUTH_ROWS = 1.959964, 400_000
_KEYS = ("known", "sites hold", "raw hold", "Q", "raw Q", "τ²", "raw τ²", "mean holds", "price")
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Job:
    """One draw of all sites of a table, each so many times as large, with τ planted."""

    table: str
    times: int
    tau: float
    seed: int


Found = dict[str, list[float]]


def run() -> Path:
    """Measure, and write what was found."""
    there = [name for name in TABLES if not ONLY or name in ONLY]
    cells = [(n, times, tau) for n in there for times in TIMES for tau in PLANTED[n]]
    jobs = [Job(*cell, seed) for seed in range(SEEDS) for cell in cells]
    found = over_runs(measure, jobs, "heterogeneity")
    rows: list[Row] = []
    for name, times, tau in cells:
        of = [
            f
            for j, f in zip(jobs, found, strict=True)
            if (j.table, j.times, j.tau) == (name, times, tau)
        ]
        label = f"{name}, sites × {times}, {f'τ = {tau:g} planted' if tau else 'alike'}"
        rows += _list_rows(label, of)
    return write("heterogeneity", rows, (__doc__ or "").strip())


def _list_rows(label: str, of: Sequence[Found]) -> list[Row]:
    rows = []
    for epsilon in EPSILONS:
        for key in _KEYS:
            values = [v for one in of for v in one.get(f"{key}/{epsilon:g}", [])]
            if values:
                name = f"{key}, {label}, ε = {epsilon:g}"
                rows.append(Row(name, float(np.mean(values)), None, len(values)))
    return rows


def measure(job: Job) -> Found:
    """One draw."""
    table = _read(job.table)
    asked = tuple(estimands(table))
    rng = np.random.default_rng([job.seed, job.times, round(1000 * job.tau)])
    sizes = tuple(size * job.times for size in SIZES)
    chances = _plant(table, len(sizes), job.tau, rng)
    sites = [
        table.take(rng.choice(table.n, size, p=chance))
        for size, chance in zip(sizes, chances, strict=True)
    ]
    worlds = [
        table.take(rng.choice(table.n, _TRUTH_ROWS, p=chance)) if job.tau else table
        for chance in chances
    ]
    names = tuple(f"s{number:02d}" for number in range(1, len(sizes) + 1))
    together = {n: np.concatenate([site.rows[n] for site in sites]) for n in table.rows}
    together["site"] = np.repeat(np.arange(float(len(sizes))), sizes)
    truths = {
        id(world): [estimate(world.rows, table.schema, each).estimate for each in asked]
        for world in {id(world): world for world in worlds}.values()
    }
    found: Found = {}
    for epsilon in EPSILONS:
        request = PrivacyRequest(epsilon, 1e-5 / len(sizes))
        given: Asked[Settings] = Asked(Scoring(), table.suggested(), request, asked)
        seed = seed_of(job.table, job.times, f"{epsilon:g}", f"{job.tau:g}", job.seed)
        variances = []
        for heterogeneity in (False, True):
            group = Consortium(names, sizes, heterogeneity=heterogeneity)
            plan = plan_jointly(MECHANISMS.of(given.settings), given, group)
            encoding = Encoding(plan.asked.schema)
            encoded, present = encoding.encode(together, np.random.default_rng([seed, 1]))
            rows = (encoded[:, None], present[:, None])
            whole, *more = release(Scoring(), plan.carried, encoding, *rows, SeededNoise(seed))
            places = find_places(plan.asked.schema, plan.asked.estimands)
            variances.append(
                [
                    float(np.asarray(whole.columns[COVARIANCE.format(p + 1)])[p])
                    for p in places.values()
                ]
            )
        [apart] = more
        order = list_apart(plan.asked.schema, plan.asked.estimands, "site")
        [regression] = list_regressions(plan.asked.schema, plan.asked.estimands)
        for at, each in enumerate(asked):
            mine = [k for k, (_, p, _) in enumerate(order) if p == regression.asked[each.name]]
            y, v, added = (np.asarray(apart.columns[n])[mine] for n in (ESTIMATE, VARIANCE, ADDED))
            unit = float(np.std(table.rows[each.term])) if each.level is None else 1.0
            own = np.array([truths[id(world)][at] for world in worlds]) / each.per
            told = v <= MOST_WIDE**2 * (v - added)
            values = {
                "known": told.astype(float).tolist(),
                "sites hold": (abs(y - own) <= _NORMAL * np.sqrt(v))[told].astype(float).tolist(),
                "price": [math.sqrt(variances[1][at] / variances[0][at])],
            }
            raw = [estimate(site.rows, table.schema, each) for site in sites]
            fits = [(r.estimate / each.per, r.variance / each.per**2) for r in raw]
            plain = pool(*np.array(fits).T, method="dl")
            off = np.array([found for found, _ in fits]) - own
            errors = np.sqrt([v for _, v in fits])
            values["raw hold"] = (abs(off) <= _NORMAL * errors).astype(float).tolist()
            values |= {"raw Q": [plain.q / plain.q_df], "raw τ²": [plain.tau2 * unit**2]}
            if told.sum() > 2:
                pooled = pool(y[told], v[told], method="dl")
                values |= {
                    "Q": [pooled.q / pooled.q_df],
                    "τ²": [pooled.tau2 * unit**2],
                    "mean holds": [float(pooled.ci_low <= own.mean() <= pooled.ci_high)],
                }
            for key, numbers in values.items():
                found.setdefault(f"{key}/{epsilon:g}", []).extend(numbers)
    return found


def _plant(table: Table, sites: int, tau: float, rng: np.random.Generator) -> Array:
    """(sites, n) how likely each row of the table is at each site."""
    log = np.zeros((sites, table.n))
    if tau:
        for each in estimands(table):
            if table.schema[each.term].kind in NUMBER_KINDS:
                x = table.rows[each.term]
                shifts = tau * rng.standard_normal(sites)
                log += shifts[:, None] * ((x - x.mean()) / x.std() * table.rows[table.outcome])
    weights = np.exp(log - log.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
