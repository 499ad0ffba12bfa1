"""Particles moved by sums of many sites, beside each site's own drift averaged, and by themselves.

*Clouds.* Rows in a unit ball, SW2 to as many fresh rows (500 directions), ε = 1 and 3, δ = 1e-5,
replace-one as in `swf-mixture`: its mixture in 8 dimensions (n = 5000), and positions with their
times of the pen's digit 3 and of the half-circles (three dimensions; as many rows, drawn from one
writer's or branch's position at a random time). 4, 12 and 50 sites have equal parts. *Alike*, every
row is as likely at every site; *unlike*, sites prefer clusters (shares drawn from a Dirichlet
distribution of .3 each), or times (a site holds one stretch of them). Every arm starts as the
Gaussian with noisy moments (a share of ε), and flows along the same public directions:

- pooled: all rows in one place, one sketch.
- summed: the sites' counts added, with the noise of all sites for t drop-outs and c colluders: that
  of one place for t = c = 0, else √(S/(S-t-c)) times as much. That sums over sites are the same
  whole numbers is a law (`tests/laws/test_joint.py`).
- averaged: each site flows towards a sketch of its own, by its own noise, and the *drifts* are
  averaged by n. They lead to a barycentre of the sites. It starts from the pooled moments.
- apart: each site makes moments, sketch and rows of its own with the whole ε; rows lie together.
- and, without noise, summed and averaged.

*Tables.* The mixture through the mechanism, with the column of sites (t = c = 0): SW2 of its eight
columns, and the root mean square error of means within sites, of `sliced-wasserstein` and of
`structured`.

*Answers.* Whether `gibbs` should be summed: a chain with sites as levels of its design, all rows in
one place, beside `scoring` with sites as strata: 1500, 1000 and 300 persons a site; an odds ratio,
a hazard ratio and a slope, each adjusted for a factor. Width and error (*off*, root mean square)
are in standard errors of a stratified fit without privacy; a chain's would be 19 rounds, scoring's
are 8.

PENSTOCK_SEEDS says how many draws (4).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tests.studies.half_circles import half_circles
from tests.studies.lni import over_runs
from tests.studies.swf_mixture import apart as distance
from tests.studies.swf_mixture import in_ball, root_of, sliced_quantiles
from tests.studies.trajectories import strokes
from tests.support.carried_out import release
from tests.support.measured import noisy_moments, noisy_sketch
from tests.support.results import Row, at_most, write

from penstock.mechanisms import MECHANISMS, Gibbs, Scoring, Settings, SlicedWasserstein, Structured
from penstock.mechanisms.joint.consortium import SITE, Consortium
from penstock.mechanisms.joint.plan import plan_jointly
from penstock.mechanisms.protocol import Asked, Plan
from penstock.mechanisms.released import COVARIANCE, ESTIMATE
from penstock.mechanisms.scoring.blocks import find_places
from penstock.mechanisms.sliced_wasserstein.distribution import REACH, Targets, predicted
from penstock.mechanisms.sliced_wasserstein.flow import SlicedFlow
from penstock.mechanisms.sliced_wasserstein.goals import Goal, Schedule, goals, least_squares
from penstock.mechanisms.sliced_wasserstein.sketch import Directions
from penstock.mechanisms.sliced_wasserstein.tuning import tune
from penstock.mechanisms.tables.moments import mean_and_covariance
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Gaussian
from penstock.privacy.noise.sources import NoiseSource, SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.privacy.sensitivity import orthonormal_stack
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Coded, Column, Schema
from penstock.schema.encoding import Encoding

Array = NDArray[np.float64]

SEEDS = int(os.environ.get("PENSTOCK_SEEDS", "4"))
N, DELTA, SITES, EPSILONS = 5000, 1e-5, (4, 12, 50), (1.0, 3.0)
CLOUDS = ("mixture", "digit 3", "half-circles")
EACH = {4: 1500, 12: 1000, 50: 300}
"""Persons of a site, where answers are asked for."""
TARGET = 0.025
"""What the mixture, split in four, was to reach at ε = 1."""
_SCALE, _CLIP, _PREFERS = 2.0, 0.9, 0.3
_MIXTURE, _SCHEDULE = 8, Schedule(steps=120, step=0.75)


@dataclass(frozen=True, slots=True)
class Job:
    """One draw of all sites."""

    cloud: str
    sites: int
    alike: bool
    epsilon: float
    seed: int

    @property
    def label(self) -> str:
        return f"{self.cloud}, {self.sites} sites{'' if self.alike else ' unlike'}"


Found = dict[str, float]


def run() -> Path:
    """Measure, and write what was found."""
    works: dict[str, tuple[Callable[[Job], Found], Sequence[str]]] = {
        "SW2": (measure_clouds, CLOUDS),
        "table": (measure_tables, ("mixture",)),
        "answer": (measure_answers, ("cohort",)),
    }
    rows: list[Row] = []
    for what, (work, clouds) in works.items():
        cells = [
            (c, s, a, e) for c in clouds for s in SITES for a in (True, False) for e in EPSILONS
        ]
        jobs = [Job(*cell, seed) for cell in cells for seed in range(SEEDS)]
        found = over_runs(work, jobs, f"joint-flows: {what}")
        for at in range(0, len(jobs), SEEDS):
            rows += _list_rows(what, jobs[at], found[at : at + SEEDS])
    return write("joint-flows", rows, (__doc__ or "").strip())


def _list_rows(what: str, job: Job, of: Sequence[Found]) -> Iterator[Row]:
    reached = (job.cloud, job.sites, job.epsilon) == ("mixture", 4, 1.0) and what == "SW2"
    for arm in of[0]:
        target = TARGET if reached and arm == "summed, t = c = 0" else None
        values = [one[arm] for one in of]
        if arm.startswith("off"):  # an error of either sign
            yield Row(f"{arm}, {job.label}, ε = {job.epsilon:g}", _root_mean(values), None, len(of))
        else:
            named = f"{what}, {job.label}, ε = {job.epsilon:g}, {arm}"
            yield at_most(named, values, target=target)


def _root_mean(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


# -- clouds --------------------------------------------------------------------------------------


def draw_sites(job: Job, rng: np.random.Generator) -> tuple[list[Array], Array]:
    """The rows (n, d) of each site, and as many fresh rows of all."""
    draw = _mixture(job, rng) if job.cloud == "mixture" else _timed(job, rng)
    return [draw(site) for site in range(job.sites)], np.concatenate(
        [draw(site) for site in range(job.sites)]
    )


def _mixture(job: Job, rng: np.random.Generator) -> Callable[[int], Array]:
    centres = rng.standard_normal((5, _MIXTURE))
    centres *= 0.65 / np.linalg.norm(centres, axis=1, keepdims=True)
    shares = np.full((job.sites, 5), 0.2)
    if not job.alike:
        shares = rng.dirichlet(np.full(5, _PREFERS), size=job.sites)

    def draw(site: int) -> Array:
        of = rng.choice(5, size=N // job.sites, p=shares[site])
        return in_ball(centres[of] + 0.1 * rng.standard_normal((len(of), _MIXTURE)))

    return draw


def _timed(job: Job, rng: np.random.Generator) -> Callable[[int], Array]:
    """Positions with their times: (x, y, t), each within ±.57."""
    order, everyone = rng.permutation(job.sites), strokes(3) if job.cloud == "digit 3" else None

    def draw(site: int) -> Array:
        count = N // job.sites
        at = rng.random(count)
        if not job.alike:
            at = (order[site] + at) / job.sites
        t = np.minimum((10 * at).astype(int), 9)
        if everyone is None:
            places = np.stack([half_circles(1, when / 9, rng)[0] for when in t]) / 1.3
        else:
            places = 2 * everyone[rng.integers(len(everyone), size=count), t] - 1
        return in_ball(0.57 * np.column_stack([np.clip(places, -1, 1), 2 * t / 9 - 1]))

    return draw


def measure_clouds(job: Job) -> Found:
    """SW2 of each arm to fresh rows."""
    rng = np.random.default_rng([44_000, job.seed, job.sites, job.alike, len(job.cloud)])
    sites, fresh = draw_sites(job, rng)
    truth, noise = sliced_quantiles(fresh), SeededNoise(int(rng.integers(2**31)))
    whole, z = _scale_of(job.epsilon), rng.standard_normal(fresh.shape)
    rows, count = np.concatenate(sites), job.sites
    made = {"pooled": flow_from(rows, whole, noise, z)}
    for lost in (0, 1):
        more = Consortium(*_group(count, len(sites[0])), lost, lost).swell
        made[f"summed, t = c = {lost}"] = flow_from(rows, whole * more, noise, z, whole)
    made["averaged"] = flow_from(rows, whole, noise, z, own=sites)
    made["apart"] = np.concatenate(
        [
            flow_from(site, whole, noise, own)
            for site, own in zip(sites, np.array_split(z, count), strict=True)
        ]
    )
    made["summed, no noise"] = flow_from(rows, None, noise, z, whole)
    made["averaged, no noise"] = flow_from(rows, None, noise, z, whole, own=sites)
    made["the rows themselves"] = rows
    return {arm: distance(sliced_quantiles(of), truth) for arm, of in made.items()}


def _scale_of(epsilon: float) -> float:
    """Noise multiplier of one release with all of ε, relative to zero-out; replace-one holds."""
    return smallest_scale(lambda s: (Gaussian(s / 2),), epsilon, DELTA)


def _group(sites: int, each: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
    return tuple(f"s{site:02d}" for site in range(1, sites + 1)), (each,) * sites


def flow_from(
    rows: Array,
    sigma: float | None,
    noise: NoiseSource,
    z: Array,
    tuned_by: float | None = None,
    own: Sequence[Array] = (),
) -> Array:
    """Rows (m, d) of the Gaussians z by a flow towards a sketch, or towards sites' averaged.

    Args:
        sigma: noise multiplier of one release with all of ε, relative to zero-out; None: no noise.
        tuned_by: that by which directions and bins are chosen; ``sigma`` if not given.
        own: rows of sites whose drifts are averaged; none: one sketch of all rows.
    """
    n, d = rows.shape
    by = tuned_by if tuned_by is not None else sigma
    if by is None:
        raise ValueError("nothing says how many directions there are")
    tuned = tune(n / by, n, d)

    def part(share: float) -> float | None:
        return None if sigma is None else sigma / math.sqrt(share)

    mean, covariance = _release_gaussian(rows, part(1 - tuned.share), noise)
    theta = orthonormal_stack(tuned.bases * d, d, np.random.default_rng(0))
    sd = np.sqrt(np.einsum("dn,de,en->n", theta, covariance, theta))
    where = Directions.within(theta, mean @ theta, REACH * sd)

    def aim(at: Array) -> Targets:
        there = np.ones((len(at), 1), dtype=bool)
        sketch = noisy_sketch(at[:, None], there, where, tuned.bins, part(tuned.share), noise)
        return predicted(sketch, len(at))

    towards = average_drifts([aim(site) for site in own]) if own else goals(aim(rows), _SCHEDULE)
    flow = SlicedFlow(towards, d, _SCHEDULE, start=(root_of(covariance), mean), radius=1.0)
    return flow.from_latent(z)


def average_drifts(targets: Sequence[Targets]) -> Iterator[Goal]:
    """Steps whose displacement is the mean of the sites': Σ Q_s(F(p))/S - p, of equal sites."""
    d, count = targets[0].matrix.shape
    for which in _SCHEDULE.turns(count, d):
        theta = targets[0].matrix[:, which]

        def quantiles(levels: Array, which: NDArray[np.intp] = which) -> Array:
            found: Array = np.mean([one.quantiles(levels, which) for one in targets], axis=0)
            return found

        yield Goal(theta, least_squares(theta), quantiles)


