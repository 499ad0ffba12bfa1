"""What others would release of the same table at the same ε, δ, relation and public bounds.

`copula` is a Gaussian copula after Li, Xiong & Jiang (2014): noisy histograms of all columns, half
of the budget, then a noisy correlation of clipped normal scores, the other half; the same
accountant, sensitivities, bounds and scales. It is given the end of follow-up as a bin of its own,
which as published it does not have.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Gaussian
from penstock.privacy.noise.sources import NoiseSource, add_gaussian
from penstock.privacy.request import PrivacyRequest
from penstock.privacy.sensitivity import histogram
from penstock.schema import Coded, Column, Schema

Array = NDArray[np.float64]

_BINS = 64
"""Of a number."""


def copula(
    rows: Coded,
    schema: Schema,
    privacy: PrivacyRequest,
    copies: int,
    noise: NoiseSource,
    rng: np.random.Generator,
) -> list[Coded]:
    """Tables of as many rows, of one fit: noisy histograms and a noisy correlation."""
    n, columns = len(rows[schema.names[0]]), schema.columns
    pair = (math.sqrt(2), math.sqrt(2))
    sigma = smallest_scale(
        lambda s: tuple(Gaussian(s * root) for root in pair), privacy.epsilon, privacy.delta
    )
    sigma *= math.sqrt(2)
    cuts = [_cuts(column) for column in columns]
    places = [_binned(rows[c.name], c, cut) for c, cut in zip(columns, cuts, strict=True)]
    sizes = [_cells(column) for column in columns]
    counts = [np.bincount(p, minlength=s) for p, s in zip(places, sizes, strict=True)]
    whole = np.concatenate(counts).astype(np.float64)
    flat = add_gaussian(whole, sigma * histogram(len(columns), 1), noise)
    noisy = np.split(flat, np.cumsum([len(c) for c in counts])[:-1])
    risen = [np.append(0.0, np.cumsum(np.maximum(c, 0.0) + 1e-9)) for c in noisy]
    risen = [r / r[-1] for r in risen]
    inside = [r[p] + (r[p + 1] - r[p]) * rng.random(n) for r, p in zip(risen, places, strict=True)]
    scores = ndtri(np.clip(np.column_stack(inside), 1e-4, 1 - 1e-4))
    radius = math.sqrt(len(columns)) + 1.0
    norm = np.linalg.norm(scores, axis=1, keepdims=True)
    scores *= np.minimum(1.0, radius / norm)
    upper = np.triu_indices(len(columns))
    weights = np.where(upper[0] == upper[1], 1.0, math.sqrt(2))
    total = (scores.T @ scores)[upper] * weights
    released = add_gaussian(total, sigma * radius**2, noise) / weights / n
    moments = np.zeros((len(columns),) * 2)
    moments[upper] = released
    moments = moments + np.triu(moments, 1).T
    values, vectors = np.linalg.eigh(moments)
    definite = (vectors * np.maximum(values, 0.02)) @ vectors.T
    sd = np.sqrt(np.diag(definite))
    made = []
    for _ in range(copies):
        drawn = rng.multivariate_normal(np.zeros(len(sd)), definite / np.outer(sd, sd), n)
        table: Coded = {}
        for j, column in enumerate(columns):
            place = np.searchsorted(risen[j], ndtr(drawn[:, j]), side="right") - 1
            place = np.clip(place, 0, _cells(column) - 1)
            table[column.name] = _unbinned(place, column, cuts[j], rng)
        made.append(table)
    return made


def _log(column: Column) -> bool:
    return column.scale == "log"


def _step(column: Column) -> float:
    return 0.0 if column.grid is None else 10.0 ** -(column.decimals or 0)


def _cuts(column: Column) -> Array:
    """Edges of a number's bins: even on its scale."""
    if column.levels:
        return np.zeros(0)
    low, high, step = *column.bounds, _step(column)
    if not _log(column):
        return np.linspace(low - step / 2, high + step / 2, _BINS + 1)
    origin = step if low == 0 else 0.0
    return np.geomspace(low + origin, high + origin + step, _BINS + 1) - origin - step / 2


def _cells(column: Column) -> int:
    """Bins, and two of their own: the end of a follow-up, or a spike, as levels are."""
    return len(column.levels) or _BINS + 1


def _own(column: Column) -> float | None:
    """The value with a bin of its own."""
    return column.bounds[1] if column.event is not None else column.spike


def _binned(values: Array, column: Column, cuts: Array) -> NDArray[np.intp]:
    if column.levels:
        return values.astype(np.intp)
    place = np.clip(np.searchsorted(cuts, values, side="right") - 1, 0, _BINS - 1)
    own = _own(column)
    if own is None:
        return place
    # Beside those of the same size, so that normal scores keep the order.
    return np.where(values == own, _BINS, place) if own else np.where(values == own, 0, place + 1)


def _unbinned(
    place: NDArray[np.intp], column: Column, cuts: Array, rng: np.random.Generator
) -> Array:
    if column.levels:
        return place.astype(np.float64)
    own = _own(column)
    at = np.clip(place - (own == 0), 0, _BINS - 1)
    values = column.snap(cuts[at] + (cuts[at + 1] - cuts[at]) * rng.random(len(at)))
    if own is None:
        return values
    return np.where(place == (0 if own == 0 else _BINS), own, values)
