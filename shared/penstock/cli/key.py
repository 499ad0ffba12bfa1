"""`penstock key`: the analyst's signing key, which never leaves the analyst's machine."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from penstock.analyst.keyfile import PRIVATE
from penstock.base.errors import PenstockError, SignatureError
from penstock.base.files import reading_named
from penstock.cli.console import done, friendly, say
from penstock.wire.signatures import (
    fingerprint,
    generate_key,
    private_from_pem,
    private_to_pem,
    public_hex,
)

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)

_PUBLIC = re.compile(rb"[0-9a-f]{64}")


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
    public = path.with_suffix(".pub")
    if path == public:
        raise PenstockError(
            "a private key's file may not end in .pub",
            value=path,
            remedy=f"name it {path.with_suffix('.key').name}",
        )
    for file in (path, public):
        if file.exists():
            raise PenstockError(
                "a key exists already and is never overwritten",
                value=file,
                remedy="choose another name",
            )
    private = generate_key()
    _write_new(path, private_to_pem(private), 0o600)
    _write_new(public, public_hex(private).encode() + b"\n", 0o644)
    done(f"{path} stays with you; {public} goes to each site's steward")
    say(f"fingerprint {fingerprint(public_hex(private))}")


def _write_new(path: Path, data: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
        file.write(data)


@app.command()
@friendly
def show(path: Annotated[Path, typer.Argument(help="A .key or .pub file.")]) -> None:
    """Print a key's fingerprint, to be compared by voice."""
    data = _read_bytes(path)
    private = PRIVATE in data
    say(fingerprint(public_hex(private_from_pem(data)) if private else read_public(path)))


def _read_bytes(path: Path) -> bytes:
    with reading_named(path, "Give a .pub file, of `penstock key new`"):
        return path.read_bytes()


def read_public(path: Path) -> str:
    """A .pub file's key: 64 lower-case hex digits.

    Raises:
        InvalidInput: not there.
        SignatureError: not one; what the file holds is not shown, it may be a private key.
    """
    data = _read_bytes(path)
    if PRIVATE in data:
        raise SignatureError(
            "this is a private key, which its owner must keep",
            value=path,
            remedy="use the .pub file, and let its owner make a new key if this one was sent",
        )
    text = data[:1000].strip().lower()
    if not _PUBLIC.fullmatch(text):
        raise SignatureError(
            "not a public key",
            value=path,
            bound="64 hex digits",
            remedy="use the .pub file that `penstock key new` wrote",
        )
    return text.decode()
