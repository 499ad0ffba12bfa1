"""What the studies of latent noise injection have in common: the `empirical` class, in the open.

A flow is fitted to z-scored rows without noise, rows are moved through its latents, and attacks are
scored. Nothing here is private: these are experiments on simulated people.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.stats import rankdata

from penstock.audit.membership import Density, closest, direct_ratio, likelihood_ratio
from penstock.mechanisms.flow.architecture import Architecture
from penstock.mechanisms.flow.engine import Flow, make_flow
from penstock.mechanisms.flow.training import Training, fit
from penstock.privacy.noise.sources import SeededNoise

Array = NDArray[np.float64]
Task = TypeVar("Task")
Result = TypeVar("Result")

INK, GREY, RULE = "#1a1a1a", "#595959", "#dddddd"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d")
"""Okabe and Ito's, and one more: told apart with any colour vision."""


# -- the flow and what is made with it -------------------------------------------------------------


class Map(Protocol):
    """Rows to latents and back."""

    @property
    def centre(self) -> Array:
        """Where latent 0 lies, about; (d,)."""

    def to_latent(self, rows: Array, /) -> Array:
        """(n, d) rows to latents."""

    def from_latent(self, latents: Array, /) -> Array:
        """(n, d) latents to rows."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A flow of z-scored rows, seen from the rows' own units.

    Args:
        flow: standard Gaussian latents to z-scored rows; centre, scale: (d,), of the rows.
    """

    flow: Flow
    centre: Array
    scale: Array

    def to_latent(self, rows: Array, /) -> Array:
        """(n, d) rows to latents."""
        return self.flow.to_latent((rows - self.centre) / self.scale)

    def from_latent(self, latents: Array, /) -> Array:
        """(n, d) latents to rows."""
        return self.flow.from_latent(latents) * self.scale + self.centre

    def log_density(self, rows: Array, /) -> Array:
        """Of (n, d) rows, (n,), in the rows' own units."""
        scored = self.flow.log_prob((rows - self.centre) / self.scale)
        return scored - float(np.log(self.scale).sum())


def fit_flow(
    x: Array, seed: int, arch: Architecture, training: Training, backend: str = "auto"
) -> Fitted:
    """Fit a flow to (n, d) rows by maximum likelihood; ``seed`` is of the batches."""
    centre, scale = x.mean(axis=0), x.std(axis=0)
    flow = make_flow(arch, backend=backend)
    rows = ((x - centre) / scale)[:, None]
    fit(flow, rows, np.ones(rows.shape[:2], dtype=np.bool_), training, SeededNoise(seed))
    return Fitted(flow, centre, scale)


@dataclass(frozen=True, slots=True)
class GaussianMap:
    """The transport map of a Gaussian with the rows' own mean and covariance: a flow's best case.

    Where rows are Gaussian no flow can do better, since it would have to learn just this.
    """

    centre: Array
    factor: Array

    @classmethod
    def of(cls, x: Array) -> GaussianMap:
        """Maximum likelihood from (n, d) rows."""
        centred = x - x.mean(axis=0)
        return cls(x.mean(axis=0), np.linalg.cholesky(centred.T @ centred / len(x)))

    def to_latent(self, rows: Array, /) -> Array:
        """(n, d) rows to latents."""
        white: Array = solve_triangular(self.factor, (rows - self.centre).T, lower=True)
        return white.T

    def from_latent(self, latents: Array, /) -> Array:
        """(n, d) latents to rows."""
        return latents @ self.factor.T + self.centre

    def log_density(self, rows: Array, /) -> Array:
        """Of (n, d) rows, (n,)."""
        z = self.to_latent(rows)
        volume = float(np.log(np.diag(self.factor)).sum())
        density: Array = -(z**2).sum(axis=1) / 2 - z.shape[1] / 2 * math.log(2 * math.pi) - volume
        return density


def flow_sample(model: Map, n: int, rng: np.random.Generator) -> Array:
    """n rows of the model alone."""
    return model.from_latent(rng.standard_normal((n, len(model.centre))))


def lni(model: Map, x: Array, w: float, rng: np.random.Generator) -> Array:
    """f(√w f⁻¹(x) + √(1-w) Z), one row each (Shen & Tian 2025, eq. 4); w = 1 gives x back."""
    return moved(model, model.to_latent(x), w, rng)


