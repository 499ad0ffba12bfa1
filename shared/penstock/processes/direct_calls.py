"""Flower's app, whose frequent calls go straight to their handlers.

Flower 1.41 leads each call through eight layers of middleware and runs each of its dependencies in
a thread of its own: three quarters of what a call costs. Here a frequent call is read, checked and
answered in one thread, by the same functions of Flower's: its check of the node's signature, of the
task's token or of the runner's secret, its handler, and its translation of errors. All other calls
go through Flower's app as ever.

Who looks for something that is not there yet may be kept waiting until it is (:class:`Lobby`): a
look costs a signature and three processes' work, and a message no longer waits for the next one.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from flwr.proto import message_pb2, runtime_pb2
from flwr.proto.task_pb2 import Task
from flwr.supercore.constant import TASK_TOKEN_HEADER
from flwr.supercore.corestate import CoreState
from flwr.supercore.dependencies.runtime import get_runtime_handlers, get_runtime_state
from flwr.supercore.dependencies.superexec import authenticate_superexec_request
from flwr.supercore.dependencies.task import authenticate_task
from flwr.supercore.dependencies.version import VersionDependency
from flwr.supercore.error import http_error_translator
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.supercore.servicer.runtime import runtime_handlers as core_handlers
from google.protobuf.message import Message
from starlette.types import Receive, Scope, Send

RUNTIME = "/v1/runtime/"
ACQUIRE = RUNTIME + "acquire-task"
HOLD_SECONDS = 10.0
"""The longest wait: shorter than the half a minute after which a node that died is let in again,
so that no call of the dead one takes a message that is meant for the new one."""
HELD_MOST = 128
"""Half of the connections that the api has to the SuperLink; who comes then is answered at once."""
STOP_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Call:
    """How a call is answered, in a thread.

    Attributes:
        kind: of the request; answer: checks who asks, and answers.
        again: answers once more, where nothing was there at first; None: the same.
    """

    kind: type[Message]
    answer: Callable[[Request, Message], Message]
    again: Callable[[Request, Message], Message] | None = None


@dataclass(frozen=True, slots=True)
class Seat:
    """Who waits, and for how many seconds at most."""

    who: int
    seconds: float = HOLD_SECONDS


class Waiting(Protocol):
    """Who may wait in a lobby, and when they need not any more."""

    def find_seat(self, path: str, request: Message, answer: Message) -> Seat | None:
        """The one who waits, where there was nothing for them yet."""

    def find_called(self, path: str, request: Message) -> list[int]:
        """Those for whom a call brought something."""


class Lobby:
    """Where a call waits for what it looks for: one of each caller, the last that came.

    A later call of the same one ends the wait of the earlier: who looks again no longer hears the
    answer to the first.

    Args:
        waiting: who may wait.
        ended: whether the process ends; may be set later.
    """

    def __init__(
        self,
        waiting: Waiting,
        ended: Callable[[], bool] = lambda: False,
        *,
        most: int = HELD_MOST,
    ) -> None:
        self.waiting, self.ended = waiting, ended
        self._most = most
        self._seats: dict[int, asyncio.Future[bool]] = {}
        self._count, self._last = 0, dict[int, int]()
        self._lock = threading.Lock()

    def call(self, whom: list[int]) -> None:
        """There is something for these, if they wait; from any thread."""
        with self._lock:
            self._count += 1
            self._last.update(dict.fromkeys(whom, self._count))
            found = [self._seats[who] for who in whom if who in self._seats]
        for each in found:
            each.get_loop().call_soon_threadsafe(_resolve, each, True)

    @property
    def count(self) -> int:
        """Of calls so far."""
        return self._count

    async def wait(
        self,
        seat: Seat,
        look: Callable[[], Awaitable[Message]],
        found: Callable[[Message], bool],
        gone: asyncio.Future[bool],
        before: Message,
        since: int,
    ) -> Message:
        """Look whenever called, until something is found or the time is over.

        Args:
            before: what the caller found; since: the :attr:`count` before it looked.
            gone: done once nobody hears the answer any more; nothing is looked for then.
        """
        loop, answer = asyncio.get_running_loop(), before
        end = loop.time() + seat.seconds
        while True:
            turn = self._sit(seat.who, loop)
            if turn is None:
                return answer
            try:
                # What came before the seat was taken called nobody.
                if self._last.get(seat.who, 0) > since:
                    since = self._count
                    answer = await look()
                    if found(answer):
                        return answer
                while not turn.done() and not gone.done():
                    if loop.time() >= end or self.ended():
                        return answer
                    left = min(STOP_LOOK_SECONDS, end - loop.time())
                    await asyncio.wait(
                        [turn, gone], timeout=left, return_when=asyncio.FIRST_COMPLETED
                    )
                if gone.done() or not turn.result():
                    return answer
            finally:
                with self._lock:
                    if self._seats.get(seat.who) is turn:
                        del self._seats[seat.who]

    def _sit(self, who: int, loop: asyncio.AbstractEventLoop) -> asyncio.Future[bool] | None:
        """A seat, from which whoever sat on it is sent away; None where all are taken."""
        with self._lock:
            before = self._seats.get(who)
            if before is None and len(self._seats) >= self._most:
                return None
            turn = self._seats[who] = loop.create_future()
        if before is not None:
            _resolve(before, False)
        return turn


async def _await_end(request: Request) -> bool:
    """Until the caller is gone: after the body, nothing else comes."""
    await request.receive()
    return True


def _resolve(waiter: asyncio.Future[bool], called: bool) -> None:
    if not waiter.done():
        waiter.set_result(called)


class DirectCalls:
    """An ASGI app: ``calls`` by their path, and Flower's ``app`` for all others."""

    def __init__(self, app: FastAPI, calls: Mapping[str, Call], lobby: Lobby | None = None) -> None:
        self.app, self._calls, self._lobby = app, calls, lobby

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = self._calls.get(scope["path"]) if scope["type"] == "http" else None
        if call is None or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        scope["app"] = self.app
        request = Request(scope, receive)

        async def answer(request: Request) -> Response:
            return await self._answer(call, request)

        response = await http_error_translator(request, answer)
        await response(scope, receive, send)

    async def _answer(self, call: Call, request: Request) -> Response:
        try:
            ProtobufTranslationMiddleware._check_request_media_type(request)
            message = ProtobufTranslationMiddleware._parse_request(await request.body(), call.kind)
            request.state.protobuf_request = message
            since = self._lobby.count if self._lobby is not None else 0
            found = await run_in_threadpool(call.answer, request, message)
            if self._lobby is not None:
                found = await self._linger(self._lobby, call, request, message, found, since)
        except Exception as error:
            # As Flower's app itself would, further in than its translation of errors.
            for kind in type(error).__mro__:
                if kind in self.app.exception_handlers and kind is not Exception:
                    answered = self.app.exception_handlers[kind](request, error)
                    if inspect.isawaitable(answered):
                        answered = await answered
                    assert isinstance(answered, Response)
                    return answered
            raise
        return Response(found.SerializeToString(), media_type=PROTOBUF_MEDIA_TYPE)

    async def _linger(
        self,
        lobby: Lobby,
        call: Call,
        request: Request,
        message: Message,
        found: Message,
        since: int,
    ) -> Message:
        path = request.scope["path"]
        lobby.call(lobby.waiting.find_called(path, message))
        seat = lobby.waiting.find_seat(path, message, found)
        if seat is None:
            return found
        again = call.again or call.answer
        gone = asyncio.ensure_future(_await_end(request))
        try:
            return await lobby.wait(
                seat,
                lambda: run_in_threadpool(again, request, message),
                lambda answer: lobby.waiting.find_seat(path, message, answer) is None,
                gone,
                found,
                since,
            )
        finally:
            gone.cancel()


