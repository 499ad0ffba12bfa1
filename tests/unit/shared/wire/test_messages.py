"""Codes that travel: each is explained."""

from penstock.wire.messages import CODES, REFUSALS, JobState, explain


def test_every_code_is_explained_and_unknown_ones_are_named():
    assert all(meaning for meaning, _ in CODES.values())
    assert "new-code" in explain("new-code")[0]
    assert {"budget", "schema", "expired"} <= REFUSALS
    assert "failed" not in REFUSALS
    assert JobState("delivered") is JobState.DELIVERED
