"""Laws of the compiled kernel: the reference's numbers, whatever the processor and the threads.

What holds for every engine (inverse, Jacobian, clipping, hostile rows) is in test_maf and
test_dpsgd, which run on the kernel too.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.engines import gaussian_rows, perturbed

from penstock.base.errors import InvalidInput
from penstock.mechanisms.flow import kernel
from penstock.mechanisms.flow.architecture import Architecture, active
from penstock.mechanisms.flow.engine import Flow, make_flow
from penstock.mechanisms.flow.kernel import LEVELS, SWITCH, KernelFlow
from penstock.mechanisms.flow.training import Training, fit
from penstock.privacy.noise.sources import SeededNoise

Array = NDArray[np.float64]

ARCHITECTURES = [
    Architecture(1),
    Architecture(2, flows=1, hidden=(3,)),
    Architecture(5, flows=3, hidden=(16, 24)),
    Architecture(6, activation="relu"),
    Architecture(7, hidden=(64,), linear=False),
    Architecture(20, flows=2, hidden=(7, 30, 9)),
]
TOLERANCE = {"single": 1e-5, "double": 1e-12}

needs_kernel = pytest.mark.skipif(not kernel.available(), reason=kernel.why_not())


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernel at most as good as this; other processors have other tests of their own."""
    monkeypatch.setenv(SWITCH, request.param)
    if not kernel.available():
        pytest.skip(kernel.why_not())
    return str(request.param)


def twins(arch: Architecture, precision: str) -> tuple[Flow, KernelFlow]:
    reference = perturbed(arch, "torch", precision)
    flow = KernelFlow(arch, precision)
    flow.set_flat(reference.get_flat())
    return reference, flow


def close(a: Array, b: Array, tolerance: float) -> bool:
    """Relative to the largest number there is."""
    return bool(np.abs(a - b).max() <= tolerance * max(float(np.abs(b).max()), 1e-30))


def test_where_there_is_a_compiler_there_is_a_kernel() -> None:
    """So that nothing is skipped by mistake: a skip here says why."""
    if os.environ.get(SWITCH) == "off":
        pytest.skip(kernel.why_not())
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        pytest.skip("no C++ compiler")
    assert kernel.available(), kernel.why_not()


@needs_kernel
@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("arch", ARCHITECTURES, ids=str)
def test_it_computes_what_the_reference_computes(
    arch: Architecture, precision: str, level: str
) -> None:
    reference, flow = twins(arch, precision)
    tolerance = TOLERANCE[precision]
    np.testing.assert_array_equal(flow.get_flat(), reference.get_flat())
    x = gaussian_rows(70, arch.d)  # a full block of lanes and a part of one
    x[0], x[1, 0] = np.nan, np.inf
    z = reference.to_latent(x)
    assert close(flow.to_latent(x), z, tolerance)
    assert close(flow.log_prob(x), reference.log_prob(x), tolerance)
    back = flow.from_latent(z[2:])
    assert close(back, reference.from_latent(z[2:]), 10 * tolerance)
    for k in (1, 3):
        rows = gaussian_rows(70, k, arch.d)
        present = np.random.default_rng(3).random((70, k)) < 0.8
        there, here = reference.load(rows, present), flow.load(rows, present)
        norms = reference.person_norms(there)
        assert close(flow.person_norms(here), norms, tolerance)
        for who in (None, np.arange(69, 2, -1)):
            for clip in (float(np.median(norms)), math.inf):
                expected = reference.clipped_sum(there, who, clip)
                assert close(flow.clipped_sum(here, who, clip), expected, tolerance)


@needs_kernel
@pytest.mark.parametrize("precision", TOLERANCE)
def test_activations_are_exact_to_a_few_units(precision: str, level: str) -> None:
    """tanh and exp are the kernel's own; seen here through a block of one column."""
    flow = KernelFlow(Architecture(1, flows=1, hidden=(1,)), precision)
    dtype = np.float32 if precision == "single" else np.float64
    unit = float(np.finfo(dtype).eps)
    # Eighths are whole in both precisions, as are powers of two.
    for x in np.concatenate([np.arange(-240, 241) / 8, 2.0 ** np.arange(-90, 0)]):
        # Parameters: hidden (weight, bias), outputs ((mean, scale) by (hidden, column)), biases.
        mean = -flow_at(flow, np.array([0, x, 1, 0, 0, 0, 0, 0]))
        assert mean == pytest.approx(math.tanh(x), rel=4 * unit, abs=0)
        shrink = flow_at(flow, np.array([0, 0, 0, 0, 0, 0, -1, x]))
        # An error of one unit in an exponent of up to 3 makes three in the power.
        assert shrink == pytest.approx(math.exp(-3 * math.tanh(x / 3)), rel=16 * unit, abs=0)


