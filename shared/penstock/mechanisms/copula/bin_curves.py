r"""How a number's rows lie within each of its bins, as the shares of all bins say.

Between inner edges the distribution function F is, as a normal score of it, a monotone rational
quadratic in the place x (Gregory & Delbourgo 1982, IMA J. Numerical Analysis 2, 123-130): with
:math:`z = Φ^{-1}(F)` at the edges, :math:`s = Δz / Δx` of a bin, and slopes z' at its ends,

.. math:: z(t) = z_0 + Δz \frac{s t^2 + z'_0 t (1 - t)}{s + (z'_0 + z'_1 - 2 s) t (1 - t)},

t being how far along the bin. Of a Gaussian z is a line, so that its bins may be as wide as they
like: bounds are often wide of the rows, and three bins then hold nearly all of these. A slope at an
edge is a harmonic mean of those of both bins (Fritsch & Butland 1984, SIAM J. Scientific and
Statistical Computing 5, 300-304), which stays flat beside a pile.

An outer bin begins or ends where z is infinite. There, and where each bin is one step, the density
is a line, :math:`1 + a (2t - 1)`, :math:`|a| ≤ 1`, of the slope of those to both sides, of no more
than twice either (van Leer 1977, J. Computational Physics 23, 276-299).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

Array = NDArray[np.float64]
Places = NDArray[np.intp]

_LEAST = 1e-12
"""Of a share, and of a step of z: a bin that nobody is in has a curve, too."""

_STEEPEST = 4.0
"""Slope beside an outer bin, at most, in slopes of the bin itself: one that is all but empty beside
a full one would have a cliff."""

_FEWEST = 3
"""Bins, from which one has two inner edges."""


@dataclass(frozen=True, slots=True)
class Curves:
    """Of each bin, how many of its rows are below what share of its width.

    Attributes:
        tilts: (bins,) a of each line.
        scores: (bins,) z at a bin's lower edge; first, last, whole: slopes z' at its ends, and s,
            each times its width; none, where all bins have a line.
        signs: (bins,) -1 of a bin in the upper half, whose F is told from above, so that small
            shares are exact, else 1; start: F so told at its lower edge; risen: how far it goes.
    """

    tilts: Array
    scores: Array
    first: Array
    last: Array
    whole: Array
    signs: Array
    start: Array
    risen: Array

    @classmethod
    def of(cls, edges: Array, shares: Array, steps: bool) -> Curves:
        """
        Args:
            edges: (bins + 1,) rising; shares: (bins,) of all rows in bins, not negative.
            steps: each bin is one step, whose rows have one value.
        """
        widths, bins = np.diff(edges), len(edges) - 1
        tilts = np.zeros(bins) if steps or bins < 2 else _find_tilts(shares, widths)
        if steps or bins < _FEWEST:
            none = np.zeros(0)
            return cls(tilts, none, none, none, none, none, none, none)
        held = np.maximum(shares, _LEAST)
        risen = np.append(0.0, np.cumsum(held / held.sum()))
        # From above, the upper tail is as exact as the lower one.
        above = np.append(np.cumsum(held[::-1] / held.sum())[::-1], 0.0)
        lower = risen < 0.5
        scores = np.where(lower, ndtri(np.where(lower, risen, 0.5)), -ndtri(np.minimum(above, 0.5)))
        rise = np.maximum(np.diff(scores[1:-1]), _LEAST) / widths[1:-1]
        slopes = np.zeros(bins + 1)
        slopes[2:-2] = _average_slopes(rise, widths[1:-1])
        density = held / held.sum() / widths
        for edge, outer, inner in ((1, 0, 1), (bins - 1, bins - 1, bins - 2)):
            there = _join_densities(float(density[outer]), float(density[inner]))
            slope = there * np.sqrt(2 * np.pi) * np.exp(scores[edge] ** 2 / 2)
            slopes[edge] = min(slope, _STEEPEST * rise[inner - 1])
        signs = np.where(scores[:-1] < 0, 1.0, -1.0)
        start, end = ndtr(signs * scores[:-1]), ndtr(signs * scores[1:])
        return cls(
            tilts=tilts,
            scores=scores[:-1],
            first=slopes[:-1] * widths,
            last=slopes[1:] * widths,
            whole=np.pad(rise, 1) * widths,
            signs=signs,
            start=start,
            risen=end - start,
        )

    def rise(self, bins: Places, along: Array) -> Array:
        """(N,) the share of these bins' rows that lie below such shares of their width."""
        tilts = self.tilts[bins]
        lines = along * (1 - tilts + tilts * along)
        if self._is_straight:
            return np.asarray(lines)
        inner = self._is_inner(bins)
        at, t = bins[inner], along[inner]
        s, first, last, bent = self.whole[at], self.first[at], self.last[at], t * (1 - t)
        z = self.scores[at] + s * (s * t**2 + first * bent) / (s + (first + last - 2 * s) * bent)
        risen = self.risen[at]
        below = (ndtr(self.signs[at] * z) - self.start[at]) / np.where(risen == 0, 1.0, risen)
        lines[inner] = np.clip(below, 0.0, 1.0)
        return np.asarray(lines)

    def find(self, bins: Places, inside: Array) -> Array:
        """(N,) the shares of these bins' width below which such shares of their rows lie: the
        inverse of :meth:`rise`."""
        tilts = self.tilts[bins]
        flat = 1 - tilts
        root = np.sqrt(np.maximum(flat**2 + 4 * tilts * inside, 0.0))
        lines = 2 * inside / np.maximum(flat + root, 1e-300)
        if self._is_straight:
            return np.asarray(lines)
        inner = self._is_inner(bins)
        at = bins[inner]
        s, first, last = self.whole[at], self.first[at], self.last[at]
        z = self.signs[at] * ndtri(self.start[at] + inside[inner] * self.risen[at])
        # As far on the way of z from one end to the other.
        y = np.clip((z - self.scores[at]) / s, 0.0, 1.0)
        both = y * (first + last - 2 * s)
        a, b, c = s - first + both, first - both, -s * y
        lines[inner] = -2 * c / np.maximum(b + np.sqrt(np.maximum(b * b - 4 * a * c, 0.0)), 1e-300)
        return np.clip(lines, 0.0, 1.0)

    def _is_inner(self, bins: Places) -> NDArray[np.bool_]:
        return np.asarray((bins > 0) & (bins < len(self.tilts) - 1))

    @property
    def _is_straight(self) -> bool:
        return not len(self.scores)


