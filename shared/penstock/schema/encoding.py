r"""From coded columns to ℝᵈ and back, by the public schema alone.

Nothing here is learned from rows, so the encoding of a person depends on that person and on
fresh noise only: it costs no privacy, and one person changes one person's rows.

============  ==========  ===================================================================
kind          dimensions  coordinate
============  ==========  ===================================================================
continuous    1           position within the bounds on the column's scale, in [-1, 1]
integer       1           the same
duration      1           the same
binary,event  1           ±1
ordered       1           evenly spaced over [-1, 1]
categorical   L-1         vertices of a regular simplex (two levels: ±1)
spike         +1          ±1: the spike, or another number; at the spike the number's own
                          dimension is centred at 0
duration      +1          ±1: event-free at the end of follow-up, or not; where it is, the
                          number's own dimension is centred at 0
nullable      +1          ±1: present or missing; where missing, all others are centred at 0
============  ==========  ===================================================================

*Scales.* With p the share of the way from the lower to the upper bound: linear is p itself; log is
the share of the way in logarithms, of the value or, on a grid, of the value plus one step. Within
wide public bounds a skewed column fills a sliver of a linear box, and most of a logarithmic one.

*Numbers on a grid* (integers, and columns with decimals) are dequantised uniformly within their
step; *levels* by Gaussian noise of a quarter of the half distance to the next level, truncated
at nine tenths of it, so that decoding to the nearest level is exact. Both are symmetric and know
nothing else of the row: on a linear scale covariances between columns are those of the codes
themselves, and variances grow by a public constant (1/16 around ±1; a third with U(0, 1)).

*The spike has no step of its own*: its step is taken out of the grid, so that a row decodes to it
if and only if the spike's coordinate says so.

*The end of follow-up is an atom.* Whoever is followed to the end without an event has a time of
exactly ``follow_up``, as most persons of many trials do; that is a fact like a level and no number,
so every duration has a coordinate for it, which nobody asks for. With its event's it says one of
three things: an event, event-free at the end, or censored earlier. An event counts first, so that
no row has one *because* it reached the end; an event at exactly the end is a number like any other;
who is censored earlier decodes to a time before the end. What lies beyond the follow-up is not seen
by a study: a later event has not happened yet, and the person is event-free at the end.
A ``spike`` at the follow-up says the same again, and adds nothing.

*Why a simplex.* Its vertices are as far from each other as can be, whatever the levels' order,
like one-hot coding; but the coordinates of one-hot rows add up to a constant, which leaves a
flow a degenerate direction to waste its budget on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import gammainc, gammaincinv, ndtr

from penstock.schema import (
    END_WIDTH,
    NUMBER_KINDS,
    Coded,
    Column,
    Floats,
    Schema,
    check_coded,
    end_follow_up,
)

SD = 0.25
"""Standard deviation of a level's noise, in units of half the distance to the next level."""

TRUNCATE = 0.9
"""Where that noise is cut off, in the same units."""

_STEP = 0.98  # Share of a grid step that is filled; the rest keeps rounding errors from the edges.
_QUANTILES = 4096

