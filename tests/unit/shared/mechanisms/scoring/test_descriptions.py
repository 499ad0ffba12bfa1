"""Without noise what no regression answers is the rows' own; what shares a release, and its price.

The oracle is what tables are answered by (:func:`penstock.questions.estimation.estimate`), held
itself against numpy and lifelines in tests/unit/shared/questions/test_rows.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.unit.shared.mechanisms.scoring.test_answers import EACH, SCHEMA, rows

from penstock.base.errors import Hopeless, InvalidInput
from penstock.mechanisms import MECHANISMS, Scoring
from penstock.mechanisms.protocol import Asked, Prospect
from penstock.mechanisms.scoring.blocks import find_places, list_blocks
from penstock.mechanisms.scoring.descriptions import Way, list_descriptions
from penstock.mechanisms.scoring.foresight import planned_width
from penstock.mechanisms.scoring.plan import ScoringPlan, plan, plan_at
from penstock.mechanisms.scoring.run import answer
from penstock.mechanisms.scoring.ways import make_tally
from penstock.mechanisms.tables.margins import expect_positive
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Coded, Column, Schema

ASKED = (
    Estimand("age", "mean", "z"),
    Estimand("inside", "mean", "x", where="group == 'a'"),
    Estimand("flagged", "mean", "flag"),
    Estimand("level", "share", "group", outcome_level="c"),
    Estimand("first", "share", "group", outcome_level="a"),
    Estimand("median", "quantile", "x", probability=0.5),
    Estimand("upper", "quantile", "x", probability=0.9),
    Estimand("above", "share", "x", threshold=1, direction="above"),
    Estimand("below", "share", "x", threshold=-1, direction="below"),
    Estimand("half", "survival", "time", at=2.5),
    Estimand("end", "survival", "time", at=5),
    Estimand("they", "survival", "time", at=3, where="x > 0"),
)
SILENT = 1e-3


def told(planned: ScoringPlan, table: Coded, seed: int = 0) -> dict[str, tuple[float, ...]]:
    """Of each estimand its estimate, and the variances of noise and of sampling."""
    n = len(table["x"])
    found = answer(planned, table, np.ones(n, dtype=np.bool_), SeededNoise(seed))
    blocks = list_blocks(SCHEMA, ASKED)
    assert [len(each.coefficients) for each in found] == [len(block.names) for block in blocks]
    values = np.concatenate([each.coefficients for each in found])
    noise, sampling = (
        np.concatenate([np.diag(getattr(each, of)) for each in found])
        for of in ("noise", "sampling")
    )
    places = find_places(SCHEMA, ASKED)
    return {e.name: (values[at], noise[at], sampling[at]) for e in ASKED for at in [places[e.name]]}


def test_without_noise_they_are_the_rows_own() -> None:
    table = rows(3000)
    found = told(plan_at(Scoring(), SCHEMA, 3000, ASKED, SILENT), table)
    for asked in ASKED:
        value, noise, sampling = found[asked.name]
        own = estimate(table, SCHEMA, asked)
        se = math.sqrt(own.variance)
        # Survival is known at few times; a quantile is a value, and no mean of two.
        off = 0.1 if asked.at else 0.3 if asked.probability else 0.03
        assert abs(value - own.estimate) < off * se, asked.name
        assert math.sqrt(noise) < 0.1 * se, asked.name
        # On a grid of hundredths a quantile's larger side is taken.
        assert 0.95 * se < math.sqrt(sampling) < 1.35 * se, asked.name


def test_estimands_that_one_histogram_answers_share_it() -> None:
    found = list_descriptions(SCHEMA, ASKED)
    assert [(d.way, [e.name for e in d.estimands]) for d in found] == [
        (Way.MEAN, ["age"]),
        (Way.MEAN, ["inside"]),
        (Way.LEVELS, ["flagged"]),
        (Way.LEVELS, ["level", "first"]),
        (Way.DISTRIBUTION, ["median", "upper", "above", "below"]),
        (Way.SURVIVAL, ["half", "end"]),
        (Way.SURVIVAL, ["they"]),
    ]
    assert found[4].names == ("x: quantile 0.5", "x: quantile 0.9", "x > 1", "x < -1")
    assert found[6].formula == "time ~ 1 where x > 0"
    # A level that nobody asks for is counted with all others.
    assert [make_tally(each).size for each in found[2:4]] == [2, 3]


COUNTED = (
    Estimand("level", "count", "group", outcome_level="c"),
    Estimand("third", "share", "group", outcome_level="c"),
    Estimand("beyond", "count", "x", threshold=1, direction="above"),
    Estimand("under", "count", "x", threshold=-1, direction="below"),
    Estimand("median", "quantile", "x", probability=0.5),
    Estimand("died", "count", "time"),
    Estimand("soon", "count", "time", until=2),
    Estimand("among", "count", "time", until=2, where="x > 0"),
    Estimand("rate", "rate", "time", per=100),
    Estimand("daily", "rate", "time", per=1),
    Estimand("early", "rate", "time", per=100, until=2),
    Estimand("cell", "table", "group", term="flag", level="1", outcome_level="b"),
    Estimand("turned", "table", "flag", term="group", level="a", outcome_level="0"),
    Estimand("cube", "table", "group", term="flag[0]:died[1]", outcome_level="c"),
)


def told_of(
    planned: ScoringPlan, table: Coded, asked: tuple[Estimand, ...], seed: int = 0
) -> dict[str, tuple[float, float, float]]:
    """Of each estimand its estimate, and the variances of noise and of sampling."""
    present = np.ones(len(table["x"]), dtype=np.bool_)
    found = answer(planned, table, present, SeededNoise(seed))
    values = np.concatenate([each.coefficients for each in found])
    noise, sampling = (
        np.concatenate([np.diag(getattr(each, of)) for each in found])
        for of in ("noise", "sampling")
    )
    places = find_places(SCHEMA, asked)
    return {name: (values[at], noise[at], sampling[at]) for name, at in places.items()}


def test_without_noise_counts_rates_and_cells_are_the_rows_own() -> None:
    table = rows(3000)
    found = told_of(plan_at(Scoring(), SCHEMA, 3000, COUNTED, SILENT), table, COUNTED)
    for asked in COUNTED:
        value, noise, sampling = found[asked.name]
        own = estimate(table, SCHEMA, asked)
        if asked.regression.total:
            assert value == pytest.approx(own.estimate, abs=6 * math.sqrt(noise)), asked.name
            assert math.sqrt(noise) < 0.1
            assert sampling == 0
        elif asked.probability is None:
            assert value == pytest.approx(own.estimate, abs=3e-3), asked.name
            assert sampling == pytest.approx(own.variance, rel=0.02), asked.name


def test_what_one_release_tells_of_counts_rates_and_tables() -> None:
    found = list_descriptions(SCHEMA, COUNTED)
    assert [(d.way, [e.name for e in d.estimands]) for d in found] == [
        (Way.LEVELS, ["level", "third"]),
        (Way.DISTRIBUTION, ["beyond", "under", "median"]),
        (Way.EVENTS, ["died", "soon"]),
        (Way.EVENTS, ["among"]),
        (Way.RATE, ["rate", "daily"]),
        (Way.RATE, ["early"]),
        (Way.TABLE, ["cell", "turned"]),
        (Way.TABLE, ["cube"]),
    ]
    assert found[0].names == ("group=c: count", "group=c")
    assert found[2].names == ("time: count", "time until 2: count")
    assert found[4].names == ("time: rate per 100", "time: rate per 1")
    assert found[6].names[3] == "group=b, flag=1: count"
    assert found[6].names[6 + 3] == "group=b, flag=1: share"
    assert found[6].asked == {"cell": 9, "turned": 6}
    assert found[7].formula == "group:flag:died ~ 1"


@pytest.mark.parametrize("n", [30, 300])
@pytest.mark.parametrize("seed", range(6))
def test_what_is_told_of_a_sparse_table_is_a_covariance(n: int, seed: int) -> None:
    """Cells that are kept away from 0 have more than all rows together."""
    planned = plan(Scoring(), SCHEMA, n, PrivacyRequest(1.0, 1e-5), COUNTED[-3:])
    present = np.ones(n, dtype=np.bool_)
    for each in answer(planned, rows(n, seed), present, SeededNoise(seed)):
        for matrix in (each.noise, each.noise + each.sampling):
            size = np.sqrt(np.diag(matrix))
            assert np.linalg.eigvalsh(matrix / np.outer(size, size)).min() > -1e-9


def test_a_rate_of_many_rows_of_noise_is_drawn_to_that_of_a_constant_hazard() -> None:
    """What events and times have to do with each other is hidden: then variance is 1/events."""
    table, asked = rows(60), (COUNTED[8],)
    [(_, noise, sampling)] = told_of(
        plan_at(Scoring(), SCHEMA, 60, asked, 12.0), table, asked, 3
    ).values()
    assert noise > sampling
    least = 2 * 12.0 * math.sqrt(1.375)  # of events, as many as noise hides
    assert 0.5 / least < sampling < 2 / least


def test_counts_that_no_answer_would_hold_are_refused() -> None:
    privacy = PrivacyRequest(1.0, 1e-7)
    for asked in (COUNTED[0], COUNTED[11]):
        with pytest.raises(InvalidInput, match="count too many rows"):
            plan(Scoring(), SCHEMA, 500_000, privacy, (asked,))
    plan(Scoring(), SCHEMA, 500_000, privacy, (COUNTED[1],))


def test_each_release_is_a_charge_of_its_own_and_together_they_are_the_budget() -> None:
    privacy = PrivacyRequest(1.0, 1e-5)
    alone = plan(Scoring(), SCHEMA, 1000, privacy, ASKED)
    assert alone.sums is None
    assert [event.label for event in alone.events] == [d.way.value for d in alone.descriptions]
    assert 0.98 < alone.epsilon <= 1
    spent = sum(1 / each.noise_multiplier**2 for each in alone.tallies)
    assert spent == pytest.approx(1 / alone.scale**2, rel=1e-9)
    beside = plan(Scoring(), SCHEMA, 1000, privacy, (*EACH, *ASKED))
    assert beside.sums is not None
    assert 0.98 < beside.epsilon <= 1
    only = plan(Scoring(), SCHEMA, 1000, privacy, EACH)
    assert only.sums is not None
    assert beside.sums.margins.noise_multiplier > only.sums.margins.noise_multiplier
    # What regressions ask is not counted for the others, nor the other way round.
    assert beside.sums.covariates == only.sums.covariates


def test_rows_of_a_person_are_charged_together() -> None:
    often = replace(SCHEMA, person="who", max_rows_per_person=3)
    asked = (*ASKED, *COUNTED)
    once, thrice = (plan_at(Scoring(), s, 100, asked, 2.0).tallies for s in (SCHEMA, often))
    for one, other in zip(once, thrice, strict=True):
        assert other.sensitivity == pytest.approx(3 * one.sensitivity)


def test_of_nobody_there_is_an_answer_too() -> None:
    n, table = 40, rows(40)
    planned = plan_at(Scoring(), SCHEMA, n, ASKED, 2.0)
    for seed in range(5):
        for each in answer(planned, table, np.zeros(n, dtype=np.bool_), SeededNoise(seed)):
            assert np.isfinite(each.coefficients).all()
            for matrix in (each.noise, each.sampling):
                assert (np.diag(matrix) > 0).all()
                size = np.sqrt(np.diag(matrix))
                assert np.linalg.eigvalsh(matrix / np.outer(size, size)).min() > -1e-9


HEAP = Schema((Column("gain", "integer", lower=0, upper=90000),))


@pytest.mark.parametrize("probability", [0.5, 0.9])
def test_a_quantile_is_a_value_that_many_rows_have(probability: float) -> None:
    """Most gains are 0: the bin at a bound is that bound's own."""
    rng = np.random.default_rng(0)
    gain = np.where(rng.random(2000) < 0.93, 0.0, rng.integers(100, 90000, 2000))
    asked = (Estimand("q", "quantile", "gain", probability=probability),)
    planned = plan(Scoring(), HEAP, 2000, PrivacyRequest(3.0, 1e-5), asked)
    [found] = answer(planned, {"gain": gain}, np.ones(2000, dtype=np.bool_), SeededNoise(1))
    assert found.coefficients[0] == 0.0


