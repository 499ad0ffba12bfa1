r"""Classes of persons whose pairs of columns are as noisy counts say.

.. math:: P(x) = \sum_z π_z \prod_j θ_{j z}(x_j)

is the latent class model (Lazarsfeld & Henry 1968, "Latent Structure Analysis"); with classes
enough it comes near to any table (Dunson & Xing 2009, J. Am. Statistical Association 104, 1042).
That the whole of a table may be sought which noisy answers are likeliest of is of Liu, Vietri & Wu
(2021, "Iterative methods for private synthetic data", NeurIPS). θ and π are where

.. math:: \sum_q (q(P) - a_q)^2 / 2 v_q + λ \sum_j I(z; x_j)

is least, over all that was released: shares of groups, shares of pairs of groups, and moments of
numbers' scores; I is the information that the class has of a column. Without the last term noise
would be taken for dependence; with it a pair is as independent as its counts allow.
Post-processing: Adam's steps (Kingma & Ba 2015), as many whatever the counts are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Block: TypeAlias = "slice[int, int, None]"

CLASSES, MOST_CLASSES = 100, 400
_BY_ERROR = 0.25
"""As many classes as this over the error of a pair's share: exact counts tell of more."""

_INFORMED = 1.0
"""λ is so much for each column, over the root of a pair's error. Chosen on other tables than those
that the studies are of (docs/how-it-works.md): half and twice it are as good but for a tenth."""

_STEPS_BY_CLASS, _MOST_STEPS, _FURTHER = 4, 800, 0.375
"""Steps, by how many classes there are, and how many of these again from where a fit ended."""

_RATE, _LAST_RATE, _FALLING = 0.1, 0.002, 0.6
_FIRST, _SECOND, _EPSILON = 0.9, 0.99, 1e-8
_APART, _SEED = 0.5, 0
"""Sd of the logits by which classes differ at first, and of what; public."""

_LEAST_SHARE = 1e-4


@dataclass(frozen=True, slots=True)
class Moments:
    """What was released of scores: of each of q, its mean, and the mean products of pairs.

    Attributes:
        points: (G, q) what each group of its own column has of a score; 0 of all other columns'.
        own: (q,) the column of each.
        products: (q, q) and means: (q,) as released; their errors: sds.
    """

    points: Array
    own: NDArray[np.intp]
    products: Array
    product_errors: Array
    means: Array
    mean_errors: Array

    @classmethod
    def nothing(cls, groups: int) -> Moments:
        """Where no column has an order."""
        none, pairs = np.zeros(0), np.zeros((0, 0))
        return cls(np.zeros((groups, 0)), none.astype(np.intp), pairs, pairs, none, none)


@dataclass(frozen=True, slots=True)
class Told:
    """All that was released of groups, as shares of the rows.

    Attributes:
        own: (G,) the column of each group.
        shares: (G,) and pairs: (G, G), symmetric; their errors: sds.
    """

    own: NDArray[np.intp]
    shares: Array
    share_error: float
    pairs: Array
    pair_error: float
    moments: Moments

    @property
    def classes(self) -> int:
        """How many there are."""
        return count_classes(self.pair_error)

    @property
    def price(self) -> float:
        """λ."""
        return float(_INFORMED * len(np.unique(self.own)) / math.sqrt(self.pair_error))


def count_classes(pair_error: float) -> int:
    """How many there are, by the error of a pair's share."""
    return round(min(max(_BY_ERROR / pair_error, CLASSES), MOST_CLASSES))


@dataclass(frozen=True, slots=True)
class Mixture:
    """The model.

    Attributes:
        logits: (G, K) of θ, by column; weights: (K,) logits of π.
        own: (G,) the column of each group.
    """

    logits: Array
    weights: Array
    own: NDArray[np.intp]

    @property
    def classes(self) -> Array:
        """(K,) π."""
        return _softmax(self.weights[:, None])[:, 0]

    @property
    def chances(self) -> Array:
        """(G, K) θ: of a column's groups they add up to 1 in each class."""
        found = np.empty_like(self.logits)
        for block in _list_blocks(self.own):
            found[block] = _softmax(self.logits[block])
        return found


