"""Shamir's shares: any T give the secret back, and T - 1 say nothing of it."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations, product

import pytest

from penstock.aggregation.secret_shares import (
    PRIME,
    evaluate,
    from_bytes,
    join_shares,
    make_secret,
    split_secret,
    to_bytes,
    weigh_places,
)


def test_any_threshold_many_give_it_back() -> None:
    secret = make_secret()
    shares = split_secret(secret, 3, 6)
    for places in combinations(range(1, 7), 3):
        assert join_shares({place: shares[place - 1] for place in places}) == secret


@pytest.mark.parametrize(("threshold", "count"), [(1, 1), (1, 3), (2, 2), (26, 50), (43, 50)])
def test_thresholds_up_to_all(threshold: int, count: int) -> None:
    secret = PRIME - 1
    shares = split_secret(secret, threshold, count)
    chosen = random.Random(count).sample(range(1, count + 1), threshold)
    assert join_shares({place: shares[place - 1] for place in chosen}) == secret


@pytest.mark.parametrize("threshold", [2, 3])
def test_one_fewer_are_uniform_whatever_the_secret_is(threshold: int) -> None:
    """All polynomials over a tiny field: T - 1 shares take every value equally often."""
    prime, places = 7, (1, 2, 4)
    for places_seen in combinations(places, threshold - 1):
        for secret in range(prime):
            seen = Counter(
                tuple(evaluate((secret, *rest), place, prime) for place in places_seen)
                for rest in product(range(prime), repeat=threshold - 1)
            )
            assert len(seen) == prime ** (threshold - 1)
            assert set(seen.values()) == {1}


def test_a_constant_polynomial_would_tell() -> None:
    """The planted fault: without random coefficients the law above does not hold."""
    seen = {evaluate((secret, 0), 1, 7) for secret in range(7)}
    assert len(seen) == 7, "one share, one secret"


@pytest.mark.parametrize("threshold", [2, 3, 4])
def test_tiny_fields_are_joined_too(threshold: int) -> None:
    prime = 11
    for coefficients in product(range(0, prime, 3), repeat=threshold):
        shares = {place: evaluate(coefficients, place, prime) for place in range(2, 2 + threshold)}
        assert join_shares(shares, prime) == coefficients[0]


def test_secrets_and_coefficients_are_fresh() -> None:
    assert len({make_secret() for _ in range(50)}) == 50
    secret = make_secret()
    assert len({split_secret(secret, 2, 2)[0] for _ in range(50)}) == 50
    assert all(0 <= share < PRIME for share in split_secret(secret, 5, 9))


def test_weights_are_those_of_lagrange() -> None:
    assert weigh_places((1, 2), 7) == (2, 6)  # p(0) = 2·p(1) - p(2)


def test_bytes_are_read_back() -> None:
    secret = make_secret()
    assert from_bytes(to_bytes(secret)) == secret
    assert len(to_bytes(0)) == 32
