"""A design's columns are standardised, and count by what the study asks."""

import numpy as np
import pytest
from tests.unit.shared.mechanisms.conftest import Setting

from penstock.mechanisms.copula.grids import make_grid
from penstock.mechanisms.structured.beliefs import Belief, drop_prior
from penstock.mechanisms.structured.outcomes.links import LINKS
from penstock.mechanisms.structured.outcomes.support import Support
from penstock.mechanisms.structured.outcomes.tilted import Tilted
from penstock.mechanisms.structured.regressors import make_design, most_columns
from penstock.schema import Column


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


def test_strata_are_read_back_from_a_design() -> None:
    columns = (
        Column("ward", "categorical", levels=("a", "b", "c"), nullable=True),
        Column("grade", "ordered", levels=("1", "2", "3", "4")),
        Column("sex", "binary"),
        Column("age", "integer", 18, 100),
    )
    rng, n = np.random.default_rng(0), 500
    levels = [rng.integers(0, count, n).astype(float) for count in (3, 4, 2)]
    levels[0][:7] = np.nan
    rows = dict(zip(("ward", "grade", "sex"), levels, strict=True))
    rows["age"] = rng.integers(18, 100, n).astype(float)
    grids, names = [make_grid(column) for column in columns], ("sex", "ward", "grade")
    design = make_design(grids, rows, ["age"], names, strata=names)
    assert design.strata is not None
    assert design.strata.count == 24
    expected = rows["sex"] * 12 + rows["ward"] * 4 + rows["grade"]
    found = design.strata.of(design.of(rows)[0])
    assert np.array_equal(found, np.where(np.isnan(expected), 24, expected))
    # They are no columns of the regression, and who has none has no part in it.
    world = design.see(rows)
    declared = [main.name for main, d in zip(design.columns, world.declared, strict=True) if d]
    assert declared == ["age"]
    assert np.array_equal(world.complete == 0, np.isnan(rows["ward"]))


@pytest.mark.parametrize("name", ["age", "nodes", "treated"])
def test_a_column_of_which_nobody_is_known_ends_no_fit(setting: Setting, name: str) -> None:
    """What is counted may say so by noise alone: a fit that ended would be charged all the same."""
    persons = setting.persons | {name: np.full(len(setting.persons[name]), np.nan)}
    design = make_design(setting.population.grids, persons, ["treated", name], ["age"])
    z, complete = design.of(persons)
    assert np.isfinite(design.mean).all()
    assert np.isfinite(z).all()
    assert not complete.any()


def test_an_exposure_is_there_by_its_logarithm(setting: Setting) -> None:
    """In place of the column, with coefficient 1 in its own units; beside it where the column is
    declared, too."""
    grids, persons = setting.population.grids, setting.persons
    design = make_design(grids, persons, ["treated"], [], (), "age")
    assert [(main.name, main.exposure) for main in design.columns] == [
        ("age", True),
        ("nodes", False),
        ("treated", False),
    ]
    rows = {name: values[:4].copy() for name, values in setting.rows.items()}
    rows["age"][:] = [20.0, 40.0, 80.0, np.nan]
    z, complete = design.of(rows)
    world = design.see(persons)
    assert np.diff(z[:3, 0] * world.fixed[0]) == pytest.approx(np.log([2, 2]))
    assert complete.tolist() == [True, True, True, False]
    assert z[3, 0] == 0
    assert world.declared.tolist() == [False, False, True]
    assert world.held(narrow=world.declared).tolist() == [world.fixed[0], 0, 0]
    assert not world.held(narrow=None).any()
    both = make_design(grids, persons, ["treated"], ["age"], (), "age")
    assert [main.exposure for main in both.columns[:2]] == [False, True]
    assert both.see(persons).declared.tolist() == [True, False, False, True]
    assert both.width <= most_columns(grids, (), 1)


@pytest.mark.parametrize("levels", [8, 9])
def test_who_draws_no_table_asks_for_no_level_of_many(levels: int) -> None:
    """They are believed about alike, even where no other prior is left; who draws one asks."""
    n, rng = 900, np.random.default_rng(7)
    column = Column("ward", "categorical", levels=tuple(f"w{i}" for i in range(levels)))
    age = Column("age", "continuous", 0, 100)
    sick = Column("sick", "binary")
    rows = {
        "ward": np.arange(n) % float(levels),
        "age": np.clip(rng.normal(50, 12, n), 0.0, 100.0),
    }
    grids = [make_grid(column), make_grid(age)]
    for terms, adjusted, spared in ((["age"], ["ward"], levels > 8), (["ward"], ["age"], False)):
        design = make_design(grids, rows, terms, adjusted)
        grid = make_grid(sick)
        support = Support.read(grid, np.full(grid.count, 450.0), 1.0)
        model = Tilted(support, LINKS["logistic"], design.see(rows))
        wards = np.arange(levels - 1)
        asked, believed = model.importance(False)[wards], np.diag(model.prior())[wards]
        assert (asked > 0).all()
        assert believed == pytest.approx(1.0)
        model.sparing = True
        assert (model.importance(False)[wards] == 0).all() == spared
        firmer = np.diag(model.prior())[wards]
        assert (firmer > 10 * believed).all() == spared
        kept = np.diag(drop_prior(model, Belief(model.start(), model.prior())).precision)[wards]
        assert kept == pytest.approx(firmer if spared else 1e-3 * firmer)
