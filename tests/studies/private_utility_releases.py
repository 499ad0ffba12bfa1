"""One release of one arm in the study of whole tables, and how it compares; each answer is kept."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from tests.studies.foreign_arms import seed_of
from tests.studies.foreign_peers import copula, smartnoise
from tests.studies.kept import RELEASED, Answer, Store
from tests.studies.private_utility_tables import (
    ADULT,
    ADULT_ROWS,
    NAMES,
    Codes,
    Private,
    compare_margins,
    count_cells,
    draw_adult,
    draw_table,
    to_codes,
)
from tests.support.carried_out import release

from penstock.mechanisms import Maf, Settings, SlicedWasserstein, Structured
from penstock.mechanisms.plans import plan
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Column, Schema
from penstock.schema.encoding import Encoding

OURS: dict[str, Settings] = {
    "structured": Structured(copies=1, refits=0, planted=0),
    "maf": Maf(copies=1, refits=0),
    "sliced-wasserstein": SlicedWasserstein(copies=1, refits=0),
}
DELTA, JUDGED = 1e-5, "class"
SLOW_PEERS = ("mst", "aim")
SLOW_PEERS_REST_ON = (
    "shared/penstock/schema",
    *(f"tests/studies/private_utility_{name}.py" for name in ("tables", "releases")),
    *(f"tests/studies/foreign_{name}.py" for name in ("generators", "peers", "real", "tables")),
    "tests/studies/foreign_smartnoise.py",
    "tests/studies/large_tables.py",
    "tests/studies/packaged_tables.py",
)
RESTS_ON = (
    *RELEASED,
    *(f"shared/penstock/mechanisms/{name}" for name in ("flow", "maf", "sliced_wasserstein")),
    *(name for name in SLOW_PEERS_REST_ON if name not in RELEASED),
)


@dataclass(frozen=True, slots=True)
class Job:
    """One release of one arm: of a draw of Adult, or of so many rows of another table."""

    arm: str
    epsilon: float
    number: int
    table: str = ADULT
    n: int = ADULT_ROWS

    @property
    def key(self) -> str:
        release = f"{self.arm} {self.epsilon:g} {self.number}"
        return release if self.table == ADULT else f"{self.table} {self.n} {release}"


@cache
def store(arm: str = "structured") -> Store:
    """Where an arm's answers are kept.

    Those of MST and AIM take minutes to hours and rest on nothing that the package does but its
    dictionaries, so they stay in the repository beside the studies' data.
    """
    if arm in SLOW_PEERS:
        return Store("private-utility-peers", SLOW_PEERS_REST_ON, Path(__file__).parent / "data")
    return Store("private-utility", RESTS_ON)


def read_answers() -> dict[str, Answer]:
    """All that are kept, by the keys of their jobs."""
    return store().read() | store(SLOW_PEERS[0]).read()


def answer(job: Job) -> Answer:
    """How one release compares; kept."""
    others: Private | None = None
    if job.table == ADULT:
        private, others = draw_adult(job.number)
    else:
        private = draw_table(job.table, job.n, job.number)
    found, made = compare(job, private)
    if others is not None:
        at = private.schema.names.index(JUDGED)
        found["AUC"] = classify(made, to_codes(others.rows, others.schema), at)
    store(job.arm).keep(job.key, found)
    return found


def compare(job: Job, private: Private) -> tuple[Answer, Codes]:
    """How far the margins of one release are from the rows', and the release."""
    own = to_codes(private.rows, private.schema)
    began = time.perf_counter()
    made = own if job.arm == "real" else make_rows(job, private, own)
    seconds = time.perf_counter() - began
    distances = compare_margins(own, made, count_cells(private.schema))
    return dict(zip((*NAMES, "seconds"), [*distances, seconds], strict=True)), made


def make_rows(job: Job, private: Private, own: Codes) -> Codes:
    """One synthetic table, in cells."""
    schema, seed = private.schema, seed_of(job.key)
    privacy = PrivacyRequest(job.epsilon, min(DELTA, 1 / (10 * job.n)))
    if job.arm in OURS:
        encoding, asked = Encoding(schema), OURS[job.arm]
        rows, present = encoding.encode(private.rows, np.random.default_rng(seed))
        planned = plan(asked, schema, job.n, privacy, ())
        given = (encoding, rows[:, None], present[:, None], SeededNoise(seed))
        [copy] = release(asked, planned, *given)
        return to_codes({k: np.asarray(v, float) for k, v in copy.columns.items()}, schema)
    coded = {name: own[:, j].astype(float) for j, name in enumerate(schema.names)}
    binned = bin_schema(schema)
    if job.arm == "copula":
        noise, rng = SeededNoise(seed), np.random.default_rng([seed, 1])
        [made] = copula(coded, binned, privacy, 1, noise, rng)
    else:
        [made] = smartnoise(job.arm, coded, binned, privacy, 1, seed)
    return np.column_stack([made[name] for name in schema.names]).astype(np.intp)


def bin_schema(schema: Schema) -> Schema:
    """A dictionary of the cells in which tables are judged, as peers are given them."""
    columns = []
    for name, cells in zip(schema.names, count_cells(schema), strict=True):
        if cells == 2:
            columns.append(Column(name, "binary"))
        else:
            columns.append(Column(name, "categorical", levels=tuple(f"c{i}" for i in range(cells))))
    return Schema(tuple(columns))


def classify(train: Codes, test: Codes, at: int) -> float:
    """AUC of the column at that place, by all other columns."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score

    if len(np.unique(train[:, at])) < 2:
        return 0.5
    made = HistGradientBoostingClassifier(random_state=0).fit(
        np.delete(train, at, axis=1), train[:, at]
    )
    return float(roc_auc_score(test[:, at], made.predict_proba(np.delete(test, at, axis=1))[:, 1]))