def flow_at(flow: KernelFlow, parameters: Array) -> float:
    flow.set_flat(parameters)
    return float(flow.to_latent(np.zeros((1, 1)))[0, 0])


@needs_kernel
@pytest.mark.parametrize(
    "training",
    [
        Training(50, math.inf, None, batch=32),
        Training(50, 2.0, None, average=0.5),
        Training(50, 2.0, 0.7),
        Training(50, 2.0, 0.7, rate=0.3),
    ],
    ids=["batches", "clipped", "noisy", "poisson"],
)
@pytest.mark.parametrize("precision", ["single", "double"])
def test_training_ends_where_the_reference_ends(training: Training, precision: str) -> None:
    arch = Architecture(4, flows=2, hidden=(12,))
    rows = gaussian_rows(150, 1, 4) @ np.random.default_rng(2).standard_normal((4, 4)) / 2
    flows = [make_flow(arch, backend=engine, precision=precision) for engine in ("torch", "kernel")]
    for flow in flows:
        fit(flow, rows, np.ones((150, 1), bool), training, SeededNoise(4))
    reference, flow = flows
    tolerance = 1e-5 if precision == "single" else 1e-9
    assert close(flow.get_flat(), reference.get_flat(), tolerance)
    assert close(flow.log_prob(rows[:, 0]), reference.log_prob(rows[:, 0]), tolerance)
    assert not close(flow.get_flat(), KernelFlow(arch).get_flat(), 1e-2)


@dataclass
class Stepping:
    """A kernel that cannot make several steps at once."""

    flow: KernelFlow

    def __getattr__(self, name: str) -> object:
        if name == "descend":
            raise AttributeError(name)
        return getattr(self.flow, name)


@needs_kernel
@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize(
    "training",
    [
        Training(70, math.inf, None, batch=48),
        Training(70, 2.0, None, average=0.4),
        Training(70, 2.0, None, rate=0.02),  # some batches are empty
    ],
    ids=["batches", "averaged", "poisson"],
)
def test_many_steps_at_once_are_the_same_steps(training: Training, precision: str) -> None:
    rows, present = gaussian_rows(90, 2, 3), np.random.default_rng(1).random((90, 2)) < 0.8
    arch = Architecture(3, flows=2, hidden=(8,))
    leaping, stepping = KernelFlow(arch, precision), Stepping(KernelFlow(arch, precision))
    fit(leaping, rows, present, training, SeededNoise(4))
    fit(stepping, rows, present, training, SeededNoise(4))  # type: ignore[arg-type]
    np.testing.assert_array_equal(leaping.get_flat(), stepping.get_flat())


def everything(flow: KernelFlow, k: int) -> list[Array]:
    rows = gaussian_rows(3000, k, 20)
    data = flow.load(rows, np.random.default_rng(2).random((3000, k)) < 0.9)
    z = flow.to_latent(rows[:, 0])
    whole, some = None, np.random.default_rng(3).permutation(3000)[:1111]
    return [
        z,
        flow.log_prob(rows[:, 0]),
        flow.from_latent(z),
        flow.person_norms(data),
        *(flow.clipped_sum(data, who, 5.0) for who in (whole, some)),
    ]


@needs_kernel
@pytest.mark.parametrize("k", [1, 2])
def test_the_number_of_threads_changes_no_bit(k: int) -> None:
    arch = Architecture(20, flows=2, hidden=(24, 24))  # enough work for threads to be used
    alone = everything(perturbed_kernel(arch, 1), k)
    for threads in (2, 3, 16):
        for one, many in zip(alone, everything(perturbed_kernel(arch, threads), k), strict=True):
            np.testing.assert_array_equal(one, many)


def perturbed_kernel(arch: Architecture, threads: int) -> KernelFlow:
    flow = KernelFlow(arch, threads=threads)
    there = active(arch)
    flow.set_flat(0.2 * np.random.default_rng(7).standard_normal(len(there)) * there)
    return flow


@needs_kernel
def test_calls_from_several_threads_do_not_meet() -> None:
    shared = perturbed_kernel(Architecture(20, flows=2, hidden=(24, 24)), 2)
    alone = everything(shared, 1)
    with ThreadPoolExecutor(4) as pool:
        for results in pool.map(lambda _: everything(shared, 1), range(8)):
            for one, other in zip(alone, results, strict=True):
                np.testing.assert_array_equal(one, other)


