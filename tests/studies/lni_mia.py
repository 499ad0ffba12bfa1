"""Who was in the data? Shen & Tian 2025, figure 4, and theorem 2's ε beside what is owed.

Attacks, 100 runs: n = 2500 rows of five Gaussians of correlation .9, synthetic rows by latent and
by direct noise injection, and as many fresh rows. An attacker scores everyone: by the distance to
the closest synthetic row (the paper's attack), or by the likelihood ratio of one who knows w and
the flow, or how direct noise was put on (1000 of each kind, for time). AUC .5 is chance. "Nearer"
is P(|X_j - X_i| < |X̃_i - X_i|), the paper's other criterion: the share of other people who are
nearer to one than the own synthetic row. The flow and its training are those of `lni-correlation`.
"Peer" is the same, noise included, through the Gaussian map of the rows' own mean and covariance
in place of a flow. Two AUCs are in the paper's text; the target is that figure plus half a unit of
its last digit and two standard errors of the difference, and lower is better for the people. At
w = .975 flow and exact map agree on an AUC a little below the paper's.

What the distance does not show: who knows the flow tells members apart at a w at which distance
sees next to nothing. At equal w direct noise hides people better from either attack, and ruins what
the rows are for: see the error of ρ̂.

ε, at δ = 1e-5, of one synthetic row about its person. Theorem 2 claims
ε = wC²/(2(1-w)) + C √(2w log(1/δ)/(1-w)) "for any x, x'", with C the most that f⁻¹ moves when its
argument moves by at most 1, and lemma 2 has C ≤ 1 by spectrally normalised weights. Four things
stand between that and a guarantee:

1. f⁻¹ is (x - μ(x))/σ(x), not the network that computes μ and σ: bounded weights bound the latter.
   A map that whitens these rows *must* stretch by 1/√.1 = 3.16 where they are tight. "Stretch" is
   the most seen here within a distance of 1: a lower limit of C, with and without the bound.
2. Local privacy is about any two rows, not about rows at most 1 apart. "Diameter" is the largest
   distance between two observed rows' latents.
3. The rows of a Gaussian, and their latents, have no bound: without a clip C is infinite. Clipping
   latents at R costs fidelity for those beyond (here 11 % at R = 3), and is what Penstock charges.
4. f̂ is made from the same rows without noise and is a release of its own. That it converges does
   not bound what one person moves in it. So what is owed for the paper's recipe is ε = ∞.

In the ε rows "ours" is the exact ε of a clipped latent (R = 3; the null record has latent 0, and
any two rows are 2R apart, in brackets in the table), for a flow that is public or was charged
before; "peer" is the exact ε that two observed rows at that diameter have: a lower limit, without a
clip, of what theorem 2 would have to cover.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist
from tests.studies.lni import (
    COLOURS,
    GREY,
    RULE,
    Fitted,
    GaussianMap,
    Map,
    direct,
    direct_ratio_auc,
    distance_auc,
    distance_scores,
    fit_flow,
    lni,
    mean_se,
    over_runs,
    ratio_auc,
)
from tests.studies.lni_correlation import ARCH, RHO, correlation, simulate, training
from tests.support.results import RESULTS, Row, write

from penstock.audit.membership import RATES, pairing, roc
from penstock.mechanisms.flow.architecture import Architecture
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.accounting.gaussian import epsilon as gaussian_epsilon
from penstock.privacy.measurements import LatentNoise

Array = NDArray[np.float64]

N, RUNS = 2500, 100
WEIGHTS = (0.0, 0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.975, 0.99, 1.0)
SHOWN = (0.0, 0.5, 0.75, 0.9, 0.975, 1.0)
"""Whose ROC curves are drawn."""

KNOWING = 1000
"""Rows of each kind that the attacker who knows the flow scores."""

PAPER = {0.75: 0.52, 0.975: 0.71}
"""AUC by distance, latent noise injection."""

DELTA, CLIP = 1e-5, 3.0
BUDGETS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.975)


# -- attacks ---------------------------------------------------------------------------------------

MEASURES = ("AUC by distance", "AUC by likelihood ratio", "nearer", "mean abs. error of ρ̂")


LNI, DIRECT, EXACT = 0, 1, 2
"""Where a run keeps its methods; EXACT is LNI through the Gaussian map."""


def one(seed: int) -> Array:
    """One run: (3 methods, weights, MEASURES)."""
    rng = np.random.default_rng([seed, 4])
    x, fresh = simulate(N, rng), simulate(N, rng)
    some = (x[:KNOWING], fresh[:KNOWING])
    scale = x.std(axis=0, ddof=1)

    def measures(made: Array, knowing: float) -> list[float]:
        nearer = pairing(x, made, np.ones(x.shape[1])).nearer
        return [distance_auc(made, x, fresh), knowing, nearer, abs(correlation(made) - RHO)]

    def latent(through: Fitted | GaussianMap) -> list[list[float]]:
        noise = np.random.default_rng([seed, 5])  # the same for both maps
        made = [lni(through, x, w, noise) for w in WEIGHTS]
        pairs = zip(made, WEIGHTS, strict=True)
        # At w = 1 rows leave as they are, and a ratio has no density.
        return [measures(s, ratio_auc(through, s, *some, w) if w < 1 else 1.0) for s, w in pairs]

    def noisy() -> list[list[float]]:
        made = ((direct(x, w, rng), w) for w in WEIGHTS)
        return [
            measures(s, direct_ratio_auc(s, *some, w, scale) if w < 1 else 1.0) for s, w in made
        ]

    flow = fit_flow(x, seed, ARCH, training(N))
    return np.array([latent(flow), noisy(), latent(GaussianMap.of(x))])


def curves() -> dict[str, list[Array]]:
    """ROC curves of the distance attack in one more run, at SHOWN; on RATES."""
    rng = np.random.default_rng([RUNS, 4])
    x, fresh = simulate(N, rng), simulate(N, rng)
    model = fit_flow(x, RUNS, ARCH, training(N))
    found: dict[str, list[Array]] = {"latent": [], "direct": []}
    for w in SHOWN:
        for name, made in (("latent", lni(model, x, w, rng)), ("direct", direct(x, w, rng))):
            found[name].append(roc(distance_scores(made, x), distance_scores(made, fresh)))
    return found


# -- theorem 2 -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reach:
    """How far f⁻¹ moves rows of one fitted flow.

    Args:
        stretch: the most seen when a row moves by at most 1; bounded: the same of a flow whose
            weights have spectral norms of at most 1; diameter: between observed rows' latents.
        beyond: share of observed latents outside the clip.
    """

    stretch: float
    bounded: float
    diameter: float
    beyond: float


def theorem_2(w: float, reach: float, delta: float = DELTA) -> float:
    """The paper's ε*; Mironov's conversion of the Gaussian mechanism's Rényi curve."""
    move = reach * math.sqrt(w / (1 - w))
    return move**2 / 2 + move * math.sqrt(2 * math.log(1 / delta))


