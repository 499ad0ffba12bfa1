"""`penstock demo`, as a newcomer runs it: it ends with a report, and leaves nothing behind."""

import json
import os
import re
import subprocess
import sys
import tempfile

import psutil
import pytest


@pytest.mark.thorough
def test_the_demo_ends_with_a_report_and_leaves_nothing_running(tmp_path):
    scratch = tmp_path / "t"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": tempfile.mkdtemp(prefix="pk-"), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "penstock", "demo", "--sites", "2", "--out", "out"]
    done = subprocess.run(
        command, cwd=scratch, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the truth that was simulated: 1.171" in done.stdout
    # Before it is asked: what the answer will be worth at each site's size, and pooled.
    forecast, _, after = done.stdout.partition("6. The analyst signs")
    assert "standard errors that structured is expected to give at ε = 3" in forecast
    assert re.search(r"pooled +\d+ +0\.\d+ +0\.\d+", forecast), forecast
    assert "7. Each site draws" in after
    report = json.loads((scratch / "out" / "report.json").read_text())
    [estimand] = report["estimands"]
    assert len(estimand["sites"]) == 2
    assert estimand["truth"] is not None
    assert estimand["held"]["runs"] == 2 * 12
    assert {site["mechanism"] for site in report["sites"]} == {"structured"}
    for name in ("report.html", "pooled.parquet", "pooled.csv", "dictionary.json", "forest.png"):
        assert (scratch / "out" / name).stat().st_size > 1000
    assert os.listdir(environment["TMPDIR"]) == []
    left = [p for p in psutil.process_iter(["cmdline"]) if _of(p, environment["TMPDIR"])]
    assert left == []


def _of(process: psutil.Process, folder: str) -> bool:
    try:
        return process.cwd().startswith(folder) or folder in " ".join(process.cmdline())
    except psutil.Error:
        return False


def test_bad_arguments_are_refused_before_anything_starts(tmp_path):
    for arguments in (
        ["--sites", "1"],
        ["--sites", "99"],
        ["--epsilon", "nan"],
        ["--mechanism", "gan"],
        ["--mechanism", "trajectory", "--sites", "5"],
    ):
        command = [sys.executable, "-m", "penstock", "demo", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == []
