"""Laws of private training: exact clipping per person, exact noise, nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from penstock.errors import InvalidInput
from penstock.models import dpsgd
from penstock.models.architecture import Architecture, public_clip
from penstock.models.dpsgd import clipped_sum, fit, person_norms
from penstock.models.maf import Flow
from penstock.models.plan import Training
from penstock.privacy.events import Gaussian, PoissonGaussian
from penstock.privacy.noise import SeededNoise, add_gaussian, poisson_sample

ARCHITECTURES = [
    Architecture(1),
    Architecture(4, flows=2, hidden=(8,)),
    Architecture(5, flows=3, hidden=(7, 9), activation="relu"),
    Architecture(20, flows=2, hidden=(6,)),
]


def make_flow(arch: Architecture) -> Flow:
    flow = Flow(arch, dtype=torch.float64)
    noise = torch.randn(len(flow.active()), generator=torch.Generator().manual_seed(1)).double()
    flow.set_flat(0.2 * noise * flow.active())
    return flow


def make_rows(n: int, k: int, d: int) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(5)
    present = rng.random((n, k)) < 0.7
    present[0] = False
    present[1] = True
    return torch.as_tensor(rng.standard_normal((n, k, d))), torch.as_tensor(present)


def explicit_gradients(flow: Flow, rows: Tensor, present: Tensor) -> Tensor:
    """(n, p): each person's gradient by a backward pass of its own, masked by hand."""
    for t in flow.tensors():
        t.requires_grad_(True)
    gradients = []
    for x, there in zip(rows, present, strict=True):
        if not there.any():
            gradients.append(torch.zeros(len(flow.active()), dtype=rows.dtype))
            continue
        parts = torch.autograd.grad(-flow.log_prob(x[there]).sum(), flow.tensors())
        gradients.append(torch.cat([p.flatten() for p in parts]) * flow.active())
    for t in flow.tensors():
        t.requires_grad_(False)
    return torch.stack(gradients)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("arch", ARCHITECTURES, ids=str)
def test_norms_agree_with_explicit_gradients(arch: Architecture, k: int) -> None:
    flow, (rows, present) = make_flow(arch), make_rows(13, k, arch.d)
    expected = explicit_gradients(flow, rows, present).norm(dim=1)
    assert torch.allclose(person_norms(flow, rows, present), expected, rtol=1e-10)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("arch", ARCHITECTURES, ids=str)
def test_clipped_sum_agrees_with_explicit_gradients(
    arch: Architecture, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dpsgd, "CHUNK", 5)  # several chunks, the last one short
    monkeypatch.setattr(dpsgd, "_SLACK", 0.0)
    flow, (rows, present) = make_flow(arch), make_rows(13, k, arch.d)
    gradients = explicit_gradients(flow, rows, present)
    clip = float(gradients.norm(dim=1).median())
    scale = (clip / gradients.norm(dim=1).clamp_min(1e-300)).clamp_max(1.0)
    assert 0 < (scale < 1).sum() < 13
    expected = (gradients * scale[:, None]).sum(dim=0)
    got = clipped_sum(flow, rows, present, clip)
    assert (got - expected).norm() <= 1e-6 * expected.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1.0, 1e2, 1e30])
@pytest.mark.parametrize("k", [1, 3])
def test_a_person_moves_the_sum_by_at_most_the_clip(
    k: int, size: float, dtype: torch.dtype
) -> None:
    flow = Flow(Architecture(4), dtype=dtype)
    rng = np.random.default_rng(0)
    weights = torch.as_tensor(0.3 * rng.standard_normal(len(flow.active())), dtype=dtype)
    flow.set_flat(weights * flow.active())
    norms = []
    for _ in range(50):
        # The rows of a person may agree (the worst case of clipping by rows) or not.
        row = np.repeat(rng.standard_normal((1, 1, 4)), k, axis=1) * size
        one = torch.as_tensor(row, dtype=dtype)
        norms.append(clipped_sum(flow, one, torch.ones(1, k, dtype=torch.bool), 0.5).norm().item())
    assert max(norms) <= 0.5
    assert max(norms) > 0.499  # the bound is reached: it is the sensitivity, not a guess


@pytest.mark.parametrize("k", [1, 3])
def test_null_persons_contribute_exactly_nothing(k: int) -> None:
    flow, (rows, present) = make_flow(Architecture(4)), make_rows(20, k, 4)
    there = present.any(dim=1)
    garbage = rows.clone()
    garbage[~present] = math.nan
    everyone = clipped_sum(flow, garbage, present, 1.0)
    without = clipped_sum(flow, rows[there], present[there], 1.0)
    assert torch.allclose(everyone, without, rtol=0, atol=1e-13)
    nobody = clipped_sum(flow, rows, torch.zeros_like(present), 1.0)
    assert torch.equal(nobody, torch.zeros_like(nobody))


def test_a_person_whose_gradient_is_not_finite_contributes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flow, (rows, _) = make_flow(Architecture(4)), make_rows(6, 1, 4)
    present = torch.ones(6, 1, dtype=torch.bool)
    expected = clipped_sum(flow, rows[1:], present[1:], 1.0)
    original = dpsgd._backward

    def poisoned(*args: Any) -> Any:
        records, grads = original(*args)
        grads[0][0, 0] = math.nan
        return records, grads

    monkeypatch.setattr(dpsgd, "_backward", poisoned)
    assert torch.allclose(clipped_sum(flow, rows, present, 1.0), expected, atol=1e-13)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_hostile_rows_leave_the_flow_finite(value: float) -> None:
    flow = Flow(Architecture(3))
    rows = np.full((30, 2, 3), value)
    fit(flow, rows, np.ones((30, 2), bool), Training(5, 1.0, 1.0), SeededNoise(0))
    assert torch.isfinite(flow.get_flat()).all()


