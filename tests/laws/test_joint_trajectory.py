"""Laws of trajectories of many sites: a start and steps that are sums, each a round.

Exact: what sites add is compared in whole numbers with what all rows in one place add, and with
what is charged for one person.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.support.early import wild
from tests.support.federated import (
    Sums,
    add_up,
    ask_sites,
    encode_site,
    gather_sums,
    release_jointly,
)
from tests.support.traces import trace_of

from penstock.base.errors import InvalidInput, JobFailed
from penstock.mechanisms import MECHANISMS, Trajectory
from penstock.mechanisms.joint.consortium import SITE, Consortium
from penstock.mechanisms.joint.plan import JointPlan, plan_jointly
from penstock.mechanisms.joint.rounds import _Rounds, conclude, contribute
from penstock.mechanisms.protocol import Asked
from penstock.mechanisms.trajectory import drift, dynamics
from penstock.mechanisms.trajectory import start as starts
from penstock.mechanisms.trajectory.drift import Rows
from penstock.mechanisms.trajectory.plan import PULL_BITS, plan, plan_whole, pull_unit
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.events import DiscreteGaussian, DistributedGaussian, alone
from penstock.privacy.measurements import Addend, WholeSum, agree, is_known
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Column, Schema
from penstock.schema.encoding import Encoding

NAMES, SIZES = ("north", "east", "south", "west"), (60, 90, 40, 75)
TIMES, STEPS = 4, 3
MECHANISM = MECHANISMS["trajectory"]
FEW: Any = {"particles": 6, "paths": 5, "path_times": 7, "copies": 2, "refits": 1, "steps": STEPS}
WAYS = {
    "gaussian": Trajectory("t", **FEW),
    "k-means": Trajectory("t", start="k-means", modes=2, **FEW),
    "public": Trajectory("t", start="public", **FEW),
    "counts": Trajectory("t", start="counts", **FEW),
    "visits": Trajectory("t", dependence="inferred", **FEW),
    "measured": Trajectory("t", dependence="measured", **FEW),
}
SEEN_AGAIN = ("visits", "measured")
EVERY = pytest.mark.parametrize("way", WAYS)
MOVED = pytest.mark.parametrize("way", ["gaussian", "k-means", "public", "visits"])


def schema(rows: int) -> Schema:
    columns = (
        Column("t", "integer", lower=0, upper=TIMES - 1),
        Column("x", "continuous", lower=-2, upper=2),
        Column("y", "continuous", lower=-2, upper=2),
        Column("b", "binary", varies=False),
    )
    return Schema(columns, "id" if rows > 1 else None, rows)


def make(way: str, dropouts: int = 0, colluders: int = 0) -> JointPlan:
    rows = 3 if way in SEEN_AGAIN else 1
    asked = Asked(WAYS[way], schema(rows), PrivacyRequest(2.0, 1e-5))
    return plan_jointly(MECHANISM, asked, Consortium(NAMES, SIZES, dropouts, colluders))


def make_sites(given: JointPlan) -> tuple[Encoding, list[tuple[Any, Any]]]:
    """Each site's rows go round a circle of their own."""
    rng, encoding, k = np.random.default_rng(4), Encoding(given.asked.schema), given.carried.rows
    found = []
    for number, size in enumerate(SIZES):
        t = np.argsort(rng.random((size, TIMES)), axis=1)[:, :k].ravel().astype(float)
        angle = t + number
        noise = 0.2 * rng.standard_normal((2, size * k))
        fixed = np.repeat(rng.integers(0, 2, size).astype(float), k)
        rows = {"t": t, "x": np.cos(angle) + noise[0], "y": np.sin(angle) + noise[1], "b": fixed}
        found.append(encode_site(given, encoding, number, rows))
    return encoding, found


def gather(given: JointPlan) -> tuple[Encoding, list[tuple[Any, Any]], Sums]:
    encoding, sites = make_sites(given)
    return encoding, sites, gather_sums(MECHANISM, given, encoding, sites, SeededNoise(6))


