"""Peak memory of a site's worker, mechanism by mechanism, beside software that does part of it.

Each in a process of its own, on one thread of a CPU: MB of resident memory at most (the kernel's
own count, the whole process with its imports), on simulated rows of 20 columns at n = 450, 5 000
and 50 000 persons (`trajectory`: a third as many persons of three visits each). Workers are the
real ones, started as a gate starts them, with the mechanisms' defaults but for what a peak does not
depend on: one copy and one refit, few steps of `maf` and `trajectory`. The target is 400 MB at
n = 5 000, and the bound that is planned from public numbers: it counts what a limit on data counts
(`RLIMIT_DATA`), libraries' reserves among it, so that it lies above.

Peers do less: no margins, no accounting, no refits, no tables; they stand for what the same
arithmetic takes elsewhere.

- `maf`: Opacus, DP-SGD of the same flow in full batches, its ghost and hooks modes, three steps.
- `sliced-wasserstein`: POT's sliced distance, whose gradient moves n particles towards n rows along
  512 projections, as in its gallery's flow; three steps, without privacy.
- `trajectory`: POT's `sinkhorn` between 50 particles at 5 times and all rows of each time.
- `gibbs`: lifelines' Cox regression of the same table, without privacy.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
from tests.studies.rows import Row, write
from tests.weighed import MECHANISMS, asked, foreseen, resident, schema, weigh

from penstock_client.rows.snapshot import load
from penstock_client.work.rehearsal import synthetic_rows

SIZES = (450, 5000, 50_000)
COLUMNS, VISITS = 20, 3
MOST_MB = 400.0
ROOT = Path(__file__).parent.parent.parent

SHORT: dict[str, dict[str, object]] = {
    "maf": {"copies": 1, "refits": 1, "steps": 3},
    "sliced-wasserstein": {"copies": 1, "refits": 1},
    "trajectory": {"copies": 1, "refits": 1, "steps": 4},
    "gibbs": {},
}


def run() -> Path:
    """Weigh them all."""
    rows = [row for name in MECHANISMS for n in SIZES for row in _rows(name, n)]
    packages = ("opacus", "pot", "lifelines", "torch", "numpy")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return write("memory", rows, f"{(__doc__ or '').strip()}\n\n{versions}.")


def _rows(name: str, n: int) -> list[Row]:
    persons = n // VISITS if name == "trajectory" else n
    mechanism = replace(MECHANISMS[name](), **SHORT[name])
    study = asked(mechanism, schema(COLUMNS, visits=name == "trajectory"))
    planned, peak = foreseen(study, persons).total / 1e6, weigh(study, persons).peak
    target = MOST_MB if n == 5000 else None
    holds = None if target is None else peak <= target
    bound = f"{name}, n = {n}: planned bound (MB)"
    found = [
        Row(f"{name}, n = {n}: peak (MB)", peak, None, 1, target=target, holds=holds),
        Row(bound, planned, None, 1, target=peak, holds=planned >= peak),
    ]
    for peer in PEERS.get(name, {}):
        theirs = _peak_of(peer, n)
        found.append(Row(f"{peer}: {name}, n = {n}: peak (MB)", peak, None, 1, peer=theirs))
        ratio = theirs / peak
        found.append(Row(f"{peer}: {name}, n = {n}: theirs over ours", ratio, None, 1))
    return found


def _peak_of(peer: str, n: int) -> float:
    """MB, from a fresh process; NaN where it does not end well."""
    command = [sys.executable, "-m", "tests.studies.bench_workers", peer, str(n)]
    made = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return float(made.stdout) if made.returncode == 0 else float("nan")


def _opacus(mode: str) -> Callable[[int], object]:
    def work(n: int) -> object:
        from tests.studies import bench_flow as flow
        from tests.studies.bench_peers import OpacusFit

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

    coded, _ = load(synthetic_rows(schema(COLUMNS), n, 1))
    return CoxPHFitter(penalizer=0.01).fit(DataFrame(coded).dropna(), "t", "e")


PEERS: dict[str, dict[str, Callable[[int], object]]] = {
    "maf": {"Opacus, ghost": _opacus("ghost"), "Opacus, hooks": _opacus("hooks")},
    "sliced-wasserstein": {"POT": _pot_flow},
    "trajectory": {"POT, sinkhorn": _pot_sinkhorn},
    "gibbs": {"lifelines": _lifelines},
}

if __name__ == "__main__":
    works = {name: work for peers in PEERS.values() for name, work in peers.items()}
    works[sys.argv[1]](int(sys.argv[2]))
    sys.stdout.write(f"{resident('self', 'VmHWM'):.1f}\n")
