"""The noise is Gaussian, of the size asked for, fresh, and fork-safe.

False-alarm rate: each |z| > 5.6 test alarms by chance with probability 2e-8. The secure source
cannot be seeded, so these tests see new noise at every run.
"""

import math
import os

import numpy as np
import pytest
from scipy.stats import kstest

from penstock.errors import InvalidEvent
from penstock.privacy.noise import (
    GRID_BITS,
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


def test_a_fork_does_not_repeat_its_parents_noise():
    source = SecureNoise()
    source.normal(1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, source.normal(4).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = np.frombuffer(os.read(read, 32))
    os.close(read)
    os.close(write)
    assert not np.array_equal(theirs, source.normal(4))


def test_two_sources_differ_and_a_seed_repeats():
    assert not np.array_equal(SecureNoise().normal(4), SecureNoise().normal(4))
    assert np.array_equal(SeededNoise(5).normal(4), SeededNoise(5).normal(4))
    assert SeededNoise(5).insecure
    assert not SecureNoise().insecure


def test_poisson_sampling_has_its_rate():
    mask = poisson_sample(N, 0.1, SecureNoise())
    assert abs(mask.sum() - 0.1 * N) / math.sqrt(N * 0.09) < Z


def test_permutations_are_uniform_over_positions():
    noise = SecureNoise()
    first = np.array([permutation(8, noise)[0] for _ in range(8000)])
    counts = np.bincount(first, minlength=8)
    assert np.abs(counts - 1000).max() / math.sqrt(1000 * 7 / 8) < Z
