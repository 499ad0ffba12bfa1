"""Every outcome's model keeps the same laws, and an effect in rows comes back out of its table."""

from collections.abc import Callable
from dataclasses import replace
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
    return Survival(Times.read(TIME, counts, 0.0), setting.world)


def tilted(setting: Setting, column: Column, law: str, shape: Callable[..., np.ndarray]) -> Model:
    """Of a column whose values are as likely as their shape says."""
    grid = make_grid(column)
    middle = np.nan_to_num(middle_of(grid))
    counts = shape(middle) * (np.arange(grid.count) != grid.missing)
    support = Support.read(grid, 6000 * counts / counts.sum(), 0.0)
    return Tilted(support, LINKS[law], setting.world)


def logistic(setting: Setting) -> Model:
    return tilted(setting, YES, "logistic", lambda y: np.where(y > 0, 0.3, 0.7))


def poisson(setting: Setting) -> Model:
    return tilted(setting, COUNT, "poisson", lambda y: 0.65**y)


def linear(setting: Setting) -> Model:
    return tilted(setting, NUMBER, "ols", lambda y: np.exp(-0.5 * ((y - 130) / 20) ** 2))


def piled(setting: Setting) -> Model:
    """A skewed number, half of it at 0."""
    return tilted(setting, COST, "ols", lambda y: np.where(y == 0, 2.0, np.exp(-y / 150)))


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
    imagined = model.imagine(model.refer(theta), np.eye(model.entries))
    mean, chances = model.look(theta, imagined), model.chances(theta)
    size = np.sqrt(np.tensordot(chances.T, imagined.lay_out() ** 2, 2) / len(chances))
    assert np.abs(mean[:3] / size[:3]).max() < 0.02


@MODELS
def test_slopes_are_those_of_differences(setting: Setting, make: Make) -> None:
    model = make(setting)
    theta = somewhere(model)
    imagined = model.imagine(model.refer(theta), np.eye(model.entries))
    found = imagined.shorten(np.ones(model.entries))
    slopes = model.slopes(theta, found)
    measured = np.empty_like(slopes)
    for j in range(model.size):
        step = np.eye(model.size)[j] * 1e-3
        measured[:, j] = (model.look(theta + step, found) - model.look(theta - step, found)) / 2e-3
    width = model.coefficients
    scale = np.abs(measured[:width, :width]).max()
    assert np.abs(slopes - measured)[:width, :width].max() < 0.1 * scale


@pytest.mark.parametrize("asked", ["all", "no losses", "sums and curvatures"])
@MODELS
def test_sums_and_slopes_are_those_of_vectors_that_are_laid_out(
    setting: Setting, make: Make, asked: str
) -> None:
    """Shortened to length 1, whoever has a part, and whichever entries are summed."""
    whole = np.random.default_rng(2).random(len(setting.z)) < 0.8
    world = replace(setting.world, complete=whole * 1.0, pairs=[(0, 0), (0, 2)])
    model = make(replace(setting, world=world))
    theta, rng = somewhere(model), np.random.default_rng(3)
    turn = np.eye(model.entries)
    if asked == "no losses":
        turn = turn[:, : model.coefficients]
    if asked == "sums and curvatures":
        sums = np.zeros((model.entries, 3))
        sums[: model.linear] = rng.normal(size=(model.linear, 3))
        turn = np.column_stack([sums, turn[:, model.size :]])
    weights = rng.uniform(0.5, 1.5, turn.shape[1])
    imagined = model.imagine(model.refer(theta), turn)
    plain, found = imagined.lay_out() * weights, imagined.shorten(weights)
    length = np.sqrt((plain**2).sum(axis=2, keepdims=True))
    assert (length > 1).mean() > 0.02
    laid = plain / np.maximum(length, 1)
    assert np.abs(found.lay_out() - laid).max() < 1e-9
    assert np.array_equal(imagined.lay_out(4), imagined.lay_out()[:, ::4])
    chances, n = model.chances(theta), len(setting.z)
    mean = np.tensordot(chances.T, laid, 2) / n
    assert np.abs(model.look(theta, found) - mean).max() < 1e-9
    slopes = model.slopes(theta, found)
    assert slopes.shape == (turn.shape[1], model.size)
    for j in range(model.size):
        step = np.eye(model.size)[j] * 1e-4
        off = model.chances(theta + step) - model.chances(theta - step)
        measured = np.tensordot(off.T, laid, 2) / n / 2e-4
        # Of persons' own chances exact; baselines follow near enough.
        near = 1e-4 if isinstance(model, Tilted) else 0.1 * np.abs(slopes).max()
        assert np.abs(slopes[:, j] - measured).max() < near


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
    expected = model.look(theta, model.imagine(reference, np.eye(model.entries)))
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
    rounds = [_measure(0.5, model.entries)] * 4
    found = matching.match_outcome(model, z, rows, complete, 1, rounds, float(n), SeededNoise(6))
    # The table's own regression is that of the rows, within a few standard errors of 6 000.
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
    recorder = Recorder("outcome", 1.0, 1.0, Fraction(1), matching.UNIT, model.entries)
    for absent in (None, 7, 3, 9):
        present = np.ones(n, dtype=np.bool_)
        if absent is not None:
            present[absent] = False
        matching.match_outcome(model, z, rows, present, 1, [recorder], float(n), SeededNoise(0))
    assert all(np.isfinite(s).all() for s in sums)
    assert all(np.linalg.norm(s - sums[0]) <= 1 for s in sums[1:])
    assert np.linalg.norm(sums[1] - sums[0]) > 0.1


