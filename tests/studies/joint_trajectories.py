"""One release of many sites' trajectories beside one place with all rows, and beside each site's.

**Half-circles** (`half_circles.py`): four sites of 40, 30, 20 and 10 % of n persons, each seen once
at one of 10 times. *Alike*, everybody takes a branch at random; *unlike*, of the first three sites
eight in ten take the upper branch, the line and the lower one. 50 particles from private moments.
W2 to 1000 fresh persons of all sites per time, averaged over the times, in the plane's own units.

- *one place*: all rows in one place, by the mechanism's defaults: 60 steps, each on a Poisson
  sample of a fifth.
- *joint*: one release of all sites by sums of whole numbers, 30 or 60 steps, everybody in each.
  With t = c = 0 (drop-outs, colluders) its noise is that of one place. With *local* noise each of
  the four sites adds all of it.
- *averaged drifts*: each site makes a release of its own at the same ε; a path goes where the mean
  of the four models' drifts points. It goes between branches where sites differ.
- *laid together*: the particles of the same four releases side by side, weighted by persons.

**The pen's digit 3** (`trajectories.py`): strokes of people, four sites of the same parts, each
writer seen once at one of 10 times, positions in the unit square. *Unlike*, sites prefer strokes
that lean to one side or the other, by weights of exp(a·z) with z the standardised way to the right
from top to bottom. W2 to 1000 writers of all sites that nobody saw.

**Patients** (`penstock_server.simulate.patients`, the demo's): four clinics of 60, 25, 10 and 5 %
of n, of very different shares of treated; what persons' visits have in common is measured.
*Off*: a table's answer less that of all real rows, in standard errors of that (root mean square;
copies' mean). Of *averaged answers* the mean of the four sites' own, as of drifts above.

Everybody has ε = 3 (half-circles also 1), δ = 1e-5; sums are added up from sites' own parts, with
their own noise (:mod:`penstock.mechanisms.joint`).

PENSTOCK_SEEDS says how many draws (6), PENSTOCK_PERSONS how many persons (6000,24000), of the pen's
digit 3 at most 5000.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import ot
from numpy.typing import NDArray
from tests.studies import half_circles as circles
from tests.studies.foreign_arms import seed_of
from tests.studies.lni import over_runs
from tests.studies.trajectories import schema as pen_schema
from tests.studies.trajectories import strokes
from tests.support.federated import encode_site, release_jointly
from tests.support.results import Row, at_most, write

from penstock.mechanisms import MECHANISMS, Trajectory
from penstock.mechanisms.joint.consortium import LOCAL, SHARED, Consortium
from penstock.mechanisms.joint.plan import JointPlan, plan_jointly
from penstock.mechanisms.parts import Part
from penstock.mechanisms.protocol import Asked, Settings
from penstock.mechanisms.released import PARTICLES, name_copy
from penstock.mechanisms.trajectory import run as mechanism
from penstock.mechanisms.trajectory.histories import order_persons, read_courses
from penstock.mechanisms.trajectory.particle_tables import Model
from penstock.mechanisms.trajectory.plan import Plan
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimation import Estimate, estimate
from penstock.questions.persons import estimate_courses, keep_first
from penstock.schema import Schema
from penstock.schema.encoding import Encoding
from penstock_server.simulate import patients

Array = NDArray[np.float64]
Rows = dict[str, Array]

SEEDS = int(os.environ.get("PENSTOCK_SEEDS", "6"))
PERSONS = tuple(int(n) for n in os.environ.get("PENSTOCK_PERSONS", "6000,24000").split(","))
NAMES = ("north", "east", "south", "west")
DELTA, PARTICLES_EACH = 1e-5, 50
TRAJECTORY = MECHANISMS["trajectory"]

# -- half-circles, and the pen -------------------------------------------------------------------

PARTS = (0.4, 0.3, 0.2, 0.1)
PREFERS = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [1 / 3, 1 / 3, 1 / 3]])
"""Shares of the branches at each site where they are unlike."""

LEANS = (1.5, -1.5, 0.7, 0.0)
"""Weights of how far a stroke leans at each site where they are unlike."""

CIRCLES, DIGIT = "half-circles", "digit 3"
SCHEMAS = {CIRCLES: circles.SCHEMA, DIGIT: pen_schema()}
BOXES = {CIRCLES: (circles.WIDTH, 0.0), DIGIT: (1.0, 0.5)}
"""How wide the box is in the plane's own units, and where its middle: of the mechanism's unit space
1 and 0."""
WRITERS, TIMES = 5000, circles.TIMES
"""At most so many of the pen's, so that a thousand are left."""
JOINT = {
    "joint, 30 steps": (30, 0, 0, SHARED),
    "joint, 60 steps": (60, 0, 0, SHARED),
    "joint, 30 steps, t = 1, c = 1": (30, 1, 1, SHARED),
    "joint, 30 steps, local noise": (30, 0, 0, LOCAL),
}
ONE, AVERAGED, TOGETHER = "one place", "averaged drifts", "laid together"
ARMS = (ONE, *JOINT, AVERAGED, TOGETHER)


