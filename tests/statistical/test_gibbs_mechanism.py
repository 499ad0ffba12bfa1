"""Answers: what is released, in the limit without noise, under degenerate rows, and how they err.

Statistical tests have fixed seeds and false-alarm rates below 1e-7 each.
"""

from __future__ import annotations

import math
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.typing import NDArray
from scipy.stats import binom
from tests.studies.questions import ESTIMANDS, SCHEMA, simulate, truth

from penstock.base.errors import InvalidEvent, InvalidInput
from penstock.mechanisms.gibbs.design import read
from penstock.mechanisms.gibbs.models import POSINGS
from penstock.mechanisms.gibbs.models.poisson import PoissonPosing
from penstock.mechanisms.gibbs.models.survival import PiecewisePosing
from penstock.mechanisms.gibbs.plan import Plan, plan
from penstock.mechanisms.gibbs.preparation import pose_posterior
from penstock.mechanisms.gibbs.run import answer, check_smooth, run
from penstock.mechanisms.gibbs.settings import Gibbs
from penstock.mechanisms.gibbs.summaries import summarise
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.measurements import charge
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.schema.encoding import Encoding

Array = NDArray[np.float64]
MODELS = tuple(name for name in ESTIMANDS if not POSINGS.of(name).refused)
BASELINES = [(m, "piecewise") for m in MODELS] + [("cox", "weibull")]


def planned(
    model: str, n: int, epsilon: float, baseline: str = "piecewise", **more: object
) -> Plan:
    settings = Gibbs(baseline=baseline, **more)  # type: ignore[arg-type]
    return plan(settings, SCHEMA, n, PrivacyRequest(epsilon, 1e-5), [ESTIMANDS[model]])


def answered(how: Plan, table: dict[str, Array], seed: int = 0) -> tuple[Array, Array]:
    rows = read(how.asked, table, np.ones(len(table["age"]), dtype=bool))
    return answer(how, rows, SeededNoise(seed))[:2]


def design(table: dict[str, Array]) -> Array:
    area = table["area"]
    columns = [table["age"], table["sex"], area == 1, area == 2, table["sbp"] / 10]
    return sm.add_constant(np.column_stack(columns).astype(np.float64))


# Without noise --------------------------------------------------------------------------------

LIMITS = {"ols": 1e-4, "logistic": 4e-3, "poisson": 1e-3}
"""In standard errors. The mean over 16 steps leaves a share of the square of how far the first of
them were off; a linear model has none, but for residuals cut off at 6 sd."""


@pytest.mark.parametrize("model", LIMITS)
def test_without_noise_the_answer_is_the_usual_fit(model: str) -> None:
    table = simulate(4000, np.random.default_rng(1))
    how = planned(model, 4000, 1e11, ridge=1e-7, bound=20.0)
    estimate, covariance = answered(how, table)
    x = design(table)
    if model == "ols":
        found = sm.OLS(table["score"], x).fit()
    elif model == "logistic":
        found = sm.Logit(table["ill"], x).fit(disp=0, tol=1e-12)
    else:
        found = sm.GLM(table["visits"], x, family=sm.families.Poisson()).fit(tol=1e-12)
    assert np.abs((estimate - found.params) / found.bse).max() < LIMITS[model]
    # Model-based variances, but for degrees of freedom and residuals that are cut off.
    assert np.sqrt(np.diag(covariance)) == pytest.approx(found.bse, rel=0.01)


def varied_counts(n: int, rng: np.random.Generator) -> dict[str, Array]:
    """Counts with a variance of μ + .6 μ²; truth as of `visits`."""
    table = simulate(n, rng)
    linear = 0.02 * (table["sbp"] - 122) + 0.04 * (table["age"] - 55)
    linear += -0.4 * (table["sex"] - 0.45) + 0.3 * (table["area"] == 1)
    mean = np.exp(0.7 + 0.5 * linear) * rng.gamma(1 / 0.6, 0.6, n)
    return table | {"visits": np.clip(rng.poisson(mean), 0, 30).astype(np.float64)}


