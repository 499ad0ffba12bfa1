"""One private fit, stage by stage: noisy sums of the rows in, a density out.

The margins give every column the normal shape; the flow starts as the Gaussian with the noisy
moments, so that it spends its share on what a Gaussian misses. Its samples are then matched to the
noisy moments, since its own are the noisier ones, and their durations to the outcome's score. All
that follows a stage's noise is post-processing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from penstock.mechanisms.parts import Progress
from penstock.mechanisms.sobol import draw_sobol
from penstock.mechanisms.tables.level_shares import SETTLED, LevelShares, fit_levels
from penstock.mechanisms.tables.margins import (
    Counts,
    Margins,
    clamp,
    outcome_counts,
    release_histograms,
    standardise,
)
from penstock.mechanisms.tables.moments import Affine, gaussian, match_moments, release_moments
from penstock.mechanisms.tables.outcome import Hazard, match_score, release_score, restore_shares
from penstock.mechanisms.tables.plan import Plan
from penstock.mechanisms.tables.stages import Transport
from penstock.privacy.noise.sources import NoiseSource
from penstock.schema.encoding import Dither, KeptDither, Outcome, Simplex

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_MATCH_POWER, _REFIT_MATCH_POWER = 14, 12
"""A match looks at 2¹⁴ quasi-random rows, that of a refit at the first 2¹² of them: where it ends
differs by a small part of a table's sampling error, and takes a quarter of the time."""

_SEED = 0
"""Of these rows; public."""


class Encoding(Protocol):
    """What a fit needs of :class:`penstock.schema.encoding.Encoding`; (d,) is the public box.

    ``outcomes``: the coordinates of durations, their events and ends; ``levels``: of each
    coordinate that holds levels alone, their points; ``simplices``: the columns of levels that have
    several coordinates.
    """

    @property
    def low(self) -> Array: ...

    @property
    def high(self) -> Array: ...

    @property
    def outcomes(self) -> tuple[Outcome, ...]: ...

    @property
    def levels(self) -> Mapping[int, Array]: ...

    @property
    def simplices(self) -> tuple[Simplex, ...]: ...

    def encode(
        self, coded: Mapping[str, Array], rng: np.random.Generator | Dither, /
    ) -> tuple[Array, Bools]: ...

    def decode(self, rows: Array, /) -> Mapping[str, Array]: ...


@runtime_checkable
class Density(Transport, Protocol):
    """A transport with an inverse and a density."""

    def to_latent(self, x: Array, /) -> Array:
        """(n, d) → (n, d)."""

    def log_prob(self, x: Array, /) -> Array:
        """log density of each row, (n,)."""


@dataclass(frozen=True, slots=True)
class Model:
    """A fitted density: values in the public box ↔ (margins) ↔ (affine) ↔ flow ↔ latents.

    ``rows``: how many rows were present when it was fitted, as released (noisy); ``settled``: what
    makes levels as frequent as they were counted.
    """

    low: Array
    high: Array
    margins: Margins
    affine: Affine
    flow: Transport
    rows: float
    settled: tuple[LevelShares, ...] = ()

    def to_latent(self, x: Array, /) -> Array:
        """(n, d) values to latents; standard Gaussian if the model were exact."""
        scores = self.margins.to_scores(clamp(x, self.low, self.high))
        return self._density().to_latent(self.affine.invert(scores))

    def to_values(self, z: Array, /) -> Array:
        """(n, d) latents to values in the box, finite."""
        scores = self.affine.apply(self.flow.from_latent(z))
        values = clamp(self.margins.to_values(scores), self.low, self.high)
        for column in self.settled:
            column.settle(values)
        return values

    def log_density(self, x: Array, /) -> Array:
        """Log density of values (n, d), (n,): the flow's, and the slopes of what is before it."""
        inside = clamp(x, self.low, self.high)
        scores = self.affine.invert(self.margins.to_scores(inside))
        stretch = float(np.linalg.slogdet(self.affine.matrix)[1])
        density = self._density().log_prob(scores)
        return density - stretch + self.margins.log_slope(inside)

    def _density(self) -> Density:
        if not isinstance(self.flow, Density):
            raise TypeError("particles have no inverse")
        return self.flow


def fit(
    plan: Plan,
    encoding: Encoding,
    rows: Array,
    present: Bools,
    noise: NoiseSource,
    progress: Progress | None = None,
    device: str = "cpu",
    threads: int = 1,
) -> Model:
    """The model of all stages but the injection; private as far as the plan's multipliers go."""
    tables = [(rows, present)]
    [model] = fit_many(plan, encoding, tables, [noise], progress, device, threads)
    return model


def fit_many(
    plan: Plan,
    encoding: Encoding,
    tables: Sequence[tuple[Array, Bools]],
    noises: Sequence[NoiseSource],
    progress: Progress | None = None,
    device: str = "cpu",
    threads: int = 1,
    refits: bool = False,
) -> list[Model]:
    """:func:`fit` of each table with its own source: each is a release of its own.

    ``refits``: the tables are copies, and a match looks at fewer quasi-random rows.
    """
    # Read here and not as a default, which would be bound before a test can make it smaller.
    match_power = _REFIT_MATCH_POWER if refits else _MATCH_POWER

    def begin(table: tuple[Array, Bools], noise: NoiseSource) -> _Fit:
        return _Fit(plan, encoding, *table, noise, match_power)

    with ThreadPoolExecutor(threads) as pool:
        fits = list(pool.map(begin, tables, noises))
    flows = plan.stages.body.fit(fits, noises, progress, device, threads)
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(_Fit.finish, fits, flows))


