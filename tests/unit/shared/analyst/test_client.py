"""`penstock.Client` reads what came as the analyst's own objects."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import made
from typer.testing import CliRunner

import penstock
from penstock.analyst import client as module
from penstock.analyst.remote import Remote
from penstock.base.errors import CoordinatorError
from penstock.cli import study as cli
from penstock.mechanisms import Maf
from penstock.study.toml import write_study
from penstock.wire.messages import LABELLED_VERSION
from penstock.wire.signatures import generate_key, private_to_pem


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


class Older(Remote):
    """A coordinator of another wire version, that would take whatever is handed in."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    def about(self) -> dict[str, Any]:
        return {"penstock": "0", "wire": LABELLED_VERSION, "time": "x"}

    def submit(self, signed: bytes) -> str:
        self.taken.append(signed)
        return "5" * 64

    def studies(self) -> list[Any]:
        return []


def test_nothing_is_handed_in_whose_answers_a_coordinator_could_not_read(
    monkeypatch, tmp_path, capsys
):
    """Sites would be charged for them. By the client, and by the command."""
    older, key, path = Older(), tmp_path / "a.key", tmp_path / "study.toml"
    study = made.study(Maf(copies=1, refits=0))
    key.touch(0o600)
    key.write_bytes(private_to_pem(generate_key()))
    for where in (module, cli):
        monkeypatch.setattr(where, "connect", lambda where: older)
    with pytest.raises(CoordinatorError, match="newer than the coordinator"):
        penstock.Client().submit(study, key)
    path.write_text(write_study(study))
    asked = CliRunner().invoke(cli.app, ["submit", str(path), "--key", str(key)])
    assert asked.exit_code == CoordinatorError.exit_code
    assert not older.taken
    old = replace(study, wire=LABELLED_VERSION)
    assert penstock.Client().submit(old, key) == "5" * 64
    path.write_text(write_study(old))
    assert CliRunner().invoke(cli.app, ["submit", str(path), "--key", str(key)]).exit_code == 0
    assert len(older.taken) == 2
