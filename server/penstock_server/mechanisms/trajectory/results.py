"""What is computed from a trajectory's release: as of tables, and what its paths show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from penstock.inference.refits import Measured
from penstock.mechanisms import Trajectory
from penstock.mechanisms.released import PARTICLES, PATHS
from penstock.study.study import Study
from penstock.wire.messages import Copies
from penstock_server.mechanisms.delivery import Upload
from penstock_server.mechanisms.protocol import Json
from penstock_server.mechanisms.tables.results import TableResults
from penstock_server.mechanisms.trajectory.codebook import (
    MEASURED_SNAPSHOTS,
    SNAPSHOTS,
    describe_paths,
)
from penstock_server.mechanisms.trajectory.exports import (
    why_no_couplings,
    write_couplings,
    write_particles,
    write_paths,
)
from penstock_server.mechanisms.trajectory.marginals import Marginals, summarise


@dataclass(frozen=True, slots=True)
class TrajectoryResults:
    """The results of one trajectory study."""

    own_summaries: ClassVar[tuple[type, ...]] = (Marginals,)

    study: Study
    used: Trajectory

    @property
    def tables(self) -> TableResults:
        """What is computed of its tables, as of any, and of the persons in them."""
        return TableResults(
            self.study,
            read_courses=partial(self.used.read_courses, self.study.schema),
            numbered=self.used.measures(self.study.schema),
        )

    def measure(self, upload: Upload, threads: int = 1) -> dict[str, Measured]:
        return self.tables.measure(upload, threads)

    def summarise(self, upload: Upload) -> tuple[object, ...]:
        """What a picture shows of the particles and paths, and what any tables show."""
        schema = self.study.schema
        particles, paths = (upload.coded(name, schema) for name in (PARTICLES, PATHS))
        marginals = summarise(self.used, schema, upload.manifest.rows, particles, paths)
        return (marginals, *self.tables.summarise(upload))

    def export(
        self, uploads: Callable[[], Iterator[Upload]], out: Path, copies: Copies
    ) -> list[Path]:
        """Tables, paths and particles, and couplings where they can be made."""
        study, used = self.study, self.used
        files = self.tables.export(uploads, out, copies)
        files += write_paths(uploads(), study, used, out)
        files += write_particles(uploads(), study, used, out)
        if why_no_couplings(study, used) is None:
            files += write_couplings(uploads(), study, used, out)
        return files

    def describe(self, report: Json, copies: Copies) -> Json:
        found = self.tables.describe(report, copies)
        measured = self.used.measures(self.study.schema)
        found["combining"] += MEASURED_SNAPSHOTS if measured else SNAPSHOTS
        return found | {"trajectory": describe_paths(self.study, self.used)}
