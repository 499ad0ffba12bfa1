"""Flower's Grid over a Unix socket, whose replies are fetched side by side.

Flower's own fetches one reply after the other, and waits for each until it is whole: one site on
a slow line would hold up all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from flwr.app import Error, Message, Metadata
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    inflate_object_from_contents,
    pull_objects,
)
from flwr.superlink.grid import HttpGrid

from penstock.processes.flower import make_task_client

COMPONENT = "flwr-serverapp"
FETCHERS = 16
LOOK_AGAIN, LOOK_AT_MOST = 0.05, 1.0
"""Seconds until a part that is not there yet is asked for again; Flower's own are 1 and 10."""


class UnixGrid(HttpGrid):
    """The messages of one task, at the SuperLink that listens on ``socket``."""

    def __init__(self, socket: Path, token: str) -> None:
        super().__init__("flower", insecure=True, token=token)
        self._socket = socket
        self._pool = ThreadPoolExecutor(FETCHERS, thread_name_prefix="fetch")
        self._coming: dict[str, Future[Message]] = {}

    def _connect(self) -> None:
        self._client = make_task_client(self._socket, COMPONENT, self._token)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        super().close()

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that are whole by now, by the ids of the messages they answer.

        Never waits: a reply that is still on its way comes with a later call.
        """
        asked = [i for i in message_ids if i not in self._coming]
        if asked:
            found = self._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=asked))
            for proto, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                job = self._pool.submit(self._fetch, proto.metadata, tree)
                self._coming[proto.metadata.reply_to_message_id] = job
        whole = [i for i, job in self._coming.items() if job.done()]
        return [self._coming.pop(i).result() for i in whole]

    def forget(self, message_id: str) -> None:
        """No longer wait for a reply."""
        job = self._coming.pop(message_id, None)
        if job is not None:
            job.cancel()

    def _fetch(self, metadata: Any, tree: Any) -> Message:
        client, run_id = self._runtime_client, self.run.run_id
        pull = make_pull_object_fn_protobuf(
            pull_object_protobuf=client.PullObject, node=self.node, run_id=run_id
        )
        try:
            contents = pull_objects(
                [t.object_id for t in iterate_object_tree(tree)],
                pull,
                initial_backoff=LOOK_AGAIN,
                backoff_cap=LOOK_AT_MOST,
            )
        except ObjectPullError:
            return self._make_lost_reply(metadata.reply_to_message_id)
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=self.node, run_id=run_id, message_object_id=metadata.message_id
            )
        )
        message = cast(Message, inflate_object_from_contents(metadata.message_id, contents))
        message.metadata.__dict__["_message_id"] = metadata.message_id
        return message

    def _make_lost_reply(self, message_id: str) -> Message:
        """What Flower gives in place of a reply that never became whole."""
        metadata = Metadata(
            run_id=self.run.run_id,
            message_id="",
            src_node_id=self.node.node_id,
            dst_node_id=self.node.node_id,
            message_type=SYSTEM_MESSAGE_TYPE,
            group_id="",
            ttl=0,
            reply_to_message_id=message_id,
            created_at=now().timestamp(),
        )
        error = Error(ErrorCode.MESSAGE_UNAVAILABLE, "the reply never became whole")
        return make_message(metadata=metadata, error=error)
