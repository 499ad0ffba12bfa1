"""What could still be asked of a data set, and what it would buy. Nothing is charged.

Pure functions of the folded ledger, the policy and what might be asked: the same filters and
allowances answer here that answer a real study (:func:`penstock_client.ledger.ledger.admit`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.base.checks import shown
from penstock.base.errors import BudgetExceeded, InvalidInput, PrivacyError, Problem
from penstock.mechanisms.protocol import Asked, Settings
from penstock.mechanisms.refusals import refusals
from penstock.mechanisms.registry import MECHANISMS
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.accounting.renyi import check_budget
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import (
    Event,
    Gaussian,
    OnStratum,
    Unbounded,
    is_unbounded,
    to_dict,
)
from penstock.privacy.filters import Filter
from penstock.privacy.numbers import MAX_COUNT
from penstock.schema import Schema
from penstock.study.study import Study
from penstock_client.ledger.allowances import allowances
from penstock_client.ledger.state import Charge, Lineage, State
from penstock_client.site.policy import Policy, Signer, Trust

MOST_RELEASES = 100_000
"""Counting stops here: who asks for more has no budget to speak of."""

_HALVINGS = 10

Events = tuple[Event, ...]


def _nothing() -> list[tuple[str, str]]:
    return []


@dataclass(frozen=True, slots=True)
class Priced:
    """What an ε would buy.

    Attributes:
        events: what would be charged for it.
        refusals: asked when they are wanted, why it would be refused before any charge is looked
            at, as an admission says it: codes and details.
    """

    events: Events
    refusals: Callable[[], list[tuple[str, str]]] = _nothing


@dataclass(frozen=True, slots=True)
class Machine:
    """What a site's runs have: its dictionary, and the limits that it sets them."""

    dictionary: Schema
    memory_gb: float
    threads: int


@dataclass(frozen=True, slots=True)
class Question:
    """What might be asked.

    Attributes:
        epsilon, delta: asked, zero-out with public n.
        price: from an ε to what would be charged for it, and what speaks against it.
        mechanism, guarantee: as in a study.
        study: its name, for the allowance that a study has over all its releases; or empty.
        signer: who would sign it; without one no signer's allowance is looked at.
    """

    epsilon: float
    delta: float
    price: Callable[[float], Priced]
    mechanism: str
    guarantee: str = "formal"
    study: str = ""
    signer: Signer | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """One filter that a charge must pass.

    Attributes:
        reason: the code of a refusal.
        what: what it is called.
        filter, spent: what it holds, and what counts towards it.
    """

    reason: str
    what: str
    filter: Filter
    spent: Events


def one_number(epsilon: float, delta: float, signer: Signer | None = None) -> Question:
    """A single number with Gaussian noise, such as a count: the plainest release there is.

    Raises:
        InvalidEvent: not a budget.
    """
    check_budget(epsilon, delta)

    def price(at: float) -> Priced:
        scale = smallest_scale(lambda s: (Gaussian(s),), at, delta)
        return Priced((Gaussian(scale, label="one number"),))

    return Question(epsilon, delta, price, "gaussian", signer=signer)


def synthetic(
    asked: Asked[Settings],
    persons: int,
    machine: Machine,
    *,
    study: str = "",
    signer: Signer | None = None,
) -> Question:
    """A release by one of Penstock's mechanisms, priced as an admission prices it."""
    mechanism, privacy = MECHANISMS.of(asked.settings), asked.privacy

    def price(at: float) -> Priced:
        changed = replace(asked, privacy=replace(asked.privacy, epsilon=at))
        planned = mechanism.plan(changed, persons)

        def refused() -> list[tuple[str, str]]:
            found = refusals(
                mechanism,
                changed,
                planned,
                dictionary=machine.dictionary,
                memory_gb=machine.memory_gb,
                threads=machine.threads,
            )
            return list(found)

        return Priced(planned.events, refused)

    return Question(
        privacy.epsilon,
        privacy.delta,
        price,
        mechanism.name,
        privacy.guarantee,
        study,
        signer,
    )


def of_study(
    study: Study, persons: int, machine: Machine, signer: Signer | None = None
) -> Question:
    """What a study would ask of a site with so many persons."""
    return synthetic(
        study.asked,
        persons,
        machine,
        study=study.name,
        signer=signer,
    )


