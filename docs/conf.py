"""Sphinx for `make docs`: the pages of this repository, and a reference made from docstrings.

The source folder is the repository's root, so that a link between two pages means the same here
and wherever else the repository is read. Pages of the reference are written at each build, one
for each room, and nobody has to keep a list of modules.
"""

from __future__ import annotations

import re
import shutil
import site
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon.docstring import GoogleDocstring
from sphinx.util.nodes import make_refnode

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "penstock": ROOT / "shared" / "penstock",
    "penstock_client": ROOT / "client" / "penstock_client",
    "penstock_server": ROOT / "server" / "penstock_server",
}
REFERENCE = ROOT / "docs" / "reference"
"""Written at each build; git does not know it."""
LEFT_OUT = ("__main__", "gate_pb2", "gate_pb2_grpc")

# What modules import is installed beside the tests. It comes last: Sphinx has its own versions.
site.addsitedir(
    str(ROOT / f".venv/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages")
)
sys.path[:0] = [str(folder.parent) for folder in PACKAGES.values()]

project = "Penstock"
author = "the Penstock authors"
root_doc = "docs/index"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
]
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/reference/*.rst",
    "deploy/README.md",
    "tests/README.md",
    "tests/results/*.md",
]
exclude_patterns = [".*", "build", "**/__pycache__", "client", "server", "shared"]
# Plans of several mechanisms have one name, and types in signatures are written short.
suppress_warnings = ["ref.python"]

html_theme = "furo"
html_title = "Penstock"
html_show_sphinx = False
html_copy_source = False

myst_heading_anchors = 4
myst_links_external_new_tab = False

# What a room's `__init__` offers of its modules is shown once, where it is.
autodoc_default_options = {"members": True, "ignore-module-all": True}
autodoc_inherit_docstrings = False
autodoc_type_aliases = {
    name: name.rpartition(".")[2]
    for name in ("Array", "ArrayLike", "npt.ArrayLike", "Coded", "Event", "Floats", "Mechanism")
}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # they are in the signature
python_display_short_literal_types = True

# A reference to something of ours that is not there is an error. Others' documents are not looked
# up, so that the pages build without a network.
nitpicky = True
nitpick_ignore_regex = [
    ("py:(class|exc|obj)", r"(?!penstock).*"),
    ("py:class", r"penstock.*\._\w+"),  # private bases
    ("py:class", r"penstock.*\.([A-Z]|flower\.Client)"),  # type variables
    ("py:class", r"penstock\.wire\.gate_pb2.*"),  # generated
    ("py:class", r"penstock_server\..*\.Annotated|penstock_server\.api\.auth\.\w+"),  # FastAPI's
]


def write_reference(app: Sphinx) -> None:
    """A page for each room, with all its modules; and one that lists the rooms."""
    shutil.rmtree(REFERENCE, ignore_errors=True)
    REFERENCE.mkdir()
    contents = ["Reference", "=========", "", "From docstrings, a page for each room.", ""]
    for name, folder in PACKAGES.items():
        rooms = sorted({path.parent for path in folder.rglob("*.py")})
        pages = []
        for room in rooms:
            dotted = ".".join((name, *room.relative_to(folder).parts))
            modules = [
                f"{dotted}.{path.stem}"
                for path in sorted(room.glob("*.py"))
                if path.stem != "__init__" and path.stem not in LEFT_OUT
            ]
            lines = [dotted, "=" * len(dotted), "", f".. automodule:: {dotted}", ""]
            for module in modules:
                lines += [module, "-" * len(module), "", f".. automodule:: {module}", ""]
            (REFERENCE / f"{dotted}.rst").write_text("\n".join(lines))
            short = dotted.removeprefix(f"{name}.")
            pages.append(f"{short} <{dotted}>")
        contents += [".. toctree::", "   :maxdepth: 1", f"   :caption: {name}", ""]
        contents += [*(f"   {page}" for page in pages), ""]
    (REFERENCE / "index.rst").write_text("\n".join(contents))


def find(name: str) -> Any:
    """What a dotted name stands for in Python, or None."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:length]))
        except (ImportError, ValueError):
            continue
        for part in parts[length:]:
            missing = getattr(found, "__annotations__", {}).get(part)
            found = getattr(found, part, missing)
        return found
    return None


def resolve_reference(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.TextElement
) -> nodes.Element | None:
    """Finds what is there but has no entry: constants, private helpers, what a room offers besides.

    A link where it is documented elsewhere, its name otherwise. What is not there stays an error.
    """
    if node.get("refdomain") != "py":
        return None
    target, module, within = node["reftarget"], node.get("py:module"), node.get("py:class")
    for scope in ("", module, f"{module}.{within}"):
        found = find(f"{scope}.{target}" if scope else target)
        if found is None:
            continue
        real = f"{getattr(found, '__module__', '')}.{getattr(found, '__qualname__', '')}"
        known = env.domains.python_domain.objects.get(real)
        if known is None:
            return text
        return make_refnode(app.builder, node["refdoc"], known.docname, known.node_id, text)
    return None


def parse_attribute(self: GoogleDocstring) -> list[str]:
    """Napoleon takes words before a colon for a type; with us they begin a sentence."""
    if self._what == "property":  # which has sections, as functions have
        self._what = "method"
        self._parse()
        return []
    return [str(line) for line in self._dedent(self._consume_to_end())]


GoogleDocstring._parse_attribute_docstring = parse_attribute  # type: ignore[method-assign]


def join_names(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """``lower, upper: bounds`` is of two names; Napoleon takes the first for a type."""
    for i, line in enumerate(lines):
        if found := re.match(r" +\w+(, \w+)+: ", line):
            lines[i] = found[0].rstrip().replace(", ", ",") + line[found.end() - 1 :]


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", join_names, priority=400)  # before Napoleon
    app.connect("builder-inited", write_reference)
    app.connect("missing-reference", resolve_reference)
