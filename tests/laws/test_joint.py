"""Laws of one release of many sites: sums are of everybody's rows, and their noise is as charged.

Exact: what sites add is compared in whole numbers with what all rows in one place add.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.support.federated import add_up, ask_sites, encode_site, gather_sums, release_jointly
from tests.support.replayed import coarsely
from tests.support.traces import trace_of

from penstock.base.errors import InvalidEvent, InvalidInput, JobFailed
from penstock.mechanisms import (
    MECHANISMS,
    Gibbs,
    Maf,
    Scoring,
    SlicedWasserstein,
    Structured,
)
from penstock.mechanisms.joint.consortium import LOCAL, MAX_SITES, SHARED, Consortium
from penstock.mechanisms.joint.plan import (
    JointPlan,
    find_against,
    list_alone,
    move_at_sites,
    move_further,
    plan_jointly,
)
from penstock.mechanisms.joint.rounds import Contribution, conclude, contribute
from penstock.mechanisms.protocol import Asked, SummedPlan
from penstock.mechanisms.released import ESTIMATE
from penstock.privacy.accounting.accountant import epsilon, epsilon_pld
from penstock.privacy.events import DiscreteGaussian, DistributedGaussian, Gaussian, alone
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


def make(
    settings: Any, dropouts: int = 0, colluders: int = 0, ask: Any = None, noise: str = SHARED
) -> JointPlan:
    """Of all questions that a mechanism answers at once, unless they are given."""
    every = ASKED[:1] if isinstance(settings, Gibbs) else ASKED
    asked = Asked(settings, SCHEMA, PrivacyRequest(2.0, 1e-5), ask or every)
    group = Consortium(NAMES, SIZES, dropouts, colluders, noise)
    return plan_jointly(MECHANISMS.of(settings), asked, group)


def make_sites(plan: JointPlan) -> tuple[Encoding, list[tuple[Any, Any]]]:
    rng, encoding = np.random.default_rng(4), Encoding(plan.asked.schema)
    rows = [draw_rows(count, rng) for count in SIZES]
    return encoding, [encode_site(plan, encoding, i, each) for i, each in enumerate(rows)]


SKETCH = SlicedWasserstein(copies=1, refits=1, steps=4, bases=2, bins=16)
SETTINGS = pytest.mark.parametrize(
    "settings",
    [Structured(copies=1, refits=0, planted=0), Scoring(), SKETCH, Gibbs()],
    ids=lambda s: s.name,
)


@pytest.fixture
def coarse() -> Iterator[None]:
    """Sites look at their own particles as coarsely as can be: what they add up, and that it moves
    by no more than is charged, must hold all the same. Noise is that of a release."""
    with coarsely(quick_noise=False):
        yield


COARSE = pytest.mark.usefixtures("coarse")


@SETTINGS
@COARSE
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
@COARSE
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
@COARSE
@pytest.mark.parametrize(
    ("dropouts", "colluders"),
    [
        pytest.param(0, 0, marks=pytest.mark.thorough),
        pytest.param(0, 1, marks=pytest.mark.thorough),
        (1, 1),
    ],
)
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
    first = plan.carried.measurements[0]
    assert first.noise_multiplier == pytest.approx(
        charged[first.label].noise_multiplier * math.sqrt(len(SIZES) / honest), rel=1e-11
    )


def test_a_person_at_several_sites_loses_more_than_several_releases() -> None:
    """One sum has all their parts: m²α/(2σ²), of which Gaussian noise is the exact case; m releases
    that are composed would be mα/(2σ²)."""
    events, delta = make(Scoring(), 1, 1).events, 1e-5
    assert move_further(events, 1) == events
    for times in (2, 3):
        moved = move_further(events, times)
        exact = [Gaussian(e.noise_multiplier / times, e.count) for e in events]  # type: ignore[union-attr]
        assert epsilon(moved, delta) == pytest.approx(epsilon(exact, delta), rel=1e-6)
        # Added up as if they were releases of their own, they would be told too small.
        assert epsilon(moved, delta) > times * epsilon(events, delta)
        assert epsilon(moved, delta) > epsilon(events * times, delta)
    exchanged = epsilon_pld(events, delta, relation="replace-one")
    assert epsilon_pld(move_further(events, 2), delta) == pytest.approx(exchanged, rel=1e-6)
    with pytest.raises(InvalidInput, match="no parts of sums"):
        move_further([Gaussian(2.0)], 2)


def test_local_noise_of_several_sites_is_composed() -> None:
    plan, delta = make(Scoring(), noise=LOCAL), 1e-5
    group = plan.consortium
    assert move_at_sites(plan.events, 1, group) == plan.events
    exact = [Gaussian(e.noise_multiplier, 3 * e.count) for e in plan.events]  # type: ignore[union-attr]
    composed = epsilon(move_at_sites(plan.events, 3, group), delta)
    assert composed == pytest.approx(epsilon(exact, delta), rel=1e-6)
    # One sum of all their parts under shared noise costs more.
    assert composed < epsilon(move_further(plan.events, 3), delta)


def test_against_more_colluders_less_noise_counts() -> None:
    """Down to a site's own, which is what holds against all others."""
    events, delta = make(Scoring(), 0, 1).events, 1e-5
    assert find_against(events, 0) == find_against(events, 1) == events
    losses = [epsilon(find_against(events, many), delta) for many in (1, 2, 3)]
    assert losses == sorted(losses)
    assert losses[0] < losses[1]
    own = epsilon(list_alone(events), delta)
    assert losses[-1] == pytest.approx(own, rel=1e-9)
    with pytest.raises(InvalidEvent, match="no site is left"):
        find_against(events, 4)


