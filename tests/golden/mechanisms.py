"""What every mechanism's study leaves behind, end to end: run, summarised, recorded, compared.

    python -m tests.golden.mechanisms              record tests/golden/data/mechanisms anew
    python -m tests.golden.mechanisms --compare    each upload's digest, and what is not as recorded
    python -m tests.golden.mechanisms --variants   how much the processor's kind changes

Recorded is what a change of the source's *order* must leave alone. Record anew only after a change
that is meant to change a release, an upload, the ledger or the report, and say so in the commit.
Between machines, numbers differ a little (:data:`DRIFT`); on one machine nothing does, and digests
taken before a change and after it are the same.

A site of its own for each study, since the first release of a seeded one ends its budget. Gates,
ledgers, sockets and the coordinator are the real ones, without Flower's transport; but gates,
workers and pooling are here in one process, for the time that starting them takes. (As processes
they are in tests/integration/test_mechanisms_end_to_end.py; what they left behind was the same.)
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.conftest import TestSite, World
from tests.support.here import GateHere
from tests.support.local import network

from penstock.mechanisms import (
    MECHANISMS,
    Gibbs,
    Maf,
    Scoring,
    Settings,
    SlicedWasserstein,
    Structured,
    Trajectory,
    labelled,
)
from penstock.mechanisms.parts import Part
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema, from_arrow
from penstock.study.study import Study
from penstock_client.ledger import decisions
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database
from penstock_server.install.enrolment import enrol_site
from penstock_server.install.founding import make_coordinator, open_coordinator
from penstock_server.results import production
from penstock_server.results.material import gather
from penstock_server.studies.coordinator import Coordinator
from penstock_server.transport.pump import keep_pumping

DATA = Path(__file__).parent / "data" / "mechanisms"
SEED, PERSONS = 7, 60
COLUMNS = (
    Column("visit", "integer", lower=0, upper=4, label="visit", unit="years"),
    Column("sbp", "continuous", lower=80, upper=220, decimals=0, unit="mmHg", label="pressure"),
    Column("chol", "continuous", lower=2, upper=12, decimals=1, nullable=True),
    Column("smoker", "binary", levels=("no", "yes")),
    Column("ward", "categorical", levels=("a", "b", "c")),
)
SLOPE = Estimand("slope", "ols", "sbp", "visit", adjust=("smoker",))
MEAN = Estimand("smokers", "mean", "smoker")
MEDIAN = Estimand("median", "quantile", "sbp", at=2, probability=0.5)
COURSE = Estimand("course", "mixed", "sbp", "visit")
OUTCOME = (Column("years", "duration", upper=10, decimals=1, event="died"), Column("died", "event"))
HAZARD = Estimand("hazard", "cox", "years", "smoker", adjust=("sbp",))

STUDIES: dict[str, Settings] = {
    "maf": Maf(copies=2, refits=2, steps=6, flows=2, hidden=(8,)),
    "sketch": SlicedWasserstein(copies=2, refits=2, steps=4, bases=2, bins=8, batch=30),
    "resampled": SlicedWasserstein("resampled", 2, 1, 4, bases=1, batch=30, step=0.1),
    "presampled": SlicedWasserstein("presampled", 2, 1, 4, bases=2),
    "structured": Structured(copies=2, refits=2, planted=0),
    "trajectory": Trajectory(
        "visit",
        copies=2,
        refits=1,
        particles=6,
        paths=5,
        path_times=9,
        steps=4,
        dependence="inferred",
    ),
    "visits": Trajectory("visit", copies=2, refits=1, particles=6, paths=5, path_times=9),
    "gibbs": Gibbs(),
    "chain": Gibbs(steps=60, ridge=5.0),
    "scoring": Scoring(),
}


def schema_of(name: str) -> Schema:
    """One row for each person where batches need it; else up to two. An outcome where there is a
    model of it."""
    columns = (*COLUMNS, *OUTCOME) if name in ("structured", "scoring") else COLUMNS
    if name == "visits":
        columns = tuple(replace(c, varies=c.name != "smoker") for c in COLUMNS)
    return Schema(columns, person="patient", max_rows_per_person=1 if name == "resampled" else 2)


def rows_of(name: str) -> str:
    """A file of rows, from whole numbers alone: the same on every machine."""
    more = [column.name for column in schema_of(name).columns[len(COLUMNS) :]]
    lines = [",".join(["patient", "visit", "sbp", "chol", "smoker", "ward", *more])]
    for person in range(PERSONS):
        # Squares modulo a prime: as good as random here, and no library's to change.
        draw = [(person * 37 + place * 101 + 11) ** 2 % 997 for place in range(8)]
        for row in range(1 + (draw[0] % 2 if schema_of(name).max_rows_per_person > 1 else 0)):
            visit, smoker = (draw[1] + row) % 5, draw[2] % 3 == 0
            pressure = 110 + 4 * visit + 9 * smoker + draw[3 + row] % 31
            chol = "" if draw[5] % 9 == 0 else f"{3 + draw[6] % 50 / 10:.1f}"
            ward = "abc"[draw[7] % 3]
            line = f"{person},{visit},{pressure},{chol},{'yes' if smoker else 'no'},{ward}"
            if more:
                died = draw[4] % (2 if smoker else 3) == 0
                line += f",{(1 + draw[6] % 99) / 10 if died else 10.0:.1f},{int(died)}"
            lines.append(line)
    return "\n".join(lines) + "\n"


def study_of(name: str, world: World) -> Study:
    """The question that is put to the site of this name."""
    mechanism = STUDIES[name]
    asked = {
        "structured": (HAZARD, MEAN),
        "scoring": (HAZARD, SLOPE),
        "visits": (SLOPE, MEAN, MEDIAN, COURSE),
    }.get(name, (SLOPE, MEAN))
    return world.study(
        name=name,
        schema=schema_of(name),
        estimands=(SLOPE,) if isinstance(mechanism, Gibbs) else asked,
        sites=(name,),
        mechanism=mechanism,
        privacy=PrivacyRequest(3.0, 1e-5),
    )


# -- running -----------------------------------------------------------------------------------


@dataclass
class Ran:
    """A study that was carried out: its site, and the coordinator that has its results."""

    name: str
    study: Study
    study_id: str
    site: TestSite
    coordinator: Coordinator

    @property
    def release(self) -> Path:
        """Where the site keeps what it released."""
        (folder,) = self.site.paths.releases.iterdir()
        return folder


@contextmanager
def carried_out(names: tuple[str, ...] = tuple(STUDIES)) -> Iterator[dict[str, Ran]]:
    """Every study, finished; the sites' gates have ended, and their files are there."""
    root = Path(tempfile.mkdtemp(prefix="pk-"))  # short, for the sake of sockets
    world, gates = World(root), list[GateHere]()
    try:
        make_coordinator(root / "hub", simulation=True)
        hub = open_coordinator(root / "hub")
        ran = {}
        for name in names:
            site = world.site(
                name,
                csv=rows_of(name),
                schema=schema_of(name),
                settings=f"insecure_seed = {SEED}\n",
                persons=PERSONS,
            )
            every = ", ".join(f'"{m}"' for m in MECHANISMS)
            policy = site.paths.policy.read_text()
            site.paths.policy.write_text(policy.replace('["maf"]', f"[{every}]"))
            enrol_site(hub, json.loads(site.paths.join.read_text()))
            gates.append(GateHere(site.paths))
            study = study_of(name, world)
            signed = world.signed(**{f: getattr(study, f) for f in study.__dataclass_fields__})
            ran[name] = Ran(name, study, hub.submit(signed), site, hub)
        finish(hub, {site.name: site.paths.gate_socket for site in world.sites})
        while gates:
            gates.pop().close()
        yield ran
        hub.store.close()
    finally:
        for gate in gates:
            gate.close()
        shutil.rmtree(root, ignore_errors=True)