@dataclass(frozen=True, slots=True)
class Job:
    """One draw of all sites."""

    persons: int
    alike: bool
    epsilon: float
    seed: int
    shape: str = CIRCLES

    @property
    def time(self) -> str:
        """The name of its time column."""
        return SCHEMAS[self.shape].names[0]

    @property
    def noise(self) -> int:
        """Seed of its first release; those after it follow."""
        return seed_of(self.where, self.seed)

    @property
    def where(self) -> str:
        sites = "alike" if self.alike else "unlike"
        shape = "" if self.shape == CIRCLES else f"{self.shape}, "
        return f"{shape}n = {self.persons}, sites {sites}, ε = {self.epsilon:g}"


def walk_branches(shares: Array, at: Array, rng: np.random.Generator) -> Array:
    """(N, 2) persons of branches by their shares, at times (N,) in [0, 1]."""
    branch, angle = rng.choice(3, len(at), p=shares), math.pi * (1 - at)
    x = np.where(branch == 1, 2 * at - 1, np.cos(angle))
    y = np.choose(branch, [np.sin(angle), np.zeros(len(at)), -np.sin(angle)])
    noise = math.sqrt(circles.VARIANCE) * rng.standard_normal((len(at), 2))
    return np.column_stack([x, y]) + noise


def draw_circles(job: Job, rng: np.random.Generator) -> tuple[list[Rows], list[Array]]:
    """Rows of every site, and fresh persons of all of them at each time."""
    last, shares = TIMES - 1, np.full((4, 3), 1 / 3) if job.alike else PREFERS
    sites = []
    for part, own in zip(PARTS, shares, strict=True):
        when = rng.permutation(np.arange(round(part * job.persons)) % TIMES)
        xy = walk_branches(own, when / last, rng)
        sites.append({"time": when.astype(np.float64), "x": xy[:, 0], "y": xy[:, 1]})
    overall = np.array(PARTS) @ shares
    fresh = [walk_branches(overall, np.full(circles.FRESH, t / last), rng) for t in range(TIMES)]
    return sites, fresh


def draw_writers(job: Job, rng: np.random.Generator) -> tuple[list[Rows], list[Array]]:
    """As :func:`draw_circles`, of strokes: no writer is at two sites, and none is fresh, too."""
    everyone = strokes(3)
    lean = everyone[:, -1, 0] - everyone[:, 0, 0]
    z = (lean - lean.mean()) / lean.std()
    left = rng.permutation(len(everyone))
    fresh, left = left[: circles.FRESH], left[circles.FRESH :]
    sites = []
    for part, pull in zip(PARTS, LEANS, strict=True):
        # The largest of log-weights with Gumbel noise are a draw without replacement.
        keys = (0.0 if job.alike else pull) * z[left] + rng.gumbel(size=len(left))
        order, count = np.argsort(-keys), round(part * job.persons)
        chosen, left = left[order[:count]], left[order[count:]]
        when = rng.permutation(np.arange(len(chosen)) % TIMES)
        xy = everyone[chosen, when]
        sites.append({"t": when.astype(np.float64), "x": xy[:, 0], "y": xy[:, 1]})
    return sites, [everyone[fresh, t] for t in range(TIMES)]


