"""Ledgers as Penstock wrote them, before records had a format: frozen, and never made anew.

Made once with the source of commit 9275b2e, in an empty folder:

    git checkout 9275b2e
    PYTHONPATH=shared:client python make.py OUT

- ``main.db``: a life of one data set, with every kind of record but ``recover``, two versions of
  different sizes, a chain whose noise has no raw σ, one open reservation, and the job of each.
- ``renamed.db``: two data sets of the same rows, each within its own ε = 3; together above it.
- ``recovered.db``: records were lost, all that was left was charged, and new data came.

``gate.pem`` is the key of all three; it guards nothing.
"""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

from penstock.privacy.events import (
    DiscreteGaussian,
    Event,
    Gaussian,
    NoisyDescent,
    OnStratum,
    PoissonGaussian,
)
from penstock.wire.messages import JobState
from penstock.wire.signatures import generate_key, private_to_pem
from penstock_client.gate.jobs import Job, Jobs
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database
from penstock_client.ledger.state import Charge

DELTA = 1e-5


def main(out: Path) -> None:
    key = generate_key()
    out.mkdir(parents=True, exist_ok=True)
    (out / "gate.pem").write_bytes(private_to_pem(key))

    def begin(name: str) -> Ledger:
        ticks = count()

        def clock() -> str:
            return f"2026-03-01T00:00:{next(ticks):02d}.123456Z"

        ledger = Ledger(Database.create(out / name), key, clock)
        ledger.open_for("here")
        return ledger

    def reserve(ledger: Ledger, name: str, *events: Event, lineage: str = "main") -> None:
        version = len(ledger.state().lineages[lineage].versions)
        charge = Charge(
            name, lineage, version, f"id of {name}", "ann", "maf", events, DELTA, study="trial"
        )
        ledger.reserve(charge, signer_epsilon=10.0)

    ledger = begin("main.db")
    ledger.add_lineage("main", 6.0, DELTA, approximate_delta=1e-6, strata=("north", "south"))
    ledger.add_version("main", 200, "f1")
    reserve(ledger, "kept", Gaussian(9.0, 2, "margins", 0.5), PoissonGaussian(0.02, 1.5, 40))
    ledger.commit("kept")
    reserve(ledger, "burnt", NoisyDescent(30.0, 0.95, 200, label="chain"))
    ledger.burn("burnt", "failed")
    ledger.add_version("main", 212, "f2")
    north = OnStratum("north", DiscreteGaussian(11.0, 3, "counts", 2.0, 40.0, 7))
    reserve(ledger, "open", north)
    jobs = Jobs(ledger.database)
    ends = {"kept": JobState.DELIVERED, "burnt": JobState.FAILED, "open": JobState.RUNNING}
    for name, state in ends.items():
        at = "2026-03-01T00:00:09.000000Z"
        jobs.add(Job(name, f"id of {name}", b"{}", "main", 1, state, "", at, at))

    ledger = begin("renamed.db")
    for lineage in ("main", "renamed"):
        ledger.add_lineage(lineage, 3.0, DELTA)
        ledger.add_version(lineage, 200, "f1")
    for lineage in ("main", "renamed"):
        reserve(ledger, f"of {lineage}", Gaussian(2.0), lineage=lineage)
        ledger.commit(f"of {lineage}")

    ledger = begin("recovered.db")
    ledger.add_lineage("main", 3.0, DELTA)
    ledger.add_version("main", 200, "f1")
    reserve(ledger, "kept", Gaussian(4.0))
    ledger.commit("kept")
    ledger.append("recover", seen_seq=9, seen_head="ab" * 32, lineages=["main"])
    ledger.add_lineage("new", 3.0, DELTA, new_data=True)
    ledger.add_version("new", 150, "g1")
    reserve(ledger, "of new", Gaussian(4.0), lineage="new")
    ledger.commit("of new")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
