"""Twelve cardiovascular sub-studies: latent noise injection, section 4 of its paper.

The real cohorts cannot be shared; here each is *simulated* from the paper's table 3, with a log
hazard ratio per 10 mmHg of log 1.171, sd .045 between cohorts (which gives the paper's interval).
Recipe and protocol are the paper's: networks as in its table 4; time by a min-max logit, the event
dequantised, all columns z-scored, by the cohort's own values (class `empirical`: not private but
for w); for the attack a flow fitted to 80 % of a cohort is asked who is among them; ŵ is the
largest w = 0, .05 ... .95 with AUC ≤ .55; the release is a row per person from a flow of all rows.
Three things differ: events are dequantised to ±1 with Gaussian sd .25 instead of U(0, 1); every
flow is trained for a number of steps fixed on other simulations; and the attack is repeated with
the likelihood ratio of one who knows the flow, which sees more. Distances are between recorded
rows, in units of the columns' standard deviations. Log hazard ratios are pooled by DerSimonian and
Laird, with the Wald interval.

"Paper" is what it found on the real cohorts. A difference to the cohorts' own fit can be set beside
it, a level cannot: these are other people, and their unadjusted hazard ratio is the simulation's.
"Holds": at most the paper's + 2 s.e. of ours. Figures 10 and 11: `lni-cohorts-attacks.png`, 12 to
15: `lni-cohorts.png`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from tests.studies.lni import Fitted, auc, distance_scores, fit_flow, over_runs
from tests.support.results import Row, at_most, write

from penstock.audit.membership import likelihood_ratio, roc
from penstock.audit.tradeoff import MOST_AUC
from penstock.inference.pooling import Pooled, pool
from penstock.mechanisms.flow.architecture import Architecture
from penstock.mechanisms.flow.training import Training
from penstock.questions.estimation import estimate
from penstock_server.simulate import cvd

Array = NDArray[np.float64]

RUNS = 10
GRID = tuple(round(0.05 * i, 2) for i in range(20))
COLUMNS = ("age", "cholesterol", "hdl", "sbp", "time", "cvd")
TIME, EVENT = 4, 5
NOISE = 0.25
"""Sd of a dequantised event around ±1."""
MARGIN = 0.005
"""How far a time's min-max logit stays from 0 and 1."""
LOOKED_AT = 1000
"""Persons whose own synthetic row is ranked (evenly spread over larger cohorts)."""
LR_MOST = 1500
"""Members, and others, whose likelihood ratio is computed."""
PATH = tuple(i / 60 for i in range(61))
"""Along which three persons are followed."""


@dataclass(frozen=True, slots=True)
class Published:
    """What the paper gives for one sub-study: network (table 4), ŵ (5), ranks and shares (6)."""

    hidden: tuple[int, ...]
    flows: int
    w: float
    rank: tuple[float, float]
    """Median rank at w = 0 and at ŵ."""
    nearer: tuple[float, float]
    """Probability that another person is nearer than the own synthetic row."""


PUBLISHED = {
    "aric-f": Published((64,), 4, 0.90, (4043, 10), (0.504, 0.009)),
    "aric-m": Published((128,), 5, 0.85, (3389, 16), (0.503, 0.015)),
    "cardia-f": Published((128,), 4, 0.80, (1370, 15), (0.508, 0.023)),
    "cardia-m": Published((64, 64), 4, 0.85, (1156, 9), (0.513, 0.027)),
    "chs-f": Published((64,), 5, 0.80, (1581, 15), (0.492, 0.022)),
    "chs-m": Published((64, 64), 4, 0.75, (1184, 18), (0.479, 0.029)),
    "mesa-f": Published((32, 32), 5, 0.85, (1757, 9), (0.512, 0.018)),
    "mesa-m": Published((32, 32), 4, 0.85, (1539, 7), (0.506, 0.014)),
    "framingham-f": Published((64,), 4, 0.75, (858, 12), (0.498, 0.035)),
    "framingham-m": Published((64,), 5, 0.75, (745, 11), (0.489, 0.034)),
    "jackson-f": Published((32, 32), 3, 0.85, (925, 4), (0.525, 0.021)),
    "jackson-m": Published((32,), 3, 0.50, (619, 64), (0.515, 0.127)),
}

REAL, OWN, RATIO, NONE = "real", "ŵ", "ŵ, likelihood ratio", "w = 0"
"""Tables: the cohort's own, and synthetic at each attack's ŵ and without anybody's own share."""
SYNTHETIC = (OWN, RATIO, NONE)
ADJUST: dict[str, tuple[str, ...]] = {
    "adjusted": ("age", "cholesterol", "hdl"),
    "unadjusted": (),
}
TAU = 0.045
"""Sd of the log hazard ratio between cohorts: gives the pooled estimate the paper's interval."""


