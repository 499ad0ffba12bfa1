"""What every regression model promises: an object in each registry, and no name test elsewhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.studies.questions import ESTIMANDS, SCHEMA, simulate

from penstock.base.checks import Checks
from penstock.base.errors import PenstockError
from penstock.inference.floor import variance_floor
from penstock.mechanisms import Gibbs
from penstock.mechanisms.gibbs import design
from penstock.mechanisms.gibbs.design import question, read, reporting
from penstock.mechanisms.gibbs.models import BASELINES, POSINGS
from penstock.mechanisms.gibbs.models.linear import LinearPosing
from penstock.mechanisms.gibbs.plan import plan
from penstock.mechanisms.gibbs.posing import Posing
from penstock.mechanisms.gibbs.settings import answer_terms
from penstock.privacy.request import PrivacyRequest
from penstock.questions import estimation, terms
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.questions.fits import TABLE_MODELS
from penstock.questions.fits.linear import LinearTable
from penstock.questions.fits.table_model import Fit, TableModel
from penstock.questions.models import EVERY, MODELS
from penstock.questions.models.model import Model
from penstock.questions.models.registry import ModelRegistry
from penstock.questions.suitability import estimand_problems
from penstock.questions.terms import count_terms, design_terms
from penstock.telling import phrases
from penstock_server.report.composition import complete_report, report_schema

Array = NDArray[np.float64]
ROOT = Path(__file__).parents[2]


# Registries ------------------------------------------------------------------------------------


def test_every_model_has_an_object_in_each_registry() -> None:
    assert set(ESTIMANDS) == set(MODELS.names)  # and is in the tests of chains
    for model in MODELS:
        assert MODELS.of(model.name) is model
        assert TABLE_MODELS.of(model.name).model is model
        for baseline in BASELINES:
            assert POSINGS.of(model.name).with_baseline(baseline).model is model
    assert set(TABLE_MODELS.names) == set(POSINGS.names) == set(MODELS.names)


def test_the_published_report_names_every_model() -> None:
    found = [e for e in _enums(report_schema()) if "ols" in e]
    assert found == [list(EVERY.names)]


def _enums(schema: Any) -> Iterator[list[Any]]:
    if isinstance(schema, dict):
        if "enum" in schema:
            yield schema["enum"]
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from _enums(part)


@pytest.mark.parametrize("registry", [TABLE_MODELS, POSINGS])
@pytest.mark.parametrize("missing", MODELS.names)
def test_a_registry_that_lacks_a_model_cannot_be_made(
    registry: ModelRegistry[Any], missing: str
) -> None:
    rest = [entry for entry in registry if entry.name != missing]
    with pytest.raises(PenstockError, match="does not hold each model once"):
        ModelRegistry(rest, MODELS.names)


def test_a_registry_holds_each_model_once_and_no_other() -> None:
    with pytest.raises(PenstockError, match="once"):
        ModelRegistry((*MODELS, MODELS.of("ols")))
    with pytest.raises(PenstockError, match="once"):
        ModelRegistry((*MODELS, TOY), MODELS.names)


HALVES = [(TableModel, LinearTable), (Posing, LinearPosing)]
PARTS = [(*half, part) for half in HALVES for part in sorted(half[0].__abstractmethods__)]


@pytest.mark.parametrize(("kind", "whole", "left_out"), PARTS)
def test_a_half_that_leaves_something_out_cannot_be_made(
    kind: type[Any], whole: type[Any], left_out: str
) -> None:
    said = {part: getattr(whole, part) for part in kind.__abstractmethods__}
    type("Whole", (kind,), said)()
    del said[left_out]
    with pytest.raises(TypeError, match=left_out):
        type("Lacking", (kind,), said)()


def test_fit_floor_and_loss_are_among_what_must_be_said() -> None:
    assert {"fit", "least_variance", "count_events"} <= TableModel.__abstractmethods__
    assert {"pose", "largest_bend", "curvature_cap", "expected"} <= Posing.__abstractmethods__


def unknown(model: str = "probit") -> Estimand:
    """An estimand whose model no study can name."""
    found = Estimand("e", "logistic", "ill", "sbp")
    object.__setattr__(found, "model", model)
    return found


TABLE = simulate(50, np.random.default_rng(0))
USES: dict[str, Callable[[Estimand], object]] = {
    "problems": lambda e: estimand_problems(e, SCHEMA.columns),
    "terms": lambda e: design_terms(SCHEMA, e),
    "answer": lambda e: answer_terms(SCHEMA, e, Gibbs()),
    "estimate": lambda e: estimate(TABLE, SCHEMA, e),
    "floor": lambda e: variance_floor(SCHEMA, e, 50),
    "question": lambda e: question(Gibbs(), SCHEMA, e),
    "settings": lambda e: Gibbs().problems(SCHEMA, [e]),
    "plan": lambda e: plan(Gibbs(), SCHEMA, 100, PrivacyRequest(1.0, 1e-5), [e]),
    "contrast": lambda e: phrases.contrast(e, SCHEMA),
    "measure": lambda e: phrases.measure(e, SCHEMA),
    "outcome": lambda e: phrases.outcome_text(e, SCHEMA),
    "chain": lambda e: POSINGS.of(e.model),
    "old report": lambda e: complete_report(
        {"format_version": "1.0", "estimands": [{"model": e.model}]}
    ),
}


@pytest.mark.parametrize("use", USES)
def test_an_unknown_model_raises_everywhere(use: str) -> None:
    with pytest.raises(PenstockError, match=r"unknown model \(got probit"):
        USES[use](unknown())
    if use != "old report":
        USES[use](Estimand("e", "logistic", "ill", "sbp"))


def test_an_unknown_baseline_is_refused() -> None:
    with pytest.raises(PenstockError, match="unknown baseline"):
        POSINGS.of("cox").with_baseline("gompertz")


# A person's part -------------------------------------------------------------------------------

CHAINS = [(name, baseline) for name in MODELS.names for baseline in BASELINES]


@pytest.mark.parametrize(("name", "baseline"), CHAINS)
def test_a_rows_part_in_the_summaries_is_within_its_norm(name: str, baseline: str) -> None:
    """Whatever a row holds: the noise on the summaries is for this norm."""
    asked = question(Gibbs(baseline=baseline), SCHEMA, ESTIMANDS[name])
    rng = np.random.default_rng(1)
    extremes = np.array([-np.inf, -1e300, -1.0, 0.0, 0.3, 1.0, 10.0, 30.0, 1e300, np.inf, np.nan])
    wild = {column: rng.choice(extremes, 4000) for column in SCHEMA.names}
    rows = read(asked, wild, rng.random(4000) < 0.9)
    found = asked.posing.summands(asked, rows, slice(0, 4000))
    assert found.shape == (4000, asked.posing.outcome_numbers(asked.pieces))
    assert (found**2).sum(axis=1).max() <= asked.posing.outcome_norm(asked.pieces)
    assert not found[~rows.there].any()


# A toy -----------------------------------------------------------------------------------------

TOY = replace(MODELS.of("ols"), name="toy", title="Toy model")


class ToyTable(LinearTable):
    """In the place of a linear model: its coefficient is always 3, its variance at least 7."""

    def fit(self, outcome: Array, event: Array | None, design: Array) -> Fit:
        return Fit(3.0 * float(design[:, -1].std()), 2.0, True, None)

    def least_variance(self, schema: Any, estimand: Estimand, rows: int) -> float:
        return 7.0


def test_a_toy_model_is_used_where_it_is_given() -> None:
    toys = ModelRegistry([ToyTable(), *(m for m in TABLE_MODELS if m.name != "ols")], MODELS.names)
    asked = ESTIMANDS["ols"]
    found = estimate(TABLE, SCHEMA, asked, toys)
    scale = float(np.std(TABLE["sbp"]))
    assert found.estimate == pytest.approx(3 * asked.per / scale)
    assert found.variance == pytest.approx(2 * (asked.per / scale) ** 2)
    assert variance_floor(SCHEMA, asked, 50, toys) == 7
    assert estimate(TABLE, SCHEMA, ESTIMANDS["mean"], toys) == estimate(
        TABLE, SCHEMA, ESTIMANDS["mean"]
    )


def test_a_further_model_must_come_to_every_registry() -> None:
    with_toy: ModelRegistry[Model] = ModelRegistry((*MODELS, TOY))
    assert with_toy.names == (*MODELS.names, "toy")
    for registry in (TABLE_MODELS, POSINGS):
        with pytest.raises(PenstockError, match="toy"):
            ModelRegistry(registry, with_toy.names)  # type: ignore[type-var]


# The order of columns --------------------------------------------------------------------------

ORDERS = {
    "numbers": ESTIMANDS["ols"],
    "level in the middle": Estimand("e", "ols", "score", "area", adjust=("sex",), level="south"),
    "last level": Estimand("e", "ols", "score", "area", adjust=("age",), level="west"),
    "binary": Estimand("e", "ols", "score", "sex", adjust=("area", "sbp")),
}


def test_there_is_one_order_of_columns() -> None:
    """Fits to tables, chains and answers take their columns from the same function."""
    assert estimation.design_terms is design.design_terms is terms.design_terms


@pytest.mark.parametrize("asked", ORDERS.values(), ids=ORDERS)
def test_tables_and_chains_mean_the_same_coefficient(asked: Estimand) -> None:
    """Least squares on a chain's design, brought to the reporting scale, is the table's fit."""
    table = simulate(400, np.random.default_rng(5))
    posed = question(Gibbs(), SCHEMA, asked)
    rows = read(posed, table, np.ones(400, dtype=np.bool_))
    q = posed.columns
    theta = np.linalg.lstsq(np.column_stack([np.ones(400), rows.x]), rows.y, rcond=None)[0]
    matrix, shift = reporting(posed, np.zeros(q), np.ones(q), (0.0, 1.0))
    answer = matrix @ theta + shift
    assert answer[-1] == pytest.approx(estimate(table, SCHEMA, asked).estimate, rel=1e-9)
    assert len(answer) == len(answer_terms(SCHEMA, asked, Gibbs())) == 1 + q
    assert count_terms(SCHEMA, asked) == q


def test_a_level_that_cannot_be_compared_is_refused() -> None:
    for level in ("north", "east"):
        asked = Estimand("e", "ols", "score", "area", level=level)
        with pytest.raises(PenstockError, match="can be compared"):
            design_terms(SCHEMA, asked)
        assert count_terms(SCHEMA, asked) == 2


# Names -----------------------------------------------------------------------------------------

OWN = {
    "ols": "linear",
    "logistic": "logistic",
    "cox": "cox",
    "poisson": "poisson",
    "negative-binomial": "negative_binomial",
    "ordinal": "ordinal",
    "multinomial": "multinomial",
    "mean": "mean",
}
"""The module in which each model's object is."""

