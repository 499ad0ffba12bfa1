"""Running an attack: two worlds, or one run with canaries, against a mechanism's real code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from penstock.audit.bounds import (
    GATE,
    Array,
    Bound,
    Curve,
    one_run,
    two_world,
    two_world_gaussian,
    two_world_kind,
)
from penstock.base.documents import Json
from penstock.base.errors import ClaimBroken, InvalidInput, Problem
from penstock.privacy.accounting import gaussian, pld
from penstock.privacy.accounting.accountant import epsilon, epsilon_pld
from penstock.privacy.events import (
    DiscreteGaussian,
    DistributedGaussian,
    Event,
    FixedSizeGaussian,
    Gaussian,
    PoissonGaussian,
)
from penstock.privacy.noise.sources import NoiseSource

Bools = NDArray[np.bool_]
Scores = Callable[[bool, int, NoiseSource], Array]
Canaries = Callable[[NoiseSource], tuple[Bools, Array]]
Progress = Callable[[int], None]
Kind = Literal["two-world", "one-run"]

MAX_RUNS = 10**8


@dataclass(frozen=True, slots=True)
class Target:
    """A mechanism, its worst-case data set, and an attacker who knows both.

    Args:
        name: as `penstock audit` takes it.
        worst: the two data sets, in one line.
        events: what the mechanism is charged as; δ: at which its ε is claimed.
        runs: per world, for a good bound within seconds.
        scores: ``scores(with_person, runs, noise)`` runs the package's own code that often in one
            world and gives one number per run, high where it speaks for the person; (runs,).
        canaries: ``canaries(noise)`` includes persons by fair coins, runs once, and gives the coins
            and one score per person, both (m,). A guess may depend on the output alone.
        guessed: the share of the coins that is guessed: the surest ones.
        at_once: runs whose scores are made in one call, so that memory stays bounded.
    """

    name: str
    worst: str
    events: tuple[Event, ...]
    delta: float
    runs: int
    scores: Scores | None = None
    canaries: Canaries | None = None
    guessed: float = 0.1
    at_once: int = 100_000

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The attacks that this mechanism has."""
        both: tuple[tuple[Kind, object], ...] = (
            ("two-world", self.scores),
            ("one-run", self.canaries),
        )
        return tuple(kind for kind, how in both if how is not None)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one attack found, beside what is claimed.

    Args:
        method: ``two-world``; ``two-world, Gaussian`` or ``two-world, sampled Gaussian`` (valid
            only against claims of that kind); or ``one-run``.
        runs: per world, or canaries.
        claim, pld: the claimed ε at ``delta``, by autodp and by dp-accounting.
        shown: the bound at the confidence asked for; gate: at 1 - 1e-7.
    """

    name: str
    method: str
    runs: int
    delta: float
    claim: float
    pld: float
    shown: Bound
    gate: Bound

    @property
    def holds(self) -> bool:
        """Whether the claim survived; both accountants' claims are meant."""
        return self.gate.epsilon <= min(self.claim, self.pld)

    def to_dict(self) -> Json:
        """For JSON; an ε of ∞ becomes None."""
        record = {**asdict(self), "holds": self.holds}
        for key in ("claim", "pld"):
            record[key] = record[key] if math.isfinite(record[key]) else None
        return record


def audit(
    target: Target,
    noise: NoiseSource,
    *,
    runs: int | None = None,
    confidence: float = 0.95,
    kinds: Sequence[Kind] | None = None,
    progress: Progress | None = None,
) -> list[Finding]:
    """Attack one mechanism.

    Args:
        noise: the mechanism's source of noise; a seeded one repeats an audit exactly.
        runs: per world; the target's own number where none is given.
        confidence: of the bound that is shown; the gate's is always 1 - 1e-7.
        kinds: which attacks; all that there are where none is given.
        progress: told how many runs are done since it was told last.

    Raises:
        InvalidInput: too few or too many runs, or a confidence outside (0, 1).
    """
    runs = target.runs if runs is None else runs
    if isinstance(runs, bool) or not 4 <= runs <= MAX_RUNS:
        problem = Problem("runs", "out of range", value=str(runs), bound=f"4 to {MAX_RUNS:,}")
        raise InvalidInput("audit", [problem])
    if not 0 < confidence < 1:
        problem = Problem("confidence", "out of range", value=f"{confidence:g}", bound="0 to 1")
        raise InvalidInput("audit", [problem])
    wanted = target.kinds if kinds is None else [k for k in target.kinds if k in kinds]
    claims = epsilon(target.events, target.delta), epsilon_pld(target.events, target.delta)
    found = []
    for kind in wanted:
        attack = _two_worlds if kind == "two-world" else _one_run
        for method, count, bound in attack(target, noise, runs, progress):
            shown, gate = bound(confidence), bound(GATE)
            found.append(Finding(target.name, method, count, target.delta, *claims, shown, gate))
    return found


