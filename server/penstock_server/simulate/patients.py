r"""Four simulated clinics whose patients are seen once a year until they die or are lost.

A patient i has levels and slopes of pressure, LDL and severity that go together, and errors at each
visit; half are treated, at random. On a standard scale, with t in years and treated 0 or 1,

.. math:: z_i(t) = 0.7 a_i + (0.1 b_i + \text{drift} + \text{effect} · \text{treated}_i)\,t +
   0.6 e_{it},\qquad a_i, b_i, e_{it} \sim N(0, Σ)

Severity has three levels, by :data:`CUTS`. The hazard of death within a year is HAZARD exp(RISES z)
times RATIO for the treated, with z that of severity as it was when the year began; patients are
lost at random, and one visit in twenty is missed. So what is seen depends on who is still alive, as
it does in a clinic, and the truth of each question is that of :data:`MANY` patients.

The clinics differ in their numbers, and in their patients' pressure at the start, which is in no
question by itself. The numbers are made up, of the size that trials report.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.mechanisms import Trajectory
from penstock.mechanisms.trajectory.histories import order_persons, read_courses
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.questions.persons import estimate_courses, keep_first
from penstock.schema import Column, Schema
from penstock_server.simulate.cohort_files import write_rows

Array = npt.NDArray[np.float64]

VISITS = 5
"""At 0 to 4 years; follow-up ends after 5."""

DRIFT, EFFECT = (-0.05, -0.03, 0.14), (-0.35, -0.2, -0.08)
"""A year, in standard units: of pressure, LDL and severity; and of the treated beside it."""

HAZARD, RISES, RATIO = 0.06, 0.6, 0.75
CUTS = (0.0, 1.0)
SCALE = ((0.0, 15.0), (128.0, 28.0))
"""Middle and spread of pressure (its middle is the clinic's) and of LDL."""

LEVELS = ("mild", "moderate", "severe")
MANY = 200_000


@dataclass(frozen=True, slots=True)
class Practice:
    """One site: its name, its patients, and their mean pressure at the start, mmHg."""

    name: str
    n: int
    pressure: float


PRACTICES: tuple[Practice, ...] = (
    Practice("clinic-north", 3600, 142.0),
    Practice("clinic-east", 2800, 138.0),
    Practice("clinic-south", 4200, 146.0),
    Practice("clinic-west", 2400, 140.0),
)


def schema() -> Schema:
    """The one dictionary of all clinics."""
    columns = (
        Column("year", "integer", 0, VISITS - 1, unit="years", label="time"),
        Column("sbp", "continuous", 70, 230, 0, unit="mmHg", label="systolic blood pressure"),
        Column("ldl", "continuous", 10, 300, 0, unit="mg/dL", label="LDL cholesterol"),
        Column("severity", "ordered", levels=LEVELS),
        Column("treated", "binary", levels=("no", "yes"), varies=False),
        Column(
            "years", "duration", upper=VISITS, decimals=2, unit="years", event="died",
            label="follow-up", varies=False,
        ),
        Column("died", "event", label="death", varies=False),
    )  # fmt: skip
    return Schema(columns, person="patient_id", max_rows_per_person=VISITS)


def mechanism() -> Trajectory:
    """Paths that end with follow-up."""
    return Trajectory("year", end="years")


def estimands() -> tuple[Estimand, ...]:
    """A question of each kind."""
    last = VISITS - 1
    return (
        Estimand("slope", "mixed", "sbp", "year", adjust=("treated",)),
        Estimand("change", "change", "sbp", at=0, until=last),
        Estimand("median", "quantile", "ldl", at=2, probability=0.5),
        Estimand("high", "share", "ldl", at=last, threshold=160, direction="above"),
        Estimand("together", "correlation", "sbp", at=0, until=last),
        Estimand(
            "worse", "transition", "severity", level="mild", outcome_level="moderate", at=0,
            until=last,
        ),
        Estimand("treatment", "cox", "years", "treated"),
        Estimand("landmark", "cox", "years", "severity", adjust=("treated",), at=1),
    )  # fmt: skip


def simulate(
    n: int, pressure: float, rng: np.random.Generator, name: str = "patient"
) -> dict[str, npt.NDArray[Any]]:
    """One draw: a row for each visit that takes place, in the order of patients, then visits.

    Returns:
        ``patient_id`` (rows,) text; the columns of :func:`schema`, as recorded: levels as text.
    """
    drawn = draw_coded(n, pressure, rng)
    levels = {
        c.name: np.array(c.levels) for c in schema().columns if c.kind in ("ordered", "binary")
    }
    found: dict[str, npt.NDArray[Any]] = {
        "patient_id": np.array([f"{name}-{i + 1:06d}" for i in drawn.pop("patient").astype(int)])
    }
    for column, values in drawn.items():
        found[column] = levels[column][values.astype(int)] if column in levels else values
    return found


def draw_coded(n: int, pressure: float, rng: np.random.Generator) -> dict[str, Array]:
    """The same, coded; and whose each row is."""
    root = np.linalg.cholesky(np.array([[1.0, 0.3, 0.4], [0.3, 1.0, 0.1], [0.4, 0.1, 1.0]]))
    level, slope = (rng.standard_normal((n, 1, 3)) @ root.T for _ in range(2))
    error = rng.standard_normal((n, VISITS, 3)) @ root.T
    treated = (rng.random(n) < 0.5) * 1.0
    at = np.arange(VISITS)[:, None]
    drift = np.array(DRIFT) + treated[:, None, None] * np.array(EFFECT)
    z = 0.7 * level + (0.1 * slope + drift) * at + 0.6 * error
    hazard = HAZARD * np.exp(RISES * z[..., 2]) * np.where(treated, RATIO, 1.0)[:, None]
    years, died = np.full(n, float(VISITS)), np.zeros(n, dtype=np.bool_)
    for t in range(VISITS):
        waited = rng.exponential(1 / hazard[:, t])
        now = ~died & (waited < 1)
        years[now], died[now] = t + waited[now], True
    lost = rng.uniform(0.5, 3 * VISITS, n)
    died, years = died & (years <= lost), np.round(np.minimum(years, lost), 2)
    there = (at[:, 0] <= years[:, None]) & (rng.random((n, VISITS)) > 0.05)
    there[:, 0] = True
    patient, year = np.nonzero(there)
    middle = (pressure, SCALE[1][0])
    sbp, ldl = (m + s * z[..., i] for i, (m, (_, s)) in enumerate(zip(middle, SCALE, strict=True)))
    columns = schema()
    return {
        "patient": patient.astype(np.float64),
        "year": year.astype(np.float64),
        "sbp": columns["sbp"].snap(sbp[there]),
        "ldl": columns["ldl"].snap(ldl[there]),
        "severity": np.searchsorted(CUTS, z[..., 2][there]).astype(np.float64),
        "treated": treated[patient],
        "years": years[patient],
        "died": died[patient] * 1.0,
    }


def truths() -> dict[str, float]:
    """Of each question what so many patients give that no doubt is left, on the scale on which
    sites are pooled."""
    drawn = draw_coded(MANY, PRACTICES[0].pressure, np.random.default_rng(1))
    patient, year = (drawn[name].astype(np.int64) for name in ("patient", "year"))
    order = order_persons(patient, year)
    table = {name: values[order] for name, values in drawn.items()}
    courses = read_courses(mechanism(), schema(), table)
    found = {}
    for asked in estimands():
        if asked.over_time:
            found[asked.name] = estimate_courses(table, schema(), asked, courses)
        else:  # of a duration, once a person
            found[asked.name] = estimate(keep_first(table, courses), schema(), asked)
    return {name: one.estimate for name, one in found.items()}


def write_site(practice: Practice, directory: Path, rng: np.random.Generator) -> None:
    """Write ``data.csv`` (:func:`simulate`) and ``dictionary.toml`` into ``directory``."""
    table = simulate(practice.n, practice.pressure, rng, practice.name)
    write_rows(directory, table, schema(), practice.n)


def write_truth(directory: Path) -> dict[str, float]:
    """Write ``truth.json`` into ``directory``: :func:`truths`, which are given back."""
    known = truths()
    note = (
        f"simulated clinics; of {MANY} patients, on the scale of each estimate: logarithms of "
        "ratios, logits of shares, Fisher's z of correlations"
    )
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"estimands": known, "note": note}, indent=2)
    (directory / "truth.json").write_text(text + "\n", encoding="utf-8")
    return known
