"""Whether a charge may be reserved: the guarantee of its data set, then every allowance."""

from __future__ import annotations

from penstock.base.errors import InvalidEvent, LedgerError
from penstock_client.ledger.allowances import find_allowances
from penstock_client.ledger.state import Charge, State
from penstock_client.site.policy import Policy


def admit_charge(
    state: State,
    charge: Charge,
    *,
    now: str,
    signer_epsilon: float,
    policy: Policy | None = None,
) -> None:
    """Whether a charge may be reserved on this state.

    A function of the ledger, the charge, the policy and the time, and of nothing private.

    Raises:
        BudgetExceeded: naming what is spent and what is left; an :class:`AllowanceExceeded` where
            it is not the data set's guarantee that has no room, but what the steward allows.
        InvalidEvent: it is on a stratum that the data set has not, or charges nothing.
        LedgerError: charged before, an unknown data set, or not its newest version: the rows of
            all others are gone.
    """
    lineage = state.lineages.get(charge.lineage)
    if lineage is None:
        raise LedgerError("unknown data set", value=charge.lineage)
    if charge.id in state.charges:
        raise LedgerError("this request was charged before", value=charge.id)
    certified = lineage.versions[-1].number if lineage.versions else None
    if charge.version != certified:
        raise LedgerError(
            "a charge to rows that are not the certified ones",
            value=f"version {charge.version}",
            bound=f"version {certified}" if certified else "none is certified",
            remedy="run `penstock site check`",
        )
    if not charge.events:
        raise InvalidEvent("a charge of nothing", value=charge.id, remedy="it needs no charge")
    state.check(charge.lineage, charge.events)
    if charge.unbounded:
        return  # No allowance holds ε = ∞ either.
    for allowance in find_allowances(
        state.joint(charge.lineage), charge, now=now, signer_epsilon=signer_epsilon, policy=policy
    ):
        allowance.check(charge.events)
