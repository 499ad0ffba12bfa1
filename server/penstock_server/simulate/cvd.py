"""Twelve simulated cardiovascular cohorts with a stated true hazard ratio.

Six cohort studies, split by sex, whose baseline tables were published: n, the share with a
cardiovascular event, and mean (sd) of follow-up time, age, total cholesterol, HDL and systolic
blood pressure. The simulated rows match those moments; nothing else about the real cohorts is
known here, and no real row was used. Within a cohort::

    age             a beta distribution on the cohort's recruitment range
    chol, HDL, SBP  log-normal
    dependence      a Gaussian copula (CORRELATION; age-SBP per cohort)
    hazard          h(t | x) = (k / s) (t / s)^(k-1) exp(x'b),  x centred, b = EFFECTS and LOG_HR
    censoring       min(exponential drop-out, end of follow-up), the end uniform on the last
                    ``enrolment`` years, since people enter a cohort over some years

The hazard is computed from the values *as recorded* (rounded, clamped), and censoring does not
depend on x: a Cox model of time on SBP, age, cholesterol and HDL is therefore correctly specified
and its SBP coefficient estimates the truth exactly, up to ties from times rounded to 0.01 years.

The scale s, the drop-out rate and the end of follow-up are calibrated per cohort, without random
numbers, to the event share and to mean and sd of the observed time (:func:`calibrate`). All twelve
are met to well within the rounding of the published table (0.05 % events, 0.02 years).

Source of the moments: Shen and Tian (2025), latent noise injection, Table 3; of the default
effect: same paper, section 4.1, pooled adjusted hazard ratio 1.171 (1.134 to 1.207) per 10 mmHg.
"""

from __future__ import annotations

import difflib
import json
import math
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from penstock.base.errors import InvalidInput, Problem
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.study.planning import PlannedColumn, Planning
from penstock_server.simulate.cohort_files import write_rows

Array = npt.NDArray[np.float64]

LOG_HR = math.log(1.171)
"""Default true log hazard ratio per 10 mmHg of SBP."""

PER = 10.0

EXPECTED = 0.16
"""What a study says beforehand of the log hazard ratio per 10 mmHg."""

EFFECTS = (0.07, 0.005, -0.015)
"""Log hazard ratios of age (per year), cholesterol and HDL (per mg/dL)."""

FOLLOW_UP = 40.0
"""The public follow-up bound of every cohort, years."""

SOURCE = "Shen and Tian (2025), Table 3"

# Recorded columns in the order of the copula: name, lower, upper, decimals, unit, label.
_COVARIATES = (
    ("age", 18.0, 100.0, 1, "years", "age at baseline"),
    ("cholesterol", 80.0, 500.0, 0, "mg/dL", "total cholesterol at baseline"),
    ("hdl", 10.0, 150.0, 0, "mg/dL", "HDL cholesterol at baseline"),
    ("sbp", 70.0, 250.0, 0, "mmHg", "systolic blood pressure at baseline"),
)
_TIME_DECIMALS = 2

# Normal scores of age, cholesterol, HDL, SBP; the zero is the cohort's own age-SBP correlation.
CORRELATION = (
    (1.00, 0.10, 0.00, 0.00),
    (0.10, 1.00, -0.10, 0.10),
    (0.00, -0.10, 1.00, -0.08),
    (0.00, 0.10, -0.08, 1.00),
)


