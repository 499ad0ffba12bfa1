"""What every engine that computes flows can do. Here and not with the engines, which need torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.flow.architecture import Architecture

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.intp]


class Flow(Protocol):
    """A flow that computes in some place of its own; numpy float64 goes in and comes out.

    (p,) is the flat parameter vector of :func:`.architecture.active`.
    """

    arch: Architecture
    device: str
    precision: str

    def get_flat(self) -> Array:
        """A copy of all parameters, (p,), masked entries included as zeros."""

    def set_flat(self, vector: Array, /) -> None:
        """Replace all parameters; (p,), zero where masked."""

    def to_latent(self, x: Array, /) -> Array:
        """z = f⁻¹(x), (n, d) → (n, d); x is clamped to the box."""

    def from_latent(self, z: Array, /) -> Array:
        """x = f(z), (n, d) → (n, d), finite, inside the box."""

    def log_prob(self, x: Array, /) -> Array:
        """log density of each row, (n,); x is clamped to the box."""

    def load(self, rows: Array, present: Bools, /) -> Any:
        """Persons' rows (n, k, d), present or not (n, k), where and as this engine wants them."""

    def clipped_sum(self, data: Any, who: Indices | None, clip: float, /) -> Array:
        """Sum over persons of their gradients of -log density, each clipped; (p,).

        A person's gradient is the sum over their rows. It is scaled to a norm a little below
        ``clip``, by as much as the rounding of everybody's sum may come to
        (:func:`penstock.mechanisms.flow.clipping.inner_clip`); ``inf`` scales nothing. Absent rows,
        and gradients that are not finite, contribute exactly 0. Norms and sums are in float64 and
        in a
        fixed order: the same numbers whatever the number of threads.

        Sensitivity: ``clip`` in L2, under zero-out of one person, in the floats as computed.

        Work: a function of the sizes of ``data`` and ``who`` alone. Whoever is absent is computed
        with weight 0, and moves nobody to another place.

        Args:
            data: from :meth:`load`.
            who: whose gradients, (m,) indices without repeats but for
                :data:`penstock.privacy.noise.sources.NOBODY`, which fills up; or None for all
                persons.
        """

    def person_norms(self, data: Any, /) -> Array:
        """Each person's unclipped gradient norm, (n,); of private rows this is itself private."""


class Joint(Protocol):
    """r flows that are computed as one; what :class:`Flow` has, once per flow."""

    def set_flat(self, vectors: Array, /) -> None:
        """Replace all parameters, (r, p)."""

    def load(self, rows: Sequence[Array], present: Sequence[Bools], /) -> Any:
        """Each flow's persons; k is the same for all, n need not be."""

    def clipped_sum(
        self, data: Any, who: Sequence[Indices] | None, clips: Sequence[float], /
    ) -> Array:
        """Each flow's clipped sum, (r, p)."""


@runtime_checkable
class Joining(Protocol):
    """A flow whose engine can compute several as one."""

    def joined(self, flows: Sequence[Flow], /) -> Joint | None:
        """These flows as one, at their parameters; None where they differ in more than those."""


@runtime_checkable
class Descending(Protocol):
    """A flow whose engine can make several noise-free steps of training in one call."""

    def descend(
        self,
        data: Any,
        batches: Sequence[Indices | None],
        clip: float,
        active: Indices,
        schedule: Array,
        decays: tuple[float, float],
        state: Array,
    ) -> None:
        """The same numbers as :mod:`.training` has step by step; the flow keeps its parameters.

        Args:
            data: from :meth:`Flow.load`.
            batches: who takes part in each step, as in :meth:`Flow.clipped_sum`; None in all places
                for everyone.
            active: which of the flat parameters are trained, (a,).
            schedule: (steps, 4): divisor of the sum, Adam's floor and factor, and how many iterates
                the average will have, 0 for none.
            decays: of Adam's two moments.
            state: (4, a), changed in place: parameters, Adam's moments, the average.
        """
