"""The study of tables that nobody here simulated: what it measures, and that it stays frozen."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lifelines import KaplanMeierFitter
from tests.studies import foreign_cells
from tests.studies.foreign_cells import Cell, answer, keep_answer, list_cells, list_missing
from tests.studies.foreign_generators import FROZEN, TUNING
from tests.studies.foreign_measures import AT, FAILED, compare, fit_terms, kaplan_meier, slope_of
from tests.studies.foreign_peers import Bins
from tests.studies.foreign_real import read_table
from tests.studies.foreign_tables import Table, estimands
from tests.studies.kept import read_code

from penstock.questions.estimation import estimate
from penstock.questions.suitability import estimand_problems
from penstock.schema import check_coded

GENERATORS = FROZEN | TUNING
DIGESTS = {1: "9a7e447e002d8bf0"}
"""Of the generators' tables and of the cells, by version of the study."""


def drawn(name: str, n: int = 500, seed: int = 1) -> Table:
    return GENERATORS[name](n, np.random.default_rng(seed))


def test_the_frozen_tables_and_cells_are_those_of_their_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(foreign_cells, "SEEDS", 20)
    monkeypatch.setattr(foreign_cells, "read_table", lambda _: True)  # as if all were there
    digest = hashlib.sha256()
    for name in FROZEN:
        table = drawn(name)
        asked = (table.schema.to_dict(), table.named, table.products, table.undeclared)
        digest.update(json.dumps(asked).encode())
        for values in table.rows.values():
            digest.update(np.rint(values * 1000).astype(np.int64).tobytes())
    cells = [f"{cell} {cell.kind} {seeds}" for cell, seeds in list_cells(()).items()]
    digest.update("\n".join(cells).encode())
    assert digest.hexdigest()[:16] == DIGESTS[foreign_cells.VERSION]


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_makes_a_table_of_a_study(name: str) -> None:
    table = drawn(name)
    check_coded(table.rows, table.schema)
    for asked in estimands(table):
        assert not estimand_problems(asked, table.schema.columns)
    both = {part for product in table.products for part in product.split(":")}
    assert both <= set(table.named)
    assert all(np.isfinite(values).all() for values in table.rows.values())
    if name in FROZEN:
        assert 8 <= len(table.schema.columns) <= 12
    again = drawn(name)
    assert all((again.rows[c] == table.rows[c]).all() for c in table.rows)
    assert any((drawn(name, seed=2).rows[c] != table.rows[c]).any() for c in table.rows)


@pytest.mark.parametrize("name", ["rare", "t-seldom"])
def test_few_have_a_rare_event(name: str) -> None:
    table = drawn(name, 20_000)
    assert 0.02 < table.rows["event"].mean() < 0.05


@pytest.mark.parametrize("name", sorted(set(FROZEN) - {"rare"}))
def test_about_a_sixth_has_the_event(name: str) -> None:
    assert 0.14 < drawn(name, 20_000).rows["event"].mean() < 0.20


def test_nothing_is_tuned_on_that_is_a_test() -> None:
    assert not set(FROZEN) & set(TUNING)
    assert not set(foreign_cells.REAL) & set(foreign_cells.TUNED_ON)


def test_one_fit_has_the_estimates_that_a_report_has() -> None:
    table = drawn("log-normal", 1500)
    terms = ["hgb", "creatinine", "age", "arm", "diabetes"]
    found = fit_terms(table.rows, table, terms)
    for asked, name in zip(estimands(table), table.named, strict=True):
        own = estimate(table.rows, table.schema, asked)
        assert found[name] == pytest.approx((own.estimate, own.variance**0.5), rel=1e-7)


def test_the_slope_of_a_product_is_that_of_its_column() -> None:
    table = drawn("interactions", 3000)
    terms = ["treated", "female", "age"]
    product = table.rows["treated"] * table.rows["female"]
    column = replace(table.schema["treated"], name="both")
    wide = replace(
        table,
        rows=table.rows | {"both": product},
        schema=replace(table.schema, columns=(*table.schema.columns, column)),
    )
    found = fit_terms(table.rows, table, [*terms, "treated:female"])["treated:female"]
    assert found == pytest.approx(fit_terms(wide.rows, wide, [*terms, "both"])["both"], rel=1e-9)
    assert 0.3 < found[0] < 1.4  # .85 by its law


def test_survival_is_that_of_lifelines() -> None:
    table = drawn("leaving")
    time, event, upper = table.rows["time"], table.rows["event"], table.schema["time"].bounds[1]
    curve, spread = kaplan_meier(time, event, upper)
    fit = KaplanMeierFitter().fit(time, event)
    at = np.array(AT) * upper
    assert curve == pytest.approx(fit.survival_function_at_times(at).to_numpy(), abs=1e-12)
    low = fit.confidence_interval_survival_function_.iloc[:, 0]
    # lifelines' interval is on the scale of log(-log S), by the same formula of Greenwood.
    z = 1.959963984540054
    ends = np.array([low[low.index <= t].iloc[-1] for t in at])
    assert curve ** np.exp(z * spread / (curve * -np.log(curve))) == pytest.approx(ends, abs=1e-9)


