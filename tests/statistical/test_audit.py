"""No claim is broken by its audit, and every planted fault is caught.

Bounds hold with probability 1 - 1e-7 each: with some 60 of them this file would raise a false alarm
once in 150,000 seeds, and its seeds are fixed.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from tests.laws import test_dpsgd as laws
from tests.support.faults import EXPECTED_RATE, realised_batch, realised_pulls
from tests.support.twins import TWINS, Twin, mixture
from tests.support.twins import gaussian as exact_gaussian
from typer.testing import CliRunner

from penstock.audit import plot, worlds
from penstock.audit.bounds import GATE, Bound
from penstock.audit.targets import NAMES, TRAINED, build
from penstock.audit.worlds import Finding, Target, audit, check, guess
from penstock.base.errors import BudgetExceeded, ClaimBroken, InvalidInput
from penstock.cli.audit import app
from penstock.mechanisms import MECHANISMS
from penstock.mechanisms.trajectory.drift import Rows
from penstock.mechanisms.trajectory.dynamics import descend
from penstock.mechanisms.trajectory.plan import Dynamics
from penstock.privacy.accounting import gaussian
from penstock.privacy.events import Gaussian, OnStratum, Release, Unbounded
from penstock.privacy.noise.sources import SecureNoise, SeededNoise

FEWER = {
    "gaussian": 200_000,
    "discrete-gaussian": 8_000,
    "laplace": 15_000,
    "histograms": 800,
    "moments": 1_200,
    "outcome": 800,
    "shuffled": 1_500,
    "sketch": 800,
    "presampled": 800,
    "resampled": 2_500,
    "gibbs-chain": 2_000,
    "gibbs": 800,
    "dpsgd": 800,
    "dpsgd-poisson": 1_500,
    "training": 600,
    "trajectory-start": 800,
    "trajectory": 800,
    "trajectory-poisson": 1_200,
}
"""Runs per world, where a target's own number would take too long for every test run."""

POWER = {
    "gaussian": 0.7,
    "discrete-gaussian": 0.6,
    "laplace": 0.7,
    "histograms": 0.35,
    "moments": 0.45,
    "outcome": 0.45,
    "injection": 0.7,
    "sketch": 0.4,
    "presampled": 0.4,
    "resampled": 0.2,
    "gibbs-chain": 0.3,
    "gibbs": 0.25,
    "distributed": 0.7,
    "strata": 0.7,
    "pure": 0.9,
    "approximate": 0.9,
    "dpsgd": 0.4,
    "dpsgd-poisson": 0.15,
    "training": 0.2,
    "trajectory-start": 0.4,
    "trajectory": 0.4,
    "trajectory-poisson": 0.1,
}
"""What share of the claim the audit must show, so that an audit gone blind is noticed. The shuffled
claim is loose for Gaussian rows, and one run of the whole mechanism shows little: nothing there."""


@pytest.mark.parametrize("name", NAMES)
def test_every_audit_stays_below_its_claim(name: str) -> None:
    found = audit(build(name), SeededNoise(1), runs=FEWER.get(name), confidence=GATE)
    assert found
    for finding in found:
        assert 0 < finding.pld <= finding.claim + 2e-3
        assert finding.holds
    assert max(f.gate.epsilon for f in found) >= POWER.get(name, 0.0) * found[0].pld


@cache
def audit_twin(name: str) -> tuple[Target, list[Finding]]:
    """A twin's target, and what its audit finds: the same for every test that asks."""
    twin = next(t for t in TWINS if t.name == name)
    target = twin.make()
    with twin.fault():
        return target, audit(target, SeededNoise(2), runs=twin.runs, confidence=GATE)


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_every_twin_is_caught(twin: Twin) -> None:
    target, found = audit_twin(twin.name)
    # The fault costs more than the claim, by an exact formula, and the audit shows it.
    assert twin.truth(target.delta) > found[0].claim
    assert max(f.gate.epsilon for f in found) > found[0].claim
    with pytest.raises(ClaimBroken):
        check(found)