@MODELS
def test_an_effect_returns_where_a_declared_covariate_or_the_outcome_is_missing(
    setting: Setting, make: Make
) -> None:
    """Of a third of the rows, and of the released population, the covariate; of others the
    outcome: they count among the rows, and have no part in the sum."""
    rng, n = np.random.default_rng(5), 6000
    whole = rng.random(len(setting.z)) < 0.67
    model = make(replace(setting, world=replace(setting.world, complete=whole * 1.0)))
    theta = somewhere(model)
    z, _ = setting.design.of(setting.rows)
    rows = model.draw(theta, z, rng.random((n, 2)))
    complete = rng.random(n) < 0.67
    unknown = rng.random(n) < 0.2
    rows = {name: np.where(unknown, np.nan, values) for name, values in rows.items()}
    # One round, whose reference is that of no effect: scores are far from 0.
    rounds, known = [_measure(0.5, model.entries)], float((~unknown).sum())
    given = (rounds, known, SeededNoise(6))
    found = matching.match_outcome(model, z, rows, complete, 1, *given)
    assert np.abs(found[:3] - theta[:3]).max() < 0.1
    # Persons who have no part in the rows' sum, and one in the world's, would make it smaller.
    found = matching.match_outcome(make(setting), z, rows, complete, 1, *given)
    assert np.abs(found[:3] - theta[:3]).max() > 0.1


TILTED = pytest.mark.parametrize("make", [logistic, poisson, linear, piled])


@TILTED
def test_a_tilted_worlds_shares_are_those_that_were_counted(setting: Setting, make: Make) -> None:
    """However strong effects are: here most of the outcome is explained."""
    model: Tilted = make(setting)  # type: ignore[assignment]
    values, shares = model._support.values, model._support.shares
    theta = somewhere(model)
    theta[: model.coefficients] *= 3 if make is poisson else 8
    chances = model.chances(theta)
    assert np.abs(chances.mean(axis=0) - shares).max() < 1e-6
    within = (chances * (values - (chances @ values)[:, None]) ** 2).sum(axis=1).mean()
    assert within < 0.6 * shares @ (values - shares @ values) ** 2


@TILTED
def test_a_tilted_worlds_slopes_are_exact(setting: Setting, make: Make) -> None:
    """Where the counts do not see all: by the corrections, too."""
    model: Tilted = make(setting)  # type: ignore[assignment]
    model._corrected = np.stack([model._values, model._values**2])[: model.own] / 10
    theta = somewhere(model)
    theta[-1] = 0.2
    turn = np.random.default_rng(3).normal(size=(model.entries, 5))
    imagined = model.imagine(model.refer(theta), turn).shorten(np.ones(5))
    found, slopes = imagined.lay_out(), model.slopes(theta, imagined)
    for j in range(model.size):
        step = np.eye(model.size)[j] * 1e-4
        off = model.chances(theta + step) - model.chances(theta - step)
        measured = np.tensordot(off.T, found, 2) / found.shape[1] / 2e-4
        assert np.abs(slopes[:, j] - measured).max() < 1e-4


@TILTED
def test_drawn_values_are_the_columns_own_and_as_likely_as_chances_say(
    setting: Setting, make: Make
) -> None:
    model: Tilted = make(setting)  # type: ignore[assignment]
    theta, support = somewhere(model), model._support
    rng, column = np.random.default_rng(7), support.grid.column
    z = np.tile(setting.z, (40, 1))
    [values] = model.draw(theta, z, rng.random((len(z), 2))).values()
    assert np.array_equal(values, column.snap(values))
    assert abs(values.mean() - support.shares @ support.values) < 0.02 * values.std()
    expected = np.tile(model.chances(theta) @ support.values, 40)
    off = values - expected
    assert np.abs(z.T @ off / len(z)).max() < 0.03 * values.std()
    if column.spike is not None:
        counted = support.cells[support.grid.spike]
        assert abs((values == column.spike).mean() - counted) < 0.01


