"""A design's columns are standardised, and count by what the study asks."""

import numpy as np
import pytest
from tests.unit.shared.mechanisms.structured.conftest import Setting

from penstock.mechanisms.structured.regressors import make_design


def test_columns_are_standardised_and_bends_are_of_skewed_ones(setting: Setting) -> None:
    design, z = setting.design, setting.z
    assert np.abs(z[:, : design.linear].mean(axis=0)).max() < 1e-9
    assert np.allclose(z[:, : design.linear].std(axis=0), 1)
    assert [design.columns[j].name for j, _ in design.bends] == ["nodes"]
    # What is bent is no straight line again.
    assert abs(np.corrcoef(z[:, 1], z[:, 3])[0, 1]) < 0.2


def test_what_is_asked_counts_most(setting: Setting) -> None:
    design = make_design(setting.population.grids, setting.persons, ["treated"], ["age"])
    age, nodes, treated = design.importance[:3]
    assert treated == 1 > age > nodes > 0


def test_a_row_without_a_declared_covariate_is_not_complete(setting: Setting) -> None:
    rows = {name: values[:3].copy() for name, values in setting.rows.items()}
    rows["age"][1] = np.nan
    z, complete = setting.design.of(rows)
    assert complete.tolist() == [True, False, True]
    assert z[1, 0] == 0


@pytest.mark.parametrize("name", ["age", "nodes", "treated"])
def test_a_column_of_which_nobody_is_known_ends_no_fit(setting: Setting, name: str) -> None:
    """What is counted may say so by noise alone: a fit that ended would be charged all the same."""
    persons = setting.persons | {name: np.full(len(setting.persons[name]), np.nan)}
    design = make_design(setting.population.grids, persons, ["treated", name], ["age"])
    z, complete = design.of(persons)
    assert np.isfinite(design.mean).all()
    assert np.isfinite(z).all()
    assert not complete.any()