@SETTINGS
@COARSE
@pytest.mark.parametrize(
    ("dropouts", "colluders"),
    [
        pytest.param(0, 0, marks=pytest.mark.thorough),
        pytest.param(1, 0, marks=pytest.mark.thorough),
        (1, 1),
    ],
)
def test_local_noise_is_private_at_each_site_by_itself(
    settings: Any, dropouts: int, colluders: int
) -> None:
    """One site's share of every sum has all of σ²Δ², is charged as a release of its own, and no
    more than that: the sum has S times as much, whoever may drop out or collude."""
    plan = make(settings, dropouts, colluders, noise=LOCAL)
    mechanism, alone_here = MECHANISMS.of(settings), make(settings, noise=LOCAL)
    encoding, sites = make_sites(plan)
    charged = {event.label: event for event in plan.events}
    measured = {m.label: m for m in plan.carried.measurements}
    noise, sums = SeededNoise(12), list[list[int]]()
    for _ in range(plan.rounds):
        [found, *rest] = ask_sites(mechanism, plan, encoding, sites, sums, noise)
        event, measurement = charged[found.label], measured[found.label]
        assert type(event) is DiscreteGaussian
        for number, addend in enumerate(found.addends):
            share = addend.variance / len(SIZES)
            whole = measurement.variance if not number else measurement.variance / 2
            width = whole / addend.variance
            asked = Fraction(event.noise_multiplier) ** 2 * measurement.squared
            least = asked if not number else asked / 2
            assert least <= share * width <= least * Fraction(1 + 1e-9)
            assert math.sqrt(share) >= event.grid_sd * (1 - 1e-9)
        sums.append(add_up([found, *rest], noise))
    assert plan.events == alone_here.events  # t and c cost nothing
    assert plan.epsilon == plan.epsilon_alone == epsilon(plan.events, 1e-5) <= 2.0
    assert plan.consortium.guarantee == "formal"
    assert make(settings).consortium.guarantee == "formal (distributed)"
    assert plan.consortium.swell == pytest.approx(math.sqrt(len(SIZES)), rel=1e-11)


def test_half_of_the_local_noise_would_be_found_out() -> None:
    """The law above on a planted fault: a swell of √(S/2) leaves a site half of what is charged."""
    plan = make(Scoring(), noise=LOCAL)
    half = plan.carried.with_noise(math.sqrt(0.5))
    for event, measurement in zip(plan.events, half.measurements, strict=True):
        least = Fraction(event.noise_multiplier) ** 2 * measurement.squared  # type: ignore[union-attr]
        assert measurement.variance / len(SIZES) < least


HOSTILE = (np.nan, np.inf, -1e300, 5e-324, 1.0, "alternating", "as drawn")


