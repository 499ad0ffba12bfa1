"""Influence, heterogeneity, asymmetry and moderators against R's metafor 3.8, and their own laws.

Data and their script: tests/golden/data/meta_analysis.R. Tolerance 1e-10 relative (absolute below
1), but for trim-and-fill beside REML: metafor fits that to its default tolerance of 1e-5 in τ², and
differs by 1.9e-7 and 2e-6. What the stored numbers lack is compared with numbers in print, and with
statsmodels or a likelihood maximised by brute force.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

from penstock.base.errors import InvalidInput
from penstock.inference import asymmetry, heterogeneity, influence, moderators, pooling
from penstock.inference.weighting import pool_weighed

ORACLE: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "meta_analysis.json").read_text(encoding="utf-8")
)
BLOCKS = ("bcg_logRR", "small_k3", "homogeneous_k5")
RANDOM: dict[str, pooling.Estimated] = {"DL": "dl", "REML": "reml"}
REL = 1e-10


def near(value: Any, within: float = REL) -> Any:
    return pytest.approx(value, rel=within, abs=within)


def bcg() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Estimates, variances, and columns: ones, latitude, year."""
    data, counts = ORACLE["bcg_logRR"], ORACLE["bcg_counts"]
    x = np.stack([np.ones(13), counts["ablat"], counts["year"]], axis=1)
    return np.array(data["yi"]), np.array(data["vi"]), x


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", ["DL", "REML"])
def test_leave_one_out_agrees_with_metafor(block: str, name: str) -> None:
    data, gold = ORACLE[block], ORACLE[block][f"leave1out_{name}"]
    got = influence.leave_one_out(data["yi"], data["vi"], method=RANDOM[name], test="z")
    assert [p.estimate for p in got] == near(gold["estimate"])
    assert [p.se for p in got] == near(gold["se"])
    assert [p.ci_high for p in got] == near(gold["ci_ub"])
    assert [p.tau2 for p in got] == near(gold["tau2"])
    assert [p.q for p in got] == near(gold["Q"])
    assert [100 * p.i2 for p in got] == near(gold["I2"])


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", ["DL", "REML"])
def test_influence_agrees_with_metafor(block: str, name: str) -> None:
    data, gold = ORACLE[block], ORACLE[block][f"influence_{name}"]
    got = influence.measure_influence(data["yi"], data["vi"], method=RANDOM[name])
    assert [i.residual for i in got] == near(gold["rstudent"])
    assert [i.dffits for i in got] == near(gold["dffits"])
    assert [i.cook for i in got] == near(gold["cook_d"])
    assert [i.covariance_ratio for i in got] == near(gold["cov_r"])
    assert [i.leverage for i in got] == near(gold["hat"])
    assert [i.without.tau2 for i in got] == near(gold["tau2_del"])
    assert [i.without.q for i in got] == near(gold["QE_del"])
    pooled = pooling.pool(data["yi"], data["vi"], method=RANDOM[name])
    assert [100 * w for w in pooled.weights] == near(gold["weight"])


@pytest.mark.parametrize("block", BLOCKS)
def test_sites_one_after_the_other_agree_with_metafor(block: str) -> None:
    data, gold = ORACLE[block], ORACLE[block]["cumul_DL"]
    order = range(len(data["yi"]))
    got = influence.accumulate(data["yi"], data["vi"], order=order, method="dl", test="z")
    assert [p.estimate for p in got] == near(gold["estimate"])
    assert [p.se for p in got] == near(gold["se"])
    assert [p.tau2 for p in got] == near(gold["tau2"])


def test_sites_are_added_from_the_most_precise_on() -> None:
    y, v, _ = bcg()
    got = influence.accumulate(y, v)
    assert got[0].estimate == y[v.argmin()]
    assert got[-1].estimate == near(pooling.pool(y, v, method="reml").estimate)


