r"""The choice of w: what a share of the rows' own latents buys in utility, and costs in secrecy.

The protocol of Shen & Tian 2025: of the persons, 80 % are members, on whom a density model is
fitted and whose rows get noise; attacks then tell them from the 20 % who were held out. One fit and
one draw of noise serve every w, so that neighbours on a curve differ by w and not by luck.

============  =========================================================================
latent noise  :math:`T(\sqrt w\,\mathrm{clip}_R(T^{-1}(x)) + \sqrt{1-w}\,Z)`
direct noise  :math:`\hat μ + \sqrt w (x - \hat μ) + \sqrt{1-w}\,\mathrm{diag}(\hat σ)\,Z`
============  =========================================================================

The second is there to be compared with, and so is flow sampling: latent noise at w = 0.

**A w that is chosen so is chosen on private rows**, and tells of them (docs/privacy.md,
"Guarantee classes"): that is for class ``empirical``, where ε = ∞ anyway, and for a steward's
own eyes. Under ``formal`` and ``public-flow`` w is fixed in the study, before any row is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.audit import membership
from penstock.audit.membership import EXTREMES, Density, Pairing, Report
from penstock.base.documents import Json, JsonView
from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.tables.latent_noise import clip_latents
from penstock.privacy.noise.sources import NoiseSource, permutation

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

LATENT, DIRECT = "latent noise", "direct noise"
"""Ways of making synthetic rows; latent noise at w = 0 is flow sampling."""

DISTANCE, RATIO = "distance", "likelihood ratio"
ATTACKS = (DISTANCE, RATIO)

CORRELATIONS, MEANS, SDS = "correlations", "means", "sds"
"""Errors of every table; see :func:`errors`."""

GRID = (0.0, 0.25, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.975)
MOST_AUC = 0.55
"""The AUC up to which the paper takes attacks for chance."""

HELD_OUT = 0.2
FAR = 1e6
"""A latent radius that clips nobody."""


class Model(Density, Protocol):
    """A density with latents, such as a fitted flow."""

    def to_values(self, latents: Array, /) -> Array:
        """(n, d) latents to rows."""


def held_out(persons: int, noise: NoiseSource) -> NDArray[np.intp]:
    """A random fifth of this many persons, by index."""
    return permutation(persons, noise)[: round(HELD_OUT * persons)]


def _unchanged(rows: Array) -> Array:
    return rows


@dataclass(frozen=True, slots=True)
class Trial:
    """Rows that synthetic ones are made of, and people whom attacks try to tell.

    Args:
        model: fitted on the members (or on public rows); the second attack knows all of it.
        rows: (n, d) members' rows; present: (n,), the others are null records, of latent 0.
        candidates: (m, d) rows to score; person: (m,), whose, numbered from 0; member: (persons,).
        clip: radius R of the latents.
        copies: independent releases that the attacker has of one kind.
        absent: share of null records, as the attacker knows it.
        seen: made rows as they leave, as where a table is rounded; ``candidates`` are seen already.
        estimates: what else tables are for, by name: each maps rows (n, d) to a number.
    """

    model: Model
    rows: Array
    present: Bools
    candidates: Array
    person: NDArray[np.intp]
    member: Bools
    clip: float = FAR
    copies: int = 1
    absent: float = 0.0
    seen: Callable[[Array], Array] = _unchanged
    estimates: Mapping[str, Callable[[Array], float]] = field(default_factory=dict)

    @classmethod
    def plain(cls, model: Model, members: Array, others: Array, **rest: Any) -> Trial:
        """One row per person, (n, d) of members and (m, d) of others; all of them are scored."""
        people = len(members) + len(others)
        return cls(
            model,
            members,
            np.ones(len(members), dtype=np.bool_),
            np.concatenate([members, others]),
            np.arange(people),
            np.arange(people) < len(members),
            **rest,
        )


@dataclass(frozen=True, slots=True)
class Point:
    """What one way of making rows achieves at one w.

    Args:
        reports, curves: by "attack" and "attack, extreme", where there were people enough.
        pairing: of persons and their own synthetic rows; None with fewer than two rows.
        errors: by :data:`CORRELATIONS`, … and the trial's estimates, how far synthetic rows are
            from the members' own.
    """

    way: str
    w: float
    reports: Mapping[str, Report]
    curves: Mapping[str, Array]
    pairing: Pairing | None
    errors: Mapping[str, float]

    def to_dict(self) -> Json:
        """Its JSON form, without the curves."""
        return {
            "way": self.way,
            "w": self.w,
            "reports": {name: report.to_dict() for name, report in self.reports.items()},
            "pairing": None if self.pairing is None else asdict(self.pairing),
            "errors": dict(self.errors),
        }


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """Points by way and ascending w."""

    points: tuple[Point, ...]

    def by(self, way: str) -> list[Point]:
        """The points of one way."""
        return [p for p in self.points if p.way == way]

    def at(self, w: float, way: str = LATENT) -> Point:
        """One point.

        Raises:
            InvalidInput: there is none of this w.
        """
        for point in self.by(way):
            if point.w == w:
                return point
        known = ", ".join(f"{p.w:g}" for p in self.by(way))
        raise InvalidInput("trade-off", [Problem("w", "not on the grid", None, str(w), known)])

    def to_dict(self, curves: bool = False) -> Json:
        """Its JSON form."""
        records = [p.to_dict() for p in self.points]
        if curves:
            for record, point in zip(records, self.points, strict=True):
                record["curves"] = {name: _numbers(c) for name, c in point.curves.items()}
        return {"points": records}

    @classmethod
    def from_dict(cls, record: JsonView) -> Tradeoff:
        """Read :meth:`to_dict` back."""
        return cls(tuple(_point(p) for p in record["points"]))


def _point(record: JsonView) -> Point:
    pairing, curves = record["pairing"], record.get("curves", {})
    return Point(
        record["way"],
        record["w"],
        {name: Report.from_dict(report) for name, report in record["reports"].items()},
        {n: np.array([math.nan if v is None else v for v in c]) for n, c in curves.items()},
        None if pairing is None else Pairing(**pairing),
        record["errors"],
    )


def _numbers(curve: Array) -> list[float | None]:
    return [None if np.isnan(v) else float(v) for v in curve]


# -- choosing --------------------------------------------------------------------------------------


def choose_w(
    table: Tradeoff,
    auc: float = MOST_AUC,
    nearer: float | None = None,
    attacks: Sequence[str] = ATTACKS,
) -> float:
    """The largest w of the grid up to which all points qualify; 0 where not even the least does.

    Up to which: a w that looks safe beyond one that does not is luck. Of nearly equal w nothing is
    preferred but the larger. Whether 0 itself qualified, :func:`qualifies` tells.

    Raises:
        InvalidInput: as :func:`qualifies`.
    """
    chosen = 0.0
    for point in sorted(table.by(LATENT), key=lambda p: p.w):
        if not qualifies(point, auc, nearer, attacks):
            break
        chosen = point.w
    return chosen


def qualifies(
    point: Point,
    auc: float = MOST_AUC,
    nearer: float | None = None,
    attacks: Sequence[str] = ATTACKS,
) -> bool:
    """Whether none of the attacks has an AUC above ``auc``: the paper's criteria for a w.

    Args:
        attacks: (:data:`DISTANCE`,) is the paper's own rule; the likelihood ratio sees more.
        nearer: also ask that P(another person is nearer than the own synthetic row) be at least
            this, the paper's second criterion (its equation 22).

    An attack without a report, or a missing pairing where ``nearer`` is asked, does not pass. AUCs
    are compared as estimated, without their intervals, as in the paper.

    Raises:
        InvalidInput: a bound out of (0, 1), no attack, or an unknown one.
    """
    problems = [
        Problem(name, "out of bounds", None, str(value), "in (0, 1)")
        for name, value in (("auc", auc), ("nearer", 0.5 if nearer is None else nearer))
        if not 0 < value < 1
    ]
    if not attacks or set(attacks) - set(ATTACKS):
        problems.append(Problem("attacks", "unknown", None, str(attacks), ", ".join(ATTACKS)))
    if problems:
        raise InvalidInput("choice of w", problems)
    if not all(a in point.reports and point.reports[a].auc.value <= auc for a in attacks):
        return False
    return nearer is None or (point.pairing is not None and point.pairing.nearer >= nearer)


# -- measuring -------------------------------------------------------------------------------------


def sweep(
    trial: Trial,
    noise: NoiseSource,
    grid: Sequence[float] = GRID,
    *,
    ways: Sequence[str] = (LATENT, DIRECT),
    progress: Callable[[int, int], None] | None = None,
) -> Tradeoff:
    """Release and attack at every w of the grid, each way.

    Raises:
        InvalidInput: a w out of [0, 1) or none, an unknown way, a clip that is not above 0, or
            rows that are not finite.
    """
    values = sorted(set(grid))
    if not values or not all(0 <= w < 1 for w in values) or not set(ways) <= {LATENT, DIRECT}:
        problem = Problem("w", "out of bounds", None, f"{values}, {ways}", "in [0, 1), a known way")
        raise InvalidInput("trade-off", [problem])
    ground = _Ground(trial)
    runs = [_Run(ground, way, w) for way in ways for w in values]
    for copy in range(trial.copies):
        z = noise.normal(trial.rows.shape)
        for index, run in enumerate(runs):
            run.add(z)
            if progress is not None:
                progress(copy * len(runs) + index + 1, trial.copies * len(runs))
    return Tradeoff(tuple(run.point() for run in runs))


class _Ground:
    """What all runs of a trial share."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        own = trial.rows[trial.present]
        self.latents = clip_latents(trial.model.to_latent(trial.rows), trial.present, trial.clip)
        # Direct noise knows the rows' own mean and sd; a null record has the mean's place.
        self.centre = own.mean(axis=0) if len(own) else np.zeros(trial.rows.shape[1])
        self.scale = own.std(axis=0) if len(own) else np.zeros(trial.rows.shape[1])
        self.off_centre = np.where(trial.present[:, None], trial.rows - self.centre, 0.0)
        self.own = trial.seen(own)
        self.estimates = {name: estimate(self.own) for name, estimate in trial.estimates.items()}
        # Of a person's rows, the most unusual one.
        far = np.full(len(trial.member), -np.inf)
        np.maximum.at(far, trial.person, membership.extremity(trial.candidates))
        count = max(1, round(membership.EXTREME * len(far)))
        self.extreme = np.zeros(len(far), dtype=np.bool_)
        self.extreme[np.argsort(-far)[:count]] = True

    def release(self, way: str, w: float, z: Array) -> Array:
        """A synthetic table in the rows' own order: it helps no attack, and tells whose is whose.

        As :func:`penstock.mechanisms.tables.latent_noise.inject`, with noise that every w shares.
        """
        if way == DIRECT:
            noisy = math.sqrt(w) * self.off_centre + math.sqrt(1 - w) * self.scale * z
            return self.trial.seen(self.centre + noisy)
        noisy = math.sqrt(w) * self.latents + math.sqrt(1 - w) * z
        return self.trial.seen(self.trial.model.to_values(noisy))

    def ratio(self, way: str, w: float, made: Array) -> Array:
        """Of every candidate row."""
        trial = self.trial
        if way == DIRECT:
            return membership.direct_ratio(made, trial.candidates, w, self.centre, self.scale)
        return membership.likelihood_ratio(
            trial.model, made, trial.candidates, w, trial.clip, absent=trial.absent
        )


