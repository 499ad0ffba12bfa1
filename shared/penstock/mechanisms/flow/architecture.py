"""What a flow is made of, before any data and without torch: shapes, masks and first weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import InvalidInput, Problem

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": np.tanh,
    "relu": lambda a: np.maximum(a, 0.0),
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a flow is made of; public, since it is fixed before any row is read.

    Args:
        d: columns, at least 1.
        flows: blocks, at least 1.
        hidden: widths of the hidden layers of each block, at least one.
        activation: ``tanh`` or ``relu``.
        seed: of the permutations and the first weights; a constant, never drawn from data.
        linear: whether columns reach the means also directly, beside the hidden layers.
        spectral: B > 0, a bound on the largest singular value of every weight matrix, or None;
            see :func:`project`.

    Raises:
        InvalidInput: a value out of these bounds.
    """

    d: int
    flows: int = 4
    hidden: tuple[int, ...] = (32,)
    activation: str = "tanh"
    seed: int = 0
    linear: bool = True
    spectral: float | None = None

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
        bound = self.spectral
        if bound is not None and not (bound > 0 and math.isfinite(bound)):
            problems.append(Problem("spectral", "must be above 0", value=str(bound)))
        if problems:
            raise InvalidInput("flow", problems)


@dataclass(frozen=True, slots=True)
class LayerStart:
    """First weights (out, in), zero outside ``mask``, and biases (out,) of a masked layer."""

    weight: Array
    bias: Array
    mask: Bools


@dataclass(frozen=True, slots=True)
class BlockStart:
    """One masked autoregressive block.

    Args:
        order: the columns in the order in which they are generated.
        degrees: of the units of each hidden layer, ascending: a unit of degree g sees the first g
            columns in this order; the outputs of the i-th column see degrees below i.
        layers: hidden layers, then the outputs: d means, d log-scales. The last layer's inputs are
            the last hidden layer and then the columns themselves (a linear path to the means; all
            masked where the architecture has none).
    """

    order: list[int]
    degrees: list[NDArray[np.intp]]
    layers: list[LayerStart]


def starting_blocks(arch: Architecture) -> list[BlockStart]:
    """The blocks of an untrained flow; outputs start at zero, so that the flow is the identity."""
    rng = np.random.default_rng(arch.seed)
    blocks: list[BlockStart] = []
    order: list[int] = []
    for i in range(arch.flows):
        # Random orders in pairs, there and back: no column is always behind another.
        order = order[::-1] if i % 2 else rng.permutation(arch.d).tolist()
        blocks.append(_starting_block(arch, order, rng))
    return blocks


def active(arch: Architecture) -> Bools:
    """Which entries of the flat parameter vector exist (are not masked), (p,).

    The vector holds, block by block and layer by layer, weight (out, in) by rows and bias (out,).
    """
    layers = (layer for block in starting_blocks(arch) for layer in block.layers)
    parts = (p for y in layers for p in (y.mask.ravel(), np.ones(len(y.bias), dtype=bool)))
    return np.concatenate(list(parts))


def starting_parameters(arch: Architecture) -> Array:
    """The flat parameter vector (p,) of an untrained flow; see :func:`active`."""
    layers = (layer for block in starting_blocks(arch) for layer in block.layers)
    return np.concatenate([p for y in layers for p in (y.weight.ravel(), y.bias)])


def weights(arch: Architecture, vector: Array) -> list[Array]:
    """Views of the weights in a flat vector (p,), per layer of a block: (flows, out, in)."""
    blocks = vector.reshape(arch.flows, -1)
    views, at, ins = [], 0, arch.d
    for h in arch.hidden:
        views.append(blocks[:, at : at + h * ins].reshape(arch.flows, h, ins))
        at, ins = at + h * (ins + 1), h
    last = blocks[:, at : blocks.shape[1] - 2 * arch.d]
    return [*views, last.reshape(arch.flows, 2 * arch.d, ins + arch.d)]


