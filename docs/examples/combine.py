"""What `penstock analyse` does with pulled tables, without Penstock: pandas, patsy, statsmodels.

    python combine.py FOLDER QUESTION... [--further QUESTION...] > answers.csv

FOLDER is what `penstock pull STUDY --refits --out FOLDER` wrote. A QUESTION is a regression, and
asks for the coefficient of its last term, or the share who have a duration's event by a time, where
the event of another column may come first:

    'cox: Surv(years, died) ~ age + smoker'   'logistic: smoker ~ age'   'ols: sbp ~ age + smoker'
    'robust: Surv(years, died) ~ age + smoker'   'incidence(years, moved, 5)'

`robust` is `cox` with Lin and Wei's standard errors; the share's numbers are those of its logit.

After --further stand questions that the study has not declared: their intervals allow for what the
tables' model misses. An answer has a row for each site, and one without a site: all sites together.
To ask something else, change `fit`; the rest stays as it is. combine.R is the same in R. The rule
is in docs/analyse.md. It needs: pip install pandas pyarrow patsy statsmodels
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import patsy
import statsmodels.api as sm
from pandas.api.types import is_numeric_dtype
from scipy import optimize, special, stats
from statsmodels.tools.sm_exceptions import PerfectSeparationError

LEVEL = 0.95
# What a model misses of a regression that no study declared, in standard errors of one row; and
# what noise has drawn to none of it, in sds of the noise.
MISFIT, DRAWN = 0.01, 0.4
INCIDENCE = re.compile(r"\s*incidence\(\s*(\w+)\s*,\s*(\w+)\s*,\s*([\d.eE+-]+)\s*\)\s*")


# -- 1. One table: an estimate and its variance ------------------------------------------------


def fit(question, rows, events):
    """The last term's coefficient: (estimate, variance, complete rows); NaN where there is none.

    events: of each duration the column of its event.
    """
    if INCIDENCE.fullmatch(question):
        return find_incidence(question, rows, events)
    model, formula = (part.strip() for part in question.split(":", 1))
    left, right = (part.strip() for part in formula.split("~"))
    rows = rows.dropna(subset=[name for name in re.findall(r"\w+", formula) if name in rows])
    timed = re.fullmatch(r"Surv\((\w+),\s*(\w+)\)", left)
    y = rows[timed[1] if timed else left]
    if isinstance(y.dtype, pd.CategoricalDtype):  # the first level against the others
        y = (y.cat.codes > 0).astype(float)
    n, nothing = len(rows), (np.nan, np.nan, len(rows))
    if n < 10:
        return nothing
    design, kept = make_design(right, rows)
    if kept[-1] != design.shape[1] - 1 or n < len(kept) + 2:
        return nothing
    hazards = model in ("cox", "robust")
    ones = rows[timed[2]].sum() if hazards else y.sum()
    few = ones if hazards else min(ones, n - ones)
    if model != "ols" and few < max(1, len(kept) - 1):
        return nothing
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if hazards:
                x, died = design[:, kept[1:]], rows[timed[2]]
                found, told = sm.PHReg(y, x, status=died, ties="efron").fit(), ones
            elif model == "logistic":
                found = sm.Logit(y, design[:, kept]).fit(disp=0, tol=1e-10, maxiter=100)
                told = ones * (n - ones) / n
            elif model == "ols":
                found, told = sm.OLS(y, design[:, kept]).fit(), np.inf
            else:
                raise SystemExit(f"{model}: ask for cox, robust, logistic, ols or incidence(...)")
    except (np.linalg.LinAlgError, PerfectSeparationError):
        return nothing
    estimate, variance = np.asarray(found.params)[-1], np.asarray(found.cov_params())[-1, -1]
    # Separated, or nearly a sum of others: ten thousand times a balanced column's variance.
    if told < np.inf and not variance * design[:, -1].var() <= 1e4 / told:
        return nothing
    # Only now: of a term that separates events a sandwich is small.
    if model == "robust":
        scores = find_scores(y.to_numpy(), died.to_numpy() > 0, x, np.asarray(found.params))
        variance = np.sum((scores @ np.asarray(found.cov_params())[:, -1]) ** 2)
    return estimate, variance, n


def find_scores(time, died, x, coefficients):
    """(n, p) each row's score residuals, with Efron's ties as the fit has them: of Lin and Wei's
    sandwich (1989), which statsmodels has for Breslow's ties alone. No factor for few rows."""
    risks, scores = np.exp((x - x.mean(axis=0)) @ coefficients), np.zeros(x.shape)
    for moment in np.unique(time[died]):
        now = died & (time == moment)
        tied = now.sum()
        for earlier in range(tied):  # of the events at one time; those before it count in part
            weights = risks * ((time >= moment) - earlier / tied * now)
            shares = weights / weights.sum()
            apart = x - shares @ x
            scores += (now / tied - shares)[:, None] * apart
    return scores


