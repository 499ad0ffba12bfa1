"""Points that fill a cube evenly."""

import numpy as np
import pytest

from penstock.mechanisms.sobol import draw_sobol


@pytest.mark.parametrize("rng", [5, np.random.default_rng(5)], ids=["seed", "generator"])
def test_each_column_has_one_point_in_each_of_as_many_parts(rng: int | np.random.Generator) -> None:
    points = draw_sobol(3, 6, rng)
    assert points.shape == (64, 3)
    parts = np.sort(np.floor(points * 64), axis=0)
    assert np.array_equal(parts, np.repeat(np.arange(64.0)[:, None], 3, axis=1))


def test_a_seed_draws_the_same_points_again_and_a_generator_others() -> None:
    assert np.array_equal(draw_sobol(2, 4, 7), draw_sobol(2, 4, 7))
    rng = np.random.default_rng(7)
    assert not np.array_equal(draw_sobol(2, 4, rng), draw_sobol(2, 4, rng))
