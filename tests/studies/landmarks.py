"""Landmarks: what is asked of persons from a time on, or at one, of `trajectory`'s tables.

Simulated: the panels of `ended`, five visits and death, whose hazard rises with the last measured
`bnp`. Real: persons of R's `pbcseq` drawn with replacement, six time points and death; absent where
PENSTOCK_TABLES does not have it. 1 000 and 4 000 persons, ε = 3, δ = 1e-5, ten copies and ten
refits, one site. The truth is that of 400 000 simulated persons, or of `pbcseq` itself.

Of each question: the share of 95 % intervals that miss the truth (beside it, as peer, of those that
cohorts have without privacy); the bias, in standard errors that cohorts have; the share of releases
at which the report marks the answer as attenuated or not held; and the width of the interval over
that without privacy (median). A hazard and a survival are of those in follow-up at the landmark, by
covariates as last seen; a logistic model is of the outcome at a later visit. PENSTOCK_SEEDS says
how many seeds (40).
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
from tests.studies import ended
from tests.studies.lni import over_runs
from tests.support.carried_out import release
from tests.support.results import Row, at_most, write

from penstock.inference.combine import combine
from penstock.inference.doubts import mark_doubt
from penstock.inference.floored import choose_rows, estimate_floored
from penstock.inference.pooling import quantile
from penstock.inference.posed import pose_copies
from penstock.inference.refits import Measured, spread, widen_sites
from penstock.inference.slopes import Mark
from penstock.inference.tails import doubt_estimates
from penstock.mechanisms import Trajectory
from penstock.mechanisms.plans import plan
from penstock.mechanisms.released import name_copy, name_refit
from penstock.mechanisms.trajectory.follow_up import follow_up_of
from penstock.mechanisms.trajectory.followed import Followed
from penstock.mechanisms.trajectory.histories import order_persons, read_courses
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import Estimate
from penstock.schema import Coded, Schema
from penstock.schema.encoding import Encoding

Job = tuple[str, int, int]
Answers = dict[str, dict[str, float]]
COPIES, REFITS, MANY = 10, 10, 400_000
SIZES = (4000, 1000)
SIMULATED = (
    Estimand("hazard", "cox", "years", "oedema"),
    Estimand("hazard-from-1", "cox", "years", "oedema", at=1),
    Estimand("hazard-from-2", "cox", "years", "oedema", adjust=("male",), at=2),
    Estimand("hazard-from-2-by-ldl", "cox", "years", "ldl", at=2),
    Estimand("hazard-from-2-by-bnp", "cox", "years", "bnp", per=100, at=2),
    Estimand("survival-from-2-to-4", "survival", "years", at=2, until=4),
    Estimand("oedema-at-3-by-ldl-at-1", "logistic", "oedema", "ldl", at=1, until=3),
    Estimand("sbp-by-pulse-at-2", "ols", "sbp", "pulse", per=10, at=2),
    Estimand("mean-sbp-at-3", "mean", "sbp", at=3),
    Estimand("median-bnp-at-3", "quantile", "bnp", at=3, probability=0.5),
    Estimand("upper-bnp-at-3", "quantile", "bnp", at=3, probability=0.9),
)
REAL = (
    Estimand("hazard", "cox", "days", "bili"),
    Estimand("hazard-from-550", "cox", "days", "bili", at=550),
    Estimand("hazard-from-550-adjusted", "cox", "days", "albumin", adjust=("bili",),
             at=550),
    Estimand("hazard-from-550-by-albumin", "cox", "days", "albumin", at=550),
    Estimand("survival-from-550-to-2000", "survival", "days", at=550, until=2000),
    Estimand("mean-albumin-at-3", "mean", "albumin", at=3),
    Estimand("median-bili-at-3", "quantile", "bili", at=3, probability=0.5),
)  # fmt: skip


def lay_rows(cohort: Followed, schema: Schema, how: Trajectory) -> Coded:
    """A cohort as a released table has it: visits until the end, the latest persons first."""
    read = follow_up_of(how, schema)
    if read is not None:
        cohort = read.cut(cohort)
    who, when = np.nonzero(cohort.there)
    order = order_persons(who, when)
    who, when = who[order], when[order]
    found = {name: values[who, when] for name, values in cohort.varying.items()}
    found |= {name: values[who] for name, values in cohort.constants.items()}
    return found | {how.time: when * 1.0}


def ask(estimand: Estimand, schema: Schema, how: Trajectory, table: Coded) -> Estimate:
    """As a report has it."""
    return estimate_floored(schema, estimand, table, partial(read_courses, how, schema))


def asked_of(source: str) -> tuple[Estimand, ...]:
    return SIMULATED if source == "simulated" else REAL


@cache
def truth(source: str) -> dict[str, float]:
    """Of as many persons as leave no doubt, or of the table itself."""
    panel = ended.simulate(MANY, np.random.default_rng(99)) if source == "simulated" else real()
    cohort, schema, how = panel
    table = lay_rows(cohort, schema, how)
    return {e.name: ask(e, schema, how, table).estimate for e in asked_of(source)}


def real() -> ended.Panel:
    found = ended.real()
    if found is None:
        raise ValueError("the table is absent")
    return found


def draw(source: str, n: int, rng: np.random.Generator) -> ended.Panel:
    """A cohort of n persons."""
    if source == "simulated":
        return ended.simulate(n, rng)
    cohort, schema, how = real()
    chosen = rng.integers(0, len(cohort.there), n)
    return (
        Followed(
            cohort.there[chosen],
            {name: x[chosen] for name, x in cohort.varying.items()},
            {name: x[chosen] for name, x in cohort.constants.items()},
        ),
        schema,
        how,
    )


def release_tables(panel: ended.Panel, seed: int) -> list[Coded]:
    """Copies, then refits."""
    cohort, schema, how = panel
    how = replace(how, copies=COPIES, refits=REFITS, particles=2, paths=1, path_times=2)
    n, visits = shape = cohort.there.shape
    encoding, rng = Encoding(schema), np.random.default_rng(seed)
    flat = {name: np.where(cohort.there, x, np.nan).ravel() for name, x in cohort.varying.items()}
    flat |= {name: np.repeat(x, visits) for name, x in cohort.constants.items()}
    flat[how.time] = np.tile(np.arange(visits) * 1.0, n)
    rows, present = encoding.encode(flat, rng)
    made = plan(how, schema, n, PrivacyRequest(ended.panels.EPSILON, ended.panels.DELTA))
    there = present.reshape(shape) & cohort.there
    parts = release(how, made, encoding, rows.reshape(*shape, -1), there, SeededNoise(seed))
    by_name = {part.name: dict(part.columns) for part in parts}
    names = [name_copy(i + 1) for i in range(COPIES)] + [name_refit(i + 1) for i in range(REFITS)]
    return [{name: np.asarray(x, float) for name, x in by_name[part].items()} for part in names]


def work(job: Job) -> Answers:
    """Of one cohort and its release: each question's estimate, error and reach, beside the
    cohort's own."""
    source, n, seed = job
    panel = draw(source, n, np.random.default_rng([seed, n, 3]))
    cohort, schema, how = panel
    own = lay_rows(cohort, schema, how)
    tables = release_tables(panel, seed)
    found, plain = {}, {}
    for estimand in asked_of(source):
        fits = [ask(estimand, schema, how, table) for table in tables]
        copies, refits = fits[:COPIES], fits[COPIES:]
        combined = combine(copies)
        found[estimand.name] = Measured(combined, REFITS, spread(combined, refits, copies))
        plain[estimand.name] = ask(estimand, schema, how, own)
    wide = widen_sites({"here": found})["here"]

    def choose(estimand: Estimand, table: Coded) -> tuple[Estimand, Coded]:
        return choose_rows(schema, partial(read_courses, how, schema), estimand, table)

    posed = pose_copies(schema, asked_of(source), tables[:COPIES], choose)
    doubts = doubt_estimates(schema, posed).estimands
    return {
        name: {
            "estimate": e.estimate,
            "half": quantile(0.95, e.df) * math.sqrt(e.variance),
            "own": plain[name].estimate,
            "own_half": quantile(0.95, None) * math.sqrt(plain[name].variance),
            "marked": float(mark_doubt(doubts.get(name, 0.0)) is not Mark.HELD),
        }
        for name, e in wide.items()
    }