def measure_paths(job: Job) -> dict[str, float]:
    """Mean W2 of every arm."""
    digit = job.shape == DIGIT
    rng = np.random.default_rng([73_000, job.seed, job.persons, job.alike, *([3] if digit else [])])
    sites, fresh = (draw_writers if digit else draw_circles)(job, rng)
    sizes = [len(site["x"]) for site in sites]
    settings = Trajectory(
        job.time, particles=PARTICLES_EACH, copies=1, refits=0, paths=1, path_times=2
    )
    privacy, (width, middle) = PrivacyRequest(job.epsilon, DELTA), BOXES[job.shape]
    asked: Asked[Settings] = Asked(settings, SCHEMAS[job.shape], privacy)
    seed, even = job.noise, np.full(PARTICLES_EACH, 1 / PARTICLES_EACH)
    whole = {name: np.concatenate([site[name] for site in sites]) for name in sites[0]}
    unit = [(at - middle) / width for at in fresh]
    found = {ONE: width * compare(fit_alone(asked, whole, seed).particles, even, unit)}
    for arm, (steps, dropouts, colluders, noise) in JOINT.items():
        group = Consortium(NAMES, tuple(sizes), dropouts, colluders, noise)
        own = replace(asked, settings=replace(settings, steps=steps))
        particles = fit_jointly(plan_jointly(TRAJECTORY, own, group), sites, seed + 1)
        found[arm] = compare(particles, even, fresh)
    models = [fit_alone(asked, site, seed + 2 + i) for i, site in enumerate(sites)]
    found[AVERAGED] = width * compare(average_drifts(models), even, unit)
    side = np.concatenate([model.particles for model in models], axis=1)
    weights = np.repeat(np.array(sizes) / sum(sizes), PARTICLES_EACH) / PARTICLES_EACH
    found[TOGETHER] = width * compare(side, weights, unit)
    return found


def compare(particles: Array, weights: Array, fresh: Sequence[Array]) -> float:
    """Mean over the times of W2 between particles (T, m, 2) and fresh persons."""
    costs = []
    for own, real in zip(particles, fresh, strict=True):
        even = np.full(len(real), 1 / len(real))
        costs.append(ot.emd2(weights, even, ot.dist(own, real), numItermax=10**6))
    return float(np.mean(np.sqrt(np.maximum(costs, 0.0))))


def fit_alone(asked: Asked[Settings], rows: Rows, seed: int) -> Model:
    """A release of one place."""
    plan, encoding = TRAJECTORY.plan(asked, len(rows["x"])), Encoding(asked.schema)
    assert isinstance(plan, Plan)
    x, present = encoding.encode(rows, np.random.default_rng(seed))
    return mechanism.fit(plan, encoding, x[:, None], present[:, None], SeededNoise(seed))


def fit_jointly(joint: JointPlan, sites: Sequence[Rows], seed: int) -> Array:
    """(T, m, 2) particles of all sites, in the plane's own units: as they are released."""
    encoding = Encoding(joint.asked.schema)
    laid = [encode_site(joint, encoding, i, rows, seed) for i, rows in enumerate(sites)]
    parts = release_jointly(TRAJECTORY, joint, encoding, laid, SeededNoise(seed))
    [columns] = [part.columns for part in parts if part.name == PARTICLES]
    xy = np.column_stack([np.asarray(columns[name], dtype=np.float64) for name in ("x", "y")])
    return xy.reshape(TIMES, PARTICLES_EACH, 2)


def average_drifts(models: Sequence[Model]) -> Array:
    """(T, m, d) of paths that begin at particles of each model in turn and follow the mean of the
    models' drifts: at x, where couplings take particles near x, by a Gaussian kernel."""
    count, m, _ = models[0].particles.shape
    x = np.stack([models[j % len(models)].particles[0, j] for j in range(m)])
    found = [x]
    for t in range(count - 1):
        x = x + np.mean([find_drift(model, x, t) for model in models], axis=0)
        found.append(x)
    return np.stack(found)


