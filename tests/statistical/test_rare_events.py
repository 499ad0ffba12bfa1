"""An event that few have: its effects and its number come back, though who has none tells little.

Three of a hundred persons have it, of a generator that is not the package's own. Were half of all
persons clipped, however few have it, every event would lie far beyond: that is seen. (Of a
twentieth, as elsewhere, one draw in three was lost where densities were level within cells, and
none of six now.)
"""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
from tests.studies.foreign_arms import make
from tests.studies.foreign_generators import FROZEN
from tests.studies.foreign_measures import compare

from penstock.mechanisms.structured import matching

N, SEEDS, EPSILON = 8000, 3, 3.0


def errors() -> tuple[float, float]:
    """Of a few seeds the largest error of a declared coefficient, in standard errors, and of the
    number of events, as a share of it."""
    effects, events = [], []
    for seed in range(SEEDS):
        table = FROZEN["rare"](N, np.random.default_rng(seed))
        found = compare(make("structured", table, EPSILON, seed, copies=4).copies, table)
        effects += [abs(value) for name, value in found.items() if name.startswith("declared/")]
        events.append(abs(found["events"]))
    return max(effects), max(events)


def test_effects_and_events_come_back() -> None:
    effect, events = errors()
    assert effect < 2
    assert events < 0.4


def test_a_clip_that_all_events_lie_beyond_is_seen() -> None:
    with patch.object(matching, "_TELLING", 1e3), patch.object(matching, "_REACH", 0.5):
        effect, _ = errors()
    assert effect > 4
