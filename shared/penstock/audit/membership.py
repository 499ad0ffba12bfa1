r"""Membership inference: does a release tell who was in the data?

An attack gives every candidate a score that is high where it takes them for a member; the scores of
members are then compared with those of people who were held out. Two attacks, of which the second
knows more:

* :func:`closest`: the distance to the closest synthetic row (as in Shen & Tian 2025);
* :func:`likelihood_ratio`: the attacker also knows the density model that the rows went through.

Both need real rows. Their outcome is for the data's steward alone, decides on no formal release
(docs/privacy.md, "Claims are attacked"), and proves nothing: other attacks may see more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from penstock.base.documents import Json, JsonView
from penstock.base.errors import InvalidInput, Problem
from penstock.base.pictures import check_picture

Array = NDArray[np.float64]

LEVEL = 0.95
"""Of every interval here."""

FALSE_ALARMS = 0.01
"""The rate of false alarms at which the share of members that are found is reported."""

EXTREME = 0.05
"""The share of records that count as extreme; noise in a latent space hides these least."""

EXTREMES = ", extreme"
"""Ends the name of what concerns extreme records only."""

RATES = np.unique(np.concatenate([np.geomspace(1e-4, 1, 161), np.linspace(0.01, 1, 100)]))
"""False alarm rates at which ROC curves are kept, ascending."""

_ENTRIES = 1 << 18
"""Of the largest matrix that is held at once: small enough to stay in a cache."""

_TREE_COLUMNS = 6
"""With more columns a k-d tree looks at nearly everything, and plain distances are faster."""

_THRESHOLD_SHARE = 0.8
"""Of a TPR limit's error, what the unknown threshold gets; the rest is the members' own."""


class Density(Protocol):
    """What the attacker knows of the model."""

    def to_latent(self, rows: Array, /) -> Array:
        """(n, d) rows to latents, standard Gaussian if the model is right."""

    def log_density(self, rows: Array, /) -> Array:
        """(n, d) rows to log densities (n,), up to a constant."""


# -- attacks ---------------------------------------------------------------------------------------


def closest(synthetic: Array, candidates: Array, scale: Array) -> Array:
    """Distance from each candidate to the closest synthetic row, (m,); the score is its negative.

    Args:
        synthetic: (n, d); candidates: (m, d).
        scale: (d,), each column's unit, such as its sd among the synthetic rows; a column of scale
            0 is constant there, and is left as it is.

    Raises:
        InvalidInput: no rows, other shapes, or values that are not finite.
    """
    _check_rows(synthetic, candidates)
    unit = np.where(scale > 0, scale, 1.0)
    there, here = synthetic / unit, candidates / unit
    if there.shape[1] <= _TREE_COLUMNS:
        from scipy.spatial import cKDTree

        found: Array = cKDTree(there).query(here)[0]
        return found
    # |there|²/2 - ⟨there, here⟩ is least where the distance is. Only its place is taken from that:
    # of close rows rounding would leave little of the value. Centred, so that squares stay small.
    centre = there.mean(axis=0)
    there, here = there - centre, here - centre
    products = _across(-there, (there**2).sum(axis=1) / 2)
    nearest = np.concatenate(
        [(_one(p) @ products).argmin(axis=1) for p in _parts(here, len(there))]
    )
    distance: Array = np.linalg.norm(here - there[nearest], axis=1)
    return distance


def likelihood_ratio(
    model: Density,
    released: Array,
    candidates: Array,
    w: float,
    clip: float,
    *,
    absent: float = 0.0,
    best: bool = False,
) -> Array:
    r"""Log likelihood ratio of each candidate, (m,), to an attacker who knows the model T.

    With :math:`z = \mathrm{clip}_R(T^{-1}(x))` and the n released rows' latents :math:`\tilde z_j`,

    .. math:: s(x) = \log \frac1n \sum_j \frac{N(\tilde z_j; \sqrt w\, z, (1-w) I)}
                                              {g(\tilde z_j)}, \qquad g = N(0, I) .

    That is the exact ratio of "one of the rows, in random order, is x's" to "none is", where the
    others are draws of the model: by Neyman and Pearson nothing beats it there. Null records, of
    latent 0, leave noise: with a share ν of them :math:`g = (1-ν) N(0, I) + ν N(0, (1-w) I)`.
    At w = 0 no row is anybody's, and s is the model's own log density, which an overfitted model
    has higher at members.

    Args:
        released: (n, d); candidates: (m, d), rows as the model takes them.
        w: share of the latents that is the person's own, in [0, 1); clip: R > 0.
        absent: ν in [0, 1), the share of null records, public or released.
        best: the largest summand instead of the mean.

    Raises:
        InvalidInput: a number out of its bounds, no rows, or values that are not finite.
    """
    _check_rows(released, candidates)
    checks = (
        ("w", w, 0 <= w < 1, "in [0, 1)"),
        ("clip", clip, clip > 0, "above 0"),
        ("absent", absent, 0 <= absent < 1, "in [0, 1)"),
    )
    problems = [Problem(n, "out of bounds", None, str(v), b) for n, v, ok, b in checks if not ok]
    if problems:
        raise InvalidInput("attack", problems)
    if w == 0:
        return model.log_density(candidates)
    own = model.to_latent(candidates)
    norm = np.linalg.norm(own, axis=1, keepdims=True)
    centre = own * np.minimum(1.0, clip / np.maximum(norm, 1e-300))
    seen = model.to_latent(released)
    squares = (seen**2).sum(axis=1)
    # log g, but for the factor of 2π, which numerator and denominator share.
    background = -squares / 2 + math.log1p(-absent)
    if absent > 0:
        null = -squares / (2 * (1 - w)) - 0.5 * seen.shape[1] * math.log1p(-w) + math.log(absent)
        background = np.logaddexp(background, null)
    return _log_ratio(centre, seen, background, w, best=best)


def direct_ratio(
    released: Array, candidates: Array, w: float, centre: Array, scale: Array
) -> Array:
    r"""Log likelihood ratio of each candidate, (m,), for noise that was put on the rows themselves.

    Released rows are :math:`\hat μ + \sqrt w (x - \hat μ) + \sqrt{1-w}\, \hat σ Z`. The attacker
    knows w, ``centre`` μ̂ and ``scale`` σ̂, both (d,), and takes other people's released rows for
    Gaussian with the mean and covariance of all. As :func:`likelihood_ratio` but for that; at w = 0
    all scores are equal.

    Raises:
        InvalidInput: w is not in [0, 1), no rows, or values that are not finite.
    """
    _check_rows(released, candidates)
    if not 0 <= w < 1:
        raise InvalidInput("attack", [Problem("w", "out of bounds", None, str(w), "in [0, 1)")])
    varies = scale > 0  # where a column does not vary, there is nothing to tell by
    if not varies.any():
        return np.zeros(len(candidates))
    own = ((candidates - centre) / np.where(varies, scale, 1.0))[:, varies]
    seen = ((released - centre) / np.where(varies, scale, 1.0))[:, varies]
    # A rounded table may lack a direction altogether: then the others' density is but very high.
    covariance = np.atleast_2d(np.cov(seen, rowvar=False, bias=True))
    covariance += 1e-6 * np.eye(seen.shape[1])
    lower = np.linalg.cholesky(covariance)
    white = np.linalg.solve(lower, (seen - seen.mean(axis=0)).T)
    background = -(white**2).sum(axis=0) / 2 - np.log(np.diag(lower)).sum()
    return _log_ratio(own, seen, background, w)


def _log_ratio(own: Array, seen: Array, background: Array, w: float, best: bool = False) -> Array:
    """log of the mean (or largest) N(seen; √w own, (1-w) I) / exp(background), without 2π; (m,)."""
    n, d = seen.shape
    # -|z̃ - c|²/2(1-w) - log g, multiplied out: one matrix product per part.
    row = -(seen**2).sum(axis=1) / (2 * (1 - w)) - background
    products = _across(math.sqrt(w) / (1 - w) * seen, row)
    scores = []
    for part in _parts(own, n):
        exponent = _one(part) @ products
        top = exponent.max(axis=1)
        score = top - w * (part**2).sum(axis=1) / (2 * (1 - w))
        if not best:
            exponent -= top[:, None]
            score += np.log(np.exp(exponent, out=exponent).sum(axis=1)) - math.log(n)
        scores.append(score)
    ratio: Array = np.concatenate(scores) - 0.5 * d * math.log1p(-w)
    return ratio


def extremity(rows: Array) -> Array:
    """Mahalanobis distance of each of (n, d) rows to the centre of all of them, (n,)."""
    centred = rows - rows.mean(axis=0)
    covariance = np.atleast_2d(np.cov(rows, rowvar=False))
    # Constant columns make it singular; such a direction holds nobody away from the centre.
    squares = np.einsum("ij,jk,ik->i", centred, np.linalg.pinv(covariance, hermitian=True), centred)
    distance: Array = np.sqrt(np.maximum(squares, 0.0))
    return distance


def _across(rows: Array, last: Array) -> Array:
    """(d + 1, n): the rows' transpose, then ``last``; contiguous, which makes products faster."""
    return np.ascontiguousarray(np.vstack([rows.T, last]))


