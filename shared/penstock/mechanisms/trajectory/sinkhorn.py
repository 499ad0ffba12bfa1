"""Entropic optimal transport between many pairs of equally weighted clouds at once.

Sinkhorn's iteration with over-relaxation, on kernels into which the potentials are absorbed: a
sweep is two products of a matrix with a vector and no exponential, and nothing overflows or
vanishes, however small the regularisation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.base.errors import InvalidInput, Problem

if TYPE_CHECKING:
    import torch

EVERY = 5
"""Sweeps between two looks at the error, the scale and the relaxation."""

_NEAR = 4.0
"""Within so many times the tolerance, one sweep later, it is worth to measure what is left."""

_FAR = 1e8
"""Scalings beyond this are absorbed; what they grow by until the next look fits into float32."""

_SAFE = -60.0
"""Where no exponent lies lower, no sum of their exponentials can vanish, even in float32."""

_STRONGEST = 1.96
"""The most that sweeps are over-relaxed; 2 would not converge."""


@dataclass(frozen=True, slots=True)
class Plans:
    """B transport plans between m and m points.

    Attributes:
        joint: (B, m, m), each summing to 1; columns sum to 1/m, rows but for the error.
        f, g: (B, m) potentials of x and y, in units of the cost C:
            joint = exp((f ⊕ g - C) / reg) / m².
        error: (B,) ``Σ_i |Σ_j joint_ij - 1/m|``.
    """

    joint: torch.Tensor
    f: torch.Tensor
    g: torch.Tensor
    error: torch.Tensor

    @property
    def potentials(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What to start the next call from, where points have moved but little."""
        return self.f, self.g

    @property
    def forward(self) -> torch.Tensor:
        """(B, m, m): row i says where x_i goes; ``forward @ y`` are barycentres."""
        return self.joint / self.joint.sum(2, keepdim=True)

    @property
    def backward(self) -> torch.Tensor:
        """(B, m, m): row j says where y_j comes from; ``backward @ x`` are barycentres."""
        return (self.joint / self.joint.sum(1, keepdim=True)).transpose(1, 2)


def sinkhorn(
    x: torch.Tensor,
    y: torch.Tensor,
    reg: float | torch.Tensor,
    *,
    potentials: tuple[torch.Tensor, torch.Tensor] | None = None,
    iterations: int = 1000,
    tolerance: float | None = 1e-6,
) -> Plans:
    """Entropic optimal transport of cost ½‖x - y‖², every point weighing 1/m.

    Minimises Σ P C + reg KL(P ‖ 1/m²) over plans P with uniform margins. Sweeps are over-relaxed
    (Thibault, Chizat, Dossal & Papadakis 2021, "Overrelaxed Sinkhorn-Knopp Algorithm for
    Regularized Optimal Transport"), each problem as strongly as its error's own rate asks (Young's
    relation between the rates of plain and of relaxed sweeps). When it stops depends on x and y:
    give it what is public or noisy already, or all the iterations.

    Args:
        x, y: (B, m, d), float32 or float64, on one device. float32 resolves exponents to about
            1e-7 / reg times the points' mean square.
        reg: above 0, in units of the cost; one for all, or (B,).
        potentials: of an earlier call on nearby points; only y's are used.
        iterations: sweeps at most, at least 1.
        tolerance: stop once every :attr:`Plans.error` is at most this; None: all the iterations.

    Raises:
        InvalidInput: shapes, values that are not finite, or settings out of range.
    """
    import torch

    each = torch.as_tensor(reg, dtype=x.dtype, device=x.device).expand(len(x))
    start = None if potentials is None else potentials[1]
    _check(x, y, each, start, iterations, tolerance)
    enough = -1.0 if tolerance is None else tolerance
    if not len(x):
        none = x.new_zeros(x.shape[:2])
        return Plans(x.new_zeros((0, x.shape[1], x.shape[1])), none, none, x.new_zeros(0))
    with torch.no_grad():
        scaling = _Scaling(x, y, each, start)
        for k in range(1, iterations + 1):
            scaling.sweep()
            looks = k == 1 or k % EVERY == 0
            if looks and scaling.look() <= _NEAR * enough and scaling.finish() <= enough:
                break
        else:
            scaling.finish()
        return scaling.plans()