def measure(source: str, n: int, answers: list[Answers]) -> list[Row]:
    rows = []
    for estimand in asked_of(source):
        name, real_value = estimand.name, truth(source)[estimand.name]
        mine = [a[name] for a in answers if math.isfinite(a[name]["half"])]
        where = f"{name}: {source}, n = {n}"
        if not mine:
            continue
        missed = [float(abs(a["estimate"] - real_value) > a["half"]) for a in mine]
        bias = [(a["estimate"] - real_value) / (a["own_half"] / 1.96) for a in mine]
        own = [float(abs(a["own"] - real_value) > a["own_half"]) for a in mine]
        width = float(np.median([a["half"] / a["own_half"] for a in mine]))
        rows += [
            at_most(f"intervals that miss, {where}", missed, peer=float(np.mean(own))),
            at_most(f"bias, in standard errors, {where}", bias),
            at_most(f"marked, {where}", [a["marked"] for a in mine]),
            at_most(f"width over that without privacy, {where}", [width]),
        ]
    return rows


def run() -> Path:
    """All cells; those of the table are left out where it is absent."""
    seeds = int(os.environ.get("PENSTOCK_SEEDS", "40"))
    sources = ("simulated", "pbcseq") if ended.real() is not None else ("simulated",)
    cells = [(source, n) for source in sources for n in SIZES]
    jobs: list[Job] = [(*cell, seed) for cell in cells for seed in range(seeds)]
    found = dict(zip(jobs, over_runs(work, jobs, "landmarks", lambda job: job[1]), strict=True))
    rows = [
        row
        for source, n in cells
        for row in measure(source, n, [found[source, n, seed] for seed in range(seeds)])
    ]
    return write("landmarks", rows, (__doc__ or "").strip())
