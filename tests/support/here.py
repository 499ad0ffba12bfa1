"""A gate, and its worker, in the process of a test: starting processes is most of a small study."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import grpc
from tests.support.timed import table_of

from penstock.mechanisms import MECHANISMS
from penstock.mechanisms.registry import Registry
from penstock.mechanisms.tables.mechanism import TableMechanism
from penstock.study.study import Study
from penstock.wire import gate_pb2_grpc
from penstock_client.gate.gate import Gate
from penstock_client.gate.running import Runner
from penstock_client.gate.service import GateService
from penstock_client.gate.stores import Stores
from penstock_client.rows.sealed import map_rows
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import read_settings
from penstock_client.work import worker
from penstock_client.work.launcher import Worker
from penstock_client.work.rehearsal import Measured, shortened
from penstock_client.work.spec import TABLE, Spec


class WorkerHere(Worker):
    """What a worker's process does, done here; a made-up table stands for most rehearsals.

    Args:
        mechanisms: all there are; a process of its own has the closed list.
    """

    _spec: Spec
    _found: Measured

    def __init__(self, folder: Path, mechanisms: Registry = MECHANISMS) -> None:
        super().__init__(folder)
        self._mechanisms = mechanisms

    def prepare(self, spec: Spec, *, rehearse: bool = True) -> bool:
        self._folder.mkdir(parents=True)
        self._spec = spec
        self._found = Measured(first=0.1)
        study = Study.from_dict(spec.study, self._mechanisms)
        mechanism = self._mechanisms.of(study.mechanism)
        if rehearse and not isinstance(mechanism, TableMechanism):
            self._found = worker.rehearse(spec, self._folder, self._mechanisms)
        elif rehearse:
            table_of(shortened(study, mechanism), spec.persons, self.rehearsed)
        return True

    def measured(self) -> Measured:
        return self._found

    def run(self, rows: int, progress: Callable[[int, int], None]) -> Path:
        path = self._folder / TABLE
        worker.produce(self._spec, map_rows(rows), progress, path, self._mechanisms)
        return path


class GateHere:
    """A site's gate on its socket.

    Args:
        mechanisms: all there are, for it and its workers.
    """

    def __init__(self, paths: SitePaths, mechanisms: Registry = MECHANISMS) -> None:
        self._stores = Stores(paths, read_settings(paths), mechanisms=mechanisms)
        work = partial(WorkerHere, mechanisms=mechanisms)
        self._runner = Runner(self._stores, work=work)
        self._runner.settlement.recover()
        self._server = grpc.server(ThreadPoolExecutor(1))
        self.gate = Gate(self._stores, self._runner)
        gate_pb2_grpc.add_GateServicer_to_server(GateService(self.gate), self._server)
        self._server.add_insecure_port(f"unix:{paths.gate_socket}")
        self._server.start()
        self._thread = threading.Thread(target=self._runner.run)
        self._thread.start()

    def close(self) -> None:
        self._runner.stop()
        self._server.stop(grace=None).wait()
        self._thread.join()
        self._stores.database.close()
        self._stores.decisions.close()
