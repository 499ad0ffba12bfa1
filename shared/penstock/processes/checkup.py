"""What a doctor looks at on either side: this machine. The way to the coordinator is in ``reach``.

Every check answers with rows: what was looked at, whether it is well, what was found, and one
sentence on what to do. A check never raises for something that is wrong out there.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from penstock.base.errors import InvalidInput, PenstockError
from penstock.base.printable import make_printable

OK, WARN, FAIL = "ok", "warn", "fail"
EXIT_WELL, EXIT_FAILED = 0, 10
CHECK_SECONDS = 30.0
DEVICE_SECONDS = 25.0
GIB = 2**30
DISK_FAIL, DISK_WARN = 1 * GIB, 5 * GIB
FLWR, TORCH = "1.41", "2.4"

_PROBE = """
import json, torch
found = torch.cuda.is_available()
name = torch.cuda.get_device_name(0) if found else ""
print(json.dumps([torch.__version__, torch.version.cuda or "", name]))
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One finding.

    Attributes:
        state: ``ok``, ``warn`` (works, or will only for a while) or ``fail``.
        remedy: what to do, in one sentence; empty when all is well.
    """

    check: str
    state: str
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.state not in (OK, WARN, FAIL):
            raise ValueError(f"no such state: {self.state}")


Check = Callable[[], "Row | Sequence[Row]"]


def run(checks: Sequence[tuple[str, Check]], *, seconds: float = CHECK_SECONDS) -> list[Row]:
    """Do named checks at the same time; their rows, in the order of the checks.

    One that takes longer than ``seconds`` is left behind, and one that raises is a failed row.
    """
    results: list[list[Row] | None] = [None] * len(checks)

    def work(index: int, name: str, check: Check) -> None:
        try:
            found = check()
            results[index] = [found] if isinstance(found, Row) else list(found)
        except (PenstockError, OSError) as error:
            results[index] = [report_trouble(name, error)]
        except Exception as error:  # an error of ours must not hide what the others found
            what = f"the check itself failed ({type(error).__name__})"
            results[index] = [Row(name, FAIL, what, "Please report this.")]

    # Daemons: a name server that never answers must not keep the command from ending.
    threads = [
        threading.Thread(target=work, args=(i, *named), daemon=True)
        for i, named in enumerate(checks)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    rows: list[Row] = []
    for thread, (name, _), index in zip(threads, checks, range(len(checks)), strict=True):
        thread.join(max(0.0, deadline - time.monotonic()))
        found = results[index]
        remedy = "Try again, and report it if it stays so."
        late = Row(name, FAIL, f"no answer in {seconds:g} s", remedy)
        rows += found if found is not None else [late]
    return rows


def report_trouble(name: str, error: PenstockError | OSError) -> Row:
    """The row for an error that was raised on purpose, or by the operating system."""
    if isinstance(error, OSError):
        where = f": {os.fsdecode(error.filename)}" if error.filename is not None else ""
        found = f"{error.strerror or type(error).__name__}{where}"
        return Row(name, FAIL, found, "Correct this, and run doctor again.")
    if isinstance(error, InvalidInput):
        remedies = [p.remedy for p in error.problems if p.remedy]
        found = "; ".join([error.what, *(str(p).split("\n")[0] for p in error.problems[:3])])
        return Row(name, FAIL, found, remedies[0] if remedies else "Correct the file.")
    text, remedy = str(error), error.remedy or "Correct this, and run doctor again."
    return Row(name, FAIL, text.removesuffix(f": {error.remedy}"), remedy)


def show(rows: Iterable[Row], as_json: bool) -> int:
    """Print rows; the exit code: 0, or 10 when a row failed."""
    found = list(rows)
    if as_json:
        text = json.dumps([asdict(row) for row in found], indent=2, ensure_ascii=False)
    else:
        marks = {OK: "✓", WARN: "!", FAIL: "✗"}
        width = max((len(row.check) for row in found), default=0)
        lines: list[str] = []
        for row in found:
            lines.append(f"{marks[row.state]} {row.check:{width}}  {_plain(row.found)}")
            if row.remedy and row.state != OK:
                lines.append(f"  {'':{width}}  → {_plain(row.remedy)}")
        failed = sum(row.state == FAIL for row in found)
        warned = sum(row.state == WARN for row in found)
        lines.append(f"{len(found)} checks: {failed} failed, {warned} to look at")
        text = "\n".join(lines)
    sys.stdout.write(text + "\n")
    return EXIT_FAILED if any(row.state == FAIL for row in found) else EXIT_WELL


def _plain(text: str) -> str:
    # Certificates and proxies are others' texts: nothing of them steers the terminal.
    return make_printable(text)


def check_versions(*, torch: bool) -> list[Row]:
    """Python's and the packages' versions; Flower's must be the one that we speak to.

    Args:
        torch: whether it is needed here.
    """
    extra = "site" if torch else "server"
    own = _check_package("penstock", "0", exact=False, extra=extra)
    rows = [Row("python", OK, platform.python_version()), own]
    rows.append(_check_package("flwr", FLWR, exact=True, extra=extra))
    if torch:
        rows.append(_check_package("torch", TORCH, exact=False, extra=extra))
    return rows


def _check_package(name: str, wanted: str, *, exact: bool, extra: str) -> Row:
    remedy = f"Install it with pip install 'penstock[{extra}]'."
    try:
        found = version(name)
    except PackageNotFoundError:
        return Row(name, FAIL, "is not installed", remedy)
    have, need = _read_numbers(found), _read_numbers(wanted)
    good = have[: len(need)] == need if exact else have >= need
    bound = f"{wanted}.x" if exact else f"{wanted} or later"
    return Row(name, OK, found) if good else Row(name, FAIL, f"{found}, needs {bound}", remedy)


def _read_numbers(text: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(n) for n in found[0].split(".")) if found else ()


def check_disk(path: Path) -> Row:
    """Free space where a directory lies, for those who are not root."""
    there = next(p for p in (path, *path.resolve().parents) if p.exists())
    free = _count_free_bytes(there)
    found = f"{free / GIB:.1f} GiB free at {path}"
    remedy = "Free some space: without it the ledger and the store cannot be written."
    state = FAIL if free < DISK_FAIL else WARN if free < DISK_WARN else OK
    if not os.access(there, os.W_OK):
        return Row("disk", FAIL, f"{path} cannot be written", "Run this as the directory's owner.")
    return Row("disk", state, found, "" if state == OK else remedy)


def _count_free_bytes(path: Path) -> int:
    return shutil.disk_usage(path).free


def check_modes(paths: Iterable[Path]) -> list[Row]:
    """Whether keys and directories are closed to others, and belong to who runs this.

    What is not there is passed over. One row when all is well, else one per path.
    """
    rows: list[Row] = []
    seen = 0
    for path in paths:
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        seen += 1
        mode, wanted = status.st_mode & 0o777, 0o700 if path.is_dir() else 0o600
        if mode & 0o077:
            found = f"{path} is open to others ({mode:04o})"
            rows.append(Row("modes", FAIL, found, f"Run chmod {wanted:o} {path}"))
        elif status.st_uid != os.geteuid():
            found = f"{path} belongs to user {status.st_uid}"
            rows.append(Row("modes", WARN, found, "Run this as the user who runs Penstock."))
    return rows or [Row("modes", OK, f"{seen} keys and directories closed to others")]


def check_device(wanted: str = "auto") -> list[Row]:
    """What torch would train on, asked in a process of its own: a broken driver may crash it.

    Args:
        wanted: ``cpu``, ``cuda`` or ``auto``, as in site.toml.
    """
    command = [sys.executable, "-c", _PROBE]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    remedy = 'Reinstall torch, or set device = "cpu" in site.toml.'
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env=environment,
            timeout=DEVICE_SECONDS,
            check=True,
        )
        _, cuda, name = json.loads(answer.stdout)
    except subprocess.TimeoutExpired:
        return [Row("device", WARN, f"torch took over {DEVICE_SECONDS:g} s to start", "Try again.")]
    except (subprocess.CalledProcessError, ValueError):
        return [Row("device", FAIL, "torch does not start", remedy)]
    if name and wanted != "cpu":
        return [Row("device", OK, f"{name}, by CUDA {cuda}")]
    if wanted == "cuda":
        why = "no GPU can be used" if cuda else "this torch was built without CUDA"
        return [Row("device", FAIL, why, remedy)]
    if wanted == "auto" and Path("/dev/nvidia0").exists():
        what = "cpu, though there is a GPU"
        return [Row("device", WARN, what, "Install torch with CUDA and the GPU's driver.")]
    from penstock.mechanisms.flow import kernel

    if kernel.available():
        return [Row("device", OK, "cpu, by the compiled kernel")]
    remedy = "Flows are many times slower so; see docs/engine.md."
    return [Row("device", WARN, f"cpu, by torch: {kernel.why_not()}", remedy)]
