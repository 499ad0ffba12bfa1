"""What is replayed: of every mechanism, studies of every kind, and how each looks at the rows.

A mechanism that has no entry here, or a setting of one whose choices no entry covers, fails
tests/laws/test_replay.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
from tests.support.replay import Fault, Look, World, hold_claims, hold_purity, run

from penstock.mechanisms import (
    MECHANISMS,
    Gibbs,
    Maf,
    Scoring,
    Settings,
    SlicedWasserstein,
    Structured,
    Trajectory,
)
from penstock.mechanisms.classes import mixture
from penstock.mechanisms.copula import correlations, densities, divided_bins
from penstock.mechanisms.gibbs.langevin import LABEL
from penstock.mechanisms.plans import plan
from penstock.mechanisms.protocol import Asked as Given
from penstock.mechanisms.protocol import Plan
from penstock.mechanisms.sliced_wasserstein import distribution, flow
from penstock.mechanisms.structured import beliefs
from penstock.mechanisms.structured import plan as structured_plan
from penstock.mechanisms.structured import run as structured
from penstock.mechanisms.structured.outcomes import baselines, hazards, tilted
from penstock.mechanisms.tables import fitting, moments, outcome
from penstock.mechanisms.trajectory import moment_match
from penstock.privacy.noise import discrete
from penstock.privacy.noise.sources import NoiseSource
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Coded, Column, Schema
from penstock.schema.encoding import Encoding
from penstock_client.rows.snapshot import arrange_by_person

DELTA = 1e-5


@dataclass(frozen=True, slots=True)
class Study:
    """One study that is replayed, as small as can be.

    Args:
        epsilon: large enough that a person's extremes stand out of what the noise hides.
        tight: whether somebody reaches each claim to a per cent. Who that is of a regression's
            slopes depends on released numbers; nobody here may happen to be it.
        further: estimands beside the first.
        summed: whether it is the plan of sums that sites add up, here in one place.
        fine: whether bins of numbers are divided, which so few persons' would not be.
    """

    name: str
    mechanism: Settings
    schema: Schema
    epsilon: float = 30.0
    guarantee: str = "formal"
    estimand: Estimand | None = None
    persons: int = 20
    further: tuple[Estimand, ...] = ()
    summed: bool = False
    fine: bool = False

    @property
    def tight(self) -> bool:
        return self.estimand is None or not self.estimand.regression.compares

    def __str__(self) -> str:
        return f"{self.mechanism.name}: {self.name}"


@cache
def planned(study: Study) -> Plan:
    privacy = PrivacyRequest(study.epsilon, DELTA, study.guarantee)
    asked = () if study.estimand is None else (study.estimand, *study.further)
    if study.summed:
        given = Given(study.mechanism, study.schema, privacy, asked)
        found: Plan = MECHANISMS.of(study.mechanism).plan_sums(given, study.persons)
        return found
    least = math.inf if study.fine else structured_plan._FINE
    with patch.object(structured_plan, "_FINE", least):
        return plan(study.mechanism, study.schema, study.persons, privacy, asked)


# -- how each mechanism looks at rows ----------------------------------------------------------

_TRIANGLE = (1.0, math.sqrt(0.5))
"""A symmetric matrix: its diagonal, and with half the variance what is beside it."""

_BODIES = (
    "flow, DP-SGD",
    "sketch",
    "noisy projections of all rows",
    "noisy projections of a batch",
)
"""What a table's body looks at."""


def _tables(plan: Any) -> list[Look]:
    asked, looks = {each.label: each for each in plan.measurements}, []
    if plan.guarantee == "formal":
        looks += [Look(asked["margins"]), Look(asked["moments"], _TRIANGLE)]
        for label in _BODIES:
            if label in asked:
                looks += [Look(asked[label])] * asked[label].event.count
        if plan.stages.outcomes:
            looks.append(Look(asked["outcome"], (1.0,) * plan.stages.outcomes))
    if plan.w > 0:
        looks += [Look(asked["latent noise injection"], releases=plan.rows)] * plan.copies
    return looks


def _structured(plan: Any) -> list[Look]:
    shapes = {"margins": (), "means": (), "moments": (_TRIANGLE,), "pairs": ()}
    asked = plan.measurements
    looks = [Look(each, *shapes[each.label]) for each in asked if each.label in shapes]
    return looks + [Look(each) for drawn in plan.outcomes for each in plan.rounds_of(drawn)]


