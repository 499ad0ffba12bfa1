"""What is shipped, what the light install needs, and one way of importing."""

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from penstock.mechanisms.flow import kernel

ROOT = Path(__file__).parent.parent.parent
HEAVY = (
    "torch",
    "autodp",
    "dp_accounting",
    "grpc",
    "sqlalchemy",
    "statsmodels",
    "lifelines",
    "ot",
    "matplotlib",
    "fastapi",
)
STATISTICS = ("lifelines", "ot", "statsmodels")


def build_wheel(folder):
    from hatchling.builders.wheel import WheelBuilder

    return Path(next(WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def pure_wheel(tmp_path_factory):
    """Built where there is no compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path_factory.mktemp("empty")))
        patch.delenv("CXX", raising=False)
        patch.delenv("PENSTOCK_KERNEL", raising=False)
        return build_wheel(tmp_path_factory.mktemp("pure"))


def contents(wheel):
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.parametrize("kind", ["wheel", "pure_wheel"])
def test_the_wheel_ships_exactly_three_packages(kind, request):
    names = {n.split("/")[0] for n in contents(request.getfixturevalue(kind))}
    packages = {n for n in names if not n.endswith(".dist-info")}
    assert packages == {"penstock", "penstock_client", "penstock_server"}


def compiled(wheel):
    return {n for n in contents(wheel) if n.endswith(".so")}


def test_a_wheel_carries_the_kernel_and_says_for_which_system(wheel):
    if kernel.why_not():
        pytest.skip(kernel.why_not())
    assert "penstock/mechanisms/flow/kernel-generic.so" in compiled(wheel)
    tags = wheel.stem.split("-")[2:]
    assert tags[:2] == ["py3", "none"]
    assert tags[2] != "any"


def test_a_wheel_without_a_compiler_is_pure_and_computes_on_torch(
    wheel, pure_wheel, tmp_path, monkeypatch
):
    assert pure_wheel.stem.endswith("-py3-none-any")
    info = {n for n in contents(wheel) | contents(pure_wheel) if ".dist-info/" in n}
    assert contents(pure_wheel) - info == contents(wheel) - info - compiled(wheel)
    assert not compiled(pure_wheel)
    zipfile.ZipFile(pure_wheel).extractall(tmp_path)
    monkeypatch.delenv("PENSTOCK_KERNEL", raising=False)
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import numpy as np
from penstock.mechanisms.flow.architecture import Architecture
from penstock.mechanisms.flow.engine import make_flow
flows = [make_flow(Architecture(2)) for _ in range(2)]
print(type(flows[0]).__name__, flows[0].to_latent(np.ones((1, 2))).tolist())
"""
    done = without((), code)
    assert done.stdout == "TorchFlow [[1.0, 1.0]]\n", done.stderr
    assert done.stderr.count("no kernel was compiled") == 1


def test_a_kernel_that_is_required_must_compile(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_KERNEL", "require")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match=r"no C\+\+ compiler \(no-such-compiler\)"):
        build_wheel(tmp_path)


def test_the_build_hook_is_not_shipped(wheel):
    assert "penstock/mechanisms/flow/kernel.cpp" in contents(wheel)
    assert "penstock/mechanisms/flow/build.py" not in contents(wheel)


@pytest.mark.parametrize(
    "name",
    [
        "penstock/py.typed",
        "penstock/wire/gate.proto",
        "penstock_server/report/report.html.j2",
        "penstock_server/report/report.css",
        "penstock_server/report/report.schema.json",
    ],
)
def test_the_wheel_ships_its_data(wheel, name):
    assert name in zipfile.ZipFile(wheel).namelist()


def test_the_wheel_ships_every_template(wheel):
    templates = {str(p.relative_to(ROOT / "server")) for p in (ROOT / "server").rglob("*.j2")}
    assert len(templates) > 10
    assert templates <= contents(wheel)


def without(modules: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter where these modules cannot be imported."""
    block = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {modules!r} or name in {modules!r}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Blocked())
"""
    return subprocess.run(
        [sys.executable, "-c", block + code], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("module", ["penstock.cli.main", "penstock.cli.study", "penstock.cli.key"])
def test_the_analysts_half_needs_no_heavy_package(module):
    done = without(HEAVY, f"import {module}")
    assert done.returncode == 0, done.stderr


def test_a_missing_extra_is_said_in_one_line():
    code = "import sys; sys.argv = ['penstock', 'site', 'init']\n"
    done = without(("grpc",), code + "from penstock.cli.main import main; main()")
    assert done.returncode == 1
    assert "pip install 'penstock[site]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_gates_process_imports_no_torch():
    done = without(("torch",), "import penstock_client.gate.service, penstock_client.cli")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "module",
    [
        "penstock_client.cli",
        "penstock_client.gate.service",
        "penstock_client.operate.flower.supernode",
        "penstock_server.cli",
    ],
)
def test_what_starts_often_waits_for_no_package_that_it_may_not_need(module):
    """Three seconds went by before `penstock site start` did anything, half of them here."""
    slow = ("pandas", "scipy", "matplotlib", "autodp", "dp_accounting", "torch")
    done = without((*slow, *STATISTICS), f"import {module}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["penstock_server.demo", "penstock_server.results.production"])
def test_a_report_waits_for_no_package_of_models_that_it_may_not_fit(module):
    """Half of the time in which `penstock demo` refused a wrong argument went by in these."""
    done = without(("pandas", "scipy.stats", "matplotlib", *STATISTICS), f"import {module}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "module", ["penstock.mechanisms.structured.run", "penstock.questions.estimation"]
)
def test_what_sees_rows_needs_no_package_of_models(module):
    """A site's worker fits regressions, too: with numpy."""
    done = without(("pandas", *STATISTICS), f"import penstock_client.work.worker, {module}")
    assert done.returncode == 0, done.stderr


def test_a_coordinator_is_installed_with_what_its_report_is_made_by():
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = asked["optional-dependencies"]
    names = {extra: {re.split("[<>=[]", one)[0] for one in extras[extra]} for extra in extras}
    assert {"lifelines", "pot", "statsmodels"} <= names["server"]
    light = names["site"] | {re.split("[<>=[]", one)[0] for one in asked["dependencies"]}
    assert not light & {"lifelines", "pot", "statsmodels"}


def test_every_command_group_loads():
    points = entry_points(group="penstock.commands")
    assert {p.name for p in points} == {
        *("analyse", "audit", "demo", "key", "login", "logout"),
        *("pull", "server", "simulate", "site", "study"),
    }
    for point in points:
        assert point.load() is not None
