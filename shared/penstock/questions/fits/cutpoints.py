r"""The likelihood of cumulative logits of levels in order, by cutpoints and coefficients.

With F the logistic distribution function and cutpoints :math:`τ_0 < … < τ_{K-2}`,

.. math:: P(y \le c \mid x) = F(τ_c - x β),

so that a coefficient is the logarithm of by how much odds of lying above any cutpoint rise. With
a = τ_y − xβ and b = τ_{y−1} − xβ (infinite at either end) a row's log likelihood is

.. math:: \log F(a) + \log(1 - F(b)) + \log(1 - e^{-(τ_y - τ_{y-1})}),

concave in all of them. Its derivative by xβ, F(a) + F(b) − 1, is the row's residual, and its second
one −f(a) − f(b) with f = F(1 − F).

Source: McCullagh 1980, "Regression models for ordinal data", JRSS B 42, 109–142; concavity: Pratt
1981, JASA 76, 103–106.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

Array = NDArray[np.float64]
Places = NDArray[np.intp]


class Cumulative:
    """The log likelihood of rows, by (K − 1 + p,): cutpoints, then coefficients.

    Args:
        level: (n,) 0 to K − 1, each of which some row has; design: (n, p), without an intercept.
        weights: (n,) of rows, at least 0; None: 1 each.
        ridge: precision of a normal prior of coefficients, around 0.
        offset: (n,) what is added to xβ; None: nothing.
    """

    def __init__(
        self,
        level: Places,
        design: Array,
        weights: Array | None = None,
        ridge: float = 0.0,
        offset: Array | None = None,
    ) -> None:
        order = np.argsort(level, kind="stable")
        self._level, self._design = level[order], design[order]
        self._weights = np.ones(len(level)) if weights is None else weights[order]
        self._starts = np.flatnonzero(np.diff(self._level, prepend=-1))
        self._ridge = ridge
        self._offset = np.zeros(len(level)) if offset is None else offset[order]

    def start(self) -> Array:
        """Cutpoints by the levels' shares, and no effect."""
        share = self._sum(self._weights)
        risen = np.cumsum(share)[:-1] / share.sum()
        return np.append(logit(risen), np.zeros(self._design.shape[1]))

    def __call__(self, at: Array) -> tuple[float, Array, Array]:
        """As :data:`penstock.questions.fits.newton.Derivatives` has it; not finite where cutpoints
        are in no order."""
        x, w, p = self._design, self._weights, self._design.shape[1]
        cuts, beta = at[: len(at) - p], at[len(at) - p :]
        above, below, gap = place_cuts(cuts)
        eta = x @ beta + self._offset
        a, b = above[self._level] - eta, below[self._level] - eta
        held = np.where(gap > 0, gap, np.nan)
        tied, bent = 1 / np.expm1(held), 0.25 / np.sinh(np.minimum(held, 500.0) / 2) ** 2
        count = self._sum(w)
        each = np.logaddexp(0.0, -a) + np.logaddexp(0.0, b)
        value = float(count @ np.log(-np.expm1(-held)) - w @ each)
        up, down = expit(a), expit(b)
        slope_up, slope_down = w * up * (1 - up), w * down * (1 - down)
        # Of each level: the part of the cutpoint above it, and of the one below.
        rise = self._sum(w * (1 - up)) + count * tied
        fall = -self._sum(w * down) - count * tied
        score = np.append((rise[:-1] + fall[1:]), x.T @ (w * (up + down - 1)) - self._ridge * beta)
        over, under = self._sum(slope_up), self._sum(slope_down)
        own = np.diag((over + count * bent)[:-1] + (under + count * bent)[1:])
        beside = np.diag((-count * bent)[1:-1], 1)
        mixed = -(self._sum(x * slope_up[:, None])[:-1] + self._sum(x * slope_down[:, None])[1:])
        along = (x * (slope_up + slope_down)[:, None]).T @ x + self._ridge * np.eye(p)
        information = np.block([[own + beside + beside.T, mixed], [mixed.T, along]])
        return value - self._ridge / 2 * float(beta @ beta), score, information

    def _sum(self, values: Array) -> Array:
        """(K, …) of the rows of each level."""
        return np.asarray(np.add.reduceat(values, self._starts, axis=0))


def place_cuts(cuts: Array) -> tuple[Array, Array, Array]:
    """(K,) of each level: the cutpoint above it, the one below it, and what lies between."""
    above, below = np.append(cuts, np.inf), np.append(-np.inf, cuts)
    return above, below, above - below