def test_what_twins_show_is_no_more_than_what_they_cost() -> None:
    for twin in TWINS:
        if twin.name.startswith(("gaussian", "laplace", "trajectory:", "strata")):
            target, found = audit_twin(twin.name)
            assert all(f.gate.epsilon <= twin.truth(target.delta) for f in found)


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0, 60.0])
def test_the_twins_own_formula_is_the_gaussians(mu: float) -> None:
    expected = gaussian.epsilon(mu, 1e-5)
    assert exact_gaussian(mu)(1e-5) == pytest.approx(expected, rel=1e-8)
    if mu < 10:
        assert mixture(1.0, mu)(1e-5) == pytest.approx(expected, rel=1e-8)


def test_division_by_the_realised_batch_breaks_its_law(monkeypatch: pytest.MonkeyPatch) -> None:
    with realised_batch():
        with pytest.raises(AssertionError):
            laws.test_poisson_steps_divide_by_the_expected_batch(monkeypatch)


def pulls(seed: int) -> float:
    """One step on a Poisson sample of 40 persons, who all pull alike: how many were seen to."""
    how = Dynamics(
        sigma=1e-9, rate=EXPECTED_RATE, steps=1, clip=1.0, bandwidth=0.01, wide=1.0, step=1.0,
        smoothing=0.0, temperature=1.0, heat=0.0, cool=1.0, average=0.0,
    )  # fmt: skip
    ones, none = np.ones((40, 1)), np.zeros((40, 1), dtype=np.int64)
    rows = Rows(ones[..., None], none, ones > 0, 1, "cpu", "float64")
    one, at = np.ones(1), np.zeros((1, 1, 1))
    moved = descend(how, rows, at, one, 40 * one, 0 * one, one, SeededNoise(seed))
    return float(moved[0, 0, 0]) / 0.01 * EXPECTED_RATE * 40


def test_particles_are_pulled_by_what_was_sampled_over_the_expected_batch() -> None:
    """The mean pull says how many were sampled, if it was not divided by just that."""
    seen = [pulls(seed) for seed in range(12)]
    assert all(abs(count - round(count)) < 1e-4 for count in seen)
    assert len({round(count) for count in seen}) > 3
    with realised_pulls():
        assert {round(pulls(seed), 4) for seed in range(12)} == {10.0}


# -- what is audited ---------------------------------------------------------------------------


def test_every_kind_of_event_is_audited() -> None:
    kinds: set[type] = set()
    for name in NAMES:
        for event in build(name).events:
            kinds |= {type(event)}
            if isinstance(event, OnStratum):
                kinds |= {type(event.event)}
    # Unbounded claims nothing that an attack could refute.
    assert kinds == {*get_args(Release), OnStratum} - {Unbounded}


def test_every_mechanism_of_a_study_is_audited() -> None:
    assert set(MECHANISMS) <= set(NAMES)


def test_a_target_can_be_had_at_another_epsilon() -> None:
    target = build("gaussian", epsilon=1.0, delta=1e-6)
    [found, _] = audit(target, SeededNoise(1), runs=1000)
    assert 0.99 < found.claim <= 1.0
    assert found.delta == 1e-6


def test_secure_noise_serves_as_well() -> None:
    assert all(f.holds for f in audit(build("gaussian"), SecureNoise(), runs=10_000))


def test_a_seed_repeats_an_audit() -> None:
    first, second = (audit(build("injection"), SeededNoise(4), runs=2000) for _ in range(2))
    assert first == second


def test_runs_are_made_a_bounded_number_at_a_time() -> None:
    sizes: list[int] = []

    def scores(person: bool, runs: int, noise: object) -> np.ndarray:
        sizes.append(runs)
        return np.zeros(runs)

    told: list[int] = []
    target = Target("t", "", (Gaussian(1.0),), 1e-5, 25, scores, at_once=10)
    audit(target, SeededNoise(0), progress=told.append)
    assert sizes == told == [10, 10, 5] * 2


