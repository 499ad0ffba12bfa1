"""The rows that `make bench` and `make reproduce` write: measured beside claimed."""

from __future__ import annotations

import json
import math
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

RESULTS = Path(__file__).parent.parent / "results"
PACKAGES = (
    *("penstock", "numpy", "torch", "autodp", "dp-accounting", "statsmodels"),
    *("zuko", "nflows", "opacus", "opendp", "pot", "scikit-learn"),
    *("flwr", "grpcio", "httpx", "uvicorn", "sqlalchemy", "pyarrow"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    ``ours`` with its standard error ``se`` over ``n_runs``, or, where it is a median, with its
    ``quartiles``; ``target`` is what was to be reached,
    ``peer`` what somebody else's software gave in the same run, ``paper`` what a paper printed.
    ``holds`` says whether the target is met within two standard errors; None without a target.
    ``commit`` is where it was measured, if not where the record was written.
    """

    what: str
    ours: float | None
    se: float | None
    n_runs: int
    target: float | None = None
    peer: float | None = None
    paper: float | None = None
    holds: bool | None = None
    quartiles: tuple[float, float] | None = None
    commit: str = ""


def at_most(
    what: str,
    values: Sequence[float],
    *,
    target: float | None = None,
    peer: float | None = None,
    paper: float | None = None,
) -> Row:
    """A row for the mean of ``values`` that is meant to be at most ``target``."""
    n = len(values)
    mean = math.fsum(values) / n
    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1)) if n > 1 else None
    se = None if spread is None else spread / math.sqrt(n)
    holds = None if target is None else mean <= target + 2 * (se or 0.0)
    return Row(what, mean, se, n, target, peer, paper, holds)


def write(name: str, rows: Sequence[Row], note: str) -> Path:
    """``tests/results/<name>.json`` and the same as ``.md``."""
    RESULTS.mkdir(exist_ok=True)
    record = {
        "name": name,
        "note": note,
        "commit": _commit(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "versions": _versions(),
        "rows": [asdict(r) for r in rows],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    path = RESULTS / f"{name}.md"
    path.write_text(_markdown(record, rows))
    return path


def read_rows(name: str) -> list[Row]:
    """What was written last, each row with the commit where it was measured."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return []
    record = json.loads(path.read_text())
    return [
        Row(**{**row, "commit": row.get("commit") or record["commit"]}) for row in record["rows"]
    ]


def run_named(known: Mapping[str, str], arguments: Sequence[str]) -> int:
    """Runs the module of the name given and prints what it wrote; the exit status."""
    name = arguments[0] if arguments else ""
    if name not in known:
        names = ", ".join(known)
        sys.stderr.write(f"error: NAME={name or '(none)'} is not known; use one of: {names}\n")
        return 2
    path: Path = import_module(known[name]).run()
    sys.stdout.write(path.read_text())
    return 0


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    shown = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return shown.stdout.strip() or "unknown"


def _markdown(record: dict[str, object], rows: Sequence[Row]) -> str:
    spread = "quartiles" if any(r.quartiles for r in rows) else "s.e."
    lines = [
        f"# {record['name']}",
        "",
        str(record["note"]),
        "",
        f"| what | ours | {spread} | target | peer | paper | holds | runs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        holds = {None: "", True: "yes", False: "**no**"}[r.holds]
        shown = _short(r.se) if r.quartiles is None else " – ".join(map(_short, r.quartiles))
        at = f" ({r.commit})" if r.commit else ""
        cells = [_short(r.ours), shown, *(_short(v) for v in (r.target, r.peer, r.paper))]
        lines.append(f"| {r.what} | {' | '.join(cells)} | {holds} | {r.n_runs}{at} |")
    lines += ["", f"Commit {record['commit']}, Python {record['python']}, {record['machine']}."]
    return "\n".join(lines) + "\n"


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
