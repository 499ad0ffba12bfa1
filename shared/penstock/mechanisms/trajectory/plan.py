"""The ``trajectory`` mechanism's plan: from a study and the public n to noise and charges.

Pure and public: no row is read, and no torch is imported, so that the gate can price a study
before it starts a worker. :mod:`penstock.mechanisms.trajectory.run` carries the plan out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeGuard, TypeVar

from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.refusals import list_informal
from penstock.mechanisms.trajectory.settings import Trajectory
from penstock.mechanisms.trajectory.start import Start
from penstock.mechanisms.trajectory.time_points import Times, times_of, unit_temperature
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.calibration import Accountant, smallest_scale
from penstock.privacy.events import Event
from penstock.privacy.measurements import (
    GaussianSum,
    Measurement,
    PoissonSample,
    WholeSum,
    charge,
)
from penstock.privacy.noise.discrete import exact_positive
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Schema
from penstock.schema.encoding import Encoding

BANDWIDTH, CLIP = 0.61, 0.55
"""Kernel width over a time point's spread, by m^(-1/(d+4)) (Scott's rule), and the clip norm over
√d kernel widths. These and the rest of :func:`_dynamics` were tuned on simulated pen strokes."""

WIDE, WIDE_PUBLIC = 4.0, 10.0
"""How many times wider the kernel begins: enough to reach rows that the start does not."""

_CALM = 0.2
"""The most that noise may move a particle in a step, in kernel widths: N counts as at least what
that takes, so that a time point with few rows stays where it started."""


PULL_BITS = 30
"""Of a pull in whole numbers."""


def pull_unit(clip: float) -> float:
    """The power of two of which the clip norm C is below 2³⁰ and at least 2²⁹: so fine that what
    rounding takes of 10⁹ persons' pulls is less than the noise."""
    return math.ldexp(1.0, math.frexp(clip)[1] - PULL_BITS)


@dataclass(frozen=True, slots=True)
class Dynamics:
    """Public parameters of the dynamics.

    Attributes:
        sigma: noise multiplier; rate: q, 1 for everyone; steps: K; clip: C, in kernel widths.
        bandwidth: kernel width h over a time point's spread (root mean variance as released).
        wide: how many times wider the kernel begins; it narrows evenly over the first half.
        step: a; smoothing: b at most; temperature: τ, in unit space squared per whole duration.
        heat: √(2c), in kernel widths; 0 leaves the privacy noise as the only diffusion.
        cool: share of a, b and c that is left at the end.
        average: over the iterates of this last share of the steps.
        numbers: T·m·d, of which a step's sum is in whole numbers, so that sites can add it up;
            everybody is in each then. None: a sum of floats.
    """

    sigma: float
    rate: float
    steps: int
    clip: float
    bandwidth: float
    wide: float
    step: float
    smoothing: float
    temperature: float
    heat: float
    cool: float
    average: float
    numbers: int | None = None

    @property
    def measurement(self) -> GaussianSum | WholeSum:
        """Each step's sum of what persons pull at all particles, each clipped to norm C together.

        Sensitivity C in L2, zero-out with public n (:mod:`penstock.mechanisms.trajectory.drift`);
        of everybody, or of a fresh Poisson sample. In whole numbers it holds on the machine
        (:meth:`penstock.mechanisms.trajectory.drift.Rows.whole_sum`), and a step is charged as a
        discrete Gaussian (Canonne, Kamath & Steinke 2020, Thm 14).
        """
        if self.numbers is not None:
            return WholeSum(
                label="particles",
                noise_multiplier=self.sigma,
                sensitivity=self.clip * (1 + 1e-12),
                squared=exact_positive("clip", self.clip) ** 2,
                unit=pull_unit(self.clip),
                size=self.numbers,
                count=self.steps,
            )
        credit = PoissonSample(self.rate) if self.rate < 1 else None
        return GaussianSum("particles", self.sigma, self.clip, self.steps, credit)

    def least_rows(self, particles: int) -> float:
        """N counts as at least this: below, noise would move particles by more than _CALM·h."""
        return self.step * particles * self.sigma * self.clip / (self.rate * _CALM)


@dataclass(frozen=True, slots=True)
class Plan:
    """All public parameters of one run.

    Attributes:
        guarantee: ``formal``; persons: public n; rows: k, rows per person at most.
        copies, refits, particles, paths, path_times, exact: as in the study's settings.
        times: the time points; space: which encoded coordinates move.
        start, dynamics: what is done to the rows.
        epsilon: of the events at the requested δ.
    """

    guarantee: str
    persons: int
    rows: int
    copies: int
    refits: int
    particles: int
    paths: int
    path_times: int
    exact: bool
    times: Times
    space: tuple[int, ...]
    start: Start
    dynamics: Dynamics
    epsilon: float

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """All that is asked of rows, and the noise with which it leaves."""
        return measure(self.start, self.dynamics)

    @property
    def events(self) -> tuple[Event, ...]:
        """What the run is charged as."""
        return charge(self.measurements)


@dataclass(frozen=True, slots=True)
class WholePlan(Plan):
    """A plan that asks rows for sums of whole numbers, and for nothing else: those of many sites.

    Everybody is in each sum. A step on everybody with noise σ moves particles as one on a share q
    of them with noise qσ does, less what sampling adds, and costs no more: amplification saves the
    work of a step, and a round of many sites takes seconds whatever its work.
    """

    @property
    def measurements(self) -> tuple[WholeSum, ...]:
        """All that is asked of rows, and the noise with which it leaves."""
        return tuple(each for each in measure(self.start, self.dynamics) if _is_whole(each))

    def with_noise(self, factor: float) -> WholePlan:
        """The same with so many times the noise."""
        sigma = self.start.sigma
        return replace(
            self,
            start=replace(self.start, sigma=None if sigma is None else sigma * factor),
            dynamics=replace(self.dynamics, sigma=self.dynamics.sigma * factor),
        )


