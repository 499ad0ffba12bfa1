"""A quick look at `structured` on what it may be tuned on: a line for each table.

    python -m tests.studies.foreign_tuning --eps 3 --seeds 4 [--only t-weibull,gbsg2] [--n 3000]

All errors in real standard errors. Declared coefficients: rms over coefficients and seeds, the
largest |bias|, the share above 3; rms of the undeclared main effects; the largest |bias| of
Kaplan-Meier at five times (of other outcomes, of the mean); slopes of interactions, declared or (in
brackets) not. Tables of scikit-learn need PYTHONPATH=.bench/foreign (`make .bench/foreign/.ready`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np
from tests.studies.foreign_cells import TUNED_ON, Cell, answer, table_of
from tests.studies.foreign_generators import TUNING
from tests.studies.foreign_measures import Answer, errors_of, names_of, slope_of
from tests.studies.foreign_real import read_table
from tests.studies.lni import over_runs


def look(cells: Sequence[Cell], seeds: int) -> None:
    """Measure and print."""
    jobs = [(cell, seed) for cell in cells for seed in range(seeds)]
    found: dict[Cell, list[Answer]] = {}
    for (cell, _), got in zip(jobs, over_runs(answer, jobs, "tuning"), strict=True):
        found.setdefault(cell, []).append(got)
    head = f"{'table':22}{'ε':>3}{'events':>7}{'rms':>6}{'bias':>6}{'>3':>5}{'other':>6}{'KM':>6}"
    sys.stdout.write(f"{head}{'CPU':>6}  mean (rms) of each; slopes\n")
    for cell, answers in found.items():
        sys.stdout.write(_line(cell, answers) + "\n")
    everything = [one for answers in found.values() for one in answers]
    declared = np.concatenate(
        [errors_of(everything, "declared", key) for key in names_of(everything, "declared")]
    )
    sys.stdout.write(
        f"all: rms {np.sqrt(np.mean(declared**2)):.2f}, above 3 {np.mean(np.abs(declared) > 3):.3f}"
        f", CPU {np.mean([one['seconds'] for one in everything]):.2f} s a release\n"
    )


def _line(cell: Cell, answers: Sequence[Answer]) -> str:
    def each(kind: str) -> dict[str, np.ndarray]:
        return {name: errors_of(answers, kind, name) for name in names_of(answers, kind)}

    def rms(errors: np.ndarray) -> float:
        return float(np.sqrt(np.mean(errors**2))) if len(errors) else 0.0

    declared, other = each("declared"), each("undeclared")
    curve = each("survival") or each("mean")
    whole = np.concatenate(list(declared.values()))
    about = [f"{k} {v.mean():+.1f} ({rms(v):.1f})" for k, v in declared.items()]
    for name in names_of(answers, "real"):
        slope = slope_of(answers, name)
        about.append(
            f"{name} ×{slope:.2f}" if name in cell_products(cell) else f"[{name} ×{slope:.2f}]"
        )
    figures = (
        f"{np.mean([one['deaths'] for one in answers]):7.0f}{rms(whole):6.2f}"
        f"{max(abs(v.mean()) for v in declared.values()):6.2f}{np.mean(np.abs(whole) > 3):5.2f}"
        f"{rms(np.concatenate(list(other.values()))) if other else 0.0:6.2f}"
        f"{max(abs(v.mean()) for v in curve.values()):6.2f}"
        f"{np.mean([one['seconds'] for one in answers]):6.2f}"
    )
    name = f"{cell.table}{f' {cell.n}' if cell.n else ''}{' plain' if cell.plain else ''}"
    return f"{name:22}{cell.epsilon:3g}{figures}  {', '.join(about)}"


def cell_products(cell: Cell) -> tuple[str, ...]:
    """Declared interactions of a cell's table."""
    return table_of(Cell(cell.table, min(cell.n, 50), 1.0, ""), 0).products


def main(arguments: Sequence[str]) -> int:
    """From a shell."""
    parser = argparse.ArgumentParser(prog="python -m tests.studies.foreign_tuning")
    parser.add_argument("--eps", type=float, nargs="+", default=[3.0])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--n", type=int, nargs="+", default=[3000], help="of the generators")
    parser.add_argument("--arm", default="structured")
    parser.add_argument("--plain", action="store_true", help="without what is suggested")
    parser.add_argument("--only", default="", help="names, with commas between")
    asked = parser.parse_args(arguments)
    known = [*TUNING, *(name for name in TUNED_ON if read_table(name) is not None)]
    chosen = [name for name in asked.only.split(",") if name] or known
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"not for tuning: {', '.join(unknown)}; there are {', '.join(known)}")
    cells = [
        Cell(name, n, epsilon, asked.arm, asked.plain)
        for epsilon in asked.eps
        for name in chosen
        for n in (asked.n if name in TUNING else [0])
    ]
    look(cells, asked.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
