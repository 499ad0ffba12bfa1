"""How commands speak to a person, and to a script."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from penstock.errors import PenstockError

P = ParamSpec("P")
R = TypeVar("R")

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def friendly(command: Callable[P, R]) -> Callable[P, R]:
    """Turn typed errors into one plain message and their exit code; never a traceback."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except PenstockError as error:
            err.print("error:", style="bold red", end=" ")
            err.print(str(error), markup=False)
            raise typer.Exit(error.exit_code) from None
        except PermissionError as error:
            err.print("error:", style="bold red", end=" ")
            err.print(f"not permitted: {error.filename}", markup=False)
            raise typer.Exit(1) from None
        except OSError as error:
            err.print("error:", style="bold red", end=" ")
            err.print(f"{error.strerror}: {error.filename}", markup=False)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    return wrapped


def emit_json(value: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table for people; texts are shown as they are, never as markup."""
    shown = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        shown.add_column(column)
    for row in rows:
        shown.add_row(*(escape(str(cell)) for cell in row))
    out.print(shown)


def escape(text: str) -> str:
    """Keep rich's markup and control characters out of texts that others wrote."""
    from rich.markup import escape as rich_escape

    return rich_escape("".join(c if c.isprintable() else "�" for c in text))


def say(text: str) -> None:
    """A plain line."""
    out.print(text, markup=False)


def done(text: str) -> None:
    """A line that says something worked."""
    out.print("[green]✓[/green]", end=" ")
    out.print(text, markup=False)


def number(value: float | None, digits: int = 3) -> str:
    """A short number; ∞ for None."""
    return "∞" if value is None else f"{value:.{digits}g}"


def read_text(path: Path) -> str:
    """A file's text.

    Raises:
        PenstockError: not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise PenstockError("not a text file", value=path, remedy="save it as UTF-8") from None