# -- the paper's coding ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Coding:
    """Recorded rows (n, 6), as ``COLUMNS``, to what a flow takes, and back.

    Args:
        low, high: the cohort's shortest and longest time; synthetic ones stay between.
    """

    low: float
    high: float

    @classmethod
    def of(cls, rows: Array) -> Coding:
        """By the cohort's own times."""
        return cls(float(rows[:, TIME].min()), float(rows[:, TIME].max()))

    def encode(self, rows: Array, rng: np.random.Generator | None = None) -> Array:
        """Times by their logit, events to ±1, with Gaussian noise if ``rng`` is given."""
        coded = rows.copy()
        share = (rows[:, TIME] - self.low) / (self.high - self.low)
        # People outside the range (another part of the cohort's) are put at its ends.
        share = MARGIN + (1 - 2 * MARGIN) * np.clip(share, 0, 1)
        coded[:, TIME] = np.log(share / (1 - share))
        coded[:, EVENT] = 2 * rows[:, EVENT] - 1
        if rng is not None:
            coded[:, EVENT] += NOISE * rng.standard_normal(len(rows))
        return coded

    def decode(self, coded: Array) -> Array:
        """The inverse; an event is where the column is above 0."""
        rows = coded.copy()
        share = (1 / (1 + np.exp(-coded[:, TIME])) - MARGIN) / (1 - 2 * MARGIN)
        rows[:, TIME] = self.low + (self.high - self.low) * np.clip(share, 0, 1)
        rows[:, EVENT] = coded[:, EVENT] > 0
        return rows


@dataclass(frozen=True, slots=True)
class Release:
    """A fitted flow with the latents and the noise of its rows: one table for each w."""

    coding: Coding
    model: Fitted
    latents: Array
    noise: Array

    def at(self, w: float) -> Array:
        """Recorded rows, one per person; the same noise at every w."""
        mixed = math.sqrt(w) * self.latents + math.sqrt(1 - w) * self.noise
        return self.coding.decode(self.model.from_latent(mixed))


def training(n: int) -> Training:
    """The best of eight recipes on simulations of seeds 50000 and up, of which this uses none.

    With ReLU instead of tanh, where few have events, some flows put them far outside.
    """
    return Training(
        steps=max(200, round(0.1 * n)),
        clip=math.inf,
        noise_multiplier=None,
        batch=256,
        learning_rate=0.005,
        average=0.5,
    )


def release(rows: Array, published: Published, rng: np.random.Generator) -> Release:
    """Fit the paper's network to recorded rows (n, 6)."""
    coding = Coding.of(rows)
    coded = coding.encode(rows, rng)
    seed = int(rng.integers(2**31))
    arch = Architecture(len(COLUMNS), published.flows, published.hidden, "tanh", seed)
    model = fit_flow(coded, seed, arch, training(len(rows)))
    return Release(coding, model, model.to_latent(coded), rng.standard_normal(coded.shape))


# -- attacks and privacy ---------------------------------------------------------------------------


def scaled(made: Release, rows: Array) -> Array:
    """Recorded rows in units of standard deviations, for distances; nothing is drawn."""
    return made.coding.encode(rows) / made.model.scale


def attack_scores(
    trial: Release, w: float, members: Array, others: Array
) -> dict[str, tuple[Array, Array]]:
    """Per attack, of members and of others, who see the table as it is recorded."""
    table = trial.at(w)
    near = [distance_scores(scaled(trial, table), scaled(trial, p)) for p in (members, others)]
    # As many as keep its matrix small; any of them, since rows are in random order.
    few = members[:LR_MOST], others[:LR_MOST]
    both = trial.coding.encode(np.concatenate(few))
    ratio = likelihood_ratio(trial.model, trial.coding.encode(table), both, w, math.inf)
    first = len(few[0])
    return {OWN: (near[0], near[1]), RATIO: (ratio[:first], ratio[first:])}


def chosen(aucs: Sequence[float]) -> float:
    """The largest w of ``GRID`` with an AUC of at most .55; 0 if there is none."""
    return max((w for w, a in zip(GRID, aucs, strict=True) if a <= MOST_AUC), default=0.0)


