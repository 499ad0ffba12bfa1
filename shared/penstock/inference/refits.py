r"""What a private mechanism adds to the error of a site's estimate, as refits show it.

A refit repeats the whole private procedure on pseudo-rows of the released model, with noise of its
own, and gives one table. With u the sampling variance of an estimate from one table, d what the
mechanism adds, and m copies of mean estimate q̄, a refit's estimate θ* errs by its table's sampling
and by the mechanism, so that

- about the estimate q of the copy whose rows it was made from: E (θ* − q)² = u + d;
- where two tables are drawn, apart, from each fit to the rows of a copy, their mean has half the
  sampling, E (θ̄* − q)² = c/2 + d, and they show it: E (θ*₁ − θ*₂)² = 2c, whatever share c of u is
  new in each table;
- where tables have a share s of as many rows as the release is of, u above is u/s: it is that of
  a table, and d is as it was, for a refit has the same share of the noise;
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
from penstock.mechanisms.released import EACH, LEAST_FITS, Refitting
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
        unit: v, the mean of the refits' own variances, of tables of n rows, where ``known`` was
            measured.
        known_df: degrees of freedom of ``known``, which is independent of S; ∞ where it was not
            measured.
        share: of n rows, that tables have.
        shift: the mean of the differences themselves, of refits made from copies: what a refit
            shows less than its copy has, a release shows less than rows have, to first order.
    """

    square: float
    known: float
    df: float
    rows: int
    shift: float = 0.0
    unit: float | None = None
    known_df: float = math.inf
    share: float = 1.0

    @property
    def scale(self) -> float:
        """As which noise is told from site to site: v, or ``known``, which is a share of it."""
        return self.known * self.share if self.unit is None else self.unit

    @property
    def shift_error(self) -> float:
        """Standard error of ``shift``, of refits that are ``df`` in number."""
        return math.sqrt(max(self.square - self.shift**2, 0.0) / max(self.df - 1, 1))


def spread(
    released: SiteEstimate,
    refits: Sequence[Estimate],
    copies: Sequence[Estimate],
    made: Refitting = EACH,
) -> Spread | None:
    """The refits of one estimand at one site, summed up.

    Args:
        released: the copies, combined: q̄, ū, n and m.
        refits: their estimates, failed ones (NaN) included.
        copies: their estimates.
        made: how tables were made, and refits of them.

    Returns:
        None if no copy, or fewer than half of the fits, have an estimate (each table of a fit, and
        the copy that it was made of): nothing can be said then.
    """
    # Of a total there may be no row at all.
    rows = max(released.n, 1) if released.n is not None and released.total else released.n
    if not released.copies_used or not rows:
        return None
    fits = [_Fit.of(b, refits, copies, made) for b in range(0, len(refits), made.per_fit)]
    good = [fit for fit in fits if fit.good(made)]
    if not good or 2 * len(good) < len(fits):
        return None
    # A total is told of as many rows as the site has.
    scale = 1 / made.share if released.total else 1.0
    own = scale**2 * float(np.mean([[t.variance for t in fit.tables] for fit in good]))
    centres = [released.estimate if f.copy is None else scale * f.copy.estimate for f in good]
    count, found = len(good), scale * np.array([[t.estimate for t in f.tables] for f in good])
    errors = found.mean(axis=1) - centres
    square, shift = float(np.mean(errors**2)), float(np.mean(errors))
    if made.per_fit > 1:
        known = float(np.mean(found.var(axis=1, ddof=1))) / made.per_fit
        df = float(count * (made.per_fit - 1))
        return Spread(square, known, float(count), rows, shift, made.share * own, df, made.share)
    if made.of_copies:
        known = made.fresh * own
        return Spread(square, known, float(count), rows, shift, share=made.share)
    # All of them share q̄, whose own error is the copies' sampling.
    shared = released.within / released.copies_used
    pseudo = float(np.mean([t.variance * t.n / rows for fit in good for t in fit.tables]))
    known = made.fresh * own + pseudo + shared
    each = max(square, known) - shared
    variance = 2 * (count - 1) * (each / count) ** 2 + 2 * (each / count + shared) ** 2
    return Spread(square, known, 2 * (each + shared) ** 2 / variance, rows)


