"""Laws of constant work: what is computed depends on public sizes, never on what rows hold.

Each mechanism's whole release runs over extreme data sets. The noised values of one of them are
given to all, so that what is computed *from releases* is the same; whatever else differs, a call,
an array's size, a tensor's shape, an instruction, differs by the rows. (A study with
``nullable = false`` on a rare column could tell 0 from 1 complete persons by the training time.)
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.carried_out import release
from tests.support.traces import code_of, instructions_of, opcodes_of, trace_of

from penstock.mechanisms import (
    MECHANISMS,
    Gibbs,
    Maf,
    Scoring,
    SlicedWasserstein,
    Structured,
    Trajectory,
)
from penstock.mechanisms.classes import mixture
from penstock.mechanisms.copula import correlations, densities, divided_bins
from penstock.mechanisms.flow import engine, kernel
from penstock.mechanisms.flow.architecture import Architecture, active
from penstock.mechanisms.flow.engine import make_flow
from penstock.mechanisms.plans import plan
from penstock.mechanisms.sliced_wasserstein import flow as sliced_flow
from penstock.mechanisms.structured import beliefs
from penstock.mechanisms.structured import plan as structured_plan
from penstock.mechanisms.structured import run as structured
from penstock.mechanisms.structured.outcomes import baselines
from penstock.mechanisms.tables import fitting, margins, moments
from penstock.mechanisms.trajectory import moment_match
from penstock.privacy import measurements
from penstock.privacy.noise.sources import NOBODY, SeededNoise, batch_size, poisson_batch
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock_client.rows.snapshot import arrange_by_person

Array = NDArray[np.float64]
Coded = dict[str, Array]
PERSONS, ROWS = 70, 2  # a full block of lanes and a part of one

SCHEMA = Schema(
    (
        Column("age", "continuous", 18.0, 100.0),
        Column("crp", "continuous", 0.0, 500.0, 1, spike=0.0),
        Column("sex", "binary"),
        Column("stage", "ordered", levels=("i", "ii", "iii")),
        Column("site", "categorical", levels=("a", "b", "c")),
        Column("ldl", "continuous", 1.0, 9.0, nullable=True),
        Column("falls", "integer", 0, 20),
        Column("years", "duration", 0.0, 10.0, event="died", varies=False),
        Column("died", "event", varies=False),
    ),
    "id",
    ROWS,
)


def coded_rows() -> Coded:
    rng, n = np.random.default_rng(0), PERSONS * ROWS
    return {
        "age": rng.uniform(18, 100, n),
        "crp": rng.integers(0, 5000, n) / 10 * rng.integers(0, 2, n),
        "sex": rng.integers(0, 2, n).astype(float),
        "stage": rng.integers(0, 3, n).astype(float),
        "site": rng.integers(0, 3, n).astype(float),
        "ldl": np.where(rng.random(n) < 0.3, np.nan, rng.uniform(1, 9, n)),
        "falls": rng.integers(0, 20, n).astype(float),
        "years": rng.uniform(0, 10, n),
        "died": rng.integers(0, 2, n).astype(float),
    }


def everywhere(value: float) -> Callable[[Coded], Coded]:
    return lambda coded: {name: np.full_like(x, value) for name, x in coded.items()}


def only_first(coded: Coded) -> Coded:
    """One person is complete; nobody else."""
    return {**coded, "age": np.where(np.arange(len(coded["age"])) < 1, coded["age"], np.nan)}


def one_at_each_bound(coded: Coded) -> Coded:
    high = everywhere(1e300)(coded)
    high.update({name: np.full_like(coded[name], 2.0) for name in ("stage", "site")})
    high.update({name: np.ones_like(coded[name]) for name in ("sex", "died")})
    return high


DATA: dict[str, Callable[[Coded], Coded]] = {
    "some are missing": lambda coded: coded,
    "nobody is complete": everywhere(math.nan),
    "one person is complete": only_first,
    "all are complete": lambda coded: {**coded, "ldl": np.full_like(coded["ldl"], 4.0)},
    "all are alike": everywhere(1.0),
    "all at the lower bounds": everywhere(0.0),
    "all at the upper bounds": one_at_each_bound,
    "all infinite": everywhere(-math.inf),
    "all too small for full precision": everywhere(5e-324),
}

FEW = ("some are missing", "one person is complete", "all at the upper bounds", "all infinite")
"""For variants of a mechanism that was traced on all of them."""

FORMAL = PrivacyRequest(3.0, 1e-5)
COX = Estimand("hr", "cox", "years", "sex", adjust=("age", "stage"))
STRATIFIED = Estimand("by", "cox", "years", "sex", adjust=("age",), strata=("stage", "site"))
OLS = Estimand("slope", "ols", "ldl", "age", adjust=("sex",))
ORDINAL = Estimand("cor", "ordinal", "stage", "crp", adjust=("age",))
MULTINOMIAL = Estimand("rrr", "multinomial", "site", "crp", adjust=("ldl",), outcome_level="c")
LOGISTIC = Estimand("or", "logistic", "sex", "crp", adjust=("age",))
DESCRIBED = (
    Estimand("m", "mean", "ldl", where="falls > 2"),
    Estimand("q", "quantile", "crp", probability=0.5),
    Estimand("l", "share", "site", outcome_level="b"),
    Estimand("t", "survival", "years", at=2.0),
    Estimand("n", "count", "site", outcome_level="b"),
    Estimand("d", "count", "years", until=2.0, where="falls > 2"),
    Estimand("v", "rate", "years", until=2.0),
    Estimand("c", "table", "site", term="stage", level="ii", outcome_level="b"),
)
RATE = Estimand("rr", "negative-binomial", "falls", "sex", adjust=("age",), exposure="ldl")


@dataclass(frozen=True)
class Case:
    mechanism: Any
    estimands: tuple[Estimand, ...] = ()
    backend: str = "auto"
    data: tuple[str, ...] = FEW
    wide: bool = False
    fine: bool = False


CASES = {
    "maf": Case(Maf(copies=1, refits=0, steps=3, flows=1, hidden=(6,)), data=tuple(DATA)),
    "maf, Poisson": Case(
        Maf(copies=1, refits=0, steps=3, flows=1, hidden=(6,), sampling="poisson", rate=0.2)
    ),
    "maf, injected": Case(Maf(copies=1, refits=0, steps=2, flows=1, hidden=(6,), w=1e-4)),
    "maf, torch": Case(Maf(copies=1, refits=0, steps=2, flows=1, hidden=(6,)), backend="torch"),
    "sketch": Case(
        SlicedWasserstein(copies=1, refits=0, steps=3, bases=2, bins=16), data=tuple(DATA)
    ),
    "presampled": Case(
        SlicedWasserstein(variant="presampled", copies=1, refits=0, steps=3, bases=1)
    ),
    "structured": Case(
        Structured(copies=1, refits=0, planted=1, effects=("years ~ age:sex",)),
        (COX,),
        data=tuple(DATA),
    ),
    "structured, numbers": Case(Structured(copies=1, refits=0), (COX, OLS, LOGISTIC)),
    "structured, rates": Case(Structured(copies=1, refits=0, planted=1, most_rows=100), (RATE,)),
    "structured, levels": Case(Structured(copies=1, refits=0), (ORDINAL, MULTINOMIAL)),
    "structured, wide": Case(Structured(copies=1, refits=0, planted=0), wide=True),
    "structured, fine": Case(Structured(copies=1, refits=1, per_fit=1, planted=0), fine=True),
    "structured, strata": Case(Structured(copies=1, refits=1, planted=0), (STRATIFIED,)),
    "trajectory": Case(
        Trajectory(
            "stage", copies=1, refits=0, particles=8, paths=4, steps=3, dependence="inferred"
        ),
        data=tuple(DATA),
    ),
    "trajectory, measured": Case(
        Trajectory("stage", copies=1, refits=0, particles=8, paths=4), data=tuple(DATA)
    ),
    "trajectory, ended": Case(
        Trajectory(
            "stage", copies=1, refits=0, particles=8, paths=4, end="years", visit_times=(0, 2, 5)
        ),
        data=tuple(DATA),
    ),
    "trajectory, k-means": Case(
        Trajectory(
            "stage", copies=1, refits=0, particles=8, paths=4, steps=2, start="k-means", modes=2
        )
    ),
    "gibbs, cox": Case(Gibbs(), (COX,), data=tuple(DATA)),
    "gibbs, ols": Case(Gibbs(steps=3), (OLS,)),
    "scoring": Case(Scoring(), (COX,), data=tuple(DATA)),
    "scoring, numbers": Case(Scoring(), (COX, OLS, LOGISTIC)),
    "scoring, a rate": Case(Scoring(), (RATE,)),
    "scoring, no regression": Case(Scoring(), DESCRIBED, data=tuple(DATA)),
}

NOISED = [
    (measurements, "add_gaussian"),
    (measurements, "add_discrete_gaussian"),
]


class Transcript:
    """Noised values: made once, and then the same in every world."""

    def __init__(self) -> None:
        self.values: list[Array] = []
        self.at: int | None = None

    @contextmanager
    def used(self, again: bool) -> Iterator[None]:
        self.at = 0 if again else None
        patches = [patch.object(m, name, self._of(getattr(m, name))) for m, name in NOISED]
        for each in patches:
            each.start()
        try:
            yield
        finally:
            for each in patches:
                each.stop()
        assert not again or self.at == len(self.values)

    def _of(self, add: Callable[..., Array]) -> Callable[..., Array]:
        def noised(value: Any, *arguments: Any, **named: Any) -> Array:
            if self.at is None:
                self.values.append(add(value, *arguments, **named))
                return self.values[-1].copy()
            self.at += 1
            return self.values[self.at - 1].copy()

        return noised


class World:
    """A mechanism's release over any data set, from certified rows to the last table."""

    def __init__(self, case: Case) -> None:
        self.case, self.data, self.transcript = case, case.data, Transcript()
        self.encoding = MECHANISMS.of(case.mechanism).lay_out(SCHEMA)
        levels = 1 if case.wide else structured_plan._WIDE
        least = math.inf if case.fine else structured_plan._FINE
        with (
            patch.object(structured_plan, "_WIDE", levels),
            patch.object(structured_plan, "_FINE", least),
        ):
            self.plan = plan(case.mechanism, SCHEMA, PERSONS, FORMAL, case.estimands)
        with self.transcript.used(again=False):
            self._release(coded_rows())

    def run(self, coded: Coded) -> None:
        with self.transcript.used(again=True):
            self._release(coded)

    def _release(self, coded: Coded) -> None:
        noise = SeededNoise(1)
        person = np.repeat(np.arange(PERSONS), ROWS)
        rows, present = arrange_by_person(coded, person, PERSONS, self.encoding, noise.generator())

        def made(arch: Any, device: str, threads: int = 1) -> Any:
            return make_flow(arch, device, self.case.backend, threads=threads)

        with patch.object(engine, "make_flow", made):
            list(release(self.case.mechanism, self.plan, self.encoding, rows, present, noise))


