"""Tables by particles: what is charged, and that the synthetic rows are those of the table."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ks_2samp

from penstock.base.errors import InvalidInput
from penstock.mechanisms import SlicedWasserstein
from penstock.mechanisms.released import name_copy, name_refit
from penstock.mechanisms.sliced_wasserstein.body import Sliced
from penstock.mechanisms.sliced_wasserstein.plan import plan, plan_columns
from penstock.mechanisms.tables import run as mechanism
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Column, Schema
from penstock.schema.encoding import Encoding

SCHEMA = Schema(
    (
        Column("age", "continuous", 20, 90, decimals=0),
        Column("smoker", "binary"),
        Column("sbp", "continuous", 80, 220, decimals=0),
        Column("ward", "categorical", levels=("a", "b", "c")),
    )
)
VARIANTS = ("sketch", "resampled", "presampled")


def patients(n: int) -> dict[str, np.ndarray]:
    """Blood pressure rises to either side of middle age: a dependence without a correlation."""
    rng = np.random.default_rng(0)
    age = rng.normal(55, 10, n).clip(20, 90)
    smoker = (rng.random(n) < 0.4).astype(float)
    sbp = (110 + 2.5 * np.abs(age - 55) + 10 * smoker + rng.normal(0, 6, n)).clip(80, 220)
    ward = rng.choice(3, n, p=(0.6, 0.3, 0.1)).astype(float)
    return {"age": np.rint(age), "smoker": smoker, "sbp": np.rint(sbp), "ward": ward}


def released(
    asked: SlicedWasserstein, n: int, epsilon: float, seed: int = 0, threads: int = 1
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The rows, and what a site would release of them."""
    encoding, table = Encoding(SCHEMA), patients(n)
    rows, present = encoding.encode(table, np.random.default_rng(1))
    planned = plan(asked, SCHEMA, n, PrivacyRequest(epsilon, 1e-5))
    given = (planned, encoding, rows[:, None], present[:, None], SeededNoise(seed))
    return table, dict(mechanism.draw(*given, threads=threads))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_stage_is_charged_at_the_noise_it_has(variant: str) -> None:
    planned = plan_columns(SlicedWasserstein(variant), 6, 1, 3000, PrivacyRequest(1.0, 1e-5))
    body = planned.stages.body
    assert isinstance(body, Sliced)
    assert planned.measurements == planned.stages.measurements
    assert body.measurement.event in planned.events
    assert 0.98 < planned.epsilon <= 1.0
    assert planned.epsilon == epsilon(planned.events, 1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_copies_and_refits_have_the_tables_size_and_repeat_by_their_seed(variant: str) -> None:
    asked = SlicedWasserstein(variant, copies=2, refits=1, steps=5, bases=4)
    _, tables = released(asked, 500, 1.0)
    first, second = name_copy(1), name_copy(2)
    assert list(tables) == [first, second, name_refit(1)]
    assert {t.shape[1] for t in tables.values()} == {Encoding(SCHEMA).d}
    assert len(tables[first]) == len(tables[second])
    assert all(400 < len(t) <= 500 for t in tables.values())  # by a noisy count, cut off at n
    assert all(np.isfinite(t).all() for t in tables.values())
    _, again = released(asked, 500, 1.0)
    assert all(np.array_equal(tables[i], again[i]) for i in tables)
    assert not np.array_equal(tables[first], tables[second])


def test_threads_change_no_number() -> None:
    asked = SlicedWasserstein(copies=1, refits=3, steps=5, bases=4)
    one, two = (released(asked, 400, 1.0, threads=t)[1] for t in (1, 2))
    assert sorted(one) == sorted(two)
    assert all(np.array_equal(one[i], two[i]) for i in one)


def test_the_sketch_sees_what_correlations_do_not() -> None:
    """Against the same release whose flow hardly leaves its start, a Gaussian copula."""
    table, found = released(SlicedWasserstein(copies=5, refits=0), 6000, 3.0)
    synthetic = Encoding(SCHEMA).decode(np.concatenate(list(found.values())))
    for name in ("age", "sbp"):
        assert ks_2samp(table[name], synthetic[name]).statistic < 0.03
    for name, level, share in (("smoker", 1, 0.4), ("ward", 1, 0.3), ("ward", 2, 0.1)):
        assert np.mean(synthetic[name] == level) == pytest.approx(share, abs=0.03)

    def bent(rows: dict[str, np.ndarray]) -> float:
        return float(np.corrcoef(np.abs(rows["age"] - 55), rows["sbp"])[0, 1])

    assert bent(table) > 0.8
    assert bent(synthetic) > 0.6
    _, plain = released(SlicedWasserstein(copies=5, refits=0, steps=1, step=1e-6), 6000, 3.0)
    assert abs(bent(Encoding(SCHEMA).decode(np.concatenate(list(plain.values()))))) < 0.2


def test_a_batch_is_of_persons_with_one_row() -> None:
    with pytest.raises(InvalidInput, match="one row each"):
        plan_columns(SlicedWasserstein("resampled"), 6, 2, 100, PrivacyRequest(1.0, 1e-5))


def test_only_the_formal_guarantee_is_on_offer() -> None:
    with pytest.raises(InvalidInput, match="not on offer"):
        plan(SlicedWasserstein(), SCHEMA, 100, PrivacyRequest(1.0, 1e-5, "empirical"))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("present", [True, False])
def test_rows_that_say_nothing_get_an_answer_like_any_other(variant: str, present: bool) -> None:
    """All rows equal, or none at all."""
    encoding, n = Encoding(SCHEMA), 200
    planned = plan(
        SlicedWasserstein(variant, copies=1, refits=1, steps=10),
        SCHEMA,
        n,
        PrivacyRequest(1.0, 1e-5),
    )
    rows = np.zeros((n, 1, encoding.d)) + (0.5 if present else 0.0)
    there = np.full((n, 1), present)
    tables = dict(mechanism.draw(planned, encoding, rows, there, SeededNoise(0)))
    assert all(np.isfinite(t).all() for t in tables.values())
