"""Small real sites, made by the same functions as `penstock site`."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from penstock.base.errors import GateUnavailable, Refused
from penstock.mechanisms import Maf, Settings
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.study.study import Study
from penstock.study.toml import write_dictionary
from penstock.wire import gate_pb2, gate_pb2_grpc
from penstock.wire.calls import connect, explain_failure
from penstock.wire.signatures import generate_key, public_hex
from penstock.wire.signed import SignedStudy, sign_study
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database
from penstock_client.ledger.state import State
from penstock_client.onboarding.certification import certify_rows
from penstock_client.onboarding.inspection import inspect_rows
from penstock_client.onboarding.new_site import make_site
from penstock_client.site.signers import Signer, Trust, write_trust
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import read_settings

POLICY = """\
mechanisms = ["maf"]
guarantees = ["formal", "public-flow", "empirical"]
approval = "{approval}"
[time]
slot_seconds = 0.25
[limits]
study_epsilon = {study}
study_delta = 1e-5
total_epsilon = {total}
total_delta = 1e-5
"""

SCHEMA = Schema(
    columns=(
        Column("age", "continuous", lower=18, upper=100, decimals=0, unit="year"),
        Column("sbp", "continuous", lower=70, upper=250, decimals=0, unit="mmHg"),
        Column("sex", "binary"),
        Column("score", "continuous", lower=-50, upper=50, decimals=3),
    )
)

ESTIMAND = Estimand("effect", "ols", "score", "sbp", per=10.0, adjust=("age", "sex"))

DONE = ("delivered", "failed", "rejected", "cancelled")

FAST = Maf(copies=3, refits=2, steps=12, flows=2, hidden=(8,))


def rows_csv(n: int, seed: int) -> str:
    """A table with a linear effect of 2.0 per 10 mmHg."""
    rng = np.random.default_rng(seed)
    age = np.clip(rng.normal(55, 9, n), 18, 100).round()
    sbp = np.clip(rng.normal(125, 18, n), 70, 250).round()
    sex = rng.integers(0, 2, n)
    score = np.clip(0.2 * (sbp - 125) + 0.1 * (age - 55) + rng.normal(0, 3, n), -50, 50)
    lines = ["age,sbp,sex,score"]
    lines += [
        f"{a:.0f},{b:.0f},{c},{d:.3f}" for a, b, c, d in zip(age, sbp, sex, score, strict=True)
    ]
    return "\n".join(lines) + "\n"


def dictionary_of(schema: Schema, csv: str, persons: int | None = None) -> str:
    """A finished dictionary for these rows; its frame is the count of persons unless given.

    A real site's frame is never its count: tests that are about frames give one.
    """
    _, *rows = (line.split(",") for line in csv.splitlines())
    if persons is None:
        place = csv.partition("\n")[0].split(",").index(schema.person) if schema.person else None
        persons = len(rows) if place is None else len({row[place] for row in rows})
    return write_dictionary(schema, max(1, persons))


@dataclass
class TestSite:
    """A certified site in a short directory of its own."""

    __test__ = False
    paths: SitePaths
    name: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *, driver: str | None = None, wait: bool = True) -> subprocess.Popen[bytes]:
        """Start the gate as a process: the real command, or a driver script around it."""
        command = (
            [sys.executable, "-m", "penstock", "site", "gate", "--dir", str(self.paths.root)]
            if driver is None
            else [sys.executable, "-c", driver, str(self.paths.root)]
        )
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        self.processes.append(process)
        deadline = time.monotonic() + 60
        while wait and not self._answers():
            if process.poll() is not None or time.monotonic() > deadline:
                output = process.stdout.read().decode() if process.stdout else ""
                raise AssertionError(f"the gate did not come up: {output}")
            time.sleep(0.05)
        return process

    def _answers(self) -> bool:
        if not self.paths.gate_socket.exists():
            return False
        try:
            self.call("Describe", gate_pb2.DescribeRequest())
        except GateUnavailable:
            return False
        except Refused:
            pass
        return True

    # -- what the network side does ------------------------------------------------------------

    def call(self, method: str, request: Any) -> Any:
        """One call on gate.sock, with errors as the coordinator sees them."""
        with contextlib.closing(connect(self.paths.gate_socket)) as channel:
            try:
                return getattr(gate_pb2_grpc.GateStub(channel), method)(request, timeout=20)
            except grpc.RpcError as error:
                raise explain_failure(error) from None

    def submit(self, signed: SignedStudy) -> Any:
        return self.call("Submit", gate_pb2.SubmitRequest(signed_study=signed.to_bytes()))

    def poll(self, request_id: str) -> Any:
        return self.call("Poll", gate_pb2.JobRequest(request_id=request_id))

    def wait(self, request_id: str, states: Sequence[str] = DONE, seconds: float = 120) -> Any:
        """Poll until the job is in one of ``states``."""
        deadline, pause = time.monotonic() + seconds, 0.05
        while (job := self.poll(request_id)).state not in states:
            if time.monotonic() > deadline:
                raise AssertionError(f"still {job.state}")
            # Longer the longer there was nothing: a question costs its gate and this process 10 ms.
            time.sleep(pause)
            pause = min(pause * 1.5, 0.3)
        return job

    def collect(self, request_id: str, offset: int = 0, length: int = 0) -> tuple[bytes, bytes]:
        """The manifest, and the table or a piece of it."""
        with contextlib.closing(connect(self.paths.gate_socket)) as channel:
            request = gate_pb2.CollectRequest(request_id=request_id, offset=offset, length=length)
            try:
                parts = list(gate_pb2_grpc.GateStub(channel).Collect(request, timeout=60))
            except grpc.RpcError as error:
                raise explain_failure(error) from None
        return parts[0].manifest, b"".join(p.table for p in parts[1:])

    def ledger(self) -> State:
        """The ledger's verified state, read from its file."""
        database = Database(self.paths.database, read_only=True)
        try:
            return Ledger(database, None).verify(self.paths.gate_public())
        finally:
            database.close()

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            if process.stdout:
                process.stdout.close()


