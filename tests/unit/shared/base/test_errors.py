"""Errors travel: what comes back is what was sent, and strange ones are still errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.base.errors import (
    BudgetExceeded,
    CoordinatorError,
    InvalidInput,
    PenstockError,
    Problem,
    Refused,
    Unreachable,
    error_from_dict,
)


@pytest.mark.parametrize(
    "error",
    [
        CoordinatorError("no", value=3, bound="at most 2", remedy="less"),
        InvalidInput(
            "study", [Problem("a.b", "is blank", 3, None, "x", "Fill in"), Problem("", "")]
        ),
        Refused("budget", "above what is left", remedy="ask for less"),
        BudgetExceeded("too much"),
        Unreachable("lost"),
        PenstockError("plain"),
    ],
)
def test_an_error_comes_back_as_it_was(error):
    again = error_from_dict(json.loads(json.dumps(error.to_dict())))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.to_dict() == error.to_dict()


def test_an_error_leaves_paths_at_home():
    error = CoordinatorError("gone", value=Path("/srv/penstock/x"))
    assert error.to_dict()["value"] is None


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"code": "of-the-future", "message": "x"},
        {"code": 3, "message": ["x"], "value": {}},
        {"code": "invalid-input", "problems": [3, {"where": 1, "line": "x"}] * 1000, "what": 1},
        {"code": "refused"},
    ],
)
def test_strange_errors_are_still_errors(data):
    assert isinstance(error_from_dict(data), PenstockError)
    assert len(str(error_from_dict(data))) < 10_000
