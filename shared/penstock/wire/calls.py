"""Calling a gate, and reading the code it answers with."""

from __future__ import annotations

import json
import socket as sockets
from pathlib import Path

import grpc

from penstock.base.errors import GateUnavailable, Refused
from penstock.wire.messages import CODES, explain


def connect(socket: Path) -> grpc.Channel:
    """A channel to a gate's Unix socket; nothing is sent yet."""
    return grpc.insecure_channel(f"unix:{socket}", options=[("grpc.enable_http_proxy", 0)])


def listens(socket: Path) -> bool:
    """Whether a process holds a Unix socket: one that was killed leaves its file behind.

    True also where this is not ours to know: the call that follows says why it fails.
    """
    with sockets.socket(sockets.AF_UNIX) as probe:
        probe.setblocking(False)  # A full queue of callers is an answer too.
        try:
            probe.connect(str(socket))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True
    return True


def explain_failure(error: grpc.RpcError) -> GateUnavailable | Refused:
    """What an RPC's failure means: nobody there, or a refusal with a code."""
    status, details = error.code(), error.details() or ""
    if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return GateUnavailable("the gate does not answer", remedy="is it running?")
    code, detail = "internal", ""
    try:
        answer = json.loads(details)
        code, detail = str(answer["code"]), str(answer["detail"])
    except (ValueError, KeyError, TypeError):
        pass
    if code not in CODES:
        code = "internal"
    meaning, remedy = explain(code)
    return Refused(code, detail or meaning, remedy=None if detail else remedy)
