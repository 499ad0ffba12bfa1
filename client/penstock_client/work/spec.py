"""What the gate and its worker hand each other: files in the job's own directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SPEC = "spec.json"
TABLE = "table.arrow"
OUTCOME = "outcome.json"


@dataclass(frozen=True, slots=True)
class Spec:
    """What the gate asks of a worker; everything but ``snapshot``'s content is public.

    ``events`` are what was charged: the worker runs nothing else.
    """

    study: dict[str, Any]
    dictionary: dict[str, Any]
    events: list[dict[str, Any]]
    snapshot: str
    public_snapshot: str | None
    persons: int
    device: str
    threads: int
    memory_gb: float
    insecure_seed: int | None
