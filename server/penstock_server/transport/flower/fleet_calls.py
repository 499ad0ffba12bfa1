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

FLEET = "/v1/fleet/"
SITE_LOOKS, SITE_ANSWERS = FLEET + "pull-messages", FLEET + "push-messages"
PUMP_LOOKS, PUMP_ASKS = RUNTIME + "pull-messages", RUNTIME + "push-messages"
PUMP, PUMP_SECONDS = -1, 0.25
"""The coordinator's runner waits shortly: it has other things to look for as well."""

Handler = Callable[[Message, LinkState], Message]


def list_calls() -> dict[str, Call]:
    """By their path: those of the fleet are signed by a node's key, which Flower checks first."""

    def make(name: str, kind: type[Message], handle: Handler) -> tuple[str, Call]:
        def answer(request: Request, message: Message) -> Message:
            authenticate_node(request)
            return handle(message, get_linkstate(request))

        return FLEET + name, Call(kind, answer)

    stored = fleet_handlers
    fleet = [
        make(
            "pull-messages",
            fleet_pb2.PullMessagesRequest,
            lambda message, state: stored.pull_messages(message, state, state.object_store),
        ),
        make("push-messages", fleet_pb2.PushMessagesRequest, stored.push_messages),
        make("push-object", message_pb2.PushObjectRequest, stored.push_object),
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
    return {**dict(fleet), **list_runtime_calls("SuperLink")}


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
