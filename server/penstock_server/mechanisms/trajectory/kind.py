"""Particles, paths through them, and tables of snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.base.text import count_text
from penstock.mechanisms import Trajectory
from penstock.mechanisms.released import PARTICLES, PATHS
from penstock.schema import Coded
from penstock_server.mechanisms.protocol import Json, Results
from penstock_server.mechanisms.tables.kind import TableKind
from penstock_server.mechanisms.trajectory.uploaded import check_times

PATHS_WARNING = (
    "Paths are draws from a model that runs through snapshots of different persons or visits. "
    "They are not persons' histories, and couplings are not observed links between persons' "
    "visits: another way through the same snapshots may be as true."
)


MEASURED_WARNING = (
    "Paths are persons that a model imagines, each at all times, as if nobody dropped out. "
    "What a person's visits have in common was measured at the sites, with noise; no path is a "
    "person's history."
)


ENDING_WARNING = (
    "Paths are persons that a model imagines, each at all times until {} ends, as if nobody "
    "dropped out before. What a person's visits, and their end, have in common was measured at the "
    "sites, with noise; no path is a person's history."
)


HAZARDS_LIMIT = (
    "Hazard ratios of a duration that ends paths are drawn towards 1, and no interval says by how "
    "much: a person's end goes with what was measured by one correlation for each visit. Effects "
    "of up to 2 per standard deviation came back up to 5% smaller in simulated cohorts; one of "
    "nearly 3, in a real cohort, by a fifth to two fifths, however many persons there were. Ask "
    "for such a hazard ratio by a mechanism that declares it: scoring, or structured."
)


def _tell_size(site: Json) -> str:
    """Copies of so many visits, and of how many persons, where persons have several."""
    visits = f"{site['copies']} × {site['rows']:,} visits"
    return visits if site["persons"] is None else f"{visits} of {site['persons']:,} persons"


class TrajectoryKind(TableKind[Trajectory]):
    """A trajectory's particles, paths and tables."""

    words = replace(
        TableKind.words,
        size=_tell_size,
        rows="; visits of a copy: about as many as the site has, by a noisy count, each a row, and "
        "not persons where a person has several",
        counts="n counts persons of synthetic copies where something is asked of persons at a "
        "time, between times or along them, or of a duration that is once a person; else visits. ",
        counts_by_site="n: persons of a synthetic table, not patients, where something is asked of "
        "persons at a time, between times or along them, or of a duration that is once a person; "
        "else complete visits, of which there are about as many as the site has. ",
    )

    def check(self, parts: Mapping[str, Coded]) -> None:
        particles, paths = (parts[name][self.used.time] for name in (PARTICLES, PATHS))
        check_times(particles, paths, self.used, self.study.schema)

    def load_results(self) -> Results:
        from penstock_server.mechanisms.trajectory.results import TrajectoryResults

        return TrajectoryResults(self.study, self.used)

    @property
    def measured(self) -> bool:
        """Whether what persons' rows have in common was measured."""
        return self.used.measures(self.study.schema)

    def tell_how(self) -> str:
        if self.measured:
            return (
                "Each site took each of its persons, with all of their visits, as one row, and "
                "counted with noise how each column is distributed at each time, who was there "
                "when, and how all of these go together, within a visit and between visits "
                "(trajectory: measured dependence). From that it imagined persons."
            )
        if self.used.start == "counts":
            return (
                "Each site counted with noise how each column is distributed at each time, and "
                "which columns go together (trajectory: start by counts). From that it imagined "
                "persons at each time, and joined those at neighbouring times by short ways. Who "
                "became what is inferred by least motion: nobody was measured twice."
            )
        return (
            "Each site moved particles, imagined persons, until those at each time point look "
            "like the cohort at that time, and those at neighbouring times are joined by short "
            "ways (trajectory: mean-field Langevin dynamics). Each step saw a noisy sum over "
            "its persons only, each person's part in it cut to a bound. Who became what is "
            "inferred by least motion: nobody was measured twice."
        )

    def tell_what_left(self) -> str:
        paths = count_text(self.used.paths, "path")
        if self.measured:
            return (
                f"What left a site: {self.count_tables()}, the visits of as many imagined persons "
                f"as were counted with noise; {paths}, each of one such person, and particles. "
                "Counts of rows are counts of visits, and not of persons."
            )
        return (
            f"What left a site: the particles, {paths} through them, {self.count_tables()}. The "
            "tables' rows are snapshots: each at one time."
        )

    def list_warnings(self) -> list[tuple[str, str]]:
        if self.used.end is not None:
            return [("model-paths", ENDING_WARNING.format(self.used.end))]
        return [("model-paths", MEASURED_WARNING if self.measured else PATHS_WARNING)]

    def list_limits(self, *, mechanism_variance: bool) -> tuple[list[str], list[str]]:
        first, last = super().list_limits(mechanism_variance=mechanism_variance)
        snapshots = (
            "Estimates are made from tables of snapshots: they compare rows at the same or at "
            "different times, never a person with itself at another time."
        )
        if self.measured:
            snapshots = (
                "Regressions, and means without a time, are of tables of visits, and take each row "
                "for a person of its own. What is asked at a time, between times or along them is "
                "of persons: of those who were there, each counted once. So is what is asked of a "
                "duration that does not vary: each person counts once, as they were when they were "
                "first seen."
            )
        kept = [HAZARDS_LIMIT] if self.used.end is not None else []
        return first, [*last, snapshots, *kept]