def find_drift(model: Model, x: Array, t: int) -> Array:
    """(N, d): a model's displacement from one time to the next at points x (N, d)."""
    here, coupling = model.particles[t], model.couplings[t]
    goal = coupling / coupling.sum(axis=1, keepdims=True) @ model.particles[t + 1]
    width = 0.61 * here.std() * len(here) ** (-1 / 6)
    power = -((x[:, None] - here[None]) ** 2).sum(axis=2) / (2 * width**2)
    near = np.exp(power - power.max(axis=1, keepdims=True))
    return np.asarray(near / near.sum(axis=1, keepdims=True) @ (goal - here))


# -- patients -----------------------------------------------------------------------------------

CLINICS, TREATED = (0.6, 0.25, 0.1, 0.05), (0.2, 0.5, 0.8, 0.9)
VISITS = replace(patients.mechanism(), copies=5, refits=0, paths=1, path_times=2)
QUESTIONS = tuple(e for e in patients.estimands() if e.name != "landmark")
PLACED, ADDED = "one place", "joint"
PATIENT_ARMS = (PLACED, ADDED, "joint, t = 1, c = 1", "averaged answers")


def measure_patients(job: Job) -> dict[str, float]:
    """Squared errors by ``arm/question``, in variances of the real rows' answer."""
    rng = np.random.default_rng([74_000, job.seed, job.persons])
    sizes = [round(part * job.persons) for part in CLINICS]
    sites = [
        draw_clinic(size, practice.pressure, share, rng)
        for size, practice, share in zip(sizes, patients.PRACTICES, TREATED, strict=True)
    ]
    asked: Asked[Settings] = Asked(
        VISITS, patients.schema(), PrivacyRequest(job.epsilon, DELTA), QUESTIONS
    )
    shift = np.cumsum([0, *sizes[:-1]])
    moved = [s | {"patient": s["patient"] + by} for s, by in zip(sites, shift, strict=True)]
    whole = {name: np.concatenate([site[name] for site in moved]) for name in sites[0]}
    order = order_persons(whole["patient"].astype(int), whole["year"].astype(int))
    real = answer({n: v[order] for n, v in whole.items() if n != "patient"}, patients.schema())
    told = {
        PLACED: [answer_parts(release_alone(asked, whole, sum(sizes), job.noise), asked.schema)]
    }
    for arm, lost in ((ADDED, (0, 0)), (PATIENT_ARMS[2], (1, 1))):
        joint = plan_jointly(TRAJECTORY, asked, Consortium(NAMES, tuple(sizes), *lost))
        encoding, seed = Encoding(joint.asked.schema), job.noise + 1
        laid = [
            encode_site(joint, encoding, i, lay_out(site, size), seed)
            for i, (site, size) in enumerate(zip(sites, sizes, strict=True))
        ]
        parts = list(release_jointly(TRAJECTORY, joint, encoding, laid, SeededNoise(seed)))
        told[arm] = [answer_parts(parts, joint.asked.schema)]
    told[PATIENT_ARMS[3]] = [
        answer_parts(release_alone(asked, site, size, job.noise + 2 + i), asked.schema)
        for i, (site, size) in enumerate(zip(sites, sizes, strict=True))
    ]
    return {
        f"{arm}/{name}": (float(np.mean([one[name] for one in each])) - one_.estimate) ** 2
        / one_.variance
        for arm, each in told.items()
        for name, one_ in real.items()
    }  # fmt: skip