def moved(model: Map, latents: Array, w: float, rng: np.random.Generator) -> Array:
    """:func:`lni` of rows whose latents f⁻¹(x), (n, d), are at hand."""
    noise = rng.standard_normal(latents.shape)
    return model.from_latent(math.sqrt(w) * latents + math.sqrt(1 - w) * noise)


def direct(x: Array, w: float, rng: np.random.Generator) -> Array:
    """√w x + √(1-w) diag(σ̂) Z: noise on the rows themselves; correlations shrink by w."""
    noise = x.std(axis=0, ddof=1) * rng.standard_normal(x.shape)
    noisy: Array = math.sqrt(w) * x + math.sqrt(1 - w) * noise
    return noisy


# -- attacks ---------------------------------------------------------------------------------------


def auc(members: Array, others: Array) -> float:
    """P(a member's score is above another's), ties counted half."""
    m, n = len(members), len(others)
    ranks = rankdata(np.concatenate([members, others]))
    return float((ranks[:m].sum() - m * (m + 1) / 2) / (m * n))


def distance_scores(synthetic: Array, candidates: Array) -> Array:
    """Minus the distance to the closest synthetic row, in the rows' own units (the paper's)."""
    return -closest(synthetic, candidates, np.ones(synthetic.shape[1]))


def distance_auc(synthetic: Array, members: Array, fresh: Array) -> float:
    """AUC of the paper's attack (its eq. 25)."""
    return auc(distance_scores(synthetic, members), distance_scores(synthetic, fresh))


def ratio_auc(model: Density, synthetic: Array, members: Array, fresh: Array, w: float) -> float:
    """AUC of the attack that knows the flow; w in [0, 1)."""
    both = np.concatenate([members, fresh])
    scores = likelihood_ratio(model, synthetic, both, w, math.inf)
    return auc(scores[: len(members)], scores[len(members) :])


def direct_ratio_auc(
    synthetic: Array, members: Array, fresh: Array, w: float, scale: Array
) -> float:
    """AUC of the attack that knows how :func:`direct` noise was put on; scale (d,), w in [0, 1)."""
    both = np.concatenate([members, fresh])
    scores = direct_ratio(synthetic, both, w, np.zeros(len(scale)), scale)
    return auc(scores[: len(members)], scores[len(members) :])


# -- many runs -------------------------------------------------------------------------------------


def jobs() -> int:
    """Processes: JOBS from the environment, or 2."""
    return max(1, int(os.environ.get("JOBS", "2")))


def over_runs(
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    label: str,
    weight: Callable[[Task], float] = lambda _: 1.0,
) -> list[Result]:
    """``work`` of every task, in order; each task holds its own seed.

    Every process computes on one thread, so results do not depend on how many there are.

    Args:
        work: a module's function, since other processes import it.
        label: of the progress line; ``weight``: what share of the time a task takes.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # before the other processes load their libraries
    processes = min(jobs(), len(tasks))
    if processes <= 1:
        return _collect(map(work, tasks), tasks, label, weight)
    # Not forked: a copy of a process with running threads may hang.
    with get_context("spawn").Pool(processes) as pool:
        return _collect(pool.imap(work, tasks), tasks, label, weight)


def _collect(
    results: Iterable[Result],
    tasks: Sequence[Task],
    label: str,
    weight: Callable[[Task], float],
) -> list[Result]:
    whole, done, start, found = math.fsum(map(weight, tasks)), 0.0, time.monotonic(), []
    for task, result in zip(tasks, results, strict=True):
        found.append(result)
        done += weight(task)
        left = (time.monotonic() - start) * (whole - done) / done
        sys.stderr.write(f"\r{label}: {len(found)}/{len(tasks)}, {left / 60:.1f} min left  ")
        sys.stderr.flush()
    sys.stderr.write("\n")
    return found


def mean_se(values: Sequence[float] | Array) -> tuple[float, float]:
    """Mean and its standard error."""
    v = np.asarray(values, dtype=np.float64)
    return float(v.mean()), float(v.std(ddof=1) / math.sqrt(len(v)))
