"""From a study and the public n to what would be charged: every mechanism's plan.

Pure and public: no row is read, and no torch is imported, so that a site can price a study before
it starts a worker.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.mechanisms.protocol import Asked, Plan, Settings
from penstock.mechanisms.registry import MECHANISMS
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Schema


def plan(
    settings: Settings,
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
    asked = Asked(settings, schema, privacy, tuple(estimands))
    return MECHANISMS.of(settings).plan(asked, persons)