def test_without_noise_an_interval_is_as_wide_as_counts_vary() -> None:
    """Quasi-Poisson, φ = Σ(y - μ)²/Σμ, which is near the sandwich."""
    table = varied_counts(4000, np.random.default_rng(1))
    covariance = answered(planned("poisson", 4000, 1e11, ridge=1e-7, bound=20.0), table)[1]
    x, y = design(table), table["visits"]
    found = sm.GLM(y, x, family=sm.families.Poisson()).fit(tol=1e-12)
    dispersion = float(((y - found.mu) ** 2).sum() / found.mu.sum())
    assert dispersion > 2
    # A few residuals are cut off even so.
    assert np.sqrt(np.diag(covariance)) == pytest.approx(
        found.bse * math.sqrt(dispersion), rel=0.02
    )
    robust = sm.GLM(y, x, family=sm.families.Poisson()).fit(cov_type="HC0").bse
    assert np.sqrt(np.diag(covariance))[1:] == pytest.approx(robust[1:], rel=0.12)


@pytest.mark.parametrize("seed", range(3))
def test_counts_that_vary_more_than_their_model_says_are_doubted(seed: int) -> None:
    """And have wider intervals; a twin that takes them for a Poisson variable's is seen."""
    how = planned("poisson", 4000, 3.0)
    table = varied_counts(4000, np.random.default_rng(seed))
    rows = read(how.asked, table, np.ones(4000, dtype=bool))
    _, covariance, doubts = answer(how, rows, SeededNoise(seed))
    own = sm.GLM(table["visits"], design(table), family=sm.families.Poisson())
    sandwich = own.fit(cov_type="HC0").bse[-1]
    assert math.sqrt(covariance[-1, -1]) > 0.9 * sandwich
    assert 0.35 < doubts[-1] < 0.5
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PoissonPosing, "disperses", False)
        twin = planned("poisson", 4000, 3.0)
        _, narrow, none = answer(twin, rows, SeededNoise(seed))
    assert math.sqrt(narrow[-1, -1]) < 0.9 * sandwich
    assert none[-1] < 0.35


def test_without_noise_a_piecewise_answer_is_poissons_with_an_offset() -> None:
    table = simulate(6000, np.random.default_rng(2))
    how = planned("cox", 6000, 1e11, ridge=1e-7, bound=20.0)
    estimate, covariance = answered(how, table)
    cuts, time, died = np.linspace(0, 10, 6), table["time"], table["died"] > 0
    designs, events, offsets = [], [], []
    for j in range(5):
        lived = np.clip(time - cuts[j], 0, cuts[j + 1] - cuts[j])
        here = lived > 0
        level = np.zeros((here.sum(), 5))
        level[:, j] = 1
        designs.append(np.hstack([level, design(table)[here, 1:]]))
        events.append((died & (time > cuts[j]) & (time <= cuts[j + 1]))[here])
        offsets.append(np.log(lived[here]))
    family = sm.families.Poisson()
    model = sm.GLM(
        np.concatenate(events).astype(float),
        np.vstack(designs),
        family=family,
        offset=np.concatenate(offsets),
    )
    found = model.fit(tol=1e-12)
    assert np.abs((estimate - found.params[5:]) / found.bse[5:]).max() < 0.02
    assert np.sqrt(np.diag(covariance)) == pytest.approx(found.bse[5:], rel=0.01)


def test_without_noise_a_weibull_answer_is_near_coxs_truth() -> None:
    table = simulate(60_000, np.random.default_rng(3))
    how = planned("cox", 60_000, 1e11, "weibull", ridge=1e-7, bound=20.0)
    estimate, covariance = answered(how, table)
    se = math.sqrt(covariance[-1, -1])
    assert abs(estimate[-1] - truth("cox")) < 5.6 * se
    assert se < 0.006