def _scoring(plan: Any) -> list[Look]:
    looks = [] if plan.sums is None else _structured(plan.sums)
    return looks + [Look(each) for each in plan.tallies]


def _trajectory(plan: Any) -> list[Look]:
    asked = {each.label: each for each in plan.measurements}
    if "margins" in asked:
        return [Look(asked["margins"]), Look(asked["moments"], _TRIANGLE)]
    looks = [Look(asked["particles"])] * plan.dynamics.steps
    if "start" in asked:
        looks = [Look(asked["start"], _TRIANGLE)] * plan.start.rounds + looks
    return looks


def _gibbs(plan: Any) -> list[Look]:
    asked = {each.label: each for each in plan.measurements}
    steps = {each.noise_multiplier: each for each in plan.measurements if each.label == LABEL}
    chain = [Look(steps[s]) for s in plan.schedule.multipliers]
    before = [Look(asked[n]) for n in ("summaries", "curvature") if n in asked]
    # The curvature is released again where the approach ends, or where the chain does.
    at = plan.approach or len(chain)
    return [*before, *chain[:at], Look(asked["information"]), *chain[at:]]


LOOKS: dict[str, Callable[[Any], list[Look]]] = {
    "maf": _tables,
    "sliced-wasserstein": _tables,
    "structured": _structured,
    "trajectory": _trajectory,
    "gibbs": _gibbs,
    "scoring": _scoring,
}

# -- schemas -----------------------------------------------------------------------------------


def cohort(k: int) -> Schema:
    """Of every kind of column."""
    return Schema(
        (
            Column("time", "duration", upper=10, decimals=2, event="died"),
            Column("died", "event"),
            Column("age", "continuous", lower=18, upper=100),
            Column("sex", "binary"),
            Column("arm", "categorical", levels=("a", "b")),
            Column("stage", "ordered", levels=("i", "ii", "iii", "iv")),
            Column("ward", "categorical", levels=("n", "s", "w"), nullable=True),
            Column("smoked", "integer", lower=0, upper=60, spike=0, scale="log"),
        ),
        person="patient",
        max_rows_per_person=k,
    )


def wide(k: int) -> Schema:
    """Many levels, which have no order, beside every other kind of column."""
    towns = tuple(f"town {number}" for number in range(18))
    return replace(
        cohort(k), columns=(*cohort(k).columns, Column("town", "categorical", levels=towns))
    )


def levels_alone(k: int) -> Schema:
    """A wide table in which nothing has an order."""
    levels = tuple(f"{number}" for number in range(12))
    columns = tuple(Column(name, "categorical", levels=levels) for name in "abc")
    return Schema(columns, person="patient", max_rows_per_person=k)


def two_ends(k: int) -> Schema:
    """Two durations, each with its event."""
    return Schema(
        (
            Column("t1", "duration", upper=5, event="e1"),
            Column("e1", "event"),
            Column("t2", "duration", upper=7, event="e2"),
            Column("e2", "event"),
            Column("x", "continuous", lower=-1, upper=1),
        ),
        person="patient",
        max_rows_per_person=k,
    )


def visits(k: int) -> Schema:
    return Schema(
        (
            Column("visit", "integer", lower=0, upper=5),
            Column("x", "continuous", lower=-2, upper=2),
            Column("y", "continuous", lower=0, upper=50, decimals=1),
            Column("sex", "binary"),
            Column("z", "continuous", lower=0, upper=1, nullable=True),
        ),
        person="patient",
        max_rows_per_person=k,
    )


def seen_again(k: int) -> Schema:
    """Of every kind of column, some of which do not vary."""
    return Schema(
        (
            *visits(k).columns,
            Column("arm", "categorical", levels=("a", "b", "c"), varies=False),
            Column("born", "integer", lower=1920, upper=2000, varies=False),
            Column("bmi", "continuous", lower=10, upper=60, nullable=True, varies=False),
            Column("ward", "categorical", levels=("n", "s", "w"), nullable=True),
            Column("smoked", "integer", lower=0, upper=60, spike=0, scale="log"),
        ),
        person="patient",
        max_rows_per_person=k,
    )


def followed(k: int) -> Schema:
    """Visits, and how long a person is followed."""
    end = Column("years", "duration", upper=5, decimals=1, event="died", varies=False)
    return Schema((*visits(k).columns, end, Column("died", "event", varies=False)), "patient", k)


