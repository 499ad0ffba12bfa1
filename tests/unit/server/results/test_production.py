"""Results of many sites: the same by however many processes, and of what was kept."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.support import made

from penstock.base.errors import CoordinatorError
from penstock.mechanisms import Structured
from penstock.processes import crew
from penstock.processes.crew import ChildDied
from penstock.wire.manifest import sign_manifest
from penstock.wire.messages import SiteState
from penstock.wire.signatures import public_hex
from penstock.wire.signed import sign_study
from penstock_server.results import production, site_findings
from penstock_server.results.assembly import Assembly, End
from penstock_server.results.material import Material
from penstock_server.results.production import REPORT, build_results
from penstock_server.store.folder import table_path
from penstock_server.store.register import SiteRow

SITES = tuple(f"site{number:02d}" for number in range(9))


def material(folder: Path) -> Material:
    """Nine sites that delivered, one that did not."""
    study = made.study(Structured(copies=2, refits=1, planted=0), sites=(*SITES, "west"))
    signed, parts = sign_study(study, made.KEY), []
    (folder / "uploads").mkdir(parents=True)
    for number, site in enumerate(SITES):
        data = made.streams(study, made.parts(study, seed=number))
        whole, told = b"".join(data.values()), made.list_parts(data)
        table_path(folder / "uploads", site).write_bytes(whole)
        manifest = sign_manifest(made.manifest(study, whole, site=site, parts=told), made.KEY)
        row = (signed.study_id, site, SiteState.DELIVERED, "", "", "r" * 64, 1, made.PERSONS)
        parts.append(SiteRow(*row, manifest))
    parts.append(
        SiteRow(signed.study_id, "west", SiteState.REFUSED, "", "", "", 1, made.PERSONS, None)
    )
    return Material(
        study_id=signed.study_id,
        signed=signed,
        created="2026-11-20T08:00:00Z",
        finished="2026-11-21T10:12:00Z",
        parts=tuple(parts),
        keys=dict.fromkeys((*SITES, "west"), public_hex(made.KEY)),
        uploads=folder / "uploads",
        findings=folder / "findings",
    )


def build(of: Material, folder: Path) -> tuple[bytes, list[int]]:
    """The report, and what was said on the way."""
    said: list[int] = []
    folder.mkdir()
    build_results(of, folder, said.append)
    return (folder / REPORT).read_bytes(), said


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(production, "count_processes", lambda pieces, memory: 3 if pieces else 1)


def stop_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("it looks at a release again")

    monkeypatch.setattr(site_findings.Findings, "of", refuse)


@pytest.mark.skipif(sys.platform != "linux", reason="crews are Linux'")
def test_a_report_is_the_same_by_three_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: None
) -> None:
    of = replace(material(tmp_path), findings=None)
    shared, said = build(of, tmp_path / "shared")
    assert said == [*range(1, 10)]
    monkeypatch.setattr(production, "count_processes", lambda pieces, memory: 1)
    assert build(of, tmp_path / "alone") == (shared, said)
    assert not (tmp_path / "findings").exists()


def test_what_was_found_is_not_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: None
) -> None:
    of = material(tmp_path)
    first, _ = build(of, tmp_path / "first")
    kept = sorted((tmp_path / "findings").iterdir())
    assert len(kept) == 9
    kept[3].write_bytes(kept[4].read_bytes()[:-1])
    kept[5].unlink()
    second, said = build(of, tmp_path / "second")
    assert (second, said) == (first, [7, 8, 9])
    stop_looking(monkeypatch)
    assert build(of, tmp_path / "third") == (first, [9])


def test_a_table_that_is_gone_is_missed_whatever_was_kept(tmp_path: Path, processes: None) -> None:
    of = material(tmp_path)
    build(of, tmp_path / "first")
    table_path(of.uploads, SITES[4]).unlink()
    with pytest.raises(CoordinatorError, match="a delivered table is gone"):
        build(of, tmp_path / "second")


@pytest.mark.skipif(sys.platform != "linux", reason="crews are Linux'")
def test_a_process_that_is_killed_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: None
) -> None:
    """What the others found until then is kept."""
    of, keep = material(tmp_path), site_findings.KeptFindings.keep

    def die(self: site_findings.KeptFindings, manifest: bytes, data: bytes) -> None:
        keep(self, manifest, data)
        if len(list((tmp_path / "findings").glob("*.json"))) > 3:
            os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(site_findings.KeptFindings, "keep", die)
        with pytest.raises(ChildDied):
            build(of, tmp_path / "first")
    _, said = build(of, tmp_path / "second")
    assert said[0] >= 3
    assert said[-1] == 9


@pytest.mark.skipif(
    sys.platform != "linux" or crew.count_cores() < 2, reason="crews are Linux', and of two"
)
def test_a_try_whose_process_is_killed_broke_off_and_leaves_nobody(tmp_path: Path) -> None:
    """As where memory runs out: by the real process, without a network or other programs."""
    made_in = tmp_path / "made"
    made_in.mkdir()
    assembly = Assembly(material(tmp_path).to_bytes(), made_in)
    limit, killed = time.monotonic() + 120, False
    try:
        while (outcome := assembly.poll()) is None:
            assert time.monotonic() < limit, "it takes too long"
            with contextlib.suppress(psutil.Error):
                children = psutil.Process(assembly._process.pid).children()
                if len(children) > 1 and not killed:
                    children[1].kill()
                    killed = True
            time.sleep(0.01)
    finally:
        assembly.kill()
    assert killed
    assert outcome.end is End.BROKE, outcome.why
    assert "was killed (SIGKILL)" in outcome.why
    assert not any(child.is_running() for child in children)
