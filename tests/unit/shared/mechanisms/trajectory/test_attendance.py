"""Who is seen when: counted, read and drawn."""

import numpy as np
import pytest

from penstock.mechanisms.trajectory.attendance import (
    Attendance,
    AttendanceScores,
    cells_of,
    count_attendance,
    spans_of,
)

LATENTS = np.random.default_rng(0).standard_normal((4000, 3))
UNIFORMS = np.random.default_rng(1).random((4000, 5))


def dropping_out(n: int, rng: np.random.Generator) -> np.ndarray:
    """Persons who leave for good, and sometimes miss a visit between; some are never there."""
    last = rng.integers(0, 5, n)
    at = np.arange(5)
    there = at <= last[:, None]
    missed = rng.random((n, 5)) < [0, 0.4, 0.1, 0.1, 0]
    there &= ~(missed & (at < last[:, None]))
    there[: n // 10] = False
    return there


def read(there: np.ndarray, noise: float = 0.0, most: int = 5) -> Attendance:
    rng = np.random.default_rng(1)
    spans, visits, present, total = (
        counts + noise * rng.standard_normal(len(counts)) for counts in count_attendance(there)
    )
    return Attendance.read(spans, visits, present, float(total[0]), most, LATENTS, UNIFORMS)


def test_spans_are_first_last_and_how_many() -> None:
    there = np.array([[0, 1, 0, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]], dtype=bool)
    assert [each.tolist() for each in spans_of(there)] == [[1, 0, 0], [3, 4, 0], [2, 5, 0]]


def test_everybody_is_in_one_cell_of_each() -> None:
    spans, visits, present, total = count_attendance(dropping_out(200, np.random.default_rng(2)))
    assert spans.sum() == visits.sum() == total[0] == 180
    assert len(spans) == len(visits) == cells_of(5)
    assert len(present) == 5


@pytest.mark.parametrize("noise", [0.0, 15.0])
def test_who_is_there_returns(noise: float) -> None:
    """Shares by time point, and of each number of visits, within sampling and noise."""
    real = dropping_out(4000, np.random.default_rng(3))
    real = real[real.any(axis=1)]
    made = read(real, noise)
    rng = np.random.default_rng(4)
    drawn = made.draw(rng.standard_normal((20_000, 3)), rng.random((20_000, 5)))
    room = 0.02 + 2 * noise / len(real)
    assert np.abs(drawn.mean(axis=0) - real.mean(axis=0)).max() < room
    many = [np.bincount(x.sum(axis=1), minlength=6) / len(x) for x in (drawn, real)]
    assert np.abs(many[0] - many[1]).max() < room


def test_nobody_returns_who_has_dropped_out() -> None:
    """Where all are there until they leave, so are those who are drawn."""
    at = np.arange(5)
    real = at <= np.random.default_rng(5).integers(0, 5, 3000)[:, None]
    rng = np.random.default_rng(6)
    drawn = read(real).draw(rng.standard_normal((5000, 3)), rng.random((5000, 5)))
    assert (np.diff(drawn.astype(int), axis=1) <= 0).mean() > 0.999


def test_noise_alone_makes_no_attendance_that_adds_up_to_more() -> None:
    """Of counts that are all noise each is somebody's, and all are drawn somewhere."""
    made = read(np.zeros((50, 5), dtype=bool) | (np.arange(5) == 0), noise=40.0)
    assert np.allclose([made.spans.sum(), made.visits.sum()], 1)
    assert made.draw(LATENTS, UNIFORMS).any(axis=1).all()


def test_scores_are_of_mean_0_and_spread_1() -> None:
    there = dropping_out(3000, np.random.default_rng(7))
    there = there[there.any(axis=1)]
    scores = AttendanceScores.of(there)(there)
    assert np.abs(scores.mean(axis=0)).max() < 1e-9
    assert np.allclose(scores.std(axis=0)[[0, 2]], 1)  # all begin at the first visit