ALLOWED = {
    # a cohort for tests and demonstrations asks a question of its own
    "server/penstock_server/simulate/cvd.py": {"cox"},
    "server/penstock_server/simulate/patients.py": {"cox"},
    "server/penstock_server/simulate/visits.py": {"ols"},
    "shared/penstock/audit/chains.py": {"mean"},
    "shared/penstock/audit/structures.py": {"ols", "mean"},
    # what a codebook calls ordered levels, and no model
    "shared/penstock/study/toml/codebook.py": {"ordinal"},
    # what is expected of a column, and no model
    "shared/penstock/study/planning.py": {"mean"},
    # a way of sampling, and no model
    "shared/penstock/mechanisms/maf/settings.py": {"poisson"},
    "shared/penstock/mechanisms/maf/plan.py": {"poisson"},
    # a chain of its own for each model; a mean's is a linear model's
    "shared/penstock/mechanisms/gibbs/models/linear.py": {"ols", "mean"},
    "shared/penstock/mechanisms/gibbs/models/logistic.py": {"logistic"},
    "shared/penstock/mechanisms/gibbs/models/poisson.py": {"poisson"},
    # what the report describes of a column, and no model
    "server/penstock_server/report/sections/baseline.py": {"mean"},
    # a mean of changes
    "shared/penstock/questions/fits/over_time.py": {"mean"},
    # refused, with the bounds of a Poisson model's rows
    "shared/penstock/mechanisms/gibbs/models/negative_binomial.py": {
        "negative-binomial",
        "poisson",
    },
    # refused, with the bounds of a logistic model's rows, both
    "shared/penstock/mechanisms/gibbs/models/ordinal.py": {"ordinal", "logistic"},
    "shared/penstock/mechanisms/gibbs/models/multinomial.py": {"multinomial", "logistic"},
    "shared/penstock/mechanisms/gibbs/models/survival.py": {"cox"},
    # the law that an outcome is drawn from, by the model that is asked of it
    "shared/penstock/mechanisms/structured/outcomes/links.py": {
        "ols",
        "logistic",
        "poisson",
        "negative-binomial",
        "ordinal",
        "multinomial",
    },
    # what is planned of an outcome, by the model that is asked of it
    "shared/penstock/mechanisms/scoring/division.py": {"ols", "logistic", "poisson", "cox"},
    "shared/penstock/mechanisms/scoring/foresight.py": {"logistic"},
    # a way of adding up, and no model
    "shared/penstock/mechanisms/scoring/descriptions.py": {"mean"},
    # the three registries
    "shared/penstock/questions/models/__init__.py": set(MODELS.names),
    "shared/penstock/questions/fits/__init__.py": set(MODELS.names),
    "shared/penstock/mechanisms/gibbs/models/__init__.py": set(MODELS.names),
    # its published form
    "server/penstock_server/report/report.schema.json": set(MODELS.names),
} | {
    f"{room}/{module}.py": {name}
    for name, module in OWN.items()
    for room in ("shared/penstock/questions/models", "shared/penstock/questions/fits")
}
ALLOWED["shared/penstock/questions/fits/standardised.py"] = {
    "logistic"
}  # by which risks are fitted
ALLOWED["shared/penstock/enquiry/shorthand.py"] = {"cox", "logistic", "mean", "ols", "ordinal"}
"""R's words for models, which one a kind of column suggests, and functions of one column."""
ALLOWED["shared/penstock/questions/fits/negative_binomial.py"] |= {"poisson"}  # where α is 0


