"""How often an idle site looks for messages: each look is a signature and three processes' work."""

import pytest
from flwr.app import Metadata
from flwr.app.message import make_message
from flwr.proto.task_pb2 import Task
from flwr.supercore.constant import TaskType
from flwr.supercore.date import now
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode.nodestate import NodeStateFactory

from penstock.processes.flower import MESSAGE_TYPE, pack
from penstock_client.operate.flower import supernode
from penstock_server.transport.pump import DESCRIBE_SECONDS

MINUTES = 20
MOST_LOOKS = 30
"""A minute; twenty are Flower's own pace, with a look every three seconds."""


def test_a_site_that_is_only_greeted_looks_rarely(monkeypatch):
    """It looked 47 times a minute: every greeting made it quick for most of a minute."""
    clock = [0.0]

    def sleep(seconds):
        clock[0] += seconds

    monkeypatch.setattr(supernode.time, "sleep", sleep)
    pace, looks, greeted = supernode.Pace(), 0, 0.0
    while clock[0] < 60 * MINUTES:
        looks += 1
        if clock[0] >= greeted:
            greeted += DESCRIBE_SECONDS
            pace.sleep(0.5)  # Flower waits for the reply
        pace.sleep(3.0)
    assert looks / MINUTES < MOST_LOOKS


def test_a_site_that_is_asked_something_looks_at_once_for_more(monkeypatch):
    waits = []
    monkeypatch.setattr(supernode.time, "sleep", waits.append)
    pace = supernode.Pace()
    pace.sleep(0.5)
    for _ in range(8):
        pace.sleep(3.0)
    assert max(waits[:5]) <= 0.3
    assert max(waits) <= 1.0


def test_a_site_whose_look_was_kept_waiting_looks_again_at_once(monkeypatch):
    clock, waits = [0.0], []
    monkeypatch.setattr(supernode.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(supernode.time, "sleep", waits.append)
    pace = supernode.Pace()
    for _ in range(40):
        pace.sleep(3.0)  # a coordinator that lets nobody wait
    assert waits[-1] == supernode.IDLE_SECONDS
    clock[0] += 10.0
    pace.sleep(3.0)
    assert waits[-1] < 0.1
    pace.sleep(3.0)
    assert waits[-1] == supernode.IDLE_SECONDS


@pytest.mark.parametrize("read", [False, True])
def test_a_message_whose_runner_died_is_answered_once_its_time_is_over(read):
    """One that was not read yet never was, and the site waited for ever."""
    state = NodeStateFactory(objectstore_factory=ObjectStoreFactory()).state()
    supernode.answer_unread(state)
    known = Metadata(1, "", 1, 7, "", "", now().timestamp(), 60.0, MESSAGE_TYPE)
    message = make_message(known, pack(b"packet"))
    message.metadata.__dict__["_message_id"] = message.object_id
    state.store_message(message)
    if read:
        state.record_message_processing_start(message.object_id)
        assert state.get_messages_legacy(run_ids=[1], is_reply=False)
    state._on_task_tokens_expired([Task(type=TaskType.CLIENT_APP, run_id=1)])
    [reply] = state.get_messages_legacy(is_reply=True)
    assert reply.has_error()
    assert reply.metadata.reply_to_message_id == message.object_id
