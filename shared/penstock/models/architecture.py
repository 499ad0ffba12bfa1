"""What a flow is made of, before any data and without torch: shapes, masks and first weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InvalidInput, Problem

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
            the last hidden layer and then the columns themselves (a linear path to the means).
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
        layers.append(LayerStart(weight, 0.3 * rng.standard_normal(len(own)), mask))
        below = own
    sees_hidden = columns[:, None] > below[None, :]
    sees_columns = columns[:, None] > columns[None, :]
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
