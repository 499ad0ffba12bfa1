r"""The likelihood of baseline-category logits: levels without an order, each against the first.

.. math:: \log\frac{P(y = k \mid x)}{P(y = 0 \mid x)} = x β_k,\qquad k = 1, …, m

whose score by :math:`β_k` is :math:`x (1\{y = k\} - p_k)`, and whose information has the blocks
:math:`\sum x x' p_k (1\{k = l\} - p_l)`: concave.

Source: Agresti 2013, "Categorical data analysis", 3rd ed., section 8.1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Baseline:
    """The log likelihood of rows, by (m·p,): the coefficients of each level, one after the other.

    Args:
        there: (n, m) 1 where a row has the level, of those beside the first, or its chance.
        design: (n, p); weights: (n,) of rows, at least 0.
        ridge: precision of a normal prior of all coefficients, around 0.
        offset: (n, m) what is added to xβ.
    """

    def __init__(
        self,
        there: Array,
        design: Array,
        weights: Array,
        ridge: float = 0.0,
        offset: Array | None = None,
    ) -> None:
        self._there, self._design, self._weights, self._ridge = there, design, weights, ridge
        self._offset = np.zeros_like(there) if offset is None else offset

    def __call__(self, at: Array) -> tuple[float, Array, Array]:
        """As :data:`penstock.questions.fits.newton.Derivatives` has it."""
        x, w, m = self._design, self._weights, self._there.shape[1]
        eta = x @ at.reshape(m, -1).T + self._offset
        p = level_chances(eta)
        top = np.maximum(eta.max(axis=1), 0.0)
        total = top + np.log(np.exp(-top) + np.exp(eta - top[:, None]).sum(axis=1))
        value = float(w @ ((self._there * eta).sum(axis=1) - total))
        score = ((self._there - p) * w[:, None]).T @ x
        value -= self._ridge / 2 * float(at @ at)
        information = inform_levels(p, x, w) + self._ridge * np.eye(len(at))
        return value, score.ravel() - self._ridge * at, information


def level_chances(eta: Array) -> Array:
    """(n, m) chances of the levels beside the first, by their logits against it."""
    top = np.maximum(eta.max(axis=1, keepdims=True), 0.0)
    odds = np.exp(eta - top)
    return np.asarray(odds / (np.exp(-top) + odds.sum(axis=1, keepdims=True)))


def inform_levels(chances: Array, design: Array, weights: Array) -> Array:
    """(m·p, m·p) the information of all levels' coefficients."""
    m = chances.shape[1]
    blocks = [
        [
            (design * (weights * chances[:, k] * ((k == j) - chances[:, j]))[:, None]).T @ design
            for j in range(m)
        ]
        for k in range(m)
    ]
    return np.block(blocks)
