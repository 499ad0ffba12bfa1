r"""What a private mechanism adds to the error of a site's estimate, as refits show it.

A refit repeats the whole private procedure on pseudo-rows of the released model, with noise of its
own, and gives one table. With u the sampling variance of an estimate from one table, d what the
mechanism adds, and m copies of mean estimate q̄, a refit's estimate θ* errs by its table's sampling
and by the mechanism, so that

- about the estimate q of the copy whose rows it was made from: E (θ* − q)² = u + d;
- where its pseudo-rows were drawn anew (releases of wire 1.0), about q̄:
  E (θ* − q̄)² = (1 + n*/n) u + d + u/m, which is (2 + 1/m) u + d where the refit counted as many
  rows as the release did.

What is known is subtracted, and what is left is cut at 0: d̂ = max(0, S − known). About copies that
are at hand the same number of refits tells more, since less has to be subtracted.

Source: parametric bootstrap (Efron & Tibshirani 1993, ch. 6) of a private procedure, which is
post-processing (Ferrando, Wang & Sheldon 2022, arXiv 2006.07749). Valid if the model contains the
truth and the procedure changes smoothly with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr, polygamma

from penstock.inference.combine import SiteEstimate, combine
from penstock.mechanisms.released import refit_copy
from penstock.questions.estimation import Estimate

UNKNOWN = "most refits have no estimate, so the mechanism's noise is not known"


@dataclass(frozen=True, slots=True)
class Spread:
    """How far refits are from what they were made from; squared units of the estimate.

    Attributes:
        square: S, the mean of the squared differences; S/E S is about χ²(df)/df.
        known: what sampling alone contributes to E S.
        df: degrees of freedom of S.
        rows: n of the release.
        shift: the mean of the differences themselves, of refits made from copies: what a refit
            shows less than its copy has, a release shows less than rows have, to first order.
    """

    square: float
    known: float
    df: float
    rows: int
    shift: float = 0.0

    @property
    def shift_error(self) -> float:
        """Standard error of ``shift``, of refits that are ``df`` in number."""
        return math.sqrt(max(self.square - self.shift**2, 0.0) / max(self.df - 1, 1))


def spread(
    released: SiteEstimate,
    refits: Sequence[Estimate],
    copies: Sequence[Estimate] | None = None,
    *,
    fresh: float = 1.0,
) -> Spread | None:
    """The refits of one estimand at one site, summed up.

    Args:
        released: the copies, combined: q̄, ū, n and m.
        refits: their estimates, failed ones (NaN) included.
        copies: their estimates, where refit b (from 1) was made from the rows of copy
            ((b − 1) mod m) + 1; None where its pseudo-rows were drawn anew.
        fresh: share of a table's sampling variance that is new whenever one is made, in (0, 1];
            below 1 where persons' own latents are injected (1 − w).

    Returns:
        None if no copy, or fewer than half of the refits, have an estimate: nothing can be said
        then.
    """
    places: list[Estimate | None] = [None] * len(refits)
    if copies is not None:
        at = [refit_copy(b + 1, len(copies)) - 1 for b in range(len(refits))]
        places = [copies[place] for place in at]
    pairs = [
        (refit, place)
        for refit, place in zip(refits, places, strict=True)
        if _good(refit) and (place is None or _good(place))
    ]
    # Of a total there may be no row at all.
    rows = max(released.n, 1) if released.n is not None and released.total else released.n
    if not released.copies_used or not pairs or 2 * len(pairs) < len(refits) or not rows:
        return None
    count, own = len(pairs), float(np.mean([refit.variance for refit, _ in pairs]))
    centres = [released.estimate if place is None else place.estimate for _, place in pairs]
    errors = np.array([refit.estimate for refit, _ in pairs]) - centres
    square = float(np.mean(errors**2))
    if copies is not None:
        return Spread(square, fresh * own, float(count), rows, float(np.mean(errors)))
    # All of them share q̄, whose own error is the copies' sampling.
    shared = released.within / released.copies_used
    pseudo = float(np.mean([r.variance * r.n / rows for r, _ in pairs]))
    known = fresh * own + pseudo + shared
    each = max(square, known) - shared
    variance = 2 * (count - 1) * (each / count) ** 2 + 2 * (each / count + shared) ** 2
    return Spread(square, known, 2 * (each + shared) ** 2 / variance, rows)


def shrunk(found: Mapping[str, Mapping[str, Spread]]) -> dict[str, dict[str, Spread]]:
    r"""Spreads of estimands (outer keys) at sites (inner keys), each drawn to what others show.

    Noise has one size whatever n is, so that d/u goes as 1/n: with x = S/known, which is 1 + d/u,
    the other sites of an estimand say x ≈ 1 + c/n, c the median of (x − 1) n. How much that is
    worth is measured, over all sites and estimands: the logarithms of z = x/(1 + c/n) vary by
    ψ'(df/2) by themselves and by ψ'(f/2) where the true ones vary like scaled inverse χ²(f)/f. A
    spread then becomes the mean of the two, weighed by degrees of freedom,

    .. math:: S' = \frac{\mathrm{df}\, S + f\,\mathrm{known}\,(1 + c/n)}{\mathrm{df} + f},

    with df + f degrees of freedom. f is at most df: a site's own refits weigh half at least, and
    the median keeps one hostile site from moving the others by more than a bounded share. With one
    site nothing is drawn anywhere.

    Source: Smyth 2004, Statistical Applications in Genetics and Molecular Biology 3(1), article 3
    (moderated variances, section 6.2 for f).
    """
    goals = {estimand: _goals(sites) for estimand, sites in found.items()}
    prior = _prior_df(found, goals)
    return {
        estimand: {
            site: _drawn(own, goals[estimand].get(site), prior) for site, own in sites.items()
        }
        for estimand, sites in found.items()
    }


@dataclass(frozen=True, slots=True)
class Measured:
    """One estimand at one site: its copies combined, how many refits came, and what they show."""

    plain: SiteEstimate
    refits: int
    shown: Spread | None

    @classmethod
    def of(
        cls,
        copies: Sequence[Estimate],
        refits: Sequence[Estimate],
        *,
        of_copies: bool,
        total: bool = False,
        fresh: float = 1.0,
    ) -> Measured:
        """From the estimates of each table.

        Args:
            of_copies, fresh: see :func:`spread`; total: see
                :func:`penstock.inference.combine.combine`.
        """
        plain = combine(copies, total=total)
        made_of = copies if of_copies else None
        shown = spread(plain, refits, made_of, fresh=fresh) if refits else None
        return cls(plain, len(refits), shown)


def widen_sites(
    found: Mapping[str, Mapping[str, Measured]],
) -> dict[str, dict[str, SiteEstimate]]:
    """Every site's estimands (site → estimand) with the mechanism's variance, all sites at once."""
    spreads: dict[str, dict[str, Spread]] = {}
    for site, estimands in found.items():
        for name, one in estimands.items():
            if one.shown is not None and one.plain.problem is None:
                spreads.setdefault(name, {})[site] = one.shown
    drawn = shrunk(spreads)
    return {
        site: {
            name: widened(one.plain, drawn.get(name, {}).get(site)) if one.refits else one.plain
            for name, one in estimands.items()
        }
        for site, estimands in found.items()
    }


def widened(plain: SiteEstimate, shown: Spread | None) -> SiteEstimate:
    r"""A site's estimate with the mechanism's own variance; none where refits cannot show it.

    T = ū (1 + 1/m) + max(0, S − known), with Satterthwaite's degrees of freedom 2T²/Var T. Of T
    only S is uncertain, with variance s² = 2 max(S, known)²/df; what is cut at 0 varies less: for X
    normal with mean a·s = max(0, S − known),

    .. math:: \mathrm{Var} \max(0, X) = s^2 [(a^2+1)Φ(a) + aφ(a) - (aΦ(a) + φ(a))^2].

    Of a total T = ū/m + d, and nothing else hides that S − known was cut: where it is 0 by chance,
    T would be far too small. There d is the mean of X above 0 given S − known, a uniform prior's,

    .. math:: d = s\,(a + λ),\qquad \mathrm{Var} = s^2 (1 - a λ - λ^2),\qquad
              λ = φ(a)/Φ(a),\qquad a = (S - \mathrm{known})/s.

    Source: Satterthwaite 1946, Biometrics Bulletin 2, 110–114; Tobin 1958 (censored moments).
    """
    if plain.problem is not None:
        return plain
    if shown is None:
        return replace(plain, estimate=math.nan, variance=math.nan, problem=UNKNOWN)
    sd = max(shown.square, shown.known) * math.sqrt(2 / shown.df)
    if plain.total:
        return _widened_total(plain, (shown.square - shown.known) / sd, sd)
    added = max(shown.square - shown.known, 0.0)
    total = plain.variance + added
    a = min(added / sd, 40.0)
    below, density = float(ndtr(a)), math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    cut = (a * a + 1) * below + a * density - (a * below + density) ** 2
    df = 2 * (total / sd) ** 2 / max(cut, 1e-300)
    return replace(plain, variance=total, mechanism_variance=added, df=df)


def _widened_total(plain: SiteEstimate, a: float, sd: float) -> SiteEstimate:
    ratio = math.exp(-a * a / 2) / math.sqrt(2 * math.pi) / max(float(ndtr(a)), 1e-300)
    added, left = sd * (a + ratio), max(1 - a * ratio - ratio**2, 1e-3)
    total = plain.variance + added
    df = 2 * (total / sd) ** 2 / left
    return replace(plain, variance=total, mechanism_variance=added, df=df)


def _good(one: Estimate) -> bool:
    return math.isfinite(one.estimate) and 0 < one.variance < math.inf


def _goals(sites: Mapping[str, Spread]) -> dict[str, float]:
    """What the sites of one estimand say together of each one's E S; none of a single site."""
    if len(sites) < 2:
        return {}
    # The median of χ²(df)/df, by Wilson & Hilferty 1931.
    excess = [(s.square / s.known / (1 - 2 / (9 * s.df)) ** 3 - 1) * s.rows for s in sites.values()]
    common = max(0.0, float(np.median(excess)))
    return {site: s.known * (1 + common / s.rows) for site, s in sites.items()}


