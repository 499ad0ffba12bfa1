"""One contract for every kind of event: fail closed, count once, round trip, compose."""

import dataclasses
import json
import math
import typing

import pytest
from tests.support.kinds import BOUNDED, FIELDS, LESS_NOISE, MORE_NOISE, make

from penstock.base.errors import InvalidEvent
from penstock.privacy import events
from penstock.privacy.accounting import pld
from penstock.privacy.accounting.accountant import epsilon, epsilon_pld
from penstock.privacy.accounting.renyi import delta_off_top, renyi, renyi_total
from penstock.privacy.events import (
    FixedSizeGaussian,
    Gaussian,
    OnStratum,
    PoissonGaussian,
    Pure,
    Unbounded,
    from_dict,
    to_dict,
)
from penstock.privacy.measurements import LatentNoise

DELTA = 1e-6
ORDERS = (1.25, 2.0, 6.0, 6.5, 40.0)

WRONG = [math.nan, math.inf, -math.inf, 0.0, -1.0, 0, -1, "1", None, [1.0]]
WRONG_WHOLE = [*WRONG, 1.5, 1.0, True, 10**12]
WRONG_SHARE = [*WRONG, 1.0, 2.0, True]
SHARES = {"rate", "local_delta", "delta"}


def wrong_values():
    for kind, given in FIELDS.items():
        hints = typing.get_type_hints(events._KINDS[kind])
        for field in dataclasses.fields(events._KINDS[kind]):
            if hints[field.name] is int:
                wrong = WRONG_WHOLE
            elif hints[field.name] is float:
                wrong = WRONG_SHARE if field.name in SHARES else [*WRONG, True]
            else:
                continue
            for value in wrong:
                if (
                    field.name in ("dropouts", "colluders")
                    and value == 0
                    and not isinstance(value, bool)
                ):
                    continue
                yield pytest.param(kind, {**given, field.name: value}, id=f"{kind}-{field.name}")


def test_every_kind_is_here():
    assert set(FIELDS) == set(events._KINDS)
    for kind in FIELDS:
        assert make(kind).kind == kind


@pytest.mark.parametrize(("kind", "fields"), [*wrong_values()])
def test_what_is_no_parameter_is_refused(kind, fields):
    with pytest.raises(InvalidEvent):
        events._KINDS[kind](**fields)
    with pytest.raises(InvalidEvent):
        from_dict({"kind": kind, **fields})


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (FixedSizeGaussian, {"batch": 5, "population": 5, "noise_multiplier": 1.0}),
        (events.NoisyDescent, {"noise_multiplier": 1.0, "contraction": 1.01, "steps": 3}),
        (
            events.DistributedGaussian,
            {"noise_multiplier": 1.0, "sites": 3, "dropouts": 2, "colluders": 1},
        ),
        (
            events.DistributedGaussian,
            {"noise_multiplier": 1.0, "sites": 3, "dropouts": 0, "colluders": 1, "grid_sd": 1e3},
        ),
        (OnStratum, {"stratum": "", "event": Gaussian(1.0)}),
        (OnStratum, {"stratum": "a", "event": OnStratum("b", Gaussian(1.0))}),
        (OnStratum, {"stratum": "a", "event": None}),
    ],
)
def test_what_contradicts_itself_is_refused(cls, fields):
    with pytest.raises(InvalidEvent):
        cls(**fields)


@pytest.mark.parametrize("kind", FIELDS)
def test_round_trip(kind):
    event = make(kind, count=3, label="why")
    assert from_dict(to_dict(event)) == event
    assert from_dict(json.loads(json.dumps(to_dict(event)))) == event
    assert hash(from_dict(to_dict(event))) == hash(event)


@pytest.mark.parametrize("kind", FIELDS)
def test_records_with_more_or_less_than_the_fields_are_refused(kind):
    record = to_dict(make(kind))
    with pytest.raises(InvalidEvent):
        from_dict({**record, "extra": 1})
    for name in set(FIELDS[kind]) - {"grid_sd", "size"}:
        with pytest.raises(InvalidEvent):
            from_dict({k: v for k, v in record.items() if k != name})


@pytest.mark.parametrize("record", [{}, {"kind": "snapping"}, {"kind": ["gaussian"]}, {"kind": 1}])
def test_unknown_records_are_refused(record):
    with pytest.raises(InvalidEvent):
        from_dict(record)


@dataclasses.dataclass(frozen=True)
class Foreign:
    """Of no known kind, though it looks like one."""

    noise_multiplier: float = 1.0
    count: int = 1
    label: str = ""
    delta_off_top: float = 0.0


