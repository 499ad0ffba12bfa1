r"""Masked autoregressive flow: a density with an exact inverse. The reference engine, on torch.

A flow is a stack of blocks. Block b takes the columns in its own fixed, public order and applies

.. math:: z_i = (x_i - m_i(x_{<i}))\, e^{-a_i(x_{<i})}, \qquad
          \log|\det \partial z/\partial x| = -\sum_i a_i ,

where m and a come from one masked network (Germain et al. 2015, MADE; Papamakarios et al. 2017,
MAF). The density of x is that of a standard Gaussian pulled back through all blocks.

Three choices serve private training: output layers start at zero, so that an untrained flow *is*
the standard Gaussian; the mean has a linear path beside the hidden layers, so that a Gaussian with
any covariance costs a few parameters; the log-scale is bounded, a = c·tanh(a'/c), so that no input
and no noise makes a value overflow.

**Exact clipping per person.** Every trainable number belongs to a masked linear layer. For one with
input a and gradient g with respect to its pre-activation, one row's weight gradient is
:math:`M ∘ g a^⊤`. Its squared norm is :math:`\sum_o g_o^2 (M a^2)_o`, plus :math:`\sum_o g_o^2` for
the bias: exact, without ever forming per-row gradients (Goodfellow 2015, "Efficient per-example
gradient computations"; Li et al. 2022, ghost clipping, here with masks). The clipped sum is then
one matrix product per layer. With several rows per person the *sum* of a person's row gradients is
needed; it is formed explicitly, a few persons at a time. (Clipping each row to C/k would also bound
the person by C, but shrinks persons whose rows' gradients do not line up.)

Rows are computed in the flow's precision, each at a place that depends on sizes alone; a row's
gradient is then a function of that row. Norms, clipping and sums are float64. What is absent has
weight 0: nothing here has a shape or a branch that depends on rows.

Tensors have a leading dimension of fits, r: many small flows, trained at once, keep a GPU busy that
one would not (:class:`TorchFlows`). A single flow is r = 1 (:class:`TorchFlow`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.mechanisms.flow.architecture import (
    Architecture,
    BlockStart,
    starting_blocks,
    starting_parameters,
)
from penstock.mechanisms.flow.clipping import AT_ONCE, inner_clip
from penstock.mechanisms.flow.interface import Flow
from penstock.privacy.noise.sources import NOBODY

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.intp]

LOG_SCALE = 3.0
"""c, the bound on a block's log-scale: a conditional's sd lies within e^±3 of its input's."""

BOX = 8.0
"""Rows are clamped to [-BOX, BOX] per column on entry and exit; they come in standardised."""

_PASS = {"cpu": 2048}
_PASS_ELSEWHERE = 1 << 16
"""Rows per pass, of all fits together: what a cache holds, and what fills a GPU."""

_EXACT_ENTRIES = 4_000_000
"""Bound on the entries of one layer's explicit per-person gradients."""

_DTYPES = {"single": torch.float32, "double": torch.float64}

# Each with its slope, as a function of its value.
_ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "tanh": (torch.tanh, lambda a: 1 - a * a),
    "relu": (torch.relu, lambda a: (a > 0).to(a.dtype)),
}


@dataclass(frozen=True, slots=True)
class MaskedLinear:
    """``a @ weight.T + bias``, where ``weight`` is zero wherever ``mask`` is.

    ``weight`` is (r, out, in), ``bias`` (r, 1, out), ``mask`` (out, in).
    """

    weight: Tensor
    bias: Tensor
    mask: Tensor

    def __call__(self, a: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, a, self.weight.mT)


@dataclass(frozen=True, slots=True)
class Pass:
    """What a backward pass needs of a block's forward pass: each layer's input, and the results."""

    inputs: list[Tensor]
    z: Tensor
    log_scale: Tensor
    shrink: Tensor


@dataclass(frozen=True, slots=True)
class Gradient:
    """One layer's part of the rows' gradients, float64: its input (r, n, in), and g (r, n, out)."""

    layer: MaskedLinear
    inputs: Tensor
    g: Tensor