def test_whatever_leaves_sites_out_can_be_pooled_as_a_headline_is() -> None:
    y, v, _ = bcg()
    one_by_one = influence.accumulate(y, v, weighed=True)
    assert one_by_one[-1].se == near(pool_weighed(y, v).se)
    left_out = influence.leave_one_out(y, v, weighed=True)
    assert left_out[0] == pool_weighed(y[1:], v[1:])
    assert any(
        one.se > plain.se
        for one, plain in zip(left_out, influence.leave_one_out(y, v), strict=True)
    )


def test_one_site_has_no_influence() -> None:
    assert influence.leave_one_out([0.3], [0.04]) == ()
    assert influence.measure_influence([0.3], [0.04]) == ()
    assert heterogeneity.profile_q([0.3], [0.04]) is None


def test_a_site_far_from_the_others_is_flagged() -> None:
    got = influence.measure_influence([0.15, 0.16, 0.14, 0.17, 2.0], [0.01] * 5)
    assert [i.flagged for i in got] == [False] * 4 + [True]
    assert got[-1].change > 3


def test_nothing_is_flagged_below_four_sites() -> None:
    got = influence.measure_influence([0.15, 0.16, 20.0], [0.01] * 3)
    assert not any(i.flagged for i in got)


def test_homogeneous_sites_are_not_flagged() -> None:
    data = ORACLE["homogeneous_k5"]
    assert not any(i.flagged for i in influence.measure_influence(data["yi"], data["vi"]))


@pytest.mark.parametrize("block", [*BLOCKS, "k2"])
def test_q_profile_agrees_with_metafor(block: str) -> None:
    data = ORACLE[block]
    gold = data["DL"]
    got = heterogeneity.profile_q(data["yi"], data["vi"], ceiling=100)
    assert got is not None
    assert list(got.tau2) == near(gold["tau2_ci_QP"])
    assert [100 * end for end in got.i2] == near(gold["I2_ci_QP"])
    # Of two sites metafor stops at 100; without a ceiling the interval goes on.
    free = heterogeneity.profile_q(data["yi"], data["vi"])
    assert free is not None
    assert (free.tau2[1] > 100) == (block == "k2")


def test_a_q_profile_holds_what_its_definition_says() -> None:
    y, v, _ = bcg()
    got = heterogeneity.profile_q(y, v, level=0.9)
    assert got is not None
    for tau2, share in zip(got.tau2, (0.95, 0.05), strict=True):
        w = 1 / (v + tau2)
        q = float(w @ (y - (w @ y) / w.sum()) ** 2)
        assert stats.chi2.cdf(q, len(y) - 1) == pytest.approx(share, abs=1e-9)
    assert got.h2 == near(tuple(1 / (1 - i2) for i2 in got.i2))
    alike = ORACLE["homogeneous_k5"]
    empty = heterogeneity.profile_q(alike["yi"], alike["vi"])
    assert empty is not None
    assert empty.empty
    assert not got.empty


@pytest.mark.parametrize("block", BLOCKS)
def test_asymmetry_agrees_with_metafor(block: str) -> None:
    data = ORACLE[block]
    egger, gold = asymmetry.regress_on_error(data["yi"], data["vi"]), data["egger_lm_sei"]
    assert egger is not None
    assert [egger.statistic, egger.p_value, egger.slope, egger.se, egger.limit] == near(
        [gold["t"], gold["p"], gold["b"], gold["se"], gold["limit_est"]]
    )
    assert [egger.low, egger.high] == near(gold["limit_ci"])
    assert egger.df == gold["df"]
    beside, gold = asymmetry.regress_beside_tau2(data["yi"], data["vi"]), data["egger_rma_REML"]
    assert beside is not None
    assert [beside.statistic, beside.p_value, beside.limit] == near(
        [gold["z"], gold["p"], gold["limit_est"]]
    )
    gold = data["begg_ranktest"]
    assert asymmetry.correlate_ranks(data["yi"], data["vi"]) == near((gold["tau"], gold["p"]))


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", ["DL", "REML"])
def test_trim_and_fill_agrees_with_metafor(block: str, name: str) -> None:
    data, gold = ORACLE[block], ORACLE[block][f"trimfill_{name}"]
    got = asymmetry.trim_and_fill(data["yi"], data["vi"], method=RANDOM[name], test="z")
    assert (got.missing, got.side) == (gold["k0"], gold["side"])
    within = REL if name == "DL" else 4e-6
    p = got.pooled
    assert [p.estimate, p.se, p.ci_low, p.ci_high] == near(
        [gold["estimate"], gold["se"], gold["ci_lb"], gold["ci_ub"]], within
    )


