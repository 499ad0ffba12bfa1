"""A site's release as it was delivered, once it has passed every check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from penstock.schema import Coded, Schema, from_arrow
from penstock.wire.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Upload:
    """A release that passed every check: its parts by name, whatever wire version they came by."""

    site: str
    manifest: Manifest
    parts: Mapping[str, pa.Table]

    def part(self, name: str) -> pa.Table:
        """The part of this name (:mod:`penstock.mechanisms.released`)."""
        return self.parts[name]

    def coded(self, name: str, schema: Schema) -> Coded:
        """The same, as coded columns."""
        return from_arrow(self.parts[name], schema)
