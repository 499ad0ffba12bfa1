"""Laws of a study of both: its two halves cost no more than it may, and each is known of the other.

Exact: plans are made of public numbers, and composed by both accountants.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.base.errors import InvalidInput
from penstock.mechanisms import Maf, Scoring, SlicedWasserstein, Structured
from penstock.mechanisms.joint.consortium import LOCAL, SHARED
from penstock.privacy.accounting.accountant import epsilon, epsilon_pld
from penstock.privacy.events import Gaussian
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.study.charges import plan_other, plan_study
from penstock.study.halves import find_other, list_halves, split_epsilon
from penstock.study.scope import BOTH, LEAST_WIRE, Scope
from penstock.study.study import Study

DELTA = 1e-5
NAMES = ("north", "east", "south", "west")
SIZES = (300, 450, 250, 600)
TABLE = Schema(
    (
        Column("y", "binary"),
        Column("a", "continuous", lower=-4, upper=4),
        Column("g", "categorical", levels=("u", "v", "w"), nullable=True),
    )
)
ASKED = (Estimand("odds", "logistic", "y", "a"),)


def make(mechanism: Any, asked: float = 2.0, share: float = 0.5, noise: str = SHARED) -> Study:
    dropouts, colluders = (1, 1) if noise == SHARED else (1, 0)
    scope = Scope(
        BOTH,
        dropouts,
        colluders,
        tuple(zip(NAMES, SIZES, strict=True)),
        tuple((name, f"{i + 1:064x}") for i, name in enumerate(NAMES)),
        noise,
        share=share,
    )
    return Study(
        name="trial",
        title="A trial",
        federation="main",
        sites=NAMES,
        schema=TABLE,
        estimands=ASKED,
        privacy=PrivacyRequest(asked, DELTA),
        mechanism=mechanism,
        quorum=2,
        deadline_hours=1.0,
        not_before="2020-01-01T00:00:00Z",
        expires="2027-01-01T00:00:00Z",
        wire=LEAST_WIRE,
        aggregation=scope,
    )


@pytest.mark.parametrize("mechanism", [Scoring(), Structured(), SlicedWasserstein()], ids=str)
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("noise", [SHARED, LOCAL])
def test_both_halves_cost_no_more_than_the_study_and_leave_little(
    mechanism: Any, share: float, noise: str
) -> None:
    """By either accountant; and by the one that gates nearly all of it, for it is shared in ρ."""
    own, joint = list_halves(make(mechanism, 1.0, share, noise))
    planned = plan_study(own, SIZES[0])
    other = plan_other(own, planned, SIZES[0])
    assert other.events == plan_study(joint, 1).events
    together = (*planned.events, *other.events)
    assert 0.998 < epsilon(together, DELTA) <= 1.0
    assert epsilon_pld(together, DELTA) <= 1.0
    # Each costs what its own text says, and the sum of the two is more than the whole's.
    for half, found in ((own, planned), (joint, other)):
        assert epsilon(found.events, DELTA) <= half.privacy.epsilon
    assert own.privacy.epsilon + joint.privacy.epsilon > 1.0


def test_halves_that_cost_more_together_are_refused() -> None:
    """Whoever signs halves of their own is not believed: their events are composed."""
    own, _ = list_halves(make(Scoring()))
    scope = replace(own.aggregation, other=1.9)
    greedy = replace(own, aggregation=scope)
    planned = plan_study(greedy, SIZES[0])
    with pytest.raises(InvalidInput, match="two halves cost together"):
        plan_other(greedy, planned, SIZES[0])


def test_each_half_names_the_other_byte_by_byte() -> None:
    own, joint = list_halves(make(Scoring()))
    assert find_other(own) == joint
    assert find_other(joint) == own
    for half in (own, joint):
        assert Study.from_dict(half.to_dict()) == half
    assert (own.consortium, joint.aggregation.joint) == (None, True)
    assert own.aggregation.halved
    assert list_halves(own) == (own,)
    with pytest.raises(InvalidInput, match="Only a half has another"):
        find_other(make(Scoring()))


@settings(deadline=None, max_examples=100)
@given(
    asked=st.floats(0.05, 20.0),
    exponent=st.floats(4.0, 9.0),
    share=st.floats(0.05, 0.95),
)
@example(asked=0.125, exponent=4.0, share=0.5)  # where the accountant's orders are coarse
def test_shares_of_a_gaussian_budget_compose_to_no_more_than_it(
    asked: float, exponent: float, share: float
) -> None:
    """Of two Gaussians, each of which costs what its half may."""
    delta = 10.0**-exponent
    each, joint = split_epsilon(asked, delta, share)
    assert 0 < each < asked
    assert 0 < joint < asked
    events = [Gaussian(_find_multiplier(part, delta)) for part in (each, joint)]
    assert epsilon(events, delta) <= asked * (1 + 1e-6)
    assert epsilon_pld(events, delta) <= asked * (1 + 1e-6)


def _find_multiplier(asked: float, delta: float) -> float:
    """The least noise of a Gaussian that costs this, by the accountant that gates."""
    low, high = 1e-3, 1e6
    for _ in range(40):
        middle = (low * high) ** 0.5
        fits = epsilon([Gaussian(middle)], delta) <= asked
        low, high = (low, middle) if fits else (middle, high)
    return high


@pytest.mark.parametrize("share", [0.0, 1.0, float("nan"), -0.5, "half"])
def test_a_share_that_is_none_is_refused(share: Any) -> None:
    with pytest.raises(InvalidInput, match="share"):
        make(Scoring(), share=share)


def test_a_budget_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(InvalidInput, match="cannot be shared"):
        split_epsilon(float("nan"), DELTA, 0.5)
    with pytest.raises(InvalidInput, match="a half with nothing"):
        split_epsilon(0.01, DELTA, 1e-14)


def test_a_study_of_both_asks_for_what_is_made_of_sums() -> None:
    own, _ = list_halves(make(Maf()))
    with pytest.raises(InvalidInput, match="not made of sums"):
        plan_other(own, plan_study(own, 300), 300)
