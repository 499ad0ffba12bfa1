"""Counts, rates and contingency tables of sites that nobody here simulated: does a site's interval
hold what it is of, and how wide is it?

A site of n persons is drawn with replacement from one real table (`foreign_real.py`), and answers
one study with one whole ε (δ = 1e-5): by `scoring`, and by tables of `structured` with all their
refits. A count is held against the site's own rows, of which it is; a rate and a share of a cell
against the whole table, from which the site was drawn. Dictionaries are as `site check` suggests.

*Holds*: how often the 95 % interval does, .93 to .97. *Width*: its half-width over that without
privacy; of a count, which has none then, over that of sampling as many rows, for comparison. The
questions are asked together, and share the budget.

PENSTOCK_SEEDS says how many sites of each size (40 of tables, five times as many of answers),
PENSTOCK_ONLY of which table.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from tests.studies.foreign_arms import seed_of
from tests.studies.foreign_real import read_table
from tests.studies.foreign_tables import Table
from tests.studies.lni import over_runs
from tests.support import made
from tests.support.carried_out import release
from tests.support.results import Row, write

from penstock.inference.combine import SiteEstimate
from penstock.inference.floored import estimate_floored
from penstock.inference.pooling import quantile
from penstock.inference.refits import Measured, widen_sites
from penstock.mechanisms import MECHANISMS, Scoring, Settings, Structured
from penstock.mechanisms.parts import Part
from penstock.mechanisms.plans import plan
from penstock.mechanisms.released import COVARIANCE, ESTIMATE, Refitting, name_copy, name_refit
from penstock.mechanisms.scoring.blocks import find_places
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Coded, Schema
from penstock.schema.encoding import Encoding
from penstock_server.mechanisms.registry import kind_of

SEEDS = int(os.environ.get("PENSTOCK_SEEDS", "40"))
ONLY = tuple(filter(None, os.environ.get("PENSTOCK_ONLY", "").split(",")))
SIZES, EPSILONS = (500, 2000), (1.0, 3.0)
MECHANISMS_USED: dict[str, tuple[Settings, int]] = {
    "scoring": (Scoring(), 5),
    "structured": (Structured(planted=0), 1),
}

ASKED: dict[str, tuple[Estimand, ...]] = {
    "rotterdam": (
        Estimand("level", "count", "size", outcome_level=">50"),
        Estimand("beyond", "count", "nodes", threshold=3, direction="above"),
        Estimand("events", "count", "time", until=1826, where="hormon == '1'"),
        Estimand("rate", "rate", "time", per=3652),
        Estimand("early", "rate", "time", per=3652, until=1826),
        Estimand("cell", "table", "size", term="grade3", level="1", outcome_level="20-50"),
        Estimand("chemo", "table", "size", term="chemo[1]:meno[0]", outcome_level="20-50"),
    ),
    "nwtco": (
        Estimand("level", "count", "stage", outcome_level="IV"),
        Estimand("beyond", "count", "age", threshold=60, direction="above"),
        Estimand("events", "count", "time", until=1826),
        Estimand("rate", "rate", "time", per=3652),
        Estimand("early", "rate", "time", per=3652, until=365),
        Estimand("cell", "table", "stage", term="unfavourable", level="1", outcome_level="I"),
    ),
}


@dataclass(frozen=True, slots=True)
class Job:
    """One site, answered by one mechanism at one ε."""

    table: str
    mechanism: str
    persons: int
    epsilon: float
    seed: int


Found = dict[str, tuple[float, float]]
"""Of each estimand whether the interval holds the truth (1, 0, NaN: none), and its width."""


def run() -> Path:
    """Measure, and write what was found."""
    there = [name for name in ASKED if (not ONLY or name in ONLY) and read_table(name) is not None]
    cells = [
        (name, mechanism, n, e)
        for name in there
        for mechanism in MECHANISMS_USED
        for n in SIZES
        for e in EPSILONS
    ]
    jobs = [
        Job(*cell, seed) for cell in cells for seed in range(SEEDS * MECHANISMS_USED[cell[1]][1])
    ]
    found = over_runs(measure, jobs, "counts")
    rows: list[Row] = []
    for cell in cells:
        of = [
            f
            for j, f in zip(jobs, found, strict=True)
            if (j.table, j.mechanism, j.persons, j.epsilon) == cell
        ]
        name, mechanism, n, epsilon = cell
        label = f"{name}, {mechanism}, n = {n}, ε = {epsilon:g}"
        for asked in ASKED[name]:
            rows += _list_rows(f"{asked.name}, {label}", [f[asked.name] for f in of])
    return write("counts", rows, (__doc__ or "").strip())


def _list_rows(label: str, of: list[tuple[float, float]]) -> Iterator[Row]:
    known = np.array([one for one in of if not math.isnan(one[1])])
    if not len(known):
        yield Row(f"without an answer, {label}", float(len(of)), None, len(of))
        return
    share, n = float(known[:, 0].mean()), len(known)
    error = math.sqrt(max(share * (1 - share), 1 / n) / n)
    holds = 0.93 - 2 * error <= share <= 0.97 + 2 * error
    yield Row(f"intervals that hold it, {label}", share, error, n, 0.95, holds=holds)
    yield Row(f"width, {label}", float(np.median(known[:, 1])), None, n)


def measure(job: Job) -> Found:
    """One site. A pure function of the job."""
    table, asked = _read(job.table), ASKED[job.table]
    seed = seed_of(job.table, f"{job.mechanism} {job.epsilon:g}", job.seed, job.persons)
    site = table.take(np.random.default_rng([seed, 2]).integers(0, table.n, job.persons))
    schema, settings = table.suggested(), MECHANISMS_USED[job.mechanism][0]
    told = answer(settings, schema, site.rows, asked, job.epsilon, seed)
    found: Found = {}
    for each in asked:
        own, one = estimate(site.rows, schema, each), told[each.name]
        of = own if each.regression.total else estimate(table.rows, schema, each)
        half = quantile(0.95, one.df) * math.sqrt(one.variance)
        holds = abs(one.estimate - of.estimate) <= half
        found[each.name] = (float(holds), half / (1.959964 * math.sqrt(own.variance)))
    return found


def _read(name: str) -> Table:
    found = read_table(name)
    if found is None:
        raise KeyError(name)
    return found


def answer(
    settings: Settings,
    schema: Schema,
    rows: Coded,
    asked: tuple[Estimand, ...],
    epsilon: float,
    seed: int,
) -> dict[str, SiteEstimate]:
    """What the report knows of each estimand at one site."""
    persons, encoding = len(next(iter(rows.values()))), Encoding(schema)
    planned = plan(settings, schema, persons, PrivacyRequest(epsilon, 1e-5), asked)
    encoded, there = encoding.encode(rows, np.random.default_rng([seed, 1]))
    given = (encoding, encoded[:, None], there[:, None], SeededNoise(seed))
    parts = release(settings, planned, *given)
    if MECHANISMS.of(settings).tells_estimates:
        [part] = parts
        return {e.name: _read_answer(part, find_places(schema, asked)[e.name], e) for e in asked}
    tables = _gather(parts)
    copies = [tables[name_copy(i + 1)] for i in range(settings.copies)]
    refits = [tables[name_refit(i + 1)] for i in range(settings.refits)]
    study = made.study(settings, schema=schema, estimands=asked)
    how = kind_of(study).refitting
    found = {e.name: _measure(schema, e, copies, refits, how) for e in asked}
    return widen_sites({"site": found})["site"]


def _read_answer(part: Part, at: int, asked: Estimand) -> SiteEstimate:
    value = float(np.asarray(part.columns[ESTIMATE])[at]) * asked.factor
    variance = float(np.asarray(part.columns[COVARIANCE.format(at + 1)])[at]) * asked.factor**2
    return SiteEstimate(value, variance, variance, None, None, None, 1, 1)


def _gather(parts: Iterator[Part]) -> dict[str, Coded]:
    found = {}
    for name, pieces in groupby(parts, key=lambda part: part.name):
        held = [piece.columns for piece in pieces]
        found[name] = {key: np.concatenate([h[key] for h in held]) for key in held[0]}
    return found


def _measure(
    schema: Schema, asked: Estimand, copies: list[Coded], refits: list[Coded], how: Refitting
) -> Measured:
    fitted, again = (
        [estimate_floored(schema, asked, table) for table in tables] for tables in (copies, refits)
    )
    return Measured.of(fitted, again, made=how, total=asked.regression.total)