class _Scaling:
    """A kernel K = exp((f ⊕ g - C) / reg) and scalings u of its rows, v of its columns.

    Row and column sums of u K v are driven to 1.
    """

    def __init__(self, x: Any, y: Any, reg: Any, start: Any) -> None:
        import torch

        m, reg = x.shape[1], reg[:, None, None]
        # The cost's rounding error is proportional to the points' squares: least about their mean.
        middle = (x.mean(1, keepdim=True) + y.mean(1, keepdim=True)) / 2
        x, y = x - middle, y - middle
        self.x, self.y, self.reg = x / reg, y, reg
        self.a = (x * self.x).sum(2, keepdim=True) / -2
        self.b = (y * y).sum(2, keepdim=True) / (-2 * reg)
        if not bool(torch.isfinite(self.a).all() & torch.isfinite(self.b).all()):
            problem = Problem("x, y", "must be finite, and so must ‖x - y‖² / reg")
            raise InvalidInput("sinkhorn", [problem])
        self.low = self.a, self.b
        self.least = -2 - math.log(m)
        if start is None:
            self._kernel(0.0)
        else:
            self.b = self.b + start[:, :, None] / reg
            self._kernel(self.least)
        self.u = self.v
        self.relax = self.v[:, :1]  # ones, (B, 1, 1)
        self.plain = True  # nothing is relaxed yet
        self.last: Any = None
        self.looks = self.sweeps = 0

    def _exponents(self) -> Any:
        """(a ⊕ b) + x·y / reg, as one product."""
        import torch

        ones = torch.ones_like(self.a)
        left = torch.cat([self.x, self.a, ones], 2)
        right = torch.cat([self.y, ones, self.b], 2)
        return torch.bmm(left, right.transpose(1, 2))

    def _kernel(self, least: float) -> Any:
        """K anew: each row's largest exponent 0, each column's ``least`` or more, so no sum is 0.

        A plan's column holds an entry of at least 1/m of that row's largest: of a good start, only
        rows are moved. Returns by how much.
        """
        import torch

        exponents = self._exponents()
        top = exponents.amax(2, keepdim=True)
        exponents -= top
        self.a = self.a - top
        if not float(exponents.min()) > _SAFE:
            lift = (least - exponents.amax(1, keepdim=True)).clip(min=0)
            exponents += lift
            self.b = self.b + lift.transpose(1, 2)
        v: Any = torch.ones_like(self.b)
        # On a CPU numpy has exponentials, products of many small matrices with vectors, and small
        # steps between them with less ado: several times as fast. It is the same memory and code.
        if exponents.device.type == "cpu":
            self.kernel, self.v = exponents.numpy(), v.numpy()
            np.exp(self.kernel, out=self.kernel)
        else:
            self.kernel, self.v = exponents.exp_(), v
        return top

    def _absorb(self) -> None:
        import torch

        self.a = self.a + torch.as_tensor(self.u).log()
        self.b = self.b + torch.as_tensor(self.v).log()
        top = self._kernel(self.least)
        u = top.exp().clip(0.1 / len(top[0]), 10.0)  # as it was: relaxed sweeps go on from it
        self.u = u.numpy() if u.device.type == "cpu" else u

    def sweep(self) -> None:
        """Rows, then columns: sums r and c of u K v before each is mended."""
        shape = self.u.shape
        sums = self.kernel @ self.v
        self.r = self.u * sums
        self.u = (1.0 if self.plain else self._toward(self.r)) / sums
        sums = (self.u.reshape(len(sums), 1, -1) @ self.kernel).reshape(shape)
        self.c = self.v * sums
        self.v = (1.0 if self.plain else self._toward(self.c)) / sums
        self.sweeps += 1

    def _toward(self, sums: Any) -> Any:
        """1 + (ω - 1)(1 - sum): Sinkhorn's factor for ω = 1, beyond it for more, never near 0."""
        return (self.relax - (self.relax - 1.0) * sums).clip(0.2, 2.0)

    def look(self) -> float:
        """The worst error, as it was before the last sweep; sets the relaxation, absorbs."""
        error = (abs(self.r - 1) + abs(self.c - 1)).mean(1)
        self.looks += 1
        # Every other time: just after a change the error shrinks at neither rate.
        if self.looks % 2 == 0:
            self._relax(error)
        self.last, self.sweeps = error, 0
        if max(self.u.max(), self.v.max()) > _FAR or min(self.u.min(), self.v.min()) < 1 / _FAR:
            self._absorb()
        return float(error.max())

    def _relax(self, error: Any) -> None:
        """ω = 2 / (1 + √(1 - θ)) is best where plain sweeps shrink the error by θ each.

        Sweeps relaxed by ω shrink it by λ, where (λ + ω - 1)² = θ λ ω², as long as λ > ω - 1.
        """
        rate = ((error / (self.last + 1e-30)) ** (1 / self.sweeps)).clip(1e-6, 2.0)[:, None]
        over = self.relax - 1.0
        plain = ((rate + over) ** 2 / (rate * self.relax**2)).clip(0.0, 1.0)
        best = (2 / (1 + (1 - plain) ** 0.5)).clip(1.0, _STRONGEST)
        told, kept = (rate > over) & (rate < 1), rate <= over
        self.relax = 1 + told * (best - 1) + kept * over + (rate >= 1) * over * 0.8
        self.plain = False

    def finish(self) -> float:
        """One more plain mending of the columns; then the worst error that is left."""
        n, m = self.u.shape[:2]
        self.v = 1 / (self.u.reshape(n, 1, m) @ self.kernel).reshape(n, m, 1)
        self.error = abs(self.u * (self.kernel @ self.v) - 1).mean(1)[:, 0]
        return float(self.error.max())

    def plans(self) -> Plans:
        """What u K v is; K is used up."""
        import torch

        m = self.u.shape[1]
        joint, u, v = (torch.as_tensor(each) for each in (self.kernel, self.u, self.v))
        joint *= u / m
        joint *= v.transpose(1, 2)
        f = (self.a + u.log() - self.low[0] + math.log(m)) * self.reg
        g = (self.b + v.log() - self.low[1]) * self.reg
        return Plans(joint, f[:, :, 0], g[:, :, 0], torch.as_tensor(self.error))


def _check(
    x: torch.Tensor,
    y: torch.Tensor,
    reg: torch.Tensor,
    start: torch.Tensor | None,
    iterations: int,
    tolerance: float | None,
) -> None:
    import torch

    problems = []
    if x.ndim != 3 or x.shape != y.shape or not x.shape[1]:
        bound = "two of (B, m, d) with m >= 1"
        value = f"{tuple(x.shape)} and {tuple(y.shape)}"
        problems.append(Problem("x, y", "have the wrong shape", None, value, bound))
    if x.dtype not in (torch.float32, torch.float64) or x.dtype != y.dtype:
        problems.append(Problem("x, y", "must both be float32 or float64"))
    if not bool(((reg > 0) & torch.isfinite(reg)).all()):
        problems.append(Problem("reg", "must be finite and above 0"))
    if start is not None and (start.shape != x.shape[:2] or not bool(start.isfinite().all())):
        problems.append(Problem("potentials", "must be finite and (B, m)"))
    if not iterations >= 1:
        problems.append(Problem("iterations", "must be at least 1"))
    if tolerance is not None and not tolerance >= 0:
        problems.append(Problem("tolerance", "must be at least 0"))
    if problems:
        raise InvalidInput("sinkhorn", problems)