def trial(k: int) -> Schema:
    """A column for every role in every model."""
    return Schema(
        (
            Column("t", "duration", upper=10, event="d"),
            Column("d", "event"),
            Column("a", "continuous", lower=-3, upper=3),
            Column("b", "binary"),
            Column("o", "ordered", levels=("p", "q", "r")),
            Column("g", "categorical", levels=("u", "v", "w")),
            Column("y", "continuous", lower=-5, upper=5),
            Column("c", "integer", lower=0, upper=20),
            Column("q", "continuous", lower=0, upper=1, nullable=True),
        ),
        person="patient",
        max_rows_per_person=k,
    )


def rates(k: int) -> Schema:
    """A count, and for how long it was counted."""
    exposure = Column("e", "continuous", lower=0.5, upper=9, decimals=1, nullable=True)
    return replace(trial(k), columns=(*trial(k).columns, exposure))


def gaps(k: int) -> Schema:
    """A duration of which something may be missing."""
    return Schema(
        (
            Column("t", "duration", upper=10, decimals=1, event="d", nullable=True),
            Column("d", "event", nullable=True),
            Column("a", "continuous", lower=-3, upper=3),
            Column("q", "continuous", lower=0, upper=1, nullable=True),
        ),
        person="patient",
        max_rows_per_person=k,
    )


# -- studies -----------------------------------------------------------------------------------


def _flows() -> Iterator[Study]:
    for k in (1, 3):
        full = Maf(copies=2, refits=1, steps=3, hidden=(8,))
        yield Study(f"full, k = {k}", full, cohort(k))
        poisson = Maf(copies=1, refits=1, steps=4, hidden=(8,), sampling="poisson", rate=0.6)
        yield Study(f"poisson, k = {k}", poisson, two_ends(k))
        injected = Maf(copies=3, refits=1, steps=2, hidden=(8,), w=0.001, latent_clip=2.0)
        yield Study(f"w > 0, k = {k}", injected, cohort(k), epsilon=60.0)
        public = Maf(copies=3, refits=1, steps=2, hidden=(8,), w=0.05, latent_clip=1.0)
        yield Study(f"public flow, k = {k}", public, cohort(k), 60.0, "public-flow")
    yield Study("little budget", full, cohort(3), epsilon=0.5)


def _slices() -> Iterator[Study]:
    for k in (1, 3):
        small = {"copies": 2, "refits": 1, "steps": 2, "bases": 2}
        sketch = SlicedWasserstein("sketch", bins=8, **small)
        yield Study(f"sketch, k = {k}", sketch, cohort(k))
        yield Study(f"presampled, k = {k}", SlicedWasserstein("presampled", **small), two_ends(k))
    resampled = SlicedWasserstein("resampled", batch=7, **small)
    yield Study("resampled", resampled, cohort(1))
    everyone = SlicedWasserstein("resampled", batch=100, **small)
    yield Study("resampled, all at once", everyone, cohort(1))


def _structures() -> Iterator[Study]:
    small = Structured(copies=2, refits=4, planted=0)
    planted = replace(small, planted=2, effects=("t ~ a:b",))
    for k in (1, 3):
        yield Study(f"every column, k = {k}", small, cohort(k))
        yield Study(f"two outcomes, k = {k}", small, two_ends(k))
        yield Study(f"no outcome, k = {k}", small, visits(k))
        yield Study(f"a wide table, k = {k}", small, wide(k))
        yield Study(f"divided bins, k = {k}", small, cohort(k), fine=True)
        yield Study(f"a wide table of levels alone, k = {k}", small, levels_alone(k))
        yield Study(f"cox, k = {k}", planted, trial(k), estimand=QUESTIONS["cox"])
        every = tuple(QUESTIONS[name] for name in ("ols", "logistic", "poisson"))
        named = f"every regression, k = {k}"
        yield Study(named, small, trial(k), estimand=QUESTIONS["cox"], further=every)
        yield Study(f"levels, k = {k}", small, trial(k), estimand=LEVELS)
        yield Study(
            f"levels of both kinds, k = {k}", small, trial(k), estimand=LEVELS, further=(LEVEL,)
        )
        yield Study(f"strata, k = {k}", small, trial(k), estimand=STRATIFIED)
        yield Study(f"cox in a small table, k = {k}", small, gaps(k), estimand=GAPS)
        yield Study(f"a rate, k = {k}", planted, rates(k), estimand=RATE)
        declared = {"estimand": MEANT[0], "further": MEANT[1:]}
        yield Study(f"means, k = {k}", small, cohort(k), **declared)
        yield Study(f"means beside a hazard, k = {k}", small, trial(k), estimand=QUESTIONS["cox"],
                    further=(QUESTIONS["mean"],))  # fmt: skip
        yield Study(f"means, divided bins, k = {k}", small, cohort(k), **declared, fine=True)
    yield Study("little budget", small, cohort(3), epsilon=0.5)