def find_incidence(question, rows, events):
    """Aalen and Johansen's share with the event by a time: its logit, and that one's variance.

    A row with both events has had the one that is asked for.
    """
    duration, other, at = INCIDENCE.fullmatch(question).groups()
    if duration not in events:
        raise SystemExit(f"{duration}: no duration with an event of its own")
    rows, at = rows.dropna(subset=[duration, events[duration], other]), float(at)
    nothing = (np.nan, np.nan, len(rows))
    if len(rows) < 10:
        return nothing
    time, had, ended = rows[duration].to_numpy(), rows[events[duration]] > 0, rows[other]
    ended = ended.cat.codes > 0 if isinstance(ended.dtype, pd.CategoricalDtype) else ended > 0
    had, ended = (had & (time <= at)).to_numpy(), (ended & ~had & (time <= at)).to_numpy()
    moments = np.unique(time[had | ended])
    risk = np.array([(time >= moment).sum() for moment in moments])
    d, e = (np.array([(time[kind] == x).sum() for x in moments]) for kind in (had, ended))
    left = np.cumprod(1 - (d + e) / risk)  # without either event; who leaves at a time is at risk
    # Nobody has the event, or nobody is followed until then: the share is not known.
    if not had.any() or (time.max() < at and left[-1] > 0):
        return nothing
    before = np.append(1.0, left[:-1])
    risen = np.cumsum(before * d / risk)
    share = risen[-1]
    if not share < 1 - 1e-12:
        return nothing
    # Each time's numbers are multinomial; p: the share of those left after it who have the event
    # by then. It is the error of R's survfit, which has it by an infinitesimal jackknife.
    p = (share - risen) / np.where(left > 0, left, 1.0)
    terms = (1 - p) ** 2 * d * (risk - d) + p**2 * e * (risk - e) + 2 * p * (1 - p) * d * e
    variance = np.sum(before**2 * terms / risk.astype(float) ** 3)
    return np.log(share / (1 - share)), variance / (share * (1 - share)) ** 2, len(rows)


def make_design(right, rows):
    """Columns as R makes them, the last term's last; and those that no columns before them tell."""
    terms = patsy.ModelDesc.from_formula(right)
    matrix = patsy.dmatrix(terms, rows)
    asked = matrix.design_info.term_slices[terms.rhs_termlist[-1]].stop - 1
    others = [place for place in range(matrix.shape[1]) if place != asked]
    design, kept = np.asarray(matrix)[:, [*others, asked]], []
    for place in range(design.shape[1]):
        if np.linalg.matrix_rank(design[:, [*kept, place]]) > len(kept):
            kept.append(place)
    return design, kept


# -- 2. One site: its copies, and what its refits are off by ------------------------------------


def measure(question, copies, fits, fresh, events, weight):
    """What one site's tables say. copies: by number; fits: (number of the copy, its refits).
    weight: how many of the site's rows each row stands for."""
    found = {number: fit(question, table, events) for number, table in copies.items()}
    good = {number: one for number, one in found.items() if one[1] > 0}
    again = [
        ([fit(question, table, events) for table in refits], good.get(copy))
        for copy, refits in fits
    ]
    whole = [(r, copy) for r, copy in again if copy is not None and all(one[1] > 0 for one in r)]
    m, b = len(good), len(whole)
    if 2 * m < len(found) or 2 * b < len(again) or not whole:
        return None
    centres = np.array([copy[0] for _, copy in whole])
    refits = np.array([[one[0] for one in r] for r, _ in whole])
    errors, moved, free = refits.mean(axis=1) - centres, 0.0, b
    square = np.mean(errors**2)
    if refits.shape[1] == 2 and b >= 3:
        # What refits lack of their copies, copies lack of rows: corrected as far as beyond chance.
        bias, variance = errors.mean(), errors.var(ddof=1)
        share = max(0.0, 1 - variance / b / bias**2) if bias else 0.0
        moved, free = share * bias, b - 1
        square = variance * (1 + share**2 / b) + ((1 - share) * bias) ** 2
    scale, two = np.mean([[one[1] for one in r] for r, _ in whole]), refits.shape[1] == 2
    within = np.mean([variance for _, variance, _ in good.values()])
    return {
        "n": round(np.mean([n for *_, n in good.values()]) * weight),
        "estimate": np.mean([estimate for estimate, *_ in good.values()]) - moved,
        "within": within / weight,
        "drawing": within,
        "copies": m,
        "square": square,
        # What is new in a table that is drawn: two tables of a fit show it.
        "known": np.mean(np.diff(refits) ** 2) / 4 if two else fresh * scale,
        "scale": scale / weight,
        "rows": weight,
        "b": free,
        "c": b if two else np.inf,
    }


