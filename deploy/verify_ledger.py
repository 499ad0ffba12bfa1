#!/usr/bin/env python3
"""Check a Penstock privacy ledger without Penstock.

For an auditor who trusts neither the site's software nor whoever sent the file. Needs one file,
which `penstock site ledger export` writes, and `pip install dp-accounting` (which brings numpy and
scipy). No part of Penstock and no cryptography package is imported.

    python verify_ledger.py ledger.json --gate-key SHA256:... --holds HASH

What is checked, in this order:

1. every record's hash, place and text, and the gate's Ed25519 signature on it;
2. that records make sense together: a charge is reserved once, then committed or burnt at most
   once (a burnt one stays charged), for a data set that exists;
3. that no charge, when it was reserved, took its data set above its total: Rényi divergences add
   up, at orders that were fixed when the data set's life began (Feldman & Zrnic 2021). Data sets
   that were not declared disjoint may hold the same persons: theirs add up together;
4. where the file holds them (`export --decisions`), the site's decisions: a second chain, signed by
   the same key, that must hold the head which each charge names of it.

Some things cannot be seen in the file, and only you can compare them: that the key is the gate's
own (--gate-key, as its steward reads it out), that no record was cut off at the end (--holds,
the `ledger_head` of any release or manifest that you know; repeat it), that nobody is in two data
sets which the steward declared disjoint, and that `sudo`'s word for who decided was true.

Relation: one person's data replaced by a null record; the number of persons is public.
Exit status: 0 all is well, 1 something is wrong, 2 this script was called wrongly.
"""

from __future__ import annotations

import argparse
import base64
import copy
import hashlib
import json
import math
import re
import sys
from collections import Counter
from decimal import Decimal, localcontext
from functools import cache
from pathlib import Path

FORMAT, RELATION, GENESIS = "penstock-ledger-1", "zero-out, public n", "0" * 64
RECORDS = (
    2  # the newest format of records; each rises by a record of its own, and none is rewritten
)
SLACK = 1e-6  # relative: what two correct programs may differ by


class Wrong(Exception):
    """What fails, and in which record."""


# -- Ed25519, RFC 8032, section 5.1 ------------------------------------------------------------

P = 2**255 - 19
Q = 2**252 + 27742317777372353535851937790883648493  # the base point's order
D = -121665 * pow(121666, P - 2, P) % P
ROOT = pow(2, (P - 1) // 4, P)  # of -1


def add(a, b):
    """The sum of two points (X, Y, Z, T), x = X/Z, y = Y/Z, xy = T/Z."""
    e, f = (a[1] - a[0]) * (b[1] - b[0]) % P, (a[1] + a[0]) * (b[1] + b[0]) % P
    g, h = 2 * a[3] * b[3] * D % P, 2 * a[2] * b[2] % P
    e, f, g, h = f - e, h - g, h + g, f + e
    return e * f % P, g * h % P, f * g % P, e * h % P


def times(scalar, point):
    total = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            total = add(total, point)
        point, scalar = add(point, point), scalar >> 1
    return total


def decode(text):
    """The point that 32 bytes stand for.

    Raises:
        ValueError: none.
    """
    y = int.from_bytes(text, "little")
    sign, y = y >> 255, y & (2**255 - 1)
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if x * x % P == square else x * ROOT % P
    if len(text) != 32 or y >= P or x * x % P != square or (x == 0 and sign):
        raise ValueError("not a point")
    x = x if x % 2 == sign else P - x
    return x, y, 1, x * y % P


def encode(point):
    inverse = pow(point[2], P - 2, P)
    x, y = point[0] * inverse % P, point[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


BASE = decode((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))


def signed(public, message, signature):
    """Whether ``signature`` is that of ``message`` by ``public``; all three are bytes."""
    if len(public) != 32 or len(signature) != 64:
        return False
    s = int.from_bytes(signature[32:], "little")
    try:
        x, y, z, t = decode(public)
    except ValueError:
        return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), "little")
    # R = sB - kA, compared as bytes: only the canonical form of R passes.
    return s < Q and encode(add(times(s, BASE), times(k % Q, (-x, y, z, -t)))) == signature[:32]


# -- what an event costs -----------------------------------------------------------------------