def test_the_ridge_is_taken_out() -> None:
    table = simulate(4000, np.random.default_rng(4))
    little, much = (
        answered(planned("logistic", 4000, 1e11, ridge=r), table)[0] for r in (1e-6, 0.02)
    )
    # A tenth of the information; left in, it would shrink the term by about as much.
    assert much[-1] == pytest.approx(little[-1], rel=0.02)


# What is released -----------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_a_run_gives_one_part_of_the_public_shape(model: str) -> None:
    how = planned(model, 300, 1.0)
    encoding = Encoding(SCHEMA)
    x, present = encoding.encode(simulate(300, np.random.default_rng(5)), np.random.default_rng(6))
    steps: list[tuple[int, int]] = []
    told = lambda done, total: steps.append((done, total))  # noqa: E731
    (part,) = run(how, encoding, x[:, None], present[:, None], SeededNoise(0), told)
    p = len(how.asked.answers)
    names = ["term", "estimate", "doubt", *(f"cov_{i + 1}" for i in range(p))]
    assert (part.name, list(part.columns)) == ("answer", names)
    assert part.columns["term"].tolist() == list(range(1, p + 1))
    covariance = np.column_stack([part.columns[name] for name in names[3:]]).astype(np.float64)
    assert covariance == pytest.approx(covariance.T)
    assert np.linalg.eigvalsh(covariance).min() > 0
    assert steps == [(i + 1, how.schedule.steps) for i in range(how.schedule.steps)]


def test_shapes_that_are_not_the_plans_are_refused() -> None:
    encoding = Encoding(SCHEMA)
    with pytest.raises(InvalidInput):
        list(
            run(
                planned("ols", 9, 1.0),
                encoding,
                np.zeros((8, 1, encoding.d)),
                np.ones((8, 1), dtype=bool),
                SeededNoise(0),
            )
        )


def degenerate(kind: str, n: int) -> tuple[dict[str, Array], NDArray[np.bool_]]:
    table = simulate(n, np.random.default_rng(7))
    there = np.ones(n, dtype=bool)
    if kind == "nobody":
        there[:] = False
    elif kind == "all equal":
        table = {name: np.full(n, values[0]) for name, values in table.items()}
    elif kind == "all missing":
        table["sbp"] = np.full(n, np.nan)
        table["score"] = np.full(n, np.nan)
    elif kind == "separated":
        table["ill"] = (table["sbp"] > 122).astype(np.float64)
        table["died"] = np.ones(n)
    elif kind == "no events":
        table["ill"], table["died"], table["visits"] = np.zeros(n), np.zeros(n), np.zeros(n)
    else:
        table = {
            name: np.where(np.arange(n) % 3 == 0, np.inf, values) for name, values in table.items()
        }
    return table, there


@pytest.mark.parametrize("kind", ["nobody", "all equal", "all missing", "separated", "no events"])
@pytest.mark.parametrize(("model", "baseline"), BASELINES)
@pytest.mark.parametrize("settings", [{}, {"steps": 20}, {"dynamics": "underdamped"}])
@pytest.mark.parametrize("epsilon", [0.1, 100.0])
def test_degenerate_rows_have_a_finite_noisy_answer(
    kind: str, model: str, baseline: str, settings: dict[str, object], epsilon: float
) -> None:
    how = planned(model, 60, epsilon, baseline, **settings)
    table, there = degenerate(kind, 60)
    estimate, covariance, _ = answer(how, read(how.asked, table, there), SeededNoise(0))
    assert np.isfinite(estimate).all()
    assert np.isfinite(covariance).all()
    assert (np.diag(covariance) > 0).all()


