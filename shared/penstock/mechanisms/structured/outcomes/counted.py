r"""A column of which the released population has the shares that were counted.

.. math:: P(y_c \mid z) ∝ e^{α_c + λ_c(z)}

with λ by the column's model, and α such that the population has, as a whole, the counted shares
(Rathouz & Gao 2009, "Generalized linear models with unspecified reference distribution",
Biostatistics 10).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.structured.outcomes.protocol import (
    Imagined,
    OutcomeModel,
    Referred,
    World,
)
from penstock.mechanisms.structured.outcomes.support import Support
from penstock.schema import Coded

Array = NDArray[np.float64]
Reference = TypeVar("Reference", bound=Referred)
Found = TypeVar("Found", bound=Imagined)

_BALANCED = 60
_EVEN, _NEAR = 1e-7, 1.0
"""Logarithms of shares over those looked for."""

_MOST_OWN, MOST_STEP = 30.0, 3.0
"""Bounds of exponents, and of a step in them."""

LEAST_SHARE = 1e-300


@dataclass(frozen=True, slots=True)
class _Tilt:
    """α (c,), the persons' chances (N, c), and whether these have the shares looked for."""

    tilt: Array
    chances: Array
    even: bool


class Counted(OutcomeModel[Reference, Found], Generic[Reference, Found]):
    """The law of one column.

    Args:
        support: its counted distribution; world: the persons.
        corrected: (own, c) by what the logarithms of the counted shares are corrected, per unit of
            θ's own entries.
    """

    def __init__(self, support: Support, world: World, corrected: Array) -> None:
        super().__init__(world, len(corrected))
        self._support, self._corrected = support, corrected
        self._design = world.design
        self._last: tuple[bytes, _Tilt] | None = None

    def start(self) -> Array:
        self._last = None
        return np.zeros(self.size)

    @abstractmethod
    def _lean(self, theta: Array, design: Array) -> Array:
        """(N, c) exponents beside α."""

    def _correct(self, theta: Array) -> Array:
        """The shares that the world is to have."""
        own = np.clip(theta[self.coefficients :], -2.0, 2.0) @ self._corrected
        return tilt_chances(np.log(self._support.shares) + np.clip(own, -_MOST_OWN, _MOST_OWN))

    def _make_world(self, theta: Array) -> _Tilt:
        """Proportional fitting, and Newton's steps near what is looked for; from the last one."""
        if self._last is None or self._last[0] != theta.tobytes():
            off, goal = np.inf, self._correct(theta)
            leaning = self._lean(theta, self._design)
            tilt = np.log(goal)
            if self._last is not None and self._last[1].even:
                tilt = self._last[1].tilt
            for _ in range(_BALANCED):
                chances = tilt_chances(tilt + leaning)
                found = np.maximum(chances.mean(axis=0), LEAST_SHARE)
                step = np.log(goal / found)
                off = float(np.abs(step).max())
                if off < _EVEN:
                    break
                if off < _NEAR:
                    step = turn_tilt(chances, found, (goal - found)[:, None])[:, 0]
                tilt = tilt + np.clip(step, -MOST_STEP, MOST_STEP)
            world = _Tilt(tilt, tilt_chances(tilt + leaning), off < _NEAR)
            self._last = theta.tobytes(), world
        return self._last[1]

    def chances(self, theta: Array) -> Array:
        """Of each part of the distribution."""
        return self._make_world(theta).chances

    def draw(
        self, theta: Array, design: Array, uniforms: Array, added: Array | None = None
    ) -> Coded:
        tilt = self._make_world(theta).tilt
        if added is None:
            chances = self._chances_of(theta, tilt, design)
        else:
            chances = self._move(theta, tilt, design, added)
        risen = np.cumsum(chances, axis=1)
        place = (uniforms[:, :1] >= risen[:, :-1]).sum(axis=1)
        return {self._support.grid.column.name: self._support.draw(place, uniforms[:, 1])}

    def _chances_of(self, theta: Array, tilt: Array, design: Array) -> Array:
        return tilt_chances(tilt + self._lean(theta, design))

    @abstractmethod
    def _move(self, theta: Array, tilt: Array, design: Array, added: Array) -> Array:
        """(N, c) chances of persons with so much more of the declared regression's predictor."""


def turn_tilt(chances: Array, shares: Array, moved: Array) -> Array:
    """By how much α changes, (c, m), where the world's shares do by ``moved``, (c, m).

    Shares change by (diag p - PᵀP/N) α, of which a constant α is the kernel.
    """
    root = np.sqrt(shares)
    scaled = chances / root
    curvature = np.eye(len(root)) - scaled.T @ scaled / len(chances) + np.outer(root, root)
    curvature += 1e-9 * np.eye(len(root))
    return np.asarray(np.linalg.solve(curvature, moved / root[:, None]) / root[:, None])


def tilt_chances(logs: Array) -> Array:
    """(…, c) in proportion to exponentials, adding up to 1."""
    weights = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))
