"""Where a coordinator lies: the option that every `penstock server` command has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import click
import typer

from penstock.cli.console import err

VARIABLE = "PENSTOCK_SERVER"
ASKED = "PENSTOCK_COORDINATOR"
"""The coordinator that an analyst asks: an address, a login's name, or a directory."""


def _read_older(context: typer.Context, option: typer.CallbackParam, value: Path) -> Path:
    """The directory; what older set-ups still call :data:`ASKED`, where that can be no other thing.

    An address is none, and a bare name may be a login's: both are left alone. A directory is told
    by a separator in it, or by being there.
    """
    given = context.get_parameter_source(option.name or "")
    named = os.environ.get(ASKED, "")
    if given is not click.core.ParameterSource.DEFAULT or not named or "://" in named:
        return value
    if os.sep not in named and not Path(named).is_dir():
        return value
    err.print(f"  ! {ASKED} is taken as the directory: call it {VARIABLE} here", markup=False)
    return Path(named)


CoordinatorDir = Annotated[
    Path,
    typer.Option(
        "--dir", "-d", envvar=VARIABLE, callback=_read_older, help="The coordinator's directory."
    ),
]