@EVERY
def test_a_sum_is_that_of_all_rows_in_one_place(way: str) -> None:
    """In every round, in whole numbers."""
    given = make(way)
    encoding, sites = make_sites(given)
    together = tuple(np.concatenate(parts) for parts in zip(*sites, strict=True))
    noise, sums = SeededNoise(5), list[list[int]]()
    counted = {"public": 0, "k-means": 5}.get(way, 1)
    assert given.rounds == (2 if way in ("counts", "measured") else counted + STEPS)
    for _ in range(given.rounds):
        apart = ask_sites(MECHANISM, given, encoding, sites, sums, noise)
        whole: Any = contribute(MECHANISM, given, encoding, *together, sums, noise)
        assert {c.label for c in apart} == {whole.label}
        for at, addend in enumerate(whole.addends):
            parts = zip(*(c.addends[at].whole for c in apart), strict=True)
            assert [sum(each) for each in parts] == list(addend.whole)
            assert any(addend.whole)
            assert {c.addends[at].variance for c in apart} == {addend.variance}
        sums.append(add_up(apart, noise))
    with pytest.raises(JobFailed, match="all sums"):
        contribute(MECHANISM, given, encoding, *sites[0], sums, noise)


@EVERY
def test_what_is_made_of_sums_is_made_of_nothing_else(way: str) -> None:
    given = make(way)
    encoding, _, sums = gather(given)
    first, again = (
        list(conclude(MECHANISM, given, encoding, sums, SeededNoise(7))) for _ in range(2)
    )
    shape = MECHANISM.shape(given.asked, given.carried.persons)
    assert [part.name for part in first] == [part.name for part in shape.parts]
    for one, two in zip(first, again, strict=True):
        assert list(one.columns) == [c.name for c in shape.part(one.name).schema.columns]
        for name, values in one.columns.items():
            np.testing.assert_array_equal(values, two.columns[name])
    with pytest.raises(JobFailed, match="missing"):
        list(conclude(MECHANISM, given, encoding, sums[:-1], SeededNoise(7)))
    with pytest.raises(JobFailed, match="size"):
        list(conclude(MECHANISM, given, encoding, [sums[0][1:], *sums[1:]], SeededNoise(7)))


@EVERY
def test_rows_say_their_site_where_persons_are_counted_and_not_where_particles_move(
    way: str,
) -> None:
    given = make(way)
    assert (SITE in given.asked.schema.names) == (way in ("counts", "measured"))
    if SITE in given.asked.schema.names:
        assert not given.asked.schema[SITE].varies


@pytest.mark.parametrize(("dropouts", "colluders"), [(0, 0), (0, 1), (1, 1)])
@EVERY
def test_the_noise_that_nobody_knows_is_what_is_charged(
    way: str, dropouts: int, colluders: int
) -> None:
    """S - t - c shares of every sum have at least the variance σ²Δ² of the charged event."""
    given = make(way, dropouts, colluders)
    encoding, sites = make_sites(given)
    honest = len(SIZES) - dropouts - colluders
    charged = {event.label: event for event in given.events}
    measured = {m.label: m for m in given.carried.measurements}
    noise, sums, seen = SeededNoise(8), list[list[int]](), list[str]()
    for _ in range(given.rounds):
        found = ask_sites(MECHANISM, given, encoding, sites, sums, noise)
        seen.append(found[0].label)
        event, measurement = charged[seen[-1]], measured[seen[-1]]
        assert isinstance(event, DistributedGaussian)
        assert event.honest == honest
        halves = [1, 2] if measurement.symmetric else [1]
        for half, addend in zip(halves, found[0].addends, strict=True):
            share = addend.variance / len(SIZES)
            width = measurement.variance / half / addend.variance  # of the grid, squared
            least = Fraction(event.noise_multiplier) ** 2 * measurement.squared / half
            assert share * honest * width >= least
            assert math.sqrt(share) >= event.grid_sd * (1 - 1e-9) >= 2**20
        sums.append(add_up(found, noise))
    assert {label: seen.count(label) for label in seen} == {e.label: e.count for e in given.events}
    assert given.epsilon <= 2.0
    assert given.epsilon == epsilon(given.events, 1e-5)
    own = [alone(e) for e in given.events if isinstance(e, DistributedGaussian)]
    assert given.epsilon_alone == epsilon(own, 1e-5) > given.epsilon