@pytest.mark.parametrize("event", [Foreign(), object(), "gaussian", None])
def test_events_of_no_known_kind_are_refused(event):
    for account in (
        lambda: renyi(event, 2.0),
        lambda: delta_off_top([event]),
        lambda: epsilon([Gaussian(1.0), event], DELTA),
        lambda: epsilon_pld([Gaussian(1.0), event], DELTA),
        lambda: epsilon_pld([event], DELTA, relation="replace-one"),
    ):
        with pytest.raises(InvalidEvent):
            account()


@pytest.mark.parametrize("kind", FIELDS)
def test_an_event_cannot_be_changed(kind):
    event = make(kind)
    with pytest.raises((AttributeError, TypeError)):
        event.count = 0
    with pytest.raises((AttributeError, TypeError)):
        object.__setattr__(event, "another", 1)


@pytest.mark.parametrize("kind", BOUNDED)
@pytest.mark.parametrize("n", [2, 7, 400])
def test_n_at_once_equal_n_single_ones(kind, n):
    for order in ORDERS:
        together, apart = renyi(make(kind, count=n), order), renyi_total([make(kind)] * n, order)
        assert together == pytest.approx(apart, rel=1e-12)
    off_top = delta_off_top([make(kind)] * n)
    assert delta_off_top([make(kind, count=n)]) == pytest.approx(off_top, rel=1e-12)
    assert epsilon([make(kind, count=n)], 1e-4) == pytest.approx(
        epsilon([make(kind)] * n, 1e-4), rel=1e-9
    )


@pytest.mark.parametrize("kind", BOUNDED)
@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_n_at_once_equal_n_single_distributions(kind, relation):
    """Composed by dp-accounting one by one, without the merging that both sides share else."""
    once = [make(kind)]
    if relation == "replace-one":
        once = [pld.replace_one(e.event if kind == "on-stratum" else e) for e in once]
    elif kind == "on-stratum":
        once = [once[0].event]
    replaced, delta = relation == "replace-one", 1e-5
    single = pld.compose(once, delta, replaced)
    found = epsilon_pld([make(kind, count=4)], delta, relation=relation)
    assert found == pytest.approx(epsilon_pld([make(kind)] * 4, delta, relation=relation), abs=1e-9)
    if single.distribution is not None:
        others = single.distribution
        apart = others.compose(others).compose(others).compose(others)
        left = delta - delta_off_top(once * 4)
        assert found == pytest.approx(apart.get_epsilon_for_delta(left), abs=1e-3)


@pytest.mark.parametrize("kind", BOUNDED)
def test_more_noise_never_costs_more(kind):
    noises = (LESS_NOISE, 1.0, MORE_NOISE, 10.0)
    for account in (
        lambda e: renyi(e, 7.5),
        lambda e: epsilon([e], DELTA),
        lambda e: epsilon_pld([e], DELTA),
        lambda e: epsilon_pld([e], DELTA, relation="replace-one"),
    ):
        costs = [account(make(kind, count=3, noise=noise)) for noise in noises]
        assert costs == sorted(costs, reverse=True)
        assert all(c >= 0 and math.isfinite(c) for c in costs)
        assert costs[0] > costs[-1]


@pytest.mark.parametrize("kind", BOUNDED)
def test_replace_one_costs_at_least_zero_out_and_the_distribution_no_more_than_renyi(kind):
    event = make(kind, count=3)
    zero_out = epsilon_pld([event], DELTA)
    assert zero_out <= epsilon_pld([event], DELTA, relation="replace-one")
    assert zero_out <= epsilon([event], DELTA)


@pytest.mark.parametrize("kind", FIELDS)
def test_nothing_is_free_beside_something(kind):
    alone, both = [Gaussian(5.0)], [Gaussian(5.0), make(kind)]
    for account in (epsilon, epsilon_pld):
        assert account(both, DELTA) > account(alone, DELTA)
    for order in ORDERS:
        assert renyi_total(both, order) > renyi_total(alone, order)


@pytest.mark.parametrize("kind", FIELDS)
def test_a_call_that_fails_changes_nothing(kind):
    event, given = make(kind, count=2), [make(kind, count=2), Gaussian(5.0)]
    before, kept = epsilon(given, DELTA), list(given)
    for delta in (0.0, 1.0, math.nan, -1.0):
        with pytest.raises(InvalidEvent):
            epsilon(given, delta)
        with pytest.raises(InvalidEvent):
            epsilon_pld(given, delta)
    for order in (1.0, 0.0, math.nan, math.inf):
        with pytest.raises(InvalidEvent):
            renyi_total(given, order)
    with pytest.raises(InvalidEvent):
        epsilon([*given, None], DELTA)
    assert given == kept
    assert event == make(kind, count=2)
    assert epsilon(given, DELTA) == before


def test_the_order_of_events_is_irrelevant():
    given = [make(kind, count=2) for kind in BOUNDED]
    for order in ORDERS:
        assert renyi_total(given, order) == renyi_total(given[::-1], order)
    assert epsilon(given, 1e-5) == epsilon(given[::-1], 1e-5)
    ours = epsilon_pld(given, 1e-5)
    assert ours == pytest.approx(epsilon_pld(given[::-1], 1e-5), rel=1e-6)