def number(value):
    """A finite float above 0; dp-accounting itself takes NaN for an ε of 0."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (good and 0 < value < 1e300):
        raise Wrong(f"{value!r} is not a finite number above 0")
    return float(value)


def share(value):
    if not number(value) < 1:
        raise Wrong(f"{value!r} is not between 0 and 1")
    return float(value)


def whole(value, least=1):
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 10**10:
        raise Wrong(f"{value!r} is not a whole number from {least}")
    return value


def text(value):
    if not isinstance(value, str):
        raise Wrong(f"{value!r} is not a text")
    return value


MORE = {"count": whole, "label": text}
NOISE = {"noise_multiplier": number, "sensitivity": number, **MORE}
FIELDS = {
    "gaussian": NOISE,
    "discrete-gaussian": {**NOISE, "grid_sd": number, "size": whole},
    "poisson-gaussian": {**NOISE, "rate": share},
    "fixed-size-gaussian": {**NOISE, "batch": whole, "population": whole},
    "laplace": {"scale": number, "sensitivity": number, **MORE},
    "noisy-descent": {**NOISE, "contraction": number, "steps": whole},
    "shuffled-gaussian": {**NOISE, "persons": whole, "local_delta": share, "delta": share},
    "distributed-gaussian": {
        **NOISE,
        "sites": whole,
        "colluders": lambda value: whole(value, 0),
        "dropouts": lambda value: whole(value, 0),
        "grid_sd": number,
        "size": whole,
    },
    "pure": {"epsilon": number, **MORE},
    "approximate": {"epsilon": number, "delta": share, **MORE},
    "unbounded": {"label": text},
    "on-stratum": {"stratum": text, "event": lambda value: value},
}


def read_event(record):
    """(stratum or None, event). What is not known in every part is refused."""
    kind = record.get("kind") if isinstance(record, dict) else None
    if kind not in FIELDS or set(record) != {"kind", *FIELDS[kind]}:
        raise Wrong(f"an event of kind {kind!r} that cannot be recomputed")
    event = {"kind": kind} | {k: check(record[k]) for k, check in FIELDS[kind].items()}
    if kind == "on-stratum":
        inner = event["event"]
        if not event["stratum"] or (isinstance(inner, dict) and inner.get("kind") == kind):
            raise Wrong("a stratum holds one plain event")
        return event["stratum"], read_event(inner)[1]
    if kind == "noisy-descent" and not event["contraction"] <= 1:
        raise Wrong("steps that do not contract")
    if kind == "fixed-size-gaussian" and not event["batch"] < event["population"]:
        raise Wrong("a batch that is not smaller than its population")
    alone = kind == "distributed-gaussian"
    if alone and not event["sites"] - event["dropouts"] - event["colluders"] >= 1:
        raise Wrong("no site is left that adds noise")
    if alone and event["grid_sd"] < 1024:
        raise Wrong("a distributed sum on a coarse grid")
    return None, event


def descent_mu(event):
    """μ of the last iterate of noisy descent (Bok, Su & Altschuler 2024, Theorem 4.1)."""
    c, steps = event["contraction"], event["steps"]
    if c == 1:
        return math.sqrt(steps) / event["noise_multiplier"]
    power = c**steps
    return math.sqrt((1 - power) / (1 + power) * (1 + c) / (1 - c)) / event["noise_multiplier"]


def renyi(event, order):
    """Rényi divergence of an event at one order, in nats; its releases add up."""
    return event.get("count", 1) * renyi_once(tuple(event.items()), order)


@cache
def renyi_once(key, order):
    event = dict(key)
    kind, sigma = event["kind"], event.get("noise_multiplier")
    if kind == "unbounded":
        return math.inf
    if kind in ("gaussian", "discrete-gaussian", "distributed-gaussian"):
        return order / 2 / sigma / sigma
    if kind == "noisy-descent":
        return order / 2 * descent_mu(event) ** 2
    if kind == "laplace":
        return laplace(event["scale"], order)
    if kind in ("pure", "approximate"):
        return response(event["epsilon"], order)
    if kind == "shuffled-gaussian":
        return response(shuffled_epsilon(event), order)
    # (α-1)·ρ is convex in α, and 0 at α = 1: a straight line between whole orders is above it.
    low, moment = math.floor(order), poisson if kind == "poisson-gaussian" else fixed_size
    at = [0.0 if whole == 1 else moment(event, whole) for whole in (low, low + 1)]
    between = (at[0] + (order - low) * (at[1] - at[0])) / (order - 1)
    return min(between, order / 2 / sigma / sigma)  # a sample never costs more than all


def laplace(scale, order):
    """Mironov 2017, Proposition 6."""
    parts = (
        math.log(order / (2 * order - 1)) + (order - 1) / scale,
        math.log((order - 1) / (2 * order - 1)) - order / scale,
    )
    top = max(parts)
    return (top + math.log(sum(math.exp(p - top) for p in parts))) / (order - 1)


def response(epsilon, order):
    """Of randomized response, which dominates all that is ε-DP (Bun & Steinke 2016, Prop. 3.3)."""
    rest = math.log1p(math.exp((1 - 2 * order) * epsilon)) - math.log1p(math.exp(-epsilon))
    return max(epsilon + rest / (order - 1), 0.0)


def poisson(event, order):
    """(α-1)·ρ of a Gaussian on a Poisson sample, by dp-accounting, at a whole order."""
    import dp_accounting as dpa
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant([order], dpa.NeighboringRelation.REPLACE_SPECIAL)
    once = dpa.GaussianDpEvent(event["noise_multiplier"])
    accountant.compose(dpa.PoissonSampledDpEvent(event["rate"], once))
    return (order - 1) * float(accountant.rdp[0])


def fixed_size(event, order):
    """(α-1)·ρ on a sample of fixed size (Wang, Balle & Kasiviswanathan 2019, eq. 6 and Thm 9).

    The moment of order j of (P - Q)/R is at most 2·e^((j-1)·ρ(j)), at j = 2 also 4(e^ρ(2) - 1); of
    three Gaussians a diameter apart it is largest where they form an equilateral triangle or Q = R.
    """
    from scipy.special import gammaln, logsumexp

    rate, square = event["batch"] / event["population"], 1 / event["noise_multiplier"] ** 2
    exact = int(min(order + 1, 64, 60 / math.sqrt(square))) // 2 * 2  # beyond, it gains little
    even = {j: gaussian_moment(j, square) for j in range(2, exact + 2, 2)}
    terms = [0.0]
    for j in range(2, order + 1):
        moment = math.log(2) + j * (j - 1) * square / 2
        if j == 2:
            moment = min(moment, math.log(4) + square + math.log(-math.expm1(-square)))
        if j <= exact:  # an odd one by Cauchy-Schwarz
            around = (even[j],) if j % 2 == 0 else (even[j - 1], even[j + 1])
            moment = min(moment, sum(around) / len(around))
        choose = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
        terms.append(choose + j * math.log(rate) + moment)
    return float(logsumexp(terms))


@cache
def gaussian_moment(j, square):
    """log E_R[((P - Q)/R)^j], j even, of unit Gaussians whose means are √square apart, at most."""
    digits = 30 + int(j * j * square / 4 + j * (max(-math.log10(square) / 2, 0) + 0.5))
    with localcontext() as context:
        context.prec, d = digits, Decimal(square)
        # (|Q - R|², inner product of P - R and Q - R) in units of |P - R|²: Q = R, or a triangle.
        sums = [
            sum(
                (-1) ** k
                * math.comb(j, k)
                * ((k * (k - 1) + (j - k) * (j - k - 1) * b + 2 * k * (j - k) * c) * d / 2).exp()
                for k in range(j + 1)
            )
            for b, c in ((Decimal(0), Decimal(0)), (Decimal(1), Decimal("0.5")))
        ]
        return float(max(sums).ln())


def shuffled_epsilon(event):
    """ε of one shuffled table (Feldman, McMillan & Talwar 2021, Theorems 3.1, 3.2 and 3.8)."""
    from scipy.special import log_ndtr

    n, local, target = event["persons"], event["local_delta"], event["delta"]
    mu = 1 / event["noise_multiplier"]
    if not local <= target or n > 10**7:
        raise Wrong("a shuffled table that cannot be recomputed")

    def of_a_row(e):
        return math.exp(log_ndtr(mu / 2 - e / mu)) - math.exp(e + log_ndtr(-mu / 2 - e / mu))

    e0 = smallest(lambda e: of_a_row(e) <= local, 0.0, mu * mu + 40 * mu)

    def holds(e):
        own = (math.exp(e) + 1) * (1 + math.exp(-e0) / 2) * n * local
        return own <= target and clones(e, e0, n) + own <= target

    # What holds is an interval; without any credit for the order, e0 does.
    steps = [e0 * k / 64 for k in range(65)]
    first = next((k for k in range(65) if holds(steps[k])), None)
    hidden = e0 if first is None else smallest(holds, steps[max(first - 1, 0)], steps[first])
    # Nor does a table cost more than the one row that a person has in it.
    return min(hidden, smallest(lambda e: of_a_row(e) <= target, 0.0, mu * mu + 40 * mu))


def clones(epsilon, local, persons):
    """δ at ε of a shuffled, local-ε randomizer: two known distributions (ibid., Theorem 3.1)."""
    import numpy as np
    from scipy.stats import binom

    among, p, tail = binom(persons - 1, math.exp(-local)), 1 / (1 + math.exp(-local)), 1e-16
    c = np.arange(max(int(among.ppf(tail)) - 1, 0), int(among.isf(tail)) + 2)
    more, less = p - math.exp(epsilon) * (1 - p), math.exp(epsilon) * p - (1 - p)
    if not more > 0:
        return 0.0
    # The likelihood ratio rises with the first count: it exceeds e^ε above a threshold.
    above = np.floor((c + 1) * less / (less + more))
    given = more * binom.sf(above - 1, c, 0.5) - less * binom.sf(above, c, 0.5)
    return float(np.sum(among.pmf(c) * np.maximum(given, 0))) + 2 * tail


def smallest(holds, low, high):
    """Bisection; at ``high`` it holds, and at what is returned."""
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


# -- the records -------------------------------------------------------------------------------


def canonical(value):
    """The one byte string that a record is written as."""
    options = {"sort_keys": True, "ensure_ascii": False, "allow_nan": False}
    return json.dumps(value, separators=(",", ":"), **options).encode()


def read_body(body):
    """A record's fields; NaN, infinity and double keys are refused."""

    def refuse(name):
        raise ValueError(name)

    def unique(pairs):
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a key occurs twice")
        return dict(pairs)

    record = json.loads(text(body), parse_constant=refuse, object_pairs_hook=unique)
    if not isinstance(record, dict) or canonical(record) != body.encode():
        raise ValueError("not in canonical form")
    return record