def find_signer(trust: Trust, text: str) -> Signer:
    """The pinned signer whose label, fingerprint or key is ``text``.

    Raises:
        InvalidInput: nobody, or two with one label.
    """
    found = [s for s in trust.signers.values() if text in (s.label, s.fingerprint, s.key)]
    if len(found) != 1:
        known = ", ".join(s.label for s in trust.signers.values()) or "none"
        message = "not trusted" if not found else "a label of several: give the fingerprint"
        problem = Problem("", message, value=shown(text), bound=f"known: {known}")
        raise InvalidInput("--signer", [problem])
    return found[0]


def answer(
    question: Question, state: State, policy: Policy, lineage: str, *, now: str, releases: int = 1
) -> dict[str, Any]:
    """Whether it would be admitted, by which limits, what is left after, and what it buys.

    Args:
        lineage: the data set's name.
        now: the ledger's time, RFC 3339 in UTC.
        releases: how many such releases are wanted.

    Returns:
        A JSON document; ε of ∞ is None. ``limits`` are the lifetime first, then what the steward
        allows; each with ``more``, how many such releases it still holds (None above 100,000).
        ``largest_epsilon`` is the largest, to a thousandth, that would be admitted; None for ∞.

    Raises:
        InvalidInput: no such data set, or none certified; a number of releases below 1.
        BudgetExceeded: the mechanism cannot be had for this ε at all; says what could.
    """
    found = find_lineage(state, lineage)
    others = [state.joint(x.name) for x in state.together(lineage) if x.name != lineage]
    if not 1 <= releases <= MOST_RELEASES:
        problem = Problem("", "out of range", value=str(releases), bound=f"1 to {MOST_RELEASES:,}")
        raise InvalidInput("--releases", [problem])
    priced = question.price(question.epsilon)
    events = priced.events
    unbounded = any(is_unbounded(e) for e in events)
    refused = [*_refusals(question, policy, found), *priced.refusals()]
    open_ = not (found.closed or found.exhausted)
    limits = _limits(question, found, others, policy, now) if open_ else []
    rows = []
    for limit in limits:
        rows.append(_row(limit, events))
        if not unbounded and not limit.filter.admits(limit.spent, events):
            refused.append((limit.reason, _why(limit, events)))
    most = 0 if refused else min((r["more"] for r in rows), default=0)
    persons = found.versions[-1].persons
    largest, binding = (None, "") if unbounded else _largest(question, limits, policy, found)
    spent_now = None if found.closed else found.filter.spent(found.events())
    return {
        "lineage": found.name,
        "persons": persons,
        "mechanism": question.mechanism,
        "guarantee": question.guarantee,
        "asked_epsilon": None if unbounded else question.epsilon,
        "delta": question.delta,
        "signer": question.signer.label if question.signer else None,
        "epsilon": None if unbounded else epsilon(events, question.delta),
        "admitted": not refused,
        "refusals": [{"reason": reason, "why": why} for reason, why in refused],
        "spent_before": found.epsilon if found.exhausted else spent_now,
        "spent_after": None if unbounded or not rows else rows[0]["after_epsilon"],
        "ends_formal_budget": unbounded and not refused,
        "limits": [{**r, "more": _counted(r["more"])} for r in rows],
        "releases": releases,
        "releases_fit": not refused and (unbounded or releases <= most),
        "releases_left": None if unbounded else _counted(most),
        "largest_epsilon": largest,
        "largest_limit": binding,
        "events": [to_dict(e) for e in events],
        "buys": None if unbounded else _buys(question, persons),
    }


def find_lineage(state: State, name: str) -> Lineage:
    """A certified data set, with all that its persons may have paid.

    Raises:
        InvalidInput: there is none of that name yet.
    """
    lineage = state.lineages.get(name)
    if lineage is None or not lineage.versions:
        remedy = "Run `penstock site check`"
        raise InvalidInput("ledger", [Problem("", f"no data set {shown(name)} yet", remedy=remedy)])
    return state.joint(name)


def _refusals(question: Question, policy: Policy, lineage: Lineage) -> list[tuple[str, str]]:
    """What refuses a study before any filter is asked."""
    found = []
    if lineage.exhausted:
        found.append(("closed", "records were lost, and all that was left is charged for them"))
    elif lineage.closed:
        found.append(("closed", "the formal budget has ended (ε = ∞ was spent)"))
    elif lineage.over:
        found.append(("closed", "with data sets it was never declared disjoint from, ε is spent"))
    if question.mechanism != "gaussian" and question.mechanism not in policy.mechanisms:
        found.append(("mechanism", f"the policy allows {', '.join(policy.mechanisms)}"))
    if question.guarantee not in policy.guarantees:
        found.append(("guarantee", f"the policy allows {', '.join(policy.guarantees)}"))
    if question.delta > policy.study_delta:
        found.append(("study-budget", f"a study may ask for δ at most {policy.study_delta:g}"))
    if question.guarantee != "empirical" and question.epsilon > policy.study_epsilon:
        found.append(("study-budget", f"a study may ask for ε at most {policy.study_epsilon:g}"))
    return found