def test_labels_and_units_cost_nothing():
    plain = [PoissonGaussian(0.1, 2.0, 3), PoissonGaussian(0.1, 2.0, 2)]
    told = [PoissonGaussian(0.1, 2.0, 3, "a", 7.0), PoissonGaussian(0.1, 2.0, 2, "b", 0.1)]
    assert epsilon(plain, DELTA) == epsilon(told, DELTA)
    assert epsilon_pld(plain, DELTA) == epsilon_pld(told, DELTA)


@pytest.mark.parametrize("kind", sorted(set(BOUNDED) - {"on-stratum"}))
def test_strata_cost_the_dearest_of_them(kind):
    dear, cheap, common = make(kind, count=5), make(kind, count=2), Gaussian(6.0)
    given = [OnStratum("a", dear), common, OnStratum("b", cheap)]
    for order in ORDERS:
        assert renyi_total(given, order) == renyi_total([dear, common], order)
    assert delta_off_top(given) == dear.delta_off_top
    for account in (epsilon, epsilon_pld):
        assert account(given, DELTA) == account([common, dear], DELTA)
    # In one stratum they add up.
    same = [OnStratum("a", dear), common, OnStratum("a", cheap)]
    assert renyi_total(same, 3.0) == renyi_total([dear, common, cheap], 3.0)
    assert epsilon(same, DELTA) > epsilon(given, DELTA)


def test_an_unbounded_stratum_is_unbounded():
    given = [OnStratum("a", Unbounded()), OnStratum("b", Gaussian(5.0))]
    assert epsilon(given, DELTA) == epsilon_pld(given, DELTA) == math.inf
    assert renyi_total(given, 2.0) == math.inf


@pytest.mark.parametrize("delta", [1e-9, 3e-9, 4e-9])
def test_no_delta_left_is_no_guarantee(delta):
    # Four at 1e-9 each are taken off the top, and at least 1e-12 must be left.
    given = [make("approximate", count=4)]
    assert epsilon(given, delta) == math.inf
    assert epsilon_pld(given, delta) == math.inf
    assert epsilon(given, 4.1e-9) < 3.0


@pytest.mark.parametrize(("w", "clip"), [(0.5, 2.0), (0.95, 3.0)])
def test_latent_injection_has_the_published_price(w, clip):
    # docs/privacy.md, "What each mechanism is charged for": R = 2, w = .5 costs 10.0 and R = 3,
    # w = .95 costs 140 at δ = 1e-5 (exact Gaussian); with the diameter 24.4 and 453. The RDP bound
    # is above.
    zero_out, diameter = {(0.5, 2.0): (10.0, 24.4), (0.95, 3.0): (140.0, 453.0)}[(w, clip)]
    event = LatentNoise(w, clip).event
    assert epsilon_pld((event,), 1e-5) == pytest.approx(zero_out, rel=0.01)
    assert epsilon_pld((event,), 1e-5, relation="replace-one") == pytest.approx(diameter, rel=0.01)
    assert epsilon((event,), 1e-5) >= zero_out * 0.999


@pytest.mark.parametrize("w", [0.0, 1.0, -0.1, math.nan])
def test_latent_injection_refuses_a_w_outside_its_domain(w):
    with pytest.raises(InvalidEvent):
        LatentNoise(w, 2.0)


ABSURD = [
    Gaussian(1e-200),
    Gaussian(1e300, 10**9),
    Gaussian(1e-6, 10**9),
    PoissonGaussian(1e-9, 1e-6, 10**9),
    PoissonGaussian(5e-324, 1.0, 10**9),
    PoissonGaussian(1 - 1e-16, 1e9, 10**9),
    FixedSizeGaussian(10**9, 10**10, 1e-3, 10**9),
    FixedSizeGaussian(1, 10**10, 1e-3, 10**9),
    events.Laplace(1e-300, 10**9),
    events.Laplace(1e4, 10**9),
    events.NoisyDescent(1e-3, 1e-300, 10**9, 10**9),
    events.ShuffledGaussian(10**10, 1e-3, 1e-300, 1e-6),
    events.DiscreteGaussian(1e-3, 10**9, grid_sd=1e-9, size=10**9),
    Pure(1e-4, 10**9),
    Pure(1e308, 10**9),
    events.Approximate(1e300, 5e-324, 10**9),
]


@pytest.mark.parametrize("event", ABSURD, ids=lambda e: e.kind)
@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_absurd_events_are_answered(event, relation):
    """A coordinator accounts for what a stranger writes; the suite's timeout is the test."""
    try:
        found = epsilon([event], DELTA), epsilon_pld([event], DELTA, relation=relation)
    except InvalidEvent:
        return
    assert all(value >= 0 for value in found)