@EVERY
def test_nobody_moves_a_sum_by_more_than_is_charged(way: str) -> None:
    """In whole numbers, in each round: any of a site's persons is zeroed out."""
    given = make(way)
    encoding, sites, sums = gather(given)
    rows, present = sites[2]
    measured = {m.label: m for m in given.carried.measurements}
    for round_ in range(given.rounds):
        known = (sums[:round_], SeededNoise(1))
        base: Any = contribute(MECHANISM, given, encoding, rows, present, *known)
        measurement = measured[base.label]
        for person in range(0, len(rows), 7):
            absent = present.copy()
            absent[person] = False
            other: Any = contribute(MECHANISM, given, encoding, rows, absent, *known)
            moved = Fraction(0)
            for at, (one, two) in enumerate(zip(base.addends, other.addends, strict=True)):
                pairs = zip(one.whole, two.whole, strict=True)
                # In squares of the noise's variance, which is the measurement's own.
                times = 2 if at else 1
                part = measurement.variance / times / one.variance
                moved += times * part * sum((a - b) ** 2 for a, b in pairs)
            assert 0 < moved <= measurement.squared


@MOVED
def test_a_round_looks_at_rows_for_its_own_sum_alone(way: str) -> None:
    """Work grows by the updates of the rounds before, not by their rows."""
    given = make(way)
    encoding, sites, sums = gather(given)
    seen: list[str] = []

    @contextmanager
    def counted() -> Iterator[None]:
        def told(name: str, real: Any) -> Any:
            def call(*args: Any, **named: Any) -> Any:
                seen.append(name)
                return real(*args, **named)

            return call

        with (
            patch.object(Rows, "whole_sum", told("particles", Rows.whole_sum)),
            patch.object(starts, "contributions", told("start", starts.contributions)),
        ):
            yield

    for round_ in range(given.rounds):
        seen.clear()
        with counted():
            contribute(MECHANISM, given, encoding, *sites[0], sums[:round_], SeededNoise(1))
        first = {"public": 0, "k-means": 5}.get(way, 1)
        assert seen == ["start" if round_ < first else "particles"]


@MOVED
def test_the_work_of_a_round_says_nothing_of_rows(way: str) -> None:
    given = make(way)
    encoding, sites, sums = gather(given)
    rows, present = sites[1]
    worlds = [
        (rows, present),
        (rows, np.zeros_like(present)),
        (np.full_like(rows, 1e300), present),
        (np.full_like(rows, np.nan), present),
        (np.full_like(rows, 5e-324), present),
        (np.zeros_like(rows), np.arange(present.size).reshape(present.shape) < 1),
    ]
    for round_ in (0, given.rounds - 1):

        def ask(x: Any, there: Any, known: Sums) -> None:
            contribute(MECHANISM, given, encoding, x, there, known, SeededNoise(1))

        ask(*worlds[0], sums[:round_])  # what is cached is cached now
        expected = trace_of(lambda known=sums[:round_]: ask(*worlds[0], known))  # type: ignore[misc]
        assert any(kind == "array" for own in expected for kind, *_ in own)
        for world in worlds[1:]:
            seen = trace_of(lambda world=world, known=sums[:round_]: ask(*world, known))  # type: ignore[misc]
            assert seen == expected


