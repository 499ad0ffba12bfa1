"""The pictures of `lni-meta`: its paper's figures 5 to 9 in form, and what w costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import gaussian_kde
from tests.studies.lni import COLOURS, GREY, INK, RULE, auc
from tests.studies.lni_meta import (
    AT,
    STUDIES,
    Measured,
    Study,
    W,
    aucs,
    pooled,
    scores,
    slope,
    studies,
)
from tests.support.results import RESULTS

from penstock.audit.membership import RATES, roc
from penstock.audit.tradeoff import MOST_AUC

SHOWN = (0, AT, len(W) - 1)
"""The three w of the paper's figures 7 to 9: 0, .8 and 1."""
PAINT = dict(zip(SHOWN, (COLOURS[6], COLOURS[0], COLOURS[4]), strict=True))
_Z = 1.959964


def draw_figures(runs: Sequence[Measured]) -> None:
    """``lni-meta.png`` beside the table."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "font.size": 8,
        "axes.edgecolor": GREY,
        "text.color": INK,
        "axes.titlesize": 8.5,
    }
    with rc_context(style):
        figure = Figure(figsize=(13, 15.5), layout="constrained", facecolor="white")
        parts: Any = figure.subfigures(3, 1, height_ratios=(5.2, 5.0, 4.4))
        top, middle, bottom = parts
        example = studies(0)
        _rocs(top, example)
        left, centre, right = middle.subplots(1, 3)
        _curves(left, runs)
        _forest(centre, example)
        _trade(right, runs)
        left, centre, right = bottom.subplots(1, 3)
        _scatter(left, runs)
        _densities(centre, runs)
        _intervals(right, runs)
        for panel in (*middle.axes, *bottom.axes):
            panel.spines[["top", "right"]].set_visible(False)
            panel.title.set_fontsize(9)
        RESULTS.mkdir(exist_ok=True)
        figure.savefig(RESULTS / "lni-meta.png", dpi=130)


def _rocs(figure: Any, example: Sequence[Study]) -> None:
    """Figure 5: one panel per study."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable

    panels = figure.subplots(2, 5, sharex=True, sharey=True)
    paint = colormaps["viridis"]
    for number, (study, panel) in enumerate(zip(example, panels.flat, strict=True), start=1):
        panel.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":")
        for i, w in enumerate(W):
            curve = roc(*scores(study, i, "distance"))
            bold = i == AT
            panel.plot(
                RATES,
                curve,
                color="#d00000" if bold else paint(w * 0.92),
                linewidth=2.2 if bold else 0.9,
                zorder=3 if bold else 2,
            )
        found = auc(*scores(study, AT, "distance"))
        panel.set_title(f"Study {number}: AUC {found:.3f} at w = .8", loc="left")
        panel.set(xlim=(0, 1), ylim=(0, 1.01), aspect="equal")
        panel.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("false alarms: share of fresh people accused", fontsize=8)
    figure.supylabel("share of members found", fontsize=8)
    figure.suptitle(
        "5  ROC curves of the distance attack, one run (red: w = .8)", x=0.01, ha="left", fontsize=9
    )
    bar = figure.colorbar(ScalarMappable(cmap=paint), ax=panels, shrink=0.7, pad=0.01)
    bar.set_label("w")


def _curves(panel: Any, runs: Sequence[Measured]) -> None:
    """Figure 6: mean AUC of each study over runs, and the stronger attack's."""
    found = aucs(runs)
    n = len(found["distance"])
    mean, se = found["distance"].mean(axis=0), found["distance"].std(axis=0, ddof=1) / np.sqrt(n)
    for number in range(STUDIES):
        panel.errorbar(W, mean[number], se[number], color=COLOURS[0], linewidth=0.7, alpha=0.5)
    panel.plot(W, mean.mean(axis=0), color=COLOURS[0], linewidth=2, label="distance (thin: each)")
    ratio = found["likelihood ratio"].mean(axis=(0, 1))
    panel.plot(W, ratio, color=COLOURS[1], linewidth=2, label="likelihood ratio, knows the flow")
    panel.axhline(MOST_AUC, color=GREY, linewidth=0.8, linestyle="--")
    panel.text(0.01, MOST_AUC + 0.006, ".55", color=GREY, fontsize=7)
    panel.set(xlabel="w", ylabel="membership AUC", xlim=(0, 1.005), ylim=(0.48, 1.01))
    panel.set_title(f"6  Mean AUC of ten studies, {n} runs, ± 1 s.e.", loc="left")
    panel.legend(frameon=False, loc="upper left", fontsize=7.5)


def _forest(panel: Any, example: Sequence[Study]) -> None:
    """Figure 7: one run's studies and their pooled slope."""
    tables = {"real": ([s.rows for s in example], INK)}
    tables |= {f"w = {W[i]:g}": ([s.made[i] for s in example], PAINT[i]) for i in SHOWN[::-1]}
    for place, (name, (rows, colour)) in enumerate(tables.items()):
        at = np.arange(STUDIES, 0, -1) + 0.27 - 0.18 * place
        found = np.array([slope(t) for t in rows])
        half = _Z * np.sqrt(found[:, 1])
        panel.errorbar(
            found[:, 0], at, xerr=half, fmt="s", ms=3, color=colour, linewidth=1, label=name
        )
        whole = pooled(rows)
        low, high, y = whole.ci_low, whole.ci_high, -0.2 - 0.3 * place
        panel.fill([low, whole.estimate, high, whole.estimate], [y, y + 0.13, y, y - 0.13], colour)
    panel.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
    panel.axhline(0.35, color=RULE, linewidth=0.8)
    names = [f"Study {k}" for k in range(1, STUDIES + 1)]
    panel.set_yticks([*range(STUDIES, 0, -1), -0.65], [*names, "Pooled"])
    panel.tick_params(axis="y", length=0)
    panel.set(xlabel="slope of X2", ylim=(-1.4, STUDIES + 0.6))
    panel.set_title("7  One run: estimates and 95 % intervals", loc="left")
    panel.legend(frameon=False, fontsize=7.5, loc="upper right", handlelength=1)


