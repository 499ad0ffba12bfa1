"""What a study has measured, a line for each answer: a run that is cut off is gone on with."""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDER = Path(os.environ.get("PENSTOCK_KEPT", ROOT / "build" / "kept"))

RELEASED = (
    "tests/support/delivered.py",
    "shared/penstock/mechanisms/classes",
    "shared/penstock/mechanisms/copula",
    "shared/penstock/mechanisms/structured",
    "shared/penstock/mechanisms/tables",
    "shared/penstock/privacy",
    "shared/penstock/questions",
    "shared/penstock/schema",
    "server/penstock_server/analysis",
)
"""What a study rests on that makes releases of `structured`, and measures them as a report does."""

Answer = dict[str, float]


class Store:
    """Answers of one study by key.

    None of them outlives a change of the source that it rests on, but for comments and docstrings.

    Args:
        rests_on: files and folders of Python, from the root of the repository.
        folder: where they are kept; `FOLDER`, which `make clean` removes, if not said.
    """

    def __init__(self, study: str, rests_on: Sequence[str], folder: Path | None = None) -> None:
        digest = hashlib.sha256()
        for name in rests_on:
            path = ROOT / name
            if not path.exists():
                raise FileNotFoundError(path)
            for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
                digest.update(read_code(file).encode())
        self.path = (folder or FOLDER) / f"{study}-{digest.hexdigest()[:12]}.jsonl"

    def read(self) -> dict[str, Answer]:
        """All that there is."""
        lines = self.path.read_text().splitlines() if self.path.exists() else ()
        return {line["key"]: line["answer"] for line in map(json.loads, lines)}

    def keep(self, key: str, answer: Answer) -> None:
        """Write one down, at once."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps({"key": key, "answer": answer}) + "\n")


def read_code(file: Path) -> str:
    """What a source file says, without comments and docstrings."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                node.value = ast.Constant("")
    return ast.dump(tree)
