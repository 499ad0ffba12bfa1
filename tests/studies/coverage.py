"""Do a site's intervals hold the truth? With and without what refits show.

Simulated cohorts after Framingham's men (22 % events), n = 1600, drawn anew for each run; ε = 3 at
δ = 1e-5 under zero-out; the whole mechanism as a site runs it. The estimand is the log hazard ratio
per 10 mmHg, whose truth is known. "Plain" intervals hold sampling and synthesis error; "widened"
ones add the mechanism's own variance, from forty refits, with Student's t. Root mean squared
error beside the mean standard errors says by how much each is off. (A share of r runs has
a standard error of √(.95·.05/r).)
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from tests.studies.lni import over_runs
from tests.support.results import Row, at_most, write

from penstock.inference.combine import combine
from penstock.inference.pooling import quantile
from penstock.inference.refits import spread, widened
from penstock.mechanisms import Maf
from penstock.mechanisms.maf.plan import plan
from penstock.mechanisms.tables.run import run as release
from penstock.privacy.noise.sources import SecureNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimation import estimate
from penstock.schema.encoding import Encoding
from penstock_server.simulate import cvd

RUNS, N, EPSILON, Z = 100, 1600, 3.0, 1.959964


def once(seed: int) -> tuple[float, float, float, float]:
    """Error against the truth, plain variance, the widened one, and its degrees of freedom."""
    rng = np.random.default_rng([seed, N, 7])
    schema, question = cvd.schema(), cvd.estimand()
    rows = cvd.simulate(cvd.find("framingham-m"), rng, n=N)
    coded = {c: np.asarray(rows[c], dtype=np.float64) for c in schema.names}
    encoding = Encoding(schema)
    x, present = encoding.encode(coded, rng)
    planned = plan(Maf(), schema, N, PrivacyRequest(EPSILON, 1e-5))
    made = release(planned, encoding, x[:, None], present[:, None], SecureNoise())
    fits = [estimate(encoding.decode(c), schema, question) for c in made.copies]
    refits = [estimate(encoding.decode(c), schema, question) for c in made.refits]
    plain = combine(fits)
    wide = widened(plain, spread(plain, refits, fits))
    return plain.estimate - cvd.LOG_HR, plain.variance, wide.variance, wide.df


def run() -> Path:
    """Measure."""
    error, plain, wide, df = np.array(over_runs(once, range(RUNS), "coverage")).T
    t = np.array([quantile(0.95, nu) for nu in df])
    inside = {
        "plain": np.abs(error) <= Z * np.sqrt(plain),
        "widened": np.abs(error) <= t * np.sqrt(wide),
    }
    share_se = math.sqrt(0.95 * 0.05 / RUNS)
    rows = [
        Row("root mean squared error", float(np.sqrt(np.mean(error**2))), None, RUNS),
        at_most("bias", error.tolist()),
        at_most("mean standard error, plain", np.sqrt(plain).tolist()),
        at_most("mean standard error, widened", np.sqrt(wide).tolist()),
    ]
    for name, hit in inside.items():
        share = float(np.mean(hit))
        holds = share >= 0.95 - 2 * share_se if name == "widened" else None
        target = 0.95 if name == "widened" else None
        rows.append(
            Row(f"coverage of nominal 95 %, {name}", share, share_se, RUNS, target, holds=holds)
        )
    return write("coverage", rows, (__doc__ or "").strip())
