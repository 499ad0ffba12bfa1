"""Releases of formal tables: CPU seconds and peak memory, mechanism by mechanism, beside MST.

One table that is not the package's own: the `weibull` generator of the study of foreign tables,
widened to 12 columns by two that are drawn anew, at n = 3 000 and 100 000 persons, ε = 3, with that
study's estimands. Each release in a process of its own, on one thread of a CPU: CPU seconds (user
and system), so that what else a machine does hardly counts, and the kernel's own count of resident
memory at most. *The release* is from encoded rows to the last table; *the process* is with its
imports and the making of the table. Medians.

- **10 copies**: no refits, which no peer has. MST is smartnoise-synth's, as the study of foreign
  tables sets it, in an environment of its own; its process fits once and draws as many rows.
- **10 copies and refits**: as many refits as each mechanism makes by itself. At n = 100 000 this is
  measured of `structured` alone: the others take hours.

A row that names a mechanism has `structured` as ours and that mechanism as the peer; *times faster*
is the ratio.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
from tests.studies.foreign_generators import FROZEN
from tests.studies.foreign_peers import SMARTNOISE, can_run_smartnoise, smartnoise
from tests.studies.foreign_tables import Table, can_declare_products, estimands
from tests.support.carried_out import release
from tests.support.results import Row, write
from tests.support.weighed import MB, MECHANISMS, resident

from penstock.mechanisms.plans import plan
from penstock.privacy.noise.sources import SecureNoise
from penstock.privacy.request import PrivacyRequest
from penstock.schema.encoding import Encoding

SIZES, COLUMNS, COPIES, EPSILON = (3000, 100_000), 12, 10, 3.0
MOST_SECONDS, MOST_MB = {3000: 2.0, 100_000: 60.0}, 600.0
OURS, PEER, OTHERS = "structured", "mst", ("maf", "sliced-wasserstein")
REPEATS = 3
ROOT = Path(__file__).parent.parent.parent
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True)
class Taken:
    """CPU seconds of a release, and of its process; and MB of that at most."""

    release: float
    process: float
    peak: float


def run() -> Path:
    """Measure them all."""
    rows = [row for n in SIZES for row in (*_alone(n), *_refitted(n))]
    return write("tables", rows, (__doc__ or "").strip())


def _alone(n: int) -> Iterator[Row]:
    own = _measure(OURS, n, 0, REPEATS)
    what = f"n = {n}, {COPIES} copies"
    yield _row(f"{what}: the release (s)", own.release, REPEATS)
    for name in (*OTHERS, PEER):
        if name == PEER and not can_run_smartnoise():
            yield Row(f"{name}: {what}: {SMARTNOISE} is not there", None, None, 0)
            continue
        yield from _compare(f"{name}: {what}", own, _measure(name, n, 0, 1))


def _refitted(n: int) -> Iterator[Row]:
    refits = {name: MECHANISMS[name]().refits for name in (OURS, *OTHERS)}  # type: ignore[union-attr]
    own = _measure(OURS, n, refits[OURS], REPEATS)
    what = f"n = {n}, {COPIES} copies and {refits[OURS]} refits"
    yield _row(f"{what}: the release (s)", own.release, REPEATS, MOST_SECONDS[n])
    yield _row(f"{what}: peak (MB)", own.peak, REPEATS, MOST_MB)
    for name in OTHERS if n == min(SIZES) else ():
        other = f"{name} with {refits[name]}: {what}"
        yield from _compare(other, own, _measure(name, n, refits[name], 1))


def _compare(what: str, own: Taken, other: Taken) -> Iterator[Row]:
    yield Row(f"{what}, the process (s)", own.process, None, 1, peer=other.process)
    yield Row(f"{what}, times faster", other.process / own.process, None, 1)
    yield Row(f"{what}, peak (MB)", own.peak, None, 1, peer=other.peak)


def _row(what: str, value: float, runs: int, target: float | None = None) -> Row:
    holds = None if target is None else value <= target
    return Row(what, value, None, runs, target=target, holds=holds)


def _measure(name: str, n: int, refits: int, repeats: int) -> Taken:
    """Medians over processes."""
    command = [sys.executable, "-m", "tests.benchmarks.tables", name, str(n), str(refits)]
    found = []
    for _ in range(repeats):
        made = subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=ROOT, env=os.environ | THREADS
        )
        found.append(Taken(**json.loads(made.stdout)))
    return Taken(
        median(t.release for t in found),
        median(t.process for t in found),
        median(t.peak for t in found),
    )


def make_table(n: int) -> Table:
    """The table: two columns more, as others are but independent of all."""
    rng = np.random.default_rng(n)
    table = FROZEN["weibull"](n, rng)
    rows, columns = dict(table.rows), list(table.schema.columns)
    for name in ("age", "sex")[: COLUMNS - len(columns)]:
        columns.append(replace(table.schema[name], name=f"another_{name}"))
        rows[f"another_{name}"] = rng.permutation(rows[name])
    return replace(table, rows=rows, schema=replace(table.schema, columns=tuple(columns)))


def release_table(name: str, n: int, refits: int) -> Taken:
    """One release, in this process; of MST in one of its own."""
    table, privacy = make_table(n), PrivacyRequest(EPSILON, min(1e-5, 1 / (10 * n)))
    schema = table.suggested()
    if name == PEER:
        smartnoise(name, table.rows, schema, privacy, COPIES, 0, alone=True)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = used.ru_utime + used.ru_stime
        return Taken(seconds, seconds, used.ru_maxrss * 1024 / MB)
    settings = replace(MECHANISMS[name](), copies=COPIES, refits=refits)  # type: ignore[call-arg]
    if name == OURS:
        settings = replace(settings, planted=0)  # type: ignore[call-arg]
    asked = estimands(table, products=name == OURS and can_declare_products())
    planned, encoding = plan(settings, schema, n, privacy, asked), Encoding(schema)
    x, there = encoding.encode(table.rows, np.random.default_rng(0))
    began = time.process_time()
    for _ in release(settings, planned, encoding, x[:, None], there[:, None], SecureNoise()):
        pass
    ended = time.process_time()
    return Taken(ended - began, ended, resident("self", "VmHWM"))


if __name__ == "__main__":
    arm, persons, refitted = sys.argv[1:]
    taken = release_table(arm, int(persons), int(refitted))
    sys.stdout.write(json.dumps({k: getattr(taken, k) for k in Taken.__slots__}))
