"""A mechanism that the package does not know, from a study's text to a signed release.

Only who is handed a registry with it takes it. A gate, a worker and a reader that are started as
they are at a site have the closed list, whatever surrounds them.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest
from tests.conftest import DONE, World
from tests.support import made
from tests.support.column_mean.mechanism import COLUMN_MEAN, WITH_MEAN
from tests.support.column_mean.settings import ColumnMean
from tests.support.here import GateHere, WorkerHere

from penstock.analyst.consequences import describe_cost, describe_returned
from penstock.base.errors import InvalidInput, Refused, UploadRejected
from penstock.mechanisms import MECHANISMS, Maf
from penstock.mechanisms.registry import Registry
from penstock.privacy.events import from_dict, to_dict
from penstock.schema import Coded
from penstock.study.study import Study
from penstock.study.toml import mechanism_for, parse_study, write_study
from penstock.wire.manifest import Manifest, read_manifest
from penstock.wire.messages import JobState
from penstock.wire.signed import SignedStudy, read_signed_study
from penstock_client.rows.snapshot import load_rows, locate_rows
from penstock_client.site.policy import policy_template, read_policy
from penstock_client.site.site_paths import SitePaths
from penstock_client.work.launcher import Worker
from penstock_client.work.spec import Spec
from penstock_server.intake import uploads
from penstock_server.mechanisms import registry as kinds
from penstock_server.mechanisms.delivery import Upload
from penstock_server.mechanisms.maf import MafKind

FOREIGN = "is unknown"
MANIFEST = replace(made.manifest(made.study(Maf()), b""), wire="1.2", persons=200, rows=1)


def allow(paths: SitePaths) -> None:
    """A steward's policy that names it."""
    text = paths.policy.read_text().replace('["maf"]', '["column-mean"]')
    paths.policy.write_text(text)


def ask(world: World) -> SignedStudy:
    return world.signed(mechanism=ColumnMean("sbp"))


def test_it_is_asked_planned_charged_run_and_collected(world: World) -> None:
    site = world.site()
    allow(site.paths)
    signed, here = ask(world), GateHere(site.paths, WITH_MEAN)
    try:
        request = here.gate.submit(signed.to_bytes()).request_id
        until = time.monotonic() + 60
        while (seen := here.gate.poll(request)).state not in DONE and time.monotonic() < until:
            time.sleep(0.02)
        assert seen.state is JobState.DELIVERED
        manifest, size, pieces = here.gate.collect(request)
        data = b"".join(pieces)
        (row,) = here.gate.requests()
        charge = here._stores.ledger.state().charges[request]
    finally:
        here.close()
    told = read_manifest(manifest, site.paths.gate_public())
    planned = COLUMN_MEAN.plan(signed.study.asked, told.persons)  # type: ignore[arg-type]
    assert (told.mechanism, told.rows, told.copies, told.refits) == ("column-mean", 1, 1, 0)
    assert tuple(from_dict(e) for e in told.events) == planned.events == tuple(charge.events)
    assert charge.status == "committed"
    assert row["mechanism"] == "column-mean"
    assert [(p.name, p.rows) for p in told.parts] == [("mean", 1), ("calibration", 2)]
    assert sum(p.bytes for p in told.parts) == size == len(data) == told.table_bytes
    table, spread = (pa.ipc.open_stream(part).read_all() for part in cut(data, told))
    assert table.column_names == ["mean"]
    assert spread.to_pydict() == {"of": ["sum", "count"], "sd": [planned.sd, planned.sd]}
    coded, _ = load_rows(locate_rows(site.paths.snapshots, "main", 1).read_bytes())
    truth = float(np.mean(coded["sbp"]))
    # In units of half the range: noise on the sum, and on the count that it is divided by.
    sd = planned.half * planned.sd * np.sqrt(2) / told.persons
    assert abs(table["mean"][0].as_py() - truth) < 6 * sd
    assert table["mean"][0].as_py() != pytest.approx(truth, abs=1e-9)


def cut(data: bytes, manifest: Manifest) -> list[bytes]:
    """A file's parts."""
    ends = list(accumulate(part.bytes for part in manifest.parts))
    return [data[end - part.bytes : end] for end, part in zip(ends, manifest.parts, strict=True)]


