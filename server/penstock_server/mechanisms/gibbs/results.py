"""What is computed from answers: the estimate is the site's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from penstock.inference.combine import SiteEstimate
from penstock.inference.doubts import Doubts
from penstock.inference.floor import variance_floor
from penstock.inference.refits import Measured
from penstock.mechanisms import Gibbs
from penstock.study.study import Study
from penstock.wire.messages import Copies
from penstock_server.mechanisms.answered import read_answer, read_doubts
from penstock_server.mechanisms.delivery import Upload
from penstock_server.mechanisms.gibbs.codebook import describe_answer
from penstock_server.mechanisms.gibbs.exports import write_answers
from penstock_server.mechanisms.protocol import Json


@dataclass(frozen=True, slots=True)
class GibbsResults:
    """The results of one study that sites have answered themselves."""

    own_summaries: ClassVar[tuple[type, ...]] = ()

    study: Study
    used: Gibbs

    def measure(self, upload: Upload, threads: int = 1) -> dict[str, Measured]:
        """The one estimand that a site has answered itself.

        The last term is the estimand, per its units already; its variance holds the mechanism's
        noise.
        """
        estimand, schema = self.study.estimands[0], self.study.schema
        most = upload.manifest.persons * schema.max_rows_per_person
        estimates, covariance = read_answer(upload)
        # As for tables: no answer from so many rows can know more.
        variance = max(float(covariance[-1, -1]), variance_floor(schema, estimand, most))
        # How many rows are behind it, within the frame, is not released.
        found = SiteEstimate(float(estimates[-1]), variance, variance, None, None, None, 1, 1)
        return {estimand.name: Measured(found, 0, None)}

    def summarise(self, upload: Upload) -> tuple[object, ...]:
        """What the estimand hangs on."""
        return (Doubts.of({self.study.estimands[0].name: float(read_doubts(upload)[-1])}),)

    def export(
        self, uploads: Callable[[], Iterator[Upload]], out: Path, copies: Copies
    ) -> list[Path]:
        """The coefficients; there are no copies to choose from."""
        return write_answers(uploads(), self.study, self.used, out)

    def describe(self, report: Json, copies: Copies) -> Json:
        return describe_answer(self.study, self.used, report)
