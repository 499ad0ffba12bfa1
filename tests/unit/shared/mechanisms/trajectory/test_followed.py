"""Rows become persons by time point."""

import numpy as np

from penstock.mechanisms.trajectory.followed import follow

nan = np.nan
ROWS = {
    "x": np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
    "sex": np.array([[nan, 1.0, 0.0], [0.0, 1.0, 1.0]]),
}
BINS = np.array([[2, 0, 2], [1, 1, 0]])


def test_of_several_rows_at_a_time_the_first_counts() -> None:
    made = follow(ROWS, np.ones((2, 3), bool), BINS, 3, ("x",), ("sex",))
    assert made.there.tolist() == [[True, False, True], [True, True, False]]
    assert made.varying["x"][0, [0, 2]].tolist() == [2.0, 1.0]
    assert made.varying["x"][1, [0, 1]].tolist() == [6.0, 4.0]


def test_of_a_constant_the_first_known_value_counts() -> None:
    made = follow(ROWS, np.ones((2, 3), bool), BINS, 3, ("x",), ("sex",))
    assert made.constants["sex"].tolist() == [1.0, 0.0]


def test_what_is_absent_is_nowhere() -> None:
    present = np.array([[False, False, True], [False, False, False]])
    made = follow(ROWS, present, BINS, 3, ("x",), ("sex",))
    assert made.there.tolist() == [[False, False, True], [False] * 3]
    assert made.constants["sex"][0] == 0.0
    assert np.isnan(made.constants["sex"][1])
    assert made.seen.tolist() == [True, False]