class MeanKind(MafKind):
    """The coordinator's half, as far as its intake goes."""

    seen: ClassVar[dict[str, list[str]]] = {}

    def check(self, parts: Mapping[str, Coded]) -> None:
        self.seen.update({name: list(coded) for name, coded in parts.items()})
        if not (parts["calibration"]["sd"] > 0).all():
            raise UploadRejected("no noise")


@pytest.fixture
def intake(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that knows it: one line in each registry."""
    monkeypatch.setattr(uploads, "MECHANISMS", WITH_MEAN)
    known = MappingProxyType({**kinds.KINDS, ColumnMean.name: MeanKind})
    monkeypatch.setattr(kinds, "KINDS", known)


def test_a_coordinator_reads_a_part_of_its_own_kind(
    world: World, tmp_path: Path, intake: None
) -> None:
    """Nobody but its two halves knows of the part."""
    world.site()
    study = ask(world).study
    shape = COLUMN_MEAN.shape(study.asked, 200)  # type: ignore[arg-type]
    parts = {
        "mean": made.stream(shape.part("mean").table({"mean": [120.0]})),
        "calibration": made.stream(
            shape.part("calibration").table({"of": [0.0, 1.0], "sd": [3.0, 4.0]})
        ),
    }

    def read(given: dict[str, bytes]) -> Upload:
        path, data = tmp_path / "upload", b"".join(given.values())
        path.write_bytes(data)
        told = made.list_parts(given)
        manifest = replace(
            MANIFEST,
            table_sha256=hashlib.sha256(data).hexdigest(),
            table_bytes=len(data),
            parts=told,
        )
        return uploads.read_upload("a", manifest, path, study)

    upload = read(parts)
    assert upload.part("mean")["mean"].to_pylist() == [120.0]
    assert upload.part("calibration").to_pydict() == {"of": ["sum", "count"], "sd": [3.0, 4.0]}
    assert MeanKind.seen == {"mean": ["mean"], "calibration": ["of", "sd"]}
    for wrong, said in (
        ({"of": [0.0, 1.0], "sd": [3.0, 0.0]}, "no noise"),
        ({"of": [0.0], "sd": [3.0]}, "not the rows that were asked for|manifest's rows"),
    ):
        other = made.stream(shape.part("calibration").table(wrong))
        with pytest.raises(UploadRejected, match=said):
            read(parts | {"calibration": other})
    with pytest.raises(UploadRejected, match=r"calibration: .*columns"):
        read(parts | {"calibration": parts["mean"]})


def test_no_older_wire_version_holds_such_a_part(world: World) -> None:
    """Refused before anything is charged: whoever reads labels only could not read the answer."""
    site = world.site()
    allow(site.paths)
    signed = world.signed(mechanism=ColumnMean("sbp"), wire="1.1")
    here = GateHere(site.paths, WITH_MEAN)
    try:
        with pytest.raises(Refused) as refused:
            here.gate.submit(signed.to_bytes())
        assert refused.value.reason == "wire-version"
        assert not here._stores.ledger.state().charges
    finally:
        here.close()


def test_its_study_is_drafted_written_read_and_explained(world: World) -> None:
    world.site()
    study = ask(world).study
    assert Study.from_dict(study.to_dict(), WITH_MEAN) == study
    assert parse_study(write_study(study, WITH_MEAN), WITH_MEAN) == study
    assert "# column-mean releases the mean of one column." in write_study(study, WITH_MEAN)
    assert mechanism_for("column-mean", study.schema, mechanisms=WITH_MEAN) == ColumnMean("age")
    assert describe_returned(study, WITH_MEAN) == ["comes back: the mean of sbp"]
    assert describe_cost(study, WITH_MEAN).startswith("costs each site ε = 2")
    text = policy_template(WITH_MEAN)
    assert re.search(r'^#   "column-mean" +no rows: one number$', text, re.MULTILINE)
    assert "one of seven" in text


def test_the_closed_list_refuses_it(world: World) -> None:
    site = world.site()
    signed, here = ask(world), GateHere(site.paths)
    try:
        with pytest.raises(InvalidInput, match=FOREIGN):
            here.gate.submit(signed.to_bytes())
    finally:
        here.close()
    with pytest.raises(InvalidInput, match=FOREIGN):
        read_signed_study(signed.to_bytes())
    with pytest.raises(InvalidInput, match=FOREIGN):
        parse_study(write_study(signed.study, WITH_MEAN))
    with pytest.raises(InvalidInput, match=FOREIGN):
        mechanism_for("column-mean", signed.study.schema)
    with pytest.raises(TypeError, match="ColumnMean"):
        MECHANISMS.of(signed.study.mechanism)
    allow(site.paths)
    with pytest.raises(InvalidInput, match=FOREIGN):
        read_policy(site.paths.policy)


def test_a_workers_process_has_the_closed_list_whatever_its_gate_has(world: World) -> None:
    site = world.site()
    study = ask(world).study
    planned = COLUMN_MEAN.plan(study.asked, 200)  # type: ignore[arg-type]
    spec = Spec(
        study=study.to_dict(),
        dictionary=study.schema.to_dict(),
        events=[to_dict(e) for e in planned.events],
        public=None,
        persons=200,
        device="cpu",
        threads=1,
        memory_gb=4.0,
        insecure_seed=None,
    )
    spawned = Worker(site.paths.work / "spawned")
    try:
        assert not spawned.prepare(spec)
        assert "InvalidInput" in spawned.why()
    finally:
        spawned.clean()
    assert WorkerHere(site.paths.work / "here", WITH_MEAN).prepare(spec)


def test_nothing_is_added_to_a_registry_that_is_made() -> None:
    with pytest.raises(TypeError):
        MECHANISMS["column-mean"] = COLUMN_MEAN  # type: ignore[index]
    with pytest.raises(AttributeError):
        MECHANISMS.more = COLUMN_MEAN  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="names of their own"):
        Registry(COLUMN_MEAN, COLUMN_MEAN, default=COLUMN_MEAN.name)
    with pytest.raises(ValueError, match="none of the mechanisms"):
        Registry(COLUMN_MEAN, default="maf")
    with pytest.raises(ValueError, match="none of the mechanisms"):
        Registry(COLUMN_MEAN, default=COLUMN_MEAN.name, earlier="maf")


PLANTED = """\
    import importlib.abc, os, sys

    class Hook(importlib.abc.MetaPathFinder):
        asked = []
        def find_spec(self, name, *_):
            self.asked.append(name)

    sys.meta_path.insert(0, Hook())
    from penstock.mechanisms import MECHANISMS
    from penstock.study.study import Study
    from penstock_client.site.policy import read_policy
    from penstock_client.work import worker
    closed = ("structured", "maf", "sliced-wasserstein", "trajectory", "gibbs", "scoring")
    assert MECHANISMS.names == closed, MECHANISMS.names
    assert not [name for name in Hook.asked if "column_mean" in name]
    import column_mean_for_penstock  # it could be had: it lies on the path
    assert MECHANISMS.names == closed, MECHANISMS.names
    print("closed")
"""


def test_no_variable_entry_point_or_import_hook_adds_one(tmp_path: Path) -> None:
    """A distribution that offers one by every group that such a list could have, a folder beside
    the packages, and variables that name it."""
    (tmp_path / "column_mean_for_penstock.py").write_text(
        "from tests.support.column_mean.mechanism import COLUMN_MEAN\n"
    )
    about = tmp_path / "column_mean_for_penstock-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: column-mean-for-penstock\nVersion: 1.0\n")
    groups = ("penstock", "penstock.mechanisms", "penstock.plugins", "penstock_client.mechanisms")
    offered = "column-mean = column_mean_for_penstock:COLUMN_MEAN"
    (about / "entry_points.txt").write_text("".join(f"[{g}]\n{offered}\n" for g in groups))
    beside = tmp_path / "penstock" / "mechanisms" / "column_mean"
    beside.mkdir(parents=True)
    (beside / "mechanism.py").write_text("raise RuntimeError('somebody looked here')\n")
    paths = [str(tmp_path), *(p for p in sys.path if p), str(Path(__file__).parents[2])]
    names = ("PENSTOCK_MECHANISMS", "PENSTOCK_MECHANISM", "PENSTOCK_PLUGINS", "PENSTOCK_REGISTRY")
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PLANTED)],
        env={"PYTHONPATH": ":".join(paths[1:] + paths[:1])}
        | {name: offered.partition(" = ")[2] for name in names},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.stdout == "closed\n", said.stderr
