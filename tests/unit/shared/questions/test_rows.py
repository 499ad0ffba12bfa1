"""What no regression answers, of rows: against numpy and lifelines, and on hostile tables."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import statsmodels.api as sm
from lifelines import KaplanMeierFitter
from lifelines.utils import restricted_mean_survival_time
from scipy import stats

from penstock.mechanisms import Gibbs, Maf, Scoring
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import Estimate, estimate
from penstock.questions.suitability import estimand_problems
from penstock.schema import Coded, Column, Schema

EXACT = 1e-8
SCHEMA = Schema(
    (
        Column("years", "duration", upper=10, decimals=1, event="died", nullable=True),
        Column("died", "event"),
        Column("sbp", "continuous", lower=60, upper=240),
        Column("age", "integer", lower=18, upper=99),
        Column("stage", "ordered", levels=("I", "II", "III")),
        Column("ward", "categorical", levels=("a", "b", "c")),
        Column("male", "binary"),
    )
)
SURVIVAL = Estimand("s", "survival", "years", at=5)
QUANTILE = Estimand("q", "quantile", "sbp", probability=0.9)
SHARE = Estimand("h", "share", "sbp", threshold=140, direction="above")
LEVEL = Estimand("l", "share", "ward", outcome_level="b")
RMST = Estimand("m", "rmst", "years", until=5)
TOGETHER = Estimand("t", "correlation", "sbp", "age")
INCIDENCE = Estimand("i", "cumulative-incidence", "years", at=5, competing="male")
COUNT = Estimand("n", "count", "years", until=5)
RATE = Estimand("r", "rate", "years", per=100)
CELL = Estimand("c", "table", "ward", term="stage", level="I", outcome_level="b")
CUBE = Estimand("d", "table", "ward", term="stage[III]:male[0]", outcome_level="a")


def rows(n: int = 400, seed: int = 0) -> Coded:
    rng = np.random.default_rng(seed)
    time, leaves = rng.exponential(8, n), rng.exponential(15, n)
    ended = np.minimum(np.minimum(time, leaves), 10.0)
    found = {
        "years": ended,
        "died": ((time <= leaves) & (time <= 10)).astype(float),
        "sbp": np.clip(rng.normal(130, 20, n), 60, 240),
        "age": np.clip(rng.normal(60, 10, n).round(), 18, 99),
        "stage": rng.integers(0, 3, n) * 1.0,
        "ward": rng.integers(0, 3, n) * 1.0,
        "male": rng.integers(0, 2, n) * 1.0,
    }
    found = {c.name: c.snap(found[c.name]) for c in SCHEMA.columns}
    found["years"][rng.random(n) < 0.05] = np.nan
    return found


TABLE = rows()


def ask(asked: Estimand, table: Coded = TABLE) -> Estimate:
    assert estimand_problems(asked, SCHEMA.columns) == []
    assert not asked.over_time
    return estimate(table, SCHEMA, asked)


@pytest.mark.parametrize("at", [0.7, 5.0, 9.9])
@pytest.mark.parametrize("where", ["", "male == '1'"])
def test_survival_agrees_with_lifelines(at: float, where: str) -> None:
    found = ask(replace(SURVIVAL, at=at, where=where))
    kept = np.isfinite(TABLE["years"]) & ((TABLE["male"] == 1) | (not where))
    time, died = TABLE["years"][kept], TABLE["died"][kept]
    fitted = KaplanMeierFitter().fit(time, died)
    share = float(fitted.predict(at))
    assert 1 / (1 + math.exp(-found.estimate)) == pytest.approx(share, abs=EXACT)
    before = np.unique(time[(died > 0) & (time <= at)])
    deaths = np.array([((time == t) & (died > 0)).sum() for t in before])
    risk = np.array([(time >= t).sum() for t in before])
    greenwood = share**2 * float((deaths / (risk * (risk - deaths))).sum())
    assert found.variance == pytest.approx(greenwood / (share * (1 - share)) ** 2, rel=EXACT)
    assert (found.n, found.events) == (kept.sum(), deaths.sum())


@pytest.mark.parametrize("until", [0.7, 5.0, 9.9])
@pytest.mark.parametrize("where", ["", "male == '1'"])
def test_a_restricted_mean_agrees_with_lifelines_and_its_error_with_the_whole_covariance(
    until: float, where: str
) -> None:
    """Greenwood's covariance of the curve at any two times, summed over all intervals: lifelines
    gives the variance of a person's time, and not that of the mean."""
    found = ask(replace(RMST, until=until, where=where))
    kept = np.isfinite(TABLE["years"]) & ((TABLE["male"] == 1) | (not where))
    time, died = TABLE["years"][kept], TABLE["died"][kept]
    fitted = KaplanMeierFitter().fit(time, died)
    mean = restricted_mean_survival_time(fitted, t=until)
    assert found.estimate == pytest.approx(mean, rel=EXACT)
    at = np.unique(time[(died > 0) & (time < until)])
    deaths = np.array([((time == t) & (died > 0)).sum() for t in at])
    risk = np.array([(time >= t).sum() for t in at])
    curve, hazards = np.cumprod(1 - deaths / risk), np.cumsum(deaths / (risk * (risk - deaths)))
    area, places = curve * np.diff([*at, until]), np.arange(len(at))
    covariance = hazards[np.minimum.outer(places, places)]
    assert found.variance == pytest.approx(float(area @ covariance @ area), rel=EXACT)
    assert found.n == kept.sum()


