"""Tables that nobody here simulated: what is left of them at ε = 3, one site or four.

flchain, nwtco, rotterdam, colon (deaths), mgus2 and nafld1 are those of R's survival package:
`for (t in c("flchain", "nwtco", "rotterdam", "colon", "mgus2", "nafld1"))
write.csv(get(t, "package:survival"), gzfile(paste0(t, ".csv.gz")), row.names = FALSE)`, in the
folder that PENSTOCK_TABLES names (`nafld1` is part of the data set `nafld`). They are no part of
this package, and what is absent is skipped. gbsg2, rossi and kidney (transplants) ship with
lifelines. Rows that lack a column of the question are left out, so that real and synthetic fits
are of the same rows; follow-ups are round numbers, and what happens later has not happened.

Whole, or split at random into four sites, each with ε = 3 of its own, whose copies are laid
together as `pull` does; split are tables of 800 persons and more. δ = min(1e-5, 1/10n); five
copies, no refits. Dictionaries are a newcomer's: names, kinds, units and bounds out of the help
pages; then either as `site check` suggests (scale, spike, decimals), or "plain", without. Nothing
in the package was tuned on these tables. Measured on the copies, against the table itself:

- the share of rows that are event-free at the end of follow-up: |Δ| at most .03;
- events: off by at most 5 %;
- Kaplan-Meier at a fifth, two fifths, … of the follow-up: the largest |Δ| at most .03 (at the end
  itself: just before it);
- the coefficients of a Cox model of all columns, those named: errors in standard errors of the
  table's own fit: a baseline, without a target.

The peer is a Gaussian copula after Li, Xiong & Jiang (2014): noisy histograms of all columns, half
of the budget, then a noisy correlation of clipped normal scores, the other half; the same
accountant, sensitivities, bounds and scales. It is given the end of follow-up as a bin of its own,
which as published it does not have. "ours" and "peer" are medians over seeds (and coefficients);
"holds" counts the median. PENSTOCK_SEEDS says how many seeds (10 are asked for); each figure says
how many it is from.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from lifelines.datasets import load_gbsg2, load_kidney_transplant, load_rossi
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from tests.studies.lni import over_runs
from tests.support.carried_out import release
from tests.support.results import Row, write

from penstock.mechanisms import Maf, Settings, SlicedWasserstein
from penstock.mechanisms.plans import plan
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Gaussian
from penstock.privacy.noise.sources import NoiseSource, SecureNoise, add_gaussian
from penstock.privacy.request import PrivacyRequest
from penstock.privacy.sensitivity import histogram
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Coded, Column, Schema, end_follow_up, follow_suggestions
from penstock.schema.encoding import Encoding

Array = NDArray[np.float64]
EPSILON, COPIES, SITES, LEAST_SPLIT = 3.0, 5, 4, 800
SEEDS = int(os.environ.get("PENSTOCK_SEEDS", "10"))
ONLY = tuple(filter(None, os.environ.get("PENSTOCK_ONLY", "").split(",")))
FEW = max(1, SEEDS // 5)
"""Seeds of what is measured beside the default."""

SHARE, EVENTS, SURVIVAL = 0.03, 0.05, 0.03
MECHANISMS: dict[str, Settings] = {
    "maf": Maf(copies=COPIES, refits=0),
    "sliced-wasserstein": SlicedWasserstein(copies=COPIES, refits=0),
}


@dataclass(frozen=True, slots=True)
class Table:
    """A table in codes, a newcomer's dictionary, and the coefficients that are named."""

    rows: Coded
    schema: Schema
    named: tuple[str, ...]

    @property
    def n(self) -> int:
        return len(self.rows[self.schema.names[0]])

    def suggested(self) -> Schema:
        return replace(self.schema, columns=tuple(map(follow_suggestions, self.schema.columns)))


def _table(
    found: pd.DataFrame, time: str, event: str, columns: Sequence[Column], named: tuple[str, ...]
) -> Table:
    """Columns by their names in the file; the first two of ``columns`` are the outcome's."""
    frame = found.rename(columns={time: columns[0].name, event: columns[1].name})
    frame = frame[[c.name for c in columns]].dropna()
    coded: Coded = {}
    for column in columns:
        values = frame[column.name]
        if values.dtype == object or isinstance(values.dtype, pd.StringDtype):
            values = values.map({level: i for i, level in enumerate(column.levels)})
        coded[column.name] = values.to_numpy(float)
    schema = Schema(tuple(columns))
    return Table(_clamped(end_follow_up(coded, schema), schema), schema, named)


