"""The cells of the study of coverage: where sites come from, what is asked, and what is kept.

Frozen by a commit before the first run, as ``VERSION``: worlds, questions, sizes and seeds. Whoever
changes one of them counts the version up, which draws all anew, and says here why.

1. November 2026: as first run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from tests.studies import unseen_tables
from tests.studies.foreign_arms import seed_of
from tests.studies.foreign_generators import FROZEN
from tests.studies.foreign_real import read_table
from tests.studies.foreign_tables import Table, binary, estimands
from tests.studies.kept import RELEASED, Answer, Store
from tests.support import made
from tests.support.delivered import deliver

from penstock.enquiry.shorthand import read_question
from penstock.inference.combine import SiteEstimate, combine
from penstock.inference.floored import estimate_floored
from penstock.inference.overlap import find_overlaps
from penstock.inference.posed import pose_copies
from penstock.inference.refits import Measured, Spread
from penstock.inference.slopes import Slope
from penstock.inference.tails import doubt_estimates
from penstock.mechanisms import Structured
from penstock.mechanisms.released import Refitting, name_copy, name_refit
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Coded, Column, Schema
from penstock.study.study import Study
from penstock_server.mechanisms.registry import kind_of
from penstock_server.mechanisms.tables.held import measure_held

Array = NDArray[np.float64]

VERSION = 1
ONLY = tuple(filter(None, os.environ.get("PENSTOCK_ONLY", "").split(",")))
DRAWS = int(os.environ.get("PENSTOCK_SEEDS", "8"))

BANK = 24
"""Sites of a draw, by which there are six federations of 4, three of 8 and two of 12."""

KS = (4, 8, 12)
SITE_SIZES = 3
"""Every third site is half as large as others, and every third twice."""

PERSONS = 200_000
"""Of a generator's population, from which sites draw."""

UNLIKENESS = 41
"""Kinds of sites by which the mean of what unlike sites have is known."""


@dataclass(frozen=True, slots=True)
class World:
    """A population, and sites that draw persons from it, with replacement.

    Args:
        table: a real one, whose rows are the population, or a frozen generator.
        n: persons of a site, every third half of it, every third twice as many.
        unlike: 0, or the sd of a in the weights exp(a·z) by which a site prefers persons, with z
            the standardised ``age``: sites have effects of their own, of which the mean is true.
    """

    table: str
    n: int
    epsilon: float
    unlike: float = 0.0

    def __str__(self) -> str:
        unlike = ", sites unlike" if self.unlike else ""
        return f"{self.table} (n = {self.n}), ε = {self.epsilon:g}{unlike}"

    @property
    def meant(self) -> bool:
        """By PENSTOCK_ONLY."""
        return not ONLY or self.table in ONLY

    @property
    def key(self) -> str:
        return f"{self.table}/{self.n}/{self.epsilon:g}/{self.unlike:g}"


WORLDS = (
    World("interactions", 2000, 3.0),
    World("nwtco", 1000, 3.0),
    World("interactions", 2000, 1.0),
    World("nwtco", 2000, 1.0, unlike=0.5),
    World("crossing", 4000, 3.0),
    World("thresholds", 1000, 3.0),
    World("cured", 1000, 1.0),
    World("leaving", 2000, 3.0, unlike=0.5),
    World("rotterdam", 2000, 3.0),
    World("nafld1", 4000, 1.0),
    World("adult", 1000, 1.0),
    World("adult-hours", 500, 3.0),
)

KEY = WORLDS[:2]
"""Of these most federations are to be run."""


# -- what is asked ---------------------------------------------------------------------------------

