"""What ε buys of one question: Langevin chains beside other ways, and beside what theorems ask.

Zero-out, public n, δ = 1e-5 throughout. Tuned on other seeds, frozen, then run once.

- Logistic regression, n = 2000, d = 10, λ = .01, rows of norm at most 1 (sd 1 to .1 before), data
  drawn anew for each run: the excess of F over its minimum. ε by the exact curve of the Gaussian (a
  site's plan goes by Rényi divergence, whose ε is larger for the same noise). The chain: curvature
  at the start released with a tenth of the budget, then 10 to 16 preconditioned steps of decreasing
  size, by composition; `shrunk`: the same iterate, denoised afterwards by empirical Bayes. Noisy
  descent: equal steps without a preconditioner, by its last iterate or by composition. `peer` is
  output perturbation in the same runs.
- The mean of 2000 vectors in a ball of ten dimensions: root mean square distance.
- Intervals: answers of the whole mechanism, calibrated as at a site, to questions about simulated
  tables, 200 runs each; the share of 90 % intervals that hold the truth, and the error over that of
  the estimate from the rows themselves. "Holds": the share is at least .9 less 2 s.e.
- Steps that the theorems of Ganesh & Talwar 2020 would ask for (ε, δ) of a Gibbs posterior of the
  same problem (κ = 26), each with its constants as worked out in
  `tests.studies.langevin_bounds`.
"""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from numpy.typing import NDArray
from scipy.optimize import minimize
from tests.studies import langevin_bounds as bounds
from tests.studies.denoise import denoised
from tests.studies.lni import COLOURS, GREY, INK, RULE, over_runs
from tests.studies.questions import ESTIMANDS, SCHEMA, fitted, simulate, truth
from tests.support.measured import noisy_sum
from tests.support.results import RESULTS, Row, at_most, write

from penstock.mechanisms.gibbs import langevin, sums
from penstock.mechanisms.gibbs.curvature import definite, shrunk, symmetric
from penstock.mechanisms.gibbs.design import read
from penstock.mechanisms.gibbs.families import LOGISTIC_LOSS
from penstock.mechanisms.gibbs.models import POSINGS
from penstock.mechanisms.gibbs.plan import plan
from penstock.mechanisms.gibbs.posterior import Regression
from penstock.mechanisms.gibbs.run import answer, preconditioner
from penstock.mechanisms.gibbs.settings import Gibbs
from penstock.privacy.accounting.accountant import epsilon_pld
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Gaussian
from penstock.privacy.noise.sources import NoiseSource, SeededNoise
from penstock.privacy.request import PrivacyRequest

Array = NDArray[np.float64]

DELTA, N, D, RIDGE = 1e-5, 2000, 10, 0.01
TARGETS = {0.3: 0.0079, 1.0: 0.0013, 3.0: 0.00021}
SEEDS = 40
SMOOTHNESS = 0.25 + RIDGE

CHAIN = {0.3: (10, 1.1), 1.0: (10, 1.5), 3.0: (16, 1.3)}
"""Steps, and growth of their shares."""
CURVATURE_SHARE = 0.1
LAST = {0.3: (25, 1.0), 1.0: (50, 1.8), 3.0: (50, 1.8)}
COMPOSED = {0.3: (20, 1.0), 1.0: (30, 1.8), 3.0: (50, 1.8)}
HEAVY = {0.3: (20, 0.2), 1.0: (30, 0.4), 3.0: (50, 0.4)}
"""Steps, and their size in units of 1/β."""
MOMENTUM = 0.7

ARMS = (
    "chain",
    "chain, shrunk",
    "noisy descent, last iterate",
    "noisy descent, composition",
    "heavy ball, composition",
    "output perturbation",
)
MODELS = tuple(name for name in ESTIMANDS if not POSINGS.of(name).refused)
RUNS, SIZES = 200, ((2000, 1.0), (2000, 3.0), (8000, 1.0))


def budget(epsilon: float) -> float:
    """μ of all that is released, by the Gaussian's exact curve."""
    scale = smallest_scale(lambda s: (Gaussian(s),), epsilon, DELTA, accountant=epsilon_pld)
    return 1 / scale


def problem(seed: int) -> Regression:
    """A cohort, and the posterior of its logistic regression."""
    rng = np.random.default_rng([seed, 7])
    truth_ = 6 * rng.normal(size=D)
    x = rng.normal(size=(N, D)) * np.linspace(1, 0.1, D)
    x /= np.maximum(1, np.linalg.norm(x, axis=1))[:, None]
    y = (rng.random(N) < 1 / (1 + np.exp(-x @ truth_))).astype(np.float64)
    return Regression(LOGISTIC_LOSS, x, y, np.ones(N), 1.0, 1.0, N, 1, np.zeros(D), RIDGE)


