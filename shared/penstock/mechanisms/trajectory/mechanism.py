"""``trajectory`` as the rest of the package knows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.mechanisms.memory import Memory
from penstock.mechanisms.parts import Part, Progress
from penstock.mechanisms.protocol import Array, Asked, Bools, Mechanism
from penstock.mechanisms.released import (
    PARTICLES,
    PATHS,
    Kind,
    PartShape,
    Shape,
    shape_copies,
    shape_refits,
)
from penstock.mechanisms.tables.words import FILES, NOTES, tables_returned
from penstock.mechanisms.trajectory.draft import draft_settings
from penstock.mechanisms.trajectory.settings import Trajectory
from penstock.schema import Schema

if TYPE_CHECKING:
    from penstock.mechanisms.trajectory.plan import Plan
    from penstock.mechanisms.trajectory.repeats import RepeatsPlan
    from penstock.privacy.noise.sources import NoiseSource
    from penstock.schema.encoding import Encoding

_NOTES = {
    **NOTES,
    "time": "the column that says when a row was taken",
    "points": "time points, into which a column of numbers is binned",
    "subsample": "how many of the time points have particles",
    "particles": "per time point",
    "paths": "sampled through the particles: a model's draws, not persons' histories",
    "path_times": "evenly spaced times of each path",
    "coupling": "entropic | exact",
    "start": "counts | gaussian | k-means | public; counts: where everybody has one row",
    "modes": "k-means: clusters at each time point",
    "start_share": "of the budget, for the start",
    "steps": "of the particles; where sites make one release, rounds: 30 do",
    "rate": "share of persons in a step; all of them where sites make one release",
    "temperature": "how rough paths are",
    "dependence": "measured | inferred; measured where persons may have several rows",
    "end": "the duration, once a person, with which paths and visits end",
    "visit_times": "when visits of each time point begin, as that duration counts",
}


class _Mechanism(Mechanism[Trajectory, "Plan | RepeatsPlan"]):
    settings = Trajectory
    head = "releases tables of snapshots, particles for each time, and paths through them."
    notes = _NOTES
    leaves = "rows taken at visits: synthetic rows, and paths through time"
    product = "paths and tables of snapshots"
    takes_time = True
    summed = True

    def plan(self, asked: Asked[Trajectory], persons: int) -> Plan | RepeatsPlan:
        from penstock.mechanisms.trajectory.plan import plan, require_sound
        from penstock.mechanisms.trajectory.repeats import plan_repeats

        given = (asked.settings, asked.schema, persons, asked.privacy)
        require_sound(*given)
        if self._counts(asked):
            return plan_repeats(*given)
        return plan(asked.settings, asked.schema, persons, asked.privacy)

    def plan_sums(self, asked: Asked[Trajectory], persons: int) -> Plan | RepeatsPlan:
        from penstock.mechanisms.trajectory.plan import plan_whole, require_sound

        given = (asked.settings, asked.schema, persons, asked.privacy)
        require_sound(*given)
        return self.plan(asked, persons) if self._counts(asked) else plan_whole(*given)

    def tells_site(self, asked: Asked[Trajectory]) -> bool:
        """Particles are of all sites' rows: of which a row is they could not say without being
        moved by it."""
        refused = asked.settings.problems(asked.schema, ())
        return not refused and self._counts(asked)

    def _counts(self, asked: Asked[Trajectory]) -> bool:
        """Whether persons are counted once, instead of pulling at particles."""
        return asked.settings.start == "counts" or asked.settings.measures(asked.schema)

    def memory(
        self,
        plan: Plan | RepeatsPlan,
        schema: Schema,
        dictionary: Schema | None = None,
        threads: int = 1,
    ) -> Memory:
        from penstock.mechanisms.trajectory.memory import release_memory, repeats_memory
        from penstock.mechanisms.trajectory.repeats import RepeatsPlan

        if isinstance(plan, RepeatsPlan):
            return repeats_memory(plan, schema, dictionary or schema, threads)
        return release_memory(plan, schema, dictionary or schema, threads)

    def shape(self, asked: Asked[Trajectory], persons: int) -> Shape:
        used, schema, counted = asked.settings, asked.schema, self.counts_rows(asked)
        followed = _until_the_end(used, schema)
        count, each = used.particles * used.time_points(schema), used.path_times
        return Shape(
            (
                *shape_copies(used, schema, persons, counted=counted),
                PartShape(PARTICLES, Kind.ONCE, followed, count),
                PartShape(PATHS, Kind.ONCE, followed, used.paths * each, each=each),
                *shape_refits(used, schema, persons, counted=counted),
            )
        )

    def counts_rows(self, asked: Asked[Trajectory]) -> bool:
        """A public start has counted nobody: a row for each that the frame may hold.

        (Measured dependence has no start, and counts.)"""
        return asked.settings.start != "public"

    def run(
        self,
        plan: Plan | RepeatsPlan,
        encoding: Encoding,
        rows: Array,
        present: Bools,
        noise: NoiseSource,
        *,
        progress: Progress | None = None,
        device: str = "cpu",
        threads: int = 1,
        public: tuple[Array, Bools] | None = None,
    ) -> Iterator[Part]:
        from penstock.mechanisms.trajectory.repeats import RepeatsPlan

        if isinstance(plan, RepeatsPlan):
            # Without torch, of which it has no need.
            from penstock.mechanisms.trajectory import cohorts

            yield from cohorts.draw(plan, encoding, rows, present, noise, progress)
            return
        from penstock.mechanisms.trajectory import run

        yield from run.run(plan, encoding, rows, present, noise, progress, device, threads)

    def steps(self, settings: Trajectory) -> int:
        return settings.steps

    def draft(self, schema: Schema, time: str | None = None) -> Trajectory:
        return draft_settings(schema, time)

    def guessed(self, settings: Trajectory) -> str:
        return f"time = {settings.time}: taken by its name; --time names another column"

    def returned(self, asked: Asked[Trajectory]) -> list[str]:
        used = asked.settings
        points = used.time_points(asked.schema)
        if used.measures(asked.schema):
            how = "  what a person's visits have in common is measured: paths are imagined persons"
        else:
            how = "  paths are inferred by least motion through snapshots, not persons' histories"
        return [
            tables_returned(asked, self.counts_rows(asked), followed=used.measures(asked.schema)),
            f"  {used.particles} particles at each of {points} time points of {used.time}, and "
            f"{used.paths} paths at {used.path_times} times",
            how,
            *_tell_ends(asked),
            f"pull writes {FILES}, paths, particles and couplings",
        ]


def _until_the_end(used: Trajectory, schema: Schema) -> Schema:
    """Columns of particles and paths: where follow-up ends, nothing is known of what varies after
    it."""
    if used.end is None:
        return schema
    columns = (
        replace(c, nullable=True) if c.varies and c.name != used.time else c for c in schema.columns
    )
    return replace(schema, columns=tuple(columns))


def _tell_ends(asked: Asked[Trajectory]) -> list[str]:
    """Where paths end, or that they do not where follow-up may."""
    used, schema = asked.settings, asked.schema
    if used.end is not None:
        return [f"  paths and visits end with {used.end}"]
    once = [c.name for c in schema.columns if c.kind == "duration" and not c.varies]
    if not once or not used.measures(schema):
        return []
    return [f"  paths and visits do not end with {once[0]}: set end = {once[0]!r} if they are to"]


TRAJECTORY = _Mechanism()
