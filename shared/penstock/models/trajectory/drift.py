r"""The data-fit term: what rows pull on the particles of their time, clipped person by person.

The term of a time point is :math:`-\sum_r \log \sum_j \exp(-‖x_j - y_r‖²/2h²)` (Chizat et al. 2022;
Gu, Chien & Greenewald 2025, eq. (4)), whose gradient in x_j, in units of 1/h, is

.. math:: v_{rj} = p_{rj} (x_j - y_r) / h, \qquad p_r = \mathrm{softmax}_j(-‖x_j - y_r‖²/2h²).

A person's contribution is one vector over *all* particles of *all* time points, the sum of their
rows' v, and is clipped to one norm C: :func:`penstock.privacy.sensitivity.clip_jointly`, without
that n·T·m·d vector ever being held. Its norm is bounded by
:math:`(\sum_t (\sum_{r ∈ t} ‖v_r‖)²)^{1/2}`, which is exact for a person with at most one row per
time point. (Clipping particle by particle, as the paper does, leaves the sum at C√m.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InvalidInput, Problem

if TYPE_CHECKING:
    import torch

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]

_HELD = 1 << 23
"""Bound on the numbers (time points · rows · particles) that are held at once."""


_EDGE = 2.0
"""No box of a unit space reaches so far; beyond it squares would lose their precision."""


class Rows:
    """The rows on a device, ordered by time point.

    Args:
        z: (n, k, d) in the unit space; bins: (n, k) of T time points; there: (n, k). A row that is
            absent, has no time point (bin below 0), or is not finite contributes nothing.
        device, dtype: of all that is computed; ``float32`` or ``float64``.
    """

    def __init__(
        self, z: Array, bins: Whole, there: Bools, count: int, device: str, dtype: str
    ) -> None:
        import torch

        n, k, d = z.shape
        usable = (there & np.isfinite(z).all(axis=2) & (bins >= 0) & (bins < count)).ravel()
        inside = np.clip(z.reshape(n * k, d), -_EDGE, _EDGE)
        at = np.flatnonzero(usable)
        at = at[np.argsort(bins.ravel()[at], kind="stable")]
        person, time = at // k, bins.ravel()[at]
        pairs, pair = np.unique(person * count + time, return_inverse=True)
        self.persons, self.count, self.d = n, count, d
        self.dtype: torch.dtype = {"float32": torch.float32, "float64": torch.float64}[dtype]
        self.device = device
        self._z = self.tensor(inside[at])
        self._time = torch.as_tensor(time, device=device)
        self._person = torch.as_tensor(person, device=device)
        self._pair = torch.as_tensor(pair.astype(np.int64), device=device)
        self._owner = torch.as_tensor(pairs // count, device=device)
        # Enough for every rounding of a square that is a difference of squares.
        self._guard = 8 * (d + 4) * torch.finfo(self.dtype).eps

    def tensor(self, values: Array) -> torch.Tensor:
        """Numbers as the rows are held: on their device, in their precision."""
        import torch

        return torch.as_tensor(values, dtype=self.dtype, device=self.device)

    def clipped_sum(
        self, particles: torch.Tensor, widths: torch.Tensor, clip: float, who: Bools | None
    ) -> Array:
        """Σ over persons of their contributions v, each clipped to norm C; (T, m, d) float64.

        Args:
            particles: (T, m, d), finite; widths: h, (T,), above 0.
            clip: C; a person's sum is kept a little inside, by more than rounding can undo.
            who: (n,) who takes part; None: everyone.

        Sensitivity: C in L2 over all T·m·d numbers at once, zero-out of one person.

        Raises:
            InvalidInput: shapes that do not fit, or a bound that is not above 0.
        """
        import torch

        if particles.shape[::2] != (self.count, self.d) or not 0 < clip < np.inf:
            raise InvalidInput("data fit", [Problem("particles", "shape or clip out of range")])
        with torch.no_grad():
            batch = _Batch(self, particles, widths, who)
            inside = clip * (1 - 8 * (particles.shape[1] + self.d + 16) * self._eps())
            scale = self._scales(batch, inside)
            total = batch.total(scale)
        found: Array = total.cpu().numpy()
        return found

    def _eps(self) -> float:
        import torch

        return float(torch.finfo(self.dtype).eps)

    def _scales(self, batch: _Batch, clip: float) -> torch.Tensor:
        """(rows of the batch,): by how much each row's person is shortened."""
        import torch

        norms = batch.norms()
        pairs = torch.zeros(len(self._owner), dtype=self.dtype, device=self.device)
        pairs.index_add_(0, self._pair[batch.rows], norms)
        squared = torch.zeros(self.persons, dtype=self.dtype, device=self.device)
        squared.index_add_(0, self._owner, pairs**2)
        each = torch.clamp(clip / torch.sqrt(squared).clamp(min=1e-30), max=1.0)
        # Whoever's norm is not a number contributes nothing.
        each = torch.where(torch.isfinite(squared), each, torch.zeros_like(each))
        return each[self._person[batch.rows]]


