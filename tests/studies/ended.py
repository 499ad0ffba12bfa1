"""Paths that end: `trajectory` with a duration and its event beside the visits, on panels.

Simulated: the mixed model of `panels` over five visits, and death, whose hazard within a year is
.06 · exp(.8 z) with z the standardised logarithm of `bnp` as last measured, so that who dies and
who drops out depends on the last value; censoring is uniform, and follow-up ends at the last visit
and a year. 1 000 and 4 000 persons, ε = 3, δ = 1e-5. Real: R's `pbcseq` (312 persons, six time
points), followed to death for at most 4 000 days, and 4 000 and 16 000 persons who are drawn from
them with replacement, which tells noise from what the model lacks; absent where PENSTOCK_TABLES
does not have it.

Of 20 000 drawn persons against the cohort itself: the largest error of Kaplan and Meier's curve at
seven times, of the share of persons at each visit, and of the share who died; visits at time points
that begin after the end; and the error of the log hazard ratio of `bnp` (of `bili`), as first
measured, over its standard error in the cohort, and signed, as a share of it. As `panels` has
them, errors of the visits. PENSTOCK_SEEDS says how many seeds (10).
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from lifelines import CoxPHFitter, KaplanMeierFitter
from numpy.typing import NDArray
from tests.studies import panels
from tests.studies.lni import over_runs
from tests.support.results import Row, at_most, write

from penstock.mechanisms import Trajectory
from penstock.mechanisms.trajectory.cohorts import make_places
from penstock.mechanisms.trajectory.dependence import fit
from penstock.mechanisms.trajectory.followed import Followed
from penstock.mechanisms.trajectory.repeats import plan_repeats
from penstock.privacy.noise.sources import SecureNoise
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Column, Schema

Array = NDArray[np.float64]
Job = tuple[str, int, int]
Panel = tuple[Followed, Schema, Trajectory]
VISITS = 5
PERSONS = 312
"""In `pbcseq`."""

CELLS = (
    *(("simulated", n) for n in (4000, 1000)),
    *(("pbcseq", n) for n in (PERSONS, 4000, 16000)),
)
HAZARD, RISES = 0.06, 0.8
WORDS = {
    "survival": "survival, largest error",
    "there": "share who is there, largest error",
    "died": "share who died",
    "after": "visits after the end",
    "hazard": "log hazard ratio, in standard errors",
    "drawn": "log hazard ratio over the cohort's, less 1",
}
SIMULATED_END = (
    Column("years", "duration", upper=VISITS, decimals=2, event="died", varies=False),
    Column("died", "event", varies=False),
)
PBC_END = (
    Column("days", "duration", upper=4000, decimals=0, event="died", varies=False),
    Column("died", "event", varies=False),
)


def simulate(n: int, rng: np.random.Generator) -> Panel:
    """See the module's docstring; the first visit is taken at 0, then one a year."""
    cohort, _ = panels.simulate(n, VISITS, rng)
    z = (np.log(cohort.varying["bnp"]) - 5.0) / 0.9
    time, died = np.full(n, float(VISITS)), np.zeros(n, dtype=np.bool_)
    for t in range(VISITS):
        waited = rng.exponential(1 / (HAZARD * np.exp(RISES * z[:, t])))
        now = ~died & (waited < 1)
        time[now], died[now] = t + waited[now], True
    censored = rng.uniform(0.5, 2 * VISITS, n)
    left = censored < time
    once = {"years": np.round(np.where(left, censored, time), 2), "died": (died & ~left) * 1.0}
    given = panels.schema((*panels.SIMULATED_COLUMNS, *SIMULATED_END), VISITS)
    panel = Followed(cohort.there, cohort.varying, cohort.constants | once)
    return panel, given, Trajectory("visit", end="years")


@cache
def real() -> Panel | None:
    """`pbcseq`, or None where it is absent."""
    made = panels.real("pbcseq")
    if made is None:
        return None
    cohort, _ = made
    folder = Path(os.environ.get("PENSTOCK_TABLES", "."))
    found = next(p for p in (folder / "pbcseq.csv", folder / "pbcseq.csv.gz") if p.exists())
    each = pd.read_csv(found).drop_duplicates("id")
    days, last = each["futime"].to_numpy(float), PBC_END[0].bounds[1]
    died = (each["status"].to_numpy() == 2) & (days <= last)
    once = {"days": np.minimum(days, last), "died": died * 1.0}
    given = panels.schema((*panels.PBC_COLUMNS, *PBC_END), 6)
    starts = (0.0, *map(float, panels.PBC_EDGES))
    how = Trajectory("visit", end="days", visit_times=starts)
    return Followed(cohort.there, cohort.varying, cohort.constants | once), given, how