@pytest.mark.parametrize("model", [name for name in MODELS if name != "mean"])
def test_rows_far_out_in_a_skewed_column_are_doubted_and_no_others(model: str) -> None:
    """Of the two columns that are numbers one has a tail; over five seeds."""
    n = 6000
    how = planned(model, n, 3.0)
    tailed = [term.column for term in how.asked.terms].index("age")
    for seed in range(5):
        table = simulate(n, np.random.default_rng(seed))
        plain = answer(how, read(how.asked, table, np.ones(n, dtype=bool)), SeededNoise(seed))[2]
        low, high = SCHEMA["age"].bounds
        tail = low + 0.01 * (high - low) * np.random.default_rng(seed).lognormal(0.0, 1.2, n)
        table["age"] = np.clip(tail, low, high)
        found = answer(how, read(how.asked, table, np.ones(n, dtype=bool)), SeededNoise(seed))[2]
        first = len(found) - how.asked.columns
        assert ((found >= 0) & (found <= 1)).all()
        assert plain[first:].max() < 0.35
        assert found[first + tailed] > 0.5
        assert np.delete(found, first + tailed).max() < 0.35


@pytest.mark.parametrize(("model", "baseline"), BASELINES)
@pytest.mark.parametrize("epsilon", [0.1, 3.0, 1e6])
def test_no_posterior_bends_more_than_its_plan_says(
    model: str, baseline: str, epsilon: float
) -> None:
    how = planned(model, 500, epsilon, baseline, steps=7)
    for seed in range(5):
        table = simulate(500, np.random.default_rng(seed))
        answered(how, table, seed)  # raises if it does
    rows = read(how.asked, table, np.ones(500, dtype=bool))
    noise = SeededNoise(0)
    posterior = pose_posterior(how, rows, summarise(how, rows, noise), noise).posterior
    with pytest.raises(InvalidEvent):
        check_smooth(how, replace(posterior, squared=100 * posterior.squared))


def test_rows_that_lack_a_needed_column_are_null_rows() -> None:
    how = planned("ols", 200, 1.0)
    table = simulate(200, np.random.default_rng(8))
    holes = {name: values.copy() for name, values in table.items()}
    holes["sbp"][:50], holes["ill"][:100] = np.nan, np.nan  # ill is not needed
    seen = read(how.asked, holes, np.ones(200, dtype=bool))
    assert seen.there.tolist() == [False] * 50 + [True] * 150
    assert not seen.x[:50].any()
    assert not seen.y[:50].any()


# How answers err ------------------------------------------------------------------------------

RUNS = 120
LEAST = binom.ppf(1e-8, RUNS, 0.85)
"""Of 90 % intervals that hold; .85 is what linearisation may leave of coverage."""


def misses(model: str, baseline: str, noisy: float = 1.0) -> Array:
    """(runs,) errors in half widths of the 90 % interval.

    ``noisy``: of the chain's noise, against what the answer believes it was.
    """
    how = planned(model, 4000, 1.0, baseline)
    found = np.empty(RUNS)
    for seed in range(RUNS):
        table = simulate(4000, np.random.default_rng([seed, 11]))
        rows = read(how.asked, table, np.ones(4000, dtype=bool))
        estimate, covariance, _ = answer(how, rows, _Louder(1000 + seed, noisy))
        half = 1.6448536 * math.sqrt(covariance[-1, -1])
        found[seed] = abs(estimate[-1] - truth(model)) / half
    return found


class _Louder(SeededNoise):
    """A source whose continuous noise, the chain's, is scaled."""

    def __init__(self, seed: int, factor: float) -> None:
        super().__init__(seed)
        self._factor = factor

    def normal(self, shape: int | tuple[int, ...]) -> Array:
        return self._factor * super().normal(shape)


@pytest.mark.parametrize(("model", "baseline"), BASELINES)
def test_intervals_hold_the_truth(model: str, baseline: str) -> None:
    found = misses(model, baseline)
    assert (found <= 1).sum() >= LEAST
    assert (found <= 0.4).sum() < LEAST  # the twin that forgets most of its error


