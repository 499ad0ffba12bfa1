"""The file of a signing key."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.base.errors import PenstockError, SignatureError
from penstock.base.files import reading_named

PRIVATE = b"PRIVATE KEY"


def read_private(path: Path) -> bytes:
    """A private key's bytes, refusing one that others can read.

    Raises:
        InvalidInput: not there; PenstockError: readable by others; SignatureError: not a private
            key.
    """
    with reading_named(path, "Make a key by `penstock key new`, or correct the path"):
        data, mode = path.read_bytes(), path.stat().st_mode & 0o777
    if PRIVATE not in data:
        raise SignatureError(
            "not a private key", value=path, remedy="use the .key file, not the .pub file"
        )
    if os.name == "posix" and mode & 0o077:
        raise PenstockError(
            "the key can be read by others",
            value=oct(mode),
            bound="0600",
            remedy=f"chmod 600 {path}",
        )
    return data
