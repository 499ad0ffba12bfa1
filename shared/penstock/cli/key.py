"""`penstock key`: the analyst's signing key, which never leaves the analyst's machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.console import done, friendly, say
from penstock.errors import PenstockError
from penstock.wire.signatures import (
    fingerprint,
    generate_key,
    private_from_pem,
    private_to_pem,
    public_hex,
)

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def key() -> None:
    """The key that signs your studies.

    Give each site's steward the .pub file, and read the fingerprint to them over the phone.
    """


@app.command()
@friendly
def new(
    path: Annotated[Path, typer.Argument(help="Where to write it, such as analyst.key.")],
) -> None:
    """Make a key (mode 0600) and its public half beside it (.pub). Never overwrites."""
    private = generate_key()
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        raise PenstockError(
            "a key exists already and is never overwritten", value=path
        ) from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(private_to_pem(private))
    public = path.with_suffix(".pub")
    public.write_text(public_hex(private) + "\n")
    done(f"{path} and {public}")
    say(f"fingerprint {fingerprint(public_hex(private))}")


@app.command()
@friendly
def show(path: Annotated[Path, typer.Argument(help="A .key or .pub file.")]) -> None:
    """Print a key's fingerprint, to be compared by voice."""
    data = path.read_bytes()
    public = (
        public_hex(private_from_pem(data)) if b"PRIVATE KEY" in data else data.decode().strip()
    )
    say(fingerprint(public))


def read_private(path: Path) -> bytes:
    """A private key's bytes, refusing one that others can read.

    Raises:
        PenstockError: readable by others.
    """
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise PenstockError(
            "the key can be read by others",
            value=oct(mode),
            bound="0600",
            remedy=f"chmod 600 {path}",
        )
    return path.read_bytes()
