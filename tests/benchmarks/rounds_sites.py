"""Sites that take steps in sums, for the bench of rounds: real secrets and orders, and no rows.

``python -m tests.benchmarks.rounds_sites FOLDER...``: a node for each site folder, until SIGTERM.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from tests.benchmarks import network_sites
from tests.benchmarks.network_sites import Gate, SiteFolder
from tests.support.adders import Adder

from penstock.wire import gate_pb2, gate_pb2_grpc

SIZE = 1000
"""Numbers in a vector."""
LAST = 10_000


def tell(site: str, number: int) -> list[int]:
    """The same of every site."""
    return [number + at for at in range(SIZE)]


class AddingGate(Gate):
    """A gate whose studies are sums; each study has an adder of its own."""

    def __init__(self, folder: SiteFolder) -> None:
        super().__init__(folder)
        self.adders: dict[str, Adder] = {}
        self._turn = threading.Lock()

    def Submit(self, request: Any, context: Any) -> gate_pb2.Job:
        study = network_sites.read_signed_study(request.signed_study)
        number = f"{study.study_id[:12]}-{self.folder.name}"
        with self._turn:
            if number not in self.adders:
                place = self.folder.root / number
                place.mkdir()
                adder = Adder(place, self.folder.name, self.key, tell, LAST)
                adder.signed = study
                self.adders[number] = adder
        return gate_pb2.Job(request_id=number, state="queued")

    def Poll(self, request: Any, context: Any) -> gate_pb2.Job:
        return gate_pb2.Job(request_id=request.request_id, state="queued")

    def Step(self, request: Any, context: Any) -> gate_pb2.StepReply:
        with self._turn:
            return self.adders[request.request_id]._step(request)

    def _one(self, call: Any) -> Any:
        if call.WhichOneof("verb") == "step":
            return gate_pb2.Answer(id=call.id, stepped=self.Step(call.step, None))
        return super()._one(call)

    def serve(self) -> grpc.Server:
        server = grpc.server(ThreadPoolExecutor(1))
        gate_pb2_grpc.add_GateServicer_to_server(self, server)
        server.add_insecure_port(f"unix:{self.folder.gate_socket}")
        server.start()
        return server


if __name__ == "__main__":
    network_sites.main(sys.argv[1:], AddingGate)
