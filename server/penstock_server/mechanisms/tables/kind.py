"""What holds of every mechanism that releases synthetic tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TypeVar

from penstock.base.text import count_text
from penstock.mechanisms import MECHANISMS
from penstock.mechanisms import Settings as AnySettings
from penstock.mechanisms.released import LEAST_FITS
from penstock.schema import Coded
from penstock_server.mechanisms.protocol import MechanismKind, ReleaseWords, Results

Settings = TypeVar("Settings", bound=AnySettings)


class TableKind(MechanismKind[Settings]):
    """A mechanism that releases synthetic tables, and maybe refits of them."""

    words = ReleaseWords(
        released="synthetic rows",
        heading="Copies",
        size=lambda site: f"{site['copies']} × {site['rows']:,} rows",
        rows="; rows of a copy: about as many as the site has, by a noisy count, and not persons "
        "where a person has several",
        counts="n and events are those of synthetic copies. ",
        counts_by_site="n and events: complete rows of a synthetic table, and events among them, "
        "not patients; n is about as many as the site has, by a noisy count. ",
        counts_copies=True,
        reproduce="Pull the released copies of the study and fit the estimands again: the same "
        "copies give the same numbers.",
    )

    @property
    def most_rows(self) -> int | None:
        """Of a table, where there is such a number beside the site's own."""
        return None

    def check(self, parts: Mapping[str, Coded]) -> None:
        """Nothing: a synthetic table may hold whatever its shape and its columns allow."""

    def load_results(self) -> Results:
        from penstock_server.mechanisms.tables.results import TableResults

        return TableResults(self.study)

    def explain(self) -> list[str]:
        return [self.tell_how(), self.tell_what_left()]

    @abstractmethod
    def tell_how(self) -> str:
        """What a site does with its rows."""

    def tell_what_left(self) -> str:
        """What a site has released."""
        what = "What was made of the sums" if self.joint else "What left a site"
        return (
            f"{what}: {self.count_tables()}. Any question may be asked of them, at no further cost."
        )

    def count_tables(self) -> str:
        """How many tables, of how many rows, and how many refits."""
        used = self.used
        tables = f"{count_text(used.copies, 'synthetic table')} with "
        if MECHANISMS.of(self.study.mechanism).counts_rows(self.study.asked):
            whose = "all sites together have" if self.joint else "the site has"
            tables += f"about as many rows as {whose}, by a noisy count"
            if most := self.most_rows:
                tables += f", or a share of them: {most:,} at most"
        else:
            tables += "a row for each that the declared frame may hold"
        if used.refits:
            refits = count_text(used.refits, "refit")
            tables += f", and {refits} that show the mechanism's own noise"
        return tables

    def list_limits(self, *, mechanism_variance: bool) -> tuple[list[str], list[str]]:
        made = (
            f"from sums of all sites' rows, by the mechanism {self.used.name}"
            if self.joint
            else "at the sites by the mechanism that the table of sites names"
        )
        known, unknown = _JOINTLY if self.joint else (_VARIANCE_KNOWN, _VARIANCE_UNKNOWN)
        first = [
            f"Every row behind these numbers is synthetic, made {made}.",
            "Intervals include sampling error (how the real cohort would vary) and synthesis error "
            "(how the synthetic copies vary).",
            known if mechanism_variance else unknown,
        ]
        fits = self.used.refits // self.refitting.per_fit
        if mechanism_variance and self.refitting.per_fit > 1 and fits >= LEAST_FITS:
            first.append(_CORRECTED)
        last = []
        if not MECHANISMS.of(self.study.mechanism).counts_rows(self.study.asked):
            last.append(
                "Tables have a row for each that the declared frames may hold, since these "
                "releases counted nobody. Where a frame is larger than the cohort, standard errors "
                "are too small, by the square root of how many times too large it is."
            )
        last.append(
            "Models are fitted to the synthetic copies as they are. The synthetic data can only "
            "show what the mechanism's model can hold."
        )
        return first, last


_VARIANCE_KNOWN = (
    "Intervals of sites also include the noise and bias that the privacy mechanism adds, as "
    "refits show them: each site repeated its whole private procedure on its synthetic "
    "tables, which costs no privacy. That holds if the model can describe the cohort. A "
    "site has only so many refits, so what they show is an estimate, and is drawn towards what "
    "the other sites' refits show. Intervals (Student's t) and heterogeneity allow for that."
)
_CORRECTED = (
    "Estimates are moved by what refits lack of the tables that they were made of, as far as that "
    "is beyond chance (bias-corrected bootstrap: Efron & Tibshirani 1993, chapter 10), and "
    "intervals allow for it. The report's file says by how much (correction)."
)
_VARIANCE_UNKNOWN = (
    "Intervals of sites do not include the noise that the privacy mechanism added to the "
    "fitted model, nor its bias from clipping and encoding. That noise differs from site to "
    "site and shows as heterogeneity. So the headline is a random-effects estimate with a "
    "Hartung-Knapp interval that is never narrower than the plain one."
)
_JOINTLY = (
    "Intervals also include the noise and bias that the privacy mechanism adds, as refits show "
    "them: the whole private procedure was repeated on the synthetic tables, with the noise of all "
    "sites, which costs no privacy. That holds if the model can describe the cohorts. There are "
    "only so many refits, so what they show is an estimate, for which intervals (Student's t) "
    "allow.",
    "Intervals do not include the noise that the privacy mechanism added to the fitted model, nor "
    "its bias from clipping and encoding: they are too narrow. Refits would show it, and none were "
    "asked for.",
)
"""What refits show where there is one release of all sites, and where there are none."""