def owed(w: float, clip: float = CLIP, delta: float = DELTA) -> float:
    """What Penstock charges for one clipped row, zero-out."""
    return epsilon([LatentNoise(w, clip).event], delta)


def between(w: float, distance: float, delta: float = DELTA) -> float:
    """Exact ε of two rows whose latents are so far apart."""
    return gaussian_epsilon(distance * math.sqrt(w / (1 - w)), delta)


def reach(n: int = N) -> Reach:
    """Measured on one run's flow."""
    rng = np.random.default_rng([RUNS, 4])
    x = simulate(n, rng)
    free = fit_flow(x, RUNS, ARCH, training(n))
    bound = Architecture(ARCH.d, ARCH.flows, ARCH.hidden, spectral=1.0)
    bounded = fit_flow(x, RUNS, bound, training(n))
    latents = free.to_latent(x)
    return Reach(
        stretch=stretch(free, x),
        bounded=stretch(bounded, x),
        diameter=float(pdist(latents).max()),
        beyond=float((np.linalg.norm(latents, axis=1) > CLIP).mean()),
    )


def stretch(model: Map, x: Array, step: float = 1e-2) -> float:
    """The most that f⁻¹ moves when a row of x moves by 1 along its steepest direction."""
    base, d = model.to_latent(x), x.shape[1]
    steps = step * np.eye(d)
    jacobian = np.stack([model.to_latent(x + e) - model.to_latent(x - e) for e in steps], axis=2)
    _, _, directions = np.linalg.svd(jacobian / (2 * step))
    steepest = directions[:, 0]
    ends = (model.to_latent(x + s * steepest) - base for s in (1.0, -1.0))
    return max(float(np.linalg.norm(end, axis=1).max()) for end in ends)