DECLARED: Mapping[str, tuple[str, ...]] = {
    "interactions": ("survival(time, 1095)", "mean(age)", "share(bmi > 30)"),
    "nwtco": ("survival(time, 1461)", "mean(age)", "share(stage == 'I')"),
    "crossing": ("survival(time, 548)", "mean(age)", "share(platelets < 200)"),
    "thresholds": ("survival(time, 730)", "mean(glucose)", "share(bmi > 30)"),
    "cured": ("survival(time, 913)", "mean(albumin)", "share(stage == 'I')"),
    "leaving": ("survival(time, 1278)", "mean(age)", "share(cd4 < 200)"),
    "rotterdam": ("survival(time, 1826)", "mean(age)", "share(size == '<=20')"),
    "nafld1": ("survival(time, 1826)", "mean(age)", "share(bmi > 30)"),
    "adult": ("mean(age)", "median(hours)", "share(marital == 'Divorced')"),
    "adult-hours": ("mean(age)", "median(hours)", "share(marital == 'Divorced')"),
}
"""Beside the named coefficients and products, and a product of two named ones where the table has
none of its own."""

PRODUCTS: Mapping[str, tuple[str, ...]] = {
    "nwtco": ("unfavourable:age",),
    "rotterdam": ("chemo:age",),
    "nafld1": ("male:age",),
    "adult": ("age:sex",),
    "adult-hours": ("age:sex",),
    "thresholds": ("statin:age",),
    "crossing": ("surgery:age",),
    "leaving": ("therapy:cd4",),
    "cured": ("therapy:size",),
}

UNDECLARED: Mapping[str, tuple[str, ...]] = {
    "interactions": (
        *("median(ldl)", "ldl ~ age + female", "diabetes ~ bmi + age"),
        *("time ~ ldl + age", "time ~ age + diabetes:bmi", "time ~ treated where female == '1'"),
    ),
    "nwtco": (
        *("median(age)", "age ~ stage", "unfavourable ~ stage + age"),
        *("time ~ study + stage", "time ~ stage:age", "time ~ age where unfavourable == '1'"),
    ),
    "crossing": (
        *("median(platelets)", "platelets ~ age + male", "frail ~ age + male"),
        *("time ~ platelets + age", "time ~ frail:age", "time ~ surgery where frail == '1'"),
    ),
    "thresholds": (
        *("median(pulse)", "pulse ~ age + male", "statin ~ age + male"),
        *("time ~ pulse + age", "time ~ age:male", "time ~ age where male == '1'"),
    ),
    "cured": (
        *("median(albumin)", "albumin ~ age + female", "margin ~ size + stage"),
        *("time ~ albumin + stage", "time ~ stage:therapy", "time ~ therapy where margin == '1'"),
    ),
    "leaving": (
        *("median(cd4)", "cd4 ~ age + male", "therapy ~ age + rural"),
        *("time ~ male + age", "time ~ age:rural", "time ~ therapy where rural == '1'"),
    ),
    "rotterdam": (
        *("median(age)", "age ~ size", "chemo ~ age + size"),
        *("time ~ hormon + age", "time ~ size:age", "time ~ chemo where meno == '1'"),
    ),
    "nafld1": (
        *("median(bmi)", "bmi ~ age + male", "male ~ age + bmi"),
        *("share(age > 60)", "time ~ age:bmi", "time ~ bmi where male == '1'"),
    ),
    "adult": (
        *("quantile(age, 0.9)", "hours ~ age + sex", "sex ~ age + educ"),
        *("mean(educ)", "rich ~ educ:hours", "rich ~ educ where sex == 'Male'"),
    ),
    "adult-hours": (
        *("quantile(age, 0.9)", "age ~ educ + sex", "sex ~ age + educ"),
        *("mean(educ)", "hours ~ educ:age", "hours ~ educ where sex == 'Male'"),
    ),
}
"""Asked of the released tables alone. Of a formula the first coefficient is looked at, of a product
its own."""

COIN, LUCK = "coin", "luck"
"""Columns of which nothing comes: the first is declared, the second asked for afterwards."""


