"""One estimand on one coded table: the coefficient, its variance, or the reason why there is none.

Tables come from sites and are hostile. Whatever finite or non-finite values they hold, an
:class:`Estimate` comes back: with a ``problem`` and NaN where the model cannot be fitted.

Cox models have a fit of their own (:mod:`penstock_server.analysis.cox`), since every refit of every
site is fitted: statsmodels' ``PHReg``, with which it agrees as it does with R's survival, takes .3
to .9 s for a table of 8,000 rows, and a study of four sites has two hundred.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import PenstockError
from penstock.questions.estimands import MODELS, Estimand
from penstock.schema import Column, Schema
from penstock_server.analysis.cox import fit_cox

Array = NDArray[np.float64]

MIN_ROWS = 10
"""Complete rows below which nothing is fitted."""
MAX_INFLATION = 1e4
"""A coefficient whose variance is this many times that of an unrelated, balanced term counts as
not identified: (quasi-)separation makes it grow without limit, collinearity to 1/(1−R²)."""
MIN_RESIDUAL = 1e-8
"""Share of the outcome's variance that must be left over by a linear model: a table that is an
exact linear function would otherwise buy unlimited weight."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """One coefficient, on the coefficient scale: the logarithm of a ratio, a difference, a mean.

    Attributes:
        estimate: per ``Estimand.per`` units of the term; NaN where there is a problem.
        variance: squared standard error, model-based; NaN where there is a problem.
        n: complete rows used.
        events: outcomes equal to 1 (logistic), events (cox) or what was counted in all (poisson)
            among them; None for ols and mean.
        converged: the fit ended at a maximum.
        problem: why there is no estimate, or None.
    """

    estimate: float
    variance: float
    n: int
    events: int | None
    converged: bool
    problem: str | None = None


class _Degenerate(Exception):
    """The table does not identify the estimand; the text goes into ``Estimate.problem``."""


@dataclass(frozen=True, slots=True)
class _Fit:
    coefficient: float
    variance: float
    converged: bool
    unit_variance: float | None
    """Variance of an unrelated term of standard deviation 1, where separation is possible."""


def estimate(frame: Mapping[str, Array], schema: Schema, estimand: Estimand) -> Estimate:
    """Fit the estimand's model on the complete cases of a coded table.

    Design: an intercept (not for cox), then the adjustment columns, then the term: numbers as
    they are, binary columns as 0/1, ordered ones as their level's index, categorical ones as
    dummies against the first level. Columns that are constant or linear combinations of earlier
    ones are left out, as R does; the estimand is refused if that hits the term. Columns are
    standardised for the fit and transformed back. Variances are the model-based ones. A mean has no
    design: its variance is s²/n, with s² the sample variance.

    Args:
        frame: column name → float64 array, shape (n,); NaN and infinities count as missing.
        schema: describes the columns.
        estimand: must fit the schema (a :class:`penstock.study.study.Study` checks that).

    Raises:
        PenstockError: the estimand does not fit the schema. Never because of the table.
    """
    if estimand.model not in MODELS:
        raise PenstockError("unknown model", value=estimand.model, bound=", ".join(MODELS))
    n, events = 0, None
    try:
        used = _complete_cases(frame, schema, estimand)
        n = len(used[estimand.outcome])
        outcome = used[estimand.outcome]
        event = None
        if estimand.model in ("logistic", "cox"):
            event = used[_event_column(schema, estimand)] if estimand.model == "cox" else outcome
            events = int(event.sum()) if np.isin(event, (0.0, 1.0)).all() else None
        elif estimand.model == "poisson":
            events = _counted(outcome)
        if n < MIN_ROWS:
            raise _Degenerate(f"too few complete rows: {n}")
        if estimand.model == "mean":
            value, variance = _mean(outcome)
            return Estimate(value, variance, n, None, converged=True)
        design, scale = _design(used, schema, estimand, intercept=estimand.model != "cox")
        if n < design.shape[1] + 2:
            raise _Degenerate(f"too few complete rows: {n} for {design.shape[1]} columns")
        found = _fitted(_FITS[estimand.model], outcome, event, design)
        factor = estimand.per / scale
        value, variance = found.coefficient * factor, found.variance * factor * factor
        if not (math.isfinite(value) and 0 < variance < math.inf):
            raise _Degenerate("the estimate overflows")
    except _Degenerate as problem:
        return Estimate(math.nan, math.nan, n, events, converged=False, problem=str(problem))
    return Estimate(value, variance, n, events, converged=True)


def _fitted(
    fit: Callable[[Array, Array | None, Array], _Fit],
    outcome: Array,
    event: Array | None,
    design: Array,
) -> _Fit:
    """The fit, or _Degenerate: the one boundary where foreign libraries' errors are mapped."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = fit(outcome, event, design)
    except _Degenerate:
        raise
    except Exception as error:  # any numerical library may raise anything on a hostile table
        raise _Degenerate(f"the model could not be fitted ({type(error).__name__})") from error
    if not found.converged:
        raise _Degenerate("the fit did not converge (separation?)")
    if not (math.isfinite(found.coefficient) and 0 < found.variance < math.inf):
        raise _Degenerate("the fit is not finite")
    if found.unit_variance is not None and found.variance > MAX_INFLATION * found.unit_variance:
        raise _Degenerate("the term is hardly identified (separation or collinearity)")
    return found


