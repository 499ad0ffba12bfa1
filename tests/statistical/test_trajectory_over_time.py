"""Intervals of persons over time hold what a mixed model of persons has, at one site.

Persons of the simulator of :mod:`tests.studies.panels`, n = 1000, three visits, ε = 3; of each seed
a cohort and a release of its own, with ten copies and ten refits; the truth is that of 400 000
persons. As a script it counts over PENSTOCK_SEEDS (40) seeds:

    python -m tests.statistical.test_trajectory_over_time

Counted so at 60 seeds, coverage of 95 % intervals: median .95, share .95, mean change .98, its sd
.95, correlation .97, transition .97, slope .98; biases are at most .3 of the standard error.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
from tests.studies.panels import simulate
from tests.support.carried_out import release

from penstock.inference.combine import combine
from penstock.inference.pooling import quantile
from penstock.inference.refits import Measured, spread, widen_sites
from penstock.mechanisms import Trajectory
from penstock.mechanisms.plans import plan
from penstock.mechanisms.released import name_copy, name_refit
from penstock.mechanisms.trajectory.followed import Followed
from penstock.mechanisms.trajectory.histories import read_courses
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.fits.over_time import NORMAL
from penstock.questions.persons import estimate_courses
from penstock.schema import Schema
from penstock.schema.encoding import Encoding

N, VISITS, COPIES, REFITS, SEEDS = 1000, 3, 10, 10, 6
HOW = Trajectory("visit", copies=COPIES, refits=REFITS, particles=2, paths=1, path_times=2)
ASKED = (
    Estimand("median", "quantile", "sbp", at=1, probability=0.5),
    Estimand("share", "share", "sbp", at=2, threshold=150, direction="above"),
    Estimand("change", "change", "sbp", at=0, until=2),
    Estimand("change-sd", "change-sd", "sbp", at=0, until=2),
    Estimand("correlation", "correlation", "sbp", at=0, until=2),
    Estimand("transition", "transition", "oedema", level="0", outcome_level="1", at=0, until=2),
    Estimand("slope", "mixed", "sbp", "visit"),
)


@cache
def truth() -> dict[str, float]:
    """Of as many persons as leave no doubt."""
    cohort, schema = simulate(400_000, VISITS, np.random.default_rng(99))
    who, when = np.nonzero(cohort.there)
    table = {name: values[who, when] for name, values in cohort.varying.items()}
    table |= {"male": cohort.constants["male"][who], "visit": when * 1.0}
    courses = read_courses(HOW, schema, table)  # everybody is there at the first visit
    return {e.name: estimate_courses(table, schema, e, courses).estimate for e in ASKED}


@dataclass(frozen=True)
class Answer:
    """A site's estimate, its standard error with and without what refits add, and the quantile of
    its t."""

    estimate: float
    error: float
    sampling: float
    reach: float


@cache
def answers(seed: int) -> dict[str, Answer]:
    """Of each question, what a report has of a single site."""
    cohort, schema = simulate(N, VISITS, np.random.default_rng([seed, 7]))
    tables = released(cohort, schema, seed)
    found = {}
    for estimand in ASKED:
        copies, refits = (
            [estimate_courses(t, schema, estimand, read_courses(HOW, schema, t)) for t in each]
            for each in (tables[:COPIES], tables[COPIES:])
        )
        plain = combine(copies)
        found[estimand.name] = Measured(plain, REFITS, spread(plain, refits, copies))
    wide = widen_sites({"here": found})["here"]
    return {
        name: Answer(
            e.estimate,
            math.sqrt(e.variance),
            math.sqrt(found[name].plain.variance),
            quantile(0.95, e.df),
        )
        for name, e in wide.items()
    }


def released(cohort: Followed, schema: Schema, seed: int) -> list[dict[str, np.ndarray]]:
    """Copies, then refits."""
    encoding, rng = Encoding(schema), np.random.default_rng(seed)
    flat = {name: np.where(cohort.there, x, np.nan).ravel() for name, x in cohort.varying.items()}
    flat["male"] = np.repeat(cohort.constants["male"], VISITS)
    flat["visit"] = np.tile(np.arange(VISITS) * 1.0, N)
    rows, present = encoding.encode(flat, rng)
    made = plan(HOW, schema, N, PrivacyRequest(3.0, 1e-5))
    shape = (N, VISITS)
    given = rows.reshape(*shape, -1), present.reshape(shape) & cohort.there
    parts = release(HOW, made, encoding, *given, SeededNoise(seed))
    by_name = {part.name: dict(part.columns) for part in parts}
    names = [name_copy(i + 1) for i in range(COPIES)] + [name_refit(i + 1) for i in range(REFITS)]
    return [by_name[name] for name in names]


def count_beyond(reach: Callable[[Answer], float]) -> int:
    """Of all questions and seeds, how often the truth lies further away than this."""
    return sum(
        abs(answer.estimate - truth()[name]) > reach(answer)
        for seed in range(SEEDS)
        for name, answer in answers(seed).items()
    )


def test_site_intervals_hold_the_truth() -> None:
    """Of 42 intervals at 95 %, were they independent, more than 12 miss with a chance of 1e-7; of
    the twin, whose errors are a quarter of what they should be, more than 12 do."""
    assert count_beyond(lambda answer: answer.reach * answer.error) <= 12
    assert count_beyond(lambda answer: answer.reach * answer.error / 4) > 12


def test_refits_add_what_copies_cannot_show() -> None:
    """Without it, more of the same intervals miss."""
    whole = count_beyond(lambda answer: answer.reach * answer.error)
    assert count_beyond(lambda answer: NORMAL * answer.sampling) > whole


def test_site_intervals_are_no_wider_than_they_must() -> None:
    """Half of estimates lie beyond .67 standard errors: of 42 independent ones fewer than 6 with a
    chance of 2e-7; of the twin, whose errors are five times too large, hardly any."""
    assert count_beyond(lambda answer: 0.67 * answer.error) >= 6
    assert count_beyond(lambda answer: 0.67 * 5 * answer.error) < 6


def _main() -> None:
    count = int(os.environ.get("PENSTOCK_SEEDS", "40"))
    with ProcessPoolExecutor(int(os.environ.get("PENSTOCK_PROCESSES", "1"))) as pool:
        found = list(pool.map(answers, range(count)))
    for estimand in ASKED:
        name = estimand.name
        values = np.array([f[name].estimate for f in found])
        errors, reach = (np.array([getattr(f[name], k) for f in found]) for k in ("error", "reach"))
        off = values - truth()[name]
        held = float(np.mean(np.abs(off) <= reach * errors))
        print(  # noqa: T201
            f"{name}: truth {truth()[name]:.4f}, bias {off.mean():+.4f}, sd {off.std():.4f}, "
            f"root mean variance {np.sqrt(np.mean(errors**2)):.4f}, coverage {held:.3f} of {count}"
        )


if __name__ == "__main__":
    _main()
