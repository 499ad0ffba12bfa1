"""What `penstock study plan` forecasts, beside what is measured on cohorts of another kind.

The planning values are right: means, sds, shares, correlations and effects of 200 000 persons from
the generator. The generator is not the forecast's: ages of two humps, a gamma CRP that follows
them, heavy tails of blood pressure, Weibull times whose hazard goes with the *logarithm* of CRP,
entry over some years, and drop-out that follows age. Two of its columns no estimand needs.

Standard errors of five log hazard ratios: from sampling (the rows' own, by the model), from privacy
(root mean square of released estimate less the rows' own), and both together. "Ratio": forecast
over measured, the median over the estimands; its range beside it. A standard error from r runs is
known up to a share of 1/√(2r): .11 of the forecast's 40 runs, .10 of 48 cohorts. Releases
without an estimate are left out on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from tests.studies.lni import over_runs
from tests.support.carried_out import release
from tests.support.results import Row, write

from penstock.forecast import RUNS
from penstock.forecast.expected import Expected, forecast
from penstock.mechanisms import MECHANISMS
from penstock.mechanisms.released import Kind
from penstock.mechanisms.structured.settings import Structured
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Coded, Column, Schema
from penstock.schema.encoding import Encoding
from penstock.study.planning import PlannedColumn, Planning
from penstock.study.study import Study

Array = NDArray[np.float64]

CELLS = tuple((n, epsilon) for n in (1000, 3000) for epsilon in (1.0, 3.0))
SEEDS = 48
_TOLD = 200_000
_NEAR, _MOST = 1.25, 0.9
"""Forecasts are to be within a quarter of what is measured, in nine of ten."""
_ADJUST = ("age", "crp", "sbp", "smoker", "treated")

SCHEMA = Schema(
    (
        Column("age", "continuous", 30, 100, 0),
        Column("crp", "continuous", 0, 200, 1, scale="log"),
        Column("sbp", "continuous", 70, 250, 0),
        Column("smoker", "binary"),
        Column("treated", "binary"),
        Column("bmi", "continuous", 12, 70, 1),
        Column("ward", "categorical", levels=("a", "b", "c")),
        Column("time", "duration", upper=6, decimals=2, event="died"),
        Column("died", "event"),
    )
)
ESTIMANDS = tuple(
    Estimand(name, "cox", "time", name, per, tuple(a for a in _ADJUST if a != name))
    for name, per in (("age", 10), ("crp", 10), ("sbp", 10), ("smoker", 1), ("treated", 1))
)


def generate(n: int, rng: np.random.Generator) -> Coded:
    """A cohort that no part of the package draws."""
    old = rng.random(n) < 0.45
    age = np.where(old, rng.normal(72, 6, n), rng.normal(54, 5, n))
    crp = rng.gamma(0.9, 4.0, n) * np.exp((age - 60) / 60)
    sbp = 120 + 0.4 * (age - 50) + 12 * rng.standard_t(5, n)
    smoker = rng.random(n) < 1 / (1 + np.exp(1 + (age - 60) / 20))
    treated = rng.random(n) < 0.5
    bmi = 27 + 4 * rng.gamma(2.0, 1.0, n) - 6
    risk = 0.05 * (age - 62) + 0.3 * np.log1p(crp) + 0.012 * (sbp - 125)
    risk += 0.5 * smoker - 0.4 * treated
    dies = 11 * (rng.exponential(size=n) / np.exp(risk - 0.45)) ** (1 / 1.4)
    leaves = rng.exponential(size=n) * 40 * np.exp(-(age - 60) / 30)
    end = np.minimum(rng.uniform(4.5, 9, n), 6)
    time = np.minimum(np.minimum(dies, leaves), end)
    values = {
        "age": age, "crp": crp, "sbp": sbp, "smoker": smoker, "treated": treated, "bmi": bmi,
        "ward": rng.choice(3, n, p=[0.6, 0.3, 0.1]), "time": time, "died": dies <= time,
    }  # fmt: skip
    return {c.name: c.snap(np.asarray(values[c.name], dtype=float)) for c in SCHEMA.columns}


def study(epsilon: float) -> Study:
    """The study, with planning values that are right."""
    return Study(
        name="forecast", title="forecast", federation="tests", sites=("here",),
        schema=SCHEMA, estimands=ESTIMANDS, privacy=PrivacyRequest(epsilon, 1e-5),
        mechanism=Structured(), quorum=1, deadline_hours=24.0,
        not_before="2026-11-21T00:00:00Z", expires="2026-12-21T00:00:00Z", planning=told(),
    )  # fmt: skip


def told() -> Planning:
    """What an analyst would say who knows the generator's means, shares and correlations."""
    rows = generate(_TOLD, np.random.default_rng(7))
    names = [c.name for c in SCHEMA.columns if c.kind in ("continuous", "binary")]
    numbers = [n for n in names if SCHEMA[n].kind == "continuous"]
    scores = {n: ndtri((rows[n].argsort().argsort() + 0.5) / _TOLD) for n in numbers}
    columns = [PlannedColumn("ward", shares=tuple(_shares(rows["ward"], 3)))]
    for i, name in enumerate(names):
        if name not in numbers:
            columns.append(PlannedColumn(name, shares=tuple(_shares(rows[name], 2))))
            continue
        others = [n for n in numbers if n in names[:i]]
        pairs = tuple((n, float(np.corrcoef(scores[name], scores[n])[0, 1])) for n in others)
        mean, sd = float(rows[name].mean()), float(rows[name].std())
        columns.append(PlannedColumn(name, mean, sd, correlations=pairs))
    events = float(rows["died"].mean())
    ended = float(((rows["died"] == 0) & (rows["time"] >= 6)).mean())
    columns.append(PlannedColumn("time", events=events, censored=1 - events - ended))
    effects = tuple((e.name, estimate(rows, SCHEMA, e).estimate) for e in ESTIMANDS)
    return Planning(tuple(columns), effects)