def digest(value):
    if not re.fullmatch("[0-9a-f]{64}", text(value)):
        raise Wrong(f"{value!r} is no digest")
    return value


def unit(record):
    """Whom a data set protects: a person column, or each row; and how many rows of a person."""
    value = record["unit"]
    if set(value) != {"person", "rows"} or not (value["person"] is None or text(value["person"])):
        raise Wrong("no unit of privacy")
    return {"person": value["person"], "rows": whole(value["rows"])}


class Lineage:
    """A data set along its life."""

    def __init__(self, record):
        # Rows that were in no data set before are in no other one.
        self.disjoint = record.get("disjoint") is True or record.get("new_data") is True
        self.unit, self.persons = None, []
        self.epsilon, self.delta = number(record["epsilon"]), share(record["delta"])
        self.off_top = float(record.get("approximate_delta", 0.0))
        orders = record["order"]
        self.orders = [number(o) for o in (orders if isinstance(orders, list) else [orders])]
        left = (self.delta - self.off_top) / len(self.orders)
        if not (self.off_top >= 0 and left > 0 and self.orders and min(self.orders) > 1):
            raise Wrong("no such filter")
        # ε = ρ + log((α-1)/α) - (log δ + log α)/(α-1): Canonne, Kamath & Steinke 2020, Prop. 12.
        self.tails = [
            math.log1p(-1 / a) - (math.log(left) + math.log(a)) / (a - 1) for a in self.orders
        ]
        self.strata = {text(name) for name in record.get("strata", [])}
        self.versions, self.charges, self.lost, self.ended = 0, [], False, False
        # What events cost a person, at each order, and last what they take off δ: those without a
        # stratum, and those on each.
        self.sums = {None: [0.0] * (len(self.orders) + 1)}

    def joint(self, others):
        """This data set with all that its persons may have paid in others.

        What another charged on a stratum of its own may have been anybody's here.
        """
        if not others:
            return self
        whole = copy.copy(self)
        whole.sums = {stratum: list(row) for stratum, row in self.sums.items()}
        for other in others:
            whole.charge(
                [(None, event) for charge in other.charges for _, event in charge["events"]]
            )
            whole.lost = whole.lost or other.lost
        whole.charges = [*self.charges]
        for other in others:
            for charge in other.charges:
                events = [(None, event) for _, event in charge["events"]]
                whole.charges.append({**charge, "events": events})
        return whole

    def charge(self, events):
        """Add what (stratum, event) pairs cost; ``ended`` where one has no finite ε."""
        for stratum, event in events:
            self.ended = self.ended or event["kind"] == "unbounded"
            row = self.sums.setdefault(stratum, [0.0] * (len(self.orders) + 1))
            for place, order in enumerate(self.orders):
                row[place] += renyi(event, order)
            row[-1] += event["count"] * event["delta"] if "delta" in event else 0.0

    def dearest(self, place):
        """What the persons of the dearest stratum pay."""
        own = (row[place] for stratum, row in self.sums.items() if stratum is not None)
        return self.sums[None][place] + max(own, default=0.0)

    def spent(self):
        """ε by the filter: at the one order, or at the best of those fixed beforehand."""
        if self.lost:
            return math.inf if self.ended else self.epsilon
        rhos = [self.dearest(place) for place in range(len(self.orders))]
        return min(max(r + t, 0.0) if r else 0.0 for r, t in zip(rhos, self.tails, strict=True))

    def by_person(self):
        """What can happen to one person: all without a stratum, and one stratum's events."""
        events = [pair for charge in self.charges for pair in charge["events"]]
        strata = [stratum for stratum in self.sums if stratum is not None] or [None]
        return [[e for own, e in events if own in (None, stratum)] for stratum in strata]

    def pld(self):
        """ε by privacy loss distributions, tighter and for display; None where there is none.

        Discrete Gaussians count as continuous ones, from which they differ by next to nothing.
        """
        from dp_accounting.pld import privacy_loss_distribution as pld

        worst, width = 0.0, max(1e-4, self.spent() / 1e5)
        for own in self.by_person():
            precision, times = 0.0, Counter()
            for event in own:
                if event["kind"] in ("gaussian", "discrete-gaussian", "distributed-gaussian"):
                    precision += event["count"] / event["noise_multiplier"] ** 2
                elif event["kind"] == "noisy-descent":
                    precision += event["count"] * descent_mu(event) ** 2
                else:
                    key = {**event, "count": 1, "label": "", "sensitivity": 1.0}
                    times[tuple(key.items())] += event["count"]
            total = pld.identity(value_discretization_interval=width)
            if precision:
                total = pld.from_gaussian_mechanism(
                    1 / math.sqrt(precision), value_discretization_interval=width
                )
            for key, count in times.items():
                once = loss(pld, dict(key), width)
                if once is None:
                    return None
                total = total.compose(once.self_compose(count))
            worst = max(worst, float(total.get_epsilon_for_delta(self.delta)))
        return worst