def project(arch: Architecture, vector: Array) -> None:
    r"""Scale weights of a flat vector (p,) down, in place, until they keep ``arch.spectral``.

    :math:`W \leftarrow W \min(1, B / σ_1(W))` for each weight matrix on its own, σ₁ its largest
    singular value; masked entries stay zero, biases are free, and weights within the bound are left
    alone. Spectral normalisation (Miyato et al. 2018), with σ₁ exact: a network is then Lipschitz
    with at most the product of its layers' bounds. Shen & Tian (2025, theorem 2) ask it, at B = 1,
    of the networks behind means and scales; it says nothing of the flow's own constant, since
    exp(-a) grows. Matrices so bounded are a convex set, so that averages of iterates stay inside.
    Post-processing: it looks at parameters only.
    """
    if arch.spectral is not None:
        for weight in weights(arch, vector):
            weight *= _shrinking(weight, arch.spectral)


def _shrinking(weight: Array, bound: float) -> Array:
    """min(1, bound/σ₁) of each matrix of (…, out, in), as (…, 1, 1)."""
    turned = np.swapaxes(weight, -1, -2)
    # σ₁² is the largest eigenvalue of the smaller Gram matrix, which has it to full precision.
    gram = weight @ turned if weight.shape[-2] <= weight.shape[-1] else turned @ weight
    largest = np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[..., -1], 1e-300))
    factor: Array = np.minimum(1.0, bound / largest)[..., None, None]
    return factor


def _starting_block(arch: Architecture, order: list[int], rng: np.random.Generator) -> BlockStart:
    d = arch.d
    # The permutation is in the masks: columns keep their places, their degrees are shuffled.
    columns = 1 + np.argsort(order)
    # Degrees 1..d-1 in equal shares; a single column leaves only constants (degree 0).
    degrees = [np.minimum(1 + np.arange(h) * (d - 1) // h, d - 1) for h in arch.hidden]
    layers, below = [], columns
    for own in degrees:
        mask = own[:, None] >= below[None, :]
        fan_in = np.maximum(mask.sum(axis=1), 1)[:, None]
        weight = rng.standard_normal(mask.shape) * mask / np.sqrt(fan_in)
        if arch.spectral is not None:
            weight = weight * _shrinking(weight, arch.spectral)
        layers.append(LayerStart(weight, 0.3 * rng.standard_normal(len(own)), mask))
        below = own
    sees_hidden = columns[:, None] > below[None, :]
    sees_columns = (columns[:, None] > columns[None, :]) & arch.linear
    mask = np.block([[sees_hidden, sees_columns], [sees_hidden, np.zeros((d, d), dtype=bool)]])
    layers.append(LayerStart(np.zeros(mask.shape), np.zeros(2 * d), mask))
    return BlockStart(order, degrees, layers)


def public_clip(arch: Architecture, quantile: float, rows: int = 1) -> float:
    """A clipping bound for gradients from the architecture alone: no private row is looked at.

    The ``quantile`` of a person's gradient norm at the starting weights, over 512 persons of
    ``rows`` standard Gaussian rows each; standardised data begins there. The flow is the identity
    then, so only output layers have gradients: -x at the means, 1 - x² at the log-scales.
    """
    blocks = starting_blocks(arch)
    squares = []
    for x in np.random.default_rng(arch.seed).standard_normal((512, rows, arch.d)):
        g = np.concatenate([-x, 1 - x**2], axis=1)
        square = len(blocks) * float((g.sum(axis=0) ** 2).sum())
        for block in blocks:
            a = x
            for layer in block.layers[:-1]:
                a = ACTIVATIONS[arch.activation](a @ layer.weight.T + layer.bias)
            product = g.T @ np.concatenate([a, x], axis=1)
            square += float((product[block.layers[-1].mask] ** 2).sum())
        squares.append(square)
    return float(np.sqrt(np.quantile(squares, quantile)))