def test_the_chains_own_noise_is_in_the_interval() -> None:
    assert (misses("ols", "piecewise", noisy=4.0) <= 1).sum() < LEAST


def test_a_halved_noise_multiplier_is_seen_in_the_charge() -> None:
    how = planned("logistic", 1000, 1.0)
    halved = replace(how.schedule, multipliers=tuple(s / 2 for s in how.schedule.multipliers))
    twin = replace(how, schedule=halved)
    assert epsilon(twin.events, 1e-5) > 1.5 * epsilon(how.events, 1e-5)
    assert set(charge(how.schedule.measurements)) <= set(how.events)


# Rare events and large effects ----------------------------------------------------------------

TRIAL = Schema(
    columns=(
        Column("time", "duration", upper=180, event="died", unit="days"),
        Column("died", "event"),
        Column("age", "integer", lower=18, upper=110),
        Column("pressure", "integer", lower=0, upper=300),
        Column("shock", "binary"),
    )
)
SHOCK, AGE = 1.36, 0.07
ASKED = Estimand("shock", "cox", "time", "shock", adjust=("age", "pressure"))


def trial(n: int, rng: np.random.Generator) -> dict[str, Array]:
    """Some 6 in 100 die, mostly early, and all others are followed to the end; every sixth person
    is in shock, and has four times the hazard."""
    age = np.clip(np.rint(rng.normal(61, 12, n)), 18, 110)
    shock = (rng.random(n) < 0.16).astype(np.float64)
    pressure = np.clip(np.rint(rng.normal(131 - 12 * shock, 22, n)), 0, 300)
    linear = SHOCK * shock + AGE * (age - 61) - 0.012 * (pressure - 129)
    reached = rng.exponential(size=n) * np.exp(-linear) / 0.03
    time = 180 * reached ** (1 / 0.35)
    return {
        "time": np.clip(np.ceil(time), 1, 180),
        "died": (time <= 180).astype(np.float64),
        "age": age,
        "pressure": pressure,
        "shock": shock,
    }


def trial_errors(sites: int = 60) -> Array:
    """(sites, 2): errors of a site's answer of 4000 persons at ε = 3, and its standard errors."""
    how = plan(Gibbs(), TRIAL, 4000, PrivacyRequest(3.0, 1e-5), [ASKED])
    found = np.empty((sites, 2))
    for seed in range(sites):
        table = trial(4000, np.random.default_rng([seed, 12]))
        rows = read(how.asked, table, np.ones(4000, dtype=bool))
        estimate, covariance, _ = answer(how, rows, SeededNoise(2000 + seed))
        found[seed] = estimate[-1] - SHOCK, math.sqrt(covariance[-1, -1])
    return found


def bias(found: Array) -> float:
    """The mean error over its own standard error."""
    return float(found[:, 0].mean() / (found[:, 0].std(ddof=1) / math.sqrt(len(found))))


def test_large_effects_on_rare_events_are_not_biased() -> None:
    """They came back high, by .31: whose hazard was above four times the average counted with all
    events, and with a part of the hazard."""
    found = trial_errors()
    assert abs(bias(found)) < 5.4
    assert abs(found[:, 0].mean()) < 0.05
    assert (np.abs(found[:, 0]) <= 1.96 * found[:, 1]).sum() >= binom.ppf(1e-8, len(found), 0.9)


def test_hazards_that_are_cut_off_without_their_events_bias_it() -> None:
    """The twin that does as before."""

    def cut(self: PiecewisePosing, *args: object) -> object:
        posterior = pose(self, *args)  # type: ignore[arg-type]
        relative = 1 + args[0].reach  # type: ignore[attr-defined]
        return replace(posterior, stopped=False, relative=relative)

    pose = PiecewisePosing.pose
    with patch.object(PiecewisePosing, "pose", cut):
        found = trial_errors()
    assert bias(found) > 5.4
    assert found[:, 0].mean() > 0.05