def loss(pld, event, width):
    """The privacy loss distribution of one release of an event, pessimistic."""
    kind, grid = event["kind"], {"value_discretization_interval": width}
    if kind == "poisson-gaussian":
        sigma, rate = event["noise_multiplier"], event["rate"]
        return pld.from_gaussian_mechanism(sigma, sampling_prob=rate, **grid)
    if kind == "laplace":
        return pld.from_laplace_mechanism(event["scale"], **grid)
    if kind in ("pure", "approximate", "shuffled-gaussian"):
        epsilon = shuffled_epsilon(event) if kind == "shuffled-gaussian" else event["epsilon"]
        from dp_accounting.pld.common import DifferentialPrivacyParameters

        parameters = DifferentialPrivacyParameters(epsilon, event.get("delta", 0.0))
        return pld.from_privacy_parameters(parameters, **grid)
    return None


class Replay:
    """The ledger, record by record."""

    def __init__(self, gate_key):
        self.gate_key, self.key = gate_key, bytes.fromhex(gate_key)
        self.seq, self.head, self.time, self.site = 0, GENESIS, "", ""
        self.recovered, self.lineages, self.charges, self.hashes = False, {}, {}, set()
        self.format, self.named, self.problems = 1, [], []

    def take(self, entry):
        """One record. What breaks the chain ends the replay; an overspent charge is noted.

        Raises:
            Wrong: the chain breaks.
        """
        if not isinstance(entry, dict) or set(entry) != {"body", "hash", "signature"}:
            raise Wrong("not a record")
        body, hash_ = text(entry["body"]), text(entry["hash"])
        if hashlib.sha256(body.encode()).hexdigest() != hash_:
            raise Wrong("its text was changed: the hash is another's")
        # The purpose, and its length, keep a signature on anything else from passing for this one.
        message = b"penstock:13:ledger-record:" + hash_.encode()
        if not signed(self.key, message, bytes.fromhex(text(entry["signature"]))):
            raise Wrong("its signature is not the gate's")
        record = read_body(body)
        kind, seq = record["kind"], self.seq + 1
        if kind == "recover":
            seq = max(self.seq, whole(record["seen_seq"])) + 1
        if record["seq"] != seq or isinstance(record["seq"], bool) or record["prev"] != self.head:
            raise Wrong("it does not follow the record before it: one is missing, added or moved")
        if text(record["time"]) < self.time:
            raise Wrong("its time runs backwards")
        self.seq, self.head, self.time = seq, hash_, record["time"]
        self.hashes.add(hash_)
        actions = {
            "open": self.open,
            "format": self.rise,
            "unit": self.fix,
            "lineage": self.lineage,
            "version": self.version,
            "reserve": self.reserve,
            "commit": self.settle,
            "burn": self.settle,
            "recover": self.recover,
        }
        if kind not in actions:
            raise Wrong(f"of an unknown kind, {kind!r}")
        if (self.seq == 1) != (kind == "open"):
            raise Wrong("a ledger opens once, with its first record")
        actions[kind](record)

    def open(self, record):
        self.site = text(record["site"])
        if record["gate_key"] != self.gate_key:
            raise Wrong("it names another key than the file")

    def lineage(self, record):
        name = text(record["lineage"])
        if name in self.lineages:
            raise Wrong("a data set begun twice")
        if self.recovered and record.get("new_data") is not True:
            raise Wrong("a data set begun after a recovery, and not declared to be new")
        begun = Lineage(record)
        if self.format > 1:
            begun.unit = unit(record)
            if self.lineages and not begun.disjoint:
                raise Wrong("a second data set, and not declared disjoint")
        self.lineages[name] = begun

    def rise(self, record):
        if isinstance(record["format"], bool) or record["format"] != self.format + 1:
            raise Wrong("a format out of order")
        if record["format"] > RECORDS:
            raise Wrong(f"of format {record['format']}, which this script does not know")
        self.format = record["format"]

    def fix(self, record):
        lineage = self.lineages[record["lineage"]]
        if lineage.unit is not None:
            raise Wrong("another unit of privacy")
        lineage.unit = unit(record)

    def version(self, record):
        lineage = self.lineages[record["lineage"]]
        lineage.versions += 1
        if record["version"] != lineage.versions:
            raise Wrong("a version out of order")
        persons = record["persons"]
        if self.format > 1:
            if lineage.unit is None:
                raise Wrong("certified without a unit of privacy")
            frame = (lineage.persons or [whole(persons)])[-1]
            if whole(persons) != frame and record.get("new_frame") is not True:
                raise Wrong(f"of {persons} persons, not {frame}, and not declared a new frame")
        lineage.persons.append(persons)

    def group(self, lineage):
        """Other data sets that may hold the same persons."""
        others = [each for each in self.lineages.values() if each is not lineage]
        return [] if lineage.disjoint else [each for each in others if not each.disjoint]

    def reserve(self, record):
        lineage, name = self.lineages[record["lineage"]], text(record["charge"])
        if name in self.charges:
            raise Wrong("one request, charged twice")
        if lineage.lost:
            raise Wrong("charged to a data set of which nothing was left")
        if record["relation"] != RELATION:
            raise Wrong(f"of another relation, {record['relation']!r}")
        if not 1 <= whole(record["version"]) <= lineage.versions:
            raise Wrong("charged to a version that was not certified")
        share(record["delta"])
        if not isinstance(record["events"], list) or not record["events"]:
            raise Wrong("it charges nothing")
        if self.format > 1:
            if record["version"] != lineage.versions:
                raise Wrong("charged to rows that were not the certified ones any more")
            digest(record["study_digest"])
            digest(record["plan_digest"])
            self.named.append((self.seq, digest(record["decisions"])))
        events, ended = [read_event(e) for e in record["events"]], lineage.ended
        others = self.group(lineage)
        ended = ended or any(other.ended for other in others)
        if {stratum for stratum, _ in events} - lineage.strata - {None}:
            raise Wrong("on a stratum that was not declared when the data set began")
        charge = {"events": events, "status": "reserved", "lineage": record["lineage"]}
        self.charges[name] = charge
        lineage.charges.append(charge)
        lineage.charge(events)
        if ended:
            self.note("charged after the formal budget had ended")
        elif not lineage.ended:  # a policy allows an unbounded release, or not: no filter can
            self.check(lineage, "")
            for member in (lineage, *others) if others else ():
                joint = member.joint(self.group(member))
                self.check(joint, "with the data sets that it was never declared disjoint from, ")

    def check(self, lineage, how):
        spent, told = lineage.spent(), lineage.dearest(-1)
        if not spent <= lineage.epsilon * (1 + SLACK):
            self.note(f"{how}takes ε to {spent:.6g}, above {lineage.epsilon:g}")
        if not told <= lineage.off_top * (1 + SLACK):
            self.note(f"{how}takes {told:.3g} off δ, above {lineage.off_top:g}")

    def settle(self, record):
        if self.format > 1 and not re.fullmatch("[0-9a-f]{32}", text(record["salt"])):
            raise Wrong("settled without a salt")
        charge = self.charges[record["charge"]]
        if charge["status"] != "reserved":
            raise Wrong("a charge settled twice")
        charge["status"] = {"commit": "committed", "burn": "burnt"}[record["kind"]]

    def recover(self, record):
        if not re.fullmatch("[0-9a-f]{64}", text(record["seen_head"])):
            raise Wrong("it names no lost record")
        self.recovered = True
        for lineage in self.lineages.values():
            lineage.lost = True

    def note(self, what):
        found = {"record": self.seq, "what": what}
        if found not in self.problems:
            self.problems.append(found)


