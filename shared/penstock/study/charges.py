"""What a study charges a site: one rule for gate, worker and whoever judges a ledger afterwards."""

from __future__ import annotations

from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.joint.consortium import Consortium
from penstock.mechanisms.joint.plan import JointPlan, plan_jointly
from penstock.mechanisms.protocol import AnyMechanism, Asked, Plan, Settings
from penstock.mechanisms.registry import MECHANISMS, Registry
from penstock.privacy.accounting.accountant import epsilon
from penstock.study.halves import find_other
from penstock.study.study import Study

_ROUNDED_UP = 1 + 1e-9


def plan_study(study: Study, persons: int, mechanisms: Registry = MECHANISMS) -> Plan | JointPlan:
    """The plan of a site's own release, or that of one release of all sites.

    Args:
        persons: the site's public n, for a release of its own.

    Raises:
        InvalidInput: the study asks for what the mechanism does not do.
        BudgetExceeded: ε cannot be met.
    """
    return plan_release(mechanisms.of(study.mechanism), study.asked, persons, study.consortium)


def plan_other(
    half: Study, planned: Plan | JointPlan, persons: int, mechanisms: Registry = MECHANISMS
) -> Plan | JointPlan:
    """The plan of the other half of a study of both, if the two cost no more than the whole may.

    Each site is charged for both. Their events are composed, by the accountant that gates.

    Args:
        planned: of this half; persons: the site's public n.

    Raises:
        InvalidInput: they cost more together, or the other half asks for what is not done.
        BudgetExceeded: its ε cannot be met.
    """
    other = plan_study(find_other(half), persons, mechanisms)
    whole = half.aggregation.whole
    together = epsilon((*planned.events, *other.events), half.privacy.delta)
    if whole is None or not together <= whole * _ROUNDED_UP:
        problem = Problem(
            "aggregation.whole",
            "is less than its two halves cost together",
            value=f"ε = {together:.4g}",
            bound=f"ε = {whole:g}",
            remedy="Ask for the two releases in studies of their own",
        )
        raise InvalidInput("study", [problem])
    return other


def plan_release(
    mechanism: AnyMechanism,
    asked: Asked[Settings],
    persons: int,
    consortium: Consortium | None = None,
) -> Plan | JointPlan:
    """The same of a study's parts."""
    if consortium is not None:
        return plan_jointly(mechanism, asked, consortium)
    planned: Plan = mechanism.plan(asked, persons)
    return planned


def carry(asked: Asked[Settings], planned: Plan | JointPlan) -> tuple[Asked[Settings], Plan]:
    """What is asked of whoever runs the mechanism, and the plan by which it is run: of a joint
    release both are of all sites' rows."""
    if isinstance(planned, JointPlan):
        return planned.asked, planned.carried
    return asked, planned
