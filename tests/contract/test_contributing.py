"""CONTRIBUTING.md tells the truth: its commands, rooms, names and registries are all there are.

Its paths are checked in test_pages.py, as those of every page.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
PACKAGES = {
    "shared": ROOT / "shared/penstock",
    "client": ROOT / "client/penstock_client",
    "server": ROOT / "server/penstock_server",
}


def part(heading: str) -> str:
    """What stands under a heading, up to the next one of its rank or above."""
    rank = heading.split()[0]
    (_, text) = PAGE.split(f"\n{heading}\n")
    return re.split(rf"^#{{1,{len(rank)}}} ", text, maxsplit=1, flags=re.M)[0]


def first_cells(text: str) -> list[str]:
    """What stands in back quotes in the first column of a table."""
    return re.findall(r"^\| `([^`]+)`", text, re.M)


def find(name: str) -> Any:
    """What a dotted name stands for.

    Raises:
        AttributeError: nothing.
    """
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute)
        return found
    raise AttributeError(name)


def test_every_command_is_one_of_make() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {cell.removeprefix("make ") for cell in first_cells(part("## Set up"))}
    assert named == targets - {"help", "demo", "clean"}


@pytest.mark.parametrize("root", PACKAGES)
def test_the_rooms_are_all_rooms_in_the_order_of_their_layers(root: str) -> None:
    package = PACKAGES[root]
    rooms = first_cells(part(f"### `{root}/{package.name}/`"))
    assert sorted(rooms) == sorted(
        path.name for path in package.iterdir() if (path / "__init__.py").exists()
    )
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = (
        each
        for each in settings["tool"]["importlinter"]["contracts"]
        if each["name"] == f"{root}: one way, top to bottom"
    )
    layers = [line.split("|") for line in contract["layers"]]
    rank = {room.strip(): i for i, line in enumerate(layers) for room in line}
    assert set(rooms) <= set(rank)
    assert [rank[room] for room in rooms] == sorted(rank[room] for room in rooms)


NAMES = sorted(set(re.findall(r"`(penstock(?:_client|_server)?(?:\.\w+)+)`", PAGE)))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_page_is_there(name: str) -> None:
    assert find(name) is not None


def registries_of_the_page() -> list[list[str]]:
    rows = re.findall(r"^\| (?!to add|-)[^|]+ \| (.*) \|$", part("## How to add something"), re.M)
    return [re.findall(r"`([\w.]+)`", row) for row in rows]


def registries_of_the_source() -> Iterator[str]:
    """Upper-case names of modules whose first line says that they are a closed list or registry."""
    for package in PACKAGES.values():
        for path in sorted(package.rglob("*.py")):
            tree = ast.parse(path.read_text())
            first = (ast.get_docstring(tree) or "").partition("\n")[0]
            if re.search(r"\bclosed (list|registry)\b", first):
                dotted = path.relative_to(package.parent).with_suffix("")
                module = ".".join(dotted.parts).removesuffix(".__init__")
                for node in tree.body:
                    names = node.targets if isinstance(node, ast.Assign) else []
                    names = [node.target] if isinstance(node, ast.AnnAssign) else names
                    yield from (
                        f"{module}.{name.id}"
                        for name in names
                        if isinstance(name, ast.Name) and name.id.isupper()
                    )


def test_the_registries_are_all_registries() -> None:
    named = {name.rpartition(".")[0] for row in registries_of_the_page() for name in row}
    found = {name.rpartition(".")[0] for name in registries_of_the_source()}
    assert len(found) >= 4
    assert found <= named


def test_registries_of_one_thing_hold_the_same() -> None:
    for row in registries_of_the_page():
        held = [getattr(registry, "names", registry) for registry in map(find, row)]
        if len(held) > 1:
            assert all(sorted(names) == sorted(held[0]) for names in held), row