def fit_mixture(told: Told, start: Mixture | None = None) -> Mixture:
    """The mixture of which what was told is likeliest, and of no more dependence than it shows.

    Args:
        start: from where, in fewer steps; None: classes that differ by chance.
    """
    steps, blocks = min(_STEPS_BY_CLASS * told.classes, _MOST_STEPS), _list_blocks(told.own)
    steps = steps if start is None else round(_FURTHER * steps)
    if start is None:
        start = _begin(told, blocks)
    logits, weights = start.logits.copy(), start.weights.copy()
    look = _Objective(told, blocks)
    sizes = [np.zeros_like(logits), np.zeros_like(weights)]
    drifts = [np.zeros_like(logits), np.zeros_like(weights)]
    for step in range(1, steps + 1):
        passed = max(0.0, (step / steps - _FALLING) / (1 - _FALLING))
        rate = _RATE + (_LAST_RATE - _RATE) * passed
        for value, slope, drift, size in zip(
            (logits, weights), look.slopes(logits, weights), drifts, sizes, strict=True
        ):
            drift += (1 - _FIRST) * (slope - drift)
            size += (1 - _SECOND) * (slope**2 - size)
            ahead = drift / (1 - _FIRST**step)
            value -= rate * ahead / (np.sqrt(size / (1 - _SECOND**step)) + _EPSILON)
    return Mixture(logits, weights, told.own)


class _Objective:
    """What is to be least, by its slopes."""

    def __init__(self, told: Told, blocks: Sequence[Block]) -> None:
        moments = told.moments
        apart = told.own[:, None] != told.own
        crossed = moments.own[:, None] != moments.own
        self._blocks, self._price = blocks, told.price
        self._shares, self._pairs = told.shares, told.pairs
        self._by_share = float(told.share_error**-2)
        # Each pair stands twice in a symmetric matrix.
        self._by_pair = apart * (0.5 / told.pair_error**2)
        self._points = moments.points
        self._products = moments.products
        self._by_product = crossed * (0.5 / moments.product_errors**2)
        self._means = moments.means
        self._by_mean = moments.mean_errors**-2.0

    def slopes(self, logits: Array, weights: Array) -> tuple[Array, Array]:
        """By the logits and by the weights."""
        logs, theta = np.empty_like(logits), np.empty_like(logits)
        for block in self._blocks:
            top = logits[block] - logits[block].max(axis=0)
            theta[block] = np.exp(top)
            total = theta[block].sum(axis=0)
            theta[block] /= total
            logs[block] = top - np.log(total)
        classes = _softmax(weights[:, None])[:, 0]
        joint = theta * classes
        share = joint.sum(axis=1)
        # By P, of pairs and of moments; and by the shares.
        off = (joint @ theta.T - self._pairs) * self._by_pair
        turned = 2 * (off @ theta)
        if self._points.shape[1]:
            scored = self._points.T @ theta
            missed = ((scored * classes) @ scored.T - self._products) * self._by_product
            turned += 2 * (self._points @ (missed @ scored))
        single = (share - self._shares) * self._by_share
        single += self._points @ ((self._points.T @ share - self._means) * self._by_mean)
        known = self._price * (logs - np.log(np.maximum(share, 1e-12))[:, None])
        by_theta = turned + single[:, None] + known
        # A pair's slope by π is of both its θ, whose products were counted twice above.
        by_class = ((0.5 * turned + single[:, None] + known) * theta).sum(axis=0)
        pulled = by_theta * joint
        found = np.empty_like(logits)
        for block in self._blocks:
            found[block] = pulled[block] - theta[block] * pulled[block].sum(axis=0)
        return found, classes * (by_class - float(by_class @ classes))


def _begin(told: Told, blocks: Sequence[Block]) -> Mixture:
    logits = np.empty((len(told.shares), told.classes))
    apart = np.random.default_rng(_SEED).standard_normal(logits.shape)
    for block in blocks:
        share = np.maximum(told.shares[block], _LEAST_SHARE)
        logits[block] = np.log(share / share.sum())[:, None] + _APART * apart[block]
    return Mixture(logits, np.zeros(told.classes), told.own)


def _list_blocks(own: NDArray[np.intp]) -> list[Block]:
    """Of each column's groups, one column after the other."""
    starts = np.append(np.flatnonzero(np.append(True, own[1:] != own[:-1])), len(own))
    return [slice(a, b) for a, b in pairwise(starts.tolist())]


def _softmax(logits: Array) -> Array:
    weights: Array = np.exp(logits - logits.max(axis=0))
    weights /= weights.sum(axis=0)
    return weights
