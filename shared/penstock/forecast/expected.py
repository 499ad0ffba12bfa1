r"""What a study's answers will be worth: its mechanism, run on cohorts of nobody.

For a site of public n, a cohort is drawn from the planning values
(:mod:`penstock.forecast.recipe`), the mechanism's whole private procedure is carried out on it, in
memory and with public randomness, and each estimand is estimated on the cohort, :math:`\hat θ_b`
with variance :math:`u_b`, and on the copies that would be released, :math:`\bar q_b`. Over B such
runs

.. math:: s^2 = \frac1B \sum_b u_b, \qquad
          p^2 = \frac1B \sum_b (\bar q_b - \hat θ_b)^2, \qquad t^2 = s^2 + p^2

are the standard errors from sampling and from privacy, and the total. p holds all that stands
between the rows and the answer: noise, what clipping and the model lose, and the drawing of m
copies, about s²/m. p is known from B runs up to a share of about 1/√(2B).

*Pooled* over sites, with weights 1/t²: what a fixed-effect analysis has where sites do not differ.

Of an answer, which has no copies, :math:`\bar q_b` is the answer itself, and nothing is drawn.

*What would do.* The noise's part, p² − s²/m, falls as 1/(n ε), the sampling error as 1/√n. Where
the noise is k times the sampling error, about k times the ε, or k² times the persons, make them
equal.

*One release of all sites* is forecast as what it is: cohorts of all frames in one place, each row
with its site, regressions within sites, and noise as all sites together add it. Sites differ in the
cohorts by nothing but chance: planning values say the same of all of them.

Nothing here sees rows, a ledger or a budget: a study and public n go in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr

from penstock.base.checks import Checks
from penstock.base.documents import Json
from penstock.base.errors import InvalidInput
from penstock.forecast import RUNS
from penstock.forecast.trials import Seen, Trials
from penstock.mechanisms.joint.consortium import Consortium
from penstock.mechanisms.joint.plan import JointPlan, plan_jointly
from penstock.mechanisms.joint.promise import describe_joint
from penstock.mechanisms.parts import Progress
from penstock.mechanisms.protocol import AnyMechanism
from penstock.mechanisms.registry import MECHANISMS, Registry
from penstock.mechanisms.released import Kind
from penstock.privacy.noise.sources import SeededNoise
from penstock.questions.effects import Effect
from penstock.questions.estimands import Estimand
from penstock.questions.grammar import read_where
from penstock.study.charges import carry, plan_release
from penstock.study.study import Study

TOGETHER = "all sites"
"""What one release of all sites is called among sites; no site has this name."""

FEWEST, MOST = 4, 1000
"""Runs at each site's size."""

NORMAL = 1.959964
"""Of a 95 % interval."""

_TELLING = 3.0
"""A mean is told from 0 by so many of its standard errors; B √(mean square) holds the mean, too, so
that one which is most of it is told from about ten runs on."""

MAX_PERSONS = 1_000_000_000

_SEED = 1
"""Public: the same study and sizes have the same forecast, wherever it is made."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected of an estimand: standard errors on the scale of coefficients.

    Args:
        sampling: s, of the rows themselves; privacy: p; NaN where fewer than half of the runs had
            an estimate.
        noise: what is left of p without the drawing of copies.
        bias: mean of the released estimates less the rows' own; known up to p/√B.
        failed: in how many of the runs there was no estimate.
    """

    sampling: float
    privacy: float
    noise: float
    bias: float
    failed: int

    @property
    def estimated(self) -> bool:
        """Whether at least half of the runs had an estimate."""
        return not math.isnan(self.total)

    @property
    def total(self) -> float:
        return math.hypot(self.sampling, self.privacy)

    @property
    def wider(self) -> float:
        """How many times as wide an interval is as one without privacy."""
        return self.total / self.sampling

    @property
    def times(self) -> float:
        """k, the noise in units of the sampling error."""
        return self.noise / self.sampling

    @property
    def had(self) -> bool:
        """Whether the noise is no larger than the sampling error."""
        return self.times <= 1

    def bias_found(self, runs: int) -> bool:
        """Whether released estimates are off on one side, by what so many runs can tell, and by
        more than a third of the sampling error."""
        return abs(self.bias) > max(_TELLING * self.privacy / math.sqrt(runs), self.sampling / 3)

    def power(self, effect: float) -> float:
        """The chance that a 95 % interval does not hold 0, where this is the effect."""
        ratio = abs(effect) / self.total
        return float(ndtr(ratio - NORMAL) + ndtr(-ratio - NORMAL))