def decide(entries, key, named, problems):
    """The decisions of a site; what is wrong with them, or with what the ledger names, is noted."""
    head, time, places, found = GENESIS, "", {GENESIS: 0}, []
    for place, entry in enumerate(entries, start=1):
        try:
            body, hash_ = text(entry["body"]), text(entry["hash"])
            record = read_body(body)
            message = b"penstock:15:decision-record:" + hash_.encode()
            if hashlib.sha256(body.encode()).hexdigest() != hash_:
                raise Wrong("its text was changed: the hash is another's")
            if not signed(key, message, bytes.fromhex(text(entry["signature"]))):
                raise Wrong("its signature is not the gate's")
            if record["seq"] != place or record["prev"] != head:
                raise Wrong("it does not follow the decision before it")
            if text(record["time"]) < time:
                raise Wrong("its time runs backwards")
            shown = {k: record[k] for k in ("time", "kind", "by", "reason")}
        except (Wrong, LookupError, TypeError, ValueError, RecursionError) as error:
            problems.append({"record": None, "what": f"decision {place}: {error}"})
            return found
        head, time, places[hash_] = hash_, record["time"], place
        found.append(shown)
    last = 0
    for seq, name in named:
        if name not in places:
            what = "it names decisions that the file does not hold: they were lost or cut off"
            problems.append({"record": seq, "what": what})
        elif places[name] < last:
            problems.append({"record": seq, "what": "it names older decisions than one before it"})
        last = max(last, places.get(name, 0))
    return found