@cache
def read_world(table: str) -> Table | None:
    """The population, with its columns of luck; None where a real table is not there."""
    seed = seed_of(VERSION, "population", table)
    rng = np.random.default_rng(seed)
    if table in FROZEN:
        found: Table | None = FROZEN[table](PERSONS, rng)
    elif table in unseen_tables.MAKERS:
        found = unseen_tables.read_unseen(table)
    else:
        found = read_table(table)
    if found is None:
        return None
    columns = (*found.schema.columns, *binary(COIN), Column(LUCK, "continuous", 0, 100, 1))
    table_of_luck = replace(
        found,
        schema=replace(found.schema, columns=columns),
        rows=found.rows | _toss(found.n, rng),
        named=(*found.named, COIN),
        products=found.products or {**PRODUCTS, **unseen_tables.PRODUCTS}[table],
    )
    return replace(table_of_luck, schema=table_of_luck.suggested())


def _toss(n: int, rng: np.random.Generator) -> dict[str, Array]:
    luck = np.round(np.clip(rng.gamma(1.5, 6.0, n), 0, 100), 1)
    return {COIN: (rng.random(n) < 0.4).astype(float), LUCK: luck}


@dataclass(frozen=True, slots=True)
class Asked:
    """All questions of one world.

    Attributes:
        declared, undeclared: by the names under which they are kept; nothing: of which there is no
            effect.
    """

    study: Study
    declared: Mapping[str, Estimand]
    undeclared: Mapping[str, Estimand]
    nothing: frozenset[str]

    @property
    def every(self) -> Mapping[str, Estimand]:
        return {**self.declared, **self.undeclared}


def pose_questions(world: World, table: Table) -> Asked:
    """What a study of this world declares, and what is asked afterwards."""
    first = estimands(table, products=True)
    bare = _pose_study(world, table.schema, first)
    texts = {**DECLARED, **unseen_tables.DECLARED}[world.table]
    more = [
        replace(read_question(text, bare)[0], name=f"declared{i}") for i, text in enumerate(texts)
    ]
    study = _pose_study(world, table.schema, (*first, *more))
    names = [*table.named, *table.products, *texts]
    undeclared: dict[str, Estimand] = {}
    luck = f"{table.outcome} ~ {LUCK}"
    further = {**UNDECLARED, **unseen_tables.UNDECLARED}[world.table]
    for number, text in enumerate((*further, luck)):
        posed = read_question(text, study)
        one = posed[-1] if ":" in text else posed[0]
        undeclared[text] = replace(one, name=f"undeclared{number}")
    return Asked(
        study,
        dict(zip(names, study.estimands, strict=True)),
        undeclared,
        frozenset({COIN, luck}),
    )


def _pose_study(world: World, schema: Schema, asked: Sequence[Estimand]) -> Study:
    return made.study(
        Structured(),
        sites=("here",),
        schema=schema,
        estimands=tuple(asked),
        privacy=PrivacyRequest(world.epsilon, min(1e-5, 1 / (40 * world.n))),
    )


# -- what is true ----------------------------------------------------------------------------------


def draw_site(table: Table, n: int, a: float, rng: np.random.Generator) -> Table:
    """Persons of a site with preference ``a``, each with luck of their own."""
    places = rng.choice(table.n, n, p=_prefer(table, a))
    site = table.take(places)
    return replace(site, rows=site.rows | _toss(n, rng))


def _prefer(table: Table, a: float) -> Array | None:
    if a == 0:
        return None
    age = table.rows["age"]
    weights = np.exp(a * (age - age.mean()) / age.std())
    return np.asarray(weights / weights.sum())


def find_truth(world: World) -> Answer:
    """Of the population; of unlike sites the mean over equally likely kinds of sites, ``name``, and
    what each kind has, ``name/kind``."""
    table = read_world(world.table)
    if table is None:
        raise KeyError(world.table)
    asked, rng = pose_questions(world, table), np.random.default_rng(seed_of("truth", world.key))
    kinds = world.unlike * ndtri((np.arange(UNLIKENESS) + 0.5) / UNLIKENESS)
    populations = (
        [table] if not world.unlike else [draw_site(table, PERSONS, a, rng) for a in kinds]
    )
    found: Answer = {}
    for name, e in asked.every.items():
        each = [
            0.0 if name in asked.nothing else estimate(p.rows, p.schema, e).estimate
            for p in populations
        ]
        found |= {name: float(np.mean(each))}
        found |= {f"{name}/{kind}": value for kind, value in enumerate(each)}
    return found


