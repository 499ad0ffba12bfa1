"""What a coalition sees of a person in a sum of many sites, through the real masks.

The t sites that may drop out do, after they masked their vectors, and the c that may collude tell
the coordinator what they added: so as little noise is unknown as a charge allows for. Every number
of the vectors is a run of its own: one sum of one number, with noise of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tests.support.summing import Summing, make_terms

from penstock.audit.bounds import Bound, Test, two_world_gaussian
from penstock.mechanisms.joint.consortium import LOCAL, SHARED, Consortium
from penstock.mechanisms.joint.plan import move_at_sites
from penstock.mechanisms.joint.rounds import Contribution, _Rounds, _Unanswered
from penstock.privacy.accounting.accountant import epsilon, epsilon_pld
from penstock.privacy.events import Event
from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.sources import NoiseSource, SeededNoise

SIGMA = 0.45
"""By which a charge is about ε = 12 at δ = 1e-5: the better an audit sees, the more there is."""
DELTA = 1e-5
_UNIT = 2.0**-24
_BITS = 96

Fault = Callable[[int, Fraction], Fraction]
"""By a site's place and the variance of its noise: the variance that it draws."""


def keep(place: int, variance: Fraction) -> Fraction:
    return variance


@dataclass(frozen=True, slots=True)
class Setting:
    """One sum.

    Args:
        sites, dropouts, colluders: S, t, c; noise: "shared" or "local", of which everybody but the
            person's site colludes.
        at: at how many sites the person has rows.
    """

    sites: int
    dropouts: int
    colluders: int
    noise: str = SHARED
    at: int = 1

    @property
    def group(self) -> Consortium:
        names = tuple(f"s{place:02}" for place in range(1, self.sites + 1))
        return Consortium(names, (1,) * self.sites, self.dropouts, self.colluders, self.noise)

    @property
    def carried(self) -> WholeSum:
        """The sum with the noise of all sites."""
        return _ask(1).with_noise(self.group.swell)

    def charge(self, at: int | None = None) -> tuple[Event, ...]:
        """What whoever is at so many sites is told to lose."""
        events = self.group.charge([_ask(1).event], [self.carried.event])
        return move_at_sites(events, self.at if at is None else at, self.group)


SETTINGS = [
    Setting(2, 0, 0),
    Setting(3, 0, 2),
    Setting(4, 1, 1),
    Setting(8, 2, 1),
    Setting(4, 1, 0, LOCAL),
    Setting(4, 1, 1, at=2),
]
"""As many sites gone, and as many colluding, as each charge allows for."""


def _ask(size: int) -> WholeSum:
    return WholeSum("persons", SIGMA, 1.0, Fraction(1), _UNIT, size)


def look(
    setting: Setting,
    folder: Path,
    runs: int,
    person: bool,
    noise: NoiseSource,
    fault: Fault = keep,
) -> NDArray[np.float64]:
    """One score a run: the sum less all that the coalition knows, in the person's own units."""
    group, names = setting.group, setting.group.sites
    folder.mkdir()
    # Local noise rests on nobody: all but the person's site collude, and masks allow for none.
    world = Summing(folder, setting.sites, setting.dropouts, setting.colluders)
    colluders = setting.colluders if group.noise == SHARED else setting.sites - 1
    world.meet()
    terms, vectors = make_terms(size=runs, bits=_BITS), dict[str, list[int]]()
    width = _find_part(setting, 1, True).addends[0].whole[0]
    honest = names[0:1] if group.noise == LOCAL else names[colluders:]
    there = honest[: setting.at]
    for place, name in enumerate(names):
        own = _find_part(setting, runs, person and name in there)
        addends = tuple(replace(each, variance=fault(place, each.variance)) for each in own.addends)
        vectors[name] = replace(own, addends=addends).add_noise(setting.sites, noise)
    late = names[setting.sites - setting.dropouts :]
    collector = world.gather(terms)
    world.mask(collector, terms, vectors, absent=late)
    collector.ask_survivors()
    world.reveal(collector, terms.round)
    known = [n for n in collector.survivors if n not in there][:colluders]
    assert len(collector.survivors) - len(known) >= group.honest
    left = np.array(collector.find_sum(), dtype=object)
    for name in known:
        left = left - np.array(vectors[name], dtype=object)
    return (left / width).astype(np.float64)


def _find_part(setting: Setting, runs: int, person: bool) -> Contribution:
    """What a site adds, without noise."""
    rows = np.full(runs, int(person) * round(1 / _UNIT), dtype=np.int64)
    carried = _ask(runs).with_noise(setting.group.swell)
    try:
        carried(rows, _Rounds([], SeededNoise(1)))
    except _Unanswered as question:
        return question.contribution
    raise AssertionError("no sum of sites")


@dataclass(frozen=True, slots=True)
class Found:
    """
    Attributes:
        claim: ε that is charged; pld: the same, nearly tight; shown: what is refuted at least.
    """

    claim: float
    pld: float
    shown: Bound


def audit_setting(
    setting: Setting,
    folder: Path,
    runs: int,
    noise: NoiseSource,
    confidence: float,
    *,
    fault: Fault = keep,
    charged_at: int | None = None,
) -> Found:
    """An attack on one charge: who is likelier to be there than not, half-way between the worlds.

    The test is fixed beforehand, so that all runs count. A sum of h discrete Gaussians of more than
    1024 widths each is a Gaussian but for exp(-10^7), so that the bound is of Gaussian DP.

    Args:
        charged_at: at how many sites the charge takes the person to be.
    """
    events = setting.charge(charged_at)
    worlds = [
        look(setting, folder / str(there), runs, there, noise, fault) for there in (False, True)
    ]
    test = Test(setting.at / 2, above=True)
    shown = two_world_gaussian(*worlds, DELTA, confidence, test=test)
    return Found(epsilon(events, DELTA), epsilon_pld(events, DELTA), shown)
