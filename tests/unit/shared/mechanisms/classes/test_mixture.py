"""A mixture is where what was told is likeliest, and holds no more dependence than it shows."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from penstock.mechanisms.classes import mixture
from penstock.mechanisms.classes.mixture import Mixture, Moments, Told, fit_mixture

OWN = np.repeat([0, 1, 2], [3, 4, 2])
NONE = Moments.nothing(9)


def value(told: Told, found: Mixture) -> float:
    """What is to be least, written out."""
    theta, classes = found.chances, found.classes
    joint = theta * classes
    share, pairs = joint.sum(axis=1), joint @ theta.T
    apart = np.triu(told.own[:, None] != told.own)
    total = ((pairs - told.pairs)[apart] ** 2).sum() / 2 / told.pair_error**2
    total += ((share - told.shares) ** 2).sum() / 2 / told.share_error**2
    moments = told.moments
    off = (moments.points.T @ pairs @ moments.points - moments.products) / moments.product_errors
    crossed = np.triu(moments.own[:, None] != moments.own)
    total += (off[crossed] ** 2).sum() / 2
    total += (((moments.points.T @ share - moments.means) / moments.mean_errors) ** 2).sum() / 2
    informed = (joint * (np.log(theta) - np.log(share)[:, None])).sum()
    return float(total + told.price * informed)


def noisy_told(seed: int) -> Told:
    rng = np.random.default_rng(seed)
    points = np.zeros((9, 3))
    points[:3, 0], points[3:7, 1], points[3:7, 2] = [-1, 0, 1.2], [-1, 0, 0.5, 2], [1, 0, 0, 1]
    products = rng.normal(size=(3, 3))
    pairs = rng.dirichlet(np.ones(81)).reshape(9, 9)
    moments = Moments(
        points,
        np.array([0, 1, 1]),
        products + products.T,
        np.full((3, 3), 0.3),
        rng.normal(size=3),
        np.array([0.2, 0.3, 0.4]),
    )
    return Told(OWN, rng.dirichlet(np.ones(9)), 0.1, pairs + pairs.T, 0.2, moments)


@pytest.mark.parametrize("seed", range(3))
def test_slopes_are_those_of_differences(seed: int) -> None:
    told, rng = noisy_told(seed), np.random.default_rng(seed)
    logits, weights = rng.normal(size=(9, 5)), rng.normal(size=5)
    look = mixture._Objective(told, mixture._list_blocks(OWN))
    found = look.slopes(logits, weights)
    for of, slopes in enumerate(found):
        measured = np.empty(slopes.size)
        for at in range(slopes.size):
            ends = []
            for side in (1e-5, -1e-5):
                moved = [logits.copy(), weights.copy()]
                moved[of].ravel()[at] += side
                ends.append(value(told, Mixture(*moved, OWN)))
            measured[at] = (ends[0] - ends[1]) / 2e-5
        assert np.abs(slopes.ravel() - measured).max() < 1e-6 * max(1, np.abs(measured).max())


def joined(tables: dict[tuple[int, int], np.ndarray], shares: np.ndarray) -> Told:
    pairs = np.zeros((9, 9))
    for (a, b), table in tables.items():
        rows, columns = np.flatnonzero(a == OWN), np.flatnonzero(b == OWN)
        pairs[np.ix_(rows, columns)] = table
        pairs[np.ix_(columns, rows)] = table.T
    return Told(OWN, shares, 1e-4, pairs, 1e-4, NONE)


def test_without_noise_pairs_are_those_told() -> None:
    """And what three columns have in common is that of the classes they came of."""
    rng = np.random.default_rng(1)
    true = [rng.dirichlet(np.ones(size), 2).T for size in (3, 4, 2)]
    classes = np.array([0.6, 0.4])
    shares = np.concatenate([each @ classes for each in true])
    pairs = {(a, b): (true[a] * classes) @ true[b].T for a, b in ((0, 1), (0, 2), (1, 2))}
    told = joined(pairs, shares)
    found = fit_mixture(told)
    theta, weights = found.chances, found.classes
    apart = OWN[:, None] != OWN
    assert np.abs(((theta * weights) @ theta.T - told.pairs)[apart]).max() < 2e-3
    assert np.abs(theta @ weights - shares).max() < 2e-3
    assert weights.sum() == pytest.approx(1)
    mine = np.einsum("az,bz,cz,z->abc", theta[:3], theta[3:7], theta[7:], weights)
    theirs = np.einsum("az,bz,cz,z->abc", *true, classes)
    assert np.abs(mine - theirs).sum() / 2 < 0.05


def test_noise_is_not_taken_for_dependence() -> None:
    """Where pairs are independent, and their counts mostly noise, persons are nearly so; without
    the information's price they are what noise says."""
    rng = np.random.default_rng(2)
    shares = np.concatenate([rng.dirichlet(np.full(size, 3)) for size in (3, 4, 2)])
    even = np.outer(shares, shares)
    noise = np.triu(rng.normal(0, 0.01, (9, 9)))
    told = Told(OWN, shares, 0.003, even + noise + noise.T, 0.01, NONE)

    def miss() -> float:
        found = fit_mixture(told)
        off = ((found.chances * found.classes) @ found.chances.T - even)[OWN[:, None] != OWN]
        return float(np.abs(off).sum())

    priced = miss()
    with patch.object(mixture, "_INFORMED", 0.0):
        assert miss() > 1.5 * priced


def test_a_fit_is_the_same_each_time_and_of_as_many_steps_whatever_is_told() -> None:
    told = noisy_told(4)
    calls = []
    real = mixture._Objective.slopes
    with patch.object(mixture._Objective, "slopes", lambda *a: calls.append(1) or real(*a)):
        one = fit_mixture(told)
        other = fit_mixture(replace(told, pairs=told.pairs * 0, shares=told.shares[::-1]))
        further = fit_mixture(told, one)
    assert len(calls) == (2 + 0.375) * 400
    assert np.array_equal(one.logits, fit_mixture(told).logits)
    assert all(np.isfinite(each.logits).all() for each in (one, other, further))
    assert value(told, further) < 1.05 * value(told, one)