def list_runtime_calls(component: str) -> dict[str, Call]:
    """The frequent calls of the runtime API, which SuperLink and SuperNode have in common."""
    check_version = VersionDependency(
        component_name=component, connection_name=f"Caller <-> {component} Runtime API"
    )

    def make(
        name: str,
        kind: type[Message],
        handler: Callable[[Message, CoreState, Task], Message] | None = None,
    ) -> tuple[str, Call]:
        def answer(request: Request, message: Message) -> Message:
            check_version(request)
            state = get_runtime_state(request)
            task = authenticate_task(request, request.headers.get(TASK_TOKEN_HEADER), state)
            handle = handler or getattr(get_runtime_handlers(request), name)
            found: Message = handle(message, state, task)
            return found

        return RUNTIME + name.replace("_", "-"), Call(kind, answer)

    def acquire(request: Request, message: Message) -> Message:
        check_version(request)
        state = get_runtime_state(request)
        authenticate_superexec_request(request, state, "/flwr.proto.Runtime/AcquireTask")
        return acquire_again(request, message)

    def acquire_again(request: Request, message: Message) -> Message:
        # Its secret was shown, with a number that is taken once.
        found: Message = get_runtime_handlers(request).acquire_task(
            message, get_runtime_state(request)
        )
        return found

    return dict(
        [
            (ACQUIRE, Call(runtime_pb2.AcquireTaskRequest, acquire, acquire_again)),
            make(
                "send_task_heartbeat",
                runtime_pb2.SendTaskHeartbeatRequest,
                core_handlers.send_task_heartbeat,
            ),
            make("push_messages", runtime_pb2.PushAppMessagesRequest),
            make("pull_messages", runtime_pb2.PullAppMessagesRequest),
            make("push_object", message_pb2.PushObjectRequest),
            make("pull_object", message_pb2.PullObjectRequest),
            make("confirm_message_received", message_pb2.ConfirmMessageReceivedRequest),
            make("get_nodes", runtime_pb2.GetNodesRequest),
        ]
    )
