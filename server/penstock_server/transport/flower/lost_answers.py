"""What follows where an answer of the SuperLink is lost: it ended, or the api or a line did.

Flower does a thing once, and takes a second call for another thing. So a message that was given out
to nobody, or an answer of a site that was half said, was waited for: the coordinator asked that
site nothing for three minutes, or for a quarter of an hour. Here the call that follows puts it
right. Nothing is lost by asking a site twice: what it says is idempotent.
"""

from __future__ import annotations

import logging

from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import PushObjectRequest, PushObjectResponse
from flwr.server.superlink.linkstate import LinkState
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.inflatable.inflatable_object import get_object_id
from flwr.supercore.utils import uint64_to_int64

from penstock_server.transport.flower.busy import Busy

log = logging.getLogger("penstock.superlink")

_UNANSWERED = """SELECT message_id FROM message_ins
    WHERE dst_node_id = :node AND delivered_at <> ''
    AND message_id NOT IN (SELECT reply_to_message_id FROM message_res)"""
_PENDING = """SELECT 1 FROM object_push_session_pending
    JOIN object_push_sessions USING (session_id)
    WHERE session_id = :session AND object_id = :part AND run_id = :run"""


def forget_unanswered(state: LinkState, node_id: int) -> None:
    """Forget what this node took before and has not answered; it looks for messages now.

    A node takes one message at a time, and looks for the next once the last is answered: what is
    not answered by then is lost. The coordinator hears that it is gone, and asks anew.
    """
    rows = _require_sql(state).query(_UNANSWERED, {"node": uint64_to_int64(node_id)})
    lost = {str(row["message_id"]) for row in rows}
    if lost:
        log.warning("node %d did not answer %d messages", node_id, len(lost))
        state.delete_messages(message_ins_ids=lost)
        for message_id in lost:
            state.object_store.delete(message_id)


def accept_again(
    state: LinkState, asked: PushObjectRequest, answer: PushObjectResponse
) -> PushObjectResponse:
    """A part of a message that came before is stored, also when it comes once more.

    Raises:
        Busy: where it could not be stored now. Flower keeps that error to itself, says of the part
            that nobody waits for it, and the node drops its whole answer.
    """
    if not answer.stored:
        answer.stored = state.object_store.get(asked.object_id) == asked.object_content != b""
    if not answer.stored and _is_awaited(state, asked):
        raise Busy("a part that is waited for could not be stored")
    return answer


def _is_awaited(state: LinkState, asked: PushObjectRequest) -> bool:
    """Whether this part is waited for, and what came is it."""
    known = {
        "session": asked.session_id,
        "part": asked.object_id,
        "run": uint64_to_int64(asked.run_id),
    }
    if not _require_sql(state).query(_PENDING, known):
        return False
    return get_object_id(asked.object_content) == asked.object_id


def is_taken(state: LinkState, asked: PushMessagesRequest) -> bool:
    """Whether a node says again what the coordinator took, and waits for the parts of."""
    tree, known = asked.message_object_trees[0], asked.messages_list[0].metadata
    found = _require_sql(state).get_valid_message_ins(known.reply_to_message_id)
    return found is None and state.object_store.get(tree.object_id) is not None


def ask_for_parts(
    state: LinkState, asked: PushMessagesRequest, answer: PushMessagesResponse
) -> PushMessagesResponse:
    """Of what was taken already, Flower asks for nothing: ask for the parts that are missing."""
    missing = state.preregister_object_tree(asked.message_object_trees[0], answer.session_id)
    answer.objects_to_push.extend(missing)
    return answer


def _require_sql(state: LinkState) -> SqlLinkState:
    if not isinstance(state, SqlLinkState):
        raise TypeError("a SuperLink without a database")
    return state