def test_the_table_itself_has_no_error() -> None:
    table = drawn("t-modifiers", 2000)
    found = compare([table.rows, table.rows], table)
    kinds = ("declared/", "full/", "undeclared/", "survival/")
    errors = {key: value for key, value in found.items() if key.startswith(kinds)}
    assert errors == pytest.approx(dict.fromkeys(errors, 0.0), abs=1e-9)
    assert slope_of([found], "drug:carrier") == pytest.approx(1.0)


def test_a_table_without_the_effect_is_that_far_off() -> None:
    table, rng = drawn("weibull", 3000), np.random.default_rng(3)
    broken = table.rows | {"age": rng.permutation(table.rows["age"])}
    found = compare([broken], table)
    assert found["declared/age"] < -8
    assert abs(found["survival/0.4"]) < 1e-9


def test_what_cannot_be_fitted_counts_as_far_off() -> None:
    table = drawn("weibull")
    found = compare([table.rows | {"treated": np.zeros(table.n)}], table)
    assert found["declared/treated"] == FAILED
    assert found["failed"] >= 1


def test_other_outcomes_are_measured_too() -> None:
    table = read_table("anes96")
    assert table is not None
    found = compare([table.rows], table)
    assert {key for key in found if key.startswith("declared/")} == {
        f"declared/{name}" for name in table.named
    }
    assert found["mean/outcome"] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("name", ["weibull", "leaving", "cured", "t-tails"])
@pytest.mark.parametrize("suggested", [False, True])
def test_a_value_in_a_cell_is_of_that_cell(name: str, suggested: bool) -> None:
    table, rng = drawn(name), np.random.default_rng(5)
    schema = table.suggested() if suggested else table.schema
    for column in schema.columns:
        bins = Bins.of(column, 32)
        places = bins.places(table.rows[column.name])
        assert places.min() >= 0
        assert places.max() < bins.size
        again = bins.values(places, rng)
        if column.levels:
            assert (again == table.rows[column.name]).all()
            continue
        own = table.rows[column.name] == bins.own
        assert (again[own] == bins.own).all()
        # The rest is between the cell's edges, but for rounding to the column's decimals.
        at = (places - (bins.own == 0))[~own]
        half = 1e-9 if column.grid is None else 0.5 * 10.0 ** -(column.decimals or 0) + 1e-9
        low, high = column.bounds
        assert (again[~own] >= np.clip(bins.cuts[at], low, high) - half).all()
        assert (again[~own] <= np.clip(bins.cuts[at + 1], low, high) + half).all()


def test_a_seed_gives_the_same_answer_again() -> None:
    cell = Cell("t-modifiers", 400, 3.0, "structured")
    first, second = answer((cell, 0)), answer((cell, 0))
    del first["seconds"], second["seconds"]
    assert first == second
    other = answer((cell, 1))
    assert other["declared/age"] != first["declared/age"]


def test_what_is_measured_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_cells, "STORE", tmp_path)
    foreign_cells._file_of.cache_clear()
    cells = {Cell("rare", 400, 3.0, "copula"): 2, Cell("leaving", 400, 3.0, "copula"): 1}
    jobs = list(list_missing(cells))
    assert [seed for _, seed in jobs] == [0, 0, 1]
    keep_answer(jobs[0])
    assert list(list_missing(cells)) == jobs[1:]
    [(job, kept)] = foreign_cells.read_answers(list(cells)).items()
    assert job == jobs[0]
    assert kept | {"seconds": 0.0} == answer(job) | {"seconds": 0.0}
    foreign_cells._file_of.cache_clear()


def test_some_cells_can_be_asked_for() -> None:
    cells = list_cells(("structured+weibull+eps1", "copula+rare"))
    assert {(cell.arm, cell.table) for cell in cells} == {
        ("structured", "weibull"),
        ("copula", "rare"),
    }
    assert {cell.epsilon for cell in cells if cell.arm == "structured"} == {1.0}


def test_a_comment_does_not_make_what_was_measured_stale(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text('"""One."""\n\n\ndef f() -> int:\n    """Two."""\n    return 1\n')
    before = read_code(file)
    file.write_text('"""Three."""\n\n# four\ndef f() -> int:\n    """."""\n    return 1\n')
    assert read_code(file) == before
    file.write_text(file.read_text().replace("return 1", "return 2"))
    assert read_code(file) != before
