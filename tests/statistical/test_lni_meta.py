"""The studies of latent noise injection in meta-analyses, at toy size, where answers are known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.studies import lni_cohorts, lni_meta
from tests.studies.lni import auc
from tests.studies.lni_meta import MEAN, TRAINING, W

from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Column, Schema


@pytest.fixture(scope="module")
def toy() -> list[lni_meta.Study]:
    """Three studies of 60 people, flows trained for five steps."""
    return lni_meta.studies(0, replace(TRAINING, steps=5), k=3, most=60)


def test_at_w_one_the_synthetic_studies_are_the_real_ones(toy: list[lni_meta.Study]) -> None:
    for study in toy:
        assert study.made[-1] == pytest.approx(study.rows, abs=1e-4)
    real, made = (lni_meta.pooled(t) for t in ([s.rows for s in toy], [s.made[-1] for s in toy]))
    assert made.estimate == pytest.approx(real.estimate, abs=1e-4)
    assert made.se == pytest.approx(real.se, rel=1e-3)


def test_tables_of_neighbouring_w_differ_more_the_further_from_the_rows(
    toy: list[lni_meta.Study],
) -> None:
    study = toy[0]
    moved = [np.abs(made - study.rows).mean() for made in study.made]
    assert moved == sorted(moved, reverse=True)


def test_slope_is_the_estimand_of_the_report() -> None:
    rows = lni_meta.draw(MEAN, 200, np.random.default_rng(1))
    names = ("x1", "x2", "x3", "x4", "y")
    schema = Schema(tuple(Column(n, "continuous", -20.0, 20.0, 3) for n in names), person="id")
    wanted = Estimand("x2", "ols", "y", "x2", per=1.0, adjust=("x1", "x3", "x4"))
    told = estimate(dict(zip(names, rows.T, strict=True)), schema, wanted)
    assert lni_meta.slope(rows) == pytest.approx((told.estimate, told.variance), rel=1e-9)


def test_pooling_is_dersimonian_and_lairds(toy: list[lni_meta.Study]) -> None:
    # Their equations, written out once more: the noisy tables make tau2 positive.
    tables = [lni_meta.draw(MEAN * b, 80, np.random.default_rng(i)) for i, b in enumerate((1, 2))]
    y, v = np.array([lni_meta.slope(t) for t in tables]).T
    w = 1 / v
    q = (w * (y - (w * y).sum() / w.sum()) ** 2).sum()
    tau2 = max(0.0, (q - 1) / (w.sum() - (w**2).sum() / w.sum()))
    w = 1 / (v + tau2)
    found = lni_meta.pooled(tables)
    assert tau2 > 0
    assert found.estimate == pytest.approx((w * y).sum() / w.sum(), rel=1e-12)
    half = 1.959964 / math.sqrt(w.sum())
    assert found.ci_high - found.estimate == pytest.approx(half, rel=1e-6)


def test_draw_has_the_stated_slopes_and_noise() -> None:
    # 20,000 rows: the slope's standard error is .005 and the residual's .0035; 5.6 of each.
    value, variance = lni_meta.slope(lni_meta.draw(2 * MEAN, 20_000, np.random.default_rng(2)))
    assert abs(value - 2) < 5.6 * math.sqrt(0.5 / 20_000)
    assert variance * 20_000 == pytest.approx(0.5, abs=0.05)


def test_chosen_is_the_largest_w_that_passes() -> None:
    aucs = np.where(np.array(W) <= 0.7, 0.5, 0.6)
    assert W[lni_meta.chosen(aucs)] == 0.7
    assert lni_meta.chosen(np.full(len(W), 0.9)) == 0
    assert lni_cohorts.chosen([0.5 if w <= 0.3 else 0.56 for w in lni_cohorts.GRID]) == 0.3


def test_a_flow_finds_members_at_w_one_and_nobody_else(toy: list[lni_meta.Study]) -> None:
    at_one = lni_meta.scores(toy[0], len(W) - 1, "distance")
    assert auc(*at_one) == 1.0


def test_a_cohorts_coding_is_undone_and_keeps_strangers_inside() -> None:
    rows = lni_cohorts.cohort_rows("framingham-m", np.random.default_rng(3), n=300)
    coding = lni_cohorts.Coding.of(rows)
    assert coding.decode(coding.encode(rows)) == pytest.approx(rows, abs=1e-9)
    stranger = rows[:1].copy()
    stranger[0, lni_cohorts.TIME] = 2 * coding.high
    assert coding.decode(coding.encode(stranger))[0, lni_cohorts.TIME] == pytest.approx(coding.high)


def test_a_released_cohort_is_the_real_one_at_w_one() -> None:
    rng = np.random.default_rng(4)
    rows = lni_cohorts.cohort_rows("chs-m", rng, n=80)
    tiny = replace(lni_cohorts.PUBLISHED["chs-m"], hidden=(4,), flows=1)
    made = lni_cohorts.release(rows, tiny, rng)
    assert made.at(1.0) == pytest.approx(rows, abs=1e-2, rel=1e-4)
    moved = lni_cohorts.ranks(
        *(lni_cohorts.scaled(made, t) for t in (rows, made.at(0.0))),
    )[0]
    assert 0.2 < moved.mean() / 79 < 0.8


def test_ranks_count_the_others_who_are_nearer() -> None:
    real = np.arange(6.0)[:, None]
    # Persons at 0 ... 5, own rows 1.5 to the right: within 1.5 of 0 is 1, of 1 are 0 and 2, ...
    found, own = lni_cohorts.ranks(real, real + 1.5)
    assert found.tolist() == [1, 2, 2, 2, 2, 1]
    assert own.tolist() == [1.5] * 6
    assert lni_cohorts.ranks(real, real)[0].tolist() == [0] * 6
