"""Laws of the encoding: exact inverse, the box, no bias, and nothing wild gets through."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.base.errors import InvalidInput
from penstock.schema import LEVEL_KINDS, SCALES, Column, Schema, end_follow_up
from penstock.schema.encoding import TRUNCATE, Encoding, KeptDither, simplex

CUTOFF = 5.6  # |z| of a two-sided test with a false-alarm rate of 2e-8

LEVELS = {
    "binary": ("no", "yes"),
    "event": (),
    "ordered": ("a", "b", "c", "d"),
    "categorical": tuple("pqrstuv"),
}


def schema_of(column: Column) -> Schema:
    """The column with what it cannot be without."""
    if column.kind == "duration":
        return Schema((column, Column(column.event or "", "event")))
    if column.kind == "event":
        return Schema((Column("t", "duration", upper=1, event=column.name), column))
    return Schema((column,))


def filled(schema: Schema, **values: npt.ArrayLike) -> dict[str, npt.ArrayLike]:
    n = len(np.atleast_1d(next(iter(values.values()))))
    return {name: np.zeros(n) for name in schema.names} | dict(values)


@st.composite
def columns(draw: st.DrawFn) -> Column:
    """Every kind with every option that goes with it."""
    kind = draw(st.sampled_from(("continuous", "integer", "duration", *LEVELS)))
    nullable = draw(st.booleans())
    if kind in LEVELS:
        return Column("x", kind, levels=LEVELS[kind], nullable=nullable)
    event = "e" if kind == "duration" else None
    decimals = None
    if kind == "integer":
        first = draw(st.integers(-9, 9) | st.integers(-(10**12), 9 * 10**11))
        last = first + 1 + draw(st.integers(0, 9) | st.integers(0, 10**11)) + abs(first) // 10**8
        lower, upper = float(first), float(last)
    else:
        decimals = draw(st.none() | st.integers(0, 6))
        lower = 0.0 if event else draw(st.sampled_from((0.0, 0.3)) | st.floats(-1e6, 1e6))
        upper = lower + draw(st.floats(2.5, 1e6))
    column = Column("x", kind, lower, upper, decimals, nullable=nullable, event=event)
    if column.grid is not None and draw(st.booleans()):
        within = draw(st.sampled_from((lower, upper)) | st.floats(lower, upper))
        column = replace(column, spike=float(column.snap(within)))
    scale = draw(st.none() | st.sampled_from(SCALES))
    try:
        return replace(column, scale=scale)
    except InvalidInput:  # no log of such bounds
        return column


def rows_of(column: Column, rng: np.random.Generator, n: int) -> npt.NDArray[np.float64]:
    """Values within the schema: at the bounds, between them, at the spike, missing."""
    if column.kind in LEVEL_KINDS:
        values = rng.integers(0, len(column.levels), n).astype(np.float64)
    else:
        lower, upper = column.bounds
        values = column.snap(np.concatenate([[lower, upper], rng.uniform(lower, upper, n - 2)]))
        if column.spike is not None:
            beside = column.spike + np.array([-1, 0, 1]) / 10.0 ** (column.decimals or 0)
            values[2 : 2 + n // 2] = column.snap(np.resize(beside, n // 2))
    if column.nullable:
        values[::5] = np.nan
    return values


@settings(deadline=None, max_examples=300)
@given(column=columns(), seed=st.integers(0, 2**32 - 1))
@example(column=Column("x", "duration", 0, 6, 0, spike=5, event="e"), seed=0)  # beside the end
def test_decode_inverts_encode(column: Column, seed: int) -> None:
    schema, rng = schema_of(column), np.random.default_rng(seed)
    values = rows_of(column, rng, 64)
    x, present = (e := Encoding(schema)).encode(filled(schema, x=values), rng)
    decoded = e.decode(x)["x"]
    assert present.all()
    exact = column.kind in LEVEL_KINDS or column.grid is not None
    tolerance = 0.0
    if not exact:
        # One rounding of a number of the bounds' size, and 1e-12 (durations 1e-9) of the range.
        lower, upper = column.bounds
        share = 1e-9 if column.kind == "duration" else 1e-12
        tolerance = share * (upper - lower) + 4 * np.spacing(max(abs(lower), abs(upper)))
    np.testing.assert_allclose(decoded, values, rtol=0, atol=tolerance)


def test_decode_inverts_encode_on_a_whole_table() -> None:
    schema = Schema(
        (
            Column("cigarettes", "integer", 0, 200, spike=0, scale="log", nullable=True),
            Column("crp", "continuous", 0, 500, 1, spike=0.3, scale="log"),
            Column("ef", "continuous", 0, 100, 0, nullable=True),
            Column("time", "duration", upper=10, decimals=2, spike=10, event="died"),
            Column("died", "event"),
            Column("ward", "categorical", levels=tuple("pqrstuv"), nullable=True),
            Column("stage", "ordered", levels=tuple("abcd")),
        )
    )
    rng = np.random.default_rng(9)
    coded = {c.name: rng.permutation(rows_of(c, rng, 5000)) for c in schema.columns}
    x, present = (e := Encoding(schema)).encode(coded, rng)
    assert present.all()
    assert [d.name for d in e.dims[:3]] == ["cigarettes", "cigarettes=0", "cigarettes?"]
    for name, values in e.decode(x).items():
        np.testing.assert_array_equal(values, coded[name])


@settings(deadline=None, max_examples=200)
@given(column=columns(), data=st.data())
def test_decoding_anything_stays_within_the_schema(column: Column, data: st.DataObject) -> None:
    encoding = Encoding(schema := schema_of(column))
    x = data.draw(hnp.arrays(np.float64, (8, encoding.d)))  # NaN, infinities and subnormals too
    for name, values in encoding.decode(x).items():
        there = values[~np.isnan(values)]
        assert there.size == values.size or schema[name].nullable
        np.testing.assert_array_equal(schema[name].snap(there), there)


@pytest.mark.parametrize("scale", [None, *SCALES])
@pytest.mark.parametrize("spike", [0, 0.3, 2.4, 2.5])
@pytest.mark.parametrize("kind", ["continuous", "duration"])
def test_a_row_is_at_the_spike_where_its_coordinate_says_so(
    kind: str, spike: float, scale: str | None
) -> None:
    event = "e" if kind == "duration" else None
    column = Column("x", kind, 0, 2.5, 1, spike=spike, scale=scale, event=event)
    encoding = Encoding(schema_of(column))
    x = 2 * np.random.default_rng(11).standard_cauchy((500, encoding.d))
    decoded = encoding.decode(x)
    if kind == "duration":
        ended = (x[:, 1 + (spike != 2.5)] > 0) & (decoded["e"] == 0)
        np.testing.assert_array_equal((decoded["x"] == 2.5) & (decoded["e"] == 0), ended)
        if spike == 2.5:  # what every duration has: events are at the end by their numbers
            assert "x=2.5" not in {dim.name for dim in encoding.dims}
            return
        x[ended, 1] = -1.0
    np.testing.assert_array_equal(decoded["x"] == spike, x[:, 1] > 0)


# The end of follow-up -------------------------------------------------------------------------


def trial(**options: object) -> Schema:
    """Follow-up of 182 days."""
    given: dict[str, object] = {"decimals": 0, **options}
    return Schema(
        (
            Column("t", "duration", upper=182, event="died", **given),  # type: ignore[arg-type]
            Column("died", "event"),
        )
    )


@pytest.mark.parametrize("options", [{}, {"decimals": None}, {"scale": "log"}, {"spike": 0}])
def test_event_free_at_the_end_of_follow_up_is_a_coordinate_that_nobody_asked_for(
    options: dict[str, object],
) -> None:
    """Most of a trial's persons are there: no number's place, which noise would smear."""
    encoding, n = Encoding(trial(**options)), 400
    [(duration, event, end)] = encoding.outcomes
    assert (encoding.dims[end].role, encoding.dims[end].column) == ("end", "t")
    assert list(encoding.levels[end]) == [-1, 1]
    cases = {  # time, event → whether the end's coordinate is positive
        (182.0, 0.0): True,
        (182.0, 1.0): False,
        (181.0, 0.0): False,
        (30.0, 1.0): False,
    }
    for (time, died), ended in cases.items():
        rng = np.random.default_rng(1)
        coded = {"t": np.full(n, time), "died": np.full(n, died)}
        x, present = encoding.encode(coded, rng)
        assert present.all()
        assert ((x[:, end] > 0) == ended).all()
        assert ((x[:, event] > 0) == (died > 0)).all()
        if ended:  # the number's own coordinate says nothing, whatever the follow-up is
            assert abs(x[:, duration].mean()) < CUTOFF * x[:, duration].std() / np.sqrt(n)
        # However its coordinates are smeared, a row stays what it was.
        x[:, duration] += rng.normal(0, 3, n) if ended else 0.0
        decoded = encoding.decode(x)
        np.testing.assert_allclose(decoded["t"], time, rtol=1e-12)
        np.testing.assert_array_equal(decoded["died"], died)


@settings(deadline=None, max_examples=100)
@given(
    decimals=st.none() | st.integers(0, 3),
    upper=st.sampled_from((0.77, 5.0, 182.0, 14.2779)),
    spike=st.booleans(),
    nullable=st.booleans(),
    data=st.data(),
)
def test_a_row_is_event_free_at_the_end_where_its_coordinates_say_so(
    decimals: int | None, upper: float, spike: bool, nullable: bool, data: st.DataObject
) -> None:
    """One fact of three: an event, event-free at the end, censored earlier."""
    decimals = 1 if decimals == 0 and upper < 1 else decimals
    at_zero = 0.0 if spike and decimals is not None else None
    time = Column("t", "duration", 0, upper, decimals, at_zero, nullable=nullable, event="e")
    encoding = Encoding(Schema((time, Column("e", "event"))))
    [(_, _, end)] = encoding.outcomes
    x = data.draw(hnp.arrays(np.float64, (8, encoding.d), elements=st.floats(-3, 3)))
    decoded = encoding.decode(x)
    missing, last = np.isnan(decoded["t"]), time.snap(upper)
    happened = decoded["e"] > 0
    ended = ~happened & (x[:, end] > 0)
    np.testing.assert_array_equal(
        ~happened & (decoded["t"] == last), ended & ~missing, err_msg=str(decoded)
    )
    # And the same rows come back, whatever noise they get.
    again, _ = encoding.encode(decoded, np.random.default_rng(0))
    back = encoding.decode(again)
    np.testing.assert_array_equal(back["e"], decoded["e"])
    np.testing.assert_allclose(back["t"], decoded["t"], rtol=0, atol=1e-9 * upper)


def test_what_happens_after_the_follow_up_has_not_happened() -> None:
    schema = trial(decimals=1)
    times = [181.9, 182.0, 182.04, 182.06, 400.0, np.inf, 400.0, np.nan]
    events = [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, np.nan, 1.0]
    seen = end_follow_up({"t": times, "died": events}, schema)
    # What rounding explains is at the end; of an event that is not known the time tells enough.
    np.testing.assert_array_equal(seen["died"], [1, 1, 1, 0, 0, 0, 0, 1])
    np.testing.assert_array_equal(seen["t"], [181.9, 182, 182.04, 182, 182, 182, 182, np.nan])
    x, present = (e := Encoding(schema)).encode(
        {"t": times, "died": events}, np.random.default_rng(3)
    )
    assert present.tolist() == [True] * 7 + [False]
    decoded = e.decode(x[:7])
    np.testing.assert_array_equal(decoded["died"], [1, 1, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(decoded["t"], [181.9, *[182.0] * 6])


def test_a_spike_at_the_follow_up_says_what_every_duration_says() -> None:
    """Somebody wrote it when it mended what is the rule now: the same encoding, to the bit."""
    coded = {"t": [182.0, 182.0, 30.0, 181.0], "died": [0.0, 1.0, 1.0, 0.0]}
    plain, spiked = (Encoding(trial(**o)) for o in ({}, {"spike": 182}))
    assert [d.name for d in plain.dims] == [d.name for d in spiked.dims]
    one, two = (e.encode(coded, np.random.default_rng(4))[0] for e in (plain, spiked))
    np.testing.assert_array_equal(one, two)


def test_times_that_differ_by_rounding_alone_are_the_end() -> None:
    """Days over 365.25, by two programs."""
    schema = Schema((Column("t", "duration", upper=14.2779, event="e"), Column("e", "event")))
    end = np.nextafter(14.2779, [0, 20])
    x, _ = (e := Encoding(schema)).encode({"t": end, "e": [0.0, 0.0]}, np.random.default_rng(5))
    np.testing.assert_array_equal(e.decode(x)["t"], 14.2779)


def test_who_is_not_known_to_be_event_free_has_not_reached_the_end() -> None:
    column = Column("t", "duration", upper=182, decimals=0, event="e", nullable=True)
    schema = Schema((column, Column("e", "event", nullable=True)))
    encoding = Encoding(schema)
    [(_, _, end)] = encoding.outcomes
    coded = {"t": [182.0, np.nan, np.nan, 182.0], "e": [np.nan, 0.0, np.nan, 0.0]}
    x, present = encoding.encode(coded, np.random.default_rng(6))
    assert present.all()
    assert (x[:, end] > 0).tolist() == [False, False, False, True]
    for name, values in encoding.decode(x).items():
        np.testing.assert_array_equal(values, coded[name])


@settings(deadline=None, max_examples=200)
@given(column=columns(), data=st.data())
def test_encoding_anything_is_finite_and_in_the_box(column: Column, data: st.DataObject) -> None:
    encoding = Encoding(schema := schema_of(column))
    coded = {n: data.draw(hnp.arrays(np.float64, 8)) for n in schema.names}
    x, present = encoding.encode(coded, np.random.default_rng(1))
    assert x.shape == (8, encoding.d)
    assert np.isfinite(x).all()
    assert ((x >= encoding.low) & (x <= encoding.high))[present].all()
    assert (x[~present] == 0).all()


@given(column=columns())
def test_dimensions_match(column: Column) -> None:
    encoding = Encoding(schema_of(column))
    assert encoding.d == len(encoding.dims) == encoding.low.size == encoding.high.size
    assert (encoding.low < encoding.high).all()
    assert len({d.name for d in encoding.dims}) == encoding.d


@settings(deadline=None)
@given(column=columns(), data=st.data())
def test_no_point_mass_is_left(column: Column, data: st.DataObject) -> None:
    # One level, the spike, or a missing value in every row: the flow still sees a density.
    values = list(map(float, range(len(column.levels)))) + [
        v for v, there in ((column.spike, column.spike), (np.nan, column.nullable)) if there
    ]
    if values:
        same = np.full(256, data.draw(st.sampled_from(values)))
        encoding = Encoding(schema := schema_of(column))
        x, _ = encoding.encode(filled(schema, x=same), np.random.default_rng(2))
        kept = [i for i, d in enumerate(encoding.dims) if d.column == "x"]
        assert (x[:, kept].std(axis=0) > 0.05).all()
        assert len(np.unique(x[:, kept], axis=0)) == 256


@pytest.mark.parametrize("kind", sorted(LEVELS))
@pytest.mark.parametrize("level", [0, 1])
def test_noise_of_levels_has_no_bias(kind: str, level: int) -> None:
    column = Column("x", kind, levels=LEVELS[kind])
    schema, n = schema_of(column), 20_000
    encoding = Encoding(schema)
    x, _ = encoding.encode(filled(schema, x=np.full(n, level)), np.random.default_rng(3))
    where = [i for i, d in enumerate(encoding.dims) if d.column == "x"]
    count = len(column.levels)
    if kind == "categorical":
        centre = simplex(count)[level]
    else:
        centre = np.array([-1 + 2 * level / (count - 1)])
    error = x[:, where].mean(axis=0) - centre
    assert (np.abs(error) < CUTOFF * x[:, where].std(axis=0) / np.sqrt(n)).all()


@pytest.mark.parametrize(
    ("column", "plain", "nullable"),
    [
        (Column("x", "integer", 0, 9), set(), {"x?"}),
        (Column("x", "integer", 0, 9, spike=0), {"x=0"}, {"x?"}),
        (Column("x", "ordered", levels=LEVELS["ordered"]), {"x"}, {"x?"}),
        (Column("x", "categorical", levels=("p", "q")), {"x"}, {"x?"}),
        (Column("x", "categorical", levels=LEVELS["categorical"]), set(), {"x?"}),
    ],
    ids=lambda c: f"{c.kind}, spike {c.spike}" if isinstance(c, Column) else None,
)
def test_levels_are_the_coordinates_that_say_nothing_else(
    column: Column, plain: set[str], nullable: set[str]
) -> None:
    for within, names in ((column, plain), (replace(column, nullable=True), nullable)):
        encoding = Encoding(Schema((within,)))
        assert {encoding.dims[j].name for j in encoding.levels} == names


@settings(deadline=None)
@given(column=columns(), seed=st.integers(0, 2**32 - 1))
def test_levels_hold_a_level_and_its_noise_alone(column: Column, seed: int) -> None:
    """Whatever the row says, missing or at the spike: so they can be counted level by level."""
    schema, rng = schema_of(column), np.random.default_rng(seed)
    encoding = Encoding(schema)
    x, _ = encoding.encode(filled(schema, x=rows_of(column, rng, 256)), rng)
    for j, points in encoding.levels.items():
        far = np.abs(x[:, j, None] - points).min(axis=1)
        assert (far <= TRUNCATE * np.diff(points).min() / 2 + 1e-12).all()


@pytest.mark.parametrize("value", [3, 7, 10])
def test_dequantised_numbers_have_no_bias(value: int) -> None:
    schema, n = Schema((Column("x", "integer", 3, 10),)), 20_000
    x, _ = Encoding(schema).encode({"x": np.full(n, value)}, np.random.default_rng(4))
    centre = 2 * (value - 3 + 0.5) / 8 - 1
    assert abs(x.mean() - centre) < CUTOFF * x.std() / np.sqrt(n)
    assert 0.9 * 0.125 < np.ptp(x) / 2 <= 0.125  # a step is 0.25, and it is filled


def test_equal_ratios_are_equal_distances_on_a_log_scale() -> None:
    schema = Schema((Column("x", "continuous", 1, 1000, scale="log"),))
    x, _ = Encoding(schema).encode({"x": [1, 10, 100, 1000]}, np.random.default_rng(12))
    np.testing.assert_allclose(x[:, 0], [-1, -1 / 3, 1 / 3, 1], atol=1e-12)


@pytest.mark.parametrize("spike", [None, 0])
@pytest.mark.parametrize("count", [1, 2, 9, 200])
def test_counts_are_seen_as_the_log_of_one_more(count: int, spike: int | None) -> None:
    schema = Schema((Column("x", "integer", 0, 200, spike=spike, scale="log"),))
    x, _ = Encoding(schema).encode({"x": np.full(1000, count)}, np.random.default_rng(13))
    low, high = np.log([0.5 if spike is None else 1.5, 201.5])
    edges = 2 * (np.log([count + 0.5, count + 1.5]) - low) / (high - low) - 1
    assert ((edges[0] < x[:, 0]) & (x[:, 0] < edges[1])).all()
    assert np.ptp(x[:, 0]) > 0.9 * (edges[1] - edges[0])


def test_binary_noise_has_the_measured_width() -> None:
    schema, n = Schema((Column("x", "binary"),)), 40_000
    x, _ = Encoding(schema).encode({"x": np.ones(n)}, np.random.default_rng(5))
    # sd of the sample sd of a Gaussian: sd / sqrt(2n); truncation at 3.6 sd takes off 0.3 %.
    assert abs(x.std() - 0.2493) < CUTOFF * 0.25 / np.sqrt(2 * n)
    assert (np.abs(x - 1) <= 0.9).all()


@pytest.mark.parametrize("uniform", [False, True])
def test_second_moments_carry_small_effects(uniform: bool) -> None:
    """Covariances of encoded rows are the codes' own, variances theirs and a public constant.

    The law is checked with the codes held fixed, so that all that varies is the noise: a sum of
    independent terms of mean 0. Its twin fills the whole of a level's half space, U(0, 1).
    """
    schema = Schema((Column("a", "binary"), Column("y", "binary"), Column("k", "integer", 0, 9)))
    rng, n = np.random.default_rng(10), 200_000
    a = rng.integers(0, 2, n)
    y = rng.random(n) < 0.1 + 0.01 * a
    k = rng.integers(0, 10, n)
    codes = np.column_stack([2 * a - 1, 2 * y - 1, (k + 0.5) / 5 - 1])
    x, _ = Encoding(schema).encode({"a": a, "y": y, "k": k}, rng)
    if uniform:
        x[:, :2] = codes[:, :2] + 2 * rng.random((n, 2)) - 1
    noise = np.array([0.2493, 0.2493, 0.98 * 0.1 / np.sqrt(3)])  # sds: truncated Gaussian, uniform
    more = (x.T @ x - codes.T @ codes) / n - np.diag(noise**2)
    # The noise e of codes c adds the mean of c e' + e c' + e e', or of 2 c e + e² less its mean,
    # with |c| ≤ 1 and a variance of e² of at most twice its mean squared.
    pairs = noise[:, None] ** 2 + noise**2
    se = np.sqrt((pairs + np.outer(noise, noise) ** 2) * (1 + np.eye(3)) / n)
    assert (np.abs(more) < CUTOFF * se).all() == (not uniform)


@pytest.mark.parametrize("count", [2, 3, 7, 100])
def test_simplex_is_regular(count: int) -> None:
    gram = simplex(count) @ simplex(count).T
    expected = np.full((count, count), -1 / (count - 1))
    np.fill_diagonal(expected, 1)
    np.testing.assert_allclose(gram, expected, atol=1e-12)


def test_a_missing_value_makes_a_null_record() -> None:
    schema = Schema((Column("a", "binary"), Column("b", "integer", 0, 9, nullable=True)))
    coded = {"a": [0.0, np.nan, 7.0, 1.0], "b": [1.0, 2.0, 3.0, np.nan]}
    x, present = Encoding(schema).encode(coded, np.random.default_rng(6))
    assert present.tolist() == [True, False, False, True]
    assert (x[1:3] == 0).all()
    assert (x[[0, 3]] != 0).all()


def test_a_row_does_not_depend_on_the_others() -> None:
    schema = Schema((Column("a", "categorical", levels=("p", "q", "r"), nullable=True),))
    encoding = Encoding(schema)
    one, _ = encoding.encode({"a": [0.0, 1.0, 2.0]}, np.random.default_rng(7))
    two, _ = encoding.encode({"a": [0.0, np.nan, 2.0]}, np.random.default_rng(7))
    np.testing.assert_array_equal(one[[0, 2]], two[[0, 2]])


def test_the_box_cannot_be_changed() -> None:
    encoding = Encoding(Schema((Column("a", "binary"),)))
    with pytest.raises(ValueError, match="read-only"):
        encoding.low[0] = -100


def test_bounds_off_the_grid_come_back_inside() -> None:
    column = Column("a", "continuous", 0.13, 0.77, 1)
    decoded = Encoding(Schema((column,))).decode([[-np.inf], [np.inf], [np.nan]])["a"]
    assert decoded[0] == 0.2
    assert decoded[1] == 0.7


@pytest.mark.parametrize("shape", [(3,), (3, 2), (1, 3, 1)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="shape"):
        Encoding(Schema((Column("a", "binary"),))).decode(np.zeros(shape))


@pytest.mark.parametrize(
    "coded", [{}, {"a": [0.0], "b": [0.0]}, {"a": [[0.0]]}, {"a": ["x"]}], ids=str
)
def test_other_tables_are_refused(coded: dict[str, npt.ArrayLike]) -> None:
    with pytest.raises(InvalidInput):
        Encoding(Schema((Column("a", "binary"),))).encode(coded, np.random.default_rng(8))


@given(columns(), st.integers(0, 2**32))
def test_kept_noise_is_what_would_be_drawn_again(column: Column, seed: int) -> None:
    schema, rng = schema_of(column), np.random.default_rng(seed)
    encoding = Encoding(schema)
    kept = KeptDither(np.random.default_rng(seed))
    for _ in range(3):  # whatever the rows
        coded = encoding.decode(rng.uniform(encoding.low, encoding.high, (5, encoding.d)))
        drawn, _ = encoding.encode(coded, np.random.default_rng(seed))
        np.testing.assert_array_equal(encoding.encode(coded, kept.again())[0], drawn)


def test_kept_noise_is_for_one_number_of_rows() -> None:
    encoding, kept = (
        Encoding(schema_of(Column("x", "binary"))),
        KeptDither(np.random.default_rng(0)),
    )
    encoding.encode({"x": [0.0, 1.0]}, kept)
    with pytest.raises(ValueError, match="kept noise is of shape"):
        encoding.encode({"x": [0.0]}, kept.again())
