r"""What persons are like who are seen again and again: noisy counts, noisy moments, and a copula.

A person is one vector of scores: of how they attend
(:mod:`~penstock.mechanisms.trajectory.attendance`), of what does not vary, and of each column at
each time point, 0 where they are not there. Counts give each column its distribution at each time
point; Σ y yᵀ of the vectors y = (w∘s, 1) tells what goes with what, within a visit and between
visits. A person of the model is a Gaussian vector: attendance follows from its first numbers, and
each value from its own number's rank among those who are there, so that a margin is what was
counted however attendance goes with what is measured.

Correlations are those at which persons of the model, seen and clipped as rows were, have the
released moments (indirect inference: Gourieroux, Monfort & Renault 1993). Where moments are mostly
noise, a correlation is drawn to what pairs of the same columns, as far apart in time, have in
common: as in a stationary process, which needs so many fewer numbers. All of it but the two
releases is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from penstock.mechanisms.copula.densities import Known, Reference
from penstock.mechanisms.copula.grids import (
    Grid,
    draw_cells,
    draw_values,
    middle_of,
    place_of,
    share_of,
)
from penstock.mechanisms.copula.population import (
    Scale,
    make_definite,
    quasi_random,
    read_shares,
    recall,
    take_root,
)
from penstock.mechanisms.tables.margins import estimate_rows
from penstock.mechanisms.tables.moments import clip_rows, release_moments
from penstock.mechanisms.trajectory.attendance import (
    LATENTS,
    Attendance,
    AttendanceScores,
    count_attendance,
)
from penstock.mechanisms.trajectory.followed import Followed
from penstock.mechanisms.trajectory.repeats import SCORES, RepeatsPlan
from penstock.privacy.noise.sources import NoiseSource

if TYPE_CHECKING:
    from penstock.privacy.measurements import WholeSum

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]
Numbers = NDArray[np.intp]

_POWER = 11
"""2^11 imagined persons are looked at."""

_ROUNDS, _STEP, _MOST = 8, 0.8, 0.985
"""Of matching; and how far a correlation goes."""

_ALIKE, _AGES, _CORRELATED, _MISFIT, _SAMPLED = 0.06, 0.1, 0.5, 0.01, 1.0
"""How far a correlation is from that of pairs as far apart in time, these from those at whatever
different times, and these from 0, a priori; how far moments may be off; and the error of a
correlation of rows over 1/√rows."""

_MATCHES = 2
"""How often margins are read once more with what moments tell."""

_STIFFNESS, _SPREADS_DIFFER, _LEAST_VARIANCE, _LEAST_KNOWN, _MOVES = 60.0, 0.1, 0.05, 0.01, 12
"""How little a time point's density bends away from that of all, moved; how far spreads at
different times differ, a priori; and the least of one, and of its error."""

_FAR, _REACH, _NARROWEST = 0.999, (2.5, 3.5), 1e-3
"""A number's score reaches as far as this share of the rows, within bounds, in spreads; and the
least spread, of the whole scale."""

_FEWEST = 0.02
"""Share of persons below which a mean of those who are there is a guess."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the numbers of a person's vector are.

    Attributes:
        constants, varying: grids; count: T.
    """

    constants: Sequence[Grid]
    varying: Sequence[Grid]
    count: int

    @property
    def width(self) -> int:
        """Of the columns that vary, at one time point."""
        return sum(grid.latents for grid in self.varying)

    @property
    def start(self) -> int:
        """Where time points begin."""
        return LATENTS + sum(grid.latents for grid in self.constants)

    @property
    def size(self) -> int:
        return self.start + self.count * self.width

    def fixed(self) -> Iterator[tuple[int, Grid, Numbers]]:
        """Constants, by number, with their places."""
        return self._laid(self.constants, LATENTS)

    def at(self, t: int) -> Iterator[tuple[int, Grid, Numbers]]:
        """Columns that vary, by number, with their places at a time point."""
        return self._laid(self.varying, self.start + t * self.width)

    def _laid(self, grids: Sequence[Grid], at: int) -> Iterator[tuple[int, Grid, Numbers]]:
        for number, grid in enumerate(grids):
            yield number, grid, np.arange(at, at + grid.latents)
            at += grid.latents

    def times(self) -> Whole:
        """(size,): the time point of each number, or -1."""
        visits = np.repeat(np.arange(self.count), self.width)
        return np.concatenate([np.full(self.start, -1), visits])

    def attended(self, there: Bools) -> Array:
        """(N, size): 1 where a number is seen."""
        always = np.ones((len(there), self.start))
        return np.concatenate([always, np.repeat(there, self.width, axis=1)], axis=1)


@dataclass(frozen=True, slots=True)
class Dependence:
    """Persons as released: latents to attendance and values.

    Attributes:
        places: of a person's numbers; attendance: who is there when.
        fixed: shares of each constant's cells; moving: of each time point, of each column's.
        root: (D, D) of the correlation.
        middle, spread: (D,) of each number among those who are there.
        persons: how many were seen; rows: at how many visits, as released.
    """

    places: Places
    attendance: Attendance
    fixed: Sequence[Array]
    moving: Sequence[Sequence[Array]]
    root: Array
    middle: Array
    spread: Array
    persons: float
    rows: float

    @property
    def latents(self) -> int:
        return len(self.root)

    def join(self, latents: Array) -> Array:
        """Independent standard Gaussians (N, D) to those of persons."""
        return np.asarray(latents @ self.root)

    def draw(self, latents: Array, uniforms: Array) -> Followed:
        """Persons of independent Gaussians (N, D) and uniforms (N, T)."""
        joined = self.join(latents)
        there = self.attendance.draw(joined[:, :LATENTS], uniforms)
        ranked = (joined - self.middle) / self.spread
        values = [self.draw_at(ranked, t) for t in range(self.places.count)]
        names = [grid.column.name for grid in self.places.varying]
        laid = {name: np.column_stack([each[name] for each in values]) for name in names}
        return Followed(there, laid, self.draw_fixed(joined))

    def draw_fixed(self, joined: Array) -> dict[str, Array]:
        """Coded, (N,) each."""
        return {
            grid.column.name: draw_values(grid, self.fixed[j], joined[:, at])
            for j, grid, at in self.places.fixed()
        }

    def draw_at(self, ranked: Array, t: int) -> dict[str, Array]:
        """Coded columns at a time point, (N,) each, of numbers standardised among those there."""
        return {
            grid.column.name: draw_values(grid, self.moving[t][j], ranked[:, at])
            for j, grid, at in self.places.at(t)
        }


@dataclass(frozen=True, slots=True)
class Counted:
    """Noisy counts of persons; sd: of each one's noise."""

    fixed: list[Array]
    moving: list[list[Array]]
    spans: Array
    visits: Array
    present: Array
    persons: float
    sd: float


