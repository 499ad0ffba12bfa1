"""The short way of frequent calls: what Flower's own app refuses is refused here, in its words."""

import asyncio
import base64
import sqlite3

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Metadata
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import NOOP_FLWR_AID, SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import PushObjectRequest, PushObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.superlink.servicer.fleet import fleet_handlers
from sqlalchemy.exc import OperationalError

from penstock.processes.direct_calls import DirectCalls
from penstock.processes.flower import MESSAGE_TYPE, pack
from penstock_server.store.folder import Folder
from penstock_server.transport.flower import fleet_calls
from penstock_server.transport.flower.fleet_calls import SITE_LOOKS, list_calls
from penstock_server.transport.flower.superlink import make_app

PROTOBUF = {"content-type": "application/protobuf"}
PART = fleet_calls.FLEET + "push-object"


@pytest.fixture
def app(tmp_path):
    folder = Folder(tmp_path)
    folder.secret.parent.mkdir(parents=True, exist_ok=True)
    folder.secret.write_bytes(bytes(32))
    return make_app(folder)


def ask(app, path, body=b"", headers=PROTOBUF):
    async def post():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://flower") as client:
            return await client.post(path, content=body, headers=headers)

    return asyncio.run(post())


def answers_alike(app, path, body=b"", headers=PROTOBUF):
    """The status of both ways, which say the same."""
    plain = ask(app, path, body, headers)
    direct = ask(DirectCalls(app, list_calls()), path, body, headers)
    assert (direct.status_code, direct.content) == (plain.status_code, plain.content)
    assert direct.headers["content-type"] == plain.headers["content-type"]
    return direct.status_code


def enrol(app):
    """An enrolled node's key and id."""
    key = ec.generate_private_key(ec.SECP384R1())
    state = app.state.linkstate_factory.state()
    public = public_key_to_bytes(key.public_key())
    node = state.create_node("none", "none", public, 30)
    state.activate_node(node, 30)
    return key, node


def sign(key, stamp=None):
    stamp = stamp or now().isoformat()
    public = public_key_to_bytes(key.public_key())
    return {
        **PROTOBUF,
        "flwr-public-key": base64.b64encode(public).decode(),
        "flwr-timestamp": stamp,
        "flwr-signature": base64.b64encode(sign_message(key, stamp.encode())).decode(),
    }


def test_each_call_is_one_of_flowers_with_its_request():
    for path, call in list_calls().items():
        assert PROTOBUF_REQUEST_TYPES["POST", path] is call.kind


@pytest.mark.parametrize("path", sorted(list_calls()))
def test_strangers_are_refused_as_by_flowers_app(app, path):
    assert answers_alike(app, path) in (401, 412, 422)
    stranger = sign(ec.generate_private_key(ec.SECP384R1()))
    assert answers_alike(app, path, headers=stranger) in (401, 412, 422)
    assert answers_alike(app, path, b"\xff\xff") >= 400
    assert answers_alike(app, path, headers={"content-type": "text/plain"}) >= 400


def test_a_node_is_let_in_by_its_own_key_and_a_fresh_stamp(app):
    key, node = enrol(app)
    other, _ = enrol(app)
    body = PullMessagesRequest(node=Node(node_id=node)).SerializeToString()
    assert answers_alike(app, SITE_LOOKS, body, sign(key)) == 200
    assert answers_alike(app, SITE_LOOKS, body, sign(other)) == 401
    assert answers_alike(app, SITE_LOOKS, body, sign(key, "2020-01-01T00:00:00+00:00")) == 401
    wrong = {**sign(key), "flwr-signature": sign(other)["flwr-signature"]}
    assert answers_alike(app, SITE_LOOKS, body, wrong) == 401


def test_a_locked_database_is_a_reason_to_ask_again(app, monkeypatch):
    key, node = enrol(app)

    def locked(*_):
        raise OperationalError("UPDATE", {}, sqlite3.OperationalError("database is locked"))

    monkeypatch.setattr(fleet_handlers, "pull_messages", locked)
    body = PullMessagesRequest(node=Node(node_id=node)).SerializeToString()
    answer = ask(DirectCalls(app, list_calls()), SITE_LOOKS, body, sign(key))
    assert answer.status_code == 503
    assert "database" not in answer.text


def test_a_node_waits_for_messages_to_it_and_the_pump_shortly_for_answers():
    exchange = fleet_calls.Exchange()
    look, nothing = PullMessagesRequest(node=Node(node_id=7)), PullMessagesResponse()
    assert exchange.find_seat(SITE_LOOKS, look, nothing).who == 7
    seat = exchange.find_seat(fleet_calls.PUMP_LOOKS, PullAppMessagesRequest(), nothing)
    assert seat.seconds < 1
    assert exchange.find_called(fleet_calls.SITE_ANSWERS, None) == [seat.who]
    assert exchange.find_seat(fleet_calls.SITE_ANSWERS, look, nothing) is None


