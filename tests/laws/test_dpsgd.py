"""Laws of private training, on every engine: exact clipping, exact noise, nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from tests.support.engines import BACKENDS, KERNEL, perturbed

from penstock.base.errors import InvalidInput
from penstock.mechanisms.flow import reference
from penstock.mechanisms.flow import training as dpsgd
from penstock.mechanisms.flow.architecture import Architecture, active, public_clip, weights
from penstock.mechanisms.flow.clipping import inner_clip
from penstock.mechanisms.flow.engine import Flow, make_flow
from penstock.mechanisms.flow.reference import TorchFlows
from penstock.mechanisms.flow.training import LABEL, Training, fit, fit_many
from penstock.privacy import measurements
from penstock.privacy.events import Gaussian, PoissonGaussian
from penstock.privacy.noise import sources as noises
from penstock.privacy.noise.sources import SeededNoise, add_gaussian, poisson_sample

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

ARCHITECTURES = [
    Architecture(1),
    Architecture(4, flows=2, hidden=(8,)),
    Architecture(5, flows=3, hidden=(7, 9), activation="relu"),
    Architecture(6, flows=2, hidden=(9,), linear=False),
    Architecture(20, flows=2, hidden=(6,)),
]

on_every_engine = pytest.mark.parametrize("backend", BACKENDS)


def make_rows(n: int, k: int, d: int) -> tuple[Array, Bools]:
    rng = np.random.default_rng(5)
    present = rng.random((n, k)) < 0.7
    present[0] = False
    present[1] = True
    return rng.standard_normal((n, k, d)), present


def explicit_gradients(flow: Flow, rows: Array, present: Bools) -> Array:
    """(n, p): each person's gradient by a backward pass of its own, masked by hand."""
    net = TorchFlows(flow.arch, precision="double")
    net.use(torch.as_tensor(flow.get_flat()[None]).requires_grad_())
    gradients = []
    for x, there in zip(torch.as_tensor(rows), present, strict=True):
        loss = -net.log_prob(x[None, there]).sum() + 0 * net.parameters.sum()
        gradients.append(torch.autograd.grad(loss, net.parameters)[0][0].numpy())
    return np.array(gradients) * active(flow.arch)


def total_of(flow: Flow, rows: Array, present: Bools, clip: float) -> Array:
    return flow.clipped_sum(flow.load(rows, present), None, clip)


@on_every_engine
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("arch", ARCHITECTURES, ids=str)
def test_norms_agree_with_explicit_gradients(arch: Architecture, k: int, backend: str) -> None:
    flow, (rows, present) = perturbed(arch, backend), make_rows(13, k, arch.d)
    expected = np.linalg.norm(explicit_gradients(flow, rows, present), axis=1)
    norms = flow.person_norms(flow.load(rows, present))
    np.testing.assert_allclose(norms, expected, rtol=1e-10)


