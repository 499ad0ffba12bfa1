"""How tables of R's packages are read for the study of wide tables."""

from __future__ import annotations

import importlib.util
import io
import tarfile
from types import SimpleNamespace

import numpy as np
import pytest
from tests.studies import wide_tables
from tests.studies.wide_tables_real import FILES, draw_wide, read_wide

LINES = [f'"{i}","{"ab"[i % 2]}",{i % 3 if i else ""},{i / 4},"name {i}",1' for i in range(60)]


@pytest.fixture(autouse=True)
def archive(tmp_path, monkeypatch):
    """A package that has one table: two levels, three and a gap, numbers, names, a constant."""
    text = "\n".join(['"","two","three","size","title","one"', *LINES]).encode()
    with tarfile.open(tmp_path / "resources.tar.gz", "w:gz") as made:
        inside = tarfile.TarInfo(f"resources/rdata/csv/{FILES['iq']}.csv")
        inside.size = len(text)
        made.addfile(inside, io.BytesIO(text))
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    read_wide.cache_clear()
    yield
    read_wide.cache_clear()


def test_levels_gaps_and_numbers_are_columns_and_names_are_not():
    found = read_wide("iq")
    assert [(c.name, c.kind) for c in found.schema.columns] == [
        ("c1", "binary"),
        ("c2", "categorical"),
        ("c3", "continuous"),
    ]
    assert found.schema["c2"].levels == ("0.0", "1.0", "2.0", "missing")
    assert found.schema["c3"].bounds == (0, 15)
    assert found.rows["c2"][:4].tolist() == [3, 1, 2, 0]


def test_a_draw_has_whole_rows():
    drawn = draw_wide("iq", 20, np.random.default_rng(1))
    numbers = drawn.rows["c3"] * 4
    assert len(set(numbers)) == 20
    assert (drawn.rows["c1"] == numbers % 2).all()


def test_without_the_package_there_is_nothing_to_run(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert wide_tables.list_jobs() == []
    with pytest.raises(KeyError):
        draw_wide("iq", 20, np.random.default_rng(1))
