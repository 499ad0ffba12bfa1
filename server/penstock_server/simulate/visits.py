r"""Four simulated clinics whose patients are seen at scheduled visits, with a known truth.

Everybody begins the same treatment at visit 0; some respond to it, the others do not. Blood
pressure and LDL cholesterol x of a patient follow an Ornstein-Uhlenbeck process (an SDE, whose
transitions are drawn exactly) around what the treatment does to their kind:

.. math:: x(t) = m_g(t) + z(t), \quad m_g(t) = \text{start} + (1 - e^{-κt}) \text{change}_g, \quad
   dz = -κ z\,dt + \sqrt{2κ}\, Σ^{1/2} dW, \quad z(0) \sim N(0, Σ)

so that one cloud at the first visit is two at the last. What is recorded is a *snapshot*: a patient
at one visit, or at a few of them, chosen at random and for no reason.

The clinics differ in their levels, their spread, and the share of patients who respond. Those who
do not respond change by WITHOUT everywhere; those who do, by as much as it takes for the mean
change to be CHANGE. So the mean of a visit is start + (1 - e^{-κt}) CHANGE, and the slope of an
ordinary least squares fit of blood pressure on visit, :func:`slope`, is the same at each clinic,
known exactly.

The numbers are made up, of the size that trials of blood pressure and statin treatment report.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.base.errors import InvalidInput, Problem
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock_server.simulate.cohort_files import write_rows

Array = npt.NDArray[np.float64]

VISITS = 9
"""Visits 0 to 8, every three months, as likely as each other."""

RATE = 0.35
"""κ, per visit."""

CHANGE = (-14.0, -30.0)
"""Mean change of systolic blood pressure (mmHg) and LDL (mg/dL) in the end, all patients."""

WITHOUT = (3.0, 4.0)
"""The same of those who do not respond."""

COLUMNS = ("sbp", "ldl")


@dataclass(frozen=True, slots=True)
class Clinic:
    """One site.

    Args:
        n: patients.
        start: means of systolic blood pressure and LDL at visit 0; sd: of patients of one kind, at
            any visit; correlation: between the two.
        responders: their share, above 0.
    """

    name: str
    n: int
    start: tuple[float, float]
    sd: tuple[float, float]
    correlation: float
    responders: float

    def __post_init__(self) -> None:
        if not (
            self.n > 0
            and 0 < self.responders < 1
            and -1 < self.correlation < 1
            and all(s > 0 for s in self.sd)
        ):
            raise _invalid(self.name, "n, sd, correlation or share of responders is out of range")

    @property
    def changes(self) -> Array:
        """Final changes (2 kinds, 2 columns): who does not respond, then who does."""
        without, share = np.array(WITHOUT), self.responders
        return np.stack([without, (np.array(CHANGE) - (1 - share) * without) / share])

    @property
    def covariance(self) -> Array:
        """Σ, (2, 2)."""
        between = self.correlation * self.sd[0] * self.sd[1]
        return np.array([[self.sd[0] ** 2, between], [between, self.sd[1] ** 2]])


CLINICS: tuple[Clinic, ...] = (
    Clinic("clinic-north", 3600, (156.0, 152.0), (10.0, 15.0), 0.15, 0.55),
    Clinic("clinic-east", 2800, (151.0, 146.0), (9.0, 16.0), 0.10, 0.50),
    Clinic("clinic-south", 4200, (159.0, 158.0), (10.0, 16.0), 0.20, 0.60),
    Clinic("clinic-west", 2400, (154.0, 149.0), (10.0, 17.0), 0.15, 0.50),
)


def _invalid(where: str, message: str, value: object = None) -> InvalidInput:
    shown = None if value is None else str(value)
    return InvalidInput("simulate visits", [Problem(where, message, value=shown)])


def schema(most: int = 1) -> Schema:
    """The one dictionary of all clinics, for at most ``most`` visits of a patient."""
    columns = (
        Column("visit", "integer", 0, VISITS - 1, label="number of the visit, every three months"),
        Column("sbp", "continuous", 80, 230, 0, unit="mmHg", label="systolic blood pressure"),
        Column("ldl", "continuous", 10, 300, 0, unit="mg/dL", label="LDL cholesterol"),
    )
    return Schema(columns, person="patient_id", max_rows_per_person=most)


def estimand() -> Estimand:
    """How blood pressure changes from one visit to the next, on average (least squares)."""
    return Estimand(name="slope", model="ols", outcome="sbp", term="visit")


def progress(visits: npt.ArrayLike) -> Array:
    """1 - e^{-κt}: how much of the final change has come about."""
    reached: Array = -np.expm1(-RATE * np.asarray(visits, dtype=np.float64))
    return reached


def means(clinic: Clinic, visits: npt.ArrayLike) -> Array:
    """m_g(t), (2 kinds, visits, 2 columns), any times: not responding, responding."""
    return np.array(clinic.start) + progress(visits)[:, None] * clinic.changes[:, None, :]


def slope() -> float:
    """The estimand's true value, mmHg per visit: of the means at all visits, weighted alike."""
    visits = np.arange(VISITS) - (VISITS - 1) / 2
    return float(visits @ (progress(np.arange(VISITS)) * CHANGE[0]) / (visits @ visits))