class _Batch:
    """The rows of one step, side by side: row c of time point t at place (t, c)."""

    def __init__(
        self, data: Rows, particles: torch.Tensor, widths: torch.Tensor, who: Bools | None
    ) -> None:
        import torch

        self._data, self._x = data, particles
        if who is None:
            self.rows = torch.arange(len(data._time), device=data.device)
        else:
            chosen = torch.as_tensor(who, device=data.device)
            self.rows = torch.nonzero(chosen[data._person]).squeeze(1)
        self._h = widths.to(data.dtype).view(-1, 1, 1)
        self._time = data._time[self.rows]
        counts = torch.bincount(self._time, minlength=data.count)
        before = torch.cumsum(counts, 0) - counts
        self._place = torch.arange(len(self.rows), device=data.device) - before[self._time]
        self._width = int(counts.max()) if len(self.rows) else 0
        m = particles.shape[1]
        self._chunk = max(1, _HELD // (data.count * m))
        # One part is kept between the norms and the sum; several would not fit.
        self._kept: tuple[torch.Tensor, torch.Tensor] | None = None

    def norms(self) -> torch.Tensor:
        """‖v_r‖ of each row, rounded up."""
        import torch

        norms = torch.zeros(len(self.rows), dtype=self._data.dtype, device=self._data.device)
        for low in range(0, self._width, self._chunk):
            own, y = self._part(low)
            share, far = self._shares(y)
            length = torch.sqrt((share**2 * far).sum(2)) / self._h[:, :, 0]
            norms[own] = length[self._time[own], self._place[own] - low]
            if self._width <= self._chunk:
                self._kept = (share, y)
        return norms

    def total(self, scale: torch.Tensor) -> torch.Tensor:
        """Σ scale_r v_r, (T, m, d)."""
        import torch

        # Summed in float64, whatever the precision: rounding must not add up over persons.
        x = self._x.double()
        total = torch.zeros_like(x)
        for low in range(0, self._width, self._chunk):
            own, y = self._part(low)
            share = self._shares(y)[0] if self._kept is None else self._kept[0]
            weight = torch.zeros(y.shape[:2], dtype=y.dtype, device=y.device)
            weight[self._time[own], self._place[own] - low] = scale[own]
            pulled = (share * weight[:, :, None]).double().transpose(1, 2)
            total += x * pulled.sum(2, keepdim=True) - pulled @ y.double()
        return total / self._h.double()

    def _part(self, low: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Which rows have a place from ``low`` on, and where they are: (T, chunk, d)."""
        import torch

        data, high = self._data, min(low + self._chunk, self._width)
        if low == 0 and high == self._width:
            own = torch.arange(len(self.rows), device=data.device)
        else:
            own = torch.nonzero((self._place >= low) & (self._place < high)).squeeze(1)
        if self._kept is not None:
            return own, self._kept[1]
        y = torch.zeros((data.count, high - low, data.d), dtype=data.dtype, device=data.device)
        y[self._time[own], self._place[own] - low] = data._z[self.rows[own]]
        return own, y

    def _shares(self, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """p (T, chunk, m), and squared distances that are not below the true ones."""
        import torch

        x = self._x
        lengths = (x**2).sum(2)[:, None, :] + (y**2).sum(2)[:, :, None]
        far = torch.baddbmm(lengths, y, x.transpose(1, 2), alpha=-2.0).clamp(min=0)
        share = torch.softmax(far / (-2 * self._h**2), dim=2)
        return share, far + self._data._guard * lengths
