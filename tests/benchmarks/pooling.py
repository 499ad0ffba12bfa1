"""Results of many sites: seconds and memory of the process that makes a report.

Uploads as a coordinator stores them, of 10 copies of 8,000 rows each with 10 columns (the
`interactions` generator of the study of foreign tables; no two tables are the same), signed
manifests, and one study that asks six questions: two hazard ratios and a product of Cox's model, a
logistic and a linear coefficient, and a share without the event at a time. The process is the one
that a coordinator starts for a finished study (`penstock_server.results.assembly`); nothing is kept
from an earlier one. *More sites*: the seconds of each further site beyond the smallest study.

One fit of Cox's model to one such table, three columns, beside lifelines and statsmodels, each in
this process: medians of five, the same coefficients to 1e-6.

PENSTOCK_SITES says how many sites (10,100,1000). Of 1,000 the target is 300 s and 2,000 MB.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
import psutil
from lifelines import CoxPHFitter
from statsmodels.duration.hazard_regression import PHReg
from tests.studies.foreign_generators import FROZEN
from tests.studies.foreign_tables import Table, estimands
from tests.support import made
from tests.support.results import Row, write
from tests.support.weighed import MB

from penstock.enquiry.shorthand import read_question
from penstock.mechanisms import Structured
from penstock.mechanisms.protocol import Part
from penstock.mechanisms.released import name_copy
from penstock.questions.fits.partial_likelihood import fit_cox
from penstock.study.study import Study
from penstock.wire.manifest import sign_manifest
from penstock.wire.messages import SiteState
from penstock.wire.signatures import public_hex
from penstock.wire.signed import sign_study
from penstock_server.results.assembly import MODULE
from penstock_server.results.material import Material
from penstock_server.store.folder import table_path
from penstock_server.store.register import SiteRow

SITES = tuple(int(k) for k in os.environ.get("PENSTOCK_SITES", "10,100,1000").split(","))
ROWS, COPIES, POPULATION = 8000, 10, 200_000
MOST_SECONDS, MOST_MB, MANY = 300.0, 2000.0, 1000
ASKED = ("diabetes ~ bmi + age", "ldl ~ age + female", "survival(time, 1095)")
BESIDE = ("treated", "female", "age")


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds of the wall and of processors, and MB at most."""

    wall: float
    cpu: float
    peak: float


def run() -> Path:
    """Measure them all."""
    table = FROZEN["interactions"](POPULATION, np.random.default_rng(8))
    return write("pooling", [*_list_fits(table), *_list_studies(table)], (__doc__ or "").strip())


# -- one fit ---------------------------------------------------------------------------------------


def _list_fits(table: Table) -> Iterator[Row]:
    rows = table.take(np.arange(ROWS)).rows
    time_, event = rows["time"], rows["event"]
    x = np.column_stack([rows[name] for name in BESIDE])
    frame = pd.DataFrame({"time": time_, "event": event} | {n: rows[n] for n in BESIDE})

    def lifelines() -> list[float]:
        found = CoxPHFitter().fit(frame, "time", "event").params_
        return [float(found[name]) for name in BESIDE]

    def statsmodels() -> list[float]:
        return list(PHReg(time_, x, status=event, ties="efron").fit().params)

    own, ours = _take(lambda: list(fit_cox(time_, event, x).coefficients))
    yield Row("one Cox model of 8,000 rows (ms)", 1000 * own, None, 5)
    for name, peer in {"lifelines": lifelines, "statsmodels": statsmodels}.items():
        seconds, theirs = _take(peer)
        if not np.allclose(ours, theirs, rtol=0, atol=1e-6):
            raise AssertionError(f"{name}: {theirs}, and not {ours}")
        yield Row(f"one Cox model: {name}, times faster than it", seconds / own, None, 5)


def _take(fit: Callable[[], list[float]]) -> tuple[float, list[float]]:
    taken, found = [], fit()
    for _ in range(5):
        began = time.perf_counter()
        found = fit()
        taken.append(time.perf_counter() - began)
    return median(taken), found


# -- a study ---------------------------------------------------------------------------------------


