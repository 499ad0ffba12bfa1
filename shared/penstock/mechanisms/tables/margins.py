r"""Noisy margins: each column's histogram, and the maps that give columns the normal shape.

Histograms are whole numbers with exact discrete Gaussian noise, under zero-out with public n: their
sensitivity holds in the machine's arithmetic, not only on paper. Everything after the noise is
post-processing.

* :func:`release_histograms` counts each column on a fixed grid over the public box, and levels
  without an order as levels, whatever their number of coordinates. A duration is counted apart for
  events, for times censored before the end of follow-up, and for who is event-free at the end, at
  no further cost: a row is in one of the three.
* :func:`standardise` takes each column's mean and sd from them: *linear* scores, in which moments
  are measured, since regressions are linear in the columns as they are.
* :class:`Margins` takes each column's whole distribution: *normal* scores, in which the density
  model works. Skew, gaps and piles cost it nothing then, and survive however little the budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.tables.level_shares import spread_levels
from penstock.mechanisms.tables.moments import Affine
from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.sources import NoiseSource
from penstock.privacy.sensitivity import histogram
from penstock.schema.encoding import Outcome, Simplex, level_noise, nowhere_noise

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Outcomes = Sequence[Outcome]
"""Coordinates of durations, each with its event's and its end's (above 0: it is so)."""
Levels = Mapping[int, Array]
"""Of each coordinate that holds levels alone, their points; at most BINS of them are counted so."""
Simplices = Sequence[Simplex]
"""Columns of levels that have several coordinates each."""

BINS = 64
"""Bins per column, equal widths over the public box."""

_CERTAIN, _LIKELY = 3.5, 0.5
"""By how many sds a count stands out of its noise, and stands out a little. A column's many empty
bins would else hold a handful of rows each, far from all others, where they would weigh most."""

_PLACED, _SHAPED = 20.0, 80.0
"""How many sds of a count's noise there must be rows, for a column's mean and sd, and its shape."""

_WIDTHS = (1.0, 2.0, 4.0, 8.0)
"""Widths of the kernels, in bins, that smooth counts which do not stand out by themselves."""

_CELLS, _FEWEST, _APART, _MOST = 0.8, 3, 2.0, 0.9
"""Of a duration's times: how many cells there are, in units of (rows/sd)^(2/3), and at least, as a
power of two; by how many sds of its noise a smoothed count stands out, and what share of the times
is to. Frozen on simulated times (Weibull, log-normal, with a cured share)."""

_SHOWN = 3.0
"""How many sds of the noise on its sum there must be rows in a duration's half, for its shape."""

_EMPTY = 1e-7
"""Share of a bin that is not kept: the maps keep their inverses."""

_TAIL = 3e-5
"""Normal scores end at this quantile and its opposite, near ±4."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Noisy counts.

    Args:
        bins: (d, BINS), of each column; of levels, in its first places. Of a duration, without the
            rows that are event-free at its end; of its end, the event-free rows before it and at
            it, then the events.
        split: (m, 2, cells), of each duration: times censored before the end, then events, in as
            many even cells as :func:`time_cells` says.
        ended: (m,), rows that are event-free at the end, of two counts the mean.
        rows: the number of rows present, by all counts; sd: of each count's noise.
        levels: of each simplex (L + 1,), rows of each level and of none; its bins are 0.
    """

    bins: Array
    split: Array
    ended: Array
    rows: float
    sd: float
    levels: tuple[Array, ...] = ()


def measure_histograms(
    sigma: float, d: int, rows_per_person: int, outcomes: int = 0, spared: int = 0
) -> WholeSum:
    """Counts of every column, and the number of rows; ``outcomes``: how many durations are split.

    Sensitivity: :func:`penstock.privacy.sensitivity.histogram` of d + 1 - spared (each column, and
    the total number of rows), zero-out of one person. A row counts once per column, split or not,
    and once per simplex, of whose coordinates all but one are ``spared``.
    """
    counted = d + 1 - spared
    return WholeSum(
        label="margins",
        noise_multiplier=sigma,
        sensitivity=histogram(counted, rows_per_person),
        squared=Fraction(rows_per_person**2 * counted),
        unit=1.0,
        size=BINS * (d + outcomes) + outcomes + 1,
    )