# -- the report --------------------------------------------------------------------------------


def fingerprint(key):
    found = base64.b64encode(hashlib.sha256(bytes.fromhex(key)).digest()).decode()
    return "SHA256:" + found.rstrip("=")


def verify(document, gate_key=None, holds=()):
    """Everything that was found, as a dictionary; ``ok`` says whether all is well."""
    report = {"ok": False, "problems": [], "lineages": []}

    def wrong(what):
        report["problems"].append({"record": None, "what": what})
        return report

    if not isinstance(document, dict) or document.get("format") != FORMAT:
        return wrong(f"not a file of the format {FORMAT}")
    key, records = document.get("gate_key"), document.get("records")
    if not isinstance(key, str) or not re.fullmatch("[0-9a-f]{64}", key):
        return wrong("it names no gate's key")
    if document.get("relation") != RELATION or not isinstance(records, list) or not records:
        return wrong("it holds no records of the relation that this script knows")
    report |= {"gate_key": key, "fingerprint": fingerprint(key), "records": len(records)}
    if gate_key is not None and gate_key not in (key, fingerprint(key)):
        return wrong(f"signed by another gate: {fingerprint(key)}")
    replay = Replay(key)
    report["problems"] = replay.problems
    whole = True
    for place, entry in enumerate(records, start=1):
        at = replay.seq + 1
        try:
            replay.take(entry)
            continue
        except Wrong as error:
            what = str(error)
        except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            what = f"it cannot be read ({type(error).__name__}: {str(error)[:80]})"
        replay.problems.append({"record": at, "what": what})
        wrong(f"the {len(records) - place} records after it were not looked at")
        whole = False
        break
    for hash_ in holds:
        if hash_ not in replay.hashes:
            wrong(f"it does not hold the record {hash_}: it was cut off, or is another ledger")
    report |= {"site": replay.site, "seq": replay.seq, "head": replay.head, "time": replay.time}
    if whole:
        report["lineages"] = [
            about(name, one, replay.group(one), replay) for name, one in replay.lineages.items()
        ]
    entries = document.get("decisions")
    if isinstance(entries, list):
        report["decisions"] = decide(entries, replay.key, replay.named, replay.problems)
    return report | {"ok": not replay.problems}


