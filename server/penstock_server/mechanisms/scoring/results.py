"""What is computed from answers: the estimates are the site's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.mechanisms import Scoring
from penstock.mechanisms.scoring.blocks import find_places
from penstock.study.study import Study
from penstock.wire.messages import Copies
from penstock_server.analysis.combine import SiteEstimate
from penstock_server.analysis.doubts import Doubts
from penstock_server.analysis.floor import variance_floor
from penstock_server.analysis.refits import Measured
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

    study: Study
    used: Scoring

    def measure(self, upload: Upload) -> dict[str, Measured]:
        """Every estimand, per its units; the variance holds the mechanism's noise."""
        estimands, schema = self.study.estimands, self.study.schema
        most = upload.manifest.persons * schema.max_rows_per_person
        estimates, covariance, noise = read_apart(upload)
        places, found = find_places(schema, estimands), {}
        for estimand in estimands:
            at, per = places[estimand.name], estimand.per
            floor = variance_floor(schema, estimand, most)
            # As for tables: no answer from so many rows can know more.
            variance = max(float(covariance[at, at]) * per**2, floor)
            added = min(float(noise[at, at]) * per**2, variance)
            # How many rows are behind it, within the frame, is not released.
            one = SiteEstimate(
                estimate=float(estimates[at]) * per,
                variance=variance,
                within=variance - added,
                between=None,
                n=None,
                events=None,
                copies=1,
                copies_used=1,
                mechanism_variance=added,
            )
            found[estimand.name] = Measured(one, 0, None)
        return found

    def summarise(self, upload: Upload) -> tuple[object, ...]:
        """What each estimand hangs on."""
        doubts = read_coefficients_doubts(upload, self.study)
        places = find_places(self.study.schema, self.study.estimands)
        return (Doubts.of({name: float(doubts[at]) for name, at in places.items()}),)

    def export(
        self, uploads: Callable[[], Iterator[Upload]], out: Path, copies: Copies
    ) -> list[Path]:
        """The coefficients; there are no copies to choose from."""
        return write_answers(uploads(), self.study, out)

    def describe(self, report: Json, copies: Copies) -> Json:
        return describe_answers(self.study, report)
