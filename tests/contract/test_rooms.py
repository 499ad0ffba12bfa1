"""Who may know which mechanism there is: its own package, the registries, tests and docs.

Read from the syntax trees, so that a new mechanism is one package and one line, and stays so.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.mechanisms import MECHANISMS

TOP = Path(__file__).parents[2]
ROOTS = ("shared/penstock", "client/penstock_client")
"""The coordinator's is for its own registry to add."""

PACKAGES = {name: name.replace("-", "_") for name in MECHANISMS}
ROOM = "penstock.mechanisms"

REGISTRIES = {
    "shared/penstock/mechanisms/registry.py",
    "shared/penstock/mechanisms/__init__.py",
    "shared/penstock/audit/targets.py",
}
"""A line for each mechanism: what there is, the public names of its settings, what is audited."""

AUDITS = {
    "maf": {"shared/penstock/audit/trained.py"},
    "sliced-wasserstein": {
        "shared/penstock/audit/sketches.py",
        "shared/penstock/audit/trained.py",
    },
    "trajectory": {"shared/penstock/audit/particle_dynamics.py"},
    "structured": {"shared/penstock/audit/structures.py"},
    "gibbs": {"shared/penstock/audit/chains.py"},
    "scoring": {"shared/penstock/audit/structures.py"},
}
"""Worst cases, which are made of a mechanism's stages."""

_SCORING = "shared/penstock/mechanisms/scoring"
BUILT_ON = {
    "structured": {
        f"{_SCORING}/{name}.py"
        for name in (
            "answers",
            "divisible",
            "division",
            "foresight",
            "levels",
            "memory",
            "plan",
            "run",
            "settings",
        )
    }
}
"""Whose sums another mechanism asks of rows."""


def sources(root: str) -> list[Path]:
    made = ("_pb2.py", "_pb2_grpc.py")
    return sorted(p for p in (TOP / root).rglob("*.py") if not p.name.endswith(made))


def where(path: Path) -> str:
    return path.relative_to(TOP).as_posix()


