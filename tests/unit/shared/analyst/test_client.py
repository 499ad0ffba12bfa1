"""`penstock.Client` reads what came as the analyst's own objects."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.analyst import client as module
from penstock.base.errors import CoordinatorError


class Directory:
    """A coordinator on this machine, with these files."""

    def __init__(self, content: dict[str, bytes]) -> None:
        self.content = content

    def pull(self, study: str, out: Path, *, copies: str) -> list[Path]:
        for name, data in self.content.items():
            (out / name).write_bytes(data)
        return [out / name for name in self.content]


def test_a_client_reads_what_the_mechanism_released(monkeypatch):
    sink = io.BytesIO()
    table = pa.table({"_site": ["a", "a"], "_path": [1, 1], "_time": [0.0, 0.5], "sbp": [1.0, 2.0]})
    pq.write_table(table, sink)
    there = Directory(
        {"paths.parquet": sink.getvalue(), "particles.parquet": sink.getvalue(),
         "coefficients.json": b'{"terms": ["x"], "sites": []}'}
    )  # fmt: skip
    monkeypatch.setattr(module, "connect", lambda where: there)
    client = penstock.Client()
    assert client.paths("trial")["_time"].tolist() == [0.0, 0.5]
    assert client.particles("trial")["sbp"].tolist() == [1.0, 2.0]
    assert client.coefficients("trial")["terms"] == ["x"]
    with pytest.raises(CoordinatorError, match=r"no such file.*pooled\.parquet"):
        client.pooled("trial")
