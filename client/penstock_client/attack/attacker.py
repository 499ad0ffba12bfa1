"""The process that attacks its own site's release before there is one: no network, no files.

Run as ``python -m penstock_client.attack.attacker``. What to do comes on standard input; progress
and, at the end, aggregates go to standard output, a pipe to the steward's command: however this
ends, nothing is left behind. As in :mod:`~penstock_client.work.worker`, an error is a type and a
place.

The protocol of Shen & Tian 2025: of the persons who have rows, 80 % are members, and the rest are
held out, made null, so that the public n, the plan and its noise are those of the request. The
mechanism runs on the members; the attacks then score both.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.audit import tradeoff
from penstock.base.documents import Json
from penstock.mechanisms.protocol import Attacked
from penstock.privacy.noise.sources import NoiseSource, permutation
from penstock.schema.encoding import Encoding
from penstock_client.rows import snapshot
from penstock_client.rows.sealed import map_rows
from penstock_client.work.ends import describe_failure
from penstock_client.work.spec import Spec
from penstock_client.work.worker import (
    Task,
    device_of,
    isolate,
    noise_of,
    prepare,
    use_threads,
)

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

MOST_CANDIDATES = 10_000
"""Persons who are scored; drawn at random where there are more."""

_LOOKS = 16
"""Encodings that are averaged, for a row as an attacker sees it."""


def attack(
    spec: Spec,
    data: snapshot.Bytes,
    repeats: int,
    swept: bool,
    progress: Callable[[int, int], None],
) -> Json:
    """Run the planned mechanism ``repeats`` times, each on other members, and attack each run.

    Args:
        data: the snapshot's bytes.
        swept: also release and attack at other w, and with noise on the rows themselves.

    Returns:
        Aggregates only: ``persons`` who have rows, the plan's ``w``, and the ``table`` of
        :class:`penstock.audit.tradeoff.Tradeoff`, averaged over the runs.
    """
    noise = noise_of(spec)
    task = prepare(spec, data, noise.generator())
    attacked = task.mechanism.attacked(task.plan)
    grid = sorted({*tradeoff.GRID, attacked.w}) if swept else [attacked.w]
    ways = (tradeoff.LATENT, tradeoff.DIRECT) if swept else (tradeoff.LATENT,)
    stages = attacked.steps + attacked.copies * len(grid) * len(ways)
    tables = []
    for index in range(repeats):

        def step(done: int, before: int = index * stages) -> None:
            progress(before + done, repeats * stages)

        trial = _make_trial(task, attacked, noise, device_of(spec), step)
        tables.append(_sweep(attacked, trial, noise, grid, ways, step))
    return {
        "persons": int(task.present.any(axis=1).sum()),
        "w": attacked.w,
        "table": tradeoff.average(tables).to_dict(curves=True),
    }


def _sweep(
    attacked: Attacked,
    trial: tradeoff.Trial,
    noise: NoiseSource,
    grid: Sequence[float],
    ways: Sequence[str],
    step: Callable[[int], None],
) -> tradeoff.Tradeoff:
    def after(done: int, _: int) -> None:
        step(attacked.steps + done)

    return tradeoff.sweep(trial, noise, grid, ways=ways, progress=after)


def _make_trial(
    task: Task,
    attacked: Attacked,
    noise: NoiseSource,
    device: str,
    step: Callable[[int], None],
) -> tradeoff.Trial:
    """A model fitted on members, their rows, and everybody's rows to score."""
    encoding = task.encoding
    member = _draw_members(task.present, noise)
    present = task.present & member[:, None]
    rows: Array = np.where(present[..., None], task.rows, 0.0)
    seen = (rows, present) if task.public is None else task.public
    model = attacked.fit(encoding, *seen, noise, lambda at, _: step(at), device)
    who, candidates = _draw_candidates(task, noise)
    persons, person = np.unique(who, return_inverse=True)
    return tradeoff.Trial(
        model,
        rows.reshape(-1, encoding.d),
        present.ravel(),
        _average_looks(encoding, candidates, noise),
        person,
        member[persons],
        clip=attacked.clip,
        copies=attacked.copies,
        # The model tells how many rows it was fitted on, if not exactly.
        absent=float(np.clip(1 - model.rows / present.size, 0.0, 0.99)),
        seen=lambda made: _average_looks(encoding, made, noise),
    )


def _draw_members(present: Bools, noise: NoiseSource) -> Bools:
    """Who takes part: all but a random fifth of the persons who have rows."""
    persons = np.flatnonzero(present.any(axis=1))
    member = np.ones(len(present), dtype=np.bool_)
    member[persons[tradeoff.held_out(len(persons), noise)]] = False
    return member


def _draw_candidates(task: Task, noise: NoiseSource) -> tuple[NDArray[np.intp], Array]:
    """Persons to score, one index per row, and those rows; members and others in one fashion."""
    persons = np.flatnonzero(task.present.any(axis=1))
    scored = persons[permutation(len(persons), noise)[:MOST_CANDIDATES]]
    chosen = np.zeros(len(task.present), dtype=np.bool_)
    chosen[scored] = True
    usable = task.present & chosen[:, None]
    return np.nonzero(usable)[0], task.rows[usable]


def _average_looks(encoding: Encoding, rows: Array, noise: NoiseSource) -> Array:
    """Rows as they leave, decoded, and encoded again, with the noise of doing so averaged out."""
    coded = encoding.decode(rows)
    total = np.zeros_like(rows)
    rng = noise.generator()
    for _ in range(_LOOKS):
        total += encoding.encode(coded, rng)[0]
    return total / _LOOKS


def main() -> int:
    asked = json.load(sys.stdin)
    spec = Spec(**asked["spec"])
    isolate(spec.memory_gb)
    if os.getppid() != asked["parent"]:
        return 1  # The steward's command ended before the death signal was set.

    def say(value: object) -> None:
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()

    try:
        use_threads(spec)
        rows = map_rows(asked["rows"])
        found = attack(spec, rows, asked["repeats"], asked["sweep"], lambda at, of: say([at, of]))
    except Exception as error:
        say(describe_failure(error))
        return 1
    say(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
