"""The cells of the study of break-even: sites, questions, who answers them, and what is kept.

Frozen by a commit before the first run on tables that are the test, as ``VERSION``: tables, sizes,
questions, seeds and what is measured. Whoever changes one of them counts the version up, which
draws all anew, and says here why.

1. November 2026: as first run, with Q = 1, 2, 4, … 64.
2. After one seed of that many questions broke even beyond 64: Q goes to 1024, in steps of four.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray
from tests.studies.coverage_cells import DECLARED, PRODUCTS, UNDECLARED
from tests.studies.foreign_arms import make, seed_of
from tests.studies.foreign_measures import FAILED
from tests.studies.foreign_real import read_table
from tests.studies.foreign_tables import Table, estimands
from tests.studies.kept import RELEASED, Answer, Store
from tests.support import made
from tests.support.carried_out import release

from penstock.base.errors import Hopeless
from penstock.enquiry.shorthand import read_question
from penstock.inference.floored import estimate_floored
from penstock.inference.pooling import quantile
from penstock.inference.refits import Measured, widen_sites
from penstock.mechanisms import MECHANISMS, Gibbs, Scoring, Structured
from penstock.mechanisms.gibbs.settings import answer_terms
from penstock.mechanisms.protocol import Asked as Posed
from penstock.mechanisms.protocol import Plan
from penstock.mechanisms.released import COVARIANCE, ESTIMATE
from penstock.mechanisms.scoring.blocks import find_places
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Gaussian
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import DELTA, PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.questions.grammar import Product
from penstock.schema import Schema
from penstock.schema.encoding import Encoding
from penstock.study.study import Study

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

VERSION = 2
ONLY = tuple(filter(None, os.environ.get("PENSTOCK_ONLY", "").split(",")))
SEEDS = int(os.environ.get("PENSTOCK_SEEDS", "8"))

SHARED_BY = (1, 4, 16, 64, 256, 1024)
"""How many questions share the budget of one release of tables."""

EPSILONS = (3.0, 1.0)
COPIES, REFITS, REFITTED = 10, 20, 8
"""Refits show noise, and change no answer: only the first seeds have them."""

TABLES_SEEDS = 3
"""Times as many seeds of tables as of others."""

FARTHEST = 100.0
"""Errors end here, in standard errors of the real rows."""

WAYS = ("tables", "scoring", "gibbs", "together")
"""One release of tables; each question by a study of its own, of either mechanism; all questions
by one study of `scoring`."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One site that asks, or is asked.

    Args:
        n: of its persons; drawn from the table without replacement, each seed anew. 0: all.
    """

    table: str
    n: int
    epsilon: float

    def __str__(self) -> str:
        size = f"n = {self.n}" if self.n else "all rows"
        return f"{self.table} ({size}), ε = {self.epsilon:g}"

    @property
    def key(self) -> str:
        return f"{self.table}/{self.n}/{self.epsilon:g}"


FROZEN = (("adult", 2000), ("rotterdam", 2000), ("nwtco", 2000), ("adult", 0))
TUNED_ON = (("colon", 0), ("gbsg2", 0))
"""Looked at while the study was written; run only where PENSTOCK_ONLY names them, and no part of
the record."""

MORE: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "colon": (
        ("survival(time, 913)", "mean(age)", "share(obstruct == '1')"),
        ("nodes:age",),
        (
            *("median(age)", "age ~ sex", "obstruct ~ age + sex"),
            *("time ~ adhere + age", "time ~ age:sex", "time ~ age where sex == '1'"),
        ),
    ),
    "gbsg2": (
        ("survival(time, 913)", "mean(age)", "share(tsize > 30)"),
        ("horTh:age",),
        (
            *("median(tsize)", "age ~ tgrade", "horTh ~ age + tsize"),
            *("time ~ tsize + age", "time ~ tgrade:age", "time ~ age where menostat == 'Post'"),
        ),
    ),
}
"""Of tables that were tuned on: declared beside the named coefficients, declared products, and
asked afterwards. The others' are those of the study of coverage, which were fixed before."""


def list_cells() -> Iterator[Cell]:
    """Those whose tables are there: what PENSTOCK_ONLY names, or all that are the test."""
    chosen = [one for one in (*FROZEN, *TUNED_ON) if one[0] in ONLY] if ONLY else FROZEN
    for table, n in chosen:
        if read_table(table) is not None:
            yield from (Cell(table, n, e) for e in EPSILONS)


