"""What one contender's work costs in memory: `python -m tests.benchmarks.contender_memory NAME`.

Each in a process of its own, after one small warm-up, so that what its libraries load once is not
counted as growth. Prints two numbers in MiB: by how much the resident memory rose above where it
stood when the work began, and its peak. Linux only: the peak is the kernel's own count.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.benchmarks import flow

Work = Callable[[int], object]
"""A contender's work at so many rows."""

NAMES = tuple(
    f"{who} {what}"
    for what, peers in (
        ("fit", ("zuko", "nflows")),
        ("DP-SGD", ("Opacus, ghost", "Opacus, hooks")),
        ("sampling", ("zuko", "nflows")),
    )
    for who in ("ours", *peers)
)
ROOT = Path(__file__).parent.parent.parent


def measure(name: str) -> tuple[float, float]:
    """Growth and peak in MiB, from a fresh process."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.contender_memory", name],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    growth, peak = run.stdout.split()
    return float(growth), float(peak)


def _works(name: str) -> tuple[Work, int]:
    """The contender's work, and the rows it is measured at."""
    who, what = name.rsplit(" ", 1)
    flow.threads(1)
    if what == "fit":
        return (_our_fit if who == "ours" else _peer_fit(who)), flow.N
    if what == "DP-SGD":
        return (_our_private if who == "ours" else _opacus(who)), flow.N
    return (_our_samples if who == "ours" else _peer_samples(who)), flow.SAMPLES


def _our_fit(n: int) -> object:
    return flow.ours(flow.data(n), flow.public(20, min(n, flow.BATCH)))


def _our_private(n: int) -> object:
    return flow.ours(flow.data(n), flow.private(10))


def _our_samples(n: int) -> object:
    from penstock.mechanisms.flow.engine import make_flow

    return make_flow(flow.architecture(), backend="kernel").from_latent(_latents(n))


def _peer_fit(who: str) -> Work:
    from tests.benchmarks import peers

    return lambda n: peers.fit(peers.PEERS[who], flow.data(n), min(n, flow.BATCH), 2)


def _opacus(who: str) -> Work:
    from tests.benchmarks.peers import OpacusFit

    return lambda n: OpacusFit(flow.data(n), who.split()[-1], None).steps(3)


def _peer_samples(who: str) -> Work:
    import torch
    from tests.benchmarks import peers

    def work(n: int) -> object:
        peer = peers.PEERS[who]
        made = peer.make(flow.D, flow.HIDDEN, "tanh")
        return peers.samples(peer, made, torch.as_tensor(_latents(n), dtype=torch.float32))

    return work


def _latents(n: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n, flow.D))


def _resident(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def main(name: str) -> None:
    work, rows = _works(name)
    work(64)
    flow.threads(1)  # torch is there now
    work(64)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
    before = _resident("VmRSS")
    work(rows)
    peak = _resident("VmHWM")
    sys.stdout.write(f"{peak - before:.2f} {peak:.2f}\n")


if __name__ == "__main__":
    main(sys.argv[1])
