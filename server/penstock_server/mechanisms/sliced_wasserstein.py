"""Synthetic tables of particles that moved along random lines."""

from __future__ import annotations

from penstock.mechanisms import SlicedWasserstein
from penstock_server.mechanisms.tables.kind import TableKind

_MADE = {
    "sketch": "Each site looked at its cohort along many random lines, and released once, with "
    "noise, how its persons lie on each of them (sliced-wasserstein, sketch). Particles then moved "
    "until they lie the same way on every line; that looked at no person again.",
    "resampled": "At each site particles moved towards the cohort as seen along random lines "
    "(sliced-wasserstein, resampled). Every step saw a fresh batch of persons, with noise.",
    "presampled": "Each site released noisy positions of its persons along random lines once "
    "(sliced-wasserstein, presampled). Particles then moved until they lie the same way; that "
    "looked at no person again.",
}


class SlicedWassersteinKind(TableKind[SlicedWasserstein]):
    """The tables of a sliced Wasserstein flow."""

    def tell_how(self) -> str:
        return _MADE[self.used.variant]
