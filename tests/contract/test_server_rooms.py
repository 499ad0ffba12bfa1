"""Which of the coordinator's files know which mechanism: its own, and the registries.

Whoever takes releases in, makes results or reports them asks
:mod:`penstock_server.mechanisms.registry`, so that a new mechanism is one module or package there
and one line in each registry.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import penstock_server
from penstock.mechanisms import MECHANISMS
from penstock_server.mechanisms.registry import KINDS

ROOT = Path(penstock_server.__file__).parent
SETTINGS = {
    "structured": "Structured",
    "maf": "Maf",
    "sliced-wasserstein": "SlicedWasserstein",
    "trajectory": "Trajectory",
    "gibbs": "Gibbs",
    "scoring": "Scoring",
}
"""The class of each mechanism's settings."""

REGISTRIES = {"mechanisms/registry.py", "simulate/scenarios.py"}
SECTIONS = "report/contents.py"

KNOWN = {
    "structured": {*REGISTRIES, "mechanisms/structured.py"},
    "maf": {*REGISTRIES, "mechanisms/maf.py"},
    "sliced-wasserstein": {*REGISTRIES, "mechanisms/sliced_wasserstein.py"},
    "trajectory": {
        *REGISTRIES,
        SECTIONS,
        "mechanisms/trajectory/codebook.py",
        "mechanisms/trajectory/exports.py",
        "mechanisms/trajectory/kind.py",
        "mechanisms/trajectory/marginals.py",
        "mechanisms/trajectory/results.py",
        "mechanisms/trajectory/uploaded.py",
        "report/sections/trajectory.py",
        "simulate/patients.py",  # whose truths are read as its tables are
    },
    "gibbs": {
        *REGISTRIES,
        "mechanisms/gibbs/codebook.py",
        "mechanisms/gibbs/exports.py",
        "mechanisms/gibbs/kind.py",
        "mechanisms/gibbs/results.py",
    },
    "scoring": {
        *REGISTRIES,
        "mechanisms/scoring/exports.py",
        "mechanisms/scoring/kind.py",
        "mechanisms/scoring/results.py",
    },
}
"""The files of the coordinator that name each mechanism."""


def named(source: str) -> set[str]:
    """The mechanisms that a module knows: their settings' class, their name as a whole text, or a
    module or package that is called like them."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word):
                words = {word}
            case ast.Constant(value=str(word)):
                words = {word}
            case ast.ImportFrom(module=module, names=names):
                words = {*(module or "").split("."), *(alias.name for alias in names)}
            case ast.Import(names=names):
                words = {part for alias in names for part in alias.name.split(".")}
            case _:
                continue
        for name, settings in SETTINGS.items():
            if words & {name, settings, name.replace("-", "_")}:
                found.add(name)
    return found


def test_every_mechanism_has_a_half_at_the_coordinator() -> None:
    assert tuple(KINDS) == tuple(MECHANISMS) == tuple(SETTINGS) == tuple(KNOWN)


def test_the_registry_is_closed() -> None:
    with pytest.raises(TypeError, match="does not support item assignment"):
        KINDS["another"] = KINDS["maf"]  # type: ignore[index]


@pytest.mark.parametrize("name", MECHANISMS)
def test_only_its_own_files_and_the_registries_name_a_mechanism(name: str) -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if name in named(path.read_text(encoding="utf-8"))
    }
    assert found == KNOWN[name]


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_template_asks_for_words_and_not_for_a_mechanism(name: str) -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.j2")
        if f'"{name}"' in (text := path.read_text(encoding="utf-8")) or f"'{name}'" in text
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("if isinstance(study.mechanism, Gibbs): pass", {"gibbs"}),
        ("isinstance(used, (mechanisms.Maf, Trajectory))", {"maf", "trajectory"}),
        ("match used:\n    case SlicedWasserstein(): pass", {"sliced-wasserstein"}),
        ('if name == "sliced-wasserstein": pass', {"sliced-wasserstein"}),
        ("from penstock.mechanisms.gibbs.settings import answer_terms", {"gibbs"}),
        ("from penstock_server.mechanisms import maf", {"maf"}),
        ("import penstock.mechanisms.trajectory.time_points", {"trajectory"}),
        ('"""Of a trajectory, say."""', set()),
        ("used.copies > 1", set()),
    ],
)
def test_a_file_that_knew_a_mechanism_would_be_found(source: str, found: set[str]) -> None:
    assert named(source) == found
