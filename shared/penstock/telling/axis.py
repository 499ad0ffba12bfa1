"""The scale of a forest plot: limits that one wild site cannot spoil, ticks, and number formats."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from penstock.telling.scales import COUNT, LOG, MAX_EXPONENT, PLAIN, Link

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
RATIO_DECIMALS = 2
"""Of a ratio whose interval is wide."""
BOLD = 8.4
"""At most the width of a bold letter, on average, in drawing units."""
DIGIT = 7.4
"""At most the width of a digit of a tick's label, with some space to the next label."""
TITLE_LINE = 16.0
"""Between the lines of a title, in drawing units."""
TITLE_LINES = 3
"""Of a title, at most."""
LARGE = 1e9
"""Up to here people read digits; from here on, powers of ten."""


def number_text(value: float, decimals: int) -> str:
    """A number for people: a true minus sign, thousands set off, 3.2×10⁹ where it is very large.

    What is below half of the last decimal is a plain 0: the interval beside it has so many decimals
    as matter.
    """
    if not math.isfinite(value):
        return "not finite"
    if abs(value) >= LARGE:
        return power_text(value, 2)
    text = f"{value:,.{decimals}f}"
    # A minus before nothing but zeros says nothing.
    return text.lstrip("-") if float(text.replace(",", "")) == 0 else text.replace("-", "−")


def power_text(value: float, digits: int) -> str:
    """A finite number with so many significant digits, as a power of ten: 10⁻⁵, 3.2×10⁹."""
    mantissa, power = f"{value:.{digits - 1}e}".split("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    head = {"1": "", "-1": "−"}.get(mantissa, f"{mantissa.replace('-', '−')}×")
    return f"{head}10{str(int(power)).translate(_SUPERSCRIPT)}"


def decimals_for(half_width: float, *, least: int, most: int = 5) -> int:
    """Decimals that show an interval of this half width with two significant digits."""
    if not 0 < half_width < math.inf:
        return least
    return int(min(most, max(least, 1 - math.floor(math.log10(half_width)))))


def wrap_title(text: str, width: float) -> tuple[list[str], str | None]:
    """Lines of an axis' title, about as long as each other and three at most; and the whole of it
    where they do not hold it."""
    letters = int(width / BOLD)
    lines = textwrap.wrap(text, letters)
    if len(lines) > TITLE_LINES:
        return textwrap.wrap(text, letters, max_lines=TITLE_LINES, placeholder="…"), text
    while len(lines) > 1:
        letters -= 1
        shorter = textwrap.wrap(text, letters)
        if len(shorter) > len(lines):
            break
        lines = shorter
    return lines, None


@dataclass(frozen=True, slots=True)
class Scale:
    """Coefficients between ``low`` and ``high``, shown as ``link`` says.

    ``ratio`` says that what is given are ratios already.
    """

    low: float
    high: float
    link: Link
    decimals: int
    ratio: bool = False

    @property
    def positive(self) -> bool:
        """Whether what is shown is above 0, always."""
        return self.link is LOG or self.ratio

    def share(self, coefficient: float) -> float:
        """Position in [0, 1]; what lies outside is put on the edge."""
        share = (coefficient - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, share))

    def shown(self, coefficient: float) -> float:
        return self.link.show(coefficient)

    def text(self, coefficient: float) -> str:
        """The number on the reader's scale; a ratio that would be 0 is told to be small."""
        shown, least = self.shown(coefficient), 10.0**-self.decimals
        if self.positive and shown < least / 2:
            return f"<{number_text(least, self.decimals)}"
        return number_text(shown, self._decimals_of(shown))

    def _decimals_of(self, shown: float) -> int:
        """Of a large ratio three digits are enough, unless its interval is narrower than that."""
        if not self.positive or self.decimals > RATIO_DECIMALS or shown < 10:
            return self.decimals
        return 0 if shown >= 100 else 1

    def interval_text(self, low: float, high: float) -> str:
        """``low–high``, or ``low to high`` where a minus sign would make the dash ambiguous."""
        a, b = self.text(low), self.text(high)
        return f"{a} to {b}" if "−" in a + b else f"{a}–{b}"

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        """At most ``most`` + 1 round values inside the limits: coefficient and label."""
        low, high = self.shown(self.low), self.shown(self.high)
        if self.link is LOG and high / low >= 5:
            ticks = [(v, _round_text(v)) for v in _log_ticks(low, high, most)]
        else:
            step, values = _linear_ticks(low, high, most)
            decimals = max(0, -math.floor(math.log10(step) + 1e-9))
            ticks = [(v, number_text(v, decimals)) for v in values]
            if self.link.round:
                values = self._space(values, most)
                ticks = [(v, number_text(v, max(decimals, _digits(v)))) for v in values]
        first, last = self.link.ends
        return [(self.link.back(v), text) for v, text in ticks if first < v < last]

    def ticks_within(self, width: float) -> list[tuple[float, str]]:
        """As :meth:`ticks`, so many of them that their labels stand apart."""
        for most in (6, 5, 4, 3, 2):
            ticks = self.ticks(most)
            longest = max((len(text) for _, text in ticks), default=0)
            places = [self.share(value) * width for value, _ in ticks]
            if all(b - a > DIGIT * longest for a, b in pairwise(places)):
                return ticks
        return self.ticks(1)

    def _space(self, values: Sequence[float], most: int) -> list[float]:
        """Of round values and these, in order, those that leave room for their labels: even steps
        crowd where the scale is bent."""
        first, last = self.link.ends
        room, kept = (self.high - self.low) / (most + 2), list[float]()
        for value in (*self.link.round, *values):
            if not first < value < last:
                continue
            at = self.link.back(value)
            near = any(abs(at - self.link.back(other)) < room for other in kept)
            if self.low <= at <= self.high and not near:
                kept.append(value)
        return sorted(kept)


