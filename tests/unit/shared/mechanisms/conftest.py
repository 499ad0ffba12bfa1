"""A population of three covariates, as if released without noise."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from penstock.mechanisms.copula.divided_bins import Margin
from penstock.mechanisms.copula.grids import make_grid
from penstock.mechanisms.copula.population import (
    Population,
    count_cells,
    fit_population,
    quasi_random,
)
from penstock.mechanisms.structured.outcomes.protocol import World
from penstock.mechanisms.structured.regressors import Design, make_design
from penstock.privacy.noise.sources import SeededNoise
from penstock.schema import Coded, Column

COLUMNS = (
    Column("age", "integer", 18, 100),
    Column("nodes", "integer", 0, 60, spike=0, scale="log"),
    Column("treated", "binary"),
)


@dataclass(frozen=True)
class Setting:
    rows: Coded
    population: Population
    persons: Coded
    design: Design
    world: World

    @property
    def z(self) -> np.ndarray:
        return self.world.design


def make_rows(n: int, seed: int) -> Coded:
    rng = np.random.default_rng(seed)
    a, b = rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], n).T
    nodes = np.where(rng.random(n) < 0.4, 0, np.exp(0.8 + 0.9 * b))
    age = COLUMNS[0].snap(60 + 11 * a)
    return {"age": age, "nodes": COLUMNS[1].snap(nodes), "treated": (rng.random(n) < 0.5) * 1.0}


def make_population(rows: Coded, asked: Sequence[str]) -> Population:
    n, grids = len(rows["age"]), [make_grid(c) for c in COLUMNS]
    there = np.ones(n, dtype=np.bool_)
    counts = [c.astype(float) for c in count_cells(grids, rows, there)]
    each = zip(grids, counts, strict=True)
    return fit_population(
        [Margin(grid, grid, own, np.zeros(0), 0.0, float(n)) for grid, own in each],
        float(n),
        rows,
        there,
        1,
        None,
        4.0,
        10,
        asked,
        None,
        SeededNoise(0),
    )


@pytest.fixture(scope="session")
def setting() -> Setting:
    rows = make_rows(6000, 0)
    population = make_population(rows, ["nodes"])
    persons = population.draw(quasi_random(population.latents, 10))
    design = make_design(population.grids, persons, ["nodes", "treated"], ["age"])
    return Setting(rows, population, persons, design, design.see(persons))