# -- 3. All sites: each square is drawn to what the others show ---------------------------------


def draw_squares(found):
    """Adds `drawn` and `weight` to each site's numbers; found: by question, by site."""
    excess, freedom = 0.0, 0
    for sites in found.values():
        for site in sites.values():
            site |= {"drawn": site["square"], "weight": 0.0, "goal": None}
        if len(sites) < 2:
            continue
        shares = [s["known"] / s["rows"] / s["scale"] / _middle(s["c"]) for s in sites.values()]
        for site in sites.values():
            if np.isfinite(site["c"]):  # about the same share is new in each table
                usual = np.median(shares) * site["scale"] * site["rows"]
                site["known"] = (site["known"] + usual) / 2
                site["c"] *= 2
        common = max(0.0, np.median([_excess(site) for site in sites.values()]))
        for site in sites.values():
            site["goal"] = site["known"] + common * site["scale"] / site["n"]
        logs = np.log([max(site["square"], 1e-300) / site["goal"] for site in sites.values()])
        chance = np.mean([special.polygamma(1, site["b"] / 2) for site in sites.values()])
        excess += np.sum((logs - logs.mean()) ** 2) - (len(logs) - 1) * chance
        freedom += len(logs) - 1
    prior = 0.0 if freedom == 0 else np.inf
    if excess > 0:
        prior = 2 * invert_trigamma(excess / freedom)
    for site in (site for sites in found.values() for site in sites.values()):
        if site["goal"] is not None:
            b, weight = site["b"], min(prior, site["b"])
            site["drawn"] = (b * site["square"] + weight * site["goal"]) / (b + weight)
            site["weight"] = weight


def _middle(df):
    return (1 - 2 / (9 * df)) ** 3  # the median of chi-squared(df)/df


def _excess(site):
    return (site["square"] / _middle(site["b"]) - site["known"]) / site["scale"] * site["n"]


def invert_trigamma(value):
    def miss(log):
        return np.log(special.polygamma(1, np.exp(log))) - np.log(value)

    return np.exp(optimize.brentq(miss, -20, 20, xtol=1e-14))


# -- 4. Each site's variance and degrees of freedom --------------------------------------------


def widen(site):
    """With the mechanism's variance: how far refits are off beyond sampling."""
    df = site["b"] + site["weight"]
    sd = np.sqrt(
        2 * max(site["drawn"], site["known"]) ** 2 / df + 2 * site["known"] ** 2 / site["c"]
    )
    mechanism = max(0.0, site["drawn"] - site["known"])
    # Copies differ by what is new in a table: all of it, where too little shows how much is.
    new = 2 * site["known"] if 3 <= site["c"] < np.inf else site["drawing"]
    variance = site["within"] + new / site["copies"] + mechanism
    a = min(mechanism / sd, 40.0)
    below, density = stats.norm.cdf(a), stats.norm.pdf(a)
    cut = (a**2 + 1) * below + a * density - (a * below + density) ** 2
    return variance, mechanism, 2 * (variance / sd) ** 2 / cut


# -- 5. Sites together ---------------------------------------------------------------------------


def pool(y, v, nu, missed):
    """REML, and the Hartung-Knapp interval that is floored; of variances that are estimates.

    missed: (2, k) by how much each site may be off, all alike, since no study declared the
    question; of two causes.
    """
    k, tau2 = len(y), estimate_tau2(y, v) if len(y) > 1 else 0.0
    w = 1 / (v + tau2)
    h, mean = w / w.sum(), np.sum(w * y) / w.sum()
    unknown = (v * w) ** 2 / nu
    least = 1 + 4 * np.sum(h * (1 - h) * unknown)
    if k == 1:
        se = np.sqrt(1 / w.sum() + np.sum(missed**2))
        return {"estimate": mean, "se": se, "df": nu[0], "tau2": tau2}
    spread = np.sum(w * (y - mean) ** 2) / (k - 1)
    spread *= max(0.0, least - 2 * np.sum((1 - h) ** 2 * unknown) / (k - 1))
    # What weights make of effects that go with variances, less what chance has on average.
    apart = h - 1 / k
    beyond = np.sum(apart * (y - y.mean())) ** 2 - np.sum(apart**2 / w)
    most = (k - 1) * max(tau2, y.var(ddof=1) - v.mean()) * np.sum(apart**2)
    weighed = max(0.0, min(beyond, most))
    se = np.sqrt(max(least, spread) / w.sum() + weighed + np.sum((missed @ h) ** 2))
    found = {"estimate": mean, "se": se, "df": k - 1, "tau2": tau2}
    if k >= 3:
        half = stats.t.ppf(0.5 + LEVEL / 2, k - 2) * np.sqrt(tau2 + se**2)
        found |= {"prediction_low": mean - half, "prediction_high": mean + half}
    return found


