"""From a study and the public n to what would be charged: every mechanism's plan.

Pure and public: no row is read, and no torch is imported, so that a site can price a study before
it starts a worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from penstock.mechanisms import Gibbs, Mechanism, Trajectory
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Schema

if TYPE_CHECKING:
    from penstock.mechanisms.gibbs import plan as gibbs
    from penstock.mechanisms.tables import plan as tables
    from penstock.mechanisms.trajectory import plan as trajectory

Plan: TypeAlias = "tables.Plan | trajectory.Plan | gibbs.Plan"


def plan(
    mechanism: Mechanism,
    schema: Schema,
    persons: int,
    privacy: PrivacyRequest,
    estimands: Sequence[Estimand] = (),
) -> Plan:
    """Noise multipliers and charges for a study at a site of ``persons`` persons.

    Raises:
        InvalidInput: the study asks for what the mechanism does not do.
        BudgetExceeded: ε cannot be met; says what could.
    """
    # Imported where one is made: half a second that every command of a site would wait for.
    if isinstance(mechanism, Gibbs):
        from penstock.mechanisms.gibbs import plan as gibbs

        return gibbs.plan(mechanism, schema, persons, privacy, estimands)
    if isinstance(mechanism, Trajectory):
        from penstock.mechanisms.trajectory import plan as trajectory

        return trajectory.plan(mechanism, schema, persons, privacy)
    from penstock.mechanisms.tables import plan as tables

    return tables.plan(mechanism, schema, persons, privacy)


def require_worth(
    planned: Plan,
    mechanism: Mechanism,
    schema: Schema,
    privacy: PrivacyRequest,
    estimands: Sequence[Estimand] = (),
) -> None:
    """Refuse what would say nothing whatever the rows are, by public numbers alone.

    Args:
        planned: what :func:`plan` made of the same.

    Raises:
        Hopeless: an answer that :mod:`penstock.mechanisms.gibbs.worth` plans to be noise.
    """
    if isinstance(mechanism, Gibbs):
        from penstock.mechanisms.gibbs import plan as gibbs
        from penstock.mechanisms.gibbs import worth

        if not isinstance(planned, gibbs.Plan):
            raise TypeError("this is no plan of gibbs")
        worth.require_worth(planned, mechanism, schema, privacy, estimands)