def _shares(values: Array, levels: int) -> Array:
    return np.bincount(values.astype(int), minlength=levels) / len(values)


def measure(job: tuple[int, float, int]) -> list[tuple[float, float]]:
    """Of one cohort and its release: each estimand's own variance, and by how much it is off."""
    n, epsilon, seed = job
    asked = replace(study(epsilon), planning=Planning())
    rng = np.random.default_rng([91, seed, n])
    rows = generate(n, rng)
    encoding = Encoding(SCHEMA)
    encoded, present = encoding.encode(rows, rng)
    planned = MECHANISMS.of(asked.mechanism).plan(asked.asked, n)
    shape = MECHANISMS.of(asked.mechanism).shape(asked.asked, n)
    parts = release(
        asked.mechanism, planned, encoding, encoded[:, None], present[:, None], SeededNoise(seed)
    )
    copies = []
    for part in parts:
        if shape.part(part.name).kind is not Kind.COPY:
            break
        copies.append(part.columns)
    found = []
    for estimand in ESTIMANDS:
        own = estimate(rows, SCHEMA, estimand)
        released = [estimate(copy, SCHEMA, estimand).estimate for copy in copies]
        found.append((own.variance, _mean_known(released) - own.estimate))
    return found


def _mean_known(values: Sequence[float]) -> float:
    """As a coordinator has it: NaN where fewer than half of the copies have an estimate."""
    known = [value for value in values if not math.isnan(value)]
    return math.nan if 2 * len(known) < len(values) else math.fsum(known) / len(known)


def forecast_one(cell: tuple[int, float]) -> dict[str, Expected]:
    n, epsilon = cell
    return dict(forecast(study(epsilon), {"here": n}, runs=RUNS).sites["here"].expected)


def run() -> Path:
    jobs = [(n, epsilon, seed) for n, epsilon in CELLS for seed in range(SEEDS)]
    measured = dict(zip(jobs, over_runs(measure, jobs, "cohorts"), strict=True))
    expected = dict(zip(CELLS, over_runs(forecast_one, CELLS, "forecasts"), strict=True))
    rows: list[Row] = []
    whole: list[float] = []
    for n, epsilon in CELLS:
        seen = np.array([measured[n, epsilon, seed] for seed in range(SEEDS)])
        sampling = np.sqrt(seen[..., 0].mean(axis=0))
        privacy = np.sqrt(np.nanmean(seen[..., 1] ** 2, axis=0))
        of = [expected[n, epsilon][e.name] for e in ESTIMANDS]
        where = f"n = {n}, ε = {epsilon:g}: s.e."
        total = np.hypot(sampling, privacy)
        together = np.array([e.total for e in of]) / total
        rows += [
            _ratio(f"{where} from sampling", np.array([e.sampling for e in of]) / sampling),
            _ratio(f"{where} from privacy", np.array([e.privacy for e in of]) / privacy),
            _ratio(f"{where} together", together),
        ]
        rows += [
            Row(f"{where} of {e.name}, together; forecast beside measured", o.total, None, RUNS,
                peer=float(t))
            for e, o, t in zip(ESTIMANDS, of, total, strict=True)
        ]  # fmt: skip
        whole += together.tolist()
    near = sum(1 / _NEAR <= ratio <= _NEAR for ratio in whole) / len(whole)
    rows.append(Row("share of these together within a quarter", near, None, len(whole), _MOST,
                    holds=near >= _MOST))  # fmt: skip
    return write("forecast", rows, __doc__ or "")


def _ratio(what: str, ratios: Array) -> Row:
    middle = float(np.median(ratios))
    ends = float(ratios.min()), float(ratios.max())
    holds = 1 / _NEAR <= middle <= _NEAR
    return Row(f"{what}, ratio", middle, None, len(ratios), _NEAR, holds=holds, quartiles=ends)
