"""What every ledger of the tests holds, and none of them is about."""

from __future__ import annotations

from penstock_client.ledger.state import Unit

ROWS = Unit(None, 1)
"""Each row is a person."""

DIGESTS = {"study_digest": "5" * 64, "plan_digest": "7" * 64, "decisions": "0" * 64}
"""Of a reservation whose study and plan nobody asks for, before any decision was made."""
