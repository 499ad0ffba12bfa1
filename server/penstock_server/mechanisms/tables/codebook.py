"""What the files of synthetic tables mean that an analyst pulls, and how their numbers combine."""

from __future__ import annotations

from typing import Any

from penstock.inference.misfit import DRAWN, MISFIT
from penstock.mechanisms.registry import MECHANISMS
from penstock.mechanisms.released import EACH, Refitting
from penstock.study.study import Study
from penstock.wire.messages import Copies
from penstock_server.mechanisms.writing import COPY, PERSON, SITE, WEIGHT, describe_column

Json = dict[str, Any]

COPIES = (
    "Copies are independent draws from one fitted private model, each with {rows}. Analyse every "
    "copy on its own and combine: estimate = mean of the m estimates; variance = {times} times "
    "the mean of the m variances (Raab, Nowok & Dibben 2017). Never stack the copies: standard "
    "errors would be too small by √m. This variance does not contain the noise that the private "
    "mechanism put into the model"
)
COUNTED = (
    "about as many rows as the site has: a noisy count, released with the model, so that standard "
    "errors are of the right size. (The declared frame may hold persons without rows)"
)
COUNTED_JOINTLY = (
    "about as many rows as all sites have together: a noisy count, released with the model, so "
    "that standard errors are of the right size. (Declared frames may hold persons without rows.) "
    "Of which site an imagined person is, the column `site` says; fit regressions within its strata"
)
SHARED = (
    "{rows}; or, of a large site, a share of so many, each row standing for `_weight` rows, w: a "
    "count is w times a table's, and its variance w^2/m times the mean of theirs; tables of sites "
    "are stacked with these weights"
)
"""What is other where tables have a share of the rows."""
WHOLE_TIMES, SHARED_TIMES = "(1 + 1/m)", "(1/w + 1/m)"
FRAMED = (
    "a row for each that the declared frame may hold: standard errors are too small where the "
    "site has fewer"
)
REFITS = (
    ": the report adds it per estimand, from the sites' refits (mechanism_variance); for estimates "
    "of your own see intervals."
)
NO_REFITS = ", and without refits the report cannot add it."
INTERVALS: Json = {
    "data": "`penstock pull STUDY --refits` writes refits.parquet and refits.csv beside all "
    "copies: tables that each site made by repeating its whole private procedure, noise and all, "
    "on the rows of one of its copies. `_refit` numbers them from 1, `_fit` says from which fit a "
    "refit was drawn, and `_copy` to which copy that was made. They are not further copies: they "
    "only show how far the mechanism errs.",
    "rule": "At each site estimate every copy j (q_j, with variance u_j) and every refit by the "
    "same analysis; r_f is the mean estimate of the refits of fit f, v the mean variance of all "
    "refits, and c(f) the copy to whose rows fit f was made.",
    "failed": "A table has no estimate where its fit fails, or its coefficient is not identified. "
    "m counts copies with one, B fits all of whose refits have one, and the copy, too. Where "
    "either is less than half of all, the site has no answer.",
    "estimate": "q = mean of q_j over the m copies; u = mean of u_j",
    "square": "S = mean of (r_f - q_c(f))^2 over the B fits",
    "known": "K = {fresh}v: what sampling a table alone contributes; C is infinite",
    "correction": "With b = mean of r_f - q_c(f), V = sum of (r_f - q_c(f) - b)^2/(B - 1) and p = "
    "max(0, 1 - V/(B b^2)), or 0 of fewer than 3 fits: q - p b stands for q, V (1 + p^2/B) + "
    "((1 - p) b)^2 for S and, of 3 fits or more, B - 1 for B in all that follows. What refits lack "
    "of their copies, copies lack of rows, about; it is corrected as far as it is beyond chance "
    "(Efron & Tibshirani 1993, ch. 10).",
    "sharing": "Of two sites or more that answer, K is drawn half way to the share of v that all "
    "have: with h = median over sites of K/v/(1 - 2/(9C))^3, (K + h v)/2 stands for K and 2C for "
    "C in all that follows.",
    "drawing": "Of two sites or more that answer, each S is drawn to what the others show, D/u "
    "going as 1/n, with n the mean of a copy's complete rows, rounded: c = max(0, median over "
    "sites of (S/(1 - 2/(9B))^3 - K) n/v) and G = K + c v/n, for each estimand; e = the sum over "
    "estimands of [sum over its k sites of (log(S/G) - their mean of it)^2, less (k - 1) times "
    "their mean of trigamma(B/2)], over the sum of k - 1; f = 2 x where trigamma(x) = e, infinite "
    "where e <= 0; g = min(f, B). Then (B S + g G)/(B + g) stands for S, and B + g for B, in all "
    "that follows (Smyth 2004). The estimands are the study's own, and the one that is asked.",
    "mechanism_variance": "D = max(0, S - K)",
    "variance": "T = u (1 + 1/m) + D; where C is finite and 3 or more, T = u + 2K/m + D: copies "
    "differ by what is new in a table (Reiter 2003)",
    "df": "nu = 2 T^2 / V, where s^2 = 2 max(S, K)^2/B + 2 K^2/C, a = D/s, and V = s^2 ((a^2 + 1) "
    "Phi(a) + a phi(a) - (a Phi(a) + phi(a))^2), with Phi and phi the normal distribution and "
    "density",
    "interval": "q -+ t(nu) sqrt(T), with t(nu) the quantile of Student's t",
    "tau2": "Of k sites, the tau2 >= 0 at which the sum of log w, less the sum of w (q - mean)^2, "
    "less log(sum(w)), is highest (REML), where w = 1/(T + tau2) and mean = sum(w q)/sum(w)",
    "pooling": "With h = w/sum(w) and z = (T w)^2/nu, L = sum of (1 - h)^2 z, A = sum of "
    "h (1 - h) z and R = sum of w (q - mean)^2/(k - 1): se^2 = max(1 + 4A, R max(0, 1 + 4A - "
    "2L/(k - 1)))/sum(w), and the interval is mean -+ t(k - 1) se (Hartung & Knapp 2001, floored; "
    "Welch 1951 and Meier 1953 of variances that are estimates). One site has its own interval.",
    "weighting": "Of two sites or more, se^2 is larger by max(0, b^2 - sum of (h - 1/k)^2/w), with "
    "b = the sum of (h - 1/k) q, but by no more than (k - 1) e times the sum of (h - 1/k)^2, with "
    "e the larger of tau2 and the variance of all q less the mean of all T: precise sites may have "
    "another effect than others, which the mean over sites is then off by (Shuster 2010).",
    "prediction": "Of a further site, from three on: mean -+ t(k - 2) sqrt(tau2 + se^2) (Higgins, "
    "Thompson & Spiegelhalter 2009)",
    "further": "Of a regression that the study has not declared, se^2 is larger by "
    f"({MISFIT} times the sum of h sqrt(n u))^2 + ({DRAWN} times the sum of h sqrt(D))^2, one "
    "site's too: what the model misses, and what noise has drawn to none, is alike at all sites "
    "and does not average out.",
    "fixed": "With tau2 = 0: Q = sum of w (q - mean)^2 has mean k - 1 + 2L where all sites share "
    "one effect, and Q/(k - 1)/(1 + 2 (k - 2) L/(k^2 - 1)) is about F(k - 1, (k^2 - 1)/(3L)); the "
    "weighted mean has variance (1 + 4A)/sum(w) and 1/sum(h^2/nu) degrees of freedom.",
    "totals": "Of counts nothing is corrected, and T = u/m + D, or 2K/m + D where C is finite "
    "and 3 or more, with a = (S - K)/s, lambda = phi(a)/Phi(a), D = s (a + lambda) and V = s^2 "
    "max(.001, 1 - a lambda - lambda^2); sites' q and T are added up, with sum(T)^2/sum(T^2/nu) "
    "degrees of freedom (Satterthwaite 1946).",
    "report": "The report and `penstock analyse` follow this rule. Without `drawing` it is valid, "
    "too, and its intervals are slightly wider.",
    "examples": "docs/examples of Penstock's sources follow it in Python and in R.",
    "holds": "where the mechanism's model contains the truth. What the model cannot hold (an "
    "interaction, say) is missing from copies and refits alike.",
    "older": "A `_copy` of 0 marks releases of before wire 1.1, whose refits had rows drawn anew: "
    "there S = mean of (r_f - q)^2, and K, which stands for v, too, has mean of v_f n_f/n + u/m "
    "more, where n_f and n are the rows of the refit and of a copy: with `known` as above it is "
    "(2 + 1/m) u where they are as many. With M = u/m and E = max(S, K) - M, (E + M)^2/((B - 1)"
    "(E/B)^2 + (E/B + M)^2) stands for B.",
}

