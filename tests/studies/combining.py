"""Does the combining rule cover what it says? Simulation of the formulas, without any release.

Estimates are drawn from the law that the rules assume: sampling variance u = 1 of a table,
mechanism variance d, m = 10 copies, B = 40 refits of copies. "Site": the interval of one site
alone, Student's t with Satterthwaite's degrees of freedom. "Before": ten refits with rows of their
own, ū/m forgotten, a normal quantile. Pooled, k = 4 and 12 sites of 450 to 6 300 persons, d/u as
1/n about the ratio named: the fixed effect with Meier's error; plain Hartung-Knapp; the report's
headline, floored Hartung-Knapp with DerSimonian and Laird's τ²; and how often Q's p is below .05,
by Welch's reference, and by χ² as if the variances were known. Sites share one effect (τ = 0), or
vary as much as the mean site errs (τ = 1; Q and the fixed effect do not apply). The floor is not
made to hold its level but never to be narrower than the fixed effect: it is wide at k = 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tests.studies.lni import over_runs
from tests.support.results import Row, write

from penstock.inference import pooling
from penstock.inference.combine import SiteEstimate, combine
from penstock.inference.refits import Measured, Spread, spread, widen_sites, widened
from penstock.mechanisms.released import EACH, Refitting
from penstock.questions.estimation import Estimate

D_OVER_U = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 10.0, 30.0, 100.0)
POOLED_AT = (0.0, 0.5, 3.0, 100.0)
COPIES, REFITS, SITES, POOLS = 10, 40, 40_000, 1000
N_LOW, N_HIGH, N_MEAN = 450, 6300, 2000
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Site:
    """A simulated site: its copies combined, its refits, the copies, and how refits are theirs."""

    plain: SiteEstimate
    refits: Sequence[Estimate]
    copies: Sequence[Estimate]
    made: Refitting = EACH


def _estimates(values: Array, u: float, n: int) -> list[Estimate]:
    return [Estimate(float(x), u, n, None, True) for x in values]


def refits_of_copies(
    rng: np.random.Generator,
    d: float,
    *,
    copies: int = COPIES,
    refits: int = REFITS,
    u: float = 1.0,
    n: int = 50,
    effect: float = 0.0,
) -> Site:
    """Refit b errs from the copy it was made of by the mechanism and by one table's sampling."""
    fitted = effect + rng.normal() * math.sqrt(u + d)
    q = fitted + rng.normal(size=copies) * math.sqrt(u)
    of = [EACH.find_copy(b + 1, copies) - 1 for b in range(refits)]
    again = q[of] + rng.normal(size=refits) * math.sqrt(u + d)
    made = _estimates(q, u, n)
    return Site(combine(made), _estimates(again, u, n), made)


def refits_drawn_anew(
    rng: np.random.Generator, d: float, *, copies: int = COPIES, refits: int = REFITS
) -> Site:
    """Refit b errs from the fitted model by its rows' sampling, the mechanism and its table's."""
    fitted = rng.normal() * math.sqrt(1 + d)
    q = fitted + rng.normal(size=copies)
    again = fitted + rng.normal(size=refits) * math.sqrt(2 + d)
    made = _estimates(q, 1.0, 50)
    return Site(combine(made), _estimates(again, 1.0, 50), made, Refitting(of_copies=False))


def refits_in_pairs(
    rng: np.random.Generator,
    d: float,
    *,
    copies: int = COPIES,
    refits: int = REFITS,
    u: float = 1.0,
    n: int = 50,
    effect: float = 0.0,
    share: float = 0.3,
) -> Site:
    """Refits 2f − 1 and 2f err from the copy of fit f by the mechanism, alike, and each by its own
    share of a table's sampling, as copies do."""
    made, how = Refitting(per_fit=2), range(1, refits + 1)
    fitted = effect + rng.normal() * math.sqrt(u + d)
    q = fitted + rng.normal(size=copies) * math.sqrt(share * u)
    moved = rng.normal(size=refits) * math.sqrt(d)
    own = rng.normal(size=refits) * math.sqrt(share * u)
    again = [q[made.find_copy(b, copies) - 1] + moved[made.find_fit(b) - 1] for b in how] + own
    fits = _estimates(q, u, n)
    return Site(combine(fits), _estimates(again, u, n), fits, made)


def coverage(d: float, *, refits: int, repeats: int, before: bool = False) -> float:
    """How often a single site's interval holds the truth; ``before``: by the rule of before."""
    rng = np.random.default_rng([9, round(100 * d), refits])
    within = 1 + 1 / COPIES
    errors = rng.normal(size=repeats) * math.sqrt(within + d)
    if before:
        # About q̄, whose own error all refits share, with 2u subtracted.
        shared = rng.normal(size=repeats) * math.sqrt((2 + d) / refits + 1 / COPIES)
        square = shared**2 + (2 + d) * rng.chisquare(refits - 1, repeats) / refits
        total = within + np.maximum(square - 2.0, 0.0)
        return float(np.mean(np.abs(errors) <= pooling.quantile(0.95, None) * np.sqrt(total)))
    plain = combine(_estimates(np.zeros(COPIES), 1.0, 50))
    squares = (1 + d) * rng.chisquare(refits, repeats) / refits
    made = [widened(plain, Spread(float(s), 1.0, float(refits), 50)) for s in squares]
    halves = [pooling.quantile(0.95, one.df) * math.sqrt(one.variance) for one in made]
    return float(np.mean(np.abs(errors) <= halves))


