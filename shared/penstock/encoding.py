"""From coded columns to ℝᵈ and back, by the public schema alone.

Nothing here is learned from rows, so the encoding of a person depends on that person and on
fresh noise only: it costs no privacy, and one person changes one person's rows.

============  ==========  =================================================================
kind          dimensions  coordinate
============  ==========  =================================================================
continuous    1           position within the bounds, affine to [-1, 1]
integer       1           the same
duration      1           logit of the position, squeezed into [.004, .996], scaled to [-1, 1]
binary,event  1           ±1
ordered       1           evenly spaced over [-1, 1]
categorical   L-1         vertices of a regular simplex
nullable      +1          ±1: present or missing; the value's own dimensions are centred at 0
============  ==========  =================================================================

*Numbers on a grid* (integers, and columns with decimals) are dequantised uniformly within their
step; *levels* by Gaussian noise of a quarter of the half distance to the next level, truncated
at nine tenths of it, so that decoding to the nearest level is exact. (Around ±1 this is sd 0.25,
which halves the error of a hazard ratio against U(0, 1).) Both are symmetric: no bias.

*Why a simplex.* Its vertices are as far from each other as can be, whatever the levels' order,
like one-hot coding; but the coordinates of one-hot rows add up to a constant, which leaves a
flow a degenerate direction to waste its budget on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit, gammainc, gammaincinv, logit

from penstock.schema import NUMBER_KINDS, Coded, Column, Floats, Schema, check_coded

SD = 0.25
"""Standard deviation of a level's noise, in units of half the distance to the next level."""

TRUNCATE = 0.9
"""Where that noise is cut off, in the same units."""

EDGE = 0.004
"""Durations: position 0 becomes logit(EDGE), position 1 logit(1 - EDGE)."""

_LOGIT = float(logit(1 - EDGE))
_STEP = 0.98  # Share of a grid step that is filled; the rest keeps rounding errors from the edges.

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Dim:
    """One coordinate: its name, its column, and its role (``value``, ``level``, ``present``)."""

    name: str
    column: str
    role: str


class Encoding:
    """The encoding of a schema.

    Attributes:
        schema: the schema.
        d: number of coordinates.
        dims: what each of them is.
        low, high: (d,) float64, read-only: the public box that holds every encoded row.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        dims: list[Dim] = []
        low: list[Floats] = []
        high: list[Floats] = []
        self._parts: list[tuple[Column, _Numbers | _Levels, slice]] = []
        for column in schema.columns:
            part = _Numbers(column) if column.kind in NUMBER_KINDS else _Levels(column)
            names = part.names(column.name)
            self._parts.append((column, part, slice(len(dims), len(dims) + len(names))))
            role = "level" if len(names) > 1 else "value"
            dims += [Dim(name, column.name, role) for name in names]
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
        self.low.setflags(write=False)
        self.high.setflags(write=False)

    def encode(
        self, coded: Mapping[str, npt.ArrayLike], rng: np.random.Generator
    ) -> tuple[Floats, Bools]:
        """Encode a coded table.

        Values are clamped to the bounds and the decimal grid; NaN, and an index that is no
        level, is missing.

        Args:
            coded: the schema's columns, each of length n.
            rng: the source of dequantisation noise.

        Returns:
            ``X`` (n, d) float64, finite, within [low, high]; and ``present`` (n,) bool, False
            where a column that is not nullable is missing. Such a row of X is zero and
            contributes nothing: the null record of the neighbouring relation (zero-out).

        Raises:
            InvalidInput: columns are missing, unknown, or of different lengths.
        """
        arrays = check_coded(coded, self.schema)
        n = len(next(iter(arrays.values())))
        x = np.empty((n, self.d))
        present = np.ones(n, dtype=np.bool_)
        for column, part, where in self._parts:
            values = column.snap(arrays[column.name])
            missing = np.isnan(values)
            block = part.encode(np.where(missing, part.some, values), rng)
            if column.nullable:
                block[missing] = _ball(rng, n, block.shape[1], part.half)[missing]
                sign = np.where(missing, -1.0, 1.0)
                x[:, where.stop] = sign + _ball(rng, n, 1, 1.0)[:, 0]
            else:
                present &= ~missing
            x[:, where] = block
        np.clip(x, self.low, self.high, out=x)
        x[~present] = 0.0
        return x, present

    def decode(self, x: npt.ArrayLike) -> Coded:
        """Decode any (n, d) numbers, however wild, to a coded table within the schema.

        Infinities are clamped to the box, and NaN to its centre. Values lie within the bounds and
        on the decimal grid; NaN comes back only in nullable columns, where the "present"
        coordinate is not positive. ``decode(encode(t)[0])`` is ``t`` for every table that lies
        within the schema.

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
        return coded


