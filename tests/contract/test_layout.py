"""Unit tests sit where their subject is, and what `make bench` and `make reproduce` name exists."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.benchmarks.__main__ import BENCHMARKS
from tests.studies.__main__ import STUDIES

ROOT = Path(__file__).parents[2]
ROOTS = {
    "shared": ROOT / "shared" / "penstock",
    "client": ROOT / "client" / "penstock_client",
    "server": ROOT / "server" / "penstock_server",
}
UNIT = [path for root in ROOTS for path in sorted((ROOT / "tests/unit" / root).rglob("test_*.py"))]


def imported(path: Path) -> set[str]:
    """The modules that a file imports, ``from a import b`` as ``a`` and as ``a.b``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


@pytest.mark.parametrize("path", UNIT, ids=lambda path: str(path.relative_to(ROOT / "tests/unit")))
def test_a_unit_test_sits_where_its_subject_is(path: Path) -> None:
    root, *rooms = path.parent.relative_to(ROOT / "tests" / "unit").parts
    package = ROOTS[root]
    assert package.joinpath(*rooms).is_dir(), f"no such room: {Path(*rooms)} in {package.name}"
    subject = ".".join((package.name, *rooms))
    modules = imported(path)
    assert any(name == subject or name.startswith(f"{subject}.") for name in modules), (
        f"imports nothing of {subject}; move it to the room that it tests"
    )


@pytest.mark.parametrize("module", sorted({*BENCHMARKS.values(), *STUDIES.values()}))
def test_what_is_run_by_name_has_a_run(module: str) -> None:
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
    assert "run" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


ROLES = {
    # The same part of every mechanism, and of every model on either side of a table.
    "body", "codebook", "exports", "kind", "mechanism", "memory", "plan", "protocol", "registry",
    "results", "run", "settings",
    "cox", "linear", "logistic", "mean", "multinomial", "negative_binomial", "ordinal", "poisson",
    # Flower's two ends.
    "runner",
}  # fmt: skip
NAMED_FOR_USERS = ("cli", "sections")
"""Rooms whose modules are called as what a person types or reads: commands, parts of the report."""


def test_a_modules_name_says_which_it_is() -> None:
    """Two of a name are told apart by their path alone, in a traceback and in talk by nothing."""
    named: dict[str, list[str]] = {}
    for package in ROOTS.values():
        for path in package.rglob("*.py"):
            place = path.relative_to(package)
            if place.parent.name not in NAMED_FOR_USERS and not path.stem.startswith("__"):
                named.setdefault(path.stem, []).append(f"{package.name}/{place}")
    twice = {stem: places for stem, places in named.items() if len(places) > 1}
    assert not {stem: places for stem, places in twice.items() if stem not in ROLES}
    assert set(twice) == ROLES, "a role that no two modules have any more"
