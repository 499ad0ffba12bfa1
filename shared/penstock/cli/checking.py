"""`penstock study check`: what is wrong with a study's file, what it costs, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from penstock.aggregation.exchanges import fits_wire
from penstock.analyst.consequences import (
    describe_cost,
    describe_halves,
    describe_returned,
    describe_together,
)
from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, Problem
from penstock.cli.advice import show_suggestions
from penstock.cli.console import done, emit_json, err, friendly, say
from penstock.cli.joins import Joins, compare_joins, count_persons, read_joins
from penstock.cli.study_reading import AsJson, NoEstimands, StudyFile, read_study
from penstock.mechanisms.joint.plan import JointPlan
from penstock.mechanisms.joint.promise import ALONE_TIMES, describe_joint
from penstock.mechanisms.memory import GB, Memory
from penstock.mechanisms.refusals import find_memory
from penstock.mechanisms.registry import MECHANISMS
from penstock.privacy.request import DELTA_TIMES_PERSONS, advised_delta
from penstock.schema import suggest_for
from penstock.study.charges import carry, plan_study
from penstock.study.halves import list_halves, walk_halves
from penstock.study.study import Study

USUAL_MEMORY_GB = 8.0
"""What a site lets a run have unless its steward says otherwise."""


@friendly
def check(
    path: StudyFile, no_estimands: NoEstimands = False, joins: Joins = None, as_json: AsJson = False
) -> None:
    """Check a study file: every problem at once, with its line.

    Of one release of all sites it also says how many rounds that takes, what
    its ε is against whom, and how much more noise it has than one place with all
    rows would need.
    """
    found, known = read_study(path, no_estimands), read_joins(joins or [])
    if problems := compare_joins(found, known.values()):
        raise InvalidInput(str(path), problems)
    persons = {**dict(found.aggregation.persons), **count_persons(known)}
    _warn_of_delta(found, persons)
    joint = None
    for half in list_halves(found):
        joint = _plan_for(half, persons) or joint
    if as_json:
        suggestions = [asdict(s) for s in suggest_for(found.schema)]
        halves = {h.aggregation.scope: h.privacy.epsilon for _, h in walk_halves(found)}
        said = {"halves": halves} if halves else {}
        emit_json(found.to_dict() | {"suggestions": suggestions} | _describe_plan(joint) | said)
        return
    show_suggestions(found.schema)
    done(f"{path}: {found.name}, {len(found.sites)} sites, quorum {found.quorum}")
    say(f"  {found.mechanism.name} {describe_cost(found)}")
    for line in describe_halves(found):
        say(f"  {line}")
    for line in describe_together(joint) if joint is not None else []:
        say(f"  {line}")
    own = list_halves(found)[0]
    if joint is not None and not own.aggregation.joint:
        for line in describe_returned(own):
            say(f"  of each site: {line}")
    for line in describe_returned(found, together=joint):
        say(f"  {line}")
    others = f", {', '.join(found.readers)}" if found.readers else ""
    say(f"  may be read by you{others} and the coordinator's admins")
    for e in found.estimands:
        say(f"  {e.name}: {e.question}")
    if found.estimands:
        say(f"  what each answer will be worth: `penstock study plan {path}`")


def _describe_plan(joint: JointPlan | None) -> Json:
    return {} if joint is None else {"joint": describe_joint(joint)}


def _warn_of_delta(study: Study, persons: Mapping[str, int]) -> None:
    """A δ that is no small chance any more among so many persons: sites refuse it by default."""
    delta = study.privacy.delta
    for site, n in persons.items():
        if delta * n > DELTA_TIMES_PERSONS * (1 + 1e-9):
            err.print(
                f"  ! δ = {delta:g} is above 1/(10 n) at {site}, of {n} persons; a site refuses it "
                f"by default: ask for at most {advised_delta(n):.2g}",
                markup=False,
            )


def _plan_for(study: Study, persons: Mapping[str, int]) -> JointPlan | None:
    """Plan it for sites whose sizes are known: what they would refuse, and how much memory it is.

    Where the accountants are not installed, which sites have, nothing is planned.

    Returns:
        The plan of one release of all sites, if it is one.

    Raises:
        Hopeless: its answer would be noise at a site.
        InvalidInput: its sums do not fit the wire.
    """
    used, joint = MECHANISMS.of(study.mechanism), None
    for site, n in persons.items():
        try:
            planned = plan_study(study, n)
            asked, carried = carry(study.asked, planned)
            used.require_worth(asked, carried)
            needed = find_memory(used, asked, carried, persons=n)
        except ModuleNotFoundError:
            return None
        if isinstance(planned, JointPlan):
            joint = planned
        _warn_of_memory(needed, site, n)
    if joint is not None:
        _require_fit(joint)
        _warn_of_rules(study, joint)
    return joint


def _warn_of_memory(needed: Memory, site: str, persons: int) -> None:
    if needed.total > USUAL_MEMORY_GB * GB:
        err.print(
            f"  ! needs up to {needed.gigabytes:.2g} GB of memory at {site}, of {persons} persons; "
            f"a site lets a run have {USUAL_MEMORY_GB:g} by default",
            markup=False,
        )


def _require_fit(joint: JointPlan) -> None:
    if not fits_wire(joint.rounds, joint.largest):
        problem = Problem(
            "aggregation",
            "its sums are too many or too large for the wire",
            value=f"{joint.rounds} rounds of {joint.largest} numbers at most",
            remedy="Ask for fewer estimands or columns, or for scope = 'site'",
        )
        raise InvalidInput("study", [problem])


def _warn_of_rules(study: Study, joint: JointPlan) -> None:
    """What sites refuse by default, and a quorum that leaves no room for drop-outs."""
    asked, alone = study.privacy.epsilon, joint.epsilon_alone
    if alone > ALONE_TIMES * asked:
        err.print(
            f"  ! ε = {alone:.3g} if all other sites collude is more than {ALONE_TIMES:g} times "
            f"what is asked; by default a site refuses more than {ALONE_TIMES:g} times what it "
            'lets a study cost: ask fewer sites, or for noise = "local"',
            markup=False,
        )
    most = len(study.sites) - study.aggregation.dropouts
    if study.quorum > most:
        err.print(
            f"  ! quorum = {study.quorum} asks for more than the {most} sites that are left where "
            f"{study.aggregation.dropouts} drop out",
            markup=False,
        )
