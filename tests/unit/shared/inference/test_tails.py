"""Which answers of tables hang on few persons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import statsmodels.api as sm

from penstock.inference.doubts import Doubts
from penstock.inference.posed import pose_copies
from penstock.inference.tails import doubt_estimates
from penstock.questions.estimands import Estimand
from penstock.questions.outliers import MOST_BESIDE, share_few
from penstock.schema import Coded, Column, Schema

SCHEMA = Schema(
    (
        Column("time", "duration", upper=10, decimals=2, event="died"),
        Column("died", "event"),
        Column("even", "continuous", -5, 5),
        Column("chains", "continuous", 0, 500),
        Column("rare", "binary"),
        Column("ward", "categorical", levels=("a", "b", "c")),
        Column("visits", "integer", 0, 200),
        Column("grade", "ordered", levels=("I", "II", "III")),
    )
)
MODELS = (
    ("cox", "time"),
    ("logistic", "rare"),
    ("ols", "even"),
    ("poisson", "visits"),
    ("negative-binomial", "visits"),
    ("ordinal", "grade"),
    ("multinomial", "ward"),
)


def copies(seed: int = 0, n: int = 1500, count: int = 3, tail: float = 1.6) -> list[Coded]:
    found = []
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        even, chains = rng.standard_normal(n), np.exp(tail * rng.standard_normal(n))
        time = rng.exponential(8 * np.exp(-0.3 * even - 0.02 * np.log(chains)))
        found.append(
            {
                "time": np.minimum(time, 10.0),
                "died": (time < 10) * 1.0,
                "even": even,
                "chains": np.minimum(chains, 500),
                "rare": (rng.random(n) < 0.1) * 1.0,
                "ward": rng.integers(0, 3, n) * 1.0,
                "visits": rng.poisson(np.exp(0.5 + 0.2 * even)) * 1.0,
                "grade": rng.integers(0, 3, n) * 1.0,
            }
        )
    return found


def doubt(asked: Sequence[Estimand], tables: Sequence[Coded]) -> Doubts:
    return doubt_estimates(SCHEMA, pose_copies(SCHEMA, asked, tables))


def ask(name: str, term: str, *adjust: str, model: str = "cox", outcome: str = "time") -> Estimand:
    level = "b" if model == "multinomial" else None
    return Estimand(name, model, outcome, term, adjust=adjust, outcome_level=level)


@pytest.mark.parametrize(("model", "outcome"), MODELS)
def test_a_long_tail_is_doubted_and_what_stands_beside_it(model: str, outcome: str) -> None:
    plain = "rare" if outcome == "even" else "even"
    asked = (
        ask("tail", "chains", plain, model=model, outcome=outcome),
        ask("beside", plain, "chains", model=model, outcome=outcome),
        ask("alone", plain, model=model, outcome=outcome),
    )
    found = doubt(asked, copies()).estimands
    assert found["tail"] > 0.5
    assert 0.4 < found["beside"] <= MOST_BESIDE
    assert found["alone"] < 0.3
    # Beside a tail that is none nothing is doubted.
    short = doubt(asked, copies(tail=0.3)).estimands
    assert max(short.values()) < 0.3


def test_levels_logarithms_and_splines_have_no_tail() -> None:
    asked = (ask("spline", "even", "spline(chains, 3)"), ask("level", "even", "rare", "ward"))
    assert max(doubt(asked, copies()).estimands.values()) < 0.3


def test_what_is_no_regression_hangs_on_nobody() -> None:
    asked = (Estimand("share", "mean", "rare"),)
    assert doubt(asked, copies()).estimands == {}


def test_the_influences_are_those_of_leaving_a_person_out() -> None:
    """To first order: the exact ones of statsmodels, of a logistic regression."""
    [table] = copies(count=1, n=1500)
    asked = (ask("alone", "even", "ward", model="logistic", outcome="rare"),)
    [found] = doubt(asked, [table]).estimands.values()
    levels = np.column_stack([table["ward"] == 1, table["ward"] == 2])
    design = sm.add_constant(np.column_stack([levels, table["even"]]))
    fit = sm.GLM(table["rare"], design, family=sm.families.Binomial()).fit()
    moved = fit.get_influence().d_params[:, -1]
    mean = fit.fittedvalues
    expected = share_few(moved, float((mean * (1 - mean)).mean()))
    assert found == pytest.approx(expected, abs=0.005)
    assert found > 0.03


def test_all_copies_together_show_a_tail_that_one_of_few_persons_does_not() -> None:
    asked = (ask("tail", "chains", "even"),)
    few = copies(n=150, count=5)
    assert doubt(asked, few[:1]).estimands == {}
    assert doubt(asked, few).estimands["tail"] > 0.35


def test_strata_and_subgroups_are_the_regressions_own() -> None:
    tables = copies()
    asked = replace(ask("tail", "even", "chains"), strata=("ward",), where="rare == 0")
    found = doubt((asked,), tables).estimands["tail"]
    assert 0.4 < found <= MOST_BESIDE


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 0.0, 1e308])
def test_hostile_tables_make_no_trouble(wrong: float) -> None:
    tables = [{name: np.full(300, wrong) for name in SCHEMA.names}]
    asked = tuple(ask(m, "chains", "even", model=m, outcome=o) for m, o in MODELS if o != "even")
    for share in doubt(asked, tables).estimands.values():
        assert 0 <= share <= 1