@MODELS
def test_what_is_added_to_the_predictor_is_on_the_declared_regressions_scale(
    setting: Setting, make: Make
) -> None:
    """Where it is ±, the fit to drawn rows has it as a coefficient more."""
    model, rng = make(setting), np.random.default_rng(9)
    z = np.tile(setting.z, (30, 1))
    arm, uniforms = rng.permutation(np.arange(len(z)) % 2) - 0.5, rng.random((len(z), 2))
    size = {linear: 8.0, piled: 20.0}.get(make, 0.4)
    # Odds ratios of persons who differ do not average.
    theta = model.start() if make is logistic else somewhere(model)
    rows = model.draw(theta, z, uniforms, size * arm)
    if make is survival:
        time, died = rows["time"], rows["death"]
        rates = [died[arm * sign > 0].sum() / time[arm * sign > 0].sum() for sign in (1, -1)]
        assert abs(np.log(rates[0] / rates[1]) - size) < 0.08
        return
    [y] = rows.values()
    one, other = y[arm > 0].mean(), y[arm < 0].mean()
    if make is poisson:
        assert abs(np.log(one / other) - size) < 0.03
    elif make is logistic:
        assert abs(np.log(one / (1 - one) / (other / (1 - other))) - size) < 0.05
    else:
        assert abs(one - other - size) < 0.06 * size + 3 * y.std() / len(y) ** 0.5


def test_a_tail_that_noise_hides_falls_off_as_it_begins_to() -> None:
    grid, rng = make_grid(Column("visits", "integer", 0, 60)), np.random.default_rng(1)
    counts = 3000 * 0.3 * 0.7 ** np.arange(61)
    true = np.arange(61) @ counts / counts.sum()
    errors = []
    for _ in range(20):
        found = Support.read(grid, counts + rng.normal(0, 12, 61), 12.0)
        errors.append(found.cells @ np.arange(61) / true - 1)
        assert found.hidden.any()
    assert np.abs(errors).max() < 0.2
    exact = Support.read(grid, counts, 0.0)
    assert not exact.hidden.any()
    assert abs(exact.cells @ np.arange(61) / true - 1) < 0.02


def test_a_column_of_one_value_has_a_model_all_the_same(setting: Setting) -> None:
    model = tilted(setting, NUMBER, "ols", lambda y: (np.abs(y - 130) < 3) * 1.0)
    rows = model.draw(somewhere(model), setting.z, np.random.default_rng(0).random((1024, 2)))
    assert np.ptp(rows["pressure"]) <= 12
    empty = tilted(setting, YES, "logistic", lambda y: (y == 0) + 1e-12)
    rows = empty.draw(somewhere(empty), setting.z, np.random.default_rng(0).random((1024, 2)))
    assert rows["relapse"].sum() <= 2


@pytest.mark.parametrize("column", [NUMBER, COUNT, COST], ids=lambda column: column.name)
@pytest.mark.parametrize("held", [(), (0,), (1,), (-2,), (-1,), (0, -1)], ids=str)
@pytest.mark.parametrize("noise", [0.0, 1.0, 40.0])
def test_an_outcome_that_is_all_in_one_place_has_a_support(
    column: Column, held: tuple[int, ...], noise: float
) -> None:
    """Nothing that noise can make of counts may end a fit: it would be charged all the same."""
    grid = make_grid(column)
    for seed in range(5):
        counts = noise * np.random.default_rng(seed).standard_normal(grid.count)
        for place in held:
            counts[grid.bins[place]] += 200.0
        with np.errstate(divide="raise", invalid="raise"):
            support = Support.read(grid, counts, noise)
        assert np.isfinite(support.values).all()
        assert np.isfinite(support.shares).all()
        assert support.cells.sum() == pytest.approx(1.0)
        assert (support.cells >= 0).all()


@pytest.mark.parametrize("make", [linear, logistic, poisson])
def test_an_outcome_of_which_nobody_is_whole_has_a_reference(
    setting: Setting, make: Callable[[Setting], Model]
) -> None:
    world = replace(setting.world, complete=np.zeros(len(setting.z)))
    model = make(replace(setting, world=world))
    line = model.refer(model.start())
    assert np.isfinite(line.coefficients).all()
    assert np.isfinite(line.information).all()
