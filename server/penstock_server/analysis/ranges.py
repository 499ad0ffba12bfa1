"""Where a site's numbers lie beside those of other sites: a column in another unit shows there.

Of released tables alone, so it is free. Hospitals differ, and units differ by more: a column is
odd at a site where its middle four fifths overlap with those of no other site, and its median is
less than half, or more than twice, of every other one's. mmHg and kPa, mg/dL and mmol/L, years and
months, cm and inches, pounds and kilograms are all further apart than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from penstock.schema import Coded, Schema

_FACTOR = 2.0
_AT = (0.1, 0.5, 0.9)


@dataclass(frozen=True, slots=True)
class Ranges:
    """A tenth, the half and nine tenths of each number's values, by column."""

    columns: Mapping[str, tuple[float, float, float]]


def find_ranges(schema: Schema, table: Coded) -> Ranges:
    """Those of one table; of a column without a known value there is none."""
    found = {}
    for column in schema.columns:
        values = table[column.name]
        known = values[~np.isnan(values)]
        if column.kind in ("continuous", "integer", "duration") and len(known):
            low, middle, high = np.quantile(known, _AT).tolist()
            found[column.name] = (low, middle, high)
    return Ranges(found)


def list_odd(sites: Mapping[str, Ranges]) -> dict[str, list[str]]:
    """Columns that may be in another unit somewhere, and the sites where; of two sites both."""
    odd: dict[str, list[str]] = {}
    for site, ranges in sites.items():
        for name, own in ranges.columns.items():
            others = [r.columns[name] for s, r in sites.items() if s != site and name in r.columns]
            if others and all(_differ(own, other) for other in others):
                odd.setdefault(name, []).append(site)
    return odd


def _differ(one: tuple[float, float, float], other: tuple[float, float, float]) -> bool:
    apart = one[0] > other[2] or one[2] < other[0]
    low, high = sorted((one[1], other[1]))
    # Values on both sides of 0, or around it, say nothing of a unit.
    return apart and (0 < low * _FACTOR < high or low < high * _FACTOR < 0)
