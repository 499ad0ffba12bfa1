"""What most persons of a trial say: event-free at the end. It comes back, by every mechanism.

Weibull times, followed for five years; about .6 of the persons are event-free at the end, and a
few were lost earlier. Before the end was an atom, a tenth of the rows were there after synthesis.
Copies are means over 3 × 6000 rows: of a share of .6 they have an sd of .004 from being samples,
and about .002 more from the noise, so that .03 is six; of the events, a quarter of the rows, 5 %
are four. Seeds are fixed.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.carried_out import release

from penstock.mechanisms import Maf, Settings, SlicedWasserstein
from penstock.mechanisms.plans import plan
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Coded, Column, Schema
from penstock.schema.encoding import Encoding

Array = NDArray[np.float64]
UPPER = 5.0
SCHEMA = Schema(
    (
        Column("t", "duration", upper=UPPER, decimals=2, event="d"),
        Column("d", "event"),
        Column("x", "continuous", lower=-4, upper=4),
        Column("arm", "binary"),
    )
)
MECHANISMS: dict[str, Settings] = {
    "maf": Maf(copies=3, refits=0, steps=20),
    "sliced-wasserstein": SlicedWasserstein(copies=3, refits=0, steps=20),
}


def trial(n: int, lost: float, seed: int) -> Coded:
    """``lost``: the mean time until somebody is lost, in years."""
    rng = np.random.default_rng(seed)
    x, arm = rng.normal(size=n).clip(-4, 4), (rng.random(n) < 0.5) * 1.0
    failure = 11 * np.exp(-0.5 * x + 0.3 * arm) * rng.weibull(1.3, n)
    gone = rng.exponential(lost, n)
    time, died = np.minimum(failure, gone), (failure <= gone) * 1.0
    # As a site has it that was followed for longer than is asked.
    return {"t": time, "d": died, "x": x, "arm": arm}


def followed(rows: Coded) -> Coded:
    """The same, seen for as long as is asked."""
    later = rows["t"] > UPPER
    died = np.where(later, 0.0, rows["d"])
    return {**rows, "t": np.where(later, UPPER, rows["t"]).round(2), "d": died}


def end_and_events(rows: Coded) -> tuple[float, float]:
    ended = (rows["t"] >= UPPER) & (rows["d"] == 0)
    return float(ended.mean()), float(rows["d"].mean())


def released(name: str, rows: Coded, seed: int) -> Coded:
    """All copies, at ε = 3."""
    n, encoding = len(rows["t"]), Encoding(SCHEMA)
    x, there = encoding.encode(rows, np.random.default_rng(seed))
    planned = plan(MECHANISMS[name], SCHEMA, n, PrivacyRequest(3.0, 1e-5))
    parts = list(
        release(MECHANISMS[name], planned, encoding, x[:, None], there[:, None], SeededNoise(seed))
    )
    return {c: np.concatenate([p.columns[c] for p in parts]) for c in SCHEMA.names}  # type: ignore[misc]


@pytest.mark.parametrize("name", MECHANISMS)
def test_who_is_event_free_at_the_end_of_follow_up_is_so_in_the_copies(name: str) -> None:
    rows = trial(6000, 60.0, 1)
    made, real = released(name, rows, 2), followed(rows)
    (ended, events), (wanted, happened) = end_and_events(made), end_and_events(real)
    assert 0.55 < wanted < 0.7
    assert abs(ended - wanted) < 0.03
    assert abs(events / happened - 1) < 0.05
    assert made["t"].max() <= UPPER


def test_earlier_censoring_keeps_its_times() -> None:
    """A third are lost on the way: their times are not those of the end, nor of the events."""
    errors = []
    for seed in range(3, 7):
        rows = trial(2000, 8.0, seed)
        made, real = released("maf", rows, seed + 1), followed(rows)
        assert abs(end_and_events(made)[0] - end_and_events(real)[0]) < 0.03
        early = [t["t"][(t["d"] == 0) & (t["t"] < UPPER)] for t in (made, real)]
        assert 0.25 < len(early[1]) / 2000 < 0.45
        shares = [np.histogram(t, 5, (0, UPPER))[0] / len(t) for t in early]
        errors.append(np.abs(shares[0] - shares[1]).max())
    assert np.mean(errors) < 0.07
