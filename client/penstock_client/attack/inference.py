"""Membership inference on a request before it is approved: for the steward's eyes, and free.

The planned mechanism is run in a process of its own (:mod:`penstock_client.attack.attacker`) on the
certified rows, a fifth of the persons held out, and attacked. Nothing of it is charged, written,
logged or sent, and no release depends on it: rows were read, so a decision that followed from the
outcome would tell of them. The steward's command sees aggregates only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from penstock.audit.tradeoff import (
    ATTACKS,
    DISTANCE,
    LATENT,
    MOST_AUC,
    Point,
    Tradeoff,
    choose_w,
    qualifies,
)
from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, JobFailed, PenstockError, Problem
from penstock.base.pictures import check_picture
from penstock.base.times import stamp_now
from penstock.mechanisms.refusals import shortage, within
from penstock.mechanisms.registry import MECHANISMS
from penstock.wire.signatures import private_to_pem
from penstock.wire.signed import read_signed_study
from penstock_client.gate.admission import refuse
from penstock_client.gate.facts import read_facts
from penstock_client.gate.jobs import Jobs
from penstock_client.gate.worker_setup import make_spec
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database
from penstock_client.rows import snapshot
from penstock_client.rows.sealed import require_certified, seal_rows
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import SiteSettings
from penstock_client.work.ends import explain_end
from penstock_client.work.launcher import make_environment
from penstock_client.work.spec import Spec

MOST_REPEATS = 100


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the attacks achieved; to be shown at this site, and nowhere else.

    Args:
        persons: who have rows.
        w: the request's.
        table: means over the repeats; of other w too where they were asked for.
    """

    persons: int
    repeats: int
    w: float
    table: Tradeoff

    @property
    def asked(self) -> Point:
        """At the request's w. Without latents of the persons' own, no row is anybody's."""
        found = self.table.at(self.w)
        return found if self.w > 0 else replace(found, pairing=None)

    @property
    def swept(self) -> bool:
        """Whether other w were tried."""
        return len(self.table.points) > 1

    @property
    def largest_w(self) -> float | None:
        """Up to which both attacks look like chance; None where they do so at no w."""
        return self._largest(ATTACKS)

    def _largest(self, attacks: Sequence[str]) -> float | None:
        least = self.table.by(LATENT)[0]
        return choose_w(self.table, attacks=attacks) if qualifies(least, attacks=attacks) else None

    def to_dict(self) -> Json:
        """Its JSON form, without the curves."""
        asked = self.asked.to_dict()
        found = {
            "persons": self.persons,
            "repeats": self.repeats,
            "reports": asked["reports"],
            "pairing": asked["pairing"],
        }
        if self.swept:
            found["sweep"] = {
                "w": self.w,
                "most_auc": MOST_AUC,
                "largest_w": self.largest_w,
                "largest_w_by_distance": self._largest((DISTANCE,)),
                **self.table.to_dict(),
            }
        return found


@contextlib.contextmanager
def seal_task(
    paths: SitePaths, settings: SiteSettings, request_id: str
) -> Iterator[tuple[Spec, int]]:
    """What the attacker is to run: the request's plan, and the rows that it was submitted for.

    Reads the gate's database beside the running gate. The rows are a sealed copy, compared with
    what the ledger certified, as they are for a release.

    Raises:
        Refused: an unknown request, a site that is not ready, or one that sets too little memory
            aside, by the rule that releases are refused by.
        NotCertified: the rows that lie here are not those that were certified.
        PenstockError: the request's version of the rows is no longer kept, or its mechanism is one
            that the attacks do not know.
    """
    database = Database(paths.database, read_only=True)
    try:
        job = Jobs(database).get(request_id)
        state = Ledger(database, None).verify(paths.gate_public())
    finally:
        database.close()
    if job is None:
        raise refuse("unknown-request")
    facts = read_facts(paths, settings, state, stamp_now())
    study = read_signed_study(job.signed).study
    mechanism = MECHANISMS.of(study.mechanism)
    if not mechanism.attackable:
        raise PenstockError(
            "no attack is known here on such a release",
            value=mechanism.name,
            bound=" or ".join(m.name for m in MECHANISMS.values() if m.attackable),
            remedy="see what the mechanism is charged, and `penstock audit`",
        )
    version = next(v for v in state.lineages[job.lineage].versions if v.number == job.version)
    rows = snapshot.locate_rows(paths.snapshots, job.lineage, job.version)
    if not rows.exists():
        raise PenstockError(
            "the rows that this request was for have been replaced by newer ones",
            value=f"version {job.version}",
            remedy="wait for the same study to be submitted anew",
        )
    planned = mechanism.plan(study.asked, version.persons)
    needed = mechanism.attack_memory(planned, study.schema, facts.dictionary, facts.threads)
    if not within(needed, facts.memory_gb):
        raise refuse("memory", shortage(needed, planned.persons, facts.memory_gb))
    with contextlib.ExitStack() as held:
        found = held.enter_context(seal_rows(rows))
        require_certified(found, facts.dictionary, private_to_pem(paths.key()), version.fingerprint)
        spec = make_spec(
            study, facts.dictionary, planned.events, version.persons, paths, settings, held
        )
        yield spec, found


def run(
    spec: Spec,
    rows: int,
    repeats: int,
    progress: Callable[[int, int], None],
    *,
    swept: bool = False,
) -> Outcome:
    """Attack in a process of its own; it dies with this one, and leaves no file.

    Args:
        rows: the descriptor of the sealed rows.
        swept: also at other w; one fit per repeat serves them all.

    Raises:
        InvalidInput: repeats out of bounds.
        JobFailed: the attacker ended early; only the type and place of its error are known, and
            whether memory had run out.
    """
    if not 1 <= repeats <= MOST_REPEATS:
        problem = Problem("repeats", "out of bounds", None, str(repeats), f"1 to {MOST_REPEATS}")
        raise InvalidInput("attack", [problem])
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock_client.attack.attacker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=make_environment(spec.threads),
        text=True,
        start_new_session=True,
        pass_fds=[rows, *([] if spec.public is None else [spec.public])],
    )
    said: Any = None
    try:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the attacker has no pipes")
        with contextlib.suppress(BrokenPipeError):
            asked = {
                "spec": asdict(spec),
                "rows": rows,
                "repeats": repeats,
                "sweep": swept,
                "parent": os.getpid(),
            }
            json.dump(asked, process.stdin)
            process.stdin.close()
        for line in process.stdout:
            with contextlib.suppress(ValueError):  # half a line, where it was killed
                said = json.loads(line)
            if isinstance(said, list):
                progress(*said)
        code = process.wait()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code != 0 or not isinstance(said, dict):
        why = explain_end(
            said if isinstance(said, dict) else None, code, spec.memory_gb, killed=False
        )
        raise JobFailed("the attack ended early; nothing was charged or kept", value=why)
    return Outcome(said["persons"], repeats, said["w"], Tradeoff.from_dict(said["table"]))


def check_place(picture: Path, paths: SitePaths) -> None:
    """A picture may lie anywhere but in the site's directory, of which parts leave.

    Raises:
        InvalidInput: it would lie there, its directory does not exist, or it is no kind of picture.
        PenstockError: nothing here can draw.
    """
    check_picture(picture)
    whole = picture.resolve()
    if any(whole.is_relative_to(p.resolve()) for p in (paths.root, paths.run)):
        problem = Problem("plot", "lies in the site's directory", remedy="Keep it elsewhere")
        raise InvalidInput(str(picture), [problem])
    if not whole.parent.is_dir():
        raise InvalidInput(str(picture), [Problem("plot", "its directory does not exist")])
