"""Fit and sampling time against zuko, in one run on one thread.

A masked autoregressive flow of 4 blocks, hidden width 64, on n = 2000 rows of d = 7 columns: 100
passes over the data without privacy. Zuko runs minibatches of 256 (800 steps); ours runs 300
full-batch steps, which is what a site runs, and 300 steps of DP-SGD beside it. Ratios above 1 mean
that ours is faster. The log-likelihood that each reaches is given, so that like is compared with
like.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from tests.studies.rows import Row, write

from penstock.models.architecture import Architecture
from penstock.models.dpsgd import fit
from penstock.models.maf import Flow
from penstock.models.plan import Training
from penstock.privacy.noise import SecureNoise

N, D, SAMPLES, REPEATS = 2000, 7, 100_000, 5


def data() -> np.ndarray:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N, D)) @ (np.eye(D) + 0.3 * rng.standard_normal((D, D)))
    return (x - x.mean(0)) / x.std(0)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def ours(x: np.ndarray, sigma: float | None) -> Flow:
    flow = Flow(Architecture(D, 4, (64,)))
    clip = 40.0 if sigma else float("inf")
    training = Training(300, clip, sigma, None, 0.01)
    fit(flow, x[:, None], np.ones((N, 1), dtype=bool), training, SecureNoise())
    return flow


def zuko_fit(x: np.ndarray):
    import zuko

    torch.manual_seed(0)
    flow = zuko.flows.MAF(D, 0, transforms=4, hidden_features=(64,), randperm=True)
    rows = torch.as_tensor(x, dtype=torch.float32)
    optimiser = torch.optim.Adam(flow.parameters(), lr=1e-3)
    for _ in range(100):
        order = torch.randperm(N)
        for at in range(0, N, 256):
            loss = -flow().log_prob(rows[order[at : at + 256]]).mean()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
    return flow


def run() -> Path:
    """Measure; medians over REPEATS."""
    torch.set_num_threads(1)
    x = data()
    rows32 = torch.as_tensor(x, dtype=torch.float32)
    latents = torch.randn(SAMPLES, D)
    ours_flow, theirs = ours(x, None), zuko_fit(x)
    times = {
        "ours: fit": [seconds(lambda: ours(x, None)) for _ in range(REPEATS)],
        "ours: fit with DP-SGD": [seconds(lambda: ours(x, 20.0)) for _ in range(REPEATS)],
        "zuko: fit": [seconds(lambda: zuko_fit(x)) for _ in range(REPEATS)],
        "ours: 100,000 samples": [
            seconds(lambda: ours_flow.from_latent(latents)) for _ in range(REPEATS)
        ],
    }
    with torch.no_grad():
        times["zuko: 100,000 samples"] = [
            seconds(lambda: theirs().transform.inv(latents)) for _ in range(REPEATS)
        ]
        fits = {
            "ours: mean log-likelihood": float(ours_flow.log_prob(rows32).mean()),
            "zuko: mean log-likelihood": float(theirs().log_prob(rows32).mean()),
        }
    median = {name: float(np.median(t)) for name, t in times.items()}
    rows = [
        Row(f"{name} (s, median)", value, float(np.std(times[name], ddof=1)), REPEATS)
        for name, value in median.items()
    ]
    rows += [Row(name, value, None, 1) for name, value in fits.items()]
    for what, own, peer in (
        ("fit, times faster than zuko", "ours: fit", "zuko: fit"),
        ("fit with DP-SGD, times faster than zuko without", "ours: fit with DP-SGD", "zuko: fit"),
        ("sampling, times faster", "ours: 100,000 samples", "zuko: 100,000 samples"),
    ):
        rows.append(Row(what, median[peer] / median[own], None, REPEATS))
    return write("maf", rows, __doc__.strip())
