r"""Fourfold tables of sites, pooled as they are: Mantel and Haenszel's estimates, and Peto's.

Site i counts, of persons who are exposed, a_i with an event and b_i without, and of those who are
not, c_i and d_i. With n₁ = a + b, n₂ = c + d, x = a + c, y = b + d and N = n₁ + n₂ each measure is
of two sums over sites,

================  ====================  =====================  =================================
measure           T_i                   B_i                    estimate
================  ====================  =====================  =================================
odds ratio        ad/N                  bc/N                   log(ΣT/ΣB)
risk ratio        a n₂/N                c n₁/N                 log(ΣT/ΣB)
risk difference   (ad − bc)/N           n₁n₂/N                 ΣT/ΣB
Peto odds ratio   a − x n₁/N            xy n₁n₂/(N²(N − 1))    ΣT/ΣB, near the log odds ratio
================  ====================  =====================  =================================

with the variances, of T and B as sums, P = (a + d)/N and Q = (b + c)/N,

.. math::

    \tfrac12 \Big(\frac{\sum P_iT_i}{T^2} + \frac{\sum (P_iB_i + Q_iT_i)}{TB}
        + \frac{\sum Q_iB_i}{B^2}\Big)
        &\quad\text{(odds ratio; Robins, Breslow and Greenland)},\\
    \sum \Big(\frac{n_1n_2x}{N^2} - \frac{ac}{N}\Big) \Big/ TB
        &\quad\text{(risk ratio; Greenland and Robins)},\\
    \frac1{B^2} \sum \Big(\hatδ\Big[\frac{c n_1^2 - a n_2^2}{N^2}
        + \frac{n_1n_2(n_2 - n_1)}{2N^2}\Big] + \frac{ad + bc}{2N}\Big)
        &\quad\text{(risk difference } \hatδ\text{; Sato)},\\
    1/B &\quad\text{(Peto)}.

One effect is assumed for all sites, and no τ². The first three hold with few large tables and with
many small ones; Peto's is for rare events, a small effect, and groups of about one size.

**Noisy counts.** Counts need not be whole, so that released ones can be pooled. But these variances
are of sampling alone: what a mechanism added to the counts is not in them, and an interval without
it is too narrow. Where its covariance C_i is known, as it is of the counts that `scoring` answers
with, it is taken as ``noise``: the variance gets Σ g_i'C_i g_i more, g_i the gradient by the site's
counts, to first order. Counts that were cut at 0 or rounded have another error, which nothing here
knows.

**Zeros**, as R's metafor has them. The sums take counts as they are, since a cell of 0 does no harm
there. Q = Σ(y_i − θ̂)²/v_i is of each site's own y_i and v_i: where a cell is 0 they are of all
four cells and ½ more, and a site without any event, or with nothing else, is left out of it. Counts
that are nearly 0 get nothing. Unlike in metafor a site without any exposed person, or without any
other, is left out altogether: it compares nothing, and its ½ would count as a degree of freedom.

Sources: Mantel & Haenszel, JNCI 22 (1959) 719–748; Robins, Breslow & Greenland, Biometrics 42
(1986) 311–323; Greenland & Robins, Biometrics 41 (1985) 55–68; Sato, Biometrics 45 (1989)
1323–1324 (with Greenland & Robins); Yusuf, Peto et al., Progress in Cardiovascular Diseases 27
(1985) 335–371. Golden values: metafor's ``rma.mh`` and ``rma.peto`` (tests/golden/data).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from penstock.base.errors import InvalidInput, Problem
from penstock.inference.pooling import quantile, tail
from penstock.inference.tau_squared import Array

Weighed = Literal["odds-ratio", "risk-ratio", "risk-difference"]
Measure = Literal["odds-ratio", "risk-ratio", "risk-difference", "peto-odds-ratio"]

MEASURES: tuple[Weighed, ...] = get_args(Weighed)
CELLS = ("exposed_events", "exposed_rest", "other_events", "other_rest")
"""a, b, c and d."""
MOST = 1e15
"""In one cell: beyond it a double does not tell one person from none."""


@dataclass(frozen=True, slots=True)
class Stratified:
    """One estimate of all sites; of a ratio its logarithm.

    Attributes:
        k: sites that compare something: with exposed persons and with others.
        estimate, se, statistic, p_value, ci_low, ci_high: normal, two-sided against 0.
        se_noise: the mechanism's part of ``se``, of the noise that was given; else 0.
        q, q_df, q_p: how far the sites' own estimates are from it, against χ²; 0, 0 and 1 where at
            most one site has its own.
        weights: (k,) of those sites, with sum 1: the share of ΣB, which of the risk difference and
            Peto's is that in the estimate.
    """

    measure: Measure
    k: int
    level: float
    estimate: float
    se: float
    se_noise: float
    statistic: float
    p_value: float
    ci_low: float
    ci_high: float
    q: float
    q_df: int
    q_p: float
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Fourfold:
    """Tables of k sites; each cell, margin and N is (k,)."""

    a: Array
    b: Array
    c: Array
    d: Array

    @property
    def exposed(self) -> Array:
        """n₁."""
        return self.a + self.b

    @property
    def others(self) -> Array:
        """n₂."""
        return self.c + self.d

    @property
    def events(self) -> Array:
        """x."""
        return self.a + self.c

    @property
    def rest(self) -> Array:
        """y."""
        return self.b + self.d

    @property
    def whole(self) -> Array:
        """N."""
        return self.exposed + self.others

    def pick(self, of: NDArray[np.bool_]) -> Fourfold:
        """The tables of some sites."""
        return Fourfold(self.a[of], self.b[of], self.c[of], self.d[of])

    def fill(self) -> Fourfold:
        """½ more in each cell of tables that have a 0."""
        cells = np.stack([self.a, self.b, self.c, self.d])
        a, b, c, d = cells + np.where((cells == 0).any(axis=0), 0.5, 0.0)
        return Fourfold(a, b, c, d)


@dataclass(frozen=True, slots=True)
class Sums:
    """T_i and B_i, (k,) each, with their gradients by a, b, c and d, (4, k) each; ``logged``: the
    estimate is the logarithm of ΣT/ΣB."""

    top: Array
    bottom: Array
    top_slope: Array
    bottom_slope: Array
    logged: bool

    @property
    def estimate(self) -> float:
        """Of all sites."""
        ratio = float(self.top.sum()) / float(self.bottom.sum())
        return math.log(ratio) if self.logged else ratio

    def differentiate(self) -> Array:
        """(4, k): of the estimate, by each site's counts."""
        top, bottom = float(self.top.sum()), float(self.bottom.sum())
        if self.logged:
            return self.top_slope / top - self.bottom_slope / bottom
        return (self.top_slope - top / bottom * self.bottom_slope) / bottom


