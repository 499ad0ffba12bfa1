"""The frequent calls of sites' nodes at the SuperLink, and who of them waits for a message."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Request
from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2
from flwr.server.superlink.linkstate import LinkState
from flwr.superlink.dependencies.linkstate import get_linkstate
from flwr.superlink.routers.fleet.node_auth import authenticate_node
from flwr.superlink.servicer.fleet import fleet_handlers
from google.protobuf.message import Message

from penstock.processes.direct_calls import RUNTIME, Call, Seat, list_runtime_calls
from penstock_server.transport.flower.lost_answers import (
    accept_again,
    ask_for_parts,
    forget_unanswered,
    is_taken,
)

FLEET = "/v1/fleet/"
SITE_LOOKS, SITE_ANSWERS = FLEET + "pull-messages", FLEET + "push-messages"
PUMP_LOOKS, PUMP_ASKS = RUNTIME + "pull-messages", RUNTIME + "push-messages"
PUMP_PARTS = RUNTIME + "push-object"
PUMP, PUMP_SECONDS = -1, 0.25
"""The coordinator's runner waits shortly: it has other things to look for as well."""

Handler = Callable[[Message, LinkState], Message]


def list_calls() -> dict[str, Call]:
    """By their path: those of the fleet are signed by a node's key, which Flower checks first."""

    def lead(handle: Handler) -> Callable[[Request, Message], Message]:
        def answer(request: Request, message: Message) -> Message:
            authenticate_node(request)
            return handle(message, get_linkstate(request))

        return answer

    def make(name: str, kind: type[Message], handle: Handler) -> tuple[str, Call]:
        return FLEET + name, Call(kind, lead(handle))

    def pull(message: Message, state: LinkState) -> Message:
        return stored.pull_messages(message, state, state.object_store)

    def pull_first(message: Message, state: LinkState) -> Message:
        forget_unanswered(state, message.node.node_id)
        return pull(message, state)

    def push(message: Message, state: LinkState) -> Message:
        taken = is_taken(state, message)  # what is new now may be taken at once
        answer = stored.push_messages(message, state)
        return ask_for_parts(state, message, answer) if taken else answer

    def push_part(message: Message, state: LinkState) -> Message:
        return accept_again(state, message, stored.push_object(message, state))

    def push_own_part(request: Request, message: Message) -> Message:
        answer = runtime[PUMP_PARTS].answer(request, message)
        return accept_again(get_linkstate(request), message, answer)

    stored, runtime = fleet_handlers, list_runtime_calls("SuperLink")
    fleet = [
        # While a call waits, the node does not look again: what it took is taken by this call.
        (SITE_LOOKS, Call(fleet_pb2.PullMessagesRequest, lead(pull_first), lead(pull))),
        make("push-messages", fleet_pb2.PushMessagesRequest, push),
        make("push-object", message_pb2.PushObjectRequest, push_part),
        make("pull-object", message_pb2.PullObjectRequest, stored.pull_object),
        make(
            "confirm-message-received",
            message_pb2.ConfirmMessageReceivedRequest,
            lambda message, state: stored.confirm_message_received(
                message, state, state.object_store
            ),
        ),
        make(
            "send-node-heartbeat",
            heartbeat_pb2.SendNodeHeartbeatRequest,
            stored.send_node_heartbeat,
        ),
    ]
    own = {PUMP_PARTS: Call(runtime[PUMP_PARTS].kind, push_own_part)}
    return {**dict(fleet), **runtime, **own}


class Exchange:
    """A node waits for the coordinator's next message to it, the coordinator for answers."""

    def find_seat(self, path: str, request: Message, answer: Message) -> Seat | None:
        if path not in (SITE_LOOKS, PUMP_LOOKS) or answer.messages_list:
            return None
        return Seat(request.node.node_id) if path == SITE_LOOKS else Seat(PUMP, PUMP_SECONDS)

    def find_called(self, path: str, request: Message) -> list[int]:
        if path == SITE_ANSWERS:
            return [PUMP]
        if path == PUMP_ASKS:
            return [each.metadata.dst_node_id for each in request.messages_list]
        return []
