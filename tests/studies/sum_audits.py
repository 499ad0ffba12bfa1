"""Attacks on what is charged for sums of many sites, where t are gone and c collude.

A coordinator and c sites run the real masks with S sites, of which t drop out after they masked
their vectors. They take off the sum what they added themselves, and guess whether one person is
there; of local noise all sites collude but the person's own. "Ours" is the lower bound on ε that
the guesses show, by a test that was fixed beforehand; the target is the ε that is charged (autodp),
and the peer that of dp-accounting's PLD. A bound at confidence 1 - 1e-7 holds if it is below both.
It is valid only against a Gaussian claim, which sums of discrete Gaussians are but for exp(-10^7).
δ = 1e-5. Of a person at two sites one sum has both parts.

PENSTOCK_RUNS says how many runs each world has (100000); the noise is that of a real site.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.support.results import Row, write
from tests.support.unmasked import SETTINGS, Setting, audit_setting

from penstock.audit.bounds import GATE
from penstock.privacy.noise.sources import SecureNoise


def name_setting(setting: Setting) -> str:
    said = f"S = {setting.sites}, t = {setting.dropouts}, c = {setting.colluders}"
    said += f", {setting.noise} noise"
    return said if setting.at == 1 else f"{said}, a person at {setting.at} sites"


def run() -> Path:
    """Measure."""
    runs, rows = int(os.environ.get("PENSTOCK_RUNS", "100000")), list[Row]()
    for setting in SETTINGS:
        name = name_setting(setting)
        sys.stderr.write(f"{name}\n")
        with tempfile.TemporaryDirectory() as folder:
            found = audit_setting(setting, Path(folder), runs, SecureNoise(), GATE)
        shown = found.shown.epsilon
        holds = shown <= min(found.claim, found.pld)
        rows.append(
            Row(
                f"{name}: ε shown at 1 - 1e-7",
                shown,
                None,
                runs,
                found.claim,
                found.pld,
                None,
                holds,
            )
        )
    return write("sum-audits", rows, (__doc__ or "").strip())