class Block:
    """One masked autoregressive layer; see :class:`.architecture.BlockStart`."""

    def __init__(self, start: BlockStart, activation: str, layers: list[MaskedLinear]) -> None:
        self.d = len(start.order)
        self.order = start.order
        self.degrees = start.degrees
        self.activation, self.slope = _ACTIVATIONS[activation]
        self.layers = layers

    def to_latent(self, x: Tensor, passes: list[Pass] | None = None) -> tuple[Tensor, Tensor]:
        """z (r, n, d) and Σᵢ aᵢ (r, n); appends to ``passes``."""
        a, inputs = x, []
        for layer in self.layers[:-1]:
            inputs.append(a)
            a = self.activation(layer(a))
        inputs.append(torch.cat((a, x), dim=-1))
        out = self.layers[-1](inputs[-1])
        log_scale = LOG_SCALE * torch.tanh(out[..., self.d :] / LOG_SCALE)
        shrink = torch.exp(-log_scale)
        z = (x - out[..., : self.d]) * shrink
        if passes is not None:
            passes.append(Pass(inputs, z, log_scale, shrink))
        return z, log_scale.sum(dim=-1)

    def gradients(self, seen: Pass, gz: Tensor, onward: bool) -> tuple[list[Gradient], Tensor]:
        """Each layer's gradient, first to last, and that with respect to x if ``onward``.

        Args:
            gz: (r, n, d), of the loss with respect to this block's z; the loss has Σ a besides.
        """
        by_mean = -gz * seen.shrink
        by_raw = (1 - gz * seen.z) * (1 - (seen.log_scale / LOG_SCALE).square())
        g = torch.cat((by_mean, by_raw), dim=-1)
        found = [Gradient(self.layers[-1], seen.inputs[-1], g)]
        back = g @ self.layers[-1].weight
        gx = back[..., -self.d :] - by_mean
        values = [*seen.inputs[1:-1], seen.inputs[-1][..., : -self.d]]
        for i in reversed(range(len(values))):
            g = back[..., : values[i].shape[-1]] * self.slope(values[i])
            found.append(Gradient(self.layers[i], seen.inputs[i], g))
            if i > 0 or onward:
                back = g @ self.layers[i].weight
        return found[::-1], gx + back if onward else gx

    def from_latent(self, z: Tensor) -> Tensor:
        """The inverse, column by column.

        Each hidden unit is computed once, as soon as the columns it sees are known, so that the
        whole inverse costs about one forward pass. What is not yet known is zero and masked.
        """
        r, n, d = z.shape
        hidden = [z.new_zeros(r, n, len(degrees)) for degrees in self.degrees[:-1]]
        known = z.new_zeros(r, n, len(self.degrees[-1]) + d)
        hidden.append(known[..., :-d])
        x = known[..., -d:]
        last = self.layers[-1]
        for i, column in enumerate(self.order):
            self._activate(x, hidden, degree=i)
            ends = [column, d + column]
            out = known @ last.weight[:, ends].mT + last.bias[..., ends]
            scale = torch.exp(LOG_SCALE * torch.tanh(out[..., 1] / LOG_SCALE))
            x[..., column] = out[..., 0] + z[..., column] * scale
        return x

    def _activate(self, x: Tensor, hidden: list[Tensor], degree: int) -> None:
        """Fill in the hidden units of this degree; all that they see is known."""
        a, seen = x, self.d
        for layer, degrees, units in zip(self.layers, self.degrees, hidden, strict=False):
            start = int(np.searchsorted(degrees, degree, side="left"))
            stop = int(np.searchsorted(degrees, degree, side="right"))
            if stop > start:
                weight = layer.weight[:, start:stop, :seen]
                pre = a[..., :seen] @ weight.mT + layer.bias[..., start:stop]
                units[..., start:stop] = self.activation(pre)
            a, seen = units, stop


@dataclass(frozen=True, slots=True)
class Held:
    """Persons' rows where they are computed on; absent rows are zeros.

    ``rows`` is (r, n, k, d), ``there`` (r, n, k).
    """

    rows: Tensor
    there: Tensor

    def chosen(self, who: Sequence[Indices]) -> Held:
        """Each fit's own persons, filled up with absent ones to the longest list of them."""
        listed = np.full((len(who), max(map(len, who))), NOBODY, dtype=np.intp)
        for i, persons in enumerate(who):
            listed[i, : len(persons)] = persons
        index, valid = np.maximum(listed, 0), listed >= 0
        device = self.rows.device
        at = torch.arange(len(who), device=device)[:, None], torch.as_tensor(index, device=device)
        mask = torch.as_tensor(valid, device=device)
        return Held(self.rows[at], self.there[at] & mask[..., None])