def test_machines_that_round_differently_still_add_up() -> None:
    """A site whose particles are off in the last digits asks for the same sizes, moves a sum by
    little, and what is charged holds at its particles too."""
    given = make("gaussian")
    encoding, sites, sums = gather(given)
    real = dynamics.Descent.absorb

    def otherwise(self: Any, noisy: Any) -> None:
        real(self, noisy)
        self._x = self._x * (1 + 3e-7)

    last = (sums[:-1], SeededNoise(1))
    [here] = contribute(MECHANISM, given, encoding, *sites[0], *last).addends
    with patch.object(dynamics.Descent, "absorb", otherwise):
        [there] = contribute(MECHANISM, given, encoding, *sites[0], *last).addends
    assert (len(there.whole), there.variance) == (len(here.whole), here.variance)
    assert list(there.whole) != list(here.whole)
    apart = math.dist(map(float, there.whole), map(float, here.whole))
    assert apart < 1e-3 * math.sqrt(here.variance)


# -- the sum in whole numbers -------------------------------------------------------------------

T, M, D = 3, 5, 2
WIDTHS = np.array([0.1, 0.2, 0.3])
PARTICLES = np.random.default_rng(0).uniform(-0.5, 0.5, (T, M, D))


def add_pulls(z: Any, bins: Any, clip: float, dtype: str = "float32") -> Any:
    rows = Rows(z, bins, np.ones(bins.shape, dtype=bool), T, "cpu", dtype)
    return rows.whole_sum(rows.tensor(PARTICLES), rows.tensor(WIDTHS), clip)


def squared_length(whole: Any) -> int:
    return sum(int(value) ** 2 for value in whole.ravel())


@pytest.mark.parametrize("k", [1, 3])
def test_whole_pulls_are_pulls_but_for_rounding(k: int) -> None:
    rng = np.random.default_rng(k)
    z, bins = rng.uniform(-0.5, 0.5, (50, k, D)), rng.integers(0, T, (50, k))
    rows = Rows(z, bins, np.ones(bins.shape, dtype=bool), T, "cpu", "float64")
    at = (rows.tensor(PARTICLES), rows.tensor(WIDTHS), 0.7)
    found = rows.whole_sum(*at) * pull_unit(0.7)
    np.testing.assert_allclose(found, rows.clipped_sum(*at, None), atol=1e-7)
    parts = [add_pulls(z[some], bins[some], 0.7) for some in (slice(0, 17), slice(17, 50))]
    np.testing.assert_array_equal(sum(parts), add_pulls(z, bins, 0.7))
    with patch.object(drift, "_HELD", {"cpu": 4 * M}):
        np.testing.assert_array_equal(sum(parts), add_pulls(z, bins, 0.7))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@settings(max_examples=150, deadline=None)
@given(
    z=hnp.arrays(np.float64, (1, 4, D), elements=wild | st.floats(-1, 1)),
    bins=hnp.arrays(np.int64, (1, 4), elements=st.integers(-1, T)),
    clip=st.floats(1e-3, 1e3),
)
def test_nobody_pulls_by_more_than_the_clip_in_whole_numbers(
    dtype: str, z: Any, bins: Any, clip: float
) -> None:
    found = add_pulls(z, bins, clip, dtype)
    assert found.dtype == np.int64
    assert squared_length(found) * Fraction(pull_unit(clip)) ** 2 <= Fraction(clip) ** 2


@pytest.mark.parametrize("clip", [0.55, 2.0**-7, 1.0, 3.14159])
def test_the_clip_is_reached_and_rounding_up_exceeds_it(clip: float) -> None:
    z, bins = np.full((1, 1, D), 0.5), np.zeros((1, 1), dtype=np.int64)
    limit = Fraction(clip) ** 2 / Fraction(pull_unit(clip)) ** 2
    assert 2**58 <= limit < 2**60
    narrow = WIDTHS / 100  # the pull is far longer than any clip

    def pulled() -> int:
        rows = Rows(z, bins, np.ones((1, 1), dtype=bool), T, "cpu", "float64")
        return squared_length(rows.whole_sum(rows.tensor(PARTICLES), rows.tensor(narrow), clip))

    assert 1 - 1e-8 < pulled() / limit <= 1
    away = patch.object(torch.Tensor, "trunc_", lambda self: self.sign() * self.abs().ceil())
    bare = patch.object(Rows, "_own_clip", lambda self, clip, particles: clip)
    with away, bare:
        assert pulled() > limit