def _clamped(coded: Coded, schema: Schema) -> Coded:
    return {c.name: c.snap(coded[c.name]) for c in schema.columns}


def _outcome(upper: float, unit: str, event: str = "death") -> tuple[Column, Column]:
    decimals = 0 if unit in ("weeks", "days", "months") else 2
    time = Column("time", "duration", upper=upper, decimals=decimals, event=event, unit=unit)
    return time, Column(event, "event")


def _binary(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "binary") for name in names)


@cache
def tables() -> dict[str, Table]:
    """Those that are there."""
    folder, found = Path(os.environ.get("PENSTOCK_TABLES", ".")), dict[str, Table]()
    for name, make in _ELSEWHERE.items():
        for path in (folder / f"{name}.csv", folder / f"{name}.csv.gz"):
            if path.exists() and name not in found:
                found[name] = make(pd.read_csv(path))
    found["gbsg2"], found["rossi"], found["kidney"] = _gbsg2(), _rossi(), _kidney()
    return {name: table for name, table in found.items() if not ONLY or name in ONLY}


def _flchain(t: pd.DataFrame) -> Table:
    t = t[t["futime"] > 0]  # three died on the day of their sample
    columns = (
        *_outcome(4000, "days"),
        Column("age", "integer", 50, 110, unit="years"),
        Column("sex", "binary", levels=("F", "M")),
        Column("kappa", "continuous", 0, 50, label="Free light chain, kappa", unit="mg/dl"),
        Column("lambda", "continuous", 0, 50, label="Free light chain, lambda", unit="mg/dl"),
        Column("creatinine", "continuous", 0.2, 20, 1, unit="mg/dl"),
        *_binary("mgus"),
    )
    return _table(t, "futime", "death", columns, ("age", "sex", "kappa", "creatinine"))


def _nwtco(t: pd.DataFrame) -> Table:
    t = t.assign(unfavourable=t["histol"] - 1, stage=t["stage"] - 1, study=t["study"] - 3)
    columns = (
        *_outcome(3652, "days", "relapse"),
        Column("age", "integer", 0, 240, unit="months"),
        Column("stage", "ordered", levels=("I", "II", "III", "IV")),
        *_binary("unfavourable", "study"),
    )
    return _table(t, "edrel", "rel", columns, ("stage", "unfavourable", "age"))


def _rotterdam(t: pd.DataFrame) -> Table:
    t = t.assign(grade3=t["grade"] - 2)
    columns = (
        *_outcome(3652, "days"),
        Column("age", "integer", 18, 100, unit="years"),
        Column("size", "ordered", levels=("<=20", "20-50", ">50"), unit="mm"),
        Column("nodes", "integer", 0, 60, label="Number of positive lymph nodes"),
        Column("pgr", "integer", 0, 10_000, label="Progesterone receptors", unit="fmol/l"),
        Column("er", "integer", 0, 10_000, label="Estrogen receptors", unit="fmol/l"),
        *_binary("meno", "grade3", "hormon", "chemo"),
    )
    return _table(t, "dtime", "death", columns, ("nodes", "grade3", "chemo", "age"))


def _colon(t: pd.DataFrame) -> Table:
    t = t[t["etype"] == 2]
    t = t.assign(differ=t["differ"] - 1, extent=t["extent"] - 1)
    columns = (
        *_outcome(1826, "days"),
        Column("rx", "categorical", levels=("Obs", "Lev", "Lev+5FU"), label="Treatment"),
        Column("age", "integer", 18, 100, unit="years"),
        Column("nodes", "integer", 0, 60, label="Number of positive lymph nodes"),
        Column("differ", "ordered", levels=("well", "moderate", "poor")),
        Column("extent", "ordered", levels=("submucosa", "muscle", "serosa", "contiguous")),
        *_binary("sex", "obstruct", "adhere", "surg"),
    )
    return _table(t, "time", "status", columns, ("rx=Lev+5FU", "nodes", "extent", "age"))


def _mgus2(t: pd.DataFrame) -> Table:
    columns = (
        *_outcome(120, "months"),
        Column("age", "integer", 18, 110, unit="years"),
        Column("sex", "binary", levels=("F", "M")),
        Column("hgb", "continuous", 3, 22, 1, label="Hemoglobin", unit="g/dl"),
        Column("creat", "continuous", 0.2, 30, 1, label="Creatinine", unit="mg/dl"),
        Column("mspike", "continuous", 0, 5, 1, label="Monoclonal spike", unit="g/dl"),
    )
    return _table(t, "futime", "death", columns, ("age", "sex", "hgb", "creat"))