@pytest.fixture(autouse=True, scope="module")
def few_public_rows() -> Iterator[None]:
    """Quasi-random rows, at which matches and flows look: fewer do here."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fitting, "_MATCH_POWER", 6)
        patched.setattr(fitting, "_REFIT_MATCH_POWER", 6)
        patched.setattr(sliced_flow, "_REFERENCE_POWER", 6)
        patched.setattr(structured, "_POWER", 6)
        patched.setattr(baselines, "_LEAST_PERSONS", 0.0)
        patched.setattr(densities, "_ROUNDS", 5)
        patched.setattr(correlations, "_MATCH_ROUNDS", 3)
        patched.setattr(beliefs, "_STEPS", 2)
        patched.setattr(mixture, "_MOST_STEPS", 3)
        patched.setattr(divided_bins, "_STANDS", 0.01)
        patched.setattr(divided_bins, "MOST_DIVIDED", 48)
        patched.setattr(divided_bins, "FEWER_DIVIDED", 24)
        patched.setattr(moment_match, "_POWER", 6)
        patched.setattr(moment_match, "_ROUNDS", 2)
        yield


@pytest.fixture(params=CASES, scope="module")
def world(few_public_rows: None, request: pytest.FixtureRequest) -> World:
    made = World(CASES[request.param])
    made.run(coded_rows())  # what is cached is cached now
    return made


def first_difference(one: list[Any], other: list[Any]) -> str:
    for own, theirs in zip(one, other, strict=False):
        for i, (a, b) in enumerate(zip(own, theirs, strict=False)):
            if a != b:
                return f"{own[max(0, i - 6) : i]} and then {a} or {b}"
    return f"{[*map(len, one)]} or {[*map(len, other)]} events"


@pytest.mark.thorough
def test_what_is_computed_does_not_depend_on_rows(world: World) -> None:
    some = coded_rows()
    expected = trace_of(lambda: world.run(some))
    assert any(kind == "array" for own in expected for kind, *_ in own)
    for name in world.data:
        coded = DATA[name](coded_rows())
        seen = trace_of(lambda coded=coded: world.run(coded))  # type: ignore[misc]
        assert seen == expected, f"{name}: {first_difference(expected, seen)}"


def test_the_packages_own_instructions_do_not_depend_on_rows(world: World) -> None:
    counts = {}
    for name in ("some are missing", "nobody is complete", "all at the upper bounds"):
        coded = DATA[name](coded_rows())
        counts[name] = opcodes_of(lambda coded=coded: world.run(coded))  # type: ignore[misc]
    assert len(set(counts.values())) == 1, counts
    assert min(counts.values()) > 1000


# -- planted faults: each of them is seen -------------------------------------------------------


def skipping(real: Any) -> Any:
    """Absent persons are left out of the sum."""

    def load(self: Any, rows: Array, present: NDArray[np.bool_]) -> Any:
        there = present.any(axis=1)
        return real(self, rows[there], present[there])

    return load


def until_settled(real: Any) -> Any:
    def histograms(rows: Array, present: NDArray[np.bool_], *given: Any) -> Any:
        for _ in range(int(present.sum()) // 8):
            margins.clamp(rows[0], np.zeros(rows.shape[2]), np.ones(rows.shape[2]))
        return real(rows, present, *given)

    return histograms


def picked(real: Any) -> Any:
    """Rows are picked by presence before they are summed."""

    def whole(scores: Array, present: NDArray[np.bool_], radius: float) -> Any:
        return real(scores[present][:, None], np.ones((present.sum(), 1), bool), radius)

    return whole


@pytest.mark.parametrize(
    ("owner", "name", "make"),
    [
        (kernel.KernelFlow, "load", skipping),
        (moments, "whole_moments", picked),
        (fitting, "release_histograms", until_settled),
    ],
    ids=[
        "rows skipped by the engine",
        "rows picked by presence",
        "a loop as long as there are rows",
    ],
)
def test_a_planted_fault_is_seen(owner: Any, name: str, make: Any) -> None:
    if owner is kernel.KernelFlow and not kernel.available():
        pytest.skip(kernel.why_not())
    made = World(CASES["maf"])
    with patch.object(owner, name, make(getattr(owner, name))):
        made.run(coded_rows())
        some, first = coded_rows(), only_first(coded_rows())
        one, other = trace_of(lambda: made.run(some)), trace_of(lambda: made.run(first))
    assert one != other


# -- machine instructions of the kernel ----------------------------------------------------------

needs_kernel = pytest.mark.skipif(not kernel.available(), reason=kernel.why_not())
LISTED = 3  # all lanes of a block are computed, whoever they are


def kernel_data(k: int) -> dict[str, tuple[Array, NDArray[np.bool_]]]:
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((LISTED, k, 1))
    here, nobody = np.ones((LISTED, k), bool), np.zeros((LISTED, k), bool)
    one, some = nobody.copy(), rng.random((LISTED, k)) < 0.5
    one[0] = True
    return {
        "nobody": (0 * rows, nobody),
        "one": (rows, one),
        "some": (rows, some),
        "all at the bounds": (np.full_like(rows, 8.0), here),
        "not numbers": (np.full_like(rows, np.nan), here),
        "too small for full precision": (np.full_like(rows, 1e-40), here),
    }


def stepped(flow: Any, rows: Array, present: NDArray[np.bool_], who: Any) -> int:
    data, calls = flow.load(rows, present), list[Any]()
    with patch.object(flow, "_call", lambda function, *given: calls.append((function, given))):
        flow.clipped_sum(data, who, 0.1)
    [(function, given)] = calls
    # The call alone, without what Python does around it. Its sum has to live as long.
    total, persons = np.empty(len(flow.get_flat())), flow._persons(data, who)
    given = (ctypes.byref(persons[0]), given[1], total.ctypes.data, None)
    shape, weights = ctypes.byref(flow._shape), flow._weights.ctypes.data
    where = code_of(f"kernel-{LEVEL}.so")
    count = instructions_of(lambda: function(shape, weights, 1, *given), where)
    if count is None:
        pytest.skip("no compiler, or this system lets nobody step through a child process")
    return count


# As small as a flow can be: every instruction is stepped through.
SMALLEST = Architecture(1, flows=1, hidden=(1,), activation="relu")


LEVEL = "generic"


def smallest() -> kernel.KernelFlow:
    flow = kernel.KernelFlow(SMALLEST, threads=1)
    rng = np.random.default_rng(7)
    flow.set_flat(rng.standard_normal(len(active(SMALLEST))) * active(SMALLEST))
    return flow


@needs_kernel
@pytest.mark.skipif(sys.platform != "linux", reason="ptrace is Linux's")
@pytest.mark.parametrize(
    ("k", "names"),
    [
        (1, ("some", "nobody", "one", "not numbers", "too small for full precision")),
        (2, ("some", "nobody", "all at the bounds")),
    ],
)
def test_the_kernels_instructions_do_not_depend_on_rows(
    k: int, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kernel.SWITCH, LEVEL)
    flow, data = smallest(), kernel_data(k)
    counts = {name: stepped(flow, *data[name], None) for name in names}
    assert len(set(counts.values())) == 1, counts
    assert min(counts.values()) > 1000


@needs_kernel
@pytest.mark.skipif(sys.platform != "linux", reason="ptrace is Linux's")
def test_stepping_sees_rows_that_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: as before, only those present are computed."""
    monkeypatch.setenv(kernel.SWITCH, LEVEL)
    flow = smallest()
    rows, present = kernel_data(1)["one"]
    everyone = stepped(flow, rows, np.ones_like(present), None)
    assert stepped(flow, rows, present, np.flatnonzero(present[:, 0])) < everyone


# -- the size of a Poisson batch is the sampler's secret ------------------------------------------


@pytest.mark.parametrize(("n", "rate"), [(1, 0.5), (50, 0.9), (2000, 0.128), (10**6, 1e-4)])
def test_a_batch_has_a_public_size_that_is_hardly_ever_too_small(n: int, rate: float) -> None:
    from scipy.special import bdtrc

    size = batch_size(n, rate)
    assert n * rate <= size <= n
    assert size == n or bdtrc(size, n, rate) <= 2.0**-60
    # Chernoff's bound is no more than a few persons wasteful.
    assert size <= n * rate + 10 * math.sqrt(n * rate * (1 - rate)) + 45
    batch = poisson_batch(n, rate, SeededNoise(2))
    there = batch[batch != NOBODY]
    assert len(batch) == size
    assert len(set(there.tolist())) == len(there)
    assert (batch[len(there) :] == NOBODY).all()
