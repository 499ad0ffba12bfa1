"""The compiled engine: a flow on the CPU through ``kernel.cpp``, called by ctypes.

The library is built when Penstock is installed (``build.py``), once per instruction set, and the
best one for this processor is loaded at first use. ``PENSTOCK_KERNEL=off`` does without it, and the
name of an instruction set goes no further than that.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Sequence
from ctypes import POINTER, byref, c_double, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.flow.architecture import (
    Architecture,
    starting_blocks,
    starting_parameters,
)
from penstock.mechanisms.flow.clipping import inner_clip
from penstock.privacy.noise.sources import NOBODY

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.intp]

LEVELS = ("generic", "avx2", "avx512")
"""Builds, worst first, as ``penstock_level`` counts them."""

SWITCH = "PENSTOCK_KERNEL"

_PRECISIONS: dict[str, type[np.float32] | type[np.float64]] = {
    "single": np.float32,
    "double": np.float64,
}


class _Shape(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in ("columns", "flows", "layers", "relu", "linear")),
        *((name, c_void_p) for name in ("widths", "degrees", "orders")),
    ]


class _Persons(ctypes.Structure):
    _fields_ = [
        ("rows", c_void_p),
        ("present", c_void_p),
        ("n", c_int64),
        ("k", c_int64),
        ("who", c_void_p),
        ("m", c_int64),
    ]


def available() -> bool:
    """Whether a compiled kernel can be used here."""
    return not why_not()


def why_not() -> str:
    """Why there is no kernel; empty where there is one."""
    return _load(os.environ.get(SWITCH, ""))[1]


def path_of(level: str) -> Path:
    """Where the build for these instructions lies."""
    return Path(__file__).with_name(f"kernel-{level}.so")


@cache
def _load(switch: str) -> tuple[ctypes.CDLL | None, str]:
    """The library for this processor, or why there is none."""
    again = "install Penstock again where there is a C++ compiler"
    if switch not in ("", "require", *LEVELS):
        return None, f"{SWITCH}={switch}"
    most = LEVELS.index(switch) if switch in LEVELS else len(LEVELS) - 1
    try:
        library = ctypes.CDLL(str(path_of(LEVELS[0])))
        for level in reversed(LEVELS[1 : 1 + min(library.penstock_level(), most)]):
            if path_of(level).exists():
                library = ctypes.CDLL(str(path_of(level)))
                break
        library.penstock_origin.restype = ctypes.c_char_p
        if not library.penstock_origin().startswith(_digest().encode()):
            return None, f"the kernel was compiled from another source: {again}"
        return _declared(library), ""
    except (OSError, AttributeError):
        return None, f"no kernel was compiled for this system: {again}"


def _digest() -> str:
    """Of the sources, as ``build.py`` takes it."""
    here = Path(__file__).parent
    sources = sorted(here.glob("kernel*.cpp")) + sorted(here.glob("kernel*.h"))
    return hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    shape = POINTER(_Shape)
    library.penstock_weights.argtypes, library.penstock_weights.restype = [shape], c_int64
    pointer, whole, real = c_void_p, c_int64, c_double
    flow, persons = [shape, pointer, c_int32], POINTER(_Persons)
    functions = {
        "prepare": [shape, pointer, pointer],
        "to_latent": [*flow, pointer, whole, pointer, pointer],
        "from_latent": [*flow, pointer, whole, pointer],
        "clipped_sum": [*flow, persons, real, pointer, pointer],
        "descend": [
            *(shape, c_int32, persons, pointer, real),
            *(pointer, whole, whole, pointer, real, real, pointer),
        ],
    }
    for name, arguments in functions.items():
        for precision in _PRECISIONS:
            function = getattr(library, f"penstock_{name}_{precision}")
            function.argtypes, function.restype = arguments, c_int32
    return library


def _default_threads() -> int:
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdigit() and int(given) >= 1:
        return int(given)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Loaded:
    """Persons' rows (n, k, d) and presence (n, k), as the kernel reads them."""

    rows: Array
    present: Bools


