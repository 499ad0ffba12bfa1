"""Persons who are seen again and again: `trajectory` with measured dependence, on panels.

Simulated: a mixed model of five columns and one that does not vary, over three, five or eight
visits: random intercepts and slopes that go together, errors within a visit that do and last from
one visit to the next, a skewed laboratory value on a logarithmic scale, a yes or no, missed visits,
and drop-out that depends on what was last measured. 1 000 and 4 000 persons, ε = 3, δ = 1e-5.
Real: R's `pbcseq` (312 persons, 1 945 visits at irregular times, binned to six) and yearly means of
`nafld2` (2 618 persons, 4 318 visits, most with one), in the folder that PENSTOCK_TABLES names;
what is absent is skipped.

Of 20 000 drawn persons against the cohort itself, over time points, columns and pairs (those of at
least 100 persons): absolute errors of means, in standard deviations; of spreads, as shares; of
correlations within a visit and between visits; of the standard deviation of change from one visit
to another, as shares; of who is there. A column on a logarithmic scale is compared on it. Beside
each mean error is the largest. Targets are .05, .05, .08, .1 and .1 at n = 4 000, twice those at
n = 1 000; real tables have none.

Peers, at the same ε: "one Gaussian" is a DP Gaussian over all visits at once (private first and
second moments of all columns within their bounds, and of who is there); "visits apart" has the same
margins as ours, and dependence within a visit alone. PENSTOCK_SEEDS says how many seeds (10).
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from tests.studies.lni import over_runs
from tests.support.results import Row, at_most, write

from penstock.mechanisms import Trajectory
from penstock.mechanisms.copula.correlations import take_root
from penstock.mechanisms.tables.moments import measure_moments, release_moments
from penstock.mechanisms.trajectory.cohorts import make_places
from penstock.mechanisms.trajectory.dependence import Dependence, fit
from penstock.mechanisms.trajectory.followed import Followed
from penstock.mechanisms.trajectory.repeats import plan_repeats
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Gaussian
from penstock.privacy.noise.sources import SecureNoise
from penstock.privacy.request import PrivacyRequest
from penstock.schema import NUMBER_KINDS, Column, Schema

Array = NDArray[np.float64]
Job = tuple[str, int, int, str, int]
EPSILON, DELTA, DRAWN, ENOUGH = 3.0, 1e-5, 20_000, 100
ARMS = ("ours", "one Gaussian", "visits apart")
MEASURES = ("mean", "spread", "within", "between", "change")
TARGETS = dict(zip(MEASURES, (0.05, 0.05, 0.08, 0.1, 0.1), strict=True))
WORDS = {
    "mean": "means, in sd",
    "spread": "spreads",
    "within": "correlations within a visit",
    "between": "correlations between visits",
    "change": "sd of change",
    "there": "share who is there",
}
SIMULATED = [("simulated", n, visits) for n in (4000, 1000) for visits in (3, 5, 8)]
REAL = [("pbcseq", 0, 6), ("nafld", 0, 6)]

# -- panels ----------------------------------------------------------------------------------------

SIMULATED_COLUMNS = (
    Column("pulse", "continuous", 30, 160, 0, unit="1/min"),
    Column("sbp", "continuous", 60, 240, 0, unit="mmHg"),
    Column("ldl", "continuous", 0.5, 12, 1, unit="mmol/l"),
    Column("bnp", "continuous", 1, 5000, 0, unit="ng/l", scale="log"),
    Column("oedema", "binary"),
    Column("male", "binary", varies=False),
)


def schema(columns: Sequence[Column], visits: int) -> Schema:
    time = Column("visit", "integer", 0, visits - 1)
    return Schema((time, *columns), person="id", max_rows_per_person=visits)


def simulate(n: int, visits: int, rng: np.random.Generator) -> tuple[Followed, Schema]:
    """A mixed model; see the module's docstring."""
    male = (rng.random(n) < 0.4) * 1.0
    together = np.array(
        [
            [1.0, 0.3, 0.0, 0.4, 0.3],
            [0.3, 1.0, 0.25, 0.0, 0.1],
            [0.0, 0.25, 1.0, -0.3, 0.0],
            [0.4, 0.0, -0.3, 1.0, 0.6],
            [0.3, 0.1, 0.0, 0.6, 1.0],
        ]
    )
    root = np.linalg.cholesky(together)
    level, slope = (rng.standard_normal((n, 5)) @ root.T * s for s in (0.75, 0.5 / visits))
    at = np.arange(visits)
    error = rng.standard_normal((n, visits, 5)) @ root.T
    for t in at[1:]:
        error[:, t] = 0.4 * error[:, t - 1] + math.sqrt(1 - 0.16) * error[:, t]
    drift = np.array([0.0, 0.3, -0.4, 0.5, 0.3]) / visits
    z = level[:, None] + (slope[:, None] + drift) * at[:, None] + 0.6 * error
    z += male[:, None, None] * np.array([-0.2, 0.3, 0.0, 0.2, -0.2])
    values = {
        "pulse": 74 + 11 * z[..., 0],
        "sbp": 135 + 19 * z[..., 1],
        "ldl": 3.4 + 0.9 * z[..., 2],
        "bnp": np.exp(5.0 + 0.9 * z[..., 3]),
        "oedema": (z[..., 4] > 0.7) * 1.0,
    }
    there, left = np.ones((n, visits), dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    for t in at[1:]:
        left |= rng.random(n) < 1 / (1 + np.exp(2.9 - 0.8 * z[:, t - 1, 3]))
        there[:, t] = ~left & (rng.random(n) > 0.06)
    given = schema(SIMULATED_COLUMNS, visits)
    values = {name: given[name].snap(x.ravel()).reshape(x.shape) for name, x in values.items()}
    return Followed(there, values, {"male": male}), given


PBC_COLUMNS = (
    Column("bili", "continuous", 0.1, 50, 1, unit="mg/dl", scale="log"),
    Column("albumin", "continuous", 1, 9, 1, unit="g/dl"),
    Column("protime", "continuous", 8, 40, 1, unit="s", scale="log"),
    Column("hepato", "binary", nullable=True),
    Column("platelet", "continuous", 10, 1000, 0, nullable=True),
    Column("female", "binary", varies=False),
    Column("trt", "binary", varies=False),
)
NAFLD_COLUMNS = (
    Column("sbp", "continuous", 60, 260, 0, unit="mmHg"),
    Column("hdl", "continuous", 10, 150, 0, unit="mg/dl", nullable=True),
    Column("male", "binary", varies=False),
    Column("age", "integer", 18, 100, varies=False),
)
PBC_EDGES = (90, 270, 550, 1100, 1900)
"""Of days: entry, half a year, one year, two, three to five, and later."""


@cache
def real(name: str) -> tuple[Followed, Schema] | None:
    """A table of R's survival package, by time point; None where it is absent."""
    folder = Path(os.environ.get("PENSTOCK_TABLES", "."))
    file = {"pbcseq": "pbcseq", "nafld": "nafld_visits"}[name]
    found = [p for p in (folder / f"{file}.csv", folder / f"{file}.csv.gz") if p.exists()]
    if not found:
        return None
    table = pd.read_csv(found[0])
    if name == "pbcseq":
        table = table.assign(female=(table["sex"] == "f") * 1.0, trt=(table["trt"] == 1) * 1.0)
        table["visit"] = np.searchsorted(PBC_EDGES, table["day"])
        columns = PBC_COLUMNS
    else:
        table["visit"], columns = table["year"], NAFLD_COLUMNS
    table = table.drop_duplicates(["id", "visit"])
    who, number = pd.factorize(table["id"])
    when, shape = table["visit"].to_numpy(int), (len(number), 6)
    there = np.zeros(shape, dtype=np.bool_)
    there[who, when] = True
    given = schema(columns, 6)
    varying, constants = {}, {}
    for column in columns:
        values = column.snap(table[column.name].to_numpy(float))
        if column.varies:
            varying[column.name] = np.full(shape, np.nan)
            varying[column.name][who, when] = values
        else:
            constants[column.name] = pd.Series(values).groupby(who).first().to_numpy(float)
    return Followed(there, varying, constants), given


# -- arms ------------------------------------------------------------------------------------------


def draw(arm: str, cohort: Followed, given: Schema, rng: np.random.Generator) -> Followed:
    """Persons of one arm's private model."""
    n, visits = cohort.there.shape
    if arm == "one Gaussian":
        return _draw_gaussian(cohort, given, rng)
    plan = plan_repeats(Trajectory("visit"), given, n, PrivacyRequest(EPSILON, DELTA))
    model = fit(plan, make_places(plan, given), cohort, SecureNoise())
    if arm == "visits apart":
        model = _part_visits(model)
    return model.draw(rng.standard_normal((DRAWN, model.latents)), rng.random((DRAWN, visits)))


def _part_visits(model: Dependence) -> Dependence:
    """Without what joins different times, or a person's visits at all."""
    times, correlation = model.places.times(), model.root @ model.root
    same = (times[:, None] == times[None, :]) & (times >= 0)[:, None]
    return replace(model, root=take_root(np.where(same, correlation, np.eye(len(times)))))


def _draw_gaussian(cohort: Followed, given: Schema, rng: np.random.Generator) -> Followed:
    """Moments of all columns at all visits within their bounds, 0 where not there, and of who is
    there; the whole budget in one release."""
    n, visits = cohort.there.shape
    scale = smallest_scale(lambda s: (Gaussian(s),), EPSILON, DELTA)
    fixed = [_unit(given[name], values) for name, values in cohort.constants.items()]
    moving = [_unit(given[name], x) * cohort.there for name, x in cohort.varying.items()]
    moving = [np.where(cohort.there, x, 0.0) for x in moving]
    scores = np.column_stack([*fixed, *moving, cohort.there * 1.0])
    scores = np.nan_to_num(scores)
    radius = 0.8 * math.sqrt(scores.shape[1] + 1)
    measurement = measure_moments(scale, radius, scores.shape[1], 1)
    present = np.ones((n, 1), dtype=np.bool_)
    told = release_moments(scores[:, None], present, radius, measurement, SecureNoise()) / n
    here = np.concatenate([np.ones(len(fixed)), np.clip(np.tile(told[-1, -1 - visits : -1],
                          len(moving)), 0.05, 1.0), np.ones(visits)])  # fmt: skip
    both = np.outer(here, here)
    mean = told[:-1, -1] / here
    covariance = told[:-1, :-1] / both - np.outer(mean, mean)
    values, vectors = np.linalg.eigh(covariance)
    drawn = rng.standard_normal((DRAWN, len(mean))) * np.sqrt(np.maximum(values, 0.0)) @ vectors.T
    drawn += mean
    there = drawn[:, -visits:] > 0.5
    there[:, 0] |= ~there.any(axis=1)
    parts = np.split(drawn[:, len(fixed) : -visits], len(moving), axis=1)
    varying = {c: _from_unit(given[c], x) for c, x in zip(cohort.varying, parts, strict=True)}
    constants = {c: _from_unit(given[c], drawn[:, j]) for j, c in enumerate(cohort.constants)}
    return Followed(there, varying, constants)


def _unit(column: Column, values: Array) -> Array:
    low, high = _ends(column)
    return np.asarray((_on_scale(column, values) - low) / (high - low) * 2 - 1)


def _from_unit(column: Column, values: Array) -> Array:
    low, high = _ends(column)
    raw = low + (values + 1) / 2 * (high - low)
    raw = np.exp(raw) if column.scale == "log" else raw
    if column.kind not in NUMBER_KINDS:
        raw = np.clip(np.rint(raw), 0, len(column.levels) - 1)
    return column.snap(raw.ravel()).reshape(raw.shape)


def _ends(column: Column) -> tuple[float, float]:
    if column.kind not in NUMBER_KINDS:
        return 0.0, len(column.levels) - 1.0
    low, high = column.bounds
    return (math.log(low), math.log(high)) if column.scale == "log" else (low, high)


def _on_scale(column: Column, values: Array) -> Array:
    return np.log(values) if column.scale == "log" else values


# -- measures --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """What is compared of a cohort: NaN where fewer than ENOUGH persons tell of it."""

    means: Array
    spreads: Array
    correlations: Array
    changes: Array
    there: Array


def look(persons: Followed, given: Schema) -> Seen:
    """Constants are columns of the first visit."""
    names = list(persons.varying)
    x = np.stack([_on_scale(given[name], persons.varying[name]) for name in names], axis=-1)
    x = np.where(persons.there[..., None], x, np.nan)
    fixed = np.column_stack([_on_scale(given[n], v) for n, v in persons.constants.items()])
    flat = np.concatenate([x.reshape(len(x), -1), fixed], axis=1)
    known = ~np.isnan(flat)
    safe = np.where(known, flat, 0.0)
    count = known.T.astype(float) @ known
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = safe.T @ known / count
        square = (safe**2).T @ known / count
        spread = np.sqrt(np.maximum(square - mean**2, 0.0))
        correlation = (safe.T @ safe / count - mean * mean.T) / (spread * spread.T)
        apart = [x[:, b] - x[:, a] for a in range(x.shape[1]) for b in range(a + 1, x.shape[1])]
        changes = np.array([[_spread(c[:, j]) for j in range(x.shape[2])] for c in apart])
    enough = count >= ENOUGH
    enough_there = np.diag(enough)
    return Seen(
        np.where(enough_there, np.diag(mean), np.nan),
        np.where(enough_there, np.diag(spread), np.nan),
        np.where(enough & ~np.eye(len(mean), dtype=bool), correlation, np.nan),
        changes,
        persons.there.mean(axis=0),
    )


def _spread(change: Array) -> float:
    known = change[~np.isnan(change)]
    return float(known.std()) if len(known) >= ENOUGH else math.nan


def compare(found: Seen, real: Seen, visits: int, columns: int) -> dict[str, float]:
    """Mean and largest error of each measure."""
    times = np.append(np.repeat(np.arange(visits), columns), np.zeros(len(real.means)))
    times = times[: len(real.means)]
    same = times[:, None] == times[None, :]
    off = np.abs(found.correlations - real.correlations)
    # A yes or no that hardly anybody has has no spread to speak of.
    errors = {
        "mean": np.abs(found.means - real.means) / real.spreads,
        "spread": np.abs(found.spreads / real.spreads - 1),
        "within": np.where(same, off, np.nan),
        "between": np.where(same, np.nan, off),
        "change": np.abs(found.changes / real.changes - 1),
        "there": np.abs(found.there - real.there),
    }
    means = {name: float(np.nanmean(each)) for name, each in errors.items()}
    return means | {f"{name}, most": float(np.nanmax(each)) for name, each in errors.items()}


def work(job: Job) -> dict[str, float]:
    """One arm on one cohort."""
    source, n, visits, arm, seed = job
    rng = np.random.default_rng([seed, n, visits])
    made = simulate(n, visits, rng) if source == "simulated" else real(source)
    if made is None:
        return {}
    cohort, given = made
    drawn = draw(arm, cohort, given, rng)
    real_seen, seen = look(cohort, given), look(drawn, given)
    return compare(seen, real_seen, visits, len(cohort.varying))


def run() -> Path:
    """All cells; those of tables that are absent are left out."""
    seeds = int(os.environ.get("PENSTOCK_SEEDS", "10"))
    cells = [*SIMULATED, *(cell for cell in REAL if real(cell[0]) is not None)]
    jobs: list[Job] = [
        (*cell, arm, seed) for cell in cells for arm in ARMS for seed in range(seeds)
    ]
    found = dict(zip(jobs, over_runs(work, jobs, "panels", weight=_weight), strict=True))
    rows = [row for cell in cells for row in _rows(cell, found, seeds)]
    return write("panels", rows, (__doc__ or "").strip())


def _weight(job: Job) -> float:
    return 1.0 if job[3] == "one Gaussian" else 4.0


def _rows(cell: tuple[str, int, int], found: dict[Job, dict[str, float]], seeds: int) -> list[Row]:
    source, n, visits = cell
    name = f"{source}, n = {n}, {visits} visits" if n else f"{source}, {visits} time points"

    def of(arm: str, measure: str) -> list[float]:
        return [found[(*cell, arm, seed)][measure] for seed in range(seeds)]

    twice = {4000: 1.0, 1000: 2.0}.get(n)
    rows = []
    for measure, words in WORDS.items():
        target = None if twice is None or measure not in TARGETS else TARGETS[measure] * twice
        peer = min(float(np.mean(of(arm, measure))) for arm in ARMS[1:])
        rows.append(at_most(f"{words}: {name}", of("ours", measure), target=target, peer=peer))
        rows.append(at_most(f"{words}, largest: {name}", of("ours", f"{measure}, most")))
        for arm in ARMS[1:]:
            rows.append(at_most(f"{words}: {name}, {arm}", of(arm, measure)))
    return rows