def about(name, alone, others, replay):
    """A data set, with what its persons may have paid in others."""
    problems, lineage = replay.problems, alone.joint(others)
    names = [each for each, one in replay.lineages.items() if one in others]
    count = {s: 0 for s in ("reserved", "committed", "burnt")}
    for charge in alone.charges:
        count[charge["status"]] += 1
    spent = lineage.spent()
    finite = math.isfinite(spent)
    return {
        "lineage": name,
        "total_epsilon": lineage.epsilon,
        "delta": lineage.delta,
        "orders": lineage.orders,
        "versions": lineage.versions,
        "persons": lineage.persons,
        "unit": lineage.unit,
        "disjoint": lineage.disjoint,
        "together_with": names,
        **count,
        "records_were_lost": lineage.lost,
        "spent_epsilon": spent if finite else None,
        "pld_epsilon": lineage.pld() if finite and not (lineage.lost or problems) else None,
    }


def show(report):
    lines = []
    if "site" in report:
        lines.append(f"site {report['site']}, {report['records']} records, up to {report['time']}")
        lines.append(f"gate {report['fingerprint']}  (compare with the steward)")
        lines.append(f"head {report['head']}")
    for one in report["lineages"]:
        spent, pld = (
            "-" if v is None else f"{v:.6f}" for v in (one["spent_epsilon"], one["pld_epsilon"])
        )
        orders = ", ".join(f"{o:g}" for o in one["orders"])
        lines += [
            f"data set {one['lineage']}: total ε {one['total_epsilon']:g} at δ {one['delta']:g}",
            f"  {protected(one)}",
            f"  charged: {one['committed']} committed, {one['burnt']} burnt, "
            f"{one['reserved']} open",
            f"  ε spent, filter at order {orders}: "
            + (spent if one["spent_epsilon"] is not None else "∞ (released without a guarantee)"),
            f"  ε spent, privacy loss distributions: {pld}",
        ]
        if one["together_with"]:
            lines.append(
                f"  never declared disjoint from {', '.join(one['together_with'])}: ε is of all "
                "together"
            )
        if one["records_were_lost"]:
            lines.append("  records were lost: all that was left is charged for them")
    for one in report.get("decisions", []):
        lines.append(
            f"{one['time'][:19]} {one['kind']} by {who(one['by'])} {one['reason']}".rstrip()
        )
    for problem in report["problems"]:
        where = f"record {problem['record']}: " if problem["record"] else ""
        lines.append(f"WRONG: {where}{problem['what']}")
    lines.append("OK" if report["ok"] else "NOT OK")
    return "\n".join(lines) + "\n"


def protected(one):
    """Whom a data set protects, and among how many."""
    unit, persons = one["unit"], one["persons"]
    among = f"{persons[-1]} persons in the frame" if persons else "no version was certified"
    if unit is None:
        return f"{among}; the unit of privacy is not recorded (an older Penstock)"
    if unit["person"] is None:
        return f"{among}; each row is a person"
    return f"{among}; persons by {unit['person']!r}, at most {unit['rows']} rows each"


def who(by):
    claimed = by.get("claimed", {})
    behind = claimed.get("SUDO_USER") or claimed.get("SUDO_UID")
    return f"{by['user'] or by['uid']}" + (f" (claimed: {behind})" if behind else "")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ledger", type=Path, help="what `penstock site ledger export` wrote")
    parser.add_argument("--gate-key", help="the gate's key: 64 hex digits, or its SHA256:...")
    parser.add_argument("--holds", action="append", default=[], help="a hash that must be there")
    parser.add_argument("--json", action="store_true", help="print JSON")
    asked = parser.parse_args()
    try:
        document = json.loads(asked.ledger.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        parser.error(f"{asked.ledger}: {type(error).__name__}")
    report = verify(document, asked.gate_key, asked.holds)
    shown = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(shown if asked.json else show(report))
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
