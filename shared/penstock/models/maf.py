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

from penstock.models.architecture import Architecture, BlockStart, starting_blocks

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu}

LOG_SCALE = 3.0
"""c, the bound on a block's log-scale: a conditional's sd lies within e^±3 of its input's."""

BOX = 8.0
"""Rows are clamped to [-BOX, BOX] per column on entry and exit; they come in standardised."""


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
    """One masked autoregressive layer; see :class:`penstock.models.architecture.BlockStart`."""

    def __init__(self, start: BlockStart, activation: str, device: str, dtype: torch.dtype) -> None:
        self.d = len(start.order)
        self.order = start.order
        self.degrees = start.degrees
        self.activation = _ACTIVATIONS[activation]
        self.layers = [
            MaskedLinear(
                *(
                    torch.as_tensor(part, dtype=dtype, device=device)
                    for part in (layer.weight, layer.bias, layer.mask)
                )
            )
            for layer in start.layers
        ]

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
        self.arch = arch
        self.device = device
        self.dtype = dtype
        starts = starting_blocks(arch)
        self.blocks = [Block(start, arch.activation, device, dtype) for start in starts]

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