def simulate(
    clinic: Clinic, rng: np.random.Generator, *, n: int | None = None, most: int = 1
) -> dict[str, npt.NDArray[Any]]:
    """One draw of a clinic's snapshots, in the order of patients, then visits.

    Args:
        n: patients; by default as many as the clinic has.
        most: visits of a patient at most, 1 to VISITS; how many they are is uniform from 1.

    Returns:
        ``patient_id`` (rows,) text; ``visit``, ``sbp``, ``ldl`` (rows,) float64, as recorded.

    Raises:
        InvalidInput: n below 1, or ``most`` out of range.
    """
    size = clinic.n if n is None else n
    if not size >= 1:
        raise _invalid("n", "must be at least 1", size)
    if not 1 <= most <= VISITS:
        raise _invalid("most", f"must lie between 1 and {VISITS}", most)
    kinds = (rng.random(size) < clinic.responders).astype(int)
    values = means(clinic, np.arange(VISITS))[kinds] + _wander(clinic, rng, size)
    # Each patient's visits in random order, of which the first few are kept.
    places = rng.permuted(np.tile(np.arange(VISITS), (size, 1)), axis=1)
    kept = places < rng.integers(1, most + 1, size)[:, None]
    person, visit = np.nonzero(kept)
    table: dict[str, npt.NDArray[Any]] = {
        "patient_id": np.array([f"{clinic.name}-{i + 1:06d}" for i in person]),
        "visit": visit.astype(np.float64),
    }
    columns = {c.name: c for c in schema().columns}
    for place, name in enumerate(COLUMNS):
        table[name] = np.clip(np.rint(values[kept][:, place]), *columns[name].bounds)
    return table


def _wander(clinic: Clinic, rng: np.random.Generator, size: int) -> Array:
    """z at all visits, (size, VISITS, 2): each from the one before, exactly."""
    root = np.linalg.cholesky(clinic.covariance)
    fresh = rng.standard_normal((size, VISITS, 2)) @ root.T
    stays = np.exp(-RATE)
    for t in range(1, VISITS):
        fresh[:, t] = stays * fresh[:, t - 1] + np.sqrt(1 - stays**2) * fresh[:, t]
    return fresh


def write_site(
    clinic: Clinic,
    directory: Path,
    rng: np.random.Generator,
    *,
    n: int | None = None,
    most: int = 1,
) -> None:
    """Write ``data.csv`` (:func:`simulate`) and ``dictionary.toml`` into ``directory``."""
    table = simulate(clinic, rng, n=n, most=most)
    write_rows(directory, table, schema(most), clinic.n if n is None else n)


def write_truth(directory: Path) -> None:
    """Write ``truth.json`` into ``directory``: the slope, and each clinic's two means in time."""
    kinds = ("not responding", "responding")
    truth = {
        "estimand": estimand().name,
        "coefficient": slope(),
        "per": 1.0,
        "note": "simulated clinics; true least squares slope of sbp (mmHg) per visit, "
        "the same at every clinic",
        "means": {
            clinic.name: {
                kind: {name: mean[:, place].round(3).tolist() for place, name in enumerate(COLUMNS)}
                for kind, mean in zip(kinds, means(clinic, np.arange(VISITS)), strict=True)
            }
            for clinic in CLINICS
        },
        "responders": {clinic.name: clinic.responders for clinic in CLINICS},
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "truth.json").write_text(json.dumps(truth, indent=2) + "\n", encoding="utf-8")
