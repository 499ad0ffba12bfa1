"""What a study's results are made of, for the process that makes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.study.study import Study
from penstock.wire.messages import SiteState
from penstock.wire.signed import SignedStudy, read_signed_study
from penstock_server.store.register import SiteRow, StudyRow
from penstock_server.store.round_sums import RoundSum
from penstock_server.studies.coordinator import Coordinator


@dataclass(frozen=True, slots=True)
class Material:
    """All that a study's results are made of: what the store knows of it, and where tables lie.

    Attributes:
        created, finished: when it was taken, and when the last answer was in.
        parts: each site's, by name.
        keys: the gate key of each site, in hex.
        uploads: the folder of the sites' tables.
        truth: a simulation's, by estimand; None outside one.
        sums: of one release of all sites, round by round; none where each site made its own.
        findings: the folder of what was found of sites' releases before; None: nothing is kept.
    """

    study_id: str
    signed: SignedStudy
    created: str
    finished: str
    parts: tuple[SiteRow, ...]
    keys: Mapping[str, str]
    uploads: Path
    truth: Mapping[str, float] | None = None
    sums: tuple[RoundSum, ...] = ()
    findings: Path | None = None

    @property
    def study(self) -> Study:
        return self.signed.study

    def to_bytes(self) -> bytes:
        """For a process of its own."""
        values = {
            "study_id": self.study_id,
            "signed": self.signed.data.hex(),
            "created": self.created,
            "finished": self.finished,
            "parts": [
                {**asdict(p), "manifest": None if p.manifest is None else p.manifest.hex()}
                for p in self.parts
            ],
            "keys": dict(self.keys),
            "uploads": str(self.uploads),
            "findings": None if self.findings is None else str(self.findings),
            "truth": self.truth,
            "sums": [
                {"survivors": list(each.survivors), "data": each.data.hex()} for each in self.sums
            ],
        }
        return json.dumps(values).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Material:
        values = json.loads(data)
        parts = tuple(
            SiteRow(
                **p
                | {
                    "state": SiteState(p["state"]),
                    "manifest": None if p["manifest"] is None else bytes.fromhex(p["manifest"]),
                }
            )
            for p in values["parts"]
        )
        signed = read_signed_study(bytes.fromhex(values["signed"]))
        sums = tuple(
            RoundSum(tuple(each["survivors"]), bytes.fromhex(each["data"]))
            for each in values["sums"]
        )
        read = {"parts": parts, "signed": signed, "uploads": Path(values["uploads"]), "sums": sums}
        read["findings"] = None if values["findings"] is None else Path(values["findings"])
        return cls(**values | read)


def gather(coordinator: Coordinator, row: StudyRow, finished: str) -> Material:
    """What a study's results are made of, as the store has it now."""
    parts = coordinator.store.studies.parts(row.id)
    sites = coordinator.store.sites.all()
    return Material(
        study_id=row.id,
        signed=row.signed,
        created=row.created,
        finished=finished,
        parts=tuple(parts),
        keys={part.site: sites[part.site].gate_key for part in parts},
        uploads=coordinator.folder.uploads(row.id),
        truth=coordinator.store.values.get("truth"),
        sums=tuple(coordinator.store.summing.sums(row.id)),
        findings=coordinator.folder.findings(row.id),
    )
