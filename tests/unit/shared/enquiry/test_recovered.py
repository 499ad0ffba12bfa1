"""What refits say of an effect that nobody has planted."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np
import pytest

from penstock.enquiry.reply import find_recovered, judge_untried
from penstock.inference.headline import pool_sites
from penstock.inference.refits import Measured, Spread, widen_sites
from penstock.inference.slopes import Mark, find_recovery
from penstock.questions.estimation import Estimate

COPIES, REFITS, SE = 10, 20, 0.02


def measure_sites(
    effects: Sequence[float], kept: float, noise: float = 0.02
) -> dict[str, Measured]:
    """Sites whose mechanism keeps a share of any effect, of rows as of copies."""
    rng = np.random.default_rng(1)
    found = {}
    for number, effect in enumerate(effects):
        model = kept * effect + noise * rng.standard_normal()
        copies = [Estimate(x, SE**2, 1000, None, True) for x in model + SE * draw(rng, COPIES)]
        again = [
            Estimate(kept * copies[b % COPIES].estimate + x, SE**2, 1000, None, True)
            for b, x in enumerate(math.hypot(SE, 0.02) * draw(rng, REFITS))
        ]
        found[str(number)] = Measured.of(copies, again)
    return found


def draw(rng: np.random.Generator, size: int) -> np.ndarray:
    return rng.standard_normal(size)


def recover(found: dict[str, Measured]):
    wide = widen_sites({site: {"q": one} for site, one in found.items()})
    sites = [one["q"] for one in wide.values()]
    head = pool_sites(sites, total=False, joint=False)["random"]
    return find_recovered(dict(zip(found, head.weights, strict=True)), found)


KEPT = pytest.mark.parametrize(
    ("kept", "mark"),
    [(1.0, Mark.HELD), (0.75, Mark.ATTENUATED), (0.3, Mark.UNSUPPORTED)],
)


@KEPT
def test_a_mechanism_that_weakens_effects_is_seen_by_its_refits(kept: float, mark: Mark) -> None:
    sites, whole = recover(measure_sites([0.8] * 8, kept))
    assert abs(whole.slope - kept) < 4 * whole.slope_error < 0.2
    assert whole.mark == mark
    assert whole.runs == 8 * REFITS
    assert list(sites) == [str(i) for i in range(8)]
    told = judge_untried(None, (sites, whole))
    if mark == Mark.HELD:  # which is no finding
        assert told is None
        return
    assert told is not None
    assert told["mark"] == mark
    assert f"{whole.slope:.2f}" in told["text"]
    assert [each["site"] for each in told["sites"]] == list(sites)
    json.dumps(told, allow_nan=False)


@KEPT
def test_so_it_is_where_effects_of_sites_cancel_each_other(kept: float, mark: Mark) -> None:
    """The pooled one is next to none, and says nothing of what tables hold."""
    _, whole = recover(measure_sites([0.8, -0.8] * 4, kept))
    assert abs(whole.slope - kept) < 4 * whole.slope_error < 0.2
    assert whole.mark == mark


def test_no_site_is_told_to_hold_what_was_not_tried() -> None:
    whole, held = find_recovery(1.0, -0.3, 0.02, 100), find_recovery(1.0, 0.0, 0.02, 20)
    assert held.mark == Mark.HELD
    told = judge_untried(None, ({"a": held, "b": whole}, whole))
    assert told is not None
    assert [site["mark"] for site in told["sites"]] == ["unresolved", "attenuated"]


def test_of_next_to_no_effect_at_any_site_nothing_can_be_said() -> None:
    _, whole = recover(measure_sites([0.0] * 8, 0.5, noise=0.001))
    assert whole.mark == Mark.UNRESOLVED


def test_a_sites_shift_is_the_mean_of_what_its_refits_lack() -> None:
    copies = [Estimate(x, 0.01, 100, None, True) for x in (1.0, 2.0)]
    again = [Estimate(x, 0.01, 100, None, True) for x in (0.7, 1.5, 0.9, 1.9)]
    shown = Measured.of(copies, again).shown
    assert shown is not None
    assert shown.shift == pytest.approx((-0.3 - 0.5 - 0.1 - 0.1) / 4)
    spread = np.std([-0.3, -0.5, -0.1, -0.1], ddof=1)
    assert shown.shift_error == pytest.approx(spread / math.sqrt(4))
    assert Spread(0.1, 0.1, 20.0, 100).shift == 0.0


def test_without_refits_there_is_nothing() -> None:
    plain = Measured.of([Estimate(1.0, 0.01, 100, None, True)] * 3, [])
    assert find_recovered({"a": 1.0}, {"a": plain}) is None
    assert find_recovered({}, {}) is None