@SETTINGS
@COARSE
def test_no_person_moves_a_sum_by_more_than_is_charged(settings: Any) -> None:
    """Exactly, in whole numbers, rounding included: Σ moved²/V ≤ 1/σ² in every round, V the
    variance of the sum's noise. A symmetric matrix's numbers beside its diagonal are two, with half
    of the variance: 2m²/V is m²/(V/2). One person is zeroed out, and all else stays."""
    plan, mechanism = make(settings), MECHANISMS.of(settings)
    encoding, sites = make_sites(plan)
    rows, present = sites[2]
    gone = np.where(np.arange(len(rows)) == 7, False, present[:, 0])[:, None]
    left = np.where(gone[..., None], rows, 0.0)
    measured = {m.label: m for m in plan.carried.measurements}
    noise, sums, most = SeededNoise(12), list[list[int]](), dict[str, Fraction]()
    for _ in range(plan.rounds):
        without = contribute(mechanism, plan, encoding, left, gone, sums, noise)
        least = Fraction(measured[without.label].noise_multiplier) ** -2
        for own in HOSTILE:
            odd = rows.copy()
            if own == "alternating":
                odd[7] = np.where(np.arange(encoding.d) % 2, 50.0, -50.0)
            elif own != "as drawn":
                odd[7] = own
            there = gone.copy()
            there[7] = True
            whole = contribute(mechanism, plan, encoding, odd, there, sums, noise)
            moved = sum(
                Fraction(int(a) - int(b)) ** 2 / one.variance
                for one, two in zip(whole.addends, without.addends, strict=True)
                for a, b in zip(one.whole, two.whole, strict=True)
            )
            assert moved <= least, (without.label, own)
            share = moved / least
            most[without.label] = max(most.get(without.label, share), share)
        asked = ask_sites(mechanism, plan, encoding, sites, sums, noise)
        sums.append(add_up(asked, noise))
    assert min(most.values()) > 0
    assert max(most.values()) > 0.9  # some person is as bad as is charged


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [SKETCH, Gibbs()], ids=lambda s: s.name)
def test_the_work_of_a_round_does_not_depend_on_rows(settings: Any) -> None:
    """Calls and shapes of all rounds; the sums are the same, as they are to a site."""
    plan, mechanism = make(settings), MECHANISMS.of(settings)
    encoding, sites = make_sites(plan)
    sums = gather_sums(mechanism, plan, encoding, sites, SeededNoise(13))
    rows, present = sites[2]

    def work(x: Any, there: Any) -> None:
        for before in range(plan.rounds):
            contribute(mechanism, plan, encoding, x, there, sums[:before], SeededNoise(14))

    work(rows, present)  # what is cached is cached now
    expected = trace_of(lambda: work(rows, present))
    assert expected
    one = np.zeros_like(present)
    one[5] = True
    for x, there in (
        (np.zeros_like(rows), np.zeros_like(present)),
        (np.where(one[..., None], rows, 0.0), one),
        (np.full_like(rows, np.inf), present),
        (np.full_like(rows, np.nan), np.ones_like(present)),
    ):
        assert trace_of(lambda x=x, there=there: work(x, there)) == expected  # type: ignore[misc]


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
    part, _ = release_jointly(MECHANISMS.of(Scoring()), plan, encoding, sites, SeededNoise(9))
    rng = np.random.default_rng(4)
    rows = [draw_rows(count, rng) for count in SIZES]
    pooled = {name: np.concatenate([each[name] for each in rows]) for name in rows[0]}
    pooled["site"] = np.repeat(np.arange(4.0), SIZES)
    [estimand] = plan.asked.estimands
    real = estimate(pooled, plan.asked.schema, estimand)
    found = float(np.asarray(part.columns[ESTIMATE])[0])
    assert abs(found - real.estimate) < 0.35 * math.sqrt(real.variance)


QUESTIONS = {
    "cox": ASKED[0],
    "logistic": ASKED[1],
    "ols": Estimand("slope", "ols", "a", "y", adjust=("g",)),
    "mean": Estimand("average", "mean", "a"),
}


