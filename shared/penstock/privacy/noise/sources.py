"""Where privacy noise comes from.

Noise that a guarantee rests on comes from :class:`SecureNoise`: ChaCha20 key streams, each keyed
afresh by the operating system. What is done with its bits is of two kinds:

- **Proof.** :mod:`penstock.privacy.noise.discrete` turns bits into discrete Gaussians by
  whole-number arithmetic alone. One-off releases (counts, moments) use it.
- **Mitigation.** :func:`add_gaussian`, for the many steps of a training, draws in float64: each
  Gaussian is the sum of four divided by two, so that one output's floating-point pattern does not
  reveal one uniform (Holohan & Braghin 2021, "Secure Random Sampling in Differential Privacy"), and
  results are rounded to a grid far finer than the noise. That hinders floating-point attacks
  (Mironov 2012); it does not prove their absence, and the threat model says so.

:class:`SeededNoise` exists for tests and simulations. Whatever is made with it is marked
``insecure_seed`` and refused by a coordinator outside simulation. And for what is no noise of a
guarantee: :func:`make_twins`.
"""

from __future__ import annotations

import math
import os
from functools import cache
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from scipy.special import ndtri

from penstock.base.errors import InvalidEvent

Array = NDArray[np.float64]

_AT_ONCE = 2048
"""Gaussians that are computed at a time: their uniforms stay in the processor's cache."""

GRID_BITS = 24
"""Released sums lie on a grid of 2**-GRID_BITS times (a power of two at most) the noise's sd."""


class NoiseSource(Protocol):
    """A source of privacy noise; passed explicitly, never global."""

    insecure: bool

    def random_bytes(self, count: int) -> bytes:
        """Independent uniform bytes."""

    def normal(self, shape: int | tuple[int, ...]) -> Array:
        """Independent standard Gaussians of this shape, float64."""

    def uniform(self, shape: int | tuple[int, ...]) -> Array:
        """Independent uniforms in the open interval (0, 1), float64."""

    def generator(self) -> np.random.Generator:
        """A numpy generator, freshly keyed, for randomness that no guarantee rests on."""

    def child(self) -> NoiseSource:
        """A source beside this one, for work that goes on at the same time; independent of it."""


