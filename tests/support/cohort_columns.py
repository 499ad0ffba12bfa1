"""Columns of every kind, and a schema of them, for tests of schemas."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.base.errors import InvalidInput
from penstock.schema import Column, Schema

AGE = Column("age", "continuous", 18, 100, 0, unit="year")
TIME = Column("time", "duration", upper=25, decimals=2, unit="year", event="cvd")
CVD = Column("cvd", "event")
WARD = Column("ward", "categorical", levels=("a", "b", "c"), nullable=True)
STAGE = Column("stage", "ordered", levels=("1", "2", "3"))
VISITS = Column("visits", "integer", 0, 20, nullable=True)
SCHEMA = Schema((AGE, TIME, CVD, WARD, STAGE, VISITS), "pid", 3)


def refused(make: Any, *args: Any, **kwargs: Any) -> list[str]:
    """Where the problems of a refused construction lie."""
    with pytest.raises(InvalidInput) as caught:
        make(*args, **kwargs)
    return [p.where for p in caught.value.problems]
