"""The process that attacks its own site's release before there is one: no network, no files.

Run as ``python -m penstock_client.work.attacker``. What to do comes on standard input; progress
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
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.audit import membership
from penstock.encoding import Encoding
from penstock.privacy.noise import NoiseSource, permutation
from penstock_client.work.spec import Spec
from penstock_client.work.worker import Task, confess, device_of, isolate, noise_of, prepare

if TYPE_CHECKING:
    from penstock.models.mechanism import Model

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

HELD_OUT = 0.2
MOST_CANDIDATES = 10_000
"""Persons who are scored; drawn at random where there are more."""

_LOOKS = 16
"""Encodings that are averaged, for a row as an attacker sees it."""


def attack(spec: Spec, repeats: int, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Run the planned mechanism ``repeats`` times, each on other members, and attack each run.

    Returns:
        Aggregates only: ``persons`` who have rows, per attack and group of records a report and a
        ROC curve, both averaged over the runs, and the pairing where rows have a synthetic one.
    """
    noise = noise_of(spec)
    task = prepare(spec, noise.generator())
    stages = task.plan.stages.training.steps + task.plan.copies + 1
    runs = []
    for index in range(repeats):

        def step(done: int, before: int = index * stages) -> None:
            progress(before + done, repeats * stages)

        runs.append(_run(task, noise, device_of(spec), step))
        step(stages)
    reports = {
        name: membership.average([run.reports[name] for run in runs])
        for name in runs[0].reports
        if all(name in run.reports for run in runs)
    }
    pairs = [run.pairing for run in runs if run.pairing is not None]
    return {
        "persons": int(task.present.any(axis=1).sum()),
        "reports": {name: report.to_dict() for name, report in reports.items()},
        "curves": {
            name: _numbers(np.mean([run.curves[name] for run in runs], axis=0)) for name in reports
        },
        "pairing": {
            "nearer": float(np.mean([p.nearer for p in pairs])),
            "rank": float(np.mean([p.rank for p in pairs])),
        }
        if pairs
        else None,
    }


class _Run:
    """One run's reports and curves, by "attack" and "attack, extreme"."""

    def __init__(self, pairing: membership.Pairing | None) -> None:
        self.pairing = pairing
        self.reports: dict[str, membership.Report] = {}
        self.curves: dict[str, Array] = {}

    def add(self, name: str, scores: Array, members: Bools) -> None:
        if min(members.sum(), (~members).sum()) < 2:
            return  # Of a small site's extreme records; there is nothing to compare.
        sides = scores[members], scores[~members]
        self.reports[name] = membership.attack_report(*sides)
        self.curves[name] = membership.roc(*sides)


def _run(task: Task, noise: NoiseSource, device: str, step: Callable[[int], None]) -> _Run:
    from penstock.models import mechanism
    from penstock.models.latent_noise import inject

    plan, encoding, d = task.plan, task.encoding, task.plan.arch.d
    member = _members(task.present, noise)
    present = task.present & member[:, None]
    rows: Array = np.where(present[..., None], task.rows, 0.0)
    seen = (rows, present) if task.public is None else task.public
    model = mechanism.fit(plan, encoding, *seen, noise, lambda at, _: step(at), device)
    # As in the mechanism, but in the persons' own order: of no use to either attack, and it tells
    # whose row is whose.
    flat, there = rows.reshape(-1, d), present.ravel()
    latents = model.to_latent(flat) if plan.w > 0 else np.zeros_like(flat)

    def copy() -> Array:
        return model.to_values(inject(latents, there, plan.w, plan.latent_clip, noise))

    who, candidates = _candidates(task, noise)
    real = _as_seen(encoding, candidates, noise)
    known = _Known(model)
    # The model tells how many rows it was fitted on, if not exactly.
    absent = float(np.clip(1 - model.rows / there.size, 0.0, 0.99))
    distance, ratio = np.zeros(len(who)), np.zeros(len(who))
    pair = None
    for index in range(plan.copies):
        made = _as_seen(encoding, copy(), noise)
        scale = made.std(axis=0)
        distance -= membership.closest(made, real, scale) / plan.copies
        if plan.w > 0 or index == 0:  # at w = 0 more copies tell no more of the model
            ratio += membership.likelihood_ratio(
                known, made, real, plan.w, plan.latent_clip, absent=absent
            )
        if plan.w > 0 and pair is None and there.sum() >= 2:
            own = _as_seen(encoding, flat[there], noise)
            pair = membership.pairing(own, made[there], scale)
        step(plan.stages.training.steps + index + 1)
    persons, inverse = np.unique(who, return_inverse=True)
    is_member = member[persons]
    far = _worst(membership.extremity(real), inverse)
    extreme = np.zeros(len(persons), dtype=np.bool_)
    extreme[np.argsort(-far)[: max(1, round(membership.EXTREME * len(persons)))]] = True
    run = _Run(pair)
    for name, scores in (("distance", distance), ("likelihood ratio", ratio)):
        mean = np.bincount(inverse, scores) / np.bincount(inverse)
        run.add(name, mean, is_member)
        run.add(f"{name}{membership.EXTREMES}", mean[extreme], is_member[extreme])
    return run


