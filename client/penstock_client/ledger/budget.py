"""What of a data set's budget is spent, and what is left: views of the folded ledger.

Nothing here decides. What gates is the lineage's own filter
(:attr:`penstock_client.ledger.state.Lineage.filter`) and, within it, the
:mod:`~penstock_client.ledger.allowances`; every ε is at the lineage's δ unless it says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial

from penstock.base.documents import Json
from penstock.base.errors import InvalidEvent
from penstock.mechanisms.joint.plan import find_alone
from penstock.privacy.accounting.accountant import epsilon, epsilon_pld
from penstock.privacy.accounting.renyi import renyi, to_epsilon
from penstock.privacy.events import Event, OnStratum, to_dict
from penstock.privacy.filters import Odometer
from penstock_client.ledger.allowances import (
    Allowance,
    AllowanceExceeded,
    identify_study,
    limit_signer,
    limit_study,
    limit_year,
    read_year,
)
from penstock_client.ledger.state import Lineage, State
from penstock_client.site.policy import Policy
from penstock_client.site.signers import Trust


def measure_spent(lineage: Lineage) -> float | None:
    """The ε, by the filter, that is charged to a lineage; None for ∞."""
    if lineage.closed:
        return None
    return lineage.epsilon if lineage.exhausted else lineage.filter.spent(lineage.events())


def measure_share(lineage: Lineage) -> float:
    """How much of a lineage's life is used, in [0, 1]: in Rényi divergence, which adds up."""
    if lineage.closed or lineage.exhausted:
        return 1.0
    return min(lineage.filter.share(lineage.events()), 1.0)


def measure_left(lineage: Lineage) -> float:
    """The ε at the lineage's δ of the largest single release that it still admits."""
    if lineage.closed or lineage.exhausted:
        return 0.0
    return lineage.filter.left(lineage.events())


def summarize_budget(
    state: State, policy: Policy | None = None, trust: Trust | None = None
) -> list[Json]:
    """What a steward wants to see of each lineage: spent, left, allowances, and every charge.

    ε of ∞ is None, which JSON has a word for. Where records were lost, what they may have cost is
    in a lineage's spent ε and in nothing below it: nobody knows whose they were.

    Args:
        policy, trust: as they stand now, for the allowances; without them only what is spent.
    """
    return [_summarize_lineage(name, state, policy, trust) for name in state.lineages]


def _summarize_lineage(name: str, state: State, policy: Policy | None, trust: Trust | None) -> Json:
    group = state.together(name)
    lineage = state.joint(name)
    charges, room = (
        list(_list_charges(lineage)),
        min(measure_left(state.joint(each.name)) for each in group),
    )
    reading = charges[-1]["odometer_after"] if charges else 0.0
    return {
        "lineage": lineage.name,
        "order": list(lineage.order) if isinstance(lineage.order, tuple) else lineage.order,
        "delta": lineage.delta,
        "approximate_delta": lineage.approximate_delta,
        "total_epsilon": lineage.epsilon,
        "spent_epsilon": measure_spent(lineage),
        "spent_epsilon_best_order": _spent_best_order(lineage),
        "spent_epsilon_replace_one": _spent_replace_one(lineage),
        "share_spent": measure_share(lineage),
        "odometer_epsilon": measure_spent(lineage) if lineage.exhausted else reading,
        "left_epsilon": room,
        "closed": lineage.closed,
        "exhausted": lineage.exhausted,
        "over": lineage.over,
        "disjoint": lineage.disjoint,
        "together_with": [each.name for each in group if each.name != name],
        "unit": lineage.unit.to_dict() if lineage.unit else None,
        "strata": list(lineage.strata),
        "years": _summarize_years(lineage, state, policy, room),
        "signers": _summarize_signers(lineage, trust, room),
        "studies": _summarize_studies(lineage, policy, room),
        "versions": [
            {
                "version": v.number,
                "persons": v.persons,
                "time": v.time,
                "new_frame": v.new_frame,
            }
            for v in lineage.versions
        ],
        "charges": charges,
    }


def _spent_best_order(lineage: Lineage) -> float | None:
    if lineage.closed or lineage.exhausted:
        return measure_spent(lineage)
    return epsilon(lineage.events(), lineage.delta)


def _spent_replace_one(lineage: Lineage) -> float | None:
    """ε where one person's data are exchanged for another's, as papers and ethics boards quote it.

    None for ∞, and where nobody knows what was charged.
    """
    if lineage.closed or lineage.exhausted:
        return None
    return hide_infinity(_measure_replace_one(lineage.events(), lineage.delta))


# -- over time ---------------------------------------------------------------------------------