def release_histograms(
    rows: Array,
    present: Bools,
    low: Array,
    high: Array,
    measurement: WholeSum | None,
    noise: NoiseSource,
    outcomes: Outcomes = (),
    levels: Levels | None = None,
    most: int | None = None,
    simplices: Simplices = (),
) -> Counts:
    """Histograms of every column and the number of rows, with noise.

    Args:
        rows: (n, k, d); present: (n, k). Values are clamped to the box; NaN counts at its centre.
        low, high: (d,), the public box.
        measurement: of :func:`measure_histograms`, or None for no noise (public rows, ``empirical``
            class).
        outcomes: durations whose histograms are split by their events and ends.
        levels: coordinates that are counted by level: fewer counts, hence less noise.
        most: rows of the frame, public; n·k where these are not one site's of many.
        simplices: columns of levels that are counted as levels.

    Raises:
        InvalidInput: there are more histograms than the measurement is charged for.
    """
    n, k, _ = rows.shape
    sd = 0.0 if measurement is None else measurement.sd
    frame = n * k if most is None else most
    times = time_cells(frame, sd)
    cells = count_rows(rows, present, low, high, times, outcomes, levels, simplices)
    histograms = sum(len(part) > 0 for part in cells)
    if measurement is not None and measurement.squared < k**2 * histograms:
        raise InvalidInput(
            "margins",
            [
                Problem(
                    "counts",
                    "are more histograms than were charged",
                    value=str(histograms),
                    bound=f"at most {measurement.squared / k**2}",
                )
            ],
        )
    whole = np.concatenate(cells)
    flat = whole.astype(np.float64) if measurement is None else measurement(whole, noise)
    released = np.split(flat, np.cumsum([len(c) for c in cells])[:-1])
    return _read_counts(released, outcomes, times, sd, frame, simplices)


def count_rows(
    rows: Array,
    present: Bools,
    low: Array,
    high: Array,
    times: int,
    outcomes: Outcomes = (),
    levels: Levels | None = None,
    simplices: Simplices = (),
) -> list[NDArray[np.int64]]:
    """How many rows are in each cell of each column; last, how many rows there are. Of a simplex
    its first coordinate has the levels', and no other has a cell.

    Args:
        times: even cells of a split duration's halves; after them, who is event-free at the end.
    """
    d = rows.shape[2]
    inside, there = clamp(rows, low, high).reshape(-1, d), present.ravel()
    split, ends = {o.duration: o for o in outcomes}, {o.end: o for o in outcomes}
    first, spared = {s.where.start: s for s in simplices}, _list_spared(simplices)
    cells = []
    for j, x in enumerate(inside.T):
        if j in spared:
            cells.append(np.zeros(0, dtype=np.int64))
            continue
        if j in first:
            count, place = len(first[j].points) + 1, first[j].find_levels(inside)
        elif j in ends:
            happened, ended = outcome_states(inside, ends[j])
            count, place = 3, np.where(happened, 2, ended.astype(np.intp))
        else:
            count, place = _places(x, low[j], high[j], (levels or {}).get(j))
        if j in split:
            happened, ended = outcome_states(inside, split[j])
            place = place * times // BINS
            place = np.where(ended, 2 * times, place + times * happened)
            count = 2 * times + 1
        # Absent rows are counted, too, in a cell of their own.
        cells.append(np.bincount(np.where(there, place, count), minlength=count + 1)[:count])
    return [*cells, np.array([np.count_nonzero(there)])]


def _list_spared(simplices: Simplices) -> set[int]:
    """The coordinates that have no count of their own: all of a simplex but the first."""
    return {j for s in simplices for j in range(s.where.start + 1, s.where.stop)}


