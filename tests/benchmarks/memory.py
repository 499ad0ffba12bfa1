"""Peak memory of a site's worker, mechanism by mechanism, beside software that does part of it.

Each in a process of its own, on one thread of a CPU: MB of resident memory at most (the kernel's
own count, the whole process with its imports), on simulated rows of 20 columns at n = 450, 5 000
and 50 000 persons (`trajectory`: a third as many persons of three visits each). Workers are the
real ones, started as a gate starts them, with the mechanisms' defaults but for what a peak does not
depend on: one copy and one refit, few steps of `maf` and `trajectory`. The target is 400 MB at
n = 5 000, and everywhere the bound that is planned from public numbers, which has to lie above the
peak: it counts what a limit on data counts (`RLIMIT_DATA`), libraries' reserves among it. *Attack*
is the process of `preview --attack`, at one w and with `--sweep-w`.

Peers do less: no margins, no accounting, no refits, no tables; they stand for what the same
arithmetic takes elsewhere.

- `maf`: Opacus, DP-SGD of the same flow in full batches, its ghost and hooks modes, three steps.
- `sliced-wasserstein`: POT's sliced distance, whose gradient moves n particles towards n rows along
  512 projections, as in its gallery's flow; three steps, without privacy.
- `trajectory`: POT's `sinkhorn` between 50 particles at 5 times and all rows of each time, on numpy
  and without torch, which a worker of ours loads (160 MB of its peak): one coupling after the other
  is all that it does.
- `gibbs`: lifelines' Cox regression of the same table, without privacy.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
from tests.studies.particle_plots import LINES, RULE
from tests.support.results import RESULTS, Row, write
from tests.support.weighed import (
    MB,
    MECHANISMS,
    asked,
    foreseen,
    foreseen_of_attack,
    resident,
    schema,
    weigh,
    weigh_attack,
)

from penstock_client.rows.snapshot import load_rows
from penstock_client.work.rehearsal import synthetic_rows

SIZES = (450, 5000, 50_000)
COLUMNS, VISITS = 20, 3
MOST_MB = 400.0
MOST_SWEPT = 5000
OURS, BOUND = "a worker", "planned"
ROOT = Path(__file__).parent.parent.parent

SHORT: dict[str, dict[str, object]] = {
    "maf": {"copies": 1, "refits": 1, "steps": 3},
    "sliced-wasserstein": {"copies": 1, "refits": 1},
    "trajectory": {"copies": 1, "refits": 1, "steps": 4},
    "gibbs": {},
    "structured": {"copies": 1, "refits": 1, "planted": 0},
    "scoring": {},
}


def run() -> Path:
    """Weigh them all."""
    found = {(name, n): _weighed(name, n) for name in MECHANISMS for n in SIZES}
    rows = [row for (name, n), peaks in found.items() for row in _rows(name, n, peaks)]
    rows += [row for n in SIZES for swept in (False, True) for row in _attack_rows(n, swept)]
    packages = ("opacus", "pot", "lifelines", "torch", "numpy")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    _picture(found, RESULTS / "memory.png")
    note = f"{(__doc__ or '').strip()}\n\n{versions}.\n\n![Peak memory by persons](memory.png)"
    return write("memory", rows, note)


def _weighed(name: str, n: int) -> dict[str, float]:
    """MB: the peak of ours, the bound that was planned for it, and the peaks of peers."""
    persons = n // VISITS if name == "trajectory" else n
    mechanism = replace(MECHANISMS[name](), **SHORT[name])
    study = asked(mechanism, schema(COLUMNS, visits=name == "trajectory"))
    planned, peak = foreseen(study, persons).total / MB, weigh(study, persons).peak
    return {OURS: peak, BOUND: planned, **{peer: _peak_of(peer, n) for peer in PEERS[name]}}


def _rows(name: str, n: int, peaks: dict[str, float]) -> list[Row]:
    what, peak, planned = f"{name}, n = {n}", peaks[OURS], peaks[BOUND]
    holds = peak <= planned
    planning = f"{what}: peak, of what is planned (MB)"
    found = [Row(planning, peak, None, 1, target=planned, holds=holds)]
    if n == 5000:
        holds = peak <= MOST_MB
        found.append(Row(f"{what}: peak (MB)", peak, None, 1, target=MOST_MB, holds=holds))
    for peer in PEERS[name]:
        found.append(Row(f"{what}, and of {peer} (MB)", peak, None, 1, peer=peaks[peer]))
    return found


def _attack_rows(n: int, swept: bool) -> list[Row]:
    if swept and n > MOST_SWEPT:
        return []  # the same memory, and a quarter of an hour
    study = asked(replace(MECHANISMS["maf"](), **SHORT["maf"]), schema(COLUMNS))
    planned, peak = foreseen_of_attack(study, n).total / MB, weigh_attack(study, n, swept=swept)
    what = f"attack on maf{', swept' if swept else ''}, n = {n}: peak, of what is planned (MB)"
    return [Row(what, peak, None, 1, target=planned, holds=peak <= planned)]


def _picture(found: Mapping[tuple[str, int], Mapping[str, float]], path: Path) -> None:
    """Peaks by persons, one panel a mechanism: ours and what is planned, and those of peers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14.4, 3.2), layout="constrained", facecolor="white")
    for axes, name in zip(
        figure.subplots(1, len(MECHANISMS), sharey=True), MECHANISMS, strict=True
    ):
        for label, style in zip((OURS, BOUND, *PEERS[name]), LINES, strict=False):
            values = [found[name, n][label] for n in SIZES]
            axes.plot(SIZES, values, label=label, markersize=4, linewidth=1.5, **style)
        axes.set(xscale="log", yscale="log", xlabel="n", title=name)
        axes.legend(frameon=False, fontsize=7)
        axes.grid(visible=True, which="major", color=RULE, linewidth=0.6)
    figure.axes[0].set_ylabel("MB")
    figure.savefig(path, dpi=150)


