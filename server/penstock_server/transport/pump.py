"""The pump: takes messages from the outbox to the sites, and their answers to the inbox.

It holds nothing that matters: kill it anywhere, start another, and what was on its way is asked
again. Sites do not wait for each other; each has at most one packet on its way.
"""

from __future__ import annotations

import fcntl
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.base.errors import CoordinatorError, UploadRejected
from penstock.wire import gate_pb2
from penstock_server.store.folder import Folder
from penstock_server.store.mailbox import STEPS, Message, Reply
from penstock_server.studies.coordinator import Coordinator
from penstock_server.studies.progress import PASSING
from penstock_server.transport import packets
from penstock_server.transport.carrier import Carrier

log = logging.getLogger("penstock.coordinator")

MAX_CALLS = 64
MAX_COLLECTS = 16
MAX_BYTES = 4_000_000
AWAY = "gate-away"
PAUSE_LEAST, PAUSE_GROWTH, PAUSE_MOST = 0.05, 1.3, 0.3
"""Seconds until the next turn: longer the longer nothing was moved."""
WAITED_SECONDS = 0.2
"""A turn that took so long was kept waiting for answers, and need not wait once more."""
DESCRIBE_SECONDS = 120.0
"""Between two greetings of a site that is asked nothing: each is a packet there and back."""


class Pump:
    """Moves messages between a coordinator's store and a carrier.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        carrier: Carrier,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._coordinator, self._carrier, self._clock = coordinator, carrier, clock
        self._store, self._progress = coordinator.store, coordinator.progress
        self._flying: dict[str, list[Message]] = {}
        self._described: dict[str, float] = {}

    def turn(self) -> int:
        """Send what is due, take what came, end what is over; returns how much was moved."""
        moved = self._send() + self._take()
        self._progress.handle_inbox()
        self._coordinator.summations.advance()
        self._coordinator.closing.close_due()
        return moved

    # -- out -----------------------------------------------------------------------------------

    def _send(self) -> int:
        ready = self._carrier.ready() - self._flying.keys()
        due: dict[str, list[Message]] = defaultdict(list)
        for message in self._store.mailbox.due(self._coordinator.clock.stamp(), ready):
            due[message.site].append(message)
        going: dict[str, bytes] = {}
        for site in sorted(ready):
            messages = _choose_fitting(due[site])
            greet = self._must_greet(site, messages)
            if not messages and not greet:
                continue
            sizes = {
                m.id: packets.count_received(self._table(m))
                for m in messages
                if m.verb == "collect"
            }
            seen = self._store.sites.newest_manifest(site) if greet else None
            going[site] = packets.write_batch(messages, sizes, seen)
            self._flying[site] = messages
        if going:
            self._carrier.send(going)
        return sum(len(self._flying[site]) for site in going)

    def _must_greet(self, site: str, messages: Sequence[Message]) -> bool:
        """Whether a packet begins with ``Describe``: before every study, and now and then."""
        now = self._clock()
        if any(m.verb == "submit" for m in messages) or (
            now - self._described.get(site, float("-inf")) > DESCRIBE_SECONDS
        ):
            self._described[site] = now
            return True
        return False

    def _table(self, message: Message) -> Path:
        return self._coordinator.folder.table(message.study_id, message.site)

    # -- back ----------------------------------------------------------------------------------

    def _take(self) -> int:
        came = self._carrier.receive()
        for site, data in came:
            messages = self._flying.pop(site, [])
            found, trouble = {}, ""
            if isinstance(data, bytes):
                found = packets.read_answers(data)
            else:
                trouble = data
                self._described.pop(site, None)
            if packets.DESCRIBE in found:
                self._progress.note_said(site, packets.read_description(found[packets.DESCRIBE]))
            replies = []
            for message in messages:
                answer = found.get(message.id)
                taken = self._read_answer(message, answer) if answer is not None else None
                if taken is not None:
                    replies.append((message, taken))
                elif answer is None or answer.WhichOneof("body") != "piece":
                    self._progress.postpone(message, trouble or _explain_trouble(answer))
            self._progress.receive(replies)
        return len(came)

    def _read_answer(self, message: Message, answer: gate_pb2.Answer) -> Reply | None:
        """The reply to a message, or None if it is to be sent again."""
        if message.verb == "collect" and answer.WhichOneof("body") == "piece":
            return self._keep_piece(message, answer.piece)
        reply = packets.read_reply(message, answer)
        if reply is None or (not reply.ok and reply.code == AWAY):
            return None
        # What these messages say is not in the store a second time: the same one is sent again.
        if message.verb in ("cancel", *STEPS) and not reply.ok and reply.code in PASSING:
            return None
        if message.verb == "collect" and reply.ok:
            return None  # a job is no answer to it
        return reply

    def _keep_piece(self, message: Message, piece: gate_pb2.Piece) -> Reply | None:
        table = self._table(message)
        try:
            whole = packets.add_piece(table, piece, self._progress.size_limit(message))
        except UploadRejected as error:
            packets.partial_path(table).unlink(missing_ok=True)
            return Reply(ok=False, code="upload-rejected", detail=str(error))
        except OSError as error:
            log.warning("%s of %s: %s", message.verb, message.site, error.strerror)
            self._progress.postpone(message)
            return None
        if not whole:
            return None  # it stays due: the next piece is asked for at once
        return Reply(
            ok=True,
            request_id=message.body.decode(),
            state="delivered",
            data=bytes(piece.manifest),
        )


def _explain_trouble(answer: gate_pb2.Answer | None) -> str:
    """Why a message is to be sent again, where the site said why."""
    if answer is None or answer.WhichOneof("body") != "failure":
        return ""
    return str(answer.failure.code)


def _choose_fitting(messages: Sequence[Message]) -> list[Message]:
    """The oldest messages that one packet holds, with pieces of a few tables at most."""
    chosen: list[Message] = []
    size, collects = 0, 0
    for message in messages[:MAX_CALLS]:
        if message.verb == "collect":
            collects += 1
            if collects > MAX_COLLECTS:
                continue
        size += len(message.body)
        if chosen and size > MAX_BYTES:
            break
        chosen.append(message)
    return chosen


def keep_pumping(coordinator: Coordinator, carrier: Carrier, *, stop: Callable[[], bool]) -> None:
    """Pump messages through a carrier until ``stop()``.

    Raises:
        CoordinatorError: another process does so already for this directory.
    """
    with hold_pump(coordinator.folder):
        pump, pause = Pump(coordinator, carrier), PAUSE_LEAST
        while not stop():
            began = time.monotonic()
            if pump.turn():
                pause = PAUSE_LEAST
            elif time.monotonic() - began < WAITED_SECONDS:
                time.sleep(pause)
                pause = min(pause * PAUSE_GROWTH, PAUSE_MOST)


@contextmanager
def hold_pump(folder: Folder) -> Iterator[None]:
    """Two pumps would write the same tables; the lock ends with the process, however it ends.

    Raises:
        CoordinatorError: another process holds it.
    """
    with open(folder.lock, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CoordinatorError("this coordinator runs already", value=folder.root) from None
        yield
