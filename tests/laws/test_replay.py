"""The law of replay: nothing leaves that is not charged, and what is charged is no less than it is.

See :mod:`tests.support.replay`. Exact, so that there is no false alarm; faults of one per cent are
caught.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from tests.support.faults import at_each_step, called, less_noise_of, replaced
from tests.support.replay import Asked, Broken, Fault, Ran, run
from tests.support.replayed import (
    LOOKS,
    STUDIES,
    Study,
    coarsely,
    hold_whole,
    others,
    planned,
    reached,
)

from penstock.mechanisms.classes import class_population
from penstock.mechanisms.gibbs import preparation
from penstock.mechanisms.gibbs import run as gibbs
from penstock.mechanisms.gibbs.langevin import LABEL
from penstock.mechanisms.parts import Part
from penstock.mechanisms.sliced_wasserstein import body
from penstock.mechanisms.structured import matching
from penstock.mechanisms.structured import run as structured
from penstock.mechanisms.tables import fitting
from penstock.mechanisms.tables import run as tables
from penstock.mechanisms.trajectory import run as trajectory
from penstock.privacy.events import Event, NoisyDescent
from penstock.privacy.measurements import LatentNoise, WholeSum
from penstock.privacy.measurements import charge as charge_of
from penstock.privacy.noise import sources
from penstock.schema.encoding import Encoding

SEEN = 0.99**2
"""A claim that is understated by one per cent is exceeded by whoever reaches this share of it."""

ALL = [study for studies in STUDIES.values() for study in studies]
by_study = pytest.mark.parametrize("study", ALL, ids=str)

_NAMES = set(map(str, ALL))


def _has_twin_of_several_rows(study: Study) -> bool:
    """Whether the study is there with three rows of each person, too, and not only with one."""
    name = str(study)
    return name.endswith("k = 1") and name.removesuffix("1") + "3" in _NAMES


by_study_quickly = pytest.mark.parametrize(
    "study",
    [
        pytest.param(s, marks=pytest.mark.thorough if _has_twin_of_several_rows(s) else ())
        for s in ALL
    ],
    ids=str,
)
"""All of them, those with one row of each person in the thorough tests."""


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with coarsely():
        yield


@cache
def held(study: Study, *among: str) -> dict[str, float]:
    return reached(study, among=among)


@by_study_quickly
def test_nobody_moves_a_statistic_further_than_it_is_charged_for(study: Study) -> None:
    """Among others who are alike: whoever differs from them stands out."""
    found = held(study, "alike", "nobody")
    assert set(found) == {event.label for event in planned(study).events}
    assert min(found.values()) > (SEEN if study.tight else 0), found


@pytest.mark.thorough
@by_study
def test_nobody_does_among_persons_of_all_kinds(study: Study) -> None:
    assert min(held(study, "mixed").values()) > 0


def test_somebody_reaches_the_claims_about_an_answer() -> None:
    """Over all questions; of each by itself it depends on where its slopes end up."""
    found: dict[str, float] = {}
    for study in STUDIES["gibbs"]:
        if study.estimand is not None and study.estimand.model != "mean":
            for label, ratio in held(study, "alike", "nobody").items():
                found[label] = max(found.get(label, 0.0), ratio)
    assert min(found.values()) > SEEN, found


@by_study
def test_what_follows_the_noise_is_post_processing(study: Study) -> None:
    hold_whole(study)


def other_way(first: Ran) -> Ran:
    """Answers by which a plain chain strays at its second step, and is back after its third."""
    chained = [i for i, seen in enumerate(first.seen) if seen.label == LABEL]
    seen = list(first.seen)
    for at, sign in zip(chained[1:3], (1.0, -1.0), strict=True):
        stray = 3.0 * sign * seen[at].sd
        seen[at] = replace(seen[at], answer=seen[at].answer + stray)
    return replace(first, seen=seen)


def end_of(study: Study, fault: Fault = nullcontext) -> tuple[Part, Part]:
    """The answer of a chain, and that of one which came to the same end another way."""
    encoding, rng = Encoding(study.schema), np.random.default_rng(0)
    world = others(study.schema, study.persons, "mixed", rng)
    first = run(study.mechanism, planned(study), encoding, world, None, fault)
    return first.parts[0], run(
        study.mechanism, planned(study), encoding, world, other_way(first), fault
    ).parts[0]


def alike(one: Part, other: Part) -> bool:
    pairs = ((values, other.columns[name]) for name, values in one.columns.items())
    return all(np.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in pairs)


PLAIN = [s for s in STUDIES["gibbs"] if s.mechanism.steps and s.mechanism.dynamics == "overdamped"]  # type: ignore[union-attr]


@pytest.mark.parametrize("study", PLAIN, ids=str)
def test_of_a_chain_charged_by_its_last_iterate_no_other_is_seen(study: Study) -> None:
    assert any(isinstance(event, NoisyDescent) for event in planned(study).events)
    assert alike(*end_of(study))


def test_an_average_of_iterates_is_not_taken_for_the_last() -> None:
    """Post-processing of the noisy gradients, so that only the law above catches it."""

    def averaged(real: Any) -> Any:
        def descend(gradient: Any, *given: Any) -> Any:
            passed: list[Any] = []

            def watched(theta: Any) -> Any:
                passed.append(theta.copy())
                return gradient(theta)

            ended = real(watched, *given)
            return replace(ended, theta=0.99 * ended.theta + 0.01 * np.mean(passed, axis=0))

        return descend

    fault = replaced(gibbs, "descend", averaged)
    hold_whole(PLAIN[0], fault)
    assert not alike(*end_of(PLAIN[0], fault))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 12))
@by_study
def test_other_rows_move_no_more(study: Study, seed: int) -> None:
    reached(study, seed=seed)
    hold_whole(study, seed=seed)


# -- planted faults ----------------------------------------------------------------------------


def study(name: str) -> Study:
    return next(s for s in ALL if str(s) == name)


CHARGES = (
    ("maf: full, k = 3", "margins"),
    ("maf: full, k = 3", "moments"),
    ("maf: full, k = 3", "flow, DP-SGD"),
    ("maf: full, k = 3", "outcome"),
    ("maf: poisson, k = 1", "flow, DP-SGD"),
    ("maf: w > 0, k = 3", "latent noise injection"),
    ("maf: public flow, k = 1", "latent noise injection"),
    ("sliced-wasserstein: sketch, k = 3", "sketch"),
    ("sliced-wasserstein: presampled, k = 3", "noisy projections of all rows"),
    ("sliced-wasserstein: resampled", "noisy projections of a batch"),
    ("structured: two outcomes, k = 3", "margins"),
    ("structured: two outcomes, k = 3", "moments"),
    ("structured: two outcomes, k = 1", "outcome, round 1"),
    ("structured: two outcomes, k = 3", "outcome, round 2"),
    ("structured: every regression, k = 3", "outcome, round 3"),
    ("structured: a wide table, k = 3", "pairs"),
    ("structured: means, k = 3", "means"),
    ("structured: means beside a hazard, k = 1", "means"),
    ("structured: divided bins, k = 3", "margins"),
    ("structured: divided bins, k = 3", "pairs"),
    ("trajectory: k-means, rate 1.0, k = 4", "start"),
    ("trajectory: gaussian, rate 0.5, k = 4", "particles"),
    ("trajectory: measured, k = 4", "margins"),
    ("trajectory: measured, k = 4", "moments"),
    ("gibbs: mean, k = 3", "summaries"),
    ("gibbs: cox, k = 3", "curvature"),
    ("gibbs: mean, k = 3", "information"),
    ("gibbs: mean, k = 1", "Langevin chain"),
    ("gibbs: mean, plain, k = 1", "Langevin chain"),
)
"""Of every kind of charge, a study that has it."""

by_charge = pytest.mark.parametrize("charge", CHARGES, ids=" / ".join)


@by_charge
def test_noise_that_is_one_per_cent_too_small_is_caught(charge: tuple[str, str]) -> None:
    name, label = charge
    with pytest.raises(Broken, match=r"noise of sd|of what it is charged for"):
        reached(study(name), lambda: less_noise_of(label))


def changed(label: str, change: Callable[[Asked], Asked]) -> Callable[[Asked], Asked]:
    """Measurements of this label alone, changed."""
    return lambda asked: change(asked) if asked.label == label else asked


def understated(asked: Asked) -> Asked:
    """The sensitivity is one per cent less than what somebody moves; charge and noise go by it."""
    if isinstance(asked, LatentNoise):
        return replace(asked, radius=0.99 * asked.radius)
    if isinstance(asked, WholeSum):
        less = asked.squared * Fraction(9801, 10000)
        return replace(asked, sensitivity=0.99 * asked.sensitivity, squared=less)
    return replace(asked, sensitivity=0.99 * asked.sensitivity)


@dataclass(frozen=True)
class Claimed:
    """A plan that holds other measurements than those it was made with."""

    plan: Any
    change: Callable[[Asked], Asked]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plan, name)

    def rounds_of(self, drawn: Any) -> tuple[Asked, ...]:
        """Of the mechanism that has rounds of its own for each outcome."""
        return tuple(map(self.change, self.plan.rounds_of(drawn)))

    @property
    def measurements(self) -> tuple[Asked, ...]:
        return tuple(map(self.change, self.plan.measurements))

    @property
    def events(self) -> tuple[Event, ...]:
        return charge_of(self.measurements)


@by_charge
def test_a_sensitivity_understated_by_one_per_cent_is_caught(charge: tuple[str, str]) -> None:
    """Noise, and what is charged, are both for one per cent less than somebody moves."""
    name, label = charge
    change = changed(label, understated)
    with pytest.raises(Broken, match="of what it is charged for"):
        reached(study(name), lambda: called(change), claimed=Claimed(planned(study(name)), change))


def with_other_noise(asked: Asked) -> Asked:
    """A measurement of its own making, with a little less noise, and the event of that."""
    if isinstance(asked, LatentNoise):
        return replace(asked, w=asked.w * (1 + 1e-9))
    return replace(asked, noise_multiplier=asked.noise_multiplier * (1 - 1e-9))


@by_charge
def test_a_measurement_with_other_noise_than_the_plans_is_caught(charge: tuple[str, str]) -> None:
    """By so little that nobody would see it in the noise: a plan's own are called, and no other."""
    name, label = charge
    with pytest.raises(Broken, match="was called"):
        reached(study(name), lambda: called(changed(label, with_other_noise)))