def _list_charges(lineage: Lineage) -> Iterator[Json]:
    """Every charge, and where it left the data set's budget."""
    afters, readings = _sum_up(lineage), _read_spent(lineage)
    for charge, after, reading in zip(lineage.charges, afters, readings, strict=True):
        yield {
            "request": charge.id,
            "lineage": charge.lineage,
            "study": charge.study_id,
            "name": charge.study,
            "signer": charge.signer,
            "version": charge.version,
            "mechanism": charge.mechanism,
            "strata": sorted({e.stratum for e in charge.events if isinstance(e, OnStratum)}),
            "status": charge.status,
            "reason": charge.reason,
            "time": charge.time,
            "delta": charge.delta,
            "epsilon": hide_infinity(_measure_cost(charge.events, charge.delta)),
            **({"alone_epsilon": charge.alone_epsilon} if charge.alone_epsilon else {}),
            "share_of_life": min(lineage.filter.share(charge.events), 1.0),
            "events": [to_dict(e) for e in charge.events],
            "spent_after": hide_infinity(after),
            "odometer_after": hide_infinity(reading),
        }


def _sum_up(lineage: Lineage) -> Iterator[float]:
    """The filter's ε after each charge: sums of divergences, of the dearest stratum."""
    held = lineage.filter
    sums: dict[tuple[str | None, float], float] = {(None, order): 0.0 for order in held.orders}
    for charge in lineage.charges:
        for event in charge.events:
            stratum = event.stratum if isinstance(event, OnStratum) else None
            for order in held.orders:
                before = sums.get((stratum, order), 0.0)
                sums[stratum, order] = before + renyi(event, order)
        yield min(
            to_epsilon(_find_dearest(sums, order), order, held.delta_per_order)
            for order in held.orders
        )


def _find_dearest(sums: dict[tuple[str | None, float], float], order: float) -> float:
    own = (rho for (stratum, at), rho in sums.items() if at == order and stratum is not None)
    return sums[None, order] + max(own, default=0.0)


def _read_spent(lineage: Lineage) -> list[float]:
    """The odometer after each charge; ∞ where δ is too small for its many rungs."""
    aside = lineage.approximate_delta
    try:
        odometer = Odometer(lineage.epsilon, lineage.delta, approximate_delta=aside)
    except InvalidEvent:
        return [math.inf for _ in lineage.charges]
    return odometer.readings(c.events for c in lineage.charges)


# -- allowances --------------------------------------------------------------------------------


def _summarize_years(
    lineage: Lineage, state: State, policy: Policy | None, room: float
) -> list[Json]:
    """Every year with a charge, and the year of the ledger's newest record."""
    years = {read_year(c.time) for c in lineage.charges} | {read_year(state.time)}
    allowed = policy.yearly_epsilon if policy else None
    return [
        {"year": year, **_make_row(partial(limit_year, lineage, year), allowed, lineage, room)}
        for year in sorted(years)
    ]


def _summarize_signers(lineage: Lineage, trust: Trust | None, room: float) -> list[Json]:
    """Everybody who was charged, and everybody who may be."""
    known = trust.signers if trust else {}
    rows = []
    for key in dict.fromkeys([*(c.signer for c in lineage.charges), *known]):
        signer = known.get(key)
        of = partial(limit_signer, lineage, key)
        row = _make_row(of, signer.epsilon if signer else None, lineage, room)
        rows.append({"signer": key, "label": signer.label if signer else "", **row})
    return rows


def _summarize_studies(lineage: Lineage, policy: Policy | None, room: float) -> list[Json]:
    """Every study with its releases together, at its own δ."""
    newest = {identify_study(c): c for c in lineage.charges}
    rows = []
    for charge in newest.values():
        delta = policy.study_delta if policy else charge.delta
        of = partial(limit_study, lineage, charge, delta=delta)
        row = _make_row(of, policy.study_epsilon if policy else None, lineage, room)
        name = charge.study or charge.study_id
        rows.append({"study": name, "signer": charge.signer, "delta": delta, **row})
    return rows


def _make_row(
    of: Callable[[float], Allowance], allowed: float | None, lineage: Lineage, room: float
) -> Json:
    """What is spent of an allowance; the data set's own budget caps what is left of it."""
    try:
        held = of(lineage.epsilon if allowed is None else allowed)
    except AllowanceExceeded:  # too small for anything
        held, room = of(lineage.epsilon), 0.0
    return {
        "allowance": allowed,
        "spent_epsilon": hide_infinity(held.spent_epsilon),
        "left_epsilon": None if allowed is None else min(held.left_epsilon, room),
    }


@lru_cache(maxsize=256)
def _measure_replace_one(events: tuple[Event, ...], delta: float) -> float:
    return epsilon_pld(events, delta, relation="replace-one")


@lru_cache(maxsize=4096)
def _measure_cost(events: tuple[Event, ...], delta: float) -> float:
    return epsilon(events, delta)


def write_alone(events: Sequence[Event], delta: float) -> str:
    """ε if all other sites collude, as a ledger holds it: rounded up; empty of a site's own."""
    found = find_alone(events, delta)
    return f"{math.ceil(found * 1e6) / 1e6:.6f}" if found else ""


def hide_infinity(value: float) -> float | None:
    """The value, or None where it is infinite: JSON has no such number."""
    return value if value < math.inf else None
