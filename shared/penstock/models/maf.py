r"""Masked autoregressive flow: a density with an exact inverse.

A flow is a stack of blocks. Block b takes the columns in its own fixed, public order and applies

.. math:: z_i = (x_i - m_i(x_{<i}))\, e^{-a_i(x_{<i})}, \qquad
          \log|\det \partial z/\partial x| = -\sum_i a_i ,

where m and a come from one masked network (Germain et al. 2015, MADE; Papamakarios et al. 2017,
MAF). The density of x is that of a standard Gaussian pulled back through all blocks.

Three choices serve private training: output layers start at zero, so that an untrained flow *is*
the standard Gaussian; the mean has a linear path beside the hidden layers, so that a Gaussian with
any covariance costs a few parameters; the log-scale is bounded, a = c·tanh(a'/c), so that no input
and no noise makes a value overflow. Every trainable number belongs to a masked linear layer, which
is what :mod:`penstock.models.dpsgd` needs for exact clipping.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock.errors import InvalidInput, Problem

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu}

LOG_SCALE = 3.0
"""c, the bound on a block's log-scale: a conditional's sd lies within e^±3 of its input's."""

BOX = 8.0
"""Rows are clamped to [-BOX, BOX] per column on entry and exit; they come in standardised."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a flow is made of; public, since it is fixed before any row is read.

    Args:
        d: columns, at least 1.
        flows: blocks, at least 1.
        hidden: widths of the hidden layers of each block, at least one.
        activation: ``tanh`` or ``relu``.
        seed: of the permutations and the first weights; a constant, never drawn from data.

    Raises:
        InvalidInput: a value out of these bounds.
    """

    d: int
    flows: int = 4
    hidden: tuple[int, ...] = (32,)
    activation: str = "tanh"
    seed: int = 0

    def __post_init__(self) -> None:
        problems = [
            Problem(name, "must be a whole number of at least 1", value=str(value))
            for name, value in (
                ("d", self.d),
                ("flows", self.flows),
                *(("hidden", h) for h in self.hidden),
            )
            if isinstance(value, bool) or not isinstance(value, int) or not value >= 1
        ]
        if not self.hidden:
            problems.append(Problem("hidden", "needs at least one width"))
        if self.activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            problems.append(Problem("activation", "unknown", value=self.activation, bound=known))
        if problems:
            raise InvalidInput("flow", problems)


@dataclass(slots=True)
class MaskedLinear:
    """``a @ weight.T + bias``, where ``weight`` is zero wherever ``mask`` is.

    ``weight`` and ``mask`` are (out, in), ``bias`` is (out,).
    """

    weight: Tensor
    bias: Tensor
    mask: Tensor

    def __call__(self, a: Tensor) -> Tensor:
        return torch.addmm(self.bias, a, self.weight.T)


@dataclass(frozen=True, slots=True)
class Record:
    """One layer's part of a forward pass: its input a (n, in) and pre-activation (n, out)."""

    layer: MaskedLinear
    inputs: Tensor
    outputs: Tensor