@dataclass(frozen=True)
class Read:
    """A file's tree, and what the names in it that are imported from here stand for."""

    tree: ast.Module
    names: dict[str, object]

    @classmethod
    def of(cls, source: str) -> Read:
        tree, names = ast.parse(source), {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if f"{node.module}.{alias.name}".startswith(ROOM):
                        found = imported(str(node.module), alias.name)
                        names[alias.asname or alias.name] = found
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.startswith(ROOM) and alias.asname:
                        names[alias.asname] = importlib.import_module(alias.name)
        return cls(tree, names)

    def stands_for(self, node: ast.AST) -> object:
        """What a name, or a module's attribute, stands for; None where it is none of these."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute):
            return getattr(self.stands_for(node.value), node.attr, None)
        return None


def imported(module: str, name: str) -> object:
    found = importlib.import_module(module)
    try:
        return getattr(found, name)
    except AttributeError:
        return importlib.import_module(f"{module}.{name}")


def classes_asked_for(read: Read) -> Iterator[tuple[int, type]]:
    """Classes of the mechanisms' room by which a value's type is asked: line, and class."""
    for node in ast.walk(read.tree):
        asked: list[ast.AST] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("isinstance", "issubclass") and len(node.args) == 2:
                asked = [node.args[1]]
        elif isinstance(node, ast.Compare):
            calls = [node.left, *node.comparators]
            if any(isinstance(c, ast.Call) and ast.unparse(c.func) == "type" for c in calls):
                asked = list(calls)
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        for part in (inner for outer in asked for inner in ast.walk(outer)):
            found = read.stands_for(part)
            if isinstance(found, type):
                yield node.lineno, found


SETTINGS = {mechanism.settings for mechanism in MECHANISMS.values()}


def room_of(found: type) -> str:
    """The package of a mechanism, or of what tables have in common, in which a class is."""
    return found.__module__.removeprefix(ROOM + ".").partition(".")[0]


def wrongly_asked(source: str, own: str = "") -> list[int]:
    """Lines that ask for settings, or, outside of their package, for any class of a mechanism."""
    rooms = {*PACKAGES.values(), "tables"}
    return [
        line
        for line, found in classes_asked_for(Read.of(source))
        if found in SETTINGS
        or found.__name__ == "Plan"
        or (room_of(found) in rooms and room_of(found) != own)
    ]


@pytest.mark.parametrize("root", ROOTS)
def test_nobody_asks_which_mechanism_there_is_but_a_registry(root: str) -> None:
    found = {}
    for path in sources(root):
        room = where(path).removeprefix("shared/penstock/mechanisms/").partition("/")[0]
        if lines := wrongly_asked(path.read_text(), room):
            found[where(path)] = lines
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "isinstance(study.mechanism, Gibbs)",
        "isinstance(study.mechanism, (int, Gibbs | None))",
        "isinstance(study.mechanism, mechanisms.Gibbs)",
        "isinstance(planned, ChainPlan)",
        "issubclass(kind, Gibbs)",
        "type(study.mechanism) is Gibbs",
        "isinstance(body, Autoregressive)",
    ],
)
def test_such_a_question_is_seen(line: str) -> None:
    for room in ("from penstock import mechanisms", "import penstock.mechanisms as mechanisms"):
        text = (
            f"{room}\nfrom penstock.mechanisms import Gibbs\n"
            "from penstock.mechanisms.gibbs.plan import Plan as ChainPlan\n"
            "from penstock.mechanisms.maf.body import Autoregressive\n"
        )
        assert wrongly_asked(text + line) == [5]
        assert not wrongly_asked(text + "isinstance(study.mechanism, int)")
        assert wrongly_asked(text + "match study:\n    case Gibbs():\n        pass\n") == [6]


def named_in(source: str, name: str) -> list[int]:
    """Lines of code that name a mechanism: its settings' class, its package, or its name in text.

    What is written for readers, comments and docstrings, may.
    """
    tree, package = ast.parse(source), PACKAGES[name]
    kind = MECHANISMS[name].settings.__name__
    word = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
    docs = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    found = []
    for node in ast.walk(tree):
        named = False
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            named = bool(word.search(node.value))
        elif isinstance(node, ast.Name):
            named = node.id == kind
        elif isinstance(node, ast.Attribute):
            named = node.attr == kind
        elif isinstance(node, ast.Import | ast.ImportFrom):
            base = getattr(node, "module", None)
            whole = [f"{base}.{a.name}" if base else a.name for a in node.names]
            own = f"{ROOM}.{package}"
            named = any(f"{w}.".startswith(f"{own}.") or w.endswith(f".{kind}") for w in whole)
        if named:
            found.append(node.lineno)
    return found


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_files_that_name_a_mechanism_are_its_own_and_the_registries(name: str) -> None:
    own = f"shared/penstock/mechanisms/{PACKAGES[name]}/"
    others = {
        where(path)
        for root in ROOTS
        for path in sources(root)
        if not where(path).startswith(own) and named_in(path.read_text(), name)
    }
    assert others == REGISTRIES | AUDITS[name] | BUILT_ON.get(name, set())


def test_such_a_name_is_seen() -> None:
    assert named_in('"""gibbs"""\n# gibbs\nx = "gibbsy"\n', "gibbs") == []
    assert named_in('if study.mechanism.name == "gibbs":\n    pass\n', "gibbs") == [1]
    assert named_in("x = f'of {y}, or gibbs'\n", "gibbs") == [1]
    assert named_in("from penstock.mechanisms import Gibbs\n", "gibbs") == [1]
    assert named_in("import penstock.mechanisms.gibbs.plan\n", "gibbs") == [1]
    assert named_in("from penstock.mechanisms.gibbs import run\n", "gibbs") == [1]


def test_the_registry_looks_nothing_up() -> None:
    """It imports each mechanism by name, and what it is made of; and nothing that finds modules."""
    tree = ast.parse((TOP / "shared/penstock/mechanisms/registry.py").read_text())
    froms = {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    plain = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    packages = {f"{ROOM}.{package}.mechanism" for package in PACKAGES.values()}
    made_of = {"penstock.base.checks", "penstock.base.errors", f"{ROOM}.protocol"}
    standard = {"__future__", "collections.abc", "dataclasses", "typing"}
    assert froms == packages | made_of | standard
    assert not plain
    for path in sources("shared/penstock/mechanisms"):
        calls = {ast.unparse(n.func) for n in ast.walk(ast.parse(path.read_text()))
                 if isinstance(n, ast.Call)}  # fmt: skip
        looked_up = {"__import__", "import_module", "importlib.import_module", "entry_points",
                     "importlib.metadata.entry_points", "exec", "eval"}  # fmt: skip
        assert not calls & looked_up, where(path)


LIGHT = """\
import sys
import penstock_client.gate.service
from tests.support import made
from penstock.mechanisms import MECHANISMS
for settings in made.MECHANISMS.values():
    study = made.study(settings)
    mechanism = MECHANISMS.of(settings)
    planned = mechanism.plan(study.asked, 2000)
    mechanism.memory(planned, study.schema)
    mechanism.shape(study.asked, 2000)
    mechanism.returned(study.asked)
print(sorted({"torch", "penstock.mechanisms.flow.engine"} & set(sys.modules)))
"""


def test_a_gate_plans_every_mechanism_without_torch() -> None:
    """What the import contract leaves out, since it sees lazy imports, too: tried."""
    said = subprocess.run(
        [sys.executable, "-c", LIGHT], cwd=TOP, capture_output=True, text=True, check=False
    )
    assert said.stdout == "[]\n", said.stderr
