"""What a study costs each site, and what comes back: in words, before it is submitted."""

from __future__ import annotations

from penstock.mechanisms.joint.consortium import SITE
from penstock.mechanisms.joint.plan import JointPlan
from penstock.mechanisms.joint.promise import describe_noise, describe_rounds, list_promises
from penstock.mechanisms.registry import MECHANISMS, Registry
from penstock.study.halves import walk_halves
from penstock.study.study import Study


def describe_cost(study: Study, mechanisms: Registry = MECHANISMS) -> str:
    """What each site spends, per person."""
    asked = study.privacy
    if asked.guarantee == "empirical":
        return "costs each site ε = ∞: no formal guarantee"
    group = study.consortium
    guarantee = asked.guarantee if group is None else group.guarantee
    spent = f"costs each site ε = {asked.epsilon:g} at δ = {asked.delta:g} per person"
    again = (
        "the next question costs again"
        if mechanisms.of(study.mechanism).answers
        else ("questions of what comes back cost nothing more")
    )
    return f"{spent} ({guarantee}); {again}"


def describe_halves(study: Study) -> list[str]:
    """Of a study of both, what either half has of the budget; nothing of another."""
    return [
        f"{words}: ε = {half.privacy.epsilon:g} of it; both are charged at once, or neither"
        for words, half in walk_halves(study)
    ]


def describe_together(plan: JointPlan) -> list[str]:
    """How one release of all sites comes about, what it promises against whom, and its noise."""
    return [describe_rounds(plan), *list_promises(plan), describe_noise(plan)]


def describe_returned(
    study: Study, mechanisms: Registry = MECHANISMS, together: JointPlan | None = None
) -> list[str]:
    """What each site releases, or all of them ``together``, and what ``penstock pull`` writes."""
    used = mechanisms.of(study.mechanism)
    if together is None:
        return used.returned(study.asked)
    said = [*used.returned(together.asked), "comes of all sites as of one"]
    if SITE in together.asked.schema.names:
        said[-1] += ", with the site as a column and regressions within sites"
    return said