def _limits(
    question: Question, lineage: Lineage, others: Sequence[Lineage], policy: Policy, now: str
) -> list[Limit]:
    """The lifetime, that of others with the same persons, then what the steward allows."""
    signer = question.signer
    charge = Charge(
        id="",
        lineage=lineage.name,
        version=len(lineage.versions),
        study_id="",
        signer=signer.key if signer else "",
        mechanism=question.mechanism,
        events=(),
        delta=question.delta,
        study=question.study,
    )
    lives = [
        Limit("budget", what, each.filter, each.events())
        for what, each in (
            ("the data set, for life", lineage),
            *((f"data set {x.name}, not disjoint, for life", x) for x in others),
        )
    ]
    own = signer.epsilon if signer else lineage.epsilon
    allowed = allowances(lineage, charge, now=now, signer_epsilon=own, policy=policy)
    return [
        *lives,
        *(
            Limit(a.reason, a.what, a.filter, a.spent)
            for a in allowed
            if signer is not None or a.reason != "signer-budget"
        ),
    ]


def _row(limit: Limit, events: Events) -> dict[str, Any]:
    """A limit before and after; ``more``: how many such releases it holds from now on."""
    held, unbounded = limit.filter, any(is_unbounded(e) for e in events)
    return {
        "reason": limit.reason,
        "limit": limit.what,
        "epsilon": held.epsilon,
        "delta": held.delta,
        "spent_epsilon": held.spent(limit.spent),
        "after_epsilon": None if unbounded else _finite(held.spent((*limit.spent, *events))),
        "left_epsilon": held.left(limit.spent),
        "more": MOST_RELEASES if unbounded else _how_many(limit, events),
    }


def _why(limit: Limit, events: Events) -> str:
    try:
        limit.filter.check(limit.spent, events, what=limit.what)
    except PrivacyError as error:
        return str(error)
    return ""


def _how_many(limit: Limit, events: Events) -> int:
    """The most such releases that a filter still admits, at most :data:`MOST_RELEASES`."""
    most = min(MOST_RELEASES, MAX_COUNT // max(_count(e) for e in events))

    def fits(number: int) -> bool:
        return limit.filter.admits(limit.spent, [_often(e, number) for e in events])

    low, high = 0, 1
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _count(event: Event) -> int:
    return 1 if isinstance(event, Unbounded) else event.count


def _often(event: Event, number: int) -> Event:
    """An event ``number`` times over."""
    if isinstance(event, OnStratum):
        return replace(event, event=_often(event.event, number))  # type: ignore[arg-type]
    return event if isinstance(event, Unbounded) else replace(event, count=event.count * number)


def _largest(
    question: Question, limits: Sequence[Limit], policy: Policy, lineage: Lineage
) -> tuple[float, str]:
    """The largest ε of this kind that every limit admits, rounded down, and what holds it there.

    0 where no ε is admitted.
    """
    if not limits or question.delta > policy.study_delta:
        return 0.0, ""

    def trial(at: float) -> int:
        """-1: too little for the mechanism, or for an answer; 0: it fits; 1: too much."""
        try:
            priced = question.price(at)
        except BudgetExceeded:
            return -1
        events = priced.events
        refusing = [x.what for x in limits if not x.filter.admits(x.spent, events)]
        binding[:] = refusing or binding
        if refusing:
            return 1
        return -1 if priced.refusals() else 0

    binding: list[str] = []

    top = min(policy.study_epsilon, lineage.epsilon)
    if trial(top) == 0:
        return top, "what the policy allows one study"
    low, high, best = 0.0, top, 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        side = trial(middle)
        if side == 1:
            high = middle
        else:
            low = middle
            best = middle if side == 0 else best
    return best, " and ".join(binding)


def _buys(question: Question, persons: int) -> dict[str, float]:
    """What an ε buys in plain numbers: the noise if all of it went into one count."""
    once = smallest_scale(lambda s: (Gaussian(s),), question.epsilon, question.delta)
    return {"count_sd": once, "share_sd": once / persons}


def _counted(number: int) -> int | None:
    return None if number >= MOST_RELEASES else number


def _finite(value: float) -> float | None:
    return value if value < math.inf else None