def _find_tilts(shares: Array, widths: Array) -> Array:
    """(bins,) a of the lines."""
    density = shares / widths
    rise = np.diff(density) / ((widths[1:] + widths[:-1]) / 2)
    before, after = np.append(rise[0], rise), np.append(rise, rise[-1])
    least = np.minimum(np.abs(before), np.abs(after))
    slope = np.where(
        before * after > 0,
        np.sign(after) * np.minimum(2 * least, np.abs(before + after) / 2),
        0.0,
    )
    return np.asarray(np.clip(slope * widths / (2 * np.maximum(density, 1e-300)), -1.0, 1.0))


def _average_slopes(rise: Array, widths: Array) -> Array:
    """(bins - 1,) slopes at the edges between bins of such slopes."""
    before, after = widths[1:] * 2 + widths[:-1], widths[1:] + widths[:-1] * 2
    means = (before + after) / (before / rise[:-1] + after / rise[1:])
    # A pile or a gap: above or below both bins beside it.
    turns = np.pad(np.diff(rise)[1:] * np.diff(rise)[:-1] < 0, 1)
    return np.where(turns[1:] | turns[:-1], np.minimum(rise[1:], rise[:-1]), means)


def _join_densities(outer: float, inner: float) -> float:
    """The density between an outer bin and the next: of one that falls from the bound on, as an
    exponential has it; else as a line has it."""
    return float(np.sqrt(outer * inner)) if outer > inner else (outer + inner) / 2
