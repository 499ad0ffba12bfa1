"""Laws of the round that asks sites' own scores: nobody moves it further than is charged, no row of
one site is in another's block, and what is told of sites is what their rows say.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.concluded import NAMES, SCHEMA, draw_rows
from tests.support.federated import ask_sites, encode_site, gather_sums
from tests.support.traces import trace_of

from penstock.mechanisms import MECHANISMS, Scoring
from penstock.mechanisms.joint.consortium import SITE, Consortium
from penstock.mechanisms.joint.plan import JointPlan, plan_jointly
from penstock.mechanisms.joint.rounds import contribute
from penstock.mechanisms.protocol import Asked
from penstock.mechanisms.released import ADDED, ESTIMATE, SITES, TERM, VARIANCE
from penstock.mechanisms.scoring.divisible import list_apart
from penstock.mechanisms.scoring.plan import SHARE_SITES, ScoringPlan
from penstock.mechanisms.structured.score_clipping import UNIT, sum_levels
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.events import DistributedGaussian
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema.encoding import Encoding

SIZES = (120, 200, 90, 150)
ASKED = (
    Estimand("hazard", "cox", "t", "a", adjust=("g",)),
    Estimand("odds", "logistic", "y", "a"),
)
MECHANISM = MECHANISMS.of(Scoring())


def make(
    *, asked: Any = ASKED, sizes: Any = SIZES, eps: float = 2.0, heterogeneity: bool = True
) -> JointPlan:
    group = Consortium(NAMES, sizes, heterogeneity=heterogeneity)
    return plan_jointly(
        MECHANISM, Asked(Scoring(), SCHEMA, PrivacyRequest(eps, 1e-5), asked), group
    )


def carried(plan: JointPlan) -> ScoringPlan:
    assert isinstance(plan.carried, ScoringPlan)
    return plan.carried


def make_sites(plan: JointPlan, sizes: Any = SIZES) -> tuple[Encoding, list[tuple[Any, Any]]]:
    rng, encoding = np.random.default_rng(4), Encoding(plan.asked.schema)
    rows = [draw_rows(count, rng) for count in sizes]
    return encoding, [encode_site(plan, encoding, i, each) for i, each in enumerate(rows)]


def put_together(sites: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """All rows in one place, of which the sums are the same."""
    rows, present = zip(*sites, strict=True)
    return [(np.concatenate(rows), np.concatenate(present))]


@pytest.mark.parametrize("per_person", [1, 3])
def test_a_person_moves_one_block_by_one_vector(per_person: int) -> None:
    """In whole numbers, whatever a person's rows say: of numbers, of sites, and of presence."""
    rng, levels, columns = np.random.default_rng(1), 5, 3
    scores = rng.standard_normal((20 * per_person, columns))
    level, there = rng.integers(0, levels, len(scores)), rng.random(len(scores)) < 0.9
    mine = slice(7 * per_person, 8 * per_person)
    most = math.floor(1 / UNIT**2)
    reached = 0
    for worst in (1e300, np.inf, -np.inf, np.nan, 1.0, 1 - 1e-16, 0.3):
        moved = []
        for present in (True, False):
            own, seen, spread = scores.copy(), there.copy(), level.copy()
            own[mine], seen[mine] = worst, present
            spread[mine] = np.arange(per_person)
            with np.errstate(all="ignore"):  # no model's score is infinite
                total = sum_levels(own, seen, per_person, spread, levels)
            moved.append(total.reshape(levels, -1))
        off = moved[0] - moved[1]
        assert int((off**2).sum()) <= most
        assert (off != 0).any(axis=1).sum() <= 1
        reached = max(reached, int((off**2).sum()))
    assert reached > 0.99 * most


@pytest.mark.thorough
def test_a_site_adds_to_its_own_block_alone() -> None:
    """And no person of it moves that further than is charged, with the sums before as they were."""
    plan = make()
    encoding, sites = make_sites(plan)
    sums = gather_sums(MECHANISM, plan, encoding, put_together(sites), SeededNoise(3))
    asked = carried(plan).apart
    assert asked is not None
    assert (asked.sensitivity, asked.count) == (1.0, 2)
    for back in (1, 2):
        before = sums[: plan.rounds - back]
        parts = ask_sites(MECHANISM, plan, encoding, sites, before, SeededNoise(1))
        for number, part in enumerate(parts):
            assert part.label == "sites' scores"
            [addend] = part.addends
            blocks = np.array(addend.whole, dtype=object).reshape(len(NAMES), -1)
            assert [bool(any(block)) for block in blocks] == [i == number for i in range(4)]
        rows, present = sites[1]
        width = math.sqrt(float(asked.variance / parts[1].addends[0].variance))
        for value in (-np.inf, 1e300, 5.0):
            found = []
            for there in (True, False):
                x, seen = rows.copy(), present.copy()
                x[3], seen[3] = value, there
                # The site of a row is the gate's to say.
                x[3, :, -len(NAMES) :] = rows[3, :, -len(NAMES) :]
                told = contribute(MECHANISM, plan, encoding, x, seen, before, SeededNoise(1))
                found.append(np.array(told.addends[0].whole, dtype=float))
            assert np.linalg.norm(found[0] - found[1]) * width <= asked.sensitivity * (1 + 1e-9)