def _list_studies(table: Table) -> Iterator[Row]:
    first: tuple[int, Taken] | None = None
    for sites in SITES:
        taken = _measure(table, sites)
        large = sites >= MANY
        target, most = (MOST_SECONDS, MOST_MB) if large else (None, None)
        yield _row(f"{sites} sites (s)", taken.wall, target)
        yield _row(f"{sites} sites: seconds of a core", taken.cpu, None)
        yield _row(f"{sites} sites: peak (MB)", taken.peak, most)
        if first is None:
            first = sites, taken
        else:
            more = (taken.wall - first[1].wall) / (sites - first[0])
            yield _row(f"{sites} sites: each more site (s)", more, None)


def _row(what: str, value: float, target: float | None) -> Row:
    return Row(what, value, None, 1, target, holds=None if target is None else value <= target)


def _measure(table: Table, sites: int) -> Taken:
    with tempfile.TemporaryDirectory(prefix="penstock-pooling-") as name:
        folder = Path(name)
        material = _make_uploads(table, sites, folder / "uploads")
        results = folder / "results"
        results.mkdir()
        began = time.perf_counter()
        process = psutil.Popen(
            [sys.executable, "-m", MODULE, str(results)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        process.stdin.write(material)
        process.stdin.close()
        cpu, peak = _watch(process)
        wall = time.perf_counter() - began
        report = json.loads((results / "report.json").read_text())
        if report["estimands"][0]["random"]["k"] != sites:
            raise AssertionError("not all sites are in the report")
        return Taken(wall, cpu, peak)


def _watch(process: psutil.Popen) -> tuple[float, float]:
    """Until it ends: seconds of processors and MB at most, of it and of what it started."""
    cpu: dict[int, float] = {}
    peak = 0.0
    while process.poll() is None:
        held = 0.0
        for one in [process, *_children(process)]:
            try:
                times, memory = one.cpu_times(), one.memory_full_info()
            except psutil.Error:
                continue
            cpu[one.pid] = times.user + times.system
            held += memory.pss
        peak = max(peak, held / MB)
        time.sleep(0.2)
    return sum(cpu.values()), peak


def _children(process: psutil.Popen) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = process.children(recursive=True)
    except psutil.Error:
        return []
    return found


def _make_uploads(table: Table, sites: int, folder: Path) -> bytes:
    """Every site's tables, and what a coordinator tells the process of them."""
    folder.mkdir()
    names = tuple(f"site{number:04d}" for number in range(sites))
    study, rng = _pose_study(table, names), np.random.default_rng(sites)
    signed = sign_study(study, made.KEY)
    parts = []
    for name in names:
        copies = [
            Part(name_copy(i + 1), table.take(rng.integers(0, table.n, ROWS)).rows)
            for i in range(COPIES)
        ]
        data = made.streams(study, copies, ROWS)
        table_path(folder, name).write_bytes(b"".join(data.values()))
        told = made.manifest(
            study, b"".join(data.values()), site=name, persons=ROWS, parts=made.list_parts(data)
        )
        manifest = sign_manifest(told, made.KEY)
        parts.append(
            SiteRow(signed.study_id, name, SiteState.DELIVERED, "", "", "r" * 64, 1, ROWS, manifest)
        )
    material = Material(
        study_id=signed.study_id,
        signed=signed,
        created="2026-11-20T08:00:00Z",
        finished="2026-11-21T10:12:00Z",
        parts=tuple(parts),
        keys=dict.fromkeys(names, public_hex(made.KEY)),
        uploads=folder,
    )
    return material.to_bytes()


def _pose_study(table: Table, names: tuple[str, ...]) -> Study:
    known = {
        "sites": names,
        "schema": table.suggested(),
    }
    settings = Structured(copies=COPIES, refits=0, planted=0)
    own = estimands(table, products=True)
    chosen = [own[0], own[1], own[4]]
    bare = made.study(settings, **known, estimands=tuple(chosen))
    for text in ASKED:
        chosen.append(replace(read_question(text, bare)[0], name=f"asked{len(chosen)}"))
    return made.study(settings, **known, estimands=tuple(chosen))
