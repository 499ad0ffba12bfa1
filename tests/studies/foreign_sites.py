"""Twelve sites with the sizes of a real trial's, and one cohort whose hazard ratio is known.

Sites are made by drawing the persons of one real table with replacement: they share its effects, so
that the table's own coefficients are the truth, and no two are alike. Each has the whole ε, ten
copies and forty refits; estimates are combined, widened and pooled as a report does it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tests.studies.foreign_arms import make, seed_of
from tests.studies.foreign_measures import Answer, fit_terms
from tests.studies.foreign_tables import Table
from tests.studies.hazard_ratio import log_hazard_ratio

from penstock.inference.combine import combine
from penstock.inference.pooling import pool, quantile
from penstock.inference.refits import Measured, spread, widen_sites
from penstock.questions.estimation import Estimate
from penstock.schema import Coded
from penstock_server.simulate import cvd

SIZES = tuple(int(n) for n in np.rint(np.geomspace(450, 6000, 12)))
FIVE = {
    "colon": ("rx=Lev+5FU", "nodes", "extent", "age", "obstruct"),
    "rotterdam": ("nodes", "grade3", "chemo", "age", "hormon"),
    "flchain": ("age", "sex", "kappa", "lambda", "creatinine"),
}
"""The coefficients of one study at all sites; `colon` may be tuned on."""

COPIES, REFITS = 10, 40


def answer_sites(table: Table, arm: str, epsilon: float, seed: int) -> Answer:
    """One draw of all sites: pooled answers with and without privacy.

    ``width/…``: the pooled half-width over that of the real tables; ``holds/…`` and ``real/…``:
    whether the pooled interval holds the truth, and whether the one without privacy does;
    ``found/…``: whether it holds the pooled estimate without privacy; ``site/…``: the share of
    sites whose own interval holds the truth; ``pooled/…``: the pooled error, private less real, in
    standard errors of the real one.
    """
    named, rng = table.named, np.random.default_rng([seed, 12])
    truth = _estimates(table.rows, table)
    real: dict[str, list[Estimate]] = {name: [] for name in named}
    measured: dict[str, dict[str, Measured]] = {}
    for number, size in enumerate(SIZES):
        site = table.take(rng.integers(0, table.n, size))
        own = _estimates(site.rows, table)
        made = make(arm, site, epsilon, seed_of(seed, number), copies=COPIES, refits=REFITS)
        fits = [_estimates(rows, table) for rows in made.copies]
        again = [_estimates(rows, table) for rows in made.refits]
        measured[str(number)] = {}
        for name in named:
            real[name].append(own[name])
            copies, refits = [f[name] for f in fits], [f[name] for f in again]
            plain = combine(copies)
            shown = spread(plain, refits, copies, made.how)
            measured[str(number)][name] = Measured(plain, len(refits), shown)
    sites = list(widen_sites(measured).values())
    found: Answer = {}
    for name in named:
        true = truth[name].estimate
        good = [one for one in real[name] if math.isfinite(one.estimate)]
        without = pool([one.estimate for one in good], [one.variance for one in good], method="dl")
        private = [one[name] for one in sites if math.isfinite(one[name].estimate)]
        pooled = pool(
            [one.estimate for one in private],
            [one.variance for one in private],
            method="dl",
            degrees=[one.df for one in private],
        )
        width = without.ci_high - without.ci_low
        found[f"width/{name}"] = (pooled.ci_high - pooled.ci_low) / width
        found[f"holds/{name}"] = float(pooled.ci_low <= true <= pooled.ci_high)
        found[f"real/{name}"] = float(without.ci_low <= true <= without.ci_high)
        found[f"found/{name}"] = float(pooled.ci_low <= without.estimate <= pooled.ci_high)
        found[f"pooled/{name}"] = (pooled.estimate - without.estimate) / without.se
        halves = [quantile(0.95, one.df) * math.sqrt(one.variance) for one in private]
        inside = [abs(one.estimate - true) <= h for one, h in zip(private, halves, strict=True)]
        found[f"site/{name}"] = float(np.mean(inside))
    return found


def _estimates(rows: Coded, table: Table) -> dict[str, Estimate]:
    """Each named coefficient, adjusted for the others."""
    time, event = table.schema.names[:2]
    n, events = len(rows[time]), int(rows[event].sum())
    fits = fit_terms(rows, table, _columns(table.named))
    return {
        name: Estimate(fits[name][0], fits[name][1] ** 2, n, events, True) for name in table.named
    }


def _columns(named: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(name.partition("=")[0] for name in named))


def answer_cohort(cohort: str, n: int, arm: str, epsilon: float, seed: int) -> Answer:
    """Of a simulated cohort: Δ log hazard ratio per 10 mmHg, ten copies laid together, against the
    cohort's own fit; the cohorts are those of the study `hazard-ratio`."""
    schema, rng = cvd.schema(), np.random.default_rng([20_000 + seed, n])
    simulated = cvd.simulate(cvd.find(cohort), rng, n=n)
    rows = {c: np.asarray(simulated[c], dtype=np.float64) for c in schema.names}
    table = Table(rows, schema, ())
    release = seed_of(cohort, n, epsilon, arm, seed)
    made = make(arm, table, epsilon, release, plain=True, copies=10, asked=(cvd.estimand(),)).copies
    whole = {c: np.concatenate([copy[c] for copy in made]) for c in schema.names}
    return {"hazard": log_hazard_ratio(whole) - log_hazard_ratio(rows)}