def _prior_df(
    found: Mapping[str, Mapping[str, Spread]],
    goals: Mapping[str, Mapping[str, float]],
) -> float:
    """f: how many refits the common line is worth; 0 where nothing can be said."""
    excess, freedom = 0.0, 0
    for estimand, sites in found.items():
        goal = goals[estimand]
        if not goal:
            continue
        logs = np.log([max(s.square, 1e-300) / goal[site] for site, s in sites.items()])
        by_chance = float(np.mean([polygamma(1, s.df / 2) for s in sites.values()]))
        freedom += len(logs) - 1
        excess += float(((logs - logs.mean()) ** 2).sum()) - (len(logs) - 1) * by_chance
    if freedom == 0:
        return 0.0
    return math.inf if excess <= 0 else 2 * _inverse_trigamma(excess / freedom)


def _inverse_trigamma(value: float) -> float:
    """x with ψ'(x) = value > 0, by Newton's steps (Smyth 2004, appendix)."""
    if value > 1e7:
        return 1 / math.sqrt(value)
    if value < 1e-6:
        return 1 / value
    x = 0.5 + 1 / value
    for _ in range(50):
        at = float(polygamma(1, x))
        step = at * (1 - at / value) / float(polygamma(2, x))
        x += step
        if abs(step) < 1e-10 * x:
            break
    return x


def _drawn(own: Spread, goal: float | None, prior: float) -> Spread:
    weight = 0.0 if goal is None else min(prior, own.df)
    if goal is None or weight == 0.0:
        return own
    total = own.df + weight
    return replace(own, square=(own.df * own.square + weight * goal) / total, df=total)
