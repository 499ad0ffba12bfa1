"""A site's release as it was delivered, once it has passed every check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.schema import Coded, Schema, from_arrow
from penstock.wire.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Upload:
    """A release that passed every check: its parts by name, whatever wire version they came by.

    Attributes:
        read: parts that were coded before, by their name and schema.
    """

    site: str
    manifest: Manifest
    parts: Mapping[str, pa.Table]
    read: dict[tuple[str, Schema], Coded] = field(default_factory=dict, repr=False, compare=False)

    def part(self, name: str) -> pa.Table:
        """The part of this name (:mod:`penstock.mechanisms.released`)."""
        return self.parts[name]

    def coded(self, name: str, schema: Schema) -> Coded:
        """The same, as coded columns: made once for all who look at them, nobody's to change."""
        if (name, schema) not in self.read:
            self.read[name, schema] = from_arrow(self.parts[name], schema)
        return self.read[name, schema]