def survive(persons: Followed, duration: Column, at: Array) -> Array:
    """Kaplan and Meier's curve."""
    time, died = persons.constants[duration.name], persons.constants[str(duration.event)]
    fitted = KaplanMeierFitter().fit(time, died)
    return np.asarray(fitted.survival_function_at_times(at), dtype=np.float64)


def compare_hazards(persons: Followed, duration: Column, column: str) -> tuple[float, float]:
    """The log hazard ratio of a column's logarithm at the first visit, and its standard error."""
    first = persons.there[:, 0]
    frame = pd.DataFrame(
        {
            "time": np.maximum(persons.constants[duration.name][first], 1e-3),
            "died": persons.constants[str(duration.event)][first],
            "x": np.log(persons.varying[column][first, 0]),
        }
    )
    fitted = CoxPHFitter().fit(frame, "time", "died")
    return float(fitted.params_["x"]), float(fitted.standard_errors_["x"])


def compare(panel: Panel, rng: np.random.Generator) -> dict[str, float]:
    """What drawn persons of one private model are off, and the measures of `panels`."""
    cohort, given, how = panel
    n, visits = cohort.there.shape
    plan = plan_repeats(how, given, n, PrivacyRequest(panels.EPSILON, panels.DELTA))
    if plan.follow_up is None:
        raise ValueError("the study names no end")
    cohort = plan.follow_up.cut(cohort)
    model = fit(plan, make_places(plan, given), cohort, SecureNoise())
    latents = rng.standard_normal((panels.DRAWN, model.latents))
    drawn = model.draw(latents, rng.random((panels.DRAWN, visits)))
    duration = plan.follow_up.duration
    at = np.linspace(0.0, duration.bounds[1], 9)[1:-1]
    curves = [survive(each, duration, at) for each in (cohort, drawn)]
    last = plan.follow_up.read(drawn.constants).point
    column = "bnp" if "bnp" in cohort.varying else "bili"
    (real_hazard, error), (hazard, _) = (
        compare_hazards(each, duration, column) for each in (cohort, drawn)
    )
    died = [each.constants[str(duration.event)].mean() for each in (cohort, drawn)]
    seen = [panels.look(_without(each, duration), given) for each in (drawn, cohort)]
    return panels.compare(seen[0], seen[1], visits, len(cohort.varying)) | {
        "survival": float(np.abs(curves[0] - curves[1]).max()),
        "there": float(np.abs(seen[0].there - seen[1].there).max()),
        "died": float(abs(died[0] - died[1])),
        "after": float((drawn.there & (np.arange(visits) > last[:, None])).sum()),
        "hazard": abs(hazard - real_hazard) / error,
        "drawn": hazard / real_hazard - 1,
    }


def _without(persons: Followed, duration: Column) -> Followed:
    """Without the end, which is no column of a visit."""
    once = {duration.name, duration.event}
    kept = {name: x for name, x in persons.constants.items() if name not in once}
    return Followed(persons.there, persons.varying, kept)


def work(job: Job) -> dict[str, float]:
    """One cohort."""
    source, n, seed = job
    rng = np.random.default_rng([seed, n])
    panel = simulate(n, rng) if source == "simulated" else real()
    if panel is None:
        raise ValueError("the table is absent")
    if source != "simulated" and n != PERSONS:
        panel = take(panel, rng.integers(0, PERSONS, n))
    return compare(panel, rng)


def take(panel: Panel, who: NDArray[np.intp]) -> Panel:
    """A panel of these of its persons."""
    cohort, given, how = panel
    moving, once = (
        {name: values[who] for name, values in each.items()}
        for each in (cohort.varying, cohort.constants)
    )
    return Followed(cohort.there[who], moving, once), given, how


def run() -> Path:
    """All cells; that of the table is left out where it is absent."""
    seeds = int(os.environ.get("PENSTOCK_SEEDS", "10"))
    cells = [cell for cell in CELLS if cell[0] == "simulated" or real() is not None]
    jobs: list[Job] = [(*cell, seed) for cell in cells for seed in range(seeds)]
    found = dict(zip(jobs, over_runs(work, jobs, "ended"), strict=True))
    rows: list[Row] = []
    for cell in cells:
        for measure, words in (panels.WORDS | WORDS).items():
            target = 0.0 if measure == "after" else None
            values = [found[(*cell, seed)][measure] for seed in range(seeds)]
            rows.append(at_most(f"{words}: {cell[0]}, n = {cell[1]}", values, target=target))
    return write("ended", rows, (__doc__ or "").strip())