def _widened(sites: Sequence[Site]) -> list[SiteEstimate]:
    """As a report's builder does it."""
    measured = {
        str(i): {"e": Measured(s.plain, len(s.refits), spread(s.plain, s.refits, s.copies, s.made))}
        for i, s in enumerate(sites)
    }
    return [found["e"] for found in widen_sites(measured).values()]


@dataclass(frozen=True, slots=True)
class PooledShares:
    """Shares of simulated pools; ``width``: the headline's, over that of known variances."""

    fixed: float
    plain: float
    floored: float
    q_level: float
    q_level_known: float
    width: float


def pooled(
    k: int, ratio: float, *, refits: int, repeats: int, tau: float = 0.0, seed: int = 1
) -> PooledShares:
    """Coverage and level over simulated pools of k sites."""
    rng = np.random.default_rng([seed, k, round(10 * ratio), refits, round(tau)])
    found = []
    for _ in range(repeats):
        sizes = np.exp(rng.uniform(math.log(N_LOW), math.log(N_HIGH), k)).astype(int)
        spread_of = tau * math.sqrt(1.1 + ratio)
        sites, true = [], []
        for n in sizes:
            u = N_MEAN / n
            d = ratio * u * N_MEAN / n
            true.append(1.1 * u + d)
            effect = spread_of * rng.normal()
            sites.append(refits_of_copies(rng, d, refits=refits, u=u, n=int(n), effect=effect))
        made = _widened(sites)
        y, v, df = zip(*((s.estimate, s.variance, s.df) for s in made), strict=True)
        fixed = pooling.pool(y, v, method="fixed", degrees=df)
        plain = pooling.pool(y, v, method="dl", test="knapp-hartung", degrees=df)
        floored = pooling.pool(y, v, method="dl", degrees=df)
        oracle = pooling.pool(y, true, method="dl")
        found.append(
            (
                *(p.ci_low <= 0 <= p.ci_high for p in (fixed, plain, floored)),
                fixed.q_p < 0.05,
                pooling.pool(y, v, method="fixed").q_p < 0.05,
                (floored.ci_high - floored.ci_low) / (oracle.ci_high - oracle.ci_low),
            )
        )
    return PooledShares(*(float(x) for x in np.mean(np.array(found, dtype=np.float64), axis=0)))


def _one(case: int) -> tuple[float, ...]:
    """One line of the table, of those of :func:`run`."""
    if case < len(D_OVER_U):
        d = D_OVER_U[case]
        before = coverage(d, refits=10, repeats=SITES, before=True)
        return coverage(d, refits=REFITS, repeats=SITES), before
    k, ratio, tau = _CASES[case - len(D_OVER_U)]
    got = pooled(k, ratio, refits=REFITS, repeats=POOLS, tau=tau)
    return got.fixed, got.plain, got.floored, got.q_level, got.q_level_known, got.width


_CASES = [(k, ratio, tau) for k in (4, 12) for tau in (0.0, 1.0) for ratio in POOLED_AT]


def run() -> Path:
    """Simulate."""
    cases = range(len(D_OVER_U) + len(_CASES))
    found = over_runs(_one, cases, "combining")
    rows: list[Row] = []

    def add(name: str, share: float, runs: int, low: float | None, high: float = 1.0) -> None:
        se = math.sqrt(share * (1 - share) / runs)
        holds = None if low is None else low - 2 * se <= share <= high + 2 * se
        rows.append(Row(name, share, se, runs, low, holds=holds))

    for d, (now, before) in zip(D_OVER_U, found[: len(D_OVER_U)], strict=True):
        add(f"site, d/u = {d:g}", now, SITES, 0.94, 0.96)
        add(f"site, d/u = {d:g}, before", before, SITES, None)
    for (k, ratio, tau), shares in zip(_CASES, found[len(D_OVER_U) :], strict=True):
        where = f"k = {k}, d/u = {ratio:g}, τ = {tau:g}"
        fixed, plain, floored, level, known, width = shares
        add(f"{where}: Hartung-Knapp, plain", plain, POOLS, 0.93 if tau else 0.94, 0.96)
        add(f"{where}: headline (floored)", floored, POOLS, 0.93 if tau else 0.94)
        rows.append(Row(f"{where}: headline's width over an oracle's", width, None, POOLS))
        if tau == 0.0:
            add(f"{where}: fixed effect", fixed, POOLS, 0.94, 0.96)
            add(f"{where}: Q, p < .05", level, POOLS, 0.04, 0.06)
            add(f"{where}: Q, p < .05, as if known", known, POOLS, None)
    return write("combining", rows, (__doc__ or "").strip())
