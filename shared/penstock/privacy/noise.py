"""Where privacy noise comes from.

Noise that a guarantee rests on comes from :class:`SecureNoise`: a ChaCha20 key stream keyed by the
operating system, rekeyed after a fork, mapped to Gaussians in float64. Every draw is the sum of
four independent Gaussians divided by two, so that one output's floating-point pattern does not
reveal one uniform (Holohan & Braghin 2021, "Secure Random Sampling in Differential Privacy"), and
results are rounded to a grid far finer than the noise. That mitigates floating-point attacks
(Mironov 2012); it does not prove their absence, and the threat model says so.

:class:`SeededNoise` exists for tests and simulations. Whatever is made with it is marked
``insecure_seed`` and refused by a coordinator outside simulation.
"""

from __future__ import annotations

import math
import os
import threading
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
from numpy.typing import NDArray
from scipy.special import ndtri

from penstock.errors import InvalidEvent

Array = NDArray[np.float64]

GRID_BITS = 24
"""Released sums lie on a grid of 2**-GRID_BITS times (a power of two at most) the noise's sd."""


class NoiseSource(Protocol):
    """A source of privacy noise; passed explicitly, never global."""

    insecure: bool

    def normal(self, shape: int | tuple[int, ...]) -> Array:
        """Independent standard Gaussians of this shape, float64."""

    def uniform(self, shape: int | tuple[int, ...]) -> Array:
        """Independent uniforms in the open interval (0, 1), float64."""

    def generator(self) -> np.random.Generator:
        """A numpy generator, freshly keyed, for randomness that no guarantee rests on."""


class SecureNoise:
    """ChaCha20-based noise: OS-keyed, fork-safe, thread-safe."""

    insecure = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = -1
        self._stream: CipherContext | None = None

    def _bits(self, count: int) -> NDArray[np.uint64]:
        with self._lock:
            # A child of fork shares the parent's key stream; noise drawn twice is no noise.
            if self._stream is None or self._pid != os.getpid():
                cipher = Cipher(algorithms.ChaCha20(os.urandom(32), os.urandom(16)), mode=None)
                self._stream = cipher.encryptor()
                self._pid = os.getpid()
            return np.frombuffer(self._stream.update(bytes(8 * count)), dtype=np.uint64)

    def uniform(self, shape: int | tuple[int, ...]) -> Array:
        size = int(np.prod(shape))
        return _open_unit(self._bits(size)).reshape(shape)

    def normal(self, shape: int | tuple[int, ...]) -> Array:
        size = int(np.prod(shape))
        return _four_gaussians(_open_unit(self._bits(4 * size)), size).reshape(shape)

    def generator(self) -> np.random.Generator:
        return np.random.default_rng(int.from_bytes(os.urandom(16), "big"))


class SeededNoise:
    """Reproducible noise for tests and simulations only. Never private."""

    insecure = True

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def uniform(self, shape: int | tuple[int, ...]) -> Array:
        size = int(np.prod(shape))
        bits = self._rng.integers(0, 2**64, size=size, dtype=np.uint64, endpoint=False)
        return _open_unit(bits).reshape(shape)

    def normal(self, shape: int | tuple[int, ...]) -> Array:
        return self._rng.standard_normal(shape)

    def generator(self) -> np.random.Generator:
        return np.random.default_rng(self._rng.integers(0, 2**63))


def _open_unit(bits: NDArray[np.uint64]) -> Array:
    """Map 64 random bits to (k + 1/2)·2⁻⁵³, k uniform on 0 … 2⁵³ - 1: never 0 and never 1."""
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _four_gaussians(u: Array, size: int) -> Array:
    z: Array = ndtri(u).reshape(4, size)
    total: Array = z.sum(axis=0) * 0.5
    return total


def add_gaussian(value: Array | float, sd: float, noise: NoiseSource) -> Array:
    r"""Release ``value + N(0, sd²)`` on a fixed grid, elementwise.

    The grid's width is 2^⌊log₂ sd⌋ · 2⁻²⁴, a function of the noise alone, so that the low-order
    bits of the result do not depend on the value's magnitude.

    Args:
        value: any shape, float64.
        sd: standard deviation in the value's own units, finite and > 0.

    Raises:
        InvalidEvent: ``sd`` is not a finite positive number, or a value is not finite.
    """
    if not (sd > 0 and math.isfinite(sd)):
        raise InvalidEvent("noise needs a finite positive standard deviation", value=sd)
    array = np.asarray(value, dtype=np.float64)
    if not np.isfinite(array).all():
        raise InvalidEvent("a non-finite value cannot be released")
    grid = 2.0 ** (math.floor(math.log2(sd)) - GRID_BITS)
    noisy: Array = np.rint((array + sd * noise.normal(array.shape)) / grid) * grid
    return noisy


def permutation(n: int, noise: NoiseSource) -> NDArray[np.intp]:
    """A uniformly random order of ``n`` rows, from the secure source."""
    return np.argsort(noise.uniform(n), kind="stable")


def poisson_sample(n: int, rate: float, noise: NoiseSource) -> NDArray[np.bool_]:
    """Include each of ``n`` persons independently with probability ``rate`` (Poisson sampling)."""
    mask: NDArray[np.bool_] = noise.uniform(n) < rate
    return mask