# -- rows ------------------------------------------------------------------------------------------


def attack_rows(found: Array) -> list[Row]:
    """Means over runs; ``found`` is (runs, 3 methods, weights, measures)."""
    rows = []
    for method, name in ((LNI, "LNI"), (DIRECT, "direct")):
        for measure, what in enumerate(MEASURES):
            for at, w in enumerate(WEIGHTS):
                values = found[:, method, at, measure]
                mean, se = mean_se(values)
                peer = float(found[:, EXACT, at, measure].mean()) if method == LNI else None
                paper = PAPER.get(w) if (method, measure) == (LNI, 0) else None
                limit = None if paper is None else paper + 0.005 + 2 * math.sqrt(2) * se
                holds = None if limit is None else mean <= limit
                title = f"{name}, w = {w:g}, {what}"
                rows.append(Row(title, mean, se, len(values), limit, peer, paper, holds))
    return rows


def budget_rows(measured: Reach) -> list[Row]:
    """ε of one row at each w of BUDGETS."""
    rows = [
        Row("stretch of f⁻¹ within distance 1", measured.stretch, None, 1, paper=1.0),
        Row("the same, weights of spectral norm ≤ 1", measured.bounded, None, 1, paper=1.0),
        Row("diameter of the observed rows' latents", measured.diameter, None, 1),
        Row(f"share of latents beyond R = {CLIP:g}", measured.beyond, None, 1),
    ]
    for w in BUDGETS:
        peer, paper = between(w, measured.diameter), theorem_2(w, 1.0)
        rows.append(
            Row(f"ε of one row, w = {w:g}, R = {CLIP:g}", owed(w), None, 1, None, peer, paper)
        )
    return rows


