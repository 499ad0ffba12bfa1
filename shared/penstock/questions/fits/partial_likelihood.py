r"""Cox's proportional hazards model with Efron's ties, by Newton's steps on sums of columns.

With η = xᵀβ, risk sums over everybody still followed, and D the sums over the d events of one time,
the l-th of them (l from 0) has the denominator φ = S₀ − (l/d) D₀, and

.. math:: U = \sum_j x_j (δ_j - e^{η_j} c_j), \qquad
          I = \sum_j e^{η_j} c_j\, x_j x_j^\top - \sum_e \bar x_e \bar x_e^\top,

where c_j adds up 1/φ over the events up to j's time, less (l/d)/φ of the events of j's own time
where j is one of them, and x̄_e = (S₁ − (l/d) D₁)/φ. Every sum is over a whole column: a table of
8,000 rows takes milliseconds, and refits make many. It agrees with statsmodels' ``PHReg``, which
takes a third of a second, to 1e-10 (tests).

Score residuals are what U has of each row, with what the row does to everybody's risk sets,

.. math:: U_j = δ_j (x_j - \bar x_{t_j}) - e^{η_j} (c_j x_j - m_j),

with x̄_t the mean of x̄_e over the events of one time, and m_j as c_j with x̄_e/φ in place of 1/φ: the
derivative of U by the row's weight. They add up to U.

Sources: Cox 1972, JRSS B 34, 187–220; Efron 1977, JASA 72, 557–565; of score residuals Lin & Wei
1989, JASA 84, 1074–1078, and with Efron's ties R's ``residuals.coxph``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from penstock.questions.fits.newton import KnownMaxima, Maximum, maximise

Array = NDArray[np.float64]
Indices = NDArray[np.intp]


def fit_cox(
    time: Array,
    event: Array,
    design: Array,
    strata: Array | None = None,
    known: KnownMaxima | None = None,
) -> Maximum:
    """The maximum of Efron's partial likelihood, as near as steps get to it: the same to the last
    digit in whichever order its columns are.

    Args:
        time: (n,), finite; event: (n,) 0 or 1, at least one event; design: (n, p), standardised.
        strata: (n,) a number for each row's stratum, outside of which nobody is at risk with it;
            None: there is but one.
        known: what was fitted before.

    Raises:
        LinAlgError: the information is singular.
    """
    columns = [np.ascontiguousarray(column) for column in design.T]
    order = np.array(sorted(range(len(columns)), key=lambda j: columns[j].tobytes()), dtype=np.intp)

    def make() -> Maximum:
        risks = _split(time, event, design[:, order], strata)
        return maximise(partial(_add, risks), np.zeros(len(order)))

    if known is None:
        found = make()
    else:
        beside = () if strata is None else (strata,)
        found = known.find((time, event, *beside, *(columns[j] for j in order)), make)
    return found.pick(np.argsort(order))


def find_residuals(
    time: Array, event: Array, design: Array, strata: Array | None, coefficients: Array
) -> tuple[Array, Array]:
    r"""Martingale residuals :math:`δ - e^η c`, (n,), and the hazards :math:`e^η c` that rows have
    met, (n,): what a row adds to the score of η, and to its information, as if nobody else's risk
    set were changed by it.

    The residuals add up to 0 in each stratum with an event, and at the maximum so do their products
    with each column; elsewhere both are 0.

    Args: as :func:`fit_cox`; coefficients: (p,), of its maximum.

    Source: Barlow & Prentice 1988, Biometrika 75, 65–74.
    """
    met, known = np.zeros(len(time)), np.zeros(len(time), dtype=np.bool_)
    for rows in _list_strata(time, event, strata):
        risk = _Risk.of(time[rows], event[rows], design[rows])
        met[rows[risk.order]] = risk.meet(coefficients)
        known[rows] = True
    return np.where(known, event - met, 0.0), met


def find_sandwich(
    time: Array, event: Array, design: Array, strata: Array | None, found: Maximum
) -> Array:
    r"""The robust covariance (p, p) of a maximum,

    .. math:: I^{-1} \Big(\sum_j U_j U_j^\top\Big) I^{-1},

    which holds also where hazards are not in proportion, of the coefficient that the partial
    likelihood then is about. Rows are one person each; no factor for small samples, as R has none.

    Args: as :func:`fit_cox`; found: what it found.

    Source: Lin & Wei 1989, JASA 84, 1074–1078, equation 2.4.
    """
    parts = [
        _Risk.of(time[rows], event[rows], design[rows]).score(found.coefficients)
        for rows in _list_strata(time, event, strata)
    ]
    moved = np.concatenate(parts) @ found.covariance
    sandwich: Array = moved.T @ moved
    return sandwich


def _list_strata(time: Array, event: Array, strata: Array | None) -> list[Indices]:
    """The rows of each stratum with an event: without one, nothing is learnt of it."""
    if strata is None:
        return [np.arange(len(time))]
    rows = [np.flatnonzero(strata == number) for number in np.unique(strata)]
    return [own for own in rows if event[own].any()]


def _split(time: Array, event: Array, design: Array, strata: Array | None) -> list[_Risk]:
    found = _list_strata(time, event, strata)
    return [_Risk.of(time[own], event[own], design[own]) for own in found]


def _add(risks: Sequence[_Risk], beta: Array) -> tuple[float, Array, Array]:
    """The derivatives of all strata together."""
    first, *others = (risk.derivatives(beta) for risk in risks)
    value, score, information = first
    for more in others:
        value, score, information = value + more[0], score + more[1], information + more[2]
    return value, score, information


@dataclass(frozen=True, slots=True)
class _Risk:
    """Rows from the longest time to the shortest, and where each event's time begins and ends.

    Args:
        order: of the rows as they were given; design, event: in that order.
        events: which rows are events; group: of each, the last row of its time.
        starts: of each time, the first of its ``events``; when: of each event, which time is its;
            share: l/d.
        until: of each row, how many of ``events`` are later.
    """

    order: Indices
    design: Array
    event: Array
    events: Indices
    group: Indices
    starts: Indices
    when: Indices
    share: Array
    until: Indices

    @classmethod
    def of(cls, time: Array, event: Array, design: Array) -> _Risk:
        order = np.argsort(-time, kind="stable")
        time, event, design = time[order], event[order], design[order]
        events = np.flatnonzero(event)
        falling = -time[events]
        group = np.searchsorted(-time, falling, side="right") - 1
        _, starts, when, tied = np.unique(
            falling, return_index=True, return_inverse=True, return_counts=True
        )
        share = (np.arange(len(events)) - starts[when]) / tied[when]
        until = np.searchsorted(falling, -time, side="left")
        return cls(order, design, event, events, group, starts, when, share, until)

    def derivatives(self, beta: Array) -> tuple[float, Array, Array]:
        """The log likelihood, its gradient and its information at β."""
        eta = self.design @ beta
        shift = float(eta.max())
        weight = np.exp(eta - shift)
        weighted = weight[:, None] * self.design
        own = weight[self.events]
        below = np.cumsum(weight)[self.group] - self.share * self._tied(own)
        mean = np.cumsum(weighted, axis=0)[self.group]
        mean -= self.share[:, None] * self._tied(weighted[self.events])
        mean /= below[:, None]
        cumulative = self._accumulate(1 / below)
        value = float((eta[self.events] - shift).sum() - np.log(below).sum())
        score = self.design.T @ (self.event - weight * cumulative)
        information = (weighted * cumulative[:, None]).T @ self.design - mean.T @ mean
        return value, score, information

    def meet(self, beta: Array) -> Array:
        """(n,) e^η c of each row, in this order."""
        eta = self.design @ beta
        weight = np.exp(eta - float(eta.max()))
        below = np.cumsum(weight)[self.group] - self.share * self._tied(weight[self.events])
        return np.asarray(weight * self._accumulate(1 / below))

    def score(self, beta: Array) -> Array:
        """(n, p) U of each row, in this order."""
        eta = self.design @ beta
        weight = np.exp(eta - float(eta.max()))
        weighted = weight[:, None] * self.design
        below = np.cumsum(weight)[self.group] - self.share * self._tied(weight[self.events])
        mean = np.cumsum(weighted, axis=0)[self.group]
        mean -= self.share[:, None] * self._tied(weighted[self.events])
        mean /= below[:, None]
        met = self._accumulate(1 / below)[:, None] * self.design
        met -= np.stack([self._accumulate(own / below) for own in mean.T], axis=1)
        found = -weight[:, None] * met
        tied = self._tied(np.ones(len(self.events)))
        found[self.events] += self.design[self.events] - self._tied(mean) / tied[:, None]
        return np.asarray(found)

    def _accumulate(self, each: Array) -> Array:
        """(n,) what a row meets of events (E,), each as far as the row is at risk for it: of their
        1/φ that is c."""
        # Over events that are no later, from the earliest on: late ones are the largest.
        total = np.append(np.cumsum(each[::-1])[::-1], 0.0)
        cumulative = total[self.until]
        cumulative[self.events] -= self._tied(self.share * each)
        return np.asarray(cumulative)

    def _tied(self, values: Array) -> Array:
        """Of each event, the sum of the values of all events of its time."""
        tied: Array = np.add.reduceat(values, self.starts)[self.when]
        return tied
