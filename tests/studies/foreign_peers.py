"""What others would release of the same table: same ε and δ, relation, public n and public bounds.

`copula` is a Gaussian copula after Li, Xiong & Jiang (2014): noisy histograms of all columns, half
of the budget, then a noisy correlation of clipped normal scores, the other half; the same
accountant, sensitivities, bounds and scales.

`mst` (McKenna, Miklau & Sheldon 2021) and `aim` (McKenna, Mullins, Sheldon & Miklau 2022) are those
of smartnoise-synth 1.0.8 with mbi 1.1.0, in an environment of their own that `make reproduce
NAME=foreign` makes; `foreign_smartnoise.py` says what is set otherwise than they come.

All see numbers in even bins on the column's scale, and values are uniform within a bin. All are
given the end of follow-up, and a spike, as a bin of its own, which as published they do not have.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from tests.studies.kept import ROOT

from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Gaussian
from penstock.privacy.noise.sources import NoiseSource, add_gaussian
from penstock.privacy.request import PrivacyRequest
from penstock.privacy.sensitivity import histogram
from penstock.schema import Coded, Column, Schema

Array = NDArray[np.float64]
Places = NDArray[np.intp]

BINS, SMARTNOISE_BINS = 64, 32
"""Of a number: what a histogram alone is given, and what pairs of columns are given."""

SMARTNOISE = Path(".bench/smartnoise/bin/python")
"""The interpreter of the other environment, from the folder where `make` runs."""


# -- bins ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bins:
    """A column's public cells: levels as they are; of a number even bins on its scale.

    Args:
        cuts: edges of a number's bins; own: the value with a cell of its own, the first one of a
            spike at 0 and else the last one, so that cells keep the order of values.
    """

    column: Column
    cuts: Array
    own: float | None

    @classmethod
    def of(cls, column: Column, count: int) -> Bins:
        """So many bins of a number."""
        if column.levels:
            return cls(column, np.zeros(0), None)
        low, high = column.bounds
        step = 0.0 if column.grid is None else 10.0 ** -(column.decimals or 0)
        if column.scale == "log":
            origin = step if low == 0 else 0.0
            cuts = np.geomspace(low + origin, high + origin + step, count + 1) - origin - step / 2
        else:
            cuts = np.linspace(low - step / 2, high + step / 2, count + 1)
        return cls(column, cuts, high if column.event is not None else column.spike)

    @property
    def size(self) -> int:
        """How many cells; the last one of a number without a value of its own is empty."""
        return len(self.column.levels) or len(self.cuts)

    def places(self, values: Array) -> Places:
        """Each value's cell."""
        if self.column.levels:
            return values.astype(np.intp)
        last = len(self.cuts) - 1
        place = np.clip(np.searchsorted(self.cuts, values, side="right") - 1, 0, last - 1)
        if self.own is None:
            return place
        if self.own == 0:
            return np.where(values == 0, 0, place + 1)
        return np.where(values == self.own, last, place)

    def values(self, places: Places, rng: np.random.Generator) -> Array:
        """A value in each cell."""
        if self.column.levels:
            return places.astype(np.float64)
        last = len(self.cuts) - 1
        at = np.clip(places - (self.own == 0), 0, last - 1)
        inside = self.cuts[at] + (self.cuts[at + 1] - self.cuts[at]) * rng.random(len(at))
        values = self.column.snap(inside)
        if self.own is None:
            return values
        return np.where(places == (0 if self.own == 0 else last), self.own, values)


# -- a Gaussian copula -----------------------------------------------------------------------------