@by_study
def test_a_plan_is_charged_as_the_measurements_that_it_holds(study: Study) -> None:
    plan = planned(study)
    assert plan.events == charge_of(plan.measurements)
    called = Counter(look.asked for look in LOOKS[study.mechanism.name](plan) for _ in look.parts)
    for asked in plan.measurements:
        # A symmetric matrix's two arrays are noised in one call.
        assert called[asked] == asked.calls * (1 + getattr(asked, "symmetric", False))


def twice(real: Any) -> Any:
    """A statistic is released, and then released again: the first was not to one's liking."""

    def again(*given: Any, **named: Any) -> Any:
        real(*given, **named)
        return real(*given, **named)

    return again


def beside(real: Any) -> Any:
    """A statistic gets noise, of whatever size, but not by a measurement."""

    def release(scores: Any, present: Any, radius: Any, measurement: Any, noise: Any) -> Any:
        bare = real(scores, present, radius, None, noise)
        return sources.add_gaussian(bare, measurement.sd, noise)

    return release


def bare_rows(real: Any) -> Any:
    """The number of rows leaves as it is, among counts with noise."""

    def counts(rows: Any, present: Any, *rest: Any) -> Any:
        return replace(real(rows, present, *rest), rows=float(present.sum()))

    return counts


def bare_shares(real: Any) -> Any:
    """What a start says of how many rows there are has no noise."""

    def begin(plan: Any, z: Any, bins: Any, there: Any, *rest: Any) -> Any:
        found = real(plan, z, bins, there, *rest)
        counts = np.bincount(bins[there], minlength=len(found.counts)).astype(float)
        return replace(found, counts=np.repeat(counts[:, None], found.counts.shape[1], axis=1))

    return begin


