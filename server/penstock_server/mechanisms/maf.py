"""Synthetic tables of a normalising flow, with or without latent noise injection."""

from __future__ import annotations

from penstock.mechanisms import Maf
from penstock.mechanisms.released import Refitting
from penstock_server.mechanisms.protocol import Results
from penstock_server.mechanisms.tables.kind import TableKind

_FITTED = {
    "formal": "The fit saw noisy sums of its persons only, each person's part in them cut to a "
    "bound.",
    "public-flow": "The fit saw public data only, and none of the cohort's persons.",
    "empirical": "No bound holds for how much one person could change the fit.",
}


class MafKind(TableKind[Maf]):
    """A flow's tables."""

    @property
    def injects(self) -> bool:
        # Without a guarantee all is in the one event, of ε = ∞.
        return self.used.w > 0 and self.study.privacy.guarantee != "empirical"

    def load_results(self) -> Results:
        from penstock_server.mechanisms.tables.results import TableResults

        return TableResults(self.study, self.refitting)

    @property
    def refitting(self) -> Refitting:
        # Persons' own latents, where there are any, are the same in every table.
        return Refitting(fresh=1.0 - self.used.w)

    def tell_how(self) -> str:
        made = (
            "Each site fitted a normalising flow (maf): a smooth, invertible change of shape "
            "that turns a distribution into a plain bell curve. "
            f"{_FITTED[self.study.privacy.guarantee]}"
        )
        if self.used.w > 0:
            made += (
                f" A share of {self.used.w:g} of each synthetic row's place in that bell curve is "
                "a person's own, with noise (latent noise injection)."
            )
        return made