def _one(rows: Array) -> Array:
    return np.column_stack([rows, np.ones(len(rows))])


def _parts(rows: NDArray[Any], width: int) -> list[NDArray[Any]]:
    size = max(1, _ENTRIES // max(width, 1))
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def _check_rows(*tables: Array) -> None:
    shapes = [t.shape for t in tables]
    good = all(t.ndim == 2 and len(t) and t.shape[1] == shapes[0][1] for t in tables)
    if not good:
        problem = Problem("rows", "need two tables of the same columns", value=str(shapes))
        raise InvalidInput("attack", [problem])
    if not all(np.isfinite(t).all() for t in tables):
        raise InvalidInput("attack", [Problem("rows", "must be finite")])


# -- what an attack achieved -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its limits at :data:`LEVEL`."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Report:
    """How well scores tell members from others.

    Args:
        auc: P(a member's score is higher than another's), ties counted half; 0.5 is chance.
        tpr: share of members found at :data:`FALSE_ALARMS`; None with too few others to tell.
        members, nonmembers: how many of each were scored.
    """

    auc: Interval
    tpr: Interval | None
    members: int
    nonmembers: int

    def to_dict(self) -> Json:
        """Its JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: JsonView) -> Report:
        """Read :meth:`to_dict` back."""
        tpr = record["tpr"]
        return cls(
            Interval(**record["auc"]),
            None if tpr is None else Interval(**tpr),
            record["members"],
            record["nonmembers"],
        )


def attack_report(members: Array, nonmembers: Array) -> Report:
    """AUC, and TPR at 1 % false alarms, each with an interval; scores of either side, (m,), (n,).

    * AUC: a Wilson interval, with the larger of two variances: that of DeLong, DeLong &
      Clarke-Pearson (1988), and that of Hanley & McNeil (1982), which does not collapse where all
      members are ahead.
    * TPR: a person is accused whose score lies *above* the threshold, the 99 % quantile of others'
      scores. It is estimated too: its own order-statistic limits are joined (Bonferroni) with
      Clopper & Pearson's for the members beyond, so that the interval holds for the TPR at a
      *true* false alarm rate of 1 %, whatever the scores' distribution. From fewer than 100 others
      there is no estimate, and from fewer than 390 the lower limit is 0.

    Both hold for people drawn independently; a run's own noise is not part of them.

    Raises:
        InvalidInput: fewer than two on either side, or a score that is not a finite number.
    """
    problems = [
        Problem(name, "needs at least two finite scores", value=str(len(scores)))
        for name, scores in (("members", members), ("non-members", nonmembers))
        if not (len(scores) >= 2 and np.isfinite(scores).all())
    ]
    if problems:
        raise InvalidInput("attack", problems)
    return Report(
        _auc(members, nonmembers), _tpr(members, nonmembers), len(members), len(nonmembers)
    )


def average(reports: Sequence[Report]) -> Report:
    """The mean of repeated runs on the same people: of estimates and of limits alike.

    Runs share their people, so that repeating earns no narrower interval: a mean's standard
    deviation is at most the mean of theirs, and just that where runs agree.
    """
    tprs = [r.tpr for r in reports if r.tpr is not None]
    return Report(
        _mean([r.auc for r in reports]),
        _mean(tprs) if len(tprs) == len(reports) else None,
        round(math.fsum(r.members for r in reports) / len(reports)),
        round(math.fsum(r.nonmembers for r in reports) / len(reports)),
    )


def _mean(intervals: Sequence[Interval]) -> Interval:
    n = len(intervals)
    return Interval(
        math.fsum(i.value for i in intervals) / n,
        math.fsum(i.low for i in intervals) / n,
        math.fsum(i.high for i in intervals) / n,
    )


def _auc(members: Array, nonmembers: Array) -> Interval:
    # Half a second of imports: every command of a site, and its gate, would wait for it.
    from scipy.stats import rankdata

    m, n = len(members), len(nonmembers)
    ranks = rankdata(np.concatenate([members, nonmembers]))
    beaten = (ranks[:m] - rankdata(members)) / n  # share of others behind each member
    ahead = (ranks[m:] - rankdata(nonmembers)) / m
    auc = float(beaten.mean())
    # Variances over AUC(1 - AUC): by DeLong, and by Hanley & McNeil, which few scores cannot fool.
    pairs = ((m + n) / 2 - 1) * ((1 - auc) / (2 - auc) + auc / (1 + auc))
    relative = (1 + pairs) / (m * n)
    if 0 < auc < 1:
        delong = beaten.var(ddof=1) / m + ahead.var(ddof=1) / n
        relative = max(relative, float(delong) / (auc * (1 - auc)))
    # All θ with |AUC - θ| ≤ z √(relative · θ(1 - θ)).
    z2 = float(ndtri((1 + LEVEL) / 2)) ** 2 * relative
    centre = (auc + z2 / 2) / (1 + z2)
    half = math.sqrt(z2 * auc * (1 - auc) + z2 * z2 / 4) / (1 + z2)
    return Interval(auc, min(auc, max(0.0, centre - half)), max(auc, min(1.0, centre + half)))


def _tpr(members: Array, nonmembers: Array) -> Interval | None:
    from scipy.stats import beta, binom

    n, m = len(nonmembers), len(members)
    if not n * FALSE_ALARMS >= 1:
        return None
    descending = np.sort(nonmembers)[::-1]
    error = (1 - LEVEL) / 2
    by_threshold, by_members = _THRESHOLD_SHARE * error, (1 - _THRESHOLD_SHARE) * error
    # The quantile is at most the a-th and at least the b-th largest, but for by_threshold each.
    a = int(binom.ppf(by_threshold, n, FALSE_ALARMS))
    b = int(binom.ppf(1 - by_threshold, n, FALSE_ALARMS)) + 1
    low, high = 0.0, 1.0
    if a >= 1 and (found := int((members > descending[a - 1]).sum())) > 0:
        low = float(beta.ppf(by_members, found, m - found + 1))
    if b <= n and (found := int((members > descending[b - 1]).sum())) < m:
        high = float(beta.ppf(1 - by_members, found + 1, m - found))
    return Interval(float(roc(members, nonmembers, np.array([FALSE_ALARMS]))[0]), low, high)


def roc(members: Array, nonmembers: Array, rates: Array = RATES) -> Array:
    """Share of members found at each false alarm rate, NaN below one false alarm, (len(rates),).

    The threshold is the lowest of which at most ``rate`` of the others lie *above*.
    """
    n, ascending = len(nonmembers), np.sort(nonmembers)
    allowed = np.floor(rates * n + 1e-9).astype(np.intp)
    threshold = np.where(allowed < n, ascending[np.maximum(n - 1 - allowed, 0)], -np.inf)
    found = len(members) - np.searchsorted(np.sort(members), threshold, side="right")
    return np.where(allowed >= 1, found / len(members), np.nan)


# -- the own synthetic record ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pairing:
    """How close a person's own synthetic row is, to one who knows which it is.

    Args:
        nearer: P(‖X_j - X_i‖ < ‖X̃_i - X_i‖): share of other people who are nearer than it.
        rank: its median rank among all synthetic rows by distance to the person; 1 is the closest.
        others: how many other people are nearer than it, the median over persons; the rank of the
            paper's equation 26.
    """

    nearer: float
    rank: float
    others: float


def pairing(rows: Array, synthetic: Array, scale: Array, most: int = 1000) -> Pairing:
    """The measures of Shen & Tian 2025; row i of ``synthetic`` is made from row i of ``rows``.

    Args:
        rows, synthetic: (n, d), n ≥ 2; scale: as of :func:`closest`.
        most: persons looked at; evenly spread over the rows where there are more.

    Raises:
        InvalidInput: shapes that differ, or values that are not finite.
    """
    _check_rows(rows, synthetic)
    if not (rows.shape == synthetic.shape and len(rows) >= 2):
        problem = Problem("rows", "need a synthetic row each, and two of them")
        raise InvalidInput("attack", [problem])
    from scipy.spatial.distance import cdist

    unit = np.where(scale > 0, scale, 1.0)
    real, made = rows / unit, synthetic / unit
    chosen = np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(np.intp))
    nearer, ranks = [], []
    for who in _parts(chosen, len(rows)):
        own = np.linalg.norm(made[who] - real[who], axis=1, keepdims=True)
        # The person itself, at 0, is the one who is not another.
        nearer.append((cdist(real[who], real) < own).sum(axis=1) - (own[:, 0] > 0))
        ranks.append(1 + (cdist(real[who], made) < own * (1 - 1e-12)).sum(axis=1))
    others = np.concatenate(nearer)
    return Pairing(
        float(others.mean() / (len(rows) - 1)),
        float(np.median(np.concatenate(ranks))),
        float(np.median(others)),
    )


# -- picture ---------------------------------------------------------------------------------------

_COLOURS = ("#0b6e99", "#b8480f", "#5b4b8a", "#3d7a3a")


def plot_roc(curves: Mapping[str, Array], path: Path, *, title: str, log: bool = True) -> None:
    """ROC curves, each the TPR at :data:`RATES`, as a picture: .png, .pdf or .svg by the suffix.

    Args:
        curves: by their names; a name that ends in :data:`EXTREMES` is dashed.
        log: both axes logarithmic, which shows the few who are found with certainty.

    Raises:
        InvalidInput, PenstockError: as :func:`penstock.base.pictures.check_picture`.
    """
    check_picture(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 5.2), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    axes.plot([1e-4, 1], [1e-4, 1], color="#888888", linewidth=1, linestyle=":", label="chance")
    names = list(dict.fromkeys(name.removesuffix(EXTREMES) for name in curves))
    for name, curve in curves.items():
        colour = _COLOURS[names.index(name.removesuffix(EXTREMES)) % len(_COLOURS)]
        line = "--" if name.endswith(EXTREMES) else "-"
        axes.plot(RATES, curve, color=colour, linestyle=line, linewidth=1.6, label=name)
    if log:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlim(1e-3 if log else 0, 1)
    axes.set_ylim(1e-3 if log else 0, 1.02)
    axes.set_xlabel("false alarms: share of others accused")
    axes.set_ylabel("share of members found")
    axes.set_title(title, fontsize=10, loc="left", parse_math=False)
    axes.grid(True, which="major", color="#e5e5e5", linewidth=0.6)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    figure.savefig(path, dpi=200)
