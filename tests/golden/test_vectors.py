"""Several outcomes of a site, pooled together, against R's metafor 3.8, and their own laws.

Data and their script: tests/golden/data/stratified_multivariate.R. What is in closed form (the
fixed effect, and a T that is known) agrees to 1e-10 relative (absolute below 1; the largest
deviation seen is 6e-14). Of the restricted likelihood both sides end where an optimiser does: at a
maximum a slope of 1e-9 moves T by about as much, over the curvature there. The largest deviations
seen are 6e-9 in T and 1.1e-9 in the estimates, with metafor's optimisers at the tightest tolerances
that they reach, and the best of five of them (which end up to 1e-4 apart); 1e-7 leaves room for
other CPUs. The likelihood itself agrees to 1e-10, as it is flat there.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from penstock.base.errors import InvalidInput
from penstock.inference import pooling
from penstock.inference.vectors import PooledVector, pool_vectors

ORACLE: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "stratified_multivariate.json").read_text(encoding="utf-8")
)["vectors"]
CLOSED, CLIMBED = 1e-10, 1e-7


def near(value: Any, within: float = CLOSED) -> Any:
    return pytest.approx(value, rel=within, abs=within)


def data_of(block: str) -> tuple[np.ndarray, np.ndarray]:
    """Estimates (k, p), NaN where there is none, and covariances (k, p, p)."""
    told = ORACLE[block]
    return np.array(told["y"], dtype=float), np.array(told["s"], dtype=float)


def check(got: PooledVector, gold: Any, within: float) -> None:
    assert list(got.estimates) == near(gold["estimates"], within)
    assert got.covariance == near(np.array(gold["covariance"]), within)
    assert (got.q, got.q_df, got.q_p) == near((gold["q"], gold["q_df"], gold["q_p"]))
    assert got.log_likelihood == near(gold["log_likelihood"])
    assert list(got.errors) == near(np.sqrt(np.diag(gold["covariance"])).tolist(), within)


@pytest.mark.parametrize("block", ORACLE)
def test_fixed_effects_agree_with_metafor(block: str) -> None:
    got = pool_vectors(*data_of(block), method="fixed")
    check(got, ORACLE[block]["FE"], CLOSED)
    assert not got.between.any()


@pytest.mark.parametrize("block", ORACLE)
def test_a_known_t_agrees_with_metafor(block: str) -> None:
    gold = ORACLE[block]["given"]
    check(pool_vectors(*data_of(block), between=gold["between"]), gold, CLOSED)


@pytest.mark.parametrize("block", ORACLE)
def test_restricted_likelihood_agrees_with_metafor(block: str) -> None:
    gold, got = ORACLE[block]["REML"], pool_vectors(*data_of(block))
    check(got, gold, CLIMBED)
    assert got.between == near(np.array(gold["between"]), CLIMBED)
    assert np.linalg.eigvalsh(got.between).min() > -1e-12


@pytest.mark.parametrize("method", ["fixed", "reml"])
def test_one_outcome_is_pooling(method: Any) -> None:
    y, v = [0.1, 0.4, -0.3, 0.8, 0.2], [0.01, 0.03, 0.02, 0.05, 0.3]
    want = pooling.pool(y, v, method=method, test="z")
    got = pool_vectors(np.array(y)[:, None], np.array(v)[:, None, None], method=method)
    assert [got.estimates[0], got.errors[0], got.low[0], got.high[0], got.p_values[0]] == near(
        [want.estimate, want.se, want.ci_low, want.ci_high, want.p_value], 1e-8
    )
    assert (got.between[0, 0], got.q, got.q_p) == near((want.tau2, want.q, want.q_p), 1e-8)


def test_outcomes_that_have_nothing_to_do_with_each_other_are_pooled_alone() -> None:
    y, s = data_of("three")
    s = s * np.eye(3)
    got = pool_vectors(y, s, method="fixed")
    for j in range(3):
        told = np.isfinite(y[:, j])
        want = pooling.pool(y[told, j], s[told, j, j], method="fixed", test="z")
        assert (got.estimates[j], got.errors[j]) == near((want.estimate, want.se))
    assert got.counts == tuple(np.isfinite(y).sum(axis=0).tolist())


def test_t_is_0_where_sites_agree() -> None:
    y, s = data_of("berkey1998")
    alike = np.tile([0.3, -0.2], (5, 1))
    got = pool_vectors(alike, s)
    assert np.abs(got.between).max() < 1e-8
    assert got.estimates == near((0.3, -0.2), 1e-8)
    fixed = pool_vectors(y, s, method="fixed")
    assert pool_vectors(y, s, between=np.zeros((2, 2))).covariance == near(fixed.covariance)


@pytest.mark.parametrize("block", ["berkey1998", "lost", "three"])
def test_the_likelihood_is_a_density_and_nowhere_higher(block: str) -> None:
    """Restricted: of contrasts that are free of μ, by scipy's normal density; and tried at T that
    are near and far."""
    y, s = data_of(block)
    k, p = y.shape
    seen = np.isfinite(y).ravel()
    x = np.tile(np.eye(p), (k, 1))[seen]
    free = np.linalg.svd(x.T)[2][p:]

    def log_likelihood(t: np.ndarray) -> float:
        whole = np.zeros((k * p, k * p))
        for i in range(k):
            at = slice(i * p, i * p + p)
            whole[at, at] = s[i] + t
        covariance = free @ whole[np.ix_(seen, seen)] @ free.T
        return float(
            stats.multivariate_normal.logpdf(
                free @ y.ravel()[seen], np.zeros(len(free)), covariance
            )
        )

    got = pool_vectors(y, s)
    highest = log_likelihood(got.between)
    # metafor's constant: contrasts of length 1 have none.
    assert got.log_likelihood == near(highest, 1e-8)
    rng = np.random.default_rng(2)
    for size in (1e-3, 1e-2, 0.1, 1.0):
        for _ in range(50):
            root = rng.normal(size=(p, p)) * math.sqrt(size * np.trace(got.between) / p)
            assert log_likelihood(got.between + root @ root.T) < highest + 1e-10
            assert log_likelihood(root @ root.T) < highest + 1e-10


def test_units_and_order_do_not_matter() -> None:
    y, s = data_of("three")
    one, units, turn = pool_vectors(y, s), np.array([1e-3, 1.0, 1e4]), [2, 0, 1]
    two = pool_vectors((y * units)[:, turn], (s * np.outer(units, units))[:, turn][:, :, turn])
    assert two.estimates == near(tuple((np.array(one.estimates) * units)[turn].tolist()), 1e-6)
    scaled = two.between / np.outer(units, units)[np.ix_(turn, turn)]
    assert scaled == near(one.between[np.ix_(turn, turn)], 1e-6)
    assert (two.q, two.q_p) == near((one.q, one.q_p))


def test_what_is_not_told_is_not_read_and_silent_sites_do_not_count() -> None:
    y, s = data_of("lost")
    hidden = s.copy()
    hidden[1, 0, :] = hidden[1, :, 0] = math.nan
    more = (
        np.vstack([y, [[math.nan, math.nan]]]),
        np.concatenate([hidden, np.full((1, 2, 2), math.inf)]),
    )
    one, two = pool_vectors(y, s), pool_vectors(*more)
    assert two.estimates == near(one.estimates, CLIMBED)
    assert (two.k, two.counts) == (5, (4, 4))


def test_an_outcome_that_a_site_does_not_tell_still_counts() -> None:
    """By its covariance with the one that it tells."""
    y, s = data_of("lost")
    alone = y.copy()
    alone[1] = math.nan
    with_it, without = (pool_vectors(each, s, method="fixed") for each in (y, alone))
    assert with_it.errors[0] < without.errors[0]


S = np.tile([[0.02, 0.01], [0.01, 0.03]], (4, 1, 1))
Y = np.array([[0.1, 0.2], [0.3, -0.1], [0.2, 0.4], [-0.1, 0.1]])


def without(*places: tuple[int, int]) -> np.ndarray:
    y = Y.copy()
    for place in places:
        y[place] = math.nan
    return y


@pytest.mark.parametrize(
    ("y", "s", "options", "where"),
    [
        ([0.1, 0.2], S, {}, "estimates, covariances"),
        (Y, S[:3], {}, "estimates, covariances"),
        (np.zeros((0, 2)), np.zeros((0, 2, 2)), {}, "estimates, covariances"),
        (np.where(Y == 0.4, math.inf, Y), S, {}, "estimates"),
        (np.full((4, 2), math.nan), S, {}, "estimates"),
        (without((0, 0), (1, 0), (2, 0)), S, {}, "estimates"),
        (without((0, 0), (1, 1), (2, 0)), S, {}, "estimates"),
        (without((0, 0), (1, 0), (2, 0), (3, 0)), S, {"method": "fixed"}, "estimates"),
        (Y, np.tile([[1.0, 1.0], [1.0, 1.0]], (4, 1, 1)), {}, "covariances[0]"),
        (Y, np.tile([[1.0, 0.5], [0.1, 1.0]], (4, 1, 1)), {}, "covariances[0]"),
        (Y, np.tile([[-1.0, 0.0], [0.0, 1.0]], (4, 1, 1)), {}, "covariances[0]"),
        (Y, S * math.nan, {}, "covariances[0]"),
        (1e99 * Y, S, {}, "estimates[0], covariances[0]"),
        (Y, S, {"method": "ml"}, "method"),
        (Y, S, {"level": math.nan}, "level"),
        (Y, S, {"between": np.eye(3)}, "between"),
        (Y, S, {"between": -np.eye(2)}, "between"),
        (Y, S, {"between": [[1.0, 2.0], [2.0, 1.0]]}, "between"),
        (Y, S, {"between": np.eye(2), "method": "fixed"}, "between"),
    ],
)
def test_bad_input_is_refused(y: Any, s: Any, options: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        pool_vectors(y, s, **options)
    assert where in [problem.where for problem in caught.value.problems]