def _release_gaussian(rows: Array, sigma: float | None, noise: NoiseSource) -> tuple[Array, Array]:
    """Mean and covariance by noisy moments, as `swf_mixture` has them in 8 dimensions."""
    n, d = rows.shape
    scale, there = np.append(np.full(d, _SCALE), 1.0), np.ones((n, 1), dtype=bool)
    moments = noisy_moments(
        _SCALE * rows[:, None], there, math.hypot(_SCALE * _CLIP, 1.0), sigma, noise
    )
    mean, _ = mean_and_covariance(moments / np.outer(scale, scale) / n)
    raw = moments[:-1, :-1] / (_SCALE**2 * n) - np.outer(mean, mean)
    values, vectors = np.linalg.eigh((raw + raw.T) / 2)
    return mean, (vectors * np.maximum(values, 1e-3)) @ vectors.T


# -- tables --------------------------------------------------------------------------------------


def measure_tables(job: Job) -> Found:
    """The mixture by the mechanisms, and what their tables hold of sites."""
    rng = np.random.default_rng([45_000, job.seed, job.sites, job.alike])
    sites, fresh = draw_sites(job, rng)
    truth, rows = sliced_quantiles(fresh), np.concatenate(sites)
    names = tuple(f"x{j + 1}" for j in range(_MIXTURE))
    schema = Schema(tuple(Column(n, "continuous", lower=-1, upper=1, decimals=4) for n in names))
    site = np.repeat(np.arange(float(job.sites)), len(sites[0]))
    coded = dict(zip(names, rows.T.round(4), strict=True)) | {SITE: site}
    group, found = Consortium(*_group(job.sites, len(sites[0]))), Found()
    arms: tuple[Settings, ...] = (
        SlicedWasserstein(copies=1, refits=0),
        Structured(copies=1, refits=0, planted=0),
    )
    for settings in arms:
        asked: Asked[Settings] = Asked(settings, schema, PrivacyRequest(job.epsilon, DELTA))
        plan = plan_jointly(MECHANISMS.of(settings), asked, group)
        table = _release(settings, plan.asked, plan.carried, coded, job.seed)
        made = np.column_stack([table[name] for name in names])
        found[f"{settings.name}, joint"] = distance(sliced_quantiles(made), truth)
        errors = [
            made[table[SITE] == s].mean(axis=0) - own.mean(axis=0)
            for s, own in enumerate(sites)
            if (table[SITE] == s).any()
        ]
        found[f"{settings.name}, means within sites"] = float(np.sqrt(np.mean(np.square(errors))))
        if settings is arms[0]:
            alone = MECHANISMS.of(settings).plan(asked, group.total)
            table = _release(settings, asked, alone, coded, job.seed)
            made = np.column_stack([table[name] for name in names])
            found[f"{settings.name}, one place"] = distance(sliced_quantiles(made), truth)
    return found