@pytest.mark.parametrize("model", QUESTIONS)
def test_a_chain_of_many_sites_ends_where_that_of_their_rows_does(model: str) -> None:
    """At a large ε: the fit of all rows, with the site as a column, but for the design's weights;
    and the covariance is that of one place with as much noise."""
    mechanism, ask = MECHANISMS.of(Gibbs()), (QUESTIONS[model],)
    asked = Asked(Gibbs(), SCHEMA, PrivacyRequest(60.0, 1e-5), ask)
    plan = plan_jointly(mechanism, asked, Consortium(NAMES, SIZES))
    encoding, sites = make_sites(plan)
    sums = gather_sums(mechanism, plan, encoding, sites, SeededNoise(9))
    [part] = conclude(mechanism, plan, encoding, sums, SeededNoise(9))
    together = tuple(np.concatenate(parts) for parts in zip(*sites, strict=True))
    alone_asked = replace(asked, schema=plan.asked.schema, estimands=plan.asked.estimands)
    here = mechanism.plan(alone_asked, sum(SIZES))
    [whole] = mechanism.run(here, encoding, *together, SeededNoise(10))
    columns = [np.asarray(each.columns["estimate"]) for each in (part, whole)]
    last = f"cov_{len(columns[0])}"
    sds = [math.sqrt(np.asarray(each.columns[last])[-1]) for each in (part, whole)]
    assert sds[0] == pytest.approx(sds[1], rel=0.02)
    assert abs(columns[0][-1] - columns[1][-1]) < 0.5 * sds[1]
    within = ("site",) if model != "mean" else ()
    assert plan.asked.estimands[0].adjust == (*ask[0].adjust, *within)


@pytest.mark.thorough
def test_a_table_of_many_sites_is_that_of_their_rows() -> None:
    """At a large ε: as many rows of each site, and of all columns the same means within sites."""
    settings = SlicedWasserstein(copies=1, refits=0, steps=60, bases=16)
    asked = Asked(settings, SCHEMA, PrivacyRequest(500.0, 1e-5))
    mechanism = MECHANISMS.of(settings)
    plan = plan_jointly(mechanism, asked, Consortium(NAMES, SIZES))
    rng, encoding = np.random.default_rng(15), Encoding(plan.asked.schema)
    rows = [draw_rows(count, rng) for count in SIZES]
    for number, each in enumerate(rows):  # sites differ
        each["a"] = np.clip(each["a"] + number / 2, -4, 4).round(2)
    sites = [encode_site(plan, encoding, i, each) for i, each in enumerate(rows)]
    noise = SeededNoise(16)
    sums = gather_sums(mechanism, plan, encoding, sites, noise)
    [table] = conclude(mechanism, plan, encoding, sums, noise)
    assert table.rows == sum(SIZES)
    made = np.asarray(table.columns["site"]).astype(int)
    for number, each in enumerate(rows):
        of = made == number
        # Rows of a table are drawn: counts and means vary as those of samples do.
        assert abs(of.sum() - SIZES[number]) < 5 * math.sqrt(SIZES[number])
        error = abs(np.asarray(table.columns["a"])[of].mean() - each["a"].mean())
        assert error < 5 / math.sqrt(SIZES[number])


@pytest.mark.thorough
def test_a_wide_table_of_many_sites_has_the_pairs_of_their_rows() -> None:
    """At a large ε: who is in which town goes with the site, and with a, as in rows; and the table
    is made of sums alone, pairs among them. Over cohorts and copies, since a quarter of the towns
    has some 200 rows of one."""
    found = [see_towns(seed) for seed in (15, 1, 2, 3)]
    assert max(apart for apart, _ in found) < 0.03
    assert np.abs(np.mean([off for _, off in found], axis=0)).max() < 0.2


