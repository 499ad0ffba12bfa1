"""From a study and the public n to what would be charged: every mechanism's plan.

Pure and public: no row is read, and no torch is imported, so that a site can price a study before
it starts a worker.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import InvalidInput, Problem
from penstock.estimands import Estimand
from penstock.mechanisms import Maf, Mechanism
from penstock.models.tables import plan as tables
from penstock.schema import Schema
from penstock.study import PrivacyRequest

Plan = tables.Plan


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
    if isinstance(mechanism, Maf):
        return tables.plan(mechanism, schema, persons, privacy)
    raise InvalidInput("mechanism", [Problem("name", "is not known here", value=mechanism.name)])