def test_of_everybody_followed_a_restricted_mean_is_a_mean() -> None:
    table = {**TABLE, "died": np.ones(400), "years": np.maximum(rows(400, 3)["sbp"] / 30, 0)}
    found, least = ask(replace(RMST, until=9.9), table), np.minimum(table["years"], 9.9)
    assert found.estimate == pytest.approx(least.mean(), rel=EXACT)
    assert found.variance == pytest.approx(least.var() / 400, rel=EXACT)


def test_a_correlation_of_rows_is_on_fishers_z() -> None:
    found, x, y = ask(TOGETHER), TABLE["sbp"], TABLE["age"]
    assert found.estimate == pytest.approx(np.arctanh(stats.pearsonr(x, y)[0]), abs=EXACT)
    assert found.variance == pytest.approx(1 / (len(x) - 3), rel=0.25)
    assert found.n == len(x)


@pytest.mark.parametrize("probability", [0.25, 0.5, 0.9])
def test_a_quantile_and_woodruffs_error(probability: float) -> None:
    y, found = TABLE["sbp"], ask(replace(QUANTILE, probability=probability))
    assert found.estimate == pytest.approx(np.quantile(y, probability), abs=EXACT)
    reach = stats.norm.ppf(0.975) * math.sqrt(probability * (1 - probability) / len(y))
    low, high = np.quantile(y, [probability - reach, probability + reach])
    assert math.sqrt(found.variance) == pytest.approx((high - low) / (2 * 1.959964), rel=1e-6)


@pytest.mark.parametrize(
    ("asked", "has"),
    [
        (SHARE, TABLE["sbp"] > 140),
        (replace(SHARE, direction="below"), TABLE["sbp"] < 140),
        (LEVEL, TABLE["ward"] == 1),
        (replace(LEVEL, outcome="stage", term="stage", outcome_level="I"), TABLE["stage"] == 0),
        (Estimand("e", "share", "died", outcome_level="1"), TABLE["died"] == 1),
    ],
)
def test_a_share_is_on_the_empirical_logit(asked: Estimand, has: np.ndarray) -> None:
    found, k, n = ask(asked), has.sum(), len(has)
    assert found.estimate == pytest.approx(math.log((k + 0.5) / (n - k + 0.5)), abs=EXACT)
    assert found.variance == pytest.approx(1 / (k + 0.5) + 1 / (n - k + 0.5), rel=EXACT)


def test_of_a_subgroup_it_is_of_these_rows_alone() -> None:
    inside = TABLE["ward"] == 2
    found = ask(replace(QUANTILE, where="ward == 'c'"))
    assert found.estimate == pytest.approx(np.quantile(TABLE["sbp"][inside], 0.9), abs=EXACT)
    assert found.n == inside.sum()


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"died": np.zeros(400)}, "nobody has the event until then"),
        ({"died": np.ones(400), "years": np.full(400, 2.0)}, "everybody who was followed"),
        ({"years": np.full(400, -1.0)}, "a duration is negative"),
        ({"years": np.full(400, np.nan)}, "too few complete rows: 0"),
    ],
)
def test_a_degenerate_table_has_a_problem_and_no_number(changed: Coded, problem: str) -> None:
    found = ask(SURVIVAL, {**TABLE, **changed})
    assert problem in str(found.problem)
    assert math.isnan(found.estimate)