def _paths() -> Iterator[Study]:
    small = {"copies": 2, "refits": 1, "particles": 8, "paths": 4, "path_times": 3, "steps": 4}
    for k in (1, 4):
        for rate in (1.0, 0.5):
            gaussian = Trajectory("visit", rate=rate, subsample=4, **small)
            yield Study(f"gaussian, rate {rate}, k = {k}", gaussian, visits(k))
            means = Trajectory("visit", rate=rate, start="k-means", modes=2, **small)
            yield Study(f"k-means, rate {rate}, k = {k}", means, visits(k))
        public = Trajectory("visit", start="public", coupling="exact", **small)
        yield Study(f"public start, k = {k}", public, visits(k))
        added = Trajectory("visit", subsample=4, dependence="inferred", **small)
        yield Study(f"added up, k = {k}", added, visits(k), summed=True)
        means = Trajectory("visit", start="k-means", modes=2, **small)
        yield Study(f"k-means, added up, k = {k}", means, visits(k), summed=True)
        yield Study(f"public start, added up, k = {k}", public, visits(k), summed=True)
    for coupling in ("entropic", "exact"):
        counted = Trajectory("visit", start="counts", coupling=coupling, **small)
        yield Study(f"counts, {coupling}", counted, seen_again(1))
    again = Trajectory("visit", **small)
    yield Study("measured, k = 2", again, visits(2))
    yield Study("measured, k = 4", again, seen_again(4))
    yield Study("measured, more rows than times, k = 9", again, seen_again(9))
    yield Study("measured, little budget", again, seen_again(4), epsilon=0.5)
    for k in (2, 9):
        yield Study(f"until an end, k = {k}", replace(again, end="years"), followed(k))
    known = (0.0, 0.5, 1.0, 2.0, 4.0, 5.0)
    other = replace(again, end="years", visit_times=known)
    yield Study("until an end on another clock", other, followed(4))


QUESTIONS = {
    "mean": Estimand("e", "mean", "y"),
    "ols": Estimand("e", "ols", "y", "a", adjust=("b", "o", "g", "q")),
    "logistic": Estimand("e", "logistic", "b", "a", adjust=("o", "g", "q")),
    "poisson": Estimand("e", "poisson", "c", "a", adjust=("b", "o")),
    "cox": Estimand("e", "cox", "t", "a", adjust=("b", "o", "g", "q")),
}
STRATIFIED = Estimand("e", "cox", "t", "a", adjust=("o", "q"), strata=("b", "g"))


def _answers() -> Iterator[Study]:
    for k in (1, 3):
        for model, asked in QUESTIONS.items():
            yield Study(f"{model}, k = {k}", Gibbs(), trial(k), 10.0, estimand=asked)
            plain = Gibbs(steps=30, ridge=1.0)
            yield Study(f"{model}, plain, k = {k}", plain, trial(k), 10.0, estimand=asked)
    heavy, cox = Gibbs("underdamped"), QUESTIONS["cox"]
    yield Study("cox, underdamped", heavy, trial(3), 10.0, estimand=cox)
    yield Study("cox, underdamped, plain", Gibbs("underdamped", 12), trial(3), 10.0, estimand=cox)
    yield Study("cox, weibull", Gibbs(baseline="weibull"), trial(3), 10.0, estimand=cox)
    yield Study(
        "cox, weibull, plain", Gibbs(steps=30, baseline="weibull"), trial(1), 10.0, estimand=cox
    )
    yield Study("cox, many pieces", Gibbs(pieces=12), trial(1), 10.0, estimand=cox)


