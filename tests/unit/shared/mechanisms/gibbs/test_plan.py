"""Plans of one question: what is charged, what is refused, and what the answer looks like."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.studies.questions import ESTIMANDS, SCHEMA
from tests.support.replay import covers

from penstock.base.errors import InvalidInput
from penstock.mechanisms.gibbs.models import POSINGS
from penstock.mechanisms.gibbs.plan import Plan, narrowed, plan
from penstock.mechanisms.gibbs.settings import MAX_TERMS, Gibbs, answer_terms
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.events import DiscreteGaussian, Gaussian, NoisyDescent
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.terms import INTERCEPT, design_terms
from penstock.schema import Column, Schema

PRIVACY = PrivacyRequest(1.0, 1e-5)
MODELS = tuple(name for name in ESTIMANDS if not POSINGS.of(name).refused)


def made(model: str = "logistic", persons: int = 2000, **settings: object) -> Plan:
    return plan(Gibbs(**settings), SCHEMA, persons, PRIVACY, [ESTIMANDS[model]])  # type: ignore[arg-type]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("settings", [{}, {"dynamics": "underdamped"}, {"steps": 200}])
def test_a_plan_costs_what_was_asked_and_hardly_less(
    model: str, settings: dict[str, object]
) -> None:
    found = made(model, **settings)
    assert found.epsilon == epsilon(found.events, 1e-5)
    assert 0.999 < found.epsilon <= 1.0
    assert (found.copies, found.refits, found.guarantee) == (1, 0, "formal")


@pytest.mark.parametrize("model", MODELS)
def test_every_stage_is_charged(model: str) -> None:
    found = made(model)
    labels = [e.label for e in found.events if isinstance(e, DiscreteGaussian)]
    curvature = [] if model == "mean" else ["curvature"]
    assert labels == ["summaries", *curvature, "information"]
    steps = sum(e.count for e in found.events if isinstance(e, Gaussian))
    assert steps == found.schedule.steps > 1


def test_a_long_plain_chain_is_charged_by_its_last_iterate() -> None:
    # Strong convexity of at least λ is all that holds whoever is zeroed out.
    found = made(steps=5000, ridge=0.5)
    (last,) = (e for e in found.events if isinstance(e, NoisyDescent))
    assert last.steps == 5000
    assert last.contraction < 1
    assert not found.preconditioned
    short = made(steps=3, ridge=0.01)
    assert not any(isinstance(e, NoisyDescent) and e.contraction == 1 for e in short.events)


@pytest.mark.parametrize("settings", [{"steps": 5000, "ridge": 0.5}, {"steps": 40}, {}])
def test_the_chains_record_had_no_raw_sigma(settings: dict[str, object]) -> None:
    """A person of k rows moves a mean gradient by k/n of the bound on a row's own."""
    found = made(persons=4000, **settings)
    chain = [e for e in found.events if isinstance(e, Gaussian | NoisyDescent)]
    steps = {e.noise_multiplier * e.sensitivity for e in chain}
    raw = {sigma * found.rows / 4000 for sigma in found.schedule.multipliers}
    assert sorted(steps) == pytest.approx(sorted(raw), rel=1e-6)
    assert min(steps) > min(raw)  # room for what one person moves in everybody's rounding
    assert all(e.sensitivity == pytest.approx(found.rows / 4000) for e in chain)


def test_momentum_is_charged_by_composition() -> None:
    found = made(steps=500, ridge=0.5, dynamics="underdamped")
    assert not any(isinstance(e, NoisyDescent) for e in found.events)


def test_more_persons_or_budget_mean_less_noise() -> None:
    richer = plan(Gibbs(), SCHEMA, 2000, PrivacyRequest(3.0, 1e-5), [ESTIMANDS["cox"]])
    assert richer.schedule.multipliers[-1] < made("cox").schedule.multipliers[-1]
    assert made("cox", 50_000).levels == 5 > made("cox", 500).levels == 1
    # However many there are, noise is relative to what one person moves.
    precisions = [
        sum(1 / m**2 for m in made("cox", n).schedule.multipliers) for n in (2000, 50_000)
    ]
    assert precisions[0] == pytest.approx(precisions[1], rel=1e-3)