@dataclass(frozen=True, slots=True)
class Cohort:
    """One sub-study: its published moments, each ``(mean, sd)``, and its design.

    Args:
        event_rate: share of people with an observed event.
        time: observed time to event or censoring, years.
        age_range: ages recruited; the beta distribution of age lives here.
        age_sbp: correlation of the normal scores of age and SBP; less where ages are alike.
        shape: Weibull shape k of the baseline hazard; above 1, it rises with time.
        enrolment: years over which people entered.
    """

    name: str
    title: str
    n: int
    event_rate: float
    time: tuple[float, float]
    age: tuple[float, float]
    cholesterol: tuple[float, float]
    hdl: tuple[float, float]
    sbp: tuple[float, float]
    age_range: tuple[float, float]
    age_sbp: float
    shape: float
    enrolment: float
    source: str = SOURCE

    def __post_init__(self) -> None:
        lower, upper = self.age_range
        mean, sd = self.age
        if not lower < mean < upper or not 0 < sd**2 < (mean - lower) * (upper - mean):
            raise _invalid("age_range", f"no beta distribution has {mean} ({sd}) on this range")
        if not 0 < self.event_rate < 1:
            raise _invalid("event_rate", "must lie between 0 and 1", self.event_rate)
        if not (self.shape > 0 and self.n > 0 and self.time[1] > 0):
            raise _invalid("cohort", "shape, n and the sd of time must be above 0")
        if not 0 < self.enrolment < self.time[0] < FOLLOW_UP:
            raise _invalid("enrolment", f"need 0 < enrolment < mean time < {FOLLOW_UP:g} years")


def _invalid(
    where: str, message: str, value: object = None, remedy: str | None = None
) -> InvalidInput:
    shown = None if value is None else str(value)
    return InvalidInput("simulate cvd", [Problem(where, message, value=shown, remedy=remedy)])


def _study(
    slug: str,
    title: str,
    design: tuple[tuple[float, float], float, float, float],
    **rows: tuple[float, ...],
) -> tuple[Cohort, ...]:
    """The sub-studies of one study from the rows of Table 3, keyed ``f`` and ``m``."""
    age_range, age_sbp, shape, enrolment = design
    return tuple(
        Cohort(
            name=f"{slug}-{sex}",
            title=f"{title} ({sex.upper()})",
            n=int(row[0]),
            event_rate=row[1] / 100,
            time=(row[2], row[3]),
            age=(row[4], row[5]),
            cholesterol=(row[6], row[7]),
            hdl=(row[8], row[9]),
            sbp=(row[10], row[11]),
            age_range=age_range,
            age_sbp=age_sbp,
            shape=shape,
            enrolment=enrolment,
        )
        for sex, row in rows.items()
    )


# Rows: n, event %, then mean and sd of time, age, cholesterol, HDL, SBP.
# Design: recruitment ages, age-SBP correlation, Weibull shape, years of enrolment.
COHORTS: tuple[Cohort, ...] = (
    *_study(
        "aric", "ARIC", ((44, 66), 0.2, 1.4, 3),
        f=(8101, 16, 20, 6, 54, 6, 218, 43, 57, 17, 120, 19),
        m=(6762, 26, 18, 7, 55, 6, 211, 40, 44, 14, 122, 18),
    ),
    *_study(
        "cardia", "CARDIA", ((18, 34), 0.05, 2.2, 1),
        f=(2743, 4, 33, 4, 25, 4, 177, 33, 56, 13, 107, 10),
        m=(2297, 7, 32, 6, 25, 4, 176, 34, 50, 13, 115, 10),
    ),
    *_study(
        "chs", "CHS", ((65, 100), 0.15, 1.2, 3),
        f=(3254, 42, 13, 7, 72, 5, 221, 39, 59, 16, 137, 22),
        m=(2413, 50, 10, 7, 73, 6, 198, 36, 48, 13, 136, 21),
    ),
    *_study(
        "mesa", "MESA", ((44, 85), 0.35, 1.2, 2),
        f=(3552, 9, 14, 4, 62, 10, 200, 36, 56, 15, 127, 23),
        m=(3176, 13, 14, 4, 62, 10, 188, 35, 45, 12, 126, 19),
    ),
    *_study(
        "framingham", "Framingham", ((18, 72), 0.35, 1.6, 4),
        f=(1766, 13, 27, 7, 44, 10, 201, 40, 54, 13, 118, 17),
        m=(1608, 22, 25, 9, 44, 10, 204, 37, 43, 11, 126, 16),
    ),
    *_study(
        "jackson", "Jackson Heart", ((20, 90), 0.35, 1.2, 4),
        f=(1913, 4, 10, 2, 50, 12, 197, 38, 54, 14, 124, 17),
        m=(1196, 5, 9, 2, 49, 12, 197, 40, 45, 12, 126, 16),
    ),
)  # fmt: skip