@dataclass(frozen=True, slots=True)
class AtSize:
    """A site's size, and what is expected of each estimand there, by name."""

    persons: int
    expected: Mapping[str, Expected]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is expected of a study.

    Args:
        runs: B; sites: by name.
        pooled: of each estimand, over the sites at which it can be estimated; missing where there
            is none.
        unneeded: columns that no estimand names; without: what is expected without them, at a site
            of the middle size, where that was looked at.
        untold: estimands of persons over time, of which no forecast is made: planning values say
            nothing of what a person's rows have in common.
        joint: of one release of all sites, its plan; ``sites`` has all of them as one then.
    """

    study: Study
    runs: int
    sites: Mapping[str, AtSize]
    pooled: Mapping[str, Expected]
    unneeded: tuple[str, ...] = ()
    without: AtSize | None = None
    untold: tuple[str, ...] = ()
    joint: JointPlan | None = None

    @property
    def precision(self) -> float:
        """The share by which a standard error from privacy may be off, from so few runs."""
        return 1 / math.sqrt(2 * self.runs)

    def to_dict(self) -> Json:
        """For scripts; None where nothing can be said."""
        return {
            "study": self.study.name,
            "mechanism": self.study.mechanism.name,
            "epsilon": self.study.to_dict()["privacy"]["epsilon"],  # None for ∞
            "runs": self.runs,
            "precision": self.precision,
            "estimands": {
                e.name: {
                    "effect": self.study.planning.effect(e.name),
                    "sites": {
                        site: self._describe(e, at.expected[e.name], at.persons)
                        for site, at in self.sites.items()
                    },
                    "pooled": self._describe(e, self.pooled.get(e.name), None),
                }
                for e in self.study.estimands
            },
            "unneeded": self._describe_unneeded(),
            "not_forecast": list(self.untold),
            **({} if self.joint is None else {"joint": describe_joint(self.joint)}),
        }

    def _describe(self, asked: Estimand, found: Expected | None, persons: int | None) -> Json:
        shown: Json = {} if persons is None else {"persons": persons, "failed": 0}
        if found is None or not found.estimated:
            return shown | {"failed": found.failed if found else None, "sampling": None}
        effect = self.study.planning.effect(asked.name)
        shown |= {
            "sampling": found.sampling,
            "privacy": found.privacy,
            "bias": found.bias,
            "total": found.total,
            "wider": found.wider,
            "power": found.power(effect) if effect else None,
        }
        if persons is not None:
            needed = suggest(found, self.study.privacy.epsilon, persons)
            shown |= {"failed": found.failed, "would_do": needed}
        return shown

    def _describe_unneeded(self) -> Json | None:
        if self.without is None:
            return None
        return {
            "columns": list(self.unneeded),
            "persons": self.without.persons,
            "privacy": {
                name: None if math.isnan(e.privacy) else e.privacy
                for name, e in self.without.expected.items()
            },
        }


def forecast(
    study: Study,
    persons: Mapping[str, int],
    *,
    runs: int = RUNS,
    progress: Progress | None = None,
    mechanisms: Registry = MECHANISMS,
) -> Forecast:
    """What a study's answers will be worth at sites of these sizes.

    Args:
        persons: the public n of each site, by name; of one release of all sites, where another
            one than the study says is to be thought of.
        runs: B, at each size.
        progress: told how many runs are done, of all.

    Raises:
        InvalidInput: no estimand, no site, a number of runs out of range, or a mechanism that
            releases no tables.
        BudgetExceeded: no amount of noise meets ε at a site.
        Hopeless: the mechanism refuses it, as sites would.
    """
    persons = {**dict(study.aggregation.persons), **persons}
    _check(study, persons, runs, mechanisms)
    mechanism = mechanisms.of(study.mechanism)
    group = study.consortium
    if group is not None:
        group = replace(group, persons=tuple(persons[site] for site in group.sites))
        sizes = [group.persons]
    else:
        sizes = [(n,) for n in sorted(set(persons.values()))]
    unneeded = list_unneeded(study, mechanism.list_effects(study.asked))
    untold = tuple(e.name for e in study.estimands if e.over_time)
    study = replace(study, estimands=tuple(e for e in study.estimands if not e.over_time))
    # What a site repeats of its own accord costs no budget, and changes no copy.
    brief = replace(study, mechanism=mechanism.without_repeats(study.mechanism))
    done = 0

    def made_one() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(min(done, total), total)

    total = runs * len(sizes)
    found = [_expect(brief, each, runs, made_one, mechanism, group) for each in sizes]
    if group is not None:
        sites = {TOGETHER: found[0]}
    else:
        sites = {site: at for site, n in persons.items() for at in found if at.persons == n}
    pooled = {e.name: p for e in study.estimands if (p := pool(sites.values(), e.name))}
    joint = None if group is None else plan_jointly(mechanism, study.asked, group)
    made = Forecast(study, runs, sites, pooled, unneeded, untold=untold, joint=joint)
    lacking = [e for at in found for e in at.expected.values() if not e.times <= 1]
    fewer = _without(brief, unneeded) if lacking and unneeded else None
    if fewer is None:
        return made
    total += runs
    middle = sizes[len(sizes) // 2]
    return replace(made, without=_expect(fewer, middle, runs, made_one, mechanism, group))


def suggest(found: Expected, epsilon: float, persons: int) -> Json | None:
    """About which ε, or how many persons, would bring the noise down to the sampling error.

    None where it is no larger; of ε = ∞ there is no larger one.
    """
    if found.had:
        return None
    return {
        "epsilon": None if math.isinf(epsilon) else _up(epsilon * found.times),
        "persons": round(_up(persons * found.times**2)),
    }


def pool(sites: Iterable[AtSize], name: str) -> Expected | None:
    """An estimand over sites, by inverse variance; None where no site has an estimate."""
    found = [at.expected[name] for at in sites if at.expected[name].estimated]
    if not found:
        return None
    weights = np.array([1 / e.total**2 for e in found])
    weights /= weights.sum()

    def joint(parts: Sequence[float]) -> float:
        return math.sqrt(float((weights**2) @ np.square(parts)))

    return Expected(
        # Without privacy sites are weighted by their sampling errors alone.
        sampling=1 / math.sqrt(sum(1 / e.sampling**2 for e in found)),
        privacy=math.sqrt(
            max(
                joint([e.total for e in found]) ** 2 - 1 / sum(1 / e.sampling**2 for e in found),
                0.0,
            )
        ),
        noise=joint([e.noise for e in found]),
        bias=float(weights @ np.array([e.bias for e in found])),
        failed=0,
    )


def list_unneeded(study: Study, effects: Sequence[Effect] = ()) -> tuple[str, ...]:
    """Columns that no estimand names, no duration that one names, and none of these effects."""
    needed: set[str | None] = set()
    for estimand in study.estimands:
        needed |= {*estimand.columns}
    for effect in effects:
        compared = {comparison.column for comparison in read_where(effect.where)}
        needed |= {effect.outcome, *effect.columns, *compared}
    needed |= {c.name for c in study.schema.columns if c.event in needed and c.event is not None}
    needed |= {c.event for c in study.schema.columns if c.name in needed}
    return tuple(name for name in study.schema.names if name not in needed)


def _check(study: Study, persons: Mapping[str, int], runs: int, mechanisms: Registry) -> None:
    check = Checks("forecast")
    check.whole("runs", runs, FEWEST, MOST)
    if not study.estimands:
        check.add("estimands", "there is none: nothing can be expected", remedy="Add [[estimands]]")
    elif all(e.over_time for e in study.estimands):
        text = "are all of persons over time, of which no forecast is made"
        check.add("estimands", text, remedy="Ask of a regression, or of a mean, too")
    if not persons:
        check.add("persons", "no site's size is known", remedy="Give a join.json, or a number")
    for site, n in persons.items():
        check.whole(f"persons.{site}", n, 1, MAX_PERSONS)
        if site not in study.sites:
            bound = f"one of {', '.join(study.sites)}"[:200]
            check.add(f"persons.{site}", "is not a site of the study", bound=bound)
    check.done()
    shape = mechanisms.of(study.mechanism).shape(study.asked, max(persons.values()))
    if not shape.of_kind(Kind.COPY) and not mechanisms.of(study.mechanism).tells_estimates:
        text = f"a release of {study.mechanism.name} has no tables, on which an estimate is made"
        remedy = "`penstock study check --join` plans its answer in closed form"
        check.add("mechanism", text, remedy=remedy)
    check.done()


def _without(study: Study, names: Sequence[str]) -> Study | None:
    """The study without these columns; None where its mechanism needs one of them."""
    kept = tuple(c for c in study.schema.columns if c.name not in names)
    try:
        schema = replace(study.schema, columns=kept)
        return replace(study, schema=schema, planning=study.planning.without(names))
    except InvalidInput:
        return None


def _expect(
    study: Study,
    sizes: Sequence[int],
    runs: int,
    done: Callable[[], None],
    mechanism: AnyMechanism,
    consortium: Consortium | None = None,
) -> AtSize:
    """All estimands at a site of this size, or of all sites of these sizes, from so many runs."""
    planned = plan_release(mechanism, study.asked, sum(sizes), consortium)
    asked, plan = carry(study.asked, planned)
    mechanism.require_worth(asked, plan)
    made = Trials(study, mechanism, asked, plan, tuple(sizes))
    noise = SeededNoise(_SEED)
    seen: list[dict[str, Seen]] = []
    for _ in range(runs):
        seen.append(made.run(noise.child()))
        done()
    names = [e.name for e in study.estimands]
    # Nobody draws the rows of an answer.
    share = mechanism.share_rows(asked, sum(sizes))
    drawn = math.inf if mechanism.tells_estimates else plan.copies * share
    return AtSize(sum(sizes), {n: _summarise([each[n] for each in seen], drawn) for n in names})


def _summarise(seen: Sequence[Seen], copies: float) -> Expected:
    good = [each for each in seen if not math.isnan(each.off)]
    failed = len(seen) - len(good)
    if 2 * failed > len(seen):
        return Expected(math.nan, math.nan, math.nan, math.nan, failed)
    sampling = math.sqrt(float(np.mean([each.variance for each in good])))
    off = np.array([each.off for each in good])
    squared = float(np.mean(off**2))
    noise = math.sqrt(max(squared - sampling**2 / copies, 0.0))
    return Expected(sampling, math.sqrt(squared), noise, float(off.mean()), failed)


def _up(value: float) -> float:
    """To two digits, never below."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.2g}")