def test_guesses_are_of_the_surest_coins() -> None:
    included = np.array([True, True, False, True, False, False])
    scores = np.array([9.0, 1.0, 8.0, 3.0, 2.0, 0.0])
    assert guess(included, scores, 1.0) == (6, 4)
    assert guess(included, scores, 0.4) == (2, 2)


@pytest.mark.parametrize("name", ["", "gausian", "Gaussian"])
def test_unknown_mechanisms_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        build(name)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan])
def test_a_scale_must_be_positive(scale: float) -> None:
    with pytest.raises(InvalidInput):
        build("gaussian", scale=scale)


@pytest.mark.parametrize(
    "wrong", [{"runs": 3}, {"runs": 10**9}, {"confidence": 1.0}, {"confidence": math.nan}]
)
def test_impossible_audits_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        audit(build("pure"), SeededNoise(0), **wrong)  # type: ignore[arg-type]


def test_one_run_does_what_two_worlds_cannot_only_where_it_exists() -> None:
    with pytest.raises(InvalidInput, match="two-world"):
        worlds.scores(build("maf"), True, 4, SeededNoise(0))
    assert audit(build("pure"), SeededNoise(0), kinds=["one-run"]) == []


# -- the command -------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_the_command_shows_claims_beside_bounds(tmp_path: Path) -> None:
    picture = tmp_path / "audit.svg"
    code, output = run("pure", "injection", "--runs", "4000", "--seed", "1", "--plot", str(picture))
    assert code == 0
    assert "no claim was broken" in output
    text = picture.read_text()
    assert text.startswith("<?xml")
    code, output = run("injection", "--runs", "4000", "--seed", "1", "--json", "--one-run")
    [found] = json.loads(output)
    assert (found["method"], found["holds"]) == ("one-run", True)


def test_the_command_lists_what_there_is() -> None:
    code, output = run("--list", "--json")
    assert code == 0
    assert [t["name"] for t in json.loads(output)] == list(NAMES)


def test_the_command_fails_where_a_claim_is_broken() -> None:
    twin = TWINS[0]
    with twin.fault():
        code, output = run("gaussian", "--runs", str(twin.runs), "--seed", "1")
    assert code == ClaimBroken.exit_code
    assert "BROKEN" in output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["gausian"], InvalidInput),
        (["pure", "--runs", "2"], InvalidInput),
        (["pure", "--plot", "a.txt", "--runs", "100"], InvalidInput),
        (["approximate", "--epsilon", "1", "--delta", "1e-4"], BudgetExceeded),
    ],
)
def test_the_command_says_what_is_wrong(arguments: list[str], expected: type) -> None:
    assert run(*arguments)[0] == expected.exit_code


def test_without_the_accountants_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.cli.audit.find_spec", lambda name: None)
    code, output = run("pure")
    assert code == 1
    assert "pip install 'penstock[site]'" in output


def test_a_broken_claim_is_drawn_and_a_zero_bound_too(tmp_path: Path) -> None:
    low, high = (Bound(e, 1e-5, 0.95, 0.5, 0.5) for e in (0.0, 9.0))
    rows = [Finding("a", "two-world", 9, 1e-5, 1.0, 1.0, b, b) for b in (low, high)]
    plot.draw(
        [*rows, Finding("b", "one-run", 9, 1e-5, math.inf, math.inf, low, low)], tmp_path / "a.png"
    )
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InvalidInput):
        plot.draw([], tmp_path / "b.png")


def test_bounds_and_releases_need_no_torch() -> None:
    code = (
        "import sys, penstock.audit.targets as t;"
        "[t.build(n) for n in t.NAMES if n not in t.TRAINED];"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert set(TRAINED) < set(NAMES)
