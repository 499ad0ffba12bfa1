"""Pooling against R's metafor 3.8 (tests/golden/data/meta_analysis.R), and its own laws.

Tolerance 1e-10 relative (absolute below 1): both sides iterate to machine precision; the largest
deviation seen is 3.5e-13, so that the tolerance only leaves room for other CPUs and BLAS builds.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.base.errors import InvalidInput
from penstock.inference import pooling

ORACLE: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "meta_analysis.json").read_text(encoding="utf-8")
)
BLOCKS = ("bcg_logRR", "bcg_OR", "small_k3", "homogeneous_k5", "k2")
METHODS: dict[str, pooling.Estimated] = {
    "FE": "fixed",
    "DL": "dl",
    "PM": "pm",
    "REML": "reml",
    "ML": "ml",
    "HS": "hs",
    "HSk": "hsk",
    "HE": "he",
    "SJ": "sj",
    "EB": "eb",
}
TESTS: dict[str, pooling.Test] = {
    "z": "z",
    "knha": "knapp-hartung",
    "adhoc": "knapp-hartung-floored",
}
RESULTS = [
    (block, key)
    for block in BLOCKS
    for key, value in ORACLE[block].items()
    if isinstance(value, dict) and "test" in value
]
REL = 1e-10


def near(value: float) -> Any:
    return pytest.approx(value, rel=REL, abs=REL)


@pytest.mark.parametrize(("block", "key"), RESULTS)
def test_pooled_agrees_with_metafor(block: str, key: str) -> None:
    data, gold = ORACLE[block], ORACLE[block][key]
    got = pooling.pool(
        data["yi"], data["vi"], method=METHODS[gold["method"]], test=TESTS[gold["test"]]
    )
    assert {
        "estimate": got.estimate,
        "se": got.se,
        "stat": got.statistic,
        "pval": got.p_value,
        "ci_lb": got.ci_low,
        "ci_ub": got.ci_high,
        "tau2": got.tau2,
        "Q": got.q,
        "Q_p": got.q_p,
        "I2_pct": 100 * got.i2,
        "H2": got.h2,
    } == {
        name: near(gold[name])
        for name in ("estimate", "se", "stat", "pval", "ci_lb", "ci_ub", "tau2", "Q", "Q_p",
                     "I2_pct", "H2")
    }  # fmt: skip


@pytest.mark.parametrize(
    ("block", "key"), [(b, k) for b, k in RESULTS if "pi_HTS_k2" in ORACLE[b][k] and b != "k2"]
)
def test_prediction_interval_agrees_with_metafor(block: str, key: str) -> None:
    data, gold = ORACLE[block], ORACLE[block][key]
    got = pooling.pool(
        data["yi"], data["vi"], method=METHODS[gold["method"]], test=TESTS[gold["test"]]
    )
    assert [got.pi_low, got.pi_high] == near(gold["pi_HTS_k2"])


@pytest.mark.parametrize("method", pooling.METHODS)
@pytest.mark.parametrize("test", pooling.TESTS)
def test_one_site_is_its_own_estimate(method: pooling.Estimated, test: pooling.Test) -> None:
    got = pooling.pool([0.3], [0.04], method=method, test=test)
    assert (got.estimate, got.tau2, got.i2, got.h2, got.q, got.q_p) == (0.3, 0, 0, 1, 0, 1)
    assert got.se == pytest.approx(0.2)
    assert (got.test, got.df, got.pi_low, got.weights) == ("z", None, None, (1.0,))


@pytest.mark.parametrize("method", pooling.METHODS[1:])
def test_no_prediction_interval_below_three_sites(method: pooling.Method) -> None:
    assert pooling.pool([0.2, 0.9], [0.03, 0.05], method=method).pi_low is None
    assert pooling.pool([0.2, 0.9, 0.5], [0.03, 0.05, 0.04], method=method).pi_low is not None


@pytest.mark.parametrize("method", pooling.METHODS[1:])
def test_tau2_is_never_negative(method: pooling.Method) -> None:
    assert pooling.pool([0.5, 0.5, 0.5], [0.1, 0.2, 0.3], method=method).tau2 == 0.0


def test_paule_mandel_solves_its_equation() -> None:
    data = ORACLE["bcg_logRR"]
    y, v = np.array(data["yi"]), np.array(data["vi"])
    got = pooling.pool(y, v, method="pm")
    assert ((y - got.estimate) ** 2 / (v + got.tau2)).sum() == pytest.approx(len(y) - 1, rel=1e-12)


def test_reml_finds_the_higher_of_two_maxima() -> None:
    """Precise sites that nearly agree and one vague site far off: 0.004 and 1.8 are both maxima."""
    y = np.array([0.004, 0.059, 4.14, -0.012, 0.005, -0.108, -0.334])
    v = np.array([3.021e-3, 5.1e-5, 0.598564, 1.079e-3, 0.82831, 7.2e-5, 3.922628])

    def log_likelihood(tau2: float) -> float:
        w = 1 / (v + tau2)
        mu = (w @ y) / w.sum()
        return 0.5 * float(np.log(w).sum() - math.log(w.sum()) - w @ (y - mu) ** 2)

    grid = np.geomspace(1e-6, 100, 2000)
    values = np.array([log_likelihood(t) for t in grid])
    peaks = 1 + np.flatnonzero((values[1:-1] > values[:-2]) & (values[1:-1] > values[2:]))
    assert len(peaks) == 2
    got = pooling.pool(y, v, method="reml", test="z")
    assert got.tau2 == pytest.approx(grid[values.argmax()], rel=0.01)
    assert log_likelihood(got.tau2) >= values.max()


@pytest.mark.parametrize("method", ["dl", "reml", "ml"])
def test_many_sites_are_pooled_as_few_are(method: pooling.Estimated) -> None:
    """Beyond a hundred sites sums are made otherwise: by the definitions, it is the same."""
    rng = np.random.default_rng(11)
    v = rng.uniform(0.01, 0.3, 150)
    y = rng.normal(0, np.sqrt(v + 0.05))
    got, w = pooling.pool(y, v, method=method), 1 / v
    cross = sum(w[i] * w[j] for i in range(150) for j in range(150) if i != j)
    assert got.i2 == near(got.tau2 / (got.tau2 + 149 * w.sum() / cross))
    if method == "dl":
        assert got.tau2 == near((got.q - 149) * w.sum() / cross)
        return
    u = 1 / (v + got.tau2)
    score = float(u**2 @ (y - got.estimate) ** 2) - u.sum()
    score += (u**2).sum() / u.sum() if method == "reml" else 0.0
    assert score == pytest.approx(0, abs=1e-8 * u.sum())


def test_plain_knapp_hartung_collapses_where_the_floored_one_does_not() -> None:
    data = ORACLE["homogeneous_k5"]
    plain = pooling.pool(data["yi"], data["vi"], test="knapp-hartung")
    floored = pooling.pool(data["yi"], data["vi"], test="knapp-hartung-floored")
    normal = pooling.pool(data["yi"], data["vi"], test="z")
    assert plain.se < 0.2 * normal.se
    assert floored.se == pytest.approx(normal.se)
    assert floored.ci_high > normal.ci_high


@pytest.mark.parametrize("method", pooling.METHODS)
def test_pooling_is_equivariant(method: pooling.Method) -> None:
    """y → a·y + b with v → a²v moves the estimate by the same map, τ² by a², I² not at all."""
    data = ORACLE["bcg_logRR"]
    y, v = np.array(data["yi"]), np.array(data["vi"])
    one = pooling.pool(y, v, method=method)
    two = pooling.pool(1e3 * y + 7, 1e6 * v, method=method)
    assert two.estimate == pytest.approx(1e3 * one.estimate + 7, rel=1e-10)
    assert two.ci_high == pytest.approx(1e3 * one.ci_high + 7, rel=1e-10)
    assert two.tau2 == pytest.approx(1e6 * one.tau2, rel=1e-9)
    assert two.i2 == pytest.approx(one.i2, rel=1e-10)


@pytest.mark.parametrize("method", pooling.METHODS)
@pytest.mark.parametrize(
    ("y", "v"),
    [
        ([0.1, 0.2, 0.3, 1e6], [0.01, 0.01, 0.01, 1e-12]),
        ([0.0, 1e50, -1e50], [1e-50, 1e50, 1.0]),
        ([0.0, 0.0, 0.0], [1e-40, 1.0, 1e40]),
        ([1e-30, 2e-30], [1e-60, 1e-60]),
    ],
)
def test_extreme_sites_give_finite_results(
    method: pooling.Estimated, y: list[float], v: list[float]
) -> None:
    got = pooling.pool(y, v, method=method)
    assert all(
        map(math.isfinite, (got.estimate, got.se, got.tau2, got.q, got.i2, got.h2, got.p_value))
    )
    assert sum(got.weights) == pytest.approx(1)
    assert 0 <= got.i2 <= 1


@pytest.mark.parametrize(
    ("y", "v", "options", "where"),
    [
        ([], [], {}, "estimates, variances"),
        ([1.0, 2.0], [1.0], {}, "estimates, variances"),
        ([[1.0]], [[1.0]], {}, "estimates, variances"),
        ([math.nan], [1.0], {}, "estimates"),
        ([math.inf], [1.0], {}, "estimates"),
        ([1.0], [math.nan], {}, "variances"),
        ([1.0], [0.0], {}, "variances"),
        ([1.0], [-1.0], {}, "variances"),
        ([1.0], [math.inf], {}, "variances"),
        ([1e99], [1.0], {}, "estimates, variances"),
        ([1.0], [1e-99], {}, "estimates, variances"),
        ([1.0], [1.0], {"level": 1.0}, "level"),
        ([1.0], [1.0], {"level": math.nan}, "level"),
        ([1.0], [1.0], {"method": "chi2"}, "method"),
        ([1.0], [1.0], {"test": "t"}, "test"),
    ],
)
def test_bad_input_is_refused(y: Any, v: Any, options: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        pooling.pool(y, v, **options)
    assert where in [problem.where for problem in caught.value.problems]