@needs_kernel
@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("size", [1e10, 1e30])
def test_extreme_weights_spoil_nobody_else(size: float, k: int, precision: str) -> None:
    arch = Architecture(4, flows=2, hidden=(9,), activation="relu")
    flow, there = KernelFlow(arch, precision), active(arch)
    flow.set_flat(size * np.random.default_rng(7).standard_normal(len(there)) * there)
    rows = gaussian_rows(80, k, 4)
    rows[::3] *= 1e-37  # some gradients overflow, some do not
    data = flow.load(rows, np.ones((80, k), bool))
    one_by_one = np.array([flow.clipped_sum(data, np.array([i]), 1.0) for i in range(80)])
    together = flow.clipped_sum(data, None, 1.0)
    assert np.isfinite(together).all()
    np.testing.assert_allclose(together, one_by_one.sum(axis=0), rtol=1e-5, atol=1e-5)
    assert (np.linalg.norm(one_by_one, axis=1) <= 1.0).all()


@needs_kernel
@pytest.mark.parametrize("k", [1, 3])
def test_no_rows_are_no_trouble(k: int) -> None:
    flow = KernelFlow(Architecture(3))
    assert flow.to_latent(np.zeros((0, 3))).shape == flow.from_latent(np.zeros((0, 3))).shape
    assert flow.log_prob(np.zeros((0, 3))).shape == (0,)
    for n, who in ((0, None), (5, np.zeros(0, np.intp))):
        data = flow.load(np.zeros((n, k, 3)), np.ones((n, k), bool))
        assert not flow.clipped_sum(data, who, 1.0).any()
    absent = flow.load(np.full((5, k, 3), np.nan), np.zeros((5, k), bool))
    assert not flow.clipped_sum(absent, None, math.inf).any()
    assert not flow.person_norms(absent).any()


@needs_kernel
def test_what_cannot_be_is_refused() -> None:
    flow = KernelFlow(Architecture(3))
    data = flow.load(np.ones((5, 1, 3)), np.ones((5, 1), bool))
    for who in (np.array([5]), np.array([-2])):
        with pytest.raises(InvalidInput, match="no such person"):
            flow.clipped_sum(data, who, 1.0)
    for x in (np.zeros((5, 2)), np.zeros(3)):
        with pytest.raises(InvalidInput, match="shape"):
            flow.to_latent(x)
    with pytest.raises(InvalidInput, match="shape"):
        flow.set_flat(flow.get_flat()[1:])
    with pytest.raises(InvalidInput, match="shape"):
        flow.load(np.zeros((5, 1, 3)), np.ones((5, 2), bool))
    p = len(flow.get_flat())
    good: dict[str, Any] = {
        "batches": [None],
        "active": np.arange(p),
        "schedule": np.ones((1, 4)),
        "state": np.zeros((4, p)),
    }
    flow.descend(data, clip=1.0, decays=(0.9, 0.999), **good)
    assert good["state"].any()
    for name, bad in (
        ("batches", [None, np.arange(2)]),
        ("active", np.arange(1, p + 1)),
        ("schedule", np.ones((1, 3))),
        ("state", np.zeros((4, p - 1))),
    ):
        with pytest.raises(InvalidInput, match=name):
            flow.descend(data, clip=1.0, decays=(0.9, 0.999), **{**good, name: bad})
    with pytest.raises(InvalidInput, match="precision"):
        KernelFlow(Architecture(3), "half")
    with pytest.raises(InvalidInput, match="threads"):
        KernelFlow(Architecture(3), threads=0)


def test_off_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "off")
    assert not kernel.available()
    with pytest.raises(InvalidInput, match=f"{SWITCH}=off"):
        KernelFlow(Architecture(3))


CONFINED = """
from penstock_client.work.worker import isolate
isolate(1.0)
import numpy as np
from penstock.mechanisms.flow.architecture import Architecture
from penstock.mechanisms.flow.kernel import KernelFlow
print(KernelFlow(Architecture(3)).log_prob(np.zeros((1, 3)))[0])
"""


@needs_kernel
@pytest.mark.skipif(sys.platform != "linux", reason="the worker's limits are Linux's")
def test_it_loads_where_the_worker_is_confined() -> None:
    command = [sys.executable, "-c", CONFINED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(-1.5 * math.log(2 * math.pi), rel=1e-6)
