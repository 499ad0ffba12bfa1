r"""Differentially private training of a flow: exact clipping per person, in one backward pass.

The loss is the sum of -log p(row). For a masked linear layer with input a and gradient g with
respect to its pre-activation, one row's weight gradient is :math:`M ∘ g a^⊤`. Its squared norm is
:math:`\sum_o g_o^2 (M a^2)_o`, plus :math:`\sum_o g_o^2` for the bias: exact, without ever forming
per-row gradients (Goodfellow 2015, "Efficient per-example gradient computations"; Li et al. 2022,
ghost clipping, here with masks). The clipped sum is then one matrix product per layer.

**The unit is a person.** With several rows per person the norm of the *sum* of a person's row
gradients is needed; it is formed explicitly, a few persons at a time. (Clipping each row to C/k
would also bound the person by C, but shrinks persons whose rows' gradients do not line up.)

Formal guarantees (zero-out, public n), of one step's noisy sum:

=========================  ==============================================================
absent rows, null persons  contribute exactly 0
NaN, ±inf in a row         the flow clamps its input; a non-finite gradient contributes 0
a person's contribution    norm ≤ C, whatever its rows and whatever the parameters
noise                      N(0, (σC)²) on every active parameter, float64, on a grid
division                   by q·n, the expected batch, never by the realised one
everything else            a function of the noisy sums: schedule, averaging, parameters
=========================  ==============================================================

No loss is computed, logged or looked at; the number of steps is fixed beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.models.maf import Flow, Record
from penstock.models.plan import Training
from penstock.privacy.noise import NoiseSource, add_gaussian, poisson_sample

Progress = Callable[[int, int], None]

CHUNK = 2048
"""Persons per forward pass; sums over chunks are in float64."""

_EXACT_ENTRIES = 4_000_000
"""Bound on the entries of one layer's explicit per-person gradients."""

_SLACK = 1e-5
"""Clipping aims at C(1 - slack), so that float32 rounding never carries a person beyond C."""


def fit(
    flow: Flow,
    rows: NDArray[np.float64],
    present: NDArray[np.bool_],
    training: Training,
    noise: NoiseSource,
    progress: Progress | None = None,
) -> None:
    r"""Train ``flow`` in place by Adam on noisy clipped gradients.

    Each step releases :math:`\sum_i \mathrm{clip}_C(g_i) + N(0, σ^2C^2)` over all persons, or over
    a fresh Poisson sample. L2 sensitivity C under zero-out with public n; accounted as
    :meth:`Training.event` (Abadi et al. 2016, with the expected batch size).

    Args:
        rows: (n, k, d), standardised; k rows per person at most.
        present: (n, k); absent rows contribute nothing.
        noise: source of the noise and of the Poisson samples.
        progress: called as ``progress(step, steps)``; learns nothing else.
    """
    n = len(rows)
    data = torch.as_tensor(rows, dtype=flow.dtype, device=flow.device)
    there = torch.as_tensor(present, device=flow.device)
    active = flow.active().cpu().numpy()
    theta = flow.get_flat().double().cpu().numpy()[active]
    adam, mean, kept = _Adam(len(theta)), np.zeros(len(theta)), 0
    first_kept = training.steps - math.floor(training.average * training.steps)
    batch = max(n, 1) * (training.rate if training.rate is not None else 1.0)
    for step in range(training.steps):
        who = None
        if training.rate is not None:
            who = torch.as_tensor(poisson_sample(n, training.rate, noise), device=flow.device)
        chosen = (data, there) if who is None else (data[who], there[who])
        total = clipped_sum(flow, *chosen, training.clip).cpu().numpy()[active]
        if training.noise_multiplier is not None:
            total = add_gaussian(total, training.noise_multiplier * training.clip, noise)
        rate = training.learning_rate * 0.5 * (1 + math.cos(math.pi * step / training.steps))
        theta = theta - rate * adam.direction(total / batch)
        _set_active(flow, theta, active)
        if step >= first_kept:
            kept += 1
            mean += (theta - mean) / kept
        if progress is not None:
            progress(step + 1, training.steps)
    if kept:
        _set_active(flow, mean, active)