def _ols(outcome: Array, event: Array | None, design: Array) -> _Fit:
    # Here, as below: statsmodels takes a second to load, which a Cox model need not wait for.
    from statsmodels.regression.linear_model import OLS

    spread = float(np.std(outcome))
    if not 1e-10 * float(np.abs(outcome).max()) < spread < math.inf:
        raise _Degenerate("the outcome is constant or overflows")
    result = OLS((outcome - outcome.mean()) / spread, design).fit()
    if not float(result.ssr) > MIN_RESIDUAL * len(outcome):
        raise _Degenerate("the outcome is a linear function of the columns")
    covariance = np.asarray(result.cov_params())
    return _Fit(
        float(result.params[-1]) * spread, float(covariance[-1, -1]) * spread**2, True, None
    )


def _logistic(outcome: Array, event: Array | None, design: Array) -> _Fit:
    from statsmodels.discrete.discrete_model import Logit

    share = _event_share(outcome, design.shape[1] - 1)
    result = Logit(outcome, design).fit(method="newton", maxiter=50, tol=1e-10, disp=0)
    covariance = np.asarray(result.cov_params())
    return _Fit(
        float(result.params[-1]),
        float(covariance[-1, -1]),
        bool(result.mle_retvals["converged"]),
        1.0 / (len(outcome) * share * (1.0 - share)),
    )


def _cox(outcome: Array, event: Array | None, design: Array) -> _Fit:
    if event is None:  # only the type checker can get here
        raise _Degenerate("no event column")
    if not (outcome >= 0).all():
        raise _Degenerate("a duration is negative")
    share = _event_share(event, design.shape[1], censored=False)
    found = fit_cox(outcome, event, design)
    return _Fit(
        float(found.coefficients[-1]),
        float(found.covariance[-1, -1]),
        0 <= found.to_gain < 1e-9,
        1.0 / (len(outcome) * share),
    )


def _poisson(outcome: Array, event: Array | None, design: Array) -> _Fit:
    """Log-linear model of counts with variance = mean (McCullagh & Nelder 1989, chapter 6)."""
    from statsmodels.genmod.families import Poisson
    from statsmodels.genmod.generalized_linear_model import GLM

    counted = _counted(outcome)
    if counted is None:
        raise _Degenerate("the outcome is not a count")
    columns = design.shape[1] - 1
    if counted < max(1, columns):
        raise _Degenerate(f"too few events: {counted} for {columns} columns")
    model = GLM(outcome, design, family=Poisson())
    result = model.fit(maxiter=100, tol=1e-12)
    covariance = np.asarray(result.cov_params())
    score = np.asarray(model.score(result.params))
    # Half the Newton decrement, as for cox: the fit's own criterion looks at the deviance only.
    to_gain = 0.5 * float(score @ covariance @ score)
    return _Fit(float(result.params[-1]), float(covariance[-1, -1]), to_gain < 1e-9, 1.0 / counted)


def _counted(outcome: Array) -> int | None:
    """The sum of counts; None where they are none."""
    whole = (outcome >= 0).all() and (outcome == np.floor(outcome)).all()
    return int(outcome.sum()) if whole and outcome.sum() < 1e15 else None