def count_persons(places: Places, followed: Followed) -> list[Whole]:
    """Persons in the cells of each histogram: constants; columns by time point; attendance."""
    seen, counts = followed.seen, []
    for _, grid, _ in places.fixed():
        counts.append(_count(grid, followed.constants[grid.column.name], seen))
    for t in range(places.count):
        for (_, grid, _), (_, values) in zip(places.at(t), followed.at(t), strict=True):
            counts.append(_count(grid, values, followed.there[:, t]))
    return [*counts, *count_attendance(followed.there)]


def _count(grid: Grid, values: Array, there: Bools) -> Whole:
    place = np.where(there, place_of(grid, np.where(there, values, _some(grid))), grid.count)
    return np.asarray(np.bincount(place, minlength=grid.count + 1)[: grid.count])


def _some(grid: Grid) -> float:
    """A value of the column, for who is not there."""
    return grid.column.bounds[0] if grid.numeric else 0.0


def release_persons(
    places: Places, followed: Followed, measurement: WholeSum, noise: NoiseSource
) -> Counted:
    """The counts, with noise."""
    histograms = count_persons(places, followed)
    noisy = measurement(np.concatenate(histograms), noise)
    parts = np.split(noisy, np.cumsum([len(h) for h in histograms])[:-1])
    *cells, spans, visits, present, total = parts
    few, each = len(places.constants), len(places.varying)
    fixed, sd = cells[:few], measurement.sd
    moving = [cells[few + t * each : few + (t + 1) * each] for t in range(places.count)]
    persons = estimate_rows(float(total[0]), [*fixed, spans, visits], sd, len(followed.there))
    seen = [
        min(estimate_rows(float(present[t]), moving[t], sd, len(followed.there)), persons)
        for t in range(places.count)
    ]
    return Counted(fixed, moving, spans, visits, np.array(seen), persons, sd)


def release_together(
    scores: Array, seen: Bools, radius: float, measurement: WholeSum, noise: NoiseSource
) -> Array:
    """Σ y yᵀ over persons, y = (scores, 1), with noise; (D + 1, D + 1).

    A person is one vector, clipped as a whole: R² in the Frobenius norm, zero-out of one person,
    however many rows it is made of.

    Args:
        scores: (n, D); seen: (n,).
    """
    return release_moments(scores[:, None, :], seen[:, None], radius, measurement, noise)


