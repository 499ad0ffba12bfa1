"""Planted values appear in no byte that leaves a gate: replies, errors, logs, reports."""

import subprocess
import sys

import numpy as np
import pytest
from tests.support.sources import check, read_text

from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.wire import gate_pb2, gate_pb2_grpc
from penstock.wire.calls import connect

# Numbers and texts that nothing but the rows contains.
CANARY_NUMBER = "73.846291"
CANARY_LEVEL = "CANARYLEVELXYZZY"
CANARY_ID = "CANARYPERSON000042"

SCHEMA = Schema(
    columns=(
        Column("x", "continuous", lower=0, upper=100, decimals=6),
        Column("y", "continuous", lower=-1e3, upper=1e3),
        Column("group", "categorical", levels=("a", "b", "c"), nullable=True),
    ),
    person="id",
)


def csv_with_canaries(n=120):
    rng = np.random.default_rng(1)
    lines = ["id,x,y,group"]
    for i in range(n):
        x = CANARY_NUMBER if i == 7 else f"{rng.uniform(0, 100):.6f}"
        group = CANARY_LEVEL if i == 9 else "abc"[i % 3]
        lines.append(f"{CANARY_ID if i == 3 else f'p{i}'},{x},{rng.normal():.6f},{group}")
    return "\n".join(lines) + "\n"


@pytest.fixture
def site(world):
    return world.site(csv=csv_with_canaries(), schema=SCHEMA)


def canaries(data: bytes) -> list[str]:
    found = [c for c in (CANARY_NUMBER, CANARY_LEVEL, CANARY_ID) if c.encode() in data]
    if np.float64(float(CANARY_NUMBER)).tobytes() in data:
        found.append("the number's bytes")
    return found


def test_the_detector_detects(site):
    rows = b"".join(p.read_bytes() for p in site.paths.snapshots.glob("*.arrow"))
    assert "the number's bytes" in canaries(rows)
    assert len(canaries((site.paths.root.parent / "a.csv").read_bytes())) == 3


def test_nothing_that_leaves_holds_a_canary(world, site):
    site.start()
    estimand = Estimand("e", "ols", "y", "x")
    study = world.signed(schema=SCHEMA, estimands=(estimand,))
    job = site.submit(study)
    assert site.wait(job.request_id).state == "delivered"
    manifest, table = site.collect(job.request_id)
    replies = [manifest, table, job.SerializeToString()]
    with connect(site.paths.gate_socket) as channel:
        stub = gate_pb2_grpc.GateStub(channel)
        replies.append(stub.Describe(gate_pb2.DescribeRequest(), timeout=10).json)
    replies += [site.paths.log.read_bytes(), site.paths.join.read_bytes()]
    replies += [p.read_bytes() for p in site.paths.releases.rglob("*") if p.is_file()]
    assert [canaries(r) for r in replies] == [[]] * len(replies)


# The real service, but for the comparison with what was certified.
UNCHECKED = """
import logging, sys
from pathlib import Path
from penstock_client.gate import running, service
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import read_settings

logging.basicConfig(level=logging.INFO)
running.require_certified = lambda *_: None
paths = SitePaths(Path(sys.argv[1]))
service.serve_gate(paths, read_settings(paths))
"""


def test_a_failing_worker_says_nothing_of_the_rows(world, site):
    # Rows that cannot be read any more: the worker fails with them in its hands.
    snapshot = site.paths.snapshots / "main-1.arrow"
    data = snapshot.read_bytes()
    snapshot.write_bytes(data[: len(data) // 2])
    gate = site.start(driver=UNCHECKED)
    study = world.signed(schema=SCHEMA, estimands=(Estimand("e", "ols", "y", "x"),))
    job = site.submit(study)
    end = site.wait(job.request_id)
    assert (end.state, end.code) == ("failed", "failed")
    gate.terminate()
    output = gate.stdout.read()
    assert b"burnt: Arrow" in output  # it was read
    assert canaries(output) == []
    assert not any(site.paths.work.iterdir())


def test_findings_name_lines_and_never_values(world, site):
    findings = check(read_text(world.root / "a.csv"), SCHEMA).findings
    assert any("outside the levels" in str(f) and "line 11" in str(f) for f in findings)
    assert canaries("\n".join(map(str, findings)).encode()) == []


def test_the_check_command_names_lines_and_never_values(world, site):
    command = [sys.executable, "-m", "penstock", "site", "check", "--dry-run"]
    done = subprocess.run(
        [*command, "--dir", str(site.paths.root)], capture_output=True, check=False
    )
    assert b"line 11" in done.stderr
    assert canaries(done.stdout + done.stderr) == []
