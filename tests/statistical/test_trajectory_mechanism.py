"""Trajectories from rows to parts: shapes, hostile rows, and whether the parts are like them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.base.errors import InvalidInput
from penstock.mechanisms import Trajectory
from penstock.mechanisms.parts import Part
from penstock.mechanisms.released import PARTICLES, PATHS, name_copy, name_refit
from penstock.mechanisms.trajectory.plan import Plan, plan
from penstock.mechanisms.trajectory.run import fit, half_widths, run, unit_rows
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Column, Schema
from penstock.schema.encoding import Encoding

Array = NDArray[np.float64]

COLUMNS = (
    Column("visit", "integer", lower=1, upper=5),
    Column("x", "continuous", lower=-2, upper=2, decimals=2),
    Column("y", "continuous", lower=0, upper=10, nullable=True),
    Column("sex", "binary"),
)
SMALL: dict[str, Any] = {
    "time": "visit",
    "copies": 2,
    "refits": 1,
    "particles": 20,
    "paths": 6,
    "path_times": 9,
    "steps": 12,
}


def cohort(n: int, k: int = 1, seed: int = 0) -> dict[str, Array]:
    """x rises and y falls with the visit; a fifth of y is missing; the sexes are apart in x."""
    rng = np.random.default_rng(seed)
    visit = 1.0 + np.argsort(rng.random((n, 5)), axis=1)[:, :k]
    sex = np.repeat(rng.integers(0, 2, (n, 1)), k, axis=1).astype(float)
    x = np.clip(0.5 * (visit - 3) + 0.6 * (sex - 0.5) + 0.2 * rng.standard_normal((n, k)), -2, 2)
    y = np.clip(8 - visit + 0.7 * rng.standard_normal((n, k)), 0, 10)
    y[rng.random((n, k)) < 0.2] = np.nan
    coded = {"visit": visit, "x": x.round(2), "y": y, "sex": sex}
    return {name: values.ravel() for name, values in coded.items()}


def made(
    n: int = 300, k: int = 1, epsilon: float = 5.0, **settings: Any
) -> tuple[Plan, Encoding, Array, NDArray[np.bool_]]:
    schema = Schema(COLUMNS, "id" if k > 1 else None, k)
    encoding = Encoding(schema)
    x, there = encoding.encode(cohort(n, k), np.random.default_rng(1))
    how = plan(Trajectory(**{**SMALL, **settings}), schema, n, PrivacyRequest(epsilon, 1e-4))
    return how, encoding, x.reshape(n, k, -1), there.reshape(n, k)


def parts(*given: Any, seed: int = 0, **more: Any) -> list[Part]:
    return list(run(*given, SeededNoise(seed), **more))


def check(how: Plan, encoding: Encoding, released: list[Part]) -> None:
    """What every release must be, whatever the rows."""
    used = len(how.times.used)
    sizes: Counter[str] = Counter()
    for part in released:
        sizes[part.name] += part.rows
    copies = [name_copy(i + 1) for i in range(how.copies)]
    refits = [name_refit(i + 1) for i in range(how.refits)]
    # Made in this order, whatever is made piece by piece.
    assert list(sizes) == [*copies, PARTICLES, PATHS, *refits]
    # As many rows as were counted, of one model; of a public start, as the frame has places.
    assert len({sizes[copy] for copy in copies}) == 1
    most = how.persons * how.rows
    least = 1 if how.start.sigma is not None else most
    assert all(least <= sizes[table] <= most for table in copies + refits)
    assert sizes[PARTICLES] == used * how.particles
    assert sizes[PATHS] == how.paths * how.path_times
    for part in released:
        assert tuple(part.columns) == encoding.schema.names
        for name, values in part.columns.items():
            assert len(values) == part.rows
            column = encoding.schema[name]
            np.testing.assert_array_equal(values, column.snap(values))
            assert column.nullable or np.isfinite(values).all()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"coupling": "exact"},
        {"start": "public"},
        {"start": "k-means", "modes": 2},
        {"subsample": 3},
        {"rate": 1.0},
        {"points": 2},
        {"refits": 0},
    ],
)
def test_every_release_has_its_shape(settings: Any) -> None:
    given = made(**settings)
    check(*given[:2], parts(*given))


def test_persons_with_several_rows() -> None:
    given = made(n=120, k=3)
    check(*given[:2], parts(*given))


@pytest.mark.parametrize(
    "case", ["nobody", "one place", "not finite", "one visit", "an empty visit", "one person"]
)
@pytest.mark.parametrize("start", ["gaussian", "k-means"])
def test_degenerate_rows_get_a_sound_answer(case: str, start: str) -> None:
    modes = {"start": start, "modes": 2} if start == "k-means" else {}
    how, encoding, rows, there = made(**modes)
    rows, there = rows.copy(), there.copy()
    coded = cohort(300)
    if case == "nobody":
        there[:] = False
    elif case == "one place":
        rows[:] = rows[0]
    elif case == "not finite":
        rows[::3] = np.nan
        rows[1::3, :, 1] = np.inf
        rows[2::3, :, 0] = -np.inf
    elif case == "one visit":
        coded["visit"][:] = 3
    elif case == "an empty visit":
        coded["visit"][coded["visit"] == 3] = 1
    else:
        there[1:] = False
    if case.endswith("visit"):
        flat, _ = encoding.encode(coded, np.random.default_rng(1))
        rows = flat.reshape(rows.shape)
    check(how, encoding, parts(how, encoding, rows, there))


def test_one_seed_gives_one_release_and_another_another() -> None:
    given = made(n=100)
    first, again, other = (parts(*given, seed=seed) for seed in (3, 3, 4))
    for a, b in zip(first, again, strict=True):
        for name in a.columns:
            np.testing.assert_array_equal(a.columns[name], b.columns[name])
    assert not np.array_equal(first[0].columns["x"], other[0].columns["x"])


@pytest.mark.parametrize(("dtype", "device"), [("float32", "cpu"), ("float64", "cpu")])
def test_both_precisions_agree_as_far_as_they_can(dtype: str, device: str) -> None:
    given = made(n=200, steps=4)
    exact = fit(*given, SeededNoise(5), dtype="float64").particles
    model = fit(*given, SeededNoise(5), dtype=dtype, device=device)
    assert model.particles.shape == (5, 20, 4)
    assert model.particles.dtype == np.float64
    np.testing.assert_allclose(model.particles, exact, atol=0.0 if dtype == "float64" else 1e-3)


def test_progress_counts_the_run_and_its_refits() -> None:
    seen: list[tuple[int, int]] = []
    parts(*made(n=60), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i, 24) for i in range(1, 25)]


def test_shapes_that_are_not_the_plans_are_refused() -> None:
    how, encoding, rows, there = made(n=50)
    with pytest.raises(InvalidInput):
        parts(how, encoding, rows[1:], there[1:])


def test_the_unit_space_is_the_box_and_the_time_is_no_part_of_it() -> None:
    how, encoding, rows, there = made(n=50)
    z, bins, present = unit_rows(how, encoding, rows, there)
    assert z.shape == (50, 1, 4)
    assert (np.abs(z) <= half_widths(how, encoding)).all()
    np.testing.assert_array_equal(bins[:, 0], cohort(50)["visit"] - 1)
    assert present.all()


# Whether it is like the rows ----------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3])
def test_tables_are_like_the_rows(k: int) -> None:
    n = 8000
    given = made(n=n, k=k, epsilon=8.0, particles=60, steps=60, paths=300)
    real = cohort(n, k)
    released = parts(*given)
    table = released[0].columns
    for visit in range(1, 6):
        a, b = (c["visit"] == visit for c in (real, table))
        assert np.mean(b) == pytest.approx(np.mean(a), abs=0.01)
        assert np.mean(table["x"][b]) == pytest.approx(np.mean(real["x"][a]), abs=0.08)
        assert np.std(table["x"][b]) == pytest.approx(np.std(real["x"][a]), rel=0.3)
        assert np.nanmean(table["y"][b]) == pytest.approx(np.nanmean(real["y"][a]), abs=0.3)
        assert np.mean(np.isnan(table["y"][b])) == pytest.approx(0.2, abs=0.08)
        men, women = (np.mean(table["x"][b & (table["sex"] == s)]) for s in (1, 0))
        assert 0.35 < men - women < 0.85
    # Paths follow the trend too.
    walks = [p for p in released if p.name == PATHS]
    x = np.concatenate([p.columns["x"] for p in walks]).reshape(300, 9)
    np.testing.assert_allclose(x.mean(axis=0), np.linspace(-1, 1, 9), atol=0.2)


def test_little_budget_or_few_persons_leave_it_sound() -> None:
    given = made(n=30, epsilon=0.05)
    check(*given[:2], parts(*given))