class SecureNoise:
    """ChaCha20 keyed by the operating system, afresh for every draw.

    It keeps nothing between draws: no fork, thread or copy can repeat its noise, no counter runs
    out, and there is no seed to set. A key costs about 10 µs, so draw many numbers at once.
    """

    __slots__ = ()
    insecure = False

    def random_bytes(self, count: int) -> bytes:
        # The key is used once, so the nonce may be anything.
        cipher = Cipher(algorithms.ChaCha20(os.urandom(32), bytes(16)), mode=None)
        return cipher.encryptor().update(bytes(count))

    def uniform(self, shape: int | tuple[int, ...]) -> Array:
        size = int(np.prod(shape))
        return _open_unit(self._words(size)).reshape(shape)

    def normal(self, shape: int | tuple[int, ...]) -> Array:
        size = int(np.prod(shape))
        words = self._words(4 * size)
        drawn = np.empty(size)
        for at in range(0, size, _AT_ONCE):
            part = words[4 * at : 4 * (at + _AT_ONCE)]
            drawn[at : at + _AT_ONCE] = _four_gaussians(_open_unit(part), len(part) // 4)
        return drawn.reshape(shape)

    def generator(self) -> np.random.Generator:
        return np.random.default_rng(int.from_bytes(os.urandom(16), "big"))

    def child(self) -> SecureNoise:
        return self  # it keeps nothing between draws

    def _words(self, count: int) -> NDArray[np.uint64]:
        return np.frombuffer(self.random_bytes(8 * count), dtype=np.uint64)


class SeededNoise:
    """Reproducible noise for tests and simulations only. Never private."""

    insecure = True

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def random_bytes(self, count: int) -> bytes:
        return self._rng.bytes(count)

    def uniform(self, shape: int | tuple[int, ...]) -> Array:
        size = int(np.prod(shape))
        bits = self._rng.integers(0, 2**64, size=size, dtype=np.uint64, endpoint=False)
        return _open_unit(bits).reshape(shape)

    def normal(self, shape: int | tuple[int, ...]) -> Array:
        return self._rng.standard_normal(shape)

    def generator(self) -> np.random.Generator:
        return np.random.default_rng(self._rng.integers(0, 2**63))

    def child(self) -> SeededNoise:
        return SeededNoise(int(self.generator().integers(2**63)))


def make_twins(noise: NoiseSource) -> tuple[NoiseSource, NoiseSource]:
    """Two sources that give the same, so that what is made with each can be compared.

    For what no guarantee rests on, such as rehearsals on synthetic rows; never for private ones.
    """
    seed = int(noise.generator().integers(2**63))
    return SeededNoise(seed), SeededNoise(seed)


class Integers:
    """Exactly uniform whole numbers from a source's bytes, fetched by the block.

    Make one for each release, and let it go after: what is left of a block would repeat itself in
    a forked child.
    """

    __slots__ = ("_at", "_block", "_noise")

    BLOCK = 1 << 14

    def __init__(self, noise: NoiseSource) -> None:
        self._noise, self._block, self._at = noise, b"", 0

    def below(self, bound: int) -> int:
        """Uniform on 0 … bound - 1, for whole numbers of any size, by rejection.

        Raises:
            InvalidEvent: ``bound`` is below 1.
        """
        if not bound >= 1:
            raise InvalidEvent("no whole number lies below this", value=bound, bound="at least 1")
        bits = (bound - 1).bit_length()
        size = (bits + 7) // 8
        while True:
            if self._at + size > len(self._block):
                self._block, self._at = self._noise.random_bytes(max(self.BLOCK, size)), 0
            taken = self._block[self._at : self._at + size]
            self._at += size
            value = int.from_bytes(taken, "little") >> (8 * size - bits)
            if value < bound:
                return value


def _open_unit(bits: NDArray[np.uint64]) -> Array:
    """Map 64 random bits to (k + 1/2)·2⁻⁵², k uniform on 0 … 2⁵² - 1: never 0 and never 1.

    Every k + 1/2 is a float64. Of 2⁵³ values the largest would not be, and be rounded up to 1.
    """
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


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


NOBODY = -1
"""Fills up a batch to its public size."""

_BEYOND = 60 * math.log(2)
"""A Poisson batch is larger than its public size with probability at most 2⁻⁶⁰."""


@cache
def batch_size(n: int, rate: float) -> int:
    """The public size of Poisson batches of ``n`` persons: a step's work, whoever was drawn.

    The least a with P(Binomial(n, q) > a) ≤ 2⁻⁶⁰ by Chernoff's bound, exp(-n KL((a+1)/n ‖ q)).
    """

    def rare(size: int) -> bool:
        share = (size + 1) / n
        other = 0.0 if share >= 1 else (1 - share) * math.log((1 - share) / (1 - rate))
        return n * (share * math.log(share / rate) + other) >= _BEYOND

    low, high = math.ceil(n * rate), n  # all of them are always enough
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if rare(middle) else (middle + 1, high)
    return high


def poisson_batch(n: int, rate: float, noise: NoiseSource) -> NDArray[np.intp]:
    """A Poisson sample as indices, filled up with :data:`NOBODY` to :func:`batch_size`.

    How many were drawn is the sampler's secret, on which amplification rests: the work of a step
    must not show it. A larger sample takes the next public size, all n; over K steps that is seen
    with probability at most K·2⁻⁶⁰, far below any δ.
    """
    drawn = np.flatnonzero(poisson_sample(n, rate, noise))
    size = batch_size(n, rate)
    batch = np.full(size if len(drawn) <= size else n, NOBODY, dtype=np.intp)
    batch[: len(drawn)] = drawn
    return batch


def poisson_sample(n: int, rate: float, noise: NoiseSource) -> NDArray[np.bool_]:
    """Include each of ``n`` persons independently with probability ``rate`` (Poisson sampling)."""
    mask: NDArray[np.bool_] = noise.uniform(n) < rate
    return mask