def clipped_sum(flow: Flow, rows: Tensor, present: Tensor, clip: float) -> Tensor:
    """Sum over persons of their loss gradient, each clipped to norm ``clip``; (p,) float64.

    Args:
        rows: (n, k, d); present: (n, k) bool. ``clip`` may be ``inf``: then nothing is scaled.

    Sensitivity: ``clip`` in L2, under zero-out of one person.
    """
    total = torch.zeros(
        sum(t.numel() for t in flow.tensors()), dtype=torch.float64, device=rows.device
    )
    for at in range(0, len(rows), CHUNK):
        records, grads = _backward(flow, rows[at : at + CHUNK], present[at : at + CHUNK])
        norms = _person_norms(records, grads, rows.shape[1])
        scale = (clip * (1 - _SLACK) / norms.clamp_min(1e-30)).clamp_max(1.0)
        # NaN and inf fail this comparison: such a person contributes nothing, rather than all.
        usable = norms < torch.inf
        scale = torch.where(usable, scale, 0.0).repeat_interleave(rows.shape[1])[:, None]
        total += torch.cat(list(_weighted(records, grads, scale, all_usable=bool(usable.all()))))
    return total


def person_norms(flow: Flow, rows: Tensor, present: Tensor) -> Tensor:
    """Each person's unclipped gradient norm, (n,); of private rows this is itself private."""
    records, grads = _backward(flow, rows, present)
    return _person_norms(records, grads, rows.shape[1])


def _backward(flow: Flow, rows: Tensor, present: Tensor) -> tuple[list[Record], list[Tensor]]:
    """Each layer's record and the gradients at its pre-activations; zero for absent rows."""
    there = present.reshape(-1, 1)
    x = torch.where(there, rows.reshape(-1, rows.shape[2]), 0.0)
    records: list[Record] = []
    with torch.enable_grad():
        z, log_scale = flow.trace(x.requires_grad_(), records)
        # Rows never meet inside the flow, so the gradient of the sum is each row's own.
        loss = 0.5 * z.square().sum() + log_scale.sum()
        grads = list(torch.autograd.grad(loss, [r.outputs for r in records]))
    if not bool(there.all()):
        grads = [torch.where(there, g, 0.0) for g in grads]
    return [Record(r.layer, r.inputs.detach(), r.outputs.detach()) for r in records], grads


def _person_norms(records: list[Record], grads: list[Tensor], k: int) -> Tensor:
    squares = grads[0].new_zeros(len(grads[0]) // k)
    for record, g in zip(records, grads, strict=True):
        if k == 1:
            a2 = torch.addmm(g.new_ones(()), record.inputs.square(), record.layer.mask.T)
            squares += (g.square() * a2).sum(dim=1)
        else:
            squares += _summed_squares(record, g, k)
    return squares.sqrt()


def _summed_squares(record: Record, g: Tensor, k: int) -> Tensor:
    """Squared norm of each person's summed gradient of one layer, formed explicitly by chunks."""
    outs, ins = record.layer.mask.shape
    g, a = g.reshape(-1, k, outs), record.inputs.reshape(-1, k, ins)
    size = max(1, _EXACT_ENTRIES // (outs * ins))
    parts = []
    for at in range(0, len(g), size):
        weights = (
            torch.einsum("pko,pki->poi", g[at : at + size], a[at : at + size]) * record.layer.mask
        )
        bias = g[at : at + size].sum(dim=1)
        parts.append(weights.square().sum(dim=(1, 2)) + bias.square().sum(dim=1))
    return torch.cat(parts)


def _weighted(
    records: list[Record], grads: list[Tensor], scale: Tensor, all_usable: bool
) -> Iterator[Tensor]:
    """Weight and bias gradients of Σ scale_i loss_i, flat, float64; rows of scale 0 left out."""
    for record, grad in zip(records, grads, strict=True):
        g, a = grad * scale, record.inputs
        if not all_usable:  # 0 · NaN is NaN
            g, a = torch.where(scale > 0, g, 0.0), torch.where(scale > 0, a, 0.0)
        g = g.double()
        yield ((g.T @ a.double()) * record.layer.mask).flatten()
        yield g.sum(dim=0)


def _set_active(flow: Flow, theta: NDArray[np.float64], active: NDArray[np.bool_]) -> None:
    full = np.zeros(len(active))
    full[active] = theta
    flow.set_flat(torch.as_tensor(full, dtype=flow.dtype, device=flow.device))


class _Adam:
    """Adam's direction (Kingma & Ba 2015); its steps are bounded, so weights stay finite."""

    def __init__(self, size: int, b1: float = 0.9, b2: float = 0.999) -> None:
        self._m, self._v = np.zeros(size), np.zeros(size)
        self._b1, self._b2, self._t = b1, b2, 0

    def direction(self, gradient: NDArray[np.float64]) -> NDArray[np.float64]:
        self._t += 1
        self._m = self._b1 * self._m + (1 - self._b1) * gradient
        self._v = self._b2 * self._v + (1 - self._b2) * gradient**2
        m, v = self._m / (1 - self._b1**self._t), self._v / (1 - self._b2**self._t)
        step: NDArray[np.float64] = m / (np.sqrt(v) + 1e-8)
        return step