def copula(
    rows: Coded,
    schema: Schema,
    privacy: PrivacyRequest,
    copies: int,
    noise: NoiseSource,
    rng: np.random.Generator,
) -> list[Coded]:
    """Tables of as many rows, of one fit: noisy histograms and a noisy correlation."""
    n, columns = len(rows[schema.names[0]]), schema.columns
    sigma = math.sqrt(2) * smallest_scale(
        lambda s: (Gaussian(s * math.sqrt(2)),) * 2, privacy.epsilon, privacy.delta
    )
    bins = [Bins.of(column, BINS) for column in columns]
    places = [each.places(rows[each.column.name]) for each in bins]
    counts = [np.bincount(p, minlength=b.size) for p, b in zip(places, bins, strict=True)]
    whole = np.concatenate(counts).astype(np.float64)
    flat = add_gaussian(whole, sigma * histogram(len(columns), 1), noise)
    noisy = np.split(flat, np.cumsum([len(c) for c in counts])[:-1])
    risen = [np.append(0.0, np.cumsum(np.maximum(c, 0.0) + 1e-9)) for c in noisy]
    risen = [r / r[-1] for r in risen]
    inside = [r[p] + (r[p + 1] - r[p]) * rng.random(n) for r, p in zip(risen, places, strict=True)]
    scores = ndtri(np.clip(np.column_stack(inside), 1e-4, 1 - 1e-4))
    radius = math.sqrt(len(columns)) + 1.0
    norm = np.linalg.norm(scores, axis=1, keepdims=True)
    scores *= np.minimum(1.0, radius / norm)
    upper = np.triu_indices(len(columns))
    weights = np.where(upper[0] == upper[1], 1.0, math.sqrt(2))
    total = (scores.T @ scores)[upper] * weights
    released = add_gaussian(total, sigma * radius**2, noise) / weights / n
    moments = np.zeros((len(columns),) * 2)
    moments[upper] = released
    moments = moments + np.triu(moments, 1).T
    values, vectors = np.linalg.eigh(moments)
    definite = (vectors * np.maximum(values, 0.02)) @ vectors.T
    sd = np.sqrt(np.diag(definite))
    made = []
    for _ in range(copies):
        drawn = rng.multivariate_normal(np.zeros(len(sd)), definite / np.outer(sd, sd), n)
        table: Coded = {}
        for j, each in enumerate(bins):
            place = np.searchsorted(risen[j], ndtr(drawn[:, j]), side="right") - 1
            table[each.column.name] = each.values(np.clip(place, 0, each.size - 1), rng)
        made.append(table)
    return made


# -- MST and AIM -----------------------------------------------------------------------------------


def can_run_smartnoise() -> bool:
    """Whether its environment is there."""
    return SMARTNOISE.exists()


def smartnoise(
    arm: str,
    rows: Coded,
    schema: Schema,
    privacy: PrivacyRequest,
    copies: int,
    seed: int,
    *,
    alone: bool = False,
) -> list[Coded]:
    """Tables of as many rows, of one fit, by smartnoise-synth in another process.

    Args:
        alone: in a process of its own, as a user meets it and a benchmark takes its time; else in
            one that goes on with the next fit and keeps what it compiled: the same tables sooner.

    Raises:
        RuntimeError: it failed; says how.
    """
    n, bins = len(rows[schema.names[0]]), [Bins.of(c, SMARTNOISE_BINS) for c in schema.columns]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        codes = pd.DataFrame({b.column.name: b.places(rows[b.column.name]) for b in bins})
        codes.to_csv(folder / "codes.csv", index=False)
        asked = {
            "arm": arm,
            "epsilon": privacy.epsilon,
            "delta": privacy.delta,
            "seed": seed,
            "sizes": {b.column.name: b.size for b in bins},
            "rows": n * copies,
        }
        (folder / "asked.json").write_text(json.dumps(asked))
        failed = _run_alone(folder) if alone else _run_with_others(folder)
        if failed:
            raise RuntimeError(f"{arm}: {failed[-2000:]}")
        drawn = pd.read_csv(folder / "made.csv")
    rng = np.random.default_rng([seed, 2])
    values = {b.column.name: b.values(drawn[b.column.name].to_numpy(np.intp), rng) for b in bins}
    parts = np.array_split(np.arange(n * copies), copies)
    return [{name: v[part] for name, v in values.items()} for part in parts]


def _run_alone(folder: Path) -> str:
    """Why the fit of that folder failed; empty where it did not."""
    run = subprocess.run(
        [*_SCRIPT, str(folder)], env=_environ(), capture_output=True, text=True, check=False
    )
    return "" if run.returncode == 0 else run.stderr or f"exit code {run.returncode}"


def _run_with_others(folder: Path) -> str:
    """The same, by the process that this one keeps for all of its fits."""
    process = _start()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{folder}\n")
    process.stdin.flush()
    if not process.stdout.readline():
        _start.cache_clear()
        return f"its process ended, exit code {process.wait()}"
    failed = folder / "failed.txt"
    return failed.read_text() if failed.exists() else ""


@cache
def _start() -> subprocess.Popen[str]:
    """It ends with this process, which its input comes from."""
    compiled = {
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / "build" / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    return subprocess.Popen(
        _SCRIPT,
        env=_environ() | compiled,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


_SCRIPT = (
    str(SMARTNOISE.absolute()),
    str(Path(__file__).with_name("foreign_smartnoise.py").absolute()),
)


def _environ() -> dict[str, str]:
    """Nothing of this environment may be imported in that one.

    AIM goes through sets of names, whose order is random unless it is seeded.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return kept | {"JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": "0"}
