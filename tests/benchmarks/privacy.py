"""What privacy costs in time: the ledger, its accountant, and the noise; milliseconds, one thread.

Peers in the same run: dp-accounting's Rényi accountant on the same events (its PLD, which only
reports, beside it); SQLite's own two durable commits under a reserve and a commit; torch's ordinary
generator, and four of its draws summed, which is Opacus's secure mode; OpenDP's discrete Gaussian.
Medians; the s.e. is of the runs' mean.
"""

from __future__ import annotations

import secrets
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.support.ledgers import DIGESTS, ROWS
from tests.support.results import Row, write

from penstock.privacy.accounting import accountant, renyi
from penstock.privacy.events import DiscreteGaussian, Event, PoissonGaussian
from penstock.privacy.filters import best_order
from penstock.privacy.noise.discrete import discrete_gaussian
from penstock.privacy.noise.sources import SecureNoise
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database
from penstock_client.ledger.state import Charge

RELEASES, DELTA, TOTAL = 500, 1e-5, 30.0
SHAPE = (5000, 8)


def events(index: int) -> tuple[Event, ...]:
    """One release of the usual kind; no two alike."""
    x = 1 + index / (10 * RELEASES)
    return (
        DiscreteGaussian(60 * x, 1, "margins", 3.0, 2.0**40, 200),
        DiscreteGaussian(40 * x, 1, "moments", 50.0, 2.0**40, 30),
        PoissonGaussian(0.02 * x, 8 * x, 300, "flow, DP-SGD", 4.0),
    )


def charge(index: int) -> Charge:
    return Charge(
        id=secrets.token_hex(32),
        lineage="cohort",
        version=1,
        study_id=secrets.token_hex(32),
        signer="aa" * 32,
        mechanism="maf",
        events=events(index),
        delta=DELTA,
        **DIGESTS,
    )


def milliseconds(work: Callable[[], object], repeats: int) -> list[float]:
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        found.append(1e3 * (time.perf_counter() - began))
    return found


def ledger_times(folder: Path) -> dict[str, list[float]]:
    """Reserve and commit on a ledger of 500 releases, beside SQLite alone; opening it anew."""
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw().hex()
    database = Database.create(folder / "gate.db")
    ledger = Ledger(database, key)
    ledger.open_for("bench")
    ledger.add_lineage("cohort", TOTAL, DELTA, unit=ROWS)
    ledger.add_version("cohort", 8000, "00" * 32)
    index = 0

    def both() -> None:
        nonlocal index
        index += 1
        one = charge(index)
        ledger.reserve(one, signer_epsilon=TOTAL)
        ledger.commit(one.id)

    for _ in range(RELEASES):
        both()
    plain = sqlite3.connect(folder / "plain.db", isolation_level=None)
    plain.executescript("PRAGMA journal_mode=TRUNCATE; PRAGMA synchronous=FULL; CREATE TABLE t(x)")

    def bare() -> None:
        for _ in range(2):
            plain.executescript("BEGIN IMMEDIATE; INSERT INTO t VALUES (zeroblob(1500)); COMMIT")

    return {
        "reserve + commit after 500 releases": milliseconds(both, 50),
        "two durable commits of SQLite": milliseconds(bare, 50),
        "open and verify 500 releases": milliseconds(
            lambda: Ledger(database, key).verify(public), 5
        ),
    }


def accountant_times() -> dict[str, list[float]]:
    """The whole of 500 different releases, nothing remembered from before."""
    import dp_accounting as dpa

    spent = [e for i in range(RELEASES) for e in events(i)]
    order = best_order(TOTAL, DELTA)
    renyi.renyi_total(events(0), order)  # autodp is imported

    def cold() -> None:
        for cached in vars(renyi).values():
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()
        renyi.renyi_total(spent, order)

    def theirs() -> None:
        at = dpa.rdp.RdpAccountant([order], dpa.NeighboringRelation.REPLACE_SPECIAL)
        for event in spent:
            once: dpa.DpEvent = dpa.GaussianDpEvent(event.noise_multiplier)
            if isinstance(event, PoissonGaussian):
                once = dpa.PoissonSampledDpEvent(event.rate, once)
            at.compose(once, event.count)
        at.get_epsilon(DELTA)

    return {
        "500 releases by the gate's accountant, cold": milliseconds(cold, 5),
        "500 releases by dp-accounting's RDP, same order": milliseconds(theirs, 3),
        "500 releases by PLD, for display": milliseconds(
            lambda: accountant.epsilon_pld(spent, DELTA), 1
        ),
    }


def noise_times() -> dict[str, list[float]]:
    """Gaussian noise for 5000 × 8 numbers; exact discrete Gaussians, σ = 2⁴⁰."""
    noise = SecureNoise()
    found = {
        "secure noise, 5000×8": milliseconds(lambda: noise.normal(SHAPE), 50),
        "torch.randn, float64, 5000×8": milliseconds(
            lambda: torch.randn(SHAPE, dtype=torch.float64), 50
        ),
        "four torch.randn summed, 5000×8": milliseconds(
            lambda: sum(torch.randn(SHAPE, dtype=torch.float64) for _ in range(4)), 50
        ),
        "300 exact discrete Gaussians": milliseconds(
            lambda: discrete_gaussian(4**40, 300, noise), 10
        ),
    }
    try:
        import opendp.prelude as dp
    except ImportError:
        return found
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    made = dp.m.make_gaussian(*space, scale=float(2**40))
    found["300 by OpenDP"] = milliseconds(lambda: made([0] * 300), 10)
    return found


def run() -> Path:
    """Measure; medians."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        times = ledger_times(Path(folder))
    times |= accountant_times() | noise_times()
    median = {name: float(np.median(t)) for name, t in times.items()}
    targets = {
        "reserve + commit after 500 releases": 20.0,
        "500 releases by the gate's accountant, cold": 1000.0,
        "secure noise, 5000×8": 10.0,
    }
    rows = []
    for name, taken in times.items():
        se = float(np.std(taken, ddof=1) / np.sqrt(len(taken))) if len(taken) > 1 else None
        target = targets.get(name)
        holds = None if target is None else median[name] <= target
        rows.append(Row(f"{name} (ms)", median[name], se, len(taken), target, holds=holds))
    pairs = [
        ("reserve + commit, times SQLite alone", *list(median)[:2]),
        (
            "accountant, times faster than dp-accounting's RDP",
            "500 releases by dp-accounting's RDP, same order",
            "500 releases by the gate's accountant, cold",
        ),
        (
            "secure noise, times four torch.randn",
            "secure noise, 5000×8",
            "four torch.randn summed, 5000×8",
        ),
        ("discrete Gaussian, times OpenDP", "300 exact discrete Gaussians", "300 by OpenDP"),
    ]
    rows += [
        Row(what, median[above] / median[below], None, len(times[above]))
        for what, above, below in pairs
        if below in median
    ]
    return write("privacy", rows, __doc__ or "")
