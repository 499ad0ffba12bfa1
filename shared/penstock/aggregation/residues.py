r"""Vectors of whole numbers modulo 2^bits: what is masked, sent and summed.

Sums of residues are exact, and a uniform mask hides a number perfectly, which no floating-point
number has. A number is kept in two words of 64 bits; 5,000 of 128 bits with the masks of 12 sites
take some milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from penstock.base.checks import Checks
from penstock.base.errors import UploadRejected

MAX_BITS = 128
MAX_SIZE = 2**24
_WORDS = np.dtype("<u8")


@dataclass(frozen=True, slots=True, eq=False)
class Residues:
    """``size`` numbers modulo 2^``bits``.

    Attributes:
        words: (2, size) unsigned words of 64 bits, the lower ones first; below 2^bits together.
        bits: a multiple of 8, from 8 to 128.
    """

    words: NDArray[np.uint64]
    bits: int

    @property
    def size(self) -> int:
        return int(self.words.shape[1])

    @classmethod
    def from_numbers(cls, numbers: Iterable[int], bits: int) -> Residues:
        """Whole numbers of any size, reduced. Never refused: noise has no bound, and an error would
        depend on rows. :func:`choose_bits` makes a wrap too rare to matter."""
        top, each = 1 << bits, bits // 8
        return cls.from_bytes(
            b"".join((int(number) % top).to_bytes(each, "little") for number in numbers), bits
        )

    @classmethod
    def from_bytes(cls, data: bytes, bits: int, size: int | None = None) -> Residues:
        """Read :meth:`to_bytes`.

        Raises:
            UploadRejected: not ``size`` numbers.
        """
        each = bits // 8
        count = len(data) // each if size is None else size
        if len(data) != count * each:
            raise UploadRejected(
                "a masked vector has the wrong length",
                value=f"{len(data)} bytes",
                bound=f"{count} numbers of {each} bytes",
            )
        wide = np.zeros((count, 16), dtype=np.uint8)
        wide[:, :each] = np.frombuffer(data, dtype=np.uint8).reshape(count, each)
        return cls(np.ascontiguousarray(wide.view(_WORDS).T).astype(np.uint64), bits)

    @classmethod
    def from_stream(cls, key: bytes, size: int, bits: int) -> Residues:
        """The mask of a key of 32 bytes: ChaCha20's key stream, uniform modulo 2^bits.

        A key masks one vector of one round, so that the nonce may be zero.
        """
        stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
        return cls.from_bytes(stream.update(bytes(size * bits // 8)), bits, size)

    def to_bytes(self) -> bytes:
        """``bits``/8 bytes a number, little-endian."""
        wide = np.ascontiguousarray(self.words.T).astype(_WORDS).view(np.uint8)
        return wide.reshape(self.size, 16)[:, : self.bits // 8].tobytes()

    def to_numbers(self) -> list[int]:
        """The whole numbers from -2^(bits-1) to 2^(bits-1) - 1 that they stand for."""
        data, each = self.to_bytes(), self.bits // 8
        return [
            int.from_bytes(data[i : i + each], "little", signed=True)
            for i in range(0, len(data), each)
        ]

    def __add__(self, other: Residues) -> Residues:
        low = self.words[0] + other.words[0]
        high = self.words[1] + other.words[1] + (low < self.words[0])
        return self._reduce(low, high)

    def __sub__(self, other: Residues) -> Residues:
        low = self.words[0] - other.words[0]
        high = self.words[1] - other.words[1] - (self.words[0] < other.words[0])
        return self._reduce(low, high)

    def _reduce(self, low: NDArray[np.uint64], high: NDArray[np.uint64]) -> Residues:
        if self.bits < 64:
            low, high = low & np.uint64(2**self.bits - 1), np.zeros_like(high)
        else:
            high = high & np.uint64(2 ** (self.bits - 64) - 1)
        return Residues(np.stack([low, high]), self.bits)


@dataclass(frozen=True, slots=True)
class MaskKey:
    """A key of a mask, and whether the mask is added or taken away."""

    key: bytes
    added: bool


def apply_masks(vector: Residues, keys: Sequence[MaskKey]) -> Residues:
    """The vector with each key's mask added to it, or taken away."""
    for each in keys:
        mask = Residues.from_stream(each.key, vector.size, vector.bits)
        vector = vector + mask if each.added else vector - mask
    return vector


def check_shape(size: object, bits: object) -> None:
    """Public numbers of a round, before anything is made from them.

    Raises:
        InvalidInput: out of range.
    """
    check = Checks("vector of a sum")
    check.whole("size", size, 1, MAX_SIZE)
    if check.whole("bits", bits, 8, MAX_BITS) and isinstance(bits, int) and bits % 8:
        check.add("bits", "must be a multiple of 8", value=str(bits), bound=f"8 to {MAX_BITS}")
    check.done()


def choose_bits(most: int, sites: int) -> int:
    """The least number of bits that holds any sum of ``sites`` numbers of at most ±``most``.

    Args:
        most: from public bounds: of a contribution, and of noise but for a probability of your
            choice. Beyond it a sum wraps: wrong, and no less private.

    Raises:
        InvalidInput: more than 128 bits.
    """
    bits = -(-((most * sites).bit_length() + 1) // 8) * 8
    check_shape(1, bits)
    return bits