# -- one draw --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    """The truth of a world, or one site of it. ``number``: -1, or the site's."""

    world: World
    number: int

    @property
    def key(self) -> str:
        return f"{self.world.key}/{'truth' if self.number < 0 else self.number}"


def store() -> Store:
    own = (
        "coverage_cells",
        "foreign_generators",
        "foreign_tables",
        "foreign_real",
        "unseen_tables",
    )
    files = [f"tests/studies/{name}.py" for name in own]
    fits = ("combine", "floored", "floor", "refits", "slopes", "tails", "doubts", "overlap")
    inference = [f"shared/penstock/inference/{name}.py" for name in fits]
    held = "server/penstock_server/mechanisms/tables/held.py"
    released = [path for path in RELEASED if "analysis" not in path]
    return Store("coverage", [*files, *inference, held, *released])


def list_jobs(draws: int = DRAWS, worlds: Sequence[World] = WORLDS) -> Iterator[Job]:
    """The first draw of all worlds first, and twice as many draws of key worlds."""
    there = [world for world in worlds if world.meant and read_world(world.table) is not None]
    yield from (Job(world, -1) for world in there)
    for draw in range(2 * draws):
        for world in there:
            if draw < draws or world in KEY:
                yield from (Job(world, draw * BANK + site) for site in range(BANK))


def keep_answer(job: Job) -> None:
    """Measure, and write down at once: a run that is cut off is gone on with."""
    found = find_truth(job.world) if job.number < 0 else measure_site(job.world, job.number)
    store().keep(job.key, found)


def measure_site(world: World, number: int) -> Answer:
    """One site's release, as flat numbers: ``name/field`` of what :func:`read_site` reads."""
    table = read_world(world.table)
    if table is None:
        raise KeyError(world.table)
    seed = seed_of(VERSION, world.key, number)
    rng, asked = np.random.default_rng(seed), pose_questions(world, table)
    n = round(world.n * 2.0 ** (number % SITE_SIZES - 1))
    own = draw_site(table, n, world.unlike * float(rng.standard_normal()), rng)
    upload = deliver(asked.study, own.rows, SeededNoise(seed), rng)
    schema, settings = asked.study.schema, Structured()
    copies = [upload.coded(name_copy(i + 1), schema) for i in range(settings.copies)]
    refits = [upload.coded(name_refit(i + 1), schema) for i in range(settings.refits)]
    found: Answer = {}
    for name, estimand in asked.every.items():
        real = estimate(own.rows, schema, estimand)
        found |= {f"{name}/real": real.estimate, f"{name}/real_variance": real.variance}
        shown = _flatten(schema, estimand, copies, refits, kind_of(asked.study).refitting)
        found |= {f"{name}/{k}": v for k, v in shown.items()}
    posed = pose_copies(schema, [*asked.every.values()], copies)
    overlaps = find_overlaps(schema, [*asked.every.values()], copies[0]).estimands
    shown = {"doubt": doubt_estimates(schema, posed).estimands, "overlap": overlaps}
    for name, e in asked.every.items():
        found |= {f"{name}/{key}": each[e.name] for key, each in shown.items() if e.name in each}
    held = measure_held(asked.study, upload)
    for name, e in asked.declared.items():
        if held is not None and e.name in held.estimands:
            found |= {f"{name}/slope/{k}": v for k, v in _flatten_slope(held.estimands[e.name])}
    return found


_IMPUTED = ("estimate", "within", "between", "copies_used")


