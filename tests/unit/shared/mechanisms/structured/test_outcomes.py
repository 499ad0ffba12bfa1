"""Every outcome's model keeps the same laws, and an effect in rows comes back out of its table."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from tests.unit.shared.mechanisms.structured.conftest import Setting

from penstock.mechanisms.structured import matching
from penstock.mechanisms.structured.grids import make_grid, middle_of
from penstock.mechanisms.structured.outcomes.hazards import Survival, Times
from penstock.mechanisms.structured.outcomes.links import LINKS
from penstock.mechanisms.structured.outcomes.protocol import OutcomeModel
from penstock.mechanisms.structured.outcomes.support import Support
from penstock.mechanisms.structured.outcomes.tilted import Tilted
from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.sources import SeededNoise
from penstock.schema import Column

Model = OutcomeModel  # type: ignore[type-arg]
TIME = Column("time", "duration", upper=1000, decimals=0, event="death")
YES, COUNT = Column("relapse", "binary", nullable=True), Column("visits", "integer", 0, 30)
NUMBER = Column("pressure", "continuous", 60, 240, 0)
COST = Column("cost", "continuous", 0, 2000, 0, spike=0, nullable=True)


def survival(setting: Setting) -> Model:
    cells = np.linspace(1, 0.5, 32)
    counts = np.concatenate([cells * 10, cells * 40, [2500.0]])
    design = setting.design
    return Survival(Times.read(TIME, counts, 0.0), setting.z, design.linear, design.importance)


def tilted(setting: Setting, column: Column, law: str, shape: Callable[..., np.ndarray]) -> Model:
    """Of a column whose values are as likely as their shape says."""
    grid, design = make_grid(column), setting.design
    middle = np.nan_to_num(middle_of(grid))
    counts = shape(middle) * (np.arange(grid.count) != grid.missing)
    support = Support.read(grid, 6000 * counts / counts.sum(), 0.0)
    return Tilted(support, LINKS[law], setting.z, design.linear, design.importance)


def logistic(setting: Setting) -> Model:
    return tilted(setting, YES, "logistic", lambda y: np.where(y > 0, 0.3, 0.7))


def poisson(setting: Setting) -> Model:
    return tilted(setting, COUNT, "poisson", lambda y: 0.65**y)


def linear(setting: Setting) -> Model:
    return tilted(setting, NUMBER, "ols", lambda y: np.exp(-0.5 * ((y - 130) / 20) ** 2))


def piled(setting: Setting) -> Model:
    """A skewed number, half of it at 0."""
    return tilted(setting, COST, "ols", lambda y: np.where(y == 0, 20.0, np.exp(-y / 150)))


Make = Callable[[Setting], Model]
MODELS = pytest.mark.parametrize("make", [survival, logistic, poisson, linear, piled])


def somewhere(model: Model) -> np.ndarray:
    theta = model.start()
    theta[:4] += [0.3, 0.2, -0.4, 0.1]
    return theta


@MODELS
def test_chances_add_up_to_one(setting: Setting, make: Make) -> None:
    model = make(setting)
    chances = model.chances(somewhere(model))
    assert chances.min() >= 0
    assert np.allclose(chances.sum(axis=1), 1)


@MODELS
def test_the_mean_score_of_a_references_own_world_is_zero(setting: Setting, make: Make) -> None:
    """Of its linear columns, of persons whose hazards are small enough to be followed whole."""
    model = make(setting)
    theta = somewhere(model)
    found = model.imagine(model.refer(theta))
    mean = np.tensordot(model.chances(theta), found, 2) / len(found)
    size = np.sqrt(np.tensordot(model.chances(theta), found**2, 2) / len(found))
    assert np.abs(mean[:3] / size[:3]).max() < 0.02


@MODELS
def test_slopes_are_those_of_differences(setting: Setting, make: Make) -> None:
    model = make(setting)
    theta = somewhere(model)
    found = model.imagine(model.refer(theta))
    length = np.sqrt((found**2).sum(axis=2, keepdims=True))
    found = found / np.maximum(length, 1)
    slopes = model.slopes(theta, found)
    measured = np.empty_like(slopes)
    for j in range(model.size):
        step = np.eye(model.size)[j] * 1e-3
        off = model.chances(theta + step) - model.chances(theta - step)
        measured[:, j] = np.tensordot(off, found, 2) / len(found) / 2e-3
    width = model.coefficients
    scale = np.abs(measured[:width, :width]).max()
    assert np.abs(slopes - measured)[:width, :width].max() < 0.1 * scale


@MODELS
def test_rows_drawn_from_a_model_have_the_scores_that_it_imagines(
    setting: Setting, make: Make
) -> None:
    model = make(setting)
    theta = somewhere(model)
    reference = model.refer(model.start())
    rng, many = np.random.default_rng(4), 40
    z = np.tile(setting.z, (many, 1))
    rows = model.draw(theta, z, rng.random((len(z), 2)))
    seen = model.scores(reference, z, rows)
    found = model.imagine(reference)
    expected = np.tensordot(model.chances(theta), found, 2) / len(found)
    error = seen.std(axis=0) / np.sqrt(len(z)) + 0.01 * seen.std(axis=0)
    width = model.coefficients + 1
    assert np.abs((seen.mean(axis=0) - expected) / error)[:width].max() < 4


@MODELS
def test_an_effect_returns_through_clipped_noisy_rounds(setting: Setting, make: Make) -> None:
    model = make(setting)
    theta = somewhere(model)
    rng, n = np.random.default_rng(5), 6000
    z, complete = setting.design.of(setting.rows)
    rows = model.draw(theta, z, rng.random((n, 2)))
    rounds = [_measure(0.5, model.size)] * 3
    found = matching.match_outcome(
        model, z, rows, complete, 1, setting.whole, rounds, float(n), SeededNoise(6)
    )
    # A few standard errors of 6 000 rows.
    assert np.abs(found[:3] - theta[:3]).max() < 0.12
    # The table's own regression is that of the rows.
    one, other = model.refer(found), model.refer(theta)
    assert np.abs(one.coefficients - other.coefficients)[:3].max() < 0.1


def _measure(sigma: float, size: int) -> WholeSum:
    return WholeSum("outcome", sigma, 1.0, Fraction(1), matching.UNIT, size)


@MODELS
def test_one_person_moves_a_released_sum_by_at_most_one(setting: Setting, make: Make) -> None:
    """And what is not finite, or missing, by nothing that is not finite."""
    model = make(setting)
    sums = []

    class Recorder(WholeSum):
        def __call__(self, total, noise):  # type: ignore[no-untyped-def]
            sums.append(np.asarray(total, dtype=float) * self.unit)
            return sums[0]

    z, _ = setting.design.of(setting.rows)
    z, n = z[:50].copy(), 50
    z[7] = 1e6
    rows = model.draw(model.start(), z, np.random.default_rng(8).random((n, 2)))
    for values in rows.values():
        values[9] = np.nan
    recorder = Recorder("outcome", 1.0, 1.0, Fraction(1), matching.UNIT, model.size)
    for absent in (None, 7, 3, 9):
        present = np.ones(n, dtype=np.bool_)
        if absent is not None:
            present[absent] = False
        matching.match_outcome(
            model, z, rows, present, 1, setting.whole, [recorder], float(n), SeededNoise(0)
        )
    assert all(np.isfinite(s).all() for s in sums)
    assert all(np.linalg.norm(s - sums[0]) <= 1 for s in sums[1:])
    assert np.linalg.norm(sums[1] - sums[0]) > 0.1


@MODELS
def test_an_effect_returns_where_a_declared_covariate_or_the_outcome_is_missing(
    setting: Setting, make: Make
) -> None:
    """Of a third of the rows, and of the released population, the covariate; of others the
    outcome: they count among the rows, and have no part in the sum."""
    model = make(setting)
    theta = somewhere(model)
    rng, n = np.random.default_rng(5), 6000
    z, _ = setting.design.of(setting.rows)
    rows = model.draw(theta, z, rng.random((n, 2)))
    complete, whole = rng.random(n) < 0.67, rng.random(len(setting.z)) < 0.67
    unknown = rng.random(n) < 0.2
    rows = {name: np.where(unknown, np.nan, values) for name, values in rows.items()}
    # One round, whose reference is that of no effect: scores are far from 0.
    rounds, known = [_measure(0.5, model.size)], float((~unknown).sum())
    given = (rounds, known, SeededNoise(6))
    found = matching.match_outcome(model, z, rows, complete, 1, whole, *given)
    assert np.abs(found[:3] - theta[:3]).max() < 0.1
    # Persons who have no part in the rows' sum, and one in the world's, would make it smaller.
    found = matching.match_outcome(model, z, rows, complete, 1, whole | True, *given)
    assert np.abs(found[:3] - theta[:3]).max() > 0.1
