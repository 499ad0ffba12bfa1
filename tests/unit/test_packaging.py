"""What is shipped, what the light install needs, and one way of importing."""

import subprocess
import sys
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
HEAVY = (
    "torch",
    "autodp",
    "dp_accounting",
    "grpc",
    "sqlalchemy",
    "statsmodels",
    "matplotlib",
    "fastapi",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    from hatchling.builders.wheel import WheelBuilder

    folder = tmp_path_factory.mktemp("wheel")
    return next(WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"]))


def test_the_wheel_ships_exactly_three_packages(wheel):
    names = {n.split("/")[0] for n in zipfile.ZipFile(wheel).namelist()}
    packages = {n for n in names if not n.endswith(".dist-info")}
    assert packages == {"penstock", "penstock_client", "penstock_server"}


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


def without(modules: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter where these modules cannot be imported."""
    block = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {modules!r}:
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


def test_every_command_group_loads():
    points = entry_points(group="penstock.commands")
    assert {p.name for p in points} == {
        "audit", "demo", "key", "login", "logout", "pull", "server", "simulate", "site", "study",
    }  # fmt: skip
    for point in points:
        assert point.load() is not None