# -- what is asked ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """The questions of one table, in order, by the names under which they are kept.

    Attributes:
        declared: what a study of tables declares; undeclared: what its tables are asked afterwards.
    """

    declared: Mapping[str, Estimand]
    undeclared: Mapping[str, Estimand]

    @property
    def every(self) -> Mapping[str, Estimand]:
        return {**self.declared, **self.undeclared}

    def kind(self, name: str) -> str:
        """Questions of one kind are looked at together."""
        asked, declared = self.every[name], name in self.declared
        if not asked.regression.compares:
            return DECLARED_KINDS[1] if declared else UNDECLARED_KINDS[1]
        if declared:
            return DECLARED_KINDS[0]
        joined = isinstance(asked.target, Product) or bool(asked.where)
        return NOT_HELD if joined else UNDECLARED_KINDS[0]


DECLARED_KINDS = ("declared effects", "declared means, shares and survival")
UNDECLARED_KINDS = ("undeclared effects", "undeclared means, shares and quantiles")
NOT_HELD = "undeclared products and subgroups"


@cache
def read_asked(name: str) -> Asked:
    """The questions of a table.

    Raises:
        KeyError: the table is not there.
    """
    table = _read(name)
    texts, products, further = (
        MORE[name] if name in MORE else (DECLARED[name], PRODUCTS[name], UNDECLARED[name])
    )
    table = replace(table, products=products)
    first = estimands(table, products=True)
    bare = _pose_study(table.schema, first)
    more = [
        replace(read_question(text, bare)[0], name=f"declared{i}") for i, text in enumerate(texts)
    ]
    study = _pose_study(table.schema, (*first, *more))
    undeclared: dict[str, Estimand] = {}
    for number, text in enumerate(further):
        posed = read_question(text, study)
        # Of a formula the first coefficient is looked at, of a product its own.
        one = posed[-1] if ":" in text else posed[0]
        undeclared[text] = replace(one, name=f"undeclared{number}")
    names = [*table.named, *products, *texts]
    return Asked(dict(zip(names, study.estimands, strict=True)), undeclared)


def _read(name: str) -> Table:
    found = read_table(name)
    if found is None:
        raise KeyError(name)
    return replace(found, schema=found.suggested())


def _pose_study(schema: Schema, asked: Sequence[Estimand]) -> Study:
    return made.study(Structured(), sites=("here",), schema=schema, estimands=tuple(asked))


@cache
def split_budget(total: float, part: float) -> float:
    """The ε, at ``DELTA``, of each of 1/``part`` studies that together cost ``total`` at
    ``DELTA``.

    All that these mechanisms release is as one Gaussian, whose squared noise multipliers' inverses
    add up, and the accountant's cost of a sum is known: no study's own ε is added to another's.
    """
    whole = smallest_scale(lambda scale: [Gaussian(scale)], total, DELTA)
    return epsilon([Gaussian(whole / math.sqrt(part))], DELTA)


# -- one seed --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    """One site's draw, answered in one way."""

    cell: Cell
    way: str
    seed: int

    @property
    def key(self) -> str:
        return f"{self.cell.key}/{self.way}/{self.seed}"


@dataclass(frozen=True, slots=True)
class Told:
    """An answer, on the coefficient's scale; ``width`` is half of its interval, NaN without one."""

    estimate: float
    width: float


def measure(job: Job) -> Answer:
    """All that one way answers of one site; a pure function of the job.

    ``QUESTION/Q/error`` and ``…/width`` of each question where Q of them share the budget, in
    standard errors of the site's real rows and as a multiple of their interval; ``…/refused``
    where a site would refuse the study as hopeless, which is carried out here all the same. An
    answer that there is none of is off by ``FAILED``, and has no width.
    """
    table = draw_site(job.cell, job.seed)
    real = {
        name: estimate(table.rows, table.schema, e)
        for name, e in read_asked(job.cell.table).every.items()
    }
    found: Answer = {}
    answers = _answer_from_tables(job, table) if job.way == "tables" else _ask(job, table)
    for name, shared_by, told, refused in answers:
        own, at = real[name], f"{name}/{shared_by}"
        spread = math.sqrt(own.variance)
        error = (told.estimate - own.estimate) / spread
        bounded = float(np.clip(error, -FARTHEST, FARTHEST))
        found[f"{at}/error"] = FAILED if math.isnan(error) else bounded
        if not math.isnan(told.width):
            found[f"{at}/width"] = told.width / (quantile(0.95, math.inf) * spread)
        found[f"{at}/refused"] = float(refused)
    return found


def draw_site(cell: Cell, seed: int) -> Table:
    """The same persons whatever ε is, and who answers."""
    table = _read(cell.table)
    if not cell.n:
        return table
    rng = np.random.default_rng(seed_of(VERSION, "site", cell.table, cell.n, seed))
    return table.take(rng.choice(table.n, cell.n, replace=False))


_Answered = Iterator[tuple[str, int, Told, bool]]


def _answer_from_tables(job: Job, table: Table) -> _Answered:
    asked, refits = read_asked(job.cell.table), REFITS if job.seed < REFITTED else 0
    released = make(
        "structured",
        table,
        job.cell.epsilon,
        _seed(job),
        copies=COPIES,
        refits=refits,
        asked=tuple(asked.declared.values()),
    )
    measured = {
        name: Measured.of(
            [estimate_floored(table.schema, e, one) for one in released.copies],
            [estimate_floored(table.schema, e, one) for one in released.refits],
            made=released.how,
            total=e.regression.total,
        )
        for name, e in asked.every.items()
    }
    for name, one in widen_sites({"here": measured})["here"].items():
        half = quantile(0.95, one.df) * math.sqrt(one.variance) if refits else math.nan
        yield name, 1, Told(one.estimate, half), False