DEMO_SITES: tuple[Cohort, ...] = tuple(
    c for n in ("framingham-m", "chs-m", "chs-f", "aric-m") for c in COHORTS if c.name == n
)
"""Four cohorts with many events among 14,037 people: the demo's answer is informative at ε = 3."""


def find(name: str) -> Cohort:
    """The cohort called ``name``.

    Raises:
        InvalidInput: there is none; the nearest name is given.
    """
    names = [c.name for c in COHORTS]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
        raise _invalid("cohort", "unknown cohort", name, f"Did you mean {near}?")
    return COHORTS[names.index(name)]


def schema() -> Schema:
    """The one dictionary of all twelve cohorts; its bounds enclose every simulated value."""
    covariates = tuple(
        Column(name, "continuous", lower, upper, decimals, unit=unit, label=label)
        for name, lower, upper, decimals, unit, label in _COVARIATES
    )
    time = Column(
        name="time",
        kind="duration",
        lower=0.0,
        upper=FOLLOW_UP,
        decimals=_TIME_DECIMALS,
        unit="years",
        label="time from baseline to first cardiovascular event or censoring",
        event="cvd",
    )
    cvd = Column(name="cvd", kind="event", levels=("0", "1"), label="cardiovascular event")
    return Schema(columns=(*covariates, time, cvd), person="patient_id")


def estimand() -> Estimand:
    """Log hazard ratio per 10 mmHg of SBP, adjusted for age, cholesterol and HDL (Cox)."""
    return Estimand(
        name="sbp",
        model="cox",
        outcome="time",
        term="sbp",
        per=PER,
        adjust=("age", "cholesterol", "hdl"),
    )


def planning(cohorts: Sequence[Cohort]) -> Planning:
    """What an analyst would expect of these cohorts together, who has read the published table.

    Means over all their persons; spreads within a cohort, on average; correlations as simulated.
    One study says the same of all its sites, and its forecast is for a site between them.
    """
    persons = np.array([c.n for c in cohorts], dtype=np.float64)

    def mean_of(values: Sequence[float]) -> float:
        return float(f"{np.average(values, weights=persons):.3g}")

    numbers = []
    for j, (name, *_) in enumerate(_COVARIATES):
        means, spreads = zip(*(getattr(c, name) for c in cohorts), strict=True)
        before = [(other, CORRELATION[j][k]) for k, (other, *_) in enumerate(_COVARIATES[:j])]
        if name == "sbp":
            before[0] = ("age", mean_of([c.age_sbp for c in cohorts]))
        pairs = tuple(pair for pair in before if pair[1])
        numbers.append(
            PlannedColumn(name, mean=mean_of(means), sd=mean_of(spreads), correlations=pairs)
        )
    events = mean_of([c.event_rate for c in cohorts])
    # Nobody is followed for as long as the public bound says.
    time = PlannedColumn("time", events=events, censored=round(1 - events, 3))
    return Planning((*numbers, time), effects=((estimand().name, EXPECTED),))


def _lognormal(score: Array, mean: float, sd: float) -> Array:
    """Log-normal values with this mean and sd, at standard normal scores."""
    variance = math.log1p((sd / mean) ** 2)
    values: Array = np.exp(math.log(mean) - variance / 2 + math.sqrt(variance) * score)
    return values


def _recorded(cohort: Cohort, score: Array) -> Array:
    """Covariates (n, 4) as a hospital records them, at independent normal scores (n, 4)."""
    correlation = np.array(CORRELATION)
    correlation[0, 3] = correlation[3, 0] = cohort.age_sbp
    score = score @ np.linalg.cholesky(correlation).T
    low, high = cohort.age_range
    mean, sd = (cohort.age[0] - low) / (high - low), cohort.age[1] / (high - low)
    total = mean * (1 - mean) / sd**2 - 1  # the beta's a + b
    quantile = special.betaincinv(total * mean, total * (1 - mean), special.ndtr(score[:, 0]))
    values = np.empty_like(score)
    values[:, 0] = low + (high - low) * quantile
    for j, moments in enumerate((cohort.cholesterol, cohort.hdl, cohort.sbp), start=1):
        values[:, j] = _lognormal(score[:, j], *moments)
    for j, (_, lower, upper, decimals, *_) in enumerate(_COVARIATES):
        values[:, j] = np.clip(np.round(values[:, j], decimals), lower, upper)
    return values


