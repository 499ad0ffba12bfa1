"""What the pooled answers hang on: on the estimator of τ², on single sites, and on small ones.

Of each estimand that was pooled from two sites or more. Whatever leaves sites out is pooled as the
headline is; estimators of τ² stand beside each other as metafor has them. Asymmetry is looked at
from ten sites on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from markupsafe import Markup

from penstock.base.documents import Json
from penstock.inference import asymmetry, pooling
from penstock.inference.heterogeneity import profile_q
from penstock.inference.influence import accumulate, leave_one_out
from penstock.inference.weighting import average_sites
from penstock.processes.crew import count_processes, gather_documents
from penstock.telling.funnel import FunnelPlot, funnel_png, funnel_svg
from penstock.telling.scales import LINKS, Link
from penstock_server.analysis.leverage import weigh_sites
from penstock_server.report.inputs import ReportInputs
from penstock_server.report.section import Picture, Section, Sheet
from penstock_server.report.sections.answers import (
    LEVEL,
    scale_of,
    show_interval,
    tell_interval,
    tell_pooled,
)

_MANY = 100
"""Sites from which on processes share the estimands, as each site is left out once."""

METHODS = {
    "fixed": "Fixed effect",
    "reml": "REML",
    "dl": "DerSimonian–Laird",
    "pm": "Paule–Mandel",
    "ml": "Maximum likelihood",
    "hs": "Hunter–Schmidt",
    "hsk": "Hunter–Schmidt, few sites",
    "he": "Hedges",
    "sj": "Sidik–Jonkman",
    "eb": "Empirical Bayes",
    "unweighted": "Each site alike",
}
"""In the order of the page."""


def _write(inputs: ReportInputs, report: Json) -> Json:
    pooled = [e for e in report["estimands"] if e["heterogeneity"] is not None]
    asked = [e for e in pooled if e["random"]["k"] > 1]
    many = any(e["random"]["k"] >= _MANY for e in asked)
    processes = count_processes(len(asked), fewest=2) if many else 1
    told = gather_documents(len(asked), lambda number: _examine(asked[number]), processes)
    return {"sensitivity_analysis": told}


def _examine(estimand: Json) -> Json:
    link = LINKS[estimand["scale"]]
    sites = [s for s in estimand["sites"] if s["problem"] is None]
    names = [s["site"] for s in sites]
    y = [s["coefficient"]["estimate"] for s in sites]
    v = [s["variance"] for s in sites]
    df = [math.inf if s["df"] is None else s["df"] for s in sites]
    pooled = [
        *(pooling.pool(y, v, method=m, level=LEVEL, degrees=df) for m in pooling.METHODS),
        average_sites(y, v, level=LEVEL, degrees=df),
    ]
    profile = profile_q(y, v, level=LEVEL)
    return {
        "estimand": estimand["name"],
        "methods": [tell_pooled(one, link) for one in pooled],
        "tau2": None if profile is None else _tell_range(profile.tau2),
        "i2": None if profile is None else _tell_range(profile.i2),
        "left_out": list(_leave_out(names, y, v, df, link)),
        "cumulative": [
            {"site": names[at], "k": p.k, **_tell_value(p, link)}
            for at, p in zip(
                np.argsort(v, kind="stable"),
                accumulate(y, v, level=LEVEL, degrees=df, weighed=True),
                strict=True,
            )
        ],
        "asymmetry": _look_at_small(y, v, link) if len(y) >= asymmetry.LEAST_SITES else None,
    }


def _leave_out(
    names: Sequence[str],
    y: Sequence[float],
    v: Sequence[float],
    df: Sequence[float],
    link: Link,
) -> Iterator[Json]:
    effects = weigh_sites(tuple(y), tuple(v), tuple(df))
    rest = leave_one_out(y, v, level=LEVEL, degrees=df, weighed=True)
    for name, effect, without in zip(names, effects, rest, strict=True):
        yield {
            "site": name,
            **_tell_value(without, link),
            "tau2": without.tau2,
            "i2": without.i2,
            "residual": effect.residual,
            "dffits": effect.dffits,
            "cook": effect.cook,
            "covariance_ratio": effect.covariance_ratio,
            "flagged": effect.flagged,
        }


def _look_at_small(y: Sequence[float], v: Sequence[float], link: Link) -> Json:
    egger, begg = asymmetry.regress_on_error(y, v, level=LEVEL), asymmetry.correlate_ranks(y, v)
    filled = asymmetry.trim_and_fill(y, v, level=LEVEL)
    return {
        "egger": None
        if egger is None
        else {
            "slope": egger.slope,
            "se": egger.se,
            "statistic": egger.statistic,
            "df": egger.df,
            "p": egger.p_value,
        },
        "begg": None if begg is None else {"tau": begg[0], "p": begg[1]},
        "filled": {
            "missing": filled.missing,
            "side": filled.side,
            "estimates": list(filled.estimates),
            "variances": list(filled.variances),
            **_tell_value(filled.pooled, link),
        },
    }


def _tell_value(p: pooling.Pooled, link: Link) -> Json:
    return {
        "coefficient": tell_interval(p.estimate, p.ci_low, p.ci_high),
        "value": show_interval(p.estimate, p.ci_low, p.ci_high, link),
    }


def _tell_range(ends: tuple[float, float]) -> Json:
    return {"low": ends[0], "high": ends[1]}


# -- the page ------------------------------------------------------------------------------------


def plot_of(examined: Json, estimand: Json) -> FunnelPlot:
    """The funnel plot of one of the report's estimands."""
    flagged = {s["site"] for s in examined["left_out"] if s["flagged"]}
    filled = None if examined["asymmetry"] is None else examined["asymmetry"]["filled"]
    added = () if filled is None else zip(filled["estimates"], filled["variances"], strict=True)
    return FunnelPlot(
        title=f"Funnel plot: {estimand['axis_label']}",
        axis_label=estimand["axis_label"],
        link=LINKS[estimand["scale"]],
        centre=estimand["random"]["coefficient"]["estimate"],
        sites=tuple(
            (
                s["site"],
                s["coefficient"]["estimate"],
                math.sqrt(s["variance"]),
                s["site"] in flagged,
            )
            for s in estimand["sites"]
            if s["problem"] is None
        ),
        added=tuple((y, math.sqrt(v)) for y, v in added),
    )