class _Run:
    """One way and one w, over the copies."""

    def __init__(self, ground: _Ground, way: str, w: float) -> None:
        self.ground, self.way, self.w = ground, way, w
        self.scores = {name: np.zeros(len(ground.trial.candidates)) for name in ATTACKS}
        self.pairing: Pairing | None = None
        self.errors: dict[str, float] = {}
        self.copies = 0

    def add(self, z: Array) -> None:
        ground, trial, first = self.ground, self.ground.trial, self.copies == 0
        self.copies += 1
        made = ground.release(self.way, self.w, z)
        scale = made.std(axis=0)
        self.scores[DISTANCE] -= membership.closest(made, trial.candidates, scale) / trial.copies
        if self.w > 0 or first:  # at w = 0 more copies tell no more of the model
            self.scores[RATIO] += ground.ratio(self.way, self.w, made)
        own = made[trial.present]
        if first and len(own) >= 2:
            self.pairing = membership.pairing(ground.own, own, scale)
        found = errors(ground.own, own)
        for name, estimate in trial.estimates.items():
            found[name] = abs(estimate(own) - ground.estimates[name])
        for name, value in found.items():
            self.errors[name] = self.errors.get(name, 0.0) + value / trial.copies

    def point(self) -> Point:
        person, member = self.ground.trial.person, self.ground.trial.member
        reports, curves = {}, {}
        for attack, scores in self.scores.items():
            mean = np.bincount(person, scores) / np.bincount(person)
            for name, who in ((attack, ...), (f"{attack}{EXTREMES}", self.ground.extreme)):
                members, others = mean[who][member[who]], mean[who][~member[who]]
                if min(len(members), len(others)) < 2:
                    continue  # of a small site's extreme records; there is nothing to compare
                reports[name] = membership.attack_report(members, others)
                curves[name] = membership.roc(members, others)
        return Point(self.way, self.w, reports, curves, self.pairing, self.errors)