_BALLS, _BALL_PLACES = 4096, 257
"""By how many draws, and at how many places, the noise of one coordinate is known."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Dim:
    """One coordinate: its name, its column, and its role.

    Roles: ``value``, ``level`` (one of several of a categorical column), ``spike``, ``end``
    (event-free at the end of follow-up), ``present``.
    """

    name: str
    column: str
    role: str


class Outcome(NamedTuple):
    """The coordinates of a duration, of its event, and of its end; above 0 it is so."""

    duration: int
    event: int
    end: int


@dataclass(frozen=True, slots=True)
class Simplex:
    """A column of more than two levels without an order.

    Attributes:
        where: its coordinates; points: (L, L - 1), of its levels.
        half: half the distance of two points, within which their noise stays.
        present: the coordinate that says whether there is a level; None: there always is.
    """

    where: slice
    points: Floats
    half: float
    present: int | None = None

    def measure_nearness(self, x: Floats) -> Floats:
        """(n, L) of rows (n, d): the larger, the nearer a level's point."""
        return _measure_nearness(x[:, self.where], self.points)

    def find_levels(self, x: Floats) -> npt.NDArray[np.intp]:
        """(n,): each row's level; L where it has none."""
        levels = np.asarray(self.measure_nearness(x).argmax(axis=1))
        if self.present is None:
            return levels
        return np.asarray(np.where(x[:, self.present] > 0, levels, len(self.points)))

    def noise_below(self, x: Floats) -> Floats:
        """Distribution function at x, in one coordinate, of the noise about a point."""
        places, risen = _ball_margin(self.points.shape[1])
        return np.interp(x / self.half, places, risen)


def _measure_nearness(block: Floats, points: Floats) -> Floats:
    """(n, L): -|x - p|² / 2 without |x|², which is the same for all points."""
    return np.asarray(block @ points.T - (points**2).sum(axis=1) / 2)


@cache
def _ball_margin(k: int) -> tuple[Floats, Floats]:
    """One coordinate of :func:`_ball` for ``half`` = 1: places, and the share below; symmetric. By
    public draws of a fixed seed."""
    drawn = np.abs(_ball(np.random.default_rng(0), _BALLS, k, 1.0)).ravel()
    places = np.quantile(drawn, np.linspace(0.0, 1.0, _BALL_PLACES))
    risen = 0.5 + np.linspace(0.0, 0.5, _BALL_PLACES)
    ends = np.concatenate([-places[::-1], places[1:]])
    return ends, np.concatenate([1 - risen[::-1], risen[1:]])


