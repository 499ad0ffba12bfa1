"""A meta-analysis of ten synthetic studies: latent noise injection, section 3.1.2 of its paper.

K = 10 studies of n ~ U[750, 1000]; Y = b0 + b'X + N(0, .5), X ~ N(0, I), and each study's b ~
N((0, 1, 1, 1, 1), Σ): variances 1e-4, of b1 5e-3, covariances 5e-5. A flow per study (2 blocks, 32
units), trained on all rows for 100 steps, fixed on other seeds (the paper stops early on 30 % of
the rows). Synthetic rows of all w share their noise. Then least squares, and DerSimonian and
Laird's pooled slope of X2, whose truth is 1, with its Wald interval. "Difference" is to the same
run's real studies. "Peer" is the map of a Gaussian with the study's own moments, by the same noise:
what a flow would be if it were perfect.

"Distance" is the paper's attack, by the closest synthetic row; "likelihood ratio" is one that knows
the flow. Both tell a study's people from as many fresh ones. A chosen w is the largest with a mean
AUC of at most .55. "Holds": at most the paper's + 2 s.e. of ours. (A share p of r runs has a
standard error of √(p(1-p)/r).) Figures 5 to 9: `lni-meta.png`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tests.studies.lni import (
    Fitted,
    GaussianMap,
    Map,
    auc,
    distance_scores,
    fit_flow,
    over_runs,
)
from tests.support.results import Row, at_most, write

from penstock.audit.membership import likelihood_ratio
from penstock.audit.tradeoff import MOST_AUC
from penstock.inference.pooling import Pooled, pool
from penstock.mechanisms.flow.architecture import Architecture
from penstock.mechanisms.flow.training import Training

Array = NDArray[np.float64]

RUNS, ATTACKED = 500, 100
"""Runs, and those of them whose studies are attacked; both as in the paper."""
STUDIES, FEWEST, MOST = 10, 750, 1000
W = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 1.0)
AT = W.index(0.8)

MEAN = np.array([0.0, 1.0, 1.0, 1.0, 1.0])
COVARIANCE = np.full((5, 5), 5e-5) + np.diag([1e-4, 5e-3, 1e-4, 1e-4, 1e-4]) - 5e-5 * np.eye(5)
TERM = 2

ARCHITECTURE = Architecture(d=5, flows=2, hidden=(32,), activation="relu")
TRAINING = Training(
    steps=100,
    clip=math.inf,
    noise_multiplier=None,
    batch=128,
    learning_rate=0.01,
    average=0.5,
)
"""The best of ten recipes on runs 10000 and up, of which this study uses none."""


@dataclass(frozen=True, slots=True)
class Study:
    """One study and its synthetic twins.

    Args:
        rows: (n, 5), X1..X4 and Y; fresh: as many people of the same law who were not in it.
        made: one table per w, row by row from ``rows``; at w = 1 they are the rows.
        best: the same by the map of a Gaussian with the rows' moments.
    """

    rows: Array
    fresh: Array
    model: Fitted
    made: tuple[Array, ...]
    best: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: pooled slopes, real and per w, and AUCs (studies, w), None where not attacked."""

    real: Pooled
    made: tuple[Pooled, ...]
    best: tuple[Pooled, ...]
    distance: Array | None = None
    ratio: Array | None = None


def draw(coefficients: Array, n: int, rng: np.random.Generator) -> Array:
    """(n, 5) rows of a study with these coefficients."""
    x = rng.standard_normal((n, 4))
    y = coefficients[0] + x @ coefficients[1:] + math.sqrt(0.5) * rng.standard_normal(n)
    return np.column_stack([x, y])


def studies(
    run: int, training: Training = TRAINING, k: int = STUDIES, most: int = MOST
) -> list[Study]:
    """One run's studies, all steps of the paper's iteration up to the synthetic tables."""
    rng = np.random.default_rng([run, 512])
    found = []
    for number in range(k):
        coefficients = rng.multivariate_normal(MEAN, COVARIANCE)
        n = int(rng.integers(min(FEWEST, most), most, endpoint=True))
        rows, fresh = draw(coefficients, n, rng), draw(coefficients, n, rng)
        seed = run * STUDIES + number
        model = fit_flow(rows, seed, replace(ARCHITECTURE, seed=seed), training)
        noise = rng.standard_normal(rows.shape)
        made, best = (_moved(m, rows, noise) for m in (model, GaussianMap.of(rows)))
        found.append(Study(rows, fresh, model, made, best))
    return found


def _moved(model: Map, rows: Array, noise: Array) -> tuple[Array, ...]:
    """One table per w; all with the same noise, as in the paper."""
    latents = model.to_latent(rows)
    return tuple(model.from_latent(math.sqrt(w) * latents + math.sqrt(1 - w) * noise) for w in W)


def slope(rows: Array) -> tuple[float, float]:
    """Least squares of Y on X1..X4 and a constant: X2's coefficient and its variance."""
    design = np.column_stack([np.ones(len(rows)), rows[:, :4]])
    inverse = np.linalg.inv(design.T @ design)
    found = inverse @ (design.T @ rows[:, 4])
    residual = rows[:, 4] - design @ found
    spread = float(residual @ residual) / (len(rows) - design.shape[1])
    return float(found[TERM]), spread * float(inverse[TERM, TERM])


