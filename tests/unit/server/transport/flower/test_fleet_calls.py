"""The short way of frequent calls: what Flower's own app refuses is refused here, in its words."""

import asyncio
import base64
import sqlite3

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.superlink.servicer.fleet import fleet_handlers
from sqlalchemy.exc import OperationalError

from penstock.processes.direct_calls import DirectCalls
from penstock_server.store.folder import Folder
from penstock_server.transport.flower import fleet_calls
from penstock_server.transport.flower.fleet_calls import SITE_LOOKS, list_calls
from penstock_server.transport.flower.superlink import make_app

PROTOBUF = {"content-type": "application/protobuf"}


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
