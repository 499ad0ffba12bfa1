"""Survival curves of the report against R's survival, lifelines, and the formula written out.

R: ``survfit(Surv(time, status) ~ 1, data = lung, conf.type = "log-log")`` and ``~ sex``; its
``summary`` prints four and three digits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from lifelines import KaplanMeierFitter
from numpy.typing import NDArray
from tests.golden.test_estimands import SCHEMA, lung

from penstock.inference.pooling import quantile
from penstock.mechanisms.released import EACH, Refitting
from penstock.questions.estimands import Estimand
from penstock_server.analysis import survival_curves
from penstock_server.analysis.survival_curves import (
    CurveAsked,
    list_curves,
    list_groups,
    list_times,
    measure_curves,
    pool_curves,
    read_survival,
)

Array = NDArray[np.float64]
ALL, BY_SEX = CurveAsked("time", None), CurveAsked("time", "sex")
HAZARD = Estimand("hr", "cox", "time", "age")
ARMS = Estimand("arms", "cox", "time", "sex", adjust=("age",))


def product_limit(time: Array, event: Array, at: float) -> tuple[float, float]:
    """Kaplan and Meier's estimate and Greenwood's sum, event time by event time."""
    share, total = 1.0, 0.0
    for moment in sorted({*time[event == 1]}):
        if moment <= at:
            risk, died = (time >= moment).sum(), ((time == moment) & (event == 1)).sum()
            share *= 1 - died / risk
            total += died / (risk * (risk - died))
    return share, total


def test_a_curve_is_the_formula() -> None:
    table = lung()
    times = np.linspace(0, 1100, 45)[1:]
    value, variance = read_survival(table["time"], table["dead"], times)
    seen = 0
    for at, x, v in zip(times, value, variance, strict=True):
        share, total = product_limit(table["time"], table["dead"], at)
        if at > table["time"].max():
            assert math.isnan(x)
            continue
        seen += 1
        assert x == pytest.approx(math.log(-math.log(share)), rel=1e-10, abs=1e-10)
        assert v == pytest.approx(total / math.log(share) ** 2, rel=1e-9)
    assert seen == 40


@pytest.mark.parametrize(
    ("sex", "at", "share", "error"),
    [
        (None, 365.25, 0.4092, 0.0358),  # summary(fit, times = 365.25)
        (0.0, 300.0, 0.4411, 0.0439),
        (1.0, 300.0, 0.6742, 0.0523),
    ],
)
def test_a_curve_is_that_of_r(sex: float | None, at: float, share: float, error: float) -> None:
    table = lung()
    kept = np.ones(len(table["time"]), bool) if sex is None else table["sex"] == sex
    value, variance = read_survival(table["time"][kept], table["dead"][kept], np.array([at]))
    found = math.exp(-math.exp(value[0]))
    assert found == pytest.approx(share, abs=5e-5)
    assert math.sqrt(variance[0]) * -found * math.log(found) == pytest.approx(error, abs=5e-5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("decimals", [0, 6])
def test_a_curve_is_that_of_lifelines(seed: int, decimals: int) -> None:
    """With ties and without, from time 0 on. Its interval is symmetric on the scale of log(−log S),
    and rounded as a share: near 1, where −log S is 1/n, that costs log n digits of 16."""
    rng = np.random.default_rng(seed)
    time = np.round(rng.exponential(8, 400).clip(0, 12), decimals)
    event = (rng.random(400) < 0.6).astype(float)
    times = np.linspace(0, 13, 53)
    fitted = KaplanMeierFitter(alpha=0.05).fit(time, event, timeline=times)
    share = fitted.survival_function_.to_numpy()[:, 0]
    with np.errstate(all="ignore"):
        ends = np.log(-np.log(fitted.confidence_interval_.to_numpy()))
    value, variance = read_survival(time, event, times)
    known = (share < 1) & (times <= time.max())
    assert known.sum() > 40
    assert (np.isnan(value) == ~known).all()
    assert (np.isnan(variance) == ~known).all()
    assert value[known] == pytest.approx(ends.mean(axis=1)[known], rel=1e-12, abs=1e-12)
    error = np.ptp(ends, axis=1)[known] / (2 * quantile(0.95, None))
    assert variance[known] == pytest.approx(error**2, rel=1e-11)


def pooled(*estimands: Estimand, refits: int = 0) -> Any:
    table = lung()
    found = measure_curves(SCHEMA, estimands, [table] * 2, [table] * refits, made=EACH)
    assert found is not None
    (asked,) = list_curves(SCHEMA, estimands)
    return asked, pool_curves(SCHEMA, asked, {"north": found})


def test_a_site_alone_is_its_own_curve_with_the_rule_of_copies() -> None:
    asked, (curve,) = pooled(HAZARD)
    table, half = lung(), quantile(0.95, None)
    assert asked == ALL
    for i, at in enumerate(list_times(SCHEMA, asked)):
        share, total = product_limit(table["time"], table["dead"], at)
        if not 0 < share < 1 or at > table["time"].max():
            assert math.isnan(curve.survival[i])
            continue
        error = math.sqrt(1.5 * total) / -math.log(share)  # ū (1 + 1/m) of two copies
        bounds = [share ** math.exp(sign * half * error) for sign in (1, -1)]
        assert (curve.survival[i], curve.sites["north"][i]) == pytest.approx((share, share))
        assert (curve.low[i], curve.high[i]) == pytest.approx(bounds, rel=1e-8)


def test_levels_that_are_compared_have_a_curve_each() -> None:
    asked, curves = pooled(HAZARD, ARMS)
    assert asked == BY_SEX
    assert list_groups(SCHEMA, asked) == [0, 1]
    at = int(np.searchsorted(list_times(SCHEMA, asked), 300.0))
    assert curves[0].survival[at] < 0.5 < curves[1].survival[at]
    product = Estimand("both", "cox", "time", "age:sex")
    assert list_curves(SCHEMA, [product]) == (ALL,)
    assert list_curves(SCHEMA, [Estimand("or", "logistic", "dead", "age")]) == ()


def test_refits_that_lie_elsewhere_widen_a_curve() -> None:
    table, half_as_long = lung(), lung()
    half_as_long["time"] = np.ceil(half_as_long["time"] / 2)
    widths = []
    for again in (table, half_as_long):
        found = measure_curves(SCHEMA, [HAZARD], [table] * 3, [again] * 6, made=EACH)
        assert found is not None
        (curve,) = pool_curves(SCHEMA, ALL, {"north": found})
        widths.append(curve.high[10] - curve.low[10])
    assert widths[1] > 2 * widths[0]


def test_only_refits_of_copies_that_are_read_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies 6 to 8 are not, and neither are refits 6 to 8, which were made from them."""
    seen: list[float] = []

    def read(time: Array, event: Array, times: Array) -> tuple[Array, Array]:
        seen.append(float(time[0]))
        return np.full(len(times), -1.0), np.full(len(times), 0.01)

    monkeypatch.setattr(survival_curves, "read_survival", read)
    copies = [{**lung(), "time": np.full(228, 10.0 + i)} for i in range(1, 9)]
    refits = [{**lung(), "time": np.full(228, 100.0 + i)} for i in range(1, 17)]
    measure_curves(SCHEMA, [HAZARD], copies, refits, made=EACH)
    assert seen == [11, 12, 13, 14, 15, *range(101, 106), *range(109, 114)]
    seen.clear()
    measure_curves(SCHEMA, [HAZARD], copies, refits, made=Refitting(per_fit=2))
    assert seen == [*range(11, 19), *range(101, 117)]  # as many fits, of all copies


@pytest.mark.parametrize("change", ["no events", "no rows", "all missing", "all at once"])
def test_a_hostile_table_has_no_curve(change: str) -> None:
    table = lung()
    match change:
        case "no events":
            table["dead"] = np.zeros(228)
        case "no rows":
            table = {name: values[:0] for name, values in table.items()}
        case "all missing":
            table["time"] = np.full(228, np.nan)
        case "all at once":
            table["time"], table["dead"] = np.zeros(228), np.ones(228)
    for refits in ([], [table]):
        found = measure_curves(SCHEMA, [HAZARD], [table], refits, made=EACH)
        assert found is not None
        (curve,) = pool_curves(SCHEMA, ALL, {"north": found})
        assert not curve.sites
        assert all(map(math.isnan, curve.survival))
