"""What is computed from answers: the estimates are the site's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from penstock.inference.combine import SiteEstimate
from penstock.inference.doubts import Doubts
from penstock.inference.floor import variance_floor
from penstock.inference.refits import Measured
from penstock.mechanisms import Scoring
from penstock.mechanisms.released import ADDED, ESTIMATE, SITES, VARIANCE, sites_schema
from penstock.mechanisms.scoring.blocks import find_places, list_blocks
from penstock.mechanisms.scoring.divisible import list_apart, list_divisible
from penstock.mechanisms.scoring.regressions import list_regressions
from penstock.questions.contingency import Cell, list_cells
from penstock.questions.estimands import Estimand
from penstock.study.study import Study
from penstock.wire.messages import Copies
from penstock_server.analysis.crosstabs import SiteCrosstabs, list_crossed, list_crosstabs
from penstock_server.analysis.site_effects import SiteEffect, SiteEffects
from penstock_server.mechanisms.answered import read_apart
from penstock_server.mechanisms.delivery import Upload
from penstock_server.mechanisms.protocol import Json
from penstock_server.mechanisms.scoring.codebook import describe_answers
from penstock_server.mechanisms.scoring.exports import (
    read_coefficients_doubts,
    write_answers,
)


@dataclass(frozen=True, slots=True)
class ScoringResults:
    """The results of one study that sites have answered themselves."""

    own_summaries: ClassVar[tuple[type, ...]] = ()

    study: Study
    used: Scoring

    def measure(self, upload: Upload, threads: int = 1) -> dict[str, Measured]:
        """Every estimand, per its units; the variance holds the mechanism's noise."""
        estimands, schema = self.study.estimands, self.study.schema
        most = upload.manifest.persons * schema.max_rows_per_person
        estimates, covariance, noise = read_apart(upload)
        places, found = find_places(schema, estimands), {}
        for estimand in estimands:
            at, per = places[estimand.name], estimand.factor
            floor = variance_floor(schema, estimand, most)
            whole, own = float(covariance[at, at]) * per**2, float(noise[at, at]) * per**2
            found[estimand.name] = _tell(
                float(estimates[at]) * per, whole, own, floor, total=estimand.regression.total
            )
        return found

    def summarise(self, upload: Upload) -> tuple[object, ...]:
        """What each estimand hangs on; all cells of tables; and what sites have apart."""
        doubts = read_coefficients_doubts(upload, self.study)
        places = find_places(self.study.schema, self.study.estimands)
        hangs = Doubts.of({name: float(doubts[at]) for name, at in places.items()})
        tables = {one.name: self._read_table(upload, one) for one in self._crosstabs}
        found: list[object] = [hangs, *([SiteCrosstabs(tables)] if tables else [])]
        if SITES in upload.parts:
            found.append(self._read_sites(upload))
        return tuple(found)

    def _read_sites(self, upload: Upload) -> SiteEffects:
        """Of each estimand whose regression is told apart, every site's own effect."""
        schema, estimands = self.study.schema, self.study.estimands
        order = list_apart(schema, estimands, self.study.asked.apart_by)
        coded = upload.coded(SITES, sites_schema(len(order)))
        divisible = list_divisible(list_regressions(schema, estimands))
        frames, found, rounds = dict(self.study.aggregation.persons), {}, {}
        for back, regression in enumerate(reversed(divisible), start=1):
            for estimand in (e for e in estimands if e.name in regression.asked):
                term, per = (regression.number, regression.asked[estimand.name]), estimand.factor
                effects = []
                for at, (number, place, level) in enumerate(order):
                    if (number, place) != term:
                        continue
                    site = self.study.sites[level]
                    most = frames[site] * schema.max_rows_per_person
                    floor = variance_floor(schema, estimand, most)
                    variance = max(float(coded[VARIANCE][at]) * per**2, floor)
                    noise = min(float(coded[ADDED][at]) * per**2, variance)
                    estimate = float(coded[ESTIMATE][at]) * per
                    effects.append(SiteEffect(site, estimate, variance, noise))
                found[estimand.name], rounds[estimand.name] = tuple(effects), back
        names = [e.name for e in estimands if e.name in found]
        return SiteEffects({name: found[name] for name in names}, rounds)

    @property
    def _crosstabs(self) -> tuple[Estimand, ...]:
        return list_crosstabs(self.study.estimands)

    def _read_table(self, upload: Upload, asked: Estimand) -> dict[Cell, tuple[Measured, Measured]]:
        """Of each cell the count and the share, as the block of its table has them."""
        schema, first = self.study.schema, 0
        for block in list_blocks(schema, self.study.estimands):
            if asked.name in block.asked:
                break
            first += len(block.names)
        cells = list_cells(list_crossed(schema, asked))
        floor = variance_floor(schema, asked, upload.manifest.persons * schema.max_rows_per_person)
        estimates, covariance, noise = read_apart(upload)

        def tell(at: int, *, total: bool) -> Measured:
            whole, own = float(covariance[at, at]), float(noise[at, at])
            return _tell(float(estimates[at]), whole, own, 0.0 if total else floor, total=total)

        return {
            cell: (tell(first + i, total=True), tell(first + len(cells) + i, total=False))
            for i, cell in enumerate(cells)
        }

    def export(
        self, uploads: Callable[[], Iterator[Upload]], out: Path, copies: Copies
    ) -> list[Path]:
        """The coefficients; there are no copies to choose from."""
        return write_answers(uploads(), self.study, out)

    def describe(self, report: Json, copies: Copies) -> Json:
        return describe_answers(self.study, report)


def _tell(estimate: float, variance: float, noise: float, floor: float, *, total: bool) -> Measured:
    """One number of an answer: no answer from so many rows can know more than the floor, as of
    tables."""
    variance = max(variance, floor)
    added = min(noise, variance)
    # How many rows are behind it, within the frame, is not released.
    one = SiteEstimate(
        estimate=estimate,
        variance=variance,
        within=variance - added,
        between=None,
        n=None,
        events=None,
        copies=1,
        copies_used=1,
        mechanism_variance=added,
        total=total,
    )
    return Measured(one, 0, None)