def _nafld1(t: pd.DataFrame) -> Table:
    columns = (
        *_outcome(3652, "days"),
        Column("age", "integer", 18, 110, unit="years"),
        Column("bmi", "continuous", 8, 90, 1, unit="kg/m2"),
        *_binary("male"),
    )
    return _table(t, "futime", "status", columns, ("age", "male", "bmi"))


_ELSEWHERE: dict[str, Callable[[pd.DataFrame], Table]] = {
    "flchain": _flchain,
    "nwtco": _nwtco,
    "rotterdam": _rotterdam,
    "colon": _colon,
    "mgus2": _mgus2,
    "nafld1": _nafld1,
}


def _gbsg2() -> Table:
    columns = (
        *_outcome(1826, "days", "recurrence"),
        Column("horTh", "binary", levels=("no", "yes")),
        Column("age", "integer", 18, 100, unit="years"),
        Column("menostat", "binary", levels=("Pre", "Post")),
        Column("tsize", "integer", 0, 200, label="Tumour size", unit="mm"),
        Column("tgrade", "ordered", levels=("I", "II", "III")),
        Column("pnodes", "integer", 0, 60, label="Number of positive nodes"),
        Column("progrec", "integer", 0, 10_000, label="Progesterone receptors", unit="fmol/l"),
        Column("estrec", "integer", 0, 10_000, label="Estrogen receptors", unit="fmol/l"),
    )
    return _table(load_gbsg2(), "time", "cens", columns, ("horTh", "pnodes", "tgrade", "age"))


def _rossi() -> Table:
    columns = (
        *_outcome(52, "weeks", "arrest"),
        Column("age", "integer", 15, 80, unit="years"),
        Column("prio", "integer", 0, 40, label="Number of prior convictions"),
        *_binary("fin", "race", "wexp", "mar", "paro"),
    )
    return _table(load_rossi(), "week", "arrest", columns, ("fin", "age", "prio"))


def _kidney() -> Table:
    columns = (
        *_outcome(1826, "days"),
        Column("age", "integer", 0, 100, unit="years"),
        *_binary("black_male", "white_male", "black_female"),
    )
    return _table(load_kidney_transplant(), "time", "death", columns, ("age", "black_male"))


# -- the peer ----------------------------------------------------------------------------------

_BINS = 64


def copula(rows: Coded, schema: Schema, noise: NoiseSource, rng: np.random.Generator) -> Coded:
    """One table of as many rows from noisy histograms and a noisy correlation."""
    n, columns = len(rows[schema.names[0]]), schema.columns
    delta = min(1e-5, 1 / (10 * n))
    sigma = smallest_scale(lambda s: (Gaussian(s * math.sqrt(2)),) * 2, EPSILON, delta)
    sigma *= math.sqrt(2)
    cuts = [_cuts(column) for column in columns]
    places = [_binned(rows[c.name], c, cut) for c, cut in zip(columns, cuts, strict=True)]
    sizes = [_cells(column) for column in columns]
    counts = [np.bincount(p, minlength=s) for p, s in zip(places, sizes, strict=True)]
    whole = np.concatenate(counts).astype(np.float64)
    flat = add_gaussian(whole, sigma * histogram(len(columns), 1), noise)
    noisy = np.split(flat, np.cumsum([len(c) for c in counts])[:-1])
    risen = [np.append(0.0, np.cumsum(np.maximum(c, 0.0) + 1e-9)) for c in noisy]
    risen = [r / r[-1] for r in risen]
    inside = [r[p] + (r[p + 1] - r[p]) * rng.random(n) for r, p in zip(risen, places, strict=True)]
    scores = ndtri(np.clip(np.column_stack(inside), 1e-4, 1 - 1e-4))
    radius = math.sqrt(len(columns)) + 1.0
    norm = np.linalg.norm(scores, axis=1, keepdims=True)
    scores *= np.minimum(1.0, radius / norm)
    upper = np.triu_indices(len(columns))
    weights = np.where(upper[0] == upper[1], 1.0, math.sqrt(2))
    total = (scores.T @ scores)[upper] * weights
    released = add_gaussian(total, sigma * radius**2, noise) / weights / n
    moments = np.zeros((len(columns),) * 2)
    moments[upper] = released
    moments = moments + np.triu(moments, 1).T
    values, vectors = np.linalg.eigh(moments)
    definite = (vectors * np.maximum(values, 0.02)) @ vectors.T
    sd = np.sqrt(np.diag(definite))
    drawn = rng.multivariate_normal(np.zeros(len(sd)), definite / np.outer(sd, sd), n)
    made: Coded = {}
    for j, column in enumerate(columns):
        place = np.searchsorted(risen[j], ndtr(drawn[:, j]), side="right") - 1
        place = np.clip(place, 0, _cells(column) - 1)
        made[column.name] = _unbinned(place, column, cuts[j], rng)
    return made