def _log_risk(cohort: Cohort, covariates: Array, log_hr_per_10: float) -> Array:
    """x'b (n,), x centred at the cohort's published means."""
    means = [cohort.age[0], cohort.cholesterol[0], cohort.hdl[0], cohort.sbp[0]]
    risk: Array = (covariates - means) @ np.array([*EFFECTS, log_hr_per_10 / PER])
    return risk


@dataclass(frozen=True, slots=True)
class Calibration:
    """What :func:`calibrate` found, in years, and the moments that it implies."""

    scale: float
    dropout: float
    end: float
    event_rate: float
    time: tuple[float, float]


def _moments(
    cohort: Cohort, log_risk: Array, scale: float, dropout: float, end: float
) -> tuple[float, float, float]:
    """Event share, mean and sd of the observed time Y, by quadrature.

    With S(t) = mean over x of exp(-H(t | x)) and G(t) = P(censored after t): E[Y] = int S G,
    E[Y^2] = int 2 t S G, and the event share is int f G with f = -S'. The integrals are
    Gauss-Legendre on each side of the kink of G, where enrolment ended.
    """
    nodes, weights = np.polynomial.legendre.leggauss(24)
    kink, late = end - cohort.enrolment, cohort.enrolment
    t = np.concatenate([kink * (nodes + 1) / 2, kink + late * (nodes + 1) / 2])
    weight = np.concatenate([kink * weights / 2, late * weights / 2])
    weight *= np.exp(-dropout * t) * np.minimum(1.0, (end - t) / late)  # dt times G(t)
    hazard = np.exp(log_risk)[:, None] * (t / scale) ** cohort.shape
    survival = np.exp(-hazard)
    events = float(((hazard * survival).mean(axis=0) * cohort.shape / t * weight).sum())
    alive = survival.mean(axis=0) * weight
    mean, square = float(alive.sum()), float(2 * (t * alive).sum())
    return events, mean, math.sqrt(max(square - mean**2, 0.0))


@lru_cache(maxsize=256)
def calibrate(cohort: Cohort, log_hr_per_10: float = LOG_HR) -> Calibration:
    """Baseline scale, drop-out rate and end of follow-up that give the published moments.

    Deterministic: 1,024 Sobol points for the covariates, quadrature for time, least squares on
    (event share, mean, sd), each in units of the table's rounding error. Cached per process.

    Raises:
        InvalidInput: ``log_hr_per_10`` is not between -1 and 1.
    """
    if not -1 <= log_hr_per_10 <= 1:
        raise _invalid("log_hr_per_10", "must lie between -1 and 1", log_hr_per_10)
    points = 1024
    from scipy.stats import qmc  # a second that no other command waits for

    uniform = qmc.Sobol(4, scramble=False).random(points) + 0.5 / points  # the first point is 0
    log_risk = _log_risk(cohort, _recorded(cohort, special.ndtri(uniform)), log_hr_per_10)
    target = np.array([cohort.event_rate, *cohort.time])
    rounding = np.array([0.005, 0.5, 0.5])

    def misfit(log_parameters: Array) -> Array:
        reached = np.array(_moments(cohort, log_risk, *np.exp(log_parameters)))
        residual: Array = (reached - target) / rounding
        return residual

    mean, sd = cohort.time
    end = min(mean + sd, FOLLOW_UP - 1)
    scale = mean * (-math.log1p(-cohort.event_rate)) ** (-1 / cohort.shape)
    found = optimize.least_squares(
        misfit,
        np.log([scale, 0.1 / end, end]),
        bounds=(np.log([0.1, 1e-5, mean]), np.log([1e6, 1.0, FOLLOW_UP])),
        xtol=1e-10,
    )
    scale, dropout, end = (float(p) for p in np.exp(found.x))
    events, mean, sd = _moments(cohort, log_risk, scale, dropout, end)
    return Calibration(scale, dropout, end, event_rate=events, time=(mean, sd))


