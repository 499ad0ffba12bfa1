"""What a computation does, seen from outside: calls, sizes of arrays and tensors, instructions.

Nothing in the package helps: numpy is given another allocator, torch a dispatch mode, Python a
profile function, and a child process is stepped through by its debugger's interface. So a shape or
a loop that depends on rows shows, wherever it is.
"""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from numpy._core import _multiarray_umath
from torch.utils._python_dispatch import TorchDispatchMode

Event = tuple[object, ...]

# -- arrays: numpy's memory handler (NEP 49) ------------------------------------------------------

_MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_CALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_REALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class _Handler(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("ctx", ctypes.c_void_p),
        ("malloc", _MALLOC),
        ("calloc", _CALLOC),
        ("realloc", _REALLOC),
        ("free", _FREE),
    ]


_libc = ctypes.CDLL(None, use_errno=True)
_libc.malloc.restype = _libc.calloc.restype = _libc.realloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.calloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
_libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]

_traces: dict[bool, list[Event]] = {}
"""Of the main thread (True) and of all others, while a trace is taken."""

_main = threading.get_ident()


def _note(*event: object) -> None:
    if _traces:
        _traces[threading.get_ident() == _main].append(event)


def _allocate(_: Any, size: int) -> Any:
    _note("array", size)
    return _libc.malloc(size)


def _allocate_zeros(_: Any, count: int, size: int) -> Any:
    _note("array", count * size)
    return _libc.calloc(count, size)


def _resize(_: Any, at: Any, size: int) -> Any:
    _note("array", size)
    return _libc.realloc(at, size)


# Arrays that outlive a trace are freed by it: it stays for good.
_HANDLER = _Handler(
    b"penstock-tests",
    1,
    None,
    _MALLOC(_allocate),
    _CALLOC(_allocate_zeros),
    _REALLOC(_resize),
    _FREE(lambda _, at, size: _libc.free(at)),
)


def _set_handler(capsule: Any) -> Any:
    """numpy's own function, from its table of C functions; returns the capsule before."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = ctypes.cast(get(_multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[304])
    return function(capsule)


def _capsule() -> Any:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(ctypes.addressof(_HANDLER), b"mem_handler", None)


# -- tensors, calls -------------------------------------------------------------------------------


class _Tensors(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        shapes = [tuple(x.shape) for x in (*args, out) if hasattr(x, "shape")]
        _note("tensor", str(func), tuple(shapes))
        return out


@cache
def _ours(filename: str) -> bool:
    return f"{os.sep}penstock{os.sep}" in filename or "penstock_client" in filename


def _begin(frame: FrameType, kind: str, argument: Any) -> None:
    """The first event of another thread."""
    _set_handler(_capsule())  # numpy's is each thread's own
    sys.setprofile(_profile)
    _profile(frame, kind, argument)


def _profile(frame: FrameType, kind: str, argument: Any) -> None:
    if kind == "call" and _ours(frame.f_code.co_filename):
        _note("call", frame.f_code.co_qualname if sys.version_info >= (3, 11) else "")
    elif kind == "c_call" and _ours(frame.f_code.co_filename):
        _note("c", getattr(argument, "__qualname__", ""))


def trace_of(act: Callable[[], object]) -> list[list[Event]]:
    """Of this thread, and of the others together: calls in the package, arrays, tensors, in order.

    Others must not run at the same time: their events would come in any order.
    """
    global _main
    _main = threading.get_ident()
    main, others = list[Event](), list[Event]()
    before = _set_handler(_capsule())
    _traces.update({True: main, False: others})
    threading.setprofile(_begin)
    sys.setprofile(_profile)
    try:
        with _Tensors():
            act()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        _traces.clear()
        _set_handler(before)
    return [main, others]


def opcodes_of(act: Callable[[], object]) -> int:
    """How many of Python's own instructions the package's code runs, in this thread and others."""
    count = [0]

    def local(frame: FrameType, kind: str, argument: Any) -> Any:
        count[0] += kind == "opcode"
        return local

    def begin(frame: FrameType, kind: str, argument: Any) -> Any:
        if not _ours(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return local

    threading.settrace(begin)
    sys.settrace(begin)
    try:
        act()
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
    return count[0]


# -- machine instructions -------------------------------------------------------------------------

_STEPPER = r"""
#include <elf.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
extern "C" long traced() { return ptrace(PTRACE_TRACEME, 0, 0, 0); }
extern "C" void halt() { raise(SIGSTOP); }
static unsigned long place_of(int child) {
    struct user_regs_struct registers;
    struct iovec all = {&registers, sizeof registers};
    if (ptrace(PTRACE_GETREGSET, child, (void*)NT_PRSTATUS, &all)) return 0;
#if defined(__x86_64__)
    return registers.rip;
#else
    return registers.pc;
#endif
}
extern "C" long steps_of(int child, unsigned long low, unsigned long high) {
    int status;
    long count = 0;
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) return -1;
    for (;;) {
        const unsigned long at = place_of(child);
        count += low <= at && at < high;
        if (ptrace(PTRACE_SINGLESTEP, child, 0, 0)) return -1;
        if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) return -1;
        if (WSTOPSIG(status) != SIGTRAP) break;
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return count;
}
"""


@cache
def _stepper() -> ctypes.CDLL | None:
    """Compiled here; None where there is no compiler."""
    compiler = next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "stepper.cpp", Path(folder) / "stepper.so"
        source.write_text(_STEPPER)
        command = [compiler, "-O2", "-fPIC", "-shared", str(source), "-o", str(library)]
        subprocess.run(command, check=True, capture_output=True)
        found = ctypes.CDLL(str(library))
    found.traced.restype = found.steps_of.restype = ctypes.c_long
    found.steps_of.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong]
    return found


def code_of(name: str) -> tuple[int, int]:
    """Where the code of a loaded library, whose path ends so, lies in memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(name) and " r-xp " in line:
            low, high = line.split()[0].split("-")
            return int(low, 16), int(high, 16)
    raise LookupError(name)


def instructions_of(act: Callable[[], object], where: tuple[int, int]) -> int | None:
    """How many instructions of this code a child of this process runs for ``act``, to the last one.

    By single steps: some 10⁵ a second, and exact on any processor. None where there is no compiler,
    or where the system lets nobody look at a child. (Python's own work varies with its caches, and
    the C library's with where memory lies.)
    """
    stepper = _stepper()
    if stepper is None:
        return None
    gc.collect()
    gc.disable()  # it would come when it likes
    try:
        child = os.fork()
        if child == 0:
            if stepper.traced():
                os._exit(1)
            stepper.halt()
            act()
            stepper.halt()
            os._exit(0)
        count = int(stepper.steps_of(child, *where))
    finally:
        gc.enable()
    return None if count < 0 else count
