"""Keeping what a process holds out of core dumps, and from other processes of the same user."""

from __future__ import annotations

import ctypes
import resource
import sys

_PR_SET_DUMPABLE = 4


def forbid_dumps() -> None:
    """For a process that holds rows: no core file, and on Linux no crash handler's copy either.

    A limit of 0 keeps the kernel from writing a file; a program that the kernel pipes dumps to
    (``core_pattern``) is not bound by it. A process that is not dumpable is never dumped, and not
    traced by others without a capability. Lasts until the process runs another program.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