def _scores() -> Iterator[Study]:
    product = Estimand("p", "ols", "y", "a:q", adjust=("b",), where="o >= 'q'")
    for k in (1, 3):
        asked = tuple(
            replace(QUESTIONS[name], name=name) for name in ("ols", "logistic", "poisson")
        )
        yield Study(f"cox, k = {k}", Scoring(), trial(k), estimand=QUESTIONS["cox"])
        every = {"estimand": QUESTIONS["cox"], "further": asked}
        yield Study(f"every regression, k = {k}", Scoring(), trial(k), **every)
        yield Study(f"a product, k = {k}", Scoring(), trial(k), estimand=product)
        first, *further = DESCRIBED
        yield Study(f"no regression, k = {k}", Scoring(), trial(k), 30.0, "formal", first, 20,
                    tuple(further))  # fmt: skip
        yield Study(f"a rate, k = {k}", Scoring(), rates(k), estimand=RATE)
        first, *further = COUNTED
        yield Study(f"counts, k = {k}", Scoring(), trial(k), 30.0, "formal", first, 20,
                    tuple(further))  # fmt: skip
        both = {"estimand": QUESTIONS["ols"], "further": (*DESCRIBED, *AMONG)}
        yield Study(f"one of each, k = {k}", Scoring(), trial(k), **both)
    yield Study("little budget", Scoring(), gaps(3), epsilon=0.5, estimand=GAPS)


MEANT = (
    Estimand("m", "mean", "age"),
    Estimand("a", "share", "age", threshold=60.5, direction="above"),
    Estimand("b", "mean", "sex"),
    Estimand("w", "count", "ward", outcome_level="s"),
    Estimand("z", "share", "smoked", threshold=1.0, direction="below"),
)
DESCRIBED = (
    Estimand("m", "mean", "y"),
    Estimand("l", "share", "g", outcome_level="w", where="q <= 0.5"),
    Estimand("q", "quantile", "a", probability=0.75),
    Estimand("s", "share", "a", threshold=1.0, direction="above"),
    Estimand("t", "survival", "t", at=5.0),
    Estimand("u", "survival", "t", at=10.0),
)
COUNTED = (
    Estimand("l", "count", "g", outcome_level="w"),
    Estimand("n", "count", "a", threshold=1.0, direction="above", where="q <= 0.5"),
    Estimand("d", "count", "t"),
    Estimand("e", "count", "t", until=5.0),
    Estimand("r", "rate", "t", per=10.0),
    Estimand("c", "table", "g", term="o", level="p", outcome_level="w"),
)
AMONG = (
    Estimand("v", "rate", "t", until=5.0, where="b == '1'"),
    Estimand("x", "table", "g", term="o[r]:b[1]", outcome_level="u", where="a < 2"),
)
LEVELS = Estimand("e", "ordinal", "o", "a", adjust=("b", "g", "q"))
LEVEL = Estimand("f", "multinomial", "g", "a", adjust=("b", "q"), outcome_level="w")
GAPS = Estimand("e", "cox", "t", "a", adjust=("q",))
RATE = Estimand("e", "negative-binomial", "c", "a", adjust=("b",), exposure="e")

STUDIES: dict[str, tuple[Study, ...]] = {
    "maf": tuple(_flows()),
    "sliced-wasserstein": tuple(_slices()),
    "structured": tuple(_structures()),
    "trajectory": tuple(_paths()),
    "gibbs": tuple(_answers()),
    "scoring": tuple(_scores()),
}

# -- rows --------------------------------------------------------------------------------------


def _ends(column: Column) -> tuple[float, float]:
    return (0.0, len(column.levels) - 1.0) if column.levels else column.bounds


def anybody(schema: Schema, count: int, rng: np.random.Generator) -> Coded:
    """Rows without a pattern."""
    coded: Coded = {}
    for column in schema.columns:
        low, high = _ends(column)
        spread = rng.beta(2, 3, count)
        coded[column.name] = (
            np.rint(low + (high - low) * spread) if column.levels else low + (high - low) * spread
        )
    return coded