class Recorder:
    """Stands in for Adam's direction, keeps what training was given, and stands still."""

    seen: list[NDArray[np.float64]]

    def __init__(self, size: int) -> None:
        Recorder.seen = []

    def direction(self, gradient: NDArray[np.float64]) -> NDArray[np.float64]:
        Recorder.seen.append(gradient)
        return np.zeros_like(gradient)


def released_sums(
    training: Training, monkeypatch: pytest.MonkeyPatch, n: int = 40, factor: float = 1.0
) -> NDArray[np.float64]:
    """Every gradient that training sees, minus the noise-free one; ``factor`` plants a fault."""
    monkeypatch.setattr(dpsgd, "_Adam", Recorder)
    add = add_gaussian
    monkeypatch.setattr(dpsgd, "add_gaussian", lambda v, sd, s: add(v, factor * sd, s))
    flow, (rows, present) = Flow(Architecture(3, flows=2, hidden=(8,))), make_rows(n, 1, 3)
    active = flow.active().numpy()
    clean = clipped_sum(flow, rows.float(), present, training.clip).numpy()[active]
    fit(flow, rows.numpy(), present.numpy(), training, SeededNoise(3))
    noisy = np.array(Recorder.seen) * n * (training.rate or 1.0)
    return noisy if training.rate is not None else noisy - clean


def noise_is_as_claimed(noise: NDArray[np.float64], sd: float) -> bool:
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
    batches: list[int] = []
    original = dpsgd.clipped_sum

    def counting(flow: Flow, rows: Tensor, present: Tensor, clip: float) -> Tensor:
        batches.append(len(rows))
        return torch.full((len(flow.active()),), float(len(rows)), dtype=torch.float64)

    monkeypatch.setattr(dpsgd, "clipped_sum", counting)
    monkeypatch.setattr(dpsgd, "_Adam", Recorder)
    rows, present = make_rows(40, 1, 3)
    training = Training(30, 1.0, None, rate=0.1)
    fit(Flow(Architecture(3)), rows.numpy(), present.numpy(), training, SeededNoise(3))
    seen = [float(g[0]) for g in Recorder.seen]
    assert seen == pytest.approx([b / (0.1 * 40) for b in batches])
    assert len(set(batches)) > 2  # fresh samples, of random size
    assert original is not counting


def batches_of(
    sample: Callable[..., NDArray[np.bool_]], monkeypatch: pytest.MonkeyPatch
) -> NDArray[np.float64]:
    """Who was in each of 400 Poisson batches at q = .1, (steps, 60)."""
    persons: list[NDArray[np.float64]] = []

    def watching(flow: Flow, rows: Tensor, present: Tensor, clip: float) -> Tensor:
        inside = np.zeros(60)
        inside[rows[:, 0, 0].numpy().round().astype(int)] = 1.0
        persons.append(inside)
        return torch.zeros(len(flow.active()), dtype=torch.float64)

    monkeypatch.setattr(dpsgd, "clipped_sum", watching)
    monkeypatch.setattr(dpsgd, "poisson_sample", sample)
    rows = np.tile(np.arange(60.0)[:, None, None], (1, 1, 3))
    training = Training(400, 1.0, None, rate=0.1)
    fit(Flow(Architecture(3)), rows, np.ones((60, 1), bool), training, SeededNoise(5))
    return np.array(persons)


def is_poisson(inside: NDArray[np.float64], q: float) -> bool:
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


def test_training_lowers_the_loss_and_reports_progress() -> None:
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((500, 1, 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]])
    flow, steps = Flow(Architecture(2)), []
    x = torch.as_tensor(rows[:, 0], dtype=torch.float32)
    before = flow.log_prob(x).mean()
    training = Training(60, 20.0, 0.5, average=0.3)
    fit(
        flow,
        rows,
        np.ones((500, 1), bool),
        training,
        SeededNoise(1),
        lambda s, of: steps.append((s, of)),
    )
    assert flow.log_prob(x).mean() > before + 0.1
    assert steps == [(i + 1, 60) for i in range(60)]


def test_events_are_what_was_run() -> None:
    assert Training(7, 1.0, 2.0).event("x") == Gaussian(2.0, 7, "x")
    assert Training(7, 1.0, 2.0, rate=0.1).event("x") == PoissonGaussian(0.1, 2.0, 7, "x")
    with pytest.raises(InvalidInput):
        Training(7, 1.0, None).event()


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
    flow, present = Flow(arch, dtype=torch.float64), torch.ones(512, k, dtype=torch.bool)
    x = np.random.default_rng(arch.seed).standard_normal((512, k, arch.d))
    norms = person_norms(flow, torch.as_tensor(x), present).numpy()
    # Squares are ranked there, norms here: they interpolate differently between neighbours.
    below = (norms < public_clip(arch, 0.8, k)).mean()
    assert below == pytest.approx(0.8, abs=0.005)