def _read_counts(
    released: Sequence[Array],
    outcomes: Outcomes,
    times: int,
    sd: float,
    most: int,
    simplices: Simplices = (),
) -> Counts:
    """What was released of each column's cells and, last, of the number of rows."""
    *parts, counted = released
    bins = np.zeros((len(parts), BINS))
    split, levels = {o.duration for o in outcomes}, tuple(parts[s.where.start] for s in simplices)
    apart = {j for s in simplices for j in range(s.where.start, s.where.stop)}
    for j, (row, part) in enumerate(zip(bins, parts, strict=True)):
        if j in apart:
            continue
        if j in split:
            row[:] = np.repeat(part[:-1].reshape(2, times).sum(axis=0), BINS // times)
            row[:] *= times / BINS
        else:
            row[: len(part)] = part
    halves = [parts[o.duration][:-1].reshape(2, times) for o in outcomes]
    at_end = np.array([(parts[o.duration][-1] + parts[o.end][1]) / 2 for o in outcomes])
    total = estimate_rows(float(counted[0]), [part for part in parts if len(part)], sd, most)
    return Counts(bins, np.array(halves).reshape(-1, 2, times), at_end, total, sd, levels)


def time_cells(rows: int, sd: float) -> int:
    """In how many even cells the times of a duration's half are counted: a power of two.

    What a survival curve asks is how many came before a time. Half of c noisy cells put √c·sd/2 on
    that share of the rows; wide cells blur the times by 1/c. The sum is least near (rows/sd)^(2/3).

    Args:
        rows: of the frame; sd: of each count's noise. Both are public.
    """
    wanted = _CELLS * (rows / sd) ** (2 / 3) if sd > 0 else float(BINS)
    return 1 << min(max(round(math.log2(max(wanted, 1.0))), _FEWEST), BINS.bit_length() - 1)


def outcome_counts(
    counts: Counts, index: int, outcome: Outcome, levels: Levels | None = None
) -> Array:
    """Rows censored before the end, event-free at it, and with the event: (3,), ≥ 0.

    By least squares of all that was counted of them, so that they add up to the number of rows.
    """
    end = counts.bins[outcome.end]
    told = [
        (1, 0, 0, end[0], 1.0),
        (0, 1, 0, counts.ended[index], 0.5),
        (0, 0, 1, end[2], 1.0),
        (1, 1, 1, counts.rows, 0.25),
    ]
    if outcome.event in (levels or {}):
        no, yes = counts.bins[outcome.event, :2]
        told += [(1, 1, 0, no, 1.0), (0, 0, 1, yes, 1.0)]
    found = np.array(told, dtype=np.float64)
    weight = 1 / np.sqrt(found[:, 4:])
    solved = np.linalg.lstsq(found[:, :3] * weight, found[:, 3] * weight[:, 0], rcond=None)[0]
    positive = np.maximum(solved, 0.0) + _EMPTY
    whole: Array = positive * (counts.rows / positive.sum())
    return whole


def outcome_states(x: Array, outcome: Outcome) -> tuple[Bools, Bools]:
    """Of values (…, d): whether the event happened, and whether the end came first, (…,)."""
    happened = np.asarray(x[..., outcome.event] > 0)
    return happened, np.asarray(~happened & (x[..., outcome.end] > 0))


def estimate_rows(counted: float, parts: Sequence[Array], sd: float, most: int) -> float:
    """The number of rows present, which every column's counts add up to as well.

    Their mean, weighed by precision: sums of c counts have c times the variance of ``counted``. At
    most the public n·k; at least what its noise could hide, and one: a model needs some.
    """
    sums = np.array([counted, *(part.sum() for part in parts)])
    precision = 1 / np.array([1, *map(len, parts)])
    least = max(sd / math.sqrt(precision.sum()), 1.0)
    return float(min(max(sums @ precision / precision.sum(), least), max(most, 1)))


def expect_positive(noisy: float, sd: float) -> float:
    """E max(0, X), X normal about a noisy number with the sd of its noise: what may be above 0 is
    not taken for nothing."""
    a = noisy / sd
    return sd * (a * float(ndtr(a)) + math.exp(-min(a * a, 700.0) / 2) / math.sqrt(2 * math.pi))


def _places(
    x: Array, low: float, high: float, points: Array | None
) -> tuple[int, NDArray[np.intp]]:
    """How many cells a column has, and each row's."""
    if points is not None and len(points) <= BINS:
        place = np.zeros(x.shape, dtype=np.intp)
        for middle in (points[1:] + points[:-1]) / 2:
            place += x > middle
        return len(points), place
    place = ((x - low) / (high - low) * BINS).astype(np.intp)
    return BINS, np.clip(place, 0, BINS - 1)


class Margins:
    r"""Column by column from values to normal scores, s = Φ⁻¹(F(x)), and back.

    F is the distribution function of a noisy histogram, linear within bins. A duration's F is that
    of its event's half, where both show their shape, and at the end of follow-up that of the public
    noise which stands there for a time. The end's F is that of the rows without an event; those
    with one have not reached it. So event, end and duration have their joint distribution whatever
    the scores; the event's coordinate is mapped back first, then the end's.

    Args:
        counts: as released; low, high: (d,), the public box; outcomes, levels, simplices: as
            counted.

    Attributes:
        whole: (d, BINS + 1), F at the bins' edges, of all rows.
        unclear: ends of durations that hardly anybody reached, or missed, as far as one can tell:
            whoever has no event reaches them with one chance, and nothing is known of on whom else
            that depends.
    """

    def __init__(
        self,
        counts: Counts,
        low: Array,
        high: Array,
        outcomes: Outcomes = (),
        levels: Levels | None = None,
        simplices: Simplices = (),
    ) -> None:
        self._edges = low[:, None] + (high - low)[:, None] * np.arange(BINS + 1) / BINS
        uniform = np.arange(BINS + 1) / BINS
        # A duration as a whole is counted in two parts, hence with twice the variance.
        sds = np.full(len(low), counts.sd)
        sds[[o.duration for o in outcomes]] *= math.sqrt(2)
        self.whole = np.stack(
            [_cumulative(bins, sd, uniform) for bins, sd in zip(counts.bins, sds, strict=True)]
        )
        for j, points in (levels or {}).items():
            if len(points) <= BINS:
                self.whole[j] = _of_levels(counts.bins[j, : len(points)], points, self._edges[j])
        for column, told in zip(simplices, counts.levels, strict=True):
            risen = spread_levels(column, told, self._edges[column.where])
            self.whole[column.where] = np.apply_along_axis(_strictly, 1, risen)
        self._outcomes = tuple(outcomes)
        self._states: dict[int, tuple[Array, Array, Array]] = {}
        self.unclear: tuple[int, ...] = tuple(
            outcome.end
            for outcome, ended in zip(outcomes, counts.ended, strict=True)
            if not min(ended, counts.bins[outcome.end, 0]) > _CERTAIN * counts.sd
        )
        for i, outcome in enumerate(outcomes):
            states = outcome_counts(counts, i, outcome, levels)
            self._split(outcome, counts.split[i], states, counts)
            if outcome.event in (levels or {}):
                points = (levels or {})[outcome.event]
                known = np.array([counts.rows - states[2], states[2]])
                self.whole[outcome.event] = _of_levels(known, points, self._edges[outcome.event])

    def _split(self, outcome: Outcome, halves: Array, states: Array, counts: Counts) -> None:
        """F of a duration and of its end where: censored earlier, event-free at the end, event."""
        j, end = outcome.duration, outcome.end
        noise = counts.sd * math.sqrt(halves.shape[1])
        rest, edges = self.whole[j], np.linspace(-1.0, 1.0, BINS + 1)
        if counts.bins[j].sum() > _SHOWN * noise * math.sqrt(2):
            rest = _times(halves.sum(axis=0), counts.sd * math.sqrt(2))
        nowhere = _strictly(nowhere_noise(edges))
        # A half that does not show its shape has that of all times.
        censored, happened = (
            _times(half, counts.sd) if count > _SHOWN * noise else rest
            for half, count in zip(halves, states[[0, 2]], strict=True)
        )
        self._states[j] = censored, nowhere, happened
        share = states[1] / counts.rows
        self.whole[j] = share * nowhere + (1 - share) * rest
        signs = np.array([-1.0, 1.0])

        def of_end(no: float, yes: float) -> Array:
            return _of_levels(np.array([no, yes]), signs, self._edges[end])

        free = of_end(states[0], states[1])
        self._states[end] = free, free, of_end(1.0, 0.0)
        self.whole[end] = of_end(counts.rows - states[1], states[1])

    def to_scores(self, x: Array) -> Array:
        """(…, d) values in the box to scores."""
        u = np.zeros_like(x)
        for j, edges in enumerate(self._edges):
            for who, f in self._curves(x, j):
                u[..., j] = np.where(who, between(x[..., j], edges, f), u[..., j])
        return np.asarray(ndtri(np.clip(u, _TAIL, 1 - _TAIL)))

    def log_slope(self, x: Array) -> Array:
        r"""Σ log ds/dx of values (…, d) in the box, (…,): of each column :math:`F' / φ(s)`.

        Where scores have ended, near ±4, that of their ends.
        """
        s, slope = self.to_scores(x), np.zeros_like(x)
        for j, edges in enumerate(self._edges):
            width = edges[1] - edges[0]
            for who, f in self._curves(x, j):
                place = ((x[..., j] - edges[0]) / width).astype(np.intp)
                own = np.diff(f)[np.clip(place, 0, BINS - 1)] / width
                slope[..., j] = np.where(who, own, slope[..., j])
        logs: Array = np.log(slope) + s * s / 2 + 0.5 * math.log(2 * math.pi)
        return np.asarray(logs.sum(axis=-1))

    def _curves(self, x: Array, j: int) -> list[tuple[Bools, Array]]:
        """Which rows (…,) are under which F of column j."""
        if j not in self._states:
            return [(np.ones(x.shape[:-1], dtype=np.bool_), self.whole[j])]
        [outcome] = (o for o in self._outcomes if j in (o.duration, o.end))
        happened, ended = outcome_states(x, outcome)
        if j == outcome.end:  # that of all rows without an event
            free, _, with_event = self._states[j]
            return [(~happened, free), (happened, with_event)]
        masks = (~happened & ~ended, ended, happened)
        return list(zip(masks, self._states[j], strict=True))

    def to_values(self, s: Array, *, own: bool = False) -> Array:
        """(…, d) scores to values in the box; NaN stays NaN.

        Args:
            own: whether these are a model's own, made of releases and of nothing else. Only then
                may the work depend on them, and each row is looked up under its own F alone.
        """
        u, x = np.clip(ndtr(s), _TAIL, 1 - _TAIL), np.zeros_like(s)
        last = [o.end for o in self._outcomes] + [o.duration for o in self._outcomes]
        for j in (*(j for j in range(s.shape[-1]) if j not in self._states), *last):
            curves, value = self._curves(x, j), x[..., j].copy()
            for who, f in curves:
                if own and len(curves) > 1:
                    value[who] = np.interp(u[who, j], f, self._edges[j])
                else:
                    value = np.where(who, np.interp(u[..., j], f, self._edges[j]), value)
            x[..., j] = value
        return x


def _cumulative(bins: Array, sd: float, otherwise: Array) -> Array:
    """The distribution function at the bins' edges, (BINS + 1,), strictly rising from 0 to 1.

    A bin is kept where it stands out of the noise, and so are its neighbours, one after the other,
    as long as they stand out a little. What is left is smoothed until something stands out of it,
    more and more; the rest is empty. Rows too few to show their shape have the normal one, and
    fewer yet have ``otherwise``.
    """
    kept, likely = bins > _CERTAIN * sd, bins > _LIKELY * sd
    for _ in range(BINS):  # a neighbour can be no further away
        sides = np.append(kept[1:], False) | np.append(False, kept[:-1])
        kept = kept | (sides & likely)
    share, left = np.where(kept, bins, 0.0), np.where(kept, 0.0, bins)
    for kernel in _kernels():
        smooth = kernel @ left
        seen = (share == 0) & (smooth > _CERTAIN * sd * np.linalg.norm(kernel, axis=1))
        share, left = np.where(seen, smooth, share), np.where(seen, 0.0, left)
    total = share.sum()
    if not total > _PLACED * sd:
        return otherwise
    if not total > _SHAPED * sd:
        centre = float(share @ np.arange(BINS)) / total
        spread = math.sqrt(float(share @ (np.arange(BINS) - centre) ** 2) / total + 1 / 12)
        share = np.diff(ndtr((np.arange(BINS + 1) - 0.5 - centre) / spread))
    risen = np.append(0.0, np.cumsum(share / share.sum() + _EMPTY))
    cumulative: Array = risen / risen[-1]
    return cumulative


def _times(bins: Array, sd: float) -> Array:
    """The distribution function of a duration's half that shows its shape.

    Times lie thin over all of a follow-up: what stands out bin by bin would be some of the peaks,
    noise's among them, and the rest lost. So they are smoothed as a whole, as little as lets most
    of them stand out.
    """
    cells = len(bins)
    for kernel in (np.eye(cells), *_kernels(cells)):
        smooth, noise = kernel @ bins, sd * np.linalg.norm(kernel, axis=1)
        if smooth[smooth > _APART * noise].sum() > _MOST * bins.sum():
            break
    share = np.where(smooth > noise, smooth, 0.0)
    risen = np.append(0.0, np.cumsum(share / max(share.sum(), _EMPTY)))
    return _strictly(np.interp(np.linspace(0, 1, BINS + 1), np.linspace(0, 1, cells + 1), risen))


def _of_levels(counts: Array, points: Array, edges: Array) -> Array:
    """The same of levels: each has its noisy share, and the public shape of its noise."""
    share = np.maximum(counts, 0.0) + _EMPTY
    return _strictly((share / share.sum()) @ level_noise(points, edges))


def _strictly(risen: Array) -> Array:
    """A distribution function at the bins' edges, strictly rising from 0 to 1."""
    risen = risen + _EMPTY * np.arange(len(risen))
    cumulative: Array = risen / risen[-1]
    return cumulative


@cache
def _kernels(cells: int = BINS) -> list[Array]:
    """Gaussian smoothing (cells, cells) of rising width, rows adding up to 1."""
    apart = np.arange(cells)[:, None] - np.arange(cells)
    kernels = [np.exp(-0.5 * (apart / width) ** 2) for width in _WIDTHS]
    return [kernel / kernel.sum(axis=1, keepdims=True) for kernel in kernels]


def standardise(
    counts: Counts,
    low: Array,
    high: Array,
    outcomes: Outcomes = (),
    levels: Levels | None = None,
    simplices: Simplices = (),
) -> Affine:
    """The map from linear scores, roughly of mean 0 and sd 1 per column, to values.

    Mean and sd of each column's distribution as :class:`Margins` sees it: the empty bins, most of
    the box, would else outweigh the rest. Where nothing stands out of the noise, the box itself.
    """
    width = (high - low) / BINS
    centres = low[:, None] + width[:, None] * (np.arange(BINS) + 0.5)
    weights = np.diff(Margins(counts, low, high, outcomes, levels, simplices).whole, axis=1)
    mean = (weights * centres).sum(axis=1)
    variance = (weights * (centres - mean[:, None]) ** 2).sum(axis=1)
    # A bin is as fine as these counts see: all rows equal still have a scale.
    return Affine(np.diag(np.sqrt(variance + width**2 / 12)), mean)


def between(x: Array, edges: Array, values: Array) -> Array:
    """Values (e,) at even edges (e,), linear in between and constant beyond, at x (…).

    What :func:`numpy.interp` gives, without a search, whose length depends on x.
    """
    last = len(edges) - 2
    at = (x - edges[0]) * ((last + 1) / (edges[-1] - edges[0]))
    place = np.clip(at.astype(np.intp), 0, last)
    share = np.clip(at - place, 0.0, 1.0)
    found: Array = values[place] * (1 - share) + values[place + 1] * share
    return found


def clamp(x: Array, low: Array, high: Array) -> Array:
    """Values inside the box, NaN at its centre: what any row, however odd, counts as."""
    inside: Array = np.clip(np.where(np.isnan(x), (low + high) / 2, x), low, high)
    return inside