def pool_mantel_haenszel(
    exposed_events: ArrayLike,
    exposed_rest: ArrayLike,
    other_events: ArrayLike,
    other_rest: ArrayLike,
    *,
    measure: Weighed = "odds-ratio",
    level: float = 0.95,
    noise: ArrayLike | None = None,
) -> Stratified | None:
    """Mantel and Haenszel's estimate of k sites' tables.

    Args:
        exposed_events, exposed_rest, other_events, other_rest: a, b, c and d, (k,) each, k ≥ 1;
            finite, at least 0, not necessarily whole.
        measure: of :data:`MEASURES`.
        level: coverage of the interval, in (0, 1).
        noise: (k, 4, 4), the covariance of what a mechanism added to a, b, c and d; None: nothing,
            and the interval lacks it if there was some.

    Returns:
        None where the tables have no estimate with an error: of the odds ratio where all ad or all
        bc are 0, of the risk ratio where one group has no event or both have nothing else, of the
        difference where its variance is 0.

    Raises:
        InvalidInput: with every problem of the arguments.

    Example:
        >>> found = pool_mantel_haenszel([10, 4], [90, 46], [5, 2], [95, 48])
        >>> round(found.estimate, 3), round(found.se, 3), round(found.q_p, 2)
        (0.744, 0.478, 0.99)
    """
    tables, c = _check_tables(
        (exposed_events, exposed_rest, other_events, other_rest), measure, MEASURES, level, noise
    )
    kept = (tables.exposed > 0) & (tables.others > 0)
    tables, c = tables.pick(kept), c[kept]
    sums = _SUMS[measure](tables)
    top, bottom = float(sums.top.sum()), float(sums.bottom.sum())
    if not bottom > 0 or (sums.logged and not top > 0):
        return None
    variance = _VARIANCES[measure](tables, sums)
    own = ~(((tables.a == 0) & (tables.c == 0)) | ((tables.b == 0) & (tables.d == 0)))
    estimates, variances, slopes = _estimate_alone(measure, tables.pick(own).fill())
    return _conclude(measure, level, sums, variance, c, (estimates, variances, slopes, c[own]))


