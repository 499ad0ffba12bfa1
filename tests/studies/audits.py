"""Attacks on every claim, and on planted faults.

Each mechanism's real code on its worst-case data set (`penstock audit`). "Ours" is the lower bound
on ε that the attack shows; the target is the ε that is charged (autodp), and the peer that of
dp-accounting's PLD. A sound mechanism holds if the bound at confidence 1 - 1e-7 is below both.
"Gaussian" and "sampled Gaussian" bounds are valid only against a claim of that kind; a low bound
proves nothing.

A twin is the same code with a planted fault, whose true ε on this data set, by an exact formula,
lies above the claim (the target). It "holds" if the bound at 1 - 1e-7 exceeds the claim: the fault
is caught. "Paper" is that true ε. (Division by the realised batch, which shows in no released sum,
is caught by laws in tests/laws/test_dpsgd.py and tests/statistical/test_audit.py.)
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from tests.support.results import RESULTS, Row, write
from tests.support.twins import TWINS

from penstock.audit.bounds import GATE
from penstock.audit.plot import draw
from penstock.audit.targets import NAMES, build
from penstock.audit.worlds import Finding, audit
from penstock.privacy.noise.sources import SecureNoise, SeededNoise

MORE = {
    "gaussian": 10_000_000,
    "injection": 2_000_000,
    "distributed": 2_000_000,
    "strata": 2_000_000,
    "pure": 5_000_000,
    "approximate": 5_000_000,
    "laplace": 200_000,
    "discrete-gaussian": 100_000,
}
"""Runs per world where a run costs next to nothing."""


def sound(name: str, found: Finding) -> list[Row]:
    """One row at 95 %, one at 1 - 1e-7."""
    claims = {"target": found.claim, "peer": found.pld, "holds": found.holds}
    return [
        Row(f"{name}, {found.method}: ε shown {where}", bound.epsilon, None, found.runs, **claims)
        for where, bound in (("at 95 %", found.shown), ("at 1 - 1e-7", found.gate))
    ]


def run() -> Path:
    """Measure: sound mechanisms with the noise of a real site, twins with a seed."""
    rows: list[Row] = []
    findings: list[Finding] = []
    for name in NAMES:
        sys.stderr.write(f"{name}\n")
        found = audit(build(name), SecureNoise(), runs=MORE.get(name))
        findings += found
        rows += [row for finding in found for row in sound(name, finding)]
    for twin in TWINS:
        sys.stderr.write(f"twin: {twin.name}\n")
        target = twin.make()
        with twin.fault():
            found = audit(target, SeededNoise(2), runs=twin.runs, confidence=GATE)
        best = max(found, key=lambda f: f.gate.epsilon)
        shown, truth = best.gate.epsilon, twin.truth(target.delta)
        rows.append(
            Row(
                f"twin, {twin.name}: ε shown at 1 - 1e-7",
                shown,
                None,
                best.runs,
                best.claim,
                best.pld,
                truth if math.isfinite(truth) else None,
                shown > best.claim,
            )
        )
    draw(findings, RESULTS / "audits.png")
    return write("audits", rows, (__doc__ or "").strip())
