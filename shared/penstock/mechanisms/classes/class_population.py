r"""What is known of the columns of a table: noisy counts, of single columns and of all pairs,
noisy moments of what has an order, and a mixture of classes that has them all.

Of many levels a Gaussian copula has a latent for each, and one number for each pair of these: too
much to ask, and too little to hold what levels have in common. Here a pair of columns is a table.
Of what stands little out of the noise a mixture has less than there is. So in each class what has
an order is joined by a Gaussian copula, at whose correlation persons have the released moments: of
noisy counts it has nearly all that numbers have in common, of exact ones nearly nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from penstock.mechanisms.classes.even_draws import (
    deal_cells,
    deal_classes,
    hand_out,
    spread_inside,
)
from penstock.mechanisms.classes.mixture import Mixture, Moments, Told, fit_mixture
from penstock.mechanisms.classes.pair_counts import Groups, release_pairs, share_error
from penstock.mechanisms.copula.correlations import Couplings, match_correlation, take_root
from penstock.mechanisms.copula.divided_bins import Margin
from penstock.mechanisms.copula.grids import Cells
from penstock.mechanisms.copula.population import (
    SAMPLING,
    Scores,
    quasi_random,
)
from penstock.mechanisms.copula.told_means import ToldMeans, recall_means
from penstock.mechanisms.tables.moments import clip_rows, release_moments
from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.sources import NoiseSource
from penstock.schema import Coded

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Places = NDArray[np.intp]

_LEAST_CHANCE = 1e-12
"""Where a person lies in a column is at least as far from 0 and 1."""


@dataclass(frozen=True, slots=True)
class ClassPopulation:
    """Columns as released: latents to coded columns.

    Args:
        cells: of each column; risen: (K, cells - 1) of each, the share of a class before each cell
            but the first.
        classes: (K - 1,) the share of persons before each class but the first.
        rows: how many were present, as released.
        ordered: places of the columns that have an order; root: (q, q) of their correlation in
            each class.
    """

    cells: Sequence[Cells]
    risen: Sequence[Array]
    classes: Array
    rows: float
    ordered: Places
    root: Array

    @property
    def latents(self) -> int:
        """A person's class, and a place in each column."""
        return 1 + len(self.cells)

    def draw(self, latents: Array) -> Coded:
        """(N, 1 + d) standard Gaussians to coded columns."""
        member = np.searchsorted(self.classes, ndtr(latents[:, 0]), side="right")
        points = self._join(latents[:, 1 + self.ordered], ndtr(latents[:, 1:]))
        coded: Coded = {}
        for own, risen, at in zip(self.cells, self.risen, points, strict=True):
            mine = risen[member]
            place = (at[:, None] >= mine).sum(axis=1)
            bounds = np.pad(mine, ((0, 0), (1, 1)), constant_values=((0, 0), (0, 1)))
            each = np.arange(len(place))
            start, end = bounds[each, place], bounds[each, place + 1]
            inside = (at - start) / np.maximum(end - start, 1e-300)
            coded[own.grid.column.name] = own.fill(place, inside)
        return coded

    def draw_table(self, points: Array, rng: np.random.Generator) -> Coded:
        """(N, 1 + d) in (0, 1) to coded columns: each cell of a class as often as it is likely, up
        or down (:func:`~penstock.mechanisms.classes.even_draws.deal_cells`); whose it is is chance.
        """
        member, sizes = deal_classes(np.append(self.classes, 1.0), points[:, 0], rng)
        counts = deal_cells(self.risen, sizes, rng)
        joined = self._join(ndtri(points[:, 1 + self.ordered]), points[:, 1:])
        coded: Coded = {}
        for own, count, at in zip(self.cells, counts, joined, strict=True):
            place = hand_out(count, member, at)
            inside = spread_inside(place, rng) if own.grid.numeric else at
            coded[own.grid.column.name] = own.fill(place, inside)
        return coded

    def _join(self, latents: Array, points: Array) -> list[Array]:
        """Where persons lie in each column, (N,) in (0, 1), if what has an order is correlated.

        Args:
            latents: (N, q) independent Gaussians of what has an order; points: (N, d) of all.
        """
        columns = list(points.T)
        if len(self.ordered) > 1:
            together = latents @ self.root
            ndtr(together, out=together)
            np.clip(together, _LEAST_CHANCE, 1 - _LEAST_CHANCE, out=together)
            for j, own in zip(self.ordered, together.T, strict=True):
                columns[j] = own
        return columns


