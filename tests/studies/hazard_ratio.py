"""What ε buys: the error of a hazard ratio from private synthetic cohorts.

Cohorts are simulated after ARIC's men (26 % events), n persons drawn anew for each run; δ = 1e-5,
zero-out, public n. Error: Δ log HR per 10 mmHg (adjusted) between ten synthetic rows per person and
the same cohort's own fit. Four releases of each cohort, each at the full budget:

- the default: the whole mechanism, as a site runs it;
- without correction: the same fit, before its samples are matched to moments and outcome;
- Gaussian: noisy margins (10 %) and moments (90 %), the event a threshold of a latent Gaussian with
  the biserial correction: the peer, paired with the default in each cohort;
- matched Gaussian: the same two noisy releases, moments matched as the mechanism matches them.

Marginal fit beside it: the Kolmogorov-Smirnov distance to the cohort's own column, its mean over
the columns. Runs go on until the bias has a standard error of a quarter of its threshold (.006).
"Holds" for the bias: |bias| + 2 s.e. is within the threshold. The default was tuned on other runs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import ks_2samp, norm, qmc
from tests.studies.lni import over_runs
from tests.studies.rows import Row, at_most, write

from penstock.mechanisms import Maf
from penstock.mechanisms.maf.plan import plan
from penstock.mechanisms.tables import fitting
from penstock.mechanisms.tables.margins import clamp, noisy_histograms, standardise
from penstock.mechanisms.tables.moments import (
    Affine,
    gaussian,
    match_moments,
    mean_and_covariance,
    noisy_moments,
)
from penstock.mechanisms.tables.stages import tune
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Gaussian
from penstock.privacy.noise.sources import SecureNoise
from penstock.privacy.request import PrivacyRequest
from penstock.schema.encoding import Encoding
from penstock_server.simulate import cvd

Array = NDArray[np.float64]
Coded = dict[str, Array]

DELTA, PER_PERSON = 1e-5, 10
TARGETS = {(2500, 1.0): 0.026, (2500, 3.0): 0.023, (8000, 1.0): 0.016, (8000, 3.0): 0.010}
BIAS, MOST_RUNS, ROUND = 0.006, 160, 20
ARMS = ("default", "without correction", "Gaussian", "matched Gaussian")


def log_hazard_ratio(rows: Coded) -> float:
    """Cox's partial likelihood, Breslow ties, Newton's steps: fast enough for 80,000 rows."""
    z = np.column_stack([rows["age"], rows["cholesterol"], rows["hdl"], rows["sbp"]])
    z = (z - [54, 210, 50, 120]) / [10, 40, 15, 10]
    order = np.argsort(-rows["time"], kind="stable")
    z, event, time = z[order], rows["cvd"][order] > 0, rows["time"][order]
    last = np.flatnonzero(np.append(time[1:] != time[:-1], True))
    group = np.searchsorted(last, np.arange(len(time)))
    events = np.bincount(group, event, minlength=len(last))
    beta = np.zeros(4)
    for _ in range(20):
        risk = np.exp(z @ beta)
        at_risk = np.cumsum(risk)[last]
        mean = np.cumsum(z * risk[:, None], axis=0)[last] / at_risk[:, None]
        hazard = np.cumsum((events / at_risk)[::-1])[::-1][group]
        information = (z * (risk * hazard)[:, None]).T @ z - (mean * events[:, None]).T @ mean
        step = np.linalg.solve(information, z[event].sum(axis=0) - events @ mean)
        beta = beta + np.clip(step, -1, 1)
        if np.abs(step).max() < 1e-9:
            break
    return float(beta[3])


def gaussians(
    n: int, epsilon: float, encoding: Encoding, x: Array, rng: np.random.Generator
) -> dict[str, Coded]:
    """Rows from the two Gaussian releases."""
    noise, low, high, d = SecureNoise(), encoding.low, encoding.high, encoding.d
    whole = smallest_scale(lambda s: (Gaussian(s),), epsilon, DELTA)
    there = np.ones((n, 1), dtype=bool)
    columns = (encoding.outcomes, encoding.levels)
    sigma = whole / math.sqrt(0.1)
    counts = noisy_histograms(x[:, None], there, low, high, sigma, noise, *columns)
    linear = standardise(counts, low, high, *columns)
    scores = linear.invert(clamp(x, low, high))
    radius = max(tune(n / whole, n, d).radius, math.sqrt(d + 1) + 0.75)
    moments = noisy_moments(scores[:, None], there, radius, whole / math.sqrt(0.9), noise)
    latents = rng.standard_normal((PER_PERSON * n, d))
    [(_, event, _)] = encoding.outcomes
    plain = linear.apply(latent_event(moments / counts.rows, linear, event).apply(latents))
    start = gaussian(moments, counts.rows)

    def observe(y: Array) -> Array:
        seen = encoding.decode(clamp(linear.apply(y), low, high))
        return linear.invert(encoding.encode(seen, np.random.default_rng(0))[0])

    sample = start.apply(ndtri(qmc.Sobol(d, seed=0).random_base2(14)))
    match = match_moments(moments, counts.rows, radius, sample, observe).after(start)
    matched = linear.apply(match.apply(latents))
    return {
        "Gaussian": encoding.decode(clamp(plain, low, high)),
        "matched Gaussian": encoding.decode(clamp(matched, low, high)),
    }


def latent_event(moments: Array, linear: Affine, event: int) -> Affine:
    """The released Gaussian, the event's coordinate a latent cut where its share is right."""
    mean, covariance = mean_and_covariance(moments)
    scale, centre = linear.matrix[event, event], linear.shift[event]
    share = float(np.clip((mean[event] * scale + centre + 1) / 2, 0.02, 0.98))
    sd = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(sd, sd)
    # From the correlation with ±1 and its noise of sd .25 to that with the latent (biserial).
    seen = 2 * math.sqrt(share * (1 - share))
    up = math.hypot(seen, 0.25) / seen * math.sqrt(share * (1 - share)) / norm.pdf(ndtri(share))
    correlation[event] *= up
    correlation[:, event] *= up
    correlation[event, event] = 1.0
    values, vectors = np.linalg.eigh(np.clip(correlation, -0.98, 0.98) + 0.02 * np.eye(len(sd)))
    definite = (vectors * np.maximum(values, 0.01)) @ vectors.T
    unit = definite / np.sqrt(np.outer(np.diag(definite), np.diag(definite)))
    # Any scale of the latent will do, as long as its cut, 0 in the box, has the right share.
    sd[event], mean[event] = 1 / scale, (ndtri(share) - centre) / scale
    return Affine(np.linalg.cholesky(unit) * sd[:, None], mean)