class Encoding:
    """The encoding of a schema.

    Attributes:
        schema: the schema.
        d: number of coordinates.
        dims: what each of them is.
        low, high: (d,) float64, read-only: the public box that holds every encoded row.
        outcomes: the coordinates of each duration, its event and its end.
        levels: of each coordinate that says one of several things alone, their points, rising;
            what is there is one of them and noise of :func:`level_noise`.
        simplices: the columns of levels that have several coordinates.

    Example:
        A number takes one coordinate, three levels take two. Decoding is the exact inverse; a row
        with a missing value is the null record.

        >>> from penstock.schema import Column
        >>> age = Column("age", "continuous", lower=18, upper=100, decimals=0)
        >>> ward = Column("ward", "categorical", levels=("a", "b", "c"))
        >>> encoding = Encoding(Schema((age, ward)))
        >>> [dim.name for dim in encoding.dims]
        ['age', 'ward[1]', 'ward[2]']
        >>> x, present = encoding.encode(
        ...     {"age": [40, np.nan], "ward": [2, 1]}, np.random.default_rng(1)
        ... )
        >>> x.shape, present.tolist()
        ((2, 3), [True, False])
        >>> {name: values.tolist() for name, values in encoding.decode(x[:1]).items()}
        {'age': [40.0], 'ward': [2.0]}
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        dims: list[Dim] = []
        low: list[Floats] = []
        high: list[Floats] = []
        self._parts: list[tuple[Column, _Numbers | _Levels, slice]] = []
        for column in schema.columns:
            part = _Numbers(column) if column.kind in NUMBER_KINDS else _Levels(column)
            self._parts.append((column, part, slice(len(dims), len(dims) + len(part.low))))
            dims += part.dims()
            low.append(part.low)
            high.append(part.high)
            if column.nullable:
                dims.append(Dim(f"{column.name}?", column.name, "present"))
                low.append(np.array([-1 - TRUNCATE]))
                high.append(np.array([1 + TRUNCATE]))
        self.dims = tuple(dims)
        self.d = len(dims)
        self.low = np.concatenate(low)
        self.high = np.concatenate(high)
        at = {c.name: where.start for c, _, where in self._parts}
        self.outcomes = tuple(
            Outcome(where.start, at[column.event], where.stop - 1)
            for column, _, where in self._parts
            if column.event is not None
        )
        self.levels = self._levels()
        self.simplices = tuple(
            Simplex(where, part.points, part.half, where.stop if column.nullable else None)
            for column, part, where in self._parts
            if isinstance(part, _Levels) and part.points.shape[1] > 1
        )
        self.low.setflags(write=False)
        self.high.setflags(write=False)

    @property
    def spared(self) -> int:
        """Coordinates without a count of their own: a simplex is counted once, by levels."""
        return sum(len(column.points) - 2 for column in self.simplices)

    def _levels(self) -> dict[int, Floats]:
        signs = np.array([-1.0, 1.0])
        levels: dict[int, Floats] = {}
        for column, part, where in self._parts:
            if column.nullable:
                # Missing is a third thing that the column's other coordinates say, by their noise.
                levels[where.stop] = signs
            elif isinstance(part, _Levels) and part.points.shape[1] == 1:
                levels[where.start] = part.points[:, 0]
            elif isinstance(part, _Numbers) and part.spiked:
                levels[where.start + 1] = signs
            if column.event is not None:  # what is missing is not known to have reached the end
                levels[where.stop - 1] = signs
        return levels

    def encode(
        self, coded: Mapping[str, npt.ArrayLike], rng: np.random.Generator | Dither
    ) -> tuple[Floats, Bools]:
        """Encode a coded table.

        Values are clamped to the bounds and the decimal grid, times beyond the follow-up by
        :func:`~penstock.schema.tables.end_follow_up`; NaN, or an index that is no level, is
        missing.

        Args:
            coded: the schema's columns, each of length n.
            rng: the source of dequantisation noise, or noise that is kept for the next time.

        Returns:
            ``X`` (n, d) float64, finite, within [low, high]; and ``present`` (n,) bool, False
            where a column that is not nullable is missing. Such a row of X is zero and
            contributes nothing: the null record of the neighbouring relation (zero-out).

        Raises:
            InvalidInput: columns are missing, unknown, or of different lengths.
        """
        arrays = end_follow_up(check_coded(coded, self.schema), self.schema)
        n = len(next(iter(arrays.values())))
        x = np.empty((n, self.d))
        present = np.ones(n, dtype=np.bool_)
        noise = Dither(rng) if isinstance(rng, np.random.Generator) else rng
        for column, part, where in self._parts:
            values = column.snap(arrays[column.name])
            missing = np.isnan(values)
            known = np.where(missing, part.some, values)
            if isinstance(part, _Numbers) and column.event is not None:
                # Where nobody knows of an event, nobody knows that there was none.
                free = self.schema[column.event].snap(arrays[column.event]) == 0
                block = part.encode(known, noise, free & ~missing)
            else:
                block = part.encode(known, noise)
            if column.nullable:
                imputed = noise.ball(n, block.shape[1], part.half)
                if column.event is not None:
                    imputed = np.column_stack([imputed[:, :-1], block[:, -1]])
                block = np.where(missing[:, None], imputed, block)
                sign = np.where(missing, -1.0, 1.0)
                x[:, where.stop] = sign + noise.ball(n, 1, 1.0)[:, 0]
            else:
                present &= ~missing
            x[:, where] = block
        np.clip(x, self.low, self.high, out=x)
        return np.where(present[:, None], x, 0.0), present

    def decode(self, x: npt.ArrayLike) -> Coded:
        """Decode any (n, d) numbers, however wild, to a coded table within the schema.

        Infinities are clamped to the box, and NaN to its centre. Values lie within the bounds and
        on the decimal grid; NaN comes back only in nullable columns, where the "present"
        coordinate is not positive. A row is event-free at the end of follow-up if and only if there
        is no event and the duration's end coordinate is positive. ``decode(encode(t)[0])`` is ``t``
        for every table that lies within the schema.

        Raises:
            ValueError: ``x`` is not of shape (n, d).
        """
        rows = np.asarray(x, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.d:
            raise ValueError(f"expected shape (n, {self.d}), got {rows.shape}")
        centre = (self.low + self.high) / 2
        rows = np.clip(np.where(np.isnan(rows), centre, rows), self.low, self.high)
        coded: Coded = {}
        for column, part, where in self._parts:
            values = part.decode(rows[:, where])
            if column.nullable:
                values = np.where(rows[:, where.stop] > 0, values, np.nan)
            coded[column.name] = values
        for (column, part, _), (_, _, end) in zip(self._durations(), self.outcomes, strict=True):
            free = coded[column.event or ""] == 0
            time = coded[column.name]
            time = np.where(free, part.censor(time), time)
            reached = free & (rows[:, end] > 0) & ~np.isnan(time)
            coded[column.name] = np.where(reached, part.end, time)
        return coded

    def _durations(self) -> list[tuple[Column, _Numbers, slice]]:
        return [
            (column, part, where)
            for column, part, where in self._parts
            if column.event is not None and isinstance(part, _Numbers)
        ]


class Dither:
    """Dequantisation noise, drawn as an encoding asks for it: for each column, whatever its values.

    Args:
        rng: its source.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def ball(self, n: int, k: int, half: float) -> Floats:
        """(n, k), of :func:`_ball`."""
        return _ball(self._rng, n, k, half)

    def uniform(self, n: int) -> Floats:
        """(n,), between 0 and 1."""
        return self._rng.random(n)