def fit_classes(
    margins: Sequence[Margin],
    count: float,
    coded: Coded,
    present: Bools,
    per_person: int,
    moments: WholeSum | None,
    radius: float,
    power: int,
    asked: Collection[str],
    means: ToldMeans | None,
    noise: NoiseSource,
    pairs: WholeSum | None,
    most: int,
) -> ClassPopulation:
    """Release moments and pairs of rows whose counts are released, and make persons like them.

    Args: as :func:`~penstock.mechanisms.copula.population.fit_population` has them.
        pairs: of :func:`~penstock.mechanisms.classes.pair_counts.measure_pairs`.
        most: groups of a number's bins.
    """
    grids, sd = [margin.grid for margin in margins], margins[0].sd
    shares = [margin.read(recall_means(means, margin.grid)) for margin in margins]
    groups = [Groups.make(grid, share, most) for grid, share in zip(grids, shares, strict=True)]
    ordered = [j for j, grid in enumerate(grids) if grid.ordered]
    score = Scores.of([grids[j] for j in ordered], [shares[j] for j in ordered], asked, radius)
    seen = Moments.nothing(sum(one.count for one in groups))
    if ordered:
        released = release_moments(
            score(coded).reshape(-1, per_person, len(score.weights)),
            present.reshape(-1, per_person),
            radius,
            moments,
            noise,
        )
        seen = _read_moments(released / count, moments, score, groups, ordered, count)
    tables = release_pairs(groups, coded, present, pairs, noise)
    told = Told(
        np.repeat(np.arange(len(groups)), [one.count for one in groups]),
        np.concatenate([one.add_up(s) for one, s in zip(groups, shares, strict=True)]),
        share_error(sd, count),
        tables / count,
        share_error(0.0 if pairs is None else pairs.sd, count),
        _add_means(seen, means, groups),
    )
    mixture = fit_mixture(told)
    found = _compose(groups, mixture, margins, count)
    if ordered or means is not None:
        persons = found.draw(quasi_random(found.latents, power))
        if ordered:
            seen = _add_clipped(seen, score, persons, radius)
        if means is not None:
            means = replace(means, persons=persons)
        further = replace(told, moments=_add_means(seen, means, groups))
        mixture = fit_mixture(further, mixture)
        found = _compose(groups, mixture, margins, count)
    if len(ordered) > 1:
        error = 0.0 if moments is None else moments.sd / math.sqrt(2) / count
        root = _match_root(found, score, released / count, error, radius, power)
        found = replace(found, root=root)
    return found


def _match_root(
    found: ClassPopulation, score: Scores, told: Array, error: float, radius: float, power: int
) -> Array:
    """Of the correlation in each class at which persons have the released moments.

    Args:
        told: (q + 1, q + 1) as released, over rows; error: sd of the noise on it.
    """
    latents = quasi_random(found.latents, power)

    def look(root: Array) -> Array:
        """Second moments of persons, seen as rows were."""
        persons = score(replace(found, root=root).draw(latents))
        seen = clip_rows(np.column_stack([persons, np.ones(len(persons))]), radius)
        return np.asarray(seen.T @ seen / len(seen))

    own = Couplings.of(
        score.grids,
        [raw.grid for raw in score.raw],
        latents[:, 1 + found.ordered],
        score(found.draw(latents)),
    )
    return take_root(match_correlation(told, error, found.root, own, look))


