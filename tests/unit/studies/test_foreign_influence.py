"""What one person moves, and the least error that follows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr
from tests.studies.foreign_generators import TUNING
from tests.studies.foreign_influence import distance, least_error, most_moved


def test_who_lies_far_off_moves_the_answer_most() -> None:
    table = TUNING["t-weibull"](400, np.random.default_rng(1))
    plain = {one.name: one.moved for one in most_moved(table)}
    rows = {name: values.copy() for name, values in table.rows.items()}
    rows["age"][0] = rows["age"].mean() + 40 * rows["age"].std()
    moved = {one.name: one.moved for one in most_moved(replace(table, rows=rows))}
    assert moved["age"] > 3 * plain["age"]
    assert all(0 < value < 3 for value in plain.values())


def test_a_distance_is_that_of_its_guarantee() -> None:
    """δ(ε) of two normal distributions μ apart; more ε, further apart."""
    mu = distance(3.0, 1e-5)
    delta = ndtr(-3 / mu + mu / 2) - np.exp(3) * ndtr(-3 / mu - mu / 2)
    assert delta == pytest.approx(1e-5, rel=1e-6)
    assert 0.2 < distance(1.0, 1e-5) < mu < distance(10.0, 1e-5)


def test_no_estimate_errs_less() -> None:
    """The best one of two normal distributions' outputs: to shrink towards the middle."""
    rng, mu, moved = np.random.default_rng(2), 0.8, 3.0
    draws = rng.standard_normal((2, 100_000)) + np.array([[0.0], [mu]])
    for factor in (0.0, 0.5, 1.0, moved / mu):
        said = moved / 2 + factor * (draws - mu / 2)
        errors = np.sqrt(((said - np.array([[0.0], [moved]])) ** 2).mean(axis=1))
        assert errors.max() > least_error(moved, mu)
    assert least_error(moved, 1e-9) == pytest.approx(moved / 2)
