"""What explains how sites differ: meta-regression on columns of sites, and groups of sites.

y = Xβ + u + e with Var u = τ², Var e_i = v_i; w = 1/(v + τ²), W = diag(w):

    β̂ = (X'WX)⁻¹X'Wy,  Var β̂ = (X'WX)⁻¹,  P = W − WX(X'WX)⁻¹X'W,  Q_E(τ²) = y'Py,

and τ² as in :mod:`penstock.inference.tau_squared` with k − p in place of k − 1. With
``knapp-hartung`` Var β̂ is times Q_E(τ²)/(k − p), floored at 1 or not, and tests are Student's t and
F with k − p degrees of freedom.

Of variances that are estimates, with ν_i degrees of freedom, u_i = (v_i w_i)²/ν_i, leverages h_i
and Λ and A of :mod:`penstock.inference.uncertain`,

    Var β̂ = Φ + 4 Φ X' diag(w_i (1 − h_i) u_i) X Φ,  Φ = (X'WX)⁻¹,

and Knapp–Hartung's factor is times 1 − 2Λ/((k − p)(1 + 4A/p)). On an intercept alone all of this is
:func:`~penstock.inference.pooling.pool`'s.

Sources: Viechtbauer, J. Statistical Software 36 (2010) 3; Knapp & Hartung, Statistics in Medicine
22 (2003) 2693–2710; López-López et al., British J. Math. Stat. Psychology 67 (2014) 30–48; Kenward
& Roger, Biometrics 53 (1997) 983–997 (the covariance, in which each v_i is a parameter).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from penstock.base.errors import InvalidInput, Problem
from penstock.inference.pooling import Estimated, Test, check_sites, quantile
from penstock.inference.tau_squared import Array, find_highest, find_root
from penstock.inference.uncertain import Uncertainty

RANK = 1e-12
"""Of columns scaled to length 1, a smaller singular value beside the largest says they depend."""


@dataclass(frozen=True, slots=True)
class Regressed:
    """A meta-regression, on the coefficient scale.

    Attributes:
        coefficients, errors, low, high, p_values: (p,), of the columns as they were given.
        covariance: (p, p).
        tau2: what is left between sites; r2: the part of it that moderators explain, against the
            same method without them; None where there is none to explain.
        q, q_df, q_p: what is left, Q_E at τ² = 0, against χ²(k − p), or Johansen's reference.
        moderator, moderator_df, moderator_p: test that all coefficients but an intercept's are 0:
            χ² for ``z``, else F with ``df``; None where X is an intercept alone.
        df: of t and F; None for ``z``.
    """

    method: Estimated
    test: Test
    coefficients: tuple[float, ...]
    errors: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    p_values: tuple[float, ...]
    covariance: Array
    tau2: float
    r2: float | None
    q: float
    q_df: int
    q_p: float
    i2: float
    moderator: float | None
    moderator_df: int
    moderator_p: float | None
    df: int | None


@dataclass(frozen=True, slots=True)
class Fit:
    """Weighted least squares of one τ², and the traces that estimators take from it."""

    y: Array
    v: Array
    x: Array
    nu: Array

    @property
    def left(self) -> int:
        """k − p."""
        return len(self.y) - int(self.x.shape[1])

    def project(self, w: Array) -> tuple[Array, Array]:
        """Of weights w the residuals r = y − Xβ̂, and what each site is left of 1, 1 − h_i: the
        diagonal of W^−½ P W^−½, by W^½X = QR."""
        root = np.sqrt(w)
        q, _ = np.linalg.qr(root[:, None] * self.x)
        weighed = root * self.y
        return (weighed - q @ (q.T @ weighed)) / root, 1.0 - (q**2).sum(axis=1)

    def spread(self, tau2: float) -> float:
        """Q_E(τ²) = y'Py."""
        w = 1.0 / (self.v + tau2)
        residuals, _ = self.project(w)
        return float((w * residuals**2).sum())

    def trace(self, tau2: float) -> float:
        """tr P."""
        w = 1.0 / (self.v + tau2)
        return float((w * self.project(w)[1]).sum())

    def measure_uncertainty(self, tau2: float) -> Uncertainty:
        """What weights have of variances that are estimates."""
        rest = self.project(1.0 / (self.v + tau2))[1]
        return Uncertainty.of(self.v, tau2, self.nu, 1.0 - rest)

    def expect_spread(self, tau2: float) -> float:
        """The mean of Q_E(τ²) where τ² is the true one: k − p of known variances."""
        return self.measure_uncertainty(tau2).expected_q(self.left)

    def covary(self, tau2: float) -> Array:
        """Var β̂ of the module's formula, (p, p), before Knapp and Hartung's factor."""
        w = 1.0 / (self.v + tau2)
        plain: Array = np.linalg.inv((self.x * w[:, None]).T @ self.x).astype(np.float64)
        rest = self.project(w)[1]
        more = w * rest * (self.v * w) ** 2 / self.nu
        added = plain @ (self.x * more[:, None]).T @ self.x @ plain
        found: Array = plain + 4 * added
        return found

    def scale(self, tau2: float) -> float:
        """Knapp and Hartung's factor: Q_E(τ²) over what ``covary`` says that it is."""
        unknown, p = self.measure_uncertainty(tau2), int(self.x.shape[1])
        told = 1 - 2 * unknown.homogeneity / (self.left * (1 + 4 * unknown.mean / p))
        return self.spread(tau2) / self.left * max(told, 0.0)

    def score(self, tau2: float, *, restricted: bool) -> float:
        """Of the (restricted) likelihood, times 2: y'PPy − tr P, or − tr W."""
        w = 1.0 / (self.v + tau2)
        residuals, rest = self.project(w)
        trace = float((w * rest).sum()) if restricted else float(w.sum())
        return float((w * w * residuals**2).sum()) - trace

    def log_likelihood(self, tau2: float, *, restricted: bool) -> float:
        """Times 2, but for a constant."""
        w = 1.0 / (self.v + tau2)
        found = float(np.log(w).sum()) - self.spread(tau2)
        if restricted:
            found -= float(np.linalg.slogdet((self.x * w[:, None]).T @ self.x)[1])
        return found

    def estimate_tau2(self, method: Estimated) -> float:
        """τ² ≥ 0 of what X leaves."""
        return max(0.0, self._estimate(method))

    def _estimate(self, method: Estimated) -> float:
        k, left, ones = len(self.y), self.left, np.ones(len(self.y))
        if method == "fixed":
            return 0.0
        if method in ("reml", "ml"):
            restricted = method == "reml"
            spread = float(np.ptp(self.project(ones)[0])) ** 2
            return find_highest(
                lambda t: self.score(t, restricted=restricted),
                lambda many: np.array([self.score(t, restricted=restricted) for t in many]),
                lambda t: self.log_likelihood(t, restricted=restricted),
                spread,
                self.v,
            )
        if method in ("pm", "eb"):
            return self._solve()
        if method == "dl":
            return (self.spread(0.0) - self.expect_spread(0.0)) / self.trace(0.0)
        if method in ("hs", "hsk"):
            few = k / left if method == "hsk" else 1.0
            return (self.spread(0.0) * few - k) / float((1 / self.v).sum())
        residuals, rest = self.project(ones)
        if method == "he":
            return (float((residuals**2).sum()) - float((self.v * rest).sum())) / left
        if method == "sj":
            first = float(self.y.var())
            return first * self.spread(first) / left
        raise InvalidInput("meta-regression", [Problem("method", "unknown", value=method)])

    def _solve(self) -> float:
        """The root of Q_E(τ²) = its mean, which is below Σr²/(k − p) of unweighted residuals."""

        def excess(tau2: float) -> float:
            return self.spread(tau2) - self.expect_spread(tau2)

        if excess(0.0) <= 0:
            return 0.0
        residuals, _ = self.project(np.ones(len(self.y)))
        high = float((residuals**2).sum()) / self.left
        if excess(high) >= 0:
            return high
        return find_root(excess, 0.0, high, self.v)


