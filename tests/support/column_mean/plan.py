"""Its plan: a sum over all rows, in units in which a row is at most 1, and its count."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tests.support.column_mean.settings import ColumnMean

from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Event, Gaussian
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Schema


@dataclass(frozen=True, slots=True)
class Plan:
    guarantee: str
    persons: int
    rows: int
    copies: int
    refits: int
    column: str
    middle: float
    half: float
    sigma: float
    events: tuple[Event, ...]
    epsilon: float

    @property
    def sd(self) -> float:
        """Of the noise on each of the two numbers."""
        return self.sigma * sensitivity(self.rows)


def sensitivity(rows: int) -> float:
    """A person's k rows add at most k to the sum, and k to the count."""
    return rows * math.sqrt(2)


def plan(settings: ColumnMean, schema: Schema, persons: int, privacy: PrivacyRequest) -> Plan:
    rows = schema.max_rows_per_person

    def charged(scale: float) -> tuple[Event, ...]:
        return (Gaussian(scale, label="mean", sensitivity=sensitivity(rows)),)

    sigma = smallest_scale(charged, privacy.epsilon, privacy.delta)
    low, high = schema[settings.column].bounds
    events = charged(sigma)
    return Plan(
        guarantee=privacy.guarantee,
        persons=persons,
        rows=rows,
        copies=1,
        refits=0,
        column=settings.column,
        middle=(low + high) / 2,
        half=(high - low) / 2,
        sigma=sigma,
        events=events,
        epsilon=epsilon(events, privacy.delta),
    )