class TorchFlows:
    """r flows of one architecture that are computed as one.

    Args:
        arch: their architecture.
        device: where their numbers live.
        precision: ``single`` for training, ``double`` where exactness matters.
        fits: r.
    """

    def __init__(
        self, arch: Architecture, device: str = "cpu", precision: str = "single", fits: int = 1
    ) -> None:
        self.arch, self.device, self.precision, self.fits = arch, device, precision, fits
        self.dtype = _DTYPES[precision]
        start = self.tensor(starting_parameters(arch))
        self.use(start.repeat(fits, 1))

    def tensor(self, x: NDArray[np.generic]) -> Tensor:
        return torch.as_tensor(x, dtype=self.dtype, device=self.device)

    def use(self, parameters: Tensor) -> None:
        """Compute with this very tensor (r, p), which layers see through views."""
        self.parameters, self.blocks, at = parameters, [], 0
        for start in starting_blocks(self.arch):
            layers = []
            for layer in start.layers:
                outs, ins = layer.mask.shape
                middle = at + outs * ins
                weight = parameters[:, at:middle].view(-1, outs, ins)
                bias = parameters[:, middle : middle + outs].unsqueeze(1)
                layers.append(MaskedLinear(weight, bias, self.tensor(layer.mask)))
                at = middle + outs
            self.blocks.append(Block(start, self.arch.activation, layers))

    def set_flat(self, vectors: Array) -> None:
        """Replace all parameters, (r, p)."""
        self.parameters.copy_(torch.from_numpy(vectors))

    def load(self, rows: Sequence[Array], present: Sequence[Bools]) -> Held:
        """Each fit's persons, (n, k, d) and (n, k); fewer than the most are filled up, absent."""
        n = max(map(len, rows))
        k, d = rows[0].shape[1:]
        x, there = np.zeros((len(rows), n, k, d)), np.zeros((len(rows), n, k), dtype=np.bool_)
        for i, (own, own_there) in enumerate(zip(rows, present, strict=True)):
            x[i, : len(own)] = np.where(own_there[..., None], own, 0.0)
            there[i, : len(own)] = own_there
        return Held(_inside(self.tensor(x)), torch.as_tensor(there, device=self.device))

    def trace(self, x: Tensor, passes: list[Pass] | None = None) -> tuple[Tensor, Tensor]:
        """z (r, n, d) and the total log-scale -log|det ∂z/∂x|, (r, n); x lies in the box."""
        z, total = x, x.new_zeros(x.shape[:-1])
        for block in self.blocks:
            z, log_scale = block.to_latent(z, passes)
            total = total + log_scale
        return z, total

    def log_prob(self, x: Tensor) -> Tensor:
        """log density of each row, (r, n); x lies in the box."""
        z, log_scale = self.trace(x)
        return -0.5 * z.square().sum(dim=-1) - log_scale - 0.5 * self.arch.d * math.log(2 * math.pi)

    def from_latent(self, z: Tensor) -> Tensor:
        """x = f(z), (r, n, d) → (r, n, d), finite, inside the box; the inverse of trace."""
        x = torch.nan_to_num(z, nan=0.0)
        for block in reversed(self.blocks):
            x = block.from_latent(x)
        return _inside(x)

    def clipped_sum(
        self, data: Held, who: Sequence[Indices] | None, clips: Sequence[float]
    ) -> Array:
        """Each fit's clipped sum, (r, p), as the protocol has it."""
        n, k = data.rows.shape[1:3]
        data = data if who is None else data.chosen(who)
        inside = [inner_clip(clip, self.arch, n) for clip in clips]
        bound = torch.as_tensor(inside, dtype=torch.float64, device=self.device)[:, None]
        total = self.parameters.new_zeros(self.parameters.shape, dtype=torch.float64)
        for part in self._parts(data):
            found = self._gradients(part)
            norms = _person_norms(found, k)
            # NaN and inf fail this comparison: such a person contributes nothing, rather than all.
            usable = norms < torch.inf
            scale = torch.where(usable, (bound / norms.clamp_min(1e-30)).clamp_max(1.0), 0.0)
            total += torch.cat(list(_weighted(found, scale, usable, k)), dim=1)
        result: Array = total.cpu().numpy()
        return result

    def person_norms(self, data: Held) -> Array:
        """Each person's unclipped gradient norm, (r, n)."""
        k = data.rows.shape[2]
        parts = [_person_norms(self._gradients(part), k) for part in self._parts(data)]
        norms: Array = torch.cat(parts, dim=1).cpu().numpy()
        return norms

    def _persons_at_once(self, k: int) -> int:
        return max(AT_ONCE, _PASS.get(self.device, _PASS_ELSEWHERE) // (self.fits * k))

    def _parts(self, data: Held) -> Iterator[Held]:
        _, n, k, _ = data.rows.shape
        size = self._persons_at_once(k)
        for at in range(0, n, size):
            yield Held(data.rows[:, at : at + size], data.there[:, at : at + size])

    @torch.no_grad()
    def _gradients(self, data: Held) -> list[Gradient]:
        """Every layer's gradients of -log density by row; zero for absent rows."""
        passes: list[Pass] = []
        gz, _ = self.trace(data.rows.flatten(1, 2), passes)
        there = data.there.flatten(1, 2)[..., None]
        found = list[Gradient]()
        for i in reversed(range(len(self.blocks))):
            own, gz = self.blocks[i].gradients(passes[i], gz, onward=i > 0)
            found = [_exact(y, there) for y in own] + found
        return found


class TorchFlow:
    """One flow on torch, on any device; see :class:`penstock.mechanisms.flow.interface.Flow`."""

    def __init__(self, arch: Architecture, device: str = "cpu", precision: str = "single") -> None:
        self.joint = TorchFlows(arch, device, precision)
        self.arch, self.device, self.precision = arch, device, precision

    def get_flat(self) -> Array:
        flat: Array = self.joint.parameters[0].to(torch.float64, copy=True).cpu().numpy()
        return flat

    def set_flat(self, vector: Array, /) -> None:
        self.joint.set_flat(vector[None])

    @torch.no_grad()
    def to_latent(self, x: Array, /) -> Array:
        return _out(self.joint.trace(_inside(self.joint.tensor(x)[None]))[0])

    @torch.no_grad()
    def from_latent(self, z: Array, /) -> Array:
        return _out(self.joint.from_latent(self.joint.tensor(z)[None]))

    @torch.no_grad()
    def log_prob(self, x: Array, /) -> Array:
        return _out(self.joint.log_prob(_inside(self.joint.tensor(x)[None])))

    def load(self, rows: Array, present: Bools, /) -> Held:
        return self.joint.load([rows], [present])

    def clipped_sum(self, data: Held, who: Indices | None, clip: float, /) -> Array:
        total: Array = self.joint.clipped_sum(data, None if who is None else [who], [clip])[0]
        return total

    def person_norms(self, data: Held, /) -> Array:
        norms: Array = self.joint.person_norms(data)[0]
        return norms

    def joined(self, flows: Sequence[Flow], /) -> TorchFlows | None:
        kind = (self.arch, self.device, self.precision)
        if any((flow.arch, flow.device, flow.precision) != kind for flow in flows):
            return None
        joint = TorchFlows(*kind, fits=len(flows))
        joint.set_flat(np.stack([flow.get_flat() for flow in flows]))
        return joint


def _inside(x: Tensor) -> Tensor:
    return torch.nan_to_num(x, nan=0.0).clamp(-BOX, BOX)


def _out(x: Tensor) -> Array:
    rows: Array = x[0].double().cpu().numpy()
    return rows


def _exact(y: Gradient, there: Tensor) -> Gradient:
    """The same in float64, zero for absent rows."""
    inputs, g = (torch.where(there, each, 0.0).double() for each in (y.inputs, y.g))
    return Gradient(y.layer, inputs, g)


def _person_norms(found: list[Gradient], k: int) -> Tensor:
    """Norm of each person's summed gradient over all layers, (r, persons)."""
    r, n, _ = found[0].g.shape
    squares = found[0].g.new_zeros(r, n // k)
    for y in found:
        if k == 1:
            mask = y.layer.mask.double()
            squares += (y.g.square() * (y.inputs.square() @ mask.T + 1)).sum(dim=-1)
        else:
            parts = [w.square().sum(dim=(-2, -1)) + b.square().sum(dim=-1) for w, b in _own(y, k)]
            squares += torch.cat(parts, dim=1)
    return squares.sqrt()


def _own(y: Gradient, k: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Each person's summed gradient of one layer, explicitly, by chunks of persons.

    Weights' (r, chunk, out, in), and biases' (r, chunk, out).
    """
    r, _, outs = y.g.shape
    g, a = y.g.reshape(r, -1, k, outs), y.inputs.reshape(r, -1, k, y.inputs.shape[2])
    size = max(1, _EXACT_ENTRIES // (r * y.layer.mask.numel()))
    for at in range(0, g.shape[1], size):
        own = g[:, at : at + size]
        yield (own.mT @ a[:, at : at + size]) * y.layer.mask, own.sum(dim=-2)


def _weighted(found: list[Gradient], scale: Tensor, usable: Tensor, k: int) -> Iterator[Tensor]:
    """Weight and bias gradients of Σ scale_i loss_i, flat; persons not usable left out.

    Args:
        scale, usable: (r, persons).
    """
    for y in found:
        if k == 1:
            there = usable[..., None]  # 0 · NaN is NaN
            g = torch.where(there, y.g * scale[..., None], 0.0)
            yield ((g.mT @ torch.where(there, y.inputs, 0.0)) * y.layer.mask).flatten(1)
            yield g.sum(dim=1)
            continue
        # What is summed is what the norms are of: rows of a person may cancel.
        weights = y.g.new_zeros(len(y.g), *y.layer.mask.shape)
        biases, at = y.g.new_zeros(len(y.g), y.g.shape[2]), 0
        for weight, bias in _own(y, k):
            some = slice(at, at + weight.shape[1])
            factor, there = scale[:, some, None], usable[:, some, None]
            biases += torch.where(there, factor * bias, 0.0).sum(dim=1)
            weight = torch.where(there[..., None], factor[..., None] * weight, 0.0)
            weights += weight.sum(dim=1)
            at = some.stop
        yield weights.flatten(1)
        yield biases
