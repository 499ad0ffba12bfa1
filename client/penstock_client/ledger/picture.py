"""The picture of a budget over time, as :mod:`penstock_client.ledger.budget` sums it up.

One panel for each data set: ε that is spent, as the filter counts it and as the odometer reads,
under the line that it may never cross. Where the policy has a yearly allowance, a strip below
shows each calendar year's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock.base.documents import Json, JsonView
from penstock.base.errors import InvalidInput, Problem
from penstock.base.pictures import check_picture
from penstock.base.printable import make_printable
from penstock.base.times import read_stamp

# Blue, vermillion, green and purple after Okabe & Ito: told apart by people with any colour-vision
# deficiency. Meaning never rests on colour alone: lines differ in style, marks in shape.
INK, MUTED, RULE = "#17212b", "#56626e", "#d4dae0"
FILTER, ODOMETER, CAP, VERSION = "#0b66a3", "#00745a", "#c04a00", "#9c2a78"

Curve = tuple[list[datetime], list[float]]


def draw_budget(summary: Sequence[JsonView], path: Path, *, site: str, now: datetime) -> None:
    """Draw every data set's budget over time.

    Args:
        summary: of :func:`penstock_client.ledger.budget.summarize_budget`.
        path: its suffix says what is written: .png, .svg or .pdf.
        site: the site's name, for the title.
        now: where the picture ends, with a time zone.

    Raises:
        InvalidInput: another suffix, or there is no data set yet.
        PenstockError: matplotlib is not installed.
    """
    check_picture(path)
    if not summary:
        problem = Problem("", "no data set yet", remedy="Run `penstock site check`")
        raise InvalidInput("--plot", [problem])
    # Slow to import, and only needed here.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    strips = [bool(_find_years(row)) for row in summary]
    ratios = [r for strip in strips for r in ((3.0, 0.9) if strip else (3.0,))]
    # Text stays text, and the same ledger gives the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "penstock", "font.size": 9.5}):
        figure = Figure(figsize=(9.0, 0.6 + 1.25 * sum(ratios)), layout="constrained")
        axes = iter(figure.subplots(len(ratios), 1, squeeze=False, height_ratios=ratios)[:, 0])
        for row, strip in zip(summary, strips, strict=True):
            upper = next(axes)
            span = _find_span(row, now)
            _draw_curves(upper, row, span, now)
            if strip:
                _draw_years(next(axes), row, span)
                upper.tick_params(labelbottom=False)
        figure.suptitle(
            f"Privacy budget of {make_printable(site, ' ')}", parse_math=False, color=INK
        )
        # Without a date of its own, so that pictures of one ledger can be compared.
        undated: Json = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        suffix = path.suffix.lower()
        figure.savefig(path, format=suffix[1:], dpi=160, metadata=undated.get(suffix))


def _draw_curves(axes: Any, row: JsonView, span: tuple[datetime, datetime], now: datetime) -> None:
    """ε over time, under the total."""
    total = row["total_epsilon"]
    charges = row["charges"]
    filter_ = _find_curve(charges, "spent_after", span[0], now)
    odometer = _find_curve(charges, "odometer_after", span[0], now)
    if row["exhausted"]:  # when the records were lost is not known: the charge for them is now
        filter_ = ([*filter_[0], filter_[0][-1]], [*filter_[1], total])
    top = 1.12 * max(total, *filter_[1], *odometer[1])
    axes.axhline(total, color=CAP, linewidth=1.8, label=f"may never be crossed: ε = {total:g}")
    steps = {"drawstyle": "steps-post", "zorder": 3}
    axes.plot(*filter_, color=FILTER, linewidth=2, label="spent, by the filter", **steps)
    axes.plot(
        *odometer, color=ODOMETER, linewidth=1.5, linestyle=(0, (4, 2)), **steps,
        label="odometer: holds whenever you look",
    )  # fmt: skip
    _draw_marks(axes, charges, total)
    for place, version in enumerate(row["versions"]):
        moment = read_stamp(version["time"])
        axes.axvline(moment, color=VERSION, linewidth=1, linestyle=(0, (1, 2)), zorder=1)
        axes.annotate(
            f"v{version['version']}, n = {version['persons']}", (moment, top),
            (3, -3 - 10 * (place % 3)), textcoords="offset points",
            va="top", fontsize=8, color=VERSION,
        )  # fmt: skip
    if not charges:
        axes.text(
            0.5, 0.45, "nothing has been charged yet", transform=axes.transAxes,
            ha="center", color=MUTED, backgroundcolor="white",
        )  # fmt: skip
    axes.set_title(_write_title(row), loc="left", fontsize=9.5, color=INK, parse_math=False)
    axes.set_ylabel(f"ε at δ = {row['delta']:g}")
    axes.set_ylim(0, top)
    _draw_time_axis(axes, span)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8.5)


def _draw_marks(axes: Any, charges: Sequence[JsonView], total: float) -> None:
    """What became of each charge: only what is not the rule is marked."""
    shapes = (
        ("burnt", "X", CAP, CAP, "burnt: charged, nothing released"),
        ("reserved", "o", "white", FILTER, "reserved: still running"),
    )
    for status, shape, face, edge, label in shapes:
        found = [c for c in charges if c["status"] == status]
        if found:
            axes.plot(
                [read_stamp(c["time"]) for c in found],
                [total if c["spent_after"] is None else c["spent_after"] for c in found],
                linestyle="none", marker=shape, markersize=7, markerfacecolor=face,
                markeredgecolor=edge, label=label, zorder=4, clip_on=False,
            )  # fmt: skip
    ends = [read_stamp(c["time"]) for c in charges if c["epsilon"] is None]
    if ends:
        axes.axvline(ends[0], color=INK, linewidth=1.5, label="ε = ∞: the formal budget ended")


def _draw_years(axes: Any, row: JsonView, span: tuple[datetime, datetime]) -> None:
    """Each calendar year's allowance as a band, filled as far as it is spent."""
    years = _find_years(row)
    for year in years:
        start = datetime(year["year"], 1, 1, tzinfo=UTC)
        width = datetime(year["year"] + 1, 1, 1, tzinfo=UTC) - start
        band = {"width": width, "align": "edge"}
        axes.bar(start, year["allowance"], **band, facecolor="#e9edf1", edgecolor=MUTED)
        spent = year["spent_epsilon"]
        shown = year["allowance"] if spent is None else spent
        axes.bar(start, shown, **band, facecolor=FILTER, edgecolor=FILTER, hatch="///", alpha=0.45)
        text = (
            f"{year['year']}: {'∞' if spent is None else f'{spent:.3g}'} of {year['allowance']:g}"
        )
        middle = max(start, span[0]) + (min(start + width, span[1]) - max(start, span[0])) / 2
        axes.annotate(
            text, (middle, year["allowance"]), (0, -3), textcoords="offset points",
            ha="center", va="top", fontsize=8, color=INK, annotation_clip=True,
        )  # fmt: skip
    most = max(max(y["allowance"], y["spent_epsilon"] or 0.0) for y in years)
    axes.set_ylim(0, 1.08 * most)
    axes.set_ylabel("ε of the year")
    _draw_time_axis(axes, span)


