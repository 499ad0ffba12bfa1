"""Certified rows as a process may hold them: bytes that nobody can change any more.

A file can be written in place by whoever has it open, and its path can name another file tomorrow.
So rows are copied once into memory that belongs to no path (a sealed ``memfd``; where there is
none, an unlinked copy that only this user could ever open), the *copy* is compared with what the
ledger certified, and that copy is what a worker gets.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import mmap
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from penstock.base.errors import PenstockError
from penstock.schema import Schema
from penstock.wire.canonical import canonical
from penstock_client.rows.snapshot import keyed_fingerprint

SEALS = (
    fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    if sys.platform == "linux"
    else 0
)
"""Nobody can write, shrink or grow what has them, nor take them off; 0 where there are none."""

_REMEDY = "look who changed it, and run `penstock site check` again"


class NotCertified(PenstockError):
    """The rows that lie here are not those that were certified, or not safely kept."""

    code = "not-certified"


@contextlib.contextmanager
def seal_rows(path: Path) -> Iterator[int]:
    """The descriptor of an unchangeable copy of a snapshot; closed at the end.

    Raises:
        NotCertified: there is none, or the file or its folder is a link, belongs to another user,
            or can be written by others.
    """
    with _open_unlinked(path) as source:
        descriptor = _make_nameless(path)
        try:
            with os.fdopen(descriptor, "wb", closefd=False) as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
            if SEALS:
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
            yield descriptor
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _open_unlinked(path: Path) -> Iterator[BinaryIO]:
    """The file, reached without following a link in its folder's or its own name."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _check_owner(folder, path.parent, stat.S_ISDIR)
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(path.name, flags, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError as error:
        why = f"certified rows cannot be read where they were kept: {error.strerror}"
        raise NotCertified(why, value=path.name, remedy=_REMEDY) from None
    with os.fdopen(file, "rb") as source:
        _check_owner(file, path, stat.S_ISREG)
        yield source


def _check_owner(descriptor: int, path: Path, kind: Callable[[int], bool]) -> None:
    found = os.fstat(descriptor)
    if not kind(found.st_mode) or not found.st_size:
        raise NotCertified("not what was kept here", value=path.name, remedy=_REMEDY)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise NotCertified(
            "others may have written it",
            value=f"{path.name}: user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o}",
            bound=f"user {os.geteuid()}, writable by nobody else",
            remedy=_REMEDY,
        )


def _make_nameless(path: Path) -> int:
    """A new file that has no name."""
    if SEALS:
        return os.memfd_create("penstock-rows", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".rows.")  # mode 0600
    os.unlink(name)
    return descriptor


def map_rows(descriptor: int) -> mmap.mmap:
    """The bytes behind a descriptor, read where they lie; let go with their last view."""
    return mmap.mmap(descriptor, 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)


def require_certified(descriptor: int, dictionary: Schema, secret: bytes, fingerprint: str) -> None:
    """Compare sealed rows, and the dictionary that says what they mean, with the ledger's record.

    Args:
        secret: keys the fingerprint, see :func:`~penstock_client.rows.snapshot.keyed_fingerprint`.
        fingerprint: of the certified version.

    Raises:
        NotCertified: they are others.
    """
    meaning = canonical(dictionary.to_dict())
    found = keyed_fingerprint(map_rows(descriptor), secret, meaning)
    if not hmac.compare_digest(found, fingerprint):
        raise NotCertified(
            "the rows or their dictionary are not those that were certified; nothing was charged, "
            "and nothing read by a worker",
            value=f"fingerprint {found[:16]}…",
            bound=f"{fingerprint[:16]}…",
            remedy=_REMEDY,
        )