@dataclass(frozen=True, slots=True)
class _Fit:
    """One fit to the rows of a copy: what its tables say, and what the copy; None: of no copy."""

    tables: Sequence[Estimate]
    copy: Estimate | None

    @classmethod
    def of(
        cls, at: int, refits: Sequence[Estimate], copies: Sequence[Estimate], made: Refitting
    ) -> _Fit:
        """That of the refit at this place, the first of its fit."""
        copy = made.find_copy(at + 1, len(copies))
        return cls(refits[at : at + made.per_fit], copies[copy - 1] if copy else None)

    def good(self, made: Refitting) -> bool:
        """Whether all of it has an estimate."""
        whole = len(self.tables) == made.per_fit and all(map(_good, self.tables))
        return whole and (self.copy is None or _good(self.copy))


def shrunk(found: Mapping[str, Mapping[str, Spread]]) -> dict[str, dict[str, Spread]]:
    r"""Spreads of estimands (outer keys) at sites (inner keys), each drawn to what others show.

    Noise has one size whatever n is, so that d/u goes as 1/n: with v for u, the other sites of an
    estimand say S ≈ G = known + c v/n, c the median of (S − known) n/v. How much that is worth is
    measured, over all sites and estimands: the logarithms of S/G vary by ψ'(df/2) by themselves and
    by ψ'(f/2) where the true ones vary like scaled inverse χ²(f)/f. A spread then becomes the mean
    of the two, weighed by degrees of freedom,

    .. math:: S' = \frac{\mathrm{df}\, S + f\, G}{\mathrm{df} + f},

    with df + f degrees of freedom. f is at most df: a site's own refits weigh half at least, and
    the median keeps one hostile site from moving the others by more than a bounded share. Before
    that ``known``, where it was measured, is drawn half way to κ v/s, with κ the median of
    s known/v and s the share of n rows that tables have: what is new in a table is about the same
    share of its sampling everywhere. With one site nothing is drawn
    anywhere.

    Source: Smyth 2004, Statistical Applications in Genetics and Molecular Biology 3(1), article 3
    (moderated variances, section 6.2 for f).
    """
    found = {estimand: _draw_known(sites) for estimand, sites in found.items()}
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
    """One estimand at one site: its copies combined, from how many fits refits came, and what they
    show."""

    plain: SiteEstimate
    refits: int
    shown: Spread | None

    @classmethod
    def of(
        cls,
        copies: Sequence[Estimate],
        refits: Sequence[Estimate],
        *,
        made: Refitting = EACH,
        total: bool = False,
    ) -> Measured:
        """From the estimates of each table.

        Args:
            made: how tables were made; total: see :func:`penstock.inference.combine.combine`.
        """
        plain = combine(copies, total=total, share=made.share)
        shown = spread(plain, refits, copies, made) if refits else None
        return cls(plain, -(-len(refits) // made.per_fit), shown)


def correct(one: Measured) -> Measured:
    r"""An estimate that is moved by what its refits lack of what their copies have.

    A refit is to a copy, to first order, what the release is to the rows. With ē_f the error of fit
    f's mean from its copy, over B fits of mean b and variance V (of B − 1 degrees of freedom),

    .. math:: q' = q - λ b,\qquad S' = V (1 + λ^2/B) + (1 - λ)^2 b^2,\qquad
              λ = \max(0, 1 - V/(B b^2)).

    λ is how much of b² is beyond chance: a bias that only seems to be is left alone. Done where two
    tables of each fit were released, for which it was measured; of no total, and of three fits or
    more.

    Source: bias-corrected parametric bootstrap (Efron & Tibshirani 1993, ch. 10), shrunk by the
    positive-part rule (Efron & Morris 1973, Journal of the American Statistical Association 68,
    117–130).
    """
    plain, shown = one.plain, one.shown
    if shown is None or plain.problem is not None or plain.total:
        return one
    if math.isinf(shown.known_df) or shown.df < LEAST_FITS:
        return one
    bias, count = shown.shift, shown.df
    variance = max(shown.square - bias**2, 0.0) * count / (count - 1)
    share = max(0.0, 1 - variance / count / bias**2) if bias else 0.0
    square = variance * (1 + share**2 / count) + ((1 - share) * bias) ** 2
    by = 0.0 - share * bias  # never -0
    moved = replace(plain, estimate=plain.estimate + by, correction=by)
    return Measured(moved, one.refits, replace(shown, square=square, df=count - 1))


def widen_sites(
    found: Mapping[str, Mapping[str, Measured]],
) -> dict[str, dict[str, SiteEstimate]]:
    """Every site's estimands (site → estimand), corrected, with the mechanism's variance: all sites
    at once."""
    found = {
        site: {name: correct(one) for name, one in estimands.items()}
        for site, estimands in found.items()
    }
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

    T = ū (1 + 1/m) + max(0, S − known), with Satterthwaite's degrees of freedom 2T²/Var T. ū/m is
    the copies' own drawing where all of a table is new; where that was measured, by three degrees
    of freedom or more, 2 known/m stands for it. Of T only S is uncertain, and ``known`` where it
    was measured, together with variance s² = 2 max(S, known)²/df + 2 known²/known_df; what is cut
    at 0 varies less: for X normal with mean a·s = max(0, S − known),

    .. math:: \mathrm{Var} \max(0, X) = s^2 [(a^2+1)Φ(a) + aφ(a) - (aΦ(a) + φ(a))^2].

    Of a total T = ū/m + d, and nothing else hides that S − known was cut: where it is 0 by chance,
    T would be far too small. There d is the mean of X above 0 given S − known, a uniform prior's,

    .. math:: d = s\,(a + λ),\qquad \mathrm{Var} = s^2 (1 - a λ - λ^2),\qquad
              λ = φ(a)/Φ(a),\qquad a = (S - \mathrm{known})/s.

    Source: Satterthwaite 1946, Biometrics Bulletin 2, 110–114; Tobin 1958 (censored moments);
    Reiter 2003, Survey Methodology 29, 181–188 (copies' own variance over m).
    """
    if plain.problem is not None:
        return plain
    if shown is None:
        return replace(plain, estimate=math.nan, variance=math.nan, problem=UNKNOWN)
    if LEAST_FITS <= shown.known_df < math.inf:
        drawing = 2 * shown.known / plain.copies_used
        plain = replace(plain, variance=(0.0 if plain.total else plain.within) + drawing)
    measured = 2 * shown.known**2 / shown.known_df
    sd = math.sqrt(2 * max(shown.square, shown.known) ** 2 / shown.df + measured)
    # Of a quantile all tables may have the same.
    sd = max(sd, 1e-9 * plain.variance)
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
    excess = [(s.square / _find_middle(s.df) - s.known) / s.scale * s.rows for s in sites.values()]
    common = max(0.0, float(np.median(excess)))
    return {site: max(s.known + common * s.scale / s.rows, 1e-300) for site, s in sites.items()}


def _draw_known(sites: Mapping[str, Spread]) -> dict[str, Spread]:
    """With ``known``, where it was measured, half way to the share that all have."""
    shares = [
        s.known * s.share / s.scale / _find_middle(s.known_df)
        for s in sites.values()
        if math.isfinite(s.known_df)
    ]
    if len(shares) < 2:
        return dict(sites)
    share = float(np.median(shares))
    return {
        site: replace(s, known=(s.known + share * s.scale / s.share) / 2, known_df=2 * s.known_df)
        if math.isfinite(s.known_df)
        else s
        for site, s in sites.items()
    }


def _find_middle(df: float) -> float:
    """The median of χ²(df)/df, by Wilson & Hilferty 1931."""
    return float((1 - 2 / (9 * df)) ** 3)


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