def test_trim_and_fill_mirrors() -> None:
    y, v, _ = bcg()
    right, left = (
        asymmetry.trim_and_fill(sign * y, v, side=side)
        for sign, side in ((1, "right"), (-1, "left"))
    )
    assert right.missing == left.missing > 0
    assert right.pooled.estimate == near(-left.pooled.estimate)
    assert right.estimates == near(tuple(-x for x in left.estimates))


def test_nothing_is_told_of_sites_of_one_size() -> None:
    y, v = [0.1, 0.2, 0.4, 0.3], [0.04] * 4
    assert asymmetry.regress_on_error(y, v) is None
    assert asymmetry.regress_beside_tau2(y, v) is None
    assert asymmetry.correlate_ranks(y, v) is None


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("method", pooling.METHODS)
@pytest.mark.parametrize("test", pooling.TESTS)
def test_a_regression_on_nothing_is_pooling(
    block: str, method: pooling.Estimated, test: pooling.Test
) -> None:
    """So each estimator, of a matrix of columns, is metafor's where there is one column of ones."""
    y, v = ORACLE[block]["yi"], ORACLE[block]["vi"]
    got = moderators.regress(y, v, np.ones((len(y), 1)), method=method, test=test)
    want = pooling.pool(y, v, method=method, test=test)
    assert [got.coefficients[0], got.errors[0], got.low[0], got.high[0], got.p_values[0]] == near(
        [want.estimate, want.se, want.ci_low, want.ci_high, want.p_value]
    )
    assert [got.tau2, got.q, got.q_p, got.i2] == near([want.tau2, want.q, want.q_p, want.i2])
    assert got.moderator is None


@pytest.mark.parametrize("method", ["reml", "dl", "pm", "sj"])
@pytest.mark.parametrize("test", ["knapp-hartung", "knapp-hartung-floored"])
def test_of_uncertain_variances_too(method: pooling.Estimated, test: pooling.Test) -> None:
    y, v, _ = bcg()
    degrees = np.linspace(4, 40, len(y))
    got = moderators.regress(y, v, np.ones((len(y), 1)), method=method, test=test, degrees=degrees)
    want = pooling.pool(y, v, method=method, test=test, degrees=degrees)
    assert [got.coefficients[0], got.errors[0], got.low[0], got.high[0]] == near(
        [want.estimate, want.se, want.ci_low, want.ci_high]
    )
    assert [got.tau2, got.q, got.q_p, got.i2] == near([want.tau2, want.q, want.q_p, want.i2])


