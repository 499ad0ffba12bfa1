"""The noise is Gaussian, of the size asked for, fresh, and fork-safe.

False-alarm rate: each |z| > 5.6 test alarms by chance with probability 2e-8. The secure source
cannot be seeded, so these tests see new noise at every run.
"""

import copy
import math
import multiprocessing
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.stats import kstest

from penstock.base.errors import InvalidEvent
from penstock.privacy.noise.sources import (
    GRID_BITS,
    NoiseSource,
    SecureNoise,
    SeededNoise,
    add_gaussian,
    permutation,
    poisson_sample,
)

Z = 5.6
N = 200_000


def variance_z(draws: np.ndarray) -> float:
    """z-score of the sample variance against 1 (variance of s² is 2/n for a Gaussian)."""
    return (np.mean(draws**2) - 1) / math.sqrt(2 / draws.size)


@pytest.mark.parametrize("source", [SecureNoise(), SeededNoise(3)])
def test_standard_gaussians(source):
    draws = source.normal(N)
    assert abs(draws.mean()) * math.sqrt(N) < Z
    assert abs(variance_z(draws)) < Z
    assert kstest(draws, "norm").pvalue > 1e-7


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_the_variance_test_catches_too_little_and_too_much(factor):
    assert abs(variance_z(factor * SecureNoise().normal(N))) > Z


def test_added_noise_has_the_sd_asked_for_whatever_the_value():
    values = np.full(N, 1e3)
    residual = (add_gaussian(values, 7.0, SecureNoise()) - values) / 7.0
    assert abs(variance_z(residual)) < Z


@pytest.mark.parametrize("sd", [0.3, 1.0, 40.0])
def test_results_lie_on_a_grid_that_depends_on_the_noise_alone(sd):
    grid = 2.0 ** (math.floor(math.log2(sd)) - GRID_BITS)
    released = add_gaussian(np.linspace(-3, 3, 1000) * math.pi, sd, SecureNoise())
    assert np.array_equal(np.rint(released / grid) * grid, released)


@pytest.mark.parametrize("sd", [0.0, -1.0, math.nan, math.inf])
def test_bad_sd_is_refused(sd):
    with pytest.raises(InvalidEvent):
        add_gaussian(1.0, sd, SecureNoise())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_values_are_not_released(value):
    with pytest.raises(InvalidEvent):
        add_gaussian(value, 1.0, SecureNoise())


forks = pytest.mark.filterwarnings("ignore:This process.* is multi-threaded:DeprecationWarning")


def in_a_fork(draw: Callable[[], bytes]) -> bytes:
    """What ``draw`` gives in a forked child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, draw())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read, 4096)
    os.close(read)
    os.close(write)
    return theirs


def normals(source: NoiseSource) -> bytes:
    return source.normal(4).tobytes()


@forks
@pytest.mark.parametrize("draw", [normals, lambda s: s.random_bytes(32)])
def test_a_fork_does_not_repeat_its_parents_noise(draw):
    source = SecureNoise()
    draw(source)
    theirs = [in_a_fork(lambda: draw(source)) for _ in range(2)]
    assert len({*theirs, draw(source)}) == 3
    # A source that can be repeated is caught.
    seeded = SeededNoise(1)
    assert in_a_fork(lambda: draw(seeded)) == draw(seeded)


@forks
def test_a_fork_from_a_thread_while_others_draw_neither_hangs_nor_repeats():
    source, stop = SecureNoise(), threading.Event()
    busy = [threading.Thread(target=draw_until, args=(source, stop)) for _ in range(3)]
    for thread in busy:
        thread.start()
    with ThreadPoolExecutor(2) as pool:
        theirs = list(pool.map(lambda _: in_a_fork(lambda: normals(source)), range(8)))
    stop.set()
    for thread in busy:
        thread.join()
    assert all(len(t) == 32 for t in theirs)
    assert len({*theirs, normals(source)}) == 9


def draw_until(source: NoiseSource, stop: threading.Event) -> None:
    while not stop.is_set():
        source.random_bytes(1 << 16)


@pytest.mark.parametrize("draw", [normals, lambda s: s.random_bytes(16)])
def test_threads_never_share_noise(draw):
    source = SecureNoise()
    with ThreadPoolExecutor(8) as pool:
        drawn = list(pool.map(lambda _: draw(source), range(2000)))
    assert len(set(drawn)) == 2000


@forks
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pools_of_processes_never_share_noise(method):
    with multiprocessing.get_context(method).Pool(2) as pool:
        drawn = pool.map(secure_bytes, [SecureNoise()] * 8)
    assert len(set(drawn)) == 8


def secure_bytes(source: SecureNoise) -> bytes:
    return source.random_bytes(32)


def test_two_sources_differ_and_a_seed_repeats():
    assert not np.array_equal(SecureNoise().normal(4), SecureNoise().normal(4))
    assert np.array_equal(SeededNoise(5).normal(4), SeededNoise(5).normal(4))
    assert SeededNoise(5).random_bytes(8) == SeededNoise(5).random_bytes(8)
    assert SeededNoise(5).insecure
    assert not SecureNoise().insecure


def test_work_beside_never_gets_a_lesser_source():
    source = SecureNoise()
    assert source.child() is source


def test_seeded_work_beside_has_noise_of_its_own_and_repeats():
    def drawn() -> np.ndarray:
        source = SeededNoise(5)
        beside = [source.child(), source.child()]
        assert all(isinstance(c, SeededNoise) and c is not source for c in beside)
        return np.stack([s.normal(N) for s in (source, *beside)])

    draws = drawn()
    apart = np.corrcoef(draws)[np.triu_indices(3, 1)]
    assert np.abs(apart).max() * math.sqrt(N) < Z
    assert np.array_equal(draws, drawn())


def test_the_secure_source_has_no_seed_to_set():
    with pytest.raises(TypeError):
        SecureNoise(3)
    source = SecureNoise()
    for name in ("seed", "insecure", "_rng", "random_bytes"):
        with pytest.raises(AttributeError):
            setattr(source, name, 3)
    drawn = set()
    for other in (source, copy.copy(source), copy.deepcopy(source)):
        random.seed(1)
        np.random.seed(1)
        drawn |= {normals(other), other.generator().bytes(32)}
    assert len(drawn) == 6


def test_a_key_stream_is_never_used_twice():
    # A key and nonce that came back would give the same bytes from their beginning.
    source = SecureNoise()
    assert len({source.random_bytes(8) for _ in range(20_000)}) == 20_000


def test_poisson_sampling_has_its_rate():
    mask = poisson_sample(N, 0.1, SecureNoise())
    assert abs(mask.sum() - 0.1 * N) / math.sqrt(N * 0.09) < Z


def test_permutations_are_uniform_over_positions():
    noise = SecureNoise()
    first = np.array([permutation(8, noise)[0] for _ in range(8000)])
    counts = np.bincount(first, minlength=8)
    assert np.abs(counts - 1000).max() / math.sqrt(1000 * 7 / 8) < Z
