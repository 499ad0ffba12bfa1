"""What a structured study plants, and what of it is public."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.support.carried_out import release

from penstock.base.errors import InvalidInput
from penstock.mechanisms import MECHANISMS, Structured
from penstock.mechanisms.labelled import has_labels
from penstock.mechanisms.planted import choose_sizes
from penstock.mechanisms.protocol import Asked
from penstock.mechanisms.released import Kind, Shape
from penstock.mechanisms.structured.plan import plan
from penstock.mechanisms.structured.planting import STANDARD_ERRORS, make_planting
from penstock.mechanisms.structured.run import fit
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.schema.encoding import Encoding

SCHEMA = Schema(
    (
        Column("t", "duration", upper=10, decimals=2, event="d"),
        Column("d", "event"),
        Column("age", "integer", lower=18, upper=100, nullable=True),
        Column("sex", "binary"),
        Column("ward", "categorical", levels=("a", "b", "c")),
    )
)
AGE = Estimand("e", "cox", "t", "age", adjust=("sex",))
WARD = Estimand("w", "cox", "t", "ward", level="b")
N = 300


def asked(*effects: str, **settings: int) -> Structured:
    return Structured(**({"copies": 2, "refits": 1, "planted": 4} | settings), effects=effects)


def shape(settings: Structured, *estimands: Estimand) -> Shape:
    given = Asked(settings, SCHEMA, PrivacyRequest(1.0, 1e-5), estimands)
    return MECHANISMS["structured"].shape(given, N)


def rows(seed: int = 0) -> tuple[Encoding, np.ndarray, np.ndarray]:
    rng, encoding = np.random.default_rng(seed), Encoding(SCHEMA)
    age, sex = rng.normal(60, 10, N).round().clip(18, 100), (rng.random(N) < 0.5) * 1.0
    t = rng.exponential(8 * np.exp(-0.03 * (age - 60)), N)
    coded = {
        "t": np.minimum(t, 10).round(2),
        "d": (t < 10) * 1.0,
        "age": np.where(rng.random(N) < 0.1, np.nan, age),
        "sex": sex,
        "ward": rng.integers(0, 3, N) * 1.0,
    }
    found, present = encoding.encode(coded, rng)
    return encoding, found[:, None], present[:, None]


def test_planted_tables_and_what_came_of_them_are_parts() -> None:
    found = shape(asked(planted=2), AGE)
    assert found.names[-4:] == ("planted/1", "recovered/1", "planted/2", "recovered/2")
    assert [len(found.of_kind(kind)) for kind in Kind] == [2, 1, 2, 2, 0]
    assert all(part.counted and part.rows == N for part in found.parts)


def test_older_wire_versions_cannot_hold_them() -> None:
    assert not has_labels(shape(asked(planted=2), AGE))
    assert has_labels(shape(asked(planted=0), AGE))


@pytest.mark.parametrize("estimands", [(), (Estimand("m", "mean", "sex"),)])
def test_without_an_effect_nothing_is_planted(estimands: tuple[Estimand, ...]) -> None:
    assert not shape(asked(), *estimands).of_kind(Kind.PLANTED)
    assert plan(asked(), SCHEMA, N, PrivacyRequest(1.0, 1e-5), estimands).planted == 0
    assert len(shape(asked("t ~ sex"), *estimands).of_kind(Kind.PLANTED)) == 4


def test_declared_effects_come_first_and_each_once() -> None:
    twice = Estimand("again", "cox", "t", "age", per=10)
    settings = asked("t ~ age", "t ~ age:sex", "t ~ ward[c]")
    found = settings.list_effects(SCHEMA, (AGE, twice, WARD))
    assert [e.text for e in found] == ["t ~ age", "t ~ ward[b]", "t ~ age:sex", "t ~ ward[c]"]
    assert Structured(planted=0).list_effects(SCHEMA, (AGE,)) == ()


@pytest.mark.parametrize(
    ("effects", "said"),
    [
        (("t ~ nobody",), "is not a column"),
        (("age ~ sex",), "not drawn from a model of its own"),
        (("t ~ ward",), "must be a level"),
    ],
)
def test_what_cannot_be_planted_is_refused(effects: tuple[str, ...], said: str) -> None:
    [problem] = asked(*effects).problems(SCHEMA, (AGE,))
    assert said in problem.message


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"planted": 49}, "planted"),
        ({"planted": -1}, "planted"),
        ({"effects": ("t",)}, "is not well formed|is blank|is none"),
        ({"effects": ("t ~ a", "t ~ a")}, "effects"),
        ({"planted": 0, "effects": ("t ~ a",)}, "planted in no run"),
    ],
)
def test_settings_out_of_bounds_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Structured(**settings)


def test_what_is_planted_costs_no_budget() -> None:
    privacy = PrivacyRequest(1.0, 1e-5)
    with_runs, without = (plan(asked(planted=runs), SCHEMA, N, privacy, (AGE,)) for runs in (12, 0))
    assert with_runs.events == without.events
    assert (with_runs.planted, without.planted) == (12, 0)


def test_what_is_added_is_so_many_standard_errors_of_a_standardised_column() -> None:
    effects = asked("t ~ age:sex", "t ~ ward[c]").list_effects(SCHEMA, (AGE,))
    given = plan(asked("t ~ age:sex", "t ~ ward[c]"), SCHEMA, N, PrivacyRequest(50.0, 1e-5), (AGE,))
    encoding, found, present = rows()
    coded = encoding.decode(found[:, 0])
    model = fit(given, SCHEMA, coded, present.ravel(), SeededNoise(0))
    outcomes = list(zip(given.outcomes, model.outcomes, strict=True))

    def planted(runs: int, count: float) -> np.ndarray:
        """(runs, N) of what is added."""
        drawn = model.draw(2000, 2000, np.random.default_rng(2))
        made = make_planting(effects, runs, SCHEMA, drawn, outcomes, count)
        persons = model.population.draw(
            np.random.default_rng(1).standard_normal((4000, model.population.latents))
        )
        return np.stack([made.add(i + 1, "t", persons) for i in range(runs)])

    events = model.outcomes[0].model.inform(model.outcomes[0].parameters)
    assert abs(events - coded["d"].mean()) < 0.1
    many = planted(12, 1e4)
    sizes = choose_sizes(12, 3)
    # One line for each person; each column has sd Δ, and no more than its variance is shared.
    columns = np.linalg.lstsq(sizes.T, many, rcond=None)[0]
    assert np.allclose(sizes.T @ columns, many)
    expected = STANDARD_ERRORS / math.sqrt(1e4 * events)
    assert np.all(columns.std(axis=1) > 0.9 * expected)
    assert np.all(columns.std(axis=1) < 1.6 * expected)
    assert np.abs(columns.mean(axis=1)).max() < 0.1 * expected
    # A hundredth of the rows: ten times as much, were it not for what is the most.
    few = planted(12, 100.0)
    assert 2 < few.std() / many.std() < 10
    assert np.sqrt((few**2).mean(axis=1)).max() < 0.9
    # The product alone, without its columns: centred.
    product = columns[1]
    persons = model.population.draw(
        np.random.default_rng(1).standard_normal((4000, model.population.latents))
    )
    known = ~np.isnan(persons["age"])
    assert np.abs(product[~known]).max() < 1e-12
    assert abs(np.corrcoef(product[known], persons["age"][known])[0, 1]) < 0.15


def test_another_outcome_gets_nothing() -> None:
    given = plan(asked(), SCHEMA, N, PrivacyRequest(50.0, 1e-5), (AGE,))
    encoding, found, present = rows()
    model = fit(given, SCHEMA, encoding.decode(found[:, 0]), present.ravel(), SeededNoise(0))
    outcomes = list(zip(given.outcomes, model.outcomes, strict=True))
    persons = model.draw(100, 100, np.random.default_rng(2))
    made = make_planting(given.effects, 4, SCHEMA, persons, outcomes, model.rows)
    assert made.add(1, "another", {"age": np.zeros(3)}) is None


def test_copies_and_refits_are_the_same_with_planted_runs_and_without() -> None:
    """They come after, with noise of their own; and threads change no number."""
    encoding, found, present = rows()
    tables = []
    for settings, threads in ((asked(planted=0), 1), (asked(), 1), (asked(), 3)):
        planned = plan(settings, SCHEMA, N, PrivacyRequest(3.0, 1e-5), (AGE,))
        noise = SeededNoise(4)
        given = (settings, planned, encoding, found, present, noise)
        tables.append({p.name: p.columns for p in release(*given, threads=threads)})
    without, one, three = tables
    for name, table in without.items():
        assert all(np.array_equal(table[c], one[name][c], equal_nan=True) for c in table), name
    assert list(one) == list(three) == list(shape(asked(), AGE).names)
    for name, table in one.items():
        assert all(np.array_equal(table[c], three[name][c], equal_nan=True) for c in table), name
    sizes = {name: len(table["age"]) for name, table in one.items()}
    assert {sizes[f"planted/{i}"] for i in range(1, 5)} == {sizes["tables/copy-1"]}
