"""The process that sees rows and trains: spawned per job, without a network, and then gone.

Run as ``python -m penstock_client.work.worker DIRECTORY CHANNEL``. It reads ``spec.json`` there,
rehearses on synthetic rows where it is asked to, says ``ready``, and waits on the channel, an
inherited socket pair, for the sealed rows: they are sent once they are charged. Then it writes
``table.arrow`` (the released tables, decoded and clamped). Standard output carries steps, for the
gate alone. What goes wrong is reported as the *type* of an error and a place in our source, never
as its text, which may quote a row.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.abc import MetaPathFinder
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.aggregation.exchanges import write_sum
from penstock.base.errors import InvalidEvent
from penstock.mechanisms.flow.engine import why_no_kernel
from penstock.mechanisms.joint.consortium import SITE
from penstock.mechanisms.joint.plan import JointPlan
from penstock.mechanisms.joint.rounds import contribute
from penstock.mechanisms.parts import Part
from penstock.mechanisms.protocol import AnyMechanism, Plan
from penstock.mechanisms.registry import MECHANISMS, Registry
from penstock.mechanisms.released import Kind
from penstock.privacy.events import to_dict
from penstock.privacy.noise.sources import NoiseSource, SecureNoise, SeededNoise
from penstock.processes.confinement import forbid_dumps, forbid_network
from penstock.schema import Schema
from penstock.schema.encoding import Encoding
from penstock.study.charges import carry, plan_study
from penstock.study.study import Study
from penstock.wire.canonical import digest
from penstock.wire.messages import choose_version
from penstock.wire.release_file import write_release
from penstock_client.rows import snapshot
from penstock_client.rows.sealed import map_rows
from penstock_client.work import rehearsal
from penstock_client.work.ends import describe_failure
from penstock_client.work.spec import MEASURED, OUTCOME, READY, REHEARSED, SPEC, TABLE, VECTOR, Spec

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_PR_SET_PDEATHSIG = 1


def isolate(memory_gb: float) -> None:
    """Die with the gate, stay within the memory limit, leave no dump, and have no network."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    limit = int(memory_gb * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    forbid_network()
    forbid_dumps()


@dataclass(frozen=True, slots=True)
class Task:
    """A spec with its rows: (persons, k, d) and presence (persons, k), by the study's schema."""

    study: Study
    mechanism: AnyMechanism
    encoding: Encoding
    plan: Plan
    rows: Array
    present: Bools
    public: tuple[Array, Bools] | None
    joint: JointPlan | None = None


def noise_of(spec: Spec) -> NoiseSource:
    """The operating system's, but in simulations."""
    return SecureNoise() if spec.insecure_seed is None else SeededNoise(spec.insecure_seed)


def prepare(
    spec: Spec,
    data: snapshot.Bytes,
    rng: np.random.Generator,
    mechanisms: Registry = MECHANISMS,
) -> Task:
    """Lay rows out in the study's order, and plan what was charged.

    Args:
        data: the snapshot's bytes.
        mechanisms: all there are. A worker's process has the closed list, whatever its gate has.

    Raises:
        InvalidEvent: the plan is another one than was charged.
    """
    study = Study.from_dict(spec.study, mechanisms)
    mechanism = mechanisms.of(study.mechanism)
    dictionary = Schema.from_dict(spec.dictionary)

    planned = plan_study(study, spec.persons, mechanisms)
    asked, carried = carry(study.asked, planned)
    joint = planned if isinstance(planned, JointPlan) else None

    encoding = mechanism.lay_out(asked.schema)

    def load(data: snapshot.Bytes, persons: int | None) -> tuple[Array, Bools]:
        coded, person = snapshot.load_rows(data)
        recoded = snapshot.recode_levels(coded, dictionary, study.schema)
        if joint is not None and SITE in asked.schema.names:  # the rows know of which site they are
            recoded[SITE] = np.full(len(person), float(study.sites.index(spec.site)))
        count = persons if persons is not None else int(person.max()) + 1
        return snapshot.arrange_by_person(recoded, person, count, encoding, rng)

    rows, present = load(data, spec.persons)
    public = load(map_rows(spec.public), None) if spec.public is not None else None
    if [to_dict(e) for e in planned.events] != spec.events:
        raise InvalidEvent("the plan is not the one that was charged")
    return Task(study, mechanism, encoding, carried, rows, present, public, joint)


