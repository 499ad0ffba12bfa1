"""What could still be asked of a data set, and what it would buy. Nothing is charged.

Pure functions of the folded ledger, the policy and what might be asked: the same filters and
allowances answer here that answer a real study, with the same rules of the policy
(:mod:`penstock_client.ledger.reservation`, :class:`~penstock_client.site.policy.Policy`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.base.checks import shown
from penstock.base.documents import Json
from penstock.base.errors import BudgetExceeded, InvalidInput, PrivacyError, Problem
from penstock.mechanisms.joint.plan import find_alone
from penstock.privacy.accounting.accountant import epsilon
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
from penstock.wire.messages import RefusalCode
from penstock_client.ledger.allowances import find_allowances
from penstock_client.ledger.budget import hide_infinity
from penstock_client.ledger.prospects import PLAIN_NUMBER, Events, Prospect
from penstock_client.ledger.state import Charge, Lineage, State
from penstock_client.site.policy import Policy

MOST_RELEASES = 100_000
"""Counting stops here: who asks for more has no budget to speak of."""
_HALVINGS = 10


@dataclass(frozen=True, slots=True)
class Limit:
    """One filter that a charge must pass.

    Attributes:
        reason: the code of a refusal.
        what: what it is called.
        filter, spent: what it holds, and what counts towards it.
    """

    reason: RefusalCode
    what: str
    filter: Filter
    spent: Events


def answer_prospect(
    prospect: Prospect, state: State, policy: Policy, lineage: str, *, now: str, releases: int = 1
) -> Json:
    """Whether it would be admitted, by which limits, what is left after, and what it buys.

    Args:
        lineage: the data set's name.
        now: the ledger's time, RFC 3339 in UTC.
        releases: how many such releases are wanted.

    Returns:
        A JSON document; ε of ∞ is None. ``limits`` are the lifetime first, then what the steward
        allows; each with ``more``, how many such releases it still holds (None above 100,000).
        ``largest_epsilon`` is the largest, to a thousandth, that would be admitted; None for ∞.
        Of one release of many sites also ``alone_epsilon``, if all others collude, and
        ``alone_allowed``.

    Raises:
        InvalidInput: no such data set, or none certified; a number of releases below 1.
        BudgetExceeded: the mechanism cannot be had for this ε at all; says what could.
    """
    found = find_lineage(state, lineage)
    others = [state.joint(x.name) for x in state.together(lineage) if x.name != lineage]
    if not 1 <= releases <= MOST_RELEASES:
        problem = Problem("", "out of range", value=str(releases), bound=f"1 to {MOST_RELEASES:,}")
        raise InvalidInput("--releases", [problem])
    priced = prospect.price(prospect.epsilon)
    events = priced.events
    unbounded = any(is_unbounded(e) for e in events)
    refused = [*_find_refusals(prospect, policy, found), *priced.refusals()]
    alone = find_alone(events, prospect.delta)
    refused += [
        (rule.code, f"the policy allows {rule.allowed}")
        for rule in policy.find_alone_breaches(alone)
    ]
    open_ = not (found.closed or found.exhausted)
    limits = _find_limits(prospect, found, others, policy, now) if open_ else []
    rows = []
    for limit in limits:
        rows.append(_describe_limit(limit, events))
        if not unbounded and not limit.filter.admits(limit.spent, events):
            refused.append((limit.reason, _explain_refusal(limit, events)))
    most = 0 if refused else min((r["more"] for r in rows), default=0)
    persons = found.versions[-1].persons
    largest, binding = (None, "") if unbounded else _find_largest(prospect, limits, policy, found)
    spent_now = None if found.closed else found.filter.spent(found.events())
    return {
        "lineage": found.name,
        "persons": persons,
        "mechanism": prospect.mechanism,
        "guarantee": prospect.guarantee,
        "asked_epsilon": None if unbounded else prospect.epsilon,
        "delta": prospect.delta,
        "signer": prospect.signer.label if prospect.signer else None,
        "epsilon": None if unbounded else epsilon(events, prospect.delta),
        **({"alone_epsilon": alone, "alone_allowed": policy.largest_alone} if alone else {}),
        "admitted": not refused,
        "refusals": [{"reason": reason, "why": why} for reason, why in refused],
        "spent_before": found.epsilon if found.exhausted else spent_now,
        "spent_after": None if unbounded or not rows else rows[0]["after_epsilon"],
        "ends_formal_budget": unbounded and not refused,
        "limits": [{**r, "more": _cap_count(r["more"])} for r in rows],
        "releases": releases,
        "releases_fit": not refused and (unbounded or releases <= most),
        "releases_left": None if unbounded else _cap_count(most),
        "largest_epsilon": largest,
        "largest_limit": binding,
        "events": [to_dict(e) for e in events],
        "buys": None if unbounded else _price_count(prospect, persons),
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


def _find_refusals(
    prospect: Prospect, policy: Policy, lineage: Lineage
) -> list[tuple[RefusalCode, str]]:
    """What refuses a study before any filter is asked, by the rules of an admission."""
    found: list[tuple[RefusalCode, str]] = []
    if lineage.exhausted:
        found.append(("closed", "records were lost, and all that was left is charged for them"))
    elif lineage.closed:
        found.append(("closed", "the formal budget has ended (ε = ∞ was spent)"))
    elif lineage.over:
        found.append(("closed", "with data sets it was never declared disjoint from, ε is spent"))
    mechanism = None if prospect.mechanism == PLAIN_NUMBER else prospect.mechanism
    kind = policy.find_kind_breaches(mechanism, prospect.guarantee)
    found += [(rule.code, f"the policy allows {rule.allowed}") for rule in kind]
    persons = lineage.versions[-1].persons
    asked = (prospect.epsilon, prospect.delta)
    budget = policy.find_budget_breaches(*asked, prospect.guarantee, persons)
    for rule in budget:
        allowed = f"δ {rule.allowed}" if rule.code == "delta" else rule.allowed
        found.append((rule.code, f"a study may ask for {allowed}"))
    return found


def _find_limits(
    prospect: Prospect, lineage: Lineage, others: Sequence[Lineage], policy: Policy, now: str
) -> list[Limit]:
    """The lifetime, that of others with the same persons, then what the steward allows."""
    signer = prospect.signer
    charge = Charge(
        id="",
        lineage=lineage.name,
        version=len(lineage.versions),
        study_id="",
        signer=signer.key if signer else "",
        mechanism=prospect.mechanism,
        events=(),
        delta=prospect.delta,
        study=prospect.study,
    )
    lives = [
        Limit("budget", what, each.filter, each.events())
        for what, each in (
            ("the data set, for life", lineage),
            *((f"data set {x.name}, not disjoint, for life", x) for x in others),
        )
    ]
    own = signer.epsilon if signer else lineage.epsilon
    allowed = find_allowances(lineage, charge, now=now, signer_epsilon=own, policy=policy)
    return [
        *lives,
        *(
            Limit(a.reason, a.what, a.filter, a.spent)
            for a in allowed
            if signer is not None or a.reason != "signer-budget"
        ),
    ]


def _describe_limit(limit: Limit, events: Events) -> Json:
    """A limit before and after; ``more``: how many such releases it holds from now on."""
    held, unbounded = limit.filter, any(is_unbounded(e) for e in events)
    return {
        "reason": limit.reason,
        "limit": limit.what,
        "epsilon": held.epsilon,
        "delta": held.delta,
        "spent_epsilon": held.spent(limit.spent),
        "after_epsilon": None if unbounded else hide_infinity(held.spent((*limit.spent, *events))),
        "left_epsilon": held.left(limit.spent),
        "more": MOST_RELEASES if unbounded else _count_releases(limit, events),
    }


def _explain_refusal(limit: Limit, events: Events) -> str:
    try:
        limit.filter.check(limit.spent, events, what=limit.what)
    except PrivacyError as error:
        return str(error)
    return ""


def _count_releases(limit: Limit, events: Events) -> int:
    """The most such releases that a filter still admits, at most :data:`MOST_RELEASES`."""
    most = min(MOST_RELEASES, MAX_COUNT // max(_count_event(e) for e in events))

    def fits(number: int) -> bool:
        return limit.filter.admits(limit.spent, [_repeat_event(e, number) for e in events])

    low, high = 0, 1
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _count_event(event: Event) -> int:
    return 1 if isinstance(event, Unbounded) else event.count


def _repeat_event(event: Event, number: int) -> Event:
    """An event ``number`` times over."""
    if isinstance(event, OnStratum):
        return replace(event, event=_repeat_event(event.event, number))  # type: ignore[arg-type]
    return event if isinstance(event, Unbounded) else replace(event, count=event.count * number)


def _find_largest(
    prospect: Prospect, limits: Sequence[Limit], policy: Policy, lineage: Lineage
) -> tuple[float, str]:
    """The largest ε of this kind that every limit admits, rounded down, and what holds it there.

    0 where no ε is admitted.
    """
    top = min(policy.study_epsilon, lineage.epsilon)
    asked, persons = (prospect.delta, prospect.guarantee), lineage.versions[-1].persons
    if not limits or any(policy.find_budget_breaches(top, *asked, persons)):
        return 0.0, ""

    def trial(at: float) -> int:
        """-1: too little for the policy, the mechanism, or an answer; 0: it fits; 1: too much."""
        if at < policy.smallest_epsilon:
            return -1
        try:
            priced = prospect.price(at)
        except BudgetExceeded:
            return -1
        events = priced.events
        refusing = [x.what for x in limits if not x.filter.admits(x.spent, events)]
        if any(policy.find_alone_breaches(find_alone(events, prospect.delta))):
            refusing.append("what the policy allows if all other sites collude")
        binding[:] = refusing or binding
        if refusing:
            return 1
        return -1 if priced.refusals() else 0

    binding: list[str] = []
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


def _price_count(prospect: Prospect, persons: int) -> dict[str, float]:
    """What an ε buys in plain numbers: the noise if all of it went into one count."""
    once = smallest_scale(lambda s: (Gaussian(s),), prospect.epsilon, prospect.delta)
    return {"count_sd": once, "share_sd": once / persons}


def _cap_count(number: int) -> int | None:
    return None if number >= MOST_RELEASES else number