def ranks(real: Array, made: Array) -> tuple[Array, Array]:
    """Of up to ``LOOKED_AT`` persons: how many others are nearer than the own synthetic row.

    That is the paper's r_i (its eq. 26), (m,); and the distance to the own row, (m,).
    """
    who = np.unique(np.linspace(0, len(real) - 1, min(LOOKED_AT, len(real))).astype(np.intp))
    own = np.linalg.norm(made[who] - real[who], axis=1)
    nearer = [
        (cdist(real[who[at : at + 200]], real) < own[at : at + 200, None]).sum(axis=1)
        for at in range(0, len(who), 200)
    ]
    # A person is nearer to themselves than any row that differs.
    return np.concatenate(nearer) - (own > 0), own


# -- one cohort ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Example:
    """What the figures show of the first run's cohort.

    Args:
        tables: recorded rows by kind; curves: (len(GRID), len(RATES)), the distance attack's.
        distances: between persons and their own rows, by kind, and between any two for REAL.
        paths: (w, 3, 6), three persons' rows as coded and scaled, along ``PATH``; centred.
        cloud: (n, 6), all persons' likewise.
    """

    tables: dict[str, Array]
    curves: Array
    distances: dict[str, Array]
    paths: Array
    cloud: Array


@dataclass(frozen=True, slots=True)
class Outcome:
    """One simulated cohort.

    Args:
        w: by attack, OWN or RATIO; aucs: likewise, per ``GRID``.
        fits: (log hazard ratio, variance) by model and table; None where there is none.
        rank, nearer: the paper's table 6, by synthetic table.
    """

    w: dict[str, float]
    aucs: dict[str, list[float]]
    fits: dict[tuple[str, str], tuple[float, float] | None]
    rank: dict[str, float]
    nearer: dict[str, float]
    example: Example | None


def cox(rows: Array, adjust: tuple[str, ...]) -> tuple[float, float] | None:
    """Log hazard ratio per 10 mmHg and its variance."""
    frame = dict(zip(COLUMNS, rows.T, strict=True))
    found = estimate(frame, cvd.schema(), replace(cvd.estimand(), adjust=adjust))
    return None if found.problem else (found.estimate, found.variance)


def cohort_rows(name: str, rng: np.random.Generator, n: int | None = None) -> Array:
    """A simulated cohort, (n, 6)."""
    table = cvd.simulate(cvd.find(name), rng, n=n, tau=TAU)
    return np.column_stack([table[c] for c in COLUMNS])


def measure(task: tuple[int, str]) -> Outcome:
    """Simulate, choose w by both attacks on the 80/20 protocol, release, and compare."""
    run, name = task
    rng = np.random.default_rng([run, list(PUBLISHED).index(name), 41])
    published, rows = PUBLISHED[name], cohort_rows(name, rng)
    part = rng.permutation(len(rows))
    cut = round(0.8 * len(rows))
    members, others = rows[part[:cut]], rows[part[cut:]]
    trial = release(members, published, rng)
    scores = [attack_scores(trial, w, members, others) for w in GRID]
    aucs = {a: [auc(*s[a]) for s in scores] for a in (OWN, RATIO)}
    w = {a: chosen(found) for a, found in aucs.items()}
    made = release(rows, published, rng)
    at = {**w, NONE: 0.0}
    tables = {REAL: rows, **{kind: made.at(at[kind]) for kind in SYNTHETIC}}
    fits = {(m, k): cox(t, adjust) for m, adjust in ADJUST.items() for k, t in tables.items()}
    ranked = {k: ranks(scaled(made, rows), scaled(made, tables[k])) for k in SYNTHETIC}
    example = None
    if run == 0:
        curves = np.array([roc(*s[OWN]) for s in scores])
        example = _example(made, tables, curves, {k: own for k, (_, own) in ranked.items()}, rng)
    return Outcome(
        w,
        aucs,
        fits,
        {k: float(np.median(r)) for k, (r, _) in ranked.items()},
        {k: float(r.mean() / (len(rows) - 1)) for k, (r, _) in ranked.items()},
        example,
    )


def _example(
    made: Release,
    tables: dict[str, Array],
    curves: Array,
    distances: dict[str, Array],
    rng: np.random.Generator,
) -> Example:
    real, centre = scaled(made, tables[REAL]), made.model.centre / made.model.scale
    one, other = rng.integers(len(real), size=(2, 4 * LOOKED_AT))
    pairs = np.linalg.norm(real[one] - real[other], axis=1)[one != other]
    who = rng.choice(len(real), 3, replace=False)
    mixed = [math.sqrt(w) * made.latents[who] + math.sqrt(1 - w) * made.noise[who] for w in PATH]
    paths = np.array([made.model.from_latent(z) / made.model.scale - centre for z in mixed])
    return Example(tables, curves, {REAL: pairs, **distances}, paths, real - centre)