def produce(
    spec: Spec,
    data: snapshot.Bytes,
    progress: Callable[[int, int], None],
    path: Path,
    mechanisms: Registry = MECHANISMS,
    made: Callable[[Kind], None] = lambda kind: None,
) -> None:
    """Write the release's parts into a file, each in random order, as they are made.

    Args:
        made: told of each part, or piece of one, once it is written.
    """
    noise = noise_of(spec)
    task = prepare(spec, data, noise.generator(), mechanisms)
    shape = task.mechanism.shape(task.study.asked, spec.persons)
    version = choose_version(task.study.wire)
    parts = task.mechanism.run(
        task.plan,
        task.encoding,
        task.rows,
        task.present,
        noise,
        progress=progress,
        device=device_of(spec),
        threads=spec.threads,
        public=task.public,
    )
    del task  # its rows are the run's alone, which may let them go

    def told() -> Iterator[Part]:
        for part in parts:
            yield part
            made(shape.part(part.name).kind)

    write_release(path, shape, told(), version)


def contribute_round(
    spec: Spec, data: snapshot.Bytes, path: Path, mechanisms: Registry = MECHANISMS
) -> list[int]:
    """Write what this site adds to the next sum of many sites, with its share of the noise.

    Raises:
        InvalidEvent: the plan is another one than was charged.
        JobFailed: no sum is asked for any more.
    """
    sums, noise = spec.sums or [], noise_of(spec)
    for _ in sums:
        noise = noise.child()  # a test's seed gives each round its own
    # Rows are laid out alike in every round: what is random in it hides nobody, and nothing rests
    # on it, but sums of different rounds are of the same numbers.
    seed = int(digest({"study": spec.study, "site": spec.site}), 16)
    task = prepare(spec, data, np.random.default_rng(seed), mechanisms)
    if task.joint is None:
        raise InvalidEvent("a round of a release that has none")
    found = contribute(
        task.mechanism, task.joint, task.encoding, task.rows, task.present, sums, noise
    )
    noisy = found.add_noise(len(task.study.sites), noise)
    path.write_bytes(write_sum(noisy))
    return noisy


def _rehearse_rounds(spec: Spec, folder: Path, mechanisms: Registry) -> rehearsal.Measured:
    """All rounds on synthetic rows, as if it were one site alone; the longest counts."""
    study = Study.from_dict(spec.study, mechanisms)
    k = study.schema.max_rows_per_person
    rows = rehearsal.synthetic_rows(Schema.from_dict(spec.dictionary), spec.persons, k)
    planned = plan_study(study, spec.persons, mechanisms)
    sums: list[list[int]] = []
    longest, began = 0.0, _clocks()
    for _ in range(planned.rounds if isinstance(planned, JointPlan) else 0):
        before = time.process_time()
        sums.append(
            contribute_round(replace(spec, sums=sums), rows, folder / REHEARSED, mechanisms)
        )
        longest = max(longest, time.process_time() - before)
    wall, processor = (now - then for now, then in zip(_clocks(), began, strict=True))
    return rehearsal.Measured(longest, pace=wall / processor)