def _mean(outcome: Array) -> tuple[float, float]:
    """Mean and s²/n."""
    with np.errstate(all="ignore"):
        value, spread = float(outcome.mean()), float(outcome.std(ddof=1))
    if not 1e-10 * float(np.abs(outcome).max()) < spread < math.inf:
        raise _Degenerate("the outcome is constant or overflows")
    variance = spread * spread / len(outcome)
    if not (math.isfinite(value) and 0 < variance < math.inf):
        raise _Degenerate("the estimate overflows")
    return value, variance


_FITS: dict[str, Callable[[Array, Array | None, Array], _Fit]] = {
    "ols": _ols,
    "logistic": _logistic,
    "cox": _cox,
    "poisson": _poisson,
}


def _event_share(event: Array, columns: int, *, censored: bool = True) -> float:
    """The share of events, of which there must be as many as columns (and non-events, if asked)."""
    if not np.isin(event, (0.0, 1.0)).all():
        raise _Degenerate("the outcome has other values than 0 and 1")
    events = float(event.sum())
    least = min(events, len(event) - events) if censored else events
    if least < max(1, columns):
        kind = "events or non-events" if censored else "events"
        raise _Degenerate(f"too few {kind}: {least:.0f} for {columns} columns")
    return events / len(event)


def _event_column(schema: Schema, estimand: Estimand) -> str:
    name = schema[estimand.outcome].event
    if name is None:
        raise PenstockError(
            "a cox model needs a duration with an event column",
            value=estimand.outcome,
            remedy="name the duration's event column in the schema",
        )
    return name


def _complete_cases(
    frame: Mapping[str, Array], schema: Schema, estimand: Estimand
) -> dict[str, Array]:
    names = {estimand.outcome, estimand.term, *estimand.adjust}
    if estimand.model == "cox":
        names.add(_event_column(schema, estimand))
    absent = sorted(names - frame.keys())
    if absent:
        raise _Degenerate(f"the table lacks {', '.join(absent)}")
    arrays = {name: np.asarray(frame[name], dtype=np.float64) for name in sorted(names)}
    if len({a.shape for a in arrays.values()}) != 1 or arrays[estimand.term].ndim != 1:
        raise _Degenerate("the table's columns differ in length")
    keep = np.logical_and.reduce([np.isfinite(a) for a in arrays.values()])
    return {name: a[keep] for name, a in arrays.items()}


def _design(
    used: Mapping[str, Array], schema: Schema, estimand: Estimand, *, intercept: bool
) -> tuple[Array, float]:
    """The design matrix, shape (n, p), standardised, the target last; and the target's sd."""
    columns: list[Array] = []
    for name in estimand.adjust:
        columns += _coded(schema[name], used[name])
    term = _coded(schema[estimand.term], used[estimand.term], last=estimand.level)
    columns += term
    n = len(used[estimand.term])
    kept: list[Array] = [np.ones(n)] if intercept else []
    basis: list[Array] = [np.full(n, 1.0 / math.sqrt(n))]
    for position, column in enumerate(columns, start=1):
        scale = _independent(column, basis)
        if scale is not None:
            kept.append((column - column.mean()) / scale)
        elif position == len(columns):
            raise _Degenerate("the term is constant or a linear combination of other columns")
    return np.column_stack(kept), float(np.std(columns[-1]))


def _independent(column: Array, basis: list[Array]) -> float | None:
    """The column's sd and one more basis vector if it is independent of the basis, else None.

    Gram–Schmidt, twice, on the centred and scaled column; the basis holds the constant, so that a
    cox model, too, drops constant columns.
    """
    with np.errstate(all="ignore"):
        scale = float(np.std(column))
        if not (math.isfinite(scale) and scale > 1e-10 * float(np.abs(column).max())):
            return None
        rest = (column - column.mean()) / (scale * math.sqrt(len(column)))
        for _ in range(2):
            for direction in basis:
                rest = rest - (direction @ rest) * direction
        norm = float(np.linalg.norm(rest))
        if not norm > 1e-7:
            return None
        basis.append(rest / norm)
    return scale


def _coded(column: Column, values: Array, *, last: str | None = None) -> Sequence[Array]:
    """The column's design columns; of a categorical one, the level ``last`` comes last."""
    if column.kind != "categorical":
        return [values]
    levels = list(range(1, len(column.levels)))
    if last is not None:
        if last not in column.levels[1:]:
            raise PenstockError(
                "not a level that can be compared with the first one",
                value=last,
                bound=", ".join(column.levels[1:]),
            )
        target = column.levels.index(last)
        levels.remove(target)
        levels.append(target)
    return [(values == level).astype(np.float64) for level in levels]