def worst_persons(schema: Schema, rng: np.random.Generator, between: int) -> dict[str, Coded]:
    """Coded rows of one person each, two more than are used: at the ends of what a row can say.

    Args:
        between: how many there are with numbers on the way from one end to the other.
    """
    count = schema.max_rows_per_person + 2
    low = {c.name: np.full(count, _ends(c)[0]) for c in schema.columns}
    high = {c.name: np.full(count, _ends(c)[1]) for c in schema.columns}
    found = {"lowest": low, "highest": high}
    for number in range(3):
        found[f"corner {number}"] = {n: (low, high)[rng.integers(2)][n] for n in schema.names}
    for column in schema.columns:  # late without an event, early with one
        if column.event is not None:
            found[f"late {column.name}"] = {**low, column.name: high[column.name]}
            found[f"early {column.name}"] = {**high, column.name: low[column.name]}
    for share in np.linspace(0.0, 1.0, between + 2)[1:-1].tolist():
        way = {n: low[n] + share * (high[n] - low[n]) for n in schema.names if not schema[n].levels}
        found[f"{share:.2f} of the way"] = {**high, **way}
        found[f"{share:.2f} of the way, lowest"] = {**low, **way}
    turn = np.arange(count) % 2 == 1
    found["turning"] = {n: np.where(turn, low[n], high[n]) for n in schema.names}
    steps = {c.name: np.arange(count) % 6 * 1.0 for c in schema.columns if c.kind == "integer"}
    found["spread"] = {**high, **steps}
    nullable = {c.name: np.full(count, np.nan) for c in schema.columns if c.nullable}
    found["part missing"] = {**high, **nullable}
    found["a row missing"] = {n: np.where(turn, np.nan, v) for n, v in high.items()}
    sign = np.where(turn, -np.inf, np.inf)
    found["infinite"] = {c.name: high[c.name] if c.levels else sign for c in schema.columns}
    found["anybody"] = anybody(schema, count, rng)
    return found


def others(schema: Schema, persons: int, kind: str, rng: np.random.Generator) -> World:
    """Everybody but person 0, who is not there.

    Args:
        kind: ``mixed``; ``alike``, all at the lower ends, so that whoever differs stands out;
            ``nobody``, so that person 0 is alone.
    """
    k = schema.max_rows_per_person
    many = rng.integers(1, k + 3, persons)
    who = np.repeat(np.arange(persons), many)
    coded = anybody(schema, len(who), rng)
    if kind == "alike":
        coded = {c.name: np.full(len(who), _ends(c)[0]) for c in schema.columns}
    order = rng.permutation(len(who))
    shuffled = {name: values[order] for name, values in coded.items()}
    made = World(*arrange_by_person(shuffled, who[order], persons, Encoding(schema), rng))
    return (
        World(made.rows * 0.0, made.present & False) if kind == "nobody" else made.without_first()
    )


def neighbours(study: Study, nobody: World, rng: np.random.Generator) -> dict[str, World]:
    """Worlds in which person 0 is somebody, one way after the other."""
    schema, k, found = study.schema, study.schema.max_rows_per_person, {}
    # An answer's slopes are at their steepest somewhere within the bounds.
    between = 8 if isinstance(study.mechanism, Gibbs) else 0
    for name, coded in worst_persons(schema, rng, between).items():
        rows, present = arrange_by_person(
            coded, np.zeros(k + 2, dtype=np.int64), 1, Encoding(schema), rng
        )
        found[name] = nobody.with_first(rows[0], present[0])
    encoding, there = Encoding(schema), np.ones(k, dtype=np.bool_)
    for number in range(3):
        corner = np.where(rng.random(encoding.d) < 0.5, encoding.low, encoding.high)
        found[f"corner {number} of the box"] = nobody.with_first(np.tile(corner, (k, 1)), there)
    wild = np.resize([np.inf, 1e300, -np.inf, np.nan, -1e300], nobody.rows.shape[1:])
    found["no numbers"] = nobody.with_first(wild, there)
    return found


def strangers(study: Study, rng: np.random.Generator) -> dict[str, World]:
    """Worlds that have nothing in common but their shape."""
    schema, n = study.schema, study.persons
    alike = others(schema, n, "alike", rng)
    extreme = World(np.where(alike.rows > 0, 1e6, -1e6), np.ones_like(alike.present))
    d = Encoding(schema).d
    drawn = World(
        rng.standard_normal((n, schema.max_rows_per_person, d)),
        rng.random(alike.present.shape) < 0.5,
    )
    return {"nobody": others(schema, n, "nobody", rng), "extreme": extreme, "anybody": drawn}


# -- the replay --------------------------------------------------------------------------------


