"""Which engine computes a flow: one protocol, two implementations, the same numbers.

Neither is imported before it is chosen, so that nobody waits for a torch that is not used.
"""

from __future__ import annotations

import logging
from functools import cache

from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.flow.architecture import Architecture
from penstock.mechanisms.flow.interface import Flow

__all__ = ["BACKENDS", "PRECISIONS", "Flow", "make_flow", "why_no_kernel"]

BACKENDS = ("auto", "torch", "kernel")
PRECISIONS = ("single", "double")

_log = logging.getLogger(__name__)


def make_flow(
    arch: Architecture,
    device: str = "cpu",
    backend: str = "auto",
    precision: str = "single",
    threads: int | None = None,
) -> Flow:
    """An untrained flow.

    Args:
        device: ``cpu``, or what torch calls another.
        backend: ``kernel`` (compiled, CPU only), ``torch`` (any device; the reference), or
            ``auto``: the kernel on a CPU where it was compiled, otherwise torch.
        precision: ``single``, or ``double`` where exactness matters more than time.
        threads: of the kernel, None for its default; torch has one number for the whole process.

    Raises:
        InvalidInput: an unknown backend or precision, or a kernel that cannot be had here.
    """
    problems = [
        Problem(name, "unknown", value=value, bound=", ".join(known))
        for name, value, known in (
            ("backend", backend, BACKENDS),
            ("precision", precision, PRECISIONS),
        )
        if value not in known
    ]
    if problems:
        raise InvalidInput("flow", problems)
    why_not = why_no_kernel(device) if backend != "torch" else "not asked for"
    if why_not is None:
        from penstock.mechanisms.flow.kernel import KernelFlow

        return KernelFlow(arch, precision, threads)
    if backend == "kernel":
        raise InvalidInput("flow", [Problem("backend", "no kernel", value="kernel", bound=why_not)])
    if backend == "auto" and device == "cpu":
        _warn_once(why_not)
    from penstock.mechanisms.flow.reference import TorchFlow

    return TorchFlow(arch, device, precision)


@cache
def _warn_once(why_not: str) -> None:
    _log.warning("flows run on torch, which is slower: %s", why_not)


def why_no_kernel(device: str = "cpu") -> str | None:
    """Why the compiled kernel cannot be used here, or None if it can."""
    if device != "cpu":
        return f"the kernel runs on a CPU only, not on {device}"
    try:
        from penstock.mechanisms.flow import kernel
    except ImportError:
        return "this build has no compiled kernel"
    return None if kernel.available() else kernel.why_not()