class KeptDither(Dither):
    """The same noise at every use: what is drawn at the first one is kept for those that follow.

    For one encoding and one number of rows, which ask for the same arrays in the same order.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self._kept: list[Floats] = []
        self._next = 0

    def again(self) -> KeptDither:
        """From the first array on."""
        self._next = 0
        return self

    def ball(self, n: int, k: int, half: float) -> Floats:
        return self._keep((n, k), lambda: super(KeptDither, self).ball(n, k, half))

    def uniform(self, n: int) -> Floats:
        return self._keep((n,), lambda: super(KeptDither, self).uniform(n))

    def _keep(self, shape: tuple[int, ...], draw: Callable[[], Floats]) -> Floats:
        if self._next == len(self._kept):
            made = draw()
            made.setflags(write=False)
            self._kept.append(made)
        found = self._kept[self._next]
        if found.shape != shape:
            raise ValueError(f"kept noise is of shape {found.shape}, and {shape} is asked for")
        self._next += 1
        return found


class _Numbers:
    """A number as its position in [-1, 1]; whether it is its spike; whether it is a duration's end.

    Positions are measured as u in (0, size): steps of the grid from its start, the spike's left
    out, or units from the lower bound.

    Attributes:
        spiked: whether there is a spike of its own, which the end of follow-up is not.
        end: of a duration, the last value; before_end: the last that is not it.
    """

    def __init__(self, column: Column) -> None:
        self.column = column
        self.scale = column.scale or "linear"
        self.some = column.bounds[0]
        self.half = 1 / (1 + TRUNCATE)  # noise of an imputed value stays within the box
        self.low, self.high = np.array([-1.0]), np.array([1.0])
        self.unit = 10.0 ** (column.decimals or 0)
        self.spike = np.inf  # its step
        self.end = float(column.snap(column.bounds[1]))
        self.spiked = column.spike is not None and not (
            column.event is not None and column.snap(column.spike) == self.end
        )
        if column.grid is None:
            lower, upper = column.bounds
            self.start, self.size, self.origin = lower, upper - lower, lower
        else:
            first, last = column.grid
            if column.spike is not None and self.spiked:
                self.spike = np.rint(column.spike * self.unit) - first
            self.start, self.size = float(first), last - first + 1.0 - (self.spike < np.inf)
            # Log of the value plus one step, at the first step's lower edge.
            self.origin = first + 0.5 + (self.spike == 0)
        self.span = np.log1p(self.size / self.origin) if self.scale == "log" else 1.0
        signs = self.spiked + (column.event is not None)
        self.low = np.append(self.low, np.full(signs, -1 - TRUNCATE))
        self.high = np.append(self.high, np.full(signs, 1 + TRUNCATE))
        self.before_end = self._before_end()

    def _before_end(self) -> float:
        if self.column.grid is None:
            return self.end - END_WIDTH * (self.end - self.start)
        last = self.column.grid[1] - 1
        if last - self.start == self.spike and last > self.start:
            last -= 1  # a spike is reached by its own coordinate alone
        return float(self.column.snap(last / self.unit))

    def censor(self, times: Floats) -> Floats:
        """Times of those censored before the end: a spike beside the end is kept."""
        kept = times == self.column.spike if self.spiked else np.zeros(len(times), dtype=np.bool_)
        return np.where(kept, times, np.minimum(times, self.before_end))

    def dims(self) -> list[Dim]:
        name, found = self.column.name, [Dim(self.column.name, self.column.name, "value")]
        if self.spiked:
            found.append(Dim(f"{name}={self.column.spike:.15g}", name, "spike"))
        if self.column.event is not None:
            found.append(Dim(f"{name}=end", name, "end"))
        return found

    def encode(self, values: Floats, noise: Dither, free: Bools | None = None) -> Floats:
        """``free``: of a duration, whose event is known not to have happened."""
        if self.column.grid is None:
            ended = values > self.before_end
            z, spiked = self._to_box(values - self.start), np.zeros_like(ended)
        else:
            ended = values == self.end
            step = np.rint(values * self.unit) - self.start
            spiked = step == self.spike  # then any step will do: it is not looked at
            step = np.minimum(step - (step > self.spike), self.size - 1)
            z = self._to_box(step + 0.5 + _STEP * (noise.uniform(len(values)) - 0.5))
        signs = [spiked] if self.spiked else []
        signs += [] if free is None else [ended & free]
        if not signs:
            return z[:, None]
        nowhere = noise.ball(len(z), 1, self.half)[:, 0]
        block = [np.where(np.any(signs, axis=0), nowhere, z)]
        block += [np.where(sign, 1.0, -1.0) + noise.ball(len(z), 1, 1.0)[:, 0] for sign in signs]
        return np.column_stack(block)

    def decode(self, block: Floats) -> Floats:
        """Values, whoever reached the end: that is for the event to say."""
        u = self._from_box(block[:, 0])
        if self.column.grid is None:
            return self.column.snap(self.start + u)
        step = np.clip(np.floor(u), 0, self.size - 1)
        step += step >= self.spike
        if self.spiked:
            step = np.where(block[:, 1] > 0, self.spike, step)
        return self.column.snap((self.start + step) / self.unit)

    def _to_box(self, u: Floats) -> Floats:
        position = u / self.size
        if self.scale == "log":
            position = np.log1p(u / self.origin) / self.span
        return np.asarray(2 * position - 1)

    def _from_box(self, z: Floats) -> Floats:
        position = (z + 1) / 2
        if self.scale == "log":
            return np.asarray(self.origin * np.expm1(self.span * position))
        return np.asarray(self.size * position)


class _Levels:
    """A level as a point, with noise that stays nearer to it than to any other."""

    def __init__(self, column: Column) -> None:
        self.name, count = column.name, len(column.levels)
        self.points: Floats
        # Two vertices are two levels like any others, and on one axis points must rise.
        if column.kind == "categorical" and count > 2:
            self.points = simplex(count)
            self.half = float(np.sqrt(count / (2 * (count - 1))))
        else:
            self.points = np.linspace(-1.0, 1.0, count)[:, None]
            self.half = 1 / (count - 1)
        self.some = 0.0
        self.low = self.points.min(axis=0) - TRUNCATE * self.half
        self.high = self.points.max(axis=0) + TRUNCATE * self.half

    def dims(self) -> list[Dim]:
        name, width = self.name, self.points.shape[1]
        if width == 1:
            return [Dim(name, name, "value")]
        return [Dim(f"{name}[{i + 1}]", name, "level") for i in range(width)]

    def encode(self, values: Floats, noise: Dither) -> Floats:
        away = noise.ball(len(values), self.points.shape[1], self.half)
        return np.asarray(self.points[values.astype(np.int64)] + away, dtype=np.float64)

    def decode(self, block: Floats) -> Floats:
        return np.asarray(_measure_nearness(block, self.points).argmax(axis=1), dtype=np.float64)


def level_noise(points: Floats, x: Floats) -> Floats:
    """Distribution functions (L, …) at x of each of L evenly spaced points with its noise."""
    half = (points[-1] - points[0]) / (2 * (len(points) - 1))
    return _noise((x - points.reshape(-1, *np.ones(np.ndim(x), int))) / half)


def nowhere_noise(x: Floats) -> Floats:
    """Distribution function (…) at x of a number's own coordinate where it says nothing."""
    return _noise(np.asarray(x) * (1 + TRUNCATE))


