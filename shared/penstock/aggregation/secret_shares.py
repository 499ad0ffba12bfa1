"""Shamir's secret shares over the whole numbers modulo 2^255 - 19.

A secret is the constant of a random polynomial of degree T - 1, a share its value at a site's place
(Shamir 1979, "How to share a secret"): any T shares give it back, and T - 1 are uniform, whatever
the secret is. It is arithmetic and no cipher; a coordinator gives back a hundred secrets a round
from the shares of the same sites, and here these sites' weights are made once. (pycryptodome's
``Shamir.combine`` repeats the interpolation for each secret, bit by bit: 38 ms for one of fifty
sites, two seconds a round.)
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

PRIME = 2**255 - 19
SECRET_BYTES = 32


def make_secret() -> int:
    """A uniform number below the prime, from the operating system."""
    return secrets.randbelow(PRIME)


def split_secret(secret: int, threshold: int, count: int) -> list[int]:
    """Shares at the places 1, 2, ..., ``count``; any ``threshold`` of them give the secret back."""
    coefficients = [secret, *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [evaluate(coefficients, place) for place in range(1, count + 1)]


def evaluate(coefficients: Sequence[int], place: int, prime: int = PRIME) -> int:
    """A polynomial at a place, its constant first."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % prime
    return value


def join_shares(shares: Mapping[int, int], prime: int = PRIME) -> int:
    """The secret, from exactly as many shares, by place, as its threshold says.

    Nothing is checked here: wrong shares, or fewer, give another number.
    """
    places = tuple(sorted(shares))
    weights = weigh_places(places, prime)
    return sum(weights[i] * shares[place] for i, place in enumerate(places)) % prime


@lru_cache(maxsize=64)
def weigh_places(places: tuple[int, ...], prime: int = PRIME) -> tuple[int, ...]:
    """Lagrange's weights at 0: the product of x / (x - place) over the other places x."""
    weights = []
    for place in places:
        above, below = 1, 1
        for other in places:
            if other != place:
                above, below = above * other % prime, below * (other - place) % prime
        weights.append(above * pow(below, -1, prime) % prime)
    return tuple(weights)


def to_bytes(number: int) -> bytes:
    """32 bytes, little-endian."""
    return number.to_bytes(SECRET_BYTES, "little")


def from_bytes(data: bytes) -> int:
    """What :func:`to_bytes` wrote; from a stranger it may be any number below 2^256."""
    return int.from_bytes(data, "little")