@dataclass
class World:
    """An analyst's key and as many sites as a test wants."""

    root: Path
    analyst: object = field(default_factory=generate_key)
    sites: list[TestSite] = field(default_factory=list)

    def site(
        self,
        name: str = "a",
        *,
        csv: str | None = None,
        schema: Schema = SCHEMA,
        approval: str = "automatic",
        total: float = 10.0,
        allowance: float = 10.0,
        settings: str = "",
        n: int = 200,
        persons: int | None = None,
        public_csv: str | None = None,
    ) -> TestSite:
        """Init, dictionary, policy, check, trust: what a steward does.

        Args:
            persons: the declared frame; the count of persons in the rows if not given.
        """
        paths = SitePaths(self.root / name)
        data = self.root / f"{name}.csv"
        text = csv if csv is not None else rows_csv(n, seed=len(self.sites) + 1)
        data.write_text(text)
        paths.root.mkdir(mode=0o700)
        paths.dictionary.write_text(dictionary_of(schema, text, persons))
        make_site(paths, name, "main", data)
        if public_csv is not None:
            (paths.root / "public.csv").write_text(public_csv)
            settings += '\npublic_data = "public.csv"\n'
        paths.settings.write_text(paths.settings.read_text() + settings)
        paths.policy.write_text(
            POLICY.format(approval=approval, total=total, study=min(3.0, total))
        )
        checked, _ = inspect_rows(paths, read_settings(paths))
        certify_rows(paths, read_settings(paths), checked, accept=True)
        signer = Signer(public_hex(self.analyst), "analyst", allowance, "2099-12-31T00:00:00Z")
        write_trust(paths.trust, Trust().add(signer))
        made = TestSite(paths, name)
        self.sites.append(made)
        return made

    def study(self, **changes: object) -> Study:
        """A fast study of every site."""
        values: dict[str, object] = {
            "name": "trial",
            "title": "A trial",
            "federation": "main",
            "sites": tuple(s.name for s in self.sites),
            "schema": SCHEMA,
            "estimands": (ESTIMAND,),
            "privacy": PrivacyRequest(2.0, 1e-5),
            "mechanism": FAST,
            "quorum": 1,
            "deadline_hours": 1.0,
            "not_before": "2020-01-01T00:00:00Z",
            "expires": "2099-01-01T00:00:00Z",
            **changes,
        }
        return Study(**values)  # type: ignore[arg-type]

    def signed(self, **changes: object) -> SignedStudy:
        return sign_study(self.study(**changes), self.analyst)  # type: ignore[arg-type]


TESTS = Path(__file__).parent
THOROUGH = ("browser", "statistical")
"""Folders that `make thorough` runs, and not `make test`."""
LONGEST = (
    "integration/test_processes.py",
    "integration/test_cli.py",
    "integration/test_sum_gates.py",
    "integration/test_gate.py",
    "integration/test_rollback.py",
    "integration/test_demo.py",
    "integration/test_coordinator.py",
    "integration/test_memory.py",
    "integration/test_mechanisms_end_to_end.py",
    "integration/test_attack.py",
    "integration/test_classes.py",
    "integration/test_builder.py",
    "integration/test_time_as_a_query.py",
    "integration/test_isolation.py",
    "browser/test_report_in_chromium.py",
    "integration/test_api.py",
    "integration/test_namespaces.py",
    "statistical/test_audit.py",
    "laws/test_replay.py",
    "laws/test_constant_work.py",
    "contract/test_columns.py",
    "golden/test_mechanisms.py",
    "gate/test_recovery.py",
    "studies/test_swf_digits.py",
)
"""Files of more than a quarter of a minute, the longest of each kind first: what begins last should
be short."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests and what they import are made, and nothing of it is garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """What has been collected stays to the end, so that no garbage collection looks at it again.

    Each that did took 0.4 s: in tests that ask for one, and wherever many objects are made.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that wait for processes and files that compute in turn: two workers use both cores.

    A file's tests keep their order; the short files of unit tests come last. Some folders are
    thorough as a whole.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
        if item.path.relative_to(TESTS).parts[0] in THOROUGH:
            item.add_marker(pytest.mark.thorough)
    waiting, computing, short = [], [], []
    first = {name: rank for rank, name in enumerate(LONGEST)}
    for path in sorted(files, key=lambda f: first.get(_name(f), len(LONGEST))):
        # Unit tests lie deeper, as deep as what they test.
        long, kind = _name(path) in first, path.relative_to(TESTS).parts[0]
        place = waiting if kind == "integration" else short if kind == "unit" and not long else None
        (computing if place is None else place).append(path)
    turns = zip_longest(waiting, computing)
    order = [*(f for pair in turns for f in pair if f is not None), *short]
    items[:] = [item for f in order for item in files[f]]


def _name(path: Path) -> str:
    return "/".join(path.parts[-2:])


@contextlib.contextmanager
def open_world() -> Iterator[World]:
    """What the fixture ``world`` gives to one test, for as long as its caller wants."""
    # Not pytest's own folder: Unix socket paths end at 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="pk-"))
    made = World(root)
    try:
        yield made
    finally:
        for site in made.sites:
            site.close()
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def world() -> Iterator[World]:
    with open_world() as made:
        yield made


@pytest.fixture
def fast() -> Settings:
    return FAST