def _release(
    settings: Settings, asked: Asked[Settings], plan: Plan, rows: Coded, seed: int
) -> Coded:
    """The first part of a release."""
    encoding = Encoding(asked.schema)
    own = {name: rows[name] for name in asked.schema.names}
    x, there = encoding.encode(own, np.random.default_rng([seed, 1]))
    [part] = release(settings, plan, encoding, x[:, None], there[:, None], SeededNoise(seed))
    return {name: np.asarray(values, dtype=np.float64) for name, values in part.columns.items()}


# -- answers -------------------------------------------------------------------------------------

COHORT = Schema(
    (
        Column("a", "continuous", lower=-4, upper=4, decimals=2),
        Column("g", "categorical", levels=("u", "v", "w")),
        Column("y", "binary"),
        Column("t", "duration", upper=10, decimals=1, event="d"),
        Column("d", "event"),
        Column("w", "continuous", lower=-6, upper=6, decimals=2),
    )
)
ASKED = (
    Estimand("odds", "logistic", "y", "a", adjust=("g",)),
    Estimand("hazard", "cox", "t", "a", adjust=("g",)),
    Estimand("slope", "ols", "w", "a", adjust=("g",)),
)


def draw_cohort(job: Job, rng: np.random.Generator) -> Coded:
    """Rows of all sites, whose outcomes differ by sites where these are unlike."""
    each = EACH[job.sites]
    site = np.repeat(np.arange(float(job.sites)), each)
    off = np.repeat(rng.standard_normal(job.sites) * 0.7 * (not job.alike), each)
    a = np.clip(rng.standard_normal(len(site)), -4, 4).round(2)
    time = rng.exponential(6 * np.exp(-0.5 * a - 0.5 * off))
    return {
        "a": a,
        "t": np.minimum(time, 10).round(1),
        "d": (time < 10).astype(float),
        "g": rng.integers(0, 3, len(site)).astype(float),
        "y": (rng.random(len(site)) < 1 / (1 + np.exp(-0.8 * a - off))).astype(float),
        "w": np.clip(0.5 * a + off + rng.standard_normal(len(site)), -6, 6).round(2),
        SITE: site,
    }


