"""One release of all sites, made of their sums: by whoever has them, and kept as it was made."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.concluded import NAMES, Concluded, add_up_answers, add_up_tables

from penstock.aggregation.exchanges import find_transcript, read_sum
from penstock.analyst.latex_tables import write_latex
from penstock.base.errors import CoordinatorError, JobFailed
from penstock.mechanisms import MECHANISMS
from penstock.mechanisms.joint.rounds import conclude
from penstock.privacy.noise.sources import SeededNoise
from penstock.schema.encoding import Encoding
from penstock_server.results.assembly import Assembly, End
from penstock_server.results.conclusion import (
    RELEASE,
    conclude_study,
    join_study,
    read_conclusion,
)
from penstock_server.results.material import Material
from penstock_server.results.production import pull_results

BOTH = pytest.mark.parametrize("make", [add_up_answers, add_up_tables], ids=["answers", "tables"])


@BOTH
def test_whoever_has_the_sums_makes_the_same_release(make: object, tmp_path: Path) -> None:
    """The file is what the mechanism concludes from them, with noise of the public seed."""
    made: Concluded = make()  # type: ignore[operator]
    found = conclude_study(made.material(tmp_path / "uploads"), tmp_path)
    told = [each.data for each in made.sums]
    assert found.seed == find_transcript(made.signed.study_id, told)
    parts = conclude(
        MECHANISMS.of(made.settings),
        made.plan,
        Encoding(made.plan.asked.schema),
        [read_sum(data) for data in told],
        SeededNoise(int(found.seed, 16)),
    )
    shape = MECHANISMS.of(made.settings).shape(made.plan.asked, sum(made.plan.consortium.persons))
    pieces: dict[str, list[pa.Table]] = {}
    for part in parts:
        pieces.setdefault(part.name, []).append(shape.part(part.name).table(part.columns))
    assert tuple(pieces) == shape.names == tuple(found.upload.parts)
    for name, tables in pieces.items():
        assert pa.concat_tables(tables).equals(found.upload.part(name))
    again = tmp_path / "again"
    again.mkdir()
    conclude_study(made.material(tmp_path / "uploads"), again)
    assert (again / RELEASE).read_bytes() == (tmp_path / RELEASE).read_bytes()


def test_a_sum_that_is_missing_makes_no_release(tmp_path: Path) -> None:
    made = add_up_answers()
    for sums in (made.sums[:-1], (*made.sums, made.sums[-1]), ()):
        with pytest.raises(JobFailed, match="not one sum for each round"):
            conclude_study(made.material(tmp_path / "uploads", sums=sums), tmp_path)
    swapped = (made.sums[1], made.sums[0], *made.sums[2:])
    with pytest.raises(JobFailed, match="size"):
        conclude_study(made.material(tmp_path / "uploads", sums=swapped), tmp_path)


def test_another_release_than_the_reports_is_not_read(tmp_path: Path) -> None:
    made = add_up_answers()
    found = conclude_study(made.material(tmp_path / "uploads"), tmp_path)
    study, plan = join_study(made.study)
    path, digest = tmp_path / RELEASE, found.upload.manifest.table_sha256
    assert read_conclusion(study, plan, path, digest).parts == found.upload.parts
    with pytest.raises(CoordinatorError, match="another one"):
        read_conclusion(study, plan, path, "0" * 64)
    with pytest.raises(CoordinatorError, match="gone"):
        read_conclusion(study, plan, tmp_path / "none")
    with pytest.raises(CoordinatorError, match="its own release"):
        join_study(replace(made.study, aggregation=type(made.study.aggregation)()))


def test_sums_go_to_another_process_whole(tmp_path: Path) -> None:
    made = add_up_tables().material(tmp_path)
    assert Material.from_bytes(made.to_bytes()) == made
    assert "south" not in made.sums[-1].survivors


def test_it_is_made_by_the_process_that_makes_results(tmp_path: Path) -> None:
    """Without a network and from its standard input alone: the same release, byte by byte.

    (Fits to it differ in last digits by how many threads a linear algebra library takes.)
    """
    made, here = add_up_tables(), tmp_path / "here"
    there = tmp_path / "there"
    there.mkdir()
    assembly = Assembly(made.material(tmp_path / "uploads").to_bytes(), there)
    try:
        end = time.monotonic() + 120
        while (outcome := assembly.poll()) is None and time.monotonic() < end:
            time.sleep(0.05)
    finally:
        assembly.kill()
    assert outcome is not None
    assert outcome.end is End.MADE, outcome.why
    assert assembly.pooled == 3
    report = made.build(here)
    assert (there / RELEASE).read_bytes() == (here / RELEASE).read_bytes()
    found = json.loads((there / "report.json").read_text())
    assert found["joint"] == report["joint"]
    assert found["guarantees"] == report["guarantees"]
    for one, other in zip(found["estimands"], report["estimands"], strict=True):
        near = pytest.approx(other["random"]["coefficient"], rel=1e-9)
        assert one["random"]["coefficient"] == near


def test_tables_of_one_release_say_of_which_site_each_row_is(tmp_path: Path) -> None:
    coordinator = add_up_tables().finish(tmp_path)
    files = pull_results(coordinator, "together", tmp_path / "out", copies="refits")
    names = [file.name for file in files]
    assert {"pooled.csv", "refits.parquet", "guarantees.csv", "parts.csv"} <= set(names)
    pooled = pd.read_csv(tmp_path / "out" / "pooled.csv")
    assert next(iter(pooled)) == "_copy"
    assert "_site" not in pooled
    assert set(pooled["site"]) == set(NAMES)
    assert set(pooled["_copy"]) == {1, 2}
    refits = pq.read_table(tmp_path / "out" / "refits.parquet")
    assert refits.column_names[:3] == ["_refit", "_fit", "_copy"]
    described = json.loads((tmp_path / "out" / "dictionary.json").read_text())
    assert [column["name"] for column in described["columns"]] == list(pooled)
    assert "strata of `site`" in described["intervals"]["rule"]
    sheets = {name: pd.read_csv(tmp_path / "out" / name) for name in described["tables"]}
    for name, sheet in sheets.items():
        assert [c["name"] for c in described["tables"][name]["columns"]] == list(sheet)
    assert sheets["parts.csv"].set_index("site").loc["south", "first_missed"] > 1
    # At two sites at once, but for what stands against all others: two accountants, two relations.
    assert len(sheets["guarantees.csv"]) == (4 + 3) * 4
    # Each is there for a paper, too, with a row for each of its rows.
    written = write_latex(tmp_path / "out", files)
    assert {file.stem for file in written} == {name.removesuffix(".csv") for name in sheets}
    assert "baseline.csv" in sheets
    for file in written:
        text = file.read_text(encoding="utf-8")
        assert text.count(r" \\") == 1 + len(sheets[f"{file.stem}.csv"])
    coordinator.store.close()


def test_coefficients_of_one_release_are_its_own(tmp_path: Path) -> None:
    made = add_up_answers()
    coordinator = made.finish(tmp_path)
    pull_results(coordinator, "together", tmp_path / "out", copies="one")
    told = pd.read_csv(tmp_path / "out" / "coefficients.csv")
    assert set(told["_site"]) == {"all sites"}
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    odds = told[told["estimand"] == "odds"].iloc[0]
    [asked] = [e for e in report["estimands"] if e["name"] == "odds"]
    assert odds["estimate"] == pytest.approx(asked["random"]["coefficient"]["estimate"], rel=1e-12)
    assert odds["se"] == pytest.approx(asked["random"]["se"], rel=1e-6)
    assert "strata(site)" in odds["formula"]
    described = json.loads((tmp_path / "out" / "dictionary.json").read_text())
    assert "nothing to pool" in described["combining"]
    assert np.isfinite(told["se"]).all()
    # A release that somebody has exchanged is not handed out as the report's.
    (coordinator.folder.results(made.signed.study_id) / RELEASE).write_bytes(b"x")
    with pytest.raises(CoordinatorError, match="another one"):
        pull_results(coordinator, "together", tmp_path / "again", copies="one")
    coordinator.store.close()