def test_what_may_be_above_nothing_is_not_taken_for_nothing() -> None:
    assert expect_positive(10.0, 1.0) == pytest.approx(10.0)
    assert expect_positive(0.0, 1.0) == pytest.approx(1 / math.sqrt(2 * math.pi))
    assert 0 <= expect_positive(-50.0, 1.0) < 1e-12


def test_values_that_are_too_large_numbers_to_release_are_refused() -> None:
    schema = Schema((Column("cells", "continuous", lower=0, upper=1e6),))
    asked = Estimand("m", "mean", "cells")
    [refused] = Scoring().problems(schema, (asked,))
    assert refused.message == "asks of values that may be too large numbers"
    share = Estimand("s", "share", "cells", threshold=1e5, direction="above")
    assert Scoring().problems(schema, (share,)) == []


def test_noise_is_refused_and_what_would_do_is_enough() -> None:
    privacy, of = PrivacyRequest(0.05, 1e-5), MECHANISMS[Scoring.name]
    question = Asked(Scoring(), SCHEMA, privacy, ASKED)
    with pytest.raises(Hopeless, match="ask for an ε of at least"):
        of.require_worth(question, of.plan(question, 100))
    of.require_worth(question, of.plan(question, 100_000))


def test_a_rare_level_and_a_far_quantile_widen_what_is_planned() -> None:
    def width(asked: Estimand, prospect: Prospect = Prospect()) -> float:
        planned = plan(Scoring(), SCHEMA, 1000, PrivacyRequest(1.0, 1e-5), (asked,))
        return planned_width(planned, prospect)

    assert width(ASKED[3], Prospect((("group", 0.01),))) > 1.2 * width(ASKED[3])
    assert width(ASKED[6]) > 1.2 * width(ASKED[5])
    assert width(ASKED[1]) > 1.1 * width(ASKED[0])  # of a subgroup
    assert width(ASKED[0], Prospect(filled=0.3)) > 1.2 * width(ASKED[0])