def _pair(report: Json) -> list[tuple[Json, Json]]:
    estimands = {e["name"]: e for e in report["estimands"]}
    return [(told, estimands[told["estimand"]]) for told in report["sensitivity_analysis"]]


def _show(report: Json) -> Json:
    return {"examined": [_present(t, e, at) for at, (t, e) in enumerate(_pair(report))]}


def _present(examined: Json, estimand: Json, position: int) -> Json:
    plot, name = plot_of(examined, estimand), f"funnel-{position}"
    order = {m["method"]: m for m in examined["methods"]}
    values = [s["value"]["estimate"] for s in examined["left_out"]]
    return {
        "data": examined,
        "estimand": estimand,
        "scale": scale_of(estimand),
        "methods": [(title, order[method]) for method, title in METHODS.items()],
        "least": min(values),
        "most": max(values),
        # funnel_svg escapes every label.
        "figure": {
            "wide": Markup(funnel_svg(plot, uid=f"{name}-wide")),
            "compact": Markup(funnel_svg(plot, uid=f"{name}-compact", compact=True)),
        },
    }


def _draw(report: Json) -> list[Picture]:
    return [
        Picture("funnel.png", "funnel plot of sites", partial(funnel_png, plot=plot_of(*pair)))
        for pair in _pair(report)[:1]
    ]


_ENDS = {
    "estimate": ("continuous", "pooled, coefficient scale, per the estimand's units"),
    "low": ("continuous", "lower end of its 95% interval"),
    "high": ("continuous", "upper end of the same"),
}
_BY_METHOD = {
    "estimand": ("categorical", "by name"),
    "method": ("categorical", "estimator of the variance between sites; unweighted: a plain mean"),
    **_ENDS,
    "tau2": ("continuous", "variance between sites"),
    "p": ("continuous", "two-sided, against a coefficient of 0"),
}
_BY_SITE = {
    "estimand": ("categorical", "by name"),
    "site": ("categorical", "which is left out"),
    **_ENDS,
    "tau2": ("continuous", "variance between the others"),
    "i2": ("continuous", "share of it in what the others' estimates vary"),
    "residual": ("continuous", "externally studentised"),
    "dffits": ("continuous", "how far the site moves its own fitted value"),
    "cook": ("continuous", "Cook's distance"),
    "covariance_ratio": ("continuous", "variance of the pooled estimate without it, and with it"),
    "flagged": ("integer", "1: the residual is beyond 3, or as unlikely"),
}
_ONE_BY_ONE = {
    "estimand": ("categorical", "by name"),
    "site": ("categorical", "which is added, from the most precise on"),
    "k": ("integer", "sites so far"),
    **_ENDS,
}


def _tabulate(report: Json) -> list[Sheet]:
    examined = report["sensitivity_analysis"]
    if not examined:
        return []

    def list_rows(part: str, *columns: str) -> list[tuple[str | int | float | None, ...]]:
        return [
            (
                one["estimand"],
                row["method" if part == "methods" else "site"],
                *((row["k"],) if part == "cumulative" else ()),
                *(row["coefficient"][end] for end in _ENDS),
                *(int(row[name]) if name == "flagged" else row[name] for name in columns),
            )
            for one in examined
            for row in one[part]
        ]

    return [
        Sheet(
            "methods.csv",
            "one row for each pooled estimand and estimator of the variance between sites, and one "
            "for the plain mean of sites",
            _BY_METHOD,
            list_rows("methods", "tau2", "p"),
        ),
        Sheet(
            "influence.csv",
            "one row for each pooled estimand and site: what is pooled without it",
            _BY_SITE,
            list_rows("left_out", *list(_BY_SITE)[5:]),
        ),
        Sheet(
            "cumulative.csv",
            "one row for each pooled estimand and site: what is pooled up to it",
            _ONE_BY_ONE,
            list_rows("cumulative"),
        ),
    ]


SECTION = Section(
    "sensitivity_analysis", _write, _show, {"sensitivity_analysis": []}, _draw, _tabulate
)