def one(job: tuple[int, float, int]) -> dict[str, tuple[float, float]]:
    """Error and mean KS distance of each arm, for one cohort."""
    n, epsilon, seed = job
    rng = np.random.default_rng([20_000 + seed, n])
    schema = cvd.schema()
    simulated = cvd.simulate(cvd.find("aric-m"), rng, n=n)
    coded = {c: np.asarray(simulated[c], dtype=np.float64) for c in schema.names}
    encoding, truth = Encoding(schema), log_hazard_ratio(coded)
    x, present = encoding.encode(coded, rng)
    planned = plan(Maf(copies=10, refits=0), schema, n, PrivacyRequest(epsilon, DELTA))
    latents = rng.standard_normal((PER_PERSON * n, encoding.d))
    made = gaussians(n, epsilon, encoding, x, rng)
    for arm, corrected in (("default", True), ("without correction", False)):
        how = replace(planned, corrected=corrected)
        model = fitting.fit(how, encoding, x[:, None], present[:, None], SecureNoise())
        made[arm] = encoding.decode(model.to_values(latents))
    return {arm: (log_hazard_ratio(made[arm]) - truth, distance(made[arm], coded)) for arm in ARMS}


def distance(made: Coded, real: Coded) -> float:
    """Mean over the columns of the Kolmogorov-Smirnov distance."""
    return float(np.mean([ks_2samp(made[c], real[c]).statistic for c in real]))


def measured(
    n: int, epsilon: float, work: Callable[[tuple[int, float, int]], dict[str, tuple[float, float]]]
) -> dict[str, Array]:
    """(runs, 2) per arm; rounds of runs until the default's bias is known well enough."""
    found: list[dict[str, tuple[float, float]]] = []
    while len(found) < MOST_RUNS:
        jobs = [(n, epsilon, len(found) + i) for i in range(ROUND)]
        found += over_runs(work, jobs, f"n = {n}, ε = {epsilon:g}")
        errors = np.array([run["default"][0] for run in found])
        if errors.std(ddof=1) / math.sqrt(len(errors)) <= BIAS / 4:
            break
    return {arm: np.array([run[arm] for run in found]) for arm in ARMS}


def run() -> Path:
    """Measure all four settings."""
    rows: list[Row] = []
    for (n, epsilon), target in TARGETS.items():
        found = measured(n, epsilon, one)
        what, peer = f"n = {n}, ε = {epsilon:g}", np.abs(found["Gaussian"][:, 0])
        for arm in ARMS:
            errors = np.abs(found[arm][:, 0])
            default = arm == "default"
            rows.append(
                at_most(
                    f"mean abs. error, {what}, {arm}",
                    errors.tolist(),
                    target=target if default else None,
                    peer=float(peer.mean()) if default else None,
                )
            )
        ahead = np.abs(found["default"][:, 0]) - peer
        rows.append(at_most(f"paired: default less Gaussian, {what}", ahead.tolist(), target=0.0))
        bias = found["default"][:, 0]
        error = float(bias.std(ddof=1)) / math.sqrt(len(bias))
        held = abs(float(bias.mean())) + 2 * error <= BIAS
        rows.append(Row(f"bias, {what}, default", float(bias.mean()), error, len(bias)))
        if n == 8000:
            total = abs(float(bias.mean())) + 2 * error
            rows.append(
                Row(f"abs. bias + 2 s.e., {what}", total, None, len(bias), BIAS, holds=held)
            )
        for arm in ("default", "Gaussian"):
            rows.append(at_most(f"KS distance, {what}, {arm}", found[arm][:, 1].tolist()))
        sys.stderr.write(f"{what}: done\n")
    return write("hazard-ratio", rows, (__doc__ or "").strip())
