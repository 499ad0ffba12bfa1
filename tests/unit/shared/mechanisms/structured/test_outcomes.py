"""Every outcome's model keeps the same laws, and an effect in rows comes back out of its table."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import gammaln, logit
from tests.unit.shared.mechanisms.conftest import Setting

from penstock.mechanisms.copula.grids import make_grid, middle_of
from penstock.mechanisms.structured import matching, score_clipping
from penstock.mechanisms.structured.counting import TimeCounts
from penstock.mechanisms.structured.outcomes.baselines import Stratified
from penstock.mechanisms.structured.outcomes.contrasts import Contrasts
from penstock.mechanisms.structured.outcomes.courses import Divided
from penstock.mechanisms.structured.outcomes.dispersion import find_dispersion
from penstock.mechanisms.structured.outcomes.hazards import BLOCKS, Survival, Times
from penstock.mechanisms.structured.outcomes.links import LINKS
from penstock.mechanisms.structured.outcomes.proportional import Proportional
from penstock.mechanisms.structured.outcomes.protocol import Imagined, OutcomeModel
from penstock.mechanisms.structured.outcomes.support import Support
from penstock.mechanisms.structured.outcomes.tilted import Tilted
from penstock.mechanisms.structured.outcomes.tilting import Tilting
from penstock.mechanisms.structured.score_questions import Joined
from penstock.mechanisms.structured.strata import make_strata
from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.sources import SeededNoise
from penstock.questions.fits.baseline import Baseline
from penstock.questions.fits.cutpoints import Cumulative
from penstock.questions.fits.negative_binomial import fit_negative_binomial
from penstock.questions.fits.newton import maximise
from penstock.questions.fits.partial_likelihood import fit_cox
from penstock.schema import Column

Model = OutcomeModel  # type: ignore[type-arg]
TIME = Column("time", "duration", upper=1000, decimals=0, event="death")
YES, COUNT = Column("relapse", "binary", nullable=True), Column("visits", "integer", 0, 30)
WARD = Column("ward", "categorical", levels=("a", "b", "c"), nullable=True)
STAGE = Column("stage", "ordered", levels=("i", "ii", "iii", "iv"), nullable=True)
NUMBER = Column("pressure", "continuous", 60, 240, 0)
COST = Column("cost", "continuous", 0, 2000, 0, spike=0, nullable=True)


def survival(setting: Setting) -> Model:
    cells = np.linspace(1, 0.5, 32)
    counts = TimeCounts([cells * 10], [cells * 40], 2500.0, 0.0)
    return Survival(Times.read(TIME, counts, 0.0), setting.world)


def stratified(setting: Setting, deviations: int = BLOCKS) -> Model:
    """By what was given, which is no column of the declared regression."""
    times, design = survival(setting)._times, setting.design  # type: ignore[attr-defined]
    grids = setting.population.grids
    strata = make_strata(["treated"], grids, design.columns, design.mean, design.spread)
    assert strata is not None
    declared = setting.world.declared.copy()
    declared[strata.places] = False
    return Stratified(times, replace(setting.world, declared=declared), strata, deviations)


def proportional(setting: Setting) -> Model:
    return stratified(setting, 0)


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


def dispersed(setting: Setting) -> Model:
    """Of a regression that estimates how much more than a Poisson variable it varies."""
    return tilted(setting, COUNT, "negative-binomial", lambda y: 0.8**y)


def rate(setting: Setting) -> Model:
    """Of counts per unit of a covariate: the second one, as if it were the logarithm of an
    exposure that the narrow regression has with a coefficient of its own."""
    world = replace(
        setting.world,
        declared=np.array([True, False, True]),
        fixed=np.array([0.0, 0.3, 0.0]),
    )
    return poisson(replace(setting, world=world))


def linear(setting: Setting) -> Model:
    return tilted(setting, NUMBER, "ols", lambda y: np.exp(-0.5 * ((y - 130) / 20) ** 2))


def piled(setting: Setting) -> Model:
    """A skewed number, half of it at 0."""
    return tilted(setting, COST, "ols", lambda y: np.where(y == 0, 2.0, np.exp(-y / 150)))


def ordinal(setting: Setting) -> Model:
    """Of levels in order, by a proportional odds regression."""
    grid = make_grid(STAGE)
    return Proportional(
        Support.read(grid, np.array([0.0, 900, 2400, 1800, 900]), 0.0), setting.world
    )


def multinomial(setting: Setting) -> Model:
    """Of levels without an order, each against the first."""
    counts = np.array([0.0, 2400, 1800, 1800])
    return Contrasts(Support.read(make_grid(WARD), counts, 0.0), setting.world, [1, 2])


Make = Callable[[Setting], Model]
DURATIONS = [survival, stratified, proportional]
MADE = [*DURATIONS, logistic, poisson, dispersed, rate, linear, piled, ordinal, multinomial]
MODELS = pytest.mark.parametrize("make", MADE)


def shorten(imagined: Imagined, weights: np.ndarray) -> Imagined:
    """As of one reference alone."""
    [part] = Joined([imagined]).shorten(weights).parts
    return part


def somewhere(model: Model) -> np.ndarray:
    theta = model.start()
    if isinstance(model, Stratified) and model.size > model._base:
        # Without a level, which is the stratum's own column's to say.
        theta[model._base :] = [-0.5, -0.2, 0.2, 0.5, 0.4, 0.1, -0.1, -0.4]
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
    found = shorten(imagined, np.ones(model.entries))
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
    plain, found = imagined.lay_out() * weights, shorten(imagined, weights)
    length = np.sqrt((plain**2).sum(axis=2, keepdims=True))
    assert (length > 1).mean() > 0.02
    laid = plain / np.maximum(length, 1)
    assert np.abs(found.lay_out() - laid).max() < 1e-9
    # Products of other persons' number round otherwise.
    rounding = 1e-12 if isinstance(imagined, Divided) else 0.0
    assert np.abs(imagined.lay_out(4) - imagined.lay_out()[:, ::4]).max() <= rounding
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
        near = 1e-4 if isinstance(model, Tilting) else 0.1 * np.abs(slopes).max()
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
    inquiry = matching.Inquiry(z, rows, complete, 1, rounds, float(n))
    found = matching.match_outcome(model, inquiry, SeededNoise(6))
    # The table's own regression is that of the rows, within a few standard errors of 6 000.
    one, other = model.refer(found), model.refer(theta)
    assert np.abs(one.coefficients - other.coefficients)[:3].max() < 0.1


def _measure(sigma: float, size: int) -> WholeSum:
    return WholeSum("outcome", sigma, 1.0, Fraction(1), score_clipping.UNIT, size)


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
    recorder = Recorder("outcome", 1.0, 1.0, Fraction(1), score_clipping.UNIT, model.entries)
    for absent in (None, 7, 3, 9):
        present = np.ones(n, dtype=np.bool_)
        if absent is not None:
            present[absent] = False
        inquiry = matching.Inquiry(z, rows, present, 1, [recorder], float(n))
        matching.match_outcome(model, inquiry, SeededNoise(0))
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
    inquiry = matching.Inquiry(z, rows, complete, 1, rounds, known)
    found = matching.match_outcome(model, inquiry, SeededNoise(6))
    # A stratum's own column shares its effect with the baselines.
    told = 2 if make is stratified else 3
    assert np.abs(found[:told] - theta[:told]).max() < 0.1
    # Persons who have no part in the rows' sum, and one in the world's, would make it smaller.
    found = matching.match_outcome(make(setting), inquiry, SeededNoise(6))
    assert np.abs(found[:3] - theta[:3]).max() > 0.1


@pytest.mark.parametrize("make", [stratified, proportional])
def test_a_stratified_reference_is_coxs_of_rows_that_are_drawn(
    setting: Setting, make: Make
) -> None:
    """Its coefficients are those of the partial likelihood with a risk set for each stratum, and
    what rows score there is nothing but chance."""
    model = make(setting)
    theta, rng = somewhere(model), np.random.default_rng(5)
    reference = model.refer(theta, narrow=model.world.declared)
    z = np.tile(setting.z, (60, 1))
    rows = model.draw(theta, z, rng.random((len(z), 2)))
    strata = np.tile(setting.persons["treated"], 60)
    found = fit_cox(rows["time"], rows["death"], z[:, :2], strata)
    error = np.sqrt(np.diag(found.covariance))
    assert np.abs((reference.coefficients[:2] - found.coefficients) / error).max() < 3
    assert reference.coefficients[2] == 0
    seen = model.scores(reference, z, rows)[:, :2]
    assert np.abs(seen.mean(axis=0) / seen.std(axis=0) * len(z) ** 0.5).max() < 3


def test_strata_have_the_curves_that_their_deviations_say(setting: Setting) -> None:
    """Events are as many as were counted in each interval, whoever has them."""
    model, plain = stratified(setting), survival(setting)
    theta = somewhere(model)
    treated = setting.persons["treated"] > 0
    chances = model.chances(theta)[:, :16]
    assert np.abs(
        chances.mean(axis=0) - plain.chances(plain.start())[:, :16].mean(axis=0)
    ).max() < (1e-4)
    proportionally = theta.copy()
    proportionally[model._base :] = 0  # type: ignore[attr-defined]
    other = model.chances(proportionally)[:, :16]
    ratio = (chances[treated].mean(axis=0) / other[treated].mean(axis=0)).reshape(4, 4).mean(axis=1)
    assert ratio[0] > 1.2
    assert ratio[-1] < 0.8


TILTED = pytest.mark.parametrize("make", [logistic, poisson, linear, piled, ordinal])


@TILTED
def test_a_tilted_worlds_shares_are_those_that_were_counted(setting: Setting, make: Make) -> None:
    """However strong effects are: here most of the outcome is explained."""
    model: Tilting = make(setting)  # type: ignore[assignment]
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
    model: Tilting = make(setting)  # type: ignore[assignment]
    model._corrected = np.stack([model._values, model._values**2])[: model.own] / 10
    theta = somewhere(model)
    theta[-1] = 0.2
    turn = np.random.default_rng(3).normal(size=(model.entries, 5))
    imagined = shorten(model.imagine(model.refer(theta), turn), np.ones(5))
    found, slopes = imagined.lay_out(), model.slopes(theta, imagined)
    for j in range(model.size):
        step = np.eye(model.size)[j] * 1e-4
        off = model.chances(theta + step) - model.chances(theta - step)
        measured = np.tensordot(off.T, found, 2) / found.shape[1] / 2e-4
        assert np.abs(slopes[:, j] - measured).max() < 1e-4


@MODELS
def test_what_is_asked_of_two_regressions_is_one_vector(setting: Setting, make: Make) -> None:
    """Shortened as one, and looked at as one."""
    model, rng = make(setting), np.random.default_rng(11)
    theta = somewhere(model)
    few = model.world.declared.copy()
    few[np.flatnonzero(few)[-1]] = False
    references = [model.refer(theta, narrow=has) for has in (few, model.world.declared)]
    turns = [np.zeros((model.entries, 4)), np.zeros((model.entries, 4))]
    turns[0][: model.linear, :3] = rng.normal(size=(model.linear, 3))
    turns[1][: model.linear, 3] = rng.normal(size=model.linear)
    parts = [model.imagine(*each) for each in zip(references, turns, strict=True)]
    weights = rng.uniform(1, 2, 4)
    plain, found = sum(part.lay_out() for part in parts) * weights, Joined(parts).shorten(weights)
    length = np.sqrt((plain**2).sum(axis=2, keepdims=True))
    assert (length > 1).mean() > 0.02
    laid = plain / np.maximum(length, 1)
    assert np.abs(found.lay_out() - laid).max() < 1e-9
    chances = model.chances(theta).T[:, :, None]
    mean = (laid * chances).sum(axis=(0, 1)) / laid.shape[1]
    assert np.allclose(found.look(model, theta), mean, atol=1e-9)
    step = np.eye(model.size)[0] * 1e-3
    change = found.look(model, theta + step) - found.look(model, theta - step)
    assert np.allclose(found.slopes(model, theta)[:, 0], change / 2e-3, atol=2e-2)


@TILTED
def test_drawn_values_are_the_columns_own_and_as_likely_as_chances_say(
    setting: Setting, make: Make
) -> None:
    model: Tilting = make(setting)  # type: ignore[assignment]
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
    theta = model.start() if make in (logistic, ordinal, multinomial) else somewhere(model)
    rows = model.draw(theta, z, uniforms, size * arm)
    if isinstance(model, Survival):
        time, died = rows["time"], rows["death"]
        rates = [died[arm * sign > 0].sum() / time[arm * sign > 0].sum() for sign in (1, -1)]
        assert abs(np.log(rates[0] / rates[1]) - size) < 0.08
        return
    [y] = rows.values()
    if make is ordinal:  # whichever levels are told apart
        risen = np.array([[(y[arm * s > 0] > cut).mean() for cut in range(3)] for s in (1, -1)])
        sd = np.sqrt(2 / (len(y) * risen * (1 - risen))).max(axis=0)
        assert np.abs((logit(risen[0]) - logit(risen[1]) - size) / sd).max() < 4
        return
    if make is multinomial:  # of either level against the first
        share = np.array([[(y[arm * s > 0] == k).mean() for k in range(3)] for s in (1, -1)])
        ratio = np.log(share[:, 1:] / share[:, :1])
        sd = np.sqrt((2 / len(y) * (1 / share[:, 1:] + 1 / share[:, :1])).sum(axis=0))
        assert np.abs((ratio[0] - ratio[1] - size) / sd).max() < 4
        return
    one, other = y[arm > 0].mean(), y[arm < 0].mean()
    if make in (poisson, dispersed, rate):
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


def test_noise_that_hides_all_of_a_column_makes_no_pile_at_its_end() -> None:
    """250 persons about 40, and noise of 12 on each cell: three in eight were all in one at 99."""
    grid, rng = make_grid(Column("hours", "integer", 0, 100)), np.random.default_rng(3)
    for _ in range(40):
        counts = np.zeros(grid.count)
        at = np.clip(rng.normal(40, 12, 250) / 100 * len(grid.bins), 0, len(grid.bins) - 1)
        np.add.at(counts, grid.bins[at.astype(int)], 1)
        counts[grid.bins] += rng.normal(0, 12, len(grid.bins))
        found = Support.read(grid, counts, 12.0)
        assert found.cells[grid.bins[[0, -1]]].max() < 0.4
        assert 20 < found.cells[grid.bins] @ middle_of(grid)[grid.bins] < 65


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


# Rates, and counts that vary more ----------------------------------------------------------------


def test_an_exposures_coefficient_is_known_and_the_others_are_beside_it(setting: Setting) -> None:
    """A reference of the declared columns has it as it is; one of all columns estimates it."""
    model = rate(setting)
    theta = somewhere(model)
    narrow, wide = model.refer(theta, narrow=model.world.declared), model.refer(theta)
    assert narrow.coefficients[1] == 0.3
    assert abs(wide.coefficients[1] - 0.3) > 0.01
    # The declared regression's equations: the offset is within its mean.
    z, chances = setting.z, model.chances(theta)
    mean = np.exp(narrow.level + z @ narrow.coefficients)
    rest = chances @ model._values - mean
    assert np.abs(z[:, [0, 2]].T @ rest).max() / len(z) < 1e-3
    assert abs(rest.mean()) < 1e-3
    # At given coefficients the exposure's stays.
    at = narrow.coefficients[:3] * [1, 0, 1] + [0.1, 5.0, 0.0]
    given = model.refer(theta, at, narrow=model.world.declared)
    assert np.allclose(given.coefficients[:3], [at[0], 0.3, at[2]])


@pytest.mark.parametrize("seed", range(2))
def test_a_worlds_dispersion_is_that_of_the_rows_it_makes(setting: Setting, seed: int) -> None:
    """And so are its coefficients and information: of the same regression on many rows."""
    model, rng = dispersed(setting), np.random.default_rng(seed)
    theta = somewhere(model)
    found = model.refer(theta)
    z = np.tile(setting.z, (40, 1))
    y = model.draw(theta, z, rng.random((len(z), 2)))["visits"]
    design = np.column_stack([np.ones(len(z)), z[:, :3]])
    peer = fit_negative_binomial(y, design, np.zeros(len(z)))
    assert found.dispersion == pytest.approx(peer.dispersion, rel=0.03)  # type: ignore[attr-defined]
    sd = np.sqrt(np.diag(peer.maximum.covariance))[1:]
    assert np.abs((found.coefficients[:3] - peer.maximum.coefficients[1:]) / sd).max() < 4
    mine = np.linalg.inv(found.information) / len(z)
    # z/s is scored, by which information and covariance are in other units.
    mine = mine / model._spread  # type: ignore[attr-defined]
    assert np.allclose(np.sqrt(np.diag(mine)), sd, rtol=0.05)


def test_a_worlds_cutpoints_are_those_of_the_rows_it_makes(setting: Setting) -> None:
    """And so are its coefficients and information: of the same regression on many rows."""
    model, rng = ordinal(setting), np.random.default_rng(1)
    theta = somewhere(model)
    found = model.refer(theta)
    z = np.tile(setting.z, (40, 1))
    y = model.draw(theta, z, rng.random((len(z), 2)))["stage"]
    likelihood = Cumulative(y.astype(np.intp), z[:, :3])
    peer = maximise(likelihood, likelihood.start())
    sd = np.sqrt(np.diag(peer.covariance))
    mine = np.append(found.above[:-1], found.coefficients[:3])  # type: ignore[attr-defined]
    assert np.abs((mine - peer.coefficients) / sd).max() < 4
    information = np.linalg.inv(found.information) / len(z)
    assert np.allclose(np.sqrt(np.diag(information)), sd[3:], rtol=0.05)


def test_a_worlds_contrasts_are_those_of_the_rows_it_makes(setting: Setting) -> None:
    """Of each level against the first: coefficients, and how well rows tell them."""
    model, rng = multinomial(setting), np.random.default_rng(1)
    theta = model.start()
    theta[: model.linear] += [0.3, 0.2, -0.4, -0.2, 0.5, 0.3]
    found = model.refer(theta)
    z = np.tile(setting.z, (40, 1))
    y = model.draw(theta, z, rng.random((len(z), 2)))["ward"]
    there = (y[:, None] == [1, 2]).astype(float)
    likelihood = Baseline(there, np.column_stack([np.ones(len(z)), z[:, :3]]), np.ones(len(z)))
    peer = maximise(likelihood, np.zeros(8))
    places = [1, 2, 3, 5, 6, 7]
    sd = np.sqrt(np.diag(peer.covariance))[places]
    mine = found.coefficients[: model.linear]
    assert np.abs((mine - peer.coefficients[places]) / sd).max() < 4
    assert np.abs(mine - theta[: model.linear]).max() < 0.02  # the law is the regression itself
    information = np.linalg.inv(found.information) / len(z)
    assert np.allclose(np.sqrt(np.diag(information)), sd, rtol=0.05)


@pytest.mark.parametrize("held", [[0], [1], [0, 2], [1, 2]], ids=str)
def test_levels_without_an_order_may_be_those_of_nobody(setting: Setting, held: list[int]) -> None:
    counts = np.zeros(4)
    counts[np.array(held) + 1] = 3000.0
    model = Contrasts(Support.read(make_grid(WARD), counts, 2.0), setting.world, [2])
    theta = somewhere(model)
    for at in (model.start(), theta):
        lines = model.refer(at)
        assert all(np.isfinite(x).all() for x in (lines.coefficients, lines.information))
    rows = model.draw(theta, setting.z, np.random.default_rng(0).random((1024, 2)))
    assert np.isin(rows["ward"], held).mean() > 0.98


@pytest.mark.parametrize("thin", [0.0, 2.0])
@pytest.mark.parametrize("levels", [[0], [1], [3], [0, 3], [1, 2]], ids=str)
def test_levels_that_hardly_anybody_has_are_told_apart_all_the_same(
    setting: Setting, levels: list[int], thin: float
) -> None:
    """Whatever noise makes of counts, a fit ends in finite numbers; nobody has what nobody had."""
    counts = np.full(5, thin)
    counts[np.array(levels) + 1] = 3000.0
    support = Support.read(make_grid(STAGE), counts, 2.0)
    assert np.array_equal(support.values, range(4))
    model = Proportional(support, setting.world)
    theta = somewhere(model)
    for at in (model.start(), theta):
        cuts = model.refer(at)
        assert all(np.isfinite(x).all() for x in (cuts.coefficients, cuts.information, cuts.means))
    seen = model.scores(model.refer(theta), setting.z, {"stage": np.arange(len(setting.z)) % 4.0})
    assert np.isfinite(seen).all()
    rows = model.draw(theta, setting.z, np.random.default_rng(0).random((1024, 2)))
    assert np.isin(rows["stage"], levels).mean() > 0.98


def test_a_world_that_varies_no_more_has_no_dispersion() -> None:
    values = np.arange(60.0)
    mean = np.array([0.5, 2.0, 6.0])
    log = values * np.log(mean)[:, None] - gammaln(values + 1)
    poisson_chances = np.exp(log - mean[:, None])
    assert find_dispersion(values, poisson_chances, mean, np.ones(3)) < 1e-4
    narrow = np.eye(60)[[1, 2, 6]]
    assert find_dispersion(values, narrow, np.array([1.0, 2, 6]), np.ones(3)) == 0
    alpha, r = 0.5, 2.0
    log = gammaln(values + r) - gammaln(r) - gammaln(values + 1) - r * np.log1p(mean / r)[:, None]
    chances = np.exp(log + values * np.log(mean / (r + mean))[:, None])
    chances /= chances.sum(axis=1, keepdims=True)
    assert find_dispersion(values, chances, mean, np.ones(3)) == pytest.approx(alpha, rel=1e-3)
    # Who has no part changes nothing.
    mixed = np.vstack([chances, poisson_chances])
    weights = np.repeat([1.0, 0.0], 3)
    found = find_dispersion(values, mixed, np.tile(mean, 2), weights)
    assert found == pytest.approx(alpha, rel=1e-3)
