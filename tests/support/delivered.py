"""A site's release as a coordinator has it once it is checked, without a site's life around it."""

from __future__ import annotations

import numpy as np
from tests.support import made
from tests.support.carried_out import release, shape_of

from penstock.mechanisms.plans import plan
from penstock.privacy.noise.sources import NoiseSource
from penstock.schema import Coded
from penstock.schema.encoding import Encoding
from penstock.study.study import Study
from penstock.wire.manifest import ManifestPart
from penstock_server.mechanisms.delivery import Upload


def deliver(
    of: Study,
    rows: Coded,
    noise: NoiseSource,
    rng: np.random.Generator,
    *,
    site: str = "here",
    persons: int | None = None,
) -> Upload:
    """Release a table, one row a person.

    Args:
        rng: of the encoding, where it draws at all.
        persons: the declared frame; None: as many as there are rows. The last places are nobody's.
    """
    n = len(rows[of.schema.names[0]])
    frame = n if persons is None else persons
    encoding = Encoding(of.schema)
    x, there = encoding.encode(rows, rng)
    empty = frame - n
    placed = np.concatenate([x, np.broadcast_to(x[:1], (empty, x.shape[1]))])[:, None]
    present = np.append(there, np.zeros(empty, dtype=np.bool_))[:, None]
    planned = plan(of.mechanism, of.schema, frame, of.privacy, of.estimands)
    form = shape_of(of, frame)
    tables = {
        part.name: form.part(part.name).table(part.columns)
        for part in release(of.mechanism, planned, encoding, placed, present, noise)
    }
    told = tuple(ManifestPart(name, table.num_rows, 0) for name, table in tables.items())
    manifest = made.manifest(of, b"", site=site, persons=frame, rows=told[0].rows, parts=told)
    return Upload(site, manifest, tables)
