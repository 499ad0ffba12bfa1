"""Answers on tables that nobody here simulated: one study at twelve sites, `scoring` and `gibbs`.

Sites of 450 to 6000 persons are made by drawing the persons of one real table with replacement
(`foreign_sites.py` has the sizes): they share its effects, so that the table's own coefficients are
the truth. One study asks for the named coefficients of one model, each adjusted for the others, and
where so stated for an interaction beside them; each site has one whole ε, δ = min(1e-5, 1/10n).
Dictionaries are as `site check` suggests. `gibbs` answers one question of the same
sites, the first.

Of each coefficient: the pooled half-width over that without privacy, at most 1.3 (ε = 3) and 2
(ε = 1); the pooled estimate less the one without privacy, in pooled standard errors of the private
one, of which the mean over seeds is at most .4; and how often a site's own interval holds the
truth, .93 to .97. *Doubt* is the share of what rows tell of a coefficient that hangs on few
persons, as sites release it, weighed as in the pooled answer: from .35 on the report marks an
answer as attenuated, and from .5 on as none. A site that would refuse is left out.

gbsg2, colon, rossi, fair and heart, and the generators of `foreign_tuning.py`, were looked at when
shares and constants were chosen; rotterdam, flchain, adult, its hours of work (ols) and diabetes
were not, but adult and its hours when the bound of `gibbs` was, beyond which rows count for less.
A long tail is what an answer is worst at: nodes, creatinine, light chains.

PENSTOCK_SEEDS says how many seeds (4), PENSTOCK_ONLY which tables (`rotterdam,adult`).
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tests.studies.foreign_arms import seed_of
from tests.studies.foreign_measures import fit_terms
from tests.studies.foreign_real import read_table
from tests.studies.foreign_sites import FIVE, SIZES
from tests.studies.foreign_tables import Table, estimands
from tests.studies.lni import over_runs
from tests.support.carried_out import release
from tests.support.results import Row, at_most, write

from penstock.base.errors import Hopeless
from penstock.inference.doubts import mark_doubt
from penstock.inference.pooling import pool
from penstock.mechanisms import MECHANISMS, Gibbs, Scoring, Settings
from penstock.mechanisms.gibbs.settings import answer_terms
from penstock.mechanisms.protocol import Asked
from penstock.mechanisms.released import COVARIANCE, DOUBT, ESTIMATE
from penstock.mechanisms.scoring.blocks import find_places
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema.encoding import Encoding

SEEDS = int(os.environ.get("PENSTOCK_SEEDS", "4"))
ONLY = tuple(filter(None, os.environ.get("PENSTOCK_ONLY", "").split(",")))

TABLES = ("rotterdam", "flchain", "colon", "adult", "adult-hours", "diabetes")
PRODUCTS = {"adult": ("age:sex",), "adult-hours": ("age:sex",), "diabetes": ("bmi:sex",)}
"""Asked for beside the named coefficients."""

WIDTH, BIAS, COVERED = {3.0: 1.3, 1.0: 2.0}, 0.4, (0.93, 0.97)


@dataclass(frozen=True, slots=True)
class Job:
    """One draw of all sites of a table, answered at one ε."""

    table: str
    epsilon: float
    seed: int


Found = dict[str, float]
"""``width/…``, ``bias/…``, ``site/…`` and ``doubt/…`` of each coefficient, `gibbs`' own behind
``gibbs/``."""


def run() -> Path:
    """Measure, and write what was found."""
    tables = [name for name in TABLES if not ONLY or name in ONLY]
    there = [name for name in tables if read_table(name) is not None]
    jobs = [Job(name, e, s) for s in range(SEEDS) for name in there for e in WIDTH]
    found = over_runs(measure, jobs, "answers")
    rows: list[Row] = []
    for name in there:
        for epsilon in WIDTH:
            of = [
                f
                for j, f in zip(jobs, found, strict=True)
                if (j.table, j.epsilon) == (name, epsilon)
            ]
            rows += _list_rows(f"{name}, ε = {epsilon:g}", epsilon, of)
    return write("answers", rows, (__doc__ or "").strip())


def _list_rows(label: str, epsilon: float, of: list[Found]) -> list[Row]:
    rows = []
    for key in of[0]:
        kind, _, name = key.partition("/")
        values = [one[key] for one in of if key in one]
        what, target = f"{name}, {label}", None if name.startswith("gibbs") else WIDTH[epsilon]
        if kind == "width":
            rows.append(
                at_most(
                    f"pooled half-width over that without privacy, {what}", values, target=target
                )
            )
        elif kind == "bias":
            mean = float(np.mean(values))
            se = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
            holds = None if target is None else abs(mean) <= BIAS + 2 * (se or 0.0)
            rows.append(
                Row(
                    f"pooled bias in s.e., {what}",
                    mean,
                    se,
                    len(values),
                    target and BIAS,
                    holds=holds,
                )
            )
        elif kind == "doubt":
            mean = float(np.mean(values))
            rows.append(Row(f"doubt ({mark_doubt(mean)}), {what}", mean, None, len(values)))
        else:
            share, n = float(np.mean(values)), len(values) * len(SIZES)
            error = math.sqrt(max(share * (1 - share), 1 / n) / n)
            low, high = COVERED
            holds = None if target is None else low - 2 * error <= share <= high + 2 * error
            rows.append(
                Row(
                    f"sites' intervals that hold it, {what}",
                    share,
                    error,
                    len(values),
                    target and 0.95,
                    holds=holds,
                )
            )
    return rows


def measure(job: Job) -> Found:
    """One draw of all sites."""
    table = _read(job.table)
    asked = dict(zip(_names(table), estimands(table, products=True), strict=True))
    first = next(iter(asked))
    truth, rng = _own(table), np.random.default_rng([job.seed, 12])
    real: dict[str, list[tuple[float, float]]] = {name: [] for name in asked}
    private: dict[str, list[_Answer]] = {name: [] for name in [*asked, f"gibbs/{first}"]}
    for number, size in enumerate(SIZES):
        site = table.take(rng.integers(0, table.n, size))
        own, seed = _own(site), seed_of(job.table, f"{job.epsilon:g}", job.seed, number)
        together = _answer(Scoring(), site, tuple(asked.values()), job.epsilon, seed)
        for name, e in asked.items():
            private[name] += [together[e.name]] if together else []
        alone = _answer(Gibbs(), site, (asked[first],), job.epsilon, seed)
        private[f"gibbs/{first}"] += alone.values()
        for name in asked:
            real[name].append(own[name])
    found: Found = {}
    for name, answers in private.items():
        of = name.removeprefix("gibbs/")
        good = [(a, s * s) for a, s in real[of] if math.isfinite(a)]
        if len(answers) < 2:
            continue
        plain = pool([a for a, _ in good], [v for _, v in good], method="dl")
        pooled = pool([a.estimate for a in answers], [a.variance for a in answers], method="dl")
        inside = [
            abs(a.estimate - truth[of][0]) <= 1.959964 * math.sqrt(a.variance) for a in answers
        ]
        found[f"width/{name}"] = (pooled.ci_high - pooled.ci_low) / (plain.ci_high - plain.ci_low)
        found[f"bias/{name}"] = (pooled.estimate - plain.estimate) / pooled.se
        found[f"site/{name}"] = float(np.mean(inside))
        found[f"doubt/{name}"] = float(
            np.average([a.doubt for a in answers], weights=pooled.weights)
        )
    return found


def _read(name: str) -> Table:
    found = read_table(name)
    if found is None:
        raise KeyError(name)
    return replace(found, named=FIVE.get(name, found.named), products=PRODUCTS.get(name, ()))


def _names(table: Table) -> list[str]:
    return [*table.named, *table.products]


def _own(table: Table) -> dict[str, tuple[float, float]]:
    """Each named coefficient, adjusted for the others; a product beside all of these."""
    if table.model == "cox":
        columns = dict.fromkeys(name.partition("=")[0] for name in table.named)
        found = fit_terms(table.rows, table, list(columns))
        return {name: found[name] for name in table.named}
    fits = [estimate(table.rows, table.schema, e) for e in estimands(table, products=True)]
    return {
        name: (fit.estimate, math.sqrt(fit.variance))
        for name, fit in zip(_names(table), fits, strict=True)
    }


@dataclass(frozen=True, slots=True)
class _Answer:
    """One site's, per the estimand's units."""

    estimate: float
    variance: float
    doubt: float


def _answer(
    settings: Settings, table: Table, asked: tuple[Estimand, ...], epsilon: float, seed: int
) -> dict[str, _Answer]:
    """Of each estimand by name; of none where a site would refuse it. A pure function of the
    seed."""
    schema, mechanism = table.suggested(), MECHANISMS.of(settings)
    privacy = PrivacyRequest(epsilon, min(1e-5, 1 / (10 * table.n)))
    question = Asked(settings, schema, privacy, asked)
    planned = mechanism.plan(question, table.n)
    try:
        mechanism.require_worth(question, planned)
    except Hopeless:
        return {}
    encoding = Encoding(schema)
    rows, there = encoding.encode(table.rows, np.random.default_rng([seed, 1]))
    given = (encoding, rows[:, None], there[:, None], SeededNoise(seed))
    [part] = release(settings, planned, *given)
    places = (
        {asked[0].name: len(answer_terms(schema, asked[0], settings)) - 1}
        if isinstance(settings, Gibbs)
        else find_places(schema, asked)
    )
    estimates = np.asarray(part.columns[ESTIMATE], dtype=np.float64)
    doubts = np.asarray(part.columns[DOUBT], dtype=np.float64)
    return {
        e.name: _Answer(
            float(estimates[at := places[e.name]]),
            float(np.asarray(part.columns[COVARIANCE.format(at + 1)])[at]),
            float(doubts[at]),
        )
        for e in asked  # each per one unit
    }