def _draw_time_axis(axes: Any, span: tuple[datetime, datetime]) -> None:
    from matplotlib import dates as untyped

    dates: Any = untyped
    locator = dates.AutoDateLocator(tz=UTC, minticks=3, maxticks=9)
    axes.set_xlim(*span)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC))
    axes.set_xlabel("")
    axes.grid(axis="y", color=RULE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _find_curve(charges: Sequence[JsonView], key: str, start: datetime, now: datetime) -> Curve:
    """Times and ε after each charge, from 0 at the start; it ends where ε is ∞."""
    times, values = [start], [0.0]
    for charge in charges:
        if charge[key] is None or not math.isfinite(charge[key]):
            return [*times, read_stamp(charge["time"])], [*values, values[-1]]
        times.append(read_stamp(charge["time"]))
        values.append(charge[key])
    return [*times, max(now, times[-1])], [*values, values[-1]]


def _find_span(row: JsonView, now: datetime) -> tuple[datetime, datetime]:
    """From the first record to now; whole calendar years where the policy counts in years."""
    times = [read_stamp(each["time"]) for each in (*row["versions"], *row["charges"])]
    first, last = min([*times, now]), max([*times, now])
    years = _find_years(row)
    if years:
        numbers = [y["year"] for y in years]
        first = min(first, datetime(min(numbers), 1, 1, tzinfo=UTC))
        return first, max(last, datetime(max(numbers) + 1, 1, 1, tzinfo=UTC))
    room = max((last - first) * 0.03, timedelta(hours=1))
    return first - room, last + room


def _find_years(row: JsonView) -> list[JsonView]:
    return [y for y in row["years"] if y["allowance"] is not None]


def _write_title(row: JsonView) -> str:
    spent = row["spent_epsilon"]
    count = len(row["charges"])
    text = (
        f"{make_printable(row['lineage'], ' ')}: {'∞' if spent is None else f'{spent:.3g}'} of "
        f"{row['total_epsilon']:g} spent by {count} charge{'' if count == 1 else 's'}"
    )
    if row["exhausted"]:
        text += "; records were lost: all is charged"
    return text + "  (one person's rows present or absent, n public; UTC)"