def table(measured: Reach) -> str:
    """Theorem 2's ε and the others, in one table."""
    reaches = (1.0, measured.stretch, measured.diameter)
    heads = (
        "theorem 2, C = 1",
        f"theorem 2, C = {measured.stretch:.2f} (stretch)",
        f"theorem 2, C = {measured.diameter:.1f} (diameter)",
        "exact, that diameter",
        f"charged at R = {CLIP:g} (any two rows)",
        "the paper's recipe",
    )
    lines = [
        f"ε at δ = {DELTA:g} of one synthetic row:",
        "",
        f"| w | {' | '.join(heads)} |",
        f"|---|{'---|' * len(heads)}",
    ]
    for w in BUDGETS:
        claims = [f"{theorem_2(w, c):.1f}" for c in reaches]
        ours = f"{owed(w):.1f} ({between(w, 2 * CLIP):.1f})"
        cells = [*claims, f"{between(w, measured.diameter):.1f}", ours, "∞"]
        lines.append(f"| {w:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


# -- the picture -----------------------------------------------------------------------------------


def draw(found: Array, one_run: dict[str, list[Array]], measured: Reach, path: Path) -> None:
    """Figure 4 above; below it the nearest neighbours, utility against AUC, and ε."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.0, 8.2), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(2, 3)
    _roc(grid[0, 0], "(a) latent noise, one run, by distance", one_run["latent"])
    _roc(grid[0, 1], "(b) direct noise, one run, by distance", one_run["direct"])
    _aucs(grid[0, 2], found)
    _nearer(grid[1, 0], found)
    _trade(grid[1, 1], found)
    _budget(grid[1, 2], measured)
    for axes in grid.flat:
        axes.grid(color=RULE, linewidth=0.6)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=150)


def _title(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def _roc(axes: Any, title: str, drawn: list[Array]) -> None:
    from matplotlib import colormaps

    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1)
    colours = colormaps["viridis"](np.linspace(0, 0.9, len(SHOWN)))
    for w, curve, colour in zip(SHOWN, drawn, colours, strict=True):
        axes.plot(RATES, curve, color=colour, linewidth=1.4, label=f"w = {w:g}")
    axes.set_aspect("equal")
    axes.legend(frameon=False, fontsize=8.5, loc="lower right")
    _title(axes, title, "false alarms", "members found")


LINES = (
    ("latent noise, by distance", LNI, 0, COLOURS[0], "o"),
    ("latent noise, flow known", LNI, 1, COLOURS[1], "^"),
    ("direct noise, by distance", DIRECT, 0, COLOURS[2], "s"),
    ("direct noise, noise known", DIRECT, 1, COLOURS[3], "D"),
)


def _aucs(axes: Any, found: Array) -> None:
    for label, method, measure, colour, mark in LINES:
        mean = found[:, method, :, measure].mean(axis=0)
        axes.plot(WEIGHTS, mean, color=colour, marker=mark, markersize=4, label=label)
    axes.plot(
        list(PAPER),
        list(PAPER.values()),
        "o",
        color="black",
        fillstyle="none",
        markersize=10,
        label="the paper's text",
    )
    axes.axhline(0.55, color=GREY, linestyle="--", linewidth=0.8)
    axes.text(0.0, 0.555, ".55, the paper's limit", fontsize=8.5, color=GREY)
    axes.legend(frameon=False, fontsize=8.5, loc="upper left")
    _title(axes, f"(c) mean AUC, {len(found)} runs", "w", "AUC")


def _nearer(axes: Any, found: Array) -> None:
    for name, method, colour, mark in (
        ("latent noise", LNI, COLOURS[0], "o"),
        ("direct noise", DIRECT, COLOURS[2], "s"),
    ):
        share = found[:, method, :, 2].mean(axis=0)
        axes.plot(WEIGHTS, share, color=colour, marker=mark, markersize=4, label=name)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8.5)
    _title(axes, "(d) people nearer than one's own row", "w", "P(|Xj - Xi| < |X̃i - Xi|)")


def _trade(axes: Any, found: Array) -> None:
    for label, method, measure, colour, mark in LINES:
        auc = found[:, method, :, measure].mean(axis=0)
        error = found[:, method, :, 3].mean(axis=0)
        axes.plot(auc, error, color=colour, marker=mark, markersize=4, linewidth=1, label=label)
    for at, w in enumerate(WEIGHTS):
        if w in (0.5, 0.9, 0.975):
            spot = (found[:, LNI, at, 1].mean(), found[:, LNI, at, 3].mean())
            axes.annotate(f"w = {w:g}", spot, (-8, -14), textcoords="offset points", fontsize=8.5)
    axes.set_yscale("log")
    axes.set_ylim(bottom=1e-3)
    axes.legend(frameon=False, fontsize=8.5, loc="upper right")
    _title(axes, "(e) utility against AUC", "AUC", "mean |ρ̂ - ρ|")


def _budget(axes: Any, measured: Reach) -> None:
    w = np.linspace(0.02, 0.99, 98)
    drawn = (
        ("theorem 2, C = 1", lambda v: theorem_2(v, 1.0), COLOURS[0], "-"),
        (f"charged, clip R = {CLIP:g}", owed, COLOURS[2], "-"),
        ("exact, observed diameter", lambda v: between(v, measured.diameter), COLOURS[1], "--"),
    )
    for label, value, colour, style in drawn:
        axes.plot(w, [value(float(v)) for v in w], color=colour, linestyle=style, label=label)
    axes.set_yscale("log")
    axes.legend(frameon=False, fontsize=8.5, loc="upper left")
    axes.text(0.97, 0.03, "owed for the paper's recipe: ∞", ha="right", transform=axes.transAxes)
    _title(axes, "(f) ε of one row, δ = 1e-5", "w", "ε")


def run() -> Path:
    """Attack, measure, draw, and write."""
    found = np.array(over_runs(one, list(range(RUNS)), "lni-mia"))
    measured = reach()
    draw(found, curves(), measured, RESULTS / "lni-mia.png")
    rows = attack_rows(found) + budget_rows(measured)
    return write("lni-mia", rows, f"{(__doc__ or '').strip()}\n\n{table(measured)}")