WEIGHTS = (
    "Rows have a `_weight` w, of which 1/w is the share of as many rows as the site has that its "
    "tables have. With U = mean of u_j: u = U/w, v = mean variance of all refits over w, n = w "
    "times the mean of a copy's complete rows, and T = u + U/m + D where C is not both finite and "
    "3 or more; in `sharing` h = median over sites of K/(v w)/(1 - 2/(9C))^3, and (K + h v w)/2 "
    "stands for K. Of counts q_j and r_f are w times a table's, U is w^2 times the mean of u_j, v "
    "is w times the mean variance of all refits, and U/m stands for u/m."
)
"""The rule where tables have a share of the rows."""

FEWER = (
    "Tables have fewer rows than the site: u is that of as many as they have. u over their _weight "
    "is the site's; with u itself intervals are wider than need be."
)
"""The same of imputations."""

_MEASURED = ("correction", "sharing")
"""What there is to say where two refits are drawn from each fit alone."""

MEASURED = (
    "K = mean over fits of (r - r')^2/4, with r and r' the estimates of a fit's two refits: half "
    "of what is new in a table that is drawn; C = B"
)
"""K where two refits are drawn from each fit."""

_LARGE = 10**12
"""Persons of a site that no table has as many rows as, where there is a most."""

WEIGH = "rows of the site that this row stands for"
WHOSE = "imagined person of the copy whose row it is, from 1; the same number elsewhere is another"

