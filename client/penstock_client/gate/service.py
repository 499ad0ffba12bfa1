"""The gate on its two Unix sockets.

``gate.sock`` (0660) for the network side, ``steward.sock`` (0600) for the steward. The umask and
the site's lock come before binding, since a second gRPC server can bind a live path without an
error. No exception's text crosses: a caller gets a code, and the detail of a refusal, which is
made of public facts only.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import grpc

from penstock.base.documents import Json
from penstock.base.errors import (
    InvalidInput,
    MaskingRefused,
    PenstockError,
    Refused,
    SignatureError,
    UploadRejected,
)
from penstock.processes.confinement import forbid_dumps
from penstock.processes.stop_flag import StopFlag
from penstock.wire import gate_pb2, gate_pb2_grpc
from penstock.wire.canonical import canonical
from penstock_client.gate.admission import refuse
from penstock_client.gate.gate import Gate
from penstock_client.gate.jobs import Job
from penstock_client.gate.outside import PublicJob
from penstock_client.gate.recovery import STOPPED
from penstock_client.gate.stores import Stores
from penstock_client.gate.sum_rounds import RoundRunner
from penstock_client.gate.sum_steps import Answer, Steps
from penstock_client.ledger.decisions import LOST, Who
from penstock_client.ledger.sqlite_file import hold_exclusively
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import SEEDED, SiteSettings

log = logging.getLogger("penstock.gate")

MAX_REQUEST = 4_000_000
T = TypeVar("T")


def _translate_errors(context: grpc.ServicerContext, call: Callable[[], T]) -> T:
    """Run a call; turn every error into a code, and nothing else."""
    try:
        return call()
    except Refused as refusal:
        code, detail = refusal.reason, str(refusal)
    except SignatureError:
        code, detail = "signature", ""
    except (InvalidInput, UploadRejected):
        code, detail = "malformed", ""
    except MaskingRefused:
        code, detail = "conflict", ""
    except PenstockError as error:
        code, detail = ("ledger" if error.code.startswith("ledger") else "internal"), ""
        log.error("%s", type(error).__name__)
    except Exception as error:
        # Whatever it is, its text may quote anything; the type is enough for the site's log.
        code, detail = "internal", ""
        log.error("internal error: %s", type(error).__name__)
    status = grpc.StatusCode.INTERNAL if code == "internal" else grpc.StatusCode.FAILED_PRECONDITION
    context.abort(status, canonical({"code": code, "detail": detail}).decode())
    raise RuntimeError("abort returns never")


class GateService(gate_pb2_grpc.GateServicer):  # type: ignore[misc]
    """What the network side may call."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def Describe(
        self, request: gate_pb2.DescribeRequest, context: grpc.ServicerContext
    ) -> gate_pb2.Document:
        return _translate_errors(
            context, lambda: _make_document(self._gate.describe(request.seen_manifest))
        )

    def Submit(
        self, request: gate_pb2.SubmitRequest, context: grpc.ServicerContext
    ) -> gate_pb2.Job:
        return _translate_errors(
            context, lambda: _make_public_job(self._gate.submit(request.signed_study))
        )

    def Poll(self, request: gate_pb2.JobRequest, context: grpc.ServicerContext) -> gate_pb2.Job:
        return _translate_errors(
            context, lambda: _make_public_job(self._gate.poll(request.request_id))
        )

    def Cancel(
        self, request: gate_pb2.CancelRequest, context: grpc.ServicerContext
    ) -> gate_pb2.Job:
        return _translate_errors(
            context, lambda: _make_public_job(self._gate.cancel(request.signed_cancel))
        )

    def Step(
        self, request: gate_pb2.StepRequest, context: grpc.ServicerContext
    ) -> gate_pb2.StepReply:
        return _translate_errors(context, lambda: _take_step(self._gate.steps, request))

    def Collect(
        self, request: gate_pb2.CollectRequest, context: grpc.ServicerContext
    ) -> Iterator[gate_pb2.Part]:
        manifest, size, parts = _translate_errors(
            context,
            lambda: self._gate.collect(request.request_id, request.offset, request.length),
        )
        yield gate_pb2.Part(manifest=manifest, size=size)
        for part in parts:
            yield gate_pb2.Part(table=part)


class StewardService(gate_pb2_grpc.StewardServicer):  # type: ignore[misc]
    """What the steward, alone, may call."""

    def __init__(self, gate: Gate, stop: Callable[[], None]) -> None:
        self._gate = gate
        self._stop = stop

    def Status(self, request: gate_pb2.Nothing, context: grpc.ServicerContext) -> gate_pb2.Document:
        return _translate_errors(context, lambda: _make_document(self._gate.status()))

    def Requests(
        self, request: gate_pb2.Nothing, context: grpc.ServicerContext
    ) -> gate_pb2.Document:
        return _translate_errors(
            context, lambda: _make_document({"requests": self._gate.requests()})
        )

    def Preview(
        self, request: gate_pb2.JobRequest, context: grpc.ServicerContext
    ) -> gate_pb2.Document:
        return _translate_errors(
            context, lambda: _make_document(self._gate.preview(request.request_id))
        )

    def Approve(
        self, request: gate_pb2.ApproveRequest, context: grpc.ServicerContext
    ) -> gate_pb2.Job:
        return _translate_errors(
            context, lambda: _make_decided_job(self._gate, self._gate.approve, request)
        )

    def Reject(
        self, request: gate_pb2.RejectRequest, context: grpc.ServicerContext
    ) -> gate_pb2.Job:
        return _translate_errors(
            context, lambda: _make_decided_job(self._gate, self._gate.reject, request)
        )

    def Ledger(self, request: gate_pb2.Nothing, context: grpc.ServicerContext) -> gate_pb2.Document:
        return _translate_errors(context, lambda: _make_document(self._gate.ledger_view()))

    def Stop(self, request: gate_pb2.Nothing, context: grpc.ServicerContext) -> gate_pb2.Document:
        self._stop()
        return _make_document({"stopping": True})


