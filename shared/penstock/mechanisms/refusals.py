"""What keeps a plan from being carried out, from public numbers alone.

One rule for all who ask: a gate refuses by it before anything is charged, and `ledger what-if`
says by it what the gate would say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from penstock.base.errors import Hopeless, Problem
from penstock.mechanisms.memory import Memory
from penstock.mechanisms.protocol import AnyMechanism, Asked, Plan, Settings
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Schema


def refusals(
    mechanism: AnyMechanism,
    asked: Asked[Settings],
    planned: Plan,
    *,
    dictionary: Schema,
    memory_gb: float,
    threads: int,
    persons: int | None = None,
) -> Iterator[tuple[Literal["hopeless", "memory"], str]]:
    """Every reason, as the code of a refusal (:data:`penstock.wire.messages.CODES`) and details.

    Args:
        planned: what the mechanism made of what is asked.
        dictionary: the site's; memory_gb, threads: what it lets a run have.
        persons: the site's public n, where the plan is of more than its own rows: of a release of
            many sites its run lays out its own alone.
    """
    try:
        mechanism.require_worth(asked, planned)
    except Hopeless as error:
        yield "hopeless", str(error)
    # What cannot fit would burn its charge.
    needed = find_memory(mechanism, asked, planned, dictionary, threads, persons)
    if not within(needed, memory_gb):
        yield "memory", shortage(needed, persons or planned.persons, memory_gb)


def find_memory(
    mechanism: AnyMechanism,
    asked: Asked[Settings],
    planned: Plan,
    dictionary: Schema | None = None,
    threads: int = 1,
    persons: int | None = None,
) -> Memory:
    """What a site's run takes at most; the same arguments as :func:`refusals`."""
    held = planned if persons in (None, planned.persons) else replace(planned, persons=persons)
    return mechanism.memory(held, asked.schema, dictionary, threads)


def list_informal(privacy: PrivacyRequest) -> list[Problem]:
    """What is wrong with a guarantee that is not formal, where no other is on offer."""
    if privacy.guarantee == "formal":
        return []
    asked = privacy.guarantee
    return [Problem("privacy.guarantee", "is not on offer here", value=asked, bound="formal")]


def within(needed: Memory, memory_gb: float) -> bool:
    """Whether a site lets a run have as much."""
    return needed.gigabytes <= memory_gb


def shortage(needed: Memory, persons: int, memory_gb: float) -> str:
    """What is said of a run that needs more."""
    return f"up to {needed.gigabytes:.2g} GB for {persons} persons, of {memory_gb:g} GB"
