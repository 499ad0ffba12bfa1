"""How commands speak to a person, and to a script."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import NoReturn, ParamSpec, TypeVar

import click
import typer
from rich.console import Console
from rich.table import Table

from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, PenstockError, Problem
from penstock.base.printable import make_printable

P = ParamSpec("P")
R = TypeVar("R")

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def friendly(command: Callable[P, R]) -> Callable[P, R]:
    """Turn errors into one plain message and an exit code; never a traceback.

    An error of ours that was not foreseen is named by its type and place only, since its text may
    quote a row; ``PENSTOCK_DEBUG=1`` shows it whole. With ``--json`` an error is a JSON document on
    standard output, too, unless the command has written its own:
    ``{"error": {"exit_code", "code", "message", ...}}``, and ``problems`` of a bad file.
    """

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        _written.clear()
        as_json = kwargs.get("as_json") is True
        try:
            return command(*args, **kwargs)
        except (click.exceptions.Exit, click.Abort, click.ClickException, BrokenPipeError):
            raise  # click's own ways to end
        except PenstockError as error:
            return _stop(str(error), error.exit_code, error.to_dict() if as_json else None)
        except OSError as error:
            reason = "not permitted" if isinstance(error, PermissionError) else error.strerror
            what = "" if error.filename is None else f": {os.fsdecode(error.filename)}"
            text = f"{reason or type(error).__name__}{what}"
            return _stop(text, 1, _plain_error(text) if as_json else None)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except Exception as error:
            if os.environ.get("PENSTOCK_DEBUG"):
                raise
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
            remedy = "please report this; PENSTOCK_DEBUG=1 shows more"
            text = f"an error of Penstock's own (got {where}): {remedy}"
            return _stop(text, 1, _plain_error(text) if as_json else None)

    return wrapped


_written: list[bool] = []
"""Whether the running command has written its JSON document: there is never a second one."""


def _plain_error(text: str) -> Json:
    return {"code": PenstockError.code, "message": text}


def _stop(text: str, code: int, document: Json | None = None) -> NoReturn:
    if document is not None and not _written:
        emit_json({"error": {"exit_code": code, **document}})
    err.print("error:", style="bold red", end=" ")
    err.print(text, markup=False)
    raise typer.Exit(code) from None


def usage_as_json(error: click.UsageError) -> None:
    """What is wrong with a command line, as a script that asked for JSON reads every error.

    People read it on standard error, where click says it.
    """
    what = error.ctx.command_path if error.ctx is not None else "penstock"
    found = InvalidInput(what, [Problem("", error.format_message())])
    emit_json({"error": {"exit_code": found.exit_code, **found.to_dict()}})


def emit_json(value: object) -> None:
    """One JSON document on standard output."""
    _written.append(True)
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table for people; texts are shown as they are and whole, never as markup or cut."""
    shown = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    shown.show_header = any(columns)
    for index, column in enumerate(columns):
        # The first column names the row: it is there to be copied.
        shown.add_column(column, overflow="fold", no_wrap=index == 0)
    for row in rows:
        shown.add_row(*(escape(str(cell)) for cell in row))
    out.print(shown)


def escape(text: str) -> str:
    """Keep rich's markup and control characters out of texts that others wrote."""
    from rich.markup import escape as rich_escape

    return rich_escape(make_printable(text))


def say(text: str) -> None:
    """A plain line."""
    out.print(text, markup=False)


def say_with_time(text: str) -> None:
    """A plain line of something that runs on, after the local time."""
    say(f"{time.strftime('%H:%M:%S')} {text}")


def done(text: str) -> None:
    """A line that says something worked."""
    out.print("[green]✓[/green]", end=" ")
    out.print(text, markup=False)


def number(value: float | None, digits: int = 3) -> str:
    """A short number; ∞ for None."""
    return "∞" if value is None else f"{value:.{digits}g}"
