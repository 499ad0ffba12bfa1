"""Wide and large tables: a worker's time and peak memory by persons, columns and levels.

Real workers, started as a gate starts them, on one thread of a CPU: `structured` at ε = 1 with ten
copies, no refits and no outcome, on rows made up by a dictionary of columns of which every second
is categorical and every other a number with one decimal. *Persons*: 30 columns, levels from 2 to
40. *Columns* and *levels*: 10,000 persons. Peaks are the kernel's own count of the whole process;
seconds are from the rows to the last table. The target is 5 minutes and 1,500 MB at a million
persons, 30 columns and ten copies, and cost linear in persons: ten times the persons take at most
eleven times as long. *Tables of 100,000 rows*: a million persons with `most_rows`, and twenty
refits. The peer is MST (smartnoise-synth 1.0.8) where it is installed: one fit of
10,000 rows and one table of as many, numbers in 20 bins; it is beside ours with one copy.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tests.studies.foreign_peers import can_run_smartnoise, smartnoise
from tests.studies.particle_plots import LINES, RULE
from tests.support.results import RESULTS, Row, write
from tests.support.weighed import MB, Weight, asked, foreseen, weigh

from penstock.mechanisms import Structured
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Column, Schema
from penstock_client.rows.snapshot import load_rows
from penstock_client.work.rehearsal import synthetic_rows

PERSONS, COLUMNS, LEVELS = (10_000, 100_000, 1_000_000), (10, 20, 30, 60), (2, 8, 20, 40)
SOME, MIXED, COPIES, REFITS, SHARED = 10_000, 0, 10, 20, 100_000
MOST_SECONDS, MOST_MB, LINEAR = 300.0, 1500.0, 11.0


def make_schema(columns: int, levels: int) -> Schema:
    """So many columns, every second with so many levels; :data:`MIXED`: from 2 to 40."""
    found = []
    for number in range(columns):
        count = levels or 2 + number * 7 % 39
        if number % 2:
            found.append(Column(f"x{number}", "continuous", 0, 100, 1))
        elif count == 2:
            found.append(Column(f"c{number}", "binary"))
        else:
            names = tuple(f"l{level}" for level in range(count))
            found.append(Column(f"c{number}", "categorical", levels=names))
    return Schema(tuple(found))


def run() -> Path:
    """Weigh workers, one after the other."""
    persons = {n: _weigh(n, 30, MIXED) for n in PERSONS}
    columns = {d: _weigh(SOME, d, 8) for d in COLUMNS}
    levels = {count: _weigh(SOME, 30, count) for count in LEVELS}
    rows: list[Row] = []
    for n, found in persons.items():
        what, largest = f"n = {n:,}, 30 columns", n == max(PERSONS)
        rows += _tell(what, found, largest=largest)
    for d, found in columns.items():
        rows += _tell(f"n = {SOME:,}, {d} columns of 8 levels", found)
    for count, found in levels.items():
        rows += _tell(f"n = {SOME:,}, 30 columns of {count} levels", found)
    shared = _weigh(PERSONS[-1], 30, MIXED, refits=REFITS, most_rows=SHARED)
    what = f"n = {PERSONS[-1]:,}, 30 columns, {REFITS} refits, tables of {SHARED:,} rows"
    rows += _tell(what, shared, largest=True)
    most, less = persons[PERSONS[-1]].seconds, persons[PERSONS[-2]].seconds
    rows.append(_row("ten times the persons: times as long", most / less, LINEAR))
    if can_run_smartnoise():
        for d in COLUMNS[:2]:
            ours = _weigh(SOME, d, 8, 1).seconds
            what = f"n = {SOME:,}, {d} columns of 8 levels, one copy: seconds (peer: mst)"
            rows.append(Row(what, ours, None, 1, peer=_time_mst(d)))
    _picture({"persons": persons, "columns": columns, "levels": levels}, RESULTS / "wide.png")
    note = f"{(__doc__ or '').strip()}\n\n![Time and memory](wide.png)"
    return write("wide", rows, note)


def _weigh(
    persons: int,
    columns: int,
    levels: int,
    copies: int = COPIES,
    refits: int = 0,
    most_rows: int | None = None,
) -> Weight:
    settings = Structured(copies=copies, refits=refits, planted=0, most_rows=most_rows)
    study = asked(settings, make_schema(columns, levels), estimands=())
    found = weigh(study, persons)
    planned = foreseen(study, persons).total / MB
    if found.peak > planned:
        raise RuntimeError(f"{persons} persons took {found.peak:.0f} MB, planned {planned:.0f}")
    return found


def _tell(what: str, found: Weight, *, largest: bool = False) -> list[Row]:
    seconds = _row(f"{what}: seconds", found.seconds, MOST_SECONDS if largest else None)
    return [seconds, _row(f"{what}: peak (MB)", found.peak, MOST_MB if largest else None)]


def _row(what: str, value: float, target: float | None) -> Row:
    holds = None if target is None else value <= target
    return Row(what, value, None, 1, target=target, holds=holds)


def _time_mst(columns: int) -> float:
    schema = make_schema(columns, 8)
    coded, _ = load_rows(synthetic_rows(schema, SOME, 1))
    there = ~np.any([np.isnan(values) for values in coded.values()], axis=0)
    rows = {name: values[there] for name, values in coded.items()}
    began = time.perf_counter()
    smartnoise("mst", rows, schema, PrivacyRequest(1.0, 1e-6), 1, 0, alone=True)
    return time.perf_counter() - began


def _picture(found: Mapping[str, Mapping[int, Weight]], path: Path) -> None:
    """Seconds above, MB below; by persons, columns and levels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 5.2), layout="constrained", facecolor="white")
    upper, lower = figure.subplots(2, len(found), sharey="row")
    for top, bottom, (name, weights) in zip(upper, lower, found.items(), strict=True):
        _draw(top, list(weights), [each.seconds for each in weights.values()])
        _draw(bottom, list(weights), [each.peak for each in weights.values()])
        bottom.set_xlabel(name)
    upper[0].set_ylabel("seconds")
    lower[0].set_ylabel("MB")
    figure.savefig(path, dpi=150)


def _draw(axes: object, at: Sequence[int], values: Sequence[float]) -> None:
    from matplotlib.axes import Axes
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    assert isinstance(axes, Axes)
    axes.plot(at, values, markersize=4, linewidth=1.5, **next(iter(LINES)))
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(at, [f"{value:,}" for value in at])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(visible=True, which="major", color=RULE, linewidth=0.6)