def _noise(x: Floats) -> Floats:
    """Of one dimension of :func:`_ball`, for ``half`` = 1."""
    most = ndtr(TRUNCATE / SD) - 0.5
    inside = np.clip(x, -1.0, 1.0)
    return np.asarray(np.clip(0.5 + (ndtr(inside / SD) - 0.5) / (2 * most), 0.0, 1.0))


def simplex(count: int) -> Floats:
    """Vertices (count, count-1) of the regular simplex on the unit sphere, centred at 0.

    Row j has zeros in the columns after j: coordinate k tells level k from those behind it,
    which suits an autoregressive model. Two vertices are √(2L/(L-1)) apart; for L = 2 they are
    ±1.
    """
    points = np.zeros((count, count - 1))
    for k in range(count - 1):
        rest = count - k  # levels k, ..., L-1 form a regular simplex of their own
        radius = np.sqrt(count * (rest - 1) / ((count - 1) * rest))
        points[k, k] = radius
        points[k + 1 :, k] = -radius / (rest - 1)
    return points


def _ball(rng: np.random.Generator, n: int, k: int, half: float) -> Floats:
    """(n, k) Gaussian noise truncated to the ball of radius TRUNCATE * half.

    Its sd in each of the k directions is SD * half, or less where the ball would otherwise cut
    off much of it. The radius is drawn by inversion, so that the number of draws is fixed,
    without rejection.
    """
    direction = rng.standard_normal((n, k))
    norm = np.sqrt(np.einsum("ij,ij->i", direction, direction))
    place = _QUANTILES * rng.random(n)
    below = place.astype(np.intp)
    radii = _radii(k)
    radius = radii[below] + (place - below) * (radii[below + 1] - radii[below])
    return np.asarray((half * radius / np.maximum(norm, 1e-300))[:, None] * direction)


@cache
def _radii(k: int) -> Floats:
    """Evenly spaced quantiles of the radius of :func:`_ball` for ``half`` = 1.

    Its square over the variance is twice a Gamma(k/2), truncated. Looked up between these, it is
    as good as exact, and thirty times as fast.
    """
    sd = min(SD, TRUNCATE / (2 * np.sqrt(k)))
    mass = gammainc(k / 2, (TRUNCATE / sd) ** 2 / 2)
    radii = sd * np.sqrt(2 * gammaincinv(k / 2, mass * np.linspace(0, 1, _QUANTILES + 1)))
    return np.minimum(np.asarray(radii, dtype=np.float64), TRUNCATE)