def regress(
    estimates: ArrayLike,
    variances: ArrayLike,
    columns: ArrayLike,
    *,
    method: Estimated = "reml",
    test: Test = "knapp-hartung-floored",
    level: float = 0.95,
    degrees: ArrayLike | None = None,
) -> Regressed:
    """A meta-regression of k sites on p columns.

    Args:
        estimates, variances: (k,), as for :func:`~penstock.inference.pooling.pool`.
        columns: (k, p), p < k, finite, of full rank; with a column of ones where there is to be an
            intercept.
        method, test, level: as there. ``fixed`` goes with ``z`` only.
        degrees: of freedom of the variances, as there; finite ones not with ``z``.

    Raises:
        InvalidInput: with every problem of the arguments.
    """
    y, v, nu = check_sites(estimates, variances, method, test, level, degrees)
    x = _check_columns(columns, len(y))
    fit, test = Fit(y, v, x, nu), "z" if method == "fixed" else test
    if test == "z" and np.isfinite(nu).any():
        problem = Problem("degrees", "do not go with z", remedy="take a Knapp–Hartung test")
        raise InvalidInput("meta-regression", [problem])
    tau2 = fit.estimate_tau2(method)
    w = 1.0 / (v + tau2)
    left = fit.left
    beta: Array = np.linalg.solve((x * w[:, None]).T @ x, x.T @ (w * y)).astype(np.float64)
    covariance = fit.covary(tau2)
    if test != "z":
        ratio = fit.scale(tau2)
        covariance = covariance * (max(1.0, ratio) if test == "knapp-hartung-floored" else ratio)
    df = None if test == "z" else left
    errors = np.sqrt(np.diag(covariance))
    half = quantile(level, df) * errors
    statistic = np.abs(beta) / errors
    tails = special.ndtr(-statistic) if df is None else special.stdtr(df, -statistic)
    alone = np.all(x == x[0], axis=0)
    moderator = _test_moderators(beta, covariance, ~alone, df)
    q = fit.spread(0.0)
    bare = Fit(y, v, x[:, alone], nu)
    total = bare.estimate_tau2(method) if alone.any() and not alone.all() else 0.0
    typical = left / fit.trace(0.0)
    return Regressed(
        method=method,
        test=test,
        coefficients=tuple(beta.tolist()),
        errors=tuple(errors.tolist()),
        low=tuple((beta - half).tolist()),
        high=tuple((beta + half).tolist()),
        p_values=tuple((2 * tails).tolist()),
        covariance=covariance,
        tau2=tau2,
        r2=max(0.0, 1 - tau2 / total) if total > 0 else None,
        q=q,
        q_df=left,
        q_p=fit.measure_uncertainty(0.0).q_p(q, left),
        i2=max(0.0, 1 - left / q) if method == "fixed" else tau2 / (tau2 + typical),
        moderator=moderator[0],
        moderator_df=int((~alone).sum()),
        moderator_p=moderator[1],
        df=df,
    )