def finish(hub: Coordinator, sockets: Mapping[str, Path]) -> None:
    """Pump until every study has its results."""
    limit = time.monotonic() + 250

    def ended() -> bool:
        assert time.monotonic() < limit, [hub.status(s.id) for s in hub.store.studies.all()]
        while (lease := hub.leases.claim()) is not None:
            row, folder = hub.store.studies.find(lease.study_id), hub.folder.results(lease.study_id)
            assert row is not None
            folder.mkdir(parents=True)
            production.build_results(gather(hub, row, lease.since), folder)
            assert hub.leases.finish(lease, lambda: None)
        return all(study.state.final for study in hub.store.studies.all())

    keep_pumping(hub, network(sockets), stop=ended)


# -- what is recorded --------------------------------------------------------------------------

_HEX = re.compile(r"[0-9a-f]{32,}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?Z?")
_MARK = re.compile(r"SHA256:[\w+/]{43}")


def mask(value: Any, *, of: tuple[str, ...] = (), keep: tuple[str, ...] = ()) -> Any:
    """The same with keys, hashes and times of this one run blotted out, each by its kind.

    Args:
        of: fields that are blotted out whatever they hold; keep: that stay as they are.
    """
    if isinstance(value, Mapping):
        return {
            k: f"<{k}>" if k in of else v if k in keep else mask(v, of=of, keep=keep)
            for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [mask(v, of=of, keep=keep) for v in value]
    if isinstance(value, str):
        for kind, pattern in (("time", _TIME), ("hex", _HEX), ("fingerprint", _MARK)):
            value = pattern.sub(f"<{kind}>", value)
    return value


def record(ran: Ran, out: Path) -> dict[str, Any]:
    """Everything that one study left behind; see the keys."""
    names = sorted(
        p.name for p in production.pull_results(ran.coordinator, ran.study_id, out, copies="refits")
    )
    manifest = json.loads((ran.release / "manifest.json").read_text())
    found = {
        "study": ran.study.to_dict(),
        "upload": table_record(read_release(ran.release / "table.arrow", ran.study), ran.study),
        "manifest": mask(manifest["manifest"], of=("software",)),
        "ledger": ledger_record(ran.site),
        "decisions": [
            # Who ran this, and files that hold this run's keys.
            mask(d, of=("by", "text"))
            for d in decisions.read_decisions(ran.site.paths)
        ],
        "report": mask(json.loads((out / "report.json").read_text())),
        "dictionary": mask(json.loads((out / "dictionary.json").read_text())),
        "exports": {n: export_record(out / n) for n in names if "report" not in n},
    }
    return json.loads(json.dumps(found))


def ledger_record(site: TestSite) -> list[dict[str, Any]]:
    """The bodies of a ledger's records."""
    database = Database(site.paths.database, read_only=True)
    try:
        bodies = [json.loads(body) for _, body, _, _ in Ledger(database, None).records()]
        # The digest of a study follows from it alone.
        return [mask(body, keep=("study_digest",)) for body in bodies]
    finally:
        database.close()


def read_release(path: Path, study: Study) -> pa.Table:
    """A release's parts, one after the other, under the labels of before wire 1.2."""
    shape = MECHANISMS.of(study.mechanism).shape(study.asked, PERSONS)

    def parts() -> Iterator[Part]:
        with pa.OSFile(str(path)) as source:
            for part in shape.parts:
                table = pa.ipc.open_stream(source).read_all()
                yield Part(part.name, from_arrow(table, part.schema))

    return pa.concat_tables(labelled.join_parts(shape, parts()))


def table_record(table: pa.Table, study: Study) -> dict[str, Any]:
    """Columns by name and type, and rows by copy; and what is in each column.

    Of tables, that is a summary for copies, refits, and what is neither; an answer is kept whole.
    """
    kinds = table.column("_copy").to_numpy()
    found: dict[str, Any] = {
        "columns": [f"{f.name}: {f.type}{'' if f.nullable else ' not null'}" for f in table.schema],
        "copies": {str(k): int((kinds == k).sum()) for k in np.unique(kinds)},
    }
    if isinstance(study.mechanism, Gibbs | Scoring):
        return found | {"answer": table.to_pydict()}
    labels = {"copies": kinds > 0, "refits": kinds < 0, "neither": kinds == 0}
    values = {
        label: {
            c.name: summary(table.filter(pa.array(chosen)).column(c.name), c)
            for c in study.schema.columns
        }
        for label, chosen in labels.items()
        if chosen.any()
    }
    return found | {"values": values}


def summary(values: pa.ChunkedArray, column: Column) -> dict[str, int]:
    """Counts that move by one at most where one value moves by one step of its column's grid.

    Of levels, how many of each. Of numbers, how many up to each eighth between the bounds; and how
    many steps they are, together, above the lower bound and away from the middle.
    """
    whole = values.drop_null()
    found = {"rows": len(values), "missing": values.null_count}
    if column.levels:
        labels = whole.to_pylist()
        return found | {level: labels.count(level) for level in column.levels}
    assert column.lower is not None
    assert column.upper is not None
    step, numbers = 10.0 ** -(column.decimals or 0), whole.to_numpy().astype(float)
    for point in np.linspace(column.lower, column.upper, 9)[1:-1].tolist():
        found[f"up to {point:g}"] = int((numbers <= point).sum())
    middle = (column.lower + column.upper) / 2
    sums = {"above": numbers - column.lower, "away": np.abs(numbers - middle)}
    return found | {name: round(float(s.sum()) / step) for name, s in sums.items()}


def export_record(path: Path) -> Any:
    """Column names and types of a table, of a text file the names; of JSON the keys."""
    if path.suffix == ".parquet":
        columns = [f"{f.name}: {f.type}" for f in pq.read_schema(path)]
        return {"columns": columns, "rows": pq.read_metadata(path).num_rows}
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            head, *rows = csv.reader(line for line in file if not line.startswith("#"))
        return {"columns": head, "rows": len(rows)}
    return {"keys": list(json.loads(path.read_text()))}


# -- comparing ---------------------------------------------------------------------------------

ROUNDING = 1e-9
"""Of prices, noise multipliers and all else that follows from public numbers: relative."""

DRIFT = {
    "upload.answer": 1e-6,
    "upload.values.refits": 50,
    "upload.values": 5,
    "report.estimands": 0.05,
    "report.trajectory.columns": 0.05,
    "report.trajectory.figures": 0.05,
    "report.baseline": 0.05,
    "report.survival": 0.05,
    "report.differences": 0.05,
}
"""Of numbers that follow from rows, by where they are: of counts and sums the difference; of others
relative to the larger, or to 1.

Kernels, BLAS and numpy's own loops differ in the last digits of a sum. What is released of a table
is on the grid of its column, so that such a digit shows only where a value lay between two points
of it; then a whole step shows. --variants measures it, on one machine: between AVX-512, AVX2, no
vectors, and torch in place of the kernel, tables and answers were the same to 1e-14, but for
``sketch``: three of 374 numbers, all of one refit, were a step apart (the BLAS for AVX2), and the
variance of two refits by 0.014. The bounds are some times that; more for refits, which begin from
the rows of a copy, each of which may have moved. One more step of ``sketch``'s flow, of all planted
changes the one that moves least, moves sums by more, and tests/golden/test_mechanisms.py sees to
that.
"""

_NUMBER = re.compile(r"[\u2212-]?\d+(\.\d+)?")


def differences(found: Any, recorded: Any, where: str = "") -> list[str]:
    """What is not as it was recorded: keys, names, texts, whole numbers, and numbers but for
    :data:`ROUNDING` and :data:`DRIFT`."""
    drift = next((bound for place, bound in DRIFT.items() if where.startswith(place)), None)
    if isinstance(found, Mapping) and isinstance(recorded, Mapping):
        if list(found) != list(recorded):
            return [f"{where}: {list(found)}, and not {list(recorded)}"]
        return [
            d
            for k in found
            for d in differences(found[k], recorded[k], f"{where}.{k}"[not where :])
        ]
    if isinstance(found, list) and isinstance(recorded, list) and len(found) == len(recorded):
        pairs = enumerate(zip(found, recorded, strict=True))
        return [d for i, pair in pairs for d in differences(*pair, f"{where}.{i}")]
    if where.startswith("upload.values") and isinstance(found, int) and drift is not None:
        same = abs(found - recorded) <= drift
    elif isinstance(found, float) and isinstance(recorded, float):
        same = (
            math.isclose(found, recorded, rel_tol=ROUNDING)
            if drift is None
            else math.isclose(found, recorded, rel_tol=drift, abs_tol=drift)
        )
    elif drift is not None and isinstance(found, str) and isinstance(recorded, str):
        # A sentence's numbers stand beside it as numbers.
        same = _NUMBER.sub("#", found) == _NUMBER.sub("#", recorded)
    else:
        same = type(found) is type(recorded) and found == recorded
    return [] if same else [f"{where}: {found!r}, and not {recorded!r}"]


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return found


VARIANTS = {
    "here": {},
    "AVX2": {
        "PENSTOCK_KERNEL": "avx2",
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL",
    },
    "none": {
        "PENSTOCK_KERNEL": "generic",
        "OPENBLAS_CORETYPE": "Prescott",
        "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL "
        "AVX512_ICL",
    },
    "torch": {"PENSTOCK_KERNEL": "off"},
}
"""Of the kernel, of BLAS and of numpy's loops: as this processor has them, and as older ones do."""


def write(folder: Path) -> None:
    """Carry all studies out, and write what each left behind."""
    folder.mkdir(parents=True, exist_ok=True)
    with carried_out() as ran, tempfile.TemporaryDirectory() as out:
        for name, one in ran.items():
            text = json.dumps(record(one, Path(out) / name), indent=1, ensure_ascii=False)
            (folder / f"{name}.json").write_text(text + "\n")
            digest = hashlib.sha256((one.release / "table.arrow").read_bytes()).hexdigest()
            sys.stdout.write(f"{digest} {name}\n")


def largest(found: Any, other: Any, where: str = "") -> Iterator[tuple[float, str]]:
    """How far numbers are apart, as :func:`differences` measures it, and where."""
    if isinstance(found, Mapping):
        for key in found:
            yield from largest(found[key], other[key], f"{where}.{key}"[not where :])
    elif isinstance(found, list):
        for place, pair in enumerate(zip(found, other, strict=True)):
            yield from largest(*pair, f"{where}.{place}")
    elif isinstance(found, int | float) and not isinstance(found, bool):
        yield abs(found - other) / max(1.0, abs(found), abs(other)), where


def compare_variants(folder: Path) -> None:
    """Carry all studies out as on other processors; say how far each is from the first."""
    for variant, environment in VARIANTS.items():
        command = [sys.executable, "-m", "tests.golden.mechanisms", "--to", str(folder / variant)]
        subprocess.run(command, env={**os.environ, **environment}, check=True)
        for name in STUDIES:
            one, first = (
                json.loads((folder / v / f"{name}.json").read_text())
                for v in (variant, next(iter(VARIANTS)))
            )
            apart = sorted(largest(one, first), reverse=True)[:3]
            sys.stdout.write(f"{variant} {name}: {apart}\n")


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        if arguments == ["--variants"]:
            compare_variants(Path(folder))
        elif arguments == ["--compare"]:
            write(Path(folder))
            found = {n: json.loads((Path(folder) / f"{n}.json").read_text()) for n in STUDIES}
            lines = [f"{n}: {d}\n" for n in STUDIES for d in differences(found[n], recorded(n))]
            sys.stdout.write("".join(lines))
            return bool(lines)
        else:
            write(Path(arguments[1]) if arguments[:1] == ["--to"] else DATA)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