def pool_peto(
    exposed_events: ArrayLike,
    exposed_rest: ArrayLike,
    other_events: ArrayLike,
    other_rest: ArrayLike,
    *,
    level: float = 0.95,
    noise: ArrayLike | None = None,
) -> Stratified | None:
    """Peto's one-step log odds ratio of k sites' tables: observed less expected events of those
    exposed, over its hypergeometric variance.

    A site with N ≤ 1, which only noise makes, is left out. Q is of sites with B_i > 0.

    Args:
        exposed_events, exposed_rest, other_events, other_rest, level, noise: as for
            :func:`pool_mantel_haenszel`.

    Returns:
        None where nobody has an event, or all have one.

    Raises:
        InvalidInput: with every problem of the arguments.
    """
    tables, c = _check_tables(
        (exposed_events, exposed_rest, other_events, other_rest), None, MEASURES, level, noise
    )
    kept = (tables.exposed > 0) & (tables.others > 0) & (tables.whole > 1)
    tables, c = tables.pick(kept), c[kept]
    sums = _sum_peto(tables)
    if not float(sums.bottom.sum()) > 0:
        return None
    own = sums.bottom > 0
    v = sums.bottom[own]
    y = sums.top[own] / v
    slopes = (sums.top_slope[:, own] - y * sums.bottom_slope[:, own]) / v
    variance = 1 / float(sums.bottom.sum())
    return _conclude("peto-odds-ratio", level, sums, variance, c, (y, 1 / v, slopes, c[own]))


def _conclude(
    measure: Measure,
    level: float,
    sums: Sums,
    variance: float,
    noise: Array,
    own: tuple[Array, Array, Array, Array],
) -> Stratified | None:
    """The estimate with its error, and Q of the sites' own estimates, variances, gradients and
    noise."""
    estimate, added = sums.estimate, float(_carry(sums.differentiate(), noise).sum())
    if not 0 < variance + added < math.inf:
        return None
    se = math.sqrt(variance + added)
    half, statistic = quantile(level, None) * se, estimate / se
    y, v, slopes, c = own
    q, df = 0.0, max(len(y) - 1, 0)
    if df > 0:
        q = float(((y - estimate) ** 2 / (v + _carry(slopes, c))).sum())
    whole = float(sums.bottom.sum())
    return Stratified(
        measure=measure,
        k=len(sums.top),
        level=level,
        estimate=estimate,
        se=se,
        se_noise=math.sqrt(added),
        statistic=statistic,
        p_value=2 * tail(abs(statistic), None),
        ci_low=estimate - half,
        ci_high=estimate + half,
        q=q,
        q_df=df,
        q_p=float(special.chdtrc(df, q)) if df > 0 else 1.0,
        weights=tuple((sums.bottom / whole).tolist()),
    )


def _carry(slopes: Array, noise: Array) -> Array:
    """(k,) g'Cg of gradients (4, k) and covariances (k, 4, 4)."""
    carried: Array = np.einsum("ik,kij,jk->k", slopes, noise, slopes)
    return np.maximum(carried, 0.0)


# -- the sums and their gradients ------------------------------------------------------------------


def _sum_odds(t: Fourfold) -> Sums:
    n, none = t.whole, np.zeros_like(t.a)
    top, bottom = t.a / n * t.d, t.b / n * t.c
    return Sums(
        top,
        bottom,
        np.stack([t.d, none, none, t.a]) / n - top / n,
        np.stack([none, t.c, t.b, none]) / n - bottom / n,
        logged=True,
    )


def _sum_risks(t: Fourfold) -> Sums:
    n, none = t.whole, np.zeros_like(t.a)
    top, bottom = t.a * (t.others / n), t.c * (t.exposed / n)
    return Sums(
        top,
        bottom,
        np.stack([t.others, none, t.a, t.a]) / n - top / n,
        np.stack([t.c, t.c, t.exposed, none]) / n - bottom / n,
        logged=True,
    )


def _sum_differences(t: Fourfold) -> Sums:
    n = t.whole
    top, bottom = t.a * (t.others / n) - t.c * (t.exposed / n), t.exposed * (t.others / n)
    return Sums(
        top,
        bottom,
        np.stack([t.d, -t.c, -t.b, t.a]) / n - top / n,
        np.stack([t.others, t.others, t.exposed, t.exposed]) / n - bottom / n,
        logged=False,
    )


def _sum_peto(t: Fourfold) -> Sums:
    n, n1, n2, x, y = t.whole, t.exposed, t.others, t.events, t.rest
    bottom = x * y * (n1 / n) * (n2 / n) / (n - 1)
    # Of xy n₁n₂, a cell is in one of x and y and in one of n₁ and n₂.
    by_margin = [m * n1 * n2 + x * y * r for r in (n2, n1) for m in (y, x)]
    slope = np.stack(by_margin) / (n * n * (n - 1)) - bottom * (2 / n + 1 / (n - 1))
    differences = _sum_differences(t)
    top = t.a - x * n1 / n
    return Sums(top, bottom, differences.top_slope, slope, logged=False)


_SUMS: dict[Weighed, Callable[[Fourfold], Sums]] = {
    "odds-ratio": _sum_odds,
    "risk-ratio": _sum_risks,
    "risk-difference": _sum_differences,
}


# -- the variances ---------------------------------------------------------------------------------


