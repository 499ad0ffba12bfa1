"""Persons of a population are as the rows were, as far as two columns at a time can say."""

import numpy as np
from tests.unit.shared.mechanisms.conftest import Setting, make_population, make_rows

from penstock.mechanisms.copula.grids import make_grid
from penstock.mechanisms.copula.population import count_cells
from penstock.schema import Column


def test_means_spreads_and_rank_correlations_return(setting: Setting) -> None:
    latents = np.random.default_rng(3).normal(size=(40_000, setting.population.latents))
    drawn = setting.population.draw(latents)
    for name, rows in setting.rows.items():
        assert abs(drawn[name].mean() - rows.mean()) < 0.05 * rows.std()
        assert abs(drawn[name].std() / rows.std() - 1) < 0.08

    def ranks(x: np.ndarray) -> np.ndarray:
        found = np.unique(x, return_inverse=True)[1]
        return np.asarray(np.append(0, np.cumsum(np.bincount(found)))[found])

    for one, other in (("age", "nodes"), ("age", "treated")):
        real = np.corrcoef(ranks(setting.rows[one]), ranks(setting.rows[other]))[0, 1]
        made = np.corrcoef(ranks(drawn[one]), ranks(drawn[other]))[0, 1]
        assert abs(made - real) < 0.05


def test_a_level_goes_with_an_asked_number_as_a_regression_sees_it() -> None:
    """As a therapy does that few with no nodes have, and no more of those with very many: its rank
    correlation is twice what a straight line sees."""
    rows, rng = make_rows(6000, 0), np.random.default_rng(1)
    likely = np.where(rows["nodes"] == 0, 0.1, np.where(rows["nodes"] < 8, 0.6, 0.3))
    rows["treated"] = (rng.random(6000) < likely) * 1.0
    latents = np.random.default_rng(3).normal(size=(40_000, 3))
    made = {}
    for asked in ([], ["nodes"]):
        drawn = make_population(rows, asked).draw(latents)
        made[len(asked)] = np.corrcoef(drawn["nodes"], drawn["treated"])[0, 1]
    real = np.corrcoef(rows["nodes"], rows["treated"])[0, 1]
    assert made[0] > real + 0.1  # by ranks alone
    assert abs(made[1] - real) < 0.03


def test_who_is_absent_is_counted_nowhere() -> None:
    grids = [make_grid(Column("age", "integer", 18, 100))]
    there = np.array([True, False, True])
    (counts,) = count_cells(grids, {"age": np.array([20.0, 30.0, 40.0])}, there)
    assert counts.sum() == 2