def test_the_work_of_the_round_does_not_depend_on_rows() -> None:
    plan = make(asked=ASKED[1:])
    encoding, sites = make_sites(plan)
    sums = gather_sums(MECHANISM, plan, encoding, put_together(sites), SeededNoise(13))
    rows, present = sites[2]

    def work(x: Any, there: Any) -> None:
        contribute(MECHANISM, plan, encoding, x, there, sums[:-1], SeededNoise(14))

    work(rows, present)  # what is cached is cached now
    expected = trace_of(lambda: work(rows, present))
    assert expected
    for x, there in (
        (np.zeros_like(rows), np.zeros_like(present)),
        (np.full_like(rows, np.inf), present),
        (np.full_like(rows, np.nan), np.ones_like(present)),
    ):
        assert trace_of(lambda x=x, there=there: work(x, there)) == expected  # type: ignore[misc]


def test_the_charge_is_a_tenth_and_all_of_it_is_what_was_asked_for() -> None:
    whole = make()
    parts = {event.label: event for event in whole.events}
    assert all(isinstance(event, DistributedGaussian) for event in whole.events)
    price = {name: e.count / e.noise_multiplier**2 for name, e in parts.items()}  # type: ignore[attr-defined]
    assert price["sites' scores"] / sum(price.values()) == pytest.approx(SHARE_SITES, rel=1e-9)
    assert whole.epsilon == epsilon(whole.events, 1e-5) <= 2.0
    without = make(heterogeneity=False)
    assert carried(without).apart is None
    assert without.rounds == whole.rounds - 2
    # A site's own release has none of it, and is what it was.
    asked = Asked(Scoring(), SCHEMA, PrivacyRequest(2.0, 1e-5), ASKED)
    assert MECHANISM.plan(asked, 500).apart is None
    assert [part.name for part in MECHANISM.shape(asked, 500).parts] == ["answer"]


def test_subgroups_and_second_regressions_are_not_told_apart() -> None:
    """Rows are asked for an outcome's coefficients, and not for one regression's."""
    some = (
        replace(ASKED[1], where="a > 0"),
        ASKED[0],
        replace(ASKED[0], name="plain", adjust=()),
        Estimand("level", "mean", "a"),
    )
    plan = make(asked=some)
    assert list_apart(plan.asked.schema, plan.asked.estimands, SITE) == []
    assert carried(plan).apart is None
    assert SITES not in MECHANISM.shape(plan.asked, 500).names
    shape = MECHANISM.shape(make().asked, 500)
    assert shape.part(SITES).rows == 2 * len(NAMES)


@pytest.mark.parametrize("which", [0, 1], ids=["cox", "logistic"])
def test_at_a_large_epsilon_sites_have_their_own_effects(which: int) -> None:
    """As a fit of each site's raw rows has them, with its standard error."""
    sizes, slopes = (2500, 1800, 1500, 2100), (0.4, 0.6, 0.8, 1.0)
    plan = make(asked=ASKED[which : which + 1], sizes=sizes, eps=400.0)
    rng, encoding = np.random.default_rng(8), Encoding(plan.asked.schema)
    raw = []
    for size, slope in zip(sizes, slopes, strict=True):
        rows = dict(draw_rows(size, rng))
        rows["y"] = (rng.random(size) < 1 / (1 + np.exp(-slope * rows["a"]))).astype(float)
        time = rng.exponential(6 * np.exp(-slope * rows["a"]))
        rows["t"], rows["d"] = np.minimum(time, 10).round(1), (time < 10).astype(float)
        raw.append(rows)
    sites = [encode_site(plan, encoding, i, each) for i, each in enumerate(raw)]
    [together] = put_together(sites)
    _, part = MECHANISM.run(plan.carried, encoding, *together, SeededNoise(2))
    assert part.name == SITES
    found = {name: np.asarray(values) for name, values in part.columns.items()}
    assert found[TERM].tolist() == [1, 2, 3, 4]
    assert (found[ADDED] < found[VARIANCE]).all()
    for at, rows in enumerate(raw):
        real = estimate(rows, SCHEMA, ASKED[which])
        sampled = found[VARIANCE][at] - found[ADDED][at]
        assert sampled == pytest.approx(real.variance, rel=0.35)
        # What one step misses of itself: of hazards most.
        missed = (0.3, 0.1)[which] * abs(slopes[at] - 0.7)
        off = abs(found[ESTIMATE][at] - real.estimate)
        assert off < missed + 0.7 * math.sqrt(real.variance)
    # And it is no mean of all: most of the way between sites is told.
    assert np.polyfit(slopes, found[ESTIMATE], 1)[0] > 0.8
