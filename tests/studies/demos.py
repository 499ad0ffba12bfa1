"""Does the demo's answer hold the truth? Many demos in one process, `structured`, as sites run it.

Each is what `penstock demo --seed S` asks and draws, S = 1, 2, …: the four cohorts of that seed,
14,037 persons with a hazard ratio of 1.171 per 10 mmHg, in frames of round numbers; the study's own
mechanism, ε = 3 at each site. Copies are combined, refits widen, sites are pooled, all as the
report does it. Runs that plant effects are left out: they follow, and change nothing before them.
Noise is seeded, so that a demo can be had again.

"Without privacy": Cox fits of the same cohorts themselves, pooled alike. "Holds" is within two
standard errors, which are over demos. Demos can be cut off and gone on with; PENSTOCK_SEEDS says
how many (200 are asked for).
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from tests.studies.foreign_arms import seed_of
from tests.studies.kept import RELEASED, Answer, Store
from tests.studies.lni import over_runs
from tests.support import made
from tests.support.delivered import deliver
from tests.support.results import Row, at_most, write

from penstock.inference.pooling import Pooled, pool, quantile
from penstock.inference.refits import Measured, widen_sites
from penstock.mechanisms import Structured
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest, advised_delta
from penstock.questions.estimation import estimate
from penstock.schema import Coded
from penstock.study.study import Study
from penstock_server.mechanisms.registry import kind_of
from penstock_server.report.sections.answers import LEVEL
from penstock_server.simulate import cvd
from penstock_server.simulate.cohort_files import frame
from penstock_server.simulate.scenarios import SCENARIOS

DEMOS = int(os.environ.get("PENSTOCK_SEEDS", "200"))
EPSILON, LEAST = 3.0, 0.93


def pose_demo() -> Study:
    """What the demo asks of its first four sites."""
    asked = SCENARIOS[Structured.name]()
    if not isinstance(asked.mechanism, Structured):
        raise TypeError(asked.mechanism)
    sites = asked.sites[: len(cvd.DEMO_SITES)]
    largest = max(frame(cvd.find(site).n) for site in sites)
    return made.study(
        replace(asked.mechanism, planted=0),
        name=asked.study,
        sites=sites,
        schema=asked.schema,
        estimands=asked.estimands,
        privacy=PrivacyRequest(EPSILON, advised_delta(largest)),
    )


def draw_rows(site: str, seed: int) -> Coded:
    """A site's rows, as `penstock simulate cvd --seed` writes them."""
    cohort = cvd.find(site)
    drawn = cvd.simulate(cohort, np.random.default_rng([seed, cvd.COHORTS.index(cohort)]))
    return {name: np.asarray(drawn[name], dtype=np.float64) for name in cvd.schema().names}


def answer(study: Study, seed: int) -> Answer:
    """One demo: pooled estimate, its interval and what else is shown, with privacy and without."""
    [asked] = study.estimands
    results = kind_of(study).load_results()
    measured: dict[str, dict[str, Measured]] = {}
    own = []
    for site in study.sites:
        rows, persons = draw_rows(site, seed), frame(cvd.find(site).n)
        noise, rng = SeededNoise(seed_of("demos", seed, site)), np.random.default_rng([seed, 2])
        upload = deliver(study, rows, noise, rng, site=site, persons=persons)
        measured[site] = dict(results.measure(upload))
        own.append(estimate(rows, study.schema, asked))
    sites = [found[asked.name] for found in widen_sites(measured).values()]
    known = [site for site in sites if math.isfinite(site.estimate)]
    pooled = pool(
        [site.estimate for site in known],
        [site.variance for site in known],
        method="dl",
        level=LEVEL,
        degrees=[site.df for site in known],
    )
    real = pool(
        [one.estimate for one in own], [one.variance for one in own], method="dl", level=LEVEL
    )
    halves = [quantile(LEVEL, site.df) * math.sqrt(site.variance) for site in known]
    inside = [
        abs(site.estimate - cvd.LOG_HR) <= half for site, half in zip(known, halves, strict=True)
    ]
    off = [site.estimate - one.estimate for site, one in zip(sites, own, strict=True)]
    return {
        **{f"private/{name}": value for name, value in _tell(pooled).items()},
        **{f"real/{name}": value for name, value in _tell(real).items()},
        "sites": float(np.mean(inside)),
        "delivered": float(len(known)),
        "off": float(np.nanmean(off)),
    }


def _tell(pooled: Pooled) -> Answer:
    return {
        "error": pooled.estimate - cvd.LOG_HR,
        "half": (pooled.ci_high - pooled.ci_low) / 2,
        "holds": float(pooled.ci_low <= cvd.LOG_HR <= pooled.ci_high),
        "tau": math.sqrt(pooled.tau2),
    }


# -- many ------------------------------------------------------------------------------------------


@cache
def store() -> Store:
    """Of demos by their seeds."""
    own = ("tests/studies/demos.py", "server/penstock_server/simulate")
    return Store("demos", (*own, *RELEASED))


def keep_answer(seed: int) -> None:
    """Run one demo, and write it down."""
    store().keep(str(seed), answer(pose_demo(), seed))


def run() -> Path:
    """Run what is missing, and write all that there is."""
    seeds = [str(seed) for seed in range(1, DEMOS + 1)]
    missing = [int(seed) for seed in seeds if seed not in store().read()]
    if missing:
        over_runs(keep_answer, missing, "demos")
    kept = store().read()
    return write("demos", list_rows([kept[seed] for seed in seeds]), (__doc__ or "").strip())


def list_rows(answers: Sequence[Answer]) -> list[Row]:
    """The figures of some demos."""
    count = len(answers)

    def column(name: str) -> list[float]:
        return [one[name] for one in answers]

    def share(what: str, name: str, least: float | None, each: int = 1) -> Row:
        found = float(np.mean(column(name)))
        se = math.sqrt(LEVEL * (1 - LEVEL) / (count * each))
        holds = None if least is None else found >= least - 2 * se
        return Row(what, found, se, count, least, holds=holds)

    ratio = [a / b for a, b in zip(column("private/half"), column("real/half"), strict=True)]
    root = {kind: float(np.sqrt(np.mean(np.square(column(f"{kind}/error"))))) for kind in _KINDS}
    rows = [
        share("the pooled interval holds the truth", "private/holds", LEAST),
        share("the same without privacy", "real/holds", None),
        share("a site's own interval holds the truth", "sites", None, each=4),
        at_most("half-width of the pooled interval, log hazard ratio", column("private/half")),
        at_most("the same without privacy", column("real/half")),
        at_most("half-width over that without privacy", ratio),
        at_most("error of the pooled estimate (bias)", column("private/error")),
        at_most("the same without privacy", column("real/error")),
        Row("root mean squared error of the pooled estimate", root["private"], None, count),
        Row("the same without privacy", root["real"], None, count),
        at_most("a site's estimate less that of its own rows (bias)", column("off")),
        at_most("sd between sites, as pooled (there is none)", column("private/tau")),
    ]
    if any(one["delivered"] < len(cvd.DEMO_SITES) for one in answers):
        rows.append(at_most("sites with an estimate, of four", column("delivered")))
    return rows


_KINDS = ("private", "real")
