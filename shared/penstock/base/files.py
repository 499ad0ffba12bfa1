"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from penstock.base.errors import InvalidInput, Problem


def write_atomic(path: Path, data: bytes, mode: int = 0o600, *, new: bool = False) -> None:
    """Write beside, sync, and rename: a reader sees the old file or the new one, never half.

    Nobody but its owner can read it before it has its mode.

    Args:
        new: never replace a file that is there.

    Raises:
        FileExistsError: a file is there, and ``new`` was asked for.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        if new:
            os.link(name, path)
        else:
            os.replace(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
    sync_directory(path.parent)


@contextlib.contextmanager
def reading_named(path: Path, remedy: str) -> Iterator[None]:
    """Around the reading of a file that a person named.

    Raises:
        InvalidInput: it is not there, or cannot be read.
    """
    try:
        yield
    except OSError as error:
        problem = Problem("", f"cannot be read: {error.strerror}", remedy=remedy)
        raise InvalidInput(str(path), [problem]) from None


@contextlib.contextmanager
def replace_file(path: Path, mode: int = 0o644) -> Iterator[str]:
    """A temporary name beside ``path`` that takes its place if all goes well.

    For what libraries write by themselves; it is whole, and need not outlive a power cut.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(descriptor)
    os.chmod(name, mode)
    try:
        yield name
        os.replace(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def sync_directory(path: Path) -> None:
    """Make a rename in this directory durable; where directories cannot be synced, nothing."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
