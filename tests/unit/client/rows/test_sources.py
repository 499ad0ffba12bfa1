"""A source of rows is one object: what `site check` finds does not depend on what they lie in."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.conftest import SCHEMA, World, rows_csv
from tests.support.sources import registry_with

import penstock_client
from penstock.base.errors import InvalidInput
from penstock_client.onboarding.certification import certify_rows
from penstock_client.onboarding.inspection import inspect_rows, inspect_values
from penstock_client.rows import identities
from penstock_client.rows.drafts import outline_source
from penstock_client.rows.sources.registry import PARQUET, SOURCES, TEXT
from penstock_client.site.site_settings import read_settings

ROOT = Path(penstock_client.__file__).parent
# Numbers as Python writes them, 1.5 and not 1.500: rows are known by the text of their cells.
CSV = pd.read_csv(io.StringIO(rows_csv(200, 7))).to_csv(index=False)


def typed(text: str) -> pa.Table:
    """The rows of a CSV text as a database would give them: numbers, and text."""
    return pa.Table.from_pandas(pd.read_csv(io.StringIO(text)), preserve_index=False)


def look_elsewhere(site, data: str, public: str = "") -> None:
    text = site.paths.settings.read_text().splitlines()
    kept = [line for line in text if not line.startswith(("data =", "public_data ="))]
    new = [f'data = "{data}"', *([f'public_data = "{public}"'] if public else [])]
    site.paths.settings.write_text("\n".join([*kept, *new]) + "\n")


def certified(site) -> tuple[bytes, list[int], str]:
    found = identities.load_identities(site.paths.identities, "main")
    version = site.ledger().lineages["main"].versions[-1]
    path = site.paths.snapshots / f"main-{version.number}.arrow"
    return path.read_bytes(), found.rows.tolist(), version.fingerprint


def test_rows_in_no_file_are_checked_and_certified_as_those_of_a_file(world: World) -> None:
    """Typed columns at an address, in batches: the same bytes, hashes and fingerprint as a CSV."""
    site = world.site(csv=CSV)
    before = certified(site)
    registry = registry_with({"cohort": typed(CSV)})
    look_elsewhere(site, "memory://cohort")
    settings = read_settings(site.paths)
    checked, _ = inspect_rows(site.paths, settings, sources=registry)
    assert checked.source == "memory://cohort"
    # The same version: neither another fingerprint, nor anybody new.
    assert certify_rows(site.paths, settings, checked, accept=True) == 1
    assert certified(site) == before


def test_a_parquet_file_of_the_same_rows_is_the_same_version(world: World) -> None:
    site = world.site(csv=CSV)
    before = certified(site)
    pq.write_table(typed(CSV), site.paths.root / "rows.parquet")
    look_elsewhere(site, "rows.parquet")
    settings = read_settings(site.paths)
    checked, _ = inspect_rows(site.paths, settings)
    assert certify_rows(site.paths, settings, checked, accept=True) == 1
    assert certified(site) == before


def test_findings_name_rows_where_there_are_no_lines(world: World) -> None:
    site = world.site(csv=CSV)
    frame = typed(CSV).to_pandas()
    frame["age"] = frame["age"].astype(float)
    frame.loc[[3, 120], "age"] = 999.25
    table = pa.Table.from_pandas(frame, preserve_index=False)
    look_elsewhere(site, "memory://spoilt")
    settings, registry = read_settings(site.paths), registry_with({"spoilt": table})
    checked, _ = inspect_rows(site.paths, settings, sources=registry)
    (finding,) = [f for f in checked.findings if f.column == "age"]
    assert "(rows 4, 121)" in str(finding)
    outside = inspect_values(site.paths, settings, sources=registry)
    assert outside == {"age": [("999.25", 2)]}
    with pytest.raises(InvalidInput, match="memory://spoilt"):
        certify_rows(site.paths, settings, checked, accept=False)


def test_what_cannot_be_read_is_told_in_the_sources_own_words(world: World) -> None:
    """Also where a value of a batch turns out to be unreadable, long after it was fetched."""
    site = world.site(csv=CSV)
    far = pa.array([2**62] * 200, pa.timestamp("s"))  # a day that no calendar has
    table = typed(CSV).append_column("seen_on", far)
    look_elsewhere(site, "memory://far")
    settings, registry = read_settings(site.paths), registry_with({"far": table})
    with pytest.raises(InvalidInput, match=r"(?s)memory://far.*cannot be asked") as error:
        inspect_rows(site.paths, settings, sources=registry)
    assert str(2**62) not in str(error.value)
    # Whom nobody asks for that column reads the others.
    assert inspect_values(site.paths, settings, sources=registry) == {}
    site.paths.recoding.write_text("[source]\ndelimiter = ';'\n")
    with pytest.raises(InvalidInput, match=r"(?s)memory://far.*no delimiter"):
        inspect_rows(site.paths, settings, sources=registry)


def test_a_public_table_that_is_the_private_one_is_refused_in_every_source(world: World) -> None:
    site = world.site(csv=CSV)
    registry = registry_with({"cohort": typed(CSV), "public": typed(rows_csv(100, 8))})
    look_elsewhere(site, "memory://cohort", "memory://cohort")
    with pytest.raises(InvalidInput, match="is the private file"):
        inspect_rows(site.paths, read_settings(site.paths), sources=registry)
    look_elsewhere(site, "memory://cohort", "memory://public")
    checked, _ = inspect_rows(site.paths, read_settings(site.paths), sources=registry)
    assert checked.public is not None
    assert (checked.public.rows, checked.public.source) == (100, "memory://public")


def test_a_draft_is_made_of_any_source() -> None:
    found = outline_source("memory://cohort", registry_with({"cohort": typed(CSV)}))
    assert list(found.guesses) == list(SCHEMA.names)
    assert found.recoding().count("[source]") == 1  # in the comments: no layout to confirm


def test_an_address_of_no_known_kind_is_refused_without_its_password() -> None:
    assert SOURCES.locate(Path("/site"), "memory://x") == Path("/site/memory:/x")
    with pytest.raises(InvalidInput, match="unknown kind of address, got sql") as error:
        SOURCES.open("sql://me:secret@host/rows")
    assert "secret" not in str(error.value)


# -- nobody else asks what kind a source is ------------------------------------------------------

_CLASSES = {"DelimitedText", "ParquetFile", "FileSource", "FileKind", "AddressKind"}
_SUFFIXES = {*TEXT.suffixes, *PARQUET.suffixes}


def asks_for_the_kind(path: Path) -> list[str]:
    """What in a module tells one kind of source from another."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name) and node.id in _CLASSES:
            found.append(node.id)
        elif isinstance(node, ast.Attribute) and node.attr in ("suffix", "suffixes", "schemes"):
            found.append(node.attr)
        elif isinstance(node, ast.Constant) and node.value in _SUFFIXES:
            found.append(str(node.value))
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            found += [n for n in names if n.endswith((".delimited", ".parquet")) or n in _CLASSES]
    return found


def test_only_the_registry_knows_which_kinds_of_sources_there_are() -> None:
    inside = ROOT / "rows/sources"
    modules = [p for p in ROOT.rglob("*.py") if inside not in p.parents]
    rooms = {"rows", "onboarding", "cli", "gate", "work", "attack", "site", "operate"}
    asked = [p for p in modules if p.relative_to(ROOT).parts[0] in rooms]
    assert len(asked) > 50
    assert {p.name: found for p in asked if (found := asks_for_the_kind(p))} == {}
    # The walk does find it where it is: in the registry, and in the kinds themselves.
    assert asks_for_the_kind(inside / "registry.py")
    assert asks_for_the_kind(inside / "delimited.py")
