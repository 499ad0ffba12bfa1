"""Tables with a share of as many rows as their site has: do intervals hold the truth, and at what
price?

Sites of 4,000 persons from two worlds of the study of coverage (`coverage_cells.py`: a real table
and a frozen generator), each answered twice by `structured` with its defaults but for planted runs,
of which intervals know nothing: by whole tables, and by tables of 1,000 rows (`most_rows`). One
site alone, with what it has measured itself; the declared questions.

*Holds*: whether the 95 % interval holds the population's own answer; *peer* is that of the whole
tables. *Width*: the interval's over that of the site's real rows; *error*: the root mean squared
error over that of the rows' own answer; the whole tables' in both cases as peer.

PENSTOCK_SEEDS says how many sites of each world (80), PENSTOCK_ONLY which tables; resumable.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tests.studies.coverage_cells import (
    World,
    draw_site,
    find_truth,
    pose_questions,
    read_world,
)
from tests.studies.foreign_arms import seed_of
from tests.studies.kept import RELEASED, Answer, Store
from tests.studies.lni import over_runs
from tests.support.delivered import deliver
from tests.support.results import Row, write

from penstock.inference.pooling import quantile
from penstock.inference.refits import widen_sites
from penstock.mechanisms import Structured
from penstock.privacy.noise.sources import SeededNoise
from penstock.questions.estimation import estimate
from penstock_server.mechanisms.registry import kind_of
from penstock_server.mechanisms.tables.results import TableResults

SITES = int(os.environ.get("PENSTOCK_SEEDS", "80"))
WORLDS = (World("nwtco", 4000, 3.0), World("interactions", 4000, 1.0))
MOST, WHOLE = 1000, 0
"""Rows of a table, at most; and no such number."""

NORMAL = 1.959964


@dataclass(frozen=True, slots=True)
class Site:
    """One site of a world; most: rows of its tables."""

    world: World
    number: int
    most: int

    @property
    def key(self) -> str:
        return f"{self.world.key}/{self.most}/{self.number}"


def store() -> Store:
    own = ("fewer_rows", "coverage_cells", "foreign_generators", "foreign_tables", "foreign_real")
    fits = ("combine", "floored", "floor", "refits")
    files = [f"tests/studies/{name}.py" for name in own]
    inference = [f"shared/penstock/inference/{name}.py" for name in fits]
    return Store("fewer-rows", [*files, *inference, *RELEASED])


def run() -> Path:
    """Measure what is missing, and write all that there is."""
    there = [world for world in WORLDS if world.meant and read_world(world.table) is not None]
    jobs = [Site(w, i, most) for i in range(SITES) for w in there for most in (MOST, WHOLE)]
    kept = store().read()
    over_runs(keep_site, [job for job in jobs if job.key not in kept], "fewer-rows")
    kept = store().read()
    rows: list[Row] = []
    for world in there:
        given = {
            most: [kept[s.key] for s in jobs if s.world == world and s.most == most]
            for most in (MOST, WHOLE)
        }
        rows += _tell_world(world, given)
    return write("fewer-rows", rows, (__doc__ or "").strip())


def keep_site(site: Site) -> None:
    """Measure, and write down at once."""
    store().keep(site.key, measure_site(site))


def measure_site(site: Site) -> Answer:
    """Of each declared question: by how much its answer is off the truth, half its interval, and
    both of the rows' own."""
    world, table = site.world, read_world(site.world.table)
    if table is None:
        raise KeyError(world.table)
    asked, truth = pose_questions(world, table), find_truth(world)
    study = replace(asked.study, mechanism=Structured(planted=0, most_rows=site.most or None))
    seed = seed_of("capped", world.key, site.number)
    rng = np.random.default_rng(seed)
    own = draw_site(table, world.n, 0.0, rng)
    upload = deliver(study, own.rows, SeededNoise(seed), rng)
    told = TableResults(study, kind_of(study).refitting).measure(upload)
    [found] = widen_sites({"site": told}).values()
    answer: Answer = {}
    for name, estimand in asked.declared.items():
        one, real = found[estimand.name], estimate(own.rows, study.schema, estimand)
        if one.problem is None:
            half = quantile(0.95, one.df) * math.sqrt(one.variance)
            answer |= {f"{name}/off": one.estimate - truth[name], f"{name}/half": half}
            answer |= {f"{name}/real_off": real.estimate - truth[name]}
            answer |= {f"{name}/real_half": NORMAL * math.sqrt(real.variance)}
    return answer


def _tell_world(world: World, given: Mapping[int, list[Answer]]) -> Iterator[Row]:
    names = [key.removesuffix("/off") for key in given[WHOLE][0] if key.endswith("/off")]
    names = [name for name in names if not name.endswith("/real_off")]
    held: dict[int, list[float]] = {most: [] for most in given}
    for name in names:
        told = {most: _read(answers, name) for most, answers in given.items()}
        label, n = f"{name}, {world}", len(told[MOST])
        holds = {most: np.abs(one[:, 0]) <= one[:, 1] for most, one in told.items()}
        for most in given:
            held[most] += holds[most].tolist()
        width = {most: float(np.median(one[:, 1] / one[:, 3])) for most, one in told.items()}
        error = {most: _root(one[:, 0]) / _root(one[:, 2]) for most, one in told.items()}
        share = float(holds[MOST].mean())
        se = math.sqrt(max(share * (1 - share), 1 / n) / n)
        yield Row(f"holds: {label}", share, se, n, peer=float(holds[WHOLE].mean()))
        yield Row(f"width: {label}", width[MOST], None, n, peer=width[WHOLE])
        yield Row(f"error: {label}", error[MOST], None, n, peer=error[WHOLE])
    share, n = float(np.mean(held[MOST])), len(held[MOST])
    # Answers of one site are not independent of each other: an error that is too small.
    se = math.sqrt(share * (1 - share) / n)
    reached = abs(share - 0.95) <= 0.02 + 2 * se
    whole = float(np.mean(held[WHOLE]))
    yield Row(f"holds: all questions, {world}", share, se, n, 0.95, peer=whole, holds=reached)


def _read(answers: list[Answer], name: str) -> np.ndarray:
    fields = ("off", "half", "real_off", "real_half")
    return np.array([[a[f"{name}/{f}"] for f in fields] for a in answers if f"{name}/off" in a])


def _root(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))
