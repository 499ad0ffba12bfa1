"""Pictures show what they are given, name their axes, and are only made of what can be drawn."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from tests.studies import particle_plots as plots
from tests.studies.particle_plots import HELD, Trajectories

from penstock.base.errors import InvalidInput

RNG = np.random.default_rng(0)
T, M, P, K = 4, 7, 5, 9
TIMES, SNAPSHOTS = np.linspace(0, 3, K), np.arange(T, dtype=np.float64)
RELEASE = Trajectories(
    ("pressure (mmHg)", "bmi", "age"),
    TIMES,
    RNG.normal(size=(P, K, 3)),
    SNAPSHOTS,
    RNG.normal(size=(T, M, 3)),
    "visit (years)",
)


def gaussian(points: np.ndarray) -> np.ndarray:
    return np.exp(-(points**2).sum(1) / 2)


def drawn(panel) -> list[np.ndarray]:
    """The points of a panel's lines."""
    return [np.column_stack(line.get_data()) for line in panel.lines]


def table() -> dict[str, np.ndarray]:
    """What a site releases: two copies of snapshots, particles, paths."""
    snapshots = {"_copy": np.repeat([1, 2, -1], 6), "_path": np.zeros(18)}
    parts = {
        "_copy": [snapshots["_copy"], np.zeros(T * M + P * K)],
        "_path": [snapshots["_path"], np.full(T * M, -1), np.repeat(np.arange(1, P + 1), K)],
        "visit": [np.zeros(18), np.repeat(SNAPSHOTS, M), np.tile(TIMES, P)],
    }
    for j, name in enumerate(("pressure", "bmi")):
        values = [np.zeros(18), RELEASE.particles[:, :, j].ravel(), RELEASE.paths[:, :, j].ravel()]
        parts[name] = values
    return {name: np.concatenate(part) for name, part in parts.items()}


def test_a_released_table_is_read_back():
    units = {"pressure": "mmHg", "visit": "years"}
    found = Trajectories.from_table(table(), "visit", ["pressure", "bmi"], units)
    assert found.columns == ("pressure (mmHg)", "bmi")
    assert found.clock == "visit (years)"
    np.testing.assert_array_equal(found.times, TIMES)
    np.testing.assert_array_equal(found.snapshots, SNAPSHOTS)
    np.testing.assert_array_equal(found.paths, RELEASE.paths[:, :, :2])
    np.testing.assert_array_equal(found.particles, RELEASE.particles[:, :, :2])


def test_times_on_a_coarse_grid_are_drawn_evenly():
    coarse = table()
    coarse["visit"] = np.rint(coarse["visit"])
    found = Trajectories.from_table(coarse, "visit", ["bmi"])
    np.testing.assert_allclose(found.times, TIMES)
    np.testing.assert_array_equal(found.paths[:, :, 0], RELEASE.paths[:, :, 1])
    plots.trajectories(found)


@pytest.mark.parametrize("missing", ["_copy", "_path", "visit", "bmi"])
def test_a_table_without_a_column_is_refused(missing):
    lacking = {name: values for name, values in table().items() if name != missing}
    with pytest.raises(InvalidInput, match=missing):
        Trajectories.from_table(lacking, "visit", ["bmi"])


@pytest.mark.parametrize("gone", [-1, 1])
def test_a_table_without_particles_or_with_a_torn_path_is_refused(gone):
    whole = table()
    kept = whole["_path"] != gone
    if gone == 1:
        kept |= whole["visit"] > 1
    with pytest.raises(InvalidInput):
        Trajectories.from_table({k: v[kept] for k, v in whole.items()}, "visit", ["bmi"])


def test_flow_has_a_panel_per_moment_with_its_particles():
    clouds = {f"step {k}": RNG.normal(size=(30, 2)) for k in range(4)}
    figure = plots.flow(clouds, gaussian, axes=("age", "bmi"), across=3)
    seen = [panel for panel in figure.axes if panel.get_visible()]
    assert [panel.get_title() for panel in seen] == list(clouds)
    for panel, points in zip(seen, clouds.values(), strict=True):
        np.testing.assert_array_equal(drawn(panel)[0], points)
        assert panel.collections  # level sets
    assert "age" in figure.get_supxlabel()
    assert figure.get_supylabel() == "bmi"


def test_level_sets_hold_the_shares_that_are_told():
    """A Gaussian's region of mass s reaches to radius² = -2 log(1 - s)."""
    _, _, density = plots._grid(gaussian, [RNG.normal(size=(200_000, 2)) * 1.5])
    levels = plots._levels(density)
    radii = np.sqrt(-2 * np.log(np.array(levels)))
    np.testing.assert_allclose(radii, np.sqrt(-2 * np.log(1 - np.array(HELD))), rtol=0.05)


def test_level_sets_of_points_keep_modes_apart():
    sample = np.concatenate([RNG.normal(size=(300, 2)) * 0.3 + c for c in (-2, 2)])
    x, y, density = plots._grid(plots._smooth(sample), [sample])
    middle = density[abs(y).argmin(), abs(x).argmin()]
    assert middle < 0.01 * plots._levels(density)[0]


