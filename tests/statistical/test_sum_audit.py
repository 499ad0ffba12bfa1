"""What is charged for sums of many sites, attacked where t sites are gone and c collude.

Bounds hold with probability 1 - 1e-7 each: with a dozen of them a seed raises a false alarm once in
800,000, and seeds are fixed.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from tests.support.unmasked import SETTINGS, Fault, Setting, audit_setting

from penstock.audit.bounds import GATE
from penstock.privacy.noise.sources import SeededNoise

RUNS = 6000
POWER = 0.8
"""Of the ε that the charge truly is, an audit that is not blind shows so much."""


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_coalition_sees_no_more_than_is_charged(tmp_path: Path, setting: Setting) -> None:
    found = audit_setting(setting, tmp_path, RUNS, SeededNoise(3), GATE)
    assert POWER * found.pld <= found.shown.epsilon <= found.pld <= found.claim


def share_by_sites(place: int, variance: Fraction) -> Fraction:
    """σ/4 at each of four sites instead of σ/√2: an eighth of the variance."""
    return variance / 8


def make_for_all(place: int, variance: Fraction) -> Fraction:
    """σ/√4 instead of σ/√2, as if nobody could drop out or collude: half of the variance."""
    return variance / 2


def add_none(place: int, variance: Fraction) -> Fraction:
    """The site at place 2 of four draws next to nothing."""
    return variance / 2**30 if place == 2 else variance


@pytest.mark.parametrize("fault", [share_by_sites, make_for_all, add_none])
def test_less_noise_than_is_charged_is_seen(tmp_path: Path, fault: Fault) -> None:
    found = audit_setting(Setting(4, 1, 1), tmp_path, RUNS, SeededNoise(4), GATE, fault=fault)
    assert found.shown.epsilon > found.claim


def test_a_person_at_two_sites_loses_more_than_one_site_is_charged(tmp_path: Path) -> None:
    setting = Setting(4, 1, 1, at=2)
    found = audit_setting(setting, tmp_path, RUNS, SeededNoise(5), GATE, charged_at=1)
    assert found.shown.epsilon > found.claim