def fit(plan: RepeatsPlan, places: Places, followed: Followed, noise: NoiseSource) -> Dependence:
    """The model of persons: private as far as the plan's multipliers go."""
    counted = release_persons(places, followed, plan.margins, noise)
    imagined = Imagined.of(places)
    attendance = Attendance.read(
        counted.spans,
        counted.visits,
        counted.present,
        counted.persons,
        plan.visits,
        np.column_stack([ndtr(imagined.latents[:, :LATENTS]), imagined.uniforms]),
    )
    shares = Shares.read(places, counted)
    there = attendance.draw(imagined.latents[:, :LATENTS], imagined.uniforms)
    scores = Scores.of(places, shares, AttendanceScores.of(there), plan)
    released = release_together(scores(followed), followed.seen, plan.radius, plan.moments, noise)
    match = Match.of(plan, places, scores, attendance, imagined, counted, released)
    correlation = np.eye(places.size)
    for _ in range(_MATCHES):
        correlation = match.correlate(shares, correlation)
        shares = match.recall(shares, counted, correlation)
    correlation = match.correlate(shares, correlation)
    root = take_root(correlation)
    middle, spread, _ = match.rank(root)
    rows = float(np.clip(counted.present.sum(), 1.0, plan.persons * plan.rows))
    return Dependence(
        places, attendance, shares.fixed, shares.moving, root, middle, spread,
        counted.persons, rows,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Imagined:
    """Quasi-random persons, by whom a match goes; public: latents (N, D), uniforms (N, T)."""

    latents: Array
    uniforms: Array

    @classmethod
    def of(cls, places: Places) -> Imagined:
        points = quasi_random(places.size + places.count, _POWER)
        return cls(points[:, : places.size], ndtr(points[:, places.size :]))


@dataclass(frozen=True, slots=True)
class Shares:
    """Of the cells of each constant, and of each column at each time point.

    Attributes:
        pooled: of each column, over all time points.
    """

    fixed: list[Array]
    moving: list[list[Array]]
    pooled: list[Array]

    @classmethod
    def read(cls, places: Places, counted: Counted) -> Shares:
        """Numbers at all time points as they are over all of them, to begin with; levels as they
        are counted."""
        sd, count = counted.sd, places.count
        fixed = [
            read_shares(grid, counts, sd, counted.persons)
            for grid, counts in zip(places.constants, counted.fixed, strict=True)
        ]
        rows, pooled = float(counted.present.sum()), []
        for j, grid in enumerate(places.varying):
            whole = sum((each[j] for each in counted.moving), np.zeros(grid.count))
            pooled.append(read_shares(grid, whole, sd * math.sqrt(count), rows))
        moving = [
            [
                pooled[j] if grid.numeric else read_shares(grid, counts, sd, rows)
                for j, (grid, counts) in enumerate(zip(places.varying, each, strict=True))
            ]
            for each, rows in zip(counted.moving, counted.present, strict=True)
        ]
        return cls(fixed, moving, pooled)


@dataclass(frozen=True, slots=True)
class Scores:
    """A person's vector of weighted scores, by scales that were made of the first margins."""

    places: Places
    attendance: AttendanceScores
    fixed: list[Scale]
    moving: list[list[Scale]]
    weights: Array

    @classmethod
    def of(
        cls, places: Places, shares: Shares, attendance: AttendanceScores, plan: RepeatsPlan
    ) -> Scores:
        fixed = [_scale(g, s) for g, s in zip(places.constants, shares.fixed, strict=True)]
        # Of numbers one scale for all time points, so that they have a place in time there.
        common = [_scale(g, s) for g, s in zip(places.varying, shares.pooled, strict=True)]
        moving = [
            [
                common[j] if g.numeric else _scale(g, s)
                for j, (g, s) in enumerate(zip(places.varying, each, strict=True))
            ]
            for each in shares.moving
        ]
        parts = [np.full(LATENTS, attendance.reach), *(s.reach for s in fixed)]
        reach = np.concatenate([*parts, *(s.reach for each in moving for s in each)])
        # A score that reaches far, of a rare level, would be a whole person's length.
        most = places.start + plan.visits * places.width
        weights = np.sqrt(SCORES / most / np.maximum(reach / _REACH[1], 1.0))
        return cls(places, attendance, fixed, moving, weights)

    def __call__(self, followed: Followed) -> Array:
        """(n, D) of rows."""
        parts = [self.attendance(followed.there)]
        for j, grid, _ in self.places.fixed():
            parts.append(self.fixed[j].score(grid, followed.constants[grid.column.name]))
        for t in range(self.places.count):
            there = followed.there[:, t]
            for (j, grid, _), (_, values) in zip(self.places.at(t), followed.at(t), strict=True):
                known = np.where(there, values, _some(grid))
                parts.append(self.moving[t][j].score(grid, known) * there[:, None])
        return np.asarray(np.concatenate(parts, axis=1) * self.weights)

    def imagine(self, shares: Shares, joined: Array, ranked: Array, there: Bools) -> Array:
        """(N, D) of imagined persons, as if they had been rows, without the weights."""
        parts = [self.attendance(there)]
        for j, grid, at in self.places.fixed():
            parts.append(
                self.fixed[j].place(grid, draw_cells(grid, shares.fixed[j], joined[:, at]))
            )
        for t in range(self.places.count):
            for j, grid, at in self.places.at(t):
                cells = draw_cells(grid, shares.moving[t][j], ranked[:, at])
                parts.append(self.moving[t][j].place(grid, cells) * there[:, t, None])
        return np.concatenate(parts, axis=1)


@dataclass(frozen=True, slots=True)
class Match:
    """Which correlations give imagined persons the released moments.

    Attributes:
        told: (D + 1, D + 1) mean moments; error: sd of the noise beside their diagonal.
        kinds: (D, D) numbers of the kind of pair; families: of each pair, and of each kind, the
            number of its family; apart: pairs that are not correlated.
    """

    plan: RepeatsPlan
    places: Places
    scores: Scores
    attendance: Attendance
    imagined: Imagined
    told: Array
    error: float
    persons: float
    kinds: Whole
    families: tuple[Whole, Whole]
    apart: Bools

    @classmethod
    def of(
        cls,
        plan: RepeatsPlan,
        places: Places,
        scores: Scores,
        attendance: Attendance,
        imagined: Imagined,
        counted: Counted,
        released: Array,
    ) -> Match:
        error = plan.moments.sd / math.sqrt(2) / counted.persons
        told = released / counted.persons
        given = (plan, places, scores, attendance, imagined, told, error, counted.persons)
        return cls(*given, *_pair_kinds(places))

    def rank(self, root: Array) -> tuple[Array, Array, Bools]:
        """Mean and spread (D,) of each number among those who are there, and who is."""
        joined = self.imagined.latents @ root
        there = self.attendance.draw(joined[:, :LATENTS], self.imagined.uniforms)
        weight = self.places.attended(there)
        total = weight.sum(axis=0)
        safe = np.maximum(total, 1.0)
        middle = (weight * joined).sum(axis=0) / safe
        spread = np.sqrt((weight * (joined - middle) ** 2).sum(axis=0) / safe)
        enough = total > _FEWEST * len(joined)
        enough[: self.places.start] = False  # of everybody
        return np.where(enough, middle, 0.0), np.where(enough, spread, 1.0), there

    def look(self, shares: Shares, root: Array) -> tuple[Array, Array, Array, Bools]:
        """Mean moments of imagined persons as they are released; scores, latents, attendance."""
        joined = self.imagined.latents @ root
        middle, spread, there = self.rank(root)
        ranked = (joined - middle) / spread
        plain = self.scores.imagine(shares, joined, ranked, there)
        seen = np.column_stack([plain * self.scores.weights, np.ones(len(plain))])
        seen = clip_rows(seen, self.plan.radius)
        return np.asarray(seen.T @ seen / len(seen)), plain, joined, there

    def correlate(self, shares: Shares, start: Array) -> Array:
        """(D, D)."""
        correlation, weights = start.copy(), self.scores.weights
        for _ in range(_ROUNDS):
            found, plain, joined, there = self.look(shares, take_root(correlation))
            attended = self.places.attended(there)
            both = attended.T @ attended / len(there)
            share = np.maximum(np.diag(both), 1e-6)
            # By how much a score goes with its own number.
            follows = np.abs((plain * joined).mean(axis=0)) / share
            follows = np.maximum(follows, 0.02)
            size = both * np.outer(weights * follows, weights * follows)
            gap = _centred(self.told, both, share) - _centred(found, both, share)
            error = (self.error / np.maximum(size, 1e-12)) ** 2 + _MISFIT**2
            error += _SAMPLED / (self.persons * np.maximum(both, 1e-6))
            precision = np.where(both > 1e-3, 1 / error, 0.0)
            raw = correlation + np.where(precision > 0, gap / np.maximum(size, 1e-12), 0.0)
            correlation = correlation + _STEP * (self._pool(raw, precision) - correlation)
            correlation = np.clip(correlation, -_MOST, _MOST)
            correlation[self.apart] = 0.0
            np.fill_diagonal(correlation, 1.0)
            correlation = make_definite(correlation)
        return correlation

    def _pool(self, raw: Array, precision: Array) -> Array:
        """Each pair's correlation between its own and that of its kind, and that between its own
        and that of its family, by what noise leaves."""
        flat = precision.ravel()
        sums, total = _sum_alike(self.kinds, raw.ravel(), flat, _ALIKE)
        own = sums / np.maximum(total, 1e-12)
        sums, weight = _sum_alike(self.families[1], own, total, _AGES)
        families = sums / (weight + 1 / _CORRELATED**2)
        older = families[self.families[1]]
        common = ((own * total + older / _AGES**2) / (total + 1 / _AGES**2))[self.kinds]
        return np.asarray((precision * raw + common / _ALIKE**2) / (precision + 1 / _ALIKE**2))

    def recall(self, shares: Shares, counted: Counted, correlation: Array) -> Shares:
        """Margins once more, with the means and squares that moments tell of them."""
        found, _, _, there = self.look(shares, take_root(correlation))
        gap, share = self.told - found, np.maximum(there.mean(axis=0), _FEWEST)
        fixed, moving = list(shares.fixed), [list(each) for each in shares.moving]
        for j, grid, at in self.places.fixed():
            if grid.numeric:
                known = self._known(
                    self.scores.fixed[j].points, shares.fixed[j], int(at[0]), gap, 1.0
                )
                given = (counted.fixed[j], counted.sd, counted.persons)
                fixed[j] = read_shares(grid, *given, [known])
        for j, grid in enumerate(self.places.varying):
            if not grid.numeric:
                continue
            points = self.scores.moving[0][j].points
            known_at = []
            for t in range(self.places.count):
                place = self.places.start + t * self.places.width + _offset(self.places, j)
                known_at.append(
                    self._known(points, shares.moving[t][j], place, gap, float(share[t]))
                )
            for t, known in enumerate(_even_spreads(known_at)):
                moved = move_shares(grid, shares.pooled[j], known)
                counts, rows = counted.moving[t][j], float(counted.present[t])
                reference = Reference(moved, _STIFFNESS)
                moving[t][j] = read_shares(grid, counts, counted.sd, rows, [known], reference)
        return Shares(fixed, moving, shares.pooled)

    def _known(self, points: Array, shares: Array, at: int, gap: Array, share: float) -> Known:
        mine, weight = gap[at, [-1, at]] / share, float(self.scores.weights[at])
        return recall(points, shares, weight, mine, self.error / share, self.persons * share)


def _scale(grid: Grid, shares: Array) -> Scale:
    """How far a column's scores reach; a number's are itself, on the column's scale, in spreads
    from its mean: normal scores would know nothing of how far apart values are."""
    if not grid.numeric:
        return Scale.of(grid, shares)
    values = middle_of(grid)
    there = ~np.isnan(values)
    x, p = share_of(grid.column, values[there]), shares[there] / shares[there].sum()
    mean = float(p @ x)
    spread = math.sqrt(float(p @ (x - mean) ** 2) + _NARROWEST**2)
    away = (x - mean) / spread
    order = np.argsort(np.abs(away))
    far = int(np.searchsorted(np.cumsum(p[order]), _FAR).clip(max=len(x) - 1))
    reach = min(max(float(np.abs(away[order[far]])), _REACH[0]), _REACH[1])
    points = np.zeros(grid.count)
    points[there] = np.clip(away, -reach, reach)
    return Scale(np.array([mean]), np.array([spread]), np.array([reach]), points)


def _offset(places: Places, column: int) -> int:
    """Where a column begins among those of a time point."""
    return sum(grid.latents for grid in places.varying[:column])


def _even_spreads(known: Sequence[Known]) -> list[Known]:
    """Squares of a column that noise makes differ in time are drawn to those that all have.

    By how far noise reaches beyond :data:`_SPREADS_DIFFER`. Means are left as they are: how they
    move is what is asked.
    """
    variances = np.array([max(one.square - one.mean**2, _LEAST_VARIANCE) for one in known])
    noise = np.array([one.square_sd for one in known]) ** 2
    tells = 1 / (noise + _SPREADS_DIFFER**2)
    common = float(tells @ variances / tells.sum())
    kept = _SPREADS_DIFFER**2 / (_SPREADS_DIFFER**2 + noise)
    even = common + kept * (variances - common)
    spread = np.sqrt(kept) * np.sqrt(noise)
    return [
        replace(one, square=float(v) + one.mean**2, square_sd=max(float(s), _LEAST_KNOWN))
        for one, v, s in zip(known, even, spread, strict=True)
    ]


def move_shares(grid: Grid, pooled: Array, known: Known) -> Array:
    """Shares of a number's bins: those over all time, moved and stretched as normal scores are,
    until mean and square are as known."""
    bins = grid.bins
    apart = [cell for cell in (grid.spike, grid.missing) if cell >= 0]
    inner = float(pooled[bins].sum())
    beside = known.without(pooled, apart, bins, inner) if apart else known
    points = beside.points if apart else known.points[bins]
    shares = pooled[bins] / inner
    edges = ndtri(np.clip(np.cumsum(shares)[:-1], 1e-12, 1 - 1e-12))
    goal = math.sqrt(max(beside.square - beside.mean**2, _LEAST_VARIANCE))
    slope = max(math.sqrt(float(shares @ points**2) - float(shares @ points) ** 2), 1e-3)
    middle, spread, moved = 0.0, 1.0, shares
    for _ in range(_MOVES):
        mean = float(moved @ points)
        found = math.sqrt(max(float(moved @ points**2) - mean**2, 1e-6))
        middle = min(max(middle + (beside.mean - mean) / slope, -3.0), 3.0)
        spread = min(max(spread * goal / found, 0.2), 5.0)
        risen = np.concatenate([[0.0], ndtr((edges - middle) / spread), [1.0]])
        moved = np.maximum(np.diff(risen), 1e-9)
        moved = moved / moved.sum()
    return moved


def _sum_alike(
    groups: Whole, values: Array, precision: Array, differ: float
) -> tuple[Array, Array]:
    """Of each group the weighted sum and the weight, where members differ by so much."""
    tells = np.where(precision > 0, 1 / (1 / np.maximum(precision, 1e-12) + differ**2), 0.0)
    flat = groups.ravel()
    summed, total = (np.bincount(flat, weights=weights) for weights in (tells * values, tells))
    return np.asarray(summed, dtype=np.float64), np.asarray(total, dtype=np.float64)


def _centred(moments: Array, both: Array, share: Array) -> Array:
    """Moments (D, D) less what means of those who are there add to them."""
    mean = moments[:-1, -1] / share
    return np.asarray(moments[:-1, :-1] - both * np.outer(mean, mean))


def _pair_kinds(places: Places) -> tuple[Whole, tuple[Whole, Whole], Bools]:
    """Which pairs are alike: of the same numbers as far apart in time (a kind), or at whatever
    different times (a family); and pairs that say nothing: levels of one column at one time, and
    how a person attends with itself."""
    size, times = places.size, places.times()
    base, visit = np.arange(size), times >= 0
    base[visit] = places.start + (base[visit] - places.start) % max(places.width, 1)
    first, second = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    low = np.where(times[first] <= times[second], first, second)
    high = np.where(times[first] <= times[second], second, first)
    lag = np.where(times[low] >= 0, times[high] - times[low], 0)
    # Which of two columns is the earlier one matters, and of none at the same time.
    a, b = base[low], base[high]
    a, b = np.where(lag == 0, np.minimum(a, b), a), np.where(lag == 0, np.maximum(a, b), b)
    _, kinds = np.unique((lag * size + a) * size + b, return_inverse=True)
    _, family = np.unique(((lag > 0) * size + a) * size + b, return_inverse=True)
    kinds, family = kinds.reshape(size, size), family.reshape(size, size)
    of_kind = np.zeros(int(kinds.max()) + 1, dtype=np.int64)
    of_kind[kinds.ravel()] = family.ravel()
    owner = np.zeros(size, dtype=np.int64)
    owner[:LATENTS] = -1
    for j, _, at in places.fixed():
        owner[at] = -2 - j
    for t in range(places.count):
        for j, _, at in places.at(t):
            owner[at] = t * max(len(places.varying), 1) + j
    apart = (owner[:, None] == owner[None, :]) & ~np.eye(size, dtype=np.bool_)
    return kinds, (family, of_kind), apart
