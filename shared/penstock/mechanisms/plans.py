"""From a study and the public n to what would be charged: every mechanism's plan.

For auditors and tests, who have a study's parts and no more; a gate asks the mechanism itself
(:mod:`penstock.mechanisms.protocol`). Pure and public: no row is read, and no torch is imported.
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
