"""Who is in a data set, as keyed hashes: so that nobody is in two that were declared disjoint.

Of every version that was ever certified the hashes of all persons, and of all rows as they were
given, are kept at the site, under a key that is derived from the gate's: without it they cannot be
compared with a list of names. They are 64 bits long, enough for a chance of 1e-6 that two data sets
of three million persons each seem to share one.

Rows are compared as well, since a data set without a person column has nothing else. Then two
persons whose every cell agrees are one: what is refused may be two that are only alike.
"""

from __future__ import annotations

import hashlib
import hmac
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import LedgerError
from penstock.base.files import write_atomic
from penstock.wire.canonical import canonical
from penstock_client.rows.sources.source import Batch

if TYPE_CHECKING:
    import pandas as pd

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Identities:
    """Keyed hashes, sorted, each once.

    Attributes:
        persons: of the person column's cells; empty without one.
        rows: of whole rows, all columns of the file, by name.
    """

    persons: Hashes
    rows: Hashes

    def shared(self, other: Identities) -> int:
        """How many persons are in both; rows, where one of them has no person column."""
        return max(
            len(np.intersect1d(mine, theirs, assume_unique=True))
            for mine, theirs in ((self.persons, other.persons), (self.rows, other.rows))
        )

    def join_with(self, other: Identities) -> Identities:
        """Everybody in either."""
        return Identities(
            np.union1d(self.persons, other.persons), np.union1d(self.rows, other.rows)
        )


class IdentityGatherer:
    """Everybody in a source of rows, batch by batch, as they were given.

    Rows are hashed as they stand in the source, the text of all its columns, whatever a recoding
    makes of them: this is what a source is known by.

    Args:
        secret: the gate's key.
    """

    def __init__(self, secret: bytes) -> None:
        self._key = hmac.digest(secret, b"penstock/identities", hashlib.sha256)
        self._persons: list[Hashes] = []
        self._rows: list[Hashes] = []

    def add(self, given: Batch, ids: pd.Series | None) -> None:
        """One more batch.

        Args:
            ids: of the rows' persons, where there is a person column.
        """
        names = sorted(given.names)
        rows = given.read_rows(names)
        found = (canonical(list(zip(names, cells, strict=True))) for _, cells in rows)
        self._rows.append(self._hash(b"row", found))
        if ids is not None:
            everybody = (str(one).encode() for one in ids.unique())
            self._persons.append(self._hash(b"person", everybody))

    def done(self) -> Identities:
        """All of them."""
        return Identities(_join_hashes(self._persons), _join_hashes(self._rows))

    def _hash(self, kind: bytes, cells: Iterable[bytes]) -> Hashes:
        digests = (hmac.digest(self._key, kind + b"\x00" + c, hashlib.sha256)[:8] for c in cells)
        return np.unique(np.frombuffer(b"".join(digests), dtype=np.uint64))


def _join_hashes(parts: list[Hashes]) -> Hashes:
    return np.unique(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.uint64)


def load_identities(folder: Path, lineage: str) -> Identities | None:
    """Everybody who was ever certified in a data set; None where that is not known.

    Raises:
        LedgerError: the file is damaged.
    """
    path = _path(folder, lineage)
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as kept:
            return Identities(kept["persons"], kept["rows"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, OSError, EOFError) as error:
        raise LedgerError(
            "the hashes of persons are damaged",
            value=type(error).__name__,
            remedy=f"restore {path.name} from a backup",
        ) from None


def keep_identities(folder: Path, lineage: str, found: Identities) -> None:
    """Add to those of a data set; nobody who was ever in it is forgotten. Mode 0600."""
    folder.mkdir(mode=0o700, exist_ok=True)
    known = load_identities(folder, lineage)
    whole = found if known is None else known.join_with(found)
    sink = io.BytesIO()
    np.savez(sink, persons=whole.persons, rows=whole.rows)
    write_atomic(_path(folder, lineage), sink.getvalue())


def _path(folder: Path, lineage: str) -> Path:
    return folder / f"{lineage}.npz"