def test_what_uncertain_variances_add_to_a_meta_regression() -> None:
    """Kackar and Harville's term, twice: the variance of the derivatives of β̂ = By by each v, by
    differences; and the mean of Q_E, by those of its trace."""
    _, v, x = bcg()
    x, tau2, degrees = x - [0, *x.mean(axis=0)[1:]], 0.1, np.linspace(4, 40, len(v))
    fit = moderators.Fit(np.zeros(len(v)), v, x, degrees)

    def weigh(each: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        w = np.diag(1 / (each + tau2))
        estimate = np.linalg.solve(x.T @ w @ x, x.T @ w)
        return estimate, w - w @ x @ estimate

    plain = np.linalg.inv(x.T @ np.diag(1 / (v + tau2)) @ x)
    more, mean, total = np.zeros((3, 3)), 0.0, np.diag(v + tau2)
    for i, each in enumerate(v):
        step = np.zeros(len(v))
        step[i] = 1e-4 * (each + tau2)
        (up, over), (down, under) = weigh(v + step), weigh(v - step)
        slope = (up - down) / (2 * step[i])
        more += 2 * each**2 / degrees[i] * slope @ total @ slope.T
        bend = np.trace((over + under - 2 * weigh(v)[1]) @ total) / step[i] ** 2
        mean += each**2 / degrees[i] * bend
    assert fit.covary(tau2) - plain == near(2 * more, 1e-5)
    assert fit.expect_spread(tau2) - fit.left == pytest.approx(mean, rel=1e-5)


def test_uncertain_variances_do_not_go_with_a_normal_test() -> None:
    y, v, x = bcg()
    with pytest.raises(InvalidInput, match="degrees"):
        moderators.regress(y, v, x, test="z", degrees=np.full(13, 9.0))


def test_meta_regression_is_the_one_in_print() -> None:
    """Viechtbauer 2010, J. Statistical Software 36 (3), section 3.2. Fitted there to 1e-5 in
    τ²: the last of four digits may differ."""
    y, v, x = bcg()
    got = moderators.regress(y, v, x, method="reml", test="z")
    last = 5e-4
    assert got.coefficients == pytest.approx((-3.5455, -0.0280, 0.0019), abs=last)
    assert got.errors == pytest.approx((29.0959, 0.0102, 0.0147), abs=last)
    assert (got.tau2, got.q, got.q_p) == pytest.approx((0.1108, 28.3251, 0.0016), abs=last)
    assert (got.q_df, got.moderator_df, got.df) == (10, 2, None)
    assert (got.moderator, got.moderator_p) == pytest.approx((12.2043, 0.0022), abs=last)
    assert (got.i2, got.r2) == pytest.approx((0.7198, 0.6463), abs=last)


@pytest.mark.parametrize("name", ["plain", "floored", "groups"])
def test_meta_regression_and_subgroups_agree_with_metafor(name: str) -> None:
    """tests/golden/data/moderators.R. metafor stops at 1e-14 in τ²: the largest deviation is 5e-12,
    of R²."""
    path = Path(__file__).parent / "data" / "moderators.json"
    gold = json.loads(path.read_text(encoding="utf-8"))[name]
    y, v, x = bcg()
    if name == "groups":
        got = moderators.compare_subgroups(y, v, ORACLE["bcg_counts"]["alloc"])
        assert got is not None
    else:
        test: pooling.Test = "knapp-hartung" if name == "plain" else "knapp-hartung-floored"
        got = moderators.regress(y, v, x, test=test)
    assert got.coefficients == near(tuple(gold["coefficients"]), 1e-9)
    assert got.errors == near(tuple(gold["errors"]), 1e-9)
    assert (got.low, got.high) == (near(tuple(gold["low"]), 1e-9), near(tuple(gold["high"]), 1e-9))
    assert got.p_values == near(tuple(gold["p"]), 1e-9)
    assert (got.tau2, got.r2, got.i2) == near((gold["tau2"], gold["r2"], gold["i2"]), 1e-9)
    assert (got.q, got.q_p) == near((gold["q"], gold["q_p"]), 1e-9)
    assert (got.moderator, got.moderator_p, got.df) == near(
        (gold["f"], gold["f_p"], gold["df"]), 1e-9
    )


@pytest.mark.parametrize("method", pooling.METHODS)
def test_meta_regression_agrees_with_statsmodels(method: pooling.Estimated) -> None:
    """Of its τ², weighted least squares: coefficients, and Knapp and Hartung's covariance."""
    y, v, x = bcg()
    got = moderators.regress(y, v, x, method=method, test="knapp-hartung")
    fitted = sm.WLS(y, x, weights=1 / (v + got.tau2)).fit()
    assert got.coefficients == near(tuple(fitted.params), 1e-8)
    covariance = fitted.cov_params() / (fitted.scale if method == "fixed" else 1.0)
    assert got.covariance == near(covariance, 1e-7)
    if method != "fixed":
        assert got.p_values == near(tuple(fitted.pvalues), 1e-8)
        tested = fitted.f_test(np.eye(3)[1:])
        assert (got.moderator, got.moderator_p) == near((tested.fvalue, tested.pvalue), 1e-7)


@pytest.mark.parametrize("restricted", [False, True])
def test_likelihood_of_a_meta_regression_is_the_highest(restricted: bool) -> None:
    y, v, x = bcg()
    x = x[:, :2]
    got = moderators.regress(y, v, x, method="reml" if restricted else "ml")

    def log_likelihood(tau2: float) -> float:
        """By a density: restricted, of two contrasts that are free of β."""
        if not restricted:
            w = 1 / (v + tau2)
            mean = x @ np.linalg.solve(x.T @ (w[:, None] * x), x.T @ (w * y))
            return float(stats.norm.logpdf(y, mean, np.sqrt(v + tau2)).sum())
        free = np.linalg.svd(x.T)[2][2:]
        covariance = free @ np.diag(v + tau2) @ free.T
        return float(stats.multivariate_normal.logpdf(free @ y, np.zeros(len(free)), covariance))

    near_it = log_likelihood(got.tau2)
    for step in (1e-3, 1e-2, 0.1, 1.0):
        assert near_it > log_likelihood(got.tau2 * (1 + step))
        assert near_it > log_likelihood(got.tau2 / (1 + step))
    assert near_it >= max(log_likelihood(t) for t in np.geomspace(1e-6, 10, 400))


@pytest.mark.parametrize("method", ["dl", "pm", "he", "hs", "hsk", "sj"])
def test_moments_of_a_meta_regression_by_matrices(method: pooling.Estimated) -> None:
    """By the definitions, with whole matrices: traces of P and its products."""
    y, v, x = bcg()
    k, p = x.shape

    def weigh(w: np.ndarray) -> np.ndarray:
        d = np.diag(w)
        return d - d @ x @ np.linalg.solve(x.T @ d @ x, x.T @ d)

    whole, first = weigh(1 / v), float(y.var())
    even = weigh(np.ones(k))
    want = {
        "dl": (y @ whole @ y - (k - p)) / np.trace(whole),
        "he": (y @ even @ y - np.trace(even @ np.diag(v))) / (k - p),
        "hs": (y @ whole @ y - k) / (1 / v).sum(),
        "hsk": (y @ whole @ y * k / (k - p) - k) / (1 / v).sum(),
        "sj": first * (y @ weigh(1 / (v + first)) @ y) / (k - p),
    }
    got = moderators.regress(y, v, x, method=method)
    if method == "pm":
        left = y @ weigh(1 / (v + got.tau2)) @ y
        assert left == pytest.approx(k - p, rel=1e-9)
    else:
        assert got.tau2 == pytest.approx(max(0.0, want[method]), rel=1e-7)


def test_subgroups_are_compared() -> None:
    y, v, _ = bcg()
    groups = ORACLE["bcg_counts"]["alloc"]
    compared = moderators.compare_subgroups(y, v, groups, test="z", method="reml")
    assert compared is not None
    # metafor's page on subgroups prints QM = 1.7675, p = .4132, of one τ² for all.
    assert (compared.moderator, compared.moderator_p) == pytest.approx((1.7675, 0.4132), abs=5e-4)
    assert moderators.compare_subgroups(y, v, ["a"] * 13) is None


@pytest.mark.parametrize(
    "columns",
    [
        np.ones((12, 1)),
        np.ones(13),
        np.ones((13, 2)),
        np.zeros((13, 1)),
        np.ones((13, 13)),
        np.full((13, 1), math.nan),
    ],
)
def test_bad_columns_are_refused(columns: np.ndarray) -> None:
    y, v, _ = bcg()
    with pytest.raises(InvalidInput, match="columns"):
        moderators.regress(y, v, columns)


def test_groups_and_sides_are_checked() -> None:
    y, v, _ = bcg()
    with pytest.raises(InvalidInput, match="groups"):
        moderators.compare_subgroups(y, v, ["a"])
    with pytest.raises(InvalidInput, match="side"):
        asymmetry.trim_and_fill(y, v, side="up")  # type: ignore[arg-type]
