"""Further columns of a design: standardised, apart from what they are made of, 0 where unknown."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.shared.mechanisms.conftest import COLUMNS, Setting

from penstock.mechanisms.structured.extras import list_extras
from penstock.mechanisms.structured.interactions import count_columns
from penstock.mechanisms.structured.regressors import Design, make_design, most_columns
from penstock.questions.estimands import Estimand
from penstock.questions.grammar import Spline
from penstock.questions.terms import bend_column, place_knots


def designed(setting: Setting, *asked: Estimand) -> Design:
    extras = list_extras(asked)
    persons = setting.persons
    made = make_design(setting.population.grids, persons, ["age"], ["nodes", "treated"], extras)
    assert len(made.further) <= count_columns(setting.population.grids, extras)
    assert made.width <= most_columns(setting.population.grids, extras)
    return made


def ask(term: str, *adjust: str, where: str = "") -> Estimand:
    return Estimand("e", "cox", "t", term, adjust=adjust, where=where)


ASKED = {
    "two numbers": ask("age:nodes"),
    "a number and a level": ask("age:treated"),
    "a spline": ask("treated", "spline(age, 4)"),
    "a subgroup": ask("treated", where="age >= 60"),
    "a product in a subgroup": ask("age:treated", where="nodes == 0"),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_what_is_asked_beside_it_is_of_a_regression_of_its_own(
    setting: Setting, asked: Estimand
) -> None:
    """Where a study asks it without a product, it is asked without one; else there is but one."""
    extras, grids, persons = list_extras([asked]), setting.population.grids, setting.persons
    named = (["age"], ["nodes", "treated"], extras)
    alone = make_design(grids, persons, *named).see(persons)
    assert len(alone.list_regressions()) == 1
    [one] = alone.list_regressions()
    assert np.array_equal(one.has, alone.declared)
    made = make_design(grids, persons, *named, plain=["age"])
    mains, whole = made.see(persons).list_regressions()
    assert mains.has.tolist() == [True] * 3 + [False] * len(made.further)
    assert mains.asks.tolist() == [True, False, False] + [False] * len(made.further)
    assert whole.has.all()
    assert np.array_equal(whole.asks, ~mains.asks)
    # What a product is made of is asked beside it: rows' product may go with it.
    assert not mains.beside.any()
    assert bool(whole.beside[0]) == ("age" in made.further[0].needed)


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_further_columns_are_standardised_and_say_what_no_other_does(
    setting: Setting, asked: Estimand
) -> None:
    made = designed(setting, asked)
    z, complete = made.of(setting.persons)
    assert complete.all()
    further = z[:, len(made.columns) : made.linear]
    assert further.shape[1] > 0
    assert np.abs(further.mean(axis=0)).max() < 1e-9
    assert np.allclose(further.std(axis=0), 1)
    for at, one in enumerate(made.further, start=len(made.columns)):
        for parent in one.parents:
            assert abs(np.corrcoef(z[:, at], z[:, parent])[0, 1]) < 1e-6
    assert np.linalg.cond(np.column_stack([np.ones(len(z)), z[:, : made.linear]])) < 50


def test_the_regression_is_that_of_raw_columns(setting: Setting) -> None:
    """Whatever is added up of the raw ones is added up of these."""
    rows = setting.rows
    age, nodes, treated = rows["age"], rows["nodes"], rows["treated"]
    old = age >= 60
    asked = [*ASKED.values(), ask("nodes:treated", where="age >= 60")]
    made = designed(setting, *asked)
    z, _ = made.of(rows)
    basis = np.column_stack([np.ones(len(z)), z[:, : made.linear]])
    for raw in (
        age * nodes,
        age * treated,
        treated * old,
        nodes * treated * old,
        age * treated * (nodes == 0),
        bend_column(age, place_knots(COLUMNS[0], Spline("age", 4)), 2),
    ):
        rest = raw - basis @ np.linalg.lstsq(basis, raw, rcond=None)[0]
        assert np.abs(rest).max() < 1e-6 * np.abs(raw).max()


def test_a_subgroup_that_is_a_column_already_adds_its_product_alone(setting: Setting) -> None:
    made = designed(setting, ask("age", where="treated == '1'"))
    assert [one.factors for one in made.further] == [(0,)]


def test_what_is_asked_counts_as_a_term_does(setting: Setting) -> None:
    made = designed(setting, ask("age:nodes", "age:treated"))
    further = made.importance[len(made.columns) : made.linear]
    assert further.tolist() == [made.importance[1], made.importance[0]]
    assert made.importance[0] == 1 > made.importance[1]


def test_a_column_with_a_spline_has_no_other_bend(setting: Setting) -> None:
    bent = designed(setting, ask("treated"))
    assert [bent.columns[j].name for j, _ in bent.bends] == ["nodes"]
    assert designed(setting, ask("treated", "spline(nodes, 3)")).bends == ()


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_where_a_column_is_missing_what_is_made_of_it_is_0(
    setting: Setting, asked: Estimand
) -> None:
    made = designed(setting, asked)
    rows = {name: values[:4].copy() for name, values in setting.rows.items()}
    for name in rows:
        rows[name][:] = np.nan
    z, complete = made.of(rows)
    assert not complete.any()
    assert (z == 0).all()


def test_persons_of_whom_nobody_is_in_a_subgroup_have_no_column_of_it(setting: Setting) -> None:
    made = designed(setting, ask("treated", where="age < 18.5 and nodes > 59"))
    assert made.further == ()
