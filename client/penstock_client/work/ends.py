"""How a worker ended, in words for the site's steward alone.

What a worker's end says depends on rows, so none of it leaves the site: outside a burnt run is
``failed``. Of an error there is the type and a place in our source, never its text, which may quote
a row; and whether memory had run out, since that is what a steward can mend.
"""

from __future__ import annotations

import signal
import traceback
from pathlib import Path

from penstock.base.documents import Json, JsonView

MEMORY = "memory"
"""Key of an outcome: whether it was memory that was short."""

_SAID = ("can't allocate memory", "out of memory", "Cannot allocate memory", "not enough memory")
"""What libraries say that have no error of their own for it: torch, on a CPU and elsewhere."""


def describe_failure(error: BaseException) -> Json:
    """An error's type and its place in our source, without its text, which may quote a row."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    return {"error": type(error).__name__, "where": where, MEMORY: is_memory(error)}


def is_memory(error: BaseException) -> bool:
    """Whether an error, or one that led to it, is that memory ran out."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, RuntimeError | OSError) and any(said in str(error) for said in _SAID):
        return True
    before = error.__cause__ or error.__context__
    return before is not None and is_memory(before)


def explain_end(
    outcome: JsonView | None, status: int | None, memory_gb: float, killed: bool
) -> str:
    """What the steward reads of a worker that left no table.

    Args:
        outcome: what it confessed, if it could.
        status: how its process ended, by :mod:`subprocess`; None while it runs.
        killed: whether the gate itself ended it.
    """
    limit = f"(limit {memory_gb:g} GB)"
    if outcome is not None:
        at = f"{outcome.get('error')} at {outcome.get('where')}"
        return f"ran out of memory {limit}: {at}" if outcome.get(MEMORY) else at
    if killed:
        return "ended by the gate"
    if status == -signal.SIGKILL:
        return f"killed by the system, as it does when the machine's memory is full {limit}"
    if status == -signal.SIGABRT:
        return f"aborted, as libraries do when memory runs out {limit}"
    return f"exit status {status}"
