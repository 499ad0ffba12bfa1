"""What a study may ask, which regressions that comes to, what is charged, and what is refused."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from tests.support import made
from tests.unit.shared.mechanisms.scoring.test_answers import EACH, FEWER, PRODUCT, SCHEMA

from penstock.base.errors import Hopeless, InvalidInput
from penstock.mechanisms import MECHANISMS, Scoring
from penstock.mechanisms.protocol import Asked, Prospect
from penstock.mechanisms.scoring.blocks import find_places
from penstock.mechanisms.scoring.foresight import planned_width
from penstock.mechanisms.scoring.plan import (
    SHARES,
    SHARES_LARGE,
    ScoringPlan,
    plan,
    share_budget,
)
from penstock.mechanisms.scoring.regressions import list_regressions
from penstock.mechanisms.scoring.settings import narrow_schema
from penstock.mechanisms.widths import MOST_WIDE
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.study.planning import PlannedColumn, Planning


def planned(asked: tuple[Estimand, ...], persons: int = 1000, of: float = 1.0) -> ScoringPlan:
    return plan(Scoring(), SCHEMA, persons, PrivacyRequest(of, 1e-5), asked)


def test_the_budget_is_kept_and_divided_whole() -> None:
    assert SHARES.margins + SHARES.moments + sum(SHARES.rounds) == pytest.approx(1.0)
    found = planned(EACH)
    assert found.epsilon <= 1.0
    assert found.epsilon == pytest.approx(1.0, rel=0.02)
    assert epsilon(found.events, 1e-5) == found.epsilon
    # Four outcomes, each a release of its own in every round.
    assert [each.count for each in found.sums.rounds] == [4] * 6


def test_many_persons_are_asked_for_more_of_what_is_wanted() -> None:
    """By persons for each unit of noise, which are public; the charge stays what was asked for."""
    assert share_budget(3000, 1.5) == SHARES
    assert share_budget(25_000, 1.5) == SHARES_LARGE
    for persons in (1, 9000, 12_000, 20_000, 10**9):
        found = share_budget(persons, 1.5)
        assert found.margins + found.moments + sum(found.rounds) == pytest.approx(1.0)
        assert SHARES.rounds[-1] <= found.rounds[-1] <= SHARES_LARGE.rounds[-1]
    few, many = planned(EACH, 1000), planned(EACH, 10**6)
    assert few.scale == pytest.approx(many.scale, rel=1e-3)
    assert max(few.epsilon, many.epsilon) <= 1.0
    assert many.epsilon == pytest.approx(1.0, rel=0.02)
    [one, *_], [other, *_] = few.outcomes, many.outcomes
    assert many.rounds_of(other)[-1].sd < 0.85 * few.rounds_of(one)[-1].sd


def test_columns_that_nobody_names_cost_nothing() -> None:
    assert narrow_schema(SCHEMA, (FEWER,)).names == ("x", "size")
    assert narrow_schema(SCHEMA, EACH[:1]).names == ("time", "died", "x", "z", "group")
    assert planned((FEWER,)).sums.margins.sensitivity < planned(EACH).sums.margins.sensitivity


def test_estimands_of_one_regression_share_it() -> None:
    found = list_regressions(SCHEMA, (*EACH, PRODUCT, FEWER))
    assert [r.names for r in found] == [
        ("z", "group=b", "group=c", "x"),
        ("z", "x"),
        ("x", "z"),
        ("z", "group=b", "group=c", "x"),
        ("group=b", "group=c", "x", "z", "x:z"),
        ("x",),
    ]
    assert found[0].asked == {"hazard": 3, "level": 2}
    places = find_places(SCHEMA, (*EACH, PRODUCT, FEWER))
    assert [places[name] for name in ("hazard", "level", "odds", "product", "fewer")] == [
        3,
        2,
        5,
        16,
        17,
    ]


def test_a_product_is_one_whichever_way_it_is_written() -> None:
    turned = Estimand("turned", "ols", "size", "z:x", adjust=("group",))
    [found] = list_regressions(SCHEMA, (PRODUCT, turned))
    assert found.asked == {"product": 4, "turned": 4}


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ((), "the study asks none"),
        (
            (
                Estimand("r", "poisson", "count", "x", exposure="size"),
                Estimand("c", "poisson", "count", "z"),
            ),
            "differ in it, and one model is made of them",
        ),
        (
            (Estimand("l", "multinomial", "group", "x", outcome_level="b"),),
            "coefficients of every level",
        ),
        ((Estimand("e", "logistic", "died", "x"),), "is the event of a duration"),
        (
            (Estimand("a", "ols", "x", "z"), Estimand("b", "ols", "z", "x")),
            "asked of in a circle",
        ),
        (
            (Estimand("a", "ols", "count", "x"), Estimand("b", "poisson", "count", "x")),
            "is the second one of its outcome",
        ),
        ((Estimand("e", "ols", "size", "x", per=1e6),), "may be too large a number"),
    ],
)
def test_what_cannot_be_answered_is_refused(asked: tuple[Estimand, ...], text: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(text)):
        planned(asked)


def test_noise_is_refused_and_what_would_do_is_enough() -> None:
    privacy, asked = PrivacyRequest(0.05, 1e-5), EACH[:1]
    question = Asked(Scoring(), SCHEMA, privacy, asked)
    of = MECHANISMS[Scoring.name]
    with pytest.raises(Hopeless) as refused:
        of.require_worth(question, of.plan(question, 60))
    text = str(refused.value)
    more = float(re.search(r"an ε of at least ([\d.]+)", text)[1])  # type: ignore[index]
    many = int(re.search(r"at least (\d+) persons", text)[1])  # type: ignore[index]
    assert planned_width(planned(asked, 60, more)) <= MOST_WIDE
    assert planned_width(planned(asked, 60, more / 2)) > MOST_WIDE
    of.require_worth(question, of.plan(question, many))


def test_more_persons_and_a_larger_budget_narrow_what_is_planned() -> None:
    widths = [planned_width(planned(EACH, n, e)) for n, e in ((500, 1), (5000, 1), (5000, 3))]
    assert widths == sorted(widths, reverse=True)
    assert 1 < widths[-1] < widths[0] < math.inf


def test_twelve_columns_at_eight_hundred_persons_and_little_budget_are_refused() -> None:
    columns = tuple(Column(f"v{i}", "continuous", lower=-4, upper=4) for i in range(12))
    schema = Schema((*columns, *(c for c in SCHEMA.columns if c.name in ("time", "died"))))
    names = [c.name for c in columns]
    asked = tuple(
        Estimand(name, "cox", "time", name, adjust=tuple(n for n in names if n != name))
        for name in names
    )
    question = Asked(Scoring(), schema, PrivacyRequest(1.0, 1e-5), asked)
    of = MECHANISMS[Scoring.name]
    with pytest.raises(Hopeless, match="800 persons at ε = 1; at most 5 times"):
        of.require_worth(question, of.plan(question, 800))
    of.require_worth(question, of.plan(question, 2000))
    few = Asked(Scoring(), schema, PrivacyRequest(1.0, 1e-5), asked[:1])
    of.require_worth(few, of.plan(few, 800))


@pytest.mark.parametrize(
    "prospect",
    [
        Prospect(shares=(("time", 0.02),)),
        Prospect(shares=(("group", 0.01),)),
        Prospect(filled=0.3),
    ],
)
def test_rare_events_rare_levels_and_an_empty_frame_widen_what_is_planned(
    prospect: Prospect,
) -> None:
    found = planned(EACH, 1500, 1)
    assert planned_width(found, prospect) > 1.3 * planned_width(found)
    assert planned_width(found, Prospect()) == planned_width(found)


def test_what_a_study_says_of_events_decides_whether_it_is_refused() -> None:
    """By planning values that stand in the study; nothing that is charged depends on them."""
    given = {"schema": SCHEMA, "estimands": EACH[:1], "privacy": PrivacyRequest(1.0, 1e-5)}
    asked = made.study(Scoring(), **given)
    said = replace(asked, planning=Planning((PlannedColumn("time", events=0.002),)))
    of = MECHANISMS[Scoring.name]
    plans = [of.plan(study.asked, 900) for study in (asked, said)]
    assert plans[0] == plans[1]
    of.require_worth(asked.asked, plans[0])
    with pytest.raises(Hopeless):
        of.require_worth(said.asked, plans[1])
