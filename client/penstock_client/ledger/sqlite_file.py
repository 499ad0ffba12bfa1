"""The gate's one SQLite file: ledger records and jobs, so that both change in one transaction."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

from penstock.base.errors import LedgerCorrupt, LedgerError, LedgerLocked, LedgerUnwritable
from penstock.base.files import sync_directory

SCHEMA_VERSION = 2
"""2: records of the second format, which an older Penstock cannot read; the tables are the same."""
PATIENCE_SECONDS = 0.2

_SCHEMA = """
CREATE TABLE record (
    seq       INTEGER PRIMARY KEY,
    body      TEXT NOT NULL,
    hash      TEXT NOT NULL UNIQUE,
    signature TEXT NOT NULL
) STRICT;
-- The chain is what proves tampering; these only keep our own mistakes out.
CREATE TRIGGER record_no_update BEFORE UPDATE ON record
    BEGIN SELECT RAISE(ABORT, 'ledger records are never changed'); END;
CREATE TRIGGER record_no_delete BEFORE DELETE ON record
    BEGIN SELECT RAISE(ABORT, 'ledger records are never deleted'); END;
CREATE TABLE job (
    request_id TEXT PRIMARY KEY,
    study_id   TEXT NOT NULL,
    signed     BLOB NOT NULL,
    lineage    TEXT NOT NULL,
    version    INTEGER NOT NULL,
    state      TEXT NOT NULL,
    code       TEXT NOT NULL DEFAULT '',
    submitted  TEXT NOT NULL,
    updated    TEXT NOT NULL,
    place      INTEGER NOT NULL UNIQUE
) STRICT;
"""


class Database:
    """A locked, durable SQLite connection shared by the gate's threads.

    A committed transaction is on disk before the call returns, at any kill or power loss that the
    disk itself survives. Of SQLite's journals (two commits with ``synchronous=FULL``: 1.3 ms with
    each rollback journal, 0.5 ms with WAL, on an SSD):

    - DELETE is not durable with FULL: the journal's removal is not synced, so that a power loss can
      bring it back and undo what was committed. (EXTRA would sync it.)
    - TRUNCATE is: the emptied journal is synced. It costs no more, and is what is used.
    - WAL keeps committed records beside ``gate.db`` after a kill: a copy of that one file, with
      the gate stopped, would be no backup.

    Attributes:
        tables: what a new file holds.
        version_written, versions_read: of a new file; and of files that can be used as they are.
    """

    tables: ClassVar[str] = _SCHEMA
    version_written: ClassVar[int] = SCHEMA_VERSION
    versions_read: ClassVar[tuple[int, ...]] = (1, 2)

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._lock = threading.RLock()
        mode = "ro" if read_only else "rw"
        try:
            self._connection = sqlite3.connect(
                f"{path.resolve().as_uri()}?mode={mode}",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
                timeout=10,
            )
            self._check()
            if not read_only:
                self._connection.execute("PRAGMA journal_mode=TRUNCATE")
                self._connection.execute("PRAGMA synchronous=FULL")
                self._connection.execute("PRAGMA fullfsync=ON")
        except sqlite3.Error as error:
            raise _translate_error(error, path) from error

    @classmethod
    def create(cls, path: Path) -> Self:
        """Make a new, empty database with mode 0600; an existing file is never touched.

        It is whole when it appears: it is made under another name.
        """
        made = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            os.close(os.open(made, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            cls._fill(made)
            os.link(made, path)
        except FileExistsError:
            raise LedgerError(
                "a ledger exists already and is never overwritten",
                value=path,
                remedy="choose another directory",
            ) from None
        finally:
            made.unlink(missing_ok=True)
        sync_directory(path.parent)
        return cls(path)

    @classmethod
    def _fill(cls, path: Path) -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous=FULL")
            connection.executescript(
                f"BEGIN;{cls.tables}PRAGMA user_version={cls.version_written};COMMIT;"
            )
        except sqlite3.Error as error:
            raise _translate_error(error, path) from error
        finally:
            connection.close()

    def _check(self) -> None:
        # Not quick_check: where one page of the table is an older one, only the index tells that
        # records are missing, and what is left is a valid, shorter chain.
        row = self._connection.execute("PRAGMA integrity_check(1)").fetchone()
        if row is None or row[0] != "ok":
            raise LedgerCorrupt(
                "the ledger's file is damaged; nothing was changed",
                value=self.path,
                remedy="restore a backup, then run `penstock site ledger verify`",
            )
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in self.versions_read:
            raise LedgerError(
                "the ledger's file has another format",
                value=f"version {version}",
                bound=f"version {' or '.join(map(str, self.versions_read))}",
                remedy="use the Penstock version that wrote it",
            )

    def raise_format(self) -> None:
        """Say, in a transaction, that an older Penstock can no longer read this file."""
        with self.transaction() as connection:
            connection.execute(f"PRAGMA user_version={self.version_written}")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One atomic, durable change. Re-entrant: an inner block joins the outer one."""
        with self._lock:
            if self._connection.in_transaction:
                yield self._connection
                return
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException as error:
                with contextlib.suppress(sqlite3.Error):
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise _translate_error(error, self.path) from error
                raise

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """All rows of a read."""
        with self._lock:
            try:
                return self._connection.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise _translate_error(error, self.path) from error

    def version(self) -> int:
        """A number that changes whenever another connection has written."""
        return int(self.query("PRAGMA data_version")[0][0])

    def close(self) -> None:
        with self._lock:
            self._connection.close()


def _translate_error(error: sqlite3.Error, path: Path) -> LedgerError:
    """Say what SQLite's error means for the steward."""
    text = str(error)
    if isinstance(error, sqlite3.OperationalError):
        if "unable to open" in text:
            return LedgerError("no ledger here", value=path, remedy="run `penstock site init`")
        if "locked" in text:
            return LedgerLocked("another process is writing the ledger", value=path)
        if "readonly" in text and path.with_name(f"{path.name}-journal").exists():
            return LedgerError(
                "the gate was killed while it wrote, and this look at the ledger may not tidy up",
                value=path,
                remedy="start the gate; nothing that was committed is lost",
            )
        if "disk" in text or "full" in text or "readonly" in text or "I/O" in text:
            return LedgerUnwritable(
                "the ledger cannot be written, so nothing was charged and no row was read",
                value=text,
                remedy="free disk space and check the directory's permissions",
            )
    return LedgerCorrupt(
        "the ledger's file is damaged; nothing was changed",
        value=text,
        remedy="restore a backup, then run `penstock site ledger verify`",
    )


@contextlib.contextmanager
def hold_exclusively(
    path: Path,
    *,
    held: str = "another process holds this site's lock",
    remedy: str = "stop that gate first (`penstock site stop`)",
) -> Iterator[None]:
    """Hold a lock, by default the site's: one writing process per ledger.

    Raises:
        LedgerLocked: another process holds it (its pid is named where it is known).
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _try_lock(descriptor):
            pid = _read_pid(descriptor)
            value = f"pid {pid}" if pid else path
            raise LedgerLocked(held, value=value, remedy=remedy)
        # A full disk must not keep a gate from reading its ledger; the pid is a courtesy.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Take the lock; whoever only asks (:func:`find_holder`) has it for an instant: waited out."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.01)


def find_holder(path: Path) -> int | None:
    """The process that holds a lock now; None where nobody does, 0 where it is not known."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # Shared: two who ask at once do not take each other for the holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _read_pid(descriptor)
    finally:
        os.close(descriptor)


def _read_pid(descriptor: int) -> int:
    text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
    return int(text) if text.isdecimal() else 0
