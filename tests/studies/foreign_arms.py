"""Who makes the copies: the package's mechanisms, and peers."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tests.studies.foreign_peers import copula, smartnoise
from tests.studies.foreign_tables import Table, can_declare_products, estimands
from tests.support.carried_out import release

from penstock.mechanisms import Maf, Settings, SlicedWasserstein, Structured
from penstock.mechanisms.plans import plan
from penstock.mechanisms.registry import MECHANISMS
from penstock.mechanisms.released import EACH, Refitting, name_copy, name_refit
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Coded
from penstock.schema.encoding import Encoding

OURS = ("structured", "maf", "sliced-wasserstein")
PEERS = ("copula", "mst", "aim")


@dataclass(frozen=True, slots=True)
class Made:
    """The tables of one private fit, and of its refits, and how these were made."""

    copies: list[Coded]
    refits: list[Coded]
    how: Refitting = EACH


def seed_of(*what: object) -> int:
    """A seed from what is asked, the same in every process and version."""
    return zlib.crc32("|".join(map(str, what)).encode())


def make(
    arm: str,
    table: Table,
    epsilon: float,
    seed: int,
    *,
    plain: bool = False,
    copies: int = 10,
    refits: int = 0,
    asked: Sequence[Estimand] | None = None,
) -> Made:
    """One release of a table; a pure function of the seed.

    Args:
        plain: by the dictionary as a newcomer writes it; else with what `site check` suggests.
        asked: estimands; None: those that the table's study would declare.
    """
    schema = table.schema if plain else table.suggested()
    privacy = PrivacyRequest(epsilon, min(1e-5, 1 / (10 * table.n)))
    noise, rng = SeededNoise(seed), np.random.default_rng([seed, 1])
    if arm == "copula":
        return Made(copula(table.rows, schema, privacy, copies, noise, rng), [])
    if arm in PEERS:
        return Made(smartnoise(arm, table.rows, schema, privacy, copies, seed), [])
    encoding = Encoding(schema)
    x, there = encoding.encode(table.rows, rng)
    if asked is None:
        # Only this one has a model that holds an interaction.
        products = arm == "structured" and can_declare_products()
        asked = estimands(table, products=products)
    settings = _settings(arm, copies, refits)
    planned = plan(settings, schema, table.n, privacy, asked)
    found: dict[str, Coded] = {}
    for part in release(settings, planned, encoding, x[:, None], there[:, None], noise):
        found[part.name] = {name: np.asarray(v, float) for name, v in part.columns.items()}
    return Made(
        [found[name_copy(i + 1)] for i in range(copies)],
        [found[name_refit(i + 1)] for i in range(refits)],
        Refitting(per_fit=MECHANISMS.of(settings).count_per_fit(settings)),
    )


def _settings(arm: str, copies: int, refits: int) -> Settings:
    if arm == "maf":
        return Maf(copies=copies, refits=refits)
    if arm == "sliced-wasserstein":
        return SlicedWasserstein(copies=copies, refits=refits)
    if arm == "structured":
        # Planted runs follow the copies, and change nothing of them.
        return Structured(copies=copies, refits=refits, planted=0)
    raise ValueError(f"no arm {arm!r}")
