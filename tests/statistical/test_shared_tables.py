"""Tables with a share of as many rows as the site has: refits of them show the noise that the rows'
own release has. One whose noise is not that for a table's size is seen.

Seeds are fixed: no alarm is by chance.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest
from tests.statistical.test_structured_tables import HAZARD, SCHEMA, N, cohort
from tests.support.carried_out import release

from penstock.inference.refits import Measured
from penstock.mechanisms import Structured
from penstock.mechanisms.plans import plan
from penstock.mechanisms.released import Refitting
from penstock.mechanisms.structured.plan import StructuredPlan
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema.encoding import Encoding

MOST, EPSILON, FITS = 600, 0.5, 32
MEAN = Estimand("mean", "mean", "sbp")


def measure(most: int | None) -> dict[str, float]:
    """What refits show of the mechanism's variance, of the hazard's coefficient and the mean."""
    encoding = Encoding(SCHEMA)
    rows, present = encoding.encode(cohort(3), np.random.default_rng(1))
    asked = Structured(copies=FITS, refits=2 * FITS, planted=0, most_rows=most)
    planned = plan(asked, SCHEMA, N, PrivacyRequest(EPSILON, 1e-5), (HAZARD,))
    given = (encoding, rows[:, None], present[:, None], SeededNoise(101))
    made = [dict(part.columns) for part in release(asked, planned, *given)]
    sizes = {len(table["age"]) for table in made[:FITS]}
    assert len(sizes) == 1
    assert sizes.pop() == pytest.approx(planned.share * N, rel=0.1)
    found, how = {}, Refitting(per_fit=2, share=planned.share)
    for one in (HAZARD, MEAN):
        fits = [estimate(table, SCHEMA, one) for table in made]
        shown = Measured.of(fits[:FITS], fits[FITS:], made=how).shown
        assert shown is not None
        found[one.name] = shown.square - shown.known
    return found


@cache
def measure_whole() -> dict[str, float]:
    return measure(None)


def test_refits_of_a_share_of_the_rows_show_the_noise_of_all() -> None:
    """Of 32 fits an S is known by a quarter, and a ratio of two by a third; by more where sampling
    is much of it."""
    whole, shared = measure_whole(), measure(MOST)
    for name, noise in whole.items():
        assert 0.4 < shared[name] / noise < 2.5, (name, shared[name], noise)


def test_noise_that_is_not_for_a_tables_size_is_seen() -> None:
    """The twin: five times too much for tables of a fifth of the rows."""

    def keep_noise(made: StructuredPlan) -> StructuredPlan:
        assert made.drawn is not None
        return replace(made, persons=made.drawn, drawn=None)

    whole = measure_whole()
    with patch.object(StructuredPlan, "of_tables", keep_noise):
        shared = measure(MOST)
    assert max(shared[name] / noise for name, noise in whole.items()) > 5
