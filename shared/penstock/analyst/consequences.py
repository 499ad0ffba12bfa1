"""What a study costs each site, and what comes back: in words, before it is submitted."""

from __future__ import annotations

from penstock.mechanisms.registry import MECHANISMS, Registry
from penstock.study.study import Study


def describe_cost(study: Study, mechanisms: Registry = MECHANISMS) -> str:
    """What each site spends, per person."""
    asked = study.privacy
    if asked.guarantee == "empirical":
        return "costs each site ε = ∞: no formal guarantee"
    spent = f"costs each site ε = {asked.epsilon:g} at δ = {asked.delta:g} per person"
    again = (
        "the next question costs again"
        if mechanisms.of(study.mechanism).answers
        else ("questions of what comes back cost nothing more")
    )
    return f"{spent} ({asked.guarantee}); {again}"


def describe_returned(study: Study, mechanisms: Registry = MECHANISMS) -> list[str]:
    """What each site releases, and what ``penstock pull`` writes."""
    return mechanisms.of(study.mechanism).returned(study.asked)
