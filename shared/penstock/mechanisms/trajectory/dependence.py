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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.copula.correlations import take_root
from penstock.mechanisms.copula.grids import draw_values
from penstock.mechanisms.trajectory.attendance import LATENTS, Attendance, AttendanceScores
from penstock.mechanisms.trajectory.coordinates import Places
from penstock.mechanisms.trajectory.endings import Endings
from penstock.mechanisms.trajectory.followed import Followed
from penstock.mechanisms.trajectory.headcounts import Counted, release_persons
from penstock.mechanisms.trajectory.moment_match import Imagined, Match
from penstock.mechanisms.trajectory.repeats import RepeatsPlan
from penstock.mechanisms.trajectory.visit_scores import Scores, release_together
from penstock.mechanisms.trajectory.visit_shares import Shares
from penstock.privacy.noise.sources import NoiseSource

Array = NDArray[np.float64]

_MATCHES, _MATCHES_ONCE = 2, 4
"""How often margins are read once more with what moments tell; and where everybody has one row,
when that is nearly all there is to know."""


@dataclass(frozen=True, slots=True)
class Dependence:
    """Persons as released: latents to attendance and values.

    Attributes:
        places: of a person's numbers; attendance: who is there when; ending: of follow-up.
        fixed: shares of each constant's cells; moving: of each time point, of each column's.
        root: (D, D) of the correlation.
        middle, spread: (D,) of each number among those who are there.
        persons: how many were seen; rows: at how many visits, as released.
    """

    places: Places
    attendance: Attendance
    ending: Endings | None
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
        there = self.attendance.draw(joined[:, : self.places.ahead], uniforms)
        ranked = (joined - self.middle) / self.spread
        values = [self.draw_at(ranked, t) for t in range(self.places.count)]
        names = [grid.column.name for grid in self.places.varying]
        laid = {name: np.column_stack([each[name] for each in values]) for name in names}
        return Followed(there, laid, self.draw_fixed(joined))

    def draw_fixed(self, joined: Array) -> dict[str, Array]:
        """Coded, (N,) each."""
        found = {
            grid.column.name: draw_values(grid, self.fixed[j], joined[:, at])
            for j, grid, at in self.places.fixed()
        }
        if self.ending is not None and (read := self.places.follow_up) is not None:
            stops = self.ending.draw(joined[:, LATENTS : self.places.ahead])
            found |= {read.duration.name: stops.time, read.event: stops.event.astype(np.float64)}
        return found

    def draw_at(self, ranked: Array, t: int) -> dict[str, Array]:
        """Coded columns at a time point, (N,) each, of numbers standardised among those there."""
        return {
            grid.column.name: draw_values(grid, self.moving[t][j], ranked[:, at])
            for j, grid, at in self.places.at(t)
        }


def fit(plan: RepeatsPlan, places: Places, followed: Followed, noise: NoiseSource) -> Dependence:
    """The model of persons: private as far as the plan's multipliers go."""
    counted = release_persons(places, followed, plan.persons, plan.margins, noise)
    imagined = Imagined.of(places)
    ahead = imagined.latents[:, : places.ahead]
    ending = _read_ending(places, counted)
    attendance = Attendance.read(
        counted.spans,
        counted.visits,
        counted.present,
        counted.persons,
        plan.visits,
        ahead,
        imagined.uniforms,
        ending,
    )
    shares = Shares.read(places, counted)
    there = attendance.draw(ahead, imagined.uniforms)
    stops = ending.draw(ahead[:, LATENTS:]) if ending else None
    scores = Scores.of(places, shares, AttendanceScores.of(there, stops), ending, plan)
    released = release_together(scores(followed), followed.seen, plan.radius, plan.moments, noise)
    match = Match.of(plan, places, scores, attendance, imagined, counted, released)
    correlation = np.eye(places.size)
    for _ in range(_MATCHES_ONCE if places.once else _MATCHES):
        correlation = match.correlate(shares, correlation)
        shares = match.recall(shares, counted, correlation)
    correlation = match.correlate(shares, correlation)
    root = take_root(correlation)
    middle, spread, _ = match.rank(root)
    rows = float(np.clip(counted.present.sum(), 1.0, plan.persons * plan.rows))
    return Dependence(
        places, attendance, ending, shares.fixed, shares.moving, root, middle, spread,
        counted.persons, rows,
    )  # fmt: skip


def _read_ending(places: Places, counted: Counted) -> Endings | None:
    if places.follow_up is None or counted.ends is None:
        return None
    ends, lasts = counted.ends
    given = (places.follow_up, ends, lasts, counted.spans, counted.persons, counted.sd)
    return Endings.read(*given)