KNOWN = np.isfinite(TABLE["years"])
COUNTS = [
    (COUNT, KNOWN & (TABLE["died"] == 1) & (TABLE["years"] <= 5)),
    (replace(COUNT, until=None), KNOWN & (TABLE["died"] == 1)),
    (Estimand("n", "count", "ward", outcome_level="a"), TABLE["ward"] == 0),
    (Estimand("n", "count", "died", outcome_level="0"), TABLE["died"] == 0),
    (
        Estimand("n", "count", "sbp", threshold=140, direction="below", where="male == '1'"),
        (TABLE["sbp"] < 140) & (TABLE["male"] == 1),
    ),
]


@pytest.mark.parametrize(("asked", "has"), COUNTS)
def test_a_count_is_of_rows_and_varies_as_tables_that_are_drawn(
    asked: Estimand, has: np.ndarray
) -> None:
    found, k, n = ask(asked), has.sum(), len(has)
    assert found.estimate == k
    assert found.variance == pytest.approx((k + 0.5) * (n - k + 0.5) / (n + 1), rel=EXACT)


def test_a_count_of_few_rows_is_a_count() -> None:
    """Nine rows, or none: of other estimands that is too few."""
    few = {name: values[:9] for name, values in TABLE.items()}
    assert ask(COUNTS[2][0], few).estimate == (few["ward"] == 0).sum()
    none = ask(replace(COUNTS[2][0], where="male == '1' and stage == 'I' and sbp > 239"))
    assert (none.estimate, none.n, none.problem) == (0.0, 0, None)
    assert ask(COUNTS[2][0], {name: values[:0] for name, values in TABLE.items()}).problem


@pytest.mark.parametrize("until", [None, 3.0])
@pytest.mark.parametrize("where", ["", "male == '1'"])
def test_a_rate_and_its_sandwich_agree_with_statsmodels(until: float | None, where: str) -> None:
    # Of no time there is no logarithm.
    table = {**TABLE, "years": np.maximum(TABLE["years"], 0.1)}
    found = ask(replace(RATE, until=until, where=where), table)
    kept = KNOWN & ((TABLE["male"] == 1) | (not where))
    end = 10.0 if until is None else until
    time = np.minimum(table["years"][kept], end)
    event = TABLE["died"][kept] * (TABLE["years"][kept] <= end)
    model = sm.GLM(event, np.ones(len(time)), sm.families.Poisson(), offset=np.log(time))
    fitted = model.fit(cov_type="HC0")
    assert found.estimate == pytest.approx(fitted.params[0] + math.log(100), abs=EXACT)
    assert found.variance == pytest.approx(fitted.bse[0] ** 2, rel=1e-7)
    assert (found.n, found.events) == (kept.sum(), event.sum())


@pytest.mark.parametrize(
    ("asked", "has"),
    [
        (CELL, (TABLE["ward"] == 1) & (TABLE["stage"] == 0)),
        (replace(CELL, where="male == '1'"), (TABLE["ward"] == 1) & (TABLE["stage"] == 0)),
        (CUBE, (TABLE["ward"] == 0) & (TABLE["stage"] == 2) & (TABLE["male"] == 0)),
    ],
)
def test_a_cell_is_a_share_of_all_rows(asked: Estimand, has: np.ndarray) -> None:
    inside = TABLE["male"] == 1 if asked.where else np.ones(len(has), dtype=np.bool_)
    found, k, n = ask(asked), (has & inside).sum(), inside.sum()
    assert found.estimate == pytest.approx(math.log((k + 0.5) / (n - k + 0.5)), abs=EXACT)
    assert found.variance == pytest.approx(1 / (k + 0.5) + 1 / (n - k + 0.5), rel=EXACT)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"died": np.zeros(400)}, "nobody has the event"),
        ({"years": np.zeros(400), "died": np.ones(400)}, "nobody is followed"),
        ({"years": np.full(400, -1.0)}, "a duration is negative"),
    ],
)
def test_a_table_without_a_rate_has_a_problem(changed: Coded, problem: str) -> None:
    assert problem in str(ask(RATE, {**TABLE, **changed}).problem)