def test_a_sum_of_the_most_persons_is_exact() -> None:
    """Blocks' sums are below 2⁵³, and all persons' below 2⁶³."""
    largest = 2**PULL_BITS
    assert largest * drift._EXACT < 2**53
    assert largest * 10**9 < 2**63


# -- what it costs ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["gaussian", "k-means", "public", "visits"])
def test_everybody_is_in_each_round_whatever_the_rate(way: str) -> None:
    """A plan in whole numbers has the noise of the plan of floats without sampling."""
    rows = 3 if way == "visits" else 1
    asked = (schema(rows), sum(SIZES), PrivacyRequest(2.0, 1e-5))
    whole = plan_whole(WAYS[way], *asked)
    every = plan(replace(WAYS[way], rate=1.0), *asked)
    assert whole.dynamics.rate == 1.0
    assert whole.dynamics.sigma == every.dynamics.sigma
    assert whole.epsilon == pytest.approx(every.epsilon, rel=1e-9)
    assert whole.epsilon <= 2.0
    assert all(isinstance(event, DiscreteGaussian) for event in whole.events)
    louder = whole.with_noise(2.0)
    for one, two in zip(whole.measurements, louder.measurements, strict=True):
        assert two.sd == pytest.approx(2 * one.sd)
        assert (two.sensitivity, two.size) == (one.sensitivity, one.size)


def test_what_is_not_formal_is_refused() -> None:
    asked = Asked(WAYS["gaussian"], schema(1), PrivacyRequest(2.0, 1e-5, "empirical"))
    with pytest.raises(InvalidInput, match="guarantee"):
        plan_jointly(MECHANISM, asked, Consortium(NAMES, SIZES))


def test_a_study_that_is_not_sound_is_refused_and_not_looked_at() -> None:
    asked = Asked(replace(WAYS["gaussian"], time="week"), schema(1), PrivacyRequest(2.0, 1e-5))
    with pytest.raises(InvalidInput, match="not a column"):
        plan_jointly(MECHANISM, asked, Consortium(NAMES, SIZES))


def test_a_release_of_many_sites_is_whole() -> None:
    """All rounds and the release, as a coordinator has them."""
    given = make("gaussian", 0, 1)
    encoding, sites = make_sites(given)
    parts = list(release_jointly(MECHANISM, given, encoding, sites, SeededNoise(9)))
    for part in parts:
        for values in part.columns.values():
            assert np.isfinite(np.asarray(values, dtype=float)).all()


TWO: Any = {
    "label": "two",
    "noise_multiplier": 1.0,
    "sensitivity": 1.0,
    "squared": Fraction(1),
    "unit": 1.0,
    "size": 2,
}
ONE_SUM: Any = (WholeSum(**TWO), [Addend([0, 0], Fraction(2**80))])


def test_what_is_drawn_between_sums_is_the_same_everywhere() -> None:
    """By the sums before, in whole numbers, and by no source of a site's own; of a site's own
    release by that source."""
    sums = [[3, -(2**70)], [5]]
    first, second = (_Rounds(sums, SeededNoise(seed)) for seed in (1, 2))
    drawn = [each.agree().normal(4).tolist() for each in (first, second)]
    assert drawn[0] == drawn[1]
    assert first.known
    first.exchange(*ONE_SUM)
    assert first.agree().normal(4).tolist() != drawn[0]
    for other in ([[3, -(2**70) + 1], [5]], [[3], [-(2**70), 5]]):
        later = _Rounds(other, SeededNoise(1))
        later.exchange(WholeSum(**TWO), [Addend([0] * len(other[0]), Fraction(2**80))])
        assert later.agree().normal(4).tolist() != first.agree().normal(4).tolist()
    own = SeededNoise(3)
    assert agree(own) is own
    assert not is_known(own)