def check(findings: Sequence[Finding]) -> None:
    """Fail on the first broken claim.

    Raises:
        ClaimBroken: a bound at 1 - 1e-7 exceeds its claim.
    """
    for found in findings:
        if not found.holds:
            raise ClaimBroken(
                f"{found.name}: an attack shows more than is claimed",
                value=f"ε ≥ {found.gate.epsilon:.4g} at confidence 1 - 1e-7, {found.method}",
                bound=f"claimed at most {min(found.claim, found.pld):.4g} at δ = {found.delta:g}",
                remedy="stop releasing with this mechanism, and report it",
            )


_Attack = Iterator[tuple[str, int, Callable[[float], Bound]]]


def _two_worlds(
    target: Target, noise: NoiseSource, runs: int, progress: Progress | None
) -> _Attack:
    without, with_ = (scores(target, world, runs, noise, progress) for world in (False, True))
    delta, claimed = target.delta, _smooth(target.events)

    def assuming_nothing(confidence: float) -> Bound:
        return two_world(without, with_, delta, confidence)

    def against_gaussian(confidence: float) -> Bound:
        return two_world_gaussian(without, with_, delta, confidence)

    def against_sampled(confidence: float) -> Bound:
        return two_world_kind(without, with_, delta, confidence, claim)

    @cache
    def claim(factor: float) -> Curve:
        more = [replace(e, noise_multiplier=factor * e.noise_multiplier) for e in sampled]
        return pld.compose(more, delta, replaced=False) or _Nothing()

    sampled = [e for e in claimed if isinstance(e, PoissonGaussian | FixedSizeGaussian)]
    yield "two-world", runs, assuming_nothing
    if gaussian.mu(claimed) is not None:
        yield "two-world, Gaussian", runs, against_gaussian
    elif len(sampled) == len(claimed):
        yield "two-world, sampled Gaussian", runs, against_sampled


class _Nothing:
    """The curve of a claim so weak that no distribution holds it: nothing refutes it."""

    def epsilon(self, delta: float) -> float:
        return math.inf

    def delta(self, epsilon: float) -> float:
        return 1.0


def _smooth(events: Sequence[Event]) -> list[Event]:
    """Discrete Gaussians as continuous ones, where nobody could tell them apart.

    On a grid this fine their chances differ by less than 1e-12 (``indistinct`` in
    :mod:`penstock.privacy.accounting.gaussian`): far less than any number of runs can show.
    """
    return [
        Gaussian(e.noise_multiplier, e.count)
        if isinstance(e, DiscreteGaussian | DistributedGaussian) and e.grid_sd >= 2**20
        else e
        for e in events
    ]


def scores(
    target: Target, world: bool, runs: int, noise: NoiseSource, progress: Progress | None = None
) -> Array:
    """All runs of one world, a bounded number at a time; (runs,)."""
    if target.scores is None:
        problem = Problem(target.name, "has no two-world test", remedy="Use --one-run")
        raise InvalidInput("audit", [problem])
    parts = []
    for at in range(0, runs, target.at_once):
        size = min(target.at_once, runs - at)
        parts.append(target.scores(world, size, noise))
        if progress is not None:
            progress(size)
    return np.concatenate(parts)


def _one_run(target: Target, noise: NoiseSource, _: int, progress: Progress | None) -> _Attack:
    if target.canaries is None:
        return
    included, found = target.canaries(noise)
    guesses, right = guess(included, found, target.guessed)
    m = len(included)
    if progress is not None:
        progress(1)
    yield "one-run", m, lambda confidence: one_run(m, guesses, right, target.delta, confidence)


def guess(included: Bools, scores: Array, share: float) -> tuple[int, int]:
    """How many coins are guessed, and how many of these guesses are right.

    As many of the highest scores are guessed "in" as of the lowest "out"; how many is fixed.

    Args:
        included, scores: (m,), the coins and what the output says of each.
        share: of the coins, in (0, 1].
    """
    half = max(1, int(share * len(scores)) // 2)
    order = np.argsort(scores, kind="stable")
    right = int(included[order[-half:]].sum()) + int((~included[order[:half]]).sum())
    return 2 * half, right
