r"""A column's distribution from noisy counts, smooth as far as they do not speak.

Counts of a fine grid are mostly noise where a column is thin: in its tails, which weigh most in a
regression. What noise hides is not empty, and is not flat either. So the logarithm of the density
is bent as little as the counts allow:

.. math:: \min_p \sum_b (c_b - n p_b)^2 / 2v + \sum_k (p·x^k - m_k)^2 / 2v_k
          + λ h² \sum_b (\sqrt{1 + (Δ² \log p_b / h)²} - 1)

The penalty on second differences lets a tail that no count shows fall off exponentially (Silverman
1982, of penalised likelihoods); beyond h it grows linearly, so that piles and gaps which counts do
show stay sharp. Means and squares, released elsewhere, hold the tail's weight. Post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

Array = NDArray[np.float64]

_STIFFNESS, _BEND = 1.0, 0.7
"""λ and h; frozen on simulated columns and on tables that the studies do not show."""

_ROUNDS = 300


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a column beside its counts.

    Args:
        points: (b,) what each cell stands for; mean, square: as released, of the same numbers;
            their sds.
    """

    points: Array
    mean: float
    mean_sd: float
    square: float
    square_sd: float


def estimate_density(counts: Array, sd: float, rows: float, known: Known | None = None) -> Array:
    """Shares of the cells, (b,), positive, adding up to 1.

    Args:
        counts: (b,) noisy; sd: of the noise on each; rows: how many they would add up to.
    """
    cells, variance = len(counts), sd * sd + 1.0
    start = np.maximum(counts, 0.3 + 0.3 * sd / np.sqrt(cells))
    if sd > 1 and cells > 8:
        start = np.convolve(np.pad(start, 2, mode="edge"), np.ones(5) / 5, "valid")

    def objective(logs: Array) -> tuple[float, Array]:
        weights = np.exp(logs - logs.max())
        share = weights / weights.sum()
        off = rows * share - counts
        value, slope = float((off**2).sum()) / (2 * variance), rows * off / variance
        if known is not None:
            told = (
                (known.points, known.mean, known.mean_sd),
                (known.points**2, known.square, known.square_sd),
            )
            for powers, goal, error in told:
                gap = float(share @ powers) - goal
                value += gap**2 / (2 * error**2)
                slope = slope + gap / error**2 * powers
        slope = share * (slope - share @ slope)
        bent = np.diff(logs, 2) / _BEND
        root = np.sqrt(1 + bent**2)
        value += _STIFFNESS * _BEND**2 * float((root - 1).sum())
        pull = _STIFFNESS * _BEND * bent / root
        slope[:-2] += pull
        slope[1:-1] -= 2 * pull
        slope[2:] += pull
        return value, slope

    options = {"maxiter": _ROUNDS, "maxcor": 20}
    found = minimize(
        objective, np.log(start / start.sum()), jac=True, method="L-BFGS-B", options=options
    )
    share: Array = np.exp(found.x - found.x.max())
    return np.asarray(share / share.sum())
