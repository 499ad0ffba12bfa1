"""What a process gives up before it holds what must not get out."""

from __future__ import annotations

import ctypes
import resource
import sys

_PR_SET_DUMPABLE = 4
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_FORBIDDEN = ("socket.__new__", "socket.connect", "socket.bind", "subprocess.Popen")


def forbid_dumps() -> None:
    """No core file, and on Linux no crash handler's copy either; no other process may look in.

    A limit of 0 keeps the kernel from writing a file; a program that the kernel pipes dumps to
    (``core_pattern``) is not bound by it. A process that is not dumpable is never dumped, and not
    traced by others without a capability. Lasts until the process runs another program.
    """
    if resource.getrlimit(resource.RLIMIT_CORE) != (0, 0):  # a unit that sets it may forbid to
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def forbid_network() -> None:
    """No socket and no other program from now on, for the life of the process.

    Before :func:`forbid_dumps`: a new user namespace may change what the kernel lets be dumped.
    """
    if sys.platform == "linux":
        # An empty network namespace where the kernel lets us; the audit hook is the floor.
        ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUSER | _CLONE_NEWNET)

    def refuse(event: str, _args: tuple[object, ...]) -> None:
        if event in _FORBIDDEN:
            raise PermissionError(event)

    sys.addaudithook(refuse)
