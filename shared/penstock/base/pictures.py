"""Files that pictures are drawn to: what all commands with a `--plot` have in common."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from penstock.base.errors import InvalidInput, PenstockError, Problem

FORMATS = (".png", ".svg", ".pdf")


def check_picture(path: Path) -> None:
    """Whether a picture can be drawn there; asked before long work, not after it.

    Raises:
        InvalidInput: another suffix. PenstockError: matplotlib is not installed.
    """
    if path.suffix.lower() not in FORMATS:
        bound = ", ".join(FORMATS)
        problem = Problem("", "not a kind of picture", value=path.name, bound=bound)
        raise InvalidInput("--plot", [problem])
    if find_spec("matplotlib") is None:
        raise PenstockError("a picture needs matplotlib", remedy="pip install 'penstock[site]'")