def released(
    posterior: Regression, mu: float, steps: int, growth: float, noise: NoiseSource
) -> tuple[Array, Array]:
    """The preconditioned chain's iterate, and the same denoised."""
    size, sigma = D * (D + 1) // 2, 1 / (mu * math.sqrt(CURVATURE_SHARE))
    total = noisy_sum(
        N,
        size,
        lambda part: posterior.information(posterior.start, 0.25, part),
        sigma,
        1,
        noise,
    )
    sd = sigma * sums.reach(size, 1) * 0.25 / N
    curvature = definite(shrunk(symmetric(total, D) * 0.25 / N, sd, 0))
    schedule = langevin.averaging(steps, growth, mu * math.sqrt(1 - CURVATURE_SHARE))
    how = preconditioner(posterior, curvature, sd * math.sqrt(2 * D), intercept=False)
    ended = langevin.descend(posterior.gradient, posterior.start, schedule, 1 / N, noise, how)
    bent = LOGISTIC_LOSS.bend_ratio(curvature, 0.0, ended.theta, intercept=False) * curvature
    hessian = bent + posterior.ridge * np.eye(D)
    went = langevin.propagate(schedule, hessian, ended.preconditioners)
    forget = np.linalg.inv(np.eye(D) - went.bias)
    spread = forget @ went.noise @ forget.T / N**2
    towards = np.linalg.solve(hessian, bent)
    prior = towards @ towards.T + 1e-6 * np.eye(D)
    return ended.theta, denoised(forget @ ended.theta, spread, prior)


def excess(job: tuple[float, int]) -> dict[str, tuple[float, float]]:
    """(F - min F, distance to the minimum) of each arm, for one cohort."""
    epsilon, seed = job
    posterior, noise, mu = problem(seed), SeededNoise(10**6 + seed), budget(epsilon)
    best = minimize(
        posterior.loss, posterior.start, jac=posterior.gradient, options={"gtol": 1e-10}
    ).x

    def descent(schedule: langevin.Schedule) -> Array:
        return langevin.descend(posterior.gradient, posterior.start, schedule, 1 / N, noise).theta

    ended, less = released(posterior, mu, *CHAIN[epsilon], noise)
    made = {"chain": ended, "chain, shrunk": less}
    steps, size = LAST[epsilon]
    made[ARMS[2]] = descent(langevin.plain(steps, size / SMOOTHNESS, RIDGE, SMOOTHNESS, mu))
    steps, size = COMPOSED[epsilon]
    composed = (math.sqrt(steps) / mu,) * steps
    made[ARMS[3]] = descent(langevin.Schedule((size / SMOOTHNESS,) * steps, composed))
    steps, size = HEAVY[epsilon]
    heavy = langevin.plain(steps, size / SMOOTHNESS, RIDGE, SMOOTHNESS, mu, MOMENTUM)
    made[ARMS[4]] = descent(heavy)
    made[ARMS[5]] = best + noise.normal(D) / (N * RIDGE * mu)
    least = posterior.loss(best)
    return {
        arm: (posterior.loss(made[arm]) - least, float(np.linalg.norm(made[arm] - best)))
        for arm in ARMS
    }


def mean_distances(job: tuple[float, int]) -> tuple[float, float, float]:
    """Squared distance to the mean of: one Gaussian, a chain's last iterate, a composed chain."""
    epsilon, seed = job
    rng, noise, mu = (
        np.random.default_rng([seed, 8]),
        SeededNoise(2 * 10**6 + seed),
        budget(epsilon),
    )
    x = rng.normal(size=(N, D)) / math.sqrt(D)
    x /= np.maximum(1, np.linalg.norm(x, axis=1))[:, None]
    mean = x.mean(axis=0)
    steps, size = 30, 0.3
    composed = langevin.Schedule((size,) * steps, (math.sqrt(steps) / mu,) * steps)
    found = [mean + noise.normal(D) / (N * mu)]
    for schedule in (langevin.plain(steps, size, 1.0, 1.0, mu), composed):
        # ½‖θ‖² - θᵀΣx/n: its Hessian is I whoever is zeroed out, as n is public.
        found.append(
            langevin.descend(lambda t: t - mean, np.zeros(D), schedule, 1 / N, noise).theta
        )
    one, last, many = (float(((f - mean) ** 2).sum()) for f in found)
    return one, last, many


def interval(job: tuple[str, str, int, float, int]) -> tuple[float, float, float]:
    """Whether the 90 % interval holds the truth; the error to the rows' own fit; its width."""
    model, baseline, n, epsilon, seed = job
    table = simulate(n, np.random.default_rng([seed, n, 9]))
    privacy = PrivacyRequest(epsilon, DELTA)
    planned = plan(Gibbs(baseline=baseline), SCHEMA, n, privacy, [ESTIMANDS[model]])
    rows = read(planned.asked, table, np.ones(n, dtype=bool))
    noise = SeededNoise(3 * 10**6 + seed)
    estimate, covariance, _ = answer(planned, rows, noise)
    half = 1.6448536 * math.sqrt(covariance[-1, -1])
    hit = abs(estimate[-1] - truth(model)) <= half
    return float(hit), float(estimate[-1]) - fitted(model, table), half


