"""Weights that go with effects: the plain mean against metafor, and what the headline allows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.inference.combine import SiteEstimate
from penstock.inference.headline import pool_sites
from penstock.inference.pooling import pool
from penstock.inference.weighting import allow_weighting, average_sites

GOLDEN = Path(__file__).parents[3] / "golden" / "data" / "unweighted.json"
ORACLE: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
PRECISE, VAGUE = 0.001, 0.02
"""Variances of precise sites, and of others."""


@pytest.mark.parametrize("case", ["bcg", "apart", "alike", "two"])
def test_the_plain_mean_is_that_of_metafor(case: str) -> None:
    gold = ORACLE[case]
    found = average_sites(gold["y"], gold["v"])
    told = (found.estimate, found.se, found.ci_low, found.ci_high, found.p_value, found.tau2)
    wanted = [gold[name] for name in ("estimate", "se", "low", "high", "p", "tau2")]
    assert told == pytest.approx(wanted, rel=1e-10, abs=1e-12)
    assert found.weights == pytest.approx([1 / len(gold["y"])] * len(gold["y"]))


def test_precise_sites_with_another_effect_widen_the_interval_by_what_weights_make_of_it() -> None:
    y, v = [0.3, 0.45, 0.15, 0.31, 0.1, -0.1, -0.25, 0.1], [PRECISE] * 4 + [VAGUE] * 4
    plain = pool(y, v)
    allowed = allow_weighting(plain, y, v)
    bias = plain.estimate - float(np.mean(y))
    apart = np.array(plain.weights) - 1 / 8
    chance = float(apart**2 @ (np.array(v) + plain.tau2))
    hedges = float(np.var(y, ddof=1) - np.mean(v))
    assert 0 < bias**2 - chance < 7 * max(plain.tau2, hedges) * float(apart @ apart)
    assert allowed.se**2 - plain.se**2 == pytest.approx(bias**2 - chance, rel=1e-10)
    assert (allowed.estimate, allowed.tau2, allowed.weights, allowed.df) == (
        plain.estimate,
        plain.tau2,
        plain.weights,
        plain.df,
    )
    assert allowed.ci_low < plain.ci_low < plain.ci_high < allowed.ci_high
    assert allowed.pi_low is not None
    assert plain.pi_low is not None
    assert allowed.pi_low < plain.pi_low
    assert allowed.p_value > plain.p_value


@pytest.mark.parametrize(
    ("y", "v"),
    [
        ([0.1, 0.4, 0.9, 0.3], [0.02] * 4),  # equal weights
        ([0.3] * 4, [0.001, 0.02, 0.01, 0.04]),  # equal effects
        ([0.25, 0.31, 0.2, 0.3], [0.001, 0.02, 0.01, 0.04]),  # what chance makes of it
        ([0.28, 0.2, 0.17, 0.2], [0.001, 0.02, 0.02, 0.02]),  # b beyond chance, of sites that agree
        ([0.3], [0.01]),
    ],
)
def test_nothing_is_allowed_where_nothing_shows(y: list[float], v: list[float]) -> None:
    plain = pool(y, v)
    assert allow_weighting(plain, y, v) == plain


def test_no_more_is_allowed_than_weights_can_make_of_how_sites_differ() -> None:
    y, v = np.array([-0.05, 0.02, -0.81, -0.38]), np.array([0.005, 0.004, 0.168, 0.246])
    plain = pool(y, v)
    apart = np.array(plain.weights) - 1 / 4
    beyond = (plain.estimate - y.mean()) ** 2 - float(apart**2 @ (v + plain.tau2))
    tau2 = max(plain.tau2, float(y.var(ddof=1) - v.mean()))
    most = 3 * tau2 * float(apart @ apart)
    assert 0 < most < beyond
    allowed = allow_weighting(plain, y, v)
    assert allowed.se**2 - plain.se**2 == pytest.approx(most, rel=1e-9)


def test_where_all_lie_does_not_matter() -> None:
    y, v = np.array([0.3, 0.32, 0.28, 0.0, 0.05]), [PRECISE] * 3 + [VAGUE] * 2
    here = allow_weighting(pool(y, v), y, v)
    far = allow_weighting(pool(y + 1e4, v), y + 1e4, v)
    assert far.se == pytest.approx(here.se, rel=1e-8)


def test_the_headline_has_it_and_the_others_have_not() -> None:
    y, v = [0.3, 0.45, 0.15, 0.31, 0.1, -0.1, -0.25, 0.1], [PRECISE] * 4 + [VAGUE] * 4
    sites = [SiteEstimate(a, b, b, None, 500, None, 1, 1, 0.0) for a, b in zip(y, v, strict=True)]
    found = pool_sites(sites, total=False, joint=False)
    assert found["random"] == allow_weighting(pool(y, v), y, v)
    assert found["unweighted"] == average_sites(y, v)
    assert found["dl"] == pool(y, v, method="dl")
    assert found["fixed"] == pool(y, v, method="fixed")


def test_intervals_hold_the_mean_of_effects_that_go_with_variances() -> None:
    """Sites of the old have less of an effect and fewer events; weights prefer the others."""
    rng = np.random.default_rng(7)
    draws, k, held = 1500, 12, {"plain": 0, "allowed": 0, "unweighted": 0}
    for _ in range(draws):
        kind = rng.standard_normal(k)
        theta = 0.1 * kind - 0.05 * (kind**2 - 1)
        v = 0.01 * np.exp(-1.2 * kind)
        y = theta + rng.standard_normal(k) * np.sqrt(v)
        plain = pool(y, v)
        every = {"plain": plain, "allowed": allow_weighting(plain, y, v)}
        every["unweighted"] = average_sites(y, v)
        for name, one in every.items():
            held[name] += one.ci_low <= 0 <= one.ci_high
    share = {name: count / draws for name, count in held.items()}
    assert share["plain"] < 0.85
    assert share["allowed"] > share["plain"] + 0.06
    assert share["unweighted"] > 0.92


def test_where_effects_have_nothing_to_do_with_variances_little_is_paid() -> None:
    rng = np.random.default_rng(8)
    draws, k, held, wider = 1500, 8, 0, []
    for _ in range(draws):
        v = 0.01 * np.exp(rng.standard_normal(k))
        y = 0.1 * rng.standard_normal(k) + rng.standard_normal(k) * np.sqrt(v)
        plain = pool(y, v)
        allowed = allow_weighting(plain, y, v)
        held += allowed.ci_low <= 0 <= allowed.ci_high
        wider.append(allowed.se / plain.se)
    assert held / draws > 0.945
    assert float(np.median(wider)) == 1.0
    assert 1.0 < float(np.mean(wider)) < 1.1
    assert 0.25 < float(np.mean(np.array(wider) > 1)) < 0.4