def _peak_of(peer: str, n: int) -> float:
    """MB, from a fresh process; NaN where it does not end well."""
    command = [sys.executable, "-m", "tests.benchmarks.memory", peer, str(n)]
    made = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return float(made.stdout) if made.returncode == 0 else float("nan")


def _opacus(mode: str) -> Callable[[int], object]:
    def work(n: int) -> object:
        from tests.benchmarks import flow
        from tests.benchmarks.peers import OpacusFit

        flow.threads(1)
        return OpacusFit(flow.data(n, COLUMNS), mode, None).steps(3)

    return work


def _pot_flow(n: int) -> object:
    import ot
    import torch

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    rows = torch.as_tensor(rng.standard_normal((n, COLUMNS)), dtype=torch.float32)
    x = torch.randn(n, COLUMNS, requires_grad=True)
    for seed in range(3):
        distance = ot.sliced_wasserstein_distance(x, rows, n_projections=512, seed=seed)
        (slope,) = torch.autograd.grad(distance, x)
        x = (x - slope).detach().requires_grad_()
    return x


def _pot_sinkhorn(n: int) -> object:
    os.environ["POT_BACKEND_DISABLE_PYTORCH"] = "1"  # it is loaded wherever it is installed
    import ot

    rng = np.random.default_rng(0)
    for _ in range(5):
        x, y = rng.standard_normal((50, COLUMNS)), rng.standard_normal((n // 5, COLUMNS))
        cost = ot.dist(x, y) / 2
        ot.sinkhorn(np.full(50, 1 / 50), np.full(len(y), 1 / len(y)), cost, 5.0, numItermax=60)
    return None


def _lifelines(n: int) -> object:
    from lifelines import CoxPHFitter
    from pandas import DataFrame

    coded, _ = load_rows(synthetic_rows(schema(COLUMNS), n, 1))
    return CoxPHFitter(penalizer=0.01).fit(DataFrame(coded).dropna(), "t", "e")


PEERS: dict[str, dict[str, Callable[[int], object]]] = {
    "maf": {"Opacus, ghost": _opacus("ghost"), "Opacus, hooks": _opacus("hooks")},
    "sliced-wasserstein": {"POT": _pot_flow},
    "trajectory": {"POT, sinkhorn": _pot_sinkhorn},
    "gibbs": {"lifelines": _lifelines},
    "structured": {},
    "scoring": {},
}

if __name__ == "__main__":
    works = {name: work for peers in PEERS.values() for name, work in peers.items()}
    works[sys.argv[1]](int(sys.argv[2]))
    sys.stdout.write(f"{resident('self', 'VmHWM'):.1f}\n")