def measure_answers(job: Job) -> Found:
    """Width and error of both, in standard errors of a fit without privacy."""
    rng = np.random.default_rng([46_000, job.seed, job.sites, job.alike])
    rows, found = draw_cohort(job, rng), Found()
    group = Consortium(*_group(job.sites, EACH[job.sites]))
    privacy = PrivacyRequest(job.epsilon, DELTA / 10)
    for one in ASKED:
        joined = group.join(Asked(Scoring(), COHORT, privacy, (one,)))
        real = estimate(rows, joined.schema, joined.estimands[0])
        sd = math.sqrt(real.variance)
        as_level = replace(one, adjust=(*one.adjust, SITE))
        for settings, asked in (("scoring", joined.estimands), ("gibbs", (as_level,))):
            of: Settings = Scoring() if settings == "scoring" else Gibbs()
            given: Asked[Settings] = Asked(of, joined.schema, privacy, asked)
            told = _release(of, given, MECHANISMS.of(of).plan(given, group.total), rows, job.seed)
            at = find_places(joined.schema, asked)[one.name] if settings == "scoring" else -1
            place = at % len(told[ESTIMATE])
            value = float(told[ESTIMATE][place])
            width = math.sqrt(float(told[COVARIANCE.format(place + 1)][place])) / sd
            found[f"{one.name}: width of {settings}"] = width
            found[f"off, {one.name} of {settings}"] = (value - real.estimate) / sd
    return found