def draw_clinic(size: int, pressure: float, treated: float, rng: np.random.Generator) -> Rows:
    """Coded visits of so many patients, of whom such a share is treated, numbered from 0."""
    drawn = patients.draw_coded(3 * size + 200, pressure, rng)
    person, first = np.unique(drawn["patient"], return_index=True)
    wanted = np.concatenate(
        [
            person[drawn["treated"][first] == group][:count]
            for group, count in ((1.0, round(treated * size)), (0.0, size - round(treated * size)))
        ]
    )
    kept = np.isin(drawn["patient"], wanted)
    found = {name: values[kept] for name, values in drawn.items()}
    found["patient"] = np.unique(found["patient"], return_inverse=True)[1].astype(np.float64)
    return found


def lay_out(rows: Rows, persons: int) -> Rows:
    """The k rows of each person one after the other; what is missing of them is NaN."""
    who = rows["patient"].astype(int)
    place = who * patients.VISITS + rows["year"].astype(int)
    found = {}
    for name in patients.schema().names:
        found[name] = np.full(persons * patients.VISITS, np.nan)
        found[name][place] = rows[name]
    return found


def release_alone(asked: Asked[Settings], rows: Rows, persons: int, seed: int) -> list[Part]:
    """A release of one place."""
    plan, encoding = TRAJECTORY.plan(asked, persons), Encoding(asked.schema)
    x, present = encoding.encode(lay_out(rows, persons), np.random.default_rng(seed))
    laid = (x.reshape(persons, -1, encoding.d), present.reshape(persons, -1))
    return list(TRAJECTORY.run(plan, encoding, *laid, SeededNoise(seed)))


def answer_parts(parts: Sequence[Part], schema: Schema) -> dict[str, float]:
    """Each question's answer, the mean over the copies."""
    tables = {part.name: part.columns for part in parts}
    each = []
    for copy in range(1, VISITS.copies + 1):
        table = {n: np.asarray(v, dtype=np.float64) for n, v in tables[name_copy(copy)].items()}
        each.append(answer(table, schema))
    return {q.name: float(np.mean([one[q.name].estimate for one in each])) for q in QUESTIONS}


def answer(table: Mapping[str, Array], schema: Schema) -> dict[str, Estimate]:
    courses, found = read_courses(VISITS, schema, table), {}
    for asked in QUESTIONS:
        if asked.over_time:
            found[asked.name] = estimate_courses(table, schema, asked, courses)
        else:
            found[asked.name] = estimate(keep_first(table, courses), schema, asked)
    return found


# -- all of it ----------------------------------------------------------------------------------


def run() -> Path:
    """Measure, and write what was found."""
    rows: list[Row] = []
    places = [(CIRCLES, n) for n in PERSONS] + [(DIGIT, min(WRITERS, min(PERSONS)))]
    cells = [(s, n, a, eps) for s, n in places for a in (True, False) for eps in (3.0, 1.0)]
    jobs = [Job(n, a, eps, seed, s) for s, n, a, eps in cells for seed in range(SEEDS)]
    for label, each in _group(jobs, over_runs(measure_paths, jobs, "joint-trajectories")).items():
        one = [found[ONE] for found in each]
        rows += [at_most(f"W2, {label}, {arm}", [f[arm] for f in each]) for arm in ARMS]
        for arm in ARMS[1:]:
            apart = [f[arm] - o for f, o in zip(each, one, strict=True)]
            rows.append(at_most(f"paired: {arm} less one place, {label}", apart))
    jobs = [Job(n, False, 3.0, seed) for n in PERSONS for seed in range(SEEDS)]
    for label, each in _group(jobs, over_runs(measure_patients, jobs, "patients")).items():
        for arm in PATIENT_ARMS:
            for name in [q.name for q in QUESTIONS]:
                values = [found[f"{arm}/{name}"] for found in each]
                off = math.sqrt(float(np.mean(values)))
                rows.append(Row(f"off, patients, {name}, {label}, {arm}", off, None, len(values)))
    return write("joint-trajectories", rows, (__doc__ or "").strip())


def _group(
    jobs: Sequence[Job], found: Sequence[dict[str, float]]
) -> dict[str, list[dict[str, float]]]:
    grouped: dict[str, list[dict[str, float]]] = {}
    for job, one in zip(jobs, found, strict=True):
        grouped.setdefault(job.where, []).append(one)
    return grouped