def pooled(tables: Sequence[Array]) -> Pooled:
    """DerSimonian and Laird's estimate with the Wald interval, as in the paper's section 2.2."""
    estimates, variances = zip(*(slope(t) for t in tables), strict=True)
    return pool(estimates, variances, method="dl", test="z")


def scores(study: Study, at: int, attack: str) -> tuple[Array, Array]:
    """Of the study's people and of the fresh ones, against the table of ``W[at]``, standardised."""
    unit = study.model.scale
    made = study.made[at]
    if attack == "distance":
        people = (study.rows, study.fresh)
        member, other = (distance_scores(made / unit, p / unit) for p in people)
        return member, other
    both = np.concatenate([study.rows, study.fresh])
    found = likelihood_ratio(study.model, made, both, W[at], math.inf)
    return found[: len(study.rows)], found[len(study.rows) :]


def measure(run: int) -> Measured:
    """One run; the first ``ATTACKED`` are attacked."""
    made = studies(run)
    real = pooled([s.rows for s in made])
    synthetic = tuple(pooled([s.made[i] for s in made]) for i in range(len(W)))
    best = tuple(pooled([s.best[i] for s in made]) for i in range(len(W)))
    if run >= ATTACKED:
        return Measured(real, synthetic, best)
    distance = [[auc(*scores(s, i, "distance")) for i in range(len(W))] for s in made]
    # At w = 1 the ratio is that of a point: every member is found.
    ratio = [[auc(*scores(s, i, "ratio")) for i in range(len(W) - 1)] + [1.0] for s in made]
    return Measured(real, synthetic, best, np.array(distance), np.array(ratio))


def chosen(mean_auc: Array) -> int:
    """Where in ``W`` the largest w is whose mean AUC is at most .55; w = 0 if none is."""
    return max((i for i, a in enumerate(mean_auc) if a <= MOST_AUC), default=0)


def aucs(runs: Sequence[Measured]) -> dict[str, Array]:
    """Per attack, (runs, studies, w)."""
    return {
        "distance": np.array([r.distance for r in runs if r.distance is not None]),
        "likelihood ratio": np.array([r.ratio for r in runs if r.ratio is not None]),
    }


PAPER = {
    ("abs. difference", 0.8): 0.0042,
    ("abs. difference", 0.0): 0.0089,
    ("error to the truth", 0.8): 0.0080,
    ("error to the truth", 0.0): 0.0111,
    ("distance AUC", 0.8): MOST_AUC,
}
PAPER_REAL = 0.0067


def rows_of(runs: Sequence[Measured]) -> list[Row]:
    """The table: the choice of w, the real studies, then each figure across w."""
    real = np.array([r.real.estimate for r in runs])
    made = np.array([[p.estimate for p in r.made] for r in runs])
    best = np.array([[p.estimate for p in r.best] for r in runs])
    apart, error = np.abs(made - real[:, None]), np.abs(made - 1.0)
    peers = {
        "abs. difference": np.abs(best - real[:, None]).mean(axis=0),
        "error to the truth": np.abs(best - 1.0).mean(axis=0),
    }
    attacks = {name: a.mean(axis=1) for name, a in aucs(runs).items()}
    found = []
    for name, values in attacks.items():
        at = chosen(values.mean(axis=0))
        paper = 0.8 if name == "distance" else None
        found.append(Row(f"chosen w, {name}", W[at], None, len(values), paper=paper))
        found.append(at_most(f"abs. difference there, {name}", apart[:, at].tolist()))
    of_real = np.abs(real - 1.0).tolist()
    found.append(at_most("error to the truth, real", of_real, target=PAPER_REAL, paper=PAPER_REAL))
    found.append(_share("coverage of the 95 % interval, real", [_covers(r.real) for r in runs]))
    across = {
        "abs. difference": apart,
        "error to the truth": error,
        **{f"{name} AUC": values for name, values in attacks.items()},
        "standard error over the real one": np.array(
            [[p.se / r.real.se for p in r.made] for r in runs]
        ),
    }
    for what, values in across.items():
        for i, w in enumerate(W):
            told = PAPER.get((what, w))
            peer = float(peers[what][i]) if what in peers else None
            name, each = f"{what}, w = {w:g}", values[:, i].tolist()
            found.append(at_most(name, each, target=told, peer=peer, paper=told))
    for i, w in enumerate(W):
        hits = [_covers(r.made[i]) for r in runs]
        found.append(_share(f"coverage of the 95 % interval, w = {w:g}", hits))
    return found


def _covers(p: Pooled) -> bool:
    return p.ci_low <= 1.0 <= p.ci_high


def _share(what: str, hits: Sequence[bool]) -> Row:
    share = sum(hits) / len(hits)
    return Row(what, share, math.sqrt(share * (1 - share) / len(hits)), len(hits))


def run() -> Path:
    """All runs, the table and the figures."""
    from tests.studies.lni_meta_figures import draw_figures

    runs = over_runs(measure, range(RUNS), "lni-meta")
    draw_figures(runs)
    return write("lni-meta", rows_of(runs), (__doc__ or "").strip())