def test_a_baseline_has_no_more_levels_than_the_counted_rows_can_tell_apart() -> None:
    whole = made("cox", 50_000)
    assert narrowed(whole, 50_000.0) == narrowed(whole, 80_000.0) == whole
    half = narrowed(whole, 21_000.0)
    assert (whole.levels, half.levels) == (5, 2)
    assert half.dimension == whole.dimension - 3
    # What is charged stays: sums of fewer numbers move by less, and have noise to match.
    assert all(map(covers, whole.measurements, half.measurements))
    assert half.curvature_size < whole.curvature_size
    assert narrowed(whole, 1.0).levels == 1
    for model in MODELS:
        assert narrowed(made(model, 500), 100.0).dimension == made(model, 500).dimension
    weibull = made("cox", 50_000, baseline="weibull")
    assert narrowed(weibull, 100.0) == weibull


def test_plans_load_no_torch() -> None:
    code = (
        "import sys, penstock.mechanisms.gibbs.plan, penstock.mechanisms.gibbs.settings;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("guarantee", ["public-flow", "empirical"])
def test_only_formal_guarantees(guarantee: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        plan(Gibbs(), SCHEMA, 100, PrivacyRequest(1.0, 1e-5, guarantee), [ESTIMANDS["ols"]])
    assert [p.where for p in refused.value.problems] == ["privacy.guarantee"]


@pytest.mark.parametrize("count", [0, 2])
def test_exactly_one_question(count: int) -> None:
    asked = [ESTIMANDS["ols"], ESTIMANDS["cox"]][:count]
    assert len(Gibbs().problems(SCHEMA, asked)) == 1
    with pytest.raises(InvalidInput):
        plan(Gibbs(), SCHEMA, 100, PRIVACY, asked)


def test_nobody_cannot_answer() -> None:
    with pytest.raises(InvalidInput):
        made(persons=0)


def test_counts_beyond_bearing_and_too_many_coefficients_are_refused() -> None:
    levels = tuple(f"l{i}" for i in range(MAX_TERMS + 2))
    schema = Schema(
        columns=(
            Column("many", "categorical", levels=levels),
            Column("x", "continuous", lower=0, upper=1),
            Column("count", "integer", lower=0, upper=5000),
            Column("y", "continuous", lower=0, upper=1),
        )
    )
    counts = Gibbs().problems(schema, [Estimand("a", "poisson", "count", "x")])
    assert [p.where for p in counts] == ["estimand.outcome"]
    terms = Gibbs().problems(schema, [Estimand("a", "ols", "y", "x", adjust=("many",))])
    assert [p.where for p in terms] == ["estimand.adjust"]
    assert Gibbs().problems(schema, [Estimand("a", "ols", "y", "x")]) == []
    # An unknown column is the study's to say.
    assert Gibbs().problems(schema, [Estimand("a", "ols", "y", "nothing")]) == []


# Terms -----------------------------------------------------------------------------------------


def test_terms_are_the_intercept_adjustments_and_the_term_last() -> None:
    rest = ("age", "sex", "area=south", "area=west", "sbp")
    for model in ("ols", "logistic", "poisson"):
        assert answer_terms(SCHEMA, ESTIMANDS[model], Gibbs()) == (INTERCEPT, *rest)
    assert answer_terms(SCHEMA, ESTIMANDS["cox"], Gibbs()) == rest
    assert answer_terms(SCHEMA, ESTIMANDS["mean"], Gibbs()) == ("score",)


def test_the_terms_own_level_comes_last() -> None:
    asked = Estimand("a", "ols", "score", "area", level="south")
    assert [t.name for t in design_terms(SCHEMA, asked)] == ["area=west", "area=south"]
    assert answer_terms(SCHEMA, asked, Gibbs())[-1] == "area=south"


@pytest.mark.parametrize("model", MODELS)
def test_a_plan_knows_its_answers_names(model: str) -> None:
    assert made(model).asked.answers == answer_terms(SCHEMA, ESTIMANDS[model], Gibbs())


def test_units_that_would_outgrow_the_answer_are_refused() -> None:
    """A released variance ends at 1e12: better said before budget is spent than after."""
    schema = Schema((Column("cost", "continuous", 0, 1e7), Column("dose", "continuous", 0, 1, 2)))
    asked = [Estimand("slope", "ols", "cost", "dose")]
    with pytest.raises(InvalidInput, match="too large a number"):
        plan(Gibbs(), schema, 1000, PRIVACY, asked)
    narrow = Schema((Column("cost", "continuous", 0, 1e3), schema["dose"]))
    plan(Gibbs(), narrow, 1000, PRIVACY, asked)
