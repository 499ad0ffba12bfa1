"""What a sliced-Wasserstein study may ask, and what its public signal decides."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.base.errors import InvalidInput
from penstock.mechanisms.sliced_wasserstein.settings import SlicedWasserstein
from penstock.mechanisms.sliced_wasserstein.sketch import measure_sketch
from penstock.mechanisms.sliced_wasserstein.tuning import tune
from penstock.schema import Column, Schema


def schema(columns: int, rows: int = 1) -> Schema:
    held = tuple(Column(f"x{i}", "continuous", 0.0, 1.0, 2) for i in range(columns))
    person = "id" if rows > 1 else None
    return Schema(held, person=person, max_rows_per_person=rows)


def fields(mechanism: SlicedWasserstein, given: Schema) -> list[str]:
    return [problem.where for problem in mechanism.problems(given, [])]


def test_what_the_schema_shows_wrong_is_said_before_any_budget() -> None:
    assert fields(SlicedWasserstein(), schema(2)) == []
    assert fields(SlicedWasserstein(), schema(1)) == ["name"]
    assert fields(SlicedWasserstein(bases=512), schema(9)) == ["bases"]
    assert fields(SlicedWasserstein(bases=512), schema(8)) == []
    assert fields(SlicedWasserstein(variant="resampled"), schema(3, 2)) == ["variant"]
    assert fields(SlicedWasserstein(variant="presampled"), schema(3, 2)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"variant": "other"},
        {"steps": 0},
        {"bases": 0},
        {"bins": 7},
        {"batch": 0},
        {"step": 0.0},
        {"step": 1.5},
        {"step": float("nan")},
        {"diffusion": -1.0},
        {"diffusion": float("inf")},
    ],
)
def test_settings_out_of_their_bounds_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        SlicedWasserstein(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("d", [1, 2, 8, 50])
@pytest.mark.parametrize("persons", [1, 50, 5000, 10**7])
def test_tuning_is_sound_at_every_signal_and_grows_with_it(d: int, persons: int) -> None:
    tuned = [tune(persons / sigma, persons, d) for sigma in (1e6, 30, 3, 0.3, 1e-6)]
    for one in tuned:
        assert measure_sketch(1.0, one.bases * d, one.bins, 1).size == one.bases * d * one.bins
        assert 1 <= one.bases * d <= 512 + d
        assert 0 < one.share < 1
    assert [t.bases for t in tuned] == sorted(t.bases for t in tuned)
    assert [t.bins for t in tuned] == sorted(t.bins for t in tuned)


def test_pricing_loads_no_torch() -> None:
    code = (
        "import sys; import penstock.mechanisms.sliced_wasserstein.body;"
        "import penstock.mechanisms.sliced_wasserstein.tuning; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