class _Numbers:
    """A number as its position in (0, 1) within the bounds, then affine or logit to [-1, 1]."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self.low, self.high = np.array([-1.0]), np.array([1.0])
        self.some = column.bounds[0]
        self.half = 1 / (1 + TRUNCATE)  # noise of an imputed value stays within the box

    def names(self, name: str) -> list[str]:
        return [name]

    def encode(self, values: Floats, rng: np.random.Generator) -> Floats:
        column = self.column
        if column.grid is None:
            lower, upper = column.bounds
            position = (values - lower) / (upper - lower)
        else:
            first, last = column.grid
            step = np.rint(values * 10.0 ** (column.decimals or 0)) - first
            within = 0.5 + _STEP * (rng.random(values.shape) - 0.5)
            position = (step + within) / (last - first + 1)
        if column.kind == "duration":
            z = logit(EDGE + (1 - 2 * EDGE) * position) / _LOGIT
        else:
            z = 2 * position - 1
        return np.asarray(z, dtype=np.float64)[:, None]

    def decode(self, block: Floats) -> Floats:
        column, z = self.column, block[:, 0]
        if column.kind == "duration":
            position = (expit(_LOGIT * z) - EDGE) / (1 - 2 * EDGE)
        else:
            position = (z + 1) / 2
        if column.grid is None:
            lower, upper = column.bounds
            return column.snap(lower + position * (upper - lower))
        first, last = column.grid
        step = np.clip(np.floor(position * (last - first + 1)), 0, last - first)
        return column.snap((first + step) / 10.0 ** (column.decimals or 0))


class _Levels:
    """A level as a point, with noise that stays nearer to it than to any other."""

    def __init__(self, column: Column) -> None:
        count = len(column.levels)
        self.points: Floats
        if column.kind == "categorical":
            self.points = simplex(count)
            self.half = float(np.sqrt(count / (2 * (count - 1))))
        else:
            self.points = np.linspace(-1.0, 1.0, count)[:, None]
            self.half = 1 / (count - 1)
        self.some = 0.0
        self.low = self.points.min(axis=0) - TRUNCATE * self.half
        self.high = self.points.max(axis=0) + TRUNCATE * self.half

    def names(self, name: str) -> list[str]:
        width = self.points.shape[1]
        return [name] if width == 1 else [f"{name}[{i + 1}]" for i in range(width)]

    def encode(self, values: Floats, rng: np.random.Generator) -> Floats:
        noise = _ball(rng, len(values), self.points.shape[1], self.half)
        return np.asarray(self.points[values.astype(np.int64)] + noise, dtype=np.float64)

    def decode(self, block: Floats) -> Floats:
        # The nearest point: ‖x - p‖² without ‖x‖², which is the same for all.
        far = (self.points**2).sum(axis=1) / 2 - block @ self.points.T
        return np.asarray(far.argmin(axis=1), dtype=np.float64)


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
    off much of it. The radius is drawn by inversion (its square is Gamma(k/2)), so that the
    number of draws is fixed, without rejection.
    """
    sd = min(SD, TRUNCATE / (2 * np.sqrt(k)))
    direction = rng.standard_normal((n, k))
    direction /= np.maximum(np.linalg.norm(direction, axis=1, keepdims=True), 1e-300)
    mass = gammainc(k / 2, (TRUNCATE / sd) ** 2 / 2)
    radius = sd * np.sqrt(2 * gammaincinv(k / 2, mass * rng.random(n)))
    return np.asarray(half * radius[:, None] * direction, dtype=np.float64)