def sources() -> Iterator[Path]:
    for root in ("shared", "client", "server"):
        for path in sorted((ROOT / root).rglob("*")):
            if path.suffix in (".py", ".j2", ".json", ".html", ".toml"):
                yield path


def named_in(path: Path) -> set[str]:
    """Models that a file names: as a whole text, or by importing the module of their object."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return {name for name in OWN if re.search(rf"""["']{name}["']""", text)}
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and node.value in tuple(OWN):
            found.add(str(node.value))
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {
                n for n, m in OWN.items() if node.module.endswith((f".models.{m}", f".fits.{m}"))
            }
    return found


def test_only_a_models_own_files_and_the_registries_name_it() -> None:
    assert set(OWN) == set(MODELS.names)
    for path in sources():
        allowed = ALLOWED.get(str(path.relative_to(ROOT)), set())
        assert named_in(path) <= allowed, path
    for listed in ALLOWED:
        assert (ROOT / listed).exists(), listed


def test_nothing_compares_a_models_name() -> None:
    """What differs between models is asked of their objects."""
    for path in sources():
        if path.suffix != ".py":
            assert not re.search(r"\.model\s*(==|!=|in\b|not\b)", path.read_text()), path
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            compared: list[ast.expr] = []
            if isinstance(node, ast.Compare):
                compared = [node.left, *node.comparators]
            elif isinstance(node, ast.Match):
                compared = [node.subject]
            elif isinstance(node, ast.Subscript):
                compared = [node.slice]
            for side in compared:
                named = isinstance(side, ast.Attribute) and side.attr == "model"
                assert not named, f"{path}:{side.lineno}"


def test_a_plain_outcome_is_refused_nowhere_for_its_bounds() -> None:
    """Checks of an outcome's bounds see outcomes of the model's own kinds only."""
    for model in MODELS:
        for column in SCHEMA.columns:
            if column.kind in model.outcomes:
                check = Checks("outcome")
                model.check_outcome(check, column)
                POSINGS.of(model.name).check_outcome(check, column)
                assert check.problems == []