def _ask(job: Job, table: Table) -> _Answered:
    every = read_asked(job.cell.table).every
    site = _Site.of(table, _seed(job))
    if job.way == "together":
        yield from _ask_together(job, site, every)
        return
    settings = Scoring() if job.way == "scoring" else Gibbs()
    for name, e in every.items():
        if settings.problems(table.schema, [e]):
            continue
        for shared_by in SHARED_BY:
            share = split_budget(job.cell.epsilon, 1 / shared_by)
            told, refused = site.answer(settings, (e,), share, _seed(job, name, shared_by))
            yield name, shared_by, told[e.name], refused


def _ask_together(job: Job, site: _Site, every: Mapping[str, Estimand]) -> _Answered:
    """Q questions by one study, drawn at random; more than there are by as many such studies."""
    order = np.random.default_rng(_seed(job, "order")).permutation(list(every)).tolist()
    for shared_by in SHARED_BY[1:]:
        size = min(shared_by, len(order))
        share = split_budget(job.cell.epsilon, size / shared_by)
        for first in range(0, len(order), size):
            names = order[first : first + size]
            beside = order[: size - len(names)]
            asked = tuple(every[name] for name in (*names, *beside))
            told, refused = site.answer(Scoring(), asked, share, _seed(job, first, shared_by))
            for name in names:
                yield name, shared_by, told[every[name].name], refused


@dataclass(frozen=True, slots=True)
class _Site:
    """A table as a mechanism is given it."""

    schema: Schema
    encoding: Encoding
    rows: Array
    there: Bools

    @classmethod
    def of(cls, table: Table, seed: int) -> _Site:
        encoding = Encoding(table.schema)
        rows, there = encoding.encode(table.rows, np.random.default_rng([seed, 1]))
        return cls(table.schema, encoding, rows[:, None], there[:, None])

    def answer(
        self, settings: Scoring | Gibbs, asked: tuple[Estimand, ...], share: float, seed: int
    ) -> tuple[dict[str, Told], bool]:
        """Of each estimand by name, and whether a site would refuse."""
        planned, refused = _plan(settings, self.schema, len(self.rows), share, asked)
        given = (self.encoding, self.rows, self.there, SeededNoise(seed))
        try:
            [part] = release(settings, planned, *given)
        except np.linalg.LinAlgError:
            # What is released is so noisy that no regression can be read from it.
            return {e.name: Told(math.nan, math.nan) for e in asked}, refused
        estimates = np.asarray(part.columns[ESTIMATE], dtype=np.float64)
        if isinstance(settings, Gibbs):
            places = {asked[0].name: len(answer_terms(self.schema, asked[0], settings)) - 1}
        else:
            places = dict(find_places(self.schema, asked))
        told: dict[str, Told] = {}
        for e in asked:
            at = places[e.name]
            variance = float(np.asarray(part.columns[COVARIANCE.format(at + 1)])[at])
            half = quantile(0.95, math.inf) * math.sqrt(variance) * e.factor
            told[e.name] = Told(float(estimates[at]) * e.factor, half)
        return told, refused


@cache
def _plan(
    settings: Scoring | Gibbs,
    schema: Schema,
    persons: int,
    share: float,
    asked: tuple[Estimand, ...],
) -> tuple[Plan, bool]:
    """The plan, which no seed changes, and whether a site would refuse it."""
    mechanism = MECHANISMS.of(settings)
    question = Posed(settings, schema, PrivacyRequest(share, DELTA), asked)
    planned = mechanism.plan(question, persons)
    try:
        mechanism.require_worth(question, planned)
    except Hopeless:
        return planned, True
    return planned, False


def _seed(job: Job, *what: object) -> int:
    return seed_of(VERSION, job.key, *what)


# -- the store -------------------------------------------------------------------------------------


def store() -> Store:
    own = ("break_even_cells", "coverage_cells", "foreign_tables", "foreign_real", "foreign_arms")
    files = [f"tests/studies/{name}.py" for name in own]
    fits = ("combine", "floored", "floor", "refits")
    inference = [f"shared/penstock/inference/{name}.py" for name in fits]
    answered = [f"shared/penstock/mechanisms/{name}" for name in ("scoring", "gibbs")]
    released = [path for path in RELEASED if path.startswith("shared/")]
    return Store("break-even", [*files, *inference, *answered, *released])


def list_jobs(seeds: int = SEEDS) -> Iterator[Job]:
    """The first seed of everything first."""
    cells = list(list_cells())
    for seed in range(TABLES_SEEDS * seeds):
        ways = WAYS if seed < seeds else WAYS[:1]
        yield from (Job(cell, way, seed) for cell in cells for way in ways)


def keep_answer(job: Job) -> None:
    """Measure, and write down at once: a run that is cut off is gone on with."""
    store().keep(job.key, measure(job))