def simulate(
    cohort: Cohort,
    rng: np.random.Generator,
    *,
    n: int | None = None,
    log_hr_per_10: float = LOG_HR,
    tau: float = 0.0,
) -> dict[str, npt.NDArray[Any]]:
    """One draw of a cohort.

    Args:
        n: people; by default as many as the cohort has.
        log_hr_per_10: true adjusted log hazard ratio per 10 mmHg of SBP.
        tau: between-cohort sd of that log hazard ratio; this cohort's own is drawn from a normal
            law around ``log_hr_per_10``. With 0 the truth is the same in every cohort.

    Returns:
        ``patient_id`` (n,) text; ``age``, ``cholesterol``, ``hdl``, ``sbp``, ``time`` and ``cvd``
        (n,) float64: years, mg/dL, mg/dL, mmHg, years, 0 or 1.

    Raises:
        InvalidInput: n below 1, an effect outside [-1, 1], tau outside [0, 1].
    """
    size = cohort.n if n is None else n
    if not size >= 1:
        raise _invalid("n", "must be at least 1", size)
    if not 0 <= tau <= 1:
        raise _invalid("tau", "must lie between 0 and 1", tau)
    fit = calibrate(cohort, log_hr_per_10)
    effect = log_hr_per_10 + tau * rng.standard_normal()
    covariates = _recorded(cohort, rng.standard_normal((size, len(_COVARIATES))))
    log_risk = _log_risk(cohort, covariates, effect)
    onset = fit.scale * (rng.standard_exponential(size) * np.exp(-log_risk)) ** (1 / cohort.shape)
    end = fit.end - cohort.enrolment * rng.random(size)
    censored = np.minimum(rng.standard_exponential(size) / fit.dropout, end)
    step = 10.0**-_TIME_DECIMALS
    # Nobody has a time of 0: an event on the day of entry would be a prevalent one.
    time = np.clip(np.round(np.minimum(onset, censored), _TIME_DECIMALS), step, FOLLOW_UP)
    prefix = cohort.name.upper()
    return {
        "patient_id": np.array([f"{prefix}-{i:06d}" for i in range(1, size + 1)]),
        **{name: covariates[:, j] for j, (name, *_) in enumerate(_COVARIATES)},
        "time": time,
        "cvd": (onset <= censored).astype(np.float64),
    }


def write_site(
    cohort: Cohort,
    directory: pathlib.Path,
    rng: np.random.Generator,
    *,
    n: int | None = None,
    log_hr_per_10: float = LOG_HR,
    tau: float = 0.0,
) -> None:
    """Write ``data.csv`` (:func:`simulate`) and ``dictionary.toml`` into ``directory``.

    The directory is made when it is not there; files of these names are replaced.
    """
    table = simulate(cohort, rng, n=n, log_hr_per_10=log_hr_per_10, tau=tau)
    write_rows(directory, table, schema(), cohort.n if n is None else n)


def write_truth(
    directory: pathlib.Path, *, log_hr_per_10: float = LOG_HR, tau: float = 0.0
) -> None:
    """Write ``truth.json`` into ``directory``: what the cohorts were simulated with."""
    spread = f"normal between cohorts with sd {tau:g}" if tau > 0 else "the same in every cohort"
    truth = {
        "estimand": estimand().name,
        "log_hazard_ratio": log_hr_per_10,
        "per": PER,
        "note": "simulated cohorts; true log hazard ratio adjusted for "
        f"{', '.join(estimand().adjust)}; {spread}",
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "truth.json").write_text(json.dumps(truth, indent=2) + "\n", encoding="utf-8")
