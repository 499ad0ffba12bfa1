"""``sliced-wasserstein`` as the rest of the package knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.mechanisms.protocol import Asked
from penstock.mechanisms.sliced_wasserstein.settings import SlicedWasserstein
from penstock.mechanisms.tables.mechanism import TableMechanism
from penstock.mechanisms.tables.words import NOTES

if TYPE_CHECKING:
    from penstock.mechanisms.tables.plan import Plan

_NOTES = {
    **NOTES,
    "variant": "sketch | resampled | presampled",
    "steps": "of the flow; resampled pays for each",
    "bases": "directions are so many orthonormal bases",
    "bins": "of each distribution function (sketch)",
    "batch": "rows per step (resampled)",
    "step": "in units of the step that matches one direction",
    "diffusion": "entropic term; it earns no privacy",
}


class _Mechanism(TableMechanism[SlicedWasserstein]):
    settings = SlicedWasserstein
    notes = _NOTES
    summed = True

    def plan(self, asked: Asked[SlicedWasserstein], persons: int) -> Plan:
        from penstock.mechanisms.sliced_wasserstein.plan import plan

        return plan(asked.settings, asked.schema, persons, asked.privacy)

    def instead_of_sums(self, settings: SlicedWasserstein) -> str:
        """A sketch is sums. Noisy rows are none; and distribution functions along new directions
        at every step, summed, would have the noise that as many have in one round of a sketch:
        rounds would cost time, and buy nothing."""
        if settings.variant == "sketch":
            return ""
        return "Use the variant sketch, which has as many directions at the same noise in one round"

    def steps(self, settings: SlicedWasserstein) -> int:
        return settings.steps


SLICED_WASSERSTEIN = _Mechanism()