def _vary_odds(t: Fourfold, sums: Sums) -> float:
    n, r, s = t.whole, sums.top, sums.bottom
    p, q = t.a / n + t.d / n, t.b / n + t.c / n
    whole, other = float(r.sum()), float(s.sum())
    found = float((p * r).sum()) / whole**2 + float((q * s).sum()) / other**2
    return (found + float((p * s + q * r).sum()) / (whole * other)) / 2


def _vary_risks(t: Fourfold, sums: Sums) -> float:
    n = t.whole
    each = (t.exposed / n) * (t.others / n) * t.events - t.a / n * t.c
    return float(each.sum()) / (float(sums.top.sum()) * float(sums.bottom.sum()))


def _vary_differences(t: Fourfold, sums: Sums) -> float:
    n, n1, n2 = t.whole, t.exposed, t.others
    each = t.c * (n1 / n) ** 2 - t.a * (n2 / n) ** 2 + (n1 / n) * (n2 / n) * (n2 - n1) / 2
    rest = float((t.a * t.d / n + t.c * t.b / n).sum()) / 2
    return (sums.estimate * float(each.sum()) + rest) / float(sums.bottom.sum()) ** 2


_VARIANCES: dict[Weighed, Callable[[Fourfold, Sums], float]] = {
    "odds-ratio": _vary_odds,
    "risk-ratio": _vary_risks,
    "risk-difference": _vary_differences,
}


def _estimate_alone(measure: Weighed, t: Fourfold) -> tuple[Array, Array, Array]:
    """Each site's own estimate and variance, (k,), and gradient, (4, k)."""
    n1, n2 = t.exposed, t.others
    if measure == "odds-ratio":
        slopes = np.stack([1 / t.a, -1 / t.b, -1 / t.c, 1 / t.d])
        return np.log(t.a / t.b / (t.c / t.d)), np.abs(slopes).sum(axis=0), slopes
    if measure == "risk-ratio":
        slopes = np.stack([1 / t.a - 1 / n1, -1 / n1, 1 / n2 - 1 / t.c, 1 / n2])
        return np.log(t.a / n1 / (t.c / n2)), slopes[0] - slopes[2], slopes
    slopes = np.stack([t.b / n1**2, -t.a / n1**2, -t.d / n2**2, t.c / n2**2])
    variance = t.a / n1 * (t.b / n1) / n1 + t.c / n2 * (t.d / n2) / n2
    return t.a / n1 - t.c / n2, variance, slopes


# -- what is given ---------------------------------------------------------------------------------


def _check_tables(
    cells: tuple[ArrayLike, ...],
    measure: str | None,
    measures: tuple[str, ...],
    level: float,
    noise: ArrayLike | None,
) -> tuple[Fourfold, Array]:
    problems: list[Problem] = []
    if measure is not None and measure not in measures:
        bound = "one of " + ", ".join(measures)
        problems.append(Problem("measure", "unknown", value=measure, bound=bound))
    if not 0 < level < 1:
        problems.append(Problem("level", "not a coverage", value=str(level), bound="in (0, 1)"))
    counts = [np.asarray(cell, dtype=np.float64) for cell in cells]
    shapes = {cell.shape for cell in counts}
    k = counts[0].size
    if len(shapes) > 1 or counts[0].ndim != 1 or k == 0:
        problems.append(
            Problem(
                ", ".join(CELLS),
                "not four vectors of the same length",
                value="shapes " + ", ".join(str(cell.shape) for cell in counts),
                bound="(k,) each, k >= 1",
            )
        )
    for name, cell in zip(CELLS, counts, strict=True):
        if not np.isfinite(cell).all():
            remedy = "leave out sites without a count"
            problems.append(Problem(name, "not finite", remedy=remedy))
        elif not ((cell >= 0) & (cell <= MOST)).all():
            bound, remedy = f"0 to {MOST:g}", "take 0 for a noisy count below 0"
            problems.append(Problem(name, "not a count", bound=bound, remedy=remedy))
    c = np.zeros((k, 4, 4)) if noise is None else np.asarray(noise, dtype=np.float64)
    if c.shape != (k, 4, 4):
        problems.append(
            Problem(
                "noise", "not a matrix for each site", value=f"shape {c.shape}", bound="(k, 4, 4)"
            )
        )
    elif not _are_covariances(c):
        problems.append(
            Problem("noise", "not covariances", bound="finite, symmetric, no variance < 0")
        )
    if problems:
        raise InvalidInput("fourfold tables", problems)
    return Fourfold(*counts), c


def _are_covariances(c: Array) -> bool:
    if not np.isfinite(c).all() or not np.allclose(c, np.swapaxes(c, 1, 2), rtol=1e-9, atol=0):
        return False
    least = np.linalg.eigvalsh(c).min(axis=1)
    return bool((least >= -1e-9 * np.abs(c).max(axis=(1, 2))).all())