def _trade(panel: Any, runs: Sequence[Measured]) -> None:
    """What w buys and costs: error against AUC, for both attacks."""
    real = np.array([r.real.estimate for r in runs])
    made = np.array([[p.estimate for p in r.made] for r in runs])
    error = np.abs(made - real[:, None]).mean(axis=0)
    labelled = ((0, AT, 9, 11), (6, AT, 9, 11))
    attacks = zip(COLOURS, aucs(runs).items(), labelled, strict=False)
    for colour, (name, found), told in attacks:
        mean = found.mean(axis=(0, 1))
        panel.plot(mean, error, "o-", color=colour, markersize=3.5, linewidth=1.4, label=name)
        for i in told:
            panel.annotate(
                f"{W[i]:g}", (mean[i], error[i]), (3, 3), textcoords="offset points", fontsize=7
            )
    panel.axvline(MOST_AUC, color=GREY, linewidth=0.8, linestyle="--")
    best = np.array([[p.estimate for p in r.best] for r in runs])
    floor = np.abs(best - real[:, None]).mean(axis=0)
    mean = aucs(runs)["distance"].mean(axis=(0, 1))
    panel.plot(mean, floor, ":", color=INK, linewidth=1, label="a perfect flow's error, there")
    panel.plot([0.55, 0.5], [0.0042, 0.0089], "x", color=INK, label="paper, w = .8 and w = 0")
    panel.set(xlabel="membership AUC", ylabel="mean |synthetic − real|, pooled slope")
    panel.set_ylim(0)
    panel.set_title("The trade-off: labels are w", loc="left")
    panel.legend(frameon=False, fontsize=7.5)


def _scatter(panel: Any, runs: Sequence[Measured]) -> None:
    """Figure 8: pooled estimates, real against synthetic."""
    real = np.array([r.real.estimate for r in runs])
    for i in SHOWN:
        made = np.array([r.made[i].estimate for r in runs])
        apart = np.abs(made - real).mean()
        panel.scatter(
            *(real, made), s=7, color=PAINT[i], alpha=0.6, linewidth=0,
            label=f"w = {W[i]:g}: mean |difference| {apart:.4f}",
        )  # fmt: skip
    panel.axline((1, 1), slope=1, color=GREY, linewidth=0.7)
    panel.set(xlabel="pooled slope, real", ylabel="pooled slope, synthetic")
    panel.set_title(f"8  {len(runs)} runs", loc="left")
    panel.legend(frameon=False, fontsize=7.5, loc="upper left", markerscale=2)


def _densities(panel: Any, runs: Sequence[Measured]) -> None:
    """Figure 9: densities of the pooled estimate."""
    drawn: list[tuple[str, str, NDArray[np.float64], str]] = [
        (f"w = {W[i]:g}", PAINT[i], np.array([r.made[i].estimate for r in runs]), "-")
        for i in SHOWN
    ]
    drawn.append(("real", INK, np.array([r.real.estimate for r in runs]), "--"))
    grid = np.linspace(0.955, 1.045, 300)
    for name, colour, values, line in drawn:
        sd = values.std(ddof=1)
        panel.plot(
            grid, gaussian_kde(values)(grid), line, color=colour, label=f"{name}: sd {sd:.4f}"
        )
    panel.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
    panel.set(xlabel="pooled slope", ylabel="density", ylim=(0, None))
    panel.set_title("9  Its law over runs; the truth is 1", loc="left")
    panel.legend(frameon=False, fontsize=7.5, loc="upper right")


def _intervals(panel: Any, runs: Sequence[Measured]) -> None:
    """Stated against actual spread, and coverage of the nominal 95 % interval."""
    spread = np.array([[p.estimate for p in r.made] for r in runs]).std(axis=0, ddof=1)
    stated = np.array([[p.se for p in r.made] for r in runs]).mean(axis=0)
    covers = np.array([[p.ci_low <= 1 <= p.ci_high for p in r.made] for r in runs])
    panel.plot(W, spread, "o-", color=COLOURS[1], markersize=3.5, label="sd over runs")
    panel.plot(W, stated, "o-", color=COLOURS[0], markersize=3.5, label="mean stated s.e.")
    panel.set(xlabel="w", ylabel="of the pooled slope", ylim=(0, None), xlim=(-0.01, 1.01))
    twin = panel.twinx()
    twin.plot(W, covers.mean(axis=0), "s--", color=COLOURS[2], markersize=3.5, label="coverage")
    twin.axhline(0.95, color=COLOURS[2], linewidth=0.6, linestyle=":")
    twin.set(ylabel="coverage of the 95 % interval (dashed)", ylim=(0.7, 1.0))
    twin.yaxis.label.set_color(COLOURS[2])
    lines = [*panel.get_lines(), twin.get_lines()[0]]
    panel.legend(
        lines, [x.get_label() for x in lines], frameon=False, fontsize=7.5, loc=(0.03, 0.05)
    )
    panel.set_title("Stated and actual spread, and coverage, across w", loc="left")
