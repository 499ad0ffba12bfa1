r"""Who takes part in the sums of a study, and how many of them must agree before one is unmasked.

Double masking (Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine
Learning", CCS) gives, for each site and round, two secrets in shares: b, of the self mask, and the
seed of the keys of the pair masks. A site answers *one* set of survivors a round: with its share
of b for each survivor, and of the other seed for each one that was lost. Bonawitz et al. let sites
sign the set to each other in one more exchange before they answer. Penstock saves that exchange;
what a coordinator gains that tells sites *different* sets is bounded by the threshold T alone.

**Theorem.** S sites, of which c collude with the coordinator, H = S - c, m = T - c; every honest
site answers one set, itself in it, of at least S - t. If (u + 1)·m > u·H for u = max(t, 1), then
all that the coalition can learn of a round is one sum, to which at least S - t - c honest sites
contributed.

*Never both secrets of a site.* That takes m honest shares of either kind, each honest site gives
one of the two, and u ≥ 1 gives 2m > H.

*Not more than t honest sites are lost.* Different answers may name different sites as lost, and
their shares of one seed still fit together. Each honest site gives at most t shares of seeds, and
a seed takes m: at most t·H / m < t + 1 seeds can be learnt. (2T > S + c is not enough: 12 sites,
t = 3, c = 1, T = 7 lets a coordinator learn five of them, and then a sum of six honest sites where
eight are promised.)

*Rosters.* A round's roster is part of every pair mask's key. So a sum that is learnt is over sites
that were shown one roster R: all honest ones of R but those whose seed is learnt. Say R lacks e
honest sites; then those who were shown it may call d = t - e lost at most, and others t. For the
seeds of ℓ > d honest sites of R, ℓ·m shares are needed, and there are at most (H - e - ℓ)·min(d, ℓ)
of those whose sum it is, ℓ·min(t, ℓ - 1) of the ℓ, who never call themselves lost, and e·min(t, ℓ)
of the rest. That is less, always: ``tests/laws/test_sum_rosters.py`` counts for every S up to 60.

T ≤ S - t can be met where S ≥ t·(t + 1) + c + 1: with c = 1 four sites for t = 1, eight for t = 2,
fourteen for t = 3, thirty-two for t = 5. For t ≤ 1 the rule is 2T > S + c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from penstock.base.checks import SITE, SITE_BOUND, Checks
from penstock.privacy.thresholds import count_sites, find_threshold
from penstock.study.study import Study
from penstock.wire.canonical import digest

MAX_SITES = 500
_KEY = re.compile(r"[0-9a-f]{64}")
_STUDY = re.compile(r"[0-9A-Za-z_.-]{1,128}")


@dataclass(frozen=True)
class Roster:
    """The sites of one study's sums, in the order that all agree on, with their gates' keys.

    Args:
        study: the signed study's id.
        sites: S names; keys: each one's Ed25519 gate key in hex, as stewards pinned it.
        dropouts: t, how many may be missing in a round.
        colluders: c, how many may tell the coordinator all they know; at least 1 where anything is
            claimed against another site.

    Raises:
        InvalidInput: a name or key that is none, one that occurs twice, or too few sites for these
            drop-outs and colluders.
    """

    study: str
    sites: tuple[str, ...]
    keys: tuple[str, ...]
    dropouts: int
    colluders: int

    def __post_init__(self) -> None:
        check = Checks("roster of a sum")
        check.pattern("study", self.study, _STUDY, "1 to 128 letters, digits, '_', '.' or '-'")
        check.sequence("sites", self.sites, 1, MAX_SITES)
        check.sequence("keys", self.keys, len(self.sites), len(self.sites))
        check.whole("dropouts", self.dropouts, 0, MAX_SITES)
        check.whole("colluders", self.colluders, 0, MAX_SITES)
        check.done()
        for name in self.sites:
            check.pattern("sites", name, SITE, SITE_BOUND)
        for key in self.keys:
            check.pattern("keys", key, _KEY, "an Ed25519 key: 64 hexadecimal digits")
        check.distinct("sites", self.sites)
        check.distinct("keys", self.keys)
        least = count_sites(self.dropouts, self.colluders)
        if len(self.sites) < least:
            most = -1
            while count_sites(most + 1, self.colluders) <= len(self.sites):
                most += 1
            check.add(
                "dropouts",
                "too few sites for these drop-outs and colluders",
                value=f"{len(self.sites)} sites, {self.dropouts} drop-outs, "
                f"{self.colluders} colluders",
                bound=f"at least {least} sites",
                remedy=f"Allow at most {most} drop-outs."
                if most >= 0
                else f"Ask at least {count_sites(0, self.colluders)} sites.",
            )
        check.done()

    @classmethod
    def of(cls, study: Study, study_id: str) -> Roster:
        """The roster that all gates and the coordinator of a signed study agree on."""
        scope = study.aggregation
        keys = dict(scope.keys)
        ordered = tuple(keys[site] for site in study.sites)
        return cls(study_id, study.sites, ordered, scope.dropouts, scope.colluders)

    @property
    def threshold(self) -> int:
        """T: how many shares give a secret back."""
        return find_threshold(len(self.sites), self.dropouts, self.colluders)

    @property
    def quorum(self) -> int:
        """S - t: the least number of sites in a round, and of its survivors."""
        return len(self.sites) - self.dropouts

    @property
    def honest(self) -> int:
        """S - t - c: so many sites' noise is in any sum that can be learnt, at the least."""
        return self.quorum - self.colluders

    @cached_property
    def digest(self) -> str:
        """What every message and every mask is bound to: the study, the sites, t and c."""
        return digest(
            {
                "study": self.study,
                "sites": self.sites,
                "keys": self.keys,
                "dropouts": self.dropouts,
                "colluders": self.colluders,
            }
        )

    def place(self, site: str) -> int:
        """From 1 on: also the point at which this site's shares are taken."""
        return self.sites.index(site) + 1

    def key(self, site: str) -> str:
        return self.keys[self.sites.index(site)]

    def sort(self, sites: set[str]) -> tuple[str, ...]:
        """Those of them that are in the roster, in its order."""
        return tuple(site for site in self.sites if site in sites)
