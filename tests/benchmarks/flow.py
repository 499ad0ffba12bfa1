"""What `make bench NAME=maf` gives every contender: the data, the sizes, and our own side of it.

No torch at import: the memory of our kernel is measured in a process that never loads it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping

import numpy as np
from tests.support.results import Row

from penstock.mechanisms.flow.architecture import Architecture
from penstock.mechanisms.flow.engine import Flow, make_flow
from penstock.mechanisms.flow.training import Training, fit, fit_many
from penstock.privacy.noise.sources import SecureNoise

N, D, FLOWS, HIDDEN, BATCH, EPOCHS, SAMPLES = 2000, 7, 4, 64, 256, 100, 100_000
CLIP, SIGMA = 5.0, 20.0
RATE = 1e-3
"""Adam's for ours; chosen as the peers' own were, see :class:`tests.benchmarks.peers.Peer`."""

Works = Mapping[str, Callable[[], object]]
Times = dict[str, np.ndarray]
"""Seconds of each contender in each round."""


def data(n: int = N, d: int = D, seed: int = 0) -> np.ndarray:
    """(n, d) correlated columns of mean about 0 and sd about 1. Every second one bends with the
    one before it, in its mean and in its spread, so that no Gaussian is enough."""
    z = np.random.default_rng(seed).standard_normal((n, d))
    x = z.copy()
    for j in range(1, d):
        before = x[:, j - 1]
        x[:, j] = 0.6 * before + 0.8 * z[:, j]
        if j % 2:
            x[:, j] = np.abs(before) - 0.8 + 0.75 * z[:, j] * np.exp(0.4 * np.tanh(before))
    return x


def architecture(d: int = D, hidden: int = HIDDEN, activation: str = "tanh") -> Architecture:
    return Architecture(d, FLOWS, (hidden,), activation)


def ours(
    x: np.ndarray,
    training: Training,
    backend: str = "kernel",
    hidden: int = HIDDEN,
    activation: str = "tanh",
) -> Flow:
    """One fit of our flow to rows x (n, d), one row per person, from an untrained start."""
    flow = make_flow(architecture(x.shape[1], hidden, activation), backend=backend)
    fit(flow, x[:, None], np.ones((len(x), 1), dtype=bool), training, SecureNoise())
    return flow


def public(steps: int, batch: int | None = None) -> Training:
    """Adam without privacy, on shuffled minibatches or on all rows."""
    return Training(steps, float("inf"), None, None, RATE, batch=batch)


def private(steps: int, rate: float | None = None) -> Training:
    """DP-SGD, on Poisson samples or on all rows."""
    return Training(steps, CLIP, SIGMA, rate, RATE)


def bootstrap(
    x: np.ndarray, training: Training, count: int, device: str = "cpu", at_once: int = 1
) -> None:
    """``count`` fits to resampled rows, ``at_once`` of them side by side; on a GPU, all."""
    rng = np.random.default_rng(0)
    flows = [make_flow(architecture(), device) for _ in range(count)]
    rows = [x[rng.integers(0, len(x), len(x)), None] for _ in range(count)]
    present = [np.ones((len(x), 1), dtype=bool)] * count
    fit_many(flows, rows, present, [training] * count, [SecureNoise()] * count, threads=at_once)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def threads(count: int) -> None:
    """So many for torch, and for kernels made from now on."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)
    os.environ["OMP_NUM_THREADS"] = str(count)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def interleaved(works: Works, repeats: int) -> Times:
    """Every work in turn, ``repeats`` rounds; one unmeasured round first.

    A round's works run next to each other, so that a ratio within a round does not see the
    machine's slow changes; each round starts one work later, so that none is always first.
    """
    names = list(works)
    found: dict[str, list[float]] = {name: [] for name in names}
    for r in range(repeats + 1):
        at = r % len(names)
        for name in names[at:] + names[:at]:
            taken = seconds(works[name])
            if r > 0:
                found[name].append(taken)
    return {name: np.array(times) for name, times in found.items()}


def median(values: np.ndarray) -> float:
    return float(np.median(values))


def summary(
    what: str,
    values: np.ndarray,
    *,
    target: float | None = None,
    peer: float | None = None,
    holds: bool | None = None,
) -> Row:
    """Median with quartiles."""
    low, middle, high = (float(q) for q in np.quantile(values, (0.25, 0.5, 0.75)))
    return Row(what, middle, None, len(values), target, peer, None, holds, (low, high))


def faster(what: str, own: np.ndarray, peer: np.ndarray, target: float | None = None) -> Row:
    """How many times faster; the median and quartiles of the rounds' own ratios."""
    ratio = peer / own
    holds = None if target is None else median(ratio) >= target
    return summary(what, ratio, target=target, holds=holds)