def test_trajectories_show_paths_and_particles_of_each_column():
    figure = plots.trajectories(RELEASE)
    panels = [panel for panel in figure.axes if panel.get_visible()]
    assert [panel.get_ylabel() for panel in panels] == list(RELEASE.columns)
    assert {panel.get_xlabel() for panel in panels} == {"visit (years)"}
    for j, panel in enumerate(panels):
        lines = drawn(panel)
        for path, line in zip(RELEASE.paths[:, :, j], lines, strict=False):
            np.testing.assert_array_equal(line, np.column_stack([TIMES, path]))
        dots = np.column_stack([np.repeat(SNAPSHOTS, M), RELEASE.particles[:, :, j].ravel()])
        np.testing.assert_array_equal(lines[P], dots)


def test_trajectories_of_chosen_columns_and_in_the_plane():
    figure = plots.trajectories(RELEASE, plane=(2, 0), shown=[1])
    time, plane = figure.subfigs[0].axes, figure.subfigs[1].axes
    assert [panel.get_ylabel() for panel in time] == ["bmi"]
    assert (plane[0].get_xlabel(), plane[0].get_ylabel()) == ("age", "pressure (mmHg)")
    assert plane[1].get_ylabel() == "visit (years)"  # the colours' bar
    dots = plane[0].collections[0].get_offsets()
    np.testing.assert_array_equal(dots, RELEASE.particles[:, :, [2, 0]].reshape(-1, 2))


def test_the_shades_are_each_times_own_shares():
    panel = plots.trajectories(RELEASE, shown=[0]).axes[0]
    shades = panel.collections[0].get_array().reshape(-1, K)
    assert (shades.max(axis=0) == 1).all()
    assert ((shades > 0).sum(axis=0) <= P).all()


def test_all_values_equal_can_be_drawn():
    flat = Trajectories(("x",), TIMES, np.ones((2, K, 1)), SNAPSHOTS, np.ones((T, 3, 1)))
    plots.trajectories(flat)


def test_convergence_shows_medians_of_runs():
    runs = np.exp(RNG.normal(size=(9, 20)))
    figure = plots.convergence({"ours": runs, "once": runs[0]}, objective="SW2 (mmHg)")
    panel = figure.axes[0]
    np.testing.assert_allclose(drawn(panel)[0][:, 1], np.median(runs, axis=0))
    np.testing.assert_allclose(drawn(panel)[1][:, 1], runs[0])
    assert panel.get_ylabel() == "SW2 (mmHg)"
    assert [text.get_text() for text in figure.legends[0].texts] == ["ours", "once"]


def test_epsilon_shows_means_in_order_with_two_standard_errors():
    values = {10.0: [0.1, 0.3], 1.0: [0.5, 0.7]}
    figure = plots.epsilon_against_distance(
        {"sketch": list(values.items())},
        distance="SW2",
        condition="at δ = 1e-5",
        floor=("true samples", 0.05),
    )
    panel = figure.axes[0]
    line, _, (bars,) = panel.containers[0]
    np.testing.assert_allclose(np.array(line.get_data(), dtype=float), [[1, 10], [0.6, 0.2]])
    np.testing.assert_allclose([s[1, 1] - s[0, 1] for s in bars.get_segments()], 0.4)
    assert panel.get_xlabel() == "ε at δ = 1e-5"
    assert [text.get_text() for text in figure.legends[0].texts] == ["sketch", "true samples"]


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_files_are_written(tmp_path, suffix):
    path = tmp_path / f"paths{suffix}"
    plots.save(plots.trajectories(RELEASE, plane=(0, 1)), path)
    assert path.read_bytes()[:4] in (b"\x89PNG", b"<?xm", b"%PDF")


def test_names_may_be_anything(tmp_path):
    odd = Trajectories(("$x_{", "y"), TIMES, RELEASE.paths[..., :2], SNAPSHOTS, RELEASE.particles)
    plots.save(plots.trajectories(odd, shown=[0]), tmp_path / "odd.png")
    plots.save(plots.flow({"$_{": RNG.normal(size=(9, 2))}, gaussian), tmp_path / "flow.png")


CLOUD = RNG.normal(size=(9, 2))
WRONG = {
    "no snapshots": lambda: plots.flow({}, gaussian),
    "not in a plane": lambda: plots.flow({"a": np.ones((3, 3))}, gaussian),
    "not finite": lambda: plots.flow({"a": CLOUD * np.nan}, gaussian),
    "no target": lambda: plots.flow({"a": CLOUD}, CLOUD[:0]),
    "no such column": lambda: plots.trajectories(RELEASE, shown=[3]),
    "no such plane": lambda: plots.trajectories(RELEASE, plane=(0, -1)),
    "no curve": lambda: plots.convergence({}, objective="x"),
    "too many curves": lambda: plots.convergence(
        {str(i): [1.0] for i in range(7)}, objective="SW2"
    ),
    "another suffix": lambda: plots.save(plots.trajectories(RELEASE), plots.Path("a.gif")),
}


@pytest.mark.parametrize("what", WRONG)
def test_refused(what):
    with pytest.raises(InvalidInput):
        WRONG[what]()


def test_importing_it_loads_no_matplotlib():
    """Where nobody draws, matplotlib need not be installed."""
    code = (
        "import sys, tests.studies.particle_plots; "
        "sys.exit(bool({'matplotlib', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
