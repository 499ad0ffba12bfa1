"""How the sites made their releases, in plain words."""

from __future__ import annotations

from penstock.base.documents import Json
from penstock.base.text import count_text
from penstock_server.mechanisms.registry import kind_of
from penstock_server.report.inputs import JointRelease, ReportInputs
from penstock_server.report.section import Section


def _write(inputs: ReportInputs, report: Json) -> Json:
    how = kind_of(inputs.study).explain()
    return {"mechanism": how if inputs.joint is None else [_tell_sums(inputs.joint), *how]}


def _tell_sums(joint: JointRelease) -> str:
    """How many sites make one release."""
    group, rounds = joint.plan.consortium, joint.plan.rounds
    return (
        f"{len(group.sites)} sites made one release together, whose rows nobody has in one place. "
        f"In {count_text(rounds, 'round')} each site added what its own rows say, with its share "
        "of the noise, to a sum of all sites, under masks that cancel only in the sum; what was "
        "asked next followed from the sums before. Nobody saw a site's own part. All the rest was "
        "made from the sums."
    )


SECTION = Section("mechanism", _write, absent={"mechanism": []})
