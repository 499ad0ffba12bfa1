"""What is computed from synthetic tables: estimates of each, and what refits show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from penstock.inference.floored import choose_rows, estimate_floored, pick_rows
from penstock.inference.overlap import find_overlaps
from penstock.inference.posed import pose_copies
from penstock.inference.refits import Measured
from penstock.inference.robust import check_variances
from penstock.inference.tails import doubt_estimates
from penstock.mechanisms.joint.consortium import SITE
from penstock.mechanisms.registry import MECHANISMS
from penstock.mechanisms.released import EACH, Refitting, name_copy, name_refit
from penstock.questions.fits import remember_fits
from penstock.questions.fits.newton import KnownMaxima
from penstock.questions.persons import Courses, keep_first
from penstock.schema import Coded
from penstock.study.study import Study
from penstock.wire.messages import Copies
from penstock_server.analysis.attendees import Attendees, count_attendees
from penstock_server.analysis.baseline_figures import Baseline, describe_baseline
from penstock_server.analysis.changes import SiteChanges, measure_changes
from penstock_server.analysis.crosstabs import measure_crosstabs
from penstock_server.analysis.ranges import find_ranges
from penstock_server.analysis.survival_curves import measure_curves
from penstock_server.analysis.table_distances import measure_moved
from penstock_server.analysis.transitions import SiteTransitions, measure_transitions
from penstock_server.mechanisms.delivery import Upload
from penstock_server.mechanisms.protocol import Json
from penstock_server.mechanisms.tables.codebook import (
    describe_held,
    describe_tables,
    shares_rows,
)
from penstock_server.mechanisms.tables.exports import (
    write_imputations,
    write_pooled,
    write_refits,
)
from penstock_server.mechanisms.tables.held import measure_held
from penstock_server.mechanisms.writing import PERSON, WEIGHT

REFITTED = {"refits": write_refits, "imputations": write_imputations}
"""What is written of refits, by what is asked for."""


@dataclass(frozen=True, slots=True)
class TableResults:
    """The results of one study's tables.

    Args:
        made: how tables are made, but for the share of rows that a site's have.
        read_courses: whose a table's rows are and when, of a mechanism that follows persons.
        numbered: whether persons have several rows, so that files say whose each is.
        known: regressions that were fitted before.
    """

    own_summaries: ClassVar[tuple[type, ...]] = ()

    study: Study
    made: Refitting = EACH
    read_courses: Callable[[Coded], Courses] | None = None
    numbered: bool = False
    known: KnownMaxima = field(default_factory=KnownMaxima, compare=False, repr=False)

    def measure(self, upload: Upload, threads: int = 1) -> dict[str, Measured]:
        """Every estimand, combined over copies, and what its refits show."""
        schema, made = self.study.schema, self._find_made(upload)
        copies, refits = self._read(upload)
        models, found = remember_fits(self.known), {}
        # The fits are numpy and release the interpreter's lock for most of their time.
        with ThreadPool(threads) as pool:
            for estimand in self.study.estimands:
                one = partial(
                    estimate_floored,
                    schema,
                    estimand,
                    read_courses=self.read_courses,
                    models=models,
                )
                fitted, again = pool.map(one, copies), pool.map(one, refits)
                found[estimand.name] = Measured.of(
                    fitted,
                    again,
                    made=made,
                    total=estimand.regression.total,
                )
        return found

    def summarise(self, upload: Upload) -> tuple[object, ...]:
        """Where its numbers lie, which of them say the same, what hangs on few persons; what its
        planted runs show, curves of durations, tables of transitions and of levels, what robust
        variances say, how far its tables are from each other, and who is in them: as much of it as
        there is."""
        schema, estimands = self.study.schema, self.study.estimands
        copies, refits = self._read(upload)
        made = self._find_made(upload)
        posed = pose_copies(
            schema, estimands, copies, partial(choose_rows, schema, self.read_courses), self.known
        )
        found = (
            find_ranges(schema, copies[0]),
            find_overlaps(schema, estimands, copies[0]),
            doubt_estimates(schema, posed),
            measure_held(self.study, upload),
            measure_curves(
                schema,
                estimands,
                copies,
                refits,
                made=made,
                pick=partial(pick_rows, schema, self.read_courses),
            ),
            *self._measure_courses(copies, refits, made),
            measure_crosstabs(schema, estimands, copies, refits, made=made),
            check_variances(posed),
            measure_moved(schema, copies, refits, made=made),
            self._describe_persons(copies, made),
        )
        return tuple(one for one in found if one is not None)

    def _describe_persons(self, copies: Sequence[Coded], made: Refitting) -> Baseline:
        """Who is in the tables; of one release of all sites, at each of them, too."""
        joint = self.study.aggregation.joint and SITE in self.study.schema.names
        read = self.read_courses if self.numbered else None
        once = read is not None and read(copies[0]).person is not None
        return describe_baseline(
            self.study.schema,
            copies,
            by=SITE if joint else None,
            once=once,
            pick=lambda table: table if read is None else keep_first(table, read(table)),
            share=made.share,
        )

    def _measure_courses(
        self, copies: Sequence[Coded], refits: Sequence[Coded], made: Refitting
    ) -> tuple[SiteTransitions | SiteChanges | Attendees | None, ...]:
        """What is shown of persons over time beside what is asked."""
        read = self.read_courses
        if read is None:
            return ()
        whose = count_attendees(read(copies[0])) if self.numbered else None
        given = (self.study.schema, self.study.estimands, copies, refits, read)
        return (
            measure_transitions(*given, made=made),
            measure_changes(*given, made=made),
            whose,
        )

    def _find_made(self, upload: Upload) -> Refitting:
        """How the tables of one release were made."""
        own, mechanism = upload.manifest, MECHANISMS.of(self.study.mechanism)
        share = mechanism.share_rows(self.study.asked, own.persons)
        return replace(self.made.on_wire(own.wire), share=share)

    def _read(self, upload: Upload) -> tuple[list[Coded], list[Coded]]:
        """Its copies, and its refits."""
        schema, manifest = self.study.schema, upload.manifest
        copies = [upload.coded(name_copy(i + 1), schema) for i in range(manifest.copies)]
        refits = [upload.coded(name_refit(i + 1), schema) for i in range(manifest.refits)]
        return copies, refits

    def export(
        self, uploads: Callable[[], Iterator[Upload]], out: Path, copies: Copies
    ) -> list[Path]:
        """The pooled table, with one copy unless all are asked for; and refits, if asked: all, or
        as imputations."""
        whole = copies in ("all", "refits")
        files = write_pooled(uploads(), out, self._number, self._weigh, all_copies=whole)
        if copies in REFITTED and self.study.mechanism.refits:
            files += REFITTED[copies](uploads(), out, self._number, self._weigh, made=self.made)
        return files

    def _weigh(self, upload: Upload) -> dict[str, str | int | float]:
        """How many of its site's rows each of its rows stands for, in a study whose tables may have
        fewer."""
        return {WEIGHT: 1 / self._find_made(upload).share} if shares_rows(self.study) else {}

    def _number(self, upload: Upload, name: str) -> pa.Table:
        """A table behind the number of the person whose each row is, from 1; null where the
        table does not say."""
        table = upload.part(name)
        if not self.numbered or self.read_courses is None:
            return table
        person = self.read_courses(upload.coded(name, self.study.schema)).person
        numbers = [None] * len(table) if person is None else person + 1
        return table.add_column(0, PERSON, pa.array(numbers, pa.int32()))

    def describe(self, report: Json, copies: Copies) -> Json:
        found = describe_tables(
            self.study, report, copies=copies, made=self.made, numbered=self.numbered
        )
        return found | describe_held(report)