def bare_count(real: Any) -> Any:
    """The summaries' count has no noise."""
    return lambda plan, rows, noise: replace(
        real(plan, rows, noise), count=float(max(rows.there.sum(), 1))
    )


def bare_gradient(real: Any) -> Any:
    """A chain's last step is on a gradient of its own, without noise."""

    def descend(gradient: Any, *given: Any) -> Any:
        ended = real(gradient, *given)
        return replace(ended, theta=ended.theta - 1e-9 * gradient(ended.theta))

    return descend


@contextmanager
def peeking_refits(module: ModuleType, copied: str) -> Iterator[None]:
    """A refit's rows are drawn from the model, but for one that is somebody's.

    Args:
        copied: ``rows``; or ``present``, which tells only that somebody is there.
    """
    kept: list[Any] = []
    draw: Callable[..., Any] = module._rows_of
    fit: Callable[..., Any] = module.fit

    def fitted(plan: Any, encoding: Any, rows: Any, present: Any, *rest: Any) -> Any:
        kept.extend((rows, present))
        return fit(plan, encoding, rows, present, *rest)

    def drawn(*given: Any) -> Any:
        rows, present = draw(*given)
        if copied == "rows":
            rows[0], present[0] = kept[0][0], True
        else:
            present[0] = kept[1][0]
        return rows, present

    with patch.object(module, "fit", fitted), patch.object(module, "_rows_of", drawn):
        yield