def _log(column: Column) -> bool:
    return column.scale == "log"


def _step(column: Column) -> float:
    return 0.0 if column.grid is None else 10.0 ** -(column.decimals or 0)


def _cuts(column: Column) -> Array:
    """Edges of a number's bins: even on its scale."""
    if column.levels:
        return np.zeros(0)
    low, high, step = *column.bounds, _step(column)
    if not _log(column):
        return np.linspace(low - step / 2, high + step / 2, _BINS + 1)
    origin = step if low == 0 else 0.0
    return np.geomspace(low + origin, high + origin + step, _BINS + 1) - origin - step / 2


def _cells(column: Column) -> int:
    """Bins, and two of their own: the end of a follow-up, or a spike, as levels are."""
    return len(column.levels) or _BINS + 1


def _own(column: Column) -> float | None:
    """The value with a bin of its own."""
    return column.bounds[1] if column.event is not None else column.spike


def _binned(values: Array, column: Column, cuts: Array) -> NDArray[np.intp]:
    if column.levels:
        return values.astype(np.intp)
    place = np.clip(np.searchsorted(cuts, values, side="right") - 1, 0, _BINS - 1)
    own = _own(column)
    if own is None:
        return place
    # Beside those of the same size, so that normal scores keep the order.
    return np.where(values == own, _BINS, place) if own else np.where(values == own, 0, place + 1)


def _unbinned(
    place: NDArray[np.intp], column: Column, cuts: Array, rng: np.random.Generator
) -> Array:
    if column.levels:
        return place.astype(np.float64)
    own = _own(column)
    at = np.clip(place - (own == 0), 0, _BINS - 1)
    values = column.snap(cuts[at] + (cuts[at + 1] - cuts[at]) * rng.random(len(at)))
    if own is None:
        return values
    return np.where(place == (0 if own == 0 else _BINS), own, values)


