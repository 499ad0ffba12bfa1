"""What is easily written anew stands in one place each: read from the syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
import penstock_client
import penstock_server

ROOTS = [Path(p.__file__ or "").parent for p in (penstock, penstock_client, penstock_server)]


def walk() -> Iterator[tuple[str, ast.AST]]:
    for root in ROOTS:
        for path in root.rglob("*.py"):
            name = f"{root.name}/{path.relative_to(root)}"
            for node in ast.walk(ast.parse(path.read_text())):
                yield name, node


def calls(node: ast.AST, *names: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in names
    )


def makes_printable(node: ast.AST) -> bool:
    """A comprehension that leaves out, or replaces, what is not printable."""
    if not isinstance(node, ast.GeneratorExp | ast.ListComp):
        return False
    asked = [node.elt.test] if isinstance(node.elt, ast.IfExp) else []
    asked += [condition for part in node.generators for condition in part.ifs]
    return any(calls(inner, "isprintable") for one in asked for inner in ast.walk(one))


def writes_time(node: ast.AST) -> bool:
    return calls(node, "strftime") and any(
        isinstance(a, ast.Constant) and "%Y-%m-%dT" in str(a.value)
        for a in getattr(node, "args", ())
    )


def reads_clock(node: ast.AST) -> bool:
    return calls(node, "now") and "datetime" in ast.dump(getattr(node, "func", node))


def makes_temporary_file(node: ast.AST) -> bool:
    return calls(node, "mkstemp", "NamedTemporaryFile")


def labels_rows(node: ast.AST) -> bool:
    """A column that told the parts of a release apart before wire 1.2."""
    return isinstance(node, ast.Constant) and node.value in ("_copy", "_path")


@pytest.mark.parametrize(
    ("found", "places"),
    [
        (
            labels_rows,
            {
                "penstock/mechanisms/labelled.py",
                # Of exported tables, where a row says what it is of.
                "penstock_server/mechanisms/writing.py",
                "penstock_server/mechanisms/trajectory/exports.py",
                "penstock/enquiry/holdings.py",
            },
        ),
        (makes_printable, {"penstock/base/printable.py"}),
        (writes_time, {"penstock/base/times.py"}),
        (reads_clock, {"penstock/base/times.py"}),
        (
            makes_temporary_file,
            {
                "penstock/base/files.py",
                # Parts of several files that take their places together.
                "penstock/analyst/remote.py",
                # A file without a name: rows that nobody can open.
                "penstock_client/rows/sealed.py",
            },
        ),
    ],
)
def test_it_stands_in_one_place(found, places):
    assert {name for name, node in walk() if found(node)} == places