def errors(real: Array, made: Array) -> dict[str, float]:
    """How far the rows ``made`` (m, d) are from ``real`` (n, d), over columns that vary.

    Mean ``|difference|`` of Pearson correlations over pairs of columns (a column that is constant
    in ``made`` correlates with nothing there), of means and of standard deviations, both in units
    of the real sd. Without two columns that vary there are no correlations to compare.
    """
    scale = real.std(axis=0)
    kept = scale > 0
    if not (kept.any() and len(made)):
        return {}
    a, b, unit = real[:, kept], made[:, kept], scale[kept]
    found = {
        MEANS: float((np.abs(b.mean(axis=0) - a.mean(axis=0)) / unit).mean()),
        SDS: float((np.abs(b.std(axis=0) - unit) / unit).mean()),
    }
    if kept.sum() >= 2:
        pairs = np.triu_indices(int(kept.sum()), 1)
        found[CORRELATIONS] = float(np.abs(_correlations(b) - _correlations(a))[pairs].mean())
    return found


def _correlations(x: Array) -> Array:
    centred = x - x.mean(axis=0)
    norm = np.linalg.norm(centred, axis=0)
    unit = centred / np.where(norm > 0, norm, 1.0)
    products: Array = unit.T @ unit
    return products


def average(tables: Sequence[Tradeoff]) -> Tradeoff:
    """The mean of repeated runs on the same people and grid; see :func:`membership.average`."""
    return Tradeoff(
        tuple(_mean(points) for points in zip(*(t.points for t in tables), strict=True))
    )


def _mean(points: Sequence[Point]) -> Point:
    first = points[0]
    names = [name for name in first.reports if all(name in p.reports for p in points)]
    pairs = [p.pairing for p in points if p.pairing is not None]
    return Point(
        first.way,
        first.w,
        {name: membership.average([p.reports[name] for p in points]) for name in names},
        {name: np.mean([p.curves[name] for p in points], axis=0) for name in names},
        Pairing(
            *(float(np.mean([getattr(p, f) for p in pairs])) for f in ("nearer", "rank", "others"))
        )
        if pairs
        else None,
        {name: float(np.mean([p.errors[name] for p in points])) for name in first.errors},
    )
