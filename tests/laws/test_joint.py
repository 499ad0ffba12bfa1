"""Laws of one release of many sites: sums are of everybody's rows, and their noise is as charged.

Exact: what sites add is compared in whole numbers with what all rows in one place add.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.support.federated import add_up, ask_sites, encode_site, gather_sums, release_jointly

from penstock.base.errors import InvalidInput, JobFailed
from penstock.mechanisms import MECHANISMS, Scoring, SlicedWasserstein, Structured
from penstock.mechanisms.joint.consortium import Consortium
from penstock.mechanisms.joint.plan import JointPlan, plan_jointly
from penstock.mechanisms.joint.rounds import Contribution, conclude, contribute
from penstock.mechanisms.protocol import Asked
from penstock.mechanisms.released import ESTIMATE
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.events import DistributedGaussian, alone
from penstock.privacy.measurements import Addend
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Column, Schema
from penstock.schema.encoding import Encoding

SCHEMA = Schema(
    (
        Column("t", "duration", upper=10, decimals=1, event="d"),
        Column("d", "event"),
        Column("a", "continuous", lower=-4, upper=4, decimals=2),
        Column("g", "categorical", levels=("u", "v", "w"), nullable=True),
        Column("y", "binary"),
    )
)
ASKED = (
    Estimand("hazard", "cox", "t", "a", adjust=("g",)),
    Estimand("odds", "logistic", "y", "a"),
)
SIZES = (300, 450, 250, 600)
NAMES = ("north", "east", "south", "west")


def draw_rows(count: int, rng: np.random.Generator) -> dict[str, Any]:
    a = np.clip(rng.standard_normal(count), -4, 4).round(2)
    time = rng.exponential(6 * np.exp(-0.5 * a))
    return {
        "t": np.minimum(time, 10).round(1),
        "d": (time < 10).astype(float),
        "a": a,
        "g": np.where(rng.random(count) < 0.1, np.nan, rng.integers(0, 3, count)),
        "y": (rng.random(count) < 1 / (1 + np.exp(-0.8 * a))).astype(float),
    }


def make(settings: Any, dropouts: int = 0, colluders: int = 0, ask: Any = ASKED) -> JointPlan:
    asked = Asked(settings, SCHEMA, PrivacyRequest(2.0, 1e-5), ask)
    group = Consortium(NAMES, SIZES, dropouts, colluders)
    return plan_jointly(MECHANISMS.of(settings), asked, group)


def make_sites(plan: JointPlan) -> tuple[Encoding, list[tuple[Any, Any]]]:
    rng, encoding = np.random.default_rng(4), Encoding(plan.asked.schema)
    rows = [draw_rows(count, rng) for count in SIZES]
    return encoding, [encode_site(plan, encoding, i, each) for i, each in enumerate(rows)]


SETTINGS = pytest.mark.parametrize(
    "settings", [Structured(copies=1, refits=0, planted=0), Scoring()], ids=lambda s: s.name
)


@SETTINGS
def test_a_sum_is_that_of_all_rows_in_one_place(settings: Any) -> None:
    """In every round, in whole numbers: no site's reference differs from another's."""
    plan, mechanism = make(settings), MECHANISMS.of(settings)
    encoding, sites = make_sites(plan)
    together = tuple(np.concatenate(parts) for parts in zip(*sites, strict=True))
    noise, sums = SeededNoise(5), list[list[int]]()
    assert plan.rounds == sum(m.calls for m in plan.carried.measurements) > 3
    for _ in range(plan.rounds):
        apart = ask_sites(mechanism, plan, encoding, sites, sums, noise)
        whole: Any = contribute(mechanism, plan, encoding, *together, sums, noise)
        assert {c.label for c in apart} == {whole.label}
        for at, addend in enumerate(whole.addends):
            parts = zip(*(c.addends[at].whole for c in apart), strict=True)
            assert [sum(each) for each in parts] == list(addend.whole)
            assert {c.addends[at].variance for c in apart} == {addend.variance}
        sums.append(add_up(apart, noise))
    with pytest.raises(JobFailed, match="all sums"):
        contribute(mechanism, plan, encoding, *sites[0], sums, noise)


@SETTINGS
def test_what_is_made_of_sums_is_made_of_nothing_else(settings: Any) -> None:
    """The same sums and draws give the same release, at whoever has them; too few are refused."""
    plan, mechanism = make(settings), MECHANISMS.of(settings)
    encoding, sites = make_sites(plan)
    sums = gather_sums(mechanism, plan, encoding, sites, SeededNoise(6))
    first, again = (
        list(conclude(mechanism, plan, encoding, sums, SeededNoise(7))) for _ in range(2)
    )
    for one, two in zip(first, again, strict=True):
        assert one.name == two.name
        for name, values in one.columns.items():
            np.testing.assert_array_equal(values, two.columns[name])
    with pytest.raises(JobFailed, match="missing"):
        list(conclude(mechanism, plan, encoding, sums[:-1], SeededNoise(7)))
    with pytest.raises(JobFailed, match="size"):
        list(conclude(mechanism, plan, encoding, [sums[0][1:], *sums[1:]], SeededNoise(7)))


@SETTINGS
@pytest.mark.parametrize(("dropouts", "colluders"), [(0, 0), (0, 1), (1, 1)])
def test_the_noise_that_nobody_knows_is_what_is_charged(
    settings: Any, dropouts: int, colluders: int
) -> None:
    """S - t - c shares of every sum have at least the variance σ²Δ² of the charged event."""
    plan, mechanism = make(settings, dropouts, colluders), MECHANISMS.of(settings)
    encoding, sites = make_sites(plan)
    honest = len(SIZES) - dropouts - colluders
    charged = {event.label: event for event in plan.events}
    measured = {m.label: m for m in plan.carried.measurements}
    noise, sums = SeededNoise(8), list[list[int]]()
    for _ in range(plan.rounds):
        [found, *rest] = ask_sites(mechanism, plan, encoding, sites, sums, noise)
        event, measurement = charged[found.label], measured[found.label]
        assert isinstance(event, DistributedGaussian)
        assert event.honest == honest
        for number, addend in enumerate(found.addends):
            share = addend.variance / len(SIZES)
            # Of a symmetric matrix, numbers beside the diagonal count twice in the norm.
            whole = measurement.variance if not number else measurement.variance / 2
            width = whole / addend.variance  # of the grid, squared
            least = Fraction(event.noise_multiplier) ** 2 * measurement.squared
            assert share * honest * width >= (least if not number else least / 2)
            assert math.sqrt(share) >= event.grid_sd * (1 - 1e-9) >= 2**20
        sums.append(add_up([found, *rest], noise))
    assert plan.epsilon <= 2.0
    assert plan.epsilon == epsilon(plan.events, 1e-5)
    own = [alone(e) for e in plan.events if isinstance(e, DistributedGaussian)]
    assert plan.epsilon_alone == epsilon(own, 1e-5)
    assert plan.epsilon_alone > plan.epsilon
    assert plan.carried.measurements[0].noise_multiplier == pytest.approx(
        charged["margins"].noise_multiplier * math.sqrt(len(SIZES) / honest), rel=1e-11
    )


def test_a_site_adds_its_share_of_the_noise() -> None:
    """V/S each, so that S of them have V: not V/S², as a share of its sd would."""
    variance, many = Fraction(2**80), 4000
    nothing = Contribution("nothing", (Addend([0] * many, variance),))
    for sites in (2, 12):
        drawn = np.array(nothing.add_noise(sites, SeededNoise(11)), dtype=float)
        assert drawn.var() * sites == pytest.approx(2.0**80, rel=0.1)


def test_an_answer_of_many_sites_is_that_of_their_rows() -> None:
    """At a large ε, within a small part of the error that the rows have by themselves."""
    asked = Asked(Scoring(), SCHEMA, PrivacyRequest(60.0, 1e-5), ASKED[1:])
    plan = plan_jointly(MECHANISMS.of(Scoring()), asked, Consortium(NAMES, SIZES))
    encoding, sites = make_sites(plan)
    [part] = release_jointly(MECHANISMS.of(Scoring()), plan, encoding, sites, SeededNoise(9))
    rng = np.random.default_rng(4)
    rows = [draw_rows(count, rng) for count in SIZES]
    pooled = {name: np.concatenate([each[name] for each in rows]) for name in rows[0]}
    pooled["site"] = np.repeat(np.arange(4.0), SIZES)
    [estimand] = plan.asked.estimands
    real = estimate(pooled, plan.asked.schema, estimand)
    found = float(np.asarray(part.columns[ESTIMATE])[0])
    assert abs(found - real.estimate) < 0.35 * math.sqrt(real.variance)


def test_what_cannot_be_asked_of_many_sites_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not made of sums"):
        make(SlicedWasserstein())
    with pytest.raises(InvalidInput, match="at least 4"):
        Consortium(NAMES[:3], SIZES[:3], dropouts=1, colluders=1)
    with pytest.raises(InvalidInput, match="not of every site"):
        Consortium(NAMES, SIZES[:3])
    named = replace(SCHEMA, columns=(*SCHEMA.columns, Column("site", "binary")))
    asked = Asked(Scoring(), named, PrivacyRequest(2.0, 1e-5), ASKED)
    with pytest.raises(InvalidInput, match="of which site"):
        plan_jointly(MECHANISMS.of(Scoring()), asked, Consortium(NAMES, SIZES))
