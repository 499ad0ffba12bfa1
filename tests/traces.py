"""What a computation does, seen from outside: calls, bytes of arrays, shapes of tensors, instructions.

Nothing in the package helps: numpy is given another allocator, torch a dispatch mode, Python a
profile function, and a child process is stepped through by its debugger's interface. So a shape or
a loop that depends on rows shows, wherever it is.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
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

_traces: dict[int, list[Event]] = {}
"""Of each thread, while a trace is taken."""


def _note(*event: object) -> None:
    own = _traces.get(threading.get_ident())
    if own is not None:
        own.append(event)


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


def _ours(code: CodeType) -> bool:
    return f"{os.sep}penstock{os.sep}" in code.co_filename or "penstock_client" in code.co_filename


def _profile(frame: FrameType, kind: str, argument: Any) -> None:
    ident = threading.get_ident()
    if ident not in _traces and _tracing:
        _traces[ident] = []
        _set_handler(_capsule())  # numpy's is each thread's own
    if kind == "call" and _ours(frame.f_code):
        _note("call", frame.f_code.co_qualname if sys.version_info >= (3, 11) else "")
    elif kind == "c_call" and _ours(frame.f_code):
        _note("c", getattr(argument, "__qualname__", ""))


_tracing = False


def trace_of(act: Callable[[], object]) -> list[list[Event]]:
    """Of each thread that took part: calls in the package, arrays, tensors, in order."""
    global _tracing
    _traces.clear()
    ident = threading.get_ident()
    _traces[ident] = []
    _tracing = True
    before = _set_handler(_capsule())
    threading.setprofile(_profile)
    sys.setprofile(_profile)
    try:
        with _Tensors():
            act()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        _tracing = False
        _set_handler(before)
    found = [own for own in _traces.values() if own]
    _traces.clear()
    return found


def opcodes_of(act: Callable[[], object]) -> int:
    """How many of Python's own instructions the package's code runs, in this thread and others."""
    count = [0]

    def local(frame: FrameType, kind: str, argument: Any) -> Any:
        count[0] += kind == "opcode"
        return local

    def begin(frame: FrameType, kind: str, argument: Any) -> Any:
        if not _ours(frame.f_code):
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

_TRACE_ME, _STEP, _CONTINUE = 0, 9, 7


@contextmanager
def _quiet() -> Iterator[None]:
    """No collection of garbage, which would come when it likes."""
    import gc

    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def instructions_of(act: Callable[[], object]) -> int | None:
    """How many instructions a child of this process runs for ``act``, to the last one.

    By single steps: slow (some 10⁵ a second), and exact on any processor. None where the system
    lets nobody look at a child.
    """
    _libc.ptrace.restype = ctypes.c_long
    _libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    stop = getattr(_libc, "raise")
    with _quiet():
        child = os.fork()
        if child == 0:
            if _libc.ptrace(_TRACE_ME, 0, None, None):
                os._exit(1)
            stop(signal.SIGSTOP)
            act()
            stop(signal.SIGSTOP)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSTOPPED(status):
            return None
        count, ptrace, waitpid = 0, _libc.ptrace, os.waitpid
        while True:
            if ptrace(_STEP, child, None, None):
                os.kill(child, signal.SIGKILL)
                waitpid(child, 0)
                return None
            status = waitpid(child, 0)[1]
            if not os.WIFSTOPPED(status) or os.WSTOPSIG(status) != signal.SIGTRAP:
                break
            count += 1
        ptrace(_CONTINUE, child, None, None)
        os.kill(child, signal.SIGKILL)
        waitpid(child, 0)
        return count if os.WIFSTOPPED(status) else None
