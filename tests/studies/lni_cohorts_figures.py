"""The pictures of `lni-cohorts`: its paper's figures 10 to 15 in form, of the first run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import gaussian_kde
from tests.studies.lni import COLOURS, GREY, INK, RULE
from tests.studies.lni_cohorts import (
    COLUMNS,
    EVENT,
    GRID,
    NONE,
    OWN,
    PUBLISHED,
    REAL,
    TIME,
    Example,
    Outcome,
    pooled,
)
from tests.support.results import RESULTS

from penstock.audit.membership import RATES
from penstock_server.simulate import cvd

SHOWN = "aric-m"
PAINT = {REAL: INK, OWN: COLOURS[1], NONE: COLOURS[0]}
LABELS = {
    "age": "age, years",
    "cholesterol": "total cholesterol, mg/dL",
    "hdl": "HDL, mg/dL",
    "sbp": "SBP, mmHg",
    "time": "time to CVD or censoring, years",
}
_Z = 1.959964


def draw_figures(runs: Sequence[Mapping[str, Outcome]]) -> None:
    """``lni-cohorts.png`` and ``lni-cohorts-attacks.png`` beside the table."""
    from matplotlib import rc_context

    style: dict[Any, Any] = {
        **{"font.size": 8, "axes.edgecolor": GREY, "text.color": INK, "axes.titlesize": 8.5},
        **{"axes.spines.top": False, "axes.spines.right": False},
    }
    first = runs[0]
    examples = {name: o.example for name, o in first.items() if o.example is not None}
    RESULTS.mkdir(exist_ok=True)
    with rc_context(style):
        _attacks(first, examples).savefig(RESULTS / "lni-cohorts-attacks.png", dpi=120)
        _fidelity(runs, examples).savefig(RESULTS / "lni-cohorts.png", dpi=120)


def _heading(figure: Any, text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontsize=10)


# -- figures 10 and 11 -----------------------------------------------------------------------------


def _attacks(first: Mapping[str, Outcome], examples: Mapping[str, Example]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 14), layout="constrained", facecolor="white")
    parts: Any = figure.subfigures(2, 1, height_ratios=(7.6, 6.4))
    top, bottom = parts
    _rocs(top, first, examples)
    _distances(bottom, first, examples)
    return figure


def _rocs(figure: Any, first: Mapping[str, Outcome], examples: Mapping[str, Example]) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable

    panels = figure.subplots(3, 4, sharex=True, sharey=True)
    paint = colormaps["viridis"]
    for (name, example), panel in zip(examples.items(), panels.flat, strict=True):
        panel.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":")
        at = GRID.index(first[name].w[OWN])
        for i, w in enumerate(GRID):
            bold = i == at
            panel.plot(
                RATES,
                example.curves[i],
                color="#d00000" if bold else paint(w * 0.92),
                linewidth=2.0 if bold else 0.7,
                zorder=3 if bold else 2,
            )
        found = first[name].aucs[OWN][at]
        panel.set_title(f"{cvd.find(name).title}: ŵ = {GRID[at]:g}, AUC {found:.3f}", loc="left")
        panel.set(xlim=(0, 1), ylim=(0, 1.01))
    figure.supxlabel("false alarms: share of the held-out 20 % accused", fontsize=8)
    figure.supylabel("share of members found", fontsize=8)
    _heading(figure, "10  ROC curves of the distance attack, w = 0 to .95 (red: ŵ)")
    bar = figure.colorbar(ScalarMappable(cmap=paint), ax=panels, shrink=0.6, pad=0.01)
    bar.set_label("w")


def _distances(figure: Any, first: Mapping[str, Outcome], examples: Mapping[str, Example]) -> None:
    panels = figure.subplots(3, 4, sharex=True)
    grid = np.linspace(0, 8, 200)
    words = {REAL: "two real persons", OWN: "real, own row at ŵ", NONE: "real, own row at w = 0"}
    for (name, example), panel in zip(examples.items(), panels.flat, strict=True):
        for kind, text in words.items():
            curve = gaussian_kde(example.distances[kind])(grid)
            panel.plot(
                *(grid, curve), color=PAINT[kind], label=text,
                linestyle="--" if kind == NONE else "-", linewidth=1.4,
            )  # fmt: skip
        near = first[name].nearer[OWN]
        title = f"{cvd.find(name).title}: another is nearer in {100 * near:.1f} %"
        panel.set_title(title, loc="left")
        panel.set(xlim=(0, 8), ylim=(0, None), yticks=[])
    panels[0, 0].legend(frameon=False, fontsize=7.5)
    figure.supxlabel("distance, in standard deviations of the columns", fontsize=8)
    _heading(figure, "11  Densities of pairwise distances")


# -- figures 12 to 15 ------------------------------------------------------------------------------


def _fidelity(runs: Sequence[Mapping[str, Outcome]], examples: Mapping[str, Example]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 21), layout="constrained", facecolor="white")
    parts: Any = figure.subfigures(4, 1, height_ratios=(3.6, 4.4, 5.0, 7.6))
    title, w = cvd.find(SHOWN).title, runs[0][SHOWN].w[OWN]
    _paths(parts[0], examples[SHOWN])
    _heading(parts[0], f"12  Three people of {title}, from w = 0 (star) to 1 (dot)")
    _moves(parts[1], examples[SHOWN], w)
    _heading(parts[1], f"13  {title}: 300 people and their own synthetic rows")
    _boxes(parts[2], examples)
    _heading(parts[2], "14  Real (blue) and synthetic at ŵ (orange)")
    _forests(parts[3], runs)
    _heading(parts[3], "15  Hazard ratio per 10 mmHg of SBP, 95 % intervals, one run")
    return figure


def _paths(figure: Any, example: Example) -> None:
    x = COLUMNS.index("sbp")
    against = [j for j in range(len(COLUMNS)) if j not in (x, EVENT)]
    panels = figure.subplots(1, len(against))
    shown = np.linspace(0, len(example.cloud) - 1, 1500).astype(np.intp)
    for j, panel in zip(against, panels, strict=True):
        cloud = example.cloud[shown]
        panel.scatter(cloud[:, x], cloud[:, j], s=3, color="#cccccc", linewidth=0)
        for k, colour in enumerate((COLOURS[1], COLOURS[2], COLOURS[6])):
            path = example.paths[:, k]
            panel.plot(path[:, x], path[:, j], color=colour, linewidth=1.5)
            panel.plot(*path[0, [x, j]], "*", color=colour, markersize=9)
            panel.plot(*path[-1, [x, j]], "o", color=colour, markersize=5)
        what = "logit of time" if j == TIME else COLUMNS[j]
        panel.set(xlabel="SBP, standardised", ylabel=f"{what}, standardised")
        panel.set(xlim=(-3.2, 4.2), ylim=(-4.2, 4.2))


def _moves(figure: Any, example: Example, w: float) -> None:
    x, y = COLUMNS.index("sbp"), TIME
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    real = example.tables[REAL]
    lined = np.linspace(0, len(real) - 1, 300).astype(np.intp)
    for panel, (kind, told) in zip(panels, ((NONE, "w = 0"), (OWN, f"ŵ = {w:g}")), strict=True):
        made = example.tables[kind]
        ends = np.stack([real[lined], made[lined]])
        panel.plot(ends[:, :, x], ends[:, :, y], color=INK, linewidth=0.35, alpha=0.6, zorder=1)
        panel.plot(*ends[0][:, [x, y]].T, "o", color=COLOURS[0], ms=3, mec="none", label="real")
        panel.plot(*ends[1][:, [x, y]].T, "x", color=COLOURS[1], ms=3.5, label="synthetic")
        panel.set_title(told, loc="left")
        panel.set(xlabel=LABELS["sbp"], ylabel=LABELS["time"])
    panels[0].legend(frameon=False, fontsize=7.5, loc="upper right")


def _boxes(figure: Any, examples: Mapping[str, Example]) -> None:
    panels = figure.subplots(2, 3).flat
    look = {"widths": 0.34, "whis": (5, 95), "showfliers": False, "patch_artist": True}
    names = [
        cvd.find(n).title.replace("Framingham", "Fram.").replace(" Heart", "") for n in examples
    ]
    for j, column in enumerate(c for c in COLUMNS if c != "cvd"):
        panel = next(panels)
        for kind, colour, shift in ((REAL, COLOURS[0], -0.2), (OWN, COLOURS[1], 0.2)):
            values = [e.tables[kind][:, j] for e in examples.values()]
            places = np.arange(len(values)) + shift
            boxes = panel.boxplot(values, positions=places, **look)
            for box in boxes["boxes"]:
                box.set(facecolor=colour, alpha=0.55, edgecolor=colour)
            for line in (*boxes["medians"], *boxes["whiskers"], *boxes["caps"]):
                line.set(color=INK, linewidth=0.8)
        panel.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=7)
        panel.set_ylabel(LABELS[column])
    shares = next(panels)
    for kind, colour, shift in ((REAL, COLOURS[0], -0.2), (OWN, COLOURS[1], 0.2)):
        values = [100 * e.tables[kind][:, EVENT].mean() for e in examples.values()]
        shares.bar(np.arange(len(values)) + shift, values, 0.36, color=colour, alpha=0.7)
    shares.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=7)
    shares.set_ylabel("people with an event, %")


def _forests(figure: Any, runs: Sequence[Mapping[str, Outcome]]) -> None:
    panels = figure.subplots(1, 2, sharey=True)
    first = list(runs[0].values())
    height = len(first)
    words = {REAL: "real (simulated)", OWN: "synthetic, ŵ", NONE: "synthetic, w = 0"}
    for panel, model in zip(panels, ("unadjusted", "adjusted"), strict=True):
        for place, (kind, text) in enumerate(words.items()):
            colour, shift = PAINT[kind], 0.24 - 0.24 * place
            fits = [(i, *f) for i, o in enumerate(first) if (f := o.fits[model, kind]) is not None]
            at, value, variance = np.array(fits).T
            half = _Z * np.sqrt(variance)
            hr, low, high = np.exp(value), np.exp(value - half), np.exp(value + half)
            panel.errorbar(
                *(hr, height - at + shift), xerr=(hr - low, high - hr), fmt="s", ms=3,
                color=colour, linewidth=1,
            )  # fmt: skip
            whole = pooled(first, model, kind)
            low, centre, high = np.exp([whole.ci_low, whole.estimate, whole.ci_high])
            y = -0.1 - 0.55 * place
            panel.fill([low, centre, high, centre], [y, y + 0.2, y, y - 0.2], color=colour)
            panel.annotate(
                f"{text}: {centre:.3f} ({low:.3f} to {high:.3f})",
                (high, y), (6, 0), textcoords="offset points", va="center", fontsize=7.5,
                color=colour,
            )  # fmt: skip
        panel.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
        panel.axhline(0.45, color=RULE, linewidth=0.8)
        panel.set_xscale("log")
        ticks = [0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2.0, 2.2]
        panel.set_xticks(ticks, [f"{t:g}" for t in ticks])
        panel.minorticks_off()
        panel.set(xlim=(0.7, 2.3), ylim=(-1.6, height + 0.6), xlabel="hazard ratio per 10 mmHg")
        told = "unadjusted" if model == "unadjusted" else "adjusted for age, cholesterol, HDL"
        panel.set_title(told, loc="left")
        panel.tick_params(axis="y", length=0)
    names = [cvd.find(n).title for n in PUBLISHED]
    panels[0].set_yticks([*range(height, 0, -1), -0.65], [*names, "Pooled"])