JOINTLY: Json = {
    "data": "`penstock pull STUDY --refits` writes refits.parquet and refits.csv beside all "
    "copies: tables that were made by repeating the whole private procedure, with the noise of all "
    "sites, on the rows of one of the copies. `_refit` numbers them from 1, `_fit` says from which "
    "fit a refit was drawn, and `_copy` to which copy that was made. They are not further copies: "
    "they only show how far the mechanism errs.",
    "rule": "Estimate every copy j (q_j, with variance u_j) and every refit by the same analysis, "
    "regressions within strata of `site`; r_f is the mean estimate of the refits of fit f, v the "
    "mean variance of all refits, and c(f) the copy to whose rows fit f was made.",
    "pooling": "There is one release of all sites, and nothing to pool.",
    "report": "The report's own intervals are by this rule.",
}
"""What is other where all sites made one release."""
SEVERAL = ("sharing", "drawing", "tau2", "prediction", "fixed")
"""What there is to say of several sites alone."""

HELD = (
    "What the tables hold of an effect. Into each site's released model effects of known size were "
    "planted, and the whole private procedure was repeated: slope says how much came back (1 is "
    "all), offset what came back of none. held: at least half of it is shown to come back, and it "
    "is not shown to be less than .9. attenuated: at least half, and less than .9; the estimate is "
    "corrected by no more of it than refits show. unsupported: less than .9, and not shown to be "
    "half: the tables hold no answer, and an estimate near none is not evidence of none. "
    "unresolved: the runs cannot tell. "
    "What the released model lacks, such as the furthest tails of a column, no planted run shows. "
    "doubt: how much of what the copies tell of an effect hangs on few rows far out, or of what a "
    "number beside it varies by; from .35 on an effect is attenuated (off to either side), from .5 "
    "on unsupported, whatever came back: the graver mark stands. "
    "classes: what the mechanism's model can hold at all, also of questions that nobody declared; "
    "of what it says `no` of, the tables show nothing, however large it is among the persons"
)
"""What :func:`describe_held` lists."""