def compare_subgroups(
    estimates: ArrayLike,
    variances: ArrayLike,
    groups: Sequence[str],
    *,
    method: Estimated = "reml",
    test: Test = "knapp-hartung-floored",
    level: float = 0.95,
    degrees: ArrayLike | None = None,
) -> Regressed | None:
    """The test that all groups of sites have one effect, with one τ² for all: with few sites a
    group's own is known badly.

    A meta-regression on an intercept, the first group's, and one column for each other group; None
    of one group, or where each site is a group.

    Args:
        groups: of each site its group; the order of groups is that of their names.
        degrees: as for :func:`regress`.

    Raises:
        InvalidInput: as :func:`~penstock.inference.pooling.pool`, or ``groups`` are not k.
    """
    y, v, nu = check_sites(estimates, variances, method, test, level, degrees)
    if len(groups) != len(y):
        problem = Problem("groups", "not one for each site", value=f"{len(groups)} of {len(y)}")
        raise InvalidInput("subgroups", [problem])
    names, of = sorted(set(groups)), np.array(list(groups))
    if not 1 < len(names) < len(y):
        return None
    columns = [np.ones(len(y)), *((of == name).astype(np.float64) for name in names[1:])]
    x = np.stack(columns, axis=1)
    return regress(y, v, x, method=method, test=test, level=level, degrees=nu)


def _test_moderators(
    beta: Array,
    covariance: Array,
    tested: NDArray[np.bool_],
    df: int | None,
) -> tuple[float | None, float | None]:
    m = int(tested.sum())
    if m == 0:
        return None, None
    part = beta[tested]
    wald = float(part @ np.linalg.solve(covariance[np.ix_(tested, tested)], part))
    if df is None:
        return wald, float(special.chdtrc(m, wald))
    return wald / m, float(special.fdtrc(m, df, wald / m))


def _check_columns(columns: ArrayLike, k: int) -> Array:
    x = np.asarray(columns, dtype=np.float64)
    problem = None
    if x.ndim != 2 or x.shape[0] != k or not 0 < x.shape[1] < k:
        problem = Problem(
            "columns",
            "not fewer columns than sites",
            value=f"shape {x.shape}",
            bound="(k, p), p < k",
        )
    elif not np.isfinite(x).all():
        problem = Problem(
            "columns", "not finite", remedy="leave out sites whose columns are missing"
        )
    else:
        lengths = np.sqrt((x**2).sum(axis=0))
        values = np.linalg.svd(x / np.where(lengths > 0, lengths, 1.0), compute_uv=False)
        if not values[-1] > RANK * math.sqrt(k) * values[0]:
            problem = Problem("columns", "depend on each other", remedy="leave one of them out")
    if problem is not None:
        raise InvalidInput("meta-regression", [problem])
    return x
