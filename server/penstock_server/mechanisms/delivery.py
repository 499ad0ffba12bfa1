"""A site's release as it was delivered, once it has passed every check."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.mechanisms.released import COPY, Shape
from penstock.wire.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Upload:
    """A release that passed every check."""

    site: str
    manifest: Manifest
    shape: Shape
    table: pa.Table

    def copy(self, index: int) -> pa.Table:
        """Copy ``index`` (from 1), or refit ``-index``, without its labels."""
        mask = pc.equal(self.table.column(COPY), index)
        return self.table.filter(mask).drop_columns(list(self.shape.labels))