IMPUTATIONS = (
    "imputations.parquet has one table of each fit of the whole private procedure to rows of the "
    "released model, numbered by _imputation: software for multiple imputation takes them for "
    "completed tables. Analyse each of a site, q = mean of the m estimates, T = u + (1 + 1/m) b "
    "with u the mean of their variances and b the variance between them, of (m - 1) (1 + u/((1 + "
    "1/m) b))^2 degrees of freedom (Rubin 1987); then pool sites. b holds the mechanism's noise, "
    "which copies of one model lack: do not take copies for imputations. What a model misses "
    "imputations miss twice, and intervals are mostly wider than those of `intervals`, which are "
    "to be preferred."
)


def describe_tables(
    study: Study,
    report: Json,
    *,
    copies: Copies,
    made: Refitting = EACH,
    numbered: bool = False,
) -> Json:
    """What the columns of the pooled table mean, and how copies combine.

    Args:
        made: how refits are made of copies.
        numbered: whether persons have several rows, and a number.
    """
    own = [
        {k: v for k, v in c.items() if v not in (None, "", [])}
        for c in study.schema.to_dict()["columns"]
    ]
    joint = study.aggregation.joint
    columns = [
        *([] if joint else [describe_column(SITE, "categorical", "site that released the row")]),
        describe_column(COPY, "integer", "synthetic copy, from 1"),
        *([describe_column(WEIGHT, "continuous", WEIGH)] if shares_rows(study) else []),
        *([describe_column(PERSON, "integer", WHOSE)] if numbered else []),
        *own,
    ]
    found: Json = {
        "study": study.name,
        "synthetic": True,
        "columns": columns,
        "copies_released": study.mechanism.copies,
        "copies_here": study.mechanism.copies if copies in ("all", "refits") else 1,
        "combining": combining(study),
        "sites": report["sites"],
    }
    if study.mechanism.refits:
        found["intervals"] = intervals(made, joint=joint)
        if shares_rows(study):
            found["intervals"]["weights"] = WEIGHTS
        if copies == "imputations":
            found["imputations"] = IMPUTATIONS + (f" {FEWER}" if shares_rows(study) else "")
    return found


def describe_held(report: Json) -> Json:
    """What the tables hold, as planted runs and the mechanism's model say; empty if neither."""
    estimands = [{"estimand": e["name"], **e["held"]} for e in report["estimands"] if e["held"]]
    found = {"estimands": estimands, "effects": report["effects"], "classes": report["holds"]}
    return {"held": {"about": HELD, **found}} if any(found.values()) else {}


def shares_rows(study: Study) -> bool:
    """Whether tables of a large site have fewer rows than it has."""
    return MECHANISMS.of(study.mechanism).share_rows(study.asked, _LARGE) < 1


def combining(study: Study) -> str:
    """How copies are to be analysed."""
    counted = COUNTED_JOINTLY if study.aggregation.joint else COUNTED
    rows = counted if MECHANISMS.of(study.mechanism).counts_rows(study.asked) else FRAMED
    times = WHOLE_TIMES
    if shares_rows(study):
        rows, times = SHARED.format(rows=rows), SHARED_TIMES
    return COPIES.format(rows=rows, times=times) + (REFITS if study.mechanism.refits else NO_REFITS)


def intervals(made: Refitting, *, joint: bool = False) -> Json:
    """How the refits make intervals of any estimate: in words, and in formulas.

    Args:
        made: how they are made of copies; joint: whether all sites made one release.
    """
    if made.per_fit > 1:
        found = INTERVALS | {"known": MEASURED}
    else:
        # Persons' own latents are the same in every table: less of its sampling is new.
        share = f"{made.fresh:g} " if made.fresh < 1 else ""
        told = {key: text for key, text in INTERVALS.items() if key not in _MEASURED}
        found = told | {"known": INTERVALS["known"].format(fresh=share)}
    if not joint:
        return found
    return {key: text for key, text in found.items() if key not in SEVERAL} | JOINTLY