@pytest.mark.parametrize(
    "asked", [SURVIVAL, QUANTILE, SHARE, LEVEL, COUNT, RATE, CELL, CUBE, RMST, TOGETHER, INCIDENCE]
)
@pytest.mark.parametrize("seed", range(5))
def test_no_table_raises(asked: Estimand, seed: int) -> None:
    rng = np.random.default_rng(seed)
    wild = np.array([-np.inf, -1e300, -1.0, 0.0, 0.5, 1.0, 7.0, 1e300, np.inf, np.nan])
    table = {name: rng.choice(wild, 200) for name in SCHEMA.names}
    found = ask(asked, table)
    assert found.problem is not None or 0 < found.variance < math.inf


INCIDENT = {"model": "cumulative-incidence", "outcome": "years", "at": 5, "competing": "male"}
WRONG = [
    ({"model": "rmst", "outcome": "years"}, "until: is missing: a rmst is until a time"),
    ({"model": "rmst", "outcome": "years", "until": 11}, "until: must be a time of the duration"),
    ({"model": "rmst", "outcome": "years", "at": 3}, "at: has no meaning for a rmst"),
    ({"model": "rmst", "outcome": "years", "until": 3, "per": 2}, "per: has no meaning"),
    ({**INCIDENT, "at": None}, "at: is missing: a cumulative-incidence is of a time"),
    ({**INCIDENT, "at": 11}, "at: must be a time of the duration"),
    ({**INCIDENT, "until": 6}, "until: has no meaning for a cumulative-incidence"),
    ({**INCIDENT, "competing": ""}, "competing: is missing"),
    ({**INCIDENT, "competing": "mael"}, "competing: is not a column of the study"),
    ({**INCIDENT, "competing": "ward"}, "competing: column 'ward' is of kind"),
    ({**INCIDENT, "competing": "died"}, "competing: is the event that is asked for"),
    ({**INCIDENT, "where": "male == '0'"}, "where: chooses rows by the outcome"),
    ({"model": "survival", "outcome": "years", "at": 5, "competing": "male"}, "competing: has no"),
    ({"model": "correlation", "outcome": "sbp"}, "until: is missing: a column is not correlated"),
    ({"model": "correlation", "outcome": "sbp", "term": "ward"}, "term: column 'ward' is of kind"),
    ({"model": "count", "outcome": "sbp"}, "threshold: is missing"),
    ({"model": "count", "outcome": "ward"}, "outcome_level: must be a level of the outcome"),
    ({"model": "count", "outcome": "years", "at": 3}, "at: has no meaning for a count"),
    ({"model": "count", "outcome": "years", "until": 11}, "until: must be a time of the duration"),
    (
        {"model": "count", "outcome": "ward", "outcome_level": "a", "until": 3},
        "until: has no meaning for a count of a column that is no duration",
    ),
    (
        {"model": "count", "outcome": "years", "threshold": 3, "direction": "above"},
        "threshold: has no meaning for a count",
    ),
    ({"model": "count", "outcome": "years", "per": 10}, "per: has no meaning for a count"),
    ({"model": "rate", "outcome": "sbp"}, "outcome: column 'sbp' is of kind"),
    ({"model": "rate", "outcome": "years", "at": 3}, "at: has no meaning for a rate"),
    ({"model": "rate", "outcome": "years", "until": 0}, "until: must be a time of the duration"),
    ({"model": "survival", "outcome": "years", "until": 3}, "until: is the second of two times"),
    (
        {"model": "table", "outcome": "ward", "outcome_level": "a"},
        "term: must be the table's other column",
    ),
    (
        {"model": "table", "outcome": "ward", "outcome_level": "a", "term": "stage"},
        "level: must say a level of 'stage'",
    ),
    (
        {"model": "table", "outcome": "ward", "outcome_level": "z", "term": "stage",
         "level": "I"},
        "outcome_level: must say a level of 'ward'",
    ),
    (
        {"model": "table", "outcome": "ward", "outcome_level": "a", "term": "sbp", "level": "I"},
        "term: column 'sbp' is of kind",
    ),
    (
        {"model": "table", "outcome": "ward", "outcome_level": "a", "term": "stage[I]:male"},
        "term: must say a level of 'male'",
    ),
    (
        {"model": "table", "outcome": "ward", "outcome_level": "a", "term": "ward[b]:male[1]"},
        "term: ",
    ),
    ({"model": "survival", "outcome": "years"}, "at: is missing: a survival is of a time"),
    ({"model": "survival", "outcome": "years", "at": 11}, "at: must be a time of the duration"),
    ({"model": "survival", "outcome": "years", "at": 0}, "at: must be a time of the duration"),
    ({"model": "survival", "outcome": "years", "at": "m6"}, "at: must be a time of the duration"),
    ({"model": "survival", "outcome": "sbp", "at": 5}, "outcome: column 'sbp' is of kind"),
    ({"model": "quantile", "outcome": "sbp"}, "probability: is missing"),
    ({"model": "quantile", "outcome": "ward", "probability": 0.5}, "outcome: column 'ward' is"),
    ({"model": "share", "outcome": "sbp"}, "threshold: is missing"),
    ({"model": "share", "outcome": "ward"}, "outcome_level: must be a level of the outcome"),
    ({"model": "share", "outcome": "ward", "outcome_level": "d"}, "must be a level"),
    (
        {"model": "share", "outcome": "sbp", "threshold": 140, "direction": "above",
         "outcome_level": "a"},
        "outcome_level: has no meaning for a share",
    ),
    (
        {"model": "share", "outcome": "ward", "outcome_level": "a", "threshold": 1},
        "threshold: has no meaning for a share of a level",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_what_does_not_suit_is_said(given: dict[str, object], message: str) -> None:
    asked = Estimand(**{"name": "e", **given})  # type: ignore[arg-type]
    found = [f"{p.where}: {p.message}" for p in estimand_problems(asked, SCHEMA.columns)]
    assert any(message in text for text in found), found


def test_a_competing_event_is_written_only_where_there_is_one() -> None:
    assert INCIDENCE.to_dict()["competing"] == "male"
    assert "competing" not in SURVIVAL.to_dict()
    assert INCIDENCE.columns == ("years", "male")
    assert INCIDENCE.formula == "years ~ 1 at 5 with male competing"
    assert not estimand_problems(INCIDENCE, SCHEMA.columns)
    assert not INCIDENCE.over_time


def test_a_chain_refuses_them_and_tables_do_not() -> None:
    for asked in (SURVIVAL, QUANTILE, SHARE, LEVEL, COUNT, RATE, CELL):
        refused = [p.message for p in Gibbs().problems(SCHEMA, [asked])]
        assert "has no coefficient" in refused
        assert not Maf().problems(SCHEMA, [asked])


@pytest.mark.parametrize("asked", [RMST, TOGETHER, INCIDENCE])
def test_what_tables_alone_answer_is_refused_elsewhere(asked: Estimand) -> None:
    [refused] = Scoring().problems(SCHEMA, [asked])
    assert (refused.message, refused.value) == ("is no number that noisy sums hold", asked.model)
    assert "has no coefficient" in [p.message for p in Gibbs().problems(SCHEMA, [asked])]
    assert not Maf().problems(SCHEMA, [asked])


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"died": np.zeros(400)}, "nobody has the event before the bound"),
        ({"years": np.minimum(TABLE["years"], 4.0)}, "nobody is followed until the bound"),
        ({"years": np.full(400, -1.0)}, "a duration is negative"),
    ],
)
def test_a_table_without_a_restricted_mean_has_a_problem(changed: Coded, problem: str) -> None:
    assert problem in str(ask(RMST, {**TABLE, **changed}).problem)


def test_a_table_has_so_many_cells_and_no_more() -> None:
    many = Column("many", "categorical", levels=tuple(f"l{i}" for i in range(33)))
    asked = Estimand("c", "table", "many", term="male", level="1", outcome_level="l0")
    [found] = estimand_problems(asked, (*SCHEMA.columns, many))
    assert (found.message, found.value) == ("makes too many cells", "66")