# -- what is measured --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one seed: Δ of the share at the end, relative Δ of events, the largest Δ of Kaplan-Meier,
    and errors of the named coefficients over their standard errors."""

    share: float
    events: float
    survival: float
    errors: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Real:
    """Of a table itself."""

    share: float
    events: float
    survival: Array
    fits: tuple[tuple[float, float], ...]


def _curve(rows: Coded, schema: Schema) -> Array:
    """Kaplan-Meier at five times; at the end, just before it."""
    time, event = (rows[schema.columns[i].name] for i in (0, 1))
    upper = schema.columns[0].bounds[1]
    order = np.argsort(time, kind="stable")
    time, event = time[order], event[order]
    last = np.searchsorted(time, time, side="left")
    factors = 1 - np.bincount(last, event, len(time)) / (len(time) - np.arange(len(time)))
    at = np.array([0.2, 0.4, 0.6, 0.8, 1 - 1e-9]) * upper
    risen = np.append(1.0, np.cumprod(factors))
    found: Array = risen[np.searchsorted(time, at, side="right")]
    return found


def measured(rows: Coded, table: Table) -> Real:
    """What there is to be known of rows."""
    schema, time, event = table.schema, *(c.name for c in table.schema.columns[:2])
    others = schema.names[2:]
    fits = []
    for name in table.named:
        term, _, level = name.partition("=")
        adjust = tuple(other for other in others if other != term)
        asked = Estimand("asked", "cox", time, term, adjust=adjust, level=level or None)
        found = estimate(rows, schema, asked)
        fits.append((found.estimate, math.sqrt(found.variance)))
    ended = (rows[time] >= schema.columns[0].bounds[1]) & (rows[event] == 0)
    return Real(float(ended.mean()), float(rows[event].mean()), _curve(rows, schema), tuple(fits))


@cache
def real(name: str) -> Real:
    table = tables()[name]
    return measured(table.rows, table)


Job = tuple[str, str, int, int]
"""Table, arm, sites, seed."""

ARMS = ("maf", "maf, plain", "sliced-wasserstein", "copula")


def one(job: Job) -> Answer:
    """One seed: the copies of all sites, each with the same number of rows as its persons."""
    name, arm, sites, seed = job
    table, rng = tables()[name], np.random.default_rng([50_000 + seed, sites])
    schema = table.schema if arm == "maf, plain" else table.suggested()
    parts = np.array_split(rng.permutation(table.n), sites)
    made = [_made(arm, {k: v[p] for k, v in table.rows.items()}, schema, rng) for p in parts]
    found = [
        measured({k: np.concatenate([m[copy][k] for m in made]) for k in schema.names}, table)
        for copy in range(len(made[0]))
    ]
    own = real(name)

    def mean(what: Callable[[Real], float]) -> float:
        return float(np.mean([what(f) for f in found]))

    curve = np.mean([f.survival for f in found], axis=0)
    errors = [
        (mean(lambda f, j=j: f.fits[j][0]) - fit[0]) / fit[1]  # type: ignore[misc]
        for j, fit in enumerate(own.fits)
    ]
    return Answer(
        mean(lambda f: f.share) - own.share,
        mean(lambda f: f.events) / own.events - 1,
        float(np.abs(curve - own.survival).max()),
        tuple(errors),
    )


def _made(arm: str, rows: Coded, schema: Schema, rng: np.random.Generator) -> list[Coded]:
    """The copies of a site, of one private fit."""
    noise, n = SecureNoise(), len(rows[schema.names[0]])
    if arm == "copula":
        return [copula(rows, schema, noise, rng)]
    mechanism = MECHANISMS[arm.partition(",")[0]]
    encoding = Encoding(schema)
    x, there = encoding.encode(rows, rng)
    request = PrivacyRequest(EPSILON, min(1e-5, 1 / (10 * n)))
    planned = plan(mechanism, schema, n, request)
    parts = release(mechanism, planned, encoding, x[:, None], there[:, None], noise)
    return [dict(part.columns) for part in parts]  # type: ignore[arg-type]


def run() -> Path:
    """Measure."""
    jobs: list[Job] = []
    for name, table in tables().items():
        split = (1, SITES) if table.n >= LEAST_SPLIT else (1,)
        for seed in range(SEEDS):
            jobs += [(name, arm, k, seed) for arm in ("maf", "copula") for k in split]
            few = seed < FEW
            jobs += [(name, arm, 1, seed) for arm in ("maf, plain", "sliced-wasserstein") if few]
    jobs.sort(key=lambda job: job[3])
    answers = over_runs(one, jobs, "foreign", weight=_weight)
    found = {}
    for job, answer in zip(jobs, answers, strict=True):
        found.setdefault(job[:3], []).append(answer)
    rows = [row for name in tables() for row in _rows(name, found)]
    return write("foreign", rows, (__doc__ or "").strip())


def _weight(job: Job) -> float:
    return (0.1 if job[1] == "copula" else 1.0) * tables()[job[0]].n


def _rows(name: str, found: dict[tuple[str, str, int], list[Answer]]) -> list[Row]:
    table, own, rows = tables()[name], real(name), list[Row]()
    about = f"{name} (n = {table.n}, {own.share:.2f} at the end, {own.events:.2f} events)"
    for (of, arm, sites), answers in found.items():
        if of != name or arm == "copula":
            continue
        peers = found.get((name, "copula", sites))
        label = f"{about}, {arm}, {'one site' if sites == 1 else f'{sites} sites'}"
        for what, target, value in (
            ("abs. error of the share at the end", SHARE, lambda a: abs(a.share)),
            ("abs. relative error of events", EVENTS, lambda a: abs(a.events)),
            ("largest abs. error of Kaplan-Meier", SURVIVAL, lambda a: a.survival),
        ):
            rows.append(_row(f"{what}, {label}", answers, peers, value, target))
        for j, term in enumerate(table.named):
            rows.append(
                _row(
                    f"abs. error of {term} in s.e., {label}",
                    answers,
                    peers,
                    lambda a, j=j: abs(a.errors[j]),
                    None,
                )
            )
    return rows


def _row(
    what: str,
    answers: list[Answer],
    peers: list[Answer] | None,
    value: Callable[[Answer], float],
    target: float | None,
) -> Row:
    low, middle, high = np.quantile([value(a) for a in answers], [0.25, 0.5, 0.75])
    peer = None if peers is None else float(np.median([value(a) for a in peers]))
    holds = None if target is None else bool(middle <= target)
    return Row(
        what,
        float(middle),
        None,
        len(answers),
        target,
        peer,
        holds=holds,
        quartiles=(float(low), float(high)),
    )
