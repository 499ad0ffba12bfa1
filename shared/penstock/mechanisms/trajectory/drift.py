r"""The data-fit term: what rows pull on the particles of their time, clipped person by person.

The term of a time point is :math:`-\sum_r \log \sum_j \exp(-‖x_j - y_r‖²/2h²)` (Chizat et al. 2022;
Gu, Chien & Greenewald 2025, eq. (4)), whose gradient in x_j, in units of 1/h, is

.. math:: v_{rj} = p_{rj} (x_j - y_r) / h, \qquad p_r = \mathrm{softmax}_j(-‖x_j - y_r‖²/2h²).

A person's contribution is one vector over *all* particles of *all* time points, the sum of their
rows' v, and is clipped to one norm C: :func:`penstock.privacy.sensitivity.clip_jointly`, without
that n·T·m·d vector ever being held. Its norm is bounded by
:math:`(\sum_t (\sum_{r ∈ t} ‖v_r‖)²)^{1/2}`, which is exact for a person with at most one row per
time point. (Clipping particle by particle, as the paper does, leaves the sum at C√m.)

Every person has a place of their own, whoever else is there and at whatever times. Absent rows are
computed, with weight 0; nothing here has a shape that depends on rows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.trajectory.plan import pull_unit
from penstock.privacy.sensitivity import float_room

if TYPE_CHECKING:
    import torch

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]
Indices = NDArray[np.intp]

_HELD = {"cpu": 1 << 17}
_HELD_ELSEWHERE = 1 << 23
"""Bound on the pairs (rows · particles) that are computed at once: what a cache holds, and what
fills a GPU. Where there are more than :data:`_FEW` coordinates, as many fewer."""

_FEW = 4

_EDGE = 2.0
"""No box of a unit space reaches so far."""

_FARTHEST = -80.0
"""Exponents below this, from the largest, count as this: a share of 1e-35 pulls nothing. Lower ones
would be too small for full precision, where arithmetic takes longer: time would tell of rows."""


_EXACT = 1 << 22
"""Persons whose whole numbers are added up at once at most."""


class Rows:
    """The rows on a device, person by person.

    Args:
        z: (n, k, d) in the unit space; bins: (n, k) of T time points; there: (n, k). A row that is
            absent, has no time point (bin below 0), or is not finite contributes nothing.
        device, dtype: of what is computed row by row, ``float32`` or ``float64``; norms and sums
            are float64.
    """

    def __init__(
        self, z: Array, bins: Whole, there: Bools, count: int, device: str, dtype: str
    ) -> None:
        import torch

        usable = there & np.isfinite(z).all(axis=2) & (bins >= 0) & (bins < count)
        inside = np.clip(np.where(usable[..., None], z, 0.0), -_EDGE, _EDGE)
        self.persons, self.rows, self.d = z.shape
        self.count, self.device = count, device
        self.dtype: torch.dtype = {"float32": torch.float32, "float64": torch.float64}[dtype]
        self._z = self.tensor(inside)
        self._time = torch.as_tensor(np.where(usable, bins, 0), device=device)
        self._there = torch.as_tensor(usable, device=device)

    def tensor(self, values: Array) -> torch.Tensor:
        """Numbers as the rows are held: on their device, in their precision."""
        import torch

        return torch.as_tensor(values, dtype=self.dtype, device=self.device)

    def clipped_sum(
        self, particles: torch.Tensor, widths: torch.Tensor, clip: float, who: Indices | None
    ) -> Array:
        """Σ over persons of their contributions v, each clipped to norm C; (T, m, d) float64.

        Args:
            particles: (T, m, d), finite; widths: h, (T,), above 0.
            clip: C; a person's sum is kept a little inside, by more than rounding can undo.
            who: whose contributions, indices without repeats but for
                :data:`penstock.privacy.noise.sources.NOBODY`; None: everyone's.

        Sensitivity: C in L2 over all T·m·d numbers at once, zero-out of one person, in the floats
        as computed (:meth:`inner_clip`). Work: a function of sizes alone.

        Raises:
            InvalidInput: shapes that do not fit, or a bound that is not above 0.
        """
        import torch

        m = self._check(particles, clip)
        inside, size = self.inner_clip(clip, m), self._persons_at_once(m)
        z, time, there = self._z, self._time, self._there
        if who is not None:
            listed = torch.as_tensor(who, device=self.device)
            at = listed.clamp(min=0)
            z, time, there = z[at], time[at], there[at] & (listed >= 0)[:, None]
        total = torch.zeros((self.count, m * self.d), dtype=torch.float64, device=self.device)
        with torch.no_grad():
            for low in range(0, len(z), size):
                some = slice(low, low + size)
                total += self._part(z[some], time[some], there[some], particles, widths, inside)
        found: Array = total.view(self.count, self.d, m).transpose(1, 2).cpu().numpy()
        return np.ascontiguousarray(found)

    def whole_sum(self, particles: torch.Tensor, widths: torch.Tensor, clip: float) -> Whole:
        r"""Everyone's clipped contributions in whole numbers of the pulls' unit; (T, m, d).

        Each row's pull is rounded *toward zero* to multiples of :func:`pull_unit`, by itself, and
        then added in whole numbers: no person moves the rounding of another, and the sum of several
        sites is that of all rows in one place, however they are grouped.

        Sensitivity: C in L2 over all T·m·d numbers at once, zero-out of one person. Rounding
        shortens every coordinate, so that :math:`\sum_t ‖\sum_{r∈t} w_r‖² ≤ \sum_t
        (\sum_{r∈t} ‖v_r‖)²` for the rounded w_r, of which the right is clipped to C² with the
        room that one person's own norm needs (:func:`~penstock.privacy.sensitivity.float_room`).

        A pull is at most 2³⁰ units, and at most 2²² persons are added up at once: in float64 every
        partial sum of these is a whole number below 2⁵³, and exact in any order. Work: a function
        of sizes alone.

        Args, Raises:
            as in :meth:`clipped_sum`.
        """
        import torch

        m = self._check(particles, clip)
        inside, size = self._own_clip(clip, m), min(self._persons_at_once(m), _EXACT)
        unit = pull_unit(clip)
        total = torch.zeros((self.count, m * self.d), dtype=torch.int64, device=self.device)
        with torch.no_grad():
            for low in range(0, self.persons, size):
                some = slice(low, low + size)
                rows = (self._z[some], self._time[some], self._there[some])
                part = self._part(*rows, particles, widths, inside, unit)
                total += part.to(torch.int64)
        found: Whole = total.view(self.count, self.d, m).transpose(1, 2).cpu().numpy()
        return np.ascontiguousarray(found)

    def _check(self, particles: torch.Tensor, clip: float) -> int:
        """How many particles there are; of the right shape."""
        if particles.shape[::2] != (self.count, self.d) or not 0 < clip < np.inf:
            raise InvalidInput("data fit", [Problem("particles", "shape or clip out of range")])
        return int(particles.shape[1])

    def inner_clip(self, clip: float, particles: int) -> float:
        r"""What persons are clipped to, so that the sum as computed has sensitivity C.

        :func:`penstock.privacy.sensitivity.float_room`, where a person's rows count as ⌈√k⌉
        persons: Σ_r ‖v_r‖ ≤ √k (Σ_t (Σ_{r∈t} ‖v_r‖)²)^½, of which the right is clipped. Beside it,
        squared distances carry the rounding of their own precision: of d squares and their sum,
        without cancellation, since the differences x - y that are squared are those that are added.
        """
        size = self._persons_at_once(particles)
        depth = size * self.rows + -(-self.persons // size) + 8
        persons = self.persons * math.ceil(math.sqrt(self.rows))
        return self._shrink(clip, float_room(persons, depth, particles + self.rows + 32))

    def _own_clip(self, clip: float, particles: int) -> float:
        """The same where rounding is each person's own: the sum is exact."""
        return self._shrink(clip, float_room(1, 1, particles + self.rows + 32))

    def _shrink(self, clip: float, room: float) -> float:
        import torch

        own = 4 * (self.d + 8) * float(torch.finfo(self.dtype).eps)
        inside: float = clip * (1 - room) * (1 - own)
        return inside

    def _persons_at_once(self, particles: int) -> int:
        held = _HELD.get(self.device, _HELD_ELSEWHERE) * _FEW // max(self.d, _FEW)
        return int(max(16, held // max(self.rows * particles, 1)))

    def _part(
        self,
        z: torch.Tensor,
        time: torch.Tensor,
        there: torch.Tensor,
        particles: torch.Tensor,
        widths: torch.Tensor,
        inside: float,
        unit: float | None = None,
    ) -> torch.Tensor:
        """(T, d·m) of some persons: z (p, k, d), time and there (p, k); float64.

        Args:
            unit: of which each row's pulls are whole multiples, rounded toward zero; the sum is in
                units then. None: they stay as they are.
        """
        import torch

        persons, k = time.shape
        at = time.reshape(-1)
        h = widths.to(self.dtype)[at][:, None]
        y = z.reshape(-1, self.d)
        apart = [particles[:, :, i][at] - y[:, i, None] for i in range(self.d)]
        far = torch.zeros_like(apart[0])
        for each in apart:
            far.addcmul_(each, each)
        exponents = far / (-2 * h**2)
        exponents -= exponents.amax(1, keepdim=True)
        share = torch.softmax(exponents.clamp_(min=_FARTHEST), dim=1).double()
        lengths = torch.sqrt((share**2 * far).sum(1)) / h.double()[:, 0]
        lengths = torch.where(there, lengths.view(persons, k), 0.0)
        scale = self._scales(lengths, time, inside)
        # Whoever's norm is not a number contributes nothing.
        usable = (there & torch.isfinite(scale)).reshape(-1, 1)
        pull = torch.where(usable, share * (scale.reshape(-1, 1) / h.double()), 0.0)
        placed = torch.nn.functional.one_hot(at, self.count).double().T
        # Coordinate by coordinate: all of them at once would take d times the memory.
        if unit is None:
            return torch.cat([placed @ (pull * each) for each in apart], dim=1)
        pull *= 1 / unit  # a power of two
        return torch.cat([placed @ (pull * each).trunc_() for each in apart], dim=1)

    def _scales(self, lengths: torch.Tensor, time: torch.Tensor, clip: float) -> torch.Tensor:
        """(p, k): by how much each row is shortened, with all of its person's; NaN: it is left out.

        Args:
            lengths: (p, k) ‖v_r‖, 0 where absent; time: (p, k).
        """
        import torch

        alike = (time[:, :, None] == time[:, None, :]).double()
        squared = (lengths * (alike @ lengths[..., None])[..., 0]).sum(1, keepdim=True)
        scale = torch.clamp(clip / torch.sqrt(squared).clamp(min=1e-30), max=1.0)
        return torch.where(torch.isfinite(squared), scale, torch.nan).expand_as(lengths)