class Line:
    """A coordinator's run, and the node of a site that is connected."""

    def __init__(self, app):
        self.app, (self.key, self.node) = app, enrol(app)
        self.state = app.state.linkstate_factory.state()
        asked = (None, None, "f" * 64, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID)
        self.run = self.state.create_run(*asked, TaskType.SERVER_APP)
        [run] = self.state.get_run_info(run_ids=[self.run])
        self.state.claim_task(run.primary_task_id)
        self.state.activate_task(run.primary_task_id)

    def call(self, path, request, answer):
        found = self.ask(path, request)
        assert found.status_code == 200, found.content
        return answer.FromString(found.content)

    def ask(self, path, request):
        calls = DirectCalls(self.app, list_calls())
        return ask(calls, path, request.SerializeToString(), sign(self.key))

    def make(self, answered=""):
        """A message to the node, or its answer to one."""
        ends = (SUPERLINK_NODE_ID, self.node)
        sender, to = reversed(ends) if answered else ends
        when, ttl = now().timestamp(), 30.0 if answered else 60.0
        known = Metadata(self.run, "", sender, to, answered, "", when, ttl, MESSAGE_TYPE)
        message = make_message(known, pack(b"packet"))
        message.metadata.__dict__["_message_id"] = message.object_id
        return message

    def send(self):
        """A message to the node, whole; its id."""
        message = self.make()
        session, tree = self.state.start_session(self.run), get_object_tree(message)
        assert self.state.store_message_and_object_tree(message, tree, session)[0]
        return message.object_id

    def look(self):
        """What the node is given when it looks for messages."""
        request = PullMessagesRequest(node=Node(node_id=self.node))
        found = self.call(SITE_LOOKS, request, PullMessagesResponse).messages_list
        return [message.metadata.message_id for message in found]

    def answer(self):
        """A message that the node took, its answer, which is not said yet, and the parts of it."""
        sent = self.send()
        assert self.look() == [sent]
        reply = self.make(sent)
        parts = {key: part.deflate() for key, part in get_all_nested_objects(reply).items()}
        return sent, reply, parts

    def say(self, message):
        """The node's answer, without its parts: which of them are missing, and their session."""
        request = PushMessagesRequest(
            node=Node(node_id=self.node),
            messages_list=[message_to_proto(remove_content_from_message(message))],
            message_object_trees=[get_object_tree(message)],
            clientapp_runtime_list=[1.0],
        )
        found = self.call(fleet_calls.SITE_ANSWERS, request, PushMessagesResponse)
        return set(found.objects_to_push), found.session_id

    def push(self, session, part, content):
        """Whether a part of an answer is stored."""
        request = self.make_push(session, part, content)
        return self.call(PART, request, PushObjectResponse).stored

    def make_push(self, session, part, content):
        return PushObjectRequest(
            node=Node(node_id=self.node),
            run_id=self.run,
            session_id=session,
            object_id=part,
            object_content=content,
        )

    def hear(self, sent):
        """What the coordinator hears of a message; what it heard of is forgotten."""
        found = self.state.get_message_res({sent}, self.run)
        self.state.delete_messages({each.metadata.reply_to_message_id for each in found})
        return found


def test_a_message_that_a_node_took_and_lost_is_told_to_be_gone(app):
    """As after the death of a SuperLink that was giving it out: it was waited for to the end of its
    time, a quarter of an hour, and its site with it."""
    line = Line(app)
    sent = line.send()
    assert line.hear(sent) == []
    assert line.look() == [sent]
    assert line.hear(sent) == []  # the node may be at work on it
    assert line.look() == []
    [told] = line.hear(sent)
    assert told.error.code == ErrorCode.MESSAGE_UNAVAILABLE
    assert line.state.object_store.get(sent) is None


def test_what_a_node_answered_and_what_waits_for_it_is_kept(app):
    line = Line(app)
    first = line.send()
    assert line.look() == [first]
    line.say(line.make(first))
    second = line.send()
    assert line.look() == [second]
    [reply] = line.hear(first)
    assert not reply.has_error()
    assert line.hear(second) == []


@pytest.mark.parametrize("heard", [False, True])
def test_an_answer_that_is_said_again_is_taken_as_said_once(app, heard):
    """Part by part, whether or not the coordinator has heard already that there is one: it was
    refused, and what the coordinator had heard of was never whole."""
    line = Line(app)
    sent, reply, parts = line.answer()
    missing, session = line.say(reply)
    assert missing == parts.keys()
    part, *others = parts
    assert line.push(session, part, parts[part])
    assert line.push(session, part, parts[part])
    assert not line.push(session, part, b"another")
    if heard:
        assert len(line.hear(sent)) == 1
    missing, session = line.say(reply)
    assert missing == set(others)
    assert all(line.push(session, each, parts[each]) for each in others)
    for each, content in parts.items():
        assert line.state.object_store.get(each) == content
    assert line.say(reply)[0] == set()


def test_a_part_that_cannot_be_stored_now_is_asked_for_again(app, monkeypatch):
    """Flower's store keeps a locked database to itself: the node heard that nobody waits for the
    part and dropped its answer, and the coordinator asked again after a quarter of an hour."""
    line = Line(app)
    sent, reply, parts = line.answer()
    _, session = line.say(reply)
    part, *others = parts
    pushed = line.make_push(session, part, parts[part])

    def locked(*_):
        raise OperationalError("UPDATE", {}, sqlite3.OperationalError("database is locked"))

    with monkeypatch.context() as store:
        store.setattr(type(line.state.object_store), "put", locked)
        answer = line.ask(PART, pushed)
        assert answer.status_code == 503
        assert "part" not in answer.text
        # What is not the part, and what nobody waits for, never will be stored.
        assert not line.push(session, part, b"another")
        assert not line.push("another", part, parts[part])
    assert line.push(session, part, parts[part])
    assert all(line.push(session, each, parts[each]) for each in others)
    assert len(line.hear(sent)) == 1
    assert line.say(reply)[0] == set()
