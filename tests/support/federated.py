"""A release of many sites in one process: their sums, and what is made of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from penstock.mechanisms.joint.consortium import SITE
from penstock.mechanisms.joint.plan import JointPlan
from penstock.mechanisms.joint.rounds import Contribution, conclude, contribute
from penstock.mechanisms.parts import Part
from penstock.mechanisms.protocol import AnyMechanism
from penstock.privacy.noise.sources import NoiseSource
from penstock.schema import Coded
from penstock.schema.encoding import Encoding

Sums = list[list[int]]


def encode_site(
    plan: JointPlan, encoding: Encoding, number: int, rows: Coded, seed: int = 0
) -> tuple[Any, Any]:
    """(n, k, d) rows, the k of a person one after the other, and presence; they know of which site
    they are where the mechanism tells of it."""
    count, most = len(next(iter(rows.values()))), plan.carried.rows
    told = {SITE: np.full(count, float(number))} if SITE in encoding.schema.names else {}
    x, present = encoding.encode({**rows, **told}, np.random.default_rng([seed, number]))
    return x.reshape(-1, most, encoding.d), present.reshape(-1, most)


def ask_sites(
    mechanism: AnyMechanism,
    plan: JointPlan,
    encoding: Encoding,
    sites: Sequence[tuple[Any, Any]],
    sums: Sums,
    noise: NoiseSource,
) -> list[Contribution]:
    """What each adds to the next sum."""
    return [contribute(mechanism, plan, encoding, *site, sums, noise) for site in sites]


def add_up(contributions: Sequence[Contribution], noise: NoiseSource) -> list[int]:
    """One round: each site's numbers with its own noise, added."""
    many = len(contributions)
    noisy = [contribution.add_noise(many, noise) for contribution in contributions]
    return [sum(each) for each in zip(*noisy, strict=True)]


def gather_sums(
    mechanism: AnyMechanism,
    plan: JointPlan,
    encoding: Encoding,
    sites: Sequence[tuple[Any, Any]],
    noise: NoiseSource,
) -> Sums:
    """All rounds."""
    sums: Sums = []
    for _ in range(plan.rounds):
        sums.append(add_up(ask_sites(mechanism, plan, encoding, sites, sums, noise), noise))
    return sums


def release_jointly(
    mechanism: AnyMechanism,
    plan: JointPlan,
    encoding: Encoding,
    sites: Sequence[tuple[Any, Any]],
    noise: NoiseSource,
) -> Iterator[Part]:
    """All rounds, and the release."""
    sums = gather_sums(mechanism, plan, encoding, sites, noise)
    yield from conclude(mechanism, plan, encoding, sums, noise)