@on_every_engine
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("arch", ARCHITECTURES, ids=str)
def test_clipped_sum_agrees_with_explicit_gradients(
    arch: Architecture, k: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(reference._PASS, "cpu", 16)  # several passes, the last one short
    flow, (rows, present) = perturbed(arch, backend), make_rows(41, k, arch.d)
    gradients = explicit_gradients(flow, rows, present)
    norms = np.linalg.norm(gradients, axis=1)
    data = flow.load(rows, present)
    some = np.random.default_rng(0).permutation(41)[:17]
    for who in (None, some, some[:1]):
        own, lengths = (gradients, norms) if who is None else (gradients[who], norms[who])
        clip = float(np.median(norms))
        scale = np.minimum(inner_clip(clip, arch, 41) / np.maximum(lengths, 1e-300), 1.0)
        assert who is some[:1] or len(own) == 1 or 0 < (scale < 1).sum() < len(own)
        expected = (own * scale[:, None]).sum(axis=0)
        got = flow.clipped_sum(data, who, clip)
        assert np.linalg.norm(got - expected) <= 1e-10 * np.linalg.norm(expected)
    free = flow.clipped_sum(data, None, math.inf)
    np.testing.assert_allclose(free, gradients.sum(axis=0), rtol=0, atol=1e-9)
    assert not flow.clipped_sum(data, some[:0], 1.0).any()


@on_every_engine
@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("size", [1.0, 1e2, 1e30])
@pytest.mark.parametrize("k", [1, 3])
def test_a_person_moves_the_sum_by_at_most_the_clip(
    k: int, size: float, precision: str, backend: str
) -> None:
    flow = perturbed(Architecture(4), backend, precision, 0.3)
    rng = np.random.default_rng(0)
    norms = []
    for _ in range(50):
        # The rows of a person may agree (the worst case of clipping by rows) or not.
        row = np.repeat(rng.standard_normal((1, 1, 4)), k, axis=1) * size
        norms.append(np.linalg.norm(total_of(flow, row, np.ones((1, k), bool), 0.5)))
    assert max(norms) <= 0.5
    assert max(norms) > 0.499  # the bound is reached: it is the sensitivity, not a guess


@on_every_engine
@pytest.mark.parametrize("k", [1, 3])
def test_null_persons_contribute_exactly_nothing(k: int, backend: str) -> None:
    flow, (rows, present) = perturbed(Architecture(4), backend), make_rows(20, k, 4)
    there = present.any(axis=1)
    garbage = rows.copy()
    garbage[~present] = math.nan
    everyone = total_of(flow, garbage, present, 1.0)
    without = flow.clipped_sum(flow.load(rows, present), np.flatnonzero(there), 1.0)
    np.testing.assert_allclose(everyone, without, rtol=0, atol=1e-13)
    assert not total_of(flow, garbage, np.zeros_like(present), 1.0).any()


@on_every_engine
@pytest.mark.parametrize("clip", [1.0, math.inf])
def test_a_person_whose_gradient_is_not_finite_contributes_nothing(
    clip: float, backend: str
) -> None:
    # Hidden units of 1e30·x overflow in the next layer; those of a negative x are 0.
    arch = Architecture(3, flows=2, hidden=(6,), activation="relu")
    flow, vector = make_flow(arch, backend=backend), np.zeros(len(active(arch)))
    hidden, last = weights(arch, vector)
    hidden[:], last[:] = 1e30, 0.0
    last[..., : arch.d, :6] = 1e30
    flow.set_flat(vector * active(arch))
    rows = -np.abs(np.random.default_rng(0).standard_normal((70, 1, 3)))
    rows[3] *= -1
    data = flow.load(rows, np.ones((70, 1), bool))
    others = np.delete(np.arange(70), 3)
    expected = flow.clipped_sum(data, others, clip)
    assert np.isfinite(expected).all()
    assert expected.any()
    np.testing.assert_allclose(flow.clipped_sum(data, None, clip), expected, rtol=1e-6)
    assert not flow.clipped_sum(data, np.array([3]), clip).any()


@on_every_engine
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_hostile_rows_leave_the_flow_finite(value: float, backend: str) -> None:
    flow = make_flow(Architecture(3), backend=backend)
    rows = np.full((30, 2, 3), value)
    fit(flow, rows, np.ones((30, 2), bool), Training(5, 1.0, 1.0), SeededNoise(0))
    assert np.isfinite(flow.get_flat()).all()


class Recorder:
    """Stands in for Adam, keeps what training was given, and stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[Array] = []
        monkeypatch.setattr(dpsgd, "_move", self._keep)

    def _keep(self, theta: Any, m: Any, v: Any, gradient: Array, floor: Any, factor: Any) -> None:
        self.seen.append(gradient.copy())


class Watched:
    """A flow whose clipped sums say how many persons were in them, in every entry."""

    def __init__(self, arch: Architecture) -> None:
        self._flow, self.arch = make_flow(arch, backend="torch"), arch
        self.asked: list[NDArray[np.intp] | None] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._flow, name)

    def clipped_sum(self, data: Any, who: NDArray[np.intp] | None, clip: float) -> Array:
        self.asked.append(who)
        everyone = len(data.rows[0])
        return np.full(len(self.get_flat()), float(everyone if who is None else (who >= 0).sum()))


def released_sums(
    training: Training, monkeypatch: pytest.MonkeyPatch, n: int = 40, factor: float = 1.0
) -> Array:
    """Every gradient that training sees, minus the noise-free one; ``factor`` plants a fault."""
    recorder = Recorder(monkeypatch)
    add = add_gaussian
    monkeypatch.setattr(measurements, "add_gaussian", lambda v, sd, s: add(v, factor * sd, s))
    arch = Architecture(3, flows=2, hidden=(8,))
    flow, (rows, present) = make_flow(arch), make_rows(n, 1, 3)
    clean = total_of(flow, rows, present, training.clip)[active(arch)]
    fit(flow, rows, present, training, SeededNoise(3))
    noisy = np.array(recorder.seen) * n * (training.rate or 1.0)
    return noisy if training.rate is not None else noisy - clean


def noise_is_as_claimed(noise: Array, sd: float) -> bool:
    """Chi-square test of N(0, sd²), two-sided, false alarm 1e-9."""
    statistic = float(((noise / sd) ** 2).sum())
    low, high = stats.chi2.ppf([5e-10, 1 - 5e-10], noise.size)
    return bool(low < statistic < high)


@pytest.mark.parametrize(("factor", "right"), [(1.0, True), (0.5, False), (2.0, False)])
def test_noise_has_the_claimed_sd(
    factor: float, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = released_sums(Training(20, 0.7, 3.0), monkeypatch, factor=factor)
    assert noise_is_as_claimed(noise, 3.0 * 0.7) is right


def test_noise_is_fresh_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = released_sums(Training(20, 0.7, 3.0), monkeypatch)
    correlation = np.asarray(np.corrcoef(noise))[np.triu_indices(20, 1)]
    # 190 correlations of ~N(0, 1/p): a false alarm of 190 · 2e-8.
    assert np.abs(correlation).max() < 5.6 / math.sqrt(noise.shape[1])


def test_poisson_steps_divide_by_the_expected_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    # With division by the realised batch, a step's clean sum would not scale with its batch.
    recorder = Recorder(monkeypatch)
    flow = Watched(Architecture(3))
    fit(flow, *make_rows(40, 1, 3), Training(30, 1.0, None, rate=0.1), SeededNoise(3))
    batches = [int((who >= 0).sum()) for who in flow.asked if who is not None]
    seen = [float(g[0]) for g in recorder.seen]
    assert seen == pytest.approx([b / (0.1 * 40) for b in batches])
    assert len(set(batches)) > 2  # fresh samples, of random size


def batches_of(sample: Callable[..., NDArray[np.bool_]], monkeypatch: pytest.MonkeyPatch) -> Array:
    """Who was in each of 400 Poisson batches at q = .1, (steps, 60)."""
    monkeypatch.setattr(noises, "poisson_sample", sample)
    flow, rows = Watched(Architecture(3)), np.zeros((60, 1, 3))
    training = Training(400, 1.0, None, rate=0.1)
    fit(flow, rows, np.ones((60, 1), bool), training, SeededNoise(5))
    inside = np.zeros((400, 60))
    for step, who in zip(inside, flow.asked, strict=True):
        assert who is not None
        step[who[who >= 0]] = 1.0
    return inside


def is_poisson(inside: Array, q: float) -> bool:
    """Fair draws of rate q, independent of each other and of the step before; |z| < 6 each."""
    steps, n = inside.shape
    centred = (inside - q) / math.sqrt(q * (1 - q))
    sizes = centred.sum(axis=1)
    scores = (
        centred.sum() / math.sqrt(steps * n),
        (centred[1:] * centred[:-1]).sum() / math.sqrt((steps - 1) * n),
        ((sizes**2).mean() / n - 1) * math.sqrt(steps / 2),
    )
    return all(abs(z) < 6 for z in scores)


def fixed_size(n: int, rate: float, noise: SeededNoise) -> NDArray[np.bool_]:
    return np.argsort(noise.uniform(n)) < round(rate * n)


def test_poisson_batches_are_fresh_and_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    """What audits cannot see: one sample for all steps, or batches of one size."""
    assert is_poisson(batches_of(poisson_sample, monkeypatch), 0.1)
    one = poisson_sample(60, 0.1, SeededNoise(1))
    assert not is_poisson(batches_of(lambda *_: one, monkeypatch), 0.1)
    assert not is_poisson(batches_of(fixed_size, monkeypatch), 0.1)
    often = lambda n, rate, noise: poisson_sample(n, 1.3 * rate, noise)  # noqa: E731
    assert not is_poisson(batches_of(often, monkeypatch), 0.1)


def test_an_empty_poisson_batch_is_noise_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = released_sums(Training(60, 0.7, 3.0, rate=1e-6), monkeypatch)
    assert noise_is_as_claimed(noise, 3.0 * 0.7)


@on_every_engine
def test_training_lowers_the_loss_and_reports_progress(backend: str) -> None:
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((500, 1, 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]])
    flow, steps = make_flow(Architecture(2), backend=backend), []
    before = flow.log_prob(rows[:, 0]).mean()
    training = Training(60, 20.0, 0.5, average=0.3)
    there = np.ones((500, 1), bool)
    fit(flow, rows, there, training, SeededNoise(1), lambda s, of: steps.append((s, of)))
    assert flow.log_prob(rows[:, 0]).mean() > before + 0.1
    assert steps == [(i + 1, 60) for i in range(60)]


def test_adam_is_as_published() -> None:
    rng = np.random.default_rng(0)
    theta, moments = np.zeros(50), np.zeros((2, 50))
    m, v, expected = np.zeros(50), np.zeros(50), np.zeros(50)
    for t, (_, floor, factor, _) in enumerate(dpsgd._schedule(Training(30, 1.0, None), 1), start=1):
        g = rng.standard_normal(50) * 10.0 ** rng.integers(-9, 3, 50)
        rate = 0.01 * 0.5 * (1 + math.cos(math.pi * (t - 1) / 30))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        expected = expected - rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        dpsgd._move(theta, *moments, g.copy(), floor, factor)
        np.testing.assert_allclose(theta, expected, rtol=1e-9)


@pytest.mark.parametrize("average", [0.0, 0.25, 1.0])
def test_the_last_share_of_the_iterates_is_averaged(average: float) -> None:
    flow, iterates = make_flow(Architecture(2), backend="torch", precision="double"), []
    training = Training(20, 1.0, None, average=average)
    data = np.random.default_rng(0).standard_normal((30, 1, 2)), np.ones((30, 1), bool)
    fit(flow, *data, training, SeededNoise(0), lambda *_: iterates.append(flow.get_flat()))
    expected = np.mean(iterates[-max(1, int(20 * average)) :], axis=0)
    np.testing.assert_allclose(flow.get_flat(), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("backend", [KERNEL])
@pytest.mark.parametrize("spectral", [None, 1.5])
@pytest.mark.parametrize(
    "training",
    [
        Training(20, 2.0, 1.0),
        Training(20, 2.0, 1.0, rate=0.3, average=0.5),
        Training(20, 2.0, None, average=0.3),
        Training(20, 2.0, None, rate=0.05),
        Training(20, math.inf, None, batch=17, average=1.0),
    ],
    ids=str,
)
def test_every_engine_trains_alike(
    training: Training, spectral: float | None, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dpsgd, "_LEAP", 7)  # what is left of a leap is not forgotten
    ends = []
    for engine in ("torch", backend):
        flow = perturbed(Architecture(5, 2, (8, 6), spectral=spectral), engine)
        fit(flow, *make_rows(60, 2, 5), training, SeededNoise(4))
        ends.append(flow.get_flat())
    np.testing.assert_allclose(ends[0], ends[1], rtol=0, atol=1e-9)


# -- minibatches -------------------------------------------------------------------------------


def test_each_pass_shuffles_everyone_and_divides_by_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = Recorder(monkeypatch)
    flow = Watched(Architecture(3))
    fit(flow, *make_rows(25, 1, 3), Training(9, math.inf, None, batch=10), SeededNoise(3))
    batches = [who for who in flow.asked if who is not None]
    assert [len(who) for who in batches] == [10, 10, 5] * 3
    orders = [np.concatenate(batches[at : at + 3]) for at in (0, 3, 6)]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(25))
    assert len({tuple(order) for order in [*orders, range(25)]}) == 4
    # The sum over a batch, here its size, over the batch's size: also in the short one.
    assert {float(g[0]) for g in recorder.seen} == {1.0}


@on_every_engine
def test_a_batch_of_everyone_is_no_batch(backend: str) -> None:
    ends, (rows, present) = [], make_rows(30, 2, 3)
    for batch in (None, 30, 10_000):
        flow = make_flow(Architecture(3), backend=backend, precision="double")
        fit(flow, rows, present, Training(10, math.inf, None, batch=batch), SeededNoise(0))
        ends.append(flow.get_flat())
    np.testing.assert_allclose(ends[1:], [ends[0]] * 2, rtol=0, atol=1e-12)


@pytest.mark.parametrize("present", [True, False])
def test_nobody_trains_nothing(present: bool) -> None:
    flow = make_flow(Architecture(3))
    start = flow.get_flat()
    rows, there = np.zeros((4 * (not present), 1, 3)), np.zeros((4 * (not present), 1), bool)
    for batch in (None, 2):
        fit(flow, rows, there, Training(3, math.inf, None, batch=batch), SeededNoise(0))
        np.testing.assert_array_equal(flow.get_flat(), start)


# -- spectral bound ----------------------------------------------------------------------------


@on_every_engine
@pytest.mark.parametrize("sigma", [None, 1.0])
def test_every_iterate_keeps_the_spectral_bound(sigma: float | None, backend: str) -> None:
    arch = Architecture(4, 2, (9, 7), spectral=0.4)
    flow, seen = make_flow(arch, backend=backend), []
    training = Training(15, 20.0, sigma, learning_rate=0.2, average=0.5)

    def look(step: int, steps: int) -> None:
        for weight in weights(arch, flow.get_flat()):
            seen.append(np.linalg.svd(weight, compute_uv=False).max())

    fit(flow, *make_rows(40, 2, 4), training, SeededNoise(1), look)
    look(0, 0)  # and so does their average
    assert len(seen) == 16 * 3
    assert 0.4 * (1 - 1e-6) < max(seen) <= 0.4 * (1 + 1e-6)
    assert not flow.get_flat()[~active(arch)].any()


# -- many fits ---------------------------------------------------------------------------------

SIZES = (23, 40, 31)


def many(
    arch: Architecture, backend: str, k: int, precision: str = "double"
) -> tuple[list[Flow], list[Array], list[Bools]]:
    """Three flows that differ, and their rows, of different numbers of persons."""
    flows = [perturbed(arch, backend, precision, size) for size in (0.1, 0.2, 0.3)]
    data = [make_rows(n, k, arch.d) for n in SIZES]
    return flows, [rows + i for i, (rows, _) in enumerate(data)], [there for _, there in data]


MANY = [
    Training(20, 2.0, 1.0),
    Training(20, 2.0, 1.0, rate=0.3, average=0.5),
    Training(20, math.inf, None, batch=9),
    Training(20, 1e-3, None),
]


@pytest.mark.parametrize(
    ("backend", "together"),
    [("torch", True), ("torch", False), pytest.param(*KERNEL.values, False, marks=KERNEL.marks)],
)
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("training", MANY, ids=str)
def test_many_fits_are_what_single_fits_are(
    training: Training, k: int, backend: str, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(reference._PASS, "cpu", 64)
    arch = Architecture(4, 2, (8, 5), spectral=1.2, activation="relu" if k == 3 else "tanh")
    trainings = [replace(training, clip=(i + 1) * training.clip) for i in range(3)]
    noises = [SeededNoise(i) for i in range(3)]
    flows, rows, present = many(arch, backend, k)
    for flow, *own in zip(flows, rows, present, trainings, noises, strict=True):
        fit(flow, *own)
    singly = [flow.get_flat() for flow in flows]
    assert np.abs(singly[0] - singly[1]).max() > 0.01
    steps: list[tuple[int, int]] = []
    flows, rows, present = many(arch, backend, k)
    again = [SeededNoise(i) for i in range(3)]
    fit_many(
        flows,
        rows,
        present,
        trainings,
        again,
        lambda *at: steps.append(at),
        threads=2,
        together=together,
    )
    ends = [flow.get_flat() for flow in flows]
    np.testing.assert_allclose(ends, singly, rtol=0, atol=1e-9 if together else 0)
    done = [at for at, _ in steps]
    assert done == sorted(set(done))
    assert steps[-1] == (60, 60)


@pytest.mark.parametrize("k", [1, 3])
def test_joint_fits_in_single_precision_are_what_single_fits_are(k: int) -> None:
    ends = []
    for together in (False, True):
        fits = many(Architecture(4, 2, (8,)), "torch", k, "single")
        noises = [SeededNoise(i) for i in range(3)]
        fit_many(*fits, [Training(20, 2.0, 1.0)] * 3, noises, together=together)
        ends.append([flow.get_flat() for flow in fits[0]])
    np.testing.assert_allclose(ends[0], ends[1], rtol=0, atol=1e-5)


def test_more_fits_than_memory_has_room_for_go_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpsgd, "_HELD", 2 * 40 * 4)
    arch, ends, sizes = Architecture(4), [], []
    monkeypatch.setattr(TorchFlows, "load", _spy(TorchFlows.load, sizes))
    for together in (False, True):
        flows, rows, present = many(arch, "torch", 1)
        noises = [SeededNoise(i) for i in range(3)]
        fit_many(flows, rows, present, [Training(5, 1.0, 1.0)] * 3, noises, together=together)
        ends.append([flow.get_flat() for flow in flows])
    np.testing.assert_allclose(ends[0], ends[1], rtol=0, atol=1e-9)
    assert sizes == [1, 1, 1, 2, 1]


def _spy(load: Any, sizes: list[int]) -> Any:
    def watched(self: Any, rows: Any, present: Any) -> Any:
        sizes.append(len(rows))
        return load(self, rows, present)

    return watched


def test_a_fit_that_is_not_finite_leaves_the_others_alone() -> None:
    arch = Architecture(3)
    flows, rows, present = many(arch, "torch", 1)
    bad = flows[1].get_flat()
    bad[active(arch)] = 1e300
    flows[1].set_flat(bad)
    before = flows[0].joint  # type: ignore[attr-defined]
    joint = flows[0].joined(flows)  # type: ignore[attr-defined]
    got = joint.clipped_sum(joint.load(rows, present), None, [1.0] * 3)
    own = before.clipped_sum(before.load(rows[:1], present[:1]), None, [1.0])
    np.testing.assert_allclose(got[0], own[0], rtol=1e-8, atol=1e-9)  # a bound follows from n
    assert not got[1].any()


@pytest.mark.parametrize("fault", ["lengths", "threads", "steps", "architectures", "engines"])
def test_fits_that_cannot_be_made_are_refused(fault: str) -> None:
    flows, rows, present = many(Architecture(3), "torch", 1)
    trainings, noises = [Training(2, 1.0, 1.0)] * 3, [SeededNoise(0)] * 3
    threads = 1
    if fault == "lengths":
        rows = rows[:2]
    elif fault == "threads":
        threads = 0
    elif fault == "steps":
        trainings[1] = Training(3, 1.0, 1.0)
    elif fault == "architectures":
        flows[1] = make_flow(Architecture(3, seed=1), backend="torch", precision="double")
    else:
        flows[0] = Watched(Architecture(3))  # type: ignore[assignment]
    before = [flow.get_flat() for flow in flows]
    with pytest.raises(InvalidInput):
        fit_many(flows, rows, present, trainings, noises, threads=threads, together=True)
    for flow, vector in zip(flows, before, strict=True):
        np.testing.assert_array_equal(flow.get_flat(), vector)


def test_events_are_what_was_run() -> None:
    full, sampled = Training(7, 1.0, 2.0).measurement, Training(7, 1.0, 2.0, rate=0.1).measurement
    assert full is not None
    assert full.event == Gaussian(2.0, 7, LABEL)
    assert sampled is not None
    assert sampled.event == PoissonGaussian(0.1, 2.0, 7, LABEL)
    assert Training(7, 1.0, None).measurement is None


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 0},
        {"clip": 0.0},
        {"clip": math.nan},
        {"clip": math.inf},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.nan},
        {"rate": 1.0},
        {"rate": 0.0},
        {"learning_rate": math.nan},
        {"average": 1.5},
        {"batch": 0, "noise_multiplier": None},
        {"batch": 10},
        {"batch": 10, "noise_multiplier": None, "rate": 0.5},
    ],
    ids=str,
)
def test_impossible_trainings_are_refused(change: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"steps": 5, "clip": 1.0, "noise_multiplier": 1.0, **change}
    with pytest.raises(InvalidInput):
        Training(**fields)


def test_public_clip_depends_on_the_architecture_alone() -> None:
    small, large = Architecture(4), Architecture(8)
    assert public_clip(small, 0.8) == public_clip(small, 0.8)
    assert public_clip(large, 0.8) > public_clip(small, 0.8) > public_clip(small, 0.5) > 0
    assert public_clip(small, 0.8, rows=3) > public_clip(small, 0.8)


@pytest.mark.parametrize("arch", ARCHITECTURES, ids=str)
@pytest.mark.parametrize("k", [1, 3])
def test_public_clip_is_a_quantile_of_the_untrained_norms(arch: Architecture, k: int) -> None:
    flow, present = make_flow(arch, precision="double"), np.ones((512, k), bool)
    x = np.random.default_rng(arch.seed).standard_normal((512, k, arch.d))
    norms = flow.person_norms(flow.load(x, present))
    # Squares are ranked there, norms here: they interpolate differently between neighbours.
    below = (norms < public_clip(arch, 0.8, k)).mean()
    assert below == pytest.approx(0.8, abs=0.005)