class Block:
    """One masked autoregressive layer; hidden units are sorted by degree.

    A unit of degree g sees the first g columns in this block's order; the outputs of the i-th
    column see degrees below i.
    """

    def __init__(
        self, arch: Architecture, rng: np.random.Generator, device: str, dtype: torch.dtype
    ) -> None:
        d = arch.d
        self.d = d
        self.activation = ACTIVATIONS[arch.activation]
        # The permutation is in the masks: columns keep their places, their degrees are shuffled.
        self.order: list[int] = rng.permutation(d).tolist()
        columns = 1 + np.argsort(self.order)
        # Degrees 1..d-1 in equal shares; a single column leaves only constants (degree 0).
        self.degrees = [np.minimum(1 + np.arange(h) * (d - 1) // h, d - 1) for h in arch.hidden]
        self.layers: list[MaskedLinear] = []
        below = columns
        for degrees in self.degrees:
            mask = degrees[:, None] >= below[None, :]
            weight = (
                rng.standard_normal(mask.shape)
                * mask
                / np.sqrt(np.maximum(mask.sum(1), 1))[:, None]
            )
            bias = 0.3 * rng.standard_normal(len(degrees))
            self.layers.append(_layer(weight, bias, mask, device, dtype))
            below = degrees
        # Outputs: d means, d log-scales. Inputs: the last hidden layer, the columns.
        sees_hidden = columns[:, None] > below[None, :]
        sees_columns = columns[:, None] > columns[None, :]
        mask = np.block([[sees_hidden, sees_columns], [sees_hidden, np.zeros((d, d), dtype=bool)]])
        self.layers.append(_layer(np.zeros(mask.shape), np.zeros(2 * d), mask, device, dtype))

    def to_latent(self, x: Tensor, records: list[Record] | None = None) -> tuple[Tensor, Tensor]:
        """z (n, d) and Σᵢ aᵢ (n,); appends what each layer saw to ``records``."""
        a = x
        for layer in self.layers[:-1]:
            pre = layer(a)
            if records is not None:
                records.append(Record(layer, a, pre))
            a = self.activation(pre)
        a = torch.cat((a, x), dim=1)
        out = self.layers[-1](a)
        if records is not None:
            records.append(Record(self.layers[-1], a, out))
        log_scale = LOG_SCALE * torch.tanh(out[:, self.d :] / LOG_SCALE)
        return (x - out[:, : self.d]) * torch.exp(-log_scale), log_scale.sum(dim=1)

    def from_latent(self, z: Tensor) -> Tensor:
        """The inverse, column by column.

        Each hidden unit is computed once, as soon as the columns it sees are known, so that the
        whole inverse costs about one forward pass.
        """
        n, d = z.shape
        x = torch.zeros_like(z)
        hidden = [z.new_zeros(n, len(degrees)) for degrees in self.degrees]
        last = self.layers[-1]
        for i, column in enumerate(self.order):
            self._activate(x, hidden, degree=i)
            known = hidden[-1][:, : int(np.searchsorted(self.degrees[-1], i, side="right"))]
            a = torch.cat((known, x), dim=1)
            width = len(self.degrees[-1])
            seen = [*range(known.shape[1]), *range(width, width + d)]
            mean, raw = (
                last.bias[row] + a @ last.weight[row, seen] for row in (column, d + column)
            )
            x[:, column] = mean + z[:, column] * torch.exp(LOG_SCALE * torch.tanh(raw / LOG_SCALE))
        return x

    def _activate(self, x: Tensor, hidden: list[Tensor], degree: int) -> None:
        """Fill in the hidden units of this degree; all that they see is known."""
        a, seen = x, self.d
        for layer, degrees, units in zip(self.layers, self.degrees, hidden, strict=False):
            start = int(np.searchsorted(degrees, degree, side="left"))
            stop = int(np.searchsorted(degrees, degree, side="right"))
            if stop > start:
                pre = a[:, :seen] @ layer.weight[start:stop, :seen].T + layer.bias[start:stop]
                units[:, start:stop] = self.activation(pre)
            a, seen = units, stop


class Flow:
    """A masked autoregressive flow on standardised rows.

    Args:
        arch: its architecture.
        device: where its numbers live.
        dtype: ``torch.float32`` for training, ``torch.float64`` where exactness matters.
    """

    def __init__(
        self, arch: Architecture, device: str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        rng = np.random.default_rng(arch.seed)
        self.arch = arch
        self.device = device
        self.dtype = dtype
        self.blocks = [Block(arch, rng, device, dtype) for _ in range(arch.flows)]

    @property
    def layers(self) -> list[MaskedLinear]:
        """All layers, in the order of the forward pass."""
        return [layer for block in self.blocks for layer in block.layers]

    def tensors(self) -> list[Tensor]:
        """All trainable tensors: weight and bias of each layer in turn."""
        return [t for layer in self.layers for t in (layer.weight, layer.bias)]

    def active(self) -> Tensor:
        """Which entries of the flat parameter vector exist (not masked), (p,) bool."""
        parts = [
            t.flatten() for y in self.layers for t in (y.mask > 0, torch.ones_like(y.bias) > 0)
        ]
        return torch.cat(parts)

    def get_flat(self) -> Tensor:
        """A copy of all parameters as one vector (p,), masked entries included as zeros."""
        return torch.cat([t.detach().flatten() for t in self.tensors()])

    def set_flat(self, vector: Tensor) -> None:
        """Replace all parameters; ``vector`` as :meth:`get_flat` gives it."""
        at = 0
        for t in self.tensors():
            t.data.copy_(vector[at : at + t.numel()].reshape(t.shape))
            at += t.numel()

    def to_latent(self, x: Tensor) -> Tensor:
        """z = f⁻¹(x), (n, d) → (n, d), one parallel pass; x is clamped to the box."""
        return self.trace(x)[0]

    def log_prob(self, x: Tensor) -> Tensor:
        """log density of each row, (n,); x is clamped to the box."""
        z, log_scale = self.trace(x)
        return -0.5 * (z * z).sum(dim=1) - log_scale - 0.5 * self.arch.d * math.log(2 * math.pi)

    def trace(self, x: Tensor, records: list[Record] | None = None) -> tuple[Tensor, Tensor]:
        """z and the total log-scale -log|det ∂z/∂x|; see :meth:`Block.to_latent`."""
        z = torch.nan_to_num(x, nan=0.0).clamp(-BOX, BOX)
        total = z.new_zeros(len(z))
        for block in self.blocks:
            z, log_scale = block.to_latent(z, records)
            total = total + log_scale
        return z, total

    @torch.no_grad()
    def from_latent(self, z: Tensor) -> Tensor:
        """x = f(z), (n, d) → (n, d), finite, inside the box; the inverse of :meth:`to_latent`."""
        x = torch.nan_to_num(z, nan=0.0)
        for block in reversed(self.blocks):
            x = block.from_latent(x)
        return torch.nan_to_num(x, nan=0.0).clamp(-BOX, BOX)


def _layer(
    weight: np.ndarray, bias: np.ndarray, mask: np.ndarray, device: str, dtype: torch.dtype
) -> MaskedLinear:
    return MaskedLinear(
        *(torch.as_tensor(part, dtype=dtype, device=device) for part in (weight, bias, mask))
    )