def rehearse(spec: Spec, folder: Path, mechanisms: Registry = MECHANISMS) -> rehearsal.Measured:
    """Run short forms of the study on synthetic rows, leave a table, and say how long they took.

    Everything that a release does, with the public n: only steps, copies and refits are fewer.
    """
    study = Study.from_dict(spec.study, mechanisms)
    if study.aggregation.joint:
        return _rehearse_rounds(spec, folder, mechanisms)
    mechanism = mechanisms.of(study.mechanism)
    dictionary, k = Schema.from_dict(spec.dictionary), study.schema.max_rows_per_person

    began = _clocks()

    def run(short: Study, persons: int) -> rehearsal.Timing:
        charged = mechanism.plan(short.asked, persons)
        events = [to_dict(e) for e in charged.events]
        asked = replace(spec, study=short.to_dict(), persons=persons, events=events)
        rows = rehearsal.synthetic_rows(dictionary, persons, k)
        timing = rehearsal.Timing()
        produce(asked, rows, timing.step, folder / REHEARSED, mechanisms, timing.part)
        timing.part(Kind.ONCE)
        return timing

    def measured() -> rehearsal.Measured:
        if rehearsal.few_steps(study, mechanism):
            whole = rehearsal.shortened(study, mechanism, rehearsal.LONG)
            return run(whole, spec.persons).measured()
        # What is loaded lazily is loaded once, and is no part of what a step takes.
        alone = rehearsal.shortened(study, mechanism, copies=1, refits=0)
        run(alone, min(spec.persons, rehearsal.FEW_PERSONS))
        longer = rehearsal.shortened(study, mechanism, rehearsal.LONG, copies=1, refits=0)
        long = run(longer, spec.persons)
        return run(rehearsal.shortened(study, mechanism), spec.persons).measured(long)

    found = measured()
    wall, processor = (now - then for now, then in zip(_clocks(), began, strict=True))
    return replace(found, pace=wall / processor)


def _clocks() -> tuple[float, float]:
    """Seconds of the clock, and of the processor."""
    return time.perf_counter(), time.process_time()


_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Where a GPU's driver shows itself: NVIDIA's, AMD's, and that of a Windows subsystem."""


def device_of(spec: Spec) -> str:
    """Where to train.

    Torch, which takes seconds to load, is asked only where there is a driver: a CPU's flows are
    computed by the compiled kernel.
    """
    if spec.device != "auto":
        return spec.device
    if not any(map(os.path.exists, _GPU_DRIVERS)):
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def use_threads(spec: Spec) -> None:
    """As many threads as the site allows; but for torch, their number is in the environment."""
    if why_no_kernel(device_of(spec)) is not None:
        import torch

        torch.set_num_threads(spec.threads)


def _receive(channel: socket.socket) -> int | None:
    """The sealed rows, once they are charged; None where the gate went away instead."""
    _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    return descriptors[0] if descriptors else None


class _NoPandas(MetaPathFinder):
    """Arrow loads pandas wherever it is installed, 45 MB of it, and nothing here needs it."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("a worker has no pandas", name=name)


def main(folder: Path, channel: socket.socket, rehearsed: bool) -> int:
    """Args: rehearsed: whether to rehearse before any row is asked for."""
    parent = os.getppid()
    sys.meta_path.insert(0, _NoPandas())
    spec = Spec(**json.loads((folder / SPEC).read_text()))
    isolate(spec.memory_gb)
    if os.getppid() != parent:
        return 1  # The gate died before the death signal was set.

    def progress(step: int, of: int) -> None:
        sys.stdout.write(f"{step} {of}\n")
        sys.stdout.flush()

    try:
        use_threads(spec)
        if rehearsed:
            (folder / MEASURED).write_text(json.dumps(asdict(rehearse(spec, folder))))
        sys.stdout.write(f"{READY}\n")
        sys.stdout.flush()
        rows = _receive(channel)
        if rows is None:
            return 1
        if spec.sums is None:
            produce(spec, map_rows(rows), progress, folder / TABLE)
        else:
            contribute_round(spec, map_rows(rows), folder / VECTOR)
    except Exception as error:
        (folder / OUTCOME).write_text(json.dumps(describe_failure(error)))
        return 1
    return 0


if __name__ == "__main__":
    # A socket is made of the inherited descriptor now, since none can be made later.
    pair = socket.socket(fileno=int(sys.argv[2]))
    sys.exit(main(Path(sys.argv[1]), pair, sys.argv[3:] == ["--rehearse"]))