OTHERS = ("mixed", "alike", "nobody")
"""Among whom person 0 is somebody: kinds of :func:`others`."""


def reached(
    study: Study,
    fault: Fault = nullcontext,
    seed: int = 0,
    claimed: Any = None,
    among: Sequence[str] = OTHERS,
) -> dict[str, float]:
    """Of each event, the most that any person moved, squared, over what is charged.

    Args:
        claimed: a plan with other measurements than those of the study's own.
        among: of :data:`OTHERS`.

    Raises:
        Broken: somebody moved more; or what was looked at is not what is charged.
    """
    plan, charged = planned(study), planned(study) if claimed is None else claimed
    looks = LOOKS[study.mechanism.name](charged)
    rng, encoding = np.random.default_rng(seed), Encoding(study.schema)
    public = _public(study, rng)
    most = sum(len(look.parts) for look in looks)
    found = {event.label: 0.0 for event in plan.events}
    for kind in among:
        nobody = others(study.schema, study.persons, kind, rng)
        first = run(study.mechanism, plan, encoding, nobody, None, fault, public, most)
        ways = list(neighbours(study, nobody, rng).values())
        for world in ways[:3] if kind == "nobody" else ways:
            ran = run(study.mechanism, plan, encoding, world, first, fault, public, most)
            for label, ratio in hold_claims(charged, looks, ran, first).items():
                found[label] = max(found[label], ratio)
    return found


def hold_whole(study: Study, fault: Fault = nullcontext, seed: int = 0) -> None:
    """Whole releases, refits and all: nothing leaves but by its noisy answers.

    Raises:
        Broken: something does; or a refit looks at rows.
    """
    plan, looks = planned(study), LOOKS[study.mechanism.name](planned(study))
    rng, encoding = np.random.default_rng(seed), Encoding(study.schema)
    public = _public(study, rng)
    nobody = others(study.schema, study.persons, "mixed", rng)
    first = run(study.mechanism, plan, encoding, nobody, None, fault, public)
    somebody = neighbours(study, nobody, rng)["highest"]
    ran = run(study.mechanism, plan, encoding, somebody, first, fault, public)
    hold_claims(plan, looks, ran, first)
    hold_purity(ran, first)
    for world in strangers(study, rng).values():
        hold_purity(run(study.mechanism, plan, encoding, world, first, fault, public), first)


def _public(study: Study, rng: np.random.Generator) -> World | None:
    """Rows for the guarantee ``public-flow``."""
    if study.guarantee != "public-flow":
        return None
    return others(study.schema, study.persons, "mixed", rng)


def _drawn(variance: Fraction, size: int, source: NoiseSource) -> list[int]:
    """Whole numbers of about the right size: exact ones take longest of all."""
    return [round(z) for z in (math.sqrt(variance) * source.normal(size)).tolist()]


COARSE = (
    (fitting, "_MATCH_POWER", 5),
    (fitting, "_REFIT_MATCH_POWER", 4),
    (moments, "_MATCH_ROUNDS", 3),
    (outcome, "_MOVE_ROUNDS", 3),
    (flow, "_REFERENCE_POWER", 5),
    (structured, "_POWER", 5),
    (baselines, "_LEAST_PERSONS", 0.0),
    (densities, "_ROUNDS", 5),
    (correlations, "_MATCH_ROUNDS", 3),
    (beliefs, "_STEPS", 2),
    (mixture, "_MOST_STEPS", 3),
    (divided_bins, "_STANDS", 0.01),
    (divided_bins, "MOST_DIVIDED", 48),
    (divided_bins, "FEWER_DIVIDED", 24),
    (moment_match, "_POWER", 6),
    (moment_match, "_ROUNDS", 2),
    (hazards, "_NEWTON_ROUNDS", 3),
    (tilted, "_NEWTON_ROUNDS", 3),
    (distribution, "_ROUNDS", 5),
    (discrete, "discrete_gaussian", _drawn),
)
"""How finely post-processing looks at its own particles, as coarsely as can be; and quick noise."""


@contextmanager
def coarsely(*, quick_noise: bool = True) -> Iterator[None]:
    """All of :data:`COARSE`, or but for noise, which is then that of a release."""
    with ExitStack() as stack:
        for module, name, value in COARSE:
            if quick_noise or module is not discrete:
                stack.enter_context(patch.object(module, name, value))
        yield