def bare_margins(real: Any) -> Any:
    """The number of rows leaves as it is, among a column's counts with noise."""

    def counts(grids: Any, durations: Any, coded: Any, present: Any, *rest: Any) -> Any:
        found = real(grids, durations, coded, present, *rest)
        return replace(found, rows=float(max(present.sum(), 1)))

    return counts


def bare_start(real: Any) -> Any:
    """A match begins where somebody is, or is not."""

    def match(model: Any, inquiry: Any, noise: Any) -> Any:
        first = inquiry.present[: inquiry.per_person]
        return real(model, inquiry, noise) + 1e-9 * float(first.sum())

    return match


def bare_doubts(real: Any) -> Any:
    """What an answer hangs on is looked up in the rows."""

    def find(plan: Any, posterior: Any, seen: Any, matrix: Any) -> Any:
        found = real(plan, posterior, seen, matrix)
        return np.abs(found - 1e-6 * float(np.asarray(posterior.weight)[0]))

    return find


def honest_progress(real: Any) -> Any:
    """Progress counts who is there."""

    def fit(
        plan: Any, encoding: Any, rows: Any, present: Any, noise: Any, tick: Any, *rest: Any
    ) -> Any:
        tick(int(present.sum()), plan.persons)
        return real(plan, encoding, rows, present, noise, tick, *rest)

    return fit


FAULTS: dict[str, tuple[str, Callable[[], AbstractContextManager[Any]]]] = {
    "histograms twice": ("maf: full, k = 1", replaced(fitting, "release_histograms", twice)),
    "moments twice": ("maf: full, k = 1", replaced(fitting, "release_moments", twice)),
    "the last statistic twice": ("maf: full, k = 1", replaced(fitting, "release_score", twice)),
    "a sketch twice": (
        "sliced-wasserstein: sketch, k = 1",
        replaced(body, "release_sketch", twice),
    ),
    "noise redrawn at each step": (
        "sliced-wasserstein: presampled, k = 1",
        replaced(body, "presampled", at_each_step),
    ),
    "a start twice": (
        "trajectory: gaussian, rate 1.0, k = 1",
        replaced(trajectory, "released", twice),
    ),
    "summaries twice": ("gibbs: ols, k = 1", replaced(gibbs, "summarise", twice)),
    "a chain twice": ("gibbs: ols, k = 1", replaced(gibbs, "descend", twice)),
    "a count without noise": (
        "maf: full, k = 1",
        replaced(fitting, "release_histograms", bare_rows),
    ),
    "shares without noise": (
        "trajectory: public start, k = 1",
        replaced(trajectory, "begin", bare_shares),
    ),
    "an answer's count without noise": (
        "gibbs: mean, k = 1",
        replaced(gibbs, "summarise", bare_count),
    ),
    "a doubt that is of the rows": (
        "gibbs: ols, k = 1",
        replaced(preparation, "find_doubts", bare_doubts),
    ),
    "a gradient without noise": ("gibbs: ols, k = 1", replaced(gibbs, "descend", bare_gradient)),
    "a refit on somebody's rows": ("maf: full, k = 1", lambda: peeking_refits(tables, "rows")),
    "a refit on whether somebody is there": (
        "sliced-wasserstein: sketch, k = 1",
        lambda: peeking_refits(tables, "present"),
    ),
    "a path's refit on somebody's rows": (
        "trajectory: gaussian, rate 0.5, k = 4",
        lambda: peeking_refits(trajectory, "rows"),
    ),
    "a table's counts twice": (
        "structured: two outcomes, k = 1",
        replaced(structured, "release_margins", twice),
    ),
    "a wide table's pairs twice": (
        "structured: a wide table, k = 1",
        replaced(class_population, "release_pairs", twice),
    ),
    "an outcome's scores twice": (
        "structured: two outcomes, k = 1",
        replaced(matching, "release_scores", twice),
    ),
    "a table's rows without noise": (
        "structured: two outcomes, k = 1",
        replaced(structured, "release_margins", bare_margins),
    ),
    "an outcome that starts from a person": (
        "structured: two outcomes, k = 3",
        replaced(structured, "match_outcome", bare_start),
    ),
    "a structured refit on whether somebody is there": (
        "structured: two outcomes, k = 1",
        lambda: peeking_refits(structured, "present"),
    ),
    "noise beside all measurements": (
        "maf: full, k = 1",
        replaced(fitting, "release_moments", beside),
    ),
    "progress that counts persons": (
        "maf: full, k = 1",
        replaced(tables, "fit", honest_progress),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault: str) -> None:
    name, planted = FAULTS[fault]
    with pytest.raises(Broken):
        hold_whole(study(name), planted)