class KernelFlow:
    """A flow computed by the compiled kernel; see :class:`penstock.mechanisms.flow.interface.Flow`.

    Args:
        precision: ``single`` or ``double``: of a row's gradient. Norms, clipping and sums over
            persons are float64.
        threads: at most so many for one call; None: ``OMP_NUM_THREADS``, or all processors. Results
            do not depend on it.

    Raises:
        InvalidInput: there is no kernel here, or a value is out of its bounds.
    """

    device = "cpu"

    def __init__(
        self, arch: Architecture, precision: str = "single", threads: int | None = None
    ) -> None:
        problems = []
        if precision not in _PRECISIONS:
            known = ", ".join(_PRECISIONS)
            problems.append(Problem("precision", "unknown", value=str(precision), bound=known))
        if threads is not None and not threads >= 1:
            problems.append(Problem("threads", "too few", value=str(threads), bound="at least 1"))
        library, reason = _load(os.environ.get(SWITCH, ""))
        if library is None:
            problems.append(Problem("backend", "no kernel", value="kernel", bound=reason))
        if library is None or problems:
            raise InvalidInput("flow", problems)
        self.arch = arch
        self.precision = precision
        self._threads = threads if threads is not None else _default_threads()
        self._prepare, self._to_latent, self._from_latent, self._clipped_sum, self._descend = (
            getattr(library, f"penstock_{name}_{precision}")
            for name in ("prepare", "to_latent", "from_latent", "clipped_sum", "descend")
        )
        blocks = starting_blocks(arch)
        # The structure points into these arrays, which live as long as it does.
        self._parts = (
            np.array(arch.hidden, np.int32),
            np.concatenate(blocks[0].degrees).astype(np.int32),
            np.array([b.order for b in blocks], np.int32),
        )
        self._shape = _Shape(
            arch.d,
            arch.flows,
            len(arch.hidden),
            arch.activation == "relu",
            arch.linear,
            *(_address(part) for part in self._parts),
        )
        self._weights_size = library.penstock_weights(byref(self._shape))
        start = starting_parameters(arch)
        self._size = len(start)
        self.set_flat(start)

    def get_flat(self) -> Array:
        return self._flat.copy()

    def set_flat(self, vector: Array, /) -> None:
        dtype, vector = _PRECISIONS[self.precision], np.asarray(vector, np.float64)
        if vector.shape != (self._size,):
            bound = f"({self._size},)"
            problem = Problem("shape", "wrong", value=str(vector.shape), bound=bound)
            raise InvalidInput("parameters", [problem])
        with np.errstate(over="ignore"):
            self._flat = vector.astype(dtype).astype(np.float64)
        # A new array each time: another thread may be reading the old one.
        weights = np.empty(self._weights_size, dtype)
        _check(self._prepare(byref(self._shape), _address(self._flat), _address(weights)))
        self._weights = weights

    def to_latent(self, x: Array, /) -> Array:
        x = self._rows(x)
        z = np.empty_like(x)
        self._call(self._to_latent, _address(x), len(x), _address(z), None)
        return z

    def log_prob(self, x: Array, /) -> Array:
        x = self._rows(x)
        density = np.empty(len(x))
        self._call(self._to_latent, _address(x), len(x), None, _address(density))
        return density

    def from_latent(self, z: Array, /) -> Array:
        z = self._rows(z)
        x = np.empty_like(z)
        self._call(self._from_latent, _address(z), len(z), _address(x))
        return x

    def load(self, rows: Array, present: Bools, /) -> Loaded:
        rows = np.ascontiguousarray(rows, np.float64)
        present = np.ascontiguousarray(present, np.bool_)
        if rows.ndim != 3 or rows.shape[2] != self.arch.d or present.shape != rows.shape[:2]:
            shapes = f"{rows.shape} and {present.shape}"
            bound = f"(n, k, {self.arch.d}) and (n, k)"
            raise InvalidInput("rows", [Problem("shape", "wrong", value=shapes, bound=bound)])
        return Loaded(rows, present)

    def clipped_sum(self, data: Loaded, who: Indices | None, clip: float, /) -> Array:
        total = np.empty(len(self._flat))
        self._sum(data, who, clip, _address(total), None)
        return total

    def person_norms(self, data: Loaded, /) -> Array:
        norms = np.empty(len(data.rows))
        self._sum(data, None, np.inf, None, _address(norms))
        return norms

    def descend(
        self,
        data: Loaded,
        batches: Sequence[Indices | None],
        clip: float,
        active: Indices,
        schedule: Array,
        decays: tuple[float, float],
        state: Array,
    ) -> None:
        r"""Several noise-free steps of Adam in one call; parameters of this flow stay as they are.

        Per step, with g the clipped sum at θ over the step's divisor: M ← β₁M + g, V ← β₂V + g²,
        θ ← θ - factor · M / (√V + floor), and mean ← mean + (θ - mean) / kept where kept > 0. The
        same numbers, to the last bit, as :mod:`penstock.mechanisms.flow.training` has step by step.

        Args:
            batches: who takes part in each step, :data:`NOBODY` among them; None in all places for
                everyone.
            active: which of the flat parameters are trained, (a,).
            schedule: (steps, 4): divisor, floor, factor, kept of each step.
            decays: β₁, β₂.
            state: (4, a), changed in place: θ, M, V, mean.
        """
        chosen = [who for who in batches if who is not None]
        active = np.ascontiguousarray(active, np.int64)
        schedule = np.ascontiguousarray(schedule, np.float64)
        shapes = (len(batches), 4), (4, len(active))
        checks = {
            "batches": len(chosen) in (0, len(batches)),
            "active": _within(active, 0, len(self._flat)),
            "schedule": schedule.shape == shapes[0],
            "state": state.shape == shapes[1] and state.dtype == np.float64 and state.flags.carray,
        }
        problems = [Problem(name, "not as documented") for name, fine in checks.items() if not fine]
        if problems:
            raise InvalidInput("descend", problems)
        who = np.concatenate(chosen) if chosen else None
        ends = np.cumsum([len(w) for w in chosen], dtype=np.int64) if chosen else None
        persons, held = self._persons(data, who)
        _check(
            self._descend(
                *(byref(self._shape), self._threads, byref(persons)),
                None if ends is None else _address(ends),
                *(
                    inner_clip(clip, self.arch, len(data.rows)),
                    _address(active),
                    len(active),
                    len(batches),
                    _address(schedule),
                ),
                *(*decays, _address(state)),
            )
        )
        del held

    def _sum(
        self,
        data: Loaded,
        who: Indices | None,
        clip: float,
        total: int | None,
        norms: int | None,
    ) -> None:
        persons, held = self._persons(data, who)
        inside = inner_clip(clip, self.arch, len(data.rows))
        self._call(self._clipped_sum, byref(persons), inside, total, norms)
        del held

    def _persons(self, data: Loaded, who: Indices | None) -> tuple[_Persons, Indices | None]:
        """The structure, and an array that must live as long as it is used."""
        n, k, _ = data.rows.shape
        rows, present = _address(data.rows), _address(data.present)
        if who is None:
            return _Persons(rows, present, n, k, None, 0), None
        chosen = np.ascontiguousarray(who, np.int64)
        if not _within(chosen, NOBODY if n else 0, n):
            raise InvalidInput("who", [Problem("index", "no such person", bound=f"below {n}")])
        # A null pointer would mean everyone, and an empty array may have one.
        held = chosen if len(chosen) else np.zeros(1, np.int64)
        return _Persons(rows, present, n, k, _address(held), len(chosen)), held

    def _call(self, function: ctypes._NamedFuncPointer, *arguments: object) -> None:
        _check(function(byref(self._shape), _address(self._weights), self._threads, *arguments))

    def _rows(self, x: Array) -> Array:
        x = np.ascontiguousarray(x, np.float64)
        if x.ndim != 2 or x.shape[1] != self.arch.d:
            bound = f"(n, {self.arch.d})"
            problem = Problem("shape", "wrong", value=str(x.shape), bound=bound)
            raise InvalidInput("rows", [problem])
        return x


def _address(array: NDArray[np.generic]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _within(indices: Indices, least: int, bound: int) -> bool:
    """Whether these are a list of whole numbers from ``least`` to below ``bound``."""
    empty = not len(indices)
    return indices.ndim == 1 and (empty or bool(least <= indices.min() <= indices.max() < bound))


def _check(code: int) -> None:
    if code == 1:
        raise MemoryError
    if code != 0:
        raise RuntimeError("the flow kernel failed")
