"""One release of all sites, made of the sums that they added up to.

It is made here, but it is nobody's secret: the noise in it hides nobody (that is in the sums), and
is drawn from a seed that follows from the study and its sums. Whoever has these makes the same
release, by the same versions of the software.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.aggregation.exchanges import find_transcript, read_sum
from penstock.base.errors import CoordinatorError, JobFailed
from penstock.mechanisms.joint.consortium import ALL_SITES
from penstock.mechanisms.joint.plan import JointPlan
from penstock.mechanisms.joint.rounds import conclude
from penstock.mechanisms.registry import MECHANISMS
from penstock.privacy.accounting.accountant import epsilon_pld
from penstock.privacy.events import RELATION, to_dict
from penstock.privacy.noise.sources import SeededNoise
from penstock.schema.encoding import Encoding
from penstock.study.charges import plan_study
from penstock.study.study import Study
from penstock.wire.manifest import Manifest
from penstock.wire.messages import choose_version
from penstock.wire.release_file import measure_release, write_release
from penstock_server.intake.uploads import read_concluded
from penstock_server.mechanisms.delivery import Upload
from penstock_server.results.material import Material

RELEASE = "release.arrow"
"""Its file, among a study's results: of the form of a site's upload."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What was made of the sums.

    Attributes:
        study: with the column that says of which site a row is, and regressions within sites.
        plan: what each site was charged, and for what.
        upload: the release, read back and checked as a site's is.
        seed: of all that was drawn, in hex: SHA-256 of the study's id and of all sums.
        numbers: how many there are in all sums.
    """

    study: Study
    plan: JointPlan
    upload: Upload
    seed: str
    numbers: int


def join_study(study: Study) -> tuple[Study, JointPlan]:
    """A study as the release of all sites answers it, and its plan.

    Raises:
        InvalidInput: it asks for no such release.
    """
    plan = plan_study(study, 1)
    if not isinstance(plan, JointPlan):
        raise CoordinatorError("each site makes its own release", value=study.name)
    return replace(study, schema=plan.asked.schema, estimands=plan.asked.estimands), plan


def conclude_study(material: Material, folder: Path) -> Conclusion:
    """Make the release of a study's sums, and write it into a folder.

    Post-processing of sums that are charged already: nothing of it is private.

    Raises:
        JobFailed: not one sum for each round of the plan, or of another size than was asked for.
    """
    study, plan = join_study(material.study)
    if len(material.sums) != plan.rounds:
        raise JobFailed(
            "not one sum for each round of the plan", value=len(material.sums), bound=plan.rounds
        )
    told = [each.data for each in material.sums]
    sums = [read_sum(data) for data in told]
    seed = find_transcript(material.study_id, told)
    mechanism, path = MECHANISMS.of(study.mechanism), folder / RELEASE
    parts = conclude(
        mechanism,
        plan,
        Encoding(study.schema),
        sums,
        SeededNoise(int(seed, 16)),
        threads=os.cpu_count() or 1,
    )
    shape = mechanism.shape(study.asked, plan.consortium.total)
    write_release(path, shape, parts, choose_version(study.wire))
    upload = read_conclusion(study, plan, path)
    return Conclusion(study, plan, upload, seed, sum(map(len, sums)))


def read_conclusion(study: Study, plan: JointPlan, path: Path, digest: str | None = None) -> Upload:
    """The release that was made of a study's sums.

    Args:
        study, plan: of :func:`join_study`.
        digest: the file's SHA-256, as the report has it; None: whichever file this is.

    Raises:
        CoordinatorError: the file is gone, or another one.
    """
    try:
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise CoordinatorError(
            "the release of all sites is gone", value=path, remedy="restore it from a backup"
        ) from None
    if digest not in (None, found):
        raise CoordinatorError(
            "the release of all sites is another one than the report's",
            value=path,
            remedy="restore it from a backup",
        )
    return read_concluded(_describe_conclusion(study, plan, path, found), path, study)


def _describe_conclusion(study: Study, plan: JointPlan, path: Path, digest: str) -> Manifest:
    """What a manifest says of a release; nobody signs this one, since sites have signed what it was
    made of."""
    wire = choose_version(study.wire)
    shape = MECHANISMS.of(study.mechanism).shape(study.asked, plan.consortium.total)
    rows, parts = measure_release(path, shape, wire)
    return Manifest(
        wire=wire,
        study_id="",
        site=ALL_SITES,
        request_id="",
        release=study.release,
        lineage="",
        version=0,
        persons=plan.consortium.total,
        rows=rows,
        copies=study.mechanism.copies,
        refits=study.mechanism.refits,
        guarantee=study.privacy.guarantee,
        mechanism=study.mechanism.name,
        events=tuple(to_dict(event) for event in plan.events),
        relation=RELATION,
        delta=study.privacy.delta,
        epsilon_autodp=plan.epsilon,
        epsilon_pld=epsilon_pld(plan.events, study.privacy.delta),
        epsilon_replace_one=epsilon_pld(plan.events, study.privacy.delta, relation="replace-one"),
        injection_epsilon=None,
        table_sha256=digest,
        table_bytes=path.stat().st_size,
        ledger_seq=0,
        ledger_head="",
        released_at="",
        insecure_seed=False,
        software={},
        gate_key="",
        parts=parts,
    )
