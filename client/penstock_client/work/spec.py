"""What the gate and its worker hand each other.

Public facts are files in the job's own directory. Rows are not: they come as a descriptor of
sealed memory, over a channel that the worker inherits, and only once they have been charged.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.base.documents import Json

SPEC = "spec.json"
TABLE = "table.arrow"
VECTOR = "vector.bin"
OUTCOME = "outcome.json"
REHEARSED = "rehearsed.arrow"
MEASURED = "measured.json"

READY = "ready"
"""What a worker says when it waits for rows."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What the gate asks of a worker; all of it is public.

    ``events`` are what was charged: the worker runs nothing else. ``public`` is the descriptor of
    the public table, where the guarantee asks for one; the worker inherits it. ``sums`` are those
    of the rounds before, of a round of a release of many sites; ``site`` is this one of them.
    """

    study: Json
    dictionary: Json
    events: list[Json]
    public: int | None
    persons: int
    device: str
    threads: int
    memory_gb: float
    insecure_seed: int | None
    site: str = ""
    sums: list[list[int]] | None = None
