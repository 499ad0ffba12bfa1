"""Compiles ``kernel.cpp`` when Penstock is installed: a hook of hatchling's, not shipped.

An editable install leaves the libraries beside this file; a wheel carries them, and its tag then
names the platform (py3-none-…: ctypes needs no Python ABI). Without a compiler the wheel is pure,
and flows run on torch. ``PENSTOCK_KERNEL=off`` compiles nothing; ``=require`` makes it an error if
there is no kernel in the end. ``CXX`` names the compiler.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "kernel.cpp"
FLAGS = [
    *("-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-Wno-psabi"),
    # NaN and infinity keep their meaning: no -ffast-math.
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
]
AVX2 = ["-mavx2", "-mfma"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl"]


class CustomBuildHook(BuildHookInterface[BuilderConfig]):
    """Adds the compiled kernel to an install, where it can be had."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; ``version`` is ``editable`` or ``standard``, as hatchling has it."""
        self._scratch = tempfile.TemporaryDirectory()
        switch = os.environ.get("PENSTOCK_KERNEL", "")
        if self.target_name != "wheel" or switch == "off":
            return
        folder = HERE if version == "editable" else Path(self._scratch.name)
        problem = compile_into(folder)
        if problem and switch == "require":
            raise RuntimeError(f"PENSTOCK_KERNEL=require, but {problem}")
        if problem:
            self.app.display_warning(f"Flows will run on torch: {problem}")
        elif version != "editable":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform()}"
            build_data["force_include"] |= {
                str(library): f"penstock/mechanisms/flow/{library.name}"
                for library in folder.glob("kernel-*.so")
            }

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled for a wheel, which has it now."""
        self._scratch.cleanup()


def compile_into(folder: Path) -> str:
    """Put one library per instruction set into ``folder``; what went wrong, or nothing."""
    if sys.platform == "win32":
        return "the kernel is for Unix systems"
    named = shlex.split(os.environ.get("CXX", ""))
    found = [named] if named else [[name] for name in ("c++", "g++", "clang++")]
    compiler = next((words for words in found if shutil.which(words[0])), None)
    if compiler is None:
        return f"there is no C++ compiler ({', '.join(words[0] for words in found)})"
    levels: dict[str, list[str]] = {"generic": []}
    if platform.machine().lower() in ("x86_64", "amd64"):
        levels |= {"avx2": AVX2, "avx512": AVX512}
    sources = sorted(HERE.glob("kernel*.cpp")) + sorted(HERE.glob("kernel*.h"))
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()

    def build(level: str) -> str:
        command = [*compiler, *FLAGS, *levels[level]]
        origin, ready = f"{digest} {' '.join(command)}", _library(HERE, level)
        # Beside its place and then moved there: whoever has the old library open keeps it.
        with tempfile.TemporaryDirectory(dir=folder) as beside:
            made = Path(beside) / "kernel.so"
            if ready.exists() and origin.encode() in ready.read_bytes():
                shutil.copy(ready, made)
            else:
                command += [f'-DPENSTOCK_ORIGIN="{origin}"', str(SOURCE), "-o", str(made)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    _library(folder, level).unlink(missing_ok=True)
                    return done.stderr.strip() or "no reason given"
            made.replace(_library(folder, level))
        return ""

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        problems = dict(zip(levels, pool.map(build, levels), strict=True))
    # A compiler that does not know some instructions still makes a kernel without them.
    return f"{compiler[0]} failed: {problems['generic']}" if problems["generic"] else ""


def _library(folder: Path, level: str) -> Path:
    return folder / f"kernel-{level}.so"


def _platform() -> str:
    """This machine's own tag; not a promise to run on older systems, as manylinux would be."""
    names = (tag.platform for tag in sys_tags())
    return next(name for name in names if "manylinux" not in name and "musllinux" not in name)