def estimate_tau2(y, v):
    """Where the restricted likelihood is highest; it may have several maxima."""

    def score(tau2):
        w = 1 / (v + tau2)
        mean = np.sum(w * y) / w.sum()
        return np.sum(w**2 * (y - mean) ** 2) - w.sum() + np.sum(w**2) / w.sum()

    def likelihood(tau2):
        w = 1 / (v + tau2)
        mean = np.sum(w * y) / w.sum()
        return np.sum(np.log(w)) - np.sum(w * (y - mean) ** 2) - np.log(w.sum())

    highest = 4 * max(np.ptp(y) ** 2, v.max())
    grid = [0.0, *np.geomspace(1e-8 * min(v.min(), highest), highest, 256)]
    tops = [0.0]
    for low, high in pairwise(grid):
        if score(low) > 0 >= score(high):
            tops.append(optimize.brentq(score, low, high, xtol=1e-14 * v.min()))
    return max(tops, key=likelihood)


# -- the files -----------------------------------------------------------------------------------


def read_tables(folder):
    """By site: its copies by number, its fits as (number of the copy, refits drawn from it), and
    how many of its rows a row stands for. And of each duration the column of its event."""
    pooled = pd.read_parquet(folder / "pooled.parquet").assign(_refit=0, _fit=0)
    refits = pd.read_parquet(folder / "refits.parquet")
    if (refits["_copy"] == 0).any():
        raise SystemExit("an older release: follow `older` in dictionary.json")
    rows = pd.concat([pooled, refits], ignore_index=True)
    columns = json.loads((folder / "dictionary.json").read_text(encoding="utf-8"))["columns"]
    for column in columns:
        if "levels" in column:  # in the study's order: the first is what others are compared with
            name = column["name"]
            labels = rows[name].astype("Int64") if is_numeric_dtype(rows[name]) else rows[name]
            labels = labels.astype("string").astype(object)
            rows[name] = pd.Categorical(labels, column["levels"])
            if column["kind"] in ("ordered", "event"):
                rows[name] = rows[name].cat.codes.astype(float).where(rows[name].notna())
    found = {}
    labels = ["_site", "_fit", "_copy", "_refit"]
    for (site, fitted, copy, _), table in rows.groupby(labels, sort=True):
        copies, again = found.setdefault(site, ({}, {}))
        if fitted == 0:
            copies[copy] = table
        else:
            again.setdefault(fitted, (copy, []))[1].append(table)
    events = {column["name"]: column["event"] for column in columns if column.get("event")}
    weights = {site: 1.0 for site in found}
    if "_weight" in rows:
        weights = rows.groupby("_site")["_weight"].first()
    own = {site: (tables, list(again.values())) for site, (tables, again) in found.items()}
    return {site: (*tables, weights[site]) for site, tables in own.items()}, events


def main(folder, *given):
    at = given.index("--further") if "--further" in given else len(given)
    questions, further = [q for q in given if q != "--further"], given[at + 1 :]
    tables, events = read_tables(Path(folder))
    fresh = json.loads((Path(folder) / "study.json").read_text(encoding="utf-8"))["fresh"]
    found = {}
    for question in questions:
        told = {
            site: measure(question, copies, fits, fresh, events, weight)
            for site, (copies, fits, weight) in tables.items()
        }
        found[question] = {site: numbers for site, numbers in told.items() if numbers is not None}
    draw_squares(found)
    answers = []
    for question, sites in found.items():
        rows = []
        for name, site in sites.items():
            variance, mechanism, df = widen(site)
            row = {"site": name, "n": site["n"], "estimate": site["estimate"]}
            row |= {"se": np.sqrt(variance), "df": df, "mechanism_variance": mechanism}
            rows.append(row)
        if rows:
            y, se, df = (np.array([row[x] for row in rows]) for x in ("estimate", "se", "df"))
            row = np.sqrt([site["n"] * site["within"] for site in sites.values()])
            noise = np.sqrt([row["mechanism_variance"] for row in rows])
            # A mean or an incidence compares nothing, and rests on its columns alone.
            alone = INCIDENCE.fullmatch(question) or question.split("~")[1].strip() == "1"
            compares = question in further and not alone
            missed = np.array([MISFIT * row, DRAWN * noise]) * compares
            rows.append({"site": "", **pool(y, se**2, df, missed)})
        answers += [{"question": question, **row} for row in rows]
    if not answers:
        raise SystemExit("no site has an estimate")
    table = pd.DataFrame(answers)
    half = stats.t.ppf(0.5 + LEVEL / 2, table["df"]) * table["se"]
    table.insert(6, "low", table["estimate"] - half)
    table.insert(7, "high", table["estimate"] + half)
    table.to_csv(sys.stdout, index=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