def run() -> Path:
    """All figures, the picture and the table."""
    rows: list[Row] = []
    found = {
        e: over_runs(excess, [(e, 50_000 + i) for i in range(SEEDS)], f"ε = {e:g}") for e in TARGETS
    }
    for epsilon, target in TARGETS.items():
        peer = float(np.mean([f["output perturbation"][0] for f in found[epsilon]]))
        for arm in ARMS:
            values = [f[arm][0] for f in found[epsilon]]
            ours = arm in ARMS[:3]
            goal, beside = (target, peer) if ours else (None, None)
            what = f"excess risk, ε = {epsilon:g}, {arm}"
            rows.append(at_most(what, values, target=goal, peer=beside))
    for epsilon in TARGETS:
        jobs = [(epsilon, 60_000 + i) for i in range(SEEDS)]
        squares = np.array(over_runs(mean_distances, jobs, f"means, ε = {epsilon:g}"))
        rows += _root("one Gaussian", epsilon, squares[:, 0])
        rows += _root("chain, last iterate", epsilon, squares[:, 1])
        rows += _root("chain, composition", epsilon, squares[:, 2])
    rows += _intervals()
    rows += _asked()
    _picture(found)
    return write("langevin", rows, (__doc__ or "").strip())


def _root(arm: str, epsilon: float, squares: Array) -> list[Row]:
    """Root mean square, its error by the delta method."""
    root = math.sqrt(float(squares.mean()))
    error = float(squares.std(ddof=1)) / math.sqrt(len(squares)) / (2 * root)
    return [Row(f"distance of means, ε = {epsilon:g}, {arm}", root, error, len(squares))]


def _intervals() -> list[Row]:
    rows: list[Row] = []
    asked = [(m, "piecewise") for m in MODELS] + [("cox", "weibull")]
    cases = [(*question, *size) for size in SIZES for question in asked]
    jobs = [(*case, 70_000 + i) for case in cases for i in range(RUNS)]
    made = np.array(over_runs(interval, jobs, "intervals")).reshape(len(cases), RUNS, 3)
    error = math.sqrt(0.9 * 0.1 / RUNS)
    for (model, baseline, n, epsilon), found in zip(cases, made, strict=True):
        name = f"{model} ({baseline})" if model == "cox" else model
        what, share = f"{name}, n = {n}, ε = {epsilon:g}", float(found[:, 0].mean())
        holds = share >= 0.9 - 2 * error
        rows.append(Row(f"90 % intervals hold, {what}", share, error, RUNS, 0.9, holds=holds))
        root = math.sqrt(float((found[:, 1] ** 2).mean()))
        rows.append(Row(f"error to the rows' fit (rms), {what}", root, None, RUNS))
        width = float(np.median(found[:, 2]))
        rows.append(Row(f"half width (median), {what}", width, None, RUNS))
    return rows


def _asked() -> list[Row]:
    """Steps: ours, and the theorems'; smoothness over convexity is κ."""
    kappa = SMOOTHNESS / RIDGE
    rows: list[Row] = []
    for epsilon in TARGETS:
        order, divergence = bounds.order_and_divergence(epsilon, DELTA)
        whole = bounds.corollary(epsilon, DELTA, kappa, D)
        # B = √d is what a standard Gaussian's own gradient has: a favourable reading.
        asked = (
            bounds.corollary_11(epsilon, DELTA, kappa, D),
            bounds.theorem_12(order, divergence, kappa, D),
            bounds.theorem_15(order, divergence, kappa, D, whole.time),
            bounds.theorem_19(order, divergence, kappa, D, whole.time, math.sqrt(D)),
            bounds.theorem_28(order, divergence, kappa, D, whole.time),
            whole,
        )
        rows.append(Row(f"steps, ε = {epsilon:g}, the chain", float(CHAIN[epsilon][0]), None, 1))
        rows += [Row(f"steps, ε = {epsilon:g}, {a.theorem}", a.steps, None, 1) for a in asked]
    return rows


def _picture(found: dict[float, list[dict[str, tuple[float, float]]]]) -> None:
    """ε against excess risk, and against the distance to the minimum."""
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.2), layout="constrained")
    for which, (axis, label) in enumerate(
        zip(axes, ("excess risk", "distance to the minimum"), strict=True)
    ):
        for arm, colour in zip(ARMS, COLOURS, strict=False):
            values = np.array([[f[arm][which] for f in found[e]] for e in TARGETS])
            error = 2 * values.std(axis=1, ddof=1) / math.sqrt(values.shape[1])
            axis.errorbar(
                list(TARGETS), values.mean(axis=1), error, color=colour, marker="o", ms=4, label=arm
            )
        axis.set(xscale="log", yscale="log", xlabel="ε (zero-out, δ = 1e-5)", ylabel=label)
        axis.set_xticks(list(TARGETS), [f"{e:g}" for e in TARGETS])
        axis.minorticks_off()
        axis.grid(color=RULE, lw=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(colors=GREY)
    axes[0].plot(list(TARGETS), list(TARGETS.values()), "_", ms=18, color=INK, label="target")
    axes[0].legend(frameon=False, fontsize=8)
    figure.suptitle(
        f"Private logistic regression, n = {N}, d = {D}, {SEEDS} cohorts each", color=INK
    )
    RESULTS.mkdir(exist_ok=True)
    figure.savefig(RESULTS / "langevin.png", dpi=120)
    plt.close(figure)
