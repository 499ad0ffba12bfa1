"""Persons of classes are as what was released: of columns, of pairs, and of moments."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms import Structured
from penstock.mechanisms.classes.class_population import ClassPopulation
from penstock.mechanisms.copula.correlations import take_root
from penstock.mechanisms.structured import plan as plans
from penstock.mechanisms.structured.run import fit
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Coded, Column, Schema

Array = NDArray[np.float64]

NUMBERS = tuple(Column(f"x{i}", "integer", 0, 40) for i in range(7))
WARD = Column("ward", "categorical", levels=tuple("abcd"))
ALIKE, ROWS = 0.35, 800
DRAWN = 40_000


def draw_rows(seed: int) -> Coded:
    """Numbers of one correlation, and a ward on which nothing depends."""
    rng = np.random.default_rng(seed)
    shared, own = rng.normal(size=(ROWS, 1)), rng.normal(size=(ROWS, len(NUMBERS)))
    values = 20 + 5 * (np.sqrt(ALIKE) * shared + np.sqrt(1 - ALIKE) * own)
    rows = {c.name: c.snap(values[:, i]) for i, c in enumerate(NUMBERS)}
    return {**rows, WARD.name: rng.integers(0, 4, ROWS).astype(float)}


def fit_columns(columns: tuple[Column, ...], epsilon: float, seed: int) -> ClassPopulation:
    schema, rows = Schema(columns), draw_rows(seed)
    asked = PrivacyRequest(epsilon, 1e-5)
    plan = plans.plan(Structured(copies=1, refits=0, planted=0), schema, ROWS, asked)
    own = {c.name: rows[c.name] for c in columns}
    found = fit(plan, schema, own, np.ones(ROWS, dtype=np.bool_), SeededNoise(seed)).population
    assert isinstance(found, ClassPopulation)
    return found


def correlate(coded: Coded) -> float:
    """Mean over pairs of numbers."""
    pairs = combinations([c.name for c in NUMBERS if c.name in coded], 2)
    return float(np.mean([np.corrcoef(coded[a], coded[b])[0, 1] for a, b in pairs]))


def draw(found: ClassPopulation) -> Coded:
    return found.draw(np.random.default_rng(5).normal(size=(DRAWN, found.latents)))


def test_what_noise_hides_of_pairs_numbers_have_by_their_moments() -> None:
    """Noise leaves more of 21 pairs' moments than of their tables; what is mostly noise is less."""
    held, without = [], []
    for seed in range(3):
        found = fit_columns(NUMBERS, 1.0, seed)
        held.append(correlate(draw(found)))
        without.append(correlate(draw(replace(found, root=np.eye(len(NUMBERS))))))
    assert ALIKE - 0.1 < np.mean(held) < ALIKE
    assert np.mean(without) < np.mean(held) - 0.06


def test_columns_are_as_likely_whatever_joins_them() -> None:
    apart = fit_columns((*NUMBERS[:3], WARD), 3.0, 0)
    found = replace(apart, root=take_root(np.where(np.eye(3), 1.0, 0.5)))
    assert correlate(draw(found)) > correlate(draw(apart)) + 0.1
    points = np.random.default_rng(1).random((ROWS, found.latents))
    tables = [one.draw_table(points, np.random.default_rng(2)) for one in (found, apart)]
    for own in found.cells:
        name = own.grid.column.name
        counts = [np.bincount(table[name].astype(int), minlength=41) for table in tables]
        assert np.array_equal(*counts)
        drawn = [draw(one)[name] for one in (found, apart)]
        assert abs(drawn[0].mean() - drawn[1].mean()) < 0.06 * drawn[0].std()
    # Who has no order is as it was.
    assert np.array_equal(tables[0][WARD.name], tables[1][WARD.name])


def test_one_number_beside_levels_is_joined_to_none() -> None:
    found = fit_columns((NUMBERS[0], WARD), 3.0, 0)
    assert np.array_equal(found.root, np.eye(1))
    assert list(found.ordered) == [0]
