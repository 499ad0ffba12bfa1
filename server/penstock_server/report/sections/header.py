"""The study as it was signed, and what became of it."""

from __future__ import annotations

from penstock.base.documents import Json
from penstock_server.report.inputs import ReportInputs
from penstock_server.report.section import Section, write_epsilon


def _write(inputs: ReportInputs, report: Json) -> Json:
    study = inputs.study
    return {
        "study": {
            "id": inputs.study_id,
            "name": study.name,
            "title": study.title,
            "federation": study.federation,
            "state": inputs.state,
            "created": inputs.created,
            "finished": inputs.finished,
            "wire": study.wire,
            "release": study.release,
            "quorum": study.quorum,
            "sites_invited": len(inputs.sites),
            "sites_delivered": len(inputs.delivered),
            "max_sites_per_person": study.max_sites_per_person,
            "requested": {
                "epsilon": write_epsilon(study.privacy.epsilon),
                "delta": study.privacy.delta,
                "guarantee": study.privacy.guarantee,
            },
            "mechanism": study.to_dict()["mechanism"],
        }
    }


SECTION = Section("header", _write)
