"""Particles, paths through them, and tables of snapshots."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.base.text import count_text
from penstock.mechanisms import Trajectory
from penstock.mechanisms.released import PARTICLES, PATHS
from penstock.schema import Coded
from penstock_server.mechanisms.protocol import Results
from penstock_server.mechanisms.tables.kind import TableKind
from penstock_server.mechanisms.trajectory.uploaded import check_times

PATHS_WARNING = (
    "Paths are draws from a model that runs through snapshots of different persons or visits. "
    "They are not persons' histories, and couplings are not observed links between persons' "
    "visits: another way through the same snapshots may be as true."
)


class TrajectoryKind(TableKind[Trajectory]):
    """A trajectory's particles, paths and tables."""

    def check(self, parts: Mapping[str, Coded]) -> None:
        particles, paths = (parts[name][self.used.time] for name in (PARTICLES, PATHS))
        check_times(particles, paths, self.used, self.study.schema)

    def load_results(self) -> Results:
        from penstock_server.mechanisms.trajectory.results import TrajectoryResults

        return TrajectoryResults(self.study, self.used)

    def tell_how(self) -> str:
        return (
            "Each site moved particles, imagined persons, until those at each time point look "
            "like the cohort at that time, and those at neighbouring times are joined by short "
            "ways (trajectory: mean-field Langevin dynamics). Each step saw a noisy sum over "
            "its persons only, each person's part in it cut to a bound."
        )

    def tell_what_left(self) -> str:
        paths = count_text(self.used.paths, "path")
        return (
            f"What left a site: the particles, {paths} through them, {self.count_tables()}. The "
            "tables' rows are snapshots: each at one time."
        )

    def list_warnings(self) -> list[tuple[str, str]]:
        return [("model-paths", PATHS_WARNING)]

    def list_limits(self, *, mechanism_variance: bool) -> tuple[list[str], list[str]]:
        first, last = super().list_limits(mechanism_variance=mechanism_variance)
        snapshots = (
            "Estimates are made from tables of snapshots: they compare rows at the same or at "
            "different times, never a person with itself at another time."
        )
        return first, [*last, snapshots]