# -- the table -------------------------------------------------------------------------------------


def pooled(outcomes: Sequence[Outcome], model: str, kind: str) -> Pooled:
    """One run's cohorts, DerSimonian and Laird with the Wald interval."""
    fits = [f for o in outcomes if (f := o.fits[model, kind]) is not None]
    estimates, variances = zip(*fits, strict=True)
    return pool(estimates, variances, method="dl", test="z")


PAPER_HR = {
    ("adjusted", REAL): 1.171,
    ("adjusted", OWN): 1.148,
    ("adjusted", NONE): 1.121,
    ("unadjusted", REAL): 1.277,
}
PAPER_SE = {
    ("adjusted", REAL): math.log(1.207 / 1.134) / (2 * 1.959964),
    ("adjusted", OWN): math.log(1.185 / 1.111) / (2 * 1.959964),
    ("adjusted", NONE): math.log(1.158 / 1.084) / (2 * 1.959964),
    ("unadjusted", REAL): math.log(1.333 / 1.221) / (2 * 1.959964),
}
"""From its 95 % intervals."""


def rows_of(runs: Sequence[Mapping[str, Outcome]]) -> list[Row]:
    """Pooled estimates, their difference to the real ones, then the cohorts one by one."""
    found = [row for model in ADJUST for row in _pooled_rows(runs, model)]
    for kind in (OWN, RATIO):
        paper = float(np.mean([p.w for p in PUBLISHED.values()])) if kind == OWN else None
        means = [float(np.mean([o.w[kind] for o in r.values()])) for r in runs]
        found.append(at_most(f"{kind}: mean of twelve", means, paper=paper))
    fits = [f for r in runs for o in r.values() for f in o.fits.values()]
    failed = fits.count(None) / len(fits)
    found.append(Row("share of Cox fits that failed and are left out", failed, None, len(runs)))
    return found + [
        row for name in PUBLISHED for row in _cohort_rows([r[name] for r in runs], name)
    ]


def _pooled_rows(runs: Sequence[Mapping[str, Outcome]], model: str) -> list[Row]:
    whole = {k: [pooled(list(r.values()), model, k) for r in runs] for k in (REAL, *SYNTHETIC)}
    hr = {k: np.exp([p.estimate for p in ps]) for k, ps in whole.items()}
    found = [
        at_most(f"pooled HR, {model}, {kind}", values.tolist(), paper=PAPER_HR.get((model, kind)))
        for kind, values in hr.items()
    ]
    for kind in SYNTHETIC:
        apart, made = hr[kind] - hr[REAL], PAPER_HR.get((model, kind))
        paper = None if made is None else round(PAPER_HR[model, REAL] - made, 4)
        signed = None if paper is None else -paper
        size = np.abs(apart).tolist()
        found += [
            at_most(f"abs. difference to real, {model}, {kind}", size, target=paper, paper=paper),
            at_most(f"difference to real, {model}, {kind}", apart.tolist(), paper=signed),
        ]
    for kind, ps in whole.items():
        paper = PAPER_SE.get((model, kind))
        what = f"standard error of the pooled log HR, {model}, {kind}"
        found.append(at_most(what, [p.se for p in ps], paper=paper))
    return found


def _cohort_rows(outcomes: Sequence[Outcome], name: str) -> list[Row]:
    title, published, found = cvd.find(name).title, PUBLISHED[name], []
    for kind in (OWN, RATIO):
        paper = published.w if kind == OWN else None
        found.append(at_most(f"{title}: {kind}", [o.w[kind] for o in outcomes], paper=paper))
    for kind, place in ((NONE, 0), (OWN, 1)):
        rank, near = [o.rank[kind] for o in outcomes], [o.nearer[kind] for o in outcomes]
        found += [
            at_most(f"{title}: median rank, {kind}", rank, paper=published.rank[place]),
            at_most(f"{title}: probability nearer, {kind}", near, paper=published.nearer[place]),
        ]
    return found


def run() -> Path:
    """All runs, the table and the figures."""
    from tests.studies.lni_cohorts_figures import draw_figures

    tasks = [(r, name) for r in range(RUNS) for name in PUBLISHED]
    found = over_runs(measure, tasks, "lni-cohorts", lambda t: cvd.find(t[1]).n)
    outcomes = dict(zip(tasks, found, strict=True))
    runs = [{name: outcomes[r, name] for name in PUBLISHED} for r in range(RUNS)]
    draw_figures(runs)
    return write("lni-cohorts", rows_of(runs), (__doc__ or "").strip())
