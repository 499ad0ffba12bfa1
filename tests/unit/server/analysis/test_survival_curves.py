"""The number at risk below a curve is that of lifelines' event table."""

from __future__ import annotations

import math

import numpy as np
import pytest
from lifelines import KaplanMeierFitter

from penstock.inference.refits import widen_sites
from penstock.mechanisms.released import EACH, Refitting
from penstock.questions.estimands import Estimand
from penstock.schema import Coded, Column, Schema
from penstock_server.analysis.survival_curves import (
    RISK_TIMES,
    CurveAsked,
    count_at_risk,
    list_risk_times,
    measure_curves,
    pool_curves,
)

SCHEMA = Schema(
    (
        Column("years", "duration", upper=10.0, decimals=0, event="died"),
        Column("died", "event"),
        Column("arm", "binary"),
    )
)
HAZARD = Estimand("hazard", "cox", "years", "arm")


def table(seed: int, n: int = 80) -> Coded:
    """Whole years: times at which many end fall on those at which rows are counted."""
    rng = np.random.default_rng(seed)
    return {
        "years": rng.integers(0, 11, n).astype(float),
        "died": (rng.random(n) < 0.4).astype(float),
        "arm": rng.integers(0, 2, n).astype(float),
    }


def read_event_table(time: np.ndarray, event: np.ndarray, at: float) -> float:
    """At risk in the first row of lifelines' table that is not before a time; nobody after the
    last."""
    found = KaplanMeierFitter().fit(time, event).event_table
    # Its row of 0 counts everybody who enters, too.
    left = found.loc[found.index >= at, "at_risk"]
    return float(left.iloc[0]) if len(left) else 0.0


@pytest.mark.parametrize("seed", range(5))
def test_it_is_lifelines(seed: int) -> None:
    given = table(seed)
    times = np.array([0.0, 1.0, 2.5, 5.0, 7.5, 10.0, 10.5])
    expected = [read_event_table(given["years"], given["died"], at) for at in times]
    assert count_at_risk(given["years"], times).tolist() == expected


def test_it_is_the_mean_over_copies_of_rows_of_which_all_is_known() -> None:
    copies = [table(seed) for seed in range(3)]
    copies[0]["died"][:5] = np.nan
    found = measure_curves(SCHEMA, [HAZARD], copies, [], made=EACH)
    assert found is not None
    asked = CurveAsked("years", "arm")
    times = list_risk_times(SCHEMA, asked)
    assert times.tolist() == [0.0, 2.5, 5.0, 7.5, 10.0]
    for level in (0, 1):
        counts = []
        for copy in copies:
            known = (copy["arm"] == level) & np.isfinite(copy["died"])
            counts.append([(copy["years"][known] >= at).sum() for at in times])
        assert found.at_risk[asked][level] == pytest.approx(np.mean(counts, axis=0))


def test_of_nobody_it_is_nought() -> None:
    empty = {name: values[:0] for name, values in table(1).items()}
    found = measure_curves(SCHEMA, [HAZARD], [empty], [], made=EACH)
    assert found is not None
    assert found.at_risk[CurveAsked("years", "arm")] == [[0.0] * RISK_TIMES] * 2


def test_no_curve_rises_though_refits_move_it_at_each_time_apart() -> None:
    """Refits have the events of early years later: curves are corrected down there, and there
    alone."""
    sites, made = {}, Refitting(per_fit=2)
    for number, n in enumerate((60, 200, 90)):
        copies = [table(10 * number + i, n) for i in range(4)]
        refits = []
        for b in range(8):
            refit = dict(copies[made.find_copy(b + 1, len(copies)) - 1])
            early = (refit["died"] == 1) & (refit["years"] > 0) & (refit["years"] <= 4)
            refit["years"] = np.where(early, 5.0, refit["years"])
            refits.append(refit)
        found = measure_curves(SCHEMA, [HAZARD], copies, refits, made=made)
        assert found is not None
        sites[str(number)] = found
    rose = 0
    for group, curve in enumerate(pool_curves(SCHEMA, CurveAsked("years", "arm"), sites)):
        for values in (curve.survival, curve.low, curve.high, *curve.sites.values()):
            known = [value for value in values if not np.isnan(value)]
            assert known == sorted(known, reverse=True)
            assert len(known) > 20
        for site, told in curve.sites.items():
            measured = sites[site].curves[CurveAsked("years", "arm")][group]
            wide = widen_sites({site: {str(i): m for i, m in enumerate(measured)}})[site]
            apart = [math.exp(-math.exp(one.estimate)) for one in wide.values() if not one.problem]
            assert sorted(apart) == pytest.approx(sorted(v for v in told if not np.isnan(v)))
            rose += apart != sorted(apart, reverse=True)
    assert rose  # else nothing was tried