def _add_clipped(seen: Moments, score: Scores, persons: Coded, radius: float) -> Moments:
    """The moments, with what clipping took of rows: as much as it takes of such persons."""
    scored = score(persons)
    rows = np.column_stack([scored, np.ones(len(scored))])
    clipped = clip_rows(rows, radius)
    taken = (rows.T @ rows - clipped.T @ clipped) / len(rows)
    taken = _unweigh(taken, score.weights)
    return replace(
        seen, products=seen.products + taken[:-1, :-1], means=seen.means + taken[:-1, -1]
    )


def _add_means(seen: Moments, means: ToldMeans | None, groups: Sequence[Groups]) -> Moments:
    """The moments, and declared means, of whose products nothing was released."""
    recalled = [recall_means(means, one.grid) for one in groups]
    every = [(j, known) for j, own in enumerate(recalled) for known in own]
    if not every:
        return seen
    starts = np.append(0, np.cumsum([one.count for one in groups]))
    points = np.zeros((starts[-1], len(every)))
    for at, (j, known) in enumerate(every):
        points[starts[j] : starts[j + 1], at] = groups[j].average(known.points)
    further = ((0, len(every)), (0, len(every)))
    return Moments(
        np.column_stack([seen.points, points]),
        np.append(seen.own, [j for j, _ in every]).astype(np.intp),
        np.pad(seen.products, further),
        np.pad(seen.product_errors, further, constant_values=np.inf),
        np.append(seen.means, [known.mean for _, known in every]),
        np.append(seen.mean_errors, [known.mean_sd for _, known in every]),
    )


def _read_moments(
    told: Array,
    measurement: WholeSum | None,
    score: Scores,
    groups: Sequence[Groups],
    ordered: Sequence[int],
    count: float,
) -> Moments:
    """Moments of scores as they are, from those of weighted ones, (q + 1, q + 1)."""
    points = [groups[j].average(s.points) for j, s in zip(ordered, score.scale, strict=True)]
    own = list(ordered)
    for raw in score.raw:
        [j] = [j for j in ordered if groups[j].grid is raw.grid]
        points.append(groups[j].average(raw.points))
        own.append(j)
    starts = np.append(0, np.cumsum([one.count for one in groups]))
    placed = np.zeros((starts[-1], len(own)))
    for at, (j, each) in enumerate(zip(own, points, strict=True)):
        placed[starts[j] : starts[j + 1], at] = each
    plain = _unweigh(told, score.weights)
    error = 0.0 if measurement is None else measurement.sd / math.sqrt(2) / count
    apart = np.hypot(error / score.weights, SAMPLING / math.sqrt(count))
    products = np.hypot(error / np.outer(score.weights, score.weights), SAMPLING / math.sqrt(count))
    places = np.array(own, dtype=np.intp)
    return Moments(placed, places, plain[:-1, :-1], products, plain[:-1, -1], apart)


def _unweigh(moments: Array, weights: Array) -> Array:
    """Of scores and 1, from those of weighted ones."""
    each = np.append(weights, 1.0)
    return np.asarray(moments / np.outer(each, each))


def _compose(
    groups: Sequence[Groups],
    mixture: Mixture,
    margins: Sequence[Margin],
    count: float,
) -> ClassPopulation:
    """The population of a mixture: in a group, cells are as its column's margin has them."""
    chances, weights, at = mixture.chances, mixture.classes, 0
    cells: list[Cells] = []
    risen: list[Array] = []
    for one, margin in zip(groups, margins, strict=True):
        each = chances[at : at + one.count][one.of] * one.within[:, None]
        at += one.count
        share = each @ weights
        share = share / share.sum()
        cells.append(Cells.of(one.grid, share, margin.read_within(share)))
        risen.append(np.ascontiguousarray(np.cumsum(each, axis=0)[:-1].T))
    ordered = np.flatnonzero([one.grid.ordered for one in groups])
    alone = np.eye(len(ordered))
    return ClassPopulation(cells, risen, np.cumsum(weights)[:-1], count, ordered, alone)