class _Fit:
    """One fit, begun: margins and moments are released.

    ``inside``: the rows (n, k, d) as the body is to see them; ``present``: (n, k); ``rows``: how
    many are present, as released.
    """

    def __init__(
        self,
        plan: Plan,
        encoding: Encoding,
        rows: Array,
        present: Bools,
        noise: NoiseSource,
        match_power: int,
    ) -> None:
        low, high, stages = encoding.low, encoding.high, plan.stages
        self._plan, self._encoding, self._noise = plan, encoding, noise
        self._counts = release_histograms(
            rows,
            present,
            low,
            high,
            stages.margins,
            noise,
            encoding.outcomes,
            encoding.levels,
            plan.persons * plan.rows,
            encoding.simplices,
        )
        self.rows = self._counts.rows
        self._seen = _Seen(encoding, self._counts, _SEED)
        self._values, self.present = clamp(rows, low, high), present
        self._scores = self._seen.linear.invert(self._values)
        self._moments = release_moments(self._scores, present, stages.radius, stages.moments, noise)
        self._latents = ndtri(draw_sobol(plan.d, match_power, _SEED))
        # Linear moments in place of those of normal scores are near enough to start a match from.
        spread = gaussian(self._moments, self._counts.rows, self._seen.margins.unclear).matrix
        start = Affine(spread, np.zeros(plan.d))
        self._start = self._matched(start.apply(self._latents)).after(start)
        self.inside = self._start.invert(self._seen.margins.to_scores(self._values))

    def finish(self, flow: Transport) -> Model:
        """The model, once its body is fitted."""
        low, high, affine = self._encoding.low, self._encoding.high, self._start
        if self._plan.corrected:
            sample = affine.apply(flow.from_latent(self._latents))
            affine = self._moved(sample, self._matched(sample)).after(affine)
        model = Model(low, high, self._seen.margins, affine, flow, self.rows)
        if self._plan.injection is not None or not self._encoding.simplices:
            return model  # the rows' own latents are to come back as they are
        drawn = model.to_values(self._latents[:SETTLED])
        told = zip(self._encoding.simplices, self._counts.levels, strict=True)
        settled = (fit_levels(s, drawn, counts[:-1], self._counts.sd) for s, counts in told)
        return replace(model, settled=tuple(settled))

    def _matched(self, sample: Array) -> Affine:
        """The map that gives a sample of normal scores the released moments."""
        radius, observe = self._plan.stages.radius, self._seen.observer()
        rows, sd = self._counts.rows, self._plan.stages.moment_sd / self._counts.rows
        held = self._seen.margins.unclear
        return match_moments(self._moments, rows, radius, sample, lambda y: observe(y)[1], sd, held)

    def _moved(self, sample: Array, match: Affine) -> Affine:
        """``match``, and after it what gives the sample the released scores of the outcomes."""
        stages, outcomes, counts = self._plan.stages, self._encoding.outcomes, self._counts
        observe = self._seen.observer()
        for i, outcome in enumerate(outcomes):
            halves, ended = counts.split[i], counts.ended[i]
            states = outcome_counts(counts, i, outcome, self._encoding.levels)
            match = restore_shares(outcome, states, match.apply(sample)).after(match)
            edges = self._seen.edges(outcome.duration, halves.shape[1])
            known = self._moments / counts.rows
            hazard = Hazard.estimate(outcome, halves, float(ended), edges, known)
            near = match.apply(sample)
            theta = hazard.coefficients(*observe(near))
            total = release_score(
                hazard,
                self._values,
                self._scores,
                self.present,
                theta,
                stages.outcome,
                self._noise,
            )
            goal, sd = total / counts.rows, stages.outcome_sd / counts.rows
            match = match_score(hazard, theta, goal, sd, near, observe).after(match)
        return match


class _Seen:
    """What the noisy histograms say of the columns, and how a model's scores look as rows do."""

    def __init__(self, encoding: Encoding, counts: Counts, seed: int) -> None:
        self._encoding, self._seed = encoding, seed
        public = (encoding.low, encoding.high, encoding.outcomes, encoding.levels)
        self.linear = standardise(counts, *public, encoding.simplices)
        self.margins = Margins(counts, *public, encoding.simplices)

    def observer(self) -> Callable[[Array], tuple[Array, Array]]:
        """Normal scores as a model makes them to values, and their linear scores, as rows have.

        One noise for all rounds of a match, which looks at differences: always as many scores.
        """
        dither = KeptDither(np.random.default_rng(self._seed))

        def observe(y: Array) -> tuple[Array, Array]:
            decoded = self._encoding.decode(self.margins.to_values(y, own=True))
            values = self._encoding.encode(decoded, dither.again())[0]
            return values, self.linear.invert(values)

        return observe

    def edges(self, j: int, cells: int) -> Array:
        """The edges of as many even cells of a column."""
        return np.linspace(self._encoding.low[j], self._encoding.high[j], cells + 1)