def _take_step(steps: Steps, request: gate_pb2.StepRequest) -> gate_pb2.StepReply:
    asked, number = request.request_id, request.round
    match request.WhichOneof("stage"):
        case "introduce":
            found = steps.introduce(asked)
        case "meeting":
            found = steps.meet(asked, request.meeting)
        case "advertise":
            found = steps.advertise(asked, number)
        case "open":
            told = request.open
            return _tell(steps.open(asked, number, told.opening, list(told.sums), told.first))
        case "fetch":
            return _tell(steps.fetch(asked, number))
        case "asking":
            found = steps.reveal(asked, number, request.asking)
        case _:
            raise refuse("wire-version")
    return gate_pb2.StepReply(message=found)


def _tell(answer: Answer) -> gate_pb2.StepReply:
    vector = answer.vector
    return gate_pb2.StepReply(message=vector or b"", working=vector is None, wait=answer.wait)


def _make_document(value: Json) -> gate_pb2.Document:
    return gate_pb2.Document(json=canonical(value))


def _make_public_job(job: PublicJob) -> gate_pb2.Job:
    """A job as the network side is told of it."""
    return gate_pb2.Job(
        request_id=job.request_id,
        state=str(job.state),
        code=job.code,
        step=job.step,
        steps=job.steps,
    )


def _make_job(gate: Gate, job: Job) -> gate_pb2.Job:
    """A job as it stands, for the steward."""
    step, steps = gate.progress(job.request_id)
    return gate_pb2.Job(
        request_id=job.request_id, state=str(job.state), code=job.code, step=step, steps=steps
    )


def _make_decided_job(
    gate: Gate,
    decide: Callable[..., Job],
    request: gate_pb2.ApproveRequest | gate_pb2.RejectRequest,
) -> gate_pb2.Job:
    """A decision of whoever the calling command says decides; nobody else can call."""
    by = request.by
    who = Who(by.uid, by.user, dict(by.claimed)) if request.HasField("by") else Who(None)
    return _make_job(gate, decide(request.request_id, by=who, reason=request.reason))


def _make_server(path: Path, mode: int, register: Callable[[grpc.Server], None]) -> grpc.Server:
    options = [("grpc.max_receive_message_length", MAX_REQUEST)]
    server = grpc.server(ThreadPoolExecutor(max_workers=4), options=options)
    register(server)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    if mode & 0o070:
        _share_socket(path)
    os.chmod(path, mode)
    return server


def _share_socket(path: Path) -> None:
    """Give a socket the group of its directory: who may enter there may call here.

    Raises:
        PenstockError: this user is not in that group.
    """
    group = path.parent.stat().st_gid
    if path.stat().st_gid == group:
        return
    try:
        os.chown(path, -1, group)
    except PermissionError:
        raise PenstockError(
            "the gate's user cannot give its socket the group of the run directory",
            value=f"group {group}",
            remedy="add the gate's user to that group",
        ) from None


def serve_gate(
    paths: SitePaths, settings: SiteSettings, *, ready: Callable[[list[str]], None] = lambda _: None
) -> None:
    """Run the gate until SIGTERM, SIGINT or the steward's stop. Blocks.

    Args:
        ready: called once with notes for the steward when both sockets answer.

    Raises:
        LedgerLocked: another gate runs here; LedgerError: the ledger cannot be used.
    """
    paths.check_sockets()
    os.umask(0o077)
    forbid_dumps()
    stopping = StopFlag()
    with hold_exclusively(paths.lock):
        notes = []
        for path in (paths.gate_socket, paths.steward_socket):
            if path.exists():
                # Nobody can answer on it: whoever did held the lock that is now ours.
                path.unlink()
                notes.append(f"removed {path.name}, left behind by a gate that was killed")
        stores = Stores(paths, settings)
        runner = RoundRunner(stores)
        runner.settlement.recover()
        if stores.watch.stopped:
            notes.append(STOPPED)
        if not runner.settlement.decisions_hold:
            notes.append(LOST)
        if settings.insecure_seed is not None:
            log.warning("%s", SEEDED)
            notes.append(SEEDED)
        gate = Gate(stores, runner)
        public, private = GateService(gate), StewardService(gate, stopping.set)
        servers = (
            _make_server(
                paths.gate_socket,
                0o660,
                lambda s: gate_pb2_grpc.add_GateServicer_to_server(public, s),
            ),
            _make_server(
                paths.steward_socket,
                0o600,
                lambda s: gate_pb2_grpc.add_StewardServicer_to_server(private, s),
            ),
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())
        running = threading.Thread(target=runner.run, name="runner")
        running.start()
        ready(notes)
        # The runner ends early only by an error of ours; the process must not outlive it.
        while not stopping.wait(0.2) and running.is_alive():
            pass
        runner.stop()
        for server in servers:
            server.stop(grace=1.0).wait()
        running.join(timeout=30)
        stores.database.close()
        stores.decisions.close()
        for path in (paths.gate_socket, paths.steward_socket):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