def scale_for(
    *,
    link: Link,
    estimates: Iterable[float],
    whiskers: Iterable[tuple[float, float]],
    anchors: Iterable[float],
    prediction: tuple[float, float] | None,
    decimals: int,
) -> Scale:
    """Limits that hold the anchors and as much of the sites as stays readable.

    The anchors (pooled intervals, truth, the null value) and the sites' estimates are held, but
    not beyond 8 robust standard deviations (1.48 times the median absolute deviation, or a
    quarter of the median whisker, whichever is larger) from the sites' median. Whiskers and the
    prediction interval may add half of that span on either side, and of the median whisker's
    length if that is more: sites that agree have whiskers, too. What is longer is clipped, and the
    plot shows an arrow.
    """
    points = np.array(list(estimates), dtype=np.float64)
    ends = np.array(list(whiskers), dtype=np.float64).reshape(-1, 2)
    held = np.array(list(anchors), dtype=np.float64)
    usual = float(np.median(ends[:, 1] - ends[:, 0])) if ends.size else 0.0
    if points.size:
        centre = float(np.median(points))
        spread = max(
            1.4826 * float(np.median(np.abs(points - centre))),
            usual / 4,
            1e-6 * max(1e-6, abs(centre)),
        )
        near = points[np.abs(points - centre) <= 8 * spread]
        held = np.clip(held, centre - 8 * spread, centre + 8 * spread)
        held = np.concatenate([near, held])
    if held.size == 0:
        return Scale(-1.0, 1.0, link, decimals)
    low, high = float(held.min()), float(held.max())
    span = max(high - low, usual, 1e-6 * max(1e-6, abs(low)))
    if prediction is not None:
        ends = np.vstack([ends, prediction])
    if ends.size:
        low = max(low - span / 2, min(low, float(ends[:, 0].min())))
        high = min(high + span / 2, max(high, float(ends[:, 1].max())))
    pad = 0.04 * max(high - low, span)
    low, high = low - pad, high + pad
    if link not in (PLAIN, COUNT):  # beyond these, ratios are not numbers any more
        low, high = (min(MAX_EXPONENT, max(-MAX_EXPONENT, edge)) for edge in (low, high))
    if not low < high:
        low, high = low - 1.0, high + 1.0
    return Scale(low, high, link, decimals)


def _round_text(value: float) -> str:
    """A tick of a logarithmic axis: one digit and zeros, or a power of ten."""
    if not 1e-3 <= value < 1e5:
        return power_text(value, 2)
    return f"{value:,.{max(0, -math.floor(math.log10(value) + 1e-9))}f}"


def _digits(value: float) -> int:
    """Decimals that a round value is written with."""
    return len(f"{abs(value):.6f}".rstrip("0").partition(".")[2])


def _linear_ticks(low: float, high: float, most: int) -> tuple[float, list[float]]:
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(m for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-12))
    first, last = math.ceil(low / step), math.floor(high / step)
    return step, [i * step for i in range(first, last + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for mantissas in ((1, 2, 5), (1, 3), (1,)):
        values = [m * 10.0**e for e in range(first, last + 1) for m in mantissas]
        values = [v for v in values if low <= v <= high]
        if len(values) <= most:
            return values
    step = math.ceil((last - first) / most)
    return [10.0**e for e in range(first, last + 1, step) if low <= 10.0**e <= high]