def see_towns(seed: int) -> tuple[float, np.ndarray]:
    """How far apart shares of sites by town are, and by how much a is off in quarters of towns."""
    towns = Column("town", "categorical", levels=tuple(f"town {i}" for i in range(20)))
    schema = replace(SCHEMA, columns=(*SCHEMA.columns, towns))
    settings = Structured(copies=8, refits=0, planted=0)
    asked = Asked(settings, schema, PrivacyRequest(500.0, 1e-5))
    mechanism = MECHANISMS.of(settings)
    plan = plan_jointly(mechanism, asked, Consortium(NAMES, SIZES))
    assert "pairs" in [event.label for event in plan.events]
    rng, encoding = np.random.default_rng(seed), Encoding(plan.asked.schema)
    rows = [draw_rows(count, rng) for count in SIZES]
    for number, each in enumerate(rows):
        drawn = rng.normal(4 * number + 4 + 2 * each["a"], 2).round()
        each["town"] = np.clip(drawn, 0, 19)
    sites = [encode_site(plan, encoding, i, each) for i, each in enumerate(rows)]
    noise = SeededNoise(seed + 1)
    sums = gather_sums(mechanism, plan, encoding, sites, noise)
    tables = [table.columns for table in conclude(mechanism, plan, encoding, sums, noise)]
    made = {name: np.concatenate([t[name] for t in tables]) for name in ("site", "town", "a")}
    all_rows = {
        "site": np.repeat(np.arange(4), SIZES),
        **{name: np.concatenate([each[name] for each in rows]) for name in ("town", "a")},
    }

    def share(of: dict[str, Any]) -> np.ndarray:
        both = of["site"].astype(int) * 20 + of["town"].astype(int)
        return np.bincount(both, minlength=80) / len(both)

    def average(of: dict[str, Any]) -> np.ndarray:
        quarter = (of["town"] // 5).astype(int)
        return np.array([of["a"][quarter == q].mean() for q in range(4)])

    return np.abs(share(made) - share(all_rows)).sum() / 2, average(made) - average(all_rows)


@pytest.mark.parametrize(
    ("settings", "instead"),
    [
        (Maf(), "structured or sliced-wasserstein"),
        (Gibbs(steps=50), "Leave out 'steps'"),
        (SlicedWasserstein("resampled"), "variant sketch"),
        (SlicedWasserstein("presampled"), "variant sketch"),
    ],
    ids=["maf", "gibbs", "resampled", "presampled"],
)
def test_what_is_no_sum_is_refused(settings: Any, instead: str) -> None:
    with pytest.raises(InvalidInput, match="not made of sums") as refused:
        make(settings, ask=ASKED[1:])
    assert instead in str(refused.value)


def test_the_noise_of_what_is_no_sum_is_not_scaled() -> None:
    """Whoever takes such a plan for one of sums is told so, whatever was asked before."""
    for settings in (Maf(), SlicedWasserstein("resampled", steps=5)):
        asked = Asked(settings, SCHEMA, PrivacyRequest(2.0, 1e-5))
        planned = MECHANISMS.of(settings).plan(asked, 500)
        assert isinstance(planned, SummedPlan)
        with pytest.raises(InvalidInput, match="no sum of whole numbers"):
            planned.with_noise(2.0)


def test_what_cannot_be_asked_of_many_sites_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least 4"):
        Consortium(NAMES[:3], SIZES[:3], dropouts=1, colluders=1)
    with pytest.raises(InvalidInput, match="not of every site"):
        Consortium(NAMES, SIZES[:3])
    wide = Column("h", "categorical", levels=tuple(f"l{i}" for i in range(60)))
    cells = replace(SCHEMA, columns=(*SCHEMA.columns, wide))
    of_cells = (replace(ASKED[1], strata=("h",)),)  # 60 by itself, and 240 with four sites
    asked_of_cells = Asked(Scoring(), cells, PrivacyRequest(2.0, 1e-5), of_cells)
    with pytest.raises(InvalidInput, match="at most 100 combinations"):
        plan_jointly(MECHANISMS.of(Scoring()), asked_of_cells, Consortium(NAMES, SIZES))
    with pytest.raises(InvalidInput, match="one of shared, local"):
        Consortium(NAMES, SIZES, noise="none")
    many = tuple(f"s{number}" for number in range(MAX_SITES + 1))
    assert Consortium(many[:-1], (5,) * MAX_SITES, 1, 1).honest == MAX_SITES - 2
    with pytest.raises(InvalidInput, match=f"2 to {MAX_SITES}"):
        Consortium(many, (5,) * len(many), 1, 1)
    named = replace(SCHEMA, columns=(*SCHEMA.columns, Column("site", "binary")))
    asked = Asked(Scoring(), named, PrivacyRequest(2.0, 1e-5), ASKED)
    with pytest.raises(InvalidInput, match="of which site"):
        plan_jointly(MECHANISMS.of(Scoring()), asked, Consortium(NAMES, SIZES))
