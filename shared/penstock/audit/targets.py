"""All mechanisms that `penstock audit` knows, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.audit import chains, releases, sketches, structures
from penstock.audit.worlds import Target
from penstock.base.checks import nearest
from penstock.base.errors import InvalidInput, PenstockError, Problem
from penstock.privacy.calibration import smallest_scale

Builder = Callable[[float], Target]

TRAINED = (
    "dpsgd",
    "dpsgd-poisson",
    "training",
    "maf",
    "sliced-wasserstein",
    "trajectory-start",
    "trajectory",
    "trajectory-poisson",
    "trajectory-persons",
    "trajectory-margins",
)
"""Those that need torch."""

_RELEASES: dict[str, Builder] = {
    "gaussian": releases.gaussian,
    "discrete-gaussian": releases.discrete_gaussian,
    "laplace": releases.laplace,
    "histograms": releases.histograms,
    "moments": releases.moments,
    "outcome": releases.outcome,
    "injection": releases.injection,
    "shuffled": releases.shuffled,
    "sketch": sketches.sketch,
    "presampled": sketches.presampled,
    "resampled": sketches.resampled,
    "structured": structures.scores,
    "structured-margins": structures.margins,
    "structured-pairs": structures.pairs,
    "scoring": structures.rounds,
    "scoring-tallies": structures.tallies,
    "gibbs-chain": chains.last_iterate,
    "gibbs": chains.answer,
    "distributed": releases.distributed,
    "strata": releases.strata,
    "pure": releases.pure,
    "approximate": releases.approximate,
}

NAMES: tuple[str, ...] = (*_RELEASES, *TRAINED)


def build(
    name: str, *, scale: float = 1.0, epsilon: float | None = None, delta: float | None = None
) -> Target:
    """A mechanism with its worst-case data set.

    Args:
        scale: on its noise, > 0; 1 is where the attack shows most within seconds.
        epsilon: instead of a scale: the noise that costs this ε, and hardly less, at δ.
        delta: at which ε is claimed; the mechanism's own where none is given.

    Raises:
        InvalidInput: no such mechanism, or a scale that is not positive.
        BudgetExceeded: no amount of noise reaches this ε at this δ.
    """
    make = _builder(name)
    if not scale > 0:
        raise InvalidInput("audit", [Problem("scale", "must be above 0", value=f"{scale:g}")])
    first = make(scale)
    wanted = first.delta if delta is None else delta
    if epsilon is not None:
        first = make(smallest_scale(lambda s: make(s).events, epsilon, wanted, tolerance=1e-3))
    return replace(first, delta=wanted)


def _builder(name: str) -> Builder:
    if name in _RELEASES:
        return _RELEASES[name]
    if name not in TRAINED:
        raise InvalidInput(
            "audit",
            [Problem("mechanism", "is not known", value=name, remedy=nearest(name, NAMES))],
        )
    try:
        from penstock.audit import particle_dynamics, trained
    except ModuleNotFoundError as error:
        raise PenstockError(
            f"the mechanism {name} needs {error.name}", remedy="pip install 'penstock[site]'"
        ) from None
    made: dict[str, Builder] = {
        "dpsgd": trained.dpsgd_full,
        "dpsgd-poisson": trained.dpsgd_poisson,
        "training": trained.training,
        "maf": trained.maf,
        "sliced-wasserstein": trained.sliced_wasserstein,
        "trajectory-start": particle_dynamics.start,
        "trajectory": particle_dynamics.dynamics,
        "trajectory-poisson": particle_dynamics.sampled,
        "trajectory-persons": particle_dynamics.together,
        "trajectory-margins": particle_dynamics.attended,
    }
    return made[name]