def _flatten(
    schema: Schema,
    asked: Estimand,
    copies: Sequence[Coded],
    refits: Sequence[Coded],
    how: Refitting,
) -> dict[str, float]:
    one = Measured.of(
        [estimate_floored(schema, asked, t) for t in copies],
        [estimate_floored(schema, asked, t) for t in refits],
        made=how,
        total=asked.regression.total,
    )
    plain, shown = one.plain, one.shown
    if plain.problem is not None or shown is None:
        return {}
    own = ("estimate", "variance", "within", "between", "n", "events", "copies", "copies_used")
    values = {name: getattr(plain, name) for name in own}
    told = ("square", "known", "df", "rows", "shift", "unit", "known_df")
    values |= {name: getattr(shown, name) for name in told}
    values["refits"] = one.refits
    imputed = combine([estimate_floored(schema, asked, t) for t in refits[:: how.per_fit]])
    if imputed.problem is None and imputed.between is not None:
        values |= {f"imputed/{name}": getattr(imputed, name) for name in _IMPUTED}
    return {name: math.nan if v is None else float(v) for name, v in values.items()}


def _flatten_slope(slope: Slope) -> list[tuple[str, float]]:
    own = ("slope", "slope_error", "offset", "offset_error", "df", "runs")
    return [*((n, float(getattr(slope, n))) for n in own), ("coarse", float(len(slope.coarse)))]


# -- read back -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Site:
    """What was kept of one site, by question.

    Attributes:
        real: estimate and variance without privacy.
        imputed: by Rubin's rules of one refit of each fit.
        overlaps: R² of the asked column on the others of its regression.
    """

    measured: Mapping[str, Measured]
    real: Mapping[str, tuple[float, float]]
    imputed: Mapping[str, SiteEstimate]
    doubts: Mapping[str, float]
    overlaps: Mapping[str, float]
    slopes: Mapping[str, Slope]


def read_site(kept: Answer, names: Sequence[str]) -> Site:
    """Of these questions."""
    measured, real, imputed, doubts, overlaps, slopes = {}, {}, {}, {}, {}, {}
    for name in names:
        own = {k.removeprefix(f"{name}/"): v for k, v in kept.items() if k.startswith(f"{name}/")}
        real[name] = own["real"], own["real_variance"]
        if "doubt" in own:
            doubts[name] = own["doubt"]
        if "overlap" in own:
            overlaps[name] = own["overlap"]
        if "estimate" in own:
            measured[name] = _read_measured(own)
        if "imputed/estimate" in own:
            imputed[name] = impute(*(own[f"imputed/{field}"] for field in _IMPUTED))
        if "slope/slope" in own:
            slopes[name] = _read_slope(own)
    return Site(measured, real, imputed, doubts, overlaps, slopes)


def impute(estimate: float, within: float, between: float, tables: float) -> SiteEstimate:
    """As software for multiple imputation has it: T = ū + (1 + 1/m) b, of (m − 1) (T / (1 + 1/m)
    b)² degrees of freedom (Rubin 1987)."""
    count, drawn = int(tables), (1 + 1 / tables) * between
    df = (count - 1) * ((within + drawn) / drawn) ** 2 if drawn > 0 else math.inf
    one = SiteEstimate(estimate, within + drawn, within, between, None, None, count, count)
    return replace(one, df=df)


def _read_measured(own: Answer) -> Measured:
    def whole(name: str) -> int | None:
        return None if math.isnan(own[name]) else int(own[name])

    plain = SiteEstimate(
        own["estimate"],
        own["variance"],
        own["within"],
        own["between"],
        whole("n"),
        whole("events"),
        int(own["copies"]),
        int(own["copies_used"]),
    )
    first = (own["square"], own["known"], own["df"], int(own["rows"]), own["shift"])
    shown = Spread(*first, own["unit"], own["known_df"])
    return Measured(plain, int(own["refits"]), shown)


def _read_slope(own: Answer) -> Slope:
    names = ("slope", "slope_error", "offset", "offset_error", "df")
    slope = {name: own[f"slope/{name}"] for name in names}
    coarse = ("one",) * int(own["slope/coarse"])
    return Slope(**slope, runs=int(own["slope/runs"]), coarse=coarse)