P = TypeVar("P", bound=Plan)


def _is_whole(measurement: Measurement) -> TypeGuard[WholeSum]:
    if not isinstance(measurement, WholeSum):
        raise TypeError("a plan of whole numbers asks for nothing else")
    return True


def measure(start: Start, dynamics: Dynamics) -> tuple[Measurement, ...]:
    """What these two ask of rows."""
    begun = start.measurement
    return (dynamics.measurement,) if begun is None else (begun, dynamics.measurement)


def plan(
    mechanism: Trajectory,
    schema: Schema,
    persons: int,
    privacy: PrivacyRequest,
    accountant: Accountant = epsilon,
) -> Plan:
    """Noise multipliers and charges for a study at a site of ``persons`` persons; reads no row.

    Args:
        accountant: whose ε the noise is for; the gate's own by default.

    Raises:
        InvalidInput: the study asks for what this mechanism does not do.
    """
    return _plan(Plan, mechanism, schema, persons, privacy, accountant)


def plan_whole(
    mechanism: Trajectory,
    schema: Schema,
    persons: int,
    privacy: PrivacyRequest,
    accountant: Accountant = epsilon,
) -> WholePlan:
    """The same in sums of whole numbers, whatever the study's ``rate``: everybody is in each.

    A discrete Gaussian costs what a Gaussian of its multiplier does: noise is that of :func:`plan`
    at rate 1.

    Raises:
        InvalidInput: the study asks for what this mechanism does not do.
    """
    everybody = replace(mechanism, rate=1.0)
    found = _plan(WholePlan, everybody, schema, persons, privacy, accountant)
    numbers = len(found.times.used) * found.particles * len(found.space)
    whole = replace(found, dynamics=replace(found.dynamics, numbers=numbers))
    return replace(whole, epsilon=accountant(whole.events, privacy.delta))


def _plan(
    kind: type[P],
    mechanism: Trajectory,
    schema: Schema,
    persons: int,
    privacy: PrivacyRequest,
    accountant: Accountant,
) -> P:
    require_sound(mechanism, schema, persons, privacy)
    encoding, times = Encoding(schema), times_of(mechanism, schema)
    space = tuple(i for i, dim in enumerate(encoding.dims) if dim.column != mechanism.time)
    at = list(space)
    radius = _radius([float(w) / 4 for w in encoding.high[at] - encoding.low[at]])
    rows, public = schema.max_rows_per_person, mechanism.start == "public"
    rounds = Start(1.0, mechanism.modes, radius, len(space), rows, times.count).rounds

    def parts(scale: float) -> tuple[Start, Dynamics]:
        share = 0.0 if public else mechanism.start_share
        sigma = None if public else scale * math.sqrt(rounds / share)
        # A Poisson-sampled step costs about q² of a full one, hence the rate.
        step = scale * math.sqrt(mechanism.steps / (1 - share)) * mechanism.rate
        start = Start(sigma, mechanism.modes, radius, len(space), rows, times.count)
        return start, _dynamics(mechanism, step, len(space), rows)

    def charges(scale: float) -> tuple[Event, ...]:
        return charge(measure(*parts(scale)))

    scale = smallest_scale(charges, privacy.epsilon, privacy.delta, accountant=accountant)
    start, dynamics = parts(scale)
    return kind(
        guarantee=privacy.guarantee,
        persons=persons,
        rows=rows,
        copies=mechanism.copies,
        refits=mechanism.refits,
        particles=mechanism.particles,
        paths=mechanism.paths,
        path_times=mechanism.path_times,
        exact=mechanism.coupling == "exact",
        times=times,
        space=space,
        start=start,
        dynamics=dynamics,
        epsilon=accountant(charges(scale), privacy.delta),
    )


def _dynamics(mechanism: Trajectory, sigma: float, d: int, rows: int) -> Dynamics:
    return Dynamics(
        sigma=sigma,
        rate=mechanism.rate,
        steps=mechanism.steps,
        clip=CLIP * math.sqrt(d * rows),  # rows at different times add up as right angles do
        bandwidth=BANDWIDTH * mechanism.particles ** (-1 / (d + 4)),
        wide=WIDE_PUBLIC if mechanism.start == "public" else WIDE,
        step=0.5,
        smoothing=0.04,
        temperature=unit_temperature(mechanism),
        heat=0.06,
        cool=0.2,
        average=0.25,
    )


def _radius(half_widths: list[float]) -> float:
    """To which points of the unit space are clipped before moments are summed.

    The corner of the box; in many dimensions nobody is near one, and 3/4 of the way will do.
    """
    corner = math.sqrt(math.fsum(w * w for w in half_widths))
    return corner * (0.75 + 0.25 * min(1.0, 3 / len(half_widths)))


def require_sound(
    mechanism: Trajectory, schema: Schema, persons: int, privacy: PrivacyRequest
) -> None:
    """Refuse what a study may still ask and this mechanism cannot do.

    Raises:
        InvalidInput: with every problem.
    """
    problems = list(mechanism.problems(schema, ()))
    problems += list_informal(privacy)
    least = max(mechanism.modes, 1)
    if not persons >= least:
        problems.append(
            Problem("persons", "too few", value=str(persons), bound=f"at least {least}")
        )
    if problems:
        raise InvalidInput("mechanism", problems)