class _Known:
    """The fitted model, as an attacker has it who knows all of it."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def to_latent(self, rows: Array) -> Array:
        return self._model.to_latent(rows)

    def log_density(self, rows: Array) -> Array:
        import torch

        model = self._model
        scores = model.affine.invert(np.clip(rows, model.low, model.high))
        with torch.no_grad():
            held = torch.as_tensor(scores, dtype=model.flow.dtype, device=model.flow.device)
            result: Array = model.flow.log_prob(held).cpu().numpy().astype(np.float64)
        return result


def _members(present: Bools, noise: NoiseSource) -> Bools:
    """Who takes part: all but a random fifth of the persons who have rows."""
    persons = np.flatnonzero(present.any(axis=1))
    member = np.ones(len(present), dtype=np.bool_)
    out = permutation(len(persons), noise)[: round(HELD_OUT * len(persons))]
    member[persons[out]] = False
    return member


def _candidates(task: Task, noise: NoiseSource) -> tuple[NDArray[np.intp], Array]:
    """Persons to score, one index per row, and those rows; members and others in one fashion."""
    persons = np.flatnonzero(task.present.any(axis=1))
    scored = persons[permutation(len(persons), noise)[:MOST_CANDIDATES]]
    chosen = np.zeros(len(task.present), dtype=np.bool_)
    chosen[scored] = True
    usable = task.present & chosen[:, None]
    return np.nonzero(usable)[0], task.rows[usable]


def _as_seen(encoding: Encoding, rows: Array, noise: NoiseSource) -> Array:
    """Rows as they leave, decoded, and encoded again, with the noise of doing so averaged out."""
    coded = encoding.decode(rows)
    total = np.zeros_like(rows)
    rng = noise.generator()
    for _ in range(_LOOKS):
        total += encoding.encode(coded, rng)[0]
    return total / _LOOKS


def _worst(values: Array, person: NDArray[np.intp]) -> Array:
    """The largest of each person's values."""
    largest = np.full(int(person.max()) + 1, -np.inf)
    np.maximum.at(largest, person, values)
    return largest


def _numbers(curve: Array) -> list[float | None]:
    return [None if np.isnan(v) else float(v) for v in curve]


def main() -> int:
    asked = json.load(sys.stdin)
    spec = Spec(**asked["spec"])
    isolate(spec.memory_gb)
    if os.getppid() != asked["parent"]:
        return 1  # The steward's command ended before the death signal was set.

    def say(value: Any) -> None:
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()

    try:
        import torch

        torch.set_num_threads(spec.threads)
        found = attack(spec, asked["repeats"], lambda at, of: say([at, of]))
    except Exception as error:
        say(confess(error))
        return 1
    say(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
